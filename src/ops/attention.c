/* Rotary positions and fused attention. */
#include "ops/families.h"
#include "ops/infer.h"
#include <math.h>

static km_status infer_rope(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[0]->shape;
    if (s.ndim < 2)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x must be [..., T, d], not %s", name,
                       km_shape_text(text, s));
    if (p->n[KM_N_ROPE_DIMS] < 0 || p->n[KM_N_ROPE_DIMS] > s.dim[s.ndim - 1] ||
        p->n[KM_N_ROPE_DIMS] % 2)
        return km_fail(ctx, KM_ERR_RANGE, "%s: cannot rotate %lld of the dimensions of %s", name,
                       (long long)p->n[KM_N_ROPE_DIMS], km_shape_text(text, s));
    if (!(p->f[KM_F_ROPE_BASE] > 0))
        return km_fail(ctx, KM_ERR_RANGE, "%s: base %g is not positive", name,
                       p->f[KM_F_ROPE_BASE]);
    if (p->n[KM_N_ROPE_PAIRS] != KM_ROPE_HALVES && p->n[KM_N_ROPE_PAIRS] != KM_ROPE_ADJACENT)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no such pair layout: %lld", name,
                       (long long)p->n[KM_N_ROPE_PAIRS]);
    if (n_in > 1 && in[1]) {
        if (km_want_dtype(ctx, name, "positions", in[1], KM_INDICES) != KM_OK)
            return ctx->error.code;
        if (km_want_shape(ctx, name, "positions", in[1], KM_SHAPE(s.dim[s.ndim - 2])) != KM_OK)
            return ctx->error.code;
    }
    if (n_in > 2 && in[2]) {
        if (km_want_dtype(ctx, name, "divisors", in[2], KM_BIT(KM_F32)) != KM_OK)
            return ctx->error.code;
        if (km_want_shape(ctx, name, "divisors", in[2], KM_SHAPE(p->n[KM_N_ROPE_DIMS] / 2)) !=
            KM_OK)
            return ctx->error.code;
    }
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {s}};
    return KM_OK;
}

static void grad_rope(km_ctx *ctx, km_node *n) { /* a rotation's transpose is its inverse */
    km_params p = n->p;
    p.n[KM_N_ROPE_INVERSE] = !p.n[KM_N_ROPE_INVERSE];
    km_tensor *in[] = {n->grad[0], n->n_in > 1 ? n->in[1] : NULL, n->n_in > 2 ? n->in[2] : NULL};
    km_grad_add(ctx, n->in[0], km_apply(ctx, KM_OP_ROPE, in, n->n_in > 2 ? 3 : 2, &p, NULL));
}

/* True when t's memory runs (B, T, H, D): heads side by side, as a linear layer leaves them. */
static bool heads_inside(const km_tensor *t) { return t->stride[1] < t->stride[2]; }

static km_status check_qkv(km_ctx *ctx, const char *name, const km_tensor *q, const km_tensor *k,
                           const km_tensor *v) {
    char tq[KM_SHAPE_TEXT], tk[KM_SHAPE_TEXT], tv[KM_SHAPE_TEXT];
    if (km_want_same_dtype(ctx, name, q, k) != KM_OK ||
        km_want_same_dtype(ctx, name, q, v) != KM_OK)
        return ctx->error.code;
    const int64_t *a = q->shape.dim, *b = k->shape.dim;
    bool fits = q->shape.ndim == 4 && k->shape.ndim == 4 && km_shape_equal(k->shape, v->shape) &&
                a[0] == b[0] && a[3] == b[3] && b[1] > 0 && a[1] % b[1] == 0;
    if (!fits)
        return km_fail(ctx, KM_ERR_SHAPE,
                       "%s: q %s, k %s, v %s are not [B, H, Tq, D] and [B, Hkv, Tk, D] with H a "
                       "multiple of Hkv",
                       name, km_shape_text(tq, q->shape), km_shape_text(tk, k->shape),
                       km_shape_text(tv, v->shape));
    return KM_OK;
}

static km_status infer_attention(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    if (check_qkv(ctx, name, in[0], in[1], in[2]) != KM_OK) return ctx->error.code;
    km_shape rows = in[0]->shape;
    rows.ndim = 3;
    *out = (km_outputs){.n = 2,
                        .dtype = {in[0]->dtype, in[0]->dtype == KM_F64 ? KM_F64 : KM_F32},
                        .shape = {in[0]->shape, rows},
                        .heads_inside = {heads_inside(in[0])}};
    return KM_OK;
}

