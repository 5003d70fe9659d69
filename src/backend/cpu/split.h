/* How the row-shaped kernels see a tensor and share it out: an axis splits the shape into
 * (outer, n, inner), and work goes to the threads in chunks of about the same number of bytes.
 * Chunk bounds depend on sizes alone, so results do not depend on the number of threads. */
#ifndef KM_BACKEND_CPU_SPLIT_H
#define KM_BACKEND_CPU_SPLIT_H
#include "backend/backend.h"
#include "base/cpu.h"
#include "base/util.h"

/* Bytes of input a chunk should touch: enough to hide the cost of handing it out, few enough to
 * stay in the second-level cache and to leave each thread several. */
#define KM_CHUNK_BYTES (128 * 1024)

typedef struct km_axis_split {
    int64_t outer, n, inner;
} km_axis_split;

static inline km_axis_split km_split_at(km_shape s, int axis) {
    km_axis_split r = {1, 1, 1};
    for (int i = 0; i < s.ndim; i++) {
        if (i < axis)
            r.outer *= s.dim[i];
        else if (i == axis)
            r.n = s.dim[i];
        else
            r.inner *= s.dim[i];
    }
    return r;
}

/* Items per chunk when one item touches `bytes` bytes. */
static inline int64_t km_grain(int64_t bytes) {
    return bytes >= KM_CHUNK_BYTES ? 1 : KM_CHUNK_BYTES / (bytes > 0 ? bytes : 1);
}

/* The same for a loop of `items` in which a chunk's bounds change no bit: more chunks when there
 * would be few, so that no thread is left with one while others are done. */
static inline int64_t km_even_grain(int64_t items, int64_t bytes) {
    int64_t grain = km_grain(bytes);
    return items > grain && items < 8 * grain ? km_ceil_div(items, 8) : grain;
}

/* Whether a result of so many bytes should be written past the caches: when it would not stay
 * there until its first reader, fetching its old lines is a waste. */
static inline bool km_worth_streaming(int64_t bytes) {
    size_t l3 = km_cpu_info()->l3;
    return bytes > (int64_t)(l3 ? l3 : (size_t)32 << 20);
}

/* Threads that can have work when there are `items` in chunks of `grain`. */
static inline int64_t km_useful_threads(const km_ctx *ctx, int64_t items, int64_t grain) {
    int64_t chunks = km_ceil_div(items, grain), threads = km_threads_count(ctx->threads);
    return chunks <= 1 ? 1 : threads;
}

/* The float dtypes computed on this device, as a small number for tables of functions. */
enum { KM_SLOT_F32, KM_SLOT_F16, KM_SLOT_BF16, KM_SLOTS };

static inline int km_float_slot(km_dtype d) { /* -1: not one of them */
    switch (d) {
    case KM_F32: return KM_SLOT_F32;
    case KM_F16: return KM_SLOT_F16;
    case KM_BF16: return KM_SLOT_BF16;
    default: return -1;
    }
}

/* Element i of an index tensor, which is i32 or i64. */
static inline int64_t km_index_at(const void *ids, bool wide, int64_t i) {
    return wide ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
}

#endif
