/* Reading by index: embedding, index_select and gather. Only element sizes matter here, so any
 * dtype goes. Indices were checked by the caller. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/lines.h"
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
    case 1: *dst = *src; break;
    case 2: memcpy(dst, src, 2); break;
    case 4: memcpy(dst, src, 4); break;
    case 8: memcpy(dst, src, 8); break;
    default: memcpy(dst, src, (size_t)run);
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
    km_axis_lines l;
    char *out; /* like ids */
    const char *x;
    const void *ids;
    bool wide;
    size_t size;
} gather_job;

/* Places begin to end, counted (row, place along the axis): `cols` elements each. */
static inline __attribute__((always_inline)) void gather_places(const gather_job *j, int64_t begin,
                                                                int64_t end, int64_t size,
                                                                bool wide) {
    const km_axis_lines *l = &j->l;
    km_line_at row = km_axis_lines_seek(l, begin / l->m);
    for (int64_t k = begin % l->m, e = begin; e < end; k = 0, km_axis_lines_next(l, &row)) {
        int64_t stop = l->m - k < end - e ? l->m : k + end - e;
        e += stop - k;
        if (l->cols == 1) {
            const char *x = j->x + row.x * size;
            char *out = j->out + row.i * size;
            for (; k < stop; k++) {
                uint64_t id = (uint64_t)km_index_at(j->ids, wide, row.i + k * l->i_axis);
                if (id < (uint64_t)l->n)
                    memcpy(out + k * l->i_axis * size, x + (int64_t)id * l->x_axis * size,
                           (size_t)size);
                else
                    memset(out + k * l->i_axis * size, 0, (size_t)size);
            }
            continue;
        }
        for (; k < stop; k++) {
            int64_t from = row.i + k * l->i_axis;
            for (int64_t c = 0; c < l->cols; c++) {
                uint64_t id = (uint64_t)km_index_at(j->ids, wide, from + c);
                char *to = j->out + (from + c) * size;
                if (id < (uint64_t)l->n)
                    memcpy(to, j->x + (row.x + (int64_t)id * l->x_axis + c) * size, (size_t)size);
                else
                    memset(to, 0, (size_t)size);
            }
        }
    }
}

static void gather_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gather_job *j = arg;
    switch (j->size * 2 + j->wide) {
    case 2: gather_places(j, begin, end, 1, false); break;
    case 3: gather_places(j, begin, end, 1, true); break;
    case 4: gather_places(j, begin, end, 2, false); break;
    case 5: gather_places(j, begin, end, 2, true); break;
    case 8: gather_places(j, begin, end, 4, false); break;
    case 9: gather_places(j, begin, end, 4, true); break;
    case 16: gather_places(j, begin, end, 8, false); break;
    default: gather_places(j, begin, end, 8, true); break;
    }
}

static km_status gather(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *ids = c->in[1];
    gather_job j = {.l = km_axis_lines_make(x, ids, c->p->axis),
                    .out = km_tensor_ptr(c->out[0]),
                    .x = km_tensor_ptr(x),
                    .ids = km_tensor_ptr(ids),
                    .wide = ids->dtype == KM_I64,
                    .size = km_dtype_size(x->dtype)};
    if (km_shape_count(ids->shape) == 0) return KM_OK;
    km_threads_for(ctx->threads, j.l.rows * j.l.m, km_grain((int64_t)j.size * 4 * j.l.cols),
                   gather_range, &j);
    return KM_OK;
}

void km_cpu_register_index(km_kernel *k) {
    k[KM_OP_EMBEDDING] = embedding;
    k[KM_OP_EMBEDDING_GRAD] = km_cpu_embedding_grad;
    k[KM_OP_GATHER] = gather;
    k[KM_OP_SCATTER] = k[KM_OP_SCATTER_ADD] = km_cpu_scatter;
    k[KM_OP_INDEX_SELECT] = index_select;
    k[KM_OP_CONCAT] = km_cpu_concat;
    k[KM_OP_MASKED_SELECT] = km_cpu_masked_select;
    k[KM_OP_MASKED_SCATTER] = km_cpu_masked_scatter;
    k[KM_OP_NONZERO] = km_cpu_nonzero;
}
