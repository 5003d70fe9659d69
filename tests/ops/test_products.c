/* Matrix products and elementwise ops over every form of operand: vectors, batches that broadcast,
 * transposed and sliced views, nothing at all. Expected values come from plain index arithmetic. */
#include "support/engine.h"
#include <math.h>

/* A filled tensor whose element (i...) is given by its row-major place. */
static km_tensor *numbers(km_ctx *ctx, km_shape s, double step) {
    return km_reshape(ctx, km_arange(ctx, KM_F32, km_shape_count(s), -1, step), s);
}

static double at(km_tensor *t, const int64_t *i) { /* on the host */
    int64_t pos = t->offset;
    for (int a = 0; a < t->shape.ndim; a++) pos += i[a] * t->stride[a];
    return ((float *)t->storage->data)[pos];
}

/* y (..., m, n) against sums over k, with every batch index taken modulo the operand's size. */
static void check_product(km_ctx *ctx, km_tensor *a, km_tensor *b, km_shape want) {
    km_tensor *y = km_matmul(ctx, a, b);
    assert_ok(ctx);
    assert_shape(y, want);
    int rank = want.ndim, ra = a->shape.ndim, rb = b->shape.ndim;
    int64_t k = a->shape.dim[ra - 1], n = km_shape_count(want), i[KM_MAX_DIMS] = {0};
    for (int64_t e = 0; e < n; e++) {
        int64_t rest = e;
        for (int d = rank; d-- > 0;) {
            i[d] = rest % want.dim[d];
            rest /= want.dim[d];
        }
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t ia[KM_MAX_DIMS], ib[KM_MAX_DIMS];
            for (int d = 0; d < ra - 2; d++) ia[d] = i[rank - ra + d] % a->shape.dim[d];
            for (int d = 0; d < rb - 2; d++) ib[d] = i[rank - rb + d] % b->shape.dim[d];
            ia[ra - 2] = i[rank - 2];
            ia[ra - 1] = j;
            ib[rb - 2] = j;
            ib[rb - 1] = i[rank - 1];
            sum += at(a, ia) * at(b, ib);
        }
        assert_true(engine_close_to(at(y, i), sum, 1e-4));
    }
}

static void matrices_multiply(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = numbers(ctx, KM_SHAPE(5, 7), 0.1), *b = numbers(ctx, KM_SHAPE(7, 3), 0.2);
    check_product(ctx, a, b, KM_SHAPE(5, 3));
    check_product(ctx, km_transpose(ctx, numbers(ctx, KM_SHAPE(7, 5), 0.1), 0, 1), b,
                  KM_SHAPE(5, 3));
    check_product(ctx, a, km_transpose(ctx, numbers(ctx, KM_SHAPE(3, 7), 0.3), 0, 1),
                  KM_SHAPE(5, 3));
    km_tensor *large = numbers(ctx, KM_SHAPE(14, 14), 0.01);
    check_product(ctx, km_slice(ctx, km_slice(ctx, large, 0, 1, 14, 3), 1, 0, 14, 2), b,
                  KM_SHAPE(5, 3));
    check_product(ctx, km_narrow(ctx, km_narrow(ctx, large, 0, 2, 5), 1, 3, 7), b, KM_SHAPE(5, 3));
    check_product(ctx, km_broadcast(ctx, numbers(ctx, KM_SHAPE(5, 1), 1), KM_SHAPE(5, 7)), b,
                  KM_SHAPE(5, 3));
    check_product(ctx, km_broadcast(ctx, numbers(ctx, KM_SHAPE(7), 1), KM_SHAPE(5, 7)), b,
                  KM_SHAPE(5, 3));
    check_product(ctx, numbers(ctx, KM_SHAPE(1, 1), 1), numbers(ctx, KM_SHAPE(1, 1), 1),
                  KM_SHAPE(1, 1));
}

static void batches_broadcast(void **state) {
    km_ctx *ctx = *state;
    km_tensor *b2 = numbers(ctx, KM_SHAPE(3, 4), 0.1);
    km_tensor *b3 = numbers(ctx, KM_SHAPE(5, 3, 4), 0.05);
    check_product(ctx, numbers(ctx, KM_SHAPE(5, 2, 3), 0.1), b3, KM_SHAPE(5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(1, 2, 3), 0.1), b3, KM_SHAPE(5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(2, 3), 0.1), b3, KM_SHAPE(5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(5, 2, 3), 0.1), b2, KM_SHAPE(5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(2, 5, 2, 3), 0.1), b3, KM_SHAPE(2, 5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(2, 1, 2, 3), 0.1), b3, KM_SHAPE(2, 5, 2, 4));
    check_product(ctx, numbers(ctx, KM_SHAPE(1, 2, 1, 2, 3), 0.1),
                  numbers(ctx, KM_SHAPE(3, 1, 2, 3, 2), 0.1), KM_SHAPE(3, 2, 2, 2, 2));
    /* heads as a linear layer leaves them, and a transposed batch */
    km_tensor *heads = km_transpose(ctx, numbers(ctx, KM_SHAPE(2, 4, 3, 5), 0.02), 1, 2);
    check_product(ctx, heads, km_transpose(ctx, heads, 2, 3), KM_SHAPE(2, 3, 4, 4));
    km_tensor *turned = km_permute(ctx, numbers(ctx, KM_SHAPE(3, 2, 6), 0.1), (int[]){2, 0, 1});
    check_product(ctx, turned, numbers(ctx, KM_SHAPE(2, 3), 0.1), KM_SHAPE(6, 3, 3));
}

