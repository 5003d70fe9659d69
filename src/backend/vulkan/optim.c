/* Optimiser steps (shaders/optim_step.comp): all tensors of a call in one dispatch, and before it the
 * norm of their gradients in two (sumsq_chunks.comp, optim_control.comp). Nothing is read back. */
#include "backend/optim_call.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"
#include <math.h>

#define AT_ONCE 2048 /* tensors of a dispatch */
#define PART 1024    /* elements of a workgroup, as in the shader */

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* ---- A step ---- */

typedef struct step_tensor { /* as the shader reads it */
    uint32_t at[9][2];       /* p, g, m, v, w, and where p, m, v, w go */
    uint32_t n, first, index, grad_kind;
} step_tensor;

typedef struct step_push {
    uint64_t tensors, control;
    uint32_t count, groups;
    float lr, decay, beta1, rest1, beta2, rest2, eps, scale1, scale2;
    uint32_t flag;
} step_push;

static step_push step_settings(const km_call *c) {
    const double *f = c->p->f, t = (double)c->p->n[KM_N_STEP];
    step_push s = {.lr = (float)f[KM_F_LR], .control = km_vulkan_at(km_optim_control(c))};
    if (c->op == KM_OP_ADAMW) {
        double beta1 = f[KM_F_BETA1], beta2 = f[KM_F_BETA2];
        s.decay = (float)f[KM_F_ADAM_DECAY];
        s.beta1 = (float)beta1, s.rest1 = (float)(1 - beta1);
        s.beta2 = (float)beta2, s.rest2 = (float)(1 - beta2);
        s.eps = (float)f[KM_F_ADAM_EPS];
        s.scale1 = (float)(1 / (1 - pow(beta1, t)));
        s.scale2 = (float)(1 / (1 - pow(beta2, t)));
        s.flag = c->p->n[KM_N_DECOUPLED] != 0;
    } else {
        s.decay = (float)f[KM_F_SGD_DECAY];
        s.beta1 = (float)f[KM_F_MOMENTUM];
        s.flag = c->p->n[KM_N_NESTEROV] != 0;
    }
    return s;
}

/* The parameters' and gradients' types are ones that the shader reads, states f32, sizes in range. */
static bool step_fits(const km_call *c) {
    km_optim_parts parts = {.c = c};
    for (km_optim_part t; km_optim_next(&parts, &t);) {
        const km_tensor *state[] = {t.m, t.v, t.w};
        if (!is_float(t.p->dtype) || !is_float(t.g->dtype) || t.p->dtype != c->in[0]->dtype ||
            km_shape_count(t.p->shape) >= KM_VULKAN_MOST)
            return false;
        for (int i = 0; i < 3; i++)
            if (state[i] && state[i]->dtype != KM_F32) return false;
    }
    return true;
}

static void put_address(uint32_t at[2], const km_tensor *t) {
    uint64_t a = km_vulkan_at(t);
    at[0] = (uint32_t)a;
    at[1] = (uint32_t)(a >> 32);
}

static step_tensor describe(const km_optim_part *t, uint32_t first, int64_t index) {
    step_tensor d = {.n = (uint32_t)km_shape_count(t->p->shape),
                     .first = first,
                     .index = (uint32_t)index,
                     .grad_kind = (uint32_t)t->g->dtype};
    const km_tensor *list[] = {t->p,     t->g,     t->m,     t->v,    t->w,
                               t->p_out, t->m_out, t->v_out, t->w_out};
    for (int i = 0; i < 9; i++) put_address(d.at[i], list[i]);
    return d;
}

static km_status run_step(km_ctx *ctx, const km_call *c) {
    const km_tensor *control = km_optim_control(c);
    bool own = control && control->shape.dim[0] > KM_CONTROL_TENSORS; /* rates of each tensor */
    km_lane *lane = km_vulkan_lane(c);
    if (!step_fits(c)) return KM_ERR_UNSUPPORTED;
    step_tensor *list = km_ctx_scratch(ctx, AT_ONCE * sizeof *list);
    if (!list) return KM_ERR_MEMORY;
    step_push push = step_settings(c);
    uint32_t spec[] = {(uint32_t)c->in[0]->dtype, c->op == KM_OP_ADAMW};
    km_optim_parts parts = {.c = c};
    km_optim_part t;
    double elements = 0;
    for (bool more = true; more;) {
        more = km_optim_next(&parts, &t);
        int64_t n = more ? km_shape_count(t.p->shape) : 0;
        if (n > 0) {
            list[push.count++] =
                describe(&t, push.groups, own ? c->p->n[KM_N_FIRST] + t.index : -1);
            push.groups += (uint32_t)km_ceil_div(n, PART);
            elements += (double)n;
        }
        if (push.count == 0 || (more && push.count < AT_ONCE && push.groups < 1 << 20)) continue;
        push.tensors = km_vulkan_words(lane, list, push.count * sizeof *list);
        if (!push.tensors) return lane->ctx->error.code;
        km_status s = km_vulkan_launch(lane, "optim_step", spec, 2, &push, sizeof push,
                                       km_groups_for(push.groups), elements * 40);
        if (s != KM_OK) return s;
        push.count = push.groups = 0;
        elements = 0;
    }
    return KM_OK;
}

