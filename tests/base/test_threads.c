/* The thread pool: every item once whatever the sizes, the same chunks for any number of
 * threads, nesting, several callers, and workers that wake from sleep. */
#include "base/alloc.h"
#include "base/threads.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Coverage ---- */

typedef struct cover {
    uint8_t *hits; /* plain memory: two threads on one item are a race that TSan sees */
    int64_t n, grain;
    int workers;
    _Atomic int64_t chunks;
    _Atomic int wrong;
} cover;

static void cover_chunk(void *arg, int64_t begin, int64_t end, int worker) {
    cover *c = arg;
    int64_t want_end = begin + c->grain < c->n ? begin + c->grain : c->n;
    if (begin % c->grain != 0 || end != want_end || begin >= end) c->wrong++;
    if (worker < 0 || worker >= c->workers) c->wrong++;
    for (int64_t i = begin; i < end; i++) c->hits[i]++;
    c->chunks++;
}

static void check_cover(km_threads *t, int64_t n, int64_t grain) {
    cover c = {.n = n, .grain = grain, .workers = km_threads_count(t)};
    c.hits = calloc(1, (size_t)n + 1);
    km_threads_for(t, n, grain, cover_chunk, &c);
    assert_int_equal(c.wrong, 0);
    assert_int_equal(c.chunks, (n + grain - 1) / grain);
    for (int64_t i = 0; i < n; i++) assert_int_equal(c.hits[i], 1);
    assert_int_equal(c.hits[n], 0);
    free(c.hits);
}

static void every_item_is_visited_once_for_all_sizes(void **state) {
    static const int64_t sizes[] = {1, 2, 3, 7, 64, 1000, 4097};
    static const int64_t grains[] = {1, 2, 3, 16, 999, 5000};
    for (int count = 1; count <= 5; count++) {
        km_threads *t = km_threads_new(count);
        assert_non_null(t);
        assert_int_equal(km_threads_count(t), count);
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 6; j++) check_cover(t, sizes[i], grains[j]);
        km_threads_free(t);
    }
    for (int i = 0; i < 7; i++) check_cover(NULL, sizes[i], 3);
}

static void never(void *arg, int64_t begin, int64_t end, int worker) { ++*(int *)arg; }

static void an_empty_loop_calls_nothing(void **state) {
    km_threads *t = km_threads_new(3);
    int calls = 0;
    km_threads_for(t, 0, 4, never, &calls);
    km_threads_for(t, -5, 4, never, &calls);
    km_threads_for(NULL, 0, 4, never, &calls);
    assert_int_equal(calls, 0);
    km_threads_free(t);
}

typedef struct bounds {
    int64_t begin[4], end[4];
    _Atomic int calls;
} bounds;

static void note_bounds(void *arg, int64_t begin, int64_t end, int worker) {
    bounds *b = arg;
    int i = b->calls++;
    if (i < 4) b->begin[i] = begin, b->end[i] = end;
}

static void huge_ranges_and_silly_grains_do_not_overflow(void **state) {
    km_threads *t = km_threads_new(2);
    bounds b = {0};
    km_threads_for(t, INT64_MAX, INT64_MAX, note_bounds, &b);
    assert_int_equal(b.calls, 1);
    assert_true(b.begin[0] == 0 && b.end[0] == INT64_MAX);
    b = (bounds){0};
    km_threads_for(t, INT64_MAX, INT64_MAX / 2, note_bounds, &b); /* two halves and one item */
    assert_int_equal(b.calls, 3);
    for (int i = 0; i < 3; i++) assert_true(b.begin[i] < b.end[i]);
    b = (bounds){0};
    km_threads_for(t, 3, 0, note_bounds, &b); /* counts as a grain of one */
    assert_int_equal(b.calls, 3);
    b = (bounds){0};
    km_threads_for(t, 2, -1, note_bounds, &b);
    assert_int_equal(b.calls, 2);
    km_threads_free(t);
}

static void note_thread(void *arg, int64_t begin, int64_t end, int worker) {
    *(pthread_t *)arg = pthread_self();
}

