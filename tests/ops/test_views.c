/* Views: which elements they show, that they share memory, when a reshape has to copy, and what
 * they refuse. tests/ops/test_view_chains.c tries random ones. */
#include "support/engine.h"

/* A view and its source lie in the same memory. */
static bool shares(const km_tensor *a, const km_tensor *b) { return a->storage == b->storage; }

static void a_slice_takes_every_nth_element_between_its_bounds(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(10));
    assert_elements(ctx, km_slice(ctx, t, 0, 2, 9, 3), 2, 5, 8);
    assert_elements(ctx, km_slice(ctx, t, 0, 2, 8, 3), 2, 5);
    assert_elements(ctx, km_slice(ctx, t, -1, -3, 10, 1), 7, 8, 9);
    assert_elements(ctx, km_slice(ctx, t, 0, -10, -8, 1), 0, 1);
    assert_elements(ctx, km_slice(ctx, t, 0, 0, 10, INT64_MAX), 0);
    assert_elements(ctx, km_slice(ctx, t, 0, 9, 10, 5), 9);
    assert_shape(km_slice(ctx, t, 0, 4, 4, 1), KM_SHAPE(0));
    assert_shape(km_slice(ctx, t, 0, 10, 10, 1), KM_SHAPE(0));
    assert_shape(km_slice(ctx, t, 0, 10, 10, INT64_MAX), KM_SHAPE(0));
    assert_true(shares(km_slice(ctx, t, 0, 2, 9, 3), t));
    km_tensor *m = engine_range(ctx, KM_I32, KM_SHAPE(3, 4));
    assert_elements(ctx, km_slice(ctx, m, 1, 1, 4, 2), 1, 3, 5, 7, 9, 11);
    assert_elements(ctx, km_slice(ctx, km_slice(ctx, m, 0, 0, 3, 2), 1, 3, 4, 1), 3, 11);
}

static void a_slice_with_a_negative_step_goes_backwards(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(10)),
              *none = km_zeros(ctx, KM_F32, KM_SHAPE(0));
    assert_elements(ctx, km_slice(ctx, t, 0, 9, 0, -1), 9, 8, 7, 6, 5, 4, 3, 2, 1);
    assert_elements(ctx, km_slice(ctx, t, 0, 9, 0, -4), 9, 5, 1);
    assert_elements(ctx, km_slice(ctx, t, 0, -1, KM_END, -3), 9, 6, 3, 0);
    assert_elements(ctx, km_slice(ctx, t, 0, 2, -11, -1), 2, 1, 0); /* -11: before the first */
    assert_elements(ctx, km_slice(ctx, t, 0, 7, KM_END, INT64_MIN), 7);
    assert_elements(ctx, km_slice(ctx, t, 0, 7, KM_END, 2), 7, 9);
    assert_shape(km_slice(ctx, t, 0, 4, 4, -1), KM_SHAPE(0));
    assert_shape(km_slice(ctx, none, 0, -1, KM_END, -1), KM_SHAPE(0));
    assert_true(shares(km_slice(ctx, t, 0, 9, 0, -4), t));

    km_tensor *m = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *back = km_slice(ctx, m, 1, -1, KM_END, -1);
    assert_elements(ctx, back, 2, 1, 0, 5, 4, 3);
    assert_elements(ctx, km_slice(ctx, back, 1, -1, KM_END, -1), 0, 1, 2, 3, 4, 5);
    assert_elements(ctx, km_slice(ctx, km_slice(ctx, back, 0, -1, KM_END, -1), 1, 0, 3, 2), 5, 3, 2,
                    0);
    assert_elements(ctx, km_transpose(ctx, back, 0, 1), 2, 5, 1, 4, 0, 3);
    assert_elements(ctx, km_reshape(ctx, back, KM_SHAPE(3, 2)), 2, 1, 0, 5, 4, 3);
    assert_elements(ctx, km_add(ctx, back, m), 2, 2, 2, 8, 8, 8);
    assert_elements(ctx, km_cast(ctx, back, KM_I64), 2, 1, 0, 5, 4, 3);
    assert_elements(ctx, km_sum(ctx, back, (int[]){0}, 1, false), 7, 5, 3);
    assert_elements(ctx, km_matmul(ctx, back, km_transpose(ctx, m, 0, 1)), 1, 10, 10, 46);
    assert_elements(ctx, km_concat(ctx, (km_tensor *[]){back, m}, 2, 0), 2, 1, 0, 5, 4, 3, 0, 1, 2,
                    3, 4, 5);
    assert_elements(ctx, km_embedding(ctx, back, I32(ctx, KM_SHAPE(1), 1)), 5, 4, 3);
    assert_ok(ctx);
}

