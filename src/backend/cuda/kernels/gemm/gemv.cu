// A few vectors (m of them, at most 8) against one matrix w: what decoding one token does.
//
// Floor: w is read once, n k elements at 4.8 TB/s (one H200); 4096 x 4096 f32 is 67 MB, 14 us, or
// 15.6 at the 4.3 TB/s that reading reaches. The 2 m n k operations are far below that, so all
// that matters is that loads never stop: each thread has a ring of its own in shared memory with
// 8 asynchronous copies of 16 bytes under way. While the kernel in front is still running, the
// first of w is already called into L2.
//
// Rows: w is (n, k). A warp sums KM_GEMV_ROWS_EACH rows; up to 8 warps share them when there are
// too few rows to fill the chip. Columns: w is (k, n). A block sums columns 128 bytes wide; several
// share the columns when there are few. They add up what each found, in order, so that results do
// not depend on timing: as a cluster through shared memory, or before Hopper through global memory,
// where the last of them does it.
#include "backend/cuda/kernels/gemm/gemv.cuh"
#include "backend/cuda/kernels/mma.cuh"

// Calls a line into L2, so that it is there when it may be read. Harmless whatever it holds now.
__device__ __forceinline__ void call_into_l2(const void *p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

__device__ __forceinline__ void wait_for_results() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_in() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- Rows: grid (blocks of rows, batch) ----

template <int M, int R> struct row_sums { float sum[R][M]; };

// 16 bytes at a time, by way of the ring.
template <class T, int M, int R>
__device__ __forceinline__ void sum_pieces(row_sums<M, R> &s, const T *const (&w)[R],
                                           const T *const (&x)[M], int k, int part, int parts) {
    constexpr int V = 16 / sizeof(T), THREADS = KM_GEMV_ROWS_THREADS, DEEP = 8 / R;
    constexpr uint32_t SLOT = R * THREADS * 16, RING = DEEP * SLOT; // a power of two
    __shared__ uint4 ring[RING / 16];
    int pieces = k / V, step = 32 * parts, c = part * 32 + threadIdx.x % 32, ahead = c;
    int rounds = pieces > part * 32 ? (pieces - part * 32 + step - 1) / step : 0;
    uint32_t mine = smem_addr(ring + threadIdx.x), into = 0, from = 0;
    const T *next[R], *vector[M];
#pragma unroll
    for (int r = 0; r < R; r++) next[r] = w[r] + c * V;
#pragma unroll
    for (int i = 0; i < M; i++) vector[i] = x[i] + c * V;
    auto ask = [&] {
#pragma unroll
        for (int r = 0; r < R; r++) {
            cp_async_16(mine + into + r * THREADS * 16, next[r], ahead < pieces);
            next[r] += step * V;
        }
        cp_async_commit();
        ahead += step;
        into = (into + SLOT) % RING;
    };
#pragma unroll
    for (int i = 0; i < DEEP - 1; i++) ask();
#pragma unroll 2
    for (; rounds > 0; rounds--, c += step) {
        ask();
        uint4 px[M];
#pragma unroll
        for (int i = 0; i < M; i++) {
            px[i] = c < pieces ? __ldg(reinterpret_cast<const uint4 *>(vector[i]))
                               : make_uint4(0, 0, 0, 0);
            vector[i] += step * V;
        }
        cp_async_wait<DEEP - 1>();
        float fw[R][V];
#pragma unroll
        for (int r = 0; r < R; r++) unpack<T>(ring[from / 16 + r * THREADS + threadIdx.x], fw[r]);
        from = (from + SLOT) % RING;
#pragma unroll
        for (int i = 0; i < M; i++) {
            float fx[V];
            unpack<T>(px[i], fx);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int v = 0; v < V; v++) s.sum[r][i] = fmaf(fw[r][v], fx[v], s.sum[r][i]);
        }
    }
    cp_async_wait<0>();
}

// One element at a time, from `begin` on, every `step`th.
template <class T, int M, int R>
__device__ __forceinline__ void sum_elements(row_sums<M, R> &s, const T *const (&w)[R],
                                             const T *const (&x)[M], int begin, int end, int step) {
#pragma unroll 4
    for (int k = begin; k < end; k += step) {
        float fw[R];
#pragma unroll
        for (int r = 0; r < R; r++) fw[r] = to_f32(__ldg(w[r] + k));
#pragma unroll
        for (int i = 0; i < M; i++) {
            float fx = to_f32(__ldg(x[i] + k));
#pragma unroll
            for (int r = 0; r < R; r++) s.sum[r][i] = fmaf(fw[r], fx, s.sum[r][i]);
        }
    }
}

