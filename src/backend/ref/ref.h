/* The reference backend: every op in plain C, written to be read. It is the specification that
 * the fast backends are measured against, so each kernel reads its elements as doubles (integers
 * as int64) through whatever strides the tensor has, computes in that type, and rounds once to
 * the output's dtype. This header is what the kernels share: one element, one index, one row. */
#ifndef KM_BACKEND_REF_REF_H
#define KM_BACKEND_REF_REF_H
#include "backend/backend.h"
#include <math.h>

extern const km_backend km_ref_backend;

/* ---- One element. `pos` is its place in the storage, counted in elements. ---- */

static inline void *km_ref_ptr(const km_tensor *t, int64_t pos) {
    return (char *)t->storage->data + pos * (int64_t)km_dtype_size(t->dtype);
}

/* Exact for every dtype but i64 beyond 2^53; km_ref_load_int is exact for all integers. */
static inline double km_ref_load(const km_tensor *t, int64_t pos) {
    const void *p = km_ref_ptr(t, pos);
    switch (t->dtype) {
    case KM_F32: return *(const float *)p;
    case KM_F16: return km_f16_to_f32(*(const uint16_t *)p);
    case KM_BF16: return km_bf16_to_f32(*(const uint16_t *)p);
    case KM_F64: return *(const double *)p;
    case KM_I32: return *(const int32_t *)p;
    case KM_I64: return (double)*(const int64_t *)p;
    case KM_U8: return *(const uint8_t *)p;
    case KM_I8: return *(const int8_t *)p;
    case KM_BOOL: return *(const uint8_t *)p != 0;
    default: return 0;
    }
}

/* Of an integer or bool tensor. */
static inline int64_t km_ref_load_int(const km_tensor *t, int64_t pos) {
    const void *p = km_ref_ptr(t, pos);
    switch (t->dtype) {
    case KM_I32: return *(const int32_t *)p;
    case KM_I64: return *(const int64_t *)p;
    case KM_U8: return *(const uint8_t *)p;
    case KM_I8: return *(const int8_t *)p;
    case KM_BOOL: return *(const uint8_t *)p != 0;
    default: return 0;
    }
}

/* An integer into any dtype: wraps to a narrower integer, rounds once to a float. */
void km_ref_store_int(const km_tensor *t, int64_t pos, int64_t v);
/* A double into any dtype: rounds once to a float; truncates and saturates to an integer, where
 * NaN gives 0; is v != 0 as a bool. */
void km_ref_store(const km_tensor *t, int64_t pos, double v);
/* v truncated and saturated to the range of an integer dtype (NaN gives 0), as a cast does it. */
int64_t km_ref_to_int(km_dtype d, double v);
/* dst[dpos] = src[spos], converted when the dtypes differ, bit for bit when they do not. */
void km_ref_move(const km_tensor *dst, int64_t dpos, const km_tensor *src, int64_t spos);

/* ---- One index (i0, i1, ...) ---- */

static inline int64_t km_ref_pos(const km_tensor *t, const int64_t i[]) {
    int64_t pos = t->offset;
    for (int a = 0; a < t->shape.ndim; a++) pos += i[a] * t->stride[a];
    return pos;
}

static inline double km_ref_get(const km_tensor *t, const int64_t i[]) {
    return km_ref_load(t, km_ref_pos(t, i));
}

static inline int64_t km_ref_get_int(const km_tensor *t, const int64_t i[]) {
    return km_ref_load_int(t, km_ref_pos(t, i));
}

static inline void km_ref_set(const km_tensor *t, const int64_t i[], double v) {
    km_ref_store(t, km_ref_pos(t, i), v);
}

static inline void km_ref_set_int(const km_tensor *t, const int64_t i[], int64_t v) {
    km_ref_store_int(t, km_ref_pos(t, i), v);
}

/* Walks all indices of a shape in row-major order: first is false for an empty shape, next is
 * false after the last index. */
