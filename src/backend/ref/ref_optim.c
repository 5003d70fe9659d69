/* Optimiser steps, tensor by tensor, element by element, as the papers write them. */
#include "backend/ref/ref.h"

/* k times p, g, m? -> p, m? */
km_status km_ref_sgd(km_ctx *ctx, const km_call *c) {
    const double lr = c->p->f[0], momentum = c->p->f[1], decay = c->p->f[2];
    int out_at = 0;
    for (int at = 0; at < c->n_in; at += 3) {
        const km_tensor *p = c->in[at], *g = c->in[at + 1], *m = km_ref_in(c, at + 2);
        const km_tensor *p_out = c->out[out_at], *m_out = m ? c->out[out_at + 1] : NULL;
        int64_t i[KM_MAX_DIMS];
        out_at += 2;
        KM_REF_EACH(i, p->shape) {
            double w = km_ref_get(p, i), d = km_ref_get(g, i) + decay * w, step = d;
            if (m) {
                double moved = momentum * km_ref_get(m, i) + d;
                step = c->p->n[0] ? d + momentum * moved : moved;
                km_ref_set(m_out, i, moved);
            }
            km_ref_set(p_out, i, w - lr * step);
        }
    }
    return KM_OK;
}

/* k times p, g, m, v -> p, m, v */
km_status km_ref_adamw(km_ctx *ctx, const km_call *c) {
    const double lr = c->p->f[0], beta1 = c->p->f[1], beta2 = c->p->f[2], eps = c->p->f[3];
    const double decay = c->p->f[4], t = (double)c->p->n[0];
    const double scale1 = 1 - pow(beta1, t), scale2 = 1 - pow(beta2, t);
    bool decoupled = c->p->n[1] != 0;
    for (int at = 0, out_at = 0; at < c->n_in; at += 4, out_at += 3) {
        const km_tensor *p = c->in[at], *g = c->in[at + 1], *m = c->in[at + 2], *v = c->in[at + 3];
        int64_t i[KM_MAX_DIMS];
        KM_REF_EACH(i, p->shape) {
            double w = km_ref_get(p, i), d = km_ref_get(g, i) + (decoupled ? 0 : decay * w);
            double m1 = beta1 * km_ref_get(m, i) + (1 - beta1) * d;
            double v1 = beta2 * km_ref_get(v, i) + (1 - beta2) * d * d;
            double step = m1 / scale1 / (sqrt(v1 / scale2) + eps) + (decoupled ? decay * w : 0);
            km_ref_set(c->out[out_at], i, w - lr * step);
            km_ref_set(c->out[out_at + 1], i, m1);
            km_ref_set(c->out[out_at + 2], i, v1);
        }
    }
    return KM_OK;
}
