// Kernels that pick or drop elements: where, masked_fill, triu and tril move elements as bits, by
// their size; dropout scales the survivors.
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/common.cuh"

#define EACH_SIZE(M)                                                                               \
    M(uint8_t, 1)                                                                                  \
    M(uint16_t, 2)                                                                                 \
    M(uint32_t, 4)                                                                                 \
    M(uint64_t, 8)

// a: condition (bytes), b and c: the choices.
#define WHERE(T, size)                                                                             \
    KM_KERNEL where_##size(const __grid_constant__ km_walk_args p) {                               \
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                                        \
        if (i >= p.walk.count) return;                                                             \
        int64_t at[4];                                                                             \
        walk_offsets(p.walk, i, at);                                                               \
        wait_for_previous();                                                                       \
        bool yes = ((const uint8_t *)p.a)[at[1]] != 0;                                             \
        ((T *)p.out)[at[0]] = yes ? ((const T *)p.b)[at[2]] : ((const T *)p.c)[at[3]];             \
    }
EACH_SIZE(WHERE)

// a: x, b: mask (bytes), i0: the value's bits.
#define MASKED_FILL(T, size)                                                                       \
    KM_KERNEL masked_fill_##size(const __grid_constant__ km_walk_args p) {                         \
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                                        \
        if (i >= p.walk.count) return;                                                             \
        int64_t at[3];                                                                             \
        walk_offsets(p.walk, i, at);                                                               \
        wait_for_previous();                                                                       \
        bool yes = ((const uint8_t *)p.b)[at[2]] != 0;                                             \
        ((T *)p.out)[at[0]] = yes ? (T)p.i0 : ((const T *)p.a)[at[1]];                             \
    }
EACH_SIZE(MASKED_FILL)

// The walk is over x's own axes (..., r, c); out is contiguous. i0: diagonal, op: 1 for triu.
#define TRIANGLE(T, size)                                                                          \
    KM_KERNEL triangle_##size(const __grid_constant__ km_walk_args p) {                            \
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                                        \
        if (i >= p.walk.count) return;                                                             \
        int64_t at[2];                                                                             \
        walk_offsets(p.walk, i, at);                                                               \
        wait_for_previous();                                                                       \
        int last = p.walk.ndim - 1;                                                                \
        uint32_t q = divide(i, p.walk.dim[last]), c = i - q * p.walk.dim[last].d;                  \
        uint32_t r = q - divide(q, p.walk.dim[last - 1]) * p.walk.dim[last - 1].d;                 \
        int64_t d = (int64_t)c - (int64_t)r;                                                       \
        bool keep = p.op ? d >= p.i0 : d <= p.i0;                                                  \
        ((T *)p.out)[at[0]] = keep ? ((const T *)p.a)[at[1]] : (T)0;                               \
    }
EACH_SIZE(TRIANGLE)

// Element i lives if word i%4 of block i/4, its upper 24 bits, reaches the threshold.
template <class T> __device__ __forceinline__ void dropout(const km_random_args &p) {
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (first >= p.n) return;
    uint64_t seed = p.seed, stream = p.stream;
    wait_for_previous();
    if (p.draws) {
        stream += p.draws[0];
        seed += p.draws[1];
    }
    uint4 r = philox(seed, stream, (uint64_t)first / 4);
    const uint32_t word[4] = {r.x, r.y, r.z, r.w};
    const T *x = (const T *)p.x + first;
    T *out = (T *)p.out + first;
    struct alignas(4 * sizeof(T)) Four {
        T v[4];
    };
    if (p.aligned && first + 4 <= p.n) {
        Four v = *(const Four *)x;
#pragma unroll
        for (int k = 0; k < 4; k++)
            v.v[k] = from_f32<T>(word[k] >> 8 >= p.threshold ? to_f32(v.v[k]) * (float)p.f0 : 0.0f);
        *(Four *)out = v;
    } else {
        for (int k = 0; k < 4 && first + k < p.n; k++)
            out[k] = from_f32<T>(word[k] >> 8 >= p.threshold ? to_f32(x[k]) * (float)p.f0 : 0.0f);
    }
}

#define DROPOUT(T, type)                                                                           \
    KM_KERNEL dropout_##type(const __grid_constant__ km_random_args p) { dropout<T>(p); }
KM_EACH_FLOAT(DROPOUT)