template <class T, bool VEC, int M>
__device__ __forceinline__ void gemv_rows(const km_gemv_args &g) {
    constexpr int R = KM_GEMV_ROWS_EACH, WARPS = KM_GEMV_ROWS_THREADS / 32;
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

    constexpr int LINE = 128 / (int)sizeof(T); // one for each lane
    int early = (part * 32 + lane) * LINE;
    if (VEC && early < g.k) {
#pragma unroll
        for (int r = 0; r < R; r++) call_into_l2(w[r] + early);
    }
    wait_for_previous();

    row_sums<M, R> s = {};
    if constexpr (VEC) {
        constexpr int V = 16 / sizeof(T);
        sum_pieces<T, M, R>(s, w, x, g.k, part, g.parts);
        if (part == 0) sum_elements<T, M, R>(s, w, x, g.k / V * V + lane, g.k, 32);
    } else {
        sum_elements<T, M, R>(s, w, x, part * 32 + lane, g.k, 32 * g.parts);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            float all = warp_sum(s.sum[r][i]);
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

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}
// The float at p, which is this block's, in block `rank` of the cluster.
__device__ __forceinline__ float cluster_load(const float *p, int rank) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p), there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
#endif

// Every element of w that a thread meets goes with one number of each vector. A slice of the
// vectors, SLICE rows of w long, lies in shared memory as f32, the M of a row side by side.
template <class T, bool VEC, int M, int THREADS_, int DEEP_> struct column_block {
    static constexpr int THREADS = THREADS_, WARPS = THREADS / 32, VECTORS = M;
    static constexpr int V = VEC ? 16 / sizeof(T) : 1, LANES = VEC ? 8 : 32, DOWN = 32 / LANES;
    static constexpr int COLS = LANES * V, STEP = WARPS * DOWN; // rows of w that a round covers
    static constexpr int DEEP = DEEP_, SLICE = 2048 / M;
    static_assert(VEC ? COLS * sizeof(T) == KM_GEMV_COLUMNS_BYTES : COLS == KM_GEMV_COLUMNS_SCALAR,
                  "as the host counts");
    static_assert(SLICE % STEP == 0, "a slice is whole rounds");
    // The ring while w is read, then what each warp found.
    union {
        uint4 ring[VEC ? DEEP * THREADS : 1];
        float found[WARPS][M][COLS];
    };
    alignas(16) float slice[SLICE][M];
    float share[M][COLS]; // what this block found
    bool last;
};

// The sums of a block's warps, and those of the blocks that share its columns, to memory.
template <class T, class B>
__device__ __forceinline__ void finish_columns(const km_gemv_args &g, B &b,
                                               const float (&sum)[B::VECTORS][B::V]) {
    constexpr int V = B::V, COLS = B::COLS, M = B::VECTORS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col0 = blockIdx.x * COLS;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            float all = sum[i][v];
#pragma unroll
            for (int d = B::LANES; d < 32; d *= 2) all += __shfl_xor_sync(ALL_LANES, all, d);
            if (lane < B::LANES) b.found[warp][i][lane * V + v] = all;
        }
    __syncthreads();

    float *shares = g.partial + (int64_t)blockIdx.z * g.m * g.n;
    int64_t apart = (int64_t)gridDim.z * g.m * g.n; // from one block's share to the next's
    for (int j = threadIdx.x; j < g.m * COLS; j += B::THREADS) {
        int i = j / COLS, col = col0 + j % COLS;
        float all = 0;
#pragma unroll
        for (int p = 0; p < B::WARPS; p++) all += b.found[p][i][j % COLS];
        if (g.clustered)
            b.share[i][j % COLS] = all;
        else if (col < g.n && g.parts == 1)
            gemv_finish<T>(g, blockIdx.z * g.batch_o, i, col, all);
        else if (col < g.n)
            shares[blockIdx.y * apart + (int64_t)i * g.n + col] = all;
    }
