/* km-arch: 90a
 * Attention, forward, f16 and bf16 on Hopper: the online softmax of attention_fwd_mma.cu with
 * warpgroup products. A block stays on its multiprocessor and takes 128 queries after 128 queries;
 * its producer runs ahead, so the next queries and keys arrive while the last ones are finished.
 * Each consumer computes the scores of the next keys while it applies the last probabilities, and
 * takes the softmax of the one during the product of the other.
 *
 * Floor, causal: 2 * 2 * B*H*Tq*Tk/2 * D operations; bytes (2 Tq + 2 Tk) * B*H*D * 2; and
 * B*H*Tq*Tk/2 exponentials at 16 a cycle and multiprocessor, as long as the products at D = 64. */
#include "backend/cuda/kernels/attention_hopper.cuh"
#include "backend/cuda/kernels/common.cuh"

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
    ring_at<L::KEPT> kept;
    ring_at<L::STAGES> ring;
    for (; work.next(); kept.step()) {
        int hk = work.h / (a.heads / a.kv_heads);
        for (int wg = 0; wg < 2; wg++) {
            mbar_wait(at.q_empty(kept.index, wg), kept.parity ^ 1);
            uint32_t full = at.q_full(kept.index, wg);
            mbar_expect(full, L::Q_BYTES);
            tile_fetch<D, 64>(at.q(kept.index, wg), &p.q, full, work.block * 128 + wg * 64, work.h,
                              work.b);
        }
        for (int tile = key_tiles(a, work.block, L::BC) - 1; tile >= 0; tile--, ring.step()) {
            mbar_wait(at.k_empty(ring.index), ring.parity ^ 1);
            mbar_expect(at.k_full(ring.index), L::KV_BYTES);
            tile_fetch<D, L::BC>(at.k(ring.index), &p.k, at.k_full(ring.index), tile * L::BC, hk,
                                 work.b);
            mbar_wait(at.v_empty(ring.index), ring.parity ^ 1);
            mbar_expect(at.v_full(ring.index), L::KV_BYTES);
            tile_fetch<D, L::BC>(at.v(ring.index), &p.v, at.v_full(ring.index), tile * L::BC, hk,
                                 work.b);
        }
    }
}

/* The thread's two rows of a tile of scores, from key `key` on: those from the row's limit on
 * become -inf. */
template <int N, int USED = N>
KM_DEVICE void mask_scores(float (&s)[N / 2], int key, int limit0, int limit1) {
    int first = key + threadIdx.x % 4 * 2; /* the thread's first column */
    limit0 -= first;
    limit1 -= first;
#pragma unroll
    for (int j = 0; j < USED / 2; j++)
        if (j / 4 * 8 + j % 2 >= (j % 4 / 2 ? limit1 : limit0)) s[j] = -INFINITY;
}

/* Raw scores in, probabilities relative to the new row maximum out. alpha is what everything
 * accumulated before must be multiplied by; sum is of this thread's columns only. Columns from USED
 * on count as masked. */
