/* km-arch: 90a
 * Attention's gradient by the queries on Hopper: dq = scale * dS K. A block keeps 128 queries and
 * their rows of d_o, and the keys and values stream past:
 *   S = Q K^T, P = exp(scale * S - lse), dP = dO V^T, dS = P * (dP - delta), dq += dS K.
 * A tile's dS K is issued together with the scores of the next tile. It also leaves lse and delta
 * in the workspace for dkdv, as attention_delta.cu does for the other families.
 *
 * Floor: 3 products of 2 * B*H*Tq*Tk * D operations, halved when causal. */
#include "backend/cuda/kernels/attention/attention_hopper.cuh"

template <typename T, int D> struct dq_layout {
    static constexpr int BC = KM_ATTENTION_HOPPER_COLS(KM_ATTENTION_DQ, D);
    static constexpr int STAGES = KM_ATTENTION_HOPPER_STAGES(KM_ATTENTION_DQ, D);
    static constexpr int KEPT = KM_ATTENTION_HOPPER_KEPT(KM_ATTENTION_DQ, D);
    static constexpr int Q_BYTES = 64 * D * 2, KV_BYTES = BC * D * 2;
    uint32_t base, bars;

    KM_DEVICE dq_layout(const char *smem) {
        base = (smem_addr(smem) + 1023) & ~1023u;
        bars = base + KEPT * 6 * Q_BYTES + STAGES * 2 * KV_BYTES;
    }
    KM_DEVICE uint32_t q(int i, int wg) { return base + (i * 2 + wg) * 3 * Q_BYTES; }
    KM_DEVICE uint32_t d_o(int i, int wg) { return q(i, wg) + Q_BYTES; }
    KM_DEVICE uint32_t o(int i, int wg) { return q(i, wg) + 2 * Q_BYTES; }
    KM_DEVICE uint32_t k(int i) { return base + KEPT * 6 * Q_BYTES + i * 2 * KV_BYTES; }
    KM_DEVICE uint32_t v(int i) { return k(i) + KV_BYTES; }
    KM_DEVICE uint32_t q_full(int i, int wg) { return bars + 8 * (2 * i + wg); }
    KM_DEVICE uint32_t q_empty(int i, int wg) { return q_full(KEPT + i, wg); }
    KM_DEVICE uint32_t k_full(int i) { return q_full(2 * KEPT, 0) + 8 * i; }
    KM_DEVICE uint32_t v_full(int i) { return k_full(STAGES + i); }
    KM_DEVICE uint32_t k_empty(int i) { return k_full(2 * STAGES + i); }
    KM_DEVICE uint32_t v_empty(int i) { return k_full(3 * STAGES + i); }
};

template <typename T, int D>
KM_DEVICE void dq_produce(const km_attention_hopper_args &p, dq_layout<T, D> at) {
    using L = dq_layout<T, D>;
    const km_attention_args &a = p.a;
    attention_schedule work(a.tq, a.heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;
    for (; work.next(); kept.next()) {
        int hk = work.h / (a.heads / a.kv_heads);
        for (int wg = 0; wg < 2; wg++) {
            mbar_wait(at.q_empty(kept.stage, wg), kept.phase ^ 1);
            uint32_t full = at.q_full(kept.stage, wg);
            int row = work.block * 128 + wg * 64;
            mbar_expect(full, 3 * L::Q_BYTES);
            tile_fetch<D, 64>(at.q(kept.stage, wg), &p.q, full, row, work.h, work.b);
            tile_fetch<D, 64>(at.d_o(kept.stage, wg), &p.d_o, full, row, work.h, work.b);
            tile_fetch<D, 64>(at.o(kept.stage, wg), &p.o, full, row, work.h, work.b);
        }
        for (int tile = key_tiles(a, work.block, L::BC) - 1; tile >= 0; tile--, ring.next()) {
            mbar_wait(at.k_empty(ring.stage), ring.phase ^ 1);
            mbar_expect(at.k_full(ring.stage), L::KV_BYTES);
            tile_fetch<D, L::BC>(at.k(ring.stage), &p.k, at.k_full(ring.stage), tile * L::BC, hk,
                                 work.b);
            mbar_wait(at.v_empty(ring.stage), ring.phase ^ 1);
            mbar_expect(at.v_full(ring.stage), L::KV_BYTES);
            tile_fetch<D, L::BC>(at.v(ring.stage), &p.v, at.v_full(ring.stage), tile * L::BC, hk,
                                 work.b);
        }
    }
}

KM_DEVICE float2 unpack2(uint32_t x, __nv_bfloat16) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000)};
}
KM_DEVICE float2 unpack2(uint32_t x, __half) { return __half22float2(*(const __half2 *)&x); }

