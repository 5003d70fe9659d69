/* Layer norm, RMS norm, their forms fused with a residual, and their gradients. Rows are shared out
 * among the threads; the gradients of w and b are summed per block of rows, and the blocks' sums
 * are then added in order, so that the bits do not depend on the number of threads. */
#include "backend/cpu/norm.h"
#include "backend/cpu/lanes.h"
#include <string.h>

static int64_t width_of(const km_tensor *x) { return x->shape.dim[x->shape.ndim - 1]; }

static int64_t rows_of(const km_tensor *x) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->shape.ndim; i++) rows *= x->shape.dim[i];
    return rows;
}

static void *ptr(const km_tensor *t) { return t ? km_tensor_ptr(t) : NULL; }

static const km_tensor *input(const km_call *c, int i) { return i < c->n_in ? c->in[i] : NULL; }
static const km_tensor *output(const km_call *c, int i) { return i < c->n_out ? c->out[i] : NULL; }

/* t's n elements as f32: itself, or converted into buffer. */
static const float *as_floats(const km_tensor *t, int64_t n, float *buffer) {
    if (!t) return NULL;
    if (t->dtype == KM_F32) return km_tensor_ptr(t);
    int slot = km_float_slot(t->dtype);
    if (slot >= 0) km_simd_lanes()->load[slot](buffer, km_tensor_ptr(t), n);
    return buffer;
}

/* ---- Forward ---- */

typedef struct norm_call {
    void (*fn)(const km_norm_job *job);
    km_norm_job job; /* of all rows */
    int64_t size;
} norm_call;

static void *skip(const void *p, int64_t bytes) { return p ? (char *)p + bytes : NULL; }

static void norm_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const norm_call *c = arg;
    km_norm_job job = c->job;
    int64_t at = begin * job.n * c->size;
    job.rows = end - begin;
    job.x = skip(job.x, at);
    job.residual = skip(job.residual, at);
    job.y = skip(job.y, at);
    job.sum = skip(job.sum, at);
    job.mean = skip(job.mean, begin * (int64_t)sizeof(float));
    job.rstd = skip(job.rstd, begin * (int64_t)sizeof(float));
    c->fn(&job);
}

static km_status norm(km_ctx *ctx, const km_tensor *x, const km_tensor *residual,
                      const km_tensor *w, const km_tensor *b, double eps, const km_tensor *y,
                      const km_tensor *sum, const km_tensor *mean, const km_tensor *rstd,
                      bool centre) {
    int slot = km_float_slot(x->dtype);
    int64_t n = width_of(x), rows = rows_of(x);
    if (slot < 0 || n == 0) return KM_ERR_UNSUPPORTED;
    if (km_float_slot(w->dtype) < 0 || (b && km_float_slot(b->dtype) < 0))
        return KM_ERR_UNSUPPORTED;
    float *weights = km_ctx_scratch(ctx, (size_t)(2 * n) * sizeof *weights);
    if (!weights) return KM_ERR_MEMORY;
    norm_call c = {.fn = centre ? km_simd_norm()->layer_norm[slot] : km_simd_norm()->rms_norm[slot],
                   .size = (int64_t)km_dtype_size(x->dtype),
                   .job = {.y = ptr(y),
                           .sum = ptr(sum),
                           .residual = ptr(residual),
                           .x = ptr(x),
                           .w = as_floats(w, n, weights),
                           .b = as_floats(b, n, weights + n),
                           .mean = ptr(mean),
                           .rstd = ptr(rstd),
                           .n = n,
                           .eps = eps}};
    c.job.stream = km_worth_streaming(rows * n * c.size);
    km_threads_for(ctx->threads, rows, km_even_grain(rows, n * c.size), norm_range, &c);
    return KM_OK;
}

static km_status layer_norm(km_ctx *ctx, const km_call *c) {
    return norm(ctx, c->in[0], NULL, c->in[1], input(c, 2), c->p->f[KM_F_EPS], c->out[0], NULL,
                output(c, 1), output(c, 2), true);
}

static km_status rms_norm(km_ctx *ctx, const km_call *c) {
    return norm(ctx, c->in[0], NULL, c->in[1], NULL, c->p->f[KM_F_EPS], c->out[0], NULL, NULL,
                output(c, 1), false);
}

static km_status add_layer_norm(km_ctx *ctx, const km_call *c) {
    return norm(ctx, c->in[0], c->in[1], c->in[2], input(c, 3), c->p->f[KM_F_EPS], c->out[0],
                c->out[1], output(c, 2), output(c, 3), true);
}

static km_status add_rms_norm(km_ctx *ctx, const km_call *c) {
    return norm(ctx, c->in[0], c->in[1], c->in[2], NULL, c->p->f[KM_F_EPS], c->out[0], c->out[1],
                NULL, output(c, 2), false);
}

/* ---- Gradients ---- */

#define MERGE_COLS 256

typedef struct grad_call {
    void (*fn)(const km_norm_grad_job *job);
    km_norm_grad_job job; /* of all rows */
    int64_t size, rows, block_rows, blocks;
    float *parts;             /* (blocks, 2, n): sums for dw and db */
    const km_tensor *dw, *db; /* may be NULL */
} grad_call;

