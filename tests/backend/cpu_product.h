/* For tests of products and attention: numbers that are the same every run, 16-bit floats, and
 * every way this machine can compute a product. */
#ifndef KM_TESTS_BACKEND_CPU_PRODUCT_H
#define KM_TESTS_BACKEND_CPU_PRODUCT_H
#include "backend/cpu/blas.h"
#include "backend/cpu/gemm.h"
#include "base/alloc.h"
#include <math.h>
#include <stdlib.h>

static inline double cp_get(const void *p, km_dtype d, int64_t i) {
    if (d == KM_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return d == KM_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
}

static inline void cp_set(void *p, km_dtype d, int64_t i, double v) {
    if (d == KM_F32)
        ((float *)p)[i] = (float)v;
    else
        ((uint16_t *)p)[i] = d == KM_F16 ? km_f32_to_f16((float)v) : km_f32_to_bf16((float)v);
}

/* In [-1, 1), by place alone. */
static inline double cp_number(uint32_t seed, int64_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + seed * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return (double)x / 2147483648.0 - 1;
}

/* n elements of dtype d on the heap, exactly that many bytes, so that a sanitizer sees the ends. */
static inline void *cp_new(km_dtype d, int64_t n, uint32_t seed) {
    void *p = malloc((size_t)n * km_dtype_size(d));
    if (!p && n) abort();
    for (int64_t i = 0; i < n; i++) cp_set(p, d, i, cp_number(seed, i));
    return p;
}

/* The rounding error of one result of size `size`: half a unit in the last place and a little. */
static inline double cp_rounding(km_dtype d, double size) {
    double unit = d == KM_F32 ? 1e-7 : d == KM_F16 ? 0x1p-11 : 0x1p-8;
    double floor_ = d == KM_F16 ? 0x1p-25 : 0;
    return 1.01 * unit * fabs(size) + floor_;
}

/* ---- Ways to compute ---- */

typedef struct cp_way {
    km_isa isa;
    km_gemm_blas blas;
} cp_way;

/* Selects way number i (of at most CP_WAYS); false when this machine does not have it. */
#define CP_WAYS (KM_ISA_COUNT + 1)
static inline bool cp_choose(int i) {
    if (i == KM_ISA_AVX2 && km_gemm_kernels_of(i) == km_gemm_kernels_of(KM_ISA_BASE))
        return false; /* a build for one machine without it: the baseline stands in */
    if (i < KM_ISA_COUNT) return km_gemm_choose((km_isa)i, KM_GEMM_BLAS_NEVER);
    return km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_ALWAYS);
}

static inline const char *cp_way_name(int i) {
    return i < KM_ISA_COUNT ? km_isa_name((km_isa)i) : "blas";
}

#define CP_DTYPES 3
static const km_dtype cp_dtypes[CP_DTYPES] = {KM_F32, KM_F16, KM_BF16};

#endif
