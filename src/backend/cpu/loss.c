/* Cross entropy, mse and bce_with_logits, with their gradients. Losses are summed per row or per
 * block of fixed size and then in order, in double: the same bits whatever the threads do. The
 * mean over nothing is NaN. */
#include "backend/cpu/loss.h"

/* ---- Cross entropy: logits (rows, v), targets (rows) ---- */

typedef struct cross_entropy_call {
    void (*fn)(const km_cross_entropy_job *job);
    km_cross_entropy_job job; /* of all rows */
    int64_t size;
    float *buffers; /* (threads, each) */
    int64_t each;
} cross_entropy_call;

static void *skip(const void *p, int64_t bytes) { return p ? (char *)p + bytes : NULL; }

static void cross_entropy_range(void *arg, int64_t begin, int64_t end, int worker) {
    const cross_entropy_call *c = arg;
    km_cross_entropy_job job = c->job;
    int64_t at = begin * job.v * c->size;
    job.rows = end - begin;
    job.logits = skip(job.logits, at);
    job.dlogits = skip(job.dlogits, at);
    job.targets = skip(job.targets, begin * (job.wide ? 8 : 4));
    job.lse += begin;
    job.losses = skip(job.losses, begin * (int64_t)sizeof *job.losses);
    job.buffer = c->buffers ? c->buffers + worker * c->each : NULL;
    c->fn(&job);
}

/* 1, or 1 / (number of rows that count) */
static double row_scale(const km_cross_entropy_job *j, int64_t reduction) {
    if (reduction == KM_SUM) return 1;
    int64_t n = 0;
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t target = km_index_at(j->targets, j->wide, r);
        n += target != j->ignore && target >= 0 && target < j->v;
    }
    return 1 / (double)n;
}

static cross_entropy_call cross_entropy_call_of(const km_call *c, const km_tensor *logits,
                                                const km_tensor *targets, const km_tensor *lse,
                                                const km_tensor *dlogits) {
    cross_entropy_call call = {.size = (int64_t)km_dtype_size(logits->dtype)};
    call.job = (km_cross_entropy_job){.logits = km_tensor_ptr(logits),
                                      .dlogits = dlogits ? km_tensor_ptr(dlogits) : NULL,
                                      .targets = km_tensor_ptr(targets),
                                      .wide = targets->dtype == KM_I64,
                                      .rows = km_shape_count(targets->shape),
                                      .v = logits->shape.dim[logits->shape.ndim - 1],
                                      .ignore = c->p->n[KM_N_IGNORE],
                                      .lse = km_tensor_ptr(lse)};
    call.job.scale = row_scale(&call.job, c->p->n[KM_N_REDUCTION]);
    call.job.stream = km_worth_streaming(call.job.rows * call.job.v * call.size);
    return call;
}

/* logits, targets -> loss, lse, dlogits? */
static km_status cross_entropy(km_ctx *ctx, const km_call *c) {
    const km_tensor *logits = c->in[0], *lse = c->out[1];
    const km_tensor *dlogits = c->n_out > 2 ? c->out[2] : NULL;
    int slot = km_float_slot(logits->dtype);
    if (slot < 0 || c->out[0]->dtype != KM_F32 || lse->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    cross_entropy_call call = cross_entropy_call_of(c, logits, c->in[1], lse, dlogits);
    km_cross_entropy_job *job = &call.job;
    int64_t rows = job->rows, grain = km_even_grain(rows, job->v * call.size);
    int64_t threads = km_useful_threads(ctx, rows, grain);
    call.fn = km_simd_loss()->cross_entropy[slot];
    call.each = km_ceil_div(job->v, 64) * 64 + 64; /* threads write to lines of their own */
    size_t floats = dlogits ? (size_t)(threads * call.each) : 0;
    job->losses = km_ctx_scratch(ctx, (size_t)(rows + 8) * sizeof(double) + floats * sizeof(float));
    if (!job->losses) return KM_ERR_MEMORY;
    if (dlogits) call.buffers = (float *)(void *)(job->losses + (rows + 7) / 8 * 8);
    km_threads_for(ctx->threads, rows, grain, cross_entropy_range, &call);
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += job->losses[r];
    *(float *)km_tensor_ptr(c->out[0]) = (float)(sum * job->scale);
    return KM_OK;
}

/* dloss, logits, targets, lse -> dlogits */
static km_status cross_entropy_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dloss = c->in[0], *logits = c->in[1], *lse = c->in[3];
    int slot = km_float_slot(logits->dtype);
    if (slot < 0 || dloss->dtype != KM_F32 || lse->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    cross_entropy_call call = cross_entropy_call_of(c, logits, c->in[2], lse, c->out[0]);
    if (call.job.v == 0) return KM_OK;
    call.fn = km_simd_loss()->cross_entropy_grad[slot];
    call.job.scale *= *(const float *)km_tensor_ptr(dloss);
    int64_t rows = call.job.rows;
    km_threads_for(ctx->threads, rows, km_even_grain(rows, call.job.v * call.size),
                   cross_entropy_range, &call);
    return KM_OK;
}

/* ---- mse, bce: x, target of one shape ---- */

#define PAIR_BLOCK 16384 /* elements whose losses are summed together */

typedef struct pair_call {
    km_pair_fn fn;
    km_pair_job job; /* of all elements */
    int64_t size;
} pair_call;

static void pair_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const pair_call *c = arg;
    for (int64_t b = begin; b < end; b++) {
        km_pair_job job = c->job;
        int64_t first = b * PAIR_BLOCK, at = first * c->size;
        job.n = job.n - first < PAIR_BLOCK ? job.n - first : PAIR_BLOCK;
        job.x = skip(job.x, at);
        job.target = skip(job.target, at);
        job.dx = skip(job.dx, at);
        job.sum = skip(job.sum, b * (int64_t)sizeof *job.sum);
        c->fn(&job);
    }
}

