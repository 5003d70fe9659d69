// A few vectors (m of them, at most 8) against one matrix w: what decoding one token does.
//
// Floor: w is read once, n k bytes-per-element at 4.8 TB/s (one H200); 4096 x 4096 f32 is 67 MB,
// 14 us, or 15.8 at the 4.24 TB/s that copies reach. The 2 m n k operations are far below that, so
// all that matters is that enough loads are under way: each thread starts 8 of 16 bytes before it
// uses the first (4 where there are more than two vectors).
//
// Rows: w is (n, k). A warp sums KM_GEMV_ROWS_EACH rows; up to 8 warps share them when there are
// too few rows to fill the chip. Columns: w is (k, n). A block sums columns 128 bytes wide, its
// threads every 32nd row; several blocks share the columns when there are few, and the last of
// them adds up what each found, in order, so that results do not depend on timing.
#include "backend/cuda/kernels/gemm_common.cuh"

// ---- Pieces: V elements as they travel, 16 bytes or one element; zeros where !there. w is read
// once and goes past L1, x is read by every warp and stays there. ----

template <class T, int V> struct piece {
    uint4 v;
    __device__ __forceinline__ void once(const T *p, bool there) {
        v = make_uint4(0, 0, 0, 0);
        if (there)
            asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "l"(p));
    }
    __device__ __forceinline__ void cached(const T *p, bool there) {
        v = make_uint4(0, 0, 0, 0);
        if (there) v = __ldg(reinterpret_cast<const uint4 *>(p));
    }
    __device__ __forceinline__ void get(float (&f)[V]) const {
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < 4; i++) f[i] = __uint_as_float(word[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                T pair[2];
                memcpy(pair, &word[i], 4);
                f[2 * i] = to_f32(pair[0]);
                f[2 * i + 1] = to_f32(pair[1]);
            }
        }
    }
};
template <class T> struct piece<T, 1> {
    float v;
    __device__ __forceinline__ void once(const T *p, bool there) {
        v = there ? to_f32(__ldg(p)) : 0.0f;
    }
    __device__ __forceinline__ void cached(const T *p, bool there) { once(p, there); }
    __device__ __forceinline__ void get(float (&f)[1]) const { f[0] = v; }
};

template <class T>
__device__ __forceinline__ void gemv_finish(const km_gemv_args &g, int64_t base, int vector,
                                            int row, float v) {
    int64_t at = base + vector * g.out_vector + row * g.out_row;
    T *out = (T *)g.out + at;
    v *= g.alpha;
    if (g.beta != 0) v = fmaf(g.beta, to_f32(*out), v);
    if (g.bias) v += to_f32(((const T *)g.bias)[row]);
    if (g.pre) ((T *)g.pre)[at] = from_f32<T>(v);
    *out = from_f32<T>(gemm_act(g.act, v));
}

// ---- Rows: grid (blocks of rows, batch) ----

// U pieces of each of R rows and of M vectors, `step` pieces apart from piece c on. ALL: all of
// them are there.
template <class T, int V, int M, int R, int U, bool ALL>
__device__ __forceinline__ void rows_round(float (&sum)[R][M], const T *const (&w)[R],
                                           const T *const (&x)[M], int c, int step, int pieces) {
    piece<T, V> held[U][R];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int r = 0; r < R; r++)
            held[u][r].once(w[r] + (int64_t)(c + u * step) * V, ALL || c + u * step < pieces);
#pragma unroll
    for (int u = 0; u < U; u++) {
        float fw[R][V];
#pragma unroll
        for (int r = 0; r < R; r++) held[u][r].get(fw[r]);
#pragma unroll
        for (int i = 0; i < M; i++) {
            piece<T, V> px;
            float fx[V];
            px.cached(x[i] + (int64_t)(c + u * step) * V, ALL || c + u * step < pieces);
            px.get(fx);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int v = 0; v < V; v++) sum[r][i] = fmaf(fw[r][v], fx[v], sum[r][i]);
        }
    }
}

