/* The thread pool. A loop is published in one atomic word; workers that are awake join it,
 * take chunks and leave. The caller works too, closes the loop when no chunk is left, and
 * waits only for workers that did join: one that the system is slow to wake holds nobody up.
 * Joining, not timing, decides who may read the job.
 *
 * Chunks lie in lanes, one for each thread or few threads. A thread empties its own lane
 * first, so that from loop to loop it meets the same part of the data, still in its caches,
 * and then helps in the lanes of others. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/threads.h"
#include "base/alloc.h"
#include "base/clock.h"
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#if defined(__linux__) && !defined(KM_NO_FUTEX)
#define KM_FUTEX 1
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define MAX_THREADS 512
#define MAX_LANES 16
#define SPIN_NS 50000 /* how long to look for news before sleeping; waking costs as much */

/* The state word: workers inside (bits 0-9), the caller sleeps until they have left, the
 * loop is open for joining, and the loop's number (bits 12-31). The number wraps; that is
 * harmless, for a worker that joins reads the job only afterwards, and one that mistakes a
 * loop for an old one merely does not help. */
#define INSIDE 0x3FFu
#define CALLER_SLEEPS 0x400u
#define OPEN 0x800u
#define NUMBER 0xFFFFF000u
#define NUMBER_ONE 0x1000u

/* Chunks that are still to be taken. */
typedef struct lane {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} lane;

typedef struct worker_slot {
    km_threads *pool;
    pthread_t thread;
    int index;
} worker_slot;

struct km_threads {
    int count;
    bool spin;               /* false when threads outnumber cores */
    pthread_mutex_t callers; /* held by the caller whose loop the workers run */
    worker_slot workers[MAX_THREADS];
    /* The job: written by the caller while nobody is inside. */
    km_range_fn fn;
    void *arg;
    int64_t n, grain, chunks;
    int lanes;
    lane lane[MAX_LANES];
    /* Each on a cache line of its own. */
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint32_t signal; /* changes with each loop; workers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic bool quit;
};

/* Which chunk this thread is in, for calls from inside one. */
static _Thread_local struct {
    const km_threads *pool;
    int worker;
    bool inside;
} here;

/* ---- Sleeping ---- */

#ifdef KM_FUTEX
static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}
#else
static pthread_mutex_t bed_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bed = PTHREAD_COND_INITIALIZER;

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    pthread_mutex_lock(&bed_lock);
    while (atomic_load(word) == value) pthread_cond_wait(&bed, &bed_lock);
    pthread_mutex_unlock(&bed_lock);
}

static void wake(_Atomic uint32_t *word, int n) {
    (void)word, (void)n; /* sleepers on other words look and lie down again */
    pthread_mutex_lock(&bed_lock);
    pthread_cond_broadcast(&bed);
    pthread_mutex_unlock(&bed_lock);
}
#endif

static void pause_a_little(void) {
    for (int i = 0; i < 16; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
    }
}

/* ---- Chunks ---- */

static void run_chunk(int64_t n, int64_t grain, int64_t chunk, km_range_fn fn, void *arg,
                      int index) {
    int64_t begin = chunk * grain;
    fn(arg, begin, n - begin > grain ? begin + grain : n, index);
}

static void take_chunks(km_threads *t, int index) {
    int own = (int)((int64_t)index * t->lanes / t->count);
    for (int i = 0; i < t->lanes; i++) {
        lane *l = &t->lane[own + i < t->lanes ? own + i : own + i - t->lanes];
        while (atomic_load_explicit(&l->next, memory_order_relaxed) < l->end) {
            int64_t chunk = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
            if (chunk >= l->end) break;
            run_chunk(t->n, t->grain, chunk, t->fn, t->arg, index);
        }
    }
}

/* ---- Workers ---- */

static void await_signal(km_threads *t, uint32_t seen) {
    if (t->spin) {
        int64_t until = km_now_ns() + SPIN_NS;
        do {
            pause_a_little();
            if (atomic_load_explicit(&t->signal, memory_order_acquire) != seen) return;
        } while (km_now_ns() < until);
    }
    /* Either the caller sees this sleeper, or the sleeper sees the new signal: both orders
     * go through sequentially consistent operations. */
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->signal) == seen) sleep_on(&t->signal, seen);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void leave(km_threads *t) {
    uint32_t before = atomic_fetch_sub_explicit(&t->state, 1, memory_order_acq_rel);
    if ((before & INSIDE) == 1 && (before & CALLER_SLEEPS)) wake(&t->state, 1);
}

static void *work(void *arg) {
    const worker_slot *me = arg;
    km_threads *t = me->pool;
    here.pool = t;
    here.worker = me->index;
    here.inside = true;
    uint32_t done = 0; /* the first loop has number one */
    for (;;) {
        uint32_t seen = atomic_load_explicit(&t->signal, memory_order_acquire);
        if (atomic_load_explicit(&t->quit, memory_order_acquire)) return NULL;
        uint32_t s = atomic_load_explicit(&t->state, memory_order_relaxed);
        if (!(s & OPEN) || (s & NUMBER) == done) {
            await_signal(t, seen);
        } else if (atomic_compare_exchange_weak_explicit(&t->state, &s, s + 1, memory_order_acq_rel,
                                                         memory_order_relaxed)) {
            done = s & NUMBER;
            take_chunks(t, me->index);
            leave(t);
        }
    }
}