static void a_reversed_view_can_be_written_through(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *back = km_slice(ctx, t, 1, -1, KM_END, -1);
    assert_int_equal(km_write(ctx, back, (float[]){1, 2, 3, 4, 5, 6}, 24), KM_OK);
    assert_elements(ctx, t, 3, 2, 1, 6, 5, 4);
    assert_int_equal(km_assign(ctx, back, t), KM_OK); /* overlapping: reverses in place */
    assert_elements(ctx, t, 1, 2, 3, 4, 5, 6);
}

static void the_gradient_of_a_reversed_slice_goes_back_where_it_came_from(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(7)));
    km_tensor *some = km_slice(ctx, p, 0, -1, KM_END, -3); /* 6, 3, 0 */
    km_backward(ctx,
                km_sum(ctx, km_mul(ctx, some, F32(ctx, KM_SHAPE(3), 10, 20, 30)), NULL, 0, false));
    assert_elements(ctx, km_grad(p), 30, 0, 0, 20, 0, 0, 10);
    km_release(p);
}

static void a_slice_outside_its_axis_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3, 10));
#define NO_SLICE(start, stop, step)                                                                \
    assert_refused(ctx, km_slice(ctx, t, 1, start, stop, step), KM_ERR_RANGE,                      \
                   "slice: " #start ":" #stop ":" #step " does not lie in axis 1 of size 10")
    NO_SLICE(0, 11, 1);
    NO_SLICE(-11, 3, 1);
    NO_SLICE(5, 4, 1);
    NO_SLICE(0, 10, 0);
    NO_SLICE(0, 9, -1);
    NO_SLICE(10, 0, -1);
    NO_SLICE(9, -12, -1);
    NO_SLICE(-12, -11, -1);
    NO_SLICE(0, -11, 1);
    NO_SLICE(11, 12, 1);
    NO_SLICE(0, 9223372036854775807, 1);
    assert_refused(ctx, km_slice(ctx, t, 1, INT64_MIN, 3, 1), KM_ERR_RANGE,
                   "slice: -9223372036854775808:3:1 does not lie in axis 1 of size 10");
    assert_refused(ctx, km_slice(ctx, t, 2, 0, 1, 1), KM_ERR_RANGE, "slice: no axis 2 in [3, 10]");
    assert_refused(ctx, km_slice(ctx, t, -3, 0, 1, 1), KM_ERR_RANGE,
                   "slice: no axis -3 in [3, 10]");
}

