// Matrix products in f32 without tensor cores, every product and sum in f32.
//
// Floor for (n, n, n): 2 n^3 operations at 67 TFLOP/s (one H200), 12 n^2 bytes at 4.8 TB/s; the
// operations decide from n = 170 on. n = 4096: 2.05 ms; cuBLAS takes 2.78.
//
// A block owns a 64R x 64R tile, a warp 16R x 32R of it, a thread R x R squares of 4x4. Tiles of a
// and b lie in shared memory as (k, m) and (k, n), so that a step along k reads 8 numbers of each
// and makes 64 products (R = 2). The next tile travels to registers meanwhile.
#include "backend/cuda/kernels/gemm/gemm_common.cuh"

// One operand's part of a block: element (x, k) of the tile, x along m or n. ALONG_K: its memory
// runs along k. Each thread brings four elements.
template <int SIDE, int DEPTH, bool ALONG_K> struct simt_operand {
    static constexpr int PITCH = SIDE + 4;
    const float *p; // of this thread's first element
    int64_t step;   // from one tile along k to the next
    int x, k, left; // of this thread in the tile; elements that exist along x
    bool vec;
    float v[4];

    __device__ __forceinline__ void open(const float *base, int64_t ld, int first, int size,
                                         bool aligned) {
        int t = threadIdx.x;
        x = ALONG_K ? t / (DEPTH / 4) : t % (SIDE / 4) * 4;
        k = ALONG_K ? t % (DEPTH / 4) * 4 : t / (SIDE / 4);
        left = size - first - x;
        p = ALONG_K ? base + (first + x) * ld + k : base + k * ld + first + x;
        step = ALONG_K ? DEPTH : DEPTH * ld;
        vec = aligned;
    }
    // `depth`: elements along k from this tile on.
    __device__ __forceinline__ void load(int depth) {
        int here = depth - k;
        load_part(p, ALONG_K ? (left > 0 ? here : 0) : (here > 0 ? left : 0), vec, v);
        p += step;
    }
    __device__ __forceinline__ void store(float (&tile)[DEPTH][PITCH]) const {
        if constexpr (ALONG_K) {
#pragma unroll
            for (int i = 0; i < 4; i++) tile[k + i][x] = v[i];
        } else {
            store4(&tile[k][x], v);
        }
    }
};

template <int R, int DEPTH, bool TURN_A, bool TURN_B>
__device__ __forceinline__ void simt(const km_gemm_args &g) {
    constexpr int SIDE = 64 * R;
    typedef float tile[DEPTH][SIDE + 4];
    __shared__ __align__(16) tile shared[4];
    tile *tile_a = shared, *tile_b = shared + 2;
    static_assert(sizeof shared >= 8 * 16 * 32 * sizeof(float), "strips of 8 warps");
    gemm_tile at = gemm_tile_of(g, blockIdx.x);
    int row0 = at.m * SIDE, col0 = at.n * SIDE;
    simt_operand<SIDE, DEPTH, !TURN_A> a;
    simt_operand<SIDE, DEPTH, TURN_B> b;
    a.open((const float *)g.a + at.batch * g.batch_a, g.lda, row0, g.m, g.vec & KM_GEMM_VEC_A);
    b.open((const float *)g.b + at.batch * g.batch_b, g.ldb, col0, g.n, g.vec & KM_GEMM_VEC_B);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int my_row = warp / 2 * (16 * R) + lane / 8 * 4; // and + 16 for the second square
    int my_col = warp % 2 * (32 * R) + lane % 8 * 4; // and + 32
    float sum[R][R][4][4] = {};
    float fa[2][R][4], fb[2][R][4];

    int depth = g.k, buffer = 0;
    if (depth > 0) {
        a.load(depth);
        b.load(depth);
        a.store(tile_a[0]);
        b.store(tile_b[0]);
    }
    __syncthreads();
    for (; depth > 0; depth -= DEPTH, buffer ^= 1) {
        bool more = depth > DEPTH;
        if (more) {
            a.load(depth - DEPTH);
            b.load(depth - DEPTH);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            load4(&tile_a[buffer][0][my_row + 16 * r], fa[0][r]);
            load4(&tile_b[buffer][0][my_col + 32 * r], fb[0][r]);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (k + 1 < DEPTH) {
#pragma unroll
                for (int r = 0; r < R; r++) {
                    load4(&tile_a[buffer][k + 1][my_row + 16 * r], fa[(k + 1) % 2][r]);
                    load4(&tile_b[buffer][k + 1][my_col + 32 * r], fb[(k + 1) % 2][r]);
                }
            }
#pragma unroll
            for (int i = 0; i < 4 * R; i++)
#pragma unroll
                for (int j = 0; j < 4 * R; j++)
                    sum[i / 4][j / 4][i % 4][j % 4] =
                        fmaf(fa[k % 2][i / 4][i % 4], fb[k % 2][j / 4][j % 4],
                             sum[i / 4][j / 4][i % 4][j % 4]);
        }
        if (more) {
            a.store(tile_a[buffer ^ 1]);
            b.store(tile_b[buffer ^ 1]);
        }
        __syncthreads();
    }

    // Each warp's squares, 16 rows by 32 columns at a time, through shared memory (free by now).
    float *strip = &shared[0][0][0] + warp * (16 * 32);
    int64_t base = at.batch * g.batch_o;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) {
            __syncwarp();
#pragma unroll
            for (int r = 0; r < 4; r++)
                store4(strip + strip_at<32>(lane / 8 * 4 + r, lane % 8 / 2) + lane % 2 * 4,
                       sum[i][j][r]);
            __syncwarp();
            strip_finish<float, 32>(g, strip, base, row0 + warp / 2 * (16 * R) + 16 * i,
                                    col0 + warp % 2 * (32 * R) + 32 * j, lane);
        }
}

// gemm_simt_nt_large: a as it is, b turned.
#define SIMT(name, turn_a, turn_b)                                                                 \
    KM_KERNEL __launch_bounds__(KM_SIMT_THREADS, 2)                                                \
        gemm_simt_##name##_large(const __grid_constant__ km_gemm_args g) {                         \
        simt<2, 8, turn_a, turn_b>(g);                                                             \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(KM_SIMT_THREADS, 2)                                                \
        gemm_simt_##name##_small(const __grid_constant__ km_gemm_args g) {                         \
        simt<1, 16, turn_a, turn_b>(g);                                                            \
    }
SIMT(nn, false, false)
SIMT(nt, false, true)
SIMT(tn, true, false)
SIMT(tt, true, true)
