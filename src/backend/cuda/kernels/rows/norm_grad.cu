// Gradients of the norms. With h = (x - mean) rstd and g = dy w:
//   dx = rstd (g - mean(g) - h mean(g h)) + dsum     (rms_norm: without mean(g), mean taken as 0)
//   dw = sum over rows of dy h,  db = sum over rows of dy
// Floor: two reads and one write of the rows. A row's own sums go over its warp or block; dw and db
// are carried in registers while a block walks over its rows, written once per block, and added up
// in a fixed order by a second kernel.
#include "backend/cuda/kernels/rows/row.cuh"

template <int W, int N> struct Carried { // f32 sums of this thread's columns
    float dw[N][W], db[N][W];
};

// What one row needs from memory, N packs to a thread. A row's packs are asked for while the row
// before it is worked on.
template <class T, int W, int N> struct Loaded {
    Pack<T, W> x[N], dy[N];
    float mean, rstd;

    __device__ void load(const km_norm_grad_args &p, int64_t row, int first, int step, int packs) {
        const T *x_row = (const T *)p.x + row * p.n, *dy_row = (const T *)p.dy + row * p.n;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = first + i * step;
            if (at >= packs) continue;
            x[i] = load_pack<T, W>(x_row, at);
            dy[i] = load_pack<T, W>(dy_row, at);
        }
        mean = p.mean ? p.mean[row] : 0;
        rstd = p.rstd[row];
    }
};

// Rows first, first + stride, ... of one warp or block.
template <class T, int W, Team K, int N> __device__ void grad_rows(const km_norm_grad_args &p) {
    Crew<K> crew;
    const int first = crew.rank, step = K == WARP ? 32 : (int)blockDim.x, packs = p.n / W;
    int64_t row = crew.row, stride = (int64_t)gridDim.x * (K == WARP ? KM_WARP_ROWS : 1);
    Carried<W, N> sums = {};
    Pack<T, W> w[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i * step < packs) w[i] = load_pack<T, W>((const T *)p.w, first + i * step);
    Loaded<T, W, N> next;
    if (row < p.rows) next.load(p, row, first, step, packs);
    const float share = 1 / (float)p.n;
    for (; row < p.rows; row += stride) {
        Loaded<T, W, N> now = next;
        if (row + stride < p.rows) next.load(p, row + stride, first, step, packs);
        Pack<T, W> dsum[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            if (p.dsum && first + i * step < packs)
                dsum[i] = load_pack<T, W>((const T *)p.dsum + row * p.n, first + i * step);
        float2 s = {0, 0};
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (first + i * step >= packs) continue;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float d = to_f32(now.dy[i].v[k]), h = (to_f32(now.x[i].v[k]) - now.mean) * now.rstd;
                float g = d * to_f32(w[i].v[k]);
                s.x += g;
                s.y = fmaf(g, h, s.y);
                sums.dw[i][k] = fmaf(d, h, sums.dw[i][k]);
                sums.db[i][k] += d;
            }
        }
        crew.turn =
            crew.turn >= 2 ? 0 : crew.turn; // two places in turn are enough between barriers
        s = crew.sum2(s);
        float mg = p.mean ? s.x * share : 0, mh = s.y * share;
        Pack<T, W> *out = (Pack<T, W> *)((T *)p.dx + row * p.n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = first + i * step;
            if (at >= packs) continue;
            Pack<T, W> r;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float h = (to_f32(now.x[i].v[k]) - now.mean) * now.rstd;
                float g = to_f32(now.dy[i].v[k]) * to_f32(w[i].v[k]);
                float d = now.rstd * (g - mg - h * mh);
                r.v[k] = from_f32<T>(p.dsum ? d + to_f32(dsum[i].v[k]) : d);
            }
            out[at] = r;
        }
    }
    float *dw = p.partial + (int64_t)blockIdx.x * 2 * p.n, *db = dw + p.n;
    if (K != WARP) {
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int k = 0; k < W; k++) {
                int c = (first + i * step) * W + k;
                if (first + i * step < packs) dw[c] = sums.dw[i][k], db[c] = sums.db[i][k];
            }
        return;
    }
    // The warps of a block add up, one after the other.
    extern __shared__ float together[]; // (2, n)
    for (int turn = 0; turn < KM_WARP_ROWS; turn++) {
        if ((int)threadIdx.x / 32 == turn)
#pragma unroll
            for (int i = 0; i < N; i++)
                for (int k = 0; k < W; k++) {
                    int c = (first + i * step) * W + k;
                    if (first + i * step >= packs) continue;
                    together[c] = sums.dw[i][k] + (turn ? together[c] : 0);
                    together[p.n + c] = sums.db[i][k] + (turn ? together[p.n + c] : 0);
                }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < p.n; c += blockDim.x) {
        dw[c] = together[c];
        db[c] = together[p.n + c];
    }
}

#define WARP_ROWS(T, t, N)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * KM_WARP_ROWS, N < 3   ? 4                    \
                                                                    : N < 4 ? 3                    \
                                                                            : 2)                   \
        norm_grad_##t##_warp##N(const __grid_constant__ km_norm_grad_args p) {                     \
        grad_rows<T, WIDE<T>, WARP, N>(p);                                                         \
    }
