/* The simple layers: linear with its low-rank correction, embedding, norms, dropout, and a list of
 * layers in a row. */
#include "nn/nn.h"
#include "ops/infer.h"
#include "ops/op.h"
#include <stdio.h>

km_tensor *km_nn_dropout(km_ctx *ctx, km_tensor *x, double p) {
    return p > 0 ? km_dropout(ctx, x, p) : x;
}

/* The parameter "<name>.<part>", new or from where the others come from. */
static km_tensor *param(const km_nn *nn, km_shape shape, bool decay, const char *name,
                        const char *part) {
    if (!nn->from)
        return km_param_add(nn->ctx, nn->params, nn->dtype, shape, decay, "%s.%s", name, part);
    char full[256];
    snprintf(full, sizeof full, "%s.%s", name, part);
    km_tensor *t = nn->from->take(nn->from->user, nn->ctx, full, shape);
    return km_param_adopt(nn->ctx, nn->params, t, full);
}

/* ---- Linear ---- */

km_nn_linear km_nn_linear_new(const km_nn *nn, int64_t in, int64_t out, bool bias,
                              const char *name) {
    km_nn_linear l = {0};
    l.w = param(nn, KM_SHAPE(out, in), true, name, "weight");
    if (bias) l.b = param(nn, KM_SHAPE(out), false, name, "bias");
    return l;
}

static km_tensor *activate(km_ctx *ctx, km_tensor *x, km_act act) {
    switch (act) {
    case KM_ACT_RELU: return km_relu(ctx, x);
    case KM_ACT_GELU: return km_gelu(ctx, x);
    case KM_ACT_GELU_ERF: return km_gelu_erf(ctx, x);
    case KM_ACT_SILU: return km_silu(ctx, x);
    default: return x;
    }
}

/* Rows of a running model, and weights of another dtype than x: the op for them takes any, and gives
 * a row the same result whatever rows are beside it. */
static bool runs(km_ctx *ctx, km_tensor *w, km_tensor *b, km_tensor *x) {
    km_tensor *in[] = {x, w, b};
    if (km_failed(ctx) || !x || !w || km_recording(ctx, in, 3)) return false;
    return x->shape.ndim == 2 || (x->dtype != w->dtype && !km_dtype_is_block(w->dtype));
}

km_tensor *km_nn_product(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act) {
    km_tensor *y = NULL;
    if (!runs(ctx, w, b, x)) return km_linear(ctx, x, w, b, act);
    km_shape s = x->shape;
    if (s.ndim != 2) x = km_reshape(ctx, x, KM_SHAPE(-1, s.dim[s.ndim - 1]));
    km_linears(ctx, x, &w, &b, 1, &y);
    y = activate(ctx, y, act);
    if (s.ndim == 2) return y;
    s.dim[s.ndim - 1] = w->shape.dim[0];
    return km_reshape(ctx, y, s);
}

km_tensor *km_nn_linear_forward(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_act act) {
    const km_nn_lora *r = &l->lora;
    if (!r->a) return km_nn_product(ctx, x, l->w, l->b, act);
    km_tensor *y = km_nn_product(ctx, x, l->w, l->b, KM_ACT_NONE);
    km_tensor *low = km_linear(ctx, x, r->a, NULL, KM_ACT_NONE);
    km_tensor *more = km_linear(ctx, km_mul_scalar(ctx, low, r->scale), r->b, NULL, KM_ACT_NONE);
    return activate(ctx, km_add(ctx, y, more), act);
}

static km_tensor *as(km_ctx *ctx, km_tensor *x, km_dtype d) {
    return x && x->dtype != d ? km_cast(ctx, x, d) : x;
}

km_tensor *km_nn_adapted(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_tensor *y,
                         const km_nn_place *at) {
    if (km_failed(ctx) || !x || !y || !km_nn_is_adapted(l, at)) return y;
    km_shape shape = y->shape; /* (rows, out), or of texts without a cache (B, T, out) */
    km_dtype dtype = y->dtype;
    if (shape.ndim > 2) {
        x = km_reshape(ctx, x, KM_SHAPE(-1, km_tensor_dim(x, -1)));
        y = km_reshape(ctx, y, KM_SHAPE(-1, km_tensor_dim(y, -1)));
    }
    int64_t rows = km_tensor_dim(x, 0), all = at->mix->shape.dim[0];
    km_tensor *mix = rows == all ? at->mix : km_narrow(ctx, at->mix, 0, all - rows, rows);
    km_tensor *sum = km_low_rank(ctx, as(ctx, y, KM_F32), as(ctx, x, KM_F32), mix, l->low.slot,
                                 l->low.a, l->low.b);
    sum = as(ctx, sum, dtype);
    return shape.ndim > 2 ? km_reshape(ctx, sum, shape) : sum;
}

km_tensor *km_nn_linear_run(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_act act,
                            const km_nn_place *at) {
    if (!km_nn_is_adapted(l, at)) return km_nn_linear_forward(ctx, l, x, act);
    km_tensor *y = km_nn_linear_forward(ctx, l, x, KM_ACT_NONE);
    return activate(ctx, km_nn_adapted(ctx, l, x, y, at), act);
}

/* ---- Embedding ---- */

km_nn_embedding km_nn_embedding_new(const km_nn *nn, int64_t rows, int64_t dim, const char *name) {
    return (km_nn_embedding){param(nn, KM_SHAPE(rows, dim), true, name, "weight")};
}

km_tensor *km_nn_embedding_forward(km_ctx *ctx, const km_nn_embedding *e, km_tensor *ids) {
    return km_embedding(ctx, e->w, ids);
}

/* ---- Norms ---- */

km_nn_norm km_nn_norm_new(const km_nn *nn, km_nn_norm_kind kind, int64_t dim, bool bias, double eps,
                          const char *name) {
    km_nn_norm n = {.kind = kind, .eps = eps};
    n.w = param(nn, KM_SHAPE(dim), false, name, "weight");
    if (bias && kind == KM_NN_LAYER_NORM) n.b = param(nn, KM_SHAPE(dim), false, name, "bias");
    return n;
}

km_tensor *km_nn_norm_forward(km_ctx *ctx, const km_nn_norm *n, km_tensor *x) {
    return n->kind == KM_NN_LAYER_NORM ? km_layer_norm(ctx, x, n->w, n->b, n->eps)
                                       : km_rms_norm(ctx, x, n->w, n->eps);
}

km_tensor *km_nn_norm_add(km_ctx *ctx, const km_nn_norm *n, km_tensor *x, km_tensor **residual) {
    return n->kind == KM_NN_LAYER_NORM
               ? km_add_layer_norm(ctx, x, *residual, n->w, n->b, n->eps, residual)
               : km_add_rms_norm(ctx, x, *residual, n->w, n->eps, residual);
}
