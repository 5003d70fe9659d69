// Rows of more than 64 KiB on Hopper. A row is split over the blocks of a cluster, one block to a
// multiprocessor, and the clusters walk over the rows. Each block has room for two parts of rows in
// shared memory: while its warps work on one, the copy engine fetches the next, so that memory never
// waits for arithmetic. A row needs one reduction: what threads know of their own elements is joined
// over warps, the block and the cluster, always in the same order.
//
// Barriers, by the number k of the row in the block's walk (buffer k % 2, phase k / 2):
//   full[k % 2]         the fetching thread and the copied bytes; all compute threads wait
//   named EMPTY + k % 2 compute threads when they have read the part for the last time; the fetching
//                       warp waits before it overwrites the part. Named barriers cost an instruction
//                       a warp, and compute threads do not stop at them.
//   arrived[k % 2]      what the blocks of the cluster sent for row k (row.cuh)
// Blocks talk through lanes of their first warp: lane r sends to block r and reads what block r sent.
// So two places are enough for by_block: block r sends for row k + 2 only when it has heard of row
// k + 1 from this block's lane r, which by then has read what came for row k.
#ifndef KM_CUDA_WIDE_ROWS_CUH
#define KM_CUDA_WIDE_ROWS_CUH
#include "backend/cuda/kernels/rows/row.cuh"
#include "backend/cuda/kernels/wgmma.cuh"
#include "backend/cuda/kernels/rows/wide_args.h"

constexpr int THREADS = KM_WIDE_THREADS, WARPS = THREADS / 32;
constexpr int JOIN = 1, EMPTY = 2; // named barriers; EMPTY is two of them
constexpr int WARP_SLOTS = WARPS > 16  ? 32
                           : WARPS > 8 ? 16
                                       : 8; // lanes that join the warps' numbers

// exp(x) for x <= 0; what is below 1e-38 comes out as 0.
__device__ __forceinline__ float exp_down(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

template <int LANES> __device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) v += __shfl_xor_sync(ALL_LANES, v, by);
    return v;
}
template <int LANES> __device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, by));
    return v;
}

