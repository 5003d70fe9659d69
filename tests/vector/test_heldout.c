/* The recall that is told is that of all vectors, and the recall asked for is reached. */
#include "support/sanitized.h"
#include "vector/make.h"
#include "vector/measure.h"
#include "vector/vectors.h"

enum { N = SANITIZED ? 3000 : 30000, DIM = 24, INNER = 5, QUERIES = 300 };

static km_ctx *ctx;
static float *base, *queries; /* (N, DIM), (QUERIES, DIM) of the same kind */

/* A few numbers bent into many: neighbours become very near as rows become many. */
static float *low_dimensional(int64_t n, uint64_t seed) {
    float *x = malloc(sizeof *x * (size_t)(n * DIM));
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        double z[INNER + 1];
        for (int k = 0; k < INNER; k += 2) {
            km_philox4 p = km_philox(seed, 1, (uint64_t)(i * INNER + k));
            km_box_muller(p.v[0], p.v[1], &z[k], &z[k + 1]);
        }
        for (int j = 0; j < DIM; j++) {
            double sum = 0, w, unused;
            for (int k = 0; k < INNER; k++) {
                km_philox4 p = km_philox(11, 2, (uint64_t)(j * INNER + k));
                km_box_muller(p.v[0], p.v[1], &w, &unused);
                sum += w * tanh(z[k]);
            }
            x[i * DIM + j] = (float)sum;
        }
    }
    return x;
}

static int set_up(void **state) {
    ctx = km_ctx_new("cpu", 2);
    base = low_dimensional(N, 1);
    queries = low_dimensional(QUERIES, 2);
    return ctx ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    km_ctx_free(ctx);
    free(base), free(queries);
    return empty_folder(state) || remove_folder(state);
}

/* An index file, and what exact search says of it with queries that nobody has seen. */
static km_made make(const float *rows, int64_t n, km_index_options o, double *real) {
    km_error err = {0};
    km_made made;
    km_measured m;
    km_input *in = km_input_memory(rows, n, DIM, &err);
    assert_non_null(in);
    if (km_index_make(ctx, NULL, in, NULL, in_folder("x.kmx"), &o, &made, &err) != KM_OK)
        fail_msg("%s", err.text);
    km_index *x = km_index_load(in_folder("x.kmx"), &err);
    assert_non_null(x);
    if (km_measure_index(ctx, x, in, queries, QUERIES, 10, NULL, &m, &err) != KM_OK)
        fail_msg("%s", err.text);
    *real = m.recall_k;
    assert_true(json_is_array(json_object_get(json_object_get(x->meta, "measured"), "interval")));
    km_index_close(x);
    km_input_close(in);
    return made;
}

static void the_recall_told_is_that_of_all_vectors(void **state) {
    (void)state;
    double real;
    km_made m =
        make(base, N, (km_index_options){.size = sizeof(km_index_options), .bytes = 3}, &real);
    assert_int_equal(m.recall.queries, 1000);
    assert_true(m.recall.low <= m.recall.recall && m.recall.recall <= m.recall.high);
    assert_true(m.recall.high - m.recall.low < 0.05);
    if (fabs(m.recall.recall - real) > 0.035)
        fail_msg("told %g, %g in truth", m.recall.recall, real);
    assert_int_equal(entries(), 1); /* nothing is left beside the index */
}

static void the_recall_asked_for_is_reached(void **state) {
    (void)state;
    double real, of_default;
    km_made m =
        make(base, N, (km_index_options){.size = sizeof(km_index_options), .recall = 0.9}, &real);
    if (real < 0.88 || m.recall.recall < 0.898)
        fail_msg("told %g, %g in truth", m.recall.recall, real);
    km_made d = make(base, N, (km_index_options){.size = sizeof(km_index_options)}, &of_default);
    assert_true(m.bytes <= d.bytes);
}

static void no_vector_finds_itself_and_copies_count_as_one_another(void **state) {
    (void)state;
    enum { COPIES = 12, FEW = 60 };
    float *x = malloc(sizeof *x * COPIES * FEW * DIM);
    double real;
    for (int i = 0; i < COPIES * FEW; i++)
        memcpy(x + i * DIM, base + i % FEW * DIM, sizeof *x * DIM);
    km_made m = make(x, COPIES * FEW,
                     (km_index_options){.size = sizeof(km_index_options), .bytes = DIM}, &real);
    assert_true(m.recall.recall > 0.999);
    free(x);
    /* A query is a row, and would be found at once: with one bit for a vector it tells nothing more. */
    m = make(base, 1500,
             (km_index_options){.size = sizeof(km_index_options), .bytes = 1, .anchors = 1}, &real);
    assert_true(m.recall.recall < 0.1);
}

static void intervals_hold_their_mean_and_shrink_with_more_numbers(void **state) {
    (void)state;
    double x[400], mean, low, high, wide;
    for (int i = 0; i < 400; i++) x[i] = i % 4 ? 1 : 0.5;
    km_mean_interval(x, 100, &mean, &low, &high);
    wide = high - low;
    assert_true(fabs(mean - 0.875) < 1e-12 && low < mean && mean < high);
    km_mean_interval(x, 400, &mean, &low, &high);
    assert_true(high - low < 0.6 * wide && high - low > 0.4 * wide);
    for (int i = 0; i < 400; i++) x[i] = 1;
    km_mean_interval(x, 400, &mean, &low, &high);
    assert_true(mean == 1 && high == 1 && low < 1 && low > 0.98);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recall_told_is_that_of_all_vectors),
        cmocka_unit_test(the_recall_asked_for_is_reached),
        cmocka_unit_test(no_vector_finds_itself_and_copies_count_as_one_another),
        cmocka_unit_test(intervals_hold_their_mean_and_shrink_with_more_numbers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
