/* km-arch: 90a
 * Attention, forward, f16 and bf16 on Hopper: the online softmax of attention_fwd_mma.cu with
 * warpgroup products. A block stays on its multiprocessor and takes 128 queries after 128 queries;
 * its producer runs ahead, so the next queries and keys arrive while the last ones are finished.
 * Each consumer computes the scores of the next keys while it applies the last probabilities, and
 * takes the softmax of the one during the product of the other.
 *
 * Floor, causal: 2 * 2 * B*H*Tq*Tk/2 * D operations; bytes (2 Tq + 2 Tk) * B*H*D * 2; and
 * B*H*Tq*Tk/2 exponentials at 16 a cycle and multiprocessor, as long as the products at D = 64. */
#include "backend/cuda/kernels/attention/attention_hopper.cuh"

template <typename T, int D> struct fwd_layout {
    static constexpr int BC = KM_ATTENTION_HOPPER_COLS(KM_ATTENTION_FWD, D);
    static constexpr int STAGES = KM_ATTENTION_HOPPER_STAGES(KM_ATTENTION_FWD, D);
    static constexpr int KEPT = KM_ATTENTION_HOPPER_KEPT(KM_ATTENTION_FWD, D);
    static constexpr int Q_BYTES = 64 * D * 2, KV_BYTES = BC * D * 2;
    uint32_t base, bars;

    KM_DEVICE fwd_layout(const char *smem) {
        base = (smem_addr(smem) + 1023) & ~1023u;
        bars = base + KEPT * 2 * Q_BYTES + STAGES * 2 * KV_BYTES;
    }
    KM_DEVICE uint32_t q(int i, int wg) { return base + (i * 2 + wg) * Q_BYTES; }
    KM_DEVICE uint32_t k(int i) { return base + KEPT * 2 * Q_BYTES + i * 2 * KV_BYTES; }
    KM_DEVICE uint32_t v(int i) { return k(i) + KV_BYTES; }
    KM_DEVICE uint32_t q_full(int i, int wg) { return bars + 8 * (2 * i + wg); }
    KM_DEVICE uint32_t q_empty(int i, int wg) { return q_full(KEPT + i, wg); }
    KM_DEVICE uint32_t k_full(int i) { return q_full(2 * KEPT, 0) + 8 * i; }
    KM_DEVICE uint32_t v_full(int i) { return k_full(STAGES + i); }
    KM_DEVICE uint32_t k_empty(int i) { return k_full(2 * STAGES + i); }
    KM_DEVICE uint32_t v_empty(int i) { return k_full(3 * STAGES + i); }
};

