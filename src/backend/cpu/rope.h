/* Rotary positions: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_ROPE_H
#define KM_BACKEND_CPU_ROPE_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

/* Some rows, one per position, of which the first `dims` elements are rotated and the rest copied.
 * Halves: cos and sin (rows, dims / 2), pair i is (i, i + dims / 2). Adjacent: cos and sin
 * (rows, dims), each value twice, and sin negative the first time; pair i is (2i, 2i + 1). */
typedef struct km_rope_job {
    void *y;       /* (rows, d) */
    const void *x; /* (rows, d) */
    const float *cos, *sin;
    int64_t rows, d, dims;
} km_rope_job;

typedef struct km_rope_table {
    void (*halves[KM_SLOTS])(const km_rope_job *job);
    void (*adjacent[KM_SLOTS])(const km_rope_job *job);
} km_rope_table;

KM_SIMD_TABLE(km_rope_table, km_simd_rope)

#endif