bool km_ref_first(km_shape s, int64_t i[KM_MAX_DIMS]);
bool km_ref_next(km_shape s, int64_t i[KM_MAX_DIMS]);
#define KM_REF_EACH(i, s)                                                                          \
    for (bool i##_more = km_ref_first(s, i); i##_more; i##_more = km_ref_next(s, i))

/* ---- One row ---- */

/* Position of the nth element in row-major order. */
int64_t km_ref_nth(const km_tensor *t, int64_t n);
/* t seen as (rows, n), n its last axis: the number of rows, and where row r begins. Elements of
 * the row are km_ref_step(t) apart. */
int64_t km_ref_rows(const km_tensor *t);
int64_t km_ref_row(const km_tensor *t, int64_t r);
static inline int64_t km_ref_step(const km_tensor *t) { return t->stride[t->shape.ndim - 1]; }
static inline int64_t km_ref_width(const km_tensor *t) { return t->shape.dim[t->shape.ndim - 1]; }

/* ---- Sums, in blocks, so that rounding errors do not pile up in one long chain ---- */

typedef struct km_ref_sum {
    double total, block;
    int n;
} km_ref_sum;

static inline void km_ref_sum_add(km_ref_sum *s, double v) {
    s->block += v;
    if (++s->n == 256) {
        s->total += s->block;
        s->block = 0;
        s->n = 0;
    }
}

static inline double km_ref_sum_value(const km_ref_sum *s) { return s->total + s->block; }

/* ---- Shared formulas ---- */

static inline double km_ref_max(double a, double b) { /* NaN wins */
    if (isnan(a)) return a;
    return isnan(b) || b > a ? b : a;
}

static inline double km_ref_min(double a, double b) { /* NaN wins */
    if (isnan(a)) return a;
    return isnan(b) || b < a ? b : a;
}

static inline double km_ref_sigmoid(double x) { /* 1 / (1 + exp(-x)), from the side that is small */
    if (x >= 0) return 1 / (1 + exp(-x));
    return exp(x) / (1 + exp(x));
}

double km_ref_activation(km_act act, double x);

/* Inputs and outputs that may be absent. */
static inline const km_tensor *km_ref_in(const km_call *c, int i) {
    return i < c->n_in ? c->in[i] : NULL;
}
static inline const km_tensor *km_ref_out(const km_call *c, int i) {
    return i < c->n_out ? c->out[i] : NULL;
}

/* ---- The kernels. One that serves several ops looks at c->op. ---- */

typedef km_status km_ref_kernel(km_ctx *ctx, const km_call *c);

km_ref_kernel km_ref_full, km_ref_arange, km_ref_uniform, km_ref_normal, km_ref_copy;
km_ref_kernel km_ref_binary, km_ref_compare, km_ref_unary, km_ref_unary_grad;
km_ref_kernel km_ref_where, km_ref_masked_fill, km_ref_triangle, km_ref_dropout;
km_ref_kernel km_ref_reduce, km_ref_reduce_max, km_ref_argmax;
km_ref_kernel km_ref_matmul, km_ref_linear;
km_ref_kernel km_ref_dequantise, km_ref_quantise, km_ref_quant_linear, km_ref_quant_embedding;
km_ref_kernel km_ref_linears, km_ref_gated, km_ref_low_rank;
km_ref_kernel km_ref_softmax, km_ref_softmax_grad;
km_ref_kernel km_ref_layer_norm, km_ref_layer_norm_grad, km_ref_rms_norm, km_ref_rms_norm_grad;
km_ref_kernel km_ref_add_layer_norm, km_ref_add_rms_norm;
km_ref_kernel km_ref_embedding, km_ref_embedding_grad, km_ref_gather, km_ref_scatter_add;
km_ref_kernel km_ref_index_select, km_ref_concat, km_ref_scatter;
km_ref_kernel km_ref_sort, km_ref_cumsum, km_ref_one_hot;
km_ref_kernel km_ref_masked_select, km_ref_masked_scatter, km_ref_nonzero;
km_ref_kernel km_ref_rope, km_ref_attention, km_ref_attention_grad, km_ref_attend, km_ref_sample,
    km_ref_logprobs;
km_ref_kernel km_ref_nearest, km_ref_cell_sums, km_ref_scan_codes;
km_ref_kernel km_ref_encode_levels, km_ref_encode_trellis;
km_ref_kernel km_ref_cross_entropy, km_ref_cross_entropy_grad;
km_ref_kernel km_ref_pair_loss, km_ref_pair_loss_grad;
km_ref_kernel km_ref_sgd, km_ref_adamw, km_ref_sumsq_chunks, km_ref_optim_control;

#endif
