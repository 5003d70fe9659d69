/* Reductions, indexing, masks and losses through the public calls: small cases worked out by hand,
 * with negative axes, kept axes, strided and empty operands. */
#include "support/engine.h"
#include <math.h>

#define AXES(...) (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int)

static void sums_run_over_any_axes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3, 4));
    assert_elements(ctx, km_sum(ctx, t, NULL, 0, false), 276);
    assert_elements(ctx, km_sum(ctx, t, AXES(0, 2), false), 60, 92, 124);
    assert_elements(ctx, km_sum(ctx, t, AXES(-1, -3), false), 60, 92, 124);
    assert_elements(ctx, km_sum(ctx, t, AXES(1), false), 12, 15, 18, 21, 48, 51, 54, 57);
    assert_shape(km_sum(ctx, t, AXES(0, 2), true), KM_SHAPE(1, 3, 1));
    assert_shape(km_sum(ctx, t, NULL, 0, true), KM_SHAPE(1, 1, 1));
    assert_shape(km_sum(ctx, t, NULL, 0, false), KM_SCALAR);
    km_tensor *moved = km_permute(ctx, t, (int[]){2, 0, 1});
    assert_elements(ctx, km_sum(ctx, moved, AXES(0, 1), false), 60, 92, 124);
    km_tensor *some = km_slice(ctx, t, 2, 1, 4, 2);
    assert_elements(ctx, km_sum(ctx, some, AXES(1, 2), false), 36, 108);
    km_tensor *wide = km_broadcast(ctx, F32(ctx, KM_SHAPE(2, 1), 1, 2), KM_SHAPE(3, 2, 5));
    assert_elements(ctx, km_sum(ctx, wide, AXES(0, 2), false), 15, 30);
    assert_elements(ctx, km_sum(ctx, F32(ctx, KM_SCALAR, 7), NULL, 0, false), 7);
}

static void other_reductions_agree_with_their_formulas(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = F32(ctx, KM_SHAPE(2, 3), 1, 5, 3, -2, -8, -5);
    assert_elements(ctx, km_mean(ctx, t, AXES(1), false), 3, -5);
    assert_elements(ctx, km_max(ctx, t, AXES(0), false), 1, 5, 3);
    assert_elements(ctx, km_max(ctx, t, NULL, 0, false), 5);
    assert_elements_near(ctx, km_var(ctx, t, AXES(1), false, 1), 1e-6, 4, 9);
    assert_elements_near(ctx, km_var(ctx, t, AXES(1), true, 0), 1e-6, 8.0 / 3, 6);
    assert_elements(ctx, km_argmax(ctx, t, 1, false), 1, 0);
    assert_shape(km_argmax(ctx, t, 0, true), KM_SHAPE(1, 3));
    assert_int_equal(km_tensor_dtype(km_argmax(ctx, t, 0, true)), KM_I64);
    assert_elements_near(ctx, km_logsumexp(ctx, t, AXES(1), false), 1e-6,
                         log(exp(1) + exp(5) + exp(3)), log(exp(-2) + exp(-8) + exp(-5)));
    km_tensor *far = F32(ctx, KM_SHAPE(2), 1000, 1000);
    assert_elements_near(ctx, km_logsumexp(ctx, far, NULL, 0, false), 1e-6, 1000 + log(2));
    assert_elements(ctx, km_argmax(ctx, F32(ctx, KM_SHAPE(4), 1, 7, 7, NAN), 0, false), 3);
    assert_elements(ctx, km_argmax(ctx, F32(ctx, KM_SHAPE(4), 1, 7, 7, 3), 0, false), 1);
}

static void reductions_of_nothing_are_neutral(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2, 0));
    assert_elements(ctx, km_sum(ctx, t, AXES(1), false), 0, 0);
    assert_shape(km_sum(ctx, t, AXES(0), false), KM_SHAPE(0));
    assert_elements(ctx, km_logsumexp(ctx, t, AXES(1), false), -INFINITY, -INFINITY);
    assert_true(isnan(engine_element(ctx, km_mean(ctx, t, AXES(1), false), 0)));
    assert_shape(km_max(ctx, t, AXES(0), false), KM_SHAPE(0)); /* nothing of nothing is fine */
    assert_ok(ctx);
}

