/* One matrix product on the GPU, and who computes it. matmul.c and linear.c describe their call as
 * a km_cuda_gemm; km_cuda_gemm_run gives it to the first that takes it: the kernels for a few
 * vectors (gemv.c), cuBLASLt (cublas.c), or our own kernels (gemm_own.c). */
#ifndef KM_BACKEND_CUDA_GEMM_H
#define KM_BACKEND_CUDA_GEMM_H
#include "backend/cuda/launch.h"

/* out (m, n) = act(alpha a b + beta out + bias), pre = the same before act; `batch` times. Strides
 * and leading dimensions are in elements. */
typedef struct km_cuda_gemm {
    km_dtype dtype; /* of all matrices; sums are f32, or f64 for f64 */
    int64_t m, n, k;
    const void *a, *b; /* a (m, k) in rows of lda; stored as (k, m) when turn_a. b (k, n) alike */
    void *out, *pre;   /* pre: rows of ldo like out, or NULL */
    const void *bias;  /* (n), or NULL */
    bool turn_a, turn_b;
    int64_t lda, ldb, ldo;
    int64_t batch, batch_a, batch_b, batch_o; /* 0 along an operand that all share */
    double alpha, beta;                       /* beta 0: out is not read */
    km_act act;
    const void *slope; /* out = (a b) act'(slope), rows of ldo, by cuBLASLt alone; or NULL */
} km_cuda_gemm;

/* What may be used. From the environment at first use: KERMES_CUBLAS=none, KERMES_TF32=1,
 * KERMES_TUNE=1. */
typedef struct km_cuda_gemm_policy {
    bool cublas; /* where it is installed */
    bool tf32;   /* f32 matrices may be multiplied with 10-bit mantissas (cuBLASLt only) */
    bool tune;   /* time cuBLASLt's candidates for each shape; results then differ in the last bits
                   * from one process to another */
    bool wgmma;  /* our own Hopper kernels; without them those for all chips */
    int few_f32, few_16; /* vectors up to which gemv.c serves, at most 8 */
} km_cuda_gemm_policy;
km_cuda_gemm_policy *km_cuda_gemm_settings(void);

/* Computes it on the lane's stream. KM_OK, an error set on the context, or KM_ERR_UNSUPPORTED with
 * nothing done. */
km_status km_cuda_gemm_run(km_lane *lane, const km_cuda_gemm *g);

/* The same by one of the three. */
km_status km_cuda_gemm_few(km_lane *lane, const km_cuda_gemm *g);
km_status km_cuda_gemm_own(km_lane *lane, const km_cuda_gemm *g);
/* out = act(src + bias), pre = src + bias: what a product left undone. src is laid out like out and
 * may be out or pre itself. */
km_status km_cuda_gemm_finish(km_lane *lane, const km_cuda_gemm *g, const void *src);

/* A matrix (rows, cols) with these strides as kernels see it: one of the strides is 1, or there is
 * one row or column. *ld is a multiple of 8 where any value would do. */
void km_cuda_gemm_matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                         bool *turned, int64_t *ld);

/* p, and all that lies ld or batch elements of `size` from it, is at a multiple of `bytes`. */
static inline bool km_cuda_gemm_aligned(const void *p, int64_t ld, int64_t batch, size_t size,
                                        size_t bytes) {
    return ((uintptr_t)p | (uintptr_t)ld * size | (uintptr_t)batch * size) % bytes == 0;
}

#endif
