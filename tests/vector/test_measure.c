/* Measuring an index: truth is what the index could find, neither more nor less. */
#include "support/sanitized.h"
#include "vector/measure.h"
#include "vector/vectors.h"

enum { N = 1500, DIM = 24, QUERIES = 60, K = 10 };

static km_measured measured(km_ctx *ctx, km_index *x, const float *base, int64_t n,
                            const float *q) {
    km_error err = {0};
    km_measured m;
    km_search_options o = {.size = sizeof(km_search_options)};
    km_input *in = km_input_memory(base, n, DIM, &err);
    assert_non_null(in);
    if (km_measure_index(ctx, x, in, q, QUERIES, K, &o, &m, &err) != KM_OK)
        fail_msg("%s", err.text);
    km_input_close(in);
    return m;
}

static void deleted_vectors_are_not_asked_for(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 2);
    float *base = clustered(N, DIM, 3), *q = clustered(QUERIES, DIM, 3),
          *kept = malloc(4 * N * DIM);
    uint64_t gone[N];
    int64_t n_gone = 0, n_kept = 0;
    for (int64_t i = 0; i < QUERIES * DIM; i++) q[i] += 0.3f * (float)(i % 7 - 3) / 3;
    for (int64_t i = 0; i < N; i++) {
        if (i * 7 % 10 < 3)
            gone[n_gone++] = (uint64_t)i;
        else
            memcpy(kept + n_kept++ * DIM, base + i * DIM, 4 * DIM);
    }
    for (int metric = 0; metric < (SANITIZED ? 1 : 3); metric++) {
        km_index_options o = {.size = sizeof(km_index_options),
                              .bytes = 16,
                              .metric = (km_metric)metric,
                              .anchors = 8};
        km_index *x = km_index_build(ctx, base, N, DIM, NULL, &o);
        km_index *fresh = km_index_build(ctx, kept, n_kept, DIM, NULL, &o);
        assert_non_null(x);
        assert_non_null(fresh);
        double before = measured(ctx, x, base, N, q).recall_k;
        assert_int_equal(km_index_delete(x, gone, n_gone), KM_OK);
        double after = measured(ctx, x, base, N, q).recall_k;
        double of_fresh = measured(ctx, fresh, kept, n_kept, q).recall_k;
        /* Were the 30% still asked for, recall would be lower by as much. */
        if (before < 0.7 || fabs(after - before) > 0.06 || fabs(after - of_fresh) > 0.06)
            fail_msg("recall %g, %g after deletes, %g of those left", before, after, of_fresh);
        km_index_close(x);
        km_index_close(fresh);
    }
    free(base), free(q), free(kept);
    km_ctx_free(ctx);
}

static void exact_answers_have_full_recall_after_deletes(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    float *base = clustered(N, DIM, 4);
    km_index_options o = {
        .size = sizeof(km_index_options), .bytes = DIM, .rerank = KM_VECTORS_F16, .anchors = 8};
    km_index *x = km_index_build(ctx, base, N, DIM, NULL, &o);
    assert_non_null(x);
    uint64_t gone[N / 3];
    for (int64_t i = 0; i < N / 3; i++) gone[i] = (uint64_t)(3 * i);
    assert_int_equal(km_index_delete(x, gone, N / 3), KM_OK);
    km_error err = {0};
    km_measured m;
    km_search_options again = {.size = sizeof(km_search_options), .rerank = 200};
    km_input *in = km_input_memory(base, N, DIM, &err);
    assert_int_equal(km_measure_index(ctx, x, in, base, QUERIES, K, &again, &m, &err), KM_OK);
    assert_true(m.recall_k > 0.995);
    km_input_close(in);
    km_index_close(x);
    free(base);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest few[] = {
        cmocka_unit_test(exact_answers_have_full_recall_after_deletes)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deleted_vectors_are_not_asked_for),
        cmocka_unit_test(exact_answers_have_full_recall_after_deletes),
    };
    return THREADS_SANITIZED ? cmocka_run_group_tests(few, NULL, NULL)
                             : cmocka_run_group_tests(tests, NULL, NULL);
}
