/* Shapes and dtypes: counting, printing, broadcasting, and the refusal of absurd sizes. */
#include "support/engine.h"

static void a_shape_is_written_as_a_list(void **state) {
    char text[KM_SHAPE_TEXT];
    assert_string_equal(km_shape_text(text, KM_SCALAR), "[]");
    assert_string_equal(km_shape_text(text, KM_SHAPE(7)), "[7]");
    assert_string_equal(km_shape_text(text, KM_SHAPE(1024, 512)), "[1024, 512]");
    assert_string_equal(km_shape_text(text, KM_SHAPE(-1, 0)), "[-1, 0]");
}

static void the_longest_shapes_fit_the_text(void **state) {
    char text[KM_SHAPE_TEXT];
    km_shape s = {5, {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    assert_int_equal(strlen(km_shape_text(text, s)), 2 + 5 * 20 + 4 * 2);
    s.ndim = 6;
    assert_true(strlen(km_shape_text(text, s)) < KM_SHAPE_TEXT);
    s = (km_shape){6, {1, 2, 3, 4, 5}};
    assert_string_equal(km_shape_text(text, s), "[1, 2, 3, 4, 5, ...]");
    s.ndim = -3;
    assert_string_equal(km_shape_text(text, s), "[]");
}

static void elements_are_counted(void **state) {
    assert_int_equal(km_shape_count(KM_SCALAR), 1);
    assert_int_equal(km_shape_count(KM_SHAPE(2, 3, 4)), 24);
    assert_int_equal(km_shape_count(KM_SHAPE(2, 0, 4)), 0);
}

static void strides_are_row_major(void **state) {
    int64_t s[KM_MAX_DIMS];
    km_shape_strides(KM_SHAPE(2, 3, 4), s);
    assert_int_equal(s[0], 12);
    assert_int_equal(s[1], 4);
    assert_int_equal(s[2], 1);
    assert_int_equal(s[3], 0);
}

static void shapes_broadcast_as_in_numpy(void **state) {
    km_shape out;
    assert_true(km_shape_broadcast(KM_SHAPE(3, 1), KM_SHAPE(4), &out));
    assert_true(km_shape_equal(out, KM_SHAPE(3, 4)));
    assert_true(km_shape_broadcast(KM_SCALAR, KM_SHAPE(2, 2), &out));
    assert_true(km_shape_equal(out, KM_SHAPE(2, 2)));
    assert_true(km_shape_broadcast(KM_SHAPE(0, 3), KM_SHAPE(1, 3), &out)); /* 1 becomes 0 */
    assert_true(km_shape_equal(out, KM_SHAPE(0, 3)));
    assert_true(km_shape_broadcast(KM_SHAPE(5, 1, 4, 1), KM_SHAPE(3, 1, 2), &out));
    assert_true(km_shape_equal(out, KM_SHAPE(5, 3, 4, 2)));
    assert_false(km_shape_broadcast(KM_SHAPE(3), KM_SHAPE(4), &out));
    assert_false(km_shape_broadcast(KM_SHAPE(2, 1), KM_SHAPE(3, 4), &out));
    assert_false(km_shape_broadcast(KM_SHAPE(0), KM_SHAPE(2), &out));
}

static void a_negative_axis_counts_from_the_end(void **state) {
    assert_int_equal(km_axis(0, 3), 0);
    assert_int_equal(km_axis(-1, 3), 2);
    assert_int_equal(km_axis(-3, 3), 0);
    assert_int_equal(km_axis(3, 3), -1);
    assert_int_equal(km_axis(-4, 3), -1);
    assert_int_equal(km_axis(0, 0), -1);
    assert_int_equal(km_axis(INT32_MIN, 5), -1);
    assert_int_equal(km_axis(INT32_MAX, 5), -1);
}

static void absurd_sizes_are_refused_with_their_shape(void **state) {
    km_ctx *ctx = *state;
    int64_t huge = INT64_MAX;
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(huge)), KM_ERR_SHAPE,
                   "full: [9223372036854775807] of f32 is larger than any memory");
    assert_refused(ctx, km_zeros(ctx, KM_U8, KM_SHAPE(1LL << 32, 1LL << 32)), KM_ERR_SHAPE,
                   "full: [4294967296, 4294967296] of u8 is larger than any memory");
    assert_refused(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(1LL << 31, 1LL << 30)), KM_ERR_SHAPE,
                   "full: [2147483648, 1073741824] of f64 is larger than any memory");
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3, -4)), KM_ERR_SHAPE,
                   "full: negative size in [3, -4]");
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(INT64_MIN)), KM_ERR_SHAPE,
                   "full: negative size in [-9223372036854775808]");
    assert_refused(ctx, km_zeros(ctx, KM_F32, (km_shape){6, {1, 1, 1, 1, 1}}), KM_ERR_SHAPE,
                   "full: 6 dimensions; 0 to 5 are possible");
    assert_refused(ctx, km_zeros(ctx, KM_F32, (km_shape){-1, {1}}), KM_ERR_SHAPE,
                   "full: -1 dimensions; 0 to 5 are possible");
    assert_refused(ctx, km_zeros(ctx, (km_dtype)99, KM_SHAPE(1)), KM_ERR_DTYPE,
                   "full: no such dtype: 99");
    assert_refused(ctx, km_zeros(ctx, (km_dtype)-1, KM_SHAPE(1)), KM_ERR_DTYPE,
                   "full: no such dtype: -1");
    assert_refused(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(1LL << 45), "x"), KM_ERR_SHAPE,
                   "from_data: [35184372088832] of f32 is larger than any memory");
    assert_refused(ctx, km_arange(ctx, KM_I64, -5, 0, 1), KM_ERR_SHAPE,
                   "arange: negative size in [-5]");
}

