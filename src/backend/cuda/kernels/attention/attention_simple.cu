/* Attention, forward and gradient, with plain f32 arithmetic: any dtype, head size up to 256, any
 * strides, any scale. Serves f32, and whatever the tensor-core kernels do not take. The walk is
 * theirs (attention_fwd_mma.cu, attention_bwd_mma.cu): rows X stay, rows Y stream past in tiles of
 * as many rows, and a 16 x 16 grid of threads computes R x R of the scores each, R = TILE / 16.
 * Thread (ty, tx) owns rows ty + 16 i and columns tx + 16 j. */
#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/kernels/mma.cuh"

KM_DEVICE float widen(float x) { return x; }
KM_DEVICE float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
KM_DEVICE float widen(__half x) { return __half2float(x); }
KM_DEVICE void narrow(float *p, float x) { *p = x; }
KM_DEVICE void narrow(__nv_bfloat16 *p, float x) { *p = __float2bfloat16(x); }
KM_DEVICE void narrow(__half *p, float x) { *p = __float2half(x); }

template <typename T> KM_DEVICE T *head_of(const km_attention_view &v, int b, int h) {
    return (T *)v.data + b * v.b + h * v.h;
}

/* Rows [first, first + TILE) of src into tile (TILE, d + 1); zeros from row `end` on. */
template <typename T, int TILE>
KM_DEVICE void tile_fetch(float *tile, const T *src, int64_t stride, int first, int end, int d) {
    for (int row = threadIdx.x / 16; row < TILE; row += 16)
        for (int i = threadIdx.x % 16; i < d; i += 16)
            tile[row * (d + 1) + i] =
                first + row < end ? widen(src[(first + row) * stride + i]) : 0;
}

/* s[i][j] = row ty + 16 i of x times row tx + 16 j of y. */
template <int R> KM_DEVICE void tile_dot(float (&s)[R][R], const float *x, const float *y, int d) {
    const float *xr = x + threadIdx.x / 16 * (d + 1), *yr = y + threadIdx.x % 16 * (d + 1);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) s[i][j] = 0;
    for (int k = 0; k < d; k++) {
        float xv[R], yv[R];
#pragma unroll
        for (int i = 0; i < R; i++) xv[i] = xr[16 * i * (d + 1) + k];
#pragma unroll
        for (int j = 0; j < R; j++) yv[j] = yr[16 * j * (d + 1) + k];
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) s[i][j] = fmaf(xv[i], yv[j], s[i][j]);
    }
}

template <int R> KM_DEVICE void tile_put(float *w, const float (&s)[R][R]) {
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            w[(threadIdx.x / 16 + 16 * i) * (16 * R + 1) + threadIdx.x % 16 + 16 * j] = s[i][j];
}

/* acc[i][c] += row ty + 16 i of w (TILE, TILE + 1) times column tx + 16 c of y. */
template <int R, int C>
KM_DEVICE void tile_apply(float (&acc)[R][C], const float *w, const float *y, int d) {
    const float *wr = w + threadIdx.x / 16 * (16 * R + 1);
    for (int k = 0; k < 16 * R; k++) {
        float wv[R];
#pragma unroll
        for (int i = 0; i < R; i++) wv[i] = wr[16 * i * (16 * R + 1) + k];
#pragma unroll
        for (int c = 0; c < C; c++) {
            int col = threadIdx.x % 16 + 16 * c;
            float yv = col < d ? y[k * (d + 1) + col] : 0;
#pragma unroll
            for (int i = 0; i < R; i++) acc[i][c] = fmaf(wv[i], yv, acc[i][c]);
        }
    }
}

template <typename T, int R, int C>
KM_DEVICE void tile_write(const float (&acc)[R][C], const float (&scale)[R], T *dst, int64_t stride,
                          int first, int end, int d) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        int row = first + threadIdx.x / 16 + 16 * i;
#pragma unroll
        for (int c = 0; c < C; c++) {
            int col = threadIdx.x % 16 + 16 * c;
            if (row < end && col < d) narrow(dst + row * stride + col, acc[i][c] * scale[i]);
        }
    }
}

/* Over the 16 threads that share rows. */
KM_DEVICE float row_max(float x) {
    for (int i = 1; i < 16; i *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, i));
    return x;
}
KM_DEVICE float row_sum(float x) {
    for (int i = 1; i < 16; i *= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, i);
    return x;
}