/* delta = sum over d of o * d_o, for the thread's two rows. Two threads share a row of the two
 * 64 x D tiles, and the warp's 16 rows are those of its accumulators. */
template <typename T, int D>
KM_DEVICE void row_deltas(float (&delta)[2], const char *d_o, const char *o) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        int chunk = 2 * i % 8 + lane % 2;
        int at = 2 * i / 8 * KM_BOX_BYTES + row * 128 + ((chunk ^ (row & 7)) << 4);
        uint4 x = *(const uint4 *)(d_o + at), y = *(const uint4 *)(o + at);
        const uint32_t *xs = (const uint32_t *)&x, *ys = (const uint32_t *)&y;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float2 u = unpack2(xs[e], T()), v = unpack2(ys[e], T());
            sum += u.x * v.x + u.y * v.y;
        }
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    delta[0] = __shfl_sync(0xFFFFFFFF, sum, lane / 4 * 2);
    delta[1] = __shfl_sync(0xFFFFFFFF, sum, lane / 4 * 2 + 16);
}

template <typename T, int D>
KM_DEVICE void dq_consume(const km_attention_hopper_args &p, dq_layout<T, D> at, int wg,
                          const char *smem) {
    using L = dq_layout<T, D>;
    constexpr int BC = L::BC;
    const km_attention_args &a = p.a;
    int lane = threadIdx.x % 32, row_in_wg = threadIdx.x % 128 / 32 * 16 + lane / 4;
    bool first_lane = lane == 0, first_thread = threadIdx.x % 128 == 0;
    float c = a.scale * KM_LOG2E;
    int shift = a.tk - a.tq;
    attention_schedule work(a.tq, a.heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;

    for (; work.next(); kept.next()) {
        int tiles = key_tiles(a, work.block, BC), row0 = work.block * 128 + wg * 64;
        int row = row0 + row_in_wg;
        int limit0 = a.tk, limit1 = a.tk; /* keys that the thread's rows see */
        if (a.causal) limit0 = min(a.tk, row + shift + 1), limit1 = min(a.tk, row + shift + 9);
        int clear = a.causal ? min(a.tk, row0 + shift + 1) : a.tk; /* keys that all rows see */
        float s[BC / 2], dp[BC / 2], dq[D / 2];
        uint32_t ds[BC / 16][4];
        uint32_t q = at.q(kept.stage, wg), d_o = at.d_o(kept.stage, wg);
        mbar_wait(at.q_full(kept.stage, wg), kept.phase);

        /* lse and delta, which dkdv will read too. Rows that see no key, and rows past the end,
         * get +inf, so that their probabilities come out 0. */
        float lse[2], delta[2];
        const char *tiles_at = smem - smem_addr(smem);
        row_deltas<T, D>(delta, tiles_at + d_o, tiles_at + at.o(kept.stage, wg));
        float *w = a.work + ((int64_t)work.b * a.heads + work.h) * a.tq_pad + row;
        float *w2 = w + (int64_t)a.batch * a.heads * a.tq_pad;
        const float *l = (const float *)a.lse.data + work.b * a.lse.b + work.h * a.lse.h;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + 8 * half;
            float x = l[min(r, a.tq - 1) * a.lse.t]; /* no branch: the ring's state stays uniform */
            if (r >= a.tq) x = -INFINITY;
            lse[half] = x == -INFINITY ? INFINITY : x * KM_LOG2E;
            w[8 * half] = lse[half]; /* four lanes write the same, again for want of a branch */
            w2[8 * half] = delta[half];
        }

        /* One key tile: leaves dS in ds, and adds the last tile's dS K meanwhile. */
        Ring<L::STAGES> last;
        auto step = [&](int tile, auto first) {
            constexpr bool FIRST = decltype(first)::value;
            mbar_wait(at.k_full(ring.stage), ring.phase);
            wgmma_fence();
            if constexpr (!FIRST) {
                product_pb<T, BC, D>(dq, ds, at.k(last.stage), tile != tiles - 2);
                wgmma_commit();
            }
            product_abt<T, BC, D>(s, q, at.k(ring.stage));
            wgmma_commit();
            if constexpr (!FIRST) {
                wgmma_wait<1>();
                hold(dq);
                if (first_lane) mbar_arrive(at.k_empty(last.stage));
            }
            mbar_wait(at.v_full(ring.stage), ring.phase);
            wgmma_fence();
            product_abt<T, BC, D>(dp, d_o, at.v(ring.stage));
            wgmma_commit();
            wgmma_wait<1>();
            hold(s);
#pragma unroll
            for (int j = 0; j < BC / 2; j++) s[j] = fast_exp2(s[j] * c - lse[j % 4 / 2]);
            if ((tile + 1) * BC > clear) {
                int first_col = tile * BC + lane % 4 * 2;
                int left0 = limit0 - first_col, left1 = limit1 - first_col;
#pragma unroll
                for (int j = 0; j < BC / 2; j++)
                    if (j / 4 * 8 + j % 2 >= (j % 4 / 2 ? left1 : left0)) s[j] = 0;
            }
            wgmma_wait<0>();
            hold(dp);
            if (first_lane) mbar_arrive(at.v_empty(ring.stage));
#pragma unroll
            for (int j = 0; j < BC / 2; j++) s[j] *= dp[j] - delta[j % 4 / 2];
            pack_tile<T, BC>(ds, s);
            last = ring;
            ring.next();
        };

        if (tiles > 0) {
            step(tiles - 1, flag<true>());
            for (int tile = tiles - 2; tile >= 0; tile--) step(tile, flag<false>());
            wgmma_fence();
            product_pb<T, BC, D>(dq, ds, at.k(last.stage), tiles > 1);
            wgmma_commit();
            wgmma_wait<0>();
            hold(dq);
            if (first_lane) mbar_arrive(at.k_empty(last.stage));
        } else {
#pragma unroll
            for (int j = 0; j < D / 2; j++) dq[j] = 0;
        }

        tile_put<T, D>(q, dq, a.scale, a.scale); /* the queries are no longer needed */
        fence_async_proxy();
        named_sync(4 + wg, 128);
        if (first_thread) {
            tile_send<D>(&p.dq, q, row0, work.h, work.b);
            tma_store_commit();
            tma_store_wait_read<0>();
            mbar_arrive(at.q_empty(kept.stage, wg));
        }
    }
}

