/* layer_norm and rms_norm over the last axis, alone or fused with the residual sum before them. */
#include "ops/families.h"

static km_dtype stat_dtype(km_dtype d) { return d == KM_F64 ? KM_F64 : KM_F32; }

static km_status check_row(km_ctx *ctx, const char *name, const km_tensor *x) {
    char text[KM_SHAPE_TEXT];
    if (x->shape.ndim < 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: needs at least one axis, not %s", name,
                       km_shape_text(text, x->shape));
    return KM_OK;
}

static km_status check_weight(km_ctx *ctx, const char *name, const char *arg, const km_tensor *x,
                              const km_tensor *w) {
    if (!w) return KM_OK;
    if (km_want_same_dtype(ctx, name, x, w) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, w, KM_SHAPE(km_tensor_dim(x, -1)));
}

static km_shape rows_of(const km_tensor *x) {
    km_shape s = x->shape;
    s.ndim--;
    return s;
}

/* Appends `like_x` outputs shaped like x, then `stats` of one number a row. */
static void add_outputs(km_outputs *out, const km_tensor *x, int like_x, int stats) {
    for (int i = 0; i < like_x; i++, out->n++) {
        out->dtype[out->n] = x->dtype;
        out->shape[out->n] = x->shape;
    }
    for (int i = 0; i < stats; i++, out->n++) {
        out->dtype[out->n] = stat_dtype(x->dtype);
        out->shape[out->n] = rows_of(x);
    }
}

/* x, w, b? -> y, then mean and rstd (layer_norm) or rstd alone. */
static km_status infer_plain(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             km_outputs *out, int stats) {
    if (check_row(ctx, name, in[0]) != KM_OK) return ctx->error.code;
    if (check_weight(ctx, name, "weight", in[0], in[1]) != KM_OK) return ctx->error.code;
    if (n_in > 2 && check_weight(ctx, name, "bias", in[0], in[2]) != KM_OK) return ctx->error.code;
    add_outputs(out, in[0], 1, stats);
    return KM_OK;
}

/* x, residual, w, b? -> y, sum, and the statistics. */
static km_status infer_fused(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             km_outputs *out, int stats) {
    if (check_row(ctx, name, in[0]) != KM_OK) return ctx->error.code;
    if (km_want_same_dtype(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "residual", in[1], in[0]->shape) != KM_OK) return ctx->error.code;
    if (check_weight(ctx, name, "weight", in[0], in[2]) != KM_OK) return ctx->error.code;
    if (n_in > 3 && check_weight(ctx, name, "bias", in[0], in[3]) != KM_OK) return ctx->error.code;
    add_outputs(out, in[0], 2, stats);
    return KM_OK;
}

/* dy, x, w, the statistics, dsum? -> dx and the gradients of the weights. */
static km_status infer_back(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            km_outputs *out, int stats) {
    const km_tensor *x = in[1];
    if (check_row(ctx, name, x) != KM_OK) return ctx->error.code;
    if (km_want_same_dtype(ctx, name, in[0], x) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "dy", in[0], x->shape) != KM_OK) return ctx->error.code;
    if (check_weight(ctx, name, "weight", x, in[2]) != KM_OK) return ctx->error.code;
    for (int i = 0; i < stats; i++)
        if (km_want_shape(ctx, name, "statistics", in[3 + i], rows_of(x)) != KM_OK)
            return ctx->error.code;
    km_tensor *dsum = n_in > 3 + stats ? in[3 + stats] : NULL;
    if (dsum && km_want_shape(ctx, name, "dsum", dsum, x->shape) != KM_OK) return ctx->error.code;
    add_outputs(out, x, 1, 0);
    for (int i = 0; i < stats; i++, out->n++) { /* as many weights as statistics: w, b */
        out->dtype[out->n] = x->dtype;
        out->shape[out->n] = KM_SHAPE(km_tensor_dim(x, -1));
    }
    return KM_OK;
}

#define INFER(name, form, stats)                                                                   \
    static km_status infer_##name(km_ctx *ctx, const char *what, km_tensor *const *in, int n_in,   \
                                  const km_params *p, km_outputs *out) {                           \
        return infer_##form(ctx, what, in, n_in, out, stats);                                      \
    }
INFER(layer_norm, plain, 2)
INFER(rms_norm, plain, 1)
INFER(add_layer_norm, fused, 2)
INFER(add_rms_norm, fused, 1)
INFER(layer_norm_grad, back, 2)
INFER(rms_norm_grad, back, 1)

/* ---- Gradients ---- */

static void grad_layer_norm(km_ctx *ctx, km_node *n) {
    km_tensor *d[KM_MAX_OUTPUTS];
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1], n->out[1], n->out[2], NULL};
    km_apply(ctx, KM_OP_LAYER_NORM_GRAD, in, 6, &n->p, d);
    km_grad_add(ctx, n->in[0], d[0]);
    km_grad_add(ctx, n->in[1], d[1]);
    km_grad_add(ctx, n->in[2], d[2]);
}

static void grad_rms_norm(km_ctx *ctx, km_node *n) {
    km_tensor *d[KM_MAX_OUTPUTS];
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1], n->out[1], NULL};
    km_apply(ctx, KM_OP_RMS_NORM_GRAD, in, 5, &n->p, d);
    km_grad_add(ctx, n->in[0], d[0]);
    km_grad_add(ctx, n->in[1], d[1]);
}

