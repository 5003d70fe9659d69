// Many rows of x against weights of a few bits or of 16: products as in quant_regs.cuh and plain_regs.cu, of
// 128 rows of weights and 128 or 256 tokens, by blocks that stay.
//
// Floor: 2 m n k operations at the rate of f16 products. One block to a multiprocessor takes every so-many-th
// tile. A warp of its own asks the copy engine for x, and weights of 16 bits, as far ahead as the ring has
// stages, also while the sums of a tile are written; those of a few bits are asked for by the threads that
// unpack them, the first of the next tile before the sums of this one are written.
#ifndef KM_CUDA_REGS_WIDE_CUH
#define KM_CUDA_REGS_WIDE_CUH
#include "backend/cuda/kernels/ahead.cuh"
#include "backend/cuda/kernels/quant/quant_regs.cuh"
#include "backend/cuda/kernels/quant/quant_wide_args.h"

// The layer of a tile of rows of weights, and which of the call's it is.
template <bool GATED>
__device__ __forceinline__ km_tile_more layer_of(const km_tile_args &a, int tile, int &which) {
    km_tile_more layer = {a.w, a.bias, a.out, a.n, 0};
    which = 0;
    if constexpr (!GATED)
        for (int i = 1; i < a.layers && tile >= a.more[i - 1].first; i++)
            layer = a.more[i - 1], which = i;
    return layer;
}

// A barrier of the threads that multiply.
__device__ __forceinline__ void sync_products() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// finish_tile() of regs_common.cuh for the threads that multiply alone. The sums go
// as rows of tokens through shared memory, whence blocks that share a tile along k add them up, in order,
// each some of the tokens, and whole rows are written. Nobody leaves while others of its cluster read.
template <int N, bool GATED>
__device__ __forceinline__ void finish_wide(const km_tile_args &a, const km_tile_more &layer,
                                            int tile, int tokens_tile, float (&sum)[N / 2],
                                            uint8_t *shared, float factor) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int splits = gridDim.z;
    constexpr int ROWS = KM_REGS_ROWS, STRIDE = ROWS + 4; // no bank conflicts
    float *mine = reinterpret_cast<float *>(shared);
    sync_products();
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
        sync_products();
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
        int token = tokens_tile * N + within, col = col0 + c;
        if (token >= a.m || col >= layer.n) continue;
        float scale = __ldg(a.scale + token) * factor;
        float4 f = total(within, c);
        float v[4] = {f.x * scale, f.y * scale, f.z * scale, f.w * scale};
        if (layer.bias)
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] += col + e < layer.n ? __ldg(layer.bias + col + e) : 0;
        gemm_act<f16>(a.act, v); // as exact as x
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

