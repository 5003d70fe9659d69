/* Scans agree with decoded rows, whatever the layout, the metric and the instruction set; and with a
 * limit they lose nobody who is near. */
#include "backend/cpu/codes.h"
#include "normal_rows.h"
#include "support/sanitized.h"
#include "vector/scan.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct cloud {
    int64_t n, dim;
    float *x, *query, anchor[256];
    km_coder *c;
    uint8_t *codes, *packed;
    float *back; /* decoded */
} cloud;

static cloud make(int64_t n, int64_t dim, double bytes, km_code_mode mode, km_code_turn turn) {
    cloud k = {.n = n, .dim = dim, .x = normal_rows(1, n, dim), .query = normal_rows(2, 1, dim)};
    for (int64_t i = 0; i < n * dim; i++) k.x[i] *= 1 / (1 + 0.05f * (float)(i % dim));
    for (int64_t i = 0; i < dim; i++) k.anchor[i] = 0.1f * (float)(i % 5);
    km_coder_options o = {.dim = dim, .bytes = bytes, .mode = mode, .turn = turn, .seed = 1};
    k.c = km_coder_train(NULL, k.x, n, &o, NULL);
    assert_non_null(k.c);
    size_t size = (size_t)n * km_coder_bytes(k.c);
    k.codes = malloc(size), k.packed = malloc(size);
    k.back = malloc((size_t)(n * dim) * sizeof *k.back);
    assert_int_equal(km_coder_encode(k.c, NULL, k.x, n, k.codes), KM_OK);
    assert_int_equal(km_coder_decode(k.c, NULL, k.codes, n, k.back), KM_OK);
    km_coder_pack(k.c, k.codes, n, k.packed);
    return k;
}

static void drop(cloud *k) {
    km_coder_free(k->c);
    free(k->x), free(k->query), free(k->codes), free(k->packed), free(k->back);
}

static void packing_can_be_undone(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 31, 32, 33, 100, 1024, 1025, 1100};
    cloud k = make(1100, 24, 10, KM_CODE_FAST, KM_TURN_HADAMARD);
    size_t b = km_coder_bytes(k.c);
    uint8_t *packed = malloc(1100 * b), *back = malloc(1100 * b);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        km_coder_pack(k.c, k.codes, rows[i], packed);
        km_coder_unpack(k.c, packed, rows[i], back);
        assert_memory_equal(back, k.codes, (size_t)rows[i] * b);
    }
    assert_true(km_coder_block_rows(k.c) % 32 == 0);
    free(packed), free(back);
    drop(&k);
}

static void check_distances(cloud *k) {
    km_scan *s = km_scan_new(k->c, NULL);
    float *dist = malloc((size_t)k->n * sizeof *dist);
    float *turned = malloc((size_t)km_coder_turned(k->c) * sizeof *turned);
    assert_non_null(s);
    km_coder_turn(k->c, k->anchor, turned);
    for (int metric = KM_METRIC_L2; metric <= KM_METRIC_IP; metric++) {
        km_scan_query(s, k->query, (km_metric)metric);
        km_scan_cell(s, turned, 0.25f);
        km_scan_codes(s, k->packed, k->n, INFINITY, dist);
        /* For L2, what the codes have lost is added, in proportion to scale^2. */
        for (int64_t i = 0; i < k->n; i++) {
            double want = 0.25, norm = 0;
            for (int64_t j = 0; j < k->dim; j++) {
                double y = k->anchor[j] + (double)k->back[i * k->dim + j], q = k->query[j];
                want += metric == KM_METRIC_L2 ? (q - y) * (q - y) : -q * y;
                norm += (double)k->back[i * k->dim + j] * k->back[i * k->dim + j];
            }
            double more = dist[i] - want, size = fabs(want) + norm + 1;
            if (metric != KM_METRIC_L2) {
                assert_true(fabs(more) < 1e-4 * size);
            } else {
                assert_true(more > -0.01 * norm - 1e-4 * size && more < 2 * norm + 1e-4 * size);
            }
        }
    }
    free(dist), free(turned);
    km_scan_free(s);
}

