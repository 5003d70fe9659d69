// Elements of any dtype by its number, for kernels whose speed does not matter enough to have one
// per dtype. The numbers are km_dtype's (kermes.h).
#ifndef KM_CUDA_INTEGERS_CUH
#define KM_CUDA_INTEGERS_CUH
#include "backend/cuda/kernels/common.cuh"
#include "kermes.h"

__device__ __forceinline__ bool is_float(int dtype) { return dtype <= KM_F64; }

__device__ __forceinline__ int64_t load_int(int dtype, const void *p, int64_t i) {
    switch (dtype) {
    case KM_I32: return ((const int32_t *)p)[i];
    case KM_I64: return ((const int64_t *)p)[i];
    case KM_I8: return ((const int8_t *)p)[i];
    case KM_U8: return ((const uint8_t *)p)[i];
    default: return ((const uint8_t *)p)[i] != 0; // bool
    }
}

// Wraps to a narrower type.
__device__ __forceinline__ void store_int(int dtype, void *p, int64_t i, int64_t v) {
    switch (dtype) {
    case KM_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case KM_I64: ((int64_t *)p)[i] = v; break;
    case KM_I8: ((int8_t *)p)[i] = (int8_t)v; break;
    case KM_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    default: ((uint8_t *)p)[i] = v != 0; break;
    }
}

__device__ __forceinline__ double load_float(int dtype, const void *p, int64_t i) {
    switch (dtype) {
    case KM_F32: return ((const float *)p)[i];
    case KM_F16: return to_f32(((const f16 *)p)[i]);
    case KM_BF16: return to_f32(((const bf16 *)p)[i]);
    default: return ((const double *)p)[i];
    }
}

__device__ __forceinline__ void store_float(int dtype, void *p, int64_t i, double v) {
    switch (dtype) {
    case KM_F32: ((float *)p)[i] = (float)v; break;
    case KM_F16: ((f16 *)p)[i] = from_f64<f16>(v); break;
    case KM_BF16: ((bf16 *)p)[i] = from_f64<bf16>(v); break;
    default: ((double *)p)[i] = v; break;
    }
}

// A float to an integer dtype: truncates and saturates; NaN gives 0; to bool it is v != 0.
__device__ __forceinline__ int64_t to_int(int dtype, double v) {
    if (dtype == KM_BOOL) return v != 0;
    if (v != v) return 0;
    double lo = dtype == KM_I32  ? -0x1p31
                : dtype == KM_I8 ? -128.0
                : dtype == KM_U8 ? 0.0
                                 : -0x1p63;
    double hi = dtype == KM_I32  ? 0x1p31 - 1
                : dtype == KM_I8 ? 127.0
                : dtype == KM_U8 ? 255.0
                                 : 0x1p63;
    if (v <= lo) return dtype == KM_I64 ? INT64_MIN : (int64_t)lo;
    if (v >= hi) return dtype == KM_I64 ? INT64_MAX : (int64_t)hi;
    return (int64_t)v;
}

// An int64 as a double that rounds to a narrower float as the integer itself would: bits that do
// not fit are folded into the lowest one kept.
__device__ __forceinline__ double sticky_double(int64_t v) {
    const int64_t low = 0x7ff;
    if (v > -(INT64_C(1) << 53) && v < INT64_C(1) << 53) return (double)v;
    return (double)((v & ~low) | (v & low ? low + 1 : 0));
}

// Any number into any dtype.
__device__ __forceinline__ void store_number(int dtype, void *p, int64_t i, double v) {
    if (is_float(dtype))
        store_float(dtype, p, i, v);
    else
        store_int(dtype, p, i, to_int(dtype, v));
}

#endif
