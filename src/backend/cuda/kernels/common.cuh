// What kernels share: the three float types computed in f32, 16-byte vectors of them, offsets of
// a walk, reductions within a warp and a block, and Philox.
#ifndef KM_CUDA_COMMON_CUH
#define KM_CUDA_COMMON_CUH
#include "backend/cuda/kernels/walk.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __half f16;
typedef __nv_bfloat16 bf16;

#define KM_KERNEL extern "C" __global__ void

// The first thing a kernel does whose record says `waits` (launch.h): it was started while the
// kernel in front of it was still running, so that its blocks are in place when that one ends. Until
// then nothing may be read or written. From here on the next kernel may do the same.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Runs M(type, name) for each float type.
#define KM_EACH_FLOAT(M, ...)                                                                      \
    M(float, f32, ##__VA_ARGS__)                                                                   \
    M(f16, f16, ##__VA_ARGS__)                                                                     \
    M(bf16, bf16, ##__VA_ARGS__)

// ---- One element ----

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }

template <class T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

// One rounding from double.
template <class T> __device__ __forceinline__ T from_f64(double x);
template <> __device__ __forceinline__ float from_f64<float>(double x) { return (float)x; }
template <> __device__ __forceinline__ f16 from_f64<f16>(double x) { return __double2half(x); }
template <> __device__ __forceinline__ bf16 from_f64<bf16>(double x) {
    return __double2bfloat16(x);
}

// ---- 16 bytes at a time ----

template <class T> struct alignas(16) Vec {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <class T> __device__ __forceinline__ Vec<T> load_vec(const T *p) {
    return *reinterpret_cast<const Vec<T> *>(p);
}
template <class T> __device__ __forceinline__ void store_vec(T *p, const Vec<T> &v) {
    *reinterpret_cast<Vec<T> *>(p) = v;
}

// ---- Walks ----

__device__ __forceinline__ uint32_t divide(uint32_t x, const km_divisor &d) {
    return (__umulhi(x, d.mul) + x) >> d.shift;
}

// Offsets, in elements, of element i in the first K operands.
template <int K>
__device__ __forceinline__ void walk_offsets(const km_walk &w, uint32_t i, int64_t (&at)[K]) {
#pragma unroll
    for (int k = 0; k < K; k++) at[k] = 0;
#pragma unroll
    for (int a = KM_WALK_DIMS - 1; a > 0; a--) {
        if (a < w.ndim) {
            uint32_t q = divide(i, w.dim[a]);
            uint32_t r = i - q * w.dim[a].d;
#pragma unroll
            for (int k = 0; k < K; k++) at[k] += r * w.stride[k][a];
            i = q;
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) at[k] += i * w.stride[k][0];
}

// ---- Warps and blocks ----

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float nan_max(float a, float b) { // NaN wins
#if __CUDA_ARCH__ >= 800
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a != a ? a : b != b ? b : fmaxf(a, b);
#endif
}
__device__ __forceinline__ float nan_min(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a != a ? a : b != b ? b : fminf(a, b);
#endif
}
// 1 / x to 1 ulp; a result below the normal range is 0.
__device__ __forceinline__ float quick_rcp(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// 2^x to 2 ulp, denormal results included.
__device__ __forceinline__ float quick_exp2(float x) {
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// log2 x to 2^-22 relative, absolute between 1/2 and 2.
__device__ __forceinline__ float quick_log2(float x) {
    float r;
    asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v = nan_max(v, __shfl_xor_sync(ALL_LANES, v, lane));
    return v;
}

// ---- Philox 4x32-10, as in base/rng.c ----

__device__ __forceinline__ uint4 philox(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

#endif