#if __CUDA_ARCH__ >= 900
    if (g.clustered) { // the cluster is all parts of these columns; each finishes some of them
        cluster_sync();
        for (int j = threadIdx.x * g.parts + blockIdx.y; j < g.m * COLS;
             j += B::THREADS * g.parts) {
            int i = j / COLS, col = col0 + j % COLS;
            float all = 0;
            for (int p = 0; p < g.parts; p++) all += cluster_load(&b.share[i][j % COLS], p);
            if (col < g.n) gemv_finish<T>(g, blockIdx.z * g.batch_o, i, col, all);
        }
        cluster_sync(); // nobody leaves while another reads its share
        return;
    }
#endif
    if (g.parts == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = g.counters + blockIdx.z * gridDim.x + blockIdx.x;
        b.last = atomicAdd(counter, 1) == g.parts - 1;
        if (b.last) *counter = 0;
    }
    __syncthreads();
    if (!b.last) return;
    __threadfence();
    for (int j = threadIdx.x; j < g.m * COLS; j += B::THREADS) {
        int i = j / COLS, col = col0 + j % COLS;
        if (col >= g.n) continue;
        float all = 0;
        for (int p = 0; p < g.parts; p++)
            all += __ldcg(&shares[p * apart + (int64_t)i * g.n + col]);
        gemv_finish<T>(g, blockIdx.z * g.batch_o, i, col, all);
    }
}

// LATE: the next kernel is let in near the end, not at once: what its blocks call into L2 would be gone
// again before they may read it.
template <class T, bool VEC, int M, int THREADS, int DEEP, bool LATE>
__device__ __forceinline__ void gemv_columns(const km_gemv_args &g,
                                             column_block<T, VEC, M, THREADS, DEEP> &b) {
    typedef column_block<T, VEC, M, THREADS, DEEP> B;
    constexpr int V = B::V, COLS = B::COLS, STEP = B::STEP;
    constexpr uint32_t SLOT = B::THREADS * 16, RING = B::DEEP * SLOT;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int col0 = blockIdx.x * COLS, my_col = col0 + lane % B::LANES * V;
    int span = (g.k + g.parts - 1) / g.parts, begin = blockIdx.y * span;
    int end = min(begin + span, g.k), rounds = end > begin ? (end - begin + STEP - 1) / STEP : 0;
    const T *w = (const T *)g.w + blockIdx.z * g.batch_w + my_col;
    const T *x = (const T *)g.x + blockIdx.z * g.batch_x;

    if (VEC && begin + (int)threadIdx.x < end && (!LATE || (int)threadIdx.x < g.ahead))
        call_into_l2(w - lane % B::LANES * V + (begin + (int)threadIdx.x) * g.ldw);
    if constexpr (LATE)
        wait_for_results();
    else
        wait_for_previous();

    int let_in = max(rounds - g.late, 0);

    // A row beyond `end` or a column beyond n is none of ours. With VEC n is a multiple of V.
    int first = warp * B::DOWN + lane / B::LANES, ahead = my_col < g.n ? begin + first : end;
    uint32_t mine = smem_addr(b.ring + (VEC ? threadIdx.x : 0)), into = 0, from = 0;
    const T *next = w + (begin + first) * g.ldw;
    auto ask = [&] {
        cp_async_16(mine + into, next, ahead < end);
        cp_async_commit();
        next += STEP * g.ldw;
        ahead += STEP;
        into = (into + SLOT) % RING;
    };
    if constexpr (VEC) {
#pragma unroll
        for (int i = 0; i < B::DEEP - 1; i++) ask();
    }
    float sum[M][V] = {};
    for (int at = 0; at < rounds; at += B::SLICE / STEP) {
        __syncthreads();
        for (int j = threadIdx.x; j < B::SLICE; j += B::THREADS) {
            int k = begin + at * STEP + j;
#pragma unroll
            for (int i = 0; i < M; i++)
                b.slice[j][i] =
                    k < end && i < g.m ? to_f32(__ldg(x + i * g.x_vector + k * g.x_k)) : 0.0f;
        }
        __syncthreads();
        int here = min(rounds - at, B::SLICE / STEP);
        const float *vectors = b.slice[first];
#pragma unroll 2
        for (int i = 0; i < here; i++, vectors += STEP * M) {
            float fw[V];
            if (LATE && at + i == let_in) let_next_in();
            if constexpr (VEC) {
                ask();
                cp_async_wait<B::DEEP - 1>();
                unpack<T>(b.ring[from / 16 + threadIdx.x], fw);
                from = (from + SLOT) % RING;
            } else {
                fw[0] = ahead < end ? to_f32(__ldg(next)) : 0.0f;
                next += STEP * g.ldw;
                ahead += STEP;
            }
#pragma unroll
            for (int j = 0; j < M; j++)
#pragma unroll
                for (int v = 0; v < V; v++) sum[j][v] = fmaf(fw[v], vectors[j], sum[j][v]);
        }
    }
    if constexpr (VEC) cp_async_wait<0>();
    finish_columns<T>(g, b, sum);
}

