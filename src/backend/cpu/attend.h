/* Attention over the paged cache on the CPU. Rows come in two kinds of calls: few (at most
 * KM_FEW_ROWS), where each row streams the keys and values it sees, and many, where rows that follow
 * one another in a sequence share tiles. In both a row's result depends on that row, its sequence and
 * the kind of call alone, not on what else is in the call or on the number of threads. */
#ifndef KM_BACKEND_CPU_ATTEND_H
#define KM_BACKEND_CPU_ATTEND_H
#include "backend/attend.h"
#include "backend/cpu/cpu.h"

typedef struct km_attend_kernels {
    /* out (d) = x normalised by w (or NULL), rotated by turn ((2, dims), see rope_rows.h; dims 0:
     * not), times `by`. */
    void (*head)(float *out, const void *x, km_dtype dtype, int64_t d, const float *w, float eps,
                 const float *turn, int64_t dims, bool adjacent, float by);
    /* n elements, whole blocks, to and from the cache's dtype. */
    void (*encode)(km_dtype cache, const float *x, int64_t n, void *to);
    void (*decode)(km_dtype cache, const void *from, int64_t n, float *out);
    /* s[g * lds + j] = q[g * d ...] . key j, for n keys of d elements that lie one after another. */
    void (*scores)(km_dtype cache, const void *keys, int64_t n, int64_t d, const float *q,
                   int64_t group, float *s, int64_t lds);
    /* acc[g * d + i] += sum over j of p[g * ldp + j] * value j [i]. */
    void (*values)(km_dtype cache, const void *values, int64_t n, int64_t d, const float *p,
                   int64_t ldp, int64_t group, float *acc);
    /* s = cap tanh(s / cap), n elements of each of `rows` rows. */
    void (*cap)(float *s, int64_t lds, int64_t rows, int64_t n, float cap);
} km_attend_kernels;

KM_SIMD_TABLE(km_attend_kernels, km_simd_attend)

#define KM_ATTEND_KEYS 192 /* of a block: whole pages, and a multiple of every tile's rows */

/* The products of many rows by tiles (AMX). Operands are laid out as two numbers of bf16, high and low
 * parts, with d filled up with zeros to dp, the next multiple of 32: as many bytes as floats take. */
typedef struct km_attend_tiles {
    /* `lanes` (up to nr of the product kernels) rows of d floats: dp x nr. */
    void (*lay_queries)(const float *x, int64_t lanes, int64_t d, uint16_t *out);
    /* n keys, or values, of d floats: KM_ATTEND_KEYS x dp. */
    void (*lay_keys)(const float *x, int64_t n, int64_t d, uint16_t *out);
    void (*lay_values)(const float *x, int64_t n, int64_t d, uint16_t *out);
    /* s (n, nr) = keys times queries; written are rows and columns to the next multiple of 32.
     * exact: keys have no low parts, as they were bf16. */
    void (*scores)(const uint16_t *keys, int64_t n, const uint16_t *q, int64_t d, int64_t lanes,
                   bool exact, float *s);
    /* acc (dp, nr) += values times s, weights of at most 1; room for KM_ATTEND_KEYS x nr floats. */
    void (*values)(const uint16_t *values, int64_t n, int64_t d, const float *s, int64_t lanes,
                   bool exact, uint16_t *room, float *acc);
} km_attend_tiles;

/* A call being worked on: queries ready, keys and values in the cache. */
typedef struct km_attend_job {
    km_attend_call a;
    const km_call *c;
    const km_attend_kernels *kern;
    float *q; /* (kv_heads, rows, group, d), scaled */
} km_attend_job;

/* The look itself; `room` floats of scratch follow j->q's and are asked for with km_attend_room. */
km_status km_cpu_attend_few(km_ctx *ctx, km_attend_job *j);
km_status km_cpu_attend_many(km_ctx *ctx, km_attend_job *j);

/* Scratch of a call: the queries first, then `floats` more, which are returned. NULL with the error
 * set. */
float *km_attend_scratch(km_ctx *ctx, km_attend_job *j, size_t floats);
/* Makes j->q and puts keys and values into the cache. */
km_status km_attend_prepare(km_ctx *ctx, km_attend_job *j);

static inline char *km_attend_out(const km_attend_job *j, int64_t r, int64_t head) {
    int64_t at = (r * j->a.heads + head) * j->a.d;
    return (char *)km_tensor_ptr(j->c->out[0]) + at * (int64_t)km_dtype_size(j->a.dtype);
}

#endif