static void rows_are_picked_by_index(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3, 2));
    km_tensor *y = km_embedding(ctx, t, I32(ctx, KM_SHAPE(2, 2), 2, 0, 0, 1));
    assert_shape(y, KM_SHAPE(2, 2, 2));
    assert_elements(ctx, y, 4, 5, 0, 1, 0, 1, 2, 3);
    assert_shape(km_embedding(ctx, t, I32(ctx, KM_SCALAR, 1)), KM_SHAPE(2));
    km_tensor *turned = km_transpose(ctx, t, 0, 1);
    assert_elements(ctx, km_embedding(ctx, turned, I32(ctx, KM_SHAPE(1), 1)), 1, 3, 5);
    assert_elements(ctx, km_index_select(ctx, t, 1, I32(ctx, KM_SHAPE(3), 1, 1, 0)), 1, 1, 0, 3, 3,
                    2, 5, 5, 4);
    assert_elements(ctx, km_index_select(ctx, t, -2, I32(ctx, KM_SHAPE(1), 2)), 4, 5);
    assert_elements(ctx, km_gather(ctx, t, 1, I32(ctx, KM_SHAPE(2, 1), 1, 0)), 1, 2);
    assert_elements(ctx, km_gather(ctx, t, 0, I32(ctx, KM_SHAPE(1, 2), 2, 1)), 4, 3);
    km_tensor *strided = km_slice(ctx, I32(ctx, KM_SHAPE(4), 2, 9, 0, 9), 0, 0, 4, 2);
    assert_elements(ctx, km_embedding(ctx, t, strided), 4, 5, 0, 1);
}

static void rows_are_added_by_index(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *index = I32(ctx, KM_SHAPE(2, 2), 0, 0, 2, 1);
    km_tensor *src = F32(ctx, KM_SHAPE(2, 2), 10, 20, 30, 40);
    assert_elements(ctx, km_scatter_add(ctx, t, 1, index, src), 30, 1, 2, 3, 44, 35);
    assert_elements(ctx, t, 0, 1, 2, 3, 4, 5); /* as it was */
    km_tensor *down = km_scatter_add(ctx, t, 0, I32(ctx, KM_SHAPE(1, 3), 1, 0, 1),
                                     F32(ctx, KM_SHAPE(1, 3), 10, 20, 30));
    assert_elements(ctx, down, 0, 21, 2, 13, 4, 35);
}

static void elements_are_put_by_index(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *index = I32(ctx, KM_SHAPE(2, 2), 0, 0, 2, 1);
    km_tensor *src = F32(ctx, KM_SHAPE(2, 2), 10, 20, 30, 40);
    assert_elements(ctx, km_scatter(ctx, t, 1, index, src), 20, 1, 2, 3, 40, 30);
    assert_elements(ctx, t, 0, 1, 2, 3, 4, 5); /* as it was */
    km_tensor *first = I32(ctx, KM_SHAPE(1, 3), 1, 0, 1);
    assert_elements(ctx, km_scatter(ctx, t, 0, first, F32(ctx, KM_SHAPE(1, 3), 7, 8, 9)), 0, 8, 2,
                    7, 4, 9);
    assert_refused(
        ctx,
        km_scatter(ctx, t, 1, I32(ctx, KM_SHAPE(1, 1), 3), km_zeros(ctx, KM_F32, KM_SHAPE(1, 1))),
        KM_ERR_RANGE, "scatter: index 3 at position 0 is not in [0, 3)");
    assert_refused(ctx, km_scatter(ctx, t, 1, index, t), KM_ERR_SHAPE,
                   "scatter: src is [2, 3], not [2, 2]");
}

static void what_stays_of_a_scatter_gets_the_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = engine_parameter(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(4)));
    km_tensor *src = engine_parameter(ctx, km_ones(ctx, KM_F32, KM_SHAPE(3)));
    km_tensor *y = km_scatter(ctx, x, 0, I32(ctx, KM_SHAPE(3), 2, 0, 2), src);
    km_backward(ctx,
                km_sum(ctx, km_mul(ctx, y, F32(ctx, KM_SHAPE(4), 1, 2, 3, 4)), NULL, 0, false));
    assert_elements(ctx, km_grad(x), 0, 2, 0, 4);
    assert_elements(ctx, km_grad(src), 0, 1, 3); /* the first was written over by the last */
    km_release(x);
    km_release(src);
}

