/* Attention over the paged cache: what comes before the look. Queries are normalised, rotated and
 * scaled into scratch, keys and values into the cache; then the rows look, few or many at a time. */
#include "backend/cpu/attend.h"
#include "backend/cpu/rope_rows.h"
#include "backend/cpu/rows_tail.h"
#include "backend/cpu/split.h"

float *km_attend_scratch(km_ctx *ctx, km_attend_job *j, size_t floats) {
    const km_attend_call *a = &j->a;
    size_t own = ((size_t)(a->rows * a->heads * a->d) + 15) & ~(size_t)15;
    j->q = km_ctx_scratch(ctx, sizeof(float) * (own + floats + 16));
    return j->q ? j->q + own : NULL;
}

typedef struct prepare {
    const km_attend_job *j;
    const float *turn; /* (rows, 2, dims), or NULL */
} prepare;

static const void *vector(const km_tensor *x, int64_t r, int64_t h, int64_t d) {
    int64_t at = r * x->stride[0] + h * d;
    return (const char *)km_tensor_ptr(x) + at * (int64_t)km_dtype_size(x->dtype);
}

static const float *weights(const km_call *c, int i) {
    const km_tensor *t = km_attend_in(c, i);
    return t ? km_tensor_ptr(t) : NULL;
}

/* Items are (row, key head). */
static void prepare_range(void *arg, int64_t begin, int64_t end, int worker) {
    const prepare *p = arg;
    const km_attend_job *j = p->j;
    const km_attend_call *a = &j->a;
    const km_call *c = j->c;
    const float *wq = weights(c, KM_ATTEND_Q_NORM), *wk = weights(c, KM_ATTEND_K_NORM);
    char *keys = km_tensor_ptr(c->in[KM_ATTEND_CACHE_K]);
    char *values = km_tensor_ptr(c->in[KM_ATTEND_CACHE_V]);
    float eps = (float)a->eps;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t r = i / a->kv_heads, h = i % a->kv_heads, position;
        const int32_t *pages;
        if (!km_attend_place(a, r, &pages, &position)) continue;
        const float *turn = p->turn ? p->turn + r * 2 * a->dims : NULL;
        float *q = j->q + (h * a->rows + r) * a->group * a->d;
        float one[1024];
        for (int64_t g = 0; g < a->group; g++)
            j->kern->head(q + g * a->d, vector(c->in[KM_ATTEND_Q], r, h * a->group + g, a->d),
                          a->dtype, a->d, wq, eps, turn, a->dims, a->adjacent, (float)a->scale);
        int64_t at = km_attend_at(a, pages, position, h);
        j->kern->head(one, vector(c->in[KM_ATTEND_K], r, h, a->d), a->dtype, a->d, wk, eps, turn,
                      a->dims, a->adjacent, 1);
        j->kern->encode(a->cache, one, a->d, keys + at);
        j->kern->head(one, vector(c->in[KM_ATTEND_V], r, h, a->d), a->dtype, a->d, NULL, 0, NULL, 0,
                      false, 1);
        j->kern->encode(a->cache, one, a->d, values + at);
    }
}

km_status km_attend_prepare(km_ctx *ctx, km_attend_job *j) {
    const km_attend_call *a = &j->a;
    prepare p = {.j = j};
    if (a->dims) {
        km_rope_way kind = {a->base, a->dims, a->adjacent, weights(j->c, KM_ATTEND_DIVISORS),
                            a->magnitude};
        p.turn = km_rope_rows(j->c->out[0]->storage->lane, &kind, a->row + 1, 2, a->rows);
        if (!p.turn) return km_fail(ctx, KM_ERR_MEMORY, "attend: out of memory");
    }
    km_threads_for(ctx->threads, a->rows * a->kv_heads, km_grain((a->group + 4) * a->d * 8),
                   prepare_range, &p);
    return KM_OK;
}

static km_status attend(km_ctx *ctx, const km_call *c) {
    km_status split;
    uint32_t rows =
        1u << KM_ATTEND_Q | 1u << KM_ATTEND_K | 1u << KM_ATTEND_V | 1u << KM_ATTEND_ROWS;
    if (km_cpu_rows_split(ctx, c, rows, attend, &split)) return split;
    km_attend_job j = {.a = km_attend_describe(c), .c = c, .kern = km_simd_attend()};
    if (j.a.rows == 0) return KM_OK;
    if (j.a.d > 1024) return KM_ERR_UNSUPPORTED;
    return j.a.rows <= km_rows_alone(ctx) ? km_cpu_attend_few(ctx, &j)
                                          : km_cpu_attend_many(ctx, &j);
}

void km_cpu_register_attend(km_kernel *k) { k[KM_OP_ATTEND] = attend; }