// ---- One vector on Hopper: grid (blocks of columns, parts, batch) ----

template <class T> struct stay_block {
    static constexpr int THREADS = KM_TALL_THREADS, WARPS = THREADS / 32, VECTORS = 1;
    static constexpr int V = 16 / sizeof(T), LANES = 8, DOWN = 32 / LANES, COLS = LANES * V;
    static constexpr int STEP = WARPS * DOWN, DEEP = 8, SLICE = 4096;
    static_assert(SLICE % (STEP * DEEP) == 0 && SLICE % (4 * THREADS) == 0, "whole turns");
    union {
        float slice[SLICE]; // of x, as f32
        float found[WARPS][1][COLS];
    };
    float share[1][COLS];
    bool last;
};

// 16 bytes past L1, kept in L2 as the policy says.
__device__ __forceinline__ uint4 load_by(const void *p, uint64_t policy) {
    uint4 v;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(policy));
#else
    v = *(const uint4 *)p;
#endif
    return v;
}

__device__ __forceinline__ uint64_t policy_of(bool stays) {
    uint64_t p = 0;
#if __CUDA_ARCH__ >= 900
    if (stays)
        asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    else
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
#endif
    return p;
}

// Eight loads of each thread are under way in registers. Of every eight those of g.stay are the last to leave
// L2 and the others the first: what stays is read from there when the matrix is used again, while the
// rest comes from memory. The next kernel is let in near the end: what its blocks call into L2 would be
// gone again before they may read it.
template <class T>
__device__ __forceinline__ void gemv_stay(const km_gemv_args &g, stay_block<T> &b) {
    typedef stay_block<T> B;
    constexpr int V = B::V, STEP = B::STEP, DEEP = B::DEEP, TURN = STEP * DEEP;
    int span = (g.k + g.parts - 1) / g.parts, begin = blockIdx.y * span;
    int rows = max(min(span, g.k - begin), 0), turns = rows / TURN;
    int col0 = blockIdx.x * B::COLS, my_col = col0 + threadIdx.x % B::LANES * V;
    int first = threadIdx.x / B::LANES; // of my rows in each round
    const T *w = (const T *)g.w + blockIdx.z * g.batch_w + (int64_t)begin * g.ldw;
    const T *x = (const T *)g.x + blockIdx.z * g.batch_x + (int64_t)begin * g.x_k;
    if ((int)threadIdx.x < min(g.ahead, rows)) call_into_l2(w + col0 + threadIdx.x * g.ldw);
    uint64_t stays = policy_of(true), goes = policy_of(false);
    wait_for_results();

    // Columns beyond n are read somewhere and dropped. n is a multiple of V.
    const T *next = w + (my_col < g.n ? my_col : 0) + first * g.ldw;
    int64_t step = STEP * g.ldw;
    uint4 under_way[DEEP];
    auto ask = [&](int i, bool there) {
        if (there) under_way[i] = load_by(next, g.stay >> i & 1 ? stays : goes);
        next += step;
    };
    // x, as far as one slice of it goes, four loads of a thread at a time.
    auto stage = [&](int from) {
        __syncthreads();
#pragma unroll 1
        for (int j = threadIdx.x; j < B::SLICE && from + j < rows; j += 4 * B::THREADS) {
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int k = from + j + i * B::THREADS;
                v[i] = k < rows ? to_f32(__ldg(x + k * g.x_k)) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) b.slice[j + i * B::THREADS] = v[i];
        }
        __syncthreads();
    };
    int left = rows - turns * TURN; // after the whole turns