static void masks_pick_and_place(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *large = km_gt(ctx, t, km_full(ctx, KM_F32, KM_SCALAR, 3)),
              *none = km_lt(ctx, t, km_full(ctx, KM_F32, KM_SCALAR, 0));
    assert_elements(ctx, km_masked_select(ctx, t, large), 4, 5);
    assert_shape(km_masked_select(ctx, t, none), KM_SHAPE(0));
    km_tensor *column =
        km_eq(ctx, F32(ctx, KM_SHAPE(3), 0, 1, 0), km_full(ctx, KM_F32, KM_SCALAR, 1));
    assert_elements(ctx, km_masked_select(ctx, t, column), 1, 4); /* broadcast */
    km_tensor *turned = km_transpose(ctx, t, 0, 1);
    assert_elements(ctx, km_masked_select(ctx, turned, km_transpose(ctx, large, 0, 1)), 4, 5);
    assert_elements(ctx, km_masked_scatter(ctx, t, column, F32(ctx, KM_SHAPE(2), 7, 8)), 0, 7, 2, 3,
                    8, 5);
    assert_elements(ctx, km_nonzero(ctx, large), 1, 1, 1, 2);
    assert_elements(ctx, km_nonzero(ctx, turned), 0, 1, 1, 0, 1, 1, 2, 0, 2, 1);
    assert_shape(km_nonzero(ctx, none), KM_SHAPE(0, 2));
    assert_shape(km_nonzero(ctx, F32(ctx, KM_SCALAR, 3)), KM_SHAPE(1, 0));
    assert_int_equal(km_tensor_dtype(km_nonzero(ctx, t)), KM_I64);
    assert_refused(ctx, km_masked_scatter(ctx, t, large, t), KM_ERR_SHAPE,
                   "masked_scatter: the mask picks 2 places, src has 6 elements");
    assert_refused(ctx, km_masked_select(ctx, t, t), KM_ERR_DTYPE,
                   "masked_select: mask of dtype f32 is not possible here; it takes bool");
    km_tensor *wide = km_broadcast(ctx, column, KM_SHAPE(4, 3));
    assert_refused(ctx, km_masked_select(ctx, t, wide), KM_ERR_SHAPE,
                   "masked_select: shapes do not broadcast: [2, 3] and [4, 3]");
    assert_refused(ctx, km_nonzero(ctx, NULL), KM_ERR_NULL, "nonzero: argument 1 is NULL");
    /* One element seen more often than there is memory for: a view costs nothing, its copy would. */
    km_tensor *huge = km_broadcast(ctx, km_eq(ctx, t, t), KM_SHAPE(INT64_C(1) << 50, 2, 3));
    assert_null(km_masked_select(ctx, t, huge));
    assert_int_not_equal(km_ctx_status(ctx), KM_OK);
    km_ctx_clear_error(ctx);
}

static void gradients_follow_masks(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(2, 2)));
    km_tensor *src = engine_parameter(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2)));
    km_tensor *mask = km_gt(ctx, x, km_full(ctx, KM_F32, KM_SCALAR, 1));
    km_tensor *picked = km_masked_select(ctx, x, mask), *put = km_masked_scatter(ctx, x, mask, src);
    km_tensor *weights = F32(ctx, KM_SHAPE(2, 2), 1, 2, 3, 4);
    km_tensor *sum = km_add(ctx, km_sum(ctx, km_mul(ctx, picked, picked), NULL, 0, false),
                            km_sum(ctx, km_mul(ctx, put, weights), NULL, 0, false));
    km_backward(ctx, sum);
    assert_elements(ctx, km_grad(x), 1, 2, 4, 6);
    assert_elements(ctx, km_grad(src), 3, 4);
    km_release(x);
    km_release(src);
}

typedef struct pick_step {
    km_tensor *x, *mask;
    int64_t count;
    double sum;
} pick_step;

