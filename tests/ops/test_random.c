/* Random numbers and determinism: the same seed gives the same bits on any number of threads, the
 * numbers have the distribution asked for, and dropout's mask is the same going back. */
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

enum { N = 100000 };
static float x[N], y[N];

static void fetch(km_ctx *ctx, km_tensor *t, float *to) {
    assert_non_null(t);
    assert_int_equal(km_read(ctx, t, to, sizeof(float) * (size_t)km_tensor_count(t)), KM_OK);
}

static void moments(const float *v, int n, double *mean, double *variance) {
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += v[i];
    *mean = sum / n;
    for (int i = 0; i < n; i++) square += (v[i] - *mean) * (v[i] - *mean);
    *variance = square / n;
}

/* Bounds are five standard errors wide. */
static void uniform_numbers_fill_their_range_evenly(void **state) {
    km_ctx *ctx = *state;
    double mean, variance;
    int below[10] = {0};
    km_seed(ctx, 1);
    fetch(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(N), -2, 6), x);
    moments(x, N, &mean, &variance);
    assert_true(fabs(mean - 2) < 5 * 8 / sqrt(12.0 * N));
    assert_true(fabs(variance - 64 / 12.0) < 0.1);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] >= -2 && x[i] < 6);
        below[(int)((x[i] + 2) / 0.8)]++;
    }
    for (int i = 0; i < 10; i++) assert_true(abs(below[i] - N / 10) < 5 * 95);
}

static void normal_numbers_have_the_mean_and_deviation_asked_for(void **state) {
    km_ctx *ctx = *state;
    double mean, variance;
    int far = 0;
    km_seed(ctx, 2);
    fetch(ctx, km_normal(ctx, KM_F32, KM_SHAPE(N), 10, 3), x);
    moments(x, N, &mean, &variance);
    assert_true(fabs(mean - 10) < 5 * 3 / sqrt(N));
    assert_true(fabs(variance - 9) < 5 * 9 * sqrt(2.0 / N));
    for (int i = 0; i < N; i++) far += fabs(x[i] - 10) > 1.959964 * 3;
    assert_true(abs(far - N / 20) < 5 * 69); /* one in twenty is outside */
    double together = 0;
    for (int i = 0; i + 1 < N; i++) together += (x[i] - 10) * (x[i + 1] - 10);
    assert_true(fabs(together / N) < 5 * 9 / sqrt(N)); /* neighbours know nothing of each other */
}

static void the_same_seed_gives_the_same_numbers(void **state) {
    km_ctx *ctx = *state;
    km_seed(ctx, 3);
    fetch(ctx, km_normal(ctx, KM_F32, KM_SHAPE(1000), 0, 1), x);
    fetch(ctx, km_normal(ctx, KM_F32, KM_SHAPE(1000), 0, 1), y);
    assert_memory_not_equal(x, y, 4000); /* the sequence goes on */
    km_seed(ctx, 3);
    fetch(ctx, km_normal(ctx, KM_F32, KM_SHAPE(1000), 0, 1), y);
    assert_memory_equal(x, y, 4000);
    km_seed(ctx, 4);
    fetch(ctx, km_normal(ctx, KM_F32, KM_SHAPE(1000), 0, 1), y);
    assert_memory_not_equal(x, y, 4000);
}

static void a_larger_fill_begins_with_the_smaller_one(void **state) {
    km_ctx *ctx = *state;
    static const int sizes[] = {1, 2, 3, 5, 7, 31, 33, 1001};
    km_seed(ctx, 5);
    fetch(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(5000), 0, 1), x);
    for (int i = 0; i < 8; i++) {
        km_seed(ctx, 5);
        fetch(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(sizes[i]), 0, 1), y);
        assert_memory_equal(x, y, sizeof(float) * (size_t)sizes[i]);
    }
}

