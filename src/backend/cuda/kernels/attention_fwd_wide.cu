/* km-arch: 90a
 * Attention, forward, head size 64, f16 and bf16 on Hopper. As attention_fwd_hopper.cu, with three
 * consumers of 64 rows: at this head size the exponentials of a tile take as long as its products,
 * and a consumer that issues products does little else meanwhile, so it takes three to keep both
 * units busy. Each consumer leaves out the tiles that the mask hides from its own rows.
 *
 * Blocks of 192 rows are taken as they come, the longest of a few heads first, so that short ones
 * fill up the end. They are counted from the last row back: where rows are missing, it is in the
 * first block, which sees the fewest keys.
 *
 * Floor: see attention_fwd_hopper.cu. */
#include "backend/cuda/kernels/attention_hopper.cuh"
#include "backend/cuda/kernels/common.cuh"

constexpr int WIDE_D = 64, WIDE_WGS = KM_ATTENTION_WIDE_ROWS / 64, WIDE_BC = KM_ATTENTION_WIDE_COLS;
constexpr int WIDE_STAGES = KM_ATTENTION_WIDE_STAGES, WIDE_KEPT = KM_ATTENTION_WIDE_KEPT;

struct wide_layout {
    static constexpr int Q_BYTES = 64 * WIDE_D * 2, KV_BYTES = WIDE_BC * WIDE_D * 2;
    uint32_t base, bars;
    volatile int *taken; /* for each kept tile: the number of its block of rows, or -1 */

    KM_DEVICE wide_layout(char *smem) {
        uint32_t at = smem_addr(smem);
        base = (at + 1023) & ~1023u;
        bars = base + WIDE_KEPT * WIDE_WGS * Q_BYTES + WIDE_STAGES * 2 * KV_BYTES;
        taken = (volatile int *)(smem + (bars - at) + 512);
    }
    KM_DEVICE uint32_t q(int i, int wg) { return base + (i * WIDE_WGS + wg) * Q_BYTES; }
    KM_DEVICE uint32_t k(int i) { return q(WIDE_KEPT, 0) + i * 2 * KV_BYTES; }
    KM_DEVICE uint32_t v(int i) { return k(i) + KV_BYTES; }
    KM_DEVICE uint32_t q_full(int i, int wg) { return bars + 8 * (WIDE_WGS * i + wg); }
    KM_DEVICE uint32_t q_empty(int i, int wg) { return q_full(WIDE_KEPT + i, wg); }
    KM_DEVICE uint32_t k_full(int i) { return q_full(2 * WIDE_KEPT, 0) + 8 * i; }
    KM_DEVICE uint32_t v_full(int i) { return k_full(WIDE_STAGES + i); }
    KM_DEVICE uint32_t k_empty(int i) { return k_full(2 * WIDE_STAGES + i); }
    KM_DEVICE uint32_t v_empty(int i) { return k_full(3 * WIDE_STAGES + i); }
};

/* A block of rows: its first row (negative where rows are missing), head, and tiles of keys. */
struct wide_rows {
    int row, h, b, tiles;

    KM_DEVICE static int blocks(const km_attention_args &a) {
        return (a.tq + KM_ATTENTION_WIDE_ROWS - 1) / KM_ATTENTION_WIDE_ROWS;
    }
    KM_DEVICE static int count(const km_attention_args &a) {
        return blocks(a) * a.heads * a.batch;
    }
    KM_DEVICE static int tiles_to(const km_attention_args &a, int row) { /* rows below `row` */
        int keys = a.causal ? min(a.tk, row + a.tk - a.tq) : a.tk;
        return keys > 0 ? (keys + WIDE_BC - 1) / WIDE_BC : 0;
    }
    KM_DEVICE wide_rows() {}
    /* Heads go in groups that give each multiprocessor two blocks or so: what is at work at one
     * time shares keys and values in L2. */
    KM_DEVICE wide_rows(const km_attention_args &a, int number) {
        int per_head = blocks(a), heads = a.heads * a.batch;
        int group = max(2 * (int)gridDim.x / per_head, 1), first = number / (group * per_head) * group;
        int within = number - first * per_head, here = min(group, heads - first);
        int block = per_head - 1 - within / here, head = first + within % here;
        row = (a.tq + 63) / 64 * 64 - (per_head - block) * KM_ATTENTION_WIDE_ROWS;
        h = head % a.heads;
        b = head / a.heads;
        tiles = tiles_to(a, min(row + KM_ATTENTION_WIDE_ROWS, a.tq));
    }
};

