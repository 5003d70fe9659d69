/* Fused attention on the CPU: blocks of scores pass through the caches and are never kept. The
 * products are the tile kernels of gemm_kernels.h; what lies between them is in simd/attention.c.
 *
 * Forward, a panel is nr queries side by side: scores (keys, nr) come out with one query per lane,
 * so that maxima and sums run down the columns, and serve as they lie as the right-hand operand of
 * the product with the values, (D, keys) x (keys, nr). */
#ifndef KM_BACKEND_CPU_ATTENTION_H
#define KM_BACKEND_CPU_ATTENTION_H
#include "backend/backend.h"
#include "backend/cpu/gemm.h"

typedef struct km_attention_kernels {
    /* One block of scores s (keys, nr), the first `vecs` vectors of each row: s becomes the weights
     * exp(s - max), and max, sum (nr) and acc (d, nr) are brought up to the new maximum. Lane i
     * sees the block's first seen[i] keys; `masked` says that some lane does not see all. */
    void (*soften)(float *s, int64_t keys, const int32_t *seen, bool masked, int64_t vecs,
                   float *max, float *sum, float *acc, int64_t d);
    /* The end of n queries: lse = max + log(sum), by = 1 / sum; -inf and 0 where sum is 0. */
    void (*settle)(const float *max, const float *sum, int64_t n, float *lse, float *by);
    /* s (n) likewise in place, for one query; returns the factor for what was summed before. */
    float (*soften_row)(float *s, int64_t n, float *max, float *sum);
    /* out[i * ldo + j] = acc[j * nr + i] * by[i], i < rows, j < d */
    void (*turn_back)(float *out, int64_t ldo, const float *acc, int64_t d, int64_t rows,
                      const float *by);
    /* out[i] = sum over j of a[i * lda + j] * b[i * ldb + j] */
    void (*row_dots)(float *out, const void *a, int64_t lda, const void *b, int64_t ldb,
                     km_dtype dtype, int64_t rows, int64_t d);
    /* Scores s and dp = do v^T, both (rows, ld), become weights p and score gradients in place:
     * p = exp(s - lse), ds = p (dp - delta); both 0 from key seen[i] - first on. The range is
     * keys [first, first + width), width a multiple of vl. */
    void (*grad_scores)(float *s, float *dp, int64_t ld, int64_t rows, int64_t first, int64_t width,
                        const int64_t *seen, const float *lse, const float *delta);
} km_attention_kernels;

const km_attention_kernels *km_attention_kernels_of(km_isa isa);

/* The sizes and settings of a call. */
typedef struct km_attention_call {
    int64_t B, H, Hkv, Tq, Tk, D;
    int64_t group; /* query heads to a key head */
    bool causal;
    float scale;
    km_dtype dtype;
    const km_gemm_kernels *gemm;
    const km_attention_kernels *kern;
} km_attention_call;

/* How many keys query t sees. */
static inline int64_t km_attention_seen(const km_attention_call *a, int64_t t) {
    int64_t n = a->causal ? a->Tk - a->Tq + t + 1 : a->Tk;
    return n < 0 ? 0 : n > a->Tk ? a->Tk : n;
}

/* The vector (b, h, t, 0..D-1) of a 4-dimensional tensor. */
static inline void *km_attention_vec(const km_tensor *x, int64_t b, int64_t h, int64_t t) {
    int64_t at = b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
    return (char *)km_tensor_ptr(x) + at * (int64_t)km_dtype_size(x->dtype);
}

/* Rows of f32: where x's rows lie if they are f32 and not so far apart, or at distances so round,
 * that few of them fit the first cache together; else a copy (n, d). */
static inline const float *km_attention_rows(const km_attention_call *a, const km_tensor *x,
                                             int64_t b, int64_t h, int64_t t, int64_t n,
                                             float *copy, int64_t *ld) {
    const void *p = km_attention_vec(x, b, h, t);
    *ld = x->stride[2];
    if (x->dtype == KM_F32 && (*ld == a->D || (*ld < 1024 && *ld % 256 != 0))) return p;
    *ld = a->D;
    a->gemm->widen(copy, a->D, p, x->dtype, x->stride[2], n, a->D);
    return copy;
}

km_status km_cpu_attention_few(km_ctx *ctx, const km_attention_call *a, const km_call *c);
km_status km_cpu_attention_grad(km_ctx *ctx, const km_call *c);
/* Fills *a from q and k; false when this backend does not compute the call. */
bool km_attention_describe(km_attention_call *a, const km_call *c, int first_in);

#endif
