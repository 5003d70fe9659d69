// Fills: one value, counting, random numbers. Element i of a random fill takes word i%4 of Philox
// block i/4 (base/rng.h); a thread makes the four elements of one block.
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/integers.cuh"

// 16 bytes a thread, four times.
KM_KERNEL fill_bytes(const __grid_constant__ km_fill_args p) {
    ulonglong2 v = make_ulonglong2(p.pattern[0], p.pattern[1]);
    int64_t vectors = p.bytes / 16, first = (int64_t)blockIdx.x * blockDim.x * 4 + threadIdx.x;
    wait_for_previous();
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int64_t i = first + u * (int)blockDim.x;
        if (i < vectors) ((ulonglong2 *)p.out)[i] = v;
    }
    int64_t rest = vectors * 16 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.bytes)
        ((uint8_t *)p.out)[rest] = (uint8_t)(p.pattern[threadIdx.x / 8] >> (threadIdx.x % 8 * 8));
}

// Any strides: i0 holds the value's bits.
#define FILL_WALK(T, size)                                                                         \
    KM_KERNEL fill_walk_##size(const __grid_constant__ km_walk_args p) {                           \
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                                        \
        if (i >= p.walk.count) return;                                                             \
        int64_t at[1];                                                                             \
        walk_offsets(p.walk, i, at);                                                               \
        wait_for_previous();                                                                       \
        ((T *)p.out)[at[0]] = (T)p.i0;                                                             \
    }
FILL_WALK(uint8_t, 1)
FILL_WALK(uint16_t, 2)
FILL_WALK(uint32_t, 4)
FILL_WALK(uint64_t, 8)

KM_KERNEL arange(const __grid_constant__ km_arange_args p) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < p.n) store_number(p.dtype, p.out, i, p.start + (double)i * p.step);
}

// What a graph's replay adds to the streams and seeds of its random ops (graph.h).
KM_KERNEL set_words(uint64_t *words, uint64_t streams, uint64_t seeds) {
    wait_for_previous();
    words[0] = streams;
    words[1] = seeds;
}

// ---- Random numbers ----

__device__ __forceinline__ uint4 draw(const km_random_args &p, int64_t block) {
    uint64_t seed = p.seed, stream = p.stream;
    wait_for_previous();
    if (p.draws) {
        stream += p.draws[0];
        seed += p.draws[1];
    }
    return philox(seed, stream, (uint64_t)block);
}

template <class T>
__device__ __forceinline__ void store_four(const km_random_args &p, int64_t first, const T v[4]) {
    struct alignas(4 * sizeof(T)) Four {
        T v[4];
    };
    T *out = (T *)p.out + first;
    if (p.aligned && first + 4 <= p.n) {
        *(Four *)out = {v[0], v[1], v[2], v[3]};
    } else {
        for (int k = 0; k < 4 && first + k < p.n; k++) out[k] = v[k];
    }
}

// lo + (hi - lo) * u, in double as the reference does it: the same bits.
template <class T> __device__ __forceinline__ void uniform(const km_random_args &p) {
    int64_t block = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (block * 4 >= p.n) return;
    uint4 r = draw(p, block);
    const uint32_t word[4] = {r.x, r.y, r.z, r.w};
    T v[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        v[k] = from_f64<T>(p.f0 + (p.f1 - p.f0) * ((double)(word[k] >> 8) * 0x1p-24));
    store_four(p, block * 4, v);
}

// Box-Muller on two pairs of words; sincospi takes the angle without a rounded pi.
template <class T> __device__ __forceinline__ void normal(const km_random_args &p) {
    int64_t block = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (block * 4 >= p.n) return;
    uint4 r = draw(p, block);
    const uint32_t word[4] = {r.x, r.y, r.z, r.w};
    float mean = (float)p.f0, sd = (float)p.f1;
    T v[4];
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        float u = (float)((word[k] >> 8) + 1) * 0x1p-24f,
              angle = (float)(word[k + 1] >> 8) * 0x1p-23f;
        float radius = sqrtf(-2.0f * logf(u)), s, c;
        sincospif(angle, &s, &c);
        v[k] = from_f32<T>(fmaf(sd, radius * c, mean));
        v[k + 1] = from_f32<T>(fmaf(sd, radius * s, mean));
    }
    store_four(p, block * 4, v);
}

#define RANDOM(T, type)                                                                            \
    KM_KERNEL uniform_##type(const __grid_constant__ km_random_args p) { uniform<T>(p); }          \
    KM_KERNEL normal_##type(const __grid_constant__ km_random_args p) { normal<T>(p); }
KM_EACH_FLOAT(RANDOM)
