/* A thread pool for short parallel loops: workers sleep on a futex after a few spins, so
 * an idle pool costs nothing and a busy machine is not slowed by spinning barriers.
 * Work is cut into chunks whose bounds depend on n and grain alone, never on timing or
 * the number of threads: a reduction per chunk therefore gives the same bits each run. */
#ifndef KM_BASE_THREADS_H
#define KM_BASE_THREADS_H
#include <stdint.h>

typedef struct km_threads km_threads;

/* One chunk of a loop: items [begin, end). `worker` is in [0, km_threads_count). */
typedef void (*km_range_fn)(void *arg, int64_t begin, int64_t end, int worker);

/* A pool of `count` threads, the caller's included (1 means no helpers; 0 means one per
 * available core, or KERMES_THREADS). NULL when threads cannot be had. */
km_threads *km_threads_new(int count);
void km_threads_free(km_threads *t);       /* NULL is fine */
int km_threads_count(const km_threads *t); /* 1 for NULL */

/* Runs fn over [0, n) in chunks of `grain` items (the last may be short), on all threads,
 * and returns when all are done. With one chunk, or t NULL, runs in the caller; a call from
 * inside a chunk runs in that thread. Of calls from several threads the pool serves one at a
 * time: the others work on their own chunks until it is free, and nobody waits. `worker` is 0
 * in each of the callers, so what a worker works with belongs to the call. */
void km_threads_for(km_threads *t, int64_t n, int64_t grain, km_range_fn fn, void *arg);

int km_cpu_count(void); /* cores this process may run on */

#endif