static void one_chunk_runs_in_the_calling_thread(void **state) {
    km_threads *t = km_threads_new(4);
    for (int round = 0; round < 50; round++) {
        pthread_t seen;
        memset(&seen, 0, sizeof seen);
        km_threads_for(t, 10, 10, note_thread, &seen);
        assert_true(pthread_equal(seen, pthread_self()));
    }
    km_threads_free(t);
}

/* ---- Several threads really take part ---- */

typedef struct meeting {
    _Atomic int arrived;
    int wanted;
    _Atomic int seen[8]; /* chunks per worker */
} meeting;

/* Returns only when `wanted` chunks run at the same time. */
static void meet(void *arg, int64_t begin, int64_t end, int worker) {
    meeting *m = arg;
    m->seen[worker]++;
    m->arrived++;
    while (m->arrived < m->wanted) usleep(50);
}

static void all_threads_take_part(void **state) {
    km_threads *t = km_threads_new(4);
    for (int round = 0; round < 20; round++) {
        meeting m = {.wanted = 4};
        km_threads_for(t, 4, 1, meet, &m);
        for (int i = 0; i < 4; i++) assert_int_equal(m.seen[i], 1);
    }
    km_threads_free(t);
}

static void sleeping_workers_wake_up(void **state) {
    km_threads *t = km_threads_new(3);
    for (int round = 0; round < 10; round++) {
        usleep(3000); /* far past the spinning */
        meeting m = {.wanted = 3};
        km_threads_for(t, 3, 1, meet, &m);
        assert_int_equal(m.arrived, 3);
    }
    km_threads_free(t);
}

typedef struct errand {
    _Atomic int started, done;
} errand;

/* The caller's chunk is over as soon as the worker's has begun; the worker's takes its time. */
static void run_errand(void *arg, int64_t begin, int64_t end, int worker) {
    errand *e = arg;
    e->started++;
    while (e->started < 2) usleep(20);
    if (worker != 0) usleep(3000);
    e->done++;
}

static void the_caller_waits_for_a_slow_worker(void **state) {
    km_threads *t = km_threads_new(2);
    for (int round = 0; round < 20; round++) {
        errand e = {0};
        km_threads_for(t, 2, 1, run_errand, &e);
        assert_int_equal(e.done, 2);
    }
    km_threads_free(t);
}

static void many_short_loops_in_a_row_lose_nothing(void **state) {
    km_threads *t = km_threads_new(3);
    for (int round = 0; round < 3000; round++) check_cover(t, 8, 1);
    km_threads_free(t);
}

/* ---- The same bits ---- */

typedef struct reduction {
    const float *x;
    int64_t grain;
    float partial[256];
} reduction;

static void sum_chunk(void *arg, int64_t begin, int64_t end, int worker) {
    reduction *r = arg;
    float sum = 0;
    for (int64_t i = begin; i < end; i++) sum += r->x[i];
    r->partial[begin / r->grain] = sum;
}

static uint32_t reduce(km_threads *t, const float *x, int64_t n, int64_t grain) {
    reduction r = {.x = x, .grain = grain};
    km_threads_for(t, n, grain, sum_chunk, &r);
    float sum = 0;
    for (int64_t i = 0; i * grain < n; i++) sum += r.partial[i];
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return bits;
}

static void a_reduction_has_the_same_bits_for_any_number_of_threads(void **state) {
    enum { N = 20011 };
    float *x = malloc(N * sizeof *x);
    uint32_t seed = 1;
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) - 8388608.0f) * 1e-3f; /* cancels: order shows in the bits */
    }
    uint32_t want = reduce(NULL, x, N, 97);
    assert_int_not_equal(want, reduce(NULL, x, N, 211)); /* so the order does matter */
    for (int count = 1; count <= 6; count++) {
        km_threads *t = km_threads_new(count);
        for (int round = 0; round < 20; round++) assert_int_equal(reduce(t, x, N, 97), want);
        km_threads_free(t);
    }
    free(x);
}

/* ---- Nesting ---- */

typedef struct nest {
    km_threads *pool, *other;
    int depth;
    _Atomic int64_t leaves;
    _Atomic int wrong;
} nest;

