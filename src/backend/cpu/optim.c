/* Optimiser steps on the CPU: all parameters in one loop, cut into chunks that the threads share
 * out; and before a step the norm of the gradients, chunk by chunk, so that the number of threads
 * does not change a bit of it. */
#include "backend/cpu/optim.h"
#include "backend/optim_call.h"
#include <math.h>
#include <string.h>

#define CHUNK 16384 /* elements of a parameter */

/* One parameter's step. */
typedef struct step {
    km_optim_fn fn;
    km_optim_job job;
    int64_t n, first; /* elements; its first chunk among those of all */
} step;

typedef struct step_list {
    step *list;
    int count;
    int64_t chunks;
} step_list;

/* The parameter that chunk i is of. */
static int owner(const step_list *all, int64_t i) {
    int low = 0, high = all->count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (all->list[mid].first <= i)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static void run_chunks(void *arg, int64_t begin, int64_t end, int worker) {
    const step_list *all = arg;
    int k = owner(all, begin);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        while (k + 1 < all->count && all->list[k + 1].first <= i) k++;
        const step *s = &all->list[k];
        km_optim_job job = s->job;
        job.begin = (i - s->first) * CHUNK;
        job.end = job.begin + CHUNK < s->n ? job.begin + CHUNK : s->n;
        s->fn(&job);
    }
}

static void *data(const km_tensor *t) { return t ? km_tensor_ptr(t) : NULL; }

/* The call's own settings. */
static km_optim_job settings(const km_call *c) {
    const double *f = c->p->f, t = (double)c->p->n[KM_N_STEP];
    km_optim_job job = {.lr = (float)f[KM_F_LR], .multiplier = 1};
    if (c->op == KM_OP_ADAMW) {
        job.beta1 = (float)f[1];
        job.beta2 = (float)f[2];
        job.eps = (float)f[KM_F_ADAM_EPS];
        job.decay = (float)f[KM_F_ADAM_DECAY];
        job.scale1 = (float)(1 / (1 - pow(f[KM_F_BETA1], t)));
        job.scale2 = (float)(1 / (1 - pow(f[KM_F_BETA2], t)));
        job.decoupled = c->p->n[KM_N_DECOUPLED] != 0;
    } else {
        job.momentum = (float)f[KM_F_MOMENTUM];
        job.decay = (float)f[KM_F_SGD_DECAY];
        job.nesterov = c->p->n[KM_N_NESTEROV] != 0;
    }
    return job;
}

/* The control's, for one tensor. */
static void take_control(km_optim_job *job, const km_tensor *control, int64_t index) {
    const float *f = data(control);
    job->lr = f[KM_CONTROL_LR];
    job->scale1 = f[KM_CONTROL_SCALE1];
    job->scale2 = f[KM_CONTROL_SCALE2];
    job->multiplier = f[KM_CONTROL_GRAD];
    if (control->shape.dim[0] > KM_CONTROL_TENSORS) {
        job->lr *= f[KM_CONTROL_TENSORS + 2 * index];
        job->decay = f[KM_CONTROL_TENSORS + 2 * index + 1];
    }
}

static void leave(const km_tensor *from, const km_tensor *to) {
    if (from && to != from && data(to) != data(from))
        memcpy(data(to), data(from),
               (size_t)km_shape_count(from->shape) * km_dtype_size(from->dtype));
}

static km_status run_optim(km_ctx *ctx, const km_call *c) {
    const km_tensor *control = km_optim_control(c);
    const km_optim_table *table = km_simd_optim();
    int slot = km_float_slot(c->in[0]->dtype);
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    bool skip = control && ((const float *)data(control))[KM_CONTROL_SKIP] != 0;
    km_optim_job own = settings(c);
    km_optim_parts parts = {.c = c};
    km_optim_part t;
    step_list all = {.list = km_ctx_scratch(ctx, sizeof(step) * (size_t)c->n_out)};
    if (!all.list) return KM_ERR_MEMORY;
    while (km_optim_next(&parts, &t)) {
        if (skip) {
            leave(t.p, t.p_out);
            leave(t.m, t.m_out);
            leave(t.v, t.v_out);
            leave(t.w, t.w_out);
            continue;
        }
        bool wide = t.g->dtype != t.p->dtype;
        step *s = &all.list[all.count++];
        *s = (step){.fn = (c->op == KM_OP_ADAMW ? table->adamw : table->sgd)[wide][slot],
                    .job = own,
                    .n = km_shape_count(t.p->shape),
                    .first = all.chunks};
        if (control) take_control(&s->job, control, c->p->n[KM_N_FIRST] + t.index);
        s->job.p = data(t.p), s->job.g = data(t.g), s->job.m = data(t.m), s->job.v = data(t.v);
        s->job.w = data(t.w), s->job.p_out = data(t.p_out), s->job.m_out = data(t.m_out);
        s->job.v_out = data(t.v_out), s->job.w_out = data(t.w_out);
        all.chunks += km_ceil_div(s->n, CHUNK);
    }
    km_threads_for(ctx->threads, all.chunks, 1, run_chunks, &all);
    return KM_OK;
}

