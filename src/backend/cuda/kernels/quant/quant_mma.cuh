// Few rows of x, tokens, against weights of a few bits: batches of sequences and guesses, by mma.sync.
//
// Floor: the weights once, in the form they have; what comes next is instructions, nearly all of them for
// unpacking, which all tokens share. A warp takes 16 rows of weights (of a gated layer 8 of each matrix)
// and a part of k, and multiplies them with 8, 16 or 32 tokens. A lane needs, for 256 elements of k, a unit
// of two rows, and copies it through places of its own, which it fills before x is there. Which element of
// k stands where in a product is free as long as x has the same order: so unpacked words are operands as
// they are, and x was laid out in the order in which lanes want it (quant_round.cu). A block has all of
// its part of x in shared memory; its warps take different rows, or share rows along k, and so do the
// blocks of a cluster, which add up their sums through each other's shared memory.
#ifndef KM_CUDA_QUANT_MMA_CUH
#define KM_CUDA_QUANT_MMA_CUH
#include "backend/cuda/kernels/ahead.cuh"
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/quant/quant.cuh"
#include "backend/cuda/kernels/quant/quant_tile_args.h"
#include "backend/cuda/kernels/quant/unpack_f16.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/wgmma.cuh"
#endif

constexpr int THREADS = KM_MMA_FEW_THREADS, WARPS = THREADS / 32;

// Where a warp's rows are, and its part of k.
struct Share {
    int tile, part;     // of the block; of the warps that share a tile
    int parts, shares;  // warps to a tile in the block, and in the cluster
    int x0, x1, s0, s1; // super-steps of the block, and of the warp
    __device__ __forceinline__ Share(const km_mma_few_args &a) {
        int warp = threadIdx.x / 32, supers = (a.k + 255) / 256;
        parts = WARPS / a.tiles, shares = parts * gridDim.y;
        tile = warp / parts, part = warp % parts;
        int first = blockIdx.y * parts, me = first + part;
        x0 = supers * first / shares, x1 = supers * (first + parts) / shares;
        s0 = supers * me / shares, s1 = supers * (me + 1) / shares;
    }
};

// Two rows of a unit's lane, through its places of the ring.
template <int TYPE, bool GATED> struct FewRows {
    typedef Quant<TYPE> Q;
    static constexpr int PLACE = 2 * Q::BYTES * THREADS;
    Fields f[2];
    int units, n;
    __device__ __forceinline__ void begin(const km_quant_part &part, int k) {
        units = k / KM_QUANT_UNIT, n = part.n;
        f[0] = fields_of<TYPE>(part.w);
        f[1] = GATED ? fields_of<TYPE>(part.up) : f[0];
    }
    // The units with which a lane's rows of a tile begin: lane (g, t) has rows g and g + 8, or g of both
    // matrices.
    struct Begin {
        uint32_t row[2];
    };
    __device__ __forceinline__ Begin rows(int tile) const {
        int row = tile * (GATED ? 8 : 16) + threadIdx.x % 32 / 4;
        Begin b;
        b.row[0] = (uint32_t)min(row, n - 1) * (uint32_t)units;
        b.row[1] = GATED ? b.row[0] : (uint32_t)min(row + 8, n - 1) * (uint32_t)units;
        return b;
    }
    __device__ __forceinline__ uint32_t unit(uint32_t first, int super) const {
        return first + min(4 * super + (int)threadIdx.x % 4, units - 1);
    }
    __device__ __forceinline__ void ask(uint32_t place, const Begin &b, int super) const {
        Q raw;
        Ask<THREADS> copy = {place};
        raw.fetch(copy, f[0], unit(b.row[0], super));
        raw.fetch(copy, f[1], unit(b.row[1], super));
    }
    __device__ __forceinline__ void take(const uint8_t *place, const Begin &b, int super,
                                         Q (&raw)[2]) const {
        Take<THREADS> copy = {place};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw[i].fetch(copy, f[i], unit(b.row[i], super));
            if (Planes<TYPE>::UNITS == 4) raw[i].phase(threadIdx.x % 4);
        }
    }
};

