/* Matrix products. Vectors and missing batch axes are views around the one matmul op, and a
 * product of many rows with one matrix is flattened to a single large one. */
#include "backend/compose.h"
#include "ops/families.h"

static km_status infer_matmul(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    char ta[KM_SHAPE_TEXT], tb[KM_SHAPE_TEXT];
    km_shape a = in[0]->shape, b = in[1]->shape, s = a;
    int d = a.ndim;
    if (km_want_same_dtype(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    if (d < 2 || b.ndim != d)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: needs matrices: %s x %s", name, km_shape_text(ta, a),
                       km_shape_text(tb, b));
    if (a.dim[d - 1] != b.dim[d - 2])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: inner dimensions differ: %s x %s", name,
                       km_shape_text(ta, a), km_shape_text(tb, b));
    for (int i = 0; i < d - 2; i++) {
        if (a.dim[i] != b.dim[i] && a.dim[i] != 1 && b.dim[i] != 1)
            return km_fail(ctx, KM_ERR_SHAPE, "%s: batches do not broadcast: %s x %s", name,
                           km_shape_text(ta, a), km_shape_text(tb, b));
        s.dim[i] = a.dim[i] == 1 ? b.dim[i] : a.dim[i];
    }
    s.dim[d - 1] = b.dim[d - 1];
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {s}};
    return KM_OK;
}

static km_tensor *turned(km_ctx *ctx, km_tensor *t) { return km_transpose(ctx, t, -1, -2); }

static km_tensor *product(km_ctx *ctx, km_tensor *a, km_tensor *b) {
    return km_apply2(ctx, KM_OP_MATMUL, a, b, &(km_params){.f = {[KM_F_ALPHA] = 1}});
}

static void grad_matmul(km_ctx *ctx, km_node *n) { /* da = dy b^T, db = a^T dy */
    km_tensor *dy = n->grad[0];
    if (km_needs(n, 0)) km_grad_add(ctx, n->in[0], product(ctx, dy, turned(ctx, n->in[1])));
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], product(ctx, turned(ctx, n->in[0]), dy));
}

static km_status infer_linear(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    char tx[KM_SHAPE_TEXT], tw[KM_SHAPE_TEXT];
    km_tensor *x = in[0], *w = in[1], *b = n_in > 2 ? in[2] : NULL;
    if (km_want_same_dtype(ctx, name, x, w) != KM_OK) return ctx->error.code;
    if (b && km_want_same_dtype(ctx, name, x, b) != KM_OK) return ctx->error.code;
    if (x->shape.ndim != 2 || w->shape.ndim != 2 || x->shape.dim[1] != w->shape.dim[1])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x is %s, so w must be [out, %lld], not %s", name,
                       km_shape_text(tx, x->shape), (long long)km_tensor_dim(x, -1),
                       km_shape_text(tw, w->shape));
    km_shape y = KM_SHAPE(x->shape.dim[0], w->shape.dim[0]);
    if (b && km_want_shape(ctx, name, "bias", b, KM_SHAPE(w->shape.dim[0])) != KM_OK)
        return ctx->error.code;
    if ((unsigned)p->act > KM_ACT_SILU)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no such activation: %d", name, (int)p->act);
    *out = (km_outputs){.n = 1, .dtype = {x->dtype, x->dtype}, .shape = {y, y}};
    /* relu's gradient needs only y; the others need the value before the activation. */
    if (p->n[KM_N_BOTH] || (p->act > KM_ACT_RELU && km_recording(ctx, in, n_in))) out->n = 2;
    return KM_OK;
}

static km_status infer_linear_dx(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    char ta[KM_SHAPE_TEXT], tb[KM_SHAPE_TEXT];
    km_tensor *dy = in[0], *w = in[1], *pre = n_in > 2 ? in[2] : NULL;
    if (km_want_same_dtype(ctx, name, dy, w) != KM_OK) return ctx->error.code;
    if (dy->shape.ndim != 2 || w->shape.ndim != 2 || dy->shape.dim[1] != w->shape.dim[0])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: dy %s and w %s are not [rows, out] and [out, in]",
                       name, km_shape_text(ta, dy->shape), km_shape_text(tb, w->shape));
    km_shape dx = KM_SHAPE(dy->shape.dim[0], w->shape.dim[1]);
    if (pre && (km_want_same_dtype(ctx, name, dy, pre) != KM_OK ||
                km_want_shape(ctx, name, "pre", pre, dx) != KM_OK))
        return ctx->error.code;
    if ((unsigned)p->act > KM_ACT_SILU || p->act == KM_ACT_RELU)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no slope of activation %d", name, (int)p->act);
    *out = (km_outputs){.n = p->n[KM_N_BOTH] ? 2 : 1,
                        .dtype = {dy->dtype, dy->dtype},
                        .shape = {dx, KM_SHAPE(dx.dim[1])}};
    return KM_OK;
}

