// The shape of a memory-bound kernel over contiguous arrays: each thread loads several 16-byte
// vectors of every operand before it uses the first, then stores. Loads and stores are coalesced;
// a block covers unroll * blockDim.x vectors. What does not fill a vector is done by the last
// block, element by element.
#ifndef KM_CUDA_MAP_CUH
#define KM_CUDA_MAP_CUH
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/common.cuh"

// out[i] = op(a[i])
template <class T, int U, class Op>
__device__ __forceinline__ void map1(const km_map_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    const T *a = (const T *)p.a;
    T *out = (T *)p.out;
    int64_t vectors = p.n / N, first = (int64_t)blockIdx.x * blockDim.x * U + threadIdx.x;
    Vec<T> x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * (int)blockDim.x;
        if (i < vectors) x[u] = load_vec(a + i * N);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * (int)blockDim.x;
        if (i >= vectors) continue;
#pragma unroll
        for (int k = 0; k < N; k++) x[u].v[k] = from_f32<T>(op(to_f32(x[u].v[k])));
        store_vec(out + i * N, x[u]);
    }
    int64_t rest = vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n) out[rest] = from_f32<T>(op(to_f32(a[rest])));
}

// out[i] = op(a[i], b[i])
template <class T, int U, class Op>
__device__ __forceinline__ void map2(const km_map_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    const T *a = (const T *)p.a, *b = (const T *)p.b;
    T *out = (T *)p.out;
    int64_t vectors = p.n / N, first = (int64_t)blockIdx.x * blockDim.x * U + threadIdx.x;
    Vec<T> x[U], y[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * (int)blockDim.x;
        if (i < vectors) {
            x[u] = load_vec(a + i * N);
            y[u] = load_vec(b + i * N);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * (int)blockDim.x;
        if (i >= vectors) continue;
#pragma unroll
        for (int k = 0; k < N; k++)
            x[u].v[k] = from_f32<T>(op(to_f32(x[u].v[k]), to_f32(y[u].v[k])));
        store_vec(out + i * N, x[u]);
    }
    int64_t rest = vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n)
        out[rest] = from_f32<T>(op(to_f32(a[rest]), to_f32(b[rest])));
}

#endif
