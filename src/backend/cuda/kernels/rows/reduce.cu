// Sum, mean, max, variance, logsumexp, sum of squares and argmax over any axes. One launch each:
// where several blocks share an output, the last one to finish merges their parts, in order.
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/integers.cuh"
#include "backend/cuda/kernels/rows/reduce.cuh"
#include "backend/op_list.h"

// What a result is stored as: sums of squares as f32, positions as i64, the rest like x.
template <class Op, class T> struct Result {
    static __device__ __forceinline__ void put(void *out, int64_t i, float v) {
        ((T *)out)[i] = from_f32<T>(v);
    }
};
template <class T> struct Result<SumSquares, T> {
    static __device__ __forceinline__ void put(void *out, int64_t i, float v) {
        ((float *)out)[i] = v;
    }
};
template <class T> struct Result<ArgMax, T> {
    static __device__ __forceinline__ void put(void *out, int64_t i, int64_t v) {
        ((int64_t *)out)[i] = v;
    }
};

// ---- Blocks: long reductions ----

// Each lane of a vector keeps a State of its own: independent chains, short ones.
template <class Op, class T>
__device__ __forceinline__ typename Op::State take_vectors(const T *x, int64_t n, int64_t first,
                                                           int64_t step) {
    constexpr int N = Vec<T>::N, U = Op::UNROLL;
    typename Op::State lane[N];
#pragma unroll
    for (int k = 0; k < N; k++) lane[k] = Op::empty();
    int64_t vectors = n / N, i = first;
    for (; i + (U - 1) * step < vectors; i += U * step) {
        Vec<T> v[U];
#pragma unroll
        for (int u = 0; u < U; u++) v[u] = load_vec(x + (i + u * step) * N);
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 0; k < N; k++)
                Op::push(lane[k], to_f32(v[u].v[k]), (uint32_t)((i + u * step) * N + k));
    }
#pragma unroll 1
    for (; i < vectors; i += step) {
        Vec<T> v = load_vec(x + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) Op::push(lane[k], to_f32(v.v[k]), (uint32_t)(i * N + k));
    }
    for (i = vectors * N + first; i < n; i += step) Op::push(lane[0], to_f32(x[i]), (uint32_t)i);
#pragma unroll
    for (int by = N / 2; by > 0; by /= 2)
#pragma unroll
        for (int k = 0; k < by; k++) Op::merge(lane[k], lane[k + by]);
    return lane[0];
}

template <class Op, class T> __device__ __forceinline__ void reduce_block(const km_reduce_args &p) {
    typedef typename Op::State State;
    int64_t output = blockIdx.x / p.parts;
    int part = blockIdx.x - (int)(output * p.parts);
    int64_t at[1];
    walk_offsets(p.kept, (uint32_t)output, at);
    const T *x = (const T *)p.x + at[0];
    State s = Op::empty();
    wait_for_previous();
    int64_t first = (int64_t)part * blockDim.x + threadIdx.x, step = (int64_t)p.parts * blockDim.x;
    if (p.vectors) {
        s = take_vectors<Op>(x, p.n, first, step);
    } else {
#pragma unroll 1
        for (int64_t i = first; i < p.n; i += step) {
            walk_offsets(p.reduced, (uint32_t)i, at);
            Op::push(s, to_f32(x[at[0]]), (uint32_t)i);
        }
    }
    merge_block<Op>(s);
    if (p.parts > 1) {
        State *partial = (State *)p.partial + output * p.parts;
        if (threadIdx.x == 0) partial[part] = s;
        if (!last_block<true>(p.counters + output, p.parts)) return;
        s = Op::empty();
#pragma unroll 1
        for (int i = threadIdx.x; i < p.parts; i += blockDim.x)
            Op::merge(s, load_fresh(partial + i));
        merge_block<Op>(s);
    }
    if (threadIdx.x == 0) Result<Op, T>::put(p.out, output, Op::value(s, p.divisor));
}

// ---- Warps: many short reductions, each by a warp or a part of one ----

template <class Op, class T> __device__ __forceinline__ void reduce_warp(const km_reduce_args &p) {
    int64_t output = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / p.lanes;
    int lane = threadIdx.x % p.lanes;
    bool mine = output < p.outputs;
    int64_t at[1];
    walk_offsets(p.kept, mine ? (uint32_t)output : 0, at);
    const T *x = (const T *)p.x + at[0];
    typename Op::State s = Op::empty();
    wait_for_previous();
    if (mine && p.vectors) {
        s = take_vectors<Op>(x, p.n, lane, p.lanes);
    } else if (mine) {
#pragma unroll 1
        for (int64_t i = lane; i < p.n; i += p.lanes) {
            walk_offsets(p.reduced, (uint32_t)i, at);
            Op::push(s, to_f32(x[at[0]]), (uint32_t)i);
        }
    }
    merge_warp<Op>(s, p.lanes);
    if (mine && lane == 0) Result<Op, T>::put(p.out, output, Op::value(s, p.divisor));
}

// ---- Columns: the fastest axis is kept ----

template <class T, int N> struct alignas(N * sizeof(T)) Columns { T v[N]; };

// Merges what the block's rows of threads have of each column; thread i gets column i.
template <class Op, int N>
__device__ __forceinline__ typename Op::State merge_rows(const typename Op::State (&s)[N],
                                                         unsigned char *room) {
    typedef typename Op::State State;
    constexpr int WIDE = KM_COLUMN_LANES * N;
    State(*rows)[WIDE] = (State(*)[WIDE])room;
    int thread = threadIdx.y * KM_COLUMN_LANES + threadIdx.x;
    __syncthreads(); // an earlier use of the room has ended
#pragma unroll
    for (int k = 0; k < N; k++) rows[threadIdx.y][threadIdx.x * N + k] = s[k];
    __syncthreads();
    if (thread >= WIDE) return Op::empty();
    State whole = rows[0][thread];
#pragma unroll 1
    for (int r = 1; r < KM_COLUMN_ROWS; r++) Op::merge(whole, rows[r][thread]);
    return whole;
}