static km_status infer_linear_dw(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    char ta[KM_SHAPE_TEXT], tb[KM_SHAPE_TEXT];
    km_tensor *dy = in[0], *x = in[1];
    if (km_want_same_dtype(ctx, name, dy, x) != KM_OK) return ctx->error.code;
    if (dy->shape.ndim != 2 || x->shape.ndim != 2 || dy->shape.dim[0] != x->shape.dim[0])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: dy %s and x %s are not [rows, out] and [rows, in]",
                       name, km_shape_text(ta, dy->shape), km_shape_text(tb, x->shape));
    *out = (km_outputs){
        .n = p->n[KM_N_BOTH] ? 2 : 1,
        .dtype = {dy->dtype, dy->dtype},
        .shape = {KM_SHAPE(dy->shape.dim[1], x->shape.dim[1]), KM_SHAPE(dy->shape.dim[1])}};
    return KM_OK;
}

void km_linear_backward(km_ctx *ctx, km_tensor *dy, km_tensor *x, km_tensor *w, km_tensor *b,
                        bool to_x) {
    km_tensor *d[KM_MAX_OUTPUTS];
    bool bias = b && b->requires_grad;
    if (to_x && x->requires_grad) km_grad_add(ctx, x, product(ctx, dy, w));
    if (w->requires_grad) {
        km_apply(ctx, KM_OP_LINEAR_DW, (km_tensor *[]){dy, x}, 2,
                 &(km_params){.n = {[KM_N_BOTH] = bias}}, d);
        km_grad_add(ctx, w, d[0]);
        if (bias) km_grad_add(ctx, b, d[1]);
    } else if (bias) {
        km_grad_add(ctx, b, km_sum(ctx, dy, (int[]){0}, 1, false));
    }
}

static void grad_linear(km_ctx *ctx, km_node *n) {
    km_tensor *dy = n->grad[0];
    if (n->p.act != KM_ACT_NONE)
        dy = km_apply2(ctx, km_act_grad(n->p.act), dy,
                       n->p.act == KM_ACT_RELU ? n->out[0] : n->out[1], NULL);
    if (dy) km_linear_backward(ctx, dy, n->in[0], n->in[1], n->n_in > 2 ? n->in[2] : NULL, true);
}

static void saves_linear(km_node *n) { /* y for relu, the value before the activation for others */
    n->save_out = n->p.act == KM_ACT_NONE ? 0 : n->p.act == KM_ACT_RELU ? 1 : 2;
}

void km_rows_matmul(km_op_row *t) {
    t[KM_OP_MATMUL] = (km_op_row){.formula = "a b",
                                  .min_in = 2,
                                  .max_in = 2,
                                  .dtypes = KM_FLOATS,
                                  .flags = KM_OP_MATRIX | KM_OP_SCALES_OUT,
                                  .infer = infer_matmul,
                                  .grad = grad_matmul,
                                  .save_in = 3,
                                  .tol = KM_TOL_SUM};
    t[KM_OP_LINEAR] = (km_op_row){.formula = "act(x w^T + b)",
                                  .min_in = 2,
                                  .max_in = 3,
                                  .dtypes = KM_FLOATS,
                                  .flags = KM_OP_MATRIX,
                                  .infer = infer_linear,
                                  .grad = grad_linear,
                                  .save_in = 3,
                                  .save_out = 3,
                                  .saves = saves_linear,
                                  .tol = KM_TOL_SUM};
    t[KM_OP_LINEAR_DX] = (km_op_row){.formula = "(dy w) act'(pre)",
                                     .min_in = 2,
                                     .max_in = 3,
                                     .dtypes = KM_FLOATS,
                                     .flags = KM_OP_MATRIX,
                                     .infer = infer_linear_dx,
                                     .tol = KM_TOL_SUM};
    t[KM_OP_LINEAR_DW] = (km_op_row){.formula = "dy^T x",
                                     .min_in = 2,
                                     .max_in = 2,
                                     .dtypes = KM_FLOATS,
                                     .flags = KM_OP_MATRIX,
                                     .infer = infer_linear_dw,
                                     .tol = KM_TOL_SUM};
}

