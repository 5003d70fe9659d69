/* Weights of a few bits: decoding and encoding them, and the two layers that use them as they are.
 * They have no gradient of their own; one flows through a quantised layer to its input, so that a
 * correction (LoRA) can be trained on top of quantised weights. */
#include "ops/families.h"
#include "ops/op.h"

static km_status want_blocks(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t) {
    if (km_want_dtype(ctx, name, arg, t, KM_BLOCKS) != KM_OK) return ctx->error.code;
    if (!km_is_contiguous(t))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: %s must lie in one piece", name, arg);
    return KM_OK;
}

static km_status want_float(km_ctx *ctx, const char *name, km_dtype d) {
    if (km_dtype_is_float(d) && d != KM_F64) return KM_OK;
    return km_fail(ctx, KM_ERR_DTYPE, "%s: gives f32, f16 or bf16, not %s", name, km_dtype_name(d));
}

static km_status infer_dequantise(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                  const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {p->dtype}, .shape = {in[0]->shape}};
    if (want_blocks(ctx, name, "x", in[0]) != KM_OK) return ctx->error.code;
    return want_float(ctx, name, p->dtype);
}

static km_status infer_quantise(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {p->dtype}, .shape = {in[0]->shape}};
    if (!km_dtype_is_block(p->dtype))
        return km_fail(ctx, KM_ERR_DTYPE, "%s: %s is no block dtype", name,
                       km_dtype_name(p->dtype));
    return km_shape_check(ctx, name, p->dtype, in[0]->shape);
}

static km_status infer_quant_linear(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                    const km_params *p, km_outputs *out) {
    char tx[KM_SHAPE_TEXT], tw[KM_SHAPE_TEXT];
    km_tensor *x = in[0], *w = in[1], *b = n_in > 2 ? in[2] : NULL;
    if (want_blocks(ctx, name, "w", w) != KM_OK) return ctx->error.code;
    if (want_float(ctx, name, x->dtype) != KM_OK) return ctx->error.code;
    if (x->shape.ndim != 2 || w->shape.ndim != 2 || x->shape.dim[1] != w->shape.dim[1])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x is %s, so w must be [out, %lld], not %s", name,
                       km_shape_text(tx, x->shape), (long long)km_tensor_dim(x, -1),
                       km_shape_text(tw, w->shape));
    if (b && (km_want_same_dtype(ctx, name, x, b) != KM_OK ||
              km_want_shape(ctx, name, "bias", b, KM_SHAPE(w->shape.dim[0])) != KM_OK))
        return ctx->error.code;
    if ((unsigned)p->act > KM_ACT_SILU)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no such activation: %d", name, (int)p->act);
    *out = (km_outputs){
        .n = 1, .dtype = {x->dtype}, .shape = {KM_SHAPE(x->shape.dim[0], w->shape.dim[0])}};
    return KM_OK;
}

static km_status infer_quant_embedding(km_ctx *ctx, const char *name, km_tensor *const *in,
                                       int n_in, const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[1]->shape;
    if (want_blocks(ctx, name, "table", in[0]) != KM_OK) return ctx->error.code;
    if (want_float(ctx, name, p->dtype) != KM_OK) return ctx->error.code;
    if (km_want_dtype(ctx, name, "ids", in[1], KM_INDICES) != KM_OK) return ctx->error.code;
    if (in[0]->shape.ndim != 2 || s.ndim == KM_MAX_DIMS)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the table must be [rows, width], not %s", name,
                       km_shape_text(text, in[0]->shape));
    if (km_want_indices(ctx, name, in[1], in[0]->shape.dim[0], 0, false) != KM_OK)
        return ctx->error.code;
    s.dim[s.ndim++] = in[0]->shape.dim[1];
    *out = (km_outputs){.n = 1, .dtype = {p->dtype}, .shape = {s}};
    return KM_OK;
}

