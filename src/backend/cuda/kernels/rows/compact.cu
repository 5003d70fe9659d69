// What a mask picks, in row-major order: masked_select, masked_scatter, nonzero. Tiles are counted, one
// block turns the counts into where each tile's results begin, and every tile writes its own: the order
// is that of the elements, whichever block comes first.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/row_args.h"

constexpr int THREADS = KM_COMPACT_THREADS, WARPS = THREADS / 32,
              ROUNDS = KM_COMPACT_TILE / THREADS;

template <class F> __device__ __forceinline__ bool picked(const km_compact_args &p, int64_t i) {
    return i < p.n && ((uint64_t)((const F *)p.flags)[i] & p.relevant & (F) ~(F)0) != 0;
}

template <class F> __device__ __forceinline__ void count_tile(const km_compact_args &p) {
    __shared__ int each[WARPS];
    int64_t base = (int64_t)blockIdx.x * KM_COMPACT_TILE + threadIdx.x;
    int n = 0;
    for (int r = 0; r < ROUNDS; r++) n += picked<F>(p, base + r * THREADS);
    for (int d = 16; d > 0; d /= 2) n += __shfl_xor_sync(~0u, n, d);
    if (threadIdx.x % 32 == 0) each[threadIdx.x / 32] = n;
    __syncthreads();
    if (threadIdx.x != 0) return;
    int64_t all = 0;
    for (int w = 0; w < WARPS; w++) all += each[w];
    p.first[blockIdx.x + 1] = all;
}

// Counts to running sums: one block, 1024 tiles at a time.
KM_KERNEL __launch_bounds__(1024) compact_offsets(const __grid_constant__ km_compact_args p) {
    __shared__ int64_t sum[32];
    __shared__ int64_t carry;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) carry = 0, p.first[0] = 0;
    __syncthreads();
    for (int begin = 0; begin < p.tiles; begin += 1024) {
        int i = begin + threadIdx.x;
        int64_t v = i < p.tiles ? p.first[i + 1] : 0;
        for (int d = 1; d < 32; d *= 2) {
            int64_t low = __shfl_up_sync(~0u, v, d);
            if (lane >= d) v += low;
        }
        if (lane == 31) sum[warp] = v;
        __syncthreads();
        int64_t before = carry;
        for (int w = 0; w < warp; w++) before += sum[w];
        if (i < p.tiles) p.first[i + 1] = before + v;
        __syncthreads();
        if (threadIdx.x == 1023) carry = before + v;
        __syncthreads();
    }
}

// Calls write(element, its number among those picked) for all of a tile's.
template <class F, class W>
__device__ __forceinline__ void each_picked(const km_compact_args &p, W write) {
    __shared__ int each[2][WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t base = (int64_t)blockIdx.x * KM_COMPACT_TILE, at = p.first[blockIdx.x];
    if (at == p.first[blockIdx.x + 1]) return;
    for (int r = 0; r < ROUNDS; r++) {
        int64_t i = base + r * THREADS + threadIdx.x;
        bool is = picked<F>(p, i);
        unsigned votes = __ballot_sync(~0u, is);
        if (lane == 0) each[r % 2][warp] = __popc(votes);
        __syncthreads(); // the other half is read until then
        int before = 0, all = 0;
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? each[r % 2][w] : 0;
            all += each[r % 2][w];
        }
        int64_t number = at + before + __popc(votes & ((1u << lane) - 1));
        if (is && number < p.limit) write(i, number);
        at += all;
    }
}

template <class T> __device__ __forceinline__ void select(const km_compact_args &p) {
    each_picked<uint8_t>(
        p, [&](int64_t i, int64_t number) { ((T *)p.out)[number] = ((const T *)p.x)[i]; });
}
template <class T> __device__ __forceinline__ void put(const km_compact_args &p) {
    each_picked<uint8_t>(
        p, [&](int64_t i, int64_t number) { ((T *)p.out)[i] = ((const T *)p.x)[number]; });
}
template <class T> __device__ __forceinline__ void nonzero(const km_compact_args &p) {
    each_picked<T>(p, [&](int64_t i, int64_t number) {
        int64_t *out = (int64_t *)p.out + number * p.ndim;
        for (int a = p.ndim - 1; a >= 0; a--) {
            out[a] = i % p.dim[a];
            i /= p.dim[a];
        }
    });
}

#define COMPACT(size, T)                                                                           \
    KM_KERNEL __launch_bounds__(THREADS)                                                           \
        compact_count_##size(const __grid_constant__ km_compact_args p) {                          \
        count_tile<T>(p);                                                                          \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(THREADS)                                                           \
        compact_select_##size(const __grid_constant__ km_compact_args p) {                         \
        select<T>(p);                                                                              \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(THREADS)                                                           \
        compact_place_##size(const __grid_constant__ km_compact_args p) {                          \
        put<T>(p);                                                                                 \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(THREADS)                                                           \
        compact_nonzero_##size(const __grid_constant__ km_compact_args p) {                        \
        nonzero<T>(p);                                                                             \
    }
COMPACT(1, uint8_t)
COMPACT(2, uint16_t)
COMPACT(4, uint32_t)
COMPACT(8, uint64_t)
