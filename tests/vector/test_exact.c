/* Exact search is exact: with every set of kernels, metric and kind of data it finds what plain
 * arithmetic finds, and a bound in bytes never costs a neighbour. */
#include "backend/cpu/quant_kernels.h"
#include "vector/exact.h"
#include "vector/index.h"
#include "vector/vectors.h"

enum { N = 700, QUERIES = 30, K = 12 };

static km_ctx *ctx;

static int set_up(void **state) {
    (void)state;
    ctx = km_ctx_new("cpu", 2);
    return ctx ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    km_ctx_free(ctx);
    return 0;
}

typedef struct near_pair {
    double dist;
    uint64_t id;
} near_pair;

static int by_distance(const void *a, const void *b) {
    const near_pair *x = a, *y = b;
    if (x->dist != y->dist) return x->dist < y->dist ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Both as km_exact leaves them: of cosine, scaled. */
static double true_distance(km_metric metric, const float *q, const float *x, int64_t dim) {
    double product = 0, gap = 0;
    for (int64_t j = 0; j < dim; j++) {
        product += (double)q[j] * x[j];
        gap += ((double)q[j] - x[j]) * ((double)q[j] - x[j]);
    }
    return metric == KM_METRIC_L2 ? gap : metric == KM_METRIC_IP ? -product : 1 - product;
}

static void expect_exact(const float *base, const float *queries, int64_t dim, km_metric metric) {
    km_error err = {0};
    float *rows = malloc(sizeof *rows * (size_t)(N * dim)), dist[QUERIES * K];
    float *q = malloc(sizeof *q * (size_t)(QUERIES * dim));
    uint64_t ids[QUERIES * K], self[QUERIES];
    memcpy(rows, base, sizeof *rows * (size_t)(N * dim));
    memcpy(q, queries, sizeof *q * (size_t)(QUERIES * dim));
    for (int i = 0; i < QUERIES; i++) self[i] = i % 2 ? (uint64_t)(3 * i) : KM_NO_ID;
    km_exact *e = km_exact_new(ctx, q, QUERIES, dim, K, metric, &err);
    assert_non_null(e);
    km_exact_pass_over(e, self);
    for (int64_t at = 0; at < N; at += 201) /* in pieces that are no whole tiles */
        assert_int_equal(
            km_exact_feed(e, rows + at * dim, N - at < 201 ? N - at : 201, (uint64_t)at, &err),
            KM_OK);
    km_exact_result(e, ids, dist);
    if (metric == KM_METRIC_COSINE) km_unit(q, QUERIES, dim);
    for (int i = 0; i < QUERIES; i++) {
        near_pair all[N];
        int64_t n = 0;
        double size = 0;
        for (int64_t r = 0; r < N; r++) {
            double d = true_distance(metric, q + i * dim, rows + r * dim, dim);
            if ((uint64_t)r == self[i] || !((float)d < INFINITY)) continue;
            all[n++] = (near_pair){d, (uint64_t)r};
        }
        for (int64_t j = 0; j < dim; j++) size += (double)q[i * dim + j] * q[i * dim + j];
        qsort(all, (size_t)n, sizeof *all, by_distance);
        for (int k = 0; k < K; k++) {
            if (k >= n) {
                assert_true(ids[i * K + k] == KM_NO_ID);
                continue;
            }
            double off = fabs(dist[i * K + k] - all[k].dist);
            double least = true_distance(metric, q + i * dim, rows + ids[i * K + k] * dim, dim);
            assert_true(ids[i * K + k] != KM_NO_ID && ids[i * K + k] != self[i]);
            if (off > 1e-5 * (fabs(all[k].dist) + (metric == KM_METRIC_L2 ? 0 : size)) ||
                fabs(least - dist[i * K + k]) > 1e-5 * (fabs(least) + size))
                fail_msg("dim %lld, metric %d, query %d, neighbour %d: %.9g, is %.9g",
                         (long long)dim, metric, i, k, dist[i * K + k], all[k].dist);
        }
    }
    km_exact_free(e);
    free(rows);
    free(q);
}

/* Clusters, far from the origin or not, of tiny or huge numbers, copies, zeros, and rows that are not
 * finite. */
static void exact_search_is_exact(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 3, 16, 33, 300};
    static const float scale[] = {1, 1e-12f, 1e12f, 1, 1}, shift[] = {0, 0, 0, 50, 0};
    for (int set = 0; km_quant_kernels_name(set); set++) {
        if (!km_quant_choose(set)) continue;
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int kind = 0; kind < 5; kind++) {
                int64_t dim = dims[d];
                float *x = clustered(N + QUERIES, dim, 7 + (uint64_t)kind);
                for (int64_t i = 0; i < (N + QUERIES) * dim; i++)
                    x[i] = scale[kind] * (x[i] + shift[kind]);
                for (int64_t i = 0; kind == 4 && i < N + QUERIES;
                     i++) /* all that a byte can tell */
                    x[i * dim] = i % 2 ? 100 : -100;
                memcpy(x + 40 * dim, x + 41 * dim, sizeof *x * (size_t)dim);
                memset(x + 50 * dim, 0, sizeof *x * (size_t)dim);
                memcpy(x + (N + 1) * dim, x + 60 * dim, sizeof *x * (size_t)dim);
                x[70 * dim] = NAN;
                x[71 * dim + dim - 1] = INFINITY;
                for (int metric = 0; metric < 3; metric++)
                    expect_exact(x, x + N * dim, dim, (km_metric)metric);
                free(x);
            }
    }
    for (int set = 0; km_quant_kernels_name(set); set++) km_quant_choose(set); /* the best again */
}

static void whoever_is_as_near_as_the_last_wanted_counts_as_found(void **state) {
    (void)state;
    const uint64_t near[6] = {1, 2, 3, 4, 5, KM_NO_ID}, ours[4] = {1, 2, 5, 9};
    const uint64_t with_self[4] = {7, 1, 2, 5}, short_of[3] = {1, KM_NO_ID, KM_NO_ID};
    const float tied[6] = {0, 1, 2, 2, 2, INFINITY}, apart[6] = {0, 1, 2, 3, 4, INFINITY};
    assert_float_equal(km_recall_tied(near, tied, 6, 3, ours, KM_NO_ID), 1, 1e-9);
    assert_float_equal(km_recall_tied(near, apart, 6, 3, ours, KM_NO_ID), 2. / 3, 1e-9);
    assert_float_equal(km_recall_tied(near, tied, 6, 3, with_self, 7), 1, 1e-9);
    assert_float_equal(km_recall_tied(near, tied, 6, 3, with_self, KM_NO_ID), 2. / 3, 1e-9);
    assert_float_equal(km_recall_tied(near, tied, 6, 3, short_of, KM_NO_ID), 1. / 3, 1e-9);
    /* fewer rows than are asked for */
    assert_float_equal(km_recall_tied(near + 4, tied + 4, 2, 3, ours, KM_NO_ID), 1, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_is_as_near_as_the_last_wanted_counts_as_found),
        cmocka_unit_test(exact_search_is_exact)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
