// The shape of a memory-bound kernel over contiguous arrays: each thread loads one 16-byte vector of
// every operand and stores one; the many threads of a multiprocessor keep enough loads in flight
// (more vectors to a thread were slower on an H200, at every size). What does not fill a vector is
// done by the last block, element by element.
#ifndef KM_CUDA_MAP_CUH
#define KM_CUDA_MAP_CUH
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/common.cuh"

// out[i] = op(a[i])
template <class T, class Op> __device__ __forceinline__ void map1(const km_map_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    const T *a = (const T *)p.a;
    T *out = (T *)p.out;
    int64_t vectors = p.n / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < vectors) {
        Vec<T> x = load_vec(a + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) x.v[k] = from_f32<T>(op(to_f32(x.v[k])));
        store_vec(out + i * N, x);
    }
    int64_t rest = vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n) out[rest] = from_f32<T>(op(to_f32(a[rest])));
}

// out[i] = op(a[i], b[i])
template <class T, class Op> __device__ __forceinline__ void map2(const km_map_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    const T *a = (const T *)p.a, *b = (const T *)p.b;
    T *out = (T *)p.out;
    int64_t vectors = p.n / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < vectors) {
        Vec<T> x = load_vec(a + i * N), y = load_vec(b + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) x.v[k] = from_f32<T>(op(to_f32(x.v[k]), to_f32(y.v[k])));
        store_vec(out + i * N, x);
    }
    int64_t rest = vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n)
        out[rest] = from_f32<T>(op(to_f32(a[rest]), to_f32(b[rest])));
}

// out[i] = op(a[i], b[i]), bytes
template <class T, class Op>
__device__ __forceinline__ void map2_bool(const km_map_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    struct alignas(N) Bytes {
        uint8_t v[N];
    };
    const T *a = (const T *)p.a, *b = (const T *)p.b;
    uint8_t *out = (uint8_t *)p.out;
    int64_t vectors = p.n / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < vectors) {
        Vec<T> x = load_vec(a + i * N), y = load_vec(b + i * N);
        Bytes r;
#pragma unroll
        for (int k = 0; k < N; k++) r.v[k] = op(to_f32(x.v[k]), to_f32(y.v[k]));
        ((Bytes *)out)[i] = r;
    }
    int64_t rest = vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n) out[rest] = op(to_f32(a[rest]), to_f32(b[rest]));
}

#endif