static double pair_divisor(const km_call *c, int64_t n) {
    return c->p->n[KM_N_REDUCTION] == KM_SUM ? 1 : (double)n;
}

static km_status pair_loss(km_ctx *ctx, const km_call *c, const km_pair_fn fn[KM_SLOTS]) {
    const km_tensor *x = c->in[0], *loss = c->out[0];
    int slot = km_float_slot(x->dtype);
    if (slot < 0 || c->in[1]->dtype != x->dtype || loss->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    int64_t n = km_shape_count(x->shape), blocks = km_ceil_div(n, PAIR_BLOCK);
    pair_call call = {.fn = fn[slot],
                      .size = (int64_t)km_dtype_size(x->dtype),
                      .job = {.x = km_tensor_ptr(x), .target = km_tensor_ptr(c->in[1]), .n = n}};
    call.job.sum = km_ctx_scratch(ctx, (size_t)(blocks + 1) * sizeof(double));
    if (!call.job.sum) return KM_ERR_MEMORY;
    km_threads_for(ctx->threads, blocks, km_grain(PAIR_BLOCK * call.size), pair_range, &call);
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) sum += call.job.sum[b];
    *(float *)km_tensor_ptr(loss) = (float)(sum / pair_divisor(c, n));
    return KM_OK;
}

static km_status pair_grad(km_ctx *ctx, const km_call *c, const km_pair_fn fn[KM_SLOTS]) {
    const km_tensor *dloss = c->in[0], *x = c->in[1];
    int slot = km_float_slot(x->dtype);
    if (slot < 0 || c->in[2]->dtype != x->dtype || dloss->dtype != KM_F32)
        return KM_ERR_UNSUPPORTED;
    int64_t n = km_shape_count(x->shape);
    pair_call call = {.fn = fn[slot],
                      .size = (int64_t)km_dtype_size(x->dtype),
                      .job = {.x = km_tensor_ptr(x),
                              .target = km_tensor_ptr(c->in[2]),
                              .dx = km_tensor_ptr(c->out[0]),
                              .n = n,
                              .scale = *(const float *)km_tensor_ptr(dloss) / pair_divisor(c, n)}};
    call.job.stream = km_worth_streaming(n * call.size);
    km_threads_for(ctx->threads, km_ceil_div(n, PAIR_BLOCK), km_grain(PAIR_BLOCK * call.size),
                   pair_range, &call);
    return KM_OK;
}

static km_status mse(km_ctx *ctx, const km_call *c) {
    return pair_loss(ctx, c, km_simd_loss()->mse);
}
static km_status bce(km_ctx *ctx, const km_call *c) {
    return pair_loss(ctx, c, km_simd_loss()->bce);
}
static km_status mse_grad(km_ctx *ctx, const km_call *c) {
    return pair_grad(ctx, c, km_simd_loss()->mse_grad);
}
static km_status bce_grad(km_ctx *ctx, const km_call *c) {
    return pair_grad(ctx, c, km_simd_loss()->bce_grad);
}

void km_cpu_register_loss(km_kernel *k) {
    k[KM_OP_CROSS_ENTROPY] = cross_entropy;
    k[KM_OP_CROSS_ENTROPY_GRAD] = cross_entropy_grad;
    k[KM_OP_MSE] = mse;
    k[KM_OP_MSE_GRAD] = mse_grad;
    k[KM_OP_BCE] = bce;
    k[KM_OP_BCE_GRAD] = bce_grad;
}