#define ROWS(T, t)                                                                                 \
    WARP_ROWS(T, t, 1)                                                                             \
    WARP_ROWS(T, t, 2)                                                                             \
    WARP_ROWS(T, t, 3)                                                                             \
    WARP_ROWS(T, t, 4)                                                                             \
    extern "C" __global__ void __launch_bounds__(512)                                              \
        norm_grad_##t##_block(const __grid_constant__ km_norm_grad_args p) {                       \
        grad_rows<T, WIDE<T>, BLOCK, KM_BLOCK_PACKS>(p);                                           \
    }
KM_EACH_FLOAT(ROWS)

// ---- Rows of any length: dx alone, then dw and db by columns ----

template <class T> __device__ void grad_stream(const km_norm_grad_args &p) {
    Crew<STREAM> crew;
    int64_t at = crew.row * p.n;
    const T *x = (const T *)p.x + at, *dy = (const T *)p.dy + at, *w = (const T *)p.w;
    const T *dsum = p.dsum ? (const T *)p.dsum + at : nullptr;
    float mean = p.mean ? p.mean[crew.row] : 0, rstd = p.rstd[crew.row];
    float2 s = {0, 0};
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
        float g = to_f32(dy[i]) * to_f32(w[i]);
        s.x += g;
        s.y = fmaf(g, (to_f32(x[i]) - mean) * rstd, s.y);
    }
    s = crew.sum2(s);
    float mg = p.mean ? s.x / (float)p.n : 0, mh = s.y / (float)p.n;
    for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
        float h = (to_f32(x[i]) - mean) * rstd, g = to_f32(dy[i]) * to_f32(w[i]);
        float d = rstd * (g - mg - h * mh);
        ((T *)p.dx)[at + i] = from_f32<T>(dsum ? d + to_f32(dsum[i]) : d);
    }
}

// Part blockIdx.y of the rows, 32 columns to a block of 32 x 8 threads.
template <class T> __device__ void grad_columns(const km_norm_grad_args &p) {
    __shared__ float2 by_row[8][32];
    int c = blockIdx.x * 32 + threadIdx.x;
    int64_t each = (p.rows + p.parts - 1) / p.parts, first = blockIdx.y * each;
    int64_t last = first + each < p.rows ? first + each : p.rows;
    float2 s = {0, 0};
    if (c < p.n)
        for (int64_t r = first + threadIdx.y; r < last; r += 8) {
            float d = to_f32(((const T *)p.dy)[r * p.n + c]);
            float mean = p.mean ? p.mean[r] : 0;
            s.x = fmaf(d, (to_f32(((const T *)p.x)[r * p.n + c]) - mean) * p.rstd[r], s.x);
            s.y += d;
        }
    by_row[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.y || c >= p.n) return;
    for (int k = 1; k < 8; k++) s.x += by_row[k][threadIdx.x].x, s.y += by_row[k][threadIdx.x].y;
    p.partial[(int64_t)blockIdx.y * 2 * p.n + c] = s.x;
    p.partial[((int64_t)blockIdx.y * 2 + 1) * p.n + c] = s.y;
}

// dw and db from the parts, in their order: 16 columns to a block, 32 groups of parts, several of
// each group on their way at once.
template <class T> __device__ void grad_finish(const km_norm_grad_args &p) {
    constexpr int AHEAD = 8, GROUPS = KM_FINISH_GROUPS;
    __shared__ float2 by_group[GROUPS][KM_FINISH_COLUMNS];
    int c = blockIdx.x * KM_FINISH_COLUMNS + threadIdx.x;
    float2 s = {0, 0};
    if (c < p.n)
        for (int first = threadIdx.y; first < p.parts; first += AHEAD * GROUPS) {
            float2 v[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int k = first + u * GROUPS;
                v[u] = make_float2(0, 0);
                if (k < p.parts)
                    v[u] = make_float2(p.partial[(int64_t)k * 2 * p.n + c],
                                       p.partial[((int64_t)k * 2 + 1) * p.n + c]);
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) s.x += v[u].x, s.y += v[u].y;
        }
    by_group[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.y || c >= p.n) return;
    for (int k = 1; k < GROUPS; k++)
        s.x += by_group[k][threadIdx.x].x, s.y += by_group[k][threadIdx.x].y;
    ((T *)p.dw)[c] = from_f32<T>(s.x);
    if (p.db) ((T *)p.db)[c] = from_f32<T>(s.y);
}

#define ANY(T, t)                                                                                  \
    KM_KERNEL norm_grad_##t##_stream(const __grid_constant__ km_norm_grad_args p) {                \
        grad_stream<T>(p);                                                                         \
    }                                                                                              \
    KM_KERNEL norm_grad_columns_##t(const __grid_constant__ km_norm_grad_args p) {                 \
        grad_columns<T>(p);                                                                        \
    }                                                                                              \
    KM_KERNEL norm_grad_finish_##t(const __grid_constant__ km_norm_grad_args p) {                  \
        grad_finish<T>(p);                                                                         \
    }
KM_EACH_FLOAT(ANY)