/* ---- Public ---- */

/* Leading size-1 axes until t has `ndim` of them. */
static km_tensor *with_rank(km_ctx *ctx, km_tensor *t, int ndim) {
    while (t && t->shape.ndim < ndim) t = km_unsqueeze(ctx, t, 0);
    return t;
}

km_tensor *km_matmul(km_ctx *ctx, km_tensor *a, km_tensor *b) {
    KM_CTX_CALL(ctx, NULL);
    char ta[KM_SHAPE_TEXT], tb[KM_SHAPE_TEXT];
    if (km_failed(ctx)) return NULL;
    if (!a || !b) {
        km_fail(ctx, KM_ERR_NULL, "matmul: argument %d is NULL", a ? 2 : 1);
        return NULL;
    }
    km_shape as = a->shape, bs = b->shape;
    bool a_vector = as.ndim == 1, b_vector = bs.ndim == 1;
    if (as.ndim == 0 || bs.ndim == 0) {
        km_fail(ctx, KM_ERR_SHAPE, "matmul: a scalar is no matrix: %s x %s", km_shape_text(ta, as),
                km_shape_text(tb, bs));
        return NULL;
    }
    int64_t inner = as.dim[as.ndim - 1], other = bs.dim[b_vector ? 0 : bs.ndim - 2];
    if (inner != other) { /* said here with the caller's shapes, not those of the views below */
        km_fail(ctx, KM_ERR_SHAPE, "matmul: inner dimensions differ: %s x %s",
                km_shape_text(ta, as), km_shape_text(tb, bs));
        return NULL;
    }
    if (bs.ndim == 2 && as.ndim > 2) { /* one matrix for all rows of a */
        km_shape out = as;
        out.dim[as.ndim - 1] = bs.dim[1];
        int64_t rows = km_shape_count(as) / (inner ? inner : 1);
        if (inner == 0) {
            rows = 1;
            for (int i = 0; i < as.ndim - 1; i++) rows *= as.dim[i];
        }
        km_tensor *flat = km_reshape(ctx, a, KM_SHAPE(rows, inner));
        return km_reshape(ctx, flat ? product(ctx, flat, b) : NULL, out);
    }
    if (a_vector) a = km_unsqueeze(ctx, a, 0);
    if (b_vector) b = km_unsqueeze(ctx, b, 1);
    if (!a || !b) return NULL;
    int ndim = a->shape.ndim > b->shape.ndim ? a->shape.ndim : b->shape.ndim;
    a = with_rank(ctx, a, ndim);
    b = with_rank(ctx, b, ndim);
    km_tensor *y = product(ctx, a, b);
    if (y && b_vector) y = km_squeeze(ctx, y, -1);
    if (y && a_vector) y = km_squeeze(ctx, y, b_vector ? -1 : -2);
    return y;
}

km_tensor *km_linear(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (w && km_dtype_is_block(w->dtype)) return km_quant_linear(ctx, x, w, b, act);
    km_params p = {.act = act};
    km_tensor *in[] = {x, w, b};
    int n_in = b ? 3 : 2;
    if (!x || !w || x->shape.ndim == 2 || x->shape.ndim == 0 || w->shape.ndim != 2)
        return km_apply(ctx, KM_OP_LINEAR, in, n_in, &p, NULL);
    km_shape out = x->shape;
    int64_t rows = 1, inner = out.dim[out.ndim - 1];
    for (int i = 0; i < out.ndim - 1; i++) rows *= out.dim[i];
    out.dim[out.ndim - 1] = w->shape.dim[0];
    in[0] = km_reshape(ctx, x, KM_SHAPE(rows, inner));
    return km_reshape(ctx, in[0] ? km_apply(ctx, KM_OP_LINEAR, in, n_in, &p, NULL) : NULL, out);
}
