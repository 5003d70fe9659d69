/* Elementwise loops on all threads: a km_iter is cut into ranges of elements, and each range is
 * handed out as runs along the innermost axis. */
#ifndef KM_BACKEND_CPU_WALK_H
#define KM_BACKEND_CPU_WALK_H
#include "backend/iter.h"

/* n elements from ptr[k] on, those of operand k lying it->stride[k][it->ndim - 1] apart. */
typedef void (*km_run_fn)(void *arg, char *const *ptr, int64_t n);

/* `cost` is roughly what an element takes in one thread, in tenths of a nanosecond (an addition
 * 2, an exponential 8): it decides when threads are worth waking. */
void km_cpu_walk(km_ctx *ctx, const km_iter *it, int cost, km_run_fn fn, void *arg);

/* Items per chunk of a parallel loop over n items of that cost each: not so small that waking
 * threads takes longer than the work, not so large that one waits for another. Depends on the
 * number of threads: only for loops whose results do not depend on the chunks. */
int64_t km_cpu_grain(const km_ctx *ctx, int64_t n, int64_t cost);

/* Ends a chunk that streamed: such stores are not ordered with what follows by themselves. */
static inline void km_cpu_fence(void) {
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* Whether an output of so many bytes should go past the caches, straight to memory. */
bool km_cpu_streams(int64_t bytes);

#endif