static void distances_are_those_of_decoded_rows(void **state) {
    (void)state;
    static const struct {
        int64_t n, dim;
        double bytes;
    } shapes[] = {{70, 24, 7}, {40, 9, 4}, {33, 64, 33}, {50, 200, 110}, {20, 30, 31}, {5, 1, 2}};
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            cloud k = make(shapes[i].n, shapes[i].dim, shapes[i].bytes, (km_code_mode)(kind % 2),
                           kind / 2 ? KM_TURN_PCA : KM_TURN_HADAMARD);
            check_distances(&k);
            drop(&k);
        }
    }
}

static void a_limit_loses_nobody_who_is_near(void **state) {
    (void)state;
    enum { N = SANITIZED ? 500 : 3000, D = 64 };
    for (int kind = 0; kind < 4; kind++) {
        for (int metric = KM_METRIC_L2; metric <= KM_METRIC_IP; metric++) {
            cloud k =
                make(N, D, 33, (km_code_mode)(kind % 2), kind / 2 ? KM_TURN_PCA : KM_TURN_HADAMARD);
            km_near *keys = malloc(N * sizeof *keys);
            float *all = malloc(N * sizeof *all), *some = malloc(N * sizeof *some);
            km_scan *s = km_scan_new(k.c, NULL);
            int64_t skipped = 0, missed = 0, near = 0, far = 0;
            for (int q = 0; q < 20; q++) {
                for (int i = 0; i < D; i++) k.query[i] = k.x[q * 7 * D + i] * 0.9f + 0.1f;
                km_scan_query(s, k.query, (km_metric)metric);
                km_scan_codes(s, k.packed, N, INFINITY, all);
                float limit = all[q * 7]; /* rows nearer than the query's own source */
                km_scan_codes(s, k.packed, N, limit, some);
                assert_int_equal(km_scan_near(s, k.packed, N, INFINITY, keys), N);
                for (int i = 0; i < N; i++) {
                    near += all[i] <= limit;
                    far += all[i] <= limit && keys[i].key > limit;
                    missed += all[i] <= limit && some[i] != all[i];
                    skipped += some[i] != all[i];
                    assert_true(some[i] == all[i] || some[i] > limit);
                }
            }
            assert_true(near >= 20 && missed * 100 <= near && far * 100 <= near);
            assert_true(skipped > N); /* or there was no point in it */
            free(all), free(some), free(keys);
            km_scan_free(s);
            drop(&k);
        }
    }
}

static void queries_together_find_what_each_finds_alone(void **state) {
    (void)state;
    enum { N = 1060, D = 40, MOST = 11 };
    for (int mode = KM_CODE_FAST; mode <= KM_CODE_DENSE; mode++) {
        cloud k = make(N, D, 17, (km_code_mode)mode, KM_TURN_PCA);
        km_scan *s[MOST];
        km_near *each[MOST], *alone = malloc(N * sizeof *alone);
        float limit[MOST];
        int64_t count[MOST];
        for (int i = 0; i < MOST; i++) {
            each[i] = malloc(N * sizeof *each[i]);
            s[i] = km_scan_new(k.c, NULL);
            assert_non_null(s[i]);
            km_scan_query(s[i], k.x + i * 31 * D, i % 2 ? KM_METRIC_L2 : KM_METRIC_IP);
            km_scan_near(s[i], k.packed, N, INFINITY, alone);
            limit[i] = i % 3 ? alone[i * 50].key : INFINITY;
        }
        for (int n = 1; n <= MOST; n++) {
            km_scan_near_each(s, n, k.packed, N, limit, each, count);
            for (int i = 0; i < n; i++) {
                assert_int_equal(km_scan_near(s[i], k.packed, N, limit[i], alone), count[i]);
                assert_memory_equal(alone, each[i], (size_t)count[i] * sizeof *alone);
            }
        }
        for (int i = 0; i < MOST; i++) free(each[i]), km_scan_free(s[i]);
        free(alone);
        drop(&k);
    }
}