// The same by the threads that have the sums, without shared memory: where no blocks share the tile, and
// the next one is on its way. Four neighbouring pieces of 8 tokens at a time.
template <int N, bool GATED>
__device__ __forceinline__ void write_tile(const km_tile_args &a, const km_tile_more &layer,
                                           int tile, int tokens_tile, const float (&sum)[N / 2],
                                           float factor) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int ROWS = GATED ? 1 : 2; // of this thread
    int col = tile * (GATED ? KM_REGS_ROWS / 2 : KM_REGS_ROWS) + warp * (GATED ? 8 : 16) + g;
    int token0 = tokens_tile * N + 2 * t;
    float bias[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        bias[r] = layer.bias && col + 8 * r < layer.n ? __ldg(layer.bias + col + 8 * r) : 0;
    float *out = layer.out + (int64_t)token0 * layer.n + col;
#pragma unroll
    for (int j = 0; j < N / 8; j += 4) {
        float v[ROWS][8], scale[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            scale[i] = __ldg(a.scale + token0 + 8 * (j + i / 2) + i % 2) * factor;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[r][i] = fmaf(sum[4 * (j + i / 2) + 2 * r + i % 2], scale[i], bias[r]);
            gemm_act<f16>(a.act, v[r]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (GATED) v[0][i] *= sum[4 * (j + i / 2) + 2 + i % 2] * scale[i];
            int at = 8 * (j + i / 2) + i % 2;
            bool there = token0 + at < a.m;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (there && col + 8 * r < layer.n) out[(int64_t)at * layer.n + 8 * r] = v[r][i];
        }
    }
}

// Four pairs of plain weights as f16, which f16 are already, without the factor.
__device__ __forceinline__ void to_f16(uint32_t (&w)[4], f16) {}
__device__ __forceinline__ void to_f16(uint32_t (&w)[4], bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = pack2<f16>(256 * __uint_as_float(w[i] << 16),
                          256 * __uint_as_float(w[i] & 0xffff0000u));
}

// Weights of a few bits: through places of each thread's own.
template <int TYPE, bool GATED> struct WidePacked {
    static constexpr int STEP = 0, PLACES = KM_REGS_PLACES(Quant<TYPE>::BYTES);
    static constexpr int RING = PLACES * TwoRows<TYPE>::PLACE;
    static constexpr float FACTOR = 1;
    TwoRows<TYPE> w;
    uint32_t ring_at;
    const uint8_t *ring;
    int s0, s1, place = 0;
    static __device__ __forceinline__ void bring(const km_plain_maps *, int, uint32_t, uint32_t,
                                                 int, int) {}
    __device__ __forceinline__ WidePacked(const uint8_t *room, uint32_t at, int begin, int end)
        : ring_at(at), ring(room), s0(begin), s1(end) {}
    __device__ __forceinline__ void tile(const km_tile_args &a, const km_tile_more &layer,
                                         int tile) {
        int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        int row = tile * (GATED ? KM_REGS_ROWS / 2 : KM_REGS_ROWS) + warp * (GATED ? 8 : 16) + g;
        w.units = a.k / KM_QUANT_UNIT;
        w.f[0] = fields_of<TYPE>(layer.w);
        w.f[1] = GATED ? fields_of<TYPE>(a.up) : w.f[0];
        w.first[0] = (uint32_t)min(row, layer.n - 1) * (uint32_t)w.units;
        w.first[1] = GATED ? w.first[0] : (uint32_t)min(row + 8, layer.n - 1) * (uint32_t)w.units;
        for (int i = 0; i < PLACES; i++) {
            int to = place + i < PLACES ? place + i : place + i - PLACES;
            if (s0 + i < s1) w.ask(ring_at + to * TwoRows<TYPE>::PLACE, s0 + i);
            cp_async_commit();
        }
    }
    // All products of a tile; step(l, make): `make` unpacks what l is multiplied from.
    template <class STEP_>
    __device__ __forceinline__ void products(uint32_t (&left)[2][4][4], STEP_ step) {
        for (int s = s0; s < s1; s++) {
            cp_async_wait<PLACES - 1>();
            const uint8_t *from = ring + place * TwoRows<TYPE>::PLACE;
            Quant<TYPE> raw[2];
            w.take(from, s, raw);
            w.template make<0>(raw, left[0]);
            step(left[0], [](uint32_t) {});
            w.take(from, s, raw);
            w.template make<1>(raw, left[1]);
            step(left[1], [](uint32_t) {});
            w.take(from, s, raw);
            w.template make<2>(raw, left[0]);
            step(left[0], [](uint32_t) {});
            w.take(from, s, raw);
            w.template make<3>(raw, left[1]);
            if (s + PLACES < s1) w.ask(ring_at + place * TwoRows<TYPE>::PLACE, s + PLACES);
            cp_async_commit();
            step(left[1], [](uint32_t) {});
            if (++place == PLACES) place = 0;
        }
    }
};

// Weights of 16 bits: in the stages of x, as the copy engine brings them.
template <class T, bool GATED> struct WidePlain {
    static constexpr int STEP = KM_PLAIN_W_STEP, RING = 0;
    static constexpr float FACTOR = wgmma_is_bf16<T>::value ? 1 : 256;
    int s0, s1, at;
    static __device__ __forceinline__ void bring(const km_plain_maps *maps, int which, uint32_t to,
                                                 uint32_t bar, int k, int tile) {
        mbar_more(bar, STEP);
        tma_load_2d(to, &maps->w[which], bar, k, tile * (GATED ? KM_REGS_ROWS / 2 : KM_REGS_ROWS));
        if (GATED) tma_load_2d(to + STEP / 2, &maps->w[1], bar, k, tile * (KM_REGS_ROWS / 2));
    }
    __device__ __forceinline__ WidePlain(const uint8_t *, uint32_t, int begin, int end)
        : s0(begin), s1(end) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        at =
            GATED ? lane / 8 % 2 * (KM_REGS_ROWS / 2) + warp * 8 + lane % 8 : warp * 16 + lane % 16;
    }
    __device__ __forceinline__ void tile(const km_tile_args &, const km_tile_more &, int) {}
    template <class STEP_>
    __device__ __forceinline__ void products(uint32_t (&left)[2][4][4], STEP_ step) {
        auto fetch = [&](uint32_t(&l)[4][4], uint32_t stage) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                ldmatrix_x4(l[k], stage + swizzle<8>(at, 2 * k + threadIdx.x % 32 / 16));
                to_f16(l[k], T());
            }
        };
        for (int s = s0; s < s1; s++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                step(left[i % 2], [&](uint32_t stage) { fetch(left[i % 2], stage); });
        }
    }
};

