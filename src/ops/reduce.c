/* Reductions over any set of axes. */
#include "ops/families.h"

static km_status infer_reduce(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    km_shape x = in[0]->shape, y = {0, {0}};
    for (int i = 0; i < x.ndim; i++) {
        bool reduced = (p->axes >> i) & 1u;
        if (!reduced || p->keepdim) y.dim[y.ndim++] = reduced ? 1 : x.dim[i];
    }
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {y}};
    return KM_OK;
}

/* Elements that go into one result. */
static int64_t reduced_count(const km_tensor *x, uint32_t axes) {
    int64_t n = 1;
    for (int i = 0; i < x->shape.ndim; i++)
        if ((axes >> i) & 1u) n *= x->shape.dim[i];
    return n;
}

static km_status infer_nonempty(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    infer_reduce(ctx, name, in, n_in, p, out);
    if (reduced_count(in[0], p->axes) == 0 && km_shape_count(out->shape[0]) > 0)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: nothing to choose from in %s", name,
                       km_shape_text(text, in[0]->shape));
    return KM_OK;
}

static km_status infer_argmax(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    km_status s = infer_nonempty(ctx, name, in, n_in, p, out);
    out->dtype[0] = KM_I64;
    return s;
}

static km_status infer_sumsq(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    infer_reduce(ctx, name, in, n_in, p, out);
    out->dtype[0] = in[0]->dtype == KM_F64 ? KM_F64 : KM_F32;
    return KM_OK;
}

/* A result (or its gradient) seen with size-1 axes where the reduction was, so it broadcasts. */
static km_tensor *with_axes(km_ctx *ctx, km_node *n, km_tensor *y) {
    km_shape s = n->in[0]->shape;
    for (int i = 0; i < s.ndim; i++)
        if ((n->p.axes >> i) & 1u) s.dim[i] = 1;
    return km_reshape(ctx, y, s);
}

static void grad_sum(km_ctx *ctx, km_node *n) {
    km_tensor *dy = with_axes(ctx, n, n->grad[0]);
    if (n->op == KM_OP_MEAN) {
        int64_t count = reduced_count(n->in[0], n->p.axes);
        dy = km_mul_scalar(ctx, dy, count ? 1.0 / (double)count : 0);
    }
    km_grad_add(ctx, n->in[0], km_broadcast(ctx, dy, n->in[0]->shape));
}

static void grad_max(km_ctx *ctx, km_node *n) { /* equals share */
    km_tensor *x = n->in[0], *y = with_axes(ctx, n, n->out[0]);
    km_tensor *hit = km_cast(ctx, km_eq(ctx, x, y), x->dtype);
    km_params p = {.axes = n->p.axes, .keepdim = true};
    km_tensor *ties = km_apply1(ctx, KM_OP_SUM, hit, &p);
    km_tensor *share = km_div(ctx, with_axes(ctx, n, n->grad[0]), ties);
    km_grad_add(ctx, x, km_mul(ctx, hit, share));
}

static void grad_var(km_ctx *ctx, km_node *n) { /* 2 (x - mean) dy / (n - correction) */
    km_tensor *x = n->in[0];
    double count = (double)(reduced_count(x, n->p.axes) - n->p.n[KM_N_CORRECTION]);
    km_params p = {.axes = n->p.axes, .keepdim = true};
    km_tensor *off = km_sub(ctx, x, km_apply1(ctx, KM_OP_MEAN, x, &p));
    km_tensor *dy = km_mul_scalar(ctx, with_axes(ctx, n, n->grad[0]), 2 / count);
    km_grad_add(ctx, x, km_mul(ctx, off, dy));
}

static void grad_logsumexp(km_ctx *ctx, km_node *n) { /* dy exp(x - y) */
    km_tensor *part = km_exp(ctx, km_sub(ctx, n->in[0], with_axes(ctx, n, n->out[0])));
    km_grad_add(ctx, n->in[0], km_mul(ctx, part, with_axes(ctx, n, n->grad[0])));
}