template <int N, int USED = N>
KM_DEVICE void softmax_tile(float (&s)[N / 2], float (&top)[2], float (&sum)[2], float (&alpha)[2],
                            float c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m0 = s[2 * half], m1 = s[2 * half + 1];
#pragma unroll
        for (int j = 1; j < USED / 8; j++) {
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
        for (int j = 0; j < USED / 8; j++) {
            float *x = s + 4 * j + 2 * half;
            x[0] = fast_exp2(x[0] * c - base);
            x[1] = fast_exp2(x[1] * c - base);
            s0 += x[0];
            s1 += x[1];
        }
        sum[half] = sum[half] * alpha[half] + (s0 + s1);
    }
#pragma unroll
    for (int j = USED / 2; j < N / 2; j++) s[j] = 0;
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
    ring_at<L::KEPT> kept;
    ring_at<L::STAGES> ring;
    int sent = -1; /* the kept tile that the copy engine may still be reading as o */

    for (; work.next(); kept.step()) {
        int tiles = key_tiles(a, work.block, L::BC), row0 = work.block * 128 + wg * 64;
        int row = row0 + row_in_wg;
        int limit0 = a.tk, limit1 = a.tk; /* keys that the thread's rows see */
        if (a.causal) limit0 = min(a.tk, row + shift + 1), limit1 = min(a.tk, row + shift + 9);
        int clear = a.causal ? min(a.tk, row0 + shift + 1) : a.tk; /* keys that all rows see */
        float s[L::BC / 2], o[D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, alpha[2];
        uint32_t prob[L::BC / 16][4];
        uint32_t q = at.q(kept.index, wg);
        mbar_wait(at.q_full(kept.index, wg), kept.parity);

        if (tiles > 0) {
            int tile = tiles - 1;
            mbar_wait(at.k_full(ring.index), ring.parity);
            wgmma_fence();
            product_abt<T, L::BC, D>(s, q, at.k(ring.index));
            wgmma_commit();
            if (first_thread && sent >= 0) {
                tma_store_wait_read<0>();
                mbar_arrive(at.q_empty(sent, wg));
            }
            wgmma_wait<0>();
            hold(s);
            if (first_lane) mbar_arrive(at.k_empty(ring.index));
            if ((tile + 1) * L::BC > clear) mask_scores<L::BC>(s, tile * L::BC, limit0, limit1);
            softmax_tile<L::BC>(s, top, sum, alpha, c);
            pack_tile<T, L::BC>(prob, s);

            for (tile--; tile >= 0; tile--) {
                ring_at<L::STAGES> last = ring;
                ring.step();
                mbar_wait(at.k_full(ring.index), ring.parity);
                wgmma_fence();
                product_abt<T, L::BC, D>(s, q, at.k(ring.index));
                wgmma_commit();
                mbar_wait(at.v_full(last.index), last.parity);
                wgmma_fence();
                product_pb<T, L::BC, D>(o, prob, at.v(last.index), tile != tiles - 2);
                wgmma_commit();
                wgmma_wait<1>();
                hold(s);
                if (first_lane) mbar_arrive(at.k_empty(ring.index));
                if ((tile + 1) * L::BC > clear) mask_scores<L::BC>(s, tile * L::BC, limit0, limit1);
                softmax_tile<L::BC>(s, top, sum, alpha, c);
                pin_before_wait(sum[0] + sum[1], at.bars + 1016);
                wgmma_wait<0>();
                hold(o);
                if (first_lane) mbar_arrive(at.v_empty(last.index));
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] *= alpha[j % 4 / 2];
                pack_tile<T, L::BC>(prob, s);
            }
            mbar_wait(at.v_full(ring.index), ring.parity);
            wgmma_fence();
            product_pb<T, L::BC, D>(o, prob, at.v(ring.index), tiles > 1);
            wgmma_commit();
            wgmma_wait<0>();
            hold(o);
            if (first_lane) mbar_arrive(at.v_empty(ring.index));
            ring.step();
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
        sent = kept.index;
    }
    if (first_thread) tma_store_wait_read<0>();
}

/* ---- The same without a break between blocks of rows ----
 * The first scores of the next rows are computed together with the last product of these, so that
 * the products of one pay for the softmax of the other at every tile.
 *
 * TURNS: the consumers take turns to issue products. Otherwise the tensor cores serve both at once,
 * both get their scores late, and then both need the exponentials at the same time. */

constexpr int TURN_BAR = 2; /* named barriers, one for each consumer */

/* 2^x for x <= 0 without the exponential unit, to 8e-5: for some of the elements, while it is busy
 * with the others. Below 2^-126 it gives about 1e-38; a NaN does not come out as one. */
KM_DEVICE float slow_exp2(float x) {
    x = fmaxf(x, -126.0f);
    float n = x + 12582912.0f; /* the sum's last bits are x rounded to an integer */
    float f = x - (n - 12582912.0f);
    float y = fmaf(fmaf(fmaf(0.0551717f, f, 0.2426111f), f, 0.6932610f), f, 0.9999281f);
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(n) << 23));
}

/* softmax_tile with every fourth pair of elements by slow_exp2; no score is masked. */
template <int N>
KM_DEVICE void softmax_tile_mixed(float (&s)[N / 2], float (&top)[2], float (&sum)[2],
                                  float (&alpha)[2], float c) {
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
        float base = m == -INFINITY ? 0 : m * c;
        alpha[half] = fast_exp2(top[half] * c - base);
        top[half] = m;
        float s0 = 0, s1 = 0;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float *x = s + 4 * j + 2 * half;
            x[0] = j % 4 == 3 ? slow_exp2(x[0] * c - base) : fast_exp2(x[0] * c - base);
            x[1] = j % 4 == 3 ? slow_exp2(x[1] * c - base) : fast_exp2(x[1] * c - base);
            s0 += x[0];
            s1 += x[1];
        }
        sum[half] = sum[half] * alpha[half] + (s0 + s1);
    }
}

