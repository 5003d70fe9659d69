/* Optimiser steps, tensor by tensor, element by element, as the papers write them; and what comes
 * before a step: the norm of the gradients and what follows from it. */
#include "backend/optim_call.h"
#include "backend/ref/ref.h"

/* What a step needs to know of one tensor. */
typedef struct rates {
    double lr, decay, scale1, scale2, multiplier;
    bool skip;
} rates;

static double control_at(const km_tensor *control, int64_t i) { return km_ref_get(control, &i); }

static rates rates_of(const km_call *c, int index, rates own) {
    const km_tensor *control = km_optim_control(c);
    own.multiplier = 1;
    if (!control) return own;
    own.lr = control_at(control, KM_CONTROL_LR);
    own.scale1 = control_at(control, KM_CONTROL_SCALE1);
    own.scale2 = control_at(control, KM_CONTROL_SCALE2);
    own.multiplier = control_at(control, KM_CONTROL_GRAD);
    own.skip = control_at(control, KM_CONTROL_SKIP) != 0;
    if (control->shape.dim[0] > KM_CONTROL_TENSORS) {
        int64_t at = KM_CONTROL_TENSORS + 2 * (c->p->n[KM_N_FIRST] + index);
        own.lr *= control_at(control, at);
        own.decay = control_at(control, at + 1);
    }
    return own;
}

static void copy_all(const km_tensor *src, const km_tensor *dst) {
    int64_t i[KM_MAX_DIMS];
    if (!src) return;
    KM_REF_EACH(i, src->shape) km_ref_move(dst, km_ref_pos(dst, i), src, km_ref_pos(src, i));
}

static void leave(const km_optim_part *t) {
    copy_all(t->p, t->p_out);
    copy_all(t->m, t->m_out);
    copy_all(t->v, t->v_out);
    copy_all(t->w, t->w_out);
}

static void store_weight(const km_optim_part *t, const int64_t i[], double w) {
    if (t->w) km_ref_set(t->w_out, i, w);
    km_ref_set(t->p_out, i, t->w ? km_ref_get(t->w_out, i) : w);
}

km_status km_ref_sgd(km_ctx *ctx, const km_call *c) {
    const double momentum = c->p->f[KM_F_MOMENTUM];
    km_optim_parts parts = {.c = c};
    km_optim_part t;
    while (km_optim_next(&parts, &t)) {
        rates r =
            rates_of(c, t.index, (rates){.lr = c->p->f[KM_F_LR], .decay = c->p->f[KM_F_SGD_DECAY]});
        int64_t i[KM_MAX_DIMS];
        if (r.skip) {
            leave(&t);
            continue;
        }
        KM_REF_EACH(i, t.p->shape) {
            double w = km_ref_get(t.w ? t.w : t.p, i);
            double d = km_ref_get(t.g, i) * r.multiplier + r.decay * w, step = d;
            if (t.m) {
                double moved = momentum * km_ref_get(t.m, i) + d;
                step = c->p->n[KM_N_NESTEROV] ? d + momentum * moved : moved;
                km_ref_set(t.m_out, i, moved);
            }
            store_weight(&t, i, w - r.lr * step);
        }
    }
    return KM_OK;
}

km_status km_ref_adamw(km_ctx *ctx, const km_call *c) {
    const double beta1 = c->p->f[KM_F_BETA1], beta2 = c->p->f[KM_F_BETA2],
                 eps = c->p->f[KM_F_ADAM_EPS], t_now = (double)c->p->n[KM_N_STEP];
    bool decoupled = c->p->n[KM_N_DECOUPLED] != 0;
    km_optim_parts parts = {.c = c};
    km_optim_part t;
    while (km_optim_next(&parts, &t)) {
        rates own = {.lr = c->p->f[KM_F_LR],
                     .decay = c->p->f[KM_F_ADAM_DECAY],
                     .scale1 = 1 / (1 - pow(beta1, t_now)),
                     .scale2 = 1 / (1 - pow(beta2, t_now))};
        rates r = rates_of(c, t.index, own);
        int64_t i[KM_MAX_DIMS];
        if (r.skip) {
            leave(&t);
            continue;
        }
        KM_REF_EACH(i, t.p->shape) {
            double w = km_ref_get(t.w ? t.w : t.p, i);
            double d = km_ref_get(t.g, i) * r.multiplier + (decoupled ? 0 : r.decay * w);
            double m = beta1 * km_ref_get(t.m, i) + (1 - beta1) * d;
            double v = beta2 * km_ref_get(t.v, i) + (1 - beta2) * d * d;
            double step = m * r.scale1 / (sqrt(v * r.scale2) + eps) + (decoupled ? r.decay * w : 0);
            km_ref_set(t.m_out, i, m);
            km_ref_set(t.v_out, i, v);
            store_weight(&t, i, w - r.lr * step);
        }
    }
    return KM_OK;
}