template <class T, int V, int M> __device__ __forceinline__ void gemv_rows(const km_gemv_args &g) {
    constexpr int R = KM_GEMV_ROWS_EACH, WARPS = KM_GEMV_ROWS_THREADS / 32, U = (M > 2 ? 4 : 8) / R;
    __shared__ float partial[WARPS][M * R];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int groups = WARPS / g.parts, group = warp / g.parts, part = warp % g.parts;
    int row0 = (blockIdx.x * groups + group) * R;
    const T *w[R], *x[M];
#pragma unroll
    for (int r = 0; r < R; r++)
        w[r] = (const T *)g.w + blockIdx.y * g.batch_w + min(row0 + r, g.n - 1) * g.ldw;
#pragma unroll
    for (int i = 0; i < M; i++)
        x[i] = (const T *)g.x + blockIdx.y * g.batch_x + min(i, g.m - 1) * g.x_vector;

    float sum[R][M] = {};
    int pieces = g.k / V, step = 32 * g.parts, c = part * 32 + lane;
    for (; c + (U - 1) * step < pieces; c += U * step)
        rows_round<T, V, M, R, U, true>(sum, w, x, c, step, pieces);
    if (c < pieces) rows_round<T, V, M, R, U, false>(sum, w, x, c, step, pieces);
    int rest = pieces * V + lane; // fewer than V are left
    if (part == 0 && rest < g.k) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < M; i++)
                sum[r][i] = fmaf(to_f32(w[r][rest]), to_f32(x[i][rest]), sum[r][i]);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            float all = warp_sum(sum[r][i]);
            if (lane == 0) partial[warp][r * M + i] = all;
        }
    __syncthreads();
    for (int j = threadIdx.x; j < groups * R * M; j += KM_GEMV_ROWS_THREADS) {
        int which = j / (R * M), entry = j % (R * M), r = entry / M, i = entry % M;
        int row = (blockIdx.x * groups + which) * R + r;
        float all = 0;
        for (int p = 0; p < g.parts; p++) all += partial[which * g.parts + p][entry];
        if (row < g.n && i < g.m) gemv_finish<T>(g, blockIdx.y * g.batch_o, i, row, all);
    }
}

// ---- Columns: grid (blocks of columns, parts, batch) ----

// U pieces, STEP rows of w apart from row k on.
template <class T, int V, int M, int U, int STEP, bool ALL>
__device__ __forceinline__ void columns_round(float (&sum)[M][V], const T *w, const T *x,
                                              const km_gemv_args &g, int k, int end) {
    piece<T, V> held[U];
    float fx[U][M];
#pragma unroll
    for (int u = 0; u < U; u++)
        held[u].once(w + (int64_t)(k + u * STEP) * g.ldw, ALL || k + u * STEP < end);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            const T *p = x + min(i, g.m - 1) * g.x_vector + (k + u * STEP) * g.x_k;
            fx[u][i] = ALL || k + u * STEP < end ? to_f32(__ldg(p)) : 0.0f;
        }
#pragma unroll
    for (int u = 0; u < U; u++) {
        float fw[V];
        held[u].get(fw);
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int v = 0; v < V; v++) sum[i][v] = fmaf(fw[v], fx[u][i], sum[i][v]);
    }
}

