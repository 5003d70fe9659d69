/* Softmax and log-softmax over one axis. */
#include "ops/families.h"

static km_status infer_softmax(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {in[0]->shape}};
    if (n_in < 2) return KM_OK;
    if (km_want_same_dtype(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, "y", in[1], in[0]->shape);
}

static void grad_softmax(km_ctx *ctx, km_node *n) {
    km_op op = n->op == KM_OP_SOFTMAX ? KM_OP_SOFTMAX_GRAD : KM_OP_LOG_SOFTMAX_GRAD;
    km_grad_add(ctx, n->in[0], km_apply2(ctx, op, n->grad[0], n->out[0], &n->p));
}

void km_rows_softmax(km_op_row *t) {
    km_op_row forward = {.min_in = 1,
                         .max_in = 1,
                         .dtypes = KM_FLOATS,
                         .infer = infer_softmax,
                         .grad = grad_softmax,
                         .save_out = 1,
                         .tol = KM_TOL_TRANS};
    km_op_row backward = {
        .min_in = 2, .max_in = 2, .dtypes = KM_FLOATS, .infer = infer_softmax, .tol = KM_TOL_SUM};
    t[KM_OP_SOFTMAX] = t[KM_OP_LOG_SOFTMAX] = forward;
    t[KM_OP_SOFTMAX_GRAD] = t[KM_OP_LOG_SOFTMAX_GRAD] = backward;
    t[KM_OP_LOG_SOFTMAX].tol = KM_TOL_SUM;
    t[KM_OP_SOFTMAX].formula = "exp(x - max) / sum exp(x - max)";
    t[KM_OP_LOG_SOFTMAX].formula = "x - ln sum exp(x)";
    t[KM_OP_SOFTMAX_GRAD].formula = "y (dy - sum(dy y))";
    t[KM_OP_LOG_SOFTMAX_GRAD].formula = "dy - exp(y) sum(dy)";
}

static km_tensor *along(km_ctx *ctx, km_op op, km_tensor *x, int axis) {
    km_params p = {0};
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (x && km_want_axis(ctx, km_op_name(op), axis, x->shape, &p.axis) != KM_OK) return NULL;
    return km_apply1(ctx, op, x, &p);
}

km_tensor *km_softmax(km_ctx *ctx, km_tensor *x, int axis) {
    return along(ctx, KM_OP_SOFTMAX, x, axis);
}

km_tensor *km_log_softmax(km_ctx *ctx, km_tensor *x, int axis) {
    return along(ctx, KM_OP_LOG_SOFTMAX, x, axis);
}