KM_DEVICE void wide_produce(const km_attention_hopper_args &p, wide_layout at) {
    const km_attention_args &a = p.a;
    int count = wide_rows::count(a);
    ring_at<WIDE_KEPT> kept;
    ring_at<WIDE_STAGES> ring;
    for (;; kept.step()) {
        int number = (int)atomicAdd(a.next, 1u);
        bool done = number >= count;
        for (int wg = 0; wg < WIDE_WGS; wg++) mbar_wait(at.q_empty(kept.index, wg), kept.parity ^ 1);
        at.taken[kept.index] = done ? -1 : number;
        if (done) {
            for (int wg = 0; wg < WIDE_WGS; wg++) mbar_arrive(at.q_full(kept.index, wg));
            /* Every block comes here once: the last of them leaves the counter as it was. */
            if (number == count + (int)gridDim.x - 1) *a.next = 0;
            return;
        }
        wide_rows r(a, number);
        int hk = r.h / (a.heads / a.kv_heads);
        for (int wg = 0; wg < WIDE_WGS; wg++) {
            uint32_t full = at.q_full(kept.index, wg);
            mbar_expect(full, wide_layout::Q_BYTES);
            tile_fetch<WIDE_D, 64>(at.q(kept.index, wg), &p.q, full, r.row + wg * 64, r.h, r.b);
        }
        for (int tile = r.tiles - 1; tile >= 0; tile--, ring.step()) {
            mbar_wait(at.k_empty(ring.index), ring.parity ^ 1);
            mbar_expect(at.k_full(ring.index), wide_layout::KV_BYTES);
            tile_fetch<WIDE_D, WIDE_BC>(at.k(ring.index), &p.k, at.k_full(ring.index),
                                        tile * WIDE_BC, hk, r.b);
            mbar_wait(at.v_empty(ring.index), ring.parity ^ 1);
            mbar_expect(at.v_full(ring.index), wide_layout::KV_BYTES);
            tile_fetch<WIDE_D, WIDE_BC>(at.v(ring.index), &p.v, at.v_full(ring.index),
                                        tile * WIDE_BC, hk, r.b);
        }
    }
}

template <typename T> struct wide_consumer {
    const km_attention_hopper_args &p;
    wide_layout at;
    int wg;
    ring_at<WIDE_KEPT> kept;
    ring_at<WIDE_STAGES> ring, held; /* the next keys; the values that the probabilities wait for */
    int sent = -1;                   /* the kept tile that the copy engine may still be reading as o */
    float s[WIDE_BC / 2], o[WIDE_D / 2], top[2], sum[2], alpha[2], c;
    uint32_t prob[WIDE_BC / 16][4];
    struct rows { /* this consumer's 64 of a block; tiles: those that some of them see */
        int number, row, kept, tiles;
    } now;

    KM_DEVICE wide_consumer(const km_attention_hopper_args &p_, wide_layout at_, int wg_)
        : p(p_), at(at_), wg(wg_), c(p_.a.scale * KM_LOG2E) {}

    /* Tells the compiler that the warp's threads have one value, which products want. */
    KM_DEVICE static uint32_t same(uint32_t x) {
        return (uint32_t)__shfl_sync(0xFFFFFFFF, (int)x, 0);
    }
    KM_DEVICE bool first_thread() { return threadIdx.x % 128 == 0; }
    KM_DEVICE void arrive(uint32_t bar) {
        if (threadIdx.x % 32 == 0) mbar_arrive(bar);
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
        int lane = threadIdx.x % 32, row = r.row + threadIdx.x % 128 / 32 * 16 + lane / 4;
        wide_rows of(a, r.number); /* which takes less than keeping its parts in registers */
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
                ((float *)a.lse.data)[of.b * a.lse.b + of.h * a.lse.h + t * a.lse.t] =
                    x == 0 ? -INFINITY : row_top[half] * a.scale + logf(x);
        }
        uint32_t q = at.q(r.kept, wg);
        tile_put<T, WIDE_D>(q, o, inv[0], inv[1]); /* the queries are no longer needed */
        fence_async_proxy();
        named_sync(4 + wg, 128);
        if (first_thread()) {
            tile_send<WIDE_D>(&p.o, q, r.row, of.h, of.b);
            tma_store_commit();
        }
        sent = r.kept;
    }

    /* A tile that is for the other consumers. */
    KM_DEVICE void pass() {
        mbar_wait(at.k_full(ring.index), ring.parity);
        arrive(at.k_empty(ring.index));
        mbar_wait(at.v_full(ring.index), ring.parity);
        arrive(at.v_empty(ring.index));
        ring.step();
    }

    /* The scores of a tile of `now`; with PRODUCT at the same time what the probabilities at hand
     * add to o. FIRST: the tile is the first of its rows, and the product the last of `before`. */
    template <bool PRODUCT, bool FIRST> KM_DEVICE void step(int tile, const rows &before) {
        const km_attention_args &a = p.a;
        float old_top[2] = {top[0], top[1]}, old_sum[2] = {sum[0], sum[1]};
        uint32_t q = same(at.q(now.kept, wg)), k = same(at.k(ring.index)), v = same(at.v(held.index));
        mbar_wait(at.k_full(ring.index), ring.parity);
        if (PRODUCT) mbar_wait(at.v_full(held.index), held.parity);
        wgmma_fence();
        product_abt<T, WIDE_BC, WIDE_D>(s, q, k);
        wgmma_commit();
        if (PRODUCT) {
            wgmma_fence();
            product_pb<T, WIDE_BC, WIDE_D>(o, prob, v,
                                           FIRST ? before.tiles > 1 : tile != now.tiles - 2);
            wgmma_commit();
        }
        if (!FIRST) take_back();
        wgmma_wait<PRODUCT ? 1 : 0>();
        hold(s);
        arrive(at.k_empty(ring.index));
        if (FIRST) top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
        int shift = a.tk - a.tq, clear = a.causal ? min(a.tk, now.row + shift + 1) : a.tk;
        if ((tile + 1) * WIDE_BC > clear) { /* keys that not all rows see */
            int row = now.row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            int limit0 = a.tk, limit1 = a.tk;
            if (a.causal) limit0 = min(a.tk, row + shift + 1), limit1 = min(a.tk, row + shift + 9);
            /* The mask's corner: half of it is beyond the last of 64 rows. */
            if (FIRST && a.causal && now.row + 64 + shift <= tile * WIDE_BC + WIDE_BC / 2) {
                mask_scores<WIDE_BC, WIDE_BC / 2>(s, tile * WIDE_BC, limit0, limit1);
                softmax_tile<WIDE_BC, WIDE_BC / 2>(s, top, sum, alpha, c);
            } else {
                mask_scores<WIDE_BC>(s, tile * WIDE_BC, limit0, limit1);
                softmax_tile<WIDE_BC>(s, top, sum, alpha, c);
            }
        } else {
            softmax_tile<WIDE_BC>(s, top, sum, alpha, c);
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
                for (int j = 0; j < WIDE_D / 2; j++) o[j] *= alpha[j % 4 / 2];
            }
        }
        pack_tile<T, WIDE_BC>(prob, s);
        held = ring;
        ring.step();
    }

    /* The last product of `now`, with nothing to go along with it. */
    KM_DEVICE void end() {
        uint32_t v = same(at.v(held.index));
        mbar_wait(at.v_full(held.index), held.parity);
        wgmma_fence();
        product_pb<T, WIDE_BC, WIDE_D>(o, prob, v, now.tiles > 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(o);
        arrive(at.v_empty(held.index));
        finish(now, top, sum);
    }

    KM_DEVICE void run() {
        const km_attention_args &a = p.a;
        bool open = false; /* probabilities wait */
        for (;; kept.step()) {
            /* What finish left must be given back before the tile after next is waited for. */
            if (!open) take_back();
            mbar_wait(at.q_full(kept.index, wg), kept.parity);
            int number = (int)same((uint32_t)at.taken[kept.index]);
            if (number < 0) break;
            wide_rows block(a, number);
            rows before = now;
            rows next = {number, block.row + wg * 64, kept.index, 0};
            if (next.row >= 0) next.tiles = wide_rows::tiles_to(a, min(next.row + 64, a.tq));
            int others = block.tiles - next.tiles;
            /* Values that wait may hold up the producer. */
            if (open && (next.tiles == 0 || others > 1)) {
                end();
                open = false;
            }
            for (; others > 0; others--) pass();
            now = next;
            if (now.tiles == 0 && now.row >= 0) { /* no key is seen */
#pragma unroll
                for (int j = 0; j < WIDE_D / 2; j++) o[j] = 0;
                top[0] = top[1] = -INFINITY;
                sum[0] = sum[1] = 0;
                finish(now, top, sum);
            } else if (now.tiles == 0) { /* no rows */
                take_back();
                if (first_thread()) mbar_arrive(at.q_empty(kept.index, wg));
            } else {
                if (open)
                    step<true, true>(now.tiles - 1, before);
                else
                    step<false, true>(now.tiles - 1, before);
                for (int tile = now.tiles - 2; tile >= 0; tile--) step<true, false>(tile, before);
                open = true;
            }
        }
        if (open) end();
        if (first_thread()) tma_store_wait_read<0>();
    }
};

