/* Runs of f32, f16 or bf16 elements against runs of f32: what kernels that are mostly moving data
 * need from simd/. The functions are by km_float_slot of the dtype of p. */
#ifndef KM_BACKEND_CPU_LANES_H
#define KM_BACKEND_CPU_LANES_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

typedef void (*km_lanes_in)(float *f, const void *p, int64_t n);
typedef void (*km_lanes_out)(void *p, const float *f, int64_t n);

typedef struct km_lanes {
    km_lanes_in load[KM_SLOTS];   /* f = p */
    km_lanes_in add[KM_SLOTS];    /* f += p */
    km_lanes_out store[KM_SLOTS]; /* p = f, rounded once */
} km_lanes;

KM_SIMD_TABLE(km_lanes, km_simd_lanes)

#endif
