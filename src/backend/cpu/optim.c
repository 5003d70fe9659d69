/* Optimiser steps on the CPU: parameter after parameter, each shared out among the threads. */
#include "backend/cpu/optim.h"
#include <math.h>

typedef struct step {
    void (*fn)(const km_optim_job *job);
    km_optim_job job;
} step;

static void run_chunk(void *arg, int64_t begin, int64_t end, int worker) {
    const step *s = arg;
    km_optim_job job = s->job;
    (void)worker;
    job.begin = begin;
    job.end = end;
    s->fn(&job);
}

static void *data(km_tensor *const *t, int at, int count) {
    return at < count && t[at] ? km_tensor_ptr(t[at]) : NULL;
}

static km_status run_optim(km_ctx *ctx, const km_call *c) {
    bool adam = c->op == KM_OP_ADAMW;
    int slot = km_float_slot(c->in[0]->dtype), each = adam ? 4 : 3, made = each - 1;
    const double *f = c->p->f, t = (double)c->p->n[0];
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    for (int k = 0; k * each < c->n_in; k++) {
        int in = k * each, out = k * made;
        step s = {.fn = adam ? km_simd_optim()->adamw[slot] : km_simd_optim()->sgd[slot]};
        s.job = (km_optim_job){.p = data(c->in, in, c->n_in), .g = data(c->in, in + 1, c->n_in),
                               .m = data(c->in, in + 2, c->n_in),
                               .v = adam ? data(c->in, in + 3, c->n_in) : NULL,
                               .p_out = data(c->out, out, c->n_out),
                               .m_out = data(c->out, out + 1, c->n_out),
                               .v_out = adam ? data(c->out, out + 2, c->n_out) : NULL,
                               .lr = (float)f[0]};
        if (adam) {
            s.job.beta1 = (float)f[1];
            s.job.beta2 = (float)f[2];
            s.job.eps = (float)f[3];
            s.job.decay = (float)f[4];
            s.job.scale1 = (float)(1 / (1 - pow(f[1], t)));
            s.job.scale2 = (float)(1 / (1 - pow(f[2], t)));
            s.job.decoupled = c->p->n[1] != 0;
        } else {
            s.job.momentum = (float)f[1];
            s.job.decay = (float)f[2];
            s.job.nesterov = c->p->n[0] != 0;
        }
        km_threads_for(ctx->threads, km_shape_count(c->in[in]->shape), 16384, run_chunk, &s);
    }
    return KM_OK;
}

void km_cpu_register_optim(km_kernel *k) { k[KM_OP_SGD] = k[KM_OP_ADAMW] = run_optim; }
