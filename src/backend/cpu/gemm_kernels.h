/* The inner loops of products, one table per instruction set (simd/gemm*.c, simd/gemv.c).
 *
 * b is packed into panels of `nr` columns: panel j holds b(p, j * nr + i) at
 * [j * k * nr + p * nr + i], zeros past the last column. The tile kernel takes a by two strides and
 * broadcasts single elements of it, so rows of f32 serve as they lie. */
#ifndef KM_BACKEND_CPU_GEMM_KERNELS_H
#define KM_BACKEND_CPU_GEMM_KERNELS_H
#include "base/cpu.h"
#include "tensor/dtype.h"

/* What happens to a finished block of a product, in this order; see `finish` below. */
typedef struct km_finish {
    float beta;       /* v = x + beta * out (0: out is not read) */
    const void *bias; /* v += bias (cols), or NULL */
    km_act act;
    km_dtype dtype; /* of out, pre and bias: f32, f16 or bf16 */
} km_finish;

typedef struct km_gemm_kernels {
    int vl;     /* floats in a vector */
    int mr, nr; /* the tile: mr rows of nr columns; nr is a multiple of vl */

    /* c (m, n) = alpha a b + beta c for one panel: n <= nr, a(i, p) = a[i * a_row + p * a_col],
     * b(p, j) = b[p * ldb + j] readable up to the next multiple of vl past n. beta 0: c is not
     * read. alpha and beta apply to the sum over all of k. next_b is the panel wanted next, which
     * lies as b does and is fetched on the way, or NULL. */
    void (*panel)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                  const float *b, int64_t ldb, const float *next_b, float *c, int64_t ldc,
                  float alpha, float beta);
    /* The same, plus bias (n) to each row, or NULL. */
    void (*panel_biased)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                         int64_t a_col, const float *b, int64_t ldb, const float *next_b,
                         const float *bias, float *c, int64_t ldc, float alpha, float beta);
    /* As panel for an a that `lay` made: tile after tile. */
    void (*panel_laid)(int64_t m, int64_t n, int64_t k, const float *a, const float *b, int64_t ldb,
                       const float *next_b, float *c, int64_t ldc, float alpha, float beta);

    /* Packs b (k, n) into panels; b(p, j) is src[p * ld + j]. */
    void (*pack)(float *dst, const void *src, km_dtype dtype, int64_t ld, int64_t k, int64_t n);
    /* The same where b(p, j) is src[j * ld + p]. */
    void (*pack_turned)(float *dst, const void *src, km_dtype dtype, int64_t ld, int64_t k,
                        int64_t n);
    /* dst[i * ldd + j] = src[i * lds + j], converted. */
    void (*widen)(float *dst, int64_t ldd, const void *src, km_dtype dtype, int64_t lds,
                  int64_t rows, int64_t cols);
    /* Lays a out by tiles of mr rows, KM_LAID floats for each step of k: a(i, p), which is
     * src[p * lds + i], goes to dst[(i / mr) * km_laid_step(k) + p * KM_LAID + i % mr]. With sums,
     * adds to sums[i] the sum of row i. */
    void (*lay)(float *dst, const void *src, km_dtype dtype, int64_t lds, int64_t k, int64_t rows,
                float *sums);
    /* out = act(x + beta * out + bias), and pre the same before act (may be NULL); x may be out. */
    void (*finish)(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                   int64_t ldo, int64_t rows, int64_t cols);
    /* For a gradient on its way back through an activation, f32: out = x act'(pre), where pre lies
     * as out does; with sums (cols), adds to them the sums of out's columns. x may be out. */
    void (*slope)(km_act act, const float *x, int64_t ldx, const float *pre, float *out,
                  int64_t ldo, int64_t rows, int64_t cols, float *sums);

    /* y[r * ldy + j] = sum over p of x[r * ldx + p] * w(j, p), r < rows, j < n. */
    void (*dots)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k, const float *x,
                 int64_t ldx, int64_t rows, float *y, int64_t ldy); /* w(j, p) = w[j * ldw + p] */
    void (*sums)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k, const float *x,
                 int64_t ldx, int64_t rows, float *y, int64_t ldy); /* w(j, p) = w[p * ldw + j] */
} km_gemm_kernels;

/* From one laid tile to the next: off the multiples of a page, which would crowd one set of the
 * first cache. */
#define KM_LAID 8
static inline int64_t km_laid_step(int64_t k) { return k * KM_LAID + 16; }

/* The table for an instruction set that this build has and this processor runs; NULL otherwise. */
const km_gemm_kernels *km_gemm_kernels_of(km_isa isa);

#endif