static void a_vector_counts_as_one_row_or_column(void **state) {
    km_ctx *ctx = *state;
    km_tensor *v = F32(ctx, KM_SHAPE(3), 1, 2, 3), *m = engine_range(ctx, KM_F32, KM_SHAPE(3, 2));
    assert_shape(km_matmul(ctx, v, v), KM_SCALAR);
    assert_elements(ctx, km_matmul(ctx, v, v), 14);
    assert_elements(ctx, km_matmul(ctx, v, m), 16, 22);
    assert_elements(ctx, km_matmul(ctx, km_transpose(ctx, m, 0, 1), v), 16, 22);
    km_tensor *batch = engine_range(ctx, KM_F32, KM_SHAPE(2, 2, 3));
    assert_shape(km_matmul(ctx, batch, v), KM_SHAPE(2, 2));
    assert_elements(ctx, km_matmul(ctx, batch, v), 8, 26, 44, 62);
    km_tensor *turned = km_transpose(ctx, batch, 1, 2);
    assert_shape(km_matmul(ctx, v, turned), KM_SHAPE(2, 2));
    assert_elements(ctx, km_matmul(ctx, v, turned), 8, 26, 44, 62);
    assert_elements(ctx, km_matmul(ctx, km_slice(ctx, v, 0, 0, 3, 2), F32(ctx, KM_SHAPE(2), 1, 1)),
                    4);
}

static void products_over_nothing_are_zero(void **state) {
    km_ctx *ctx = *state;
    km_tensor *wide = km_zeros(ctx, KM_F32, KM_SHAPE(2, 0)),
              *tall = km_zeros(ctx, KM_F32, KM_SHAPE(0, 3));
    assert_elements(ctx, km_matmul(ctx, wide, tall), 0, 0, 0, 0, 0, 0);
    assert_shape(km_matmul(ctx, tall, km_ones(ctx, KM_F32, KM_SHAPE(3, 2))), KM_SHAPE(0, 2));
    assert_shape(km_matmul(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(4, 2, 0)), tall), KM_SHAPE(4, 2, 3));
    assert_shape(km_matmul(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0, 2, 3)),
                           km_ones(ctx, KM_F32, KM_SHAPE(3, 4))),
                 KM_SHAPE(0, 2, 4));
    assert_elements(
        ctx, km_matmul(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0)), km_zeros(ctx, KM_F32, KM_SHAPE(0))),
        0);
    assert_elements(ctx, km_linear(ctx, wide, wide, F32(ctx, KM_SHAPE(2), 5, 6), KM_ACT_NONE), 5, 6,
                    5, 6);
    assert_shape(km_linear(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0, 4, 3)),
                           km_ones(ctx, KM_F32, KM_SHAPE(2, 3)), NULL, KM_ACT_GELU),
                 KM_SHAPE(0, 4, 2));
    assert_ok(ctx);
}

static void a_linear_layer_takes_any_rank(void **state) {
    km_ctx *ctx = *state;
    km_tensor *w = engine_range(ctx, KM_F32, KM_SHAPE(2, 3)), *b = F32(ctx, KM_SHAPE(2), 10, -100);
    km_tensor *x = F32(ctx, KM_SHAPE(3), 1, 2, 3);
    km_tensor *y = km_linear(ctx, x, w, b, KM_ACT_NONE);
    assert_shape(y, KM_SHAPE(2));
    assert_elements(ctx, y, 18, -74);
    assert_elements(ctx, km_linear(ctx, x, w, b, KM_ACT_RELU), 18, 0);
    assert_elements(ctx, km_linear(ctx, x, w, NULL, KM_ACT_NONE), 8, 26);
    km_tensor *many = km_broadcast(ctx, x, KM_SHAPE(2, 1, 2, 3));
    y = km_linear(ctx, many, w, b, KM_ACT_NONE);
    assert_shape(y, KM_SHAPE(2, 1, 2, 2));
    assert_elements(ctx, y, 18, -74, 18, -74, 18, -74, 18, -74);
    km_tensor *turned = km_transpose(ctx, engine_range(ctx, KM_F32, KM_SHAPE(3, 2)), 0, 1);
    assert_elements(ctx, km_linear(ctx, x, turned, NULL, KM_ACT_NONE), 16, 22);
    static const struct {
        km_act act;
        km_tensor *(*fn)(km_ctx *, km_tensor *);
    } acts[] = {{KM_ACT_GELU, km_gelu}, {KM_ACT_GELU_ERF, km_gelu_erf}, {KM_ACT_SILU, km_silu}};
    km_tensor *small = km_mul_scalar(ctx, x, 0.1);
    for (int i = 0; i < 3; i++) {
        km_tensor *apart = acts[i].fn(ctx, km_linear(ctx, small, w, NULL, KM_ACT_NONE));
        y = km_linear(ctx, small, w, NULL, acts[i].act);
        for (int e = 0; e < 2; e++)
            assert_true(
                engine_close_to(engine_element(ctx, y, e), engine_element(ctx, apart, e), 1e-6));
    }
}

