/* Inner loops of random fills: elements [4 * block, 4 * block + n) of the sequence that base/rng.h
 * defines, contiguous, any length. */
#ifndef KM_BACKEND_CPU_SIMD_RANDOM_H
#define KM_BACKEND_CPU_SIMD_RANDOM_H
#include "backend/cpu/cpu.h"

typedef struct km_random_rows {
    void (*uniform)(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t block,
                    double lo, double hi);
    void (*normal)(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t block,
                   float mean, float sd);
    /* out[i] = x[i] * scale where the element's word >> 8 is at least `least`, else 0 */
    void (*dropout)(float *out, const float *x, int64_t n, uint64_t seed, uint64_t stream,
                    uint64_t block, uint32_t least, float scale);
} km_random_rows;

KM_SIMD_TABLE(km_random_rows, km_simd_random)

#endif