/* Whatever the limit, rows whose keys it admits are found, with the same numbers. */
static void keys_do_not_depend_on_the_limit(void **state) {
    (void)state;
    enum { N = SANITIZED ? 100 : 1060, D = 48 };
    for (int mode = KM_CODE_FAST; mode <= KM_CODE_DENSE; mode++) {
        cloud k = make(N, D, 25, (km_code_mode)mode, KM_TURN_PCA);
        km_near *all = malloc(N * sizeof *all), *some = malloc(N * sizeof *some);
        km_scan *s = km_scan_new(k.c, NULL);
        assert_non_null(s);
        for (int metric = KM_METRIC_L2; metric <= KM_METRIC_IP; metric++) {
            km_scan_query(s, k.query, (km_metric)metric);
            assert_int_equal(km_scan_near(s, k.packed, N, INFINITY, all), N);
            for (int i = 0; i < N; i++) assert_true(all[i].row == i && all[i].key >= all[i].dist);
            for (int of = 5; of < N; of += N / 5) {
                float limit = all[of].key;
                int64_t n = km_scan_near(s, k.packed, N, limit, some), at = 0;
                for (int i = 0; i < N; i++) {
                    if (at < n && some[at].row == i) {
                        assert_true(some[at].key == all[i].key && some[at].dist == all[i].dist);
                        at++;
                    } else {
                        assert_true(all[i].key > limit);
                    }
                }
                assert_true(at == n);
            }
        }
        free(all), free(some);
        km_scan_free(s);
        drop(&k);
    }
}

/* Told where the limit will be, a scan may look at fewer bits first. Still keys do not depend on the
 * limit, and nobody who is near is lost. */
static void a_limit_that_is_known_loses_nobody_who_is_near(void **state) {
    (void)state;
    enum { N = SANITIZED ? 200 : 1500, D = 224 };
    for (int kind = 0; kind < 4; kind += SANITIZED ? 2 : 1) {
        cloud k = make(N, D, 112, KM_CODE_FAST, kind % 2 ? KM_TURN_PCA : KM_TURN_HADAMARD);
        km_near *again = malloc(N * sizeof *again), *some = malloc(N * sizeof *some);
        float *all = malloc(N * sizeof *all);
        km_scan *first = km_scan_new(k.c, NULL), *s = km_scan_like(first, NULL);
        assert_non_null(s);
        int64_t near = 0, missed = 0;
        for (int q = 0; q < 10; q++) {
            for (int i = 0; i < D; i++)
                k.query[i] = k.x[q * 7 * D + i] + 0.1f * k.x[(q + 9) * D + i];
            km_scan_query(s, k.query, kind / 2 ? KM_METRIC_IP : KM_METRIC_L2);
            km_scan_codes(s, k.packed, N, INFINITY, all);
            float limit = all[q * 7];
            km_scan_cell(s, NULL, 0);
            km_scan_aim(s, limit);
            int64_t n = km_scan_near(s, k.packed, N, limit, some), at = 0;
            assert_int_equal(km_scan_near(s, k.packed, N, INFINITY, again), N);
            for (int i = 0; i < N; i++) {
                bool found = at < n && some[at].row == i;
                near += all[i] <= limit;
                missed += all[i] <= limit && !found;
                assert_true(again[i].dist == all[i]);
                assert_true(found ? some[at].key == again[i].key : again[i].key > limit);
                at += found;
            }
            assert_int_equal(at, n);
        }
        assert_true(near >= 10 && missed * 50 <= near);
        free(again), free(some), free(all);
        km_scan_free(s), km_scan_free(first);
        drop(&k);
    }
}

