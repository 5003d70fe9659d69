// The reductions themselves: what is carried along (State), how an element joins it (push), how
// two of them merge, and what the result is. All in f32; merging is ordered by position, never by
// time, so results have the same bits in every run.
#ifndef KM_CUDA_REDUCE_CUH
#define KM_CUDA_REDUCE_CUH
#include "backend/cuda/kernels/common.cuh"

struct Sum {                         // and mean, by the divisor
    static constexpr int UNROLL = 4; // 16-byte loads before their first use
    typedef float State;
    static __device__ __forceinline__ State empty() { return 0.0f; }
    static __device__ __forceinline__ void push(State &s, float x, uint32_t) { s += x; }
    static __device__ __forceinline__ void merge(State &s, State o) { s += o; }
    static __device__ __forceinline__ float value(State s, float divisor) { return s / divisor; }
};

struct SumSquares : Sum {
    static __device__ __forceinline__ void push(State &s, float x, uint32_t) { s = fmaf(x, x, s); }
};

struct Max {
    static constexpr int UNROLL = 4;
    typedef float State;
    static __device__ __forceinline__ State empty() { return -INFINITY; }
    static __device__ __forceinline__ void push(State &s, float x, uint32_t) { s = nan_max(s, x); }
    static __device__ __forceinline__ void merge(State &s, State o) { s = nan_max(s, o); }
    static __device__ __forceinline__ float value(State s, float) { return s; }
};

// Welford's running mean and sum of squared distances; two of them merge as in Chan et al.
struct Var {
    static constexpr int UNROLL = 1;
    struct State {
        float n, mean, m2;
    };
    static __device__ __forceinline__ State empty() { return {0, 0, 0}; }
    static __device__ __forceinline__ void push(State &s, float x, uint32_t) {
        s.n += 1.0f;
        float d = x - s.mean;
        s.mean = fmaf(d, quick_rcp(s.n), s.mean); // an ulp in the weight is nothing
        s.m2 = fmaf(d, x - s.mean, s.m2);
    }
    static __device__ __forceinline__ void merge(State &s, State o) {
        float n = s.n + o.n, d = o.mean - s.mean;
        float part = n > 0 ? o.n / n : 0.0f;
        s.mean = fmaf(d, part, s.mean);
        s.m2 += fmaf(d * d, s.n * part, o.m2);
        s.n = n;
    }
    static __device__ __forceinline__ float value(State s, float divisor) { return s.m2 / divisor; }
};

// The largest so far, and the sum of exp(x - largest). Equal terms are not subtracted: infinities
// would give NaN. An infinite or NaN largest is the answer itself.
struct LogSumExp {
    static constexpr int UNROLL = 1;
    struct State {
        float max, sum;
    };
    static __device__ __forceinline__ State empty() { return {-INFINITY, 0}; }
    static __device__ __forceinline__ void push(State &s, float x, uint32_t) {
        float e = x == s.max ? 1.0f : expf(-fabsf(x - s.max));
        s.sum = x > s.max ? fmaf(s.sum, e, 1.0f) : s.sum + e;
        s.max = nan_max(s.max, x);
    }
    static __device__ __forceinline__ void merge(State &s, State o) {
        float e = o.max == s.max ? 1.0f : expf(-fabsf(o.max - s.max));
        s.sum = o.max > s.max ? fmaf(s.sum, e, o.sum) : fmaf(o.sum, e, s.sum);
        s.max = nan_max(s.max, o.max);
    }
    static __device__ __forceinline__ float value(State s, float) {
        return isfinite(s.max) ? s.max + logf(s.sum) : s.max;
    }
};

// The first of the largest; NaN counts as largest.
struct ArgMax {
    static constexpr int UNROLL = 1;
    struct State {
        float x;
        uint32_t at; // NOWHERE: nothing yet, which loses against everything
    };
    static constexpr uint32_t NOWHERE = 0xffffffffu;
    static __device__ __forceinline__ State empty() { return {-INFINITY, NOWHERE}; }
    static __device__ __forceinline__ void push(State &s, float x, uint32_t at) {
        if (x > s.x || s.at == NOWHERE || (x != x && s.x == s.x)) s = {x, at};
    }
    static __device__ __forceinline__ void merge(State &s, State o) {
        bool same = o.x == s.x || (o.x != o.x && s.x != s.x);
        if (o.x > s.x || (o.x != o.x && s.x == s.x) || (same && o.at < s.at)) s = o;
    }
    static __device__ __forceinline__ int64_t value(State s, float) {
        return s.at == NOWHERE ? 0 : s.at;
    }
};

// ---- Across threads ----

// A State, whatever it is made of, from another lane.
template <class State> __device__ __forceinline__ State shuffle_down(State s, int by) {
    static_assert(sizeof(State) % 4 == 0, "shuffled in words");
    union {
        State s;
        uint32_t word[sizeof(State) / 4];
    } u = {s};
#pragma unroll
    for (int i = 0; i < (int)(sizeof(State) / 4); i++)
        u.word[i] = __shfl_down_sync(ALL_LANES, u.word[i], by);
    return u.s;
}

// Lane 0 gets the whole; of each group of `lanes` lanes, its first.
template <class Op>
__device__ __forceinline__ void merge_warp(typename Op::State &s, int lanes = 32) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2)
        if (by < lanes) Op::merge(s, shuffle_down(s, by));
}

// Thread 0 gets the whole. All threads of the block take part; blockDim is a multiple of 32.
template <class Op> __device__ __forceinline__ void merge_block(typename Op::State &s) {
    __shared__ __align__(16) unsigned char room[32 * sizeof(typename Op::State)];
    typename Op::State *warps = (typename Op::State *)room;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    merge_warp<Op>(s);
    if (n_warps == 1) return;
    __syncthreads(); // an earlier use of the room has ended
    if (lane == 0) warps[warp] = s;
    __syncthreads();
    if (warp == 0) {
        s = lane < n_warps ? warps[lane] : Op::empty();
        merge_warp<Op>(s);
    }
}

// Counts this block as done; true in all threads of the last of `parts` blocks, which then sees
// what the others wrote before. Resets the counter. With ONE_WRITER only thread 0 of each block
// wrote anything.
template <bool ONE_WRITER>
__device__ __forceinline__ bool last_block(uint32_t *counter, int parts) {
    __shared__ bool last;
    if (!ONE_WRITER) {
        __threadfence(); // what this thread wrote is visible before the tick
        __syncthreads();
    }
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        if (ONE_WRITER) __threadfence();
        last = atomicAdd(counter, 1u) == (uint32_t)parts - 1;
        if (last) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// Written by another block: not from this multiprocessor's own cache.
template <class State> __device__ __forceinline__ State load_fresh(const State *p) {
    union {
        State s;
        uint32_t word[sizeof(State) / 4];
    } u;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(State) / 4); i++) u.word[i] = __ldcg((const unsigned *)p + i);
    return u.s;
}

#endif