template <typename T, int DMAX> KM_DEVICE void simple_fwd(const km_attention_args &p) {
    constexpr int TILE = KM_ATTENTION_SIMPLE_TILE(DMAX), R = TILE / 16, C = DMAX / 16;
    extern __shared__ __align__(128) char km_smem[];
    int d = p.d, h = blockIdx.y, b = blockIdx.z, hk = h / (p.heads / p.kv_heads);
    float *x = (float *)km_smem, *y = x + TILE * (d + 1), *w = y + TILE * (d + 1);
    int first = blockIdx.x * TILE, shift = p.tk - p.tq, tx = threadIdx.x % 16;
    int row0 = first + threadIdx.x / 16;
    int keys = p.causal ? min(p.tk, first + TILE + shift) : p.tk;

    float acc[R][C] = {}, top[R], sum[R] = {};
#pragma unroll
    for (int i = 0; i < R; i++) top[i] = -INFINITY;
    tile_fetch<T, TILE>(x, head_of<T>(p.q, b, h), p.q.t, first, p.tq, d);
    for (int key = 0; key < keys; key += TILE) {
        __syncthreads();
        tile_fetch<T, TILE>(y, head_of<T>(p.k, b, hk), p.k.t, key, p.tk, d);
        __syncthreads();
        float s[R][R];
        tile_dot<R>(s, x, y, d);
#pragma unroll
        for (int i = 0; i < R; i++) {
            int row = row0 + 16 * i, limit = p.causal ? min(p.tk, row + shift + 1) : p.tk;
            float m = -INFINITY;
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = key + tx + 16 * j < limit ? s[i][j] * p.scale : -INFINITY;
                m = fmaxf(m, s[i][j]);
            }
            m = fmaxf(top[i], row_max(m));
            float base = m == -INFINITY ? 0 : m, alpha = expf(top[i] - base), part = 0;
#pragma unroll
            for (int j = 0; j < R; j++) part += s[i][j] = expf(s[i][j] - base);
            sum[i] = sum[i] * alpha + row_sum(part);
            top[i] = m;
#pragma unroll
            for (int c = 0; c < C; c++) acc[i][c] *= alpha;
        }
        tile_put<R>(w, s);
        __syncthreads();
        tile_fetch<T, TILE>(y, head_of<T>(p.v, b, hk), p.v.t, key, p.tk, d);
        __syncthreads();
        tile_apply<R, C>(acc, w, y, d);
    }

    float inv[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        int row = row0 + 16 * i;
        inv[i] = sum[i] == 0 ? 0 : 1 / sum[i];
        if (tx == 0 && row < p.tq)
            ((float *)p.lse.data)[b * p.lse.b + h * p.lse.h + row * p.lse.t] =
                sum[i] == 0 ? -INFINITY : top[i] + logf(sum[i]);
    }
    tile_write<T, R, C>(acc, inv, head_of<T>(p.o, b, h), p.o.t, first, p.tq, d);
}

