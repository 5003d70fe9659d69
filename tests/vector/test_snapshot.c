/* An index that is searched, changed, joined and saved at the same time: nobody waits for another's work,
 * nothing is lost or there twice, and a file shows one moment. */
#include "base/alloc.h"
#include "base/clock.h"
#include "support/sanitized.h"
#include "vector/index.h"
#include "vector/vectors.h"
#include <pthread.h>
#include <stdatomic.h>

enum { N = 400, DIM = 8, BATCH = SANITIZED ? 600 : 1200, ROUNDS = 10 };

static km_ctx *ctx;
static float *base, *more; /* (N, DIM), (BATCH * ROUNDS, DIM) */
static km_index *x;
static _Atomic bool stop;
static _Atomic int failures;

static int set_up(void **state) {
    ctx = km_ctx_new("cpu", 2);
    base = clustered(N, DIM, 5);
    more = clustered(BATCH * ROUNDS, DIM, 6);
    return ctx ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    km_ctx_free(ctx);
    free(base);
    free(more);
    return remove_folder(state);
}

static int open_index(void **state) {
    (void)state;
    stop = false;
    failures = 0;
    x = km_index_build(ctx, base, N, DIM, NULL,
                       &(km_index_options){.size = sizeof(km_index_options),
                                           .bytes = DIM,
                                           .rerank = KM_VECTORS_F16});
    if (!x) fail_msg("%s", km_last_error());
    return 0;
}

static int close_index(void **state) {
    km_index_close(x);
    return empty_folder(state);
}

#define assert_done(call)                                                                          \
    do {                                                                                           \
        if ((call) != KM_OK) fail_msg("%s", km_last_error());                                      \
    } while (0)

static void start(pthread_t *t, void *(*run)(void *), void *arg) {
    assert_int_equal(pthread_create(t, NULL, run, arg), 0);
}

/* ---- Waiting ---- */

enum { LONG = SANITIZED ? 20 : 5 }; /* seconds after which searches stop in any case */

static void *search_on(void *arg) {
    double end = km_now() + LONG;
    (void)arg;
    for (int i = 0; !stop && km_now() < end; i++) {
        uint64_t ids[10];
        float dist[10];
        failures += km_index_search(x, base + i % N * DIM, 1, 10, NULL, 1, ids, dist) != KM_OK;
    }
    return NULL;
}

static void changes_do_not_wait_until_searches_pause(void **state) {
    (void)state;
    pthread_t t[3];
    for (int i = 0; i < 3; i++) start(&t[i], search_on, NULL);
    double begin = km_now();
    for (uint64_t i = 0; i < 20; i++) {
        assert_done(km_index_add(ctx, x, more + i * 4 * DIM, 4, NULL));
        assert_done(km_index_delete(x, &i, 1));
    }
    double took = km_now() - begin;
    stop = true;
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    assert_int_equal(failures, 0);
    assert_int_equal(km_index_describe(x).count, N + 60);
    if (took > LONG / 2.0) fail_msg("20 changes beside searches took %.1f s", took);
}

static void *add_all_at_once(void *arg) {
    km_ctx *own = km_ctx_new("cpu", 1);
    (void)arg;
    failures += !own || km_index_add(own, x, more, BATCH * ROUNDS, NULL) != KM_OK;
    stop = true;
    km_ctx_free(own);
    return NULL;
}

static void searches_do_not_wait_for_a_large_change(void **state) {
    (void)state;
    pthread_t t;
    uint64_t id;
    float d;
    int beside = 0;
    start(&t, add_all_at_once, NULL);
    for (; !stop; beside++) assert_done(km_index_search(x, base, 1, 1, NULL, 1, &id, &d));
    pthread_join(t, NULL);
    assert_int_equal(failures, 0);
    assert_int_equal(km_index_describe(x).count, N + BATCH * ROUNDS);
    if (beside < 10) fail_msg("%d searches beside %d rows", beside, BATCH * ROUNDS);
}

/* ---- Adding, deleting and joining at once ---- */

/* Batches that are large enough for the thread that joins. */
static void *add_counted(void *arg) {
    km_ctx *own = km_ctx_new("cpu", 1);
    (void)arg;
    for (int i = 0; own && i < ROUNDS / 2; i++)
        failures += km_index_add(own, x, more + i * BATCH * DIM, BATCH, NULL) != KM_OK;
    failures += !own;
    km_ctx_free(own);
    return NULL;
}

/* Single rows with ids of their own, every other of which goes again. */
static void *add_own_ids(void *arg) {
    km_ctx *own = km_ctx_new("cpu", 1);
    (void)arg;
    for (uint64_t i = 0; own && i < 40; i++) {
        uint64_t id = ((uint64_t)1 << 30) - i; /* below what is counted after the first */
        failures += km_index_add(own, x, base + i * DIM, 1, &id) != KM_OK;
        if (i % 2) failures += km_index_delete(x, &id, 1) != KM_OK;
    }
    failures += !own;
    km_ctx_free(own);
    return NULL;
}

