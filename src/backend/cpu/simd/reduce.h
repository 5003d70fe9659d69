/* Inner loops of reductions: what one block of f32 comes to, along a row or down columns. The
 * caller merges blocks in double, so no chain of f32 additions is long.
 *
 *   op              a            b                    c
 *   sum, mean       sum x
 *   sumsq           sum x^2
 *   max             max x (NaN wins)
 *   argmax          max x        index of the first
 *   logsumexp       max x        sum exp(x - a), 0 unless a is finite
 *   var             about mean   sum (x - a)^2        sum (x - a) */
#ifndef KM_BACKEND_CPU_SIMD_REDUCE_H
#define KM_BACKEND_CPU_SIMD_REDUCE_H
#include "backend/cpu/cpu.h"

typedef struct km_block {
    float a, b, c;
} km_block;

typedef struct km_reduce_rows {
    /* n elements, 0 < n < 2^24 */
    km_block (*row[KM_OP_COUNT])(const float *x, int64_t n);
    /* 0 < n_rows < 2^24 rows of `cols` elements: a, b and c of every column */
    void (*columns[KM_OP_COUNT])(const float *const *rows, int n_rows, int64_t cols, float *a,
                                 float *b, float *c);
} km_reduce_rows;

KM_SIMD_TABLE(km_reduce_rows, km_simd_reduce)

#endif