static void grad_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const grad_call *c = arg;
    for (int64_t b = begin; b < end; b++) {
        km_norm_grad_job job = c->job;
        int64_t first = b * c->block_rows, at = first * job.n * c->size;
        job.rows = c->rows - first < c->block_rows ? c->rows - first : c->block_rows;
        job.dx = skip(job.dx, at);
        job.dy = skip(job.dy, at);
        job.x = skip(job.x, at);
        job.dsum = skip(job.dsum, at);
        job.mean = skip(job.mean, first * (int64_t)sizeof(float));
        job.rstd = skip(job.rstd, first * (int64_t)sizeof(float));
        job.dw = c->parts + 2 * b * job.n;
        job.db = job.dw + job.n;
        memset(job.dw, 0, (size_t)(2 * job.n) * sizeof(float));
        c->fn(&job);
    }
}

static void merge(const grad_call *c, const km_tensor *out, int which, int64_t col, int64_t cols) {
    double sum[MERGE_COLS] = {0};
    float rounded[MERGE_COLS];
    for (int64_t b = 0; b < c->blocks; b++) {
        const float *part = c->parts + (2 * b + which) * c->job.n + col;
        for (int64_t i = 0; i < cols; i++) sum[i] += part[i];
    }
    for (int64_t i = 0; i < cols; i++) rounded[i] = (float)sum[i];
    char *dst = (char *)km_tensor_ptr(out) + col * (int64_t)km_dtype_size(out->dtype);
    km_simd_lanes()->store[km_float_slot(out->dtype)](dst, rounded, cols);
}

static void merge_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const grad_call *c = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t col = b * MERGE_COLS, cols = c->job.n - col;
        if (cols > MERGE_COLS) cols = MERGE_COLS;
        if (c->dw) merge(c, c->dw, 0, col, cols);
        if (c->db) merge(c, c->db, 1, col, cols);
    }
}

static km_status norm_grad(km_ctx *ctx, const km_tensor *dy, const km_tensor *x, const km_tensor *w,
                           const km_tensor *mean, const km_tensor *rstd, const km_tensor *dsum,
                           const km_tensor *dx, const km_tensor *dw, const km_tensor *db) {
    int slot = km_float_slot(x->dtype);
    int64_t n = width_of(x), rows = rows_of(x);
    if (slot < 0 || !dx || dy->dtype != x->dtype || (dsum && dsum->dtype != x->dtype))
        return KM_ERR_UNSUPPORTED;
    if (km_float_slot(w->dtype) < 0 || (dw && km_float_slot(dw->dtype) < 0) ||
        (db && km_float_slot(db->dtype) < 0))
        return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;

    grad_call c = {.fn = mean ? km_simd_norm()->layer_norm_grad[slot]
                              : km_simd_norm()->rms_norm_grad[slot],
                   .size = (int64_t)km_dtype_size(x->dtype),
                   .rows = rows,
                   .block_rows = km_ceil_div(rows, 64),
                   .dw = dw,
                   .db = db};
    if (c.block_rows < 16) c.block_rows = 16;
    if (c.block_rows > 256) c.block_rows = 256;
    c.blocks = km_ceil_div(rows, c.block_rows);
    float *scratch = km_ctx_scratch(ctx, (size_t)((2 * c.blocks + 1) * n) * sizeof *scratch);
    if (!scratch) return KM_ERR_MEMORY;
    c.parts = scratch + n;
    c.job = (km_norm_grad_job){.dx = ptr(dx),
                               .dy = ptr(dy),
                               .x = ptr(x),
                               .dsum = ptr(dsum),
                               .w = as_floats(w, n, scratch),
                               .mean = ptr(mean),
                               .rstd = ptr(rstd),
                               .n = n};
    km_threads_for(ctx->threads, c.blocks, km_even_grain(c.blocks, c.block_rows * n * c.size),
                   grad_range, &c);
    km_threads_for(ctx->threads, km_ceil_div(n, MERGE_COLS), km_grain(c.blocks * MERGE_COLS * 8),
                   merge_range, &c);
    return KM_OK;
}

static km_status layer_norm_grad(km_ctx *ctx, const km_call *c) {
    return norm_grad(ctx, c->in[0], c->in[1], c->in[2], c->in[3], c->in[4], input(c, 5), c->out[0],
                     output(c, 1), output(c, 2));
}

static km_status rms_norm_grad(km_ctx *ctx, const km_call *c) {
    return norm_grad(ctx, c->in[0], c->in[1], c->in[2], NULL, c->in[3], input(c, 4), c->out[0],
                     output(c, 1), NULL);
}

void km_cpu_register_norm(km_kernel *k) {
    k[KM_OP_LAYER_NORM] = layer_norm;
    k[KM_OP_LAYER_NORM_GRAD] = layer_norm_grad;
    k[KM_OP_RMS_NORM] = rms_norm;
    k[KM_OP_RMS_NORM_GRAD] = rms_norm_grad;
    k[KM_OP_ADD_LAYER_NORM] = add_layer_norm;
    k[KM_OP_ADD_RMS_NORM] = add_rms_norm;
}
