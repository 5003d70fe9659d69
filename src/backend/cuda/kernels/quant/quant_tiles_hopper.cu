// km-arch: 90a
// Many rows of x against 16-bit weights, with Hopper's warpgroup products (those of a few bits are in
// quant_regs.cuh).
//
// Floor: 2 m n k operations at the rate of f16 products. A block of two warpgroups makes a tile of
// 128 x 128: products of a step run from shared memory while the same threads bring the weights of
// the next and have x copied; two blocks share a multiprocessor. Where there are too few tiles to
// fill the chip, blocks share a tile along k, and the last of them adds up, in order.
#include "backend/cuda/kernels/quant/quant_tile.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int X_STAGES = 4, W_STAGES = 3;
static_assert(X_STAGES * X_BYTES + W_STAGES * W_BYTES == KM_TILE_HOPPER_SHARED, "as the host asks");

template <class W, bool GATED>
__device__ __forceinline__ void tiles(const km_tile_args &a, W &weights, int row_in_tile) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ bool last;
    uint8_t *tiles_w = shared + X_STAGES * X_BYTES;
    uint32_t tiles_x = smem_addr(shared), at_w = smem_addr(tiles_w);
    int row0 = blockIdx.x * SIDE, half = threadIdx.x / SIDE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / 128;
    int all = a.k / DEPTH, splits = gridDim.z;
    int s0 = (int)((int64_t)all * blockIdx.z / splits);
    int s1 = (int)((int64_t)all * (blockIdx.z + 1) / splits);
    const f16 *x = (const f16 *)a.x;
    auto load_x = [&](int s) {
        if (s < s1) {
#pragma unroll
            for (int i = 0; i < SIDE * DEPTH / 8 / THREADS; i++) {
                int c = threadIdx.x + i * THREADS, row = c / 8, chunk = c % 8;
                bool valid = row0 + row < a.m;
                const f16 *from =
                    x + (int64_t)(valid ? row0 + row : 0) * a.k + s * DEPTH + chunk * 8;
                cp_async_16(tiles_x + s % X_STAGES * X_BYTES + swizzle<8>(row, chunk), from, valid);
            }
        }
        cp_async_commit();
    };
    float sum[64];
    weights.fetch(s0, half);
    wait_for_previous();
    load_x(s0);
    load_x(s0 + 1);
    if (!weights.there) // rows beyond the edge are zeros in all tiles
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < W_STAGES; t++)
                *reinterpret_cast<uint4 *>(tiles_w + t * W_BYTES +
                                           swizzle<8>(row_in_tile, half * 4 + i)) =
                    make_uint4(0, 0, 0, 0);
    weights.put(tiles_w + s0 % W_STAGES * W_BYTES, row_in_tile, s0, half);
    if (s0 + 1 < s1) weights.fetch(s0 + 1, half);
    for (int s = s0; s < s1; s++) {
        cp_async_wait<1>();
        fence_async_proxy();
        __syncthreads();
        uint32_t tile_x = tiles_x + s % X_STAGES * X_BYTES + group * 64 * 128;
        uint32_t tile_w = at_w + s % W_STAGES * W_BYTES;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
            wgmma_ss<f16, 128, 0, 0>(sum, wgmma_desc_k(tile_x + 32 * k),
                                     wgmma_desc_k(tile_w + 32 * k), s > s0 || k > 0);
        wgmma_commit();
        load_x(s + 2);
        if (s + 1 < s1) {
            weights.put(tiles_w + (s + 1) % W_STAGES * W_BYTES, row_in_tile, s + 1, half);
            if (s + 2 < s1) weights.fetch(s + 2, half);
        }
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    hold(sum);
    cp_async_wait<0>();

    if (splits > 1) {
        int tile = blockIdx.y * gridDim.x + blockIdx.x;
        float4 *mine = reinterpret_cast<float4 *>(a.partial) +
                       ((int64_t)tile * splits + blockIdx.z) * 16 * THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 16; i++)
            __stcg(mine + i * THREADS,
                   make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(&a.counters[tile], 1) == (uint32_t)splits - 1;
            if (last) a.counters[tile] = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
        const float4 *parts = reinterpret_cast<const float4 *>(a.partial) +
                              (int64_t)tile * splits * 16 * THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float4 v = __ldcg(parts + i * THREADS);
            for (int z = 1; z < splits; z++) {
                float4 more = __ldcg(parts + (int64_t)z * 16 * THREADS + i * THREADS);
                v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
            }
            sum[4 * i] = v.x, sum[4 * i + 1] = v.y, sum[4 * i + 2] = v.z, sum[4 * i + 3] = v.w;
        }
    }

    int g = lane / 4, t = lane % 4;
    constexpr int PIECES = GATED ? 8 : 16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = row0 + group * 64 + warp % 4 * 16 + 8 * h + g;
        if (row >= a.m) continue;
        float scale = a.scale[row];
        float *out = a.out + (int64_t)row * a.n;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int piece = GATED ? 2 * p : p; // gated: pieces of 8 gates and 8 ups take turns
            int col = blockIdx.y * (GATED ? SIDE / 2 : SIDE) + 8 * p + 2 * t;
            float v[2] = {sum[4 * piece + 2 * h] * scale, sum[4 * piece + 2 * h + 1] * scale};
            if (a.bias) {
                v[0] += col < a.n ? a.bias[col] : 0;
                v[1] += col + 1 < a.n ? a.bias[col + 1] : 0;
            }
            gemm_act<float>(a.act, v);
            if constexpr (GATED) {
                v[0] *= sum[4 * piece + 4 + 2 * h] * scale;
                v[1] *= sum[4 * piece + 4 + 2 * h + 1] * scale;
            }
            if (col + 1 < a.n && a.n % 2 == 0)
                *reinterpret_cast<float2 *>(out + col) = make_float2(v[0], v[1]);
            else {
                if (col < a.n) out[col] = v[0];
                if (col + 1 < a.n) out[col + 1] = v[1];
            }
        }
    }
}

EACH_PLAIN_TILE_KERNEL(tiles)
