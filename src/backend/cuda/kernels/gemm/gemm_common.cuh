// What the matrix product kernels share: the order of tiles, and the way of an accumulated sum to
// memory (alpha, beta, bias, activation).
#ifndef KM_CUDA_GEMM_COMMON_CUH
#define KM_CUDA_GEMM_COMMON_CUH
#include "backend/cuda/kernels/gemm/gemm_params.h"
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

// gelu and silu for results of 16 bits: good to 1e-5 where they are not all but zero, and a third of
// the instructions. The products that tensor cores make leave little time for them.
__device__ __forceinline__ float quick_gelu(float x) {
    return x * quick_rcp(1.0f + quick_exp2(-x * fmaf(GELU_C * x, x, GELU_K)));
}
__device__ __forceinline__ float quick_silu(float x) {
    return x * quick_rcp(1.0f + quick_exp2(-1.44269504f * x));
}

// act (a km_act) of N numbers that end up as T.
template <class T, int N> __device__ __forceinline__ void gemm_act(int act, float (&v)[N]) {
    constexpr bool quick = sizeof(T) == 2;
#define EACH(f) _Pragma("unroll") for (int i = 0; i < N; i++) v[i] = f(v[i])
    switch (act) {
    case 1: EACH(relu); break;
    case 2:
        if constexpr (quick)
            EACH(quick_gelu);
        else
            EACH(gelu);
        break;
    case 3: EACH(gelu_erf); break;
    case 4:
        if constexpr (quick)
            EACH(quick_silu);
        else
            EACH(silu);
        break;
    default: break;
    }
#undef EACH
}

// Four elements of a row of which `left` exist; the rest is 0. vec: they are aligned.
template <class T>
__device__ __forceinline__ void load_part(const T *p, int left, bool vec, float (&v)[4]) {
    if (vec && left >= 4) {
        load4(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < left ? to_f32(p[i]) : 0.0f;
}
template <class T>
__device__ __forceinline__ void store_part(T *p, int left, bool vec, const float (&v)[4]) {
    if (vec && left >= 4) {
        store4(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < left) p[i] = from_f32<T>(v[i]);
}

// The bias of columns `col` to `col` + 3, or zeros.
template <class T>
__device__ __forceinline__ void gemm_bias4(const km_gemm_args &g, int col, float (&b)[4]) {
    load_part((const T *)g.bias + col, g.bias ? g.n - col : 0, g.vec & KM_GEMM_VEC_BIAS, b);
}

// Finishes v, the sums of row `row`, columns `col` to `col` + 3, of the problem that starts at
// `base` in out. Columns beyond n and rows beyond m are left out. PLAIN: there is no beta, no pre
// and no act.
template <class T, bool PLAIN = false>
__device__ __forceinline__ void gemm_finish4(const km_gemm_args &g, int64_t base, int row, int col,
                                             const float (&bias)[4], float (&v)[4]) {
    int left = g.n - col;
    if (row >= g.m || left <= 0) return;
    int64_t at = base + row * g.ldo + col;
    T *out = (T *)g.out + at;
    bool vec = g.vec & KM_GEMM_VEC_OUT;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = fmaf(g.alpha, v[i], bias[i]);
    if (!PLAIN && g.beta != 0) {
        float old[4];
        load_part(out, left, vec, old);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = fmaf(g.beta, old[i], v[i]);
    }
    if (!PLAIN && g.pre) store_part((T *)g.pre + at, left, vec, v);
    if (!PLAIN) gemm_act<T>(g.act, v);
    store_part(out, left, vec, v);
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

template <class T, int W, bool PLAIN>
__device__ __forceinline__ void strip_rows(const km_gemm_args &g, const float *strip, int64_t base,
                                           int row, int col, int lane) {
    constexpr int lanes = W / 4, rows = 32 / lanes;
    int q = lane % lanes;
    float bias[4];
    gemm_bias4<T>(g, col + q * 4, bias);
#pragma unroll(PLAIN ? 4 : 2)
    for (int i = 0; i < 16 / rows; i++) {
        int r = lane / lanes + i * rows;
        float v[4];
        load4(strip + strip_at<W>(r, q / 2) + q % 2 * 4, v);
        gemm_finish4<T, PLAIN>(g, base, row + r, col + q * 4, bias, v);
    }
}

// Finishes the strip whose first element is at (row, col) of out.
template <class T, int W>
__device__ __forceinline__ void strip_finish(const km_gemm_args &g, const float *strip,
                                             int64_t base, int row, int col, int lane) {
    if (g.beta == 0 && !g.pre && !g.act)
        strip_rows<T, W, true>(g, strip, base, row, col, lane);
    else
        strip_rows<T, W, false>(g, strip, base, row, col, lane);
}

#endif