#pragma unroll
    for (int i = 0; i < DEEP; i++) ask(i, turns > 0 || first + i * STEP < left);
    float sum[1][V] = {};
    auto add = [&](int i, float fx) {
        float fw[V];
        unpack<T>(under_way[i], fw);
#pragma unroll
        for (int v = 0; v < V; v++) sum[0][v] = fmaf(fw[v], fx, sum[0][v]);
    };
    for (int t = 0; t < turns; t++) {
        if (t % (B::SLICE / TURN) == 0) stage(t * TURN);
        if (t == turns - 1) let_next_in();
        const float *mine = b.slice + t % (B::SLICE / TURN) * TURN + first;
        bool more = t + 1 < turns;
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            add(i, mine[i * STEP]);
            ask(i, more || first + i * STEP < left);
        }
    }
    if (left > 0) {
        if (turns % (B::SLICE / TURN) == 0) stage(turns * TURN);
        const float *mine = b.slice + turns % (B::SLICE / TURN) * TURN + first;
#pragma unroll
        for (int i = 0; i < DEEP; i++)
            if (first + i * STEP < left) add(i, mine[i * STEP]);
    }
    __syncthreads();
    finish_columns<T>(g, b, sum);
}

// gemv_rows_bf16_4: up to four vectors; gemv_rows_bf16_scalar_4: w or x not 16-byte aligned.
#define GEMV_ROWS(BLOCKS, type, tname, m)                                                          \
    KM_KERNEL __launch_bounds__(KM_GEMV_ROWS_THREADS, BLOCKS)                                      \
        gemv_rows_##tname##_##m(const __grid_constant__ km_gemv_args g) {                          \
        gemv_rows<type, true, m>(g);                                                               \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(KM_GEMV_ROWS_THREADS, BLOCKS)                                      \
        gemv_rows_##tname##_scalar_##m(const __grid_constant__ km_gemv_args g) {                   \
        gemv_rows<type, false, m>(g);                                                              \
    }
#define GEMV_COLUMNS(BLOCKS, type, tname, m)                                                       \
    KM_KERNEL __launch_bounds__(KM_GEMV_COLUMNS_THREADS, BLOCKS)                                   \
        gemv_columns_##tname##_##m(const __grid_constant__ km_gemv_args g) {                       \
        __shared__ column_block<type, true, m, KM_GEMV_COLUMNS_THREADS, 8> b;                      \
        gemv_columns<type, true, m, KM_GEMV_COLUMNS_THREADS, 8, false>(g, b);                      \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(KM_GEMV_COLUMNS_THREADS, BLOCKS)                                   \
        gemv_columns_##tname##_scalar_##m(const __grid_constant__ km_gemv_args g) {                \
        __shared__ column_block<type, false, m, KM_GEMV_COLUMNS_THREADS, 8> b;                     \
        gemv_columns<type, false, m, KM_GEMV_COLUMNS_THREADS, 8, false>(g, b);                     \
    }
#define GEMV_EACH(type, tname, m)                                                                  \
    GEMV_ROWS((m) > 2 ? 2 : 4, type, tname, m)                                                     \
    GEMV_COLUMNS((m) > 2 ? 2 : 4, type, tname, m)
KM_EACH_FLOAT(GEMV_EACH, 1)
KM_EACH_FLOAT(GEMV_EACH, 2)
KM_EACH_FLOAT(GEMV_EACH, 4)
KM_EACH_FLOAT(GEMV_EACH, 8)

// One vector, a block to a multiprocessor: one pass and no second kernel.
#define TALL(type, tname)                                                                          \
    KM_KERNEL __launch_bounds__(KM_TALL_THREADS, 2)                                                \
        gemv_tall_##tname(const __grid_constant__ km_gemv_args g) {                                \
        extern __shared__ __align__(16) uint8_t room[];                                            \
        typedef column_block<type, true, 1, KM_TALL_THREADS, KM_TALL_DEEP> B;                      \
        static_assert(sizeof(B) <= KM_TALL_SHARED, "as the host counts");                          \
        gemv_columns<type, true, 1, KM_TALL_THREADS, KM_TALL_DEEP, true>(                          \
            g, *reinterpret_cast<B *>(room));                                                      \
    }
KM_EACH_FLOAT(TALL)

// The same with a share that stays. Of 16 bits it is no faster: unpacking takes the registers' time.
KM_KERNEL __launch_bounds__(KM_TALL_THREADS, 2)
    gemv_stay_f32(const __grid_constant__ km_gemv_args g) {
    __shared__ stay_block<float> b;
    gemv_stay<float>(g, b);
}