template <class T> struct Wide {
    static constexpr int W = WIDE<T>;
    typedef Pack<T, W> P;
    struct Shared {
        uint64_t full[2], arrived[2], weights;
        float2 by_warp[2][WARPS], by_block[2][KM_WIDE_MOST], joined[2];
    };

    int blocks, me;               // of the cluster
    int packs, per, first, count; // of the row; to a block, at most; where mine begin; how many
    int64_t row, step;            // of this cluster
    int k = 0;                    // rows done
    const P *room;                // two parts of rows, then the weights' parts

    __device__ Wide(int n) : packs(n / W) {
        extern __shared__ __align__(128) unsigned char dynamic[];
        room = reinterpret_cast<const P *>(dynamic);
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
        me = blockIdx.x % blocks;
        row = blockIdx.x / blocks;
        step = gridDim.x / blocks;
        per = (packs + blocks - 1) / blocks;
        first = me * per;
        count = min(per, packs - first);
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2; i++) {
                mbar_init(smem_addr(&shared().full[i]), 1);
                mbar_init(smem_addr(&shared().arrived[i]), blocks);
            }
            mbar_init(smem_addr(&shared().weights), 1);
            mbar_init_fence();
        }
        // No message may come, and no copy begin, before the barriers are there.
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }

    __device__ static Shared &shared() {
        __shared__ Shared s;
        return s;
    }

    // The last warp: fetches weights (either may be NULL) and then this block's part of every row.
    __device__ bool fetches(const void *x, int64_t rows, const void *w, const void *b) {
        if (threadIdx.x < THREADS) return false;
        const bool first_lane = threadIdx.x == THREADS;
        const int bytes = count * 16;
        if (w && first_lane) {
            uint32_t bar = smem_addr(&shared().weights);
            mbar_expect(bar, b ? 2 * bytes : bytes);
            fetch(2, w, bar);
            if (b) fetch(3, b, bar);
        }
        const int64_t pitch = (int64_t)packs * 16;
        for (; row < rows; row += step, k++) {
            __syncwarp(); // a warp comes to a named barrier as one
            if (k > 1) named_sync(EMPTY + (k & 1), KM_WIDE_BLOCK);
            if (!first_lane) continue;
            uint32_t bar = smem_addr(&shared().full[k & 1]);
            mbar_expect(bar, bytes);
            fetch(k & 1, (const char *)x + row * pitch, bar);
        }
        return true;
    }

    // Compute threads: this block's part of the row at hand, of the weights.
    __device__ const P *part() {
        mbar_wait(smem_addr(&shared().full[k & 1]), k >> 1 & 1);
        return room + (k & 1) * per;
    }
    __device__ const P *weights(int which) { return room + (2 + which) * per; }
    __device__ void wait_weights() { mbar_wait(smem_addr(&shared().weights), 0); }

    // The part of a row in memory that is this block's.
    __device__ P *mine(void *rows) { return reinterpret_cast<P *>(rows) + row * packs + first; }

    // Done with the part: on to the next row. The last two parts are not overwritten.
    __device__ void next(int64_t rows) {
        __syncwarp();
        if (row + 2 * step < rows) named_arrive(EMPTY + (k & 1), KM_WIDE_BLOCK);
        row += step;
        k++;
    }

    // Runs f(index, count) over this thread's packs i, i + THREADS, ...: N at a time, then one.
    template <int N, class F> __device__ __forceinline__ void each(F f) {
        int i = threadIdx.x;
        for (; i + (N - 1) * THREADS < count; i += N * THREADS) f(i, Times<N>());
        for (; i < count; i += THREADS) f(i, Times<1>());
    }
    template <int N> struct Times { static constexpr int n = N; };

    // Joins all threads' v. join.warp, .block and .cluster put the numbers of 32 lanes, of the warps
    // and of the blocks together; lanes without one get join.empty().
    template <class Join> __device__ __forceinline__ float2 join(float2 v, const Join &j) {
        const int lane = threadIdx.x % 32, at = k & 1;
        v = j.warp(v);
        if (lane == 0) shared().by_warp[at][threadIdx.x / 32] = v;
        named_sync(JOIN, THREADS);
        if (blocks > 1 && threadIdx.x >= 32) { // the first warp finds out
            named_sync(JOIN, THREADS);
            return shared().joined[at];
        }
        const int w = lane % WARP_SLOTS;
        v = j.block(w < WARPS ? shared().by_warp[at][w] : j.empty());
        if (blocks == 1) return v;
        if (lane < blocks) {
            send_message(v, &shared().by_block[at][me], &shared().arrived[at], lane);
            wait_messages(&shared().arrived[at], k >> 1 & 1);
        }
        __syncwarp();
        v = j.cluster(lane < blocks ? shared().by_block[at][lane] : j.empty());
        if (lane == 0) shared().joined[at] = v;
        named_sync(JOIN, THREADS);
        return shared().joined[at];
    }

  private:
    __device__ void fetch(int place, const void *row_start, uint32_t bar) {
        constexpr int MOST = 32 << 10;
        uint32_t to = smem_addr(room + place * per);
        const char *from = (const char *)row_start + (int64_t)first * 16;
        for (int left = count * 16; left > 0; left -= MOST, to += MOST, from += MOST)
            bulk_load(to, from, min(left, MOST), bar);
    }
};

// ---- What rows are reduced to ----

// (largest, sum of exp(x - largest)). Elements that are all -inf have the sum 0.
struct Exps {
    __device__ static float2 empty() { return make_float2(-INFINITY, 0); }
    __device__ static float base(float m) { return m == -INFINITY ? 0 : m; }
    template <int LANES> __device__ static float2 lanes(float2 v) {
        float m = lanes_max<LANES>(v.x);
        return make_float2(m, lanes_sum<LANES>(v.y * exp_down(v.x - base(m))));
    }
    __device__ static float2 warp(float2 v) { return lanes<32>(v); }
    __device__ static float2 block(float2 v) { return lanes<WARP_SLOTS>(v); }
    __device__ static float2 cluster(float2 v) { return lanes<KM_WIDE_MOST>(v); }