static void pick(km_ctx *ctx, void *user) {
    pick_step *s = user;
    km_tensor *y = km_masked_select(ctx, s->x, s->mask);
    s->count = km_tensor_count(y);
    s->sum = km_item(ctx, km_sum(ctx, y, NULL, 0, false));
}

static void a_step_whose_shapes_depend_on_data_is_not_replayed(void **state) {
    km_ctx *ctx = *state;
    km_graph *g = NULL;
    pick_step s = {.x = km_keep(ctx, engine_range(ctx, KM_F32, KM_SHAPE(8))),
                   .mask = km_keep(ctx, km_zeros(ctx, KM_BOOL, KM_SHAPE(8)))};
    for (int i = 0; i < 6; i++) {
        uint8_t bits[8] = {0};
        for (int k = 0; k <= i; k++) bits[k] = 1;
        assert_int_equal(km_write(ctx, s.mask, bits, 8), KM_OK);
        assert_int_equal(km_graph_run(ctx, &g, 1, pick, &s), KM_OK);
        assert_int_equal(s.count, i + 1);
        assert_true(s.sum == i * (i + 1) / 2);
    }
    km_graph_free(g);
    km_release(s.x);
    km_release(s.mask);
}

static void powers_of_a_number(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = engine_parameter(ctx, F32(ctx, KM_SHAPE(3), 0, 2, 4));
    assert_elements(ctx, km_pow_scalar(ctx, x, 2), 0, 4, 16);
    assert_elements_near(ctx, km_pow_scalar(ctx, x, 0.5), 1e-6, 0, sqrt(2), 2);
    assert_elements_near(ctx, km_pow_scalar(ctx, x, -1), 1e-6, INFINITY, 0.5, 0.25);
    km_backward(ctx, km_sum(ctx, km_pow_scalar(ctx, x, 3), NULL, 0, false));
    assert_elements_near(ctx, km_grad(x), 1e-5, 0, 12, 48);
    km_zero_grad(ctx, &x, 1);
    km_backward(ctx, km_sum(ctx, km_pow_scalar(ctx, x, 0), NULL, 0, false));
    assert_elements(ctx, km_grad(x), 0, 0, 0); /* flat, also at 0 */
    assert_refused(ctx, km_pow_scalar(ctx, I32(ctx, KM_SHAPE(1), 1), 2), KM_ERR_DTYPE,
                   "pow_scalar: dtype i32 is not possible here; it takes f32, f16, bf16, f64");
    km_release(x);
}

static void parts_are_joined(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = engine_range(ctx, KM_F32, KM_SHAPE(2, 2)), *b = km_transpose(ctx, a, 0, 1);
    km_tensor *none = km_zeros(ctx, KM_F32, KM_SHAPE(0, 2));
    assert_elements(ctx, km_concat(ctx, (km_tensor *[]){a, none, b}, 3, 0), 0, 1, 2, 3, 0, 2, 1, 3);
    assert_elements(ctx, km_concat(ctx, (km_tensor *[]){a, b}, 2, -1), 0, 1, 0, 2, 2, 3, 1, 3);
    assert_elements(ctx, km_concat(ctx, &b, 1, 0), 0, 2, 1, 3);
    km_tensor *s = km_stack(ctx, (km_tensor *[]){a, b}, 2, 0);
    assert_shape(s, KM_SHAPE(2, 2, 2));
    assert_elements(ctx, s, 0, 1, 2, 3, 0, 2, 1, 3);
    assert_elements(ctx, km_stack(ctx, (km_tensor *[]){a, b}, 2, -1), 0, 0, 1, 2, 2, 1, 3, 3);
    assert_elements(ctx, km_stack(ctx, (km_tensor *[]){a, b}, 2, 1), 0, 1, 0, 2, 2, 3, 1, 3);
    km_tensor *many[20];
    for (int i = 0; i < 20; i++) many[i] = km_full(ctx, KM_F32, KM_SCALAR, i);
    km_tensor *list = km_stack(ctx, many, 20, 0);
    assert_shape(list, KM_SHAPE(20));
    for (int i = 0; i < 20; i++) assert_true(engine_element(ctx, list, i) == i);
}

