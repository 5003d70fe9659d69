// Matrix products of f16 and bf16 on tensor cores (mma.sync, sm_80 and newer), sums in f32.
//
// Floor for (n, n, n): 2 n^3 operations at the chip's rate (312 TFLOP/s on an A100), 6 n^2 bytes.
//
// A block of 8 warps owns a SIDE x SIDE tile, a warp SIDE/2 x SIDE/4 of it. Tiles 32 deep travel
// by asynchronous copies, KM_MMA_STAGES - 1 of them ahead, and lie in shared memory as they lie in
// the matrix: ldmatrix turns what runs the other way. Rows of a and b must be 16-byte aligned; the
// host packs those that are not. Elements beyond the edge arrive as zeros.
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/mma.cuh"

constexpr int DEPTH = 32;

// One operand of the block: element (x, k), x along m or n. ALONG_K: its memory runs along k, and
// a tile is SIDE rows of 4 chunks; otherwise 32 rows of SIDE/8 chunks.
template <class T, int SIDE, bool ALONG_K> struct mma_operand {
    static constexpr int CHUNKS = ALONG_K ? DEPTH / 8 : SIDE / 8;
    static constexpr int EACH = SIDE * DEPTH / 8 / KM_MMA_THREADS; // chunks a thread brings
    static constexpr int BYTES = SIDE * DEPTH * 2;
    const T *base;
    int64_t ld;
    int first, size, depth;

    KM_DEVICE void load(uint32_t tile, int k0) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = threadIdx.x + i * KM_MMA_THREADS, row = c / CHUNKS, chunk = c % CHUNKS;
            int x = first + (ALONG_K ? row : chunk * 8), k = k0 + (ALONG_K ? chunk * 8 : row);
            int left = ALONG_K ? (x < size ? depth - k : 0) : (k < depth ? size - x : 0);
            left = max(0, min(left, 8));
            const T *src = ALONG_K ? base + x * ld + k : base + k * ld + x;
            cp_async_16_part(tile + swizzle<CHUNKS>(row, chunk), left ? src : base, left * 2);
        }
    }
    // The 16 (x) by 16 (k) piece at (x0, k0), as mma's a operand.
    KM_DEVICE void fragment_a(uint32_t (&r)[4], uint32_t tile, int x0, int k0, int lane) const {
        int i = lane / 8, within = lane % 8;
        if constexpr (ALONG_K)
            ldmatrix_x4(r, tile + swizzle<CHUNKS>(x0 + i % 2 * 8 + within, k0 / 8 + i / 2));
        else
            ldmatrix_x4_trans(r, tile + swizzle<CHUNKS>(k0 + i / 2 * 8 + within, x0 / 8 + i % 2));
    }
    // The same as two b operands: r[0], r[1] for x0 to x0 + 7, r[2], r[3] for the next 8.
    KM_DEVICE void fragment_b(uint32_t (&r)[4], uint32_t tile, int x0, int k0, int lane) const {
        int i = lane / 8, within = lane % 8;
        if constexpr (ALONG_K)
            ldmatrix_x4(r, tile + swizzle<CHUNKS>(x0 + i / 2 * 8 + within, k0 / 8 + i % 2));
        else
            ldmatrix_x4_trans(r, tile + swizzle<CHUNKS>(k0 + i % 2 * 8 + within, x0 / 8 + i / 2));
    }
};

template <class T, int SIDE, bool TURN_A, bool TURN_B>
KM_DEVICE void mma_gemm(const km_gemm_args &g) {
    constexpr int STAGES = KM_MMA_STAGES, ROWS = SIDE / 2, COLS = SIDE / 4; // of a warp
    constexpr int MI = ROWS / 16, NI = COLS / 8;
    extern __shared__ __align__(1024) uint8_t shared[];
    typedef mma_operand<T, SIDE, !TURN_A> operand_a;
    typedef mma_operand<T, SIDE, TURN_B> operand_b;
    gemm_tile at = gemm_tile_of(g, blockIdx.x);
    int row0 = at.m * SIDE, col0 = at.n * SIDE;
    operand_a a = {(const T *)g.a + at.batch * g.batch_a, g.lda, row0, g.m, g.k};
    operand_b b = {(const T *)g.b + at.batch * g.batch_b, g.ldb, col0, g.n, g.k};
    uint32_t tiles_a = smem_addr(shared), tiles_b = tiles_a + STAGES * operand_a::BYTES;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int my_row = warp / 4 * ROWS, my_col = warp % 4 * COLS;
    float sum[MI][NI][4] = {};
    int count = (g.k + DEPTH - 1) / DEPTH;

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < count) {
            a.load(tiles_a + s * operand_a::BYTES, s * DEPTH);
            b.load(tiles_b + s * operand_b::BYTES, s * DEPTH);
        }
        cp_async_commit();
    }
    for (int i = 0; i < count; i++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        int next = i + STAGES - 1;
        if (next < count) {
            a.load(tiles_a + next % STAGES * operand_a::BYTES, next * DEPTH);
            b.load(tiles_b + next % STAGES * operand_b::BYTES, next * DEPTH);
        }
        cp_async_commit();
        uint32_t tile_a = tiles_a + i % STAGES * operand_a::BYTES;
        uint32_t tile_b = tiles_b + i % STAGES * operand_b::BYTES;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t fa[MI][4], fb[NI / 2][4];
#pragma unroll
            for (int m = 0; m < MI; m++) a.fragment_a(fa[m], tile_a, my_row + 16 * m, k, lane);
#pragma unroll
            for (int n = 0; n < NI / 2; n++) b.fragment_b(fb[n], tile_b, my_col + 16 * n, k, lane);
#pragma unroll
            for (int m = 0; m < MI; m++)
#pragma unroll
                for (int n = 0; n < NI; n++)
                    mma_m16n8k16<T>(sum[m][n], fa[m], fb[n / 2][n % 2 * 2],
                                    fb[n / 2][n % 2 * 2 + 1]);
        }
    }
    cp_async_wait<0>();
    __syncthreads();

    float *strip = reinterpret_cast<float *>(shared) + warp * (16 * COLS);
    int64_t base = at.batch * g.batch_o;
#pragma unroll
    for (int m = 0; m < MI; m++) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < NI; n++)
            strip_put<COLS>(strip, lane, n, sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
        __syncwarp();
        strip_finish<T, COLS>(g, strip, base, row0 + my_row + 16 * m, col0 + my_col, lane);
    }
}

// gemm_mma_bf16_nt_large: a as it is, b turned, tiles of 128.
#define MMA(type, tname, name, turn_a, turn_b)                                                     \
    KM_KERNEL __launch_bounds__(KM_MMA_THREADS, 2)                                                 \
        gemm_mma_##tname##_##name##_large(const __grid_constant__ km_gemm_args g) {                \
        mma_gemm<type, 128, turn_a, turn_b>(g);                                                    \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(KM_MMA_THREADS, 2)                                                 \
        gemm_mma_##tname##_##name##_small(const __grid_constant__ km_gemm_args g) {                \
        mma_gemm<type, 64, turn_a, turn_b>(g);                                                     \
    }
#define MMA_EACH(type, tname)                                                                      \
    MMA(type, tname, nn, false, false)                                                             \
    MMA(type, tname, nt, false, true)                                                              \
    MMA(type, tname, tn, true, false)                                                              \
    MMA(type, tname, tt, true, true)
MMA_EACH(f16, f16)
MMA_EACH(bf16, bf16)