/* dx = dy w, with w decoded for the occasion. */
static void grad_quant_linear(km_ctx *ctx, km_node *n) {
    km_tensor *x = n->in[0], *b = n->n_in > 2 ? n->in[2] : NULL, *dy = n->grad[0];
    if (n->p.act != KM_ACT_NONE) {
        km_fail(ctx, KM_ERR_UNSUPPORTED, "quant_linear: no gradient through a fused activation");
        return;
    }
    if (km_needs(n, 0)) {
        km_tensor *w = km_apply1(ctx, KM_OP_DEQUANTISE, n->in[1], &(km_params){.dtype = x->dtype});
        km_grad_add(ctx, x, km_matmul(ctx, dy, w));
    }
    if (b && km_needs(n, 2)) km_grad_add(ctx, b, km_sum(ctx, dy, (int[]){0}, 1, false));
}

void km_rows_quant(km_op_row *t) {
    t[KM_OP_DEQUANTISE] = (km_op_row){.formula = "blocks as floats",
                                      .min_in = 1,
                                      .max_in = 1,
                                      .dtypes = KM_BLOCKS,
                                      .infer = infer_dequantise,
                                      .tol = KM_TOL_EXACT};
    t[KM_OP_QUANTISE] = (km_op_row){.formula = "floats in blocks of a few bits",
                                    .min_in = 1,
                                    .max_in = 1,
                                    .dtypes = KM_FLOATS & ~KM_BIT(KM_F64),
                                    .infer = infer_quantise,
                                    .tol = KM_TOL_EXACT};
    t[KM_OP_QUANT_LINEAR] = (km_op_row){.formula = "act(x w^T + b), w in blocks",
                                        .min_in = 2,
                                        .max_in = 3,
                                        .dtypes = KM_FLOATS & ~KM_BIT(KM_F64),
                                        .flags = KM_OP_BLOCK_LAYER,
                                        .infer = infer_quant_linear,
                                        .grad = grad_quant_linear,
                                        .save_in = 2,
                                        .tol = KM_TOL_BITS};
    t[KM_OP_QUANT_EMBEDDING] = (km_op_row){.formula = "y[i] = table[ids[i]], in blocks",
                                           .min_in = 2,
                                           .max_in = 2,
                                           .dtypes = KM_BLOCKS,
                                           .infer = infer_quant_embedding,
                                           .tol = KM_TOL_EXACT};
}

km_tensor *km_quant_linear(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act) {
    km_tensor *in[] = {x, w, b};
    int n_in = b ? 3 : 2;
    bool apart =
        act != KM_ACT_NONE && km_recording(ctx, in, n_in); /* its gradient is its own op's */
    km_params p = {.act = apart ? KM_ACT_NONE : act};
    km_shape out = {0};
    if (x && x->shape.ndim > 2 && w->shape.ndim == 2) {
        out = x->shape;
        int64_t rows = 1, inner = out.dim[out.ndim - 1];
        for (int i = 0; i < out.ndim - 1; i++) rows *= out.dim[i];
        out.dim[out.ndim - 1] = w->shape.dim[0];
        in[0] = km_reshape(ctx, x, KM_SHAPE(rows, inner));
    }
    km_tensor *y = km_apply(ctx, KM_OP_QUANT_LINEAR, in, n_in, &p, NULL);
    if (apart)
        y = act == KM_ACT_RELU       ? km_relu(ctx, y)
            : act == KM_ACT_GELU     ? km_gelu(ctx, y)
            : act == KM_ACT_GELU_ERF ? km_gelu_erf(ctx, y)
                                     : km_silu(ctx, y);
    return out.ndim ? km_reshape(ctx, y, out) : y;
}

km_tensor *km_quant_embedding(km_ctx *ctx, km_tensor *table, km_tensor *ids) {
    return km_apply2(ctx, KM_OP_QUANT_EMBEDDING, table, ids, &(km_params){.dtype = KM_F32});
}
