// Rows held in registers. A row is read once: each thread keeps a few packs of it, and sums and
// maxima go over a warp, a block, or a cluster of blocks, whichever is the smallest that can hold
// the row. Rows too long for that are streamed: read again for each pass, mostly from the L2.
//
// The floor of such a kernel is one read and one write of the row at copy bandwidth. Combining is
// always in the order of ranks, so results have the same bits in every run.
#ifndef KM_CUDA_ROW_CUH
#define KM_CUDA_ROW_CUH
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/row_args.h"

enum Team { WARP, BLOCK, CLUSTER, STREAM };

template <class T, int W> struct alignas(W * sizeof(T)) Pack { T v[W]; };

// W elements of 16 bytes together, or 1 where rows are not aligned.
template <class T> constexpr int WIDE = 16 / (int)sizeof(T);

template <Team K>
constexpr int PACKS = K == WARP      ? KM_WARP_PACKS
                      : K == CLUSTER ? KM_CLUSTER_PACKS
                                     : KM_BLOCK_PACKS;

// ---- Messages between the blocks of a cluster ----
// A message is a store that counts itself off at a barrier of the receiver, which is quicker than a
// barrier of the whole cluster and waits for nothing else the sender has under way. Each sender also
// arrives at that barrier: it takes `blocks` arrivals and the bytes they announce to complete.

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// To block `rank`, into its copy of `slot`; `arrived` is the barrier's address here.
__device__ __forceinline__ void send_message(float2 v, float2 *slot, uint64_t *arrived, int rank) {
#if __CUDA_ARCH__ >= 900
    uint32_t there, bar;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(shared_address(slot)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(bar)
        : "r"(shared_address(arrived)), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(there),
                 "f"(v.x), "f"(v.y), "r"(bar)
                 : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], 8;" ::"r"(bar) : "memory");
#endif
}

// Every thread that reads messages waits for them itself.
__device__ __forceinline__ void wait_messages(uint64_t *arrived, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(arrived)), "r"(parity)
                     : "memory");
#endif
}

// The threads of one row: who they are, and how they put their numbers together.
template <Team K> struct Crew {
    static constexpr int TURNS = 4; // reductions in one kernel, each with its own places
    int rank, size, turn = 0;
    int64_t row;
    bool begun = false;
    unsigned phases = 0; // a bit for each place: which use of its barrier comes next

    __device__ Crew() {
        if (K == WARP) {
            rank = threadIdx.x % 32;
            size = 32;
            row = (int64_t)blockIdx.x * KM_WARP_ROWS + threadIdx.x / 32;
        } else if (K == CLUSTER) {
            int blocks = cluster_blocks();
            rank = (int)(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
            size = blocks * blockDim.x;
            row = blockIdx.x / blocks;
            begin_cluster();
        } else {
            rank = threadIdx.x;
            size = blockDim.x;
            row = blockIdx.x;
        }
    }

    template <class Op> __device__ float2 all(float2 v, float2 empty, Op op) {
        __shared__ float2 by_warp[TURNS][32];
        v = in_warp(v, op);
        if (K == WARP) return v;
        if (threadIdx.x % 32 == 0) by_warp[turn][threadIdx.x / 32] = v;
        __syncthreads();
        int warps = blockDim.x / 32, lane = threadIdx.x % 32;
        v = in_warp(lane < warps ? by_warp[turn][lane] : empty, op);
        if (K == CLUSTER) v = across(v, op);
        turn = (turn + 1) % TURNS; // a place is used again only after barriers that all have passed
        return v;
    }

    __device__ float sum(float v) { return sum2({v, 0}).x; }
    __device__ float2 sum2(float2 v) {
        return all(v, make_float2(0, 0),
                   [](float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); });
    }
    __device__ float max(float v) {
        return all(make_float2(v, 0), make_float2(-INFINITY, 0),
                   [](float2 a, float2 b) { return make_float2(fmaxf(a.x, b.x), 0); })
            .x;
    }

  private:
    __device__ static int cluster_blocks() {
        int n = 1;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
#endif
        return n;
    }

    template <class Op> __device__ static float2 in_warp(float2 v, Op op) {
#pragma unroll
        for (int by = 16; by > 0; by /= 2) {
            float2 o = make_float2(__shfl_xor_sync(ALL_LANES, v.x, by),
                                   __shfl_xor_sync(ALL_LANES, v.y, by));
            v = op(v, o);
        }
        return v;
    }

    struct Mail {
        float2 by_block[TURNS][KM_CLUSTER_MOST];
        uint64_t arrived[TURNS];
    };
    __device__ static Mail &mail() {
        __shared__ Mail m;
        return m;
    }

    __device__ void begin_cluster() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            for (int t = 0; t < TURNS; t++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                                 shared_address(&mail().arrived[t])),
                             "r"(cluster_blocks()));
            asm volatile("fence.mbarrier_init.release.cluster;");
        }
        // Waited for before the first message: all barriers are ready then.
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }

    template <class Op> __device__ float2 across(float2 v, Op op) {
#if __CUDA_ARCH__ >= 900
        if (!begun) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        begun = true;
        int blocks = cluster_blocks(), me = blockIdx.x % blocks;
        if ((int)threadIdx.x < blocks)
            send_message(v, &mail().by_block[turn][me], &mail().arrived[turn], threadIdx.x);
        wait_messages(&mail().arrived[turn], phases >> turn & 1u);
        phases ^= 1u << turn;
        v = mail().by_block[turn][0];
        for (int r = 1; r < blocks; r++) v = op(v, mail().by_block[turn][r]);
#endif
        return v;
    }
};

