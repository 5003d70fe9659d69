/* What adapters add to a layer: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_LOW_RANK_H
#define KM_BACKEND_CPU_LOW_RANK_H
#include "backend/cpu/cpu.h"

typedef struct km_low_rank_table {
    /* out[r] = x . a[r], r < ranks; a (ranks, n). What a rank gets does not depend on the others. */
    void (*dots)(const float *a, const float *x, int64_t n, int64_t ranks, float *out);
    /* y += sum over r of low[r] b[r], in order, b[r] being `stride` after b[r - 1]; terms of a low that
     * is 0 are left out. */
    void (*add)(float *y, const float *low, const float *b, int64_t stride, int64_t n,
                int64_t ranks);
} km_low_rank_table;

KM_SIMD_TABLE(km_low_rank_table, km_simd_low_rank)

#endif