typedef struct nest_frame {
    nest *all;
    int level, worker;
    pthread_t thread;
} nest_frame;

static void nest_inner(void *arg, int64_t begin, int64_t end, int worker) {
    nest_frame *f = arg;
    nest *all = f->all;
    if (worker != f->worker || !pthread_equal(pthread_self(), f->thread)) all->wrong++;
    if (f->level == all->depth) {
        all->leaves += end - begin;
        return;
    }
    nest_frame inner = {all, f->level + 1, worker, pthread_self()};
    km_threads_for(all->pool, 6, 2, nest_inner, &inner);
}

static void nest_outer(void *arg, int64_t begin, int64_t end, int worker) {
    nest_frame f = {arg, 1, worker, pthread_self()};
    for (int64_t i = begin; i < end; i++) km_threads_for(f.all->pool, 6, 2, nest_inner, &f);
}

static void a_call_from_inside_a_chunk_runs_in_that_thread(void **state) {
    for (int count = 1; count <= 4; count++) {
        nest all = {.pool = km_threads_new(count), .depth = 3};
        for (int round = 0; round < 20; round++) {
            all.leaves = 0;
            km_threads_for(all.pool, 16, 1, nest_outer, &all);
            /* three chunks of two at levels 1 and 2, six items at level 3 */
            assert_int_equal(all.leaves, 16 * 3 * 3 * 6);
        }
        assert_int_equal(all.wrong, 0);
        km_threads_free(all.pool);
    }
}

static void count_items(void *arg, int64_t begin, int64_t end, int worker) {
    nest *all = arg;
    if (worker < 0 || worker >= 2) all->wrong++;
    all->leaves += end - begin;
}

static void call_other(void *arg, int64_t begin, int64_t end, int worker) {
    nest *all = arg;
    km_threads_for(all->other, 10, 1, count_items, all);
}

typedef struct crossing {
    nest n;
    _Atomic int *ready;
} crossing;

static void *cross(void *arg) {
    crossing *c = arg;
    ++*c->ready;
    while (*c->ready < 2) usleep(10);
    for (int i = 0; i < 200; i++) km_threads_for(c->n.pool, 8, 1, call_other, &c->n);
    return NULL;
}

/* Two threads, two pools, each calling the other's from inside its own: the classic deadlock. */
static void pools_that_call_each_other_do_not_deadlock(void **state) {
    km_threads *a = km_threads_new(4), *b = km_threads_new(2);
    _Atomic int ready = 0;
    crossing x = {.n = {.pool = a, .other = b}, .ready = &ready};
    crossing y = {.n = {.pool = b, .other = a}, .ready = &ready};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, cross, &x), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, cross, &y), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(x.n.leaves, 200 * 8 * 10);
    assert_int_equal(y.n.leaves, 200 * 8 * 10);
    assert_int_equal(x.n.wrong + y.n.wrong, 0);
    km_threads_free(a);
    km_threads_free(b);
}

/* ---- Several callers ---- */

typedef struct caller {
    km_threads *pool;
    int64_t sum;
    int rounds;
} caller;

static void add_one(void *arg, int64_t begin, int64_t end, int worker) {
    /* One slot per worker and no atomics: within a call no two threads are the same worker. */
    int64_t *slots = arg;
    slots[worker * 8] += end - begin;
}

static void *call_often(void *arg) {
    caller *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        int64_t slots[4 * 8] = {0};
        km_threads_for(c->pool, 50, 7, add_one, slots);
        for (int w = 0; w < 4; w++) c->sum += slots[w * 8];
    }
    return NULL;
}

static void callers_from_several_threads_share_a_pool(void **state) {
    km_threads *t = km_threads_new(4);
    caller callers[6];
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) {
        callers[i] = (caller){t, 0, 300};
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 6; i++) assert_int_equal(callers[i].sum, 300 * 50);
    km_threads_free(t);
}

typedef struct busy {
    km_threads *pool;
    _Atomic int inside, left;
    _Atomic bool released;
} busy;

