/* Nearest centres and sums of cells: against their definitions written out here, with ties, edges and
 * odd values, and the same bits for any number of threads. */
#include "ops/nearest.h"
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

static uint64_t seed;

static float random_unit(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) * 0x1p-23f - 1;
}

static float *filled(int64_t n, float offset, float step) {
    float *x = malloc(sizeof *x * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        float v = random_unit() * 3;
        x[i] = offset + (step > 0 ? floorf(v / step) * step : v);
    }
    return x;
}

static double between(const float *x, const float *c, int64_t d) {
    double s = 0;
    for (int64_t e = 0; e < d; e++)
        s += ((double)x[e] - (double)c[e]) * ((double)x[e] - (double)c[e]);
    return s;
}

static void find(km_ctx *ctx, const float *x, const float *c, int64_t n, int64_t d, int64_t k,
                 int32_t *id, float *dist) {
    km_tensor *ids, *dists;
    km_tensor *tx = km_from_data(ctx, KM_F32, KM_SHAPE(n, d), x);
    km_tensor *tc = km_from_data(ctx, KM_F32, KM_SHAPE(k, d), c);
    assert_null(km_nearest_work(ctx, tx)); /* hosts take no notes */
    assert_int_equal(km_nearest_of(ctx, tx, tc, NULL, true, false, &ids, &dists), KM_OK);
    km_read(ctx, ids, id, sizeof *id * (size_t)n);
    km_read(ctx, dists, dist, sizeof *dist * (size_t)n);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_step_end(ctx);
}

static void the_nearest_centre_is_found_and_the_lower_of_equals(void **state) {
    km_ctx *ctx = *state;
    static const int64_t sizes[][3] = {
        {1, 1, 1}, {50, 3, 7}, {97, 64, 65}, {200, 5, 130}, {30, 900, 200}};
    static const float steps[] = {0, 1, 0}, offsets[] = {0, 0, 1000};
    for (int form = 0; form < 3; form++)
        for (int s = 0; s < 5; s++) {
            int64_t n = sizes[s][0], d = sizes[s][1], k = sizes[s][2];
            seed = (uint64_t)(s + 1);
            float *x = filled(n * d, offsets[form], steps[form]);
            float *c = filled(k * d, offsets[form], steps[form]), dist[256];
            int32_t id[256];
            find(ctx, x, c, n, d, k, id, dist);
            for (int64_t i = 0; i < n; i++) {
                int64_t want = 0;
                for (int64_t j = 1; j < k; j++)
                    if (between(x + i * d, c + j * d, d) < between(x + i * d, c + want * d, d))
                        want = j;
                assert_int_equal(id[i], want);
                double exact = between(x + i * d, c + want * d, d);
                assert_true(fabs((double)dist[i] - exact) <= 1e-5 * exact + 1e-12);
            }
            free(x);
            free(c);
        }
}

static void what_is_not_a_number_is_never_nearest(void **state) {
    km_ctx *ctx = *state;
    float x[] = {0, 0, NAN, 0, 3, 3, INFINITY, 0}, c[] = {NAN, 0, 1, 1, 4, 4}, dist[4];
    int32_t id[4];
    find(ctx, x, c, 4, 2, 3, id, dist);
    assert_int_equal(id[0], 1);
    assert_int_equal(id[1], 0);
    assert_true(isnan(dist[1]));
    assert_int_equal(id[2], 2);
    assert_true(id[3] >= 0 && id[3] < 3);
}

