// Several rows of x, tokens, against weights of a few bits, with Hopper's warpgroup products: the
// weights are the left operand and never leave the registers in which they are unpacked.
//
// Floor: the packed weights once for every tile of tokens, and 2 m n k operations at the rate of f16
// products. A block takes 128 rows of weights, 64 to a warpgroup, and a tile of tokens. A thread
// needs, for 256 elements of k, the same quarter of two rows: one unit of each, in the order in which
// its type unpacks it. So x was laid out (quant_round) that way: in each step of 64 elements, those
// that are multiplied together, already swizzled, and a step of a tile is one copy of plain bytes, for
// which one thread asks. Weights come through places of each thread's own, as in quant_one.cuh. While
// the products of one step run, the threads unpack the weights of the next. Where there are too few
// tiles to fill the chip, a cluster of blocks shares a tile along k. Layers of one type over one x are
// one launch: each alone has too few rows.
#ifndef KM_CUDA_QUANT_REGS_CUH
#define KM_CUDA_QUANT_REGS_CUH
#include "backend/cuda/kernels/quant/quant.cuh"
#include "backend/cuda/kernels/quant/regs_common.cuh"
#include "backend/cuda/kernels/quant/unpack_f16.cuh"

// One thread's weights: a unit of two rows in every super-step.
template <int TYPE> struct TwoRows {
    typedef Quant<TYPE> Q;
    static constexpr int PLACE = 2 * Q::BYTES * THREADS;
    Fields f[2];
    uint32_t first[2]; // unit with which a row begins
    int units;
    __device__ __forceinline__ uint32_t unit(int row, int super) const {
        return first[row] + min(4 * super + (int)threadIdx.x % 4, units - 1);
    }
    __device__ __forceinline__ void ask(uint32_t place, int super) const {
        Q raw;
        Ask<THREADS> copy = {place};
        raw.fetch(copy, f[0], unit(0, super));
        raw.fetch(copy, f[1], unit(1, super));
    }
    // What was asked for.
    __device__ __forceinline__ void take(const uint8_t *place, int super, Q (&raw)[2]) const {
        Take<THREADS> copy = {place};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw[i].fetch(copy, f[i], unit(i, super));
            if (Planes<TYPE>::UNITS == 4) raw[i].phase(threadIdx.x % 4);
        }
    }
    // Run R of both rows: the left operands of four products.
    template <int R>
    __device__ __forceinline__ void make(const Q (&raw)[2], uint32_t (&out)[4][4]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Runs w;
            raw[i].unpack(w);
            __half2 d = __float2half2_rn(w.d[R] * 256), m = __float2half2_rn(-w.m[R] * 256);
#pragma unroll
            for (int k = 0; k < 4; k++)
                as_f16<Q::SIGNED>(w.q[R][k], d, m, out[k][i], out[k][2 + i]);
        }
    }
};