static void gradients_of_many_parts_go_to_each(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p[40];
    for (int i = 0; i < 40; i++) p[i] = engine_parameter(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2)));
    km_tensor *all = km_concat(ctx, p, 40, 0);
    km_backward(ctx,
                km_sum(ctx, km_mul(ctx, all, km_arange(ctx, KM_F32, 80, 0, 1)), NULL, 0, false));
    for (int i = 0; i < 40; i++) {
        assert_elements(ctx, km_grad(p[i]), 2 * i, 2 * i + 1);
        km_release(p[i]);
    }
}

static void masks_and_triangles_choose(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3, 3));
    assert_elements(ctx, km_triu(ctx, t, 0), 0, 1, 2, 0, 4, 5, 0, 0, 8);
    assert_elements(ctx, km_triu(ctx, t, 2), 0, 0, 2, 0, 0, 0, 0, 0, 0);
    assert_elements(ctx, km_tril(ctx, t, -1), 0, 0, 0, 3, 0, 0, 6, 7, 0);
    assert_elements(ctx, km_tril(ctx, t, 100), 0, 1, 2, 3, 4, 5, 6, 7, 8);
    km_tensor *turned = km_transpose(ctx, t, 0, 1);
    assert_elements(ctx, km_triu(ctx, turned, 1), 0, 3, 6, 0, 0, 7, 0, 0, 0);
    km_tensor *even = km_eq(ctx, km_select(ctx, t, 0, 0), F32(ctx, KM_SCALAR, 1));
    assert_elements(ctx, km_where(ctx, even, t, F32(ctx, KM_SCALAR, -1)), -1, 1, -1, -1, 4, -1, -1,
                    7, -1);
    assert_elements(ctx, km_masked_fill(ctx, t, even, 9), 0, 9, 2, 3, 9, 5, 6, 9, 8);
    assert_elements(ctx, km_clamp(ctx, t, 2, 6), 2, 2, 2, 3, 4, 5, 6, 6, 6);
}

static void losses_count_what_they_should(void **state) {
    km_ctx *ctx = *state;
    km_tensor *even = km_zeros(ctx, KM_F32, KM_SHAPE(2, 2, 4));
    km_tensor *targets = I32(ctx, KM_SHAPE(2, 2), 0, -100, 3, -100);
    km_tensor *mean = km_cross_entropy(ctx, even, targets, -100, KM_MEAN);
    assert_shape(mean, KM_SCALAR);
    assert_elements_near(ctx, mean, 1e-6, log(4)); /* over two rows, not four */
    assert_elements_near(ctx, km_cross_entropy(ctx, even, targets, -100, KM_SUM), 1e-6, 2 * log(4));
    km_tensor *row = F32(ctx, KM_SHAPE(3), 1, 2, 3);
    assert_elements_near(ctx, km_cross_entropy(ctx, row, I32(ctx, KM_SCALAR, 2), -1, KM_MEAN), 1e-6,
                         log(exp(-2) + exp(-1) + 1));
    km_tensor *a = F32(ctx, KM_SHAPE(2), 1, 2), *b = F32(ctx, KM_SHAPE(2), 4, 0);
    assert_elements(ctx, km_mse(ctx, a, b, KM_MEAN), 6.5);
    assert_elements(ctx, km_mse(ctx, a, b, KM_SUM), 13);
    km_tensor *half = km_full(ctx, KM_F32, KM_SHAPE(2), 0.5),
              *zero = km_zeros(ctx, KM_F32, KM_SHAPE(2));
    assert_elements_near(ctx, km_bce_with_logits(ctx, zero, half, KM_SUM), 1e-6, 2 * log(2));
    km_tensor *extreme = F32(ctx, KM_SHAPE(2), 1000, -1000), *right = F32(ctx, KM_SHAPE(2), 1, 0);
    assert_elements(ctx, km_bce_with_logits(ctx, extreme, right, KM_MEAN), 0);
}