static void cells_hold_their_rows_sums_and_nothing_else(void **state) {
    km_ctx *ctx = *state;
    enum { N = 500, D = 9, K = 11 };
    seed = 5;
    float *x = filled(N * D, 0, 0), *w = filled(N, 1, 0), sum[K * D], mass[K], count[K], spread[K];
    int32_t id[N];
    for (int i = 0; i < N; i++) id[i] = i % 13 - 1; /* -1, 11 and up: in no cell; 5: see below */
    for (int i = 0; i < N; i++)
        if (id[i] == 5) id[i] = 4;
    km_cell_sums_result r;
    assert_int_equal(km_cell_sums(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N, D), x),
                                  km_from_data(ctx, KM_I32, KM_SHAPE(N), id),
                                  km_from_data(ctx, KM_F32, KM_SHAPE(N), w),
                                  km_from_data(ctx, KM_F32, KM_SHAPE(N), w), K, &r),
                     KM_OK);
    km_read(ctx, r.sum, sum, sizeof sum);
    km_read(ctx, r.mass, mass, sizeof mass);
    km_read(ctx, r.count, count, sizeof count);
    km_read(ctx, r.spread, spread, sizeof spread);
    for (int j = 0; j < K; j++) {
        double want[D] = {0}, weight = 0, many = 0;
        for (int i = 0; i < N; i++) {
            if (id[i] != j) continue;
            for (int e = 0; e < D; e++) want[e] += (double)w[i] * (double)x[i * D + e];
            weight += (double)w[i];
            many++;
        }
        for (int e = 0; e < D; e++) assert_true(fabs((double)sum[j * D + e] - want[e]) < 1e-3);
        assert_true(fabs((double)mass[j] - weight) < 1e-3 &&
                    fabs((double)spread[j] - weight) < 1e-3);
        assert_true((double)count[j] == many && (j != 5 || many == 0));
    }
    free(x);
    free(w);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    enum { N = 3000, D = 70, K = 150 };
    static float x[N * D], c[K * D], dist[2][N], sum[2][K * D];
    static int32_t id[2][N];
    seed = 9;
    for (int i = 0; i < N * D; i++) x[i] = random_unit();
    for (int i = 0; i < K * D; i++) c[i] = random_unit();
    for (int t = 0; t < 2; t++) {
        km_ctx *ctx = km_ctx_new("cpu", t ? 3 : 1);
        km_cell_sums_result r;
        find(ctx, x, c, N, D, K, id[t], dist[t]);
        km_cell_sums(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N, D), x),
                     km_from_data(ctx, KM_I32, KM_SHAPE(N), id[t]), NULL, NULL, K, &r);
        km_read(ctx, r.sum, sum[t], sizeof sum[t]);
        assert_int_equal(km_ctx_status(ctx), KM_OK);
        km_ctx_free(ctx);
    }
    assert_memory_equal(id[0], id[1], sizeof id[0]);
    assert_memory_equal(dist[0], dist[1], sizeof dist[0]);
    assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
}

static void wrong_shapes_and_types_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *id, *dist;
    km_cell_sums_result r;
    km_tensor *x = km_zeros(ctx, KM_F32, KM_SHAPE(4, 3)),
              *none = km_zeros(ctx, KM_F32, KM_SHAPE(0, 3));
    assert_int_equal(
        km_nearest_of(ctx, x, km_zeros(ctx, KM_F32, KM_SHAPE(2, 2)), NULL, true, false, &id, &dist),
        KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_nearest_of(ctx, x, none, NULL, true, false, &id, &dist), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    km_tensor *half = km_zeros(ctx, KM_F16, KM_SHAPE(2, 3));
    assert_int_equal(km_nearest_of(ctx, x, half, NULL, true, false, &id, &dist), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    km_tensor *wide = km_zeros(ctx, KM_I64, KM_SHAPE(4)), *few = km_zeros(ctx, KM_I32, KM_SHAPE(3));
    assert_int_equal(km_cell_sums(ctx, x, wide, NULL, NULL, 2, &r), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_cell_sums(ctx, x, few, NULL, NULL, 2, &r), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(the_nearest_centre_is_found_and_the_lower_of_equals),
        ON_EACH(what_is_not_a_number_is_never_nearest),
        ON_EACH(cells_hold_their_rows_sums_and_nothing_else),
        cmocka_unit_test(threads_change_no_bit),
        ON("cpu", wrong_shapes_and_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
