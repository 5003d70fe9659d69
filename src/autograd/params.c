/* Parameters: marking them, their gradients, clearing and clipping. */
#include "ops/op.h"
#include <math.h>

km_status km_require_grad(km_ctx *ctx, km_tensor *t, bool on) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!t) return km_fail(ctx, KM_ERR_NULL, "require_grad: no tensor");
    if (t->ctx != ctx)
        return km_fail(ctx, KM_ERR_STATE, "require_grad: the tensor belongs to another context");
    if (!t->kept)
        return km_fail(ctx, KM_ERR_STATE, "require_grad: only a kept tensor can be a parameter");
    if (on && !km_dtype_is_float(t->dtype))
        return km_fail(ctx, KM_ERR_DTYPE, "require_grad: %s has no gradient",
                       km_dtype_name(t->dtype));
    t->requires_grad = on;
    return KM_OK;
}

/* The memory goes back to the pool, and the next backward finds it there. */
void km_zero_grad(km_ctx *ctx, km_tensor *const *parameters, int n) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx) || !parameters) return;
    for (int i = 0; i < n; i++) {
        km_tensor *g = km_grad(parameters[i]);
        if (!g) continue;
        km_storage_release(g->ctx, g->storage);
        g->storage = NULL;
    }
}

double km_clip_grad_norm(km_ctx *ctx, km_tensor *const *parameters, int n, double max_norm) {
    KM_CTX_CALL(ctx, 0);
    if (km_failed(ctx)) return 0;
    if (!parameters || !(max_norm > 0)) {
        km_fail(ctx, parameters ? KM_ERR_RANGE : KM_ERR_NULL,
                parameters ? "clip_grad_norm: the largest norm must be positive"
                           : "clip_grad_norm: no parameters");
        return 0;
    }
    int mark = ctx->n_step;
    ctx->no_grad++;
    km_tensor *total = NULL;
    for (int i = 0; i < n; i++) {
        km_tensor *g = km_grad(parameters[i]);
        if (!g) continue;
        km_params p = {.axes = (1u << g->shape.ndim) - 1};
        km_tensor *sq = km_apply1(ctx, KM_OP_SUMSQ, g, &p);
        total = total && sq && total->dtype == sq->dtype ? km_add(ctx, total, sq)
                : total ? km_add(ctx, total, km_cast(ctx, sq, total->dtype))
                        : sq;
    }
    double norm = total ? sqrt(km_item(ctx, total)) : 0;
    if (norm > max_norm && isfinite(norm)) {
        km_params p = {.f = {[KM_F_VALUE] = max_norm / norm}};
        for (int i = 0; i < n; i++) {
            km_tensor *g = km_grad(parameters[i]);
            if (g) km_apply_into(ctx, KM_OP_MUL_SCALAR, &g, 1, &p, g);
        }
    }
    ctx->no_grad--;
    km_step_drop(ctx, mark, NULL, 0);
    return km_failed(ctx) ? 0 : norm;
}
