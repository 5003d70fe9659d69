/* Reference losses: cross entropy, mean squared error, binary cross entropy with logits, and
 * their gradients. The mean over nothing is 0/0 = NaN. */
#include "backend/ref/ref.h"

/* ---- Cross entropy: logits, dlogits (rows, v), targets, lse (rows), loss () ---- */

/* Does this target count? Neither the ignored one nor (never, after the host's check) one out of
 * range does. */
static bool counts(int64_t target, int64_t ignore, int64_t v) {
    return target != ignore && target >= 0 && target < v;
}

static int64_t target_of(const km_tensor *targets, int64_t r) {
    return km_ref_load_int(targets, km_ref_nth(targets, r));
}

static double logit(const km_tensor *logits, int64_t r, int64_t j) {
    return km_ref_load(logits, km_ref_row(logits, r) + j * km_ref_step(logits));
}

/* What the sum of the rows' losses is multiplied by: 1, or 1 / (number of rows that count). */
static double loss_scale(const km_tensor *targets, const km_params *p, int64_t rows, int64_t v) {
    if (p->n[KM_N_REDUCTION] == KM_SUM) return 1;
    double n = 0;
    for (int64_t r = 0; r < rows; r++) n += counts(target_of(targets, r), p->n[KM_N_IGNORE], v);
    return 1 / n;
}

/* log sum exp of row r; -inf for a row of -inf, as for an empty one */
static double row_lse(const km_tensor *logits, int64_t r) {
    int64_t v = km_ref_width(logits);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < v; j++) max = km_ref_max(max, logit(logits, r, j));
    if (!isfinite(max)) return max;
    for (int64_t j = 0; j < v; j++) sum += exp(logit(logits, r, j) - max);
    return max + log(sum);
}

/* dlogits of row r = (softmax - [j == target]) * scale, or 0 when the row does not count */
static void row_grad(const km_tensor *logits, const km_tensor *dlogits, int64_t r, double lse,
                     int64_t target, bool counted, double scale) {
    for (int64_t j = 0; j < km_ref_width(logits); j++) {
        double p = exp(logit(logits, r, j) - lse);
        km_ref_store(dlogits, km_ref_row(dlogits, r) + j * km_ref_step(dlogits),
                     counted ? (p - (j == target)) * scale : 0);
    }
}

/* logits, targets -> loss, lse, dlogits? */
km_status km_ref_cross_entropy(km_ctx *ctx, const km_call *c) {
    const km_tensor *logits = c->in[0], *targets = c->in[1];
    const km_tensor *loss = c->out[0], *lse = km_ref_out(c, 1), *dlogits = km_ref_out(c, 2);
    int64_t rows = km_ref_rows(logits), v = km_ref_width(logits);
    double scale = loss_scale(targets, c->p, rows, v);
    km_ref_sum sum = {0};
    for (int64_t r = 0; r < rows; r++) {
        int64_t target = target_of(targets, r);
        bool counted = counts(target, c->p->n[KM_N_IGNORE], v);
        double l = row_lse(logits, r);
        if (counted) km_ref_sum_add(&sum, l - logit(logits, r, target));
        if (lse) km_ref_store(lse, km_ref_nth(lse, r), l);
        if (dlogits) row_grad(logits, dlogits, r, l, target, counted, scale);
    }
    km_ref_store(loss, loss->offset, km_ref_sum_value(&sum) * scale);
    return KM_OK;
}

/* dloss, logits, targets, lse -> dlogits */
km_status km_ref_cross_entropy_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dloss = c->in[0], *logits = c->in[1], *targets = c->in[2], *lse = c->in[3];
    const km_tensor *dlogits = c->out[0];
    int64_t rows = km_ref_rows(logits), v = km_ref_width(logits);
    double scale = loss_scale(targets, c->p, rows, v) * km_ref_load(dloss, dloss->offset);
    for (int64_t r = 0; r < rows; r++) {
        int64_t target = target_of(targets, r);
        row_grad(logits, dlogits, r, km_ref_load(lse, km_ref_nth(lse, r)), target,
                 counts(target, c->p->n[KM_N_IGNORE], v), scale);
    }
    return KM_OK;
}

/* ---- Losses of two tensors of one shape: x, target (...), loss () ---- */

/* mse: (x - t)^2. bce: -t log s(x) - (1 - t) log(1 - s(x)), in the form that never overflows. */
static double pair_loss(km_op op, double x, double t) {
    if (op == KM_OP_MSE) return (x - t) * (x - t);
    return km_ref_max(x, 0) - x * t + log1p(exp(-fabs(x)));
}

static double pair_loss_grad(km_op op, double x, double t) {
    return op == KM_OP_MSE_GRAD ? 2 * (x - t) : km_ref_sigmoid(x) - t;
}

static double element_count(const km_tensor *x) {
    double n = 1;
    for (int a = 0; a < x->shape.ndim; a++) n *= (double)x->shape.dim[a];
    return n;
}

/* x, target -> loss */
km_status km_ref_pair_loss(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *target = c->in[1], *loss = c->out[0];
    km_ref_sum sum = {0};
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, x->shape)
    km_ref_sum_add(&sum, pair_loss(c->op, km_ref_get(x, i), km_ref_get(target, i)));
    double n = c->p->n[KM_N_REDUCTION] == KM_SUM ? 1 : element_count(x);
    km_ref_store(loss, loss->offset, km_ref_sum_value(&sum) / n);
    return KM_OK;
}

/* dloss, x, target -> dx */
km_status km_ref_pair_loss_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dloss = c->in[0], *x = c->in[1], *target = c->in[2], *dx = c->out[0];
    double g = km_ref_load(dloss, dloss->offset);
    double n = c->p->n[KM_N_REDUCTION] == KM_SUM ? 1 : element_count(x);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, dx->shape)
    km_ref_set(dx, i, pair_loss_grad(c->op, km_ref_get(x, i), km_ref_get(target, i)) * g / n);
    return KM_OK;
}
