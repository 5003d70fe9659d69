// What products with weights in registers share (quant_regs.cuh, plain_regs.cu): which layer a block
// works on, how steps of x come, and what becomes of the sums.
#ifndef KM_CUDA_REGS_COMMON_CUH
#define KM_CUDA_REGS_COMMON_CUH
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/quant/quant_tile_args.h"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int THREADS = KM_REGS_THREADS;

// The layer of this block, and which of the call's it is.
template <bool GATED>
__device__ __forceinline__ km_tile_more layer_of_block(const km_tile_args &a, int &which) {
    km_tile_more layer = {a.w, a.bias, a.out, a.n, 0};
    which = 0;
    if constexpr (!GATED)
        for (int i = 1; i < a.layers && (int)blockIdx.y >= a.more[i - 1].first; i++)
            layer = a.more[i - 1], which = i;
    return layer;
}

// Stages of a ring that thread 0 has filled by the copy engine: barriers `full` and `empty`.
template <int STAGES> struct Filled {
    uint32_t full, empty;
    __device__ __forceinline__ void begin(uint64_t *bars) {
        full = smem_addr(bars), empty = full + 8 * STAGES;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                mbar_init(full + 8 * i, 1);
                mbar_init(empty + 8 * i, THREADS / 32);
            }
            mbar_init_fence();
        }
    }
    // `bytes` of x into `to` of stage i. One thread.
    __device__ __forceinline__ void ask(int i, uint32_t to, const uint8_t *x, int bytes) const {
        mbar_expect(full + 8 * i, bytes);
        bulk_load(to, x, bytes, full + 8 * i);
    }
    // Waits until stage i is empty for the time of this parity.
    __device__ __forceinline__ void room(int i, uint32_t parity) const {
        mbar_wait(empty + 8 * i, parity);
    }
    // This warp has read stage i. One lane.
    __device__ __forceinline__ void release(int i) const { mbar_arrive(empty + 8 * i); }
};

// From the sums of a tile, (128 rows of weights, N tokens), to memory; FACTOR: that of the weights. They go
// as rows of tokens through shared memory, whence blocks that share a tile along k add them up, in order,
// each some of the tokens, and whole rows are written. Nobody leaves while others of its cluster read.
template <int N, bool GATED>
__device__ __forceinline__ void finish_tile(const km_tile_args &a, const km_tile_more &layer,
                                            float (&sum)[N / 2], uint8_t *shared, float factor) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int splits = gridDim.z, tile = blockIdx.y - layer.first;
    constexpr int ROWS = KM_REGS_ROWS, STRIDE = ROWS + 4; // no bank conflicts
    float *mine = reinterpret_cast<float *>(shared);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int at = GATED ? e / 2 * (ROWS / 2) + warp * 8 + g : warp * 16 + e / 2 * 8 + g;
            mine[(8 * j + 2 * t + e % 2) * STRIDE + at] = sum[4 * j + e];
        }
    if (splits > 1)
        cluster_sync();
    else
        __syncthreads();
    constexpr int COLS = GATED ? ROWS / 2 : ROWS, FOURS = COLS / 4;
    int token0 = N * blockIdx.z / splits, tokens = N * (blockIdx.z + 1) / splits - token0;
    int col0 = tile * COLS;
    uint32_t here = smem_addr(mine);
    auto total = [&](int token, int col) {
        uint32_t at = here + (uint32_t)(token * STRIDE + col) * 4;
        if (splits == 1) return *reinterpret_cast<const float4 *>(mine + token * STRIDE + col);
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int z = 0; z < splits; z++) {
            float4 f = far_four(in_block(at, z));
            v.x += f.x, v.y += f.y, v.z += f.z, v.w += f.w;
        }
        return v;
    };
#pragma unroll 4
    for (int i = threadIdx.x; i < tokens * FOURS; i += THREADS) {
        int within = token0 + i / FOURS, c = i % FOURS * 4;
        int token = blockIdx.x * N + within, col = col0 + c;
        if (token >= a.m || col >= layer.n) continue;
        float scale = __ldg(a.scale + token) * factor;
        float4 f = total(within, c);
        float v[4] = {f.x * scale, f.y * scale, f.z * scale, f.w * scale};
        if (layer.bias)
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] += col + e < layer.n ? __ldg(layer.bias + col + e) : 0;
        gemm_act<float>(a.act, v);
        if (GATED) {
            float4 u = total(within, COLS + c);
            v[0] *= u.x * scale, v[1] *= u.y * scale, v[2] *= u.z * scale, v[3] *= u.w * scale;
        }
        float *out = layer.out + (int64_t)token * layer.n + col;
        if (layer.n % 4 == 0)
            *reinterpret_cast<float4 *>(out) = make_float4(v[0], v[1], v[2], v[3]);
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (col + e < layer.n) out[e] = v[e];
    }
    if (splits > 1) cluster_sync();
}

#endif