/* ---- The gradients' norm ---- */

typedef struct sumsq_tensor {
    uint32_t at[2], n, first, kind;
} sumsq_tensor;

/* k tensors -> (chunks) */
static km_status run_sumsq_chunks(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_vulkan_lane(c);
    struct {
        uint64_t tensors, o;
        uint32_t count, chunks;
    } push = {.o = km_vulkan_at(c->out[0])};
    for (int k = 0; k < c->n_in; k++)
        if (!is_float(c->in[k]->dtype) || km_shape_count(c->in[k]->shape) >= KM_VULKAN_MOST)
            return KM_ERR_UNSUPPORTED;
    sumsq_tensor *list = km_ctx_scratch(ctx, AT_ONCE * sizeof *list);
    if (!list) return KM_ERR_MEMORY;
    for (int k = 0; k < c->n_in; k++) {
        int64_t n = km_shape_count(c->in[k]->shape);
        if (n > 0) {
            sumsq_tensor *t = &list[push.count++];
            *t = (sumsq_tensor){
                .n = (uint32_t)n, .first = push.chunks, .kind = (uint32_t)c->in[k]->dtype};
            put_address(t->at, c->in[k]);
            push.chunks += (uint32_t)km_ceil_div(n, KM_SUMSQ_CHUNK);
        }
        if (push.count == 0 || (push.count < AT_ONCE && k + 1 < c->n_in)) continue;
        push.tensors = km_vulkan_words(lane, list, push.count * sizeof *list);
        if (!push.tensors) return lane->ctx->error.code;
        km_status s =
            km_vulkan_launch(lane, "sumsq_chunks", NULL, 0, &push, sizeof push,
                             km_groups_for(push.chunks), (double)push.chunks * KM_SUMSQ_CHUNK * 4);
        if (s != KM_OK) return s;
        push.o += push.chunks * sizeof(float);
        push.count = push.chunks = 0;
    }
    return KM_OK;
}

/* sums (n), knobs, control -> control */
static km_status run_control(km_ctx *ctx, const km_call *c) {
    struct {
        uint64_t sums, knobs, old, o;
        uint32_t n_sums, n, growth;
        float most, log_beta1, log_beta2;
    } push = {.sums = km_vulkan_at(c->in[0]),
              .knobs = km_vulkan_at(c->in[1]),
              .old = km_vulkan_at(c->in[2]),
              .o = km_vulkan_at(c->out[0]),
              .n_sums = (uint32_t)c->in[0]->shape.dim[0],
              .n = (uint32_t)c->out[0]->shape.dim[0],
              .growth = (uint32_t)km_clamp64(c->p->n[KM_N_GROWTH], 0, INT32_MAX),
              .most = (float)c->p->f[KM_F_MAX_NORM],
              .log_beta1 = (float)log(c->p->f[KM_F_BETA1]),
              .log_beta2 = (float)log(c->p->f[KM_F_BETA2])};
    (void)ctx;
    if (c->in[0]->shape.dim[0] >= KM_VULKAN_MOST || c->out[0]->shape.dim[0] >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    return km_vulkan_launch(km_vulkan_lane(c), "optim_control", NULL, 0, &push, sizeof push,
                            KM_GROUPS(1), push.n_sums * 10.0);
}

void km_vulkan_register_optim(km_kernel *table) {
    table[KM_OP_SGD] = table[KM_OP_ADAMW] = run_step;
    table[KM_OP_SUMSQ_CHUNKS] = run_sumsq_chunks;
    table[KM_OP_OPTIM_CONTROL] = run_control;
}
