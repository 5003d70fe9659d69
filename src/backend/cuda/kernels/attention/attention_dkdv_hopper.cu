/* km-arch: 90a
 * Attention's gradient by the keys and values on Hopper: dv = P^T dO, dk = scale * dS^T Q. A block
 * keeps 128 keys and values, and the queries that see them stream past with their rows of d_o, lse
 * and delta, head by head of the group; everything is computed transposed, keys by queries:
 *   S' = K Q^T, P' = exp(scale * S' - lse), dP' = V dO^T, dS' = P' * (dP' - delta),
 *   dv += P' dO, dk += dS' Q
 * so that P' and dS' go from accumulators to operands in registers.
 *
 * Floor: 4 products of 2 * B*H*Tq*Tk * D operations, halved when causal. */
#include "backend/cuda/kernels/attention/attention_hopper.cuh"

template <typename T, int D> struct dkdv_layout {
    static constexpr int BC = KM_ATTENTION_HOPPER_COLS(KM_ATTENTION_DKDV, D);
    static constexpr int STAGES = KM_ATTENTION_HOPPER_STAGES(KM_ATTENTION_DKDV, D);
    static constexpr int KEPT = KM_ATTENTION_HOPPER_KEPT(KM_ATTENTION_DKDV, D);
    static constexpr int K_BYTES = 64 * D * 2, Q_BYTES = BC * D * 2;
    uint32_t base, rows, bars; /* rows: lse and delta of each stage's queries */

    KM_DEVICE dkdv_layout(const char *smem) {
        base = (smem_addr(smem) + 1023) & ~1023u;
        rows = base + KEPT * 4 * K_BYTES + STAGES * 2 * Q_BYTES;
        bars = rows + STAGES * 2 * BC * 4;
    }
    KM_DEVICE uint32_t k(int i, int wg) { return base + (i * 2 + wg) * 2 * K_BYTES; }
    KM_DEVICE uint32_t v(int i, int wg) { return k(i, wg) + K_BYTES; }
    KM_DEVICE uint32_t q(int i) { return base + KEPT * 4 * K_BYTES + i * 2 * Q_BYTES; }
    KM_DEVICE uint32_t d_o(int i) { return q(i) + Q_BYTES; }
    KM_DEVICE uint32_t lse(int i) { return rows + i * 2 * BC * 4; }
    KM_DEVICE uint32_t delta(int i) { return lse(i) + BC * 4; }
    KM_DEVICE uint32_t k_full(int i, int wg) { return bars + 8 * (2 * i + wg); }
    KM_DEVICE uint32_t k_empty(int i, int wg) { return k_full(KEPT + i, wg); }
    KM_DEVICE uint32_t q_full(int i) { return k_full(2 * KEPT, 0) + 8 * i; }
    KM_DEVICE uint32_t d_o_full(int i) { return q_full(STAGES + i); }
    KM_DEVICE uint32_t q_empty(int i) { return q_full(2 * STAGES + i); }
};

/* Query tiles [lo, hi) of a head see some key of the block. */
struct dkdv_range {
    int lo, count;

    KM_DEVICE dkdv_range(const km_attention_args &a, int block, int cols) {
        lo = 0;
        if (a.causal) lo = max(0, block * KM_ATTENTION_HOPPER_ROWS - (a.tk - a.tq)) / cols;
        count = max(0, (a.tq + cols - 1) / cols - lo);
    }
};

