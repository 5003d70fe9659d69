/* Vectors on a Vulkan device, with no op sent to another: its ops are the reference's, k-means gives the
 * anchors and codes of the CPU, and searches find what the index itself finds. */
#include "backend/live_vulkan.h"
#include "ops/op.h"
#include "ops/verify.h"
#include "tensor/tensor.h"
#include "vector/device_index.h"
#include "vector/index.h"
#include "vector/vectors.h"

enum { N = 600, DIM = 24, QUERIES = 33, K = 9 };

static km_ctx *alone(void) { /* on the device and nowhere else */
    km_ctx *ctx = km_ctx_new(VULKAN, 2);
    if (!ctx) fail_msg("%s", km_last_error());
    km_ctx_set_fallback(ctx, false);
    return ctx;
}

static void note(void *user, const km_verify_result *r, int index, int total) {
    (void)index;
    (void)total;
    ++*(int *)user;
    if (!r->passed) fail_msg("%s of %s: %s", r->op, r->dtype, r->worst);
    if (r->fallback) fail_msg("%s of %s ran on another device", r->op, r->dtype);
}

static void ops_are_those_of_the_reference(void **state) {
    static const km_op ops[] = {KM_OP_NEAREST,       KM_OP_CELL_SUMS,      KM_OP_SCAN_CODES,
                                KM_OP_ENCODE_LEVELS, KM_OP_ENCODE_TRELLIS, KM_OP_INDEX_SELECT,
                                KM_OP_EMBEDDING};
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        km_verify_how how = {.seed = 1,
                             .op = km_op_name(ops[i]),
                             .quick = true,
                             .dtypes = KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_I64)};
        km_error err = {0};
        int checks = 0;
        if (km_verify(VULKAN, &how, note, &checks, &err) != KM_OK) fail_msg("%s", err.text);
        assert_true(checks > 0);
    }
}

static km_index *build(km_ctx *ctx, const float *x, km_index_mode mode) {
    km_index_options o = {.size = sizeof o, .mode = mode, .anchors = 16, .bytes = 1 + DIM / 2};
    km_index *index = km_index_build(ctx, x, N, DIM, NULL, &o);
    if (!index) fail_msg("%s", km_last_error());
    return index;
}

static void k_means_is_that_of_the_cpu(void **state) {
    km_ctx *ctx = alone(), *cpu = km_ctx_new("cpu", 2);
    float *x = clustered(N, DIM, 5), *queries = clustered(QUERIES, DIM, 6);
    km_index *here = build(ctx, x, KM_INDEX_FAST), *there = build(cpu, x, KM_INDEX_FAST);
    uint64_t found[2][QUERIES * K];
    float dist[2][QUERIES * K];
    km_error err = {0};
    (void)state;
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    assert_int_equal(here->cells, there->cells);
    for (int64_t i = 0; i < here->cells * DIM; i++)
        assert_true(fabsf(here->anchors[i] - there->anchors[i]) < 1e-3f);
    assert_int_equal(km_index_find(here, queries, QUERIES, K, NULL, NULL, found[0], dist[0], &err),
                     KM_OK);
    assert_int_equal(km_index_find(there, queries, QUERIES, K, NULL, NULL, found[1], dist[1], &err),
                     KM_OK);
    int same = 0;
    for (int i = 0; i < QUERIES * K; i++) {
        same += found[0][i] == found[1][i];
        assert_true(fabsf(dist[0][i] - dist[1][i]) < 0.02f * (1 + dist[1][i]));
    }
    if (same < QUERIES * K * 95 / 100) fail_msg("%d of %d neighbours", same, QUERIES * K);
    km_index_close(here);
    km_index_close(there);
    free(x);
    free(queries);
    km_ctx_free(ctx);
    km_ctx_free(cpu);
}

static void finds_what_the_index_finds(km_index_mode mode) {
    km_ctx *ctx = alone(), *cpu = km_ctx_new("cpu", 2);
    float *x = clustered(N, DIM, 5), *queries = clustered(QUERIES, DIM, 6);
    km_index *index = build(cpu, x, mode);
    uint64_t want[QUERIES * K], got[QUERIES * K];
    float far[QUERIES * K], dist[QUERIES * K];
    km_error err = {0};
    assert_int_equal(km_index_find(index, queries, QUERIES, K, NULL, NULL, want, far, &err), KM_OK);
    km_device_index *d = km_device_index_new(ctx, index, &err);
    if (!d) fail_msg("%s", err.text);
    if (km_device_index_find(d, queries, QUERIES, K, got, dist, &err) != KM_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < QUERIES * K; i++) {
        float near = 1e-3f * (1 + far[i]);
        assert_true(fabsf(far[i] - dist[i]) < near);
        bool alone_there = (i % K == 0 || far[i] - far[i - 1] > near) && i % K < K - 1 &&
                           far[i + 1] - far[i] > near;
        if (alone_there) assert_int_equal(want[i], got[i]);
    }
    km_device_index_free(d);
    km_index_close(index);
    free(x);
    free(queries);
    km_ctx_free(ctx);
    km_ctx_free(cpu);
}

static void searches_find_what_the_index_finds(void **state) {
    (void)state;
    finds_what_the_index_finds(KM_INDEX_FAST);
    finds_what_the_index_finds(KM_INDEX_DENSE);
}

int main(void) {
    if (vulkan_missing()) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops_are_those_of_the_reference),
                                       cmocka_unit_test(k_means_is_that_of_the_cpu),
                                       cmocka_unit_test(searches_find_what_the_index_finds)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vulkan_clean();
    return failed;
}