static void narrow_and_select_pick_parts(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3, 4));
    assert_elements(ctx, km_narrow(ctx, t, 1, 1, 2), 1, 2, 5, 6, 9, 10);
    assert_shape(km_narrow(ctx, t, 0, 3, 0), KM_SHAPE(0, 4));
    km_tensor *row = km_select(ctx, t, 0, -1), *column = km_select(ctx, t, -1, 2);
    assert_shape(row, KM_SHAPE(4));
    assert_elements(ctx, row, 8, 9, 10, 11);
    assert_elements(ctx, column, 2, 6, 10);
    assert_shape(km_select(ctx, row, 0, 1), KM_SCALAR);
    assert_true(km_item(ctx, km_select(ctx, row, 0, 1)) == 9);
    assert_refused(ctx, km_narrow(ctx, t, 1, 2, 3), KM_ERR_RANGE,
                   "narrow: 3 elements from 2 do not lie in axis 1 of size 4");
    assert_refused(ctx, km_narrow(ctx, t, 1, -1, 1), KM_ERR_RANGE,
                   "narrow: 1 elements from -1 do not lie in axis 1 of size 4");
    assert_refused(ctx, km_narrow(ctx, t, 0, 1, INT64_MAX), KM_ERR_RANGE,
                   "narrow: 9223372036854775807 elements from 1 do not lie in axis 0 of size 3");
    assert_refused(ctx, km_select(ctx, t, 0, 3), KM_ERR_RANGE,
                   "select: no index 3 in axis 0 of size 3");
    assert_refused(ctx, km_select(ctx, t, 0, -4), KM_ERR_RANGE,
                   "select: no index -4 in axis 0 of size 3");
    assert_refused(ctx, km_select(ctx, km_select(ctx, row, 0, 1), 0, 0), KM_ERR_RANGE,
                   "select: no axis 0 in []");
}

static void axes_change_places(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3, 2));
    km_tensor *turned = km_transpose(ctx, t, 0, -1);
    assert_shape(turned, KM_SHAPE(2, 3, 2));
    assert_elements(ctx, turned, 0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11);
    km_tensor *moved = km_permute(ctx, t, (int[]){1, -1, 0});
    assert_shape(moved, KM_SHAPE(3, 2, 2));
    assert_elements(ctx, moved, 0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11);
    assert_true(shares(moved, t));
    assert_elements(ctx, km_transpose(ctx, t, 1, 1), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    assert_shape(km_permute(ctx, km_ones(ctx, KM_F32, KM_SCALAR), NULL), KM_SCALAR);
    const char *text = "permute: the axes are no permutation of those of [2, 3, 2]";
    assert_refused(ctx, km_permute(ctx, t, (int[]){0, 1, 1}), KM_ERR_RANGE, text);
    assert_refused(ctx, km_permute(ctx, t, (int[]){0, 2, -1}), KM_ERR_RANGE, text);
    assert_refused(ctx, km_permute(ctx, t, (int[]){0, 1, 3}), KM_ERR_RANGE, text);
    assert_refused(ctx, km_permute(ctx, t, NULL), KM_ERR_RANGE, text);
    assert_refused(ctx, km_transpose(ctx, t, 0, 3), KM_ERR_RANGE,
                   "transpose: no axis 3 in [2, 3, 2]");
}

static void a_reshape_of_neighbouring_elements_is_a_view(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(4, 6));
    km_tensor *r = km_reshape(ctx, t, KM_SHAPE(2, -1, 3));
    assert_shape(r, KM_SHAPE(2, 4, 3));
    assert_true(shares(r, t));
    assert_ptr_equal(km_reshape(ctx, t, KM_SHAPE(4, 6)), t);
    assert_ptr_equal(km_reshape(ctx, t, KM_SHAPE(4, -1)), t);
    assert_shape(km_reshape(ctx, km_ones(ctx, KM_F32, KM_SHAPE(1, 1)), KM_SCALAR), KM_SCALAR);
    assert_shape(km_reshape(ctx, km_ones(ctx, KM_F32, KM_SCALAR), KM_SHAPE(1, 1, 1, 1, 1)),
                 KM_SHAPE(1, 1, 1, 1, 1));
}