static void every_device_draws_the_same_numbers(void **state) {
    km_ctx *ref = *state, *cpu = km_ctx_new("cpu", 2);
    km_seed(ref, 6);
    km_seed(cpu, 6);
    fetch(ref, km_uniform(ref, KM_F32, KM_SHAPE(N), 0, 1), x);
    fetch(cpu, km_uniform(cpu, KM_F32, KM_SHAPE(N), 0, 1), y);
    assert_memory_equal(x, y, sizeof x);
    fetch(ref, km_normal(ref, KM_F32, KM_SHAPE(N), 0, 1), x);
    fetch(cpu, km_normal(cpu, KM_F32, KM_SHAPE(N), 0, 1), y);
    for (int i = 0; i < N; i++) assert_true(fabs(x[i] - y[i]) < 1e-5);
    fetch(ref, km_dropout(ref, km_ones(ref, KM_F32, KM_SHAPE(N)), 0.3), x);
    fetch(cpu, km_dropout(cpu, km_ones(cpu, KM_F32, KM_SHAPE(N)), 0.3), y);
    for (int i = 0; i < N; i++) {
        assert_int_equal(x[i] == 0, y[i] == 0);
        assert_true(fabs(x[i] - y[i]) < 1e-6);
    }
    km_ctx_free(cpu);
}

static void dropout_zeroes_its_share_and_scales_the_rest(void **state) {
    km_ctx *ctx = *state;
    km_seed(ctx, 7);
    for (double p = 0.1; p < 1; p += 0.4) {
        int zeros = 0;
        fetch(ctx, km_dropout(ctx, km_ones(ctx, KM_F32, KM_SHAPE(N)), p), x);
        for (int i = 0; i < N; i++) {
            zeros += x[i] == 0;
            assert_true(x[i] == 0 || fabs(x[i] - 1 / (1 - p)) < 1e-5);
        }
        assert_true(fabs(zeros - N * p) < 5 * sqrt(N * p * (1 - p)));
    }
    fetch(ctx, km_dropout(ctx, km_ones(ctx, KM_F32, KM_SHAPE(N)), 0), x);
    for (int i = 0; i < N; i++) assert_true(x[i] == 1);
}

static void dropouts_mask_is_the_same_going_back(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, km_ones(ctx, KM_F32, KM_SHAPE(50, 40)));
    km_seed(ctx, 8);
    km_tensor *a = km_dropout(ctx, p, 0.5), *b = km_dropout(ctx, km_mul_scalar(ctx, p, 1), 0.5);
    fetch(ctx, a, x);
    fetch(ctx, b, y);
    assert_memory_not_equal(x, y, 8000); /* another mask each time */
    for (int i = 0; i < 2000; i++) x[i] += y[i];
    km_backward(ctx, km_sum(ctx, km_add(ctx, a, b), NULL, 0, false));
    fetch(ctx, km_grad(p), y);
    assert_memory_equal(x, y, 8000);
    km_release(p);
}

static void ranges_count_in_every_dtype(void **state) {
    km_ctx *ctx = *state;
    assert_elements(ctx, km_arange(ctx, KM_F32, 4, 1, 0.5), 1, 1.5, 2, 2.5);
    assert_elements(ctx, km_arange(ctx, KM_I32, 4, 10, -3), 10, 7, 4, 1);
    assert_elements(ctx, km_arange(ctx, KM_U8, 3, 254, 1), 254, 255, 255); /* saturates */
    assert_shape(km_arange(ctx, KM_F32, 0, 0, 1), KM_SHAPE(0));
    km_tensor *long_one = km_arange(ctx, KM_I64, N, 0, 1);
    assert_true(engine_element(ctx, long_one, N - 1) == N - 1);
    assert_elements(ctx, km_full(ctx, KM_BOOL, KM_SHAPE(2), 3), 1, 1);
}

/* ---- The same bits on any number of threads ---- */

typedef km_tensor *(*work)(km_ctx *ctx, km_tensor *t); /* t is (200, 500) */

