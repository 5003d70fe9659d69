// Many rows of x against weights of a few bits, on tensor cores: prompts and batches.
//
// Floor: 2 m n k operations at the rate of f16 products; the packed weights once for every 128 rows
// of x. No decoded copy of the weights exists but a tile of 128 x 64 in shared memory: a thread
// unpacks half a unit of one row into it while the products of the step before are under way (two
// blocks share a multiprocessor). x was rounded to f16, each row with a scale of its own, a power of
// two; weights are taken 2^8 times, so that scales stay in f16's normal range.
#include "backend/cuda/kernels/gemm_common.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/quant.cuh"
#include "backend/cuda/kernels/quant_tile_args.h"

constexpr int SIDE = KM_TILE_SIDE, DEPTH = 64, THREADS = KM_TILE_THREADS, STAGES = 3;
constexpr int X_BYTES = SIDE * DEPTH * 2, W_BYTES = SIDE * DEPTH * 2;
static_assert(STAGES * X_BYTES + 2 * W_BYTES == KM_TILE_SHARED, "as the host asks for");

// ---- x as f16, a block to a row ----

extern "C" __global__ void __launch_bounds__(256)
    quant_round(const __grid_constant__ km_round_args a) {
    __shared__ float part[8];
    const float *x = a.x + (int64_t)blockIdx.x * a.k;
    f16 *out = (f16 *)a.out + (int64_t)blockIdx.x * a.k;
    wait_for_previous();
    float most = 0;
    for (int p = threadIdx.x * 4; p < a.k; p += 1024) {
        float4 v = *reinterpret_cast<const float4 *>(x + p);
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, part[i]);
    int e = 0;
    frexpf(most, &e); // most < 2^e
    float scale = most > 0 ? exp2f((float)(e - 10)) : 1, inverse = 1 / scale;
    for (int p = threadIdx.x * 4; p < a.k; p += 1024) {
        float4 v = *reinterpret_cast<const float4 *>(x + p);
        uint2 h = make_uint2(pack2<f16>(v.x * inverse, v.y * inverse),
                             pack2<f16>(v.z * inverse, v.w * inverse));
        *reinterpret_cast<uint2 *>(out + p) = h;
    }
    if (threadIdx.x == 0) a.scale[blockIdx.x] = scale * (1.0f / 256);
}

// ---- Weights into a tile ----

// A run of 16, 2^8 times, as f16 at (row, element at) of the tile.
__device__ __forceinline__ void put_run(uint8_t *tile, int row, int at, const uint32_t (&q)[4],
                                        float d, float m) {
    const __half2 bias = __float2half2_rn(1152.0f); // 1024 + 128
    __half2 d2 = __float2half2_rn(d * 256), m2 = __float2half2_rn(-m * 256);
    uint32_t h[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v = q[i] ^ 0x80808080u; // int8 as 0 to 255
        uint32_t low = __byte_perm(v, 0x64646464u, 0x4140), high = __byte_perm(v, 0x64646464u, 0x4342);
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
    km_quant_matrix w;
    int64_t first; // unit with which the row begins
    bool there;
    __device__ __forceinline__ void fetch(int s, int half) {
        if (there) raw.fetch(w, first + (Quant<TYPE>::APART ? s / 2 * 2 + half : s));
    }
    __device__ __forceinline__ void put(uint8_t *tile, int row, int s, int half) const {
        if (!there) return;
        if (half == 0) put_half<TYPE, 0>(raw, tile, row, s);
        else put_half<TYPE, 1>(raw, tile, row, s);
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

// ---- Products: grid (tiles of rows of x, tiles of weights) ----

template <class W, bool GATED>
__device__ __forceinline__ void tiles(const km_tile_args &a, W &weights, int row_in_tile) {
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *tiles_w = shared + STAGES * X_BYTES;
    uint32_t tiles_x = smem_addr(shared), at_w = smem_addr(tiles_w);
    int row0 = blockIdx.x * SIDE, half = threadIdx.x / SIDE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int my_row = warp / 4 * 64, my_col = warp % 4 * 32;
    int steps = a.k / DEPTH;
    const f16 *x = (const f16 *)a.x;
    auto load_x = [&](int s) {
#pragma unroll
        for (int i = 0; i < SIDE * DEPTH / 8 / THREADS; i++) {
            int c = threadIdx.x + i * THREADS, row = c / 8, chunk = c % 8;
            bool valid = row0 + row < a.m;
            const f16 *from = x + (int64_t)(valid ? row0 + row : 0) * a.k + s * DEPTH + chunk * 8;
            cp_async_16(tiles_x + s % STAGES * X_BYTES + swizzle<8>(row, chunk), from, valid);
        }
    };
    float sum[4][4][4] = {};
    weights.fetch(0, half);
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load_x(s);
        cp_async_commit();
    }
    if (!weights.there) // rows beyond the edge are zeros in both tiles
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < 2; t++)
                *reinterpret_cast<uint4 *>(tiles_w + t * W_BYTES +
                                           swizzle<8>(row_in_tile, half * 4 + i)) =
                    make_uint4(0, 0, 0, 0);
    weights.put(tiles_w, row_in_tile, 0, half);
    if (steps > 1) weights.fetch(1, half);
    for (int s = 0; s < steps; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < steps) load_x(s + STAGES - 1);
        cp_async_commit();
        uint32_t tile_x = tiles_x + s % STAGES * X_BYTES, tile_w = at_w + s % 2 * W_BYTES;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t fx[4][4], fw[2][4];
            int i = lane / 8, within = lane % 8;
#pragma unroll
            for (int m = 0; m < 4; m++)
                ldmatrix_x4(fx[m], tile_x + swizzle<8>(my_row + 16 * m + i % 2 * 8 + within,
                                                       k / 8 + i / 2));
#pragma unroll
            for (int n = 0; n < 2; n++)
                ldmatrix_x4(fw[n], tile_w + swizzle<8>(my_col + 16 * n + i / 2 * 8 + within,
                                                       k / 8 + i % 2));
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    mma_m16n8k16<f16>(sum[m][n], fx[m], fw[n / 2][n % 2 * 2],
                                      fw[n / 2][n % 2 * 2 + 1]);
            if (k == 16 && s + 1 < steps) { // the next tile, between products
                weights.put(tiles_w + (s + 1) % 2 * W_BYTES, row_in_tile, s + 1, half);
                if (s + 2 < steps) weights.fetch(s + 2, half);
            }
        }
    }
    cp_async_wait<0>();

    int g = lane / 4, t = lane % 4;
    constexpr int PIECES = GATED ? 2 : 4;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + my_row + 16 * m + 8 * h + g;
            if (row >= a.m) continue;
            float scale = a.scale[row];
            float *out = a.out + (int64_t)row * a.n;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                int piece = GATED ? 2 * p : p;
                // gated: pieces of 8 gates and 8 ups take turns
                int col = GATED ? blockIdx.y * (SIDE / 2) + my_col / 2 + 8 * p + 2 * t
                                : blockIdx.y * SIDE + my_col + 8 * p + 2 * t;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (col + e >= a.n) continue;
                    float v[1] = {sum[m][piece][2 * h + e] * scale};
                    if (a.bias) v[0] += a.bias[col + e];
                    gemm_act<float>(a.act, v);
                    if constexpr (GATED) v[0] *= sum[m][piece + 1][2 * h + e] * scale;
                    out[col + e] = v[0];
                }
            }
        }
}