static void a_reshape_of_a_strided_view_copies_only_when_it_must(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(4, 6));
    km_tensor *left = km_narrow(ctx, t, 1, 0, 4); /* (4, 4), rows 6 apart */
    km_tensor *r = km_reshape(ctx, left, KM_SHAPE(2, 2, 2, 2));
    assert_true(shares(r, t));
    assert_elements(ctx, r, 0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21);
    r = km_reshape(ctx, left, KM_SHAPE(2, 8)); /* a row would jump */
    assert_false(shares(r, t));
    assert_elements(ctx, r, 0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21);

    km_tensor *turned = km_transpose(ctx, t, 0, 1); /* (6, 4), by columns */
    r = km_reshape(ctx, turned, KM_SHAPE(2, 3, 4, 1));
    assert_true(shares(r, t));
    assert_elements(ctx, km_select(ctx, km_select(ctx, r, 0, 1), 0, 0), 3, 9, 15, 21);
    r = km_reshape(ctx, turned, KM_SHAPE(24));
    assert_false(shares(r, t));
    assert_true(engine_element(ctx, r, 5) == 7);

    km_tensor *every = km_slice(ctx, km_reshape(ctx, t, KM_SHAPE(24)), 0, 0, 24, 2);
    r = km_reshape(ctx, every, KM_SHAPE(3, 4)); /* an even step can be cut */
    assert_true(shares(r, t));
    assert_elements(ctx, r, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22);

    km_tensor *heads =
        km_permute(ctx, km_reshape(ctx, t, KM_SHAPE(2, 2, 2, 3)), (int[]){0, 2, 1, 3});
    assert_false(shares(km_reshape(ctx, heads, KM_SHAPE(4, 6)), t));
    r = km_reshape(ctx, km_permute(ctx, heads, (int[]){0, 2, 1, 3}),
                   KM_SHAPE(4, 6)); /* back again */
    assert_true(shares(r, t));
    assert_true(km_tensor_is_contiguous(r));
}

static void repeated_axes_merge_without_a_copy(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3));
    km_tensor *wide = km_broadcast(ctx, t, KM_SHAPE(2, 4, 3));
    km_tensor *r = km_reshape(ctx, wide, KM_SHAPE(8, 3));
    assert_true(shares(r, t));
    assert_true(engine_element(ctx, r, 22) == 1);
    assert_false(shares(km_reshape(ctx, wide, KM_SHAPE(24)), t));
    r = km_reshape(ctx, km_broadcast(ctx, km_select(ctx, t, 0, 2), KM_SHAPE(4, 6)), KM_SHAPE(3, 8));
    assert_true(shares(r, t));
    assert_true(engine_element(ctx, r, 23) == 2);
}

static void an_impossible_reshape_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2, 3));
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(4)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [4]");
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(4, -1)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [4, -1]");
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(-1, -1)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [-1, -1]");
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(-2, -3)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [-2, -3]");
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(0, -1)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [0, -1]");
    assert_refused(ctx, km_reshape(ctx, t, KM_SCALAR), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become []");
    int64_t half = 1LL << 32; /* the product wraps to 0 */
    assert_refused(ctx, km_reshape(ctx, t, KM_SHAPE(half, half)), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [4294967296, 4294967296]");
    assert_refused(ctx, km_reshape(ctx, t, (km_shape){6, {1, 1, 1, 1, 6}}), KM_ERR_SHAPE,
                   "reshape: [2, 3] has 6 elements and cannot become [1, 1, 1, 1, 6, ...]");
}

static void axes_of_size_one_come_and_go(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    assert_shape(km_unsqueeze(ctx, t, 0), KM_SHAPE(1, 2, 3));
    assert_shape(km_unsqueeze(ctx, t, 1), KM_SHAPE(2, 1, 3));
    assert_shape(km_unsqueeze(ctx, t, -1), KM_SHAPE(2, 3, 1));
    assert_shape(km_unsqueeze(ctx, t, -3), KM_SHAPE(1, 2, 3));
    assert_shape(km_squeeze(ctx, km_unsqueeze(ctx, t, 1), -2), KM_SHAPE(2, 3));
    km_tensor *v = km_unsqueeze(ctx, km_transpose(ctx, t, 0, 1), 1);
    assert_elements(ctx, v, 0, 3, 1, 4, 2, 5);
    assert_refused(ctx, km_unsqueeze(ctx, t, 3), KM_ERR_RANGE,
                   "unsqueeze: no place for an axis at 3 in [2, 3]");
    assert_refused(ctx, km_unsqueeze(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1, 1, 1, 1, 2)), 0),
                   KM_ERR_RANGE, "unsqueeze: no place for an axis at 0 in [1, 1, 1, 1, 2]");
    assert_refused(ctx, km_squeeze(ctx, t, 0), KM_ERR_SHAPE,
                   "squeeze: axis 0 of [2, 3] is not of size 1");
    assert_refused(ctx, km_squeeze(ctx, t, 2), KM_ERR_RANGE, "squeeze: no axis 2 in [2, 3]");
}