// EIGHTS of tokens.
template <int TYPE, int EIGHTS, bool GATED>
__device__ __forceinline__ void mma_rows(const km_mma_few_args &a, const km_quant_part &part,
                                         uint8_t *shared) {
    typedef Quant<TYPE> Q;
    typedef FewRows<TYPE, GATED> Rows;
    constexpr int X = EIGHTS * KM_MMA_FEW_X, PLACES = KM_MMA_FEW_PLACES(EIGHTS, Q::BYTES),
                  TOKENS = 8 * EIGHTS;
    constexpr int SUMS = KM_MMA_FEW_SUMS, TALL = GATED ? 8 : 16;
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(8) uint64_t bars[KM_MMA_FEW_SUPERS];
#endif
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Share share(a);
    float *sums = reinterpret_cast<float *>(shared + a.supers * X);
    uint8_t *ring = shared + a.supers * X + WARPS * TOKENS * SUMS * 4;
    uint32_t ring_at = smem_addr(ring), x_at = smem_addr(shared);
    int x_steps = share.x1 - share.x0, steps = share.s1 - share.s0;
    // Blocks with nobody beside them along k take every gridDim.x-th group of tiles.
    bool alone = share.shares == 1;
    int group = blockIdx.x - part.first;
    int last = alone && a.parts == 1 ? a.groups : group + 1;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x < x_steps) mbar_init(smem_addr(bars) + 8 * threadIdx.x, 1);
    mbar_init_fence();
    __syncthreads();
#endif
    Rows w;
    w.begin(part, a.k);
    typename Rows::Begin now, next = w.rows(group * a.tiles + share.tile);
    int ask_group = group, ask_step = 0; // the super-step that is asked for next
    auto ask = [&](uint32_t place) {
        if (ask_group < last && steps > 0) {
            w.ask(place, next, share.s0 + ask_step);
            if (++ask_step == steps) {
                ask_step = 0, ask_group += gridDim.x;
                next = w.rows(ask_group * a.tiles + share.tile);
            }
        }
        cp_async_commit();
    };
    if (!a.early) wait_for_those_before();
#pragma unroll
    for (int i = 0; i < PLACES; i++) ask(ring_at + i * Rows::PLACE);
    if (a.early) wait_for_those_before();
    let_next_begin();
    const uint8_t *x = (const uint8_t *)a.x[Q::APART] + (int64_t)share.x0 * X;
#if __CUDA_ARCH__ >= 900
    if (warp == 0 && elected())
        for (int i = 0; i < x_steps; i++) {
            mbar_expect(smem_addr(bars) + 8 * i, X);
            bulk_load(x_at + i * X, x + (int64_t)i * X, X, smem_addr(bars) + 8 * i);
        }
#else
    for (int i = threadIdx.x * 16; i < x_steps * X; i += THREADS * 16)
        cp_async_16(x_at + i, x + i, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
#endif

    int place = 0;
    for (; group < last; group += gridDim.x) {
        now = w.rows(group * a.tiles + share.tile);
        float sum[EIGHTS][4] = {}, more[4] = {}; // more: of one eight, every second product
        for (int s = 0; s < steps; s++) {
            int super = share.s0 + s;
            cp_async_wait<PLACES - 1>();
            Q raw[2];
            w.take(ring + place * Rows::PLACE, now, super, raw);
            const uint8_t *xs = shared + (super - share.x0) * X + lane * 16;
#if __CUDA_ARCH__ >= 900
            mbar_wait(smem_addr(bars) + 8 * (super - share.x0), 0);
#endif
            Unpacked<TYPE> u[2] = {raw[0], raw[1]};
            ask(ring_at + place * Rows::PLACE);
            if (++place == PLACES) place = 0;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint32_t left[4][4];
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++) u[i].four(r, k, left[k][i], left[k][2 + i]);
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const uint4 *at = reinterpret_cast<const uint4 *>(xs + e * KM_MMA_FEW_X);
                    uint4 b = at[2 * r * 32], c = at[(2 * r + 1) * 32];
                    mma_m16n8k16<f16>(sum[e], left[0], b.x, b.y);
                    mma_m16n8k16<f16>(EIGHTS == 1 ? more : sum[e], left[1], b.z, b.w);
                    mma_m16n8k16<f16>(sum[e], left[2], c.x, c.y);
                    mma_m16n8k16<f16>(EIGHTS == 1 ? more : sum[e], left[3], c.z, c.w);
                }
            }
        }
        if (EIGHTS == 1)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[0][i] += more[i];
        if (!alone) { // as rows of tokens, for all that share the tile
            float *mine = sums + warp * TOKENS * SUMS;
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mine[(8 * e + 2 * t + i % 2) * SUMS + i / 2 * 8 + g] = sum[e][i];
            break;
        }
        int row = (group * a.tiles + share.tile) * TALL + g;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
#pragma unroll
            for (int i = 0; i < (GATED ? 2 : 4); i++) {
                int token = 8 * e + 2 * t + i % 2, at = row + i / 2 * 8;
                if (token >= a.m || at >= part.n) continue;
                float scale = __ldg(a.scale + token), v[1] = {sum[e][i] * scale};
                if (part.bias) v[0] += __ldg(part.bias + at);
                if (a.act != 0) gemm_act<float>(a.act, v);
                if (GATED) v[0] *= sum[e][2 + i] * scale;
                part.out[(int64_t)token * part.n + at] = v[0];
            }
    }
    cp_async_wait<0>();
    if (alone) return;
    int blocks = gridDim.y, rank = blockIdx.y;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        cluster_sync();
    else