template <int TYPE, int N, bool GATED> __device__ __forceinline__ void regs(const km_tile_args &a) {
    constexpr int STAGES = KM_REGS_STAGES, STAGE = N * 128;
    constexpr int PLACES = KM_REGS_PLACES(Quant<TYPE>::BYTES);
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * STAGES];
    uint32_t stages = (smem_addr(shared) + 1023) / 1024 * 1024; // of x
    uint32_t ring = stages + STAGES * STAGE;
    const uint8_t *ring_at = shared + (ring - smem_addr(shared));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    int all = (a.k + KM_REGS_DEPTH - 1) / KM_REGS_DEPTH, splits = gridDim.z;
    int s0 = (int)((int64_t)all * blockIdx.z / splits);
    int s1 = (int)((int64_t)all * (blockIdx.z + 1) / splits);
    Filled<STAGES> of_x;
    of_x.begin(bars);
    float sum[N / 2];
    TwoRows<TYPE> w;
    int which;
    km_tile_more layer = layer_of_block<GATED>(a, which);
    int tile = blockIdx.y - layer.first;
    // Rows of a thread: g and g + 8 of a warp's 16. In a gated layer the second 8 are those of `up`.
    int row = tile * (GATED ? KM_REGS_ROWS / 2 : KM_REGS_ROWS) + warp * (GATED ? 8 : 16) + g;
    __syncthreads();

    w.units = a.k / KM_QUANT_UNIT;
    w.f[0] = fields_of<TYPE>(layer.w);
    w.f[1] = GATED ? fields_of<TYPE>(a.up) : w.f[0];
    w.first[0] = (uint32_t)min(row, layer.n - 1) * (uint32_t)w.units;
    w.first[1] = GATED ? w.first[0] : (uint32_t)min(row + 8, layer.n - 1) * (uint32_t)w.units;
    if (!a.early) wait_for_previous();
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        if (s0 + i < s1) w.ask(ring + i * TwoRows<TYPE>::PLACE, s0 + i);
        cp_async_commit();
    }
    if (a.early) wait_for_previous();

    // x: step i of this block goes to stage i % STAGES. It is asked for two steps after the one that
    // had the stage before it, so that nobody waits for the slower warpgroup.
    const uint8_t *x =
        (const uint8_t *)a.x + 4 * s0 * (int64_t)a.padded * 128 + (int64_t)blockIdx.x * STAGE;
    int steps = 4 * (s1 - s0);
    auto ask_x = [&](int i) {
        of_x.ask(i % STAGES, stages + i % STAGES * STAGE, x + i * (int64_t)a.padded * 128, STAGE);
    };
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES && i < steps; i++) ask_x(i);
    uint32_t left[2][4][4];
    int stage = 0, place = 0, done = 0;
    uint32_t parity = 0;
    auto step = [&](uint32_t(&l)[4][4]) {
        if (threadIdx.x == 0 && done >= 2 && done - 2 + STAGES < steps) {
            of_x.room((done - 2) % STAGES, (done - 2) / STAGES & 1);
            ask_x(done - 2 + STAGES);
        }
        mbar_wait(of_x.full + 8 * stage, parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rs<f16, N, 0>(sum, l[k], wgmma_desc_k(stages + stage * STAGE + 32 * k),
                                done > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); // the step before is done
        if (done > 0 && lane == 0) of_x.release(stage ? stage - 1 : STAGES - 1);
        if (++stage == STAGES) stage = 0, parity ^= 1;
        done++;
    };
    for (int s = s0; s < s1; s++) {
        cp_async_wait<PLACES - 1>();
        const uint8_t *from = ring_at + place * TwoRows<TYPE>::PLACE;
        // Taken once for all runs where there are registers for it.
        Quant<TYPE> raw[2];
        w.take(from, s, raw);
        w.template make<0>(raw, left[0]);
        step(left[0]);
        if (N > 16) w.take(from, s, raw);
        w.template make<1>(raw, left[1]);
        step(left[1]);
        if (N > 16) w.take(from, s, raw);
        w.template make<2>(raw, left[0]);
        step(left[0]);
        if (N > 16) w.take(from, s, raw);
        w.template make<3>(raw, left[1]);
        if (s + PLACES < s1) w.ask(ring + place * TwoRows<TYPE>::PLACE, s + PLACES);
        cp_async_commit();
        step(left[1]);
        if (++place == PLACES) place = 0;
    }
    wgmma_wait<0>();
    hold(sum);
    cp_async_wait<0>();

    finish_tile<N, GATED>(a, layer, sum, shared, 1);
}

#define REGS_KERNEL(name, TYPE, N, GATED)                                                          \
    extern "C" __global__ void __launch_bounds__(KM_REGS_THREADS, KM_REGS_BLOCKS(N))               \
        name(const __grid_constant__ km_tile_args a) {                                             \
        regs<KM_QUANT_##TYPE, N, GATED>(a);                                                        \
    }

#endif