static void instruction_sets_agree_on_tables_and_bounds(void **state) {
    (void)state;
    enum { PLANES = 151, GROUPS = 40, N = 3 * 32 + 7, BYTES = PLANES + 3 };
    extern const km_code_kernels km_simd_codes_base;
    const km_code_kernels *best = km_simd_codes(), *base = &km_simd_codes_base;
    static uint8_t rows[N * BYTES], lut[2][PLANES * 32 + 64], blocks[2][4 * PLANES * 32];
    static int32_t plane[PLANES][2], left[2][4 * 32];
    static float scales[256], bound[2][4 * 32];
    float *p = normal_rows(1, GROUPS, 8), *weight = normal_rows(2, 1, PLANES), quad[2 * GROUPS];
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = (uint8_t)km_philox(1, 1, i).v[0];
    for (int i = 0; i < PLANES; i++) plane[i][0] = i * 7 % GROUPS;
    for (int i = 0; i < 256; i++) scales[i] = 1 + 0.01f * (float)i;
    for (int planes = 1; planes <= PLANES; planes += 30) {
        int64_t first = planes / 16 * 8, size = 32 * planes;
        for (int k = 0; k < 2; k++) {
            const km_code_kernels *at = k ? base : best;
            float least, step;
            memset(lut[k], 0, sizeof lut[k]);
            at->tables(planes, (const int32_t(*)[2])(const void *)plane, weight, GROUPS, p, quad,
                       lut[k], &least, &step);
            for (int i = 0; i < N; i += 32)
                at->lay(rows + i * BYTES + 1, BYTES, N - i < 32 ? N - i : 32, planes,
                        blocks[k] + i / 32 * size);
            int apart = 0;
            for (int64_t i = 0; k && i < size; i++) {
                assert_true(lut[0][i] <= KM_STAGE_TOP && abs(lut[0][i] - lut[1][i]) <= 1);
                apart += lut[0][i] != lut[1][i];
            }
            assert_true(apart <= size / 100); /* ties, rounded either way */
            if (k) assert_memory_equal(blocks[0], blocks[1], (size_t)(4 * size));
            km_stage_query q = {scales, lut[0],   {2 * (first ? first : planes), 0},
                                size,   3,        0.5f,
                                -2,     {-1, -2}, {0.01f, 0.02f},
                                0.015f};
            q.nibbles[1] = 2 * planes - q.nibbles[0];
            static uint8_t codes[N];
            for (int i = 0; i < N; i++) codes[i] = rows[i * BYTES];
            km_stage_rows all = {codes, blocks[k], N, 0, 255};
            int64_t n = at->near(&q, &all, INFINITY, left[k], bound[k]);
            assert_int_equal(n, N);
            for (int i = 0; i < N; i++) assert_int_equal(left[k][i], i);
            for (int of = 0; of < N; of += 10) { /* each limit admits those whose bounds do */
                int32_t some[4 * 32];
                float got[4 * 32];
                int64_t m = 0;
                n = at->near(&q, &all, bound[k][of], some, got);
                for (int i = 0; i < N; i++) {
                    if (bound[k][i] > bound[k][of]) continue;
                    assert_true(m < n && some[m] == i && got[m] == bound[k][i]);
                    m++;
                }
                assert_int_equal(m, n);
            }
        }
        for (int i = 0; i < N; i++)
            assert_true(fabsf(bound[0][i] - bound[1][i]) <= 1e-5f * (1 + fabsf(bound[1][i])));
    }
    free(p), free(weight);
}

static void instruction_sets_agree_on_steps(void **state) {
    (void)state;
    extern const km_code_kernels km_simd_codes_base;
    const km_code_kernels *best = km_simd_codes(), *base = &km_simd_codes_base;
    static float cost[KM_TRELLIS_STATES], x[KM_TRELLIS_STATES], y[KM_TRELLIS_STATES];
    static uint8_t p[KM_TRELLIS_STATES], q[KM_TRELLIS_STATES];
    float *values = normal_rows(3, 1, KM_TRELLIS_STATES);
    for (int rate = 1; rate <= KM_TRELLIS_RATE; rate++) {
        for (int i = 0; i < KM_TRELLIS_STATES; i++) cost[i] = values[KM_TRELLIS_STATES - 1 - i] + 4;
        best->step(rate, values, 0.3f, 0.9f, cost, x, p);
        base->step(rate, values, 0.3f, 0.9f, cost, y, q);
        assert_memory_equal(p, q, (size_t)(KM_TRELLIS_STATES >> rate));
        for (int i = 0; i < KM_TRELLIS_STATES; i++) assert_true(fabsf(x[i] - y[i]) < 1e-5f);
    }
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_can_be_undone),
        cmocka_unit_test(distances_are_those_of_decoded_rows),
        cmocka_unit_test(a_limit_loses_nobody_who_is_near),
        cmocka_unit_test(keys_do_not_depend_on_the_limit),
        cmocka_unit_test(a_limit_that_is_known_loses_nobody_who_is_near),
        cmocka_unit_test(queries_together_find_what_each_finds_alone),
        cmocka_unit_test(instruction_sets_agree_on_tables_and_bounds),
        cmocka_unit_test(instruction_sets_agree_on_steps),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(packing_can_be_undone)};
    return THREADS_SANITIZED ? cmocka_run_group_tests(few, NULL, NULL) /* a scan is one thread's */
                             : cmocka_run_group_tests(tests, NULL, NULL);
}
