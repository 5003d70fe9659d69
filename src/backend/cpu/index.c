/* Reading by index: embedding, index_select and gather. Only element sizes matter here, so any
 * dtype goes. Indices were checked by the caller. */
#include "backend/cpu/index.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"
#include <string.h>

/* ---- Whole runs: embedding and index_select ---- */

typedef struct select_job {
    char *out;       /* (outer, m, run) */
    const char *x;   /* (outer, n, run) */
    const void *ids; /* (m) */
    bool wide;
    int64_t n, m, run; /* run in bytes */
} select_job;

/* A run of a known size is one move instead of a call. */
static inline void copy_run(char *dst, const char *src, int64_t run) {
    switch (run) {
    case 1:
        *dst = *src;
        break;
    case 2:
        memcpy(dst, src, 2);
        break;
    case 4:
        memcpy(dst, src, 4);
        break;
    case 8:
        memcpy(dst, src, 8);
        break;
    default:
        memcpy(dst, src, (size_t)run);
    }
}

static void select_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const select_job *j = arg;
    int64_t o = begin / j->m, k = begin % j->m;
    for (int64_t r = begin; r < end; r++) {
        int64_t id = km_index_at(j->ids, j->wide, k);
        copy_run(j->out + r * j->run, j->x + (o * j->n + id) * j->run, j->run);
        if (++k == j->m) {
            k = 0;
            o++;
        }
    }
}

static km_status select_runs(km_ctx *ctx, const km_call *c, int axis) {
    const km_tensor *x = c->in[0], *ids = c->in[1];
    km_axis_split s = km_split_at(x->shape, axis);
    select_job j = {.out = km_tensor_ptr(c->out[0]),
                    .x = km_tensor_ptr(x),
                    .ids = km_tensor_ptr(ids),
                    .wide = ids->dtype == KM_I64,
                    .n = s.n,
                    .m = km_shape_count(ids->shape),
                    .run = s.inner * (int64_t)km_dtype_size(x->dtype)};
    if (j.run == 0) return KM_OK;
    km_threads_for(ctx->threads, s.outer * j.m, km_grain(j.run), select_range, &j);
    return KM_OK;
}

static km_status embedding(km_ctx *ctx, const km_call *c) { return select_runs(ctx, c, 0); }

static km_status index_select(km_ctx *ctx, const km_call *c) {
    return select_runs(ctx, c, c->p->axis);
}

/* ---- Single elements: gather ---- */

typedef struct gather_job {
    char *out;       /* (outer, m, inner) */
    const char *x;   /* (outer, n, inner) */
    const void *ids; /* (outer, m, inner) */
    int64_t n, m, inner;
    bool wide;
    size_t size;
} gather_job;

static inline __attribute__((always_inline)) void gather_elements(const gather_job *j,
                                                                  int64_t begin, int64_t end,
                                                                  size_t size, bool wide) {
    int64_t per = j->m * j->inner, i = begin % j->inner;
    for (int64_t o = begin / per, e = begin; e < end; o++) {
        const char *x = j->x + o * j->n * j->inner * (int64_t)size;
        int64_t stop = (o + 1) * per < end ? (o + 1) * per : end;
        for (; e < stop; e++) {
            int64_t at = km_index_at(j->ids, wide, e) * j->inner + i;
            memcpy(j->out + e * (int64_t)size, x + at * (int64_t)size, size);
            if (++i == j->inner) i = 0;
        }
    }
}

static void gather_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gather_job *j = arg;
    switch (j->size) {
    case 1:
        gather_elements(j, begin, end, 1, j->wide);
        break;
    case 2:
        gather_elements(j, begin, end, 2, j->wide);
        break;
    case 4:
        gather_elements(j, begin, end, 4, j->wide);
        break;
    default:
        gather_elements(j, begin, end, 8, j->wide);
        break;
    }
}

static km_status gather(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *ids = c->in[1];
    int axis = c->p->axis;
    for (int i = 0; i < x->shape.ndim; i++)
        if (i != axis && x->shape.dim[i] != ids->shape.dim[i]) return KM_ERR_UNSUPPORTED;
    km_axis_split s = km_split_at(x->shape, axis), k = km_split_at(ids->shape, axis);
    gather_job j = {.out = km_tensor_ptr(c->out[0]),
                    .x = km_tensor_ptr(x),
                    .ids = km_tensor_ptr(ids),
                    .n = s.n,
                    .m = k.n,
                    .inner = s.inner,
                    .wide = ids->dtype == KM_I64,
                    .size = km_dtype_size(x->dtype)};
    km_threads_for(ctx->threads, km_shape_count(ids->shape), km_grain((int64_t)j.size * 4),
                   gather_range, &j);
    return KM_OK;
}

void km_cpu_register_index(km_kernel *k) {
    k[KM_OP_EMBEDDING] = embedding;
    k[KM_OP_EMBEDDING_GRAD] = km_cpu_embedding_grad;
    k[KM_OP_GATHER] = gather;
    k[KM_OP_SCATTER_ADD] = km_cpu_scatter_add;
    k[KM_OP_INDEX_SELECT] = index_select;
    k[KM_OP_CONCAT] = km_cpu_concat;
}