template <class T, int V, int M>
__device__ __forceinline__ void gemv_columns(const km_gemv_args &g) {
    constexpr int WARPS = KM_GEMV_COLUMNS_THREADS / 32, LANES = V == 1 ? 32 : 8, DOWN = 32 / LANES;
    constexpr int COLS = LANES * V, U = M > 2 ? 4 : 8, STEP = WARPS * DOWN;
    static_assert(V == 1 ? COLS == KM_GEMV_COLUMNS_SCALAR
                         : COLS * sizeof(T) == KM_GEMV_COLUMNS_BYTES,
                  "as the host counts");
    __shared__ float partial[WARPS][M][COLS];
    __shared__ bool last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int col0 = blockIdx.x * COLS, my_col = col0 + lane % LANES * V;
    int share = (g.k + g.parts - 1) / g.parts;
    int begin = blockIdx.y * share, end = min(begin + share, g.k);
    const T *w = (const T *)g.w + blockIdx.z * g.batch_w + my_col;
    const T *x = (const T *)g.x + blockIdx.z * g.batch_x;

    float sum[M][V] = {};
    int k = my_col < g.n ? begin + warp * DOWN + lane / LANES : end; // n is a multiple of V
    for (; k + (U - 1) * STEP < end; k += U * STEP)
        columns_round<T, V, M, U, STEP, true>(sum, w, x, g, k, end);
    if (k < end) columns_round<T, V, M, U, STEP, false>(sum, w, x, g, k, end);
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            float all = sum[i][v];
#pragma unroll
            for (int d = LANES; d < 32; d *= 2) all += __shfl_xor_sync(ALL_LANES, all, d);
            if (lane < LANES) partial[warp][i][lane * V + v] = all;
        }
    __syncthreads();
    float *shares = g.partial + (int64_t)blockIdx.z * g.m * g.n;
    int64_t apart = (int64_t)gridDim.z * g.m * g.n; // from one block's share to the next's
    for (int j = threadIdx.x; j < g.m * COLS; j += KM_GEMV_COLUMNS_THREADS) {
        int i = j / COLS, col = col0 + j % COLS;
        float all = 0;
#pragma unroll
        for (int p = 0; p < WARPS; p++) all += partial[p][i][j % COLS];
        if (col >= g.n) continue;
        if (g.parts == 1)
            gemv_finish<T>(g, blockIdx.z * g.batch_o, i, col, all);
        else
            shares[blockIdx.y * apart + (int64_t)i * g.n + col] = all;
    }
    if (g.parts == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = g.counters + blockIdx.z * gridDim.x + blockIdx.x;
        last = atomicAdd(counter, 1) == g.parts - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int j = threadIdx.x; j < g.m * COLS; j += KM_GEMV_COLUMNS_THREADS) {
        int i = j / COLS, col = col0 + j % COLS;
        if (col >= g.n) continue;
        float all = 0;
        for (int p = 0; p < g.parts; p++)
            all += __ldcg(&shares[p * apart + (int64_t)i * g.n + col]);
        gemv_finish<T>(g, blockIdx.z * g.batch_o, i, col, all);
    }
}

// gemv_rows_bf16_4: up to four vectors; gemv_rows_bf16_scalar_4: w or x not 16-byte aligned. Two
// blocks to a multiprocessor at least: with more asked for, the compiler saves registers by
// starting fewer loads at a time.
#define GEMV(kind, THREADS, BLOCKS, type, tname, m)                                                \
    KM_KERNEL __launch_bounds__(THREADS, BLOCKS)                                                   \
        gemv_##kind##_##tname##_##m(const __grid_constant__ km_gemv_args g) {                      \
        gemv_##kind<type, 16 / sizeof(type), m>(g);                                                \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(THREADS, BLOCKS)                                                   \
        gemv_##kind##_##tname##_scalar_##m(const __grid_constant__ km_gemv_args g) {               \
        gemv_##kind<type, 1, m>(g);                                                                \
    }
#define GEMV_EACH(type, tname, m)                                                                  \
    GEMV(rows, KM_GEMV_ROWS_THREADS, 2, type, tname, m)                                            \
    GEMV(columns, KM_GEMV_COLUMNS_THREADS, 2, type, tname, m)
KM_EACH_FLOAT(GEMV_EACH, 1)
KM_EACH_FLOAT(GEMV_EACH, 2)
KM_EACH_FLOAT(GEMV_EACH, 4)
KM_EACH_FLOAT(GEMV_EACH, 8)