static void grad_sumsq(km_ctx *ctx, km_node *n) {
    km_tensor *dy = km_cast(ctx, with_axes(ctx, n, n->grad[0]), n->in[0]->dtype);
    km_grad_add(ctx, n->in[0], km_mul(ctx, km_mul_scalar(ctx, n->in[0], 2), dy));
}

#define REDUCE(OP, text, kinds, rule_infer, rule, in, out, tolerance)                              \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = 1, .max_in = 1, .dtypes = kinds, .flags = KM_OP_STRIDED,        \
        .infer = rule_infer, .grad = rule, .save_in = in, .save_out = out, .tol = tolerance        \
    }

void km_rows_reduce(km_op_row *t) {
    REDUCE(SUM, "sum x", KM_NUMBERS, infer_reduce, grad_sum, 0, 0, KM_TOL_SUM);
    REDUCE(MEAN, "sum x / n", KM_FLOATS, infer_reduce, grad_sum, 0, 0, KM_TOL_SUM);
    REDUCE(MAX, "max x", KM_NUMBERS, infer_nonempty, grad_max, 1, 1, KM_TOL_EXACT);
    REDUCE(VAR, "sum (x - mean)^2 / (n - c)", KM_FLOATS, infer_reduce, grad_var, 1, 0, KM_TOL_SUM);
    REDUCE(LOGSUMEXP, "ln sum exp(x)", KM_FLOATS, infer_reduce, grad_logsumexp, 1, 1, KM_TOL_SUM);
    REDUCE(SUMSQ, "sum x^2", KM_FLOATS, infer_sumsq, grad_sumsq, 1, 0, KM_TOL_SUM);
    REDUCE(ARGMAX, "first i with x[i] = max x", KM_NUMBERS, infer_argmax, NULL, 0, 0, KM_TOL_EXACT);
}

/* ---- Public ---- */

static km_tensor *reduce(km_ctx *ctx, km_op op, km_tensor *x, const int *axes, int n_axes,
                         bool keepdim, int correction) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!x) {
        km_fail(ctx, KM_ERR_NULL, "%s: argument 1 is NULL", km_op_name(op));
        return NULL;
    }
    km_params p = {.keepdim = keepdim, .n = {[KM_N_CORRECTION] = correction}};
    if (n_axes < 0 || (n_axes > 0 && !axes)) {
        km_fail(ctx, KM_ERR_NULL, "%s: no axes given", km_op_name(op));
        return NULL;
    }
    for (int i = 0; i < n_axes; i++) {
        int axis;
        if (km_want_axis(ctx, km_op_name(op), axes[i], x->shape, &axis) != KM_OK) return NULL;
        if ((p.axes >> axis) & 1u) {
            km_fail(ctx, KM_ERR_RANGE, "%s: axis %d is named twice", km_op_name(op), axes[i]);
            return NULL;
        }
        p.axes |= 1u << axis;
    }
    if (n_axes == 0) p.axes = (1u << x->shape.ndim) - 1;
    return km_apply1(ctx, op, x, &p);
}

#define PUBLIC(name, OP)                                                                           \
    km_tensor *km_##name(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim) {   \
        return reduce(ctx, KM_OP_##OP, x, axes, n_axes, keepdim, 0);                               \
    }
PUBLIC(sum, SUM)
PUBLIC(mean, MEAN)
PUBLIC(max, MAX)
PUBLIC(logsumexp, LOGSUMEXP)

km_tensor *km_var(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim,
                  int correction) {
    return reduce(ctx, KM_OP_VAR, x, axes, n_axes, keepdim, correction);
}

km_tensor *km_argmax(km_ctx *ctx, km_tensor *x, int axis, bool keepdim) {
    return reduce(ctx, KM_OP_ARGMAX, x, &axis, 1, keepdim, 0);
}
