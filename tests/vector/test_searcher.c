/* Searching through a context, with a made-up GPU driver whose missing kernels the CPU makes up for: the
 * index goes there, comes again after changes, and gives what the index itself gives. */
#include "backend/fake_cuda.h"

#include "backend/backend.h"
#include "base/alloc.h"
#include "vector/vectors.h"
#include <math.h>

enum { ROWS = 300, DIM = 24, QUERIES = 5, K = 8 };

static float value(int op, float a, float b) {
    switch (op) {
    case KM_OP_ADD: return a + b;
    case KM_OP_SUB: return a - b;
    case KM_OP_MUL: return a * b;
    case KM_OP_DIV: return a / b;
    case KM_OP_NEG: return -a;
    default: fail_msg("no kernel for %s", km_op_name((km_op)op)); return NAN;
    }
}

/* One matrix; there are no batches of them here. */
static void transpose(const km_transpose_args *p) {
    const uint32_t *x = p->x;
    uint32_t *out = p->out;
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t c = 0; c < p->cols; c++) out[r * p->out_row + c] = x[r + c * p->x_col];
}

static void run_kernel(const fake_launch *w) {
    if (fake_named(w, "transpose_4")) {
        transpose((const km_transpose_args *)w->args);
        return;
    }
    if (!fake_named(w, "chain_")) fail_msg("no kernel %s", w->kernel);
    const km_chain_args *p = (const km_chain_args *)w->args;
    for (int64_t i = 0; i < p->n; i++) {
        float place[KM_CHAIN_INPUTS + KM_CHAIN_STEPS], last = 0;
        for (int k = 0; k < p->n_in; k++) place[k] = ((const float *)p->in[k])[i];
        for (int k = 0; k < p->n_steps; k++) {
            const km_chain_step *s = &p->step[k];
            last = value(s->op, s->a == KM_CHAIN_LAST ? last : place[s->a],
                         s->b == KM_CHAIN_LAST ? last : place[s->b]);
            if (s->keep != KM_CHAIN_LAST) place[s->keep] = last;
            if (s->out) ((float *)s->out)[i] = last;
        }
    }
}

static float *base, *queries;
static km_ctx *cpu;

/* The searcher's answers are the index's own. */
static void agree(km_searcher *s, km_index *x, const km_search_options *o) {
    uint64_t want[QUERIES * K], got[QUERIES * K];
    float far[QUERIES * K], dist[QUERIES * K];
    assert_int_equal(km_index_search(x, queries, QUERIES, K, o, 1, want, far), KM_OK);
    if (km_searcher_search(s, queries, QUERIES, K, o, got, dist) != KM_OK)
        fail_msg("%s", km_last_error());
    for (int i = 0; i < QUERIES * K; i++) {
        assert_true(fabsf(far[i] - dist[i]) <= 1e-3f * (1 + fabsf(far[i])));
        if (i % K == 0) assert_int_equal(got[i], want[i]);
    }
}

static km_index *build(void) {
    km_index_options o = km_index_defaults();
    o.metric = KM_METRIC_IP; /* takes the fewest kernels */
    o.anchors = 4;
    o.bytes = DIM;
    km_index *x = km_index_build(cpu, base, ROWS, DIM, NULL, &o);
    if (!x) fail_msg("%s", km_last_error());
    return x;
}

static void an_index_is_searched_on_a_gpu_and_follows_its_changes(void **state) {
    (void)state;
    setenv("KERMES_CUBLAS", "none", 1); /* products, too, are the CPU's */
    fake.other = run_kernel;
    km_ctx *gpu = km_ctx_new("cuda:0", 1);
    if (!gpu) fail_msg("%s", km_last_error());
    km_index *x = build();
    km_searcher *s = km_searcher_new(gpu, x);
    agree(s, x, NULL);
    assert_true(km_searcher_on_gpu(s));
    uint64_t best[K];
    float far[K];
    assert_int_equal(km_searcher_search(s, queries, 1, K, NULL, best, far), KM_OK);
    uint64_t gone = best[0];
    assert_int_equal(km_index_delete(x, &gone, 1), KM_OK);
    agree(s, x, NULL);
    assert_int_equal(km_searcher_search(s, queries, 1, K, NULL, best, far), KM_OK);
    assert_int_not_equal(best[0], gone);
    assert_int_equal(km_index_add(cpu, x, base + gone * DIM, 1, &(uint64_t){9007}), KM_OK);
    assert_int_equal(km_searcher_search(s, queries, 1, K, NULL, best, far), KM_OK);
    assert_int_equal(best[0], 9007);
    agree(s, x, NULL);
    assert_true(km_searcher_on_gpu(s));
    km_search_options probe = km_search_defaults();
    probe.probe = 2;
    agree(s, x, &probe); /* what a GPU does not do, the CPU does */
    assert_false(km_searcher_on_gpu(s));
    km_searcher_free(s);
    km_index_close(x);
    km_ctx_free(gpu);
}

