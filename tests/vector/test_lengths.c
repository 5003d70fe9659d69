/* Rows of one length: products and cosine find what squared distances find, and rows of other lengths
 * beside them are told as what they are. */
#include "support/sanitized.h"
#include "vector/exact.h"
#include "vector/index.h"
#include "vector/vectors.h"

enum { N = 1200, DIM = 32, QUERIES = 200, K = 10 };

static km_ctx *ctx;

static int set_up(void **state) {
    ctx = km_ctx_new("cpu", 2);
    return ctx ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    km_ctx_free(ctx);
    return empty_folder(state) || remove_folder(state);
}

/* Unit rows about a common direction, as embeddings are. */
static float *unit_rows(int64_t n, uint64_t seed) {
    float *x = clustered(n, DIM, seed);
    for (int64_t i = 0; i < n * DIM; i++) x[i] += 1.5f;
    km_unit(x, n, DIM);
    return x;
}

static double recall_of(km_index *x, const float *base, int64_t n, const float *q) {
    km_error err = {0};
    uint64_t wanted[QUERIES * K], found[QUERIES * K];
    float dist[QUERIES * K], *copy = malloc(sizeof *copy * (size_t)(n * DIM));
    memcpy(copy, base, sizeof *copy * (size_t)(n * DIM));
    km_exact *e = km_exact_new(ctx, q, QUERIES, DIM, K, x->metric, &err);
    assert_non_null(e);
    assert_int_equal(km_exact_feed(e, copy, n, 0, &err), KM_OK);
    km_exact_result(e, wanted, dist);
    km_exact_free(e);
    free(copy);
    assert_int_equal(km_index_search(x, q, QUERIES, K, NULL, 2, found, dist), KM_OK);
    return km_recall(wanted, found, QUERIES, K, K);
}

static void metrics_that_rank_alike_find_alike(void **state) {
    (void)state;
    float *base = unit_rows(N + QUERIES, 3), *q = base + N * DIM,
          *long_q = malloc(4 * QUERIES * DIM);
    for (int64_t i = 0; i < QUERIES * DIM; i++) long_q[i] = 40 * q[i];
    for (int mode = 0; mode < (SANITIZED ? 1 : 2); mode++) {
        double recall[3];
        for (int metric = 0; metric < 3; metric++) {
            km_index_options o = {.size = sizeof(km_index_options),
                                  .bytes = 8,
                                  .metric = (km_metric)metric,
                                  .mode = (km_index_mode)mode};
            km_index *x = km_index_build(ctx, base, N, DIM, NULL, &o);
            assert_non_null(x);
            recall[metric] = recall_of(x, base, N, q);
            /* The answers to products do not depend on how long a query is, nor are they ever better. */
            if (metric) assert_true(fabs(recall_of(x, base, N, long_q) - recall[metric]) < 0.002);
            km_index_close(x);
        }
        if (fabs(recall[1] - recall[0]) > 0.002 || fabs(recall[2] - recall[0]) > 0.002)
            fail_msg("recall %g by L2, %g by product, %g by cosine", recall[0], recall[1],
                     recall[2]);
    }
    free(base), free(long_q);
}

/* What is told of row `id`, of all that there are. */
static float told(km_index *x, const float *q, uint64_t id) {
    static uint64_t ids[2 * N];
    static float dist[2 * N];
    int64_t n = km_index_live(x);
    assert_int_equal(km_index_search(x, q, 1, n, NULL, 1, ids, dist), KM_OK);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return dist[i];
    fail_msg("no row %llu", (unsigned long long)id);
    return 0;
}

static void rows_of_another_length_are_told_as_what_they_are(void **state) {
    (void)state;
    float *base = unit_rows(N, 4), *more = unit_rows(2, 5);
    float zero[DIM] = {0}, longer[DIM];
    memset(base + 7 * DIM, 0, sizeof zero); /* in the sample */
    for (int j = 0; j < DIM; j++) longer[j] = 1.2f * base[8 * DIM + j];
    for (int metric = 1; metric < 3; metric++) {
        km_index_options o = {
            .size = sizeof(km_index_options), .bytes = DIM, .metric = (km_metric)metric};
        km_index *x = km_index_build(ctx, base, N, DIM, NULL, &o);
        assert_non_null(x);
        assert_int_equal(km_index_add(ctx, x, zero, 1, NULL), KM_OK);   /* N */
        assert_int_equal(km_index_add(ctx, x, longer, 1, NULL), KM_OK); /* N + 1 */
        assert_int_equal(km_index_add(ctx, x, more, 2, NULL), KM_OK);
        for (int again = 0; again < 2; again++) {
            const float *q = base + 8 * DIM;
            float nothing = metric == 1 ? 0 : 1;
            assert_true(fabsf(told(x, q, 7) - nothing) < 0.02f);
            assert_true(fabsf(told(x, q, N) - nothing) < 0.02f);
            assert_true(fabsf(told(x, q, 8) - (nothing - 1)) < 0.02f);
            float far = told(x, q, N + 1);
            if (fabsf(far - (metric == 1 ? -1.2f : 0)) > 0.1f) fail_msg("%g of a longer one", far);
            assert_true(fabsf(told(x, zero, 8) - nothing) < 1e-5f);
            /* The product with a query of another length is larger by as much. */
            float long_q[DIM];
            for (int j = 0; j < DIM; j++) long_q[j] = 3 * q[j];
            assert_true(fabsf(told(x, long_q, 8) - (metric == 1 ? -3 : 0)) < 0.06f);
            assert_int_equal(km_index_save(x, in_folder("lengths.kmx"), false), KM_OK);
            km_index_close(x);
            x = km_index_open(in_folder("lengths.kmx"));
            assert_non_null(x);
        }
        km_index_close(x);
    }
    free(base), free(more);
}

static void lengths_outlive_a_merge(void **state) {
    (void)state;
    float *a = unit_rows(N + QUERIES, 6), *q = a + N * DIM;
    km_index_options o = {.size = sizeof(km_index_options), .bytes = 16, .metric = KM_METRIC_IP};
    km_index *whole = km_index_build(ctx, a, N, DIM, NULL, &o);
    km_index *x = km_index_build(ctx, a, N / 2, DIM, NULL, &o);
    o.seed = 9; /* other anchors: the second is coded anew */
    km_index *y = km_index_build(ctx, a + N / 2 * DIM, N / 2, DIM, NULL, &o);
    uint64_t shift;
    assert_true(x && y && whole);
    assert_int_equal(km_index_merge(ctx, x, y, &shift), KM_OK);
    assert_int_equal(shift, N / 2);
    assert_true(x->length > 0 && !km_index_is_mixed(x));
    double merged = recall_of(x, a, N, q), built = recall_of(whole, a, N, q);
    if (merged < built - 0.1) fail_msg("recall %g of the whole, %g when merged", built, merged);
    km_index_close(x), km_index_close(y), km_index_close(whole);
    free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_that_rank_alike_find_alike),
        cmocka_unit_test(rows_of_another_length_are_told_as_what_they_are),
        cmocka_unit_test(lengths_outlive_a_merge),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