template <typename T, int D, bool TURNS, bool MIXED> struct fwd_stream {
    using L = fwd_layout<T, D>;
    const km_attention_hopper_args &p;
    L at;
    int wg;
    ring_at<L::KEPT> kept;
    ring_at<L::STAGES> ring, held; /* the next keys; the values that the probabilities wait for */
    int sent = -1;                 /* the kept tile that the copy engine may still be reading as o */
    float s[L::BC / 2], o[D / 2], top[2], sum[2], alpha[2], c;
    uint32_t prob[L::BC / 16][4];
    struct rows { /* of a block */
        int row0, h, b, kept, tiles;
    } now;

    KM_DEVICE fwd_stream(const km_attention_hopper_args &p_, L at_, int wg_)
        : p(p_), at(at_), wg(wg_), c(p_.a.scale * KM_LOG2E) {}

    /* Tells the compiler that the warp's threads have one value, which products want. */
    KM_DEVICE static uint32_t same(uint32_t x) {
        return (uint32_t)__shfl_sync(0xFFFFFFFF, (int)x, 0);
    }
    KM_DEVICE bool first_thread() { return threadIdx.x % 128 == 0; }
    KM_DEVICE void arrive(uint32_t bar) {
        if (threadIdx.x % 32 == 0) mbar_arrive(bar);
    }
    KM_DEVICE void turn_begin() {
        if (TURNS) named_sync(TURN_BAR + wg, 256);
    }
    KM_DEVICE void turn_end() {
        if (TURNS) named_arrive(TURN_BAR + 1 - wg, 256);
    }

    /* Gives the tile back that o was sent from. */
    KM_DEVICE void take_back() {
        if (sent >= 0 && first_thread()) {
            tma_store_wait_read<0>();
            mbar_arrive(at.q_empty(sent, wg));
        }
        sent = -1;
    }

    /* o, with these sums, to memory by way of the rows' own queries. */
    KM_DEVICE void finish(const rows &r, const float (&row_top)[2], const float (&row_sum)[2]) {
        const km_attention_args &a = p.a;
        int lane = threadIdx.x % 32, row = r.row0 + threadIdx.x % 128 / 32 * 16 + lane / 4;
        float inv[2];
        take_back();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = row_sum[half];
            x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
            x += __shfl_xor_sync(0xFFFFFFFF, x, 2);
            inv[half] = x == 0 ? 0 : 1 / x;
            int t = row + 8 * half;
            if (lane % 4 == 0 && t < a.tq)
                ((float *)a.lse.data)[r.b * a.lse.b + r.h * a.lse.h + t * a.lse.t] =
                    x == 0 ? -INFINITY : row_top[half] * a.scale + logf(x);
        }
        uint32_t q = at.q(r.kept, wg);
        tile_put<T, D>(q, o, inv[0], inv[1]); /* the queries are no longer needed */
        fence_async_proxy();
        named_sync(4 + wg, 128);
        if (first_thread()) {
            tile_send<D>(&p.o, q, r.row0, r.h, r.b);
            tma_store_commit();
        }
        sent = r.kept;
    }

    /* The scores of a tile of `now`; with PRODUCT at the same time what the probabilities at hand
     * add to o. FIRST: the tile is the first of its rows, and the product the last of `before`. */
    template <bool PRODUCT, bool FIRST> KM_DEVICE void step(int tile, const rows &before) {
        const km_attention_args &a = p.a;
        float old_top[2] = {top[0], top[1]}, old_sum[2] = {sum[0], sum[1]};
        uint32_t q = same(at.q(now.kept, wg)), k = same(at.k(ring.index)), v = same(at.v(held.index));
        mbar_wait(at.k_full(ring.index), ring.parity);
        if (PRODUCT) mbar_wait(at.v_full(held.index), held.parity);
        turn_begin();
        wgmma_fence();
        product_abt<T, L::BC, D>(s, q, k);
        wgmma_commit();
        if (PRODUCT) {
            wgmma_fence();
            product_pb<T, L::BC, D>(o, prob, v,
                                    FIRST ? before.tiles > 1 : tile != now.tiles - 2);
            wgmma_commit();
        }
        turn_end();
        if (!FIRST) take_back();
        wgmma_wait<PRODUCT ? 1 : 0>();
        hold(s);
        arrive(at.k_empty(ring.index));
        if (FIRST) top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
        int shift = a.tk - a.tq, clear = a.causal ? min(a.tk, now.row0 + shift + 1) : a.tk;
        if ((tile + 1) * L::BC > clear) { /* keys that not all rows see */
            int row = now.row0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            int limit0 = a.tk, limit1 = a.tk;
            if (a.causal) limit0 = min(a.tk, row + shift + 1), limit1 = min(a.tk, row + shift + 9);
            /* The mask's corner: half of it is beyond the last of 64 rows. */
            if (FIRST && a.causal && now.row0 + 64 + shift <= tile * L::BC + L::BC / 2) {
                mask_scores<L::BC, L::BC / 2>(s, tile * L::BC, limit0, limit1);
                softmax_tile<L::BC, L::BC / 2>(s, top, sum, alpha, c);
            } else {
                mask_scores<L::BC>(s, tile * L::BC, limit0, limit1);
                softmax_tile<L::BC>(s, top, sum, alpha, c);
            }
        } else if (MIXED) {
            softmax_tile_mixed<L::BC>(s, top, sum, alpha, c);
        } else {
            softmax_tile<L::BC>(s, top, sum, alpha, c);
        }
        if (PRODUCT) {
            pin_before_wait(sum[0] + sum[1], at.bars + 1016);
            wgmma_wait<0>();
            hold(o);
            arrive(at.v_empty(held.index));
            if (FIRST) {
                finish(before, old_top, old_sum);
            } else {
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] *= alpha[j % 4 / 2];
            }
        }
        pack_tile<T, L::BC>(prob, s);
        held = ring;
        ring.step();
    }

    /* The last product of `now`, with nothing to go along with it. */
    KM_DEVICE void end() {
        mbar_wait(at.v_full(held.index), held.parity);
        turn_begin();
        wgmma_fence();
        product_pb<T, L::BC, D>(o, prob, at.v(held.index), now.tiles > 1);
        wgmma_commit();
        turn_end();
        wgmma_wait<0>();
        hold(o);
        arrive(at.v_empty(held.index));
        finish(now, top, sum);
    }

    KM_DEVICE void run() {
        const km_attention_args &a = p.a;
        attention_schedule work(a.tq, a.heads, a.batch, a.causal);
        bool open = false; /* probabilities wait */
        if (TURNS && wg == 1) named_arrive(TURN_BAR, 256);
        for (; work.next(); kept.step()) {
            rows before = now;
            rows next = {work.block * 128 + wg * 64, work.h, work.b, kept.index,
                         key_tiles(a, work.block, L::BC)};
            if (next.tiles == 0) { /* no key is seen */
                if (open) end();
                open = false;
                now = next;
                mbar_wait(at.q_full(kept.index, wg), kept.parity);
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] = 0;
                top[0] = top[1] = -INFINITY;
                sum[0] = sum[1] = 0;
                finish(now, top, sum);
                continue;
            }
            now = next;
            mbar_wait(at.q_full(kept.index, wg), kept.parity);
            if (open)
                step<true, true>(now.tiles - 1, before);
            else
                step<false, true>(now.tiles - 1, before);
            for (int tile = now.tiles - 2; tile >= 0; tile--) step<true, false>(tile, before);
            open = true;
        }
        if (open) end();
        if (TURNS && wg == 0) named_sync(TURN_BAR, 256); /* what the other's last turn left */
        if (first_thread()) tma_store_wait_read<0>();
    }
};