template <typename T, int D> KM_DEVICE void hopper_dq(const km_attention_hopper_args &p) {
    using L = dq_layout<T, D>;
    extern __shared__ __align__(1024) char km_smem[];
    L at(km_smem);
    if (threadIdx.x == 0) {
        for (int i = 0; i < L::KEPT; i++)
            for (int wg = 0; wg < 2; wg++) {
                mbar_init(at.q_full(i, wg), 1);
                mbar_init(at.q_empty(i, wg), 1);
            }
        for (int i = 0; i < L::STAGES; i++) { /* emptied by the 8 consumer warps */
            mbar_init(at.k_full(i), 1);
            mbar_init(at.v_full(i), 1);
            mbar_init(at.k_empty(i), 8);
            mbar_init(at.v_empty(i), 8);
        }
        mbar_init_fence();
    }
    __syncthreads();
    int wg = __shfl_sync(0xFFFFFFFF, (int)threadIdx.x / 128, 0);
    if (wg == 0) {
        registers_down<24>();
        if (threadIdx.x == 0) dq_produce<T, D>(p, at);
    } else {
        registers_up<240>();
        dq_consume<T, D>(p, at, wg - 1, km_smem);
    }
}

#define KM_ATTENTION_KERNEL(T, NAME, D)                                                            \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_HOPPER_THREADS, 1)                   \
        km_attention_dq_hopper_##NAME##_d##D(const __grid_constant__ km_attention_hopper_args p) { \
        hopper_dq<T, D>(p);                                                                        \
    }

KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 64)
KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 128)
KM_ATTENTION_KERNEL(__half, f16, 64)
KM_ATTENTION_KERNEL(__half, f16, 128)