/* ---- Before the step ---- */

typedef struct norm_sums {
    const km_call *c;
    float *out;
} norm_sums;

static int64_t sum_count(const km_tensor *x) {
    return km_ceil_div(km_shape_count(x->shape), KM_SUMSQ_CHUNK);
}

static void sum_chunks(void *arg, int64_t begin, int64_t end, int worker) {
    const norm_sums *s = arg;
    int k = 0;
    int64_t first = 0; /* the first chunk of tensor k */
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        while (i >= first + sum_count(s->c->in[k])) first += sum_count(s->c->in[k++]);
        const km_tensor *x = s->c->in[k];
        int64_t from = (i - first) * KM_SUMSQ_CHUNK, n = km_shape_count(x->shape);
        km_sumsq_job job = {.x = data(x),
                            .begin = from,
                            .end = from + KM_SUMSQ_CHUNK < n ? from + KM_SUMSQ_CHUNK : n,
                            .sum = s->out + i};
        km_simd_optim()->sumsq[km_float_slot(x->dtype)](&job);
    }
}

static km_status run_sumsq_chunks(km_ctx *ctx, const km_call *c) {
    norm_sums s = {.c = c, .out = data(c->out[0])};
    int64_t chunks = 0;
    for (int k = 0; k < c->n_in; k++) {
        if (km_float_slot(c->in[k]->dtype) < 0) return KM_ERR_UNSUPPORTED;
        chunks += sum_count(c->in[k]);
    }
    km_threads_for(ctx->threads, chunks, 2, sum_chunks, &s);
    return KM_OK;
}

/* A few numbers: not worth a second thread. */
static km_status run_control(km_ctx *ctx, const km_call *c) {
    const float *sum = data(c->in[0]), *knob = data(c->in[1]), *old = data(c->in[2]);
    float *out = data(c->out[0]);
    int64_t tail = c->out[0]->shape.dim[0] - KM_CONTROL_TENSORS;
    double total = 0;
    (void)ctx;
    for (int64_t i = 0; i < c->in[0]->shape.dim[0]; i++) total += (double)sum[i];

    float loss = old[KM_CONTROL_LOSS], good = old[KM_CONTROL_GOOD];
    double multiplier = (double)knob[KM_KNOB_GRAD] / (double)loss, norm = sqrt(total) * multiplier;
    bool skip = !isfinite((float)norm);
    if (c->p->f[KM_F_MAX_NORM] > 0 && norm > c->p->f[KM_F_MAX_NORM])
        multiplier *= c->p->f[KM_F_MAX_NORM] / norm;
    float steps = old[KM_CONTROL_STEPS] + (skip ? 0 : 1);
    double t = steps > 1 ? (double)steps : 1;
    good = skip ? 0 : good + 1;
    if (c->p->n[KM_N_GROWTH] > 0 && skip) loss = fmaxf(loss / 2, KM_LOSS_SCALE_MIN);
    if (c->p->n[KM_N_GROWTH] > 0 && good >= (float)c->p->n[KM_N_GROWTH]) {
        loss = fminf(loss * 2, KM_LOSS_SCALE_MAX);
        good = 0;
    }
    float head[KM_CONTROL_TENSORS] = {0};
    head[KM_CONTROL_LR] = knob[KM_KNOB_LR];
    head[KM_CONTROL_SCALE1] = (float)(1 / (1 - pow(c->p->f[KM_F_BETA1], t)));
    head[KM_CONTROL_SCALE2] = (float)(1 / (1 - pow(c->p->f[KM_F_BETA2], t)));
    head[KM_CONTROL_GRAD] = skip ? 0 : (float)multiplier;
    head[KM_CONTROL_SKIP] = skip;
    head[KM_CONTROL_NORM] = (float)norm;
    head[KM_CONTROL_STEPS] = steps;
    head[KM_CONTROL_SKIPS] = old[KM_CONTROL_SKIPS] + (skip ? 1 : 0);
    head[KM_CONTROL_LOSS] = loss;
    head[KM_CONTROL_GOOD] = good;
    if (out != old) memcpy(out + KM_CONTROL_TENSORS, old + KM_CONTROL_TENSORS, (size_t)tail * 4);
    memcpy(out, head, sizeof head);
    return KM_OK;
}

void km_cpu_register_optim(km_kernel *k) {
    k[KM_OP_SGD] = k[KM_OP_ADAMW] = run_optim;
    k[KM_OP_SUMSQ_CHUNKS] = run_sumsq_chunks;
    k[KM_OP_OPTIM_CONTROL] = run_control;
}
