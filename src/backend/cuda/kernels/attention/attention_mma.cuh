/* Pieces that the sm_80 attention kernels share: moving a tile between global and shared memory,
 * and the products of one warp's 16-row slices with a tile. A tile is ROWS x D 16-bit elements in
 * shared memory, swizzled (mma.cuh). */
#ifndef KM_CUDA_ATTENTION_MMA_CUH
#define KM_CUDA_ATTENTION_MMA_CUH

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/kernels/mma.cuh"

#define KM_LOG2E 1.4426950408889634f
#define KM_LN2 0.6931471805599453f

/* The matrix of one batch entry and head: row r starts at base + r * stride. */
template <typename T> struct attention_rows {
    T *base;
    int64_t stride;
};

template <typename T>
KM_DEVICE attention_rows<T> attention_rows_of(const km_attention_view &v, int b, int h) {
    return {(T *)v.data + b * v.b + h * v.h, v.t};
}

/* Starts copying rows [first, first + ROWS) into the tile at smem; rows from `end` on are zeros. */
template <typename T, int D, int ROWS, int THREADS>
KM_DEVICE void tile_load(uint32_t smem, attention_rows<T> src, int first, int end) {
    constexpr int chunks = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * chunks; i += THREADS) {
        int row = i / chunks, chunk = i % chunks;
        bool valid = first + row < end;
        int64_t at = valid ? (first + row) * src.stride : 0;
        cp_async_16(smem + swizzle<chunks>(row, chunk), src.base + at + chunk * 8, valid);
    }
}

/* One warp: accumulators of its 16 rows, times `scale` per row half, through its own rows of a
 * tile in shared memory (which nobody else may be using) to rows [first, end) of dst. */
template <typename T, int D>
KM_DEVICE void tile_store_16(char *tile, int tile_row, const float (&acc)[D / 8][4], float scale0,
                             float scale1, attention_rows<T> dst, int first, int end) {
    constexpr int chunks = D / 8;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < chunks; j++) {
        *(uint32_t *)(tile + swizzle<chunks>(tile_row + g, j) + 4 * t) =
            pack2<T>(acc[j][0] * scale0, acc[j][1] * scale0);
        *(uint32_t *)(tile + swizzle<chunks>(tile_row + g + 8, j) + 4 * t) =
            pack2<T>(acc[j][2] * scale1, acc[j][3] * scale1);
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * chunks; i += 32) {
        int row = i / chunks, chunk = i % chunks;
        if (first + row < end)
            *(uint4 *)(dst.base + (first + row) * dst.stride + chunk * 8) =
                *(const uint4 *)(tile + swizzle<chunks>(tile_row + row, chunk));
    }
}

/* The a fragment of rows [row, row + 16), columns [16 k, 16 k + 16) of a tile. */
template <int CHUNKS> KM_DEVICE void frag_a(uint32_t (&a)[4], uint32_t tile, int row, int k) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4(a, tile + swizzle<CHUNKS>(row + lane % 16, 2 * k + lane / 16));
}

/* The b fragments of a tile whose columns are k: rows [16 n, 16 n + 16) as two n8 halves, columns
 * [16 k, 16 k + 16). b[0], b[1] belong to the first half. */
template <int CHUNKS> KM_DEVICE void frag_b(uint32_t (&b)[4], uint32_t tile, int n, int k) {
    int lane = threadIdx.x % 32;
    int row = 16 * n + lane % 8 + lane / 16 * 8;
    ldmatrix_x4(b, tile + swizzle<CHUNKS>(row, 2 * k + lane / 8 % 2));
}

/* The same of a tile whose rows are k: rows [16 k, 16 k + 16), columns [16 n, 16 n + 16). */
template <int CHUNKS> KM_DEVICE void frag_b_rows(uint32_t (&b)[4], uint32_t tile, int k, int n) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(b, tile + swizzle<CHUNKS>(16 * k + lane % 16, 2 * n + lane / 16));
}

/* s (16 M x N) = a b^T: M slices of 16 rows from `row` of tile a, N rows of tile b. */
template <typename T, int D, int M, int N>
KM_DEVICE void product_abt(float (&s)[M][N / 8][4], uint32_t a_tile, int row, uint32_t b_tile) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][j][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) frag_a<D / 8>(a[m], a_tile, row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            frag_b<D / 8>(b, b_tile, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(s[m][2 * n], a[m], b[0], b[1]);
                mma_m16n8k16<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* acc (16 M x D) += p b: p (16 M x N) rounded to T, tile b is N x D. */
template <typename T, int D, int M, int N>
KM_DEVICE void product_pb(float (&acc)[M][D / 8][4], const float (&p)[M][N / 8][4],
                          uint32_t b_tile) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[m][e] =
                    pack2<T>(p[m][2 * k + e / 2][e % 2 * 2], p[m][2 * k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            frag_b_rows<D / 8>(b, b_tile, k, n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(acc[m][2 * n], a[m], b[0], b[1]);
                mma_m16n8k16<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

#endif