template <typename T> KM_DEVICE void wide_fwd(const km_attention_hopper_args &p) {
    extern __shared__ __align__(1024) char km_smem[];
    wide_layout at(km_smem);
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_KEPT; i++)
            for (int wg = 0; wg < WIDE_WGS; wg++) {
                mbar_init(at.q_full(i, wg), 1);
                mbar_init(at.q_empty(i, wg), 1);
            }
        for (int i = 0; i < WIDE_STAGES; i++) { /* emptied by the consumers' warps */
            mbar_init(at.k_full(i), 1);
            mbar_init(at.v_full(i), 1);
            mbar_init(at.k_empty(i), 4 * WIDE_WGS);
            mbar_init(at.v_empty(i), 4 * WIDE_WGS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    wait_for_previous();
    int wg = __shfl_sync(0xFFFFFFFF, (int)threadIdx.x / 128, 0);
    if (wg == 0) {
        registers_down<32>();
        if (threadIdx.x == 0) wide_produce(p, at);
    } else {
        registers_up<160>();
        wide_consumer<T>(p, at, wg - 1).run();
    }
}

#define KM_ATTENTION_KERNEL(T, NAME)                                                               \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_WIDE_THREADS, 1)                     \
        km_attention_fwd_wide_##NAME##_d64(const __grid_constant__ km_attention_hopper_args p) {   \
        wide_fwd<T>(p);                                                                            \
    }

KM_ATTENTION_KERNEL(__nv_bfloat16, bf16)
KM_ATTENTION_KERNEL(__half, f16)