/* VARIANT 0: fwd_consume; 1: fwd_stream; 2: with turns; 3: with turns and mixed exponentials. */
template <typename T, int D, int VARIANT>
KM_DEVICE void hopper_fwd(const km_attention_hopper_args &p) {
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
    if (VARIANT) wait_for_previous();
    int wg = __shfl_sync(0xFFFFFFFF, (int)threadIdx.x / 128, 0);
    if (wg == 0) {
        registers_down<24>();
        if (threadIdx.x == 0) fwd_produce<T, D>(p, at);
    } else {
        registers_up<240>();
        if constexpr (VARIANT == 0)
            fwd_consume<T, D>(p, at, wg - 1);
        else
            fwd_stream<T, D, (VARIANT > 1), (VARIANT > 2)>(p, at, wg - 1).run();
    }
}

#define KM_ATTENTION_KERNEL(T, NAME, D, SUFFIX, VARIANT)                                           \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_HOPPER_THREADS, 1)                   \
        km_attention_fwd_hopper##SUFFIX##_##NAME##_d##D(                                           \
            const __grid_constant__ km_attention_hopper_args p) {                                  \
        hopper_fwd<T, D, VARIANT>(p);                                                              \
    }
#define KM_ATTENTION_KERNELS(SUFFIX, VARIANT)                                                      \
    KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 64, SUFFIX, VARIANT)                                  \
    KM_ATTENTION_KERNEL(__nv_bfloat16, bf16, 128, SUFFIX, VARIANT)                                 \
    KM_ATTENTION_KERNEL(__half, f16, 64, SUFFIX, VARIANT)                                          \
    KM_ATTENTION_KERNEL(__half, f16, 128, SUFFIX, VARIANT)

KM_ATTENTION_KERNELS(, 0)
KM_ATTENTION_KERNELS(1, 1)
KM_ATTENTION_KERNELS(2, 2)
KM_ATTENTION_KERNELS(3, 3)