    // Of this block's part; N packs at a time share a largest element.
    template <class T>
    __device__ static float2 of_thread(Wide<T> &wide, const Pack<T, WIDE<T>> *x) {
        constexpr int W = WIDE<T>;
        float2 v = empty();
        wide.template each<16 / W>([&](int i, auto times) {
            constexpr int N = decltype(times)::n;
            Pack<T, W> p[N];
            float m = v.x, s = 0;
#pragma unroll
            for (int j = 0; j < N; j++) p[j] = x[i + j * THREADS];
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < W; e++) m = fmaxf(m, to_f32(p[j].v[e]));
            float from = base(m);
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < W; e++) s += exp_down(to_f32(p[j].v[e]) - from);
            v = make_float2(m, fmaf(v.y, exp_down(v.x - from), s));
        });
        return v;
    }
};

// (sum, sum of squares about the mean), each group's about its own mean: groups are joined by
// M = sum of M_g + n_g (mean_g - mean)^2, which keeps the digits where the mean is far from 0.
// Without CENTRED the mean counts as 0, and the sum is not kept.
template <bool CENTRED> struct Spread {
    // How many elements, and one over it (0 for none).
    struct Count {
        float n, one;
        __device__ Count(int packs, int width)
            : n((float)(packs * width)), one(packs ? 1 / n : 0) {}
    };
    // Of this thread; of the warp and the block whose numbers this lane joins; of each whole.
    Count thread, slot_warp, slot_block, in_warp, in_block, in_row;

    template <class T>
    __device__ Spread(const Wide<T> &wide)
        : thread(thread_packs(wide.count), WIDE<T>),
          slot_warp(warp_packs(threadIdx.x % WARP_SLOTS, wide.count), WIDE<T>),
          slot_block(block_packs(threadIdx.x % KM_WIDE_MOST, wide), WIDE<T>),
          in_warp(warp_packs(threadIdx.x / 32, wide.count), WIDE<T>), in_block(wide.count, WIDE<T>),
          in_row(wide.packs, WIDE<T>) {}
    __device__ static int thread_packs(int count) {
        return max(count - (int)threadIdx.x + THREADS - 1, 0) / THREADS;
    }
    __device__ static int warp_packs(int w, int count) {
        return w < WARPS ? count / THREADS * 32 + min(max(count % THREADS - w * 32, 0), 32) : 0;
    }
    template <class T> __device__ static int block_packs(int r, const Wide<T> &wide) {
        return r < wide.blocks ? min(wide.per, wide.packs - r * wide.per) : 0;
    }

    __device__ static float2 empty() { return make_float2(0, 0); }
    template <int LANES>
    __device__ static float2 lanes(float2 v, const Count &each, const Count &all) {
        if (!CENTRED) return make_float2(0, lanes_sum<LANES>(v.y));
        float sum = lanes_sum<LANES>(v.x);
        float d = v.x * each.one - sum * all.one;
        return make_float2(sum, lanes_sum<LANES>(fmaf(each.n * d, d, v.y)));
    }
    __device__ float2 warp(float2 v) const { return lanes<32>(v, thread, in_warp); }
    __device__ float2 block(float2 v) const { return lanes<WARP_SLOTS>(v, slot_warp, in_block); }
    __device__ float2 cluster(float2 v) const { return lanes<KM_WIDE_MOST>(v, slot_block, in_row); }

    template <class T> __device__ float2 of_thread(Wide<T> &wide, const Pack<T, WIDE<T>> *x) const {
        constexpr int W = WIDE<T>;
        float sum = 0, square = 0, mean = 0;
        if (CENTRED) {
            wide.template each<4>([&](int i, auto times) {
#pragma unroll
                for (int j = 0; j < decltype(times)::n; j++) {
                    Pack<T, W> p = x[i + j * THREADS];
#pragma unroll
                    for (int e = 0; e < W; e++) sum += to_f32(p.v[e]);
                }
            });
            mean = sum * thread.one;
        }
        wide.template each<4>([&](int i, auto times) {
#pragma unroll
            for (int j = 0; j < decltype(times)::n; j++) {
                Pack<T, W> p = x[i + j * THREADS];
#pragma unroll
                for (int e = 0; e < W; e++) {
                    float d = to_f32(p.v[e]) - mean;
                    square = fmaf(d, d, square);
                }
            }
        });
        return make_float2(sum, square);
    }
};

#endif
