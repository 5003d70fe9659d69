/* The inner loops of vector quantisation (simd/nearest.c). */
#ifndef KM_BACKEND_CPU_NEAREST_H
#define KM_BACKEND_CPU_NEAREST_H
#include "backend/cpu/cpu.h"

#define KM_NEAREST_LANES 16 /* at least the lanes of a vector */

/* The search of one row so far, each lane for itself: the smallest value seen there and its column,
 * and the next one. */
typedef struct km_nearest_row {
    float best[KM_NEAREST_LANES], second[KM_NEAREST_LANES];
    int32_t id[KM_NEAREST_LANES];
} km_nearest_row;

typedef struct km_nearest_kernels {
    void (*begin)(km_nearest_row *r, int64_t rows);
    /* Meets v(i, j) = x[i * ldx + j] + bias[j], j < cols, whose columns count from `first`. bias can
     * be read, and is infinite, up to the next multiple of a vector; x can be read there. */
    void (*meet)(km_nearest_row *r, int64_t rows, const float *x, int64_t ldx, const float *bias,
                 int64_t cols, int32_t first);
    /* |x - c|^2 and |x|^2 */
    float (*distance)(const float *x, const float *c, int64_t d);
    float (*square)(const float *x, int64_t d);
    /* sum += w * x */
    void (*add)(float *sum, const float *x, float w, int64_t d);
} km_nearest_kernels;

KM_SIMD_TABLE(km_nearest_kernels, km_simd_nearest)

km_status km_cpu_cell_sums(km_ctx *ctx, const km_call *c);

#endif