template <typename T, int D>
KM_DEVICE void fwd_produce(const km_attention_hopper_args &p, fwd_layout<T, D> at) {
    using L = fwd_layout<T, D>;
    const km_attention_args &a = p.a;
    attention_schedule work(a.tq, a.heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;
    for (; work.next(); kept.next()) {
        int hk = work.h / (a.heads / a.kv_heads);
        for (int wg = 0; wg < 2; wg++) {
            mbar_wait(at.q_empty(kept.stage, wg), kept.phase ^ 1);
            uint32_t full = at.q_full(kept.stage, wg);
            mbar_expect(full, L::Q_BYTES);
            tile_fetch<D, 64>(at.q(kept.stage, wg), &p.q, full, work.block * 128 + wg * 64, work.h,
                              work.b);
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

/* The thread's two rows of a tile of scores, from key `key` on: those from the row's limit on
 * become -inf. */
template <int N> KM_DEVICE void mask_scores(float (&s)[N / 2], int key, int limit0, int limit1) {
    int first = key + threadIdx.x % 4 * 2; /* the thread's first column */
    limit0 -= first;
    limit1 -= first;
#pragma unroll
    for (int j = 0; j < N / 2; j++)
        if (j / 4 * 8 + j % 2 >= (j % 4 / 2 ? limit1 : limit0)) s[j] = -INFINITY;
}

/* Raw scores in, probabilities relative to the new row maximum out. alpha is what everything
 * accumulated before must be multiplied by; sum is of this thread's columns only. */
template <int N>
KM_DEVICE void softmax_tile(float (&s)[N / 2], float (&top)[2], float (&sum)[2], float (&alpha)[2],
                            float c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m0 = s[2 * half], m1 = s[2 * half + 1];
#pragma unroll
        for (int j = 1; j < N / 8; j++) {
            m0 = fmaxf(m0, s[4 * j + 2 * half]);
            m1 = fmaxf(m1, s[4 * j + 2 * half + 1]);
        }
        float m = fmaxf(top[half], fmaxf(m0, m1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, 2));
        float base = m == -INFINITY ? 0 : m * c; /* no key seen yet: all stay 0 */
        alpha[half] = fast_exp2(top[half] * c - base);
        top[half] = m;
        float s0 = 0, s1 = 0;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float *x = s + 4 * j + 2 * half;
            x[0] = fast_exp2(x[0] * c - base);
            x[1] = fast_exp2(x[1] * c - base);
            s0 += x[0];
            s1 += x[1];
        }
        sum[half] = sum[half] * alpha[half] + (s0 + s1);
    }
}

template <typename T, int D>
KM_DEVICE void fwd_consume(const km_attention_hopper_args &p, fwd_layout<T, D> at, int wg) {
    using L = fwd_layout<T, D>;
    const km_attention_args &a = p.a;
    int lane = threadIdx.x % 32, row_in_wg = threadIdx.x % 128 / 32 * 16 + lane / 4;
    bool first_lane = lane == 0, first_thread = threadIdx.x % 128 == 0;
    float c = a.scale * KM_LOG2E;
    int shift = a.tk - a.tq;
    attention_schedule work(a.tq, a.heads, a.batch, a.causal);
    Ring<L::KEPT> kept;
    Ring<L::STAGES> ring;
    int sent = -1; /* the kept tile that the copy engine may still be reading as o */

    for (; work.next(); kept.next()) {
        int tiles = key_tiles(a, work.block, L::BC), row0 = work.block * 128 + wg * 64;
        int row = row0 + row_in_wg;
        int limit0 = a.tk, limit1 = a.tk; /* keys that the thread's rows see */
        if (a.causal) limit0 = min(a.tk, row + shift + 1), limit1 = min(a.tk, row + shift + 9);
        int clear = a.causal ? min(a.tk, row0 + shift + 1) : a.tk; /* keys that all rows see */
        float s[L::BC / 2], o[D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, alpha[2];
        uint32_t prob[L::BC / 16][4];
        uint32_t q = at.q(kept.stage, wg);
        mbar_wait(at.q_full(kept.stage, wg), kept.phase);

        if (tiles > 0) {
            int tile = tiles - 1;
            mbar_wait(at.k_full(ring.stage), ring.phase);
            wgmma_fence();
            product_abt<T, L::BC, D>(s, q, at.k(ring.stage));
            wgmma_commit();
            if (first_thread && sent >= 0) {
                tma_store_wait_read<0>();
                mbar_arrive(at.q_empty(sent, wg));
            }
            wgmma_wait<0>();
            hold(s);
            if (first_lane) mbar_arrive(at.k_empty(ring.stage));
            if ((tile + 1) * L::BC > clear) mask_scores<L::BC>(s, tile * L::BC, limit0, limit1);
            softmax_tile<L::BC>(s, top, sum, alpha, c);
            pack_tile<T, L::BC>(prob, s);

            for (tile--; tile >= 0; tile--) {
                Ring<L::STAGES> last = ring;
                ring.next();
                mbar_wait(at.k_full(ring.stage), ring.phase);
                wgmma_fence();
                product_abt<T, L::BC, D>(s, q, at.k(ring.stage));
                wgmma_commit();
                mbar_wait(at.v_full(last.stage), last.phase);
                wgmma_fence();
                product_pb<T, L::BC, D>(o, prob, at.v(last.stage), tile != tiles - 2);
                wgmma_commit();
                wgmma_wait<1>();
                hold(s);
                if (first_lane) mbar_arrive(at.k_empty(ring.stage));
                if ((tile + 1) * L::BC > clear) mask_scores<L::BC>(s, tile * L::BC, limit0, limit1);
                softmax_tile<L::BC>(s, top, sum, alpha, c);
                pin_before_wait(sum[0] + sum[1], at.bars + 1016);
                wgmma_wait<0>();
                hold(o);
                if (first_lane) mbar_arrive(at.v_empty(last.stage));
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] *= alpha[j % 4 / 2];
                pack_tile<T, L::BC>(prob, s);
            }
            mbar_wait(at.v_full(ring.stage), ring.phase);
            wgmma_fence();
            product_pb<T, L::BC, D>(o, prob, at.v(ring.stage), tiles > 1);
            wgmma_commit();
            wgmma_wait<0>();
            hold(o);
            if (first_lane) mbar_arrive(at.v_empty(ring.stage));
            ring.next();
        } else {
#pragma unroll
            for (int j = 0; j < D / 2; j++) o[j] = 0;
            if (first_thread && sent >= 0) {
                tma_store_wait_read<0>();
                mbar_arrive(at.q_empty(sent, wg));
            }
        }

        float inv[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = sum[half];
            x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
            x += __shfl_xor_sync(0xFFFFFFFF, x, 2);
            inv[half] = x == 0 ? 0 : 1 / x;
            int r = row + 8 * half;
            if (lane % 4 == 0 && r < a.tq)
                ((float *)a.lse.data)[work.b * a.lse.b + work.h * a.lse.h + r * a.lse.t] =
                    x == 0 ? -INFINITY : top[half] * a.scale + logf(x);
        }
        tile_put<T, D>(q, o, inv[0], inv[1]); /* the queries are no longer needed */
        fence_async_proxy();
        named_sync(4 + wg, 128);
        if (first_thread) {
            tile_send<D>(&p.o, q, row0, work.h, work.b);
            tma_store_commit();
        }
        sent = kept.stage;
    }
    if (first_thread) tma_store_wait_read<0>();
}

template <typename T, int D> KM_DEVICE void hopper_fwd(const km_attention_hopper_args &p) {
    using L = fwd_layout<T, D>;
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
        if (threadIdx.x == 0) fwd_produce<T, D>(p, at);
    } else {
        registers_up<240>();
        fwd_consume<T, D>(p, at, wg - 1);
    }
}

#define KM_ATTENTION_KERNEL(T, NAME, D)                                                            \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_HOPPER_THREADS, 1)                   \
        km_attention_fwd_hopper_##NAME##_d##D(                                                     \
            const __grid_constant__ km_attention_hopper_args p) {                                  \
        hopper_fwd<T, D>(p);                                                                       \
    }

KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 64)
KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 128)
KM_ATTENTION_KERNEL(__half, f16, 64)
KM_ATTENTION_KERNEL(__half, f16, 128)