// A thread's part of a row: packs rank, rank + size, rank + 2 size, ...
template <class T, int W, Team K> struct Row {
    static constexpr int N = PACKS<K>;
    Pack<T, W> v[N];
    int first, step, n; // in packs

    __device__ Row(const Crew<K> &c, int elements) : first(c.rank), step(c.size), n(elements / W) {}

    __device__ void load(const T *p) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < n)
                v[i] = reinterpret_cast<const Pack<T, W> *>(p)[first + i * step];
    }
    // f(pack, its number in the row)
    template <class F> __device__ void each(F f) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < n) f(v[i], first + i * step);
    }
    // f(pack, the same pack of another row, its number)
    template <class F> __device__ void each_with(const Row &o, F f) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < n) f(v[i], o.v[i], first + i * step);
    }
};

// The same of a row that stays in memory.
template <class T, int W> struct Row<T, W, STREAM> {
    const T *p;
    int first, step, n;

    __device__ Row(const Crew<STREAM> &c, int elements)
        : first(c.rank), step(c.size), n(elements / W) {}
    __device__ void load(const T *from) { p = from; }
    template <class F> __device__ void each(F f) {
        for (int i = first; i < n; i += step) {
            Pack<T, W> x = reinterpret_cast<const Pack<T, W> *>(p)[i];
            f(x, i);
        }
    }
    template <class F> __device__ void each_with(const Row &o, F f) {
        for (int i = first; i < n; i += step) {
            Pack<T, W> x = reinterpret_cast<const Pack<T, W> *>(p)[i];
            f(x, reinterpret_cast<const Pack<T, W> *>(o.p)[i], i);
        }
    }
};

template <class T, int W> __device__ __forceinline__ Pack<T, W> load_pack(const void *p, int i) {
    return reinterpret_cast<const Pack<T, W> *>(p)[i];
}

// exp(x) for x <= 0, where the row's largest has been taken off: within 6e-6 of the value, in three
// instructions.
__device__ __forceinline__ float exp_fast(float x) { return __expf(x); }

// Every instance of a row kernel: name_<type>_<team>, and name_<type>_<team>1 for unaligned rows.
#define KM_ROW_KERNEL(name, body, Args)                                                            \
    KM_ROW_TYPE(name, body, Args, float, f32)                                                      \
    KM_ROW_TYPE(name, body, Args, f16, f16)                                                        \
    KM_ROW_TYPE(name, body, Args, bf16, bf16)
#define KM_ROW_TYPE(name, body, Args, T, t)                                                        \
    KM_ROW_TEAM(name, body, Args, T, t, WARP, warp, 32 * KM_WARP_ROWS)                             \
    KM_ROW_TEAM(name, body, Args, T, t, BLOCK, block, 1024)                                        \
    KM_ROW_TEAM(name, body, Args, T, t, CLUSTER, cluster, 512)                                     \
    KM_ROW_TEAM(name, body, Args, T, t, STREAM, stream, 1024)
#define KM_ROW_TEAM(name, body, Args, T, t, K, k, most)                                            \
    extern "C" __global__ void __launch_bounds__(most)                                             \
        name##_##t##_##k(const __grid_constant__ Args p) {                                         \
        body<T, WIDE<T>, K>(p);                                                                    \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(most)                                             \
        name##_##t##_##k##1(const __grid_constant__ Args p) {                                      \
        body<T, 1, K>(p);                                                                          \
    }

#endif
