// km-arch: 90a
// Several rows of x, tokens, against weights of 16 bits, with Hopper's warpgroup products.
//
// Floor: the weights once for every tile of tokens, and 2 m n k operations at the rate of f16 products.
// A block takes 128 rows of weights, 64 to a warpgroup, and a tile of tokens, in steps of 64 elements:
// the copy engine brings a step of weights, swizzled, and the same step of x, which was laid out so
// (quant_round). The weights are the left operand, from registers: on their way there bf16 becomes f16,
// which x is in, 2^8 times, so that small ones keep their bits. While the products of one step run, the
// threads fetch the weights of the next. Where tiles are few, a cluster of blocks shares one along k.
#include "backend/cuda/kernels/quant/regs_common.cuh"

// Four pairs of weights as f16.
__device__ __forceinline__ void to_f16(uint32_t (&w)[4], f16) {}
__device__ __forceinline__ void to_f16(uint32_t (&w)[4], bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = pack2<f16>(256 * __uint_as_float(w[i] << 16),
                          256 * __uint_as_float(w[i] & 0xffff0000u));
}

template <class T, int N, bool GATED>
__device__ __forceinline__ void plain(const km_plain_maps &maps, const km_tile_args &a) {
    constexpr int STAGES = KM_PLAIN_STAGES(N), X_STEP = N * 128, W_STEP = KM_PLAIN_W_STEP;
    constexpr int STAGE = W_STEP + X_STEP;
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * STAGES];
    uint32_t stages = (smem_addr(shared) + 1023) / 1024 * 1024;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int all = (a.k + 127) / 128, splits = gridDim.z; // two steps each: beyond k there are zeros
    int s0 = 2 * (int)((int64_t)all * blockIdx.z / splits);
    int steps = 2 * (int)((int64_t)all * (blockIdx.z + 1) / splits) - s0;
    Filled<STAGES> ring;
    ring.begin(bars);
    int which;
    km_tile_more layer = layer_of_block<GATED>(a, which);
    int row = (blockIdx.y - layer.first) * (GATED ? KM_REGS_ROWS / 2 : KM_REGS_ROWS);
    const km_tensor_map *map = &maps.w[which];
    __syncthreads();

    auto ask_weights = [&](int i) {
        uint32_t bar = ring.full + 8 * (i % STAGES), to = stages + i % STAGES * STAGE;
        mbar_more(bar, W_STEP);
        tma_load_2d(to, map, bar, (s0 + i) * 64, row);
        if (GATED) tma_load_2d(to + W_STEP / 2, &maps.w[1], bar, (s0 + i) * 64, row);
    };
    const uint8_t *x =
        (const uint8_t *)a.x + s0 * (int64_t)a.padded * 128 + (int64_t)blockIdx.x * X_STEP;
    auto ask_x = [&](int i) {
        ring.ask(i % STAGES, stages + i % STAGES * STAGE + W_STEP, x + i * (int64_t)a.padded * 128,
                 X_STEP);
    };
    if (!a.early) wait_for_previous();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES && i < steps; i++) ask_weights(i);
    if (a.early) wait_for_previous();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES && i < steps; i++) ask_x(i);

    // Of this lane for ldmatrix: 8 rows of 8 elements, and those 8 rows further down, or of `up`.
    int at =
        GATED ? lane / 8 % 2 * (KM_REGS_ROWS / 2) + warp * 8 + lane % 8 : warp * 16 + lane % 16;
    float sum[N / 2];
    uint32_t left[2][4][4];
    int stage = 0, done = 0;
    uint32_t parity = 0;
    auto step = [&](uint32_t(&l)[4][4]) {
        // The stage before the one that is still multiplied: nobody waits for the slower warpgroup.
        if (threadIdx.x == 0 && done >= 2 && done - 2 + STAGES < steps) {
            ring.room((done - 2) % STAGES, (done - 2) / STAGES & 1);
            ask_weights(done - 2 + STAGES);
            ask_x(done - 2 + STAGES);
        }
        mbar_wait(ring.full + 8 * stage, parity);
        uint32_t w = stages + stage * STAGE;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            ldmatrix_x4(l[k], w + swizzle<8>(at, 2 * k + lane / 16));
            to_f16(l[k], T());
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rs<f16, N, 0>(sum, l[k], wgmma_desc_k(w + W_STEP + 32 * k), done > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); // the step before is done
        if (done > 0 && lane == 0) ring.release(stage ? stage - 1 : STAGES - 1);
        if (++stage == STAGES) stage = 0, parity ^= 1;
        done++;
    };
    for (int s = 0; s < steps; s += 2) {
        step(left[0]);
        step(left[1]);
    }
    wgmma_wait<0>();
    hold(sum);
    finish_tile<N, GATED>(a, layer, sum, shared, wgmma_is_bf16<T>::value ? 1 : 256);
}

#define PLAIN_KERNEL(name, T, N, GATED)                                                            \
    extern "C" __global__ void __launch_bounds__(KM_REGS_THREADS, KM_PLAIN_BLOCKS(N))              \
        name(const __grid_constant__ km_plain_maps maps, const __grid_constant__ km_tile_args a) { \
        plain<T, N, GATED>(maps, a);                                                               \
    }
#define PLAIN(T, name, N)                                                                          \
    PLAIN_KERNEL(plain_##name##_##N, T, N, false)                                                  \
    PLAIN_KERNEL(plain_gated_##name##_##N, T, N, true)
PLAIN(f16, F16, 16)
PLAIN(f16, F16, 64)
PLAIN(f16, F16, 128)
PLAIN(f16, F16, 256)
PLAIN(bf16, BF16, 16)
PLAIN(bf16, BF16, 64)