static km_tensor *sum_all(km_ctx *ctx, km_tensor *t) { return km_sum(ctx, t, NULL, 0, false); }
static km_tensor *sum_rows(km_ctx *ctx, km_tensor *t) {
    return km_sum(ctx, t, (int[]){1}, 1, false);
}
static km_tensor *sum_columns(km_ctx *ctx, km_tensor *t) {
    return km_sum(ctx, t, (int[]){0}, 1, false);
}
static km_tensor *mean_turned(km_ctx *ctx, km_tensor *t) {
    return km_mean(ctx, km_transpose(ctx, t, 0, 1), NULL, 0, false);
}
static km_tensor *variance(km_ctx *ctx, km_tensor *t) { return km_var(ctx, t, NULL, 0, false, 1); }
static km_tensor *logsumexp(km_ctx *ctx, km_tensor *t) {
    return km_logsumexp(ctx, t, (int[]){0}, 1, false);
}
static km_tensor *elementwise(km_ctx *ctx, km_tensor *t) {
    return km_gelu(ctx, km_add(ctx, km_exp(ctx, t), km_select(ctx, t, 0, 0)));
}
static km_tensor *softmax(km_ctx *ctx, km_tensor *t) { return km_softmax(ctx, t, -1); }
static km_tensor *softmax_down(km_ctx *ctx, km_tensor *t) { return km_softmax(ctx, t, 0); }
static km_tensor *norm(km_ctx *ctx, km_tensor *t) {
    return km_layer_norm(ctx, t, km_select(ctx, t, 0, 1), km_select(ctx, t, 0, 2), 1e-5);
}
static km_tensor *scatter(km_ctx *ctx, km_tensor *t) { /* many to one place */
    km_tensor *index = km_zeros(ctx, KM_I32, KM_SHAPE(200, 500));
    return km_scatter_add(ctx, t, 1, index, t);
}
static km_tensor *loss(km_ctx *ctx, km_tensor *t) {
    return km_cross_entropy(ctx, t, km_arange(ctx, KM_I32, 200, 0, 1), -1, KM_MEAN);
}
static km_tensor *gradients(km_ctx *ctx, km_tensor *t) { /* of norm weights, and by index */
    km_tensor *table = engine_parameter(ctx, t);
    km_tensor *w = engine_parameter(ctx, km_copy(ctx, km_select(ctx, t, 0, 3)));
    km_tensor *ids = km_cast(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(300), 0, 7), KM_I32);
    km_tensor *h = km_rms_norm(ctx, km_embedding(ctx, table, ids), w, 1e-5);
    km_backward(ctx, sum_all(ctx, km_mul(ctx, h, h)));
    km_tensor *both = km_concat(
        ctx,
        (km_tensor *[]){km_unsqueeze(ctx, km_grad(w), 0), km_narrow(ctx, km_grad(table), 0, 0, 7)},
        2, 0);
    km_release(table);
    km_release(w);
    return both;
}

static void thread_counts_do_not_change_a_bit(void **state) {
    static const work works[] = {sum_all,   sum_rows,    sum_columns, mean_turned,  variance,
                                 logsumexp, elementwise, softmax,     softmax_down, norm,
                                 scatter,   loss,        gradients};
    int64_t live = km_alloc_live();
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
        for (int threads = 1; threads <= 3; threads++) {
            km_ctx *ctx = km_ctx_new("cpu", threads);
            km_seed(ctx, 9);
            km_tensor *r = works[i](ctx, km_normal(ctx, KM_F32, KM_SHAPE(200, 500), 0.1, 1));
            assert_ok(ctx);
            fetch(ctx, r, threads == 1 ? x : y);
            if (threads > 1) assert_memory_equal(x, y, sizeof(float) * (size_t)km_tensor_count(r));
            km_ctx_free(ctx);
        }
    assert_int_equal(km_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(uniform_numbers_fill_their_range_evenly),
        ON_EACH(normal_numbers_have_the_mean_and_deviation_asked_for),
        ON_EACH(the_same_seed_gives_the_same_numbers),
        ON_EACH(a_larger_fill_begins_with_the_smaller_one),
        ON("ref", every_device_draws_the_same_numbers),
        ON_EACH(dropout_zeroes_its_share_and_scales_the_rest),
        ON_EACH(dropouts_mask_is_the_same_going_back),
        ON_EACH(ranges_count_in_every_dtype),
        cmocka_unit_test(thread_counts_do_not_change_a_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