template <typename T, int D>
KM_DEVICE void dkdv_produce(const km_attention_hopper_args &p, dkdv_layout<T, D> at) {
    using L = dkdv_layout<T, D>;
    const km_attention_args &a = p.a;
    attention_schedule work(a.tk, a.kv_heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;
    int group = a.heads / a.kv_heads;
    for (; work.next(); kept.next()) {
        for (int wg = 0; wg < 2; wg++) {
            mbar_wait(at.k_empty(kept.stage, wg), kept.phase ^ 1);
            uint32_t full = at.k_full(kept.stage, wg);
            int row = work.block * 128 + wg * 64;
            mbar_expect(full, 2 * L::K_BYTES);
            tile_fetch<D, 64>(at.k(kept.stage, wg), &p.k, full, row, work.h, work.b);
            tile_fetch<D, 64>(at.v(kept.stage, wg), &p.v, full, row, work.h, work.b);
        }
        dkdv_range range(a, work.block, L::BC);
        for (int h = work.h * group; h < (work.h + 1) * group; h++) {
            const float *w = a.work + ((int64_t)work.b * a.heads + h) * a.tq_pad;
            const float *w2 = w + (int64_t)a.batch * a.heads * a.tq_pad;
            for (int tile = range.lo; tile < range.lo + range.count; tile++, ring.next()) {
                int i = ring.stage, row = tile * L::BC;
                mbar_wait(at.q_empty(i), ring.phase ^ 1);
                mbar_expect(at.q_full(i), L::Q_BYTES + L::BC * 4);
                tile_fetch<D, L::BC>(at.q(i), &p.q, at.q_full(i), row, h, work.b);
                bulk_load(at.lse(i), w + row, L::BC * 4, at.q_full(i));
                mbar_expect(at.d_o_full(i), L::Q_BYTES + L::BC * 4);
                tile_fetch<D, L::BC>(at.d_o(i), &p.d_o, at.d_o_full(i), row, h, work.b);
                bulk_load(at.delta(i), w2 + row, L::BC * 4, at.d_o_full(i));
            }
        }
    }
}

template <typename T, int D>
KM_DEVICE void dkdv_consume(const km_attention_hopper_args &p, dkdv_layout<T, D> at, int wg,
                            const char *smem) {
    using L = dkdv_layout<T, D>;
    constexpr int BC = L::BC;
    const km_attention_args &a = p.a;
    int lane = threadIdx.x % 32, row_in_wg = threadIdx.x % 128 / 32 * 16 + lane / 4;
    bool first_thread = threadIdx.x % 128 == 0;
    float c = a.scale * KM_LOG2E;
    int shift = a.tk - a.tq, group = a.heads / a.kv_heads;
    /* the thread's columns of lse and delta: + 2 floats per 8 columns */
    const float *mine = (const float *)(smem + (at.rows - smem_addr(smem))) + lane % 4 * 2;
    attention_schedule work(a.tk, a.kv_heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;

    for (; work.next(); kept.next()) {
        dkdv_range range(a, work.block, BC);
        int tiles = range.count * group, tile = range.lo, row0 = work.block * 128 + wg * 64;
        int row = row0 + row_in_wg;
        float s[BC / 2], dp[BC / 2], dk[D / 2], dv[D / 2];
        uint32_t prob[BC / 16][4], ds[BC / 16][4];
        uint32_t k = at.k(kept.stage, wg), v = at.v(kept.stage, wg);
        mbar_wait(at.k_full(kept.stage, wg), kept.phase);

        /* One query tile: leaves dS' in ds, and adds the last tile's dS' Q meanwhile. */
        Ring<L::STAGES> last;
        auto step = [&](int n, auto first) {
            constexpr bool FIRST = decltype(first)::value;
            mbar_wait(at.q_full(ring.stage), ring.phase);
            wgmma_fence();
            if constexpr (!FIRST) {
                product_pb<T, BC, D>(dk, ds, at.q(last.stage), n > 1);
                wgmma_commit();
            }
            product_abt<T, BC, D>(s, k, at.q(ring.stage));
            wgmma_commit();
            if constexpr (!FIRST) {
                wgmma_wait<1>();
                hold(dk);
                mbar_arrive(at.q_empty(last.stage));
            }
            mbar_wait(at.d_o_full(ring.stage), ring.phase);
            wgmma_fence();
            product_abt<T, BC, D>(dp, v, at.d_o(ring.stage));
            wgmma_commit();
            wgmma_wait<1>();
            hold(s);
            const float *lse = mine + ring.stage * 2 * BC, *delta = lse + BC;
#pragma unroll
            for (int j = 0; j < BC / 8; j++) {
                float2 l = *(const float2 *)(lse + 8 * j);
                s[4 * j] = fast_exp2(s[4 * j] * c - l.x);
                s[4 * j + 1] = fast_exp2(s[4 * j + 1] * c - l.y);
                s[4 * j + 2] = fast_exp2(s[4 * j + 2] * c - l.x);
                s[4 * j + 3] = fast_exp2(s[4 * j + 3] * c - l.y);
            }
            if (a.causal && row0 + 63 > tile * BC + shift) {
                int unseen = row - (tile * BC + shift + lane % 4 * 2); /* of the thread's columns */
#pragma unroll
                for (int j = 0; j < BC / 2; j++)
                    if (j / 4 * 8 + j % 2 < unseen + j % 4 / 2 * 8) s[j] = 0;
            }
            pack_tile<T, BC>(prob, s);
            wgmma_fence();
            product_pb<T, BC, D>(dv, prob, at.d_o(ring.stage), n > 0);
            wgmma_commit();
            wgmma_wait<1>();
            hold(dp);
#pragma unroll
            for (int j = 0; j < BC / 8; j++) {
                float2 l = *(const float2 *)(delta + 8 * j);
                s[4 * j] *= dp[4 * j] - l.x;
                s[4 * j + 1] *= dp[4 * j + 1] - l.y;
                s[4 * j + 2] *= dp[4 * j + 2] - l.x;
                s[4 * j + 3] *= dp[4 * j + 3] - l.y;
            }
            pack_tile<T, BC>(ds, s);
            wgmma_wait<0>();
            hold(dv);
            last = ring;
            ring.next();
            if (++tile == range.lo + range.count) tile = range.lo; /* the next head */
        };

        if (tiles > 0) {
            step(0, flag<true>());
            for (int n = 1; n < tiles; n++) step(n, flag<false>());
            wgmma_fence();
            product_pb<T, BC, D>(dk, ds, at.q(last.stage), tiles > 1);
            wgmma_commit();
            wgmma_wait<0>();
            hold(dk);
            mbar_arrive(at.q_empty(last.stage));
        } else {
#pragma unroll
            for (int j = 0; j < D / 2; j++) dk[j] = dv[j] = 0;
        }

        tile_put<T, D>(k, dk, a.scale, a.scale); /* the keys and values are no longer needed */
        tile_put<T, D>(v, dv, 1, 1);
        fence_async_proxy();
        named_sync(4 + wg, 128);
        if (first_thread) {
            tile_send<D>(&p.dk, k, row0, work.h, work.b);
            tile_send<D>(&p.dv, v, row0, work.h, work.b);
            tma_store_commit();
            tma_store_wait_read<0>();
            mbar_arrive(at.k_empty(kept.stage, wg));
        }
    }
}

template <typename T, int D> KM_DEVICE void hopper_dkdv(const km_attention_hopper_args &p) {
    using L = dkdv_layout<T, D>;
    extern __shared__ __align__(1024) char km_smem[];
    L at(km_smem);
    if (threadIdx.x == 0) {
        for (int i = 0; i < L::KEPT; i++)
            for (int wg = 0; wg < 2; wg++) {
                mbar_init(at.k_full(i, wg), 1);
                mbar_init(at.k_empty(i, wg), 1);
            }
        for (int i = 0; i < L::STAGES;
             i++) { /* emptied by every thread: each reads lse and delta */
            mbar_init(at.q_full(i), 1);
            mbar_init(at.d_o_full(i), 1);
            mbar_init(at.q_empty(i), 256);
        }
        mbar_init_fence();
    }
    __syncthreads();
    int wg = __shfl_sync(0xFFFFFFFF, (int)threadIdx.x / 128, 0);
    if (wg == 0) {
        registers_down<24>();
        if (threadIdx.x == 0) dkdv_produce<T, D>(p, at);
    } else {
        registers_up<240>();
        dkdv_consume<T, D>(p, at, wg - 1, km_smem);
    }
}

#define KM_ATTENTION_KERNEL(T, NAME, D)                                                            \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_HOPPER_THREADS, 1)                   \
        km_attention_dkdv_hopper_##NAME##_d##D(                                                    \
            const __grid_constant__ km_attention_hopper_args p) {                                  \
        hopper_dkdv<T, D>(p);                                                                      \
    }

KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 64)
KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 128)
KM_ATTENTION_KERNEL(__half, f16, 64)
KM_ATTENTION_KERNEL(__half, f16, 128)
