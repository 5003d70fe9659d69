/* The loop around an elementwise expression. KM_MAP(out, n, stream, touch, value) stores to out[i]
 * on what `value` says, an expression of the index `i` and the count `m`: the vector of elements
 * i to i + m - 1, where m is KM_VF but for the ends. v_load_m(p + i, m) reads an operand.
 *
 * A streamed loop walks four pages side by side, which keeps more of the memory's banks busy than
 * one after the other does: about a fifth faster on data far larger than the caches, and as fast
 * as memcpy. Whoever runs the loop fences afterwards (km_cpu_walk does). */
#ifndef KM_BACKEND_CPU_SIMD_MAP_H
#define KM_BACKEND_CPU_SIMD_MAP_H
#include "backend/cpu/simd/simd.h"

#define KM_PAGE 1024 /* floats */
#define KM_STEP 64   /* floats of a page at a time, fetched one step ahead */
#define KM_AHEAD 512 /* floats */

/* Elements until p is aligned for v_stream, at most n. */
KM_INLINE int64_t v_stream_head(const float *p, int64_t n) {
    int64_t head = (int64_t)((0 - (uintptr_t)p / sizeof *p) % KM_VF);
    return head < n ? head : n;
}

KM_INLINE vf v_load_m(const float *p, int64_t m) {
    return __builtin_constant_p(m) && m == KM_VF ? v_load(p) : v_load_n(p, m);
}

#define KM_MAP_FULL(store, out, at, value)                                                         \
    do {                                                                                           \
        const int64_t i = (at), m = KM_VF;                                                         \
        (void)m;                                                                                   \
        store((out) + i, value);                                                                   \
    } while (0)
#define KM_MAP_PART(out, at, count, value)                                                         \
    do {                                                                                           \
        const int64_t i = (at), m = (count);                                                       \
        if (m > 0) v_store_n((out) + i, value, m);                                                 \
    } while (0)

#define KM_MAP_TOUCH(at, touch)                                                                    \
    do {                                                                                           \
        const int64_t i = (at);                                                                    \
        (void)i;                                                                                   \
        touch;                                                                                     \
    } while (0)

/* For expressions of a few instructions. `touch` prefetches the operands' lines at i. */
#define KM_MAP(out, n, stream, touch, value)                                                       \
    do {                                                                                           \
        int64_t i_ = 0;                                                                            \
        if (stream) {                                                                              \
            i_ = v_stream_head(out, n);                                                            \
            KM_MAP_PART(out, 0, i_, value);                                                        \
            for (; i_ + 4 * KM_PAGE <= (n); i_ += 4 * KM_PAGE) {                                   \
                for (int64_t j_ = i_; j_ < i_ + KM_PAGE; j_ += KM_STEP) {                          \
                    for (int p_ = 0; p_ < 4; p_++)                                                 \
                        for (int u_ = KM_STEP; u_ < 2 * KM_STEP; u_ += 16)                         \
                            KM_MAP_TOUCH(j_ + p_ * KM_PAGE + u_, touch);                           \
                    for (int p_ = 0; p_ < 4; p_++)                                                 \
                        for (int u_ = 0; u_ < KM_STEP; u_ += KM_VF)                                \
                            KM_MAP_FULL(v_stream, out, j_ + p_ * KM_PAGE + u_, value);             \
                }                                                                                  \
            }                                                                                      \
            for (; i_ + KM_VF <= (n); i_ += KM_VF) KM_MAP_FULL(v_stream, out, i_, value);          \
        }                                                                                          \
        for (; i_ + KM_VF <= (n); i_ += KM_VF) KM_MAP_FULL(v_store, out, i_, value);               \
        KM_MAP_PART(out, i_, (n)-i_, value);                                                       \
    } while (0)

/* For long ones, which compute more than they wait, provided their operands arrive early. */
#define KM_MAP_LONG(out, n, stream, touch, value)                                                  \
    do {                                                                                           \
        int64_t i_ = 0;                                                                            \
        if (stream) {                                                                              \
            i_ = v_stream_head(out, n);                                                            \
            KM_MAP_PART(out, 0, i_, value);                                                        \
            for (; i_ + 16 <= (n); i_ += 16) {                                                     \
                KM_MAP_TOUCH(i_ + KM_AHEAD, touch);                                                \
                for (int u_ = 0; u_ < 16; u_ += KM_VF) KM_MAP_FULL(v_stream, out, i_ + u_, value); \
            }                                                                                      \
        }                                                                                          \
        for (; i_ + KM_VF <= (n); i_ += KM_VF) KM_MAP_FULL(v_store, out, i_, value);               \
        KM_MAP_PART(out, i_, (n)-i_, value);                                                       \
    } while (0)

#endif
