/* The functions of vmath.h over arrays, one table per instruction set. out may be x. */
#ifndef KM_BACKEND_CPU_SIMD_VMATH_ROWS_H
#define KM_BACKEND_CPU_SIMD_VMATH_ROWS_H
#include "backend/cpu/cpu.h"

#define KM_VMATH_LIST(X)                                                                           \
    X(exp)                                                                                         \
    X(expm1)                                                                                       \
    X(log)                                                                                         \
    X(log1p)                                                                                       \
    X(sin)                                                                                         \
    X(cos)                                                                                         \
    X(tanh)                                                                                        \
    X(sigmoid)                                                                                     \
    X(erf)                                                                                         \
    X(sqrt) X(rsqrt) X(silu) X(silu_deriv) X(gelu) X(gelu_deriv) X(gelu_erf) X(gelu_erf_deriv)

typedef struct km_vmath_rows {
#define KM_VMATH_FIELD(name) void (*name)(float *out, const float *x, int64_t n);
    KM_VMATH_LIST(KM_VMATH_FIELD)
#undef KM_VMATH_FIELD
    void (*pow)(float *out, const float *x, const float *y, int64_t n);
} km_vmath_rows;

KM_SIMD_TABLE(km_vmath_rows, km_vmath)

#endif
