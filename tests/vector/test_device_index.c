/* An index searched as a device searches it gives what the index itself gives: the same rows at the
 * same distances, for every metric, for both turns, with rows deleted and added. Here the op runs as
 * its reference does; the GPU's kernels are held against that by `kermes verify`. */
#include "vector/vectors.h"
#include "vector/device_index.h"

enum { N = 300, QUERIES = 7, K = 9 };

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

static void agree(km_index *x, const float *queries, int64_t k) {
    km_error err = {0};
    uint64_t *want = malloc(8 * (size_t)(QUERIES * k)), *got = malloc(8 * (size_t)(QUERIES * k));
    float *far = malloc(4 * (size_t)(QUERIES * k)), *dist = malloc(4 * (size_t)(QUERIES * k));
    assert_int_equal(km_index_find(x, queries, QUERIES, k, NULL, NULL, want, far, &err), KM_OK);
    km_device_index *d = km_device_index_new(ctx, x, &err);
    if (!d) fail_msg("%s", err.text);
    assert_true(km_device_index_can(d, k, NULL));
    if (km_device_index_find(d, queries, QUERIES, k, got, dist, &err) != KM_OK) fail_msg("%s", err.text);
    for (int64_t i = 0; i < QUERIES * k; i++) {
        if (isinf(far[i])) {
            assert_true(isinf(dist[i]) && got[i] == KM_NO_ID);
            continue;
        }
        assert_true(fabsf(far[i] - dist[i]) <= 1e-3f * (1 + fabsf(far[i])));
        bool alone = (i % k == 0 || far[i] - far[i - 1] > 2e-3f * (1 + fabsf(far[i]))) &&
                     (i % k == k - 1 || far[i + 1] - far[i] > 2e-3f * (1 + fabsf(far[i])));
        if (alone) assert_int_equal(want[i], got[i]);
    }
    km_device_index_free(d);
    free(want);
    free(got);
    free(far);
    free(dist);
}

static void devices_find_what_the_index_finds(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 24, 33};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int metric = 0; metric < 3; metric++) {
            float *base = clustered(N, dims[i], 5), *queries = clustered(QUERIES, dims[i], 6);
            km_index_options o = {.metric = (km_metric)metric, .mode = KM_INDEX_FAST, .anchors = 4,
                                  .bytes = metric == 1 ? 1 + (double)dims[i] / 4 : (double)dims[i]};
            km_index *x = km_index_build(ctx, base, N, dims[i], NULL, &o);
            if (!x) fail_msg("%s", km_last_error());
            agree(x, queries, K);
            uint64_t gone[] = {0, 1, 5, 77, 299};
            int64_t removed = 0;
            km_error err = {0};
            assert_int_equal(km_index_remove(x, gone, 5, false, &removed, &err), KM_OK);
            assert_int_equal(km_index_append(ctx, x, queries, QUERIES, NULL, &err), KM_OK);
            agree(x, queries, K);
            km_index_close(x);
            free(base);
            free(queries);
        }
}

static void fewer_rows_than_asked_for_leave_the_rest_empty(void **state) {
    (void)state;
    float *base = clustered(6, 8, 5), *queries = clustered(QUERIES, 8, 6);
    km_index_options o = {.mode = KM_INDEX_FAST, .anchors = 1, .bytes = 5};
    km_index *x = km_index_build(ctx, base, 6, 8, NULL, &o);
    if (!x) fail_msg("%s", km_last_error());
    agree(x, queries, 20);
    km_index_close(x);
    free(base);
    free(queries);
}

static void what_a_device_cannot_do_is_declined(void **state) {
    (void)state;
    float *base = clustered(N, 16, 5);
    km_error err = {0};
    km_index_options o = {.mode = KM_INDEX_ANCHORS_ONLY, .anchors = 4};
    km_index *x = km_index_build(ctx, base, N, 16, NULL, &o);
    assert_non_null(x);
    assert_null(km_device_index_new(ctx, x, &err));
    assert_int_equal(err.code, KM_ERR_UNSUPPORTED);
    km_index_close(x);
    o = (km_index_options){.mode = KM_INDEX_FAST, .anchors = 4, .bytes = 9};
    x = km_index_build(ctx, base, N, 16, NULL, &o);
    assert_non_null(x);
    km_device_index *d = km_device_index_new(ctx, x, &(km_error){0});
    assert_non_null(d);
    assert_false(km_device_index_can(d, 100000, NULL));
    assert_false(km_device_index_can(d, 10, &(km_search_options){.probe = 1}));
    assert_true(km_device_index_can(d, 10, &(km_search_options){.probe = 1 << 20}));
    uint64_t id;
    float dist, bad[16] = {NAN};
    assert_int_equal(km_device_index_find(d, bad, 1, 1, &id, &dist, &err), KM_ERR_RANGE);
    km_device_index_free(d);
    km_index_close(x);
    free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_find_what_the_index_finds),
        cmocka_unit_test(fewer_rows_than_asked_for_leave_the_rest_empty),
        cmocka_unit_test(what_a_device_cannot_do_is_declined),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