static void a_broadcast_repeats_without_copying(void **state) {
    km_ctx *ctx = *state;
    km_tensor *column = engine_range(ctx, KM_F32, KM_SHAPE(2, 1));
    km_tensor *wide = km_broadcast(ctx, column, KM_SHAPE(2, 2, 3));
    assert_elements(ctx, wide, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1);
    assert_true(shares(wide, column));
    assert_ptr_equal(km_broadcast(ctx, column, KM_SHAPE(2, 1)), column);
    assert_shape(km_broadcast(ctx, column, KM_SHAPE(2, 0)), KM_SHAPE(2, 0));
    assert_refused(ctx, km_broadcast(ctx, column, KM_SHAPE(3, 3)), KM_ERR_SHAPE,
                   "broadcast: [2, 1] does not become [3, 3]");
    assert_refused(ctx, km_broadcast(ctx, column, KM_SHAPE(2)), KM_ERR_SHAPE,
                   "broadcast: [2, 1] does not become [2]");
    assert_refused(ctx, km_broadcast(ctx, column, KM_SHAPE(2, -1)), KM_ERR_SHAPE,
                   "broadcast: negative size in [2, -1]");
}

static void a_split_cuts_equal_parts(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 6)), *part[7];
    assert_int_equal(km_split(ctx, t, -1, 3, part), KM_OK);
    assert_elements(ctx, part[0], 0, 1, 6, 7);
    assert_elements(ctx, part[2], 4, 5, 10, 11);
    assert_true(shares(part[1], t));
    assert_int_equal(km_split(ctx, t, 0, 1, part), KM_OK);
    assert_shape(part[0], KM_SHAPE(2, 6));
    assert_int_equal(km_split(ctx, t, 1, 4, part), KM_ERR_RANGE);
    assert_failed(ctx, KM_ERR_RANGE, "split: axis 1 of size 6 does not cut into 4 parts");
    for (int i = 0; i < 4; i++) assert_null(part[i]);
    assert_int_equal(km_split(ctx, t, 1, 0, part), KM_ERR_RANGE);
    assert_failed(ctx, KM_ERR_RANGE, "split: axis 1 of size 6 does not cut into 0 parts");
    assert_int_equal(km_split(ctx, t, 1, -2, part), KM_ERR_RANGE);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_split(ctx, t, 1, 2, NULL), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "split: no place for the parts");
    assert_int_equal(km_split(ctx, NULL, 1, 2, part), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "split: argument 1 is NULL");
}

static void views_of_nothing_show_nothing(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(3, 0, 2)), *part[3];
    assert_shape(km_transpose(ctx, t, 0, 2), KM_SHAPE(2, 0, 3));
    assert_shape(km_reshape(ctx, t, KM_SHAPE(-1, 5)), KM_SHAPE(0, 5));
    assert_shape(km_reshape(ctx, km_transpose(ctx, t, 0, 2), KM_SHAPE(0)), KM_SHAPE(0));
    assert_shape(km_slice(ctx, t, 1, 0, 0, 3), KM_SHAPE(3, 0, 2));
    assert_shape(km_select(ctx, t, 0, 2), KM_SHAPE(0, 2));
    assert_shape(km_broadcast(ctx, t, KM_SHAPE(4, 3, 0, 2)), KM_SHAPE(4, 3, 0, 2));
    assert_int_equal(km_split(ctx, t, 1, 3, part), KM_OK);
    assert_shape(part[2], KM_SHAPE(3, 0, 2));
    assert_shape(km_copy(ctx, km_transpose(ctx, t, 0, 1)), KM_SHAPE(0, 3, 2));
    assert_ok(ctx);
    assert_refused(ctx, km_select(ctx, t, 1, 0), KM_ERR_RANGE,
                   "select: no index 0 in axis 1 of size 0");
}

