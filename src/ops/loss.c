/* Losses: one number out, summed in f32 or better. */
#include "ops/families.h"

static km_dtype loss_dtype(km_dtype d) { return d == KM_F64 ? KM_F64 : KM_F32; }

static km_status check_reduction(km_ctx *ctx, const char *name, const km_params *p) {
    if (p->n[KM_N_REDUCTION] == KM_MEAN || p->n[KM_N_REDUCTION] == KM_SUM) return KM_OK;
    return km_fail(ctx, KM_ERR_RANGE, "%s: no such reduction: %lld", name,
                   (long long)p->n[KM_N_REDUCTION]);
}

static km_status check_targets(km_ctx *ctx, const char *name, const km_tensor *logits,
                               const km_tensor *targets, const km_params *p) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (check_reduction(ctx, name, p) != KM_OK) return ctx->error.code;
    if (logits->shape.ndim != 2 || targets->shape.ndim != 1 ||
        logits->shape.dim[0] != targets->shape.dim[0])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: logits %s need one target a row, not %s", name,
                       km_shape_text(a, logits->shape), km_shape_text(b, targets->shape));
    return km_want_indices(ctx, name, targets, logits->shape.dim[1], p->n[KM_N_IGNORE], true);
}

static km_status infer_cross_entropy(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                     const km_params *p, km_outputs *out) {
    if (check_targets(ctx, name, in[0], in[1], p) != KM_OK) return ctx->error.code;
    km_dtype d = in[0]->dtype;
    *out = (km_outputs){.n = p->n[KM_N_WITH_GRADIENT] ? 3 : 2,
                        .dtype = {loss_dtype(d), loss_dtype(d), d},
                        .shape = {KM_SCALAR, KM_SHAPE(in[0]->shape.dim[0]), in[0]->shape}};
    return KM_OK;
}

static km_status infer_cross_entropy_grad(km_ctx *ctx, const char *name, km_tensor *const *in,
                                          int n_in, const km_params *p, km_outputs *out) {
    if (check_targets(ctx, name, in[1], in[2], p) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "lse", in[3], in[2]->shape) != KM_OK) return ctx->error.code;
    *out = (km_outputs){.n = 1, .dtype = {in[1]->dtype}, .shape = {in[1]->shape}};
    return KM_OK;
}

static km_status check_pair(km_ctx *ctx, const char *name, const km_tensor *x, const km_tensor *t,
                            const km_params *p) {
    if (check_reduction(ctx, name, p) != KM_OK) return ctx->error.code;
    if (km_want_same_dtype(ctx, name, x, t) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, "target", t, x->shape);
}

static km_status infer_pair_loss(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {loss_dtype(in[0]->dtype)}, .shape = {KM_SCALAR}};
    return check_pair(ctx, name, in[0], in[1], p);
}

static km_status infer_pair_grad(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {in[1]->dtype}, .shape = {in[1]->shape}};
    return check_pair(ctx, name, in[1], in[2], p);
}

/* ---- Gradients ---- */

static void grad_cross_entropy(km_ctx *ctx, km_node *n) {
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1], n->out[1]};
    if (n->n_out == 3) { /* made in the forward pass, for an incoming gradient of 1 */
        km_tensor *d = n->out[2], *dloss = n->grad[0];
        if (!dloss->is_one) d = km_mul(ctx, d, km_cast(ctx, dloss, d->dtype));
        km_grad_add(ctx, n->in[0], d);
        return;
    }
    km_grad_add(ctx, n->in[0], km_apply(ctx, KM_OP_CROSS_ENTROPY_GRAD, in, 4, &n->p, NULL));
}

static void grad_mse(km_ctx *ctx, km_node *n) { /* the target's gradient is the other's, negated */
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1]};
    km_tensor *dx = km_apply(ctx, KM_OP_MSE_GRAD, in, 3, &n->p, NULL);
    km_grad_add(ctx, n->in[0], dx);
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], km_neg(ctx, dx));
}

