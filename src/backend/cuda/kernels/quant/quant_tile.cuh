// Weights of a few bits unpacked into a tile of f16 in shared memory: 128 rows of 64 elements,
// swizzled as ldmatrix and wgmma like it. Two threads share a row. Weights are taken 2^8 times, so
// that their scales stay in f16's normal range.
#ifndef KM_CUDA_QUANT_TILE_CUH
#define KM_CUDA_QUANT_TILE_CUH
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/quant/quant.cuh"
#include "backend/cuda/kernels/quant/quant_tile_args.h"

constexpr int SIDE = KM_TILE_SIDE, DEPTH = 64, THREADS = KM_TILE_THREADS;
constexpr int X_BYTES = SIDE * DEPTH * 2, W_BYTES = SIDE * DEPTH * 2;

// A run of 16, 2^8 times, as f16 at (row, element at) of the tile.
__device__ __forceinline__ void put_run(uint8_t *tile, int row, int at, const uint32_t (&q)[4],
                                        float d, float m) {
    const __half2 bias = __float2half2_rn(1152.0f); // 1024 + 128
    __half2 d2 = __float2half2_rn(d * 256), m2 = __float2half2_rn(-m * 256);
    uint32_t h[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v = q[i] ^ 0x80808080u; // int8 as 0 to 255
        uint32_t low = __byte_perm(v, 0x64646464u, 0x4140),
                 high = __byte_perm(v, 0x64646464u, 0x4342);
        __half2 a, b;
        memcpy(&a, &low, 4);
        memcpy(&b, &high, 4);
        a = __hfma2(__hsub2(a, bias), d2, m2);
        b = __hfma2(__hsub2(b, bias), d2, m2);
        memcpy(&h[2 * i], &a, 4);
        memcpy(&h[2 * i + 1], &b, 4);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        *reinterpret_cast<uint4 *>(tile + swizzle<DEPTH / 8>(row, at / 8 + i)) =
            make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
}

// This thread's half unit of step `s`: of two threads to a row, the HALFth.
template <int TYPE, int HALF>
__device__ __forceinline__ void put_half(const Quant<TYPE> &raw, uint8_t *tile, int row, int s) {
    Runs w;
    raw.unpack(w);
    if constexpr (Quant<TYPE>::APART) { // a step is two runs of both units of a half block
        if (s % 2 == 0) {
            put_run(tile, row, HALF * 16, w.q[0], w.d[0], w.m[0]);
            put_run(tile, row, HALF * 16 + 32, w.q[1], w.d[1], w.m[1]);
        } else {
            put_run(tile, row, HALF * 16, w.q[2], w.d[2], w.m[2]);
            put_run(tile, row, HALF * 16 + 32, w.q[3], w.d[3], w.m[3]);
        }
    } else {
        put_run(tile, row, HALF * 32, w.q[2 * HALF], w.d[2 * HALF], w.m[2 * HALF]);
        put_run(tile, row, HALF * 32 + 16, w.q[2 * HALF + 1], w.d[2 * HALF + 1], w.m[2 * HALF + 1]);
    }
}

template <int TYPE> struct Packed {
    Quant<TYPE> raw;
    Fields w;
    uint32_t first; // unit with which the row begins
    bool there;
    __device__ __forceinline__ void fetch(int s, int half) {
        Direct direct;
        if (there) raw.fetch(direct, w, first + (Quant<TYPE>::APART ? s / 2 * 2 + half : s));
    }
    __device__ __forceinline__ void put(uint8_t *tile, int row, int s, int half) const {
        if (!there) return;
        if (half == 0)
            put_half<TYPE, 0>(raw, tile, row, s);
        else
            put_half<TYPE, 1>(raw, tile, row, s);
    }
};

// Weights of 16 bits: no unpacking, but the same factor.
template <class T> struct Plain {
    uint4 raw[4];
    const T *w; // the row
    bool there;
    __device__ __forceinline__ void fetch(int s, int half) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (there) raw[i] = __ldg(reinterpret_cast<const uint4 *>(w + s * 64 + half * 32) + i);
    }
    __device__ __forceinline__ void put(uint8_t *tile, int row, int, int half) const {
        if (!there) return;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T v[8];
            uint32_t h[4];
            memcpy(v, &raw[i], 16);
#pragma unroll
            for (int k = 0; k < 4; k++)
                h[k] = pack2<f16>(256 * to_f32(v[2 * k]), 256 * to_f32(v[2 * k + 1]));
            *reinterpret_cast<uint4 *>(tile + swizzle<DEPTH / 8>(row, half * 4 + i)) =
                make_uint4(h[0], h[1], h[2], h[3]);
        }
    }
};

// Which row of which matrix this thread's tile row is.
template <bool GATED> __device__ __forceinline__ int source_row(int row_in_tile, bool &second) {
    second = GATED && row_in_tile / 8 % 2;
    return GATED ? blockIdx.y * (SIDE / 2) + row_in_tile / 16 * 8 + row_in_tile % 8
                 : blockIdx.y * SIDE + row_in_tile;
}

template <class BODY, int TYPE, bool GATED>
__device__ __forceinline__ void packed_tiles(const km_tile_args &a) {
    int row_in_tile = threadIdx.x % SIDE;
    bool second;
    int row = source_row<GATED>(row_in_tile, second);
    Packed<TYPE> w;
    w.w = fields_of<TYPE>(second ? a.up : a.w);
    w.there = row < a.n;
    w.first = (uint32_t)row * (uint32_t)(a.k / KM_QUANT_UNIT);
    BODY::template run<Packed<TYPE>, GATED>(a, w, row_in_tile);
}

template <class BODY, class T, bool GATED>
__device__ __forceinline__ void plain_tiles(const km_tile_args &a) {
    int row_in_tile = threadIdx.x % SIDE;
    bool second;
    int row = source_row<GATED>(row_in_tile, second);
    Plain<T> w;
    w.there = row < a.n;
    w.w = reinterpret_cast<const T *>(second ? a.up.planes : a.w.planes) + (int64_t)row * a.k;
    BODY::template run<Plain<T>, GATED>(a, w, row_in_tile);
}

// The kernels of all types around a body that multiplies tiles: BODY::run<weights, gated>.
#define TILE_KERNEL(name, body)                                                                    \
    extern "C" __global__ void __launch_bounds__(KM_TILE_THREADS, 2)                               \
        name(const __grid_constant__ km_tile_args a) {                                             \
        body(a);                                                                                   \
    }
#define TILE_KERNELS(TYPE, ...)                                                                    \
    TILE_KERNEL(tiles_##TYPE, (packed_tiles<Body, KM_QUANT_##TYPE, false>))                        \
    TILE_KERNEL(tiles_gated_##TYPE, (packed_tiles<Body, KM_QUANT_##TYPE, true>))
#define EACH_TILE_KERNEL(run_)                                                                     \
    struct Body {                                                                                  \
        template <class W, bool GATED>                                                             \
        static __device__ __forceinline__ void run(const km_tile_args &a, W &w, int row) {         \
            run_<W, GATED>(a, w, row);                                                             \
        }                                                                                          \
    };                                                                                             \
    TILE_KERNEL(tiles_F16, (plain_tiles<Body, f16, false>))                                        \
    TILE_KERNEL(tiles_gated_F16, (plain_tiles<Body, f16, true>))                                   \
    TILE_KERNEL(tiles_BF16, (plain_tiles<Body, bf16, false>))                                      \
    TILE_KERNEL(tiles_gated_BF16, (plain_tiles<Body, bf16, true>))                                 \
    KM_QUANT_PLANES(TILE_KERNELS)

#endif