static void copies_are_contiguous_and_apart(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3)), *turned = km_transpose(ctx, t, 0, 1);
    km_tensor *c = km_contiguous(ctx, turned);
    assert_true(km_tensor_is_contiguous(c));
    assert_false(shares(c, t));
    assert_elements(ctx, c, 0, 3, 1, 4, 2, 5);
    assert_ptr_equal(km_contiguous(ctx, t), t);
    assert_false(shares(km_copy(ctx, t), t));
    assert_refused(ctx, km_contiguous(ctx, NULL), KM_ERR_NULL, "contiguous: argument 1 is NULL");
}

static void changes_are_seen_through_views(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(3, 3));
    km_tensor *column = km_select(ctx, t, 1, 1);
    km_assign(ctx, column, F32(ctx, KM_SHAPE(3), 1, 2, 3));
    assert_elements(ctx, t, 0, 1, 0, 0, 2, 0, 0, 3, 0);
    km_write(ctx, km_slice(ctx, km_transpose(ctx, t, 0, 1), 0, 0, 3, 2),
             (float[]){4, 5, 6, 7, 8, 9}, 24);
    assert_elements(ctx, t, 4, 1, 7, 5, 2, 8, 6, 3, 9);
}

static void every_view_names_itself_when_its_operand_is_missing(void **state) {
    km_ctx *ctx = *state;
#define NO_OPERAND(name, ...)                                                                      \
    assert_refused(ctx, km_##name(ctx, NULL, __VA_ARGS__), KM_ERR_NULL,                            \
                   #name ": argument 1 is NULL")
    NO_OPERAND(slice, 0, 0, 1, 1);
    NO_OPERAND(narrow, 0, 0, 1);
    NO_OPERAND(select, 0, 0);
    NO_OPERAND(transpose, 0, 1);
    NO_OPERAND(permute, NULL);
    NO_OPERAND(reshape, KM_SHAPE(1));
    NO_OPERAND(broadcast, KM_SHAPE(1));
    NO_OPERAND(unsqueeze, 0);
    NO_OPERAND(squeeze, 0);
    assert_refused(ctx, km_detach(ctx, NULL), KM_ERR_NULL, "detach: argument 1 is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_slice_takes_every_nth_element_between_its_bounds),
        ON_EACH(a_slice_with_a_negative_step_goes_backwards),
        ON_EACH(a_reversed_view_can_be_written_through),
        ON_EACH(the_gradient_of_a_reversed_slice_goes_back_where_it_came_from),
        ON("ref", a_slice_outside_its_axis_is_refused),
        ON_EACH(narrow_and_select_pick_parts),
        ON_EACH(axes_change_places),
        ON("ref", a_reshape_of_neighbouring_elements_is_a_view),
        ON_EACH(a_reshape_of_a_strided_view_copies_only_when_it_must),
        ON_EACH(repeated_axes_merge_without_a_copy),
        ON("ref", an_impossible_reshape_is_refused),
        ON_EACH(axes_of_size_one_come_and_go),
        ON_EACH(a_broadcast_repeats_without_copying),
        ON_EACH(a_split_cuts_equal_parts),
        ON_EACH(views_of_nothing_show_nothing),
        ON_EACH(copies_are_contiguous_and_apart),
        ON_EACH(changes_are_seen_through_views),
        ON("ref", every_view_names_itself_when_its_operand_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
