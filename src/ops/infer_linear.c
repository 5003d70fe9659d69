/* The linear layers of a model's step: several over one input, and a gated pair. Off the tape: where
 * a gradient is wanted, or the device has no kernel of the kind, they are composed of km_linear. */
#include "ops/families.h"
#include "ops/infer.h"

#define WEIGHTS (KM_BLOCKS | (KM_FLOATS & ~KM_BIT(KM_F64)))

/* w fits behind x. */
static km_status want_weight(km_ctx *ctx, const char *name, const km_tensor *x,
                             const km_tensor *w) {
    char tx[KM_SHAPE_TEXT], tw[KM_SHAPE_TEXT];
    if (km_want_dtype(ctx, name, "w", w, WEIGHTS) != KM_OK) return ctx->error.code;
    if (km_dtype_is_block(w->dtype) && !km_is_contiguous(w))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: w must lie in one piece", name);
    if (x->shape.ndim != 2 || w->shape.ndim != 2 || x->shape.dim[1] != w->shape.dim[1])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x is %s, so w must be [out, %lld], not %s", name,
                       km_shape_text(tx, x->shape), (long long)km_tensor_dim(x, -1),
                       km_shape_text(tw, w->shape));
    return KM_OK;
}

static km_status infer_linears(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    km_tensor *x = in[0];
    if (p->n[KM_N_LAYERS] < 1 || p->n[KM_N_LAYERS] > 3 || n_in < 2 * p->n[KM_N_LAYERS])
        return km_fail(ctx, KM_ERR_RANGE, "%s: takes 1 to 3 layers, not %lld", name,
                       (long long)p->n[KM_N_LAYERS]);
    *out = (km_outputs){.n = (int)p->n[KM_N_LAYERS]};
    for (int i = 0; i < out->n; i++) {
        km_tensor *w = in[1 + 2 * i], *b = 2 + 2 * i < n_in ? in[2 + 2 * i] : NULL;
        if (km_want_input(ctx, name, 1 + 2 * i, w) != KM_OK) return ctx->error.code;
        if (want_weight(ctx, name, x, w) != KM_OK) return ctx->error.code;
        if (b && (km_want_same_dtype(ctx, name, x, b) != KM_OK ||
                  km_want_shape(ctx, name, "bias", b, KM_SHAPE(w->shape.dim[0])) != KM_OK))
            return ctx->error.code;
        out->dtype[i] = x->dtype;
        out->shape[i] = KM_SHAPE(x->shape.dim[0], w->shape.dim[0]);
    }
    return KM_OK;
}

static km_status infer_gated(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_tensor *x = in[0], *gate = in[1], *up = n_in > 2 ? in[2] : NULL;
    if (want_weight(ctx, name, x, gate) != KM_OK) return ctx->error.code;
    if (up && (want_weight(ctx, name, x, up) != KM_OK ||
               km_want_shape(ctx, name, "up", up, gate->shape) != KM_OK))
        return ctx->error.code;
    if (!up && gate->shape.dim[0] % 2)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: %s does not hold two halves", name,
                       km_shape_text(text, gate->shape));
    if ((unsigned)p->act > KM_ACT_SILU)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no such activation: %d", name, (int)p->act);
    int64_t width = up ? gate->shape.dim[0] : gate->shape.dim[0] / 2;
    *out = (km_outputs){.n = 1, .dtype = {x->dtype}, .shape = {KM_SHAPE(x->shape.dim[0], width)}};
    return KM_OK;
}

void km_rows_infer_linear(km_op_row *t) {
    uint32_t dtypes = KM_FLOATS & ~KM_BIT(KM_F64);
    t[KM_OP_LINEARS] = (km_op_row){.formula = "x w^T + b, of up to three",
                                   .min_in = 2,
                                   .max_in = 7,
                                   .dtypes = dtypes,
                                   .flags = KM_OP_BLOCK_LAYER,
                                   .infer = infer_linears,
                                   .tol = KM_TOL_BITS};
    t[KM_OP_GATED] = (km_op_row){.formula = "act(x g^T) * (x u^T)",
                                 .min_in = 2,
                                 .max_in = 3,
                                 .dtypes = dtypes,
                                 .flags = KM_OP_BLOCK_LAYER,
                                 .infer = infer_gated,
                                 .tol = KM_TOL_BITS};
}

/* ---- Calls ---- */

/* One call of the op will do: nothing is recorded and the device knows it. */
static bool at_once(const km_ctx *ctx, km_op op, km_tensor *const *in, int n_in) {
    if (km_failed(ctx) || !in[0] || in[0]->dtype == KM_F64 || in[0]->shape.ndim != 2) return false;
    bool host = km_tensor_dev(in[0])->host;
    for (int i = 1; i < n_in && !host; i++) /* a GPU has better kernels for weights of 32 bits */
        if (in[i] && in[i]->shape.ndim == 2 && in[i]->dtype == KM_F32) return false;
    return !km_recording(ctx, in, n_in) && km_tensor_dev(in[0])->backend->kernel[op];
}

km_status km_linears(km_ctx *ctx, km_tensor *x, km_tensor *const *w, km_tensor *const *b, int n,
                     km_tensor **out) {
    km_tensor *in[7] = {x}, *made[KM_MAX_OUTPUTS];
    for (int i = 0; i < n && i < 3; i++) {
        in[1 + 2 * i] = w[i];
        in[2 + 2 * i] = b ? b[i] : NULL;
        out[i] = NULL;
    }
    if (n < 1 || n > 3)
        return km_fail(ctx, KM_ERR_RANGE, "linears: takes 1 to 3 layers, not %d", n);
    if (at_once(ctx, KM_OP_LINEARS, in, 1 + 2 * n)) {
        km_apply(ctx, KM_OP_LINEARS, in, 1 + 2 * n, &(km_params){.n = {[KM_N_LAYERS] = n}}, made);
        for (int i = 0; i < n; i++) out[i] = made[i];
    } else {
        for (int i = 0; i < n; i++) out[i] = km_linear(ctx, x, w[i], b ? b[i] : NULL, KM_ACT_NONE);
    }
    return km_ctx_status(ctx);
}

static km_tensor *activated(km_ctx *ctx, km_tensor *x, km_act act) {
    switch (act) {
    case KM_ACT_RELU: return km_relu(ctx, x);
    case KM_ACT_GELU: return km_gelu(ctx, x);
    case KM_ACT_GELU_ERF: return km_gelu_erf(ctx, x);
    case KM_ACT_SILU: return km_silu(ctx, x);
    default: return x;
    }
}

km_tensor *km_gated(km_ctx *ctx, km_tensor *x, km_tensor *gate, km_tensor *up, km_act act) {
    km_tensor *in[] = {x, gate, up}, *both[2] = {NULL, NULL};
    int n_in = up ? 3 : 2;
    if (at_once(ctx, KM_OP_GATED, in, n_in))
        return km_apply(ctx, KM_OP_GATED, in, n_in, &(km_params){.act = act}, NULL);
    if (up)
        return km_mul(ctx, km_linear(ctx, x, gate, NULL, act),
                      km_linear(ctx, x, up, NULL, KM_ACT_NONE));
    km_split(ctx, km_linear(ctx, x, gate, NULL, KM_ACT_NONE), -1, 2, both);
    return km_mul(ctx, activated(ctx, both[0], act), both[1]);
}