static void an_empty_shape_with_absurd_other_sizes_is_refused_too(void **state) {
    km_ctx *ctx = *state;
    int64_t huge = INT64_MAX;
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(huge, huge, 0)), KM_ERR_SHAPE,
                   "full: [9223372036854775807, 9223372036854775807, 0] of f32 is larger than any "
                   "memory");
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0, huge, huge)), KM_ERR_SHAPE,
                   "full: [0, 9223372036854775807, 9223372036854775807] of f32 is larger than any "
                   "memory");
    km_tensor *none = km_zeros(ctx, KM_F32, KM_SHAPE(0));
    assert_refused(ctx, km_reshape(ctx, none, KM_SHAPE(0, huge, huge)), KM_ERR_SHAPE,
                   "reshape: [0, 9223372036854775807, 9223372036854775807] of f32 is larger than "
                   "any memory");
    assert_refused(
        ctx, km_broadcast(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1, 1, 0)), KM_SHAPE(huge, huge, 0)),
        KM_ERR_SHAPE,
        "broadcast: [9223372036854775807, 9223372036854775807, 0] of f32 is larger than "
        "any memory");
    assert_shape(km_zeros(ctx, KM_F32, KM_SHAPE(0, 1 << 20, 1 << 20)),
                 KM_SHAPE(0, 1 << 20, 1 << 20)); /* large, but nothing overflows */
    assert_ok(ctx);
}

static void results_that_grow_too_large_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *wide = km_broadcast(ctx, km_zeros(ctx, KM_F32, KM_SCALAR), KM_SHAPE(1LL << 40));
    assert_ok(ctx); /* a view of one element */
    assert_refused(ctx,
                   km_concat(ctx,
                             (km_tensor *[]){wide, wide, wide, wide, wide, wide, wide, wide, wide,
                                             wide, wide, wide, wide, wide, wide, wide, wide},
                             17, 0),
                   KM_ERR_SHAPE, "concat: [18691697672192] of f32 is larger than any memory");
    km_tensor *column = km_unsqueeze(ctx, wide, 1);
    assert_refused(ctx, km_add(ctx, column, wide), KM_ERR_SHAPE,
                   "add: [1099511627776, 1099511627776] of f32 is larger than any memory");
    assert_refused(ctx, km_matmul(ctx, column, km_unsqueeze(ctx, wide, 0)), KM_ERR_SHAPE,
                   "matmul: [1099511627776, 1099511627776] of f32 is larger than any memory");
    ctx->lanes[0]->pool.limit = 1 << 20;
    assert_refused(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1024, 1024)), KM_ERR_MEMORY,
                   "full: out of memory on ref: [1024, 1024] of f32 needs 4194304 bytes");
    km_step_end(ctx);
    assert_elements(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2)), 1, 1);
}

static void contiguity_ignores_axes_of_size_one(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(4, 6));
    assert_true(km_tensor_is_contiguous(t));
    assert_true(km_tensor_is_contiguous(km_narrow(ctx, t, 0, 1, 2)));
    assert_false(km_tensor_is_contiguous(km_narrow(ctx, t, 1, 1, 2)));
    assert_true(km_tensor_is_contiguous(km_narrow(ctx, km_narrow(ctx, t, 0, 2, 1), 1, 1, 3)));
    assert_false(km_tensor_is_contiguous(km_transpose(ctx, t, 0, 1)));
    assert_true(km_tensor_is_contiguous(km_transpose(ctx, km_narrow(ctx, t, 0, 0, 1), 0, 1)));
    assert_true(km_tensor_is_contiguous(km_narrow(ctx, km_transpose(ctx, t, 0, 1), 0, 0, 0)));
    assert_false(km_tensor_is_contiguous(NULL));
}

static void dtypes_have_names_and_sizes(void **state) {
    assert_string_equal(km_dtype_name(KM_BF16), "bf16");
    assert_string_equal(km_dtype_name(KM_BOOL), "bool");
    assert_string_equal(km_dtype_name(KM_DTYPE_COUNT), "?");
    assert_string_equal(km_dtype_name((km_dtype)-1), "?");
    assert_int_equal(km_dtype_size(KM_F64), 8);
    assert_int_equal(km_dtype_size(KM_F16), 2);
    assert_int_equal(km_dtype_size(KM_I8), 1);
    assert_int_equal(km_dtype_size((km_dtype)77), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_written_as_a_list),
        cmocka_unit_test(the_longest_shapes_fit_the_text),
        cmocka_unit_test(elements_are_counted),
        cmocka_unit_test(strides_are_row_major),
        cmocka_unit_test(shapes_broadcast_as_in_numpy),
        cmocka_unit_test(a_negative_axis_counts_from_the_end),
        ON("ref", absurd_sizes_are_refused_with_their_shape),
        ON("ref", an_empty_shape_with_absurd_other_sizes_is_refused_too),
        ON("ref", results_that_grow_too_large_are_refused),
        ON("ref", contiguity_ignores_axes_of_size_one),
        cmocka_unit_test(dtypes_have_names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