/* softmax(q k^T / sqrt(d)) v by the plain calls, keys and values repeated for their query heads. */
static km_tensor *plain_attention(km_ctx *ctx, km_tensor *q, km_tensor *k, km_tensor *v,
                                  int group) {
    km_tensor *heads_k[8], *heads_v[8];
    int heads = (int)km_tensor_dim(q, 1);
    for (int h = 0; h < heads; h++) {
        heads_k[h] = km_select(ctx, k, 1, h / group);
        heads_v[h] = km_select(ctx, v, 1, h / group);
    }
    km_tensor *s = km_matmul(ctx, q, km_transpose(ctx, km_stack(ctx, heads_k, heads, 1), 2, 3));
    s = km_mul_scalar(ctx, s, 1 / sqrt((double)km_tensor_dim(q, 3)));
    int64_t tq = km_tensor_dim(q, 2), tk = km_tensor_dim(k, 2);
    km_tensor *seen = km_tril(ctx, km_ones(ctx, KM_F32, KM_SHAPE(tq, tk)), (int)(tk - tq));
    km_tensor *hidden = km_eq(ctx, seen, km_zeros(ctx, KM_F32, KM_SCALAR));
    return km_matmul(ctx, km_softmax(ctx, km_masked_fill(ctx, s, hidden, -INFINITY), -1),
                     km_stack(ctx, heads_v, heads, 1));
}

static void attention_is_softmax_of_products(void **state) {
    km_ctx *ctx = *state;
    km_seed(ctx, 3);
    km_tensor *q = km_normal(ctx, KM_F32, KM_SHAPE(2, 3, 4, 8), 0, 1); /* (B, T, H, D) in memory */
    km_tensor *k = km_normal(ctx, KM_F32, KM_SHAPE(2, 2, 5, 8), 0, 1);
    km_tensor *v = km_normal(ctx, KM_F32, KM_SHAPE(2, 2, 5, 8), 0, 1);
    q = km_transpose(ctx, q, 1, 2);
    km_tensor *fused = km_attention(ctx, q, k, v, true, 0),
              *plain = plain_attention(ctx, q, k, v, 2);
    assert_shape(fused, KM_SHAPE(2, 4, 3, 8));
    km_tensor *off = km_max(ctx, km_abs(ctx, km_sub(ctx, fused, plain)), NULL, 0, false);
    assert_true(km_item(ctx, off) < 1e-5);
    assert_ok(ctx);
    /* heads lie inside, so joining them is a view */
    km_tensor *joined = km_reshape(ctx, km_transpose(ctx, fused, 1, 2), KM_SHAPE(2, 3, 32));
    assert_ptr_equal(joined->storage, fused->storage);
}

static void rope_turns_pairs_by_their_position(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = F32(ctx, KM_SHAPE(2, 4), 1, 0, 0, 1, 1, 0, 0, 1);
    double c = cos(1), s = sin(1), c2 = cos(0.01), s2 = sin(0.01);
    assert_elements_near(ctx, km_rope(ctx, x, NULL, KM_ROPE_ADJACENT, 10000, 0), 1e-6, 1, 0, 0, 1,
                         c, s, -s2, c2);
    assert_elements_near(ctx, km_rope(ctx, x, NULL, KM_ROPE_HALVES, 10000, 0), 1e-6, 1, 0, 0, 1, c,
                         -s2, s, c2);
    km_tensor *at = I32(ctx, KM_SHAPE(2), 1, 0);
    assert_elements_near(ctx, km_rope(ctx, x, at, KM_ROPE_ADJACENT, 10000, 2), 1e-6, c, s, 0, 1, 1,
                         0, 0, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(sums_run_over_any_axes),
        ON_EACH(other_reductions_agree_with_their_formulas),
        ON_EACH(reductions_of_nothing_are_neutral),
        ON_EACH(rows_are_picked_by_index),
        ON_EACH(rows_are_added_by_index),
        ON_EACH(elements_are_put_by_index),
        ON_EACH(what_stays_of_a_scatter_gets_the_gradient),
        ON_EACH(masks_pick_and_place),
        ON_EACH(gradients_follow_masks),
        ON_EACH(a_step_whose_shapes_depend_on_data_is_not_replayed),
        ON_EACH(powers_of_a_number),
        ON_EACH(parts_are_joined),
        ON_EACH(gradients_of_many_parts_go_to_each),
        ON_EACH(masks_and_triangles_choose),
        ON_EACH(losses_count_what_they_should),
        ON_EACH(attention_is_softmax_of_products),
        ON_EACH(rope_turns_pairs_by_their_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