/* k tensors -> (chunks) */
km_status km_ref_sumsq_chunks(km_ctx *ctx, const km_call *c) {
    int64_t chunk = 0;
    for (int k = 0; k < c->n_in; k++) {
        int64_t n = km_shape_count(c->in[k]->shape);
        for (int64_t first = 0; first < n; first += KM_SUMSQ_CHUNK) {
            km_ref_sum sum = {0};
            for (int64_t i = first; i < n && i < first + KM_SUMSQ_CHUNK; i++) {
                double x = km_ref_load(c->in[k], km_ref_nth(c->in[k], i));
                km_ref_sum_add(&sum, x * x);
            }
            km_ref_store(c->out[0], km_ref_nth(c->out[0], chunk++), km_ref_sum_value(&sum));
        }
    }
    return KM_OK;
}

/* sums (n), knobs, control -> control */
km_status km_ref_optim_control(km_ctx *ctx, const km_call *c) {
    const km_tensor *sums = c->in[0], *knobs = c->in[1], *old = c->in[2], *out = c->out[0];
    const double most = c->p->f[KM_F_MAX_NORM], beta1 = c->p->f[KM_F_BETA1],
                 beta2 = c->p->f[KM_F_BETA2];
    const double lr = control_at(knobs, KM_KNOB_LR), grad = control_at(knobs, KM_KNOB_GRAD);
    double loss = control_at(old, KM_CONTROL_LOSS), good = control_at(old, KM_CONTROL_GOOD);
    double steps = control_at(old, KM_CONTROL_STEPS), skips = control_at(old, KM_CONTROL_SKIPS);
    km_ref_sum sum = {0};
    for (int64_t i = 0; i < sums->shape.dim[0]; i++) km_ref_sum_add(&sum, control_at(sums, i));

    double multiplier = grad / loss, norm = sqrt(km_ref_sum_value(&sum)) * multiplier;
    bool skip = !isfinite((float)norm);
    if (most > 0 && norm > most) multiplier *= most / norm;
    steps += !skip;
    skips += skip;
    good = skip ? 0 : good + 1;
    if (c->p->n[KM_N_GROWTH] > 0 && skip) loss = fmax(loss / 2, KM_LOSS_SCALE_MIN);
    if (c->p->n[KM_N_GROWTH] > 0 && good >= (double)c->p->n[KM_N_GROWTH]) {
        loss = fmin(loss * 2, KM_LOSS_SCALE_MAX);
        good = 0;
    }
    double t = fmax(steps, 1);
    const double head[KM_CONTROL_TENSORS] = {[KM_CONTROL_LR] = lr,
                                             [KM_CONTROL_SCALE1] = 1 / (1 - pow(beta1, t)),
                                             [KM_CONTROL_SCALE2] = 1 / (1 - pow(beta2, t)),
                                             [KM_CONTROL_GRAD] = skip ? 0 : multiplier,
                                             [KM_CONTROL_SKIP] = skip,
                                             [KM_CONTROL_NORM] = norm,
                                             [KM_CONTROL_STEPS] = steps,
                                             [KM_CONTROL_SKIPS] = skips,
                                             [KM_CONTROL_LOSS] = loss,
                                             [KM_CONTROL_GOOD] = good};
    for (int64_t i = 0; i < out->shape.dim[0]; i++)
        km_ref_set(out, &i, i < KM_CONTROL_TENSORS ? head[i] : control_at(old, i));
    return KM_OK;
}