#endif
        __syncthreads();
    // Four rows of a token to a thread.
    constexpr int FOURS = TALL / 4;
    auto total = [&](int tile, int token, int at) {
        float4 v = make_float4(0, 0, 0, 0);
        for (int z = 0; z < blocks; z++)
            for (int p = 0; p < share.parts; p++) {
                float *from = sums + ((tile * share.parts + p) * TOKENS + token) * SUMS + at;
#if __CUDA_ARCH__ >= 900
                float4 f = blocks > 1 ? far_four(in_block(smem_addr(from), z))
                                      : *reinterpret_cast<float4 *>(from);
#else
                float4 f = *reinterpret_cast<float4 *>(from);
#endif
                v.x += f.x, v.y += f.y, v.z += f.z, v.w += f.w;
            }
        return v;
    };
    for (int i = rank * THREADS + threadIdx.x; i < a.tiles * a.m * FOURS; i += blocks * THREADS) {
        int four = i % FOURS * 4, token = i / FOURS % a.m, tile = i / FOURS / a.m;
        int col = (group * a.tiles + tile) * TALL + four;
        if (col >= part.n) continue;
        float scale = __ldg(a.scale + token);
        float4 f = total(tile, token, four);
        float v[4] = {f.x * scale, f.y * scale, f.z * scale, f.w * scale};
        if (part.bias)
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] += col + e < part.n ? __ldg(part.bias + col + e) : 0;
        if (a.act != 0) gemm_act<float>(a.act, v);
        if (GATED) {
            float4 u = total(tile, token, 8 + four);
            v[0] *= u.x * scale, v[1] *= u.y * scale, v[2] *= u.z * scale, v[3] *= u.w * scale;
        }
        float *out = part.out + (int64_t)token * part.n + col;
        if (part.n % 4 == 0)
            *reinterpret_cast<float4 *>(out) = make_float4(v[0], v[1], v[2], v[3]);
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (col + e < part.n) out[e] = v[e];
    }
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) cluster_sync(); // nobody leaves while others read
#endif
}

// Layers of two types over one x, as mixes have them, or of one.
template <int FIRST, int SECOND, int EIGHTS, bool GATED>
__device__ __forceinline__ void mma_few(const km_mma_few_args &a) {
    extern __shared__ __align__(128) uint8_t shared[];
    int p = 0;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    if (FIRST == SECOND || !a.part[p].second)
        mma_rows<FIRST, EIGHTS, GATED>(a, a.part[p], shared);
    else
        mma_rows<SECOND, EIGHTS, GATED>(a, a.part[p], shared);
}

#define MMA_KERNEL(name, FIRST, SECOND, EIGHTS, GATED)                                             \
    extern "C" __global__ void __launch_bounds__(KM_MMA_FEW_THREADS, 2)                            \
        name(const __grid_constant__ km_mma_few_args a) {                                          \
        mma_few<KM_QUANT_##FIRST, KM_QUANT_##SECOND, EIGHTS, GATED>(a);                            \
    }
#define MMA(TYPE, EIGHTS)                                                                          \
    MMA_KERNEL(mma_##TYPE, TYPE, TYPE, EIGHTS, false)                                              \
    MMA_KERNEL(mma_gated_##TYPE, TYPE, TYPE, EIGHTS, true)
#define MMA_TWO(FIRST, SECOND, EIGHTS)                                                             \
    MMA_KERNEL(mma_##FIRST##_##SECOND, FIRST, SECOND, EIGHTS, false)
#define MMA_32(EIGHTS)                                                                             \
    MMA(Q4_0, EIGHTS)                                                                              \
    MMA(Q4_1, EIGHTS)                                                                              \
    MMA(Q5_0, EIGHTS)                                                                              \
    MMA(Q5_1, EIGHTS)                                                                              \
    MMA(Q8_0, EIGHTS) MMA(IQ4_NL, EIGHTS) MMA(MXFP4, EIGHTS)
#define MMA_K(EIGHTS)                                                                              \
    MMA(Q2_K, EIGHTS)                                                                              \
    MMA(Q3_K, EIGHTS)                                                                              \
    MMA(Q4_K, EIGHTS)                                                                              \
    MMA(Q5_K, EIGHTS)                                                                              \
    MMA(Q6_K, EIGHTS)                                                                              \
    MMA(IQ4_XS, EIGHTS)                                                                            \
    MMA_TWO(Q4_K, Q6_K, EIGHTS) MMA_TWO(Q5_K, Q6_K, EIGHTS) MMA_TWO(Q3_K, Q5_K, EIGHTS)

#endif