template <typename T, int DMAX, bool DKDV> KM_DEVICE void simple_bwd(const km_attention_args &p) {
    constexpr int TILE = KM_ATTENTION_SIMPLE_TILE(DMAX), R = TILE / 16, C = DMAX / 16;
    extern __shared__ __align__(128) char km_smem[];
    int d = p.d, group = p.heads / p.kv_heads, b = blockIdx.z;
    float *x1 = (float *)km_smem, *x2 = x1 + TILE * (d + 1), *y1 = x2 + TILE * (d + 1);
    float *y2 = y1 + TILE * (d + 1), *w1 = y2 + TILE * (d + 1), *w2 = w1 + TILE * (TILE + 1);
    int first = blockIdx.x * TILE, shift = p.tk - p.tq, tx = threadIdx.x % 16;
    int row0 = first + threadIdx.x / 16;
    int hk = DKDV ? blockIdx.y : blockIdx.y / group;
    int h_lo = DKDV ? blockIdx.y * group : blockIdx.y, h_hi = DKDV ? h_lo + group : h_lo + 1;
    int lo = 0, hi = DKDV ? p.tq : p.tk;
    if (p.causal && DKDV) lo = max(0, first - shift) / TILE * TILE;
    if (p.causal && !DKDV) hi = min(hi, first + TILE + shift);

    float dx1[R][C] = {}, dx2[R][C] = {}; /* dq, or dk and dv */
    for (int h = h_lo; h < h_hi; h++) {
        const T *q = head_of<T>(p.q, b, h), *d_o = head_of<T>(p.d_o, b, h);
        const T *k = head_of<T>(p.k, b, hk), *v = head_of<T>(p.v, b, hk);
        const float *lse = p.work + ((int64_t)b * p.heads + h) * p.tq_pad;
        const float *delta = lse + (int64_t)p.batch * p.heads * p.tq_pad;
        if (h == h_lo) {
            tile_fetch<T, TILE>(x1, DKDV ? k : q, DKDV ? p.k.t : p.q.t, first, DKDV ? p.tk : p.tq,
                                d);
            tile_fetch<T, TILE>(x2, DKDV ? v : d_o, DKDV ? p.v.t : p.d_o.t, first,
                                DKDV ? p.tk : p.tq, d);
        }
        for (int at = lo; at < hi; at += TILE) {
            __syncthreads();
            tile_fetch<T, TILE>(y1, DKDV ? q : k, DKDV ? p.q.t : p.k.t, at, DKDV ? p.tq : p.tk, d);
            tile_fetch<T, TILE>(y2, DKDV ? d_o : v, DKDV ? p.d_o.t : p.v.t, at, DKDV ? p.tq : p.tk,
                                d);
            __syncthreads();
            float s[R][R], dp[R][R];
            tile_dot<R>(s, x1, y1, d);
            tile_dot<R>(dp, x2, y2, d);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < R; j++) {
                    int row = row0 + 16 * i, col = at + tx + 16 * j;
                    int query = DKDV ? col : row, key = DKDV ? row : col;
                    bool seen = query < p.tq && key < p.tk && !(p.causal && key > query + shift);
                    float prob = 0, grad = 0;
                    if (seen) {
                        prob = exp2f(s[i][j] * p.scale * 1.4426950408889634f - lse[query]);
                        grad = prob * (dp[i][j] - delta[query]);
                    }
                    s[i][j] = prob;
                    dp[i][j] = grad;
                }
            if (DKDV) tile_put<R>(w1, s);
            tile_put<R>(w2, dp);
            __syncthreads();
            if (DKDV) tile_apply<R, C>(dx2, w1, y2, d);
            tile_apply<R, C>(dx1, w2, y1, d);
        }
    }

    float scale[R], one[R];
#pragma unroll
    for (int i = 0; i < R; i++) scale[i] = p.scale, one[i] = 1;
    if (DKDV) {
        tile_write<T, R, C>(dx1, scale, head_of<T>(p.dk, b, hk), p.dk.t, first, p.tk, d);
        tile_write<T, R, C>(dx2, one, head_of<T>(p.dv, b, hk), p.dv.t, first, p.tk, d);
    } else {
        tile_write<T, R, C>(dx1, scale, head_of<T>(p.dq, b, h_lo), p.dq.t, first, p.tq, d);
    }
}

#define KM_ATTENTION_KERNEL(PASS, NAME, D)                                                         \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_SIMPLE_THREADS)                      \
        km_attention_##PASS##_simple_##NAME##_d##D(const __grid_constant__ km_attention_args p)
#define KM_ATTENTION_SIMPLE(T, NAME, D)                                                            \
    KM_ATTENTION_KERNEL(fwd, NAME, D) { simple_fwd<T, D>(p); }                                     \
    KM_ATTENTION_KERNEL(dq, NAME, D) { simple_bwd<T, D, false>(p); }                               \
    KM_ATTENTION_KERNEL(dkdv, NAME, D) { simple_bwd<T, D, true>(p); }
#define KM_ATTENTION_SIMPLE_SIZES(T, NAME)                                                         \
    KM_ATTENTION_SIMPLE(T, NAME, 64)                                                               \
    KM_ATTENTION_SIMPLE(T, NAME, 128)                                                              \
    KM_ATTENTION_SIMPLE(T, NAME, 256)

KM_ATTENTION_SIMPLE_SIZES(float, f32)
KM_ATTENTION_SIMPLE_SIZES(__nv_bfloat16, bf16)
KM_ATTENTION_SIMPLE_SIZES(__half, f16)
