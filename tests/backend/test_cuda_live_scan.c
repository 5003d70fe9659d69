/* Searches over codes on a real GPU, beside the same index on the CPU and beside the GPU's own search
 * in f32: the same distances for clustered data in sorted cells, for data far from the origin, for
 * thousands of equal rows, for dense codes, for rows that are lent in parts, and the same bits every
 * time. Skipped where there is no GPU. */
#include "live_gpu.h"
#include "vector/device_index.h"
#include "vector/vectors.h"

enum { QUERIES = 150 };

/* The distances found are those of the CPU, within rounding. part > 0: of so many rows, lent. */
static void compare_split(const float *base, int64_t n, int64_t dim, km_index_options o, int64_t k,
                          int64_t part) {
    km_error err = {0};
    km_ctx *cpu = km_ctx_new("cpu", 0), *gpu = km_ctx_new(GPU, 0);
    assert_non_null(gpu);
    km_index *x = km_index_build(cpu, base, n, dim, NULL, &o);
    if (!x) fail_msg("%s", km_last_error());
    size_t many = (size_t)(QUERIES * k);
    uint64_t *ids = malloc(8 * many), *again = malloc(8 * many);
    float *want = malloc(4 * many), *got = malloc(4 * many);
    float *queries = malloc(4 * (size_t)(QUERIES * dim));
    for (int64_t i = 0; i < QUERIES; i++)
        for (int64_t j = 0; j < dim; j++)
            queries[i * dim + j] = base[i * (n / QUERIES) * dim + j] + 0.1f * (float)((i + j) % 3);
    assert_int_equal(km_index_find(x, queries, QUERIES, k, NULL, cpu->threads, ids, want, &err),
                     KM_OK);
    km_device_index *d = km_device_index_split(gpu, x, part, &err);
    if (!d) fail_msg("%s", err.text);
    assert_int_equal(km_device_index_parts(d) > 1, part > 0);
    uint64_t before = km_ctx_stats(gpu).fallbacks;
    if (km_device_index_find(d, queries, QUERIES, k, ids, got, &err) != KM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(km_ctx_stats(gpu).fallbacks, before);
    /* Scans of fast codes on the CPU may leave out a row that is most likely too far. */
    int64_t off = 0;
    for (size_t i = 0; i < many; i++)
        off += fabsf(got[i] - want[i]) > 1e-3f * (1 + fabsf(want[i])) && !(got[i] < want[i]);
    if (off) fail_msg("%lld of %zu distances are off", (long long)off, many);
    assert_int_equal(km_device_index_find(d, queries, QUERIES, k, again, want, &err), KM_OK);
    assert_memory_equal(ids, again, 8 * many);
    assert_memory_equal(got, want, 4 * many);
    km_device_index_free(d);
    km_index_close(x);
    km_ctx_free(cpu);
    km_ctx_free(gpu);
    free(ids);
    free(again);
    free(want);
    free(got);
    free(queries);
}

static void compare(const float *base, int64_t n, int64_t dim, km_index_options o, int64_t k) {
    compare_split(base, n, dim, o, k, 0);
}

static void the_gpu_finds_rows_as_near_as_the_cpu_does(void **state) {
    (void)state;
    float *base = clustered(30000, 96, 5);
    for (int metric = 0; metric < 3; metric++)
        compare(base, 30000, 96,
                (km_index_options){.size = sizeof(km_index_options),
                                   .metric = (km_metric)metric,
                                   .mode = KM_INDEX_FAST,
                                   .anchors = 64,
                                   .bytes = 49},
                10);
    for (int64_t i = 0; i < 30000 * 96; i++) base[i] += 100;
    compare(
        base, 30000, 96,
        (km_index_options){
            .size = sizeof(km_index_options), .mode = KM_INDEX_FAST, .anchors = 64, .bytes = 49},
        100);
    free(base);
}

static void thousands_of_equal_rows_lose_nothing(void **state) {
    (void)state;
    enum { N = 20000, D = 32 };
    float *base = clustered(N, D, 5);
    for (int64_t i = 1; i < N; i += 2) memcpy(base + i * D, base, sizeof *base * D);
    compare(
        base, N, D,
        (km_index_options){
            .size = sizeof(km_index_options), .mode = KM_INDEX_FAST, .anchors = 16, .bytes = 17},
        20);
    free(base);
}

static void dense_codes_are_found_as_well(void **state) {
    (void)state;
    float *base = clustered(20000, 64, 5);
    for (int metric = 0; metric < 3; metric++)
        compare(base, 20000, 64,
                (km_index_options){.size = sizeof(km_index_options),
                                   .metric = (km_metric)metric,
                                   .mode = KM_INDEX_DENSE,
                                   .anchors = 32,
                                   .bytes = 9 + 12 * metric},
                10);
    free(base);
}

static void rows_can_be_lent_in_parts(void **state) {
    (void)state;
    float *base = clustered(30000, 96, 5);
    compare_split(
        base, 30000, 96,
        (km_index_options){
            .size = sizeof(km_index_options), .mode = KM_INDEX_FAST, .anchors = 64, .bytes = 49},
        10, 4096);
    compare_split(
        base, 30000, 96,
        (km_index_options){
            .size = sizeof(km_index_options), .mode = KM_INDEX_DENSE, .anchors = 64, .bytes = 25},
        20, 7001);
    free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gpu_finds_rows_as_near_as_the_cpu_does),
        cmocka_unit_test(thousands_of_equal_rows_lose_nothing),
        cmocka_unit_test(dense_codes_are_found_as_well),
        cmocka_unit_test(rows_can_be_lent_in_parts),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
