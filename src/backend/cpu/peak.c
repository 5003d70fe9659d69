/* How many floating-point operations a second the threads of a pool can do together. Each runs the
 * multiply-add loop in short bursts, all at the same time, and its fastest burst counts: another
 * program that takes a core away for a while slows many bursts, but hardly all. */
#include "backend/cpu/peak.h"
#include "base/clock.h"
#include <stdatomic.h>

#define BURST 4096 /* rounds of the loop: some ten microseconds */
#define FEWEST 8
#define SECONDS 0.03 /* the clock of a core that was idle takes some of these to rise */
#define WAIT 0.002   /* for the others to come */
#define MOST_THREADS 512

typedef struct bursts {
    int threads;
    _Atomic int here;
    double least[MOST_THREADS]; /* seconds of a burst */
} bursts;

static void run_bursts(void *arg, int64_t begin, int64_t end, int worker) {
    bursts *b = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        double start = km_now(), now = start, least = 1;
        atomic_fetch_add(&b->here, 1);
        while (atomic_load(&b->here) < b->threads && km_now() < start + WAIT) continue;
        for (int n = 0; n < FEWEST || now < start + SECONDS; n++) {
            volatile float sink = km_peak()->fma(BURST); /* so that it is computed */
            (void)sink;
            double then = now;
            now = km_now();
            if (n > 0 && now - then < least) least = now - then; /* the first one waited, too */
        }
        b->least[i] = least;
    }
}

double km_cpu_peak(km_threads *pool) {
    int threads = km_threads_count(pool), cores = km_cpu_count();
    bursts b = {.threads = threads < cores ? threads : cores};
    if (b.threads > MOST_THREADS) b.threads = MOST_THREADS;
    km_threads_for(pool, b.threads, 1, run_bursts, &b);
    double rate = 0;
    for (int i = 0; i < b.threads; i++)
        rate += (double)BURST * km_peak()->flops_per_round / b.least[i];
    return rate;
}