static void nothing_is_lost_or_there_twice_after_joins(void **state) {
    (void)state;
    pthread_t t[3];
    start(&t[0], add_counted, NULL);
    start(&t[1], add_counted, NULL);
    start(&t[2], add_own_ids, NULL);
    for (uint64_t i = 0; i < 100; i++) /* while what was added is joined */
        assert_done(km_index_delete(x, &i, 1));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    assert_int_equal(failures, 0);
    int64_t n, want = N - 100 + 20 + BATCH * ROUNDS;
    assert_int_equal(km_index_describe(x).count, want);
    km_error err = {0};
    uint64_t *ids = km_index_live_ids(x, &n, &err);
    assert_non_null(ids);
    assert_int_equal(n, want);
    for (int64_t i = 1; i < n; i++) assert_true(ids[i - 1] < ids[i]);
    assert_true(ids[0] == 100);
    km_free(ids);
    km_index_end_joins(x);
    km_snapshot *v = km_index_rows(x);
    assert_true(v->n <= 14); /* of 52 that were added, and the first */
    km_snapshot_drop(v);
    uint64_t got[2];
    float d[2];
    for (int i = 100; i < 120; i++) { /* each is there, and the copy of the rows that was kept */
        assert_done(km_index_search(
            x, base + i * DIM, 1, 1,
            &(km_search_options){.size = sizeof(km_search_options), .rerank = 8}, 1, got, d));
        assert_true(got[0] == (uint64_t)i);
    }
}

/* ---- Files ---- */

/* Eight rows come and go together. */
static void *come_and_go(void *arg) {
    km_ctx *own = km_ctx_new("cpu", 1);
    uint64_t ids[8];
    (void)arg;
    for (uint64_t round = 1; own && !stop; round++) {
        for (uint64_t i = 0; i < 8; i++) ids[i] = (1 + round % 64) * 1000 + i;
        failures += km_index_add(own, x, more, 8, ids) != KM_OK;
        failures += km_index_delete(x, ids, 8) != KM_OK;
    }
    failures += !own;
    km_ctx_free(own);
    return NULL;
}

static void a_file_shows_one_moment(void **state) {
    (void)state;
    pthread_t t[2];
    start(&t[0], come_and_go, NULL);
    start(&t[1], search_on, NULL);
    for (int i = 0; i < (SANITIZED ? 6 : 30); i++) {
        assert_done(km_index_save(x, in_folder("x.kmx"), i % 2));
        km_index *y = km_index_open(in_folder("x.kmx"));
        if (!y) fail_msg("%s", km_last_error());
        int64_t count = km_index_describe(y).count, n;
        km_error err = {0};
        uint64_t *ids = km_index_live_ids(y, &n, &err);
        assert_non_null(ids);
        assert_int_equal(n, count);
        assert_true(count == N || count == N + 8);
        assert_true(km_index_describe(y).next_id > ids[n - 1]);
        km_free(ids);
        km_index_close(y);
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    assert_int_equal(failures, 0);
    assert_int_equal(km_index_describe(x).count, N);
}

/* ---- Without memory ---- */

static void a_change_without_memory_leaves_the_index_as_it_was(void **state) {
    (void)state;
    int done = 0;
    for (int64_t nth = 0; nth < 400 && done < 2; nth++) {
        uint64_t gone = (uint64_t)(nth % N);
        int64_t before = km_index_describe(x).count;
        km_alloc_fail_nth(nth);
        km_status s = done ? km_index_delete(x, &gone, 1) : km_index_add(ctx, x, more, 40, NULL);
        km_alloc_fail_nth(-1);
        if (s == KM_OK) { /* nothing failed, or something that could: then on to the next */
            assert_int_equal(km_index_describe(x).count, before + (done ? -1 : 40));
            if (nth > 100 || done) nth = -1, done++;
        } else {
            assert_int_equal(s, KM_ERR_MEMORY);
            assert_int_equal(km_index_describe(x).count, before);
            km_ctx_clear_error(ctx);
        }
    }
    assert_int_equal(done, 2);
}

#define WITH_INDEX(test) cmocka_unit_test_setup_teardown(test, open_index, close_index)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_INDEX(changes_do_not_wait_until_searches_pause),
        WITH_INDEX(searches_do_not_wait_for_a_large_change),
        WITH_INDEX(nothing_is_lost_or_there_twice_after_joins),
        WITH_INDEX(a_file_shows_one_moment),
        WITH_INDEX(a_change_without_memory_leaves_the_index_as_it_was),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
