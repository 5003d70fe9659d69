// Copies and casts. A copy moves units of 1 to 16 bytes through any strides (the host makes the
// unit as wide as the layout allows); a swap of the fastest axis goes through tiles in shared
// memory; casts between floats have vector kernels, all other casts one that knows every dtype.
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/integers.cuh"

// ---- Contiguous, same bits ----

// out and x 16-byte aligned; p.n counts bytes.
KM_KERNEL copy_bytes(const __grid_constant__ km_cast_args p) {
    int64_t vectors = p.n / 16, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < vectors) ((ulonglong2 *)p.out)[i] = ((const ulonglong2 *)p.x)[i];
    int64_t rest = vectors * 16 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n)
        ((uint8_t *)p.out)[rest] = ((const uint8_t *)p.x)[rest];
}

// ---- Any strides, same bits ----

// Several units a thread, far apart, so that their loads overlap.
template <class T> __device__ __forceinline__ void copy_walk(const km_walk_args &p) {
    constexpr int U = 4;
    uint32_t first = blockIdx.x * blockDim.x * U + threadIdx.x;
    T v[U];
    int64_t to[U];
    wait_for_previous();
#pragma unroll
    for (int u = 0; u < U; u++) {
        uint32_t i = first + u * blockDim.x;
        if (i >= p.walk.count) continue;
        int64_t at[2];
        walk_offsets(p.walk, i, at);
        to[u] = at[0];
        v[u] = ((const T *)p.a)[at[1]];
    }
#pragma unroll
    for (int u = 0; u < U; u++)
        if (first + u * blockDim.x < p.walk.count) ((T *)p.out)[to[u]] = v[u];
}

#define COPY_WALK(T, size)                                                                         \
    KM_KERNEL copy_walk_##size(const __grid_constant__ km_walk_args p) { copy_walk<T>(p); }
COPY_WALK(uint8_t, 1)
COPY_WALK(uint16_t, 2)
COPY_WALK(uint32_t, 4)
COPY_WALK(uint64_t, 8)
COPY_WALK(ulonglong2, 16)

// ---- Swapped axes ----

// A block of 64 x 4 threads moves a tile of 64 x 64: read along x's fast axis (rows), written
// along out's (cols). The pad of one word keeps columns in different banks.
template <class T> __device__ __forceinline__ void transpose(const km_transpose_args &p) {
    __shared__ T tile[KM_TILE][KM_TILE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)]; // [col][row]
    uint32_t b = divide(blockIdx.x, p.tiles_c), tc = blockIdx.x - b * p.tiles_c.d;
    uint32_t q = divide(b, p.tiles_r), tr = b - q * p.tiles_r.d;
    uint32_t q1 = divide(q, p.batch1), b0 = q - q1 * p.batch1.d;
    uint32_t b2 = divide(q1, p.batch2), b1 = q1 - b2 * p.batch2.d;
    const T *x = (const T *)p.x + b0 * p.x_batch[0] + b1 * p.x_batch[1] + b2 * p.x_batch[2];
    T *out = (T *)p.out + b0 * p.out_batch[0] + b1 * p.out_batch[1] + b2 * p.out_batch[2];
    uint32_t row0 = tr * KM_TILE, col0 = tc * KM_TILE;
    uint32_t row = row0 + threadIdx.x;
    wait_for_previous();
#pragma unroll
    for (int c = 0; c < KM_TILE; c += 4) {
        uint32_t col = col0 + c + threadIdx.y;
        if (row < p.rows && col < p.cols)
            tile[c + threadIdx.y][threadIdx.x] = x[row + col * p.x_col];
    }
    __syncthreads();
    uint32_t col = col0 + threadIdx.x;
#pragma unroll
    for (int r = 0; r < KM_TILE; r += 4) {
        uint32_t to = row0 + r + threadIdx.y;
        if (to < p.rows && col < p.cols)
            out[to * p.out_row + col] = tile[threadIdx.x][r + threadIdx.y];
    }
}

#define TRANSPOSE(T, size)                                                                         \
    KM_KERNEL __launch_bounds__(256)                                                               \
        transpose_##size(const __grid_constant__ km_transpose_args p) {                            \
        transpose<T>(p);                                                                           \
    }
TRANSPOSE(uint8_t, 1)
TRANSPOSE(uint16_t, 2)
TRANSPOSE(uint32_t, 4)
TRANSPOSE(uint64_t, 8)

// ---- Casts ----

// Eight elements a thread: two 16-byte vectors on the f32 side, one on the other.
template <class From, class To> __device__ __forceinline__ void cast(const km_cast_args &p) {
    struct alignas(sizeof(From) == 4 ? 32 : 16) In {
        From v[8];
    };
    struct alignas(sizeof(To) == 4 ? 32 : 16) Out {
        To v[8];
    };
    int64_t vectors = p.n / 8, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (i < vectors) {
        In x = ((const In *)p.x)[i];
        Out y;
#pragma unroll
        for (int k = 0; k < 8; k++) y.v[k] = from_f32<To>(to_f32(x.v[k]));
        ((Out *)p.out)[i] = y;
    }
    int64_t rest = vectors * 8 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < p.n)
        ((To *)p.out)[rest] = from_f32<To>(to_f32(((const From *)p.x)[rest]));
}

#define CAST(From, from, To, to)                                                                   \
    KM_KERNEL cast_##from##_##to(const __grid_constant__ km_cast_args p) { cast<From, To>(p); }
CAST(float, f32, f16, f16)
CAST(float, f32, bf16, bf16)
CAST(f16, f16, float, f32)
CAST(bf16, bf16, float, f32)
CAST(f16, f16, bf16, bf16)
CAST(bf16, bf16, f16, f16)

// From dtype p.op to p.dtype.
KM_KERNEL cast_walk(const __grid_constant__ km_walk_args p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[2];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    if (is_float(p.op)) {
        store_number(p.dtype, p.out, at[0], load_float(p.op, p.a, at[1]));
    } else {
        int64_t v = load_int(p.op, p.a, at[1]);
        if (!is_float(p.dtype))
            store_int(p.dtype, p.out, at[0], v);
        else if (p.dtype == KM_F64)
            ((double *)p.out)[at[0]] = (double)v;
        else
            store_float(p.dtype, p.out, at[0], sticky_double(v));
    }
}