static void hold_on(void *arg, int64_t begin, int64_t end, int worker) {
    busy *b = arg;
    b->inside++;
    for (int i = 0; i < 2000 && !b->released; i++) usleep(1000);
    b->left++;
}

static void *occupy(void *arg) {
    busy *b = arg;
    km_threads_for(b->pool, 3, 1, hold_on, b);
    return NULL;
}

static void nobody_waits_for_a_pool_that_is_busy(void **state) {
    busy b = {.pool = km_threads_new(3)};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, occupy, &b), 0);
    while (b.inside < 3) usleep(100);
    check_cover(b.pool, 1000, 7);
    assert_int_equal(b.left, 0); /* the other loop is still running */
    b.released = true;
    pthread_join(other, NULL);
    check_cover(b.pool, 1000, 7);
    km_threads_free(b.pool);
}

/* ---- Life ---- */

static void pools_come_and_go_without_leaks(void **state) {
    int64_t live = km_alloc_live();
    for (int i = 0; i < 50; i++) {
        km_threads *t = km_threads_new(1 + i % 5);
        if (i % 2) check_cover(t, 10, 1);
        km_threads_free(t);
    }
    km_threads_free(NULL);
    assert_int_equal(km_alloc_live(), live);
}

static void without_memory_there_is_no_pool(void **state) {
    int64_t live = km_alloc_live();
    km_alloc_fail_nth(0);
    assert_null(km_threads_new(2));
    km_alloc_fail_nth(-1);
    assert_int_equal(km_alloc_live(), live);
}

static void loops_do_not_allocate(void **state) {
    km_threads *t = km_threads_new(3);
    uint64_t count = km_alloc_count();
    for (int i = 0; i < 10; i++) {
        meeting m = {.wanted = 3};
        km_threads_for(t, 3, 1, meet, &m);
    }
    assert_int_equal(km_alloc_count(), count);
    km_threads_free(t);
}

static int count_with(const char *wish, int asked) {
    if (wish)
        setenv("KERMES_THREADS", wish, 1);
    else
        unsetenv("KERMES_THREADS");
    km_threads *t = km_threads_new(asked);
    int n = km_threads_count(t);
    km_threads_free(t);
    unsetenv("KERMES_THREADS");
    return n;
}

static void the_number_of_threads_comes_from_caller_environment_or_machine(void **state) {
    int cores = km_cpu_count();
    assert_true(cores >= 1);
    assert_int_equal(km_threads_count(NULL), 1);
    assert_int_equal(count_with(NULL, 0), cores);
    assert_int_equal(count_with("3", 0), 3);
    assert_int_equal(count_with("3", 2), 2);
    assert_int_equal(count_with("", 0), cores);
    assert_int_equal(count_with("0", 0), cores);
    assert_int_equal(count_with("-4", 0), cores);
    assert_int_equal(count_with("many", 0), cores);
    assert_int_equal(count_with("2x", 0), cores);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_visited_once_for_all_sizes),
        cmocka_unit_test(an_empty_loop_calls_nothing),
        cmocka_unit_test(huge_ranges_and_silly_grains_do_not_overflow),
        cmocka_unit_test(one_chunk_runs_in_the_calling_thread),
        cmocka_unit_test(all_threads_take_part),
        cmocka_unit_test(sleeping_workers_wake_up),
        cmocka_unit_test(the_caller_waits_for_a_slow_worker),
        cmocka_unit_test(many_short_loops_in_a_row_lose_nothing),
        cmocka_unit_test(a_reduction_has_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(a_call_from_inside_a_chunk_runs_in_that_thread),
        cmocka_unit_test(pools_that_call_each_other_do_not_deadlock),
        cmocka_unit_test(callers_from_several_threads_share_a_pool),
        cmocka_unit_test(nobody_waits_for_a_pool_that_is_busy),
        cmocka_unit_test(pools_come_and_go_without_leaks),
        cmocka_unit_test(without_memory_there_is_no_pool),
        cmocka_unit_test(loops_do_not_allocate),
        cmocka_unit_test(the_number_of_threads_comes_from_caller_environment_or_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