template <class Op, class T, int N>
__device__ __forceinline__ void reduce_columns(const km_reduce_args &p) {
    typedef typename Op::State State;
    __shared__ __align__(
        16) unsigned char room[KM_COLUMN_ROWS * KM_COLUMN_LANES * N * sizeof(State)];
    int groups = (int)((p.inner + KM_COLUMN_LANES * N - 1) / (KM_COLUMN_LANES * N));
    int part = blockIdx.x % p.parts;
    int64_t rest = blockIdx.x / p.parts, outer = rest / groups;
    int64_t group = rest - outer * groups;
    int64_t column = (group * KM_COLUMN_LANES + threadIdx.x) * N;
    bool inside = column < p.inner; // N divides inner
    int64_t at[1];
    walk_offsets(p.kept, (uint32_t)outer, at);
    const T *x = (const T *)p.x + at[0] + column;
    State s[N];
#pragma unroll
    for (int k = 0; k < N; k++) s[k] = Op::empty();
    wait_for_previous();
    if (inside) {
        int64_t step = (int64_t)p.parts * KM_COLUMN_ROWS;
#pragma unroll Op::UNROLL
        for (int64_t i = (int64_t)part * KM_COLUMN_ROWS + threadIdx.y; i < p.n; i += step) {
            Columns<T, N> v = *(const Columns<T, N> *)(x + i * p.row);
#pragma unroll
            for (int k = 0; k < N; k++) Op::push(s[k], to_f32(v.v[k]), (uint32_t)i);
        }
    }
    State whole = merge_rows<Op, N>(s, room);

    // Thread i of the block's first ones has column i from here on.
    constexpr int WIDE = KM_COLUMN_LANES * N;
    int thread = threadIdx.y * KM_COLUMN_LANES + threadIdx.x;
    column = group * WIDE + thread;
    bool mine = thread < WIDE && column < p.inner;
    if (p.parts > 1) {
        State *partial = (State *)p.partial + outer * p.parts * p.inner + group * WIDE;
        if (mine) partial[part * p.inner + thread] = whole;
        if (!last_block<false>(p.counters + rest, p.parts)) return;
            // All rows of threads share the parts, as they shared the rows of x.
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = Op::empty();
        if (inside) {
#pragma unroll 4
            for (int i = threadIdx.y; i < p.parts; i += KM_COLUMN_ROWS)
#pragma unroll
                for (int k = 0; k < N; k++)
                    Op::merge(s[k], load_fresh(partial + i * p.inner + threadIdx.x * N + k));
        }
        whole = merge_rows<Op, N>(s, room);
    }
    if (mine) Result<Op, T>::put(p.out, outer * p.inner + column, Op::value(whole, p.divisor));
}

#define REDUCE(T, type, Op, name)                                                                  \
    KM_KERNEL reduce_block_##name##_##type(const __grid_constant__ km_reduce_args p) {             \
        reduce_block<Op, T>(p);                                                                    \
    }                                                                                              \
    KM_KERNEL reduce_warp_##name##_##type(const __grid_constant__ km_reduce_args p) {              \
        reduce_warp<Op, T>(p);                                                                     \
    }                                                                                              \
    KM_KERNEL reduce_columns_##name##_##type(const __grid_constant__ km_reduce_args p) {           \
        reduce_columns<Op, T, Vec<T>::N>(p);                                                       \
    }                                                                                              \
    KM_KERNEL reduce_column_##name##_##type(const __grid_constant__ km_reduce_args p) {            \
        reduce_columns<Op, T, 1>(p);                                                               \
    }
KM_EACH_FLOAT(REDUCE, Sum, sum)
KM_EACH_FLOAT(REDUCE, SumSquares, sumsq)
KM_EACH_FLOAT(REDUCE, Max, max)
KM_EACH_FLOAT(REDUCE, Var, var)
KM_EACH_FLOAT(REDUCE, LogSumExp, logsumexp)
KM_EACH_FLOAT(REDUCE, ArgMax, argmax)

// ---- Integers: sum wraps around, max and argmax; a warp for each output ----

KM_KERNEL reduce_warp_int(const __grid_constant__ km_reduce_args p) {
    int64_t output = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (output >= p.outputs) return;
    int64_t from[1], at[1];
    walk_offsets(p.kept, (uint32_t)output, from);
    wait_for_previous();
    int64_t sum = 0, best = INT64_MIN, where = INT64_MAX;
    for (int64_t i = lane; i < p.n; i += 32) {
        walk_offsets(p.reduced, (uint32_t)i, at);
        int64_t v = load_int(p.dtype, p.x, from[0] + at[0]);
        sum = (int64_t)((uint64_t)sum + (uint64_t)v);
        if (v > best || where == INT64_MAX) {
            best = v;
            where = i;
        }
    }
    for (int by = 16; by > 0; by /= 2) {
        sum = (int64_t)((uint64_t)sum + (uint64_t)shuffle_down(sum, by));
        int64_t v = shuffle_down(best, by), i = shuffle_down(where, by);
        if (v > best || (v == best && i < where)) {
            best = v;
            where = i;
        }
    }
    if (lane) return;
    if (p.op == KM_OP_SUM)
        store_int(p.dtype, p.out, output, sum);
    else if (p.op == KM_OP_MAX)
        store_int(p.dtype, p.out, output, best);
    else
        ((int64_t *)p.out)[output] = where == INT64_MAX ? 0 : where;
}
