// What the matrix product kernels share: the order of tiles, and the way of an accumulated sum to
// memory (alpha, beta, bias, activation).
#ifndef KM_CUDA_GEMM_COMMON_CUH
#define KM_CUDA_GEMM_COMMON_CUH
#include "backend/cuda/kernels/gemm_params.h"
#include "backend/cuda/kernels/math.cuh"

// ---- Tiles ----

struct gemm_tile {
    int m, n, batch; // indices of the tile
};

// Groups of KM_GEMM_GROUP rows of tiles, walked column by column: tiles that run at one time share
// rows of a and columns of b.
__device__ __forceinline__ gemm_tile gemm_tile_of(const km_gemm_args &g, int i) {
    int each = g.tiles_m * g.tiles_n, batch = i / each, t = i - batch * each;
    int span = KM_GEMM_GROUP * g.tiles_n, group = t / span, first = group * KM_GEMM_GROUP;
    int rows = min(g.tiles_m - first, KM_GEMM_GROUP), within = t - group * span;
    return {first + within % rows, within / rows, batch};
}

// ---- Four elements ----

__device__ __forceinline__ void load4(const float *p, float (&v)[4]) {
    float4 t = *reinterpret_cast<const float4 *>(p);
    v[0] = t.x, v[1] = t.y, v[2] = t.z, v[3] = t.w;
}
template <class T> __device__ __forceinline__ void load4(const T *p, float (&v)[4]) {
    struct alignas(8) quad {
        T v[4];
    } t = *reinterpret_cast<const quad *>(p);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = to_f32(t.v[i]);
}
__device__ __forceinline__ void store4(float *p, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
}
template <class T> __device__ __forceinline__ void store4(T *p, const float (&v)[4]) {
    struct alignas(8) quad {
        T v[4];
    } t;
#pragma unroll
    for (int i = 0; i < 4; i++) t.v[i] = from_f32<T>(v[i]);
    *reinterpret_cast<quad *>(p) = t;
}

// ---- From a sum to memory ----

__device__ __forceinline__ float gemm_act(int act, float x) { // km_act's order
    switch (act) {
    case 1:
        return relu(x);
    case 2:
        return gelu(x);
    case 3:
        return gelu_erf(x);
    case 4:
        return silu(x);
    default:
        return x;
    }
}

// Finishes v, the sums of row `row`, columns `col` to `col` + 3, of the problem that starts at
// `base` in out. Columns beyond n and rows beyond m are left out.
template <class T>
__device__ __forceinline__ void gemm_finish4(const km_gemm_args &g, int64_t base, int row, int col,
                                             float (&v)[4]) {
    int left = g.n - col;
    if (row >= g.m || left <= 0) return;
    int64_t at = base + row * g.ldo + col;
    T *out = (T *)g.out + at;
    bool whole = left >= 4 && (g.vec & KM_GEMM_VEC_OUT);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= g.alpha;
    if (g.beta != 0) {
        float old[4] = {};
        if (whole) {
            load4(out, old);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left) old[i] = to_f32(out[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = fmaf(g.beta, old[i], v[i]);
    }
    if (g.bias) {
        const T *bias = (const T *)g.bias + col;
        float b[4] = {};
        if (left >= 4 && (g.vec & KM_GEMM_VEC_BIAS)) {
            load4(bias, b);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left) b[i] = to_f32(bias[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += b[i];
    }
    if (g.pre) {
        T *pre = (T *)g.pre + at;
        if (whole) {
            store4(pre, v);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left) pre[i] = from_f32<T>(v[i]);
        }
    }
    if (g.act) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = gemm_act(g.act, v[i]);
    }
    if (whole) {
        store4(out, v);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left) out[i] = from_f32<T>(v[i]);
    }
}

// ---- Strips ----
// Tensor cores leave a 16 x W strip of sums spread over a warp in pairs. It goes through shared
// memory, so that rows are written (and beta's read) in one piece, and the long code of the
// activations exists once. Chunks of 8 floats are swapped about by row to spread over the banks.

template <int W> __device__ __forceinline__ int strip_at(int row, int chunk) {
    constexpr int swaps = W >= 32 ? 4 : W / 8;
    return row * W + (chunk ^ (row & (swaps - 1))) * 8;
}

// Puts d[0..3] of the 16x8 piece `chunk` (as mma_m16n8k16 leaves it) into the strip.
template <int W>
__device__ __forceinline__ void strip_put(float *strip, int lane, int chunk, float d0, float d1,
                                          float d2, float d3) {
    int row = lane / 4, col = lane % 4 * 2;
    *reinterpret_cast<float2 *>(strip + strip_at<W>(row, chunk) + col) = make_float2(d0, d1);
    *reinterpret_cast<float2 *>(strip + strip_at<W>(row + 8, chunk) + col) = make_float2(d2, d3);
}

template <class T, int W>
__device__ __forceinline__ void strip_finish(const km_gemm_args &g, const float *strip,
                                             int64_t base, int row, int col, int lane) {
    constexpr int lanes = W / 4, rows = 32 / lanes;
    int q = lane % lanes;
#pragma unroll 1
    for (int r = lane / lanes; r < 16; r += rows) {
        float v[4];
        load4(strip + strip_at<W>(r, q / 2) + q % 2 * 4, v);
        gemm_finish4<T>(g, base, row + r, col + q * 4, v);
    }
}

#endif