// Which row of which matrix this thread's tile row is.
template <bool GATED>
__device__ __forceinline__ int source_row(int row_in_tile, bool &second) {
    second = GATED && row_in_tile / 8 % 2;
    return GATED ? blockIdx.y * (SIDE / 2) + row_in_tile / 16 * 8 + row_in_tile % 8
                 : blockIdx.y * SIDE + row_in_tile;
}

template <int TYPE, bool GATED> __device__ __forceinline__ void packed_tiles(const km_tile_args &a) {
    int row_in_tile = threadIdx.x % SIDE;
    bool second;
    int row = source_row<GATED>(row_in_tile, second);
    Packed<TYPE> w;
    w.w = second ? a.up : a.w;
    w.there = row < a.n;
    w.first = (int64_t)row * (a.k / KM_QUANT_UNIT);
    tiles<Packed<TYPE>, GATED>(a, w, row_in_tile);
}

template <class T, bool GATED> __device__ __forceinline__ void plain_tiles(const km_tile_args &a) {
    int row_in_tile = threadIdx.x % SIDE;
    bool second;
    int row = source_row<GATED>(row_in_tile, second);
    Plain<T> w;
    w.there = row < a.n;
    w.w = reinterpret_cast<const T *>(second ? a.up.planes : a.w.planes) + (int64_t)row * a.k;
    tiles<Plain<T>, GATED>(a, w, row_in_tile);
}

#define TILE_KERNEL(name, body)                                                                    \
    extern "C" __global__ void __launch_bounds__(KM_TILE_THREADS, 2)                               \
        name(const __grid_constant__ km_tile_args a) {                                             \
        body(a);                                                                                   \
    }
#define TILES(TYPE, ...)                                                                           \
    TILE_KERNEL(tiles_##TYPE, (packed_tiles<KM_QUANT_##TYPE, false>))                              \
    TILE_KERNEL(tiles_gated_##TYPE, (packed_tiles<KM_QUANT_##TYPE, true>))
KM_QUANT_PLANES(TILES)
TILE_KERNEL(tiles_F16, (plain_tiles<f16, false>))
TILE_KERNEL(tiles_gated_F16, (plain_tiles<f16, true>))
TILE_KERNEL(tiles_BF16, (plain_tiles<bf16, false>))
TILE_KERNEL(tiles_gated_BF16, (plain_tiles<bf16, true>))