static void without_a_gpu_the_cpu_searches_and_says_so(void **state) {
    (void)state;
    km_index *x = build();
    km_searcher *s = km_searcher_new(cpu, x);
    agree(s, x, NULL);
    assert_false(km_searcher_on_gpu(s));
    km_searcher_free(s);
    km_index_close(x);
}

static void bad_searches_are_errors(void **state) {
    (void)state;
    km_index *x = build();
    km_searcher *s = km_searcher_new(cpu, x);
    uint64_t ids[K];
    float dist[K];
    km_search_options o = {0};
    assert_null(km_searcher_new(NULL, x));
    assert_null(km_searcher_new(cpu, NULL));
    km_searcher_free(NULL);
    assert_false(km_searcher_on_gpu(NULL));
    assert_int_equal(km_searcher_search(NULL, queries, 1, K, NULL, ids, dist), KM_ERR_NULL);
    assert_int_equal(km_searcher_search(s, NULL, 1, K, NULL, ids, dist), KM_ERR_NULL);
    assert_int_equal(km_searcher_search(s, queries, -1, K, NULL, ids, dist), KM_ERR_NULL);
    assert_int_equal(km_searcher_search(s, queries, 1, K, &o, ids, dist), KM_ERR_RANGE);
    assert_int_equal(km_index_search(x, queries, 1, K, &o, 1, ids, dist), KM_ERR_RANGE);
    assert_int_equal(km_index_search(x, queries, 1, 0, NULL, 1, ids, dist), KM_ERR_RANGE);
    assert_int_equal(km_index_search(x, queries, INT64_MAX / 2, 4, NULL, 1, ids, dist),
                     KM_ERR_RANGE);
    o = km_search_defaults();
    o.n_allow = 3; /* of no list */
    assert_int_equal(km_index_search(x, queries, 1, K, &o, 1, ids, dist), KM_ERR_NULL);
    o = km_search_defaults();
    o.size = offsetof(km_search_options, allow); /* an older program's */
    o.n_deny = 7;
    assert_int_equal(km_index_search(x, queries, 1, K, &o, 1, ids, dist), KM_OK);
    km_index_options how = {0};
    assert_null(km_index_build(cpu, base, ROWS, DIM, NULL, &how));
    how = km_index_defaults();
    how.training = &(km_anchor_training){0};
    assert_null(km_index_build(cpu, base, ROWS, DIM, NULL, &how));
    assert_null(km_index_build(cpu, base, INT64_MAX / 4, INT64_MAX / 4, NULL, NULL));
    assert_int_equal(km_index_describe(NULL).count, 0);
    assert_int_equal(km_index_compress(cpu, NULL, "x", NULL), KM_ERR_NULL);
    assert_int_equal(km_index_add(cpu, x, NULL, 3, NULL), KM_ERR_NULL);
    assert_int_equal(km_index_add(cpu, NULL, base, 3, NULL), KM_ERR_NULL);
    assert_int_equal(km_index_merge(cpu, x, x, NULL), KM_ERR_STATE);
    assert_int_equal(km_index_save(x, "/proc/none/x.kmx", false), KM_ERR_FILE);
    km_searcher_free(s);
    km_index_close(x);
}

static void no_allocation_that_fails_loses_anything(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    bool done = false;
    for (int nth = 0; nth < 4000 && !done; nth += nth < 60 ? 1 : 23) {
        km_alloc_fail_nth(nth);
        km_index_options o = km_index_defaults();
        o.anchors = 4;
        o.training = &(km_anchor_training){.size = sizeof(km_anchor_training), .rounds = 2};
        km_index *x = km_index_build(cpu, base, 60, DIM, NULL, &o);
        km_searcher *s = x ? km_searcher_new(cpu, x) : NULL;
        uint64_t ids[K];
        float dist[K];
        done = s && km_searcher_search(s, queries, 1, K, NULL, ids, dist) == KM_OK &&
               km_index_add(cpu, x, base, 5, NULL) == KM_OK &&
               km_index_delete(x, &(uint64_t){3}, 1) == KM_OK;
        km_alloc_fail_nth(-1);
        km_searcher_free(s);
        km_index_close(x);
        km_ctx_clear_error(cpu);
        km_step_end(cpu);
    }
    assert_true(done);
    km_trim(cpu);
    assert_true(km_alloc_live() <= live + 8); /* what the context keeps for its next step */
}

static int open_all(void **state) {
    (void)state;
    base = clustered(ROWS, DIM, 5);
    queries = clustered(QUERIES, DIM, 6);
    cpu = km_ctx_new("cpu", 1);
    return !cpu;
}

static int close_all(void **state) {
    (void)state;
    km_ctx_free(cpu);
    free(base);
    free(queries);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_index_is_searched_on_a_gpu_and_follows_its_changes,
                                        fake_open, fake_close),
        cmocka_unit_test(without_a_gpu_the_cpu_searches_and_says_so),
        cmocka_unit_test(bad_searches_are_errors),
        cmocka_unit_test(no_allocation_that_fails_loses_anything),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
