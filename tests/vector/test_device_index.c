/* An index searched as a device searches it gives what the index itself gives: the same rows at the
 * same distances, for every metric, for both turns, fast and dense codes, with rows deleted and added,
 * at once or part by part. Here the op runs as its reference does; the GPU's kernels are held against
 * that by `kermes verify`. */
#include "vector/vectors.h"
#include "support/engine.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include "vector/device_index.h"

enum { N = 300, QUERIES = 7, K = 9 };

static km_ctx *ctx; /* of the test that runs */

/* rows > 0: lent in parts of so many. */
static void agree_split(km_index *x, const float *queries, int64_t k, int64_t rows) {
    km_error err = {0};
    uint64_t *want = malloc(8 * (size_t)(QUERIES * k)), *got = malloc(8 * (size_t)(QUERIES * k));
    float *far = malloc(4 * (size_t)(QUERIES * k)), *dist = malloc(4 * (size_t)(QUERIES * k));
    assert_int_equal(km_index_find(x, queries, QUERIES, k, NULL, NULL, want, far, &err), KM_OK);
    km_device_index *d = km_device_index_split(ctx, x, rows, &err);
    if (!d) fail_msg("%s", err.text);
    assert_true(rows > 0 ? km_device_index_parts(d) > 1 : km_device_index_parts(d) == 0);
    assert_true(km_device_index_can(d, k, NULL));
    if (km_device_index_find(d, queries, QUERIES, k, got, dist, &err) != KM_OK)
        fail_msg("%s", err.text);
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

static void agree(km_index *x, const float *queries, int64_t k) {
    agree_split(x, queries, k, 0);
    agree_split(x, queries, k, km_index_live(x) / 3);
}

static void devices_find_what_the_index_finds(void **state) {
    ctx = *state;
    static const int64_t dims[] = {1, 24, 33};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int metric = 0; metric < 3; metric++) {
            float *base = clustered(N, dims[i], 5), *queries = clustered(QUERIES, dims[i], 6);
            km_index_options o = {.size = sizeof(km_index_options),
                                  .metric = (km_metric)metric,
                                  .mode = KM_INDEX_FAST,
                                  .anchors = 4,
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

static void dense_codes_of_several_classes_are_found_as_well(void **state) {
    ctx = *state;
    static const struct {
        int64_t dim;
        double bytes;
        int64_t rows;
    } forms[] = {{40, 9, N}, {24, 21, N}, {32, 12, 40000}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int metric = 0; metric < 3; metric++) {
            int64_t dim = forms[i].dim;
            float *base = clustered(N, dim, 5), *queries = clustered(QUERIES, dim, 6);
            km_coder_options o = {.dim = dim,
                                  .bytes = forms[i].bytes,
                                  .mode = KM_CODE_DENSE,
                                  .turn = i ? KM_TURN_PCA : KM_TURN_HADAMARD,
                                  .rows = forms[i].rows};
            km_error err = {0};
            float *anchors = malloc(4 * (size_t)(3 * dim));
            assert_non_null(anchors);
            if (metric == KM_METRIC_COSINE) km_unit(base, N, dim);
            for (int64_t j = 0; j < 3 * dim; j++) anchors[j] = 0.5f * base[j];
            km_coder *c = km_coder_train(ctx->threads, base, N, &o, &err);
            if (!c) fail_msg("%s", err.text);
            assert_true(c->trellis && (i > 0) == (c->classes > 1));
            float *copy = km_alloc(4 * (size_t)(3 * dim)); /* becomes the index's */
            assert_non_null(copy);
            memcpy(copy, anchors, 4 * (size_t)(3 * dim));
            km_index *x = km_index_frame(ctx->threads, (km_metric)metric, KM_RERANK_NONE, dim, copy,
                                         3, c, &err);
            if (!x) fail_msg("%s", err.text);
            assert_int_equal(km_index_append(ctx, x, base, N, NULL, &err), KM_OK);
            agree(x, queries, K);
            km_index_close(x);
            free(anchors);
            free(base);
            free(queries);
        }
}

static void fewer_rows_than_asked_for_leave_the_rest_empty(void **state) {
    ctx = *state;
    float *base = clustered(6, 8, 5), *queries = clustered(QUERIES, 8, 6);
    km_index_options o = {
        .size = sizeof(km_index_options), .mode = KM_INDEX_FAST, .anchors = 1, .bytes = 5};
    km_index *x = km_index_build(ctx, base, 6, 8, NULL, &o);
    if (!x) fail_msg("%s", km_last_error());
    agree(x, queries, 20);
    km_index_close(x);
    free(base);
    free(queries);
}

static void what_a_device_cannot_do_is_declined(void **state) {
    ctx = *state;
    float *base = clustered(N, 16, 5);
    km_error err = {0};
    km_index_options o = {
        .size = sizeof(km_index_options), .mode = KM_INDEX_ANCHORS_ONLY, .anchors = 4};
    km_index *x = km_index_build(ctx, base, N, 16, NULL, &o);
    assert_non_null(x);
    assert_null(km_device_index_new(ctx, x, &err));
    assert_int_equal(err.code, KM_ERR_UNSUPPORTED);
    km_index_close(x);
    o = (km_index_options){
        .size = sizeof(km_index_options), .mode = KM_INDEX_FAST, .anchors = 4, .bytes = 9};
    x = km_index_build(ctx, base, N, 16, NULL, &o);
    assert_non_null(x);
    km_device_index *d = km_device_index_new(ctx, x, &(km_error){0});
    assert_non_null(d);
    assert_false(km_device_index_can(d, 100000, NULL));
    assert_false(km_device_index_can(
        d, 10, &(km_search_options){.size = sizeof(km_search_options), .probe = 1}));
    assert_true(km_device_index_can(
        d, 10, &(km_search_options){.size = sizeof(km_search_options), .probe = 1 << 20}));
    uint64_t id;
    float dist, bad[16] = {NAN};
    assert_int_equal(km_device_index_find(d, bad, 1, 1, &id, &dist, &err), KM_ERR_RANGE);
    km_device_index_free(d);
    km_index_close(x);
    free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", devices_find_what_the_index_finds),
        ON("cpu", dense_codes_of_several_classes_are_found_as_well),
        ON("cpu", fewer_rows_than_asked_for_leave_the_rest_empty),
        ON("cpu", what_a_device_cannot_do_is_declined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
