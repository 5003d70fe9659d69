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
        ON_EACH(parts_are_joined),
        ON_EACH(gradients_of_many_parts_go_to_each),
        ON_EACH(masks_and_triangles_choose),
        ON_EACH(losses_count_what_they_should),
        ON_EACH(attention_is_softmax_of_products),
        ON_EACH(rope_turns_pairs_by_their_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