static void grad_bce(km_ctx *ctx, km_node *n) { /* by the target: -x dloss / n */
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1]};
    if (km_needs(n, 0))
        km_grad_add(ctx, n->in[0], km_apply(ctx, KM_OP_BCE_GRAD, in, 3, &n->p, NULL));
    if (km_needs(n, 1)) {
        int64_t count = n->p.n[KM_N_REDUCTION] == KM_MEAN ? km_shape_count(n->in[0]->shape) : 1;
        km_tensor *each = km_mul_scalar(ctx, n->grad[0], count ? -1.0 / (double)count : 0);
        km_grad_add(ctx, n->in[1], km_mul(ctx, n->in[0], km_cast(ctx, each, n->in[0]->dtype)));
    }
}

static void saves_cross_entropy(km_node *n) { /* logits, targets and lse; or dlogits alone */
    if (n->n_out == 3) n->save_in = 0, n->save_out = 4;
}

#define LOSS(OP, text, inputs, rule_infer, rule, in, out)                                          \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = inputs, .max_in = inputs, .dtypes = KM_FLOATS,                  \
        .infer = rule_infer, .grad = rule, .save_in = in, .save_out = out, .tol = KM_TOL_SUM       \
    }

void km_rows_loss(km_op_row *t) {
    LOSS(CROSS_ENTROPY, "-ln softmax(logits)[target]", 2, infer_cross_entropy, grad_cross_entropy,
         3, 2);
    t[KM_OP_CROSS_ENTROPY].saves = saves_cross_entropy;
    t[KM_OP_CROSS_ENTROPY].flags |= KM_OP_WHOLE;
    LOSS(CROSS_ENTROPY_GRAD, "dloss (softmax(logits) - onehot) / n", 4, infer_cross_entropy_grad,
         NULL, 0, 0);
    LOSS(MSE, "mean (x - t)^2", 2, infer_pair_loss, grad_mse, 3, 0);
    LOSS(BCE, "mean max(x, 0) - x t + ln(1 + exp(-|x|))", 2, infer_pair_loss, grad_bce, 3, 0);
    t[KM_OP_MSE].flags |= KM_OP_WHOLE;
    t[KM_OP_BCE].flags |= KM_OP_WHOLE;
    LOSS(MSE_GRAD, "2 dloss (x - t) / n", 3, infer_pair_grad, NULL, 0, 0);
    LOSS(BCE_GRAD, "dloss (sigmoid(x) - t) / n", 3, infer_pair_grad, NULL, 0, 0);
}

/* ---- Public ---- */

km_tensor *km_cross_entropy(km_ctx *ctx, km_tensor *logits, km_tensor *targets,
                            int64_t ignore_index, km_reduction reduction) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    km_params p = {.n = {[KM_N_IGNORE] = ignore_index, [KM_N_REDUCTION] = reduction}};
    int d = km_tensor_ndim(logits);
    if (logits && targets && d != 2 && d > 0 && km_tensor_ndim(targets) == d - 1) {
        km_shape rest = logits->shape; /* all leading axes are rows */
        rest.ndim--;
        if (km_shape_equal(rest, targets->shape)) {
            int64_t rows = km_shape_count(rest);
            logits = km_reshape(ctx, logits, KM_SHAPE(rows, km_tensor_dim(logits, -1)));
            targets = km_reshape(ctx, targets, KM_SHAPE(rows));
        }
    }
    /* While a row of logits is at hand its gradient costs one write; later it costs a read too. The
     * reference device keeps to the plain rule. */
    p.n[KM_N_WITH_GRADIENT] = logits && km_recording(ctx, &logits, 1) && logits->storage &&
                              km_tensor_dev(logits) != km_ref_device();
    return km_apply2(ctx, KM_OP_CROSS_ENTROPY, logits, targets, &p);
}

km_tensor *km_mse(km_ctx *ctx, km_tensor *x, km_tensor *target, km_reduction reduction) {
    return km_apply2(ctx, KM_OP_MSE, x, target, &(km_params){.n = {[KM_N_REDUCTION] = reduction}});
}

km_tensor *km_bce_with_logits(km_ctx *ctx, km_tensor *x, km_tensor *target,
                              km_reduction reduction) {
    return km_apply2(ctx, KM_OP_BCE, x, target, &(km_params){.n = {[KM_N_REDUCTION] = reduction}});
}