/* y depends on sum = x + residual, and sum is an output too: both gradients meet in dx. */
static void grad_add_norm(km_ctx *ctx, km_node *n) {
    bool layer = n->op == KM_OP_ADD_LAYER_NORM;
    km_tensor *d[KM_MAX_OUTPUTS] = {0}, *dx = n->grad[1];
    if (n->grad[0]) {
        km_tensor *in6[] = {n->grad[0], n->out[1], n->in[2], n->out[2], n->out[3], n->grad[1]};
        km_tensor *in5[] = {n->grad[0], n->out[1], n->in[2], n->out[2], n->grad[1]};
        if (layer)
            km_apply(ctx, KM_OP_LAYER_NORM_GRAD, in6, 6, &n->p, d);
        else
            km_apply(ctx, KM_OP_RMS_NORM_GRAD, in5, 5, &n->p, d);
        dx = d[0];
        km_grad_add(ctx, n->in[2], d[1]);
        if (layer) km_grad_add(ctx, n->in[3], d[2]);
    }
    km_grad_add(ctx, n->in[0], dx);
    km_grad_add(ctx, n->in[1], dx);
}

void km_rows_norm(km_op_row *t) {
    t[KM_OP_LAYER_NORM] = (km_op_row){.formula = "(x - mean) / sqrt(var + eps) w + b",
                                      .min_in = 2,
                                      .max_in = 3,
                                      .dtypes = KM_FLOATS,
                                      .infer = infer_layer_norm,
                                      .grad = grad_layer_norm,
                                      .save_in = 3,
                                      .save_out = 6,
                                      .tol = KM_TOL_SUM};
    t[KM_OP_RMS_NORM] = (km_op_row){.formula = "x / sqrt(mean(x^2) + eps) w",
                                    .min_in = 2,
                                    .max_in = 2,
                                    .dtypes = KM_FLOATS,
                                    .infer = infer_rms_norm,
                                    .grad = grad_rms_norm,
                                    .save_in = 3,
                                    .save_out = 2,
                                    .tol = KM_TOL_SUM};
    t[KM_OP_ADD_LAYER_NORM] = (km_op_row){.formula = "s = x + r; layer_norm(s)",
                                          .min_in = 3,
                                          .max_in = 4,
                                          .dtypes = KM_FLOATS,
                                          .flags = KM_OP_ANY_GRADIENT,
                                          .infer = infer_add_layer_norm,
                                          .grad = grad_add_norm,
                                          .save_in = 4,
                                          .save_out = 14,
                                          .tol = KM_TOL_SUM};
    t[KM_OP_ADD_RMS_NORM] = (km_op_row){.formula = "s = x + r; rms_norm(s)",
                                        .min_in = 3,
                                        .max_in = 3,
                                        .dtypes = KM_FLOATS,
                                        .flags = KM_OP_ANY_GRADIENT,
                                        .infer = infer_add_rms_norm,
                                        .grad = grad_add_norm,
                                        .save_in = 4,
                                        .save_out = 6,
                                        .tol = KM_TOL_SUM};
    t[KM_OP_LAYER_NORM_GRAD] = (km_op_row){.formula = "gradients of layer_norm",
                                           .min_in = 5,
                                           .max_in = 6,
                                           .dtypes = KM_FLOATS,
                                           .infer = infer_layer_norm_grad,
                                           .tol = KM_TOL_SUM};
    t[KM_OP_RMS_NORM_GRAD] = (km_op_row){.formula = "gradients of rms_norm",
                                         .min_in = 4,
                                         .max_in = 5,
                                         .dtypes = KM_FLOATS,
                                         .infer = infer_rms_norm_grad,
                                         .tol = KM_TOL_SUM};
}

/* ---- Public ---- */

km_tensor *km_layer_norm(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, double eps) {
    return km_apply(ctx, KM_OP_LAYER_NORM, (km_tensor *[]){x, w, b}, 3,
                    &(km_params){.f = {[KM_F_EPS] = eps}}, NULL);
}

km_tensor *km_rms_norm(km_ctx *ctx, km_tensor *x, km_tensor *w, double eps) {
    return km_apply2(ctx, KM_OP_RMS_NORM, x, w, &(km_params){.f = {[KM_F_EPS] = eps}});
}

km_tensor *km_add_layer_norm(km_ctx *ctx, km_tensor *x, km_tensor *residual, km_tensor *w,
                             km_tensor *b, double eps, km_tensor **sum) {
    km_tensor *out[KM_MAX_OUTPUTS], *in[] = {x, residual, w, b};
    km_tensor *y =
        km_apply(ctx, KM_OP_ADD_LAYER_NORM, in, 4, &(km_params){.f = {[KM_F_EPS] = eps}}, out);
    if (sum) *sum = out[1];
    return y;
}

km_tensor *km_add_rms_norm(km_ctx *ctx, km_tensor *x, km_tensor *residual, km_tensor *w, double eps,
                           km_tensor **sum) {
    km_tensor *out[KM_MAX_OUTPUTS], *in[] = {x, residual, w};
    km_tensor *y =
        km_apply(ctx, KM_OP_ADD_RMS_NORM, in, 3, &(km_params){.f = {[KM_F_EPS] = eps}}, out);
    if (sum) *sum = out[1];
    return y;
}