/* ---- The caller ---- */

/* The chunks from `begin` on. */
static void publish(km_threads *t, uint32_t number, int64_t begin) {
    int64_t left = t->chunks - begin, even = left / t->lanes, more = left % t->lanes;
    for (int i = 0; i < t->lanes; i++) {
        atomic_store_explicit(&t->lane[i].next, begin, memory_order_relaxed);
        t->lane[i].end = begin += even + (i < more);
    }
    atomic_store_explicit(&t->state, number | OPEN, memory_order_release);
    atomic_fetch_add(&t->signal, 1);
    if (atomic_load(&t->sleepers) > 0) {
        int64_t useful = left - 1;
        wake(&t->signal, useful < t->count - 1 ? (int)useful : t->count - 1);
    }
}

static void close_and_wait(km_threads *t) {
    uint32_t s = atomic_fetch_and_explicit(&t->state, ~OPEN, memory_order_acq_rel) & ~OPEN;
    if (!(s & INSIDE)) return;
    if (t->spin) {
        int64_t until = km_now_ns() + SPIN_NS;
        do {
            pause_a_little();
            s = atomic_load_explicit(&t->state, memory_order_acquire);
            if (!(s & INSIDE)) return;
        } while (km_now_ns() < until);
    }
    s = atomic_fetch_or_explicit(&t->state, CALLER_SLEEPS, memory_order_acq_rel) | CALLER_SLEEPS;
    while (s & INSIDE) {
        sleep_on(&t->state, s);
        s = atomic_load_explicit(&t->state, memory_order_acquire);
    }
}

/* All chunks in this thread, cut as they would be in parallel. */
static void run_here(km_threads *t, int64_t n, int64_t grain, int64_t chunks, km_range_fn fn,
                     void *arg) {
    bool nested = here.inside;
    int index = nested && t && here.pool == t ? here.worker : 0;
    if (!nested) {
        here.pool = t;
        here.worker = 0;
        here.inside = true;
    }
    for (int64_t i = 0; i < chunks; i++) run_chunk(n, grain, i, fn, arg, index);
    here.inside = nested;
}

void km_threads_for(km_threads *t, int64_t n, int64_t grain, km_range_fn fn, void *arg) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    int64_t chunks = n / grain + (n % grain != 0);
    if (!t || t->count == 1 || chunks == 1 || here.inside) {
        run_here(t, n, grain, chunks, fn, arg);
        return;
    }
    here.pool = t;
    here.worker = 0;
    here.inside = true;
    int64_t done = 0;
    while (done < chunks && pthread_mutex_trylock(&t->callers) != 0)
        run_chunk(n, grain, done++, fn, arg, 0); /* the workers are another's */
    if (done == chunks) {
        here.inside = false;
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->n = n;
    t->grain = grain;
    t->chunks = chunks;
    uint32_t last = atomic_load_explicit(&t->state, memory_order_relaxed) & NUMBER;
    publish(t, last + NUMBER_ONE, done);
    take_chunks(t, 0);
    close_and_wait(t);
    here.inside = false;
    pthread_mutex_unlock(&t->callers);
}

/* ---- Life ---- */

static int default_count(void) {
    const char *wish = getenv("KERMES_THREADS");
    if (wish && *wish) {
        char *end;
        long n = strtol(wish, &end, 10);
        if (*end == 0 && n >= 1) return n < MAX_THREADS ? (int)n : MAX_THREADS;
    }
    return km_cpu_count();
}

static void stop_workers(km_threads *t, int started) {
    atomic_store_explicit(&t->quit, true, memory_order_release);
    atomic_fetch_add(&t->signal, 1);
    wake(&t->signal, INT_MAX);
    for (int i = 1; i < started; i++) pthread_join(t->workers[i].thread, NULL);
}

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

km_threads *km_threads_new(int count) {
    if (count <= 0) count = default_count();
    if (count > MAX_THREADS) count = MAX_THREADS;
    km_threads *t = km_alloc_aligned(sizeof *t);
    if (!t) return NULL;
    t->count = count;
    t->spin = count <= km_cpu_count();
    atomic_init(&t->state, 0);
    t->lanes = count < MAX_LANES ? count : MAX_LANES;
    for (int i = 0; i < t->lanes; i++) atomic_init(&t->lane[i].next, 0);
    atomic_init(&t->signal, 0);
    atomic_init(&t->sleepers, 0);
    atomic_init(&t->quit, false);
    if (pthread_mutex_init(&t->callers, NULL) != 0) goto fail_mutex;

    /* Workers take no signals: a program's handlers run in its own threads. Those of faults belong to
     * the thread that faults (base/guard.h); blocked, they would end the process without a handler. */
    sigset_t all, old;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int started = 1;
    for (; started < count; started++) {
        worker_slot *w = &t->workers[started];
        w->pool = t;
        w->index = started;
        if (pthread_create(&w->thread, NULL, work, w) != 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started < count) goto fail_create;
    return t;

fail_create:
    stop_workers(t, started);
    pthread_mutex_destroy(&t->callers);
fail_mutex:
    km_free_aligned(t, sizeof *t);
    return NULL;
}

void km_threads_free(km_threads *t) {
    if (!t) return;
    stop_workers(t, t->count);
    pthread_mutex_destroy(&t->callers);
    km_free_aligned(t, sizeof *t);
}

int km_threads_count(const km_threads *t) { return t ? t->count : 1; }
