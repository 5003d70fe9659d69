/* Optimiser steps on the GPU: all tensors of a model in one launch. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/optim_args.h"
#include "backend/cuda/walker.h"
#include <math.h>

static km_cuda_kernel sgd[] = KM_CUDA_PER_TYPE("optim", "sgd");
static km_cuda_kernel adamw[] = KM_CUDA_PER_TYPE("optim", "adamw");

static void *data(km_tensor *const *t, int at, int count) {
    return at < count && t[at] ? km_tensor_ptr(t[at]) : NULL;
}

static km_status run_optim(km_ctx *ctx, const km_call *c) {
    bool adam = c->op == KM_OP_ADAMW;
    int slot = km_cuda_slot(c->in[0]->dtype), each = adam ? 4 : 3, made = each - 1;
    const double *f = c->p->f, t = (double)c->p->n[0];
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_optim_args a = {.lr = (float)f[0]};
    if (adam) {
        a.beta1 = (float)f[1], a.beta2 = (float)f[2], a.eps = (float)f[3], a.decay = (float)f[4];
        a.scale1 = (float)(1 / (1 - pow(f[1], t)));
        a.scale2 = (float)(1 / (1 - pow(f[2], t)));
        a.decoupled = c->p->n[1] != 0;
    } else {
        a.momentum = (float)f[1], a.decay = (float)f[2], a.nesterov = c->p->n[0] != 0;
    }
    int64_t blocks = 0;
    for (int k = 0; k * each < c->n_in; k++) {
        int in = k * each, out = k * made;
        int64_t n = km_shape_count(c->in[in]->shape);
        if (n > 0)
            a.t[a.count++] = (km_optim_tensor){
                .p = data(c->in, in, c->n_in), .g = data(c->in, in + 1, c->n_in),
                .m = data(c->in, in + 2, c->n_in), .v = adam ? data(c->in, in + 3, c->n_in) : NULL,
                .p_out = data(c->out, out, c->n_out), .m_out = data(c->out, out + 1, c->n_out),
                .v_out = adam ? data(c->out, out + 2, c->n_out) : NULL, .n = n, .first = blocks};
        blocks += km_cuda_ceil(n, KM_OPTIM_BLOCK);
        bool last = (k + 1) * each >= c->n_in;
        if (a.count == 0 || (a.count < KM_OPTIM_MOST && !last)) continue;
        km_status s = km_cuda_launch1(km_cuda_lane(c), adam ? &adamw[slot] : &sgd[slot],
                                      KM_DIM(blocks), KM_DIM(256), 0, &a);
        if (s != KM_OK) return s;
        a.count = 0;
        blocks = 0;
    }
    return KM_OK;
}

void km_cuda_register_optim(km_kernel *table) { table[KM_OP_SGD] = table[KM_OP_ADAMW] = run_optim; }