static km_status infer_attention_grad(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                      const km_params *p, km_outputs *out) {
    km_tensor *q = in[1], *k = in[2], *v = in[3];
    if (check_qkv(ctx, name, q, k, v) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "do", in[0], q->shape) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "o", in[4], q->shape) != KM_OK) return ctx->error.code;
    km_shape rows = q->shape;
    rows.ndim = 3;
    if (km_want_shape(ctx, name, "lse", in[5], rows) != KM_OK) return ctx->error.code;
    *out = (km_outputs){.n = 3,
                        .dtype = {q->dtype, q->dtype, q->dtype},
                        .shape = {q->shape, k->shape, k->shape},
                        .heads_inside = {heads_inside(q), heads_inside(k), heads_inside(v)}};
    return KM_OK;
}

static void grad_attention(km_ctx *ctx, km_node *n) {
    km_tensor *d[KM_MAX_OUTPUTS];
    km_tensor *in[] = {n->grad[0], n->in[0], n->in[1], n->in[2], n->out[0], n->out[1]};
    if (!n->grad[0]) return;
    km_apply(ctx, KM_OP_ATTENTION_GRAD, in, 6, &n->p, d);
    for (int i = 0; i < 3; i++) km_grad_add(ctx, n->in[i], d[i]);
}

void km_rows_attention(km_op_row *t) {
    t[KM_OP_ROPE] = (km_op_row){.formula = "pairs of x turned by position base^(-2i/d)",
                                .min_in = 1,
                                .max_in = 3,
                                .dtypes = KM_FLOATS,
                                .infer = infer_rope,
                                .grad = grad_rope,
                                .save_in = 6,
                                .tol = KM_TOL_SUM};
    t[KM_OP_ATTENTION] = (km_op_row){.formula = "softmax(q k^T scale) v",
                                     .min_in = 3,
                                     .max_in = 3,
                                     .dtypes = KM_FLOATS,
                                     .flags = KM_OP_HEADS,
                                     .infer = infer_attention,
                                     .grad = grad_attention,
                                     .save_in = 7,
                                     .save_out = 3,
                                     .tol = KM_TOL_SUM};
    t[KM_OP_ATTENTION_GRAD] = (km_op_row){.formula = "gradients of attention",
                                          .min_in = 6,
                                          .max_in = 6,
                                          .dtypes = KM_FLOATS,
                                          .flags = KM_OP_HEADS,
                                          .infer = infer_attention_grad,
                                          .tol = KM_TOL_SUM};
}

/* ---- Public ---- */

km_tensor *km_rope(km_ctx *ctx, km_tensor *x, km_tensor *positions, km_rope_pairs pairs,
                   double base, int n_dims) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {
        .n = {[KM_N_ROPE_DIMS] = n_dims ? n_dims : km_tensor_dim(x, -1), [KM_N_ROPE_PAIRS] = pairs},
        .f = {[KM_F_ROPE_BASE] = base}};
    return km_apply2(ctx, KM_OP_ROPE, x, positions, &p);
}

km_tensor *km_rope_divided(km_ctx *ctx, km_tensor *x, km_tensor *positions, km_tensor *divisors,
                           km_rope_pairs pairs, double base, int n_dims) {
    if (!divisors) return km_rope(ctx, x, positions, pairs, base, n_dims);
    km_params p = {
        .n = {[KM_N_ROPE_DIMS] = n_dims ? n_dims : km_tensor_dim(x, -1), [KM_N_ROPE_PAIRS] = pairs},
        .f = {[KM_F_ROPE_BASE] = base}};
    return km_apply(ctx, KM_OP_ROPE, (km_tensor *[]){x, positions, divisors}, 3, &p, NULL);
}

km_tensor *km_attention(km_ctx *ctx, km_tensor *q, km_tensor *k, km_tensor *v, bool causal,
                        double scale) {
    KM_CTX_CALL(ctx, NULL);
    int64_t d = km_tensor_dim(q, -1);
    km_params p = {.causal = causal,
                   .f = {[KM_F_SCALE] = scale != 0 ? scale : 1 / sqrt(d > 0 ? (double)d : 1)}};
    return km_apply(ctx, KM_OP_ATTENTION, (km_tensor *[]){q, k, v}, 3, &p, NULL);
}