/* ---- Elementwise ---- */

static double plus(double a, double b) { return a + b; }
static double times(double a, double b) { return a * b; }
static double greater(double a, double b) { return a > b; }

/* Operand shapes that broadcast to (2, 3, 4), every pair of them, transposed and sliced ones too. */
static void every_pair_of_forms_broadcasts(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        km_tensor *(*op)(km_ctx *, km_tensor *, km_tensor *);
        double (*fn)(double, double);
    } ops[] = {{km_add, plus}, {km_mul, times}, {km_maximum, fmax}, {km_gt, greater}};
    km_shape full = KM_SHAPE(2, 3, 4);
    km_tensor *forms[] = {
        numbers(ctx, full, 0.3),
        numbers(ctx, KM_SHAPE(4), 0.7),
        numbers(ctx, KM_SHAPE(3, 1), 1.1),
        numbers(ctx, KM_SHAPE(2, 1, 4), 0.2),
        numbers(ctx, KM_SHAPE(1, 3, 4), 0.4),
        numbers(ctx, KM_SCALAR, 1),
        km_permute(ctx, numbers(ctx, KM_SHAPE(4, 2, 3), 0.1), (int[]){1, 2, 0}),
        km_slice(ctx, numbers(ctx, KM_SHAPE(2, 3, 8), 0.1), 2, 1, 8, 2),
        km_broadcast(ctx, numbers(ctx, KM_SHAPE(2, 1, 1), 5), full),
    };
    int n = sizeof forms / sizeof forms[0];
    for (int o = 0; o < 4; o++)
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++) {
                km_tensor *y = ops[o].op(ctx, forms[a], forms[b]);
                km_shape both;
                assert_ok(ctx);
                km_shape_broadcast(forms[a]->shape, forms[b]->shape, &both);
                assert_shape(y, both);
                km_tensor *wa = km_broadcast(ctx, forms[a], both);
                km_tensor *wb = km_broadcast(ctx, forms[b], both);
                km_tensor *wide = km_cast(ctx, y, KM_F32);
                for (int64_t e = 0; e < km_shape_count(both); e++) {
                    int64_t i[KM_MAX_DIMS], rest = e;
                    for (int d = both.ndim; d-- > 0; rest /= both.dim[d]) i[d] = rest % both.dim[d];
                    assert_true(at(wide, i) == (float)ops[o].fn(at(wa, i), at(wb, i)));
                }
            }
}

static void integers_add_and_compare_as_in_c(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = I32(ctx, KM_SHAPE(3), 7, -7, 2147483647), *b = I32(ctx, KM_SHAPE(3), 2, 2, 1);
    assert_elements(ctx, km_add(ctx, a, b), 9, -5, -2147483648.0);
    assert_elements(ctx, km_mul(ctx, a, b), 14, -14, 2147483647);
    assert_elements(ctx, km_maximum(ctx, a, b), 7, 2, 2147483647);
    assert_elements(ctx, km_ge(ctx, a, b), 1, 0, 1);
    assert_elements(ctx, km_sum(ctx, km_cast(ctx, km_ge(ctx, a, b), KM_I32), NULL, 0, false), 2);
}

static void nan_wins_a_maximum_and_never_compares_equal(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = F32(ctx, KM_SHAPE(3), NAN, 1, NAN), *b = F32(ctx, KM_SHAPE(3), 1, NAN, NAN);
    for (int i = 0; i < 3; i++) {
        assert_true(isnan(engine_element(ctx, km_maximum(ctx, a, b), i)));
        assert_true(isnan(engine_element(ctx, km_minimum(ctx, a, b), i)));
    }
    assert_elements(ctx, km_eq(ctx, a, b), 0, 0, 0);
    assert_elements(ctx, km_ne(ctx, a, b), 1, 1, 1);
    assert_elements(ctx, km_lt(ctx, a, b), 0, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(matrices_multiply),
        ON_EACH(batches_broadcast),
        ON_EACH(a_vector_counts_as_one_row_or_column),
        ON_EACH(products_over_nothing_are_zero),
        ON_EACH(a_linear_layer_takes_any_rank),
        ON_EACH(every_pair_of_forms_broadcasts),
        ON_EACH(integers_add_and_compare_as_in_c),
        ON_EACH(nan_wins_a_maximum_and_never_compares_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