template <class W, int N, bool GATED>
__device__ __forceinline__ void wide(const km_plain_maps *maps, const km_tile_args &a, int tiles) {
    constexpr int STAGES = KM_WIDE_STAGES(N), STAGE = W::STEP + N * 128;
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * STAGES];
    uint32_t stages = (smem_addr(shared) + 1023) / 1024 * 1024;
    int supers = (a.k + KM_REGS_DEPTH - 1) / KM_REGS_DEPTH, splits = gridDim.z;
    int s0 = (int)((int64_t)supers * blockIdx.z / splits);
    int s1 = (int)((int64_t)supers * (blockIdx.z + 1) / splits);
    int tall = a.padded / N, count = tall * tiles;
    Filled<STAGES> ring;
    ring.begin(bars);
    __syncthreads();

    if (threadIdx.x >= THREADS) {
        registers_down<40>();
        if (threadIdx.x < THREADS + 32 && elected()) {
            int which, steps = 4 * (s1 - s0), ahead = W::STEP && a.early ? min(STAGES, steps) : 0;
            km_tile_more layer = layer_of<GATED>(a, blockIdx.x / tall, which);
            auto bring = [&](int stage, int i, int weight_tile) {
                W::bring(maps, which, stages + stage * STAGE, ring.full + 8 * stage,
                         (4 * s0 + i) * 64, weight_tile);
            };
            for (int i = 0; i < ahead; i++) bring(i, i, blockIdx.x / tall - layer.first);
            wait_for_those_before();
            Ring<STAGES> at;
            for (int t = blockIdx.x; t < count; t += gridDim.x) {
                layer = layer_of<GATED>(a, t / tall, which);
                const uint8_t *x = (const uint8_t *)a.x + 4 * s0 * (int64_t)a.padded * 128 +
                                   (int64_t)(t % tall) * (N * 128);
                for (int i = 0; i < steps; i++, at.next()) {
                    ring.room(at.stage, at.phase ^ 1);
                    if (W::STEP && ahead-- <= 0) bring(at.stage, i, t / tall - layer.first);
                    ring.ask(at.stage, stages + at.stage * STAGE + W::STEP,
                             x + i * (int64_t)a.padded * 128, N * 128);
                }
            }
        }
        __syncwarp();
        if (splits > 1) { // with those of the sums
            cluster_sync();
            cluster_sync();
        }
    } else {
        registers_up<232>();
        int lane = threadIdx.x % 32, which;
        float sum[N / 2];
        uint32_t left[2][4][4];
        W weights(shared + (stages - smem_addr(shared)) + STAGES * STAGE, stages + STAGES * STAGE,
                  s0, s1);
        Ring<STAGES> at;
        int before = 0; // the stage that the products still under way read
        if (!a.early) wait_for_those_before();
        int t = blockIdx.x;
        km_tile_more layer = layer_of<GATED>(a, t / tall, which);
        weights.tile(a, layer, t / tall - layer.first);
        if (a.early) wait_for_those_before();
        let_next_begin();
        while (t < count) {
            bool begun = false;
            weights.products(left, [&](uint32_t(&l)[4][4], auto make) {
                mbar_wait(ring.full + 8 * at.stage, at.phase);
                uint32_t stage = stages + at.stage * STAGE;
                make(stage);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    wgmma_rs<f16, N, 0>(sum, l[k], wgmma_desc_k(stage + W::STEP + 32 * k),
                                        begun || k > 0);
                wgmma_commit();
                wgmma_wait<1>(); // the step before is done
                if (begun && lane == 0) ring.release(before);
                before = at.stage, begun = true;
                at.next();
            });
            wgmma_wait<0>();
            hold(sum);
            if (lane == 0) ring.release(before);
            int now = t;
            km_tile_more made = layer;
            t += gridDim.x;
            if (t < count) {
                layer = layer_of<GATED>(a, t / tall, which);
                weights.tile(a, layer, t / tall - layer.first);
            }
            if (splits > 1)
                finish_wide<N, GATED>(a, made, now / tall - made.first, now % tall, sum, shared,
                                      W::FACTOR);
            else
                write_tile<N, GATED>(a, made, now / tall - made.first, now % tall, sum, W::FACTOR);
        }
        cp_async_wait<0>();
    }
}

#define WIDE_PACKED(TYPE, N)                                                                       \
    WIDE_PACKED_KERNEL(wide_##TYPE, TYPE, N, false)                                                \
    WIDE_PACKED_KERNEL(wide_gated_##TYPE, TYPE, N, true)
#define WIDE_PACKED_KERNEL(name, TYPE, N, GATED)                                                   \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_THREADS, 1)                               \
        name(const __grid_constant__ km_tile_args a, int tiles) {                                  \
        wide<WidePacked<KM_QUANT_##TYPE, GATED>, N, GATED>(nullptr, a, tiles);                     \
    }
#define WIDE_PLAIN_KERNEL(name, T, N, GATED)                                                       \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_THREADS, 1)                               \
        name(const __grid_constant__ km_plain_maps maps, const __grid_constant__ km_tile_args a,   \
             int tiles) {                                                                          \
        wide<WidePlain<T, GATED>, N, GATED>(&maps, a, tiles);                                      \
    }
#define WIDE_PLAIN(T, name, N)                                                                     \
    WIDE_PLAIN_KERNEL(wide_##name##_##N, T, N, false)                                              \
    WIDE_PLAIN_KERNEL(wide_gated_##name##_##N, T, N, true)

#endif
