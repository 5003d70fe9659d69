/* The arguments of the matrix product kernels, by value; both sides include this. For C and CUDA.
 * Pointers are device addresses, strides and leading dimensions are in elements. */
#ifndef KM_CUDA_GEMM_PARAMS_H
#define KM_CUDA_GEMM_PARAMS_H
#include <stdint.h>

enum { KM_GEMM_VEC_A = 1, KM_GEMM_VEC_B = 2, KM_GEMM_VEC_OUT = 4, KM_GEMM_VEC_BIAS = 8 };

/* out (m, n) = act(alpha a b + beta out + bias), pre = the same without act, for each of `batch`
 * problems. a is (m, k) in rows of lda, or stored as (k, m) when the kernel's name says t; b is
 * (k, n), or stored as (n, k). */
typedef struct km_gemm_args {
    const void *a, *b;
    void *out, *pre;  /* pre: laid out like out, or NULL */
    const void *bias; /* (n), or NULL */
    int64_t lda, ldb, ldo;
    int64_t batch_a, batch_b, batch_o; /* from one problem to the next; 0 to share */
    float alpha, beta;
    int32_t m, n, k, batch;
    int32_t act; /* km_act */
    int32_t vec; /* which of the four can be read or written four elements at a time */
    int32_t tiles_m, tiles_n;
} km_gemm_args;

/* Copies (rows, cols) of 16-bit elements, rows ld apart, to rows of ld_out, a multiple of 8, with
 * zeros beyond cols. */
typedef struct km_gemm_pack_args {
    const void *src;
    void *dst;
    int64_t ld, batch_src, batch_dst;
    int32_t rows, cols, ld_out, batch;
} km_gemm_pack_args;

/* Few vectors against one matrix: out (vector i, row j) = finish(sum over k of x_i w_j). w is
 * (n, k) for the rows kernel and (k, n) for the columns kernel. */
typedef struct km_gemv_args {
    const void *x, *w;
    void *out, *pre;
    const void *bias; /* by row j, or NULL */
    int64_t x_vector, x_k, ldw, out_vector, out_row;
    int64_t batch_x, batch_w, batch_o;
    float *partial;     /* columns: sums of parts, (parts, batch, m, n), when parts > 1 */
    uint32_t *counters; /* one per block of columns and batch */
    float alpha, beta;
    int32_t m, n, k, act;
    int32_t parts;     /* rows: warps that share a row; columns: blocks that share a column */
    int32_t clustered; /* columns: those blocks are a cluster */
    /* Tall blocks: how many rows are called into L2 beforehand; rounds before the last at which the
     * next kernel is let in; which of eight rounds' loads are to stay in L2, a bit each. */
    int32_t ahead, late, stay;
} km_gemv_args;

/* ---- Launches ---- */

#define KM_GEMM_GROUP 8 /* rows of tiles whose columns are walked together, to meet in L2 */

#define KM_SIMT_THREADS 256 /* tiles of 128x128 (large) or 64x64 */
#define KM_MMA_THREADS 256  /* tiles of 128x128 (large) or 64x64 */
#define KM_MMA_STAGES 4
#define KM_MMA_SMEM(tile) (KM_MMA_STAGES * 2 * (tile)*32 * 2)

/* Tiles of 128 x bn, bn 128 or 256, one block to a multiprocessor. */
#define KM_WGMMA_THREADS 384
#define KM_WGMMA_STAGES(bn) ((bn) == 256 ? 4 : 6)
#define KM_WGMMA_STAGE_BYTES(bn) ((128 + (bn)) * 64 * 2)
#define KM_WGMMA_STRIP_BYTES (8 * 16 * 64 * 4)
#define KM_WGMMA_SMEM(bn)                                                                          \
    (1024 + KM_WGMMA_STAGES(bn) * KM_WGMMA_STAGE_BYTES(bn) + KM_WGMMA_STRIP_BYTES + 128)

#define KM_PACK_THREADS 256
#define KM_ACT_THREADS 256

#define KM_GEMV_ROWS_THREADS 256
#define KM_GEMV_ROWS_EACH 2 /* rows of w that a warp works on at once */
#define KM_GEMV_COLUMNS_THREADS 256
#define KM_GEMV_COLUMNS_BYTES 128 /* of a row of w that a block works on */
#define KM_TALL_THREADS 512
#define KM_TALL_DEEP 8
#define KM_TALL_SHARED (KM_TALL_THREADS * KM_TALL_DEEP * 16 + 2048 * 4 + 64 * 4 + 64)
#define KM_GEMV_COLUMNS_SCALAR 32 /* columns of a block where w is not aligned */

#endif
