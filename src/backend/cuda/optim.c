/* Optimiser steps on the GPU: all tensors of a model in one launch, and before it the norm of their
 * gradients in two. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/map/optim_args.h"
#include "backend/cuda/walker.h"
#include "backend/optim_call.h"
#include "base/util.h"
#include <math.h>
#include <stddef.h>
#include <string.h>

static km_cuda_kernel sgd[2][KM_CUDA_SLOTS] = {KM_CUDA_WAITING("optim", "sgd"),
                                               KM_CUDA_WAITING("optim", "sgd_wide")};
static km_cuda_kernel adamw[2][KM_CUDA_SLOTS] = {KM_CUDA_WAITING("optim", "adamw"),
                                                 KM_CUDA_WAITING("optim", "adamw_wide")};
static km_cuda_kernel sumsq_chunks = {.module = "optim", .name = "sumsq_chunks", .waits = true};
static km_cuda_kernel optim_control = {.module = "optim", .name = "optim_control", .waits = true};

static void *data(const km_tensor *t) { return t ? km_tensor_ptr(t) : NULL; }

static void put_settings(km_optim_args *a, const km_call *c) {
    const double *f = c->p->f, t = (double)c->p->n[KM_N_STEP];
    memset(a, 0, offsetof(km_optim_args, t));
    a->lr = (float)f[KM_F_LR];
    if (c->op == KM_OP_ADAMW) {
        a->beta1 = (float)f[KM_F_BETA1], a->beta2 = (float)f[KM_F_BETA2];
        a->eps = (float)f[KM_F_ADAM_EPS], a->decay = (float)f[KM_F_ADAM_DECAY];
        a->scale1 = (float)(1 / (1 - pow(f[KM_F_BETA1], t)));
        a->scale2 = (float)(1 / (1 - pow(f[KM_F_BETA2], t)));
        a->decoupled = c->p->n[KM_N_DECOUPLED] != 0;
    } else {
        a->momentum = (float)f[KM_F_MOMENTUM], a->decay = (float)f[KM_F_SGD_DECAY];
        a->nesterov = c->p->n[KM_N_NESTEROV] != 0;
    }
}

/* Gradients of one dtype: all that p's have, or f32. */
static km_status run_kind(const km_call *c, km_optim_args *a, bool wide) {
    const km_tensor *control = km_optim_control(c);
    bool pairs = control && control->shape.dim[0] > KM_CONTROL_TENSORS;
    km_cuda_kernel *k = c->op == KM_OP_ADAMW ? adamw[wide] : sgd[wide];
    km_optim_parts parts = {.c = c};
    km_optim_part t;
    int64_t blocks = 0;
    a->count = 0;
    a->control = data(control);
    for (bool more = true; more;) {
        more = km_optim_next(&parts, &t);
        int64_t n = more ? km_shape_count(t.p->shape) : 0;
        if (n > 0 && (t.g->dtype != t.p->dtype) == wide) {
            a->t[a->count++] =
                (km_optim_tensor){.p = data(t.p),
                                  .g = data(t.g),
                                  .m = data(t.m),
                                  .v = data(t.v),
                                  .w = data(t.w),
                                  .p_out = data(t.p_out),
                                  .m_out = data(t.m_out),
                                  .v_out = data(t.v_out),
                                  .w_out = data(t.w_out),
                                  .n = n,
                                  .first = (int32_t)blocks,
                                  .index = pairs ? (int32_t)c->p->n[KM_N_FIRST] + t.index : -1};
            blocks += km_ceil_div(n, KM_OPTIM_BLOCK);
        }
        if (a->count == 0 || (more && a->count < KM_OPTIM_MOST)) continue;
        km_status s = km_cuda_launch1(km_cuda_lane(c), &k[km_cuda_slot(c->in[0]->dtype)],
                                      KM_DIM(blocks), KM_DIM(256), 0, a);
        if (s != KM_OK) return s;
        a->count = 0;
        blocks = 0;
    }
    return KM_OK;
}

static km_status run_optim(km_ctx *ctx, const km_call *c) {
    km_optim_args a;
    bool same = false, wide = false;
    km_status s = KM_OK;
    (void)ctx;
    if (km_cuda_slot(c->in[0]->dtype) < 0) return KM_ERR_UNSUPPORTED;
    km_optim_parts parts = {.c = c};
    for (km_optim_part t; km_optim_next(&parts, &t);)
        *(t.g->dtype == t.p->dtype ? &same : &wide) = true;
    put_settings(&a, c);
    if (same) s = run_kind(c, &a, false);
    if (wide && s == KM_OK) s = run_kind(c, &a, true);
    return s;
}

static km_status run_sumsq_chunks(km_ctx *ctx, const km_call *c) {
    km_sumsq_args a = {.out = data(c->out[0])};
    int64_t blocks = 0;
    (void)ctx;
    for (int k = 0; k < c->n_in; k++)
        if (km_cuda_slot(c->in[k]->dtype) < 0) return KM_ERR_UNSUPPORTED;
    for (int k = 0; k < c->n_in; k++) {
        int64_t n = km_shape_count(c->in[k]->shape);
        if (n > 0)
            a.t[a.count++] =
                (km_sumsq_tensor){data(c->in[k]), n, (int32_t)blocks, (int32_t)c->in[k]->dtype};
        blocks += km_ceil_div(n, KM_SUMSQ_CHUNK);
        if (a.count == 0 || (a.count < KM_SUMSQ_MOST && k + 1 < c->n_in)) continue;
        km_status s =
            km_cuda_launch1(km_cuda_lane(c), &sumsq_chunks, KM_DIM(blocks), KM_DIM(256), 0, &a);
        if (s != KM_OK) return s;
        a.out += blocks;
        a.count = 0;
        blocks = 0;
    }
    return KM_OK;
}

static km_status run_control(km_ctx *ctx, const km_call *c) {
    km_control_args a = {.sums = data(c->in[0]),
                         .knobs = data(c->in[1]),
                         .old = data(c->in[2]),
                         .out = data(c->out[0]),
                         .n_sums = c->in[0]->shape.dim[0],
                         .n = c->out[0]->shape.dim[0],
                         .most = c->p->f[KM_F_MAX_NORM],
                         .beta1 = c->p->f[KM_F_BETA1],
                         .beta2 = c->p->f[KM_F_BETA2],
                         .growth = c->p->n[KM_N_GROWTH]};
    (void)ctx;
    return km_cuda_launch1(km_cuda_lane(c), &optim_control, KM_DIM(1), KM_DIM(1024), 0, &a);
}

void km_cuda_register_optim(km_kernel *table) {
    table[KM_OP_SGD] = table[KM_OP_ADAMW] = run_optim;
    table[KM_OP_SUMSQ_CHUNKS] = run_sumsq_chunks;
    table[KM_OP_OPTIM_CONTROL] = run_control;
}
