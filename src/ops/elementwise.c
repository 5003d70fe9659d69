/* Two and three operands, element by element, broadcast as in NumPy. Gradients of broadcast
 * operands are summed back to their shape by km_grad_add. */
#include "ops/families.h"

static km_status infer_binary(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    return km_want_same_dtype(ctx, name, in[0], in[1]);
}

static km_status infer_compare(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    out->dtype[0] = KM_BOOL;
    return km_want_same_dtype(ctx, name, in[0], in[1]);
}

static km_status infer_where(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    out->dtype[0] = in[1]->dtype;
    return km_want_same_dtype(ctx, name, in[1], in[2]);
}

static km_status infer_masked_fill(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                   const km_params *p, km_outputs *out) {
    return km_want_dtype(ctx, name, "mask", in[1], KM_BIT(KM_BOOL));
}

static km_status infer_triangle(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    if (in[0]->shape.ndim < 2)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: needs a matrix, not %s", name,
                       km_shape_text(text, in[0]->shape));
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {in[0]->shape}};
    return KM_OK;
}

static km_status infer_dropout(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    if (!(p->f[KM_F_DROP] >= 0 && p->f[KM_F_DROP] < 1))
        return km_fail(ctx, KM_ERR_RANGE, "%s: probability %g is not in [0, 1)", name,
                       p->f[KM_F_DROP]);
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {in[0]->shape}};
    return KM_OK;
}

/* ---- Gradients ---- */

static void grad_add(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], n->grad[0]);
    km_grad_add(ctx, n->in[1], n->grad[0]);
}

static void grad_sub(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], n->grad[0]);
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], km_neg(ctx, n->grad[0]));
}

static void grad_mul(km_ctx *ctx, km_node *n) {
    if (km_needs(n, 0)) km_grad_add(ctx, n->in[0], km_mul(ctx, n->grad[0], n->in[1]));
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], km_mul(ctx, n->grad[0], n->in[0]));
}

static void grad_div(km_ctx *ctx, km_node *n) { /* y = a/b: da = dy/b, db = -dy y/b */
    km_tensor *da = km_div(ctx, n->grad[0], n->in[1]);
    km_grad_add(ctx, n->in[0], da);
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], km_neg(ctx, km_mul(ctx, da, n->out[0])));
}

static km_tensor *full_like(km_ctx *ctx, km_tensor *t, double value) {
    return km_fill_on(ctx, km_tensor_dev(t), t->dtype, KM_SCALAR, value);
}

static void grad_pow(km_ctx *ctx, km_node *n) { /* y = a^b: da = dy b a^(b-1), db = dy y ln a */
    km_tensor *a = n->in[0], *b = n->in[1], *dy = n->grad[0];
    if (km_needs(n, 0)) {
        km_tensor *slope = km_mul(ctx, b, km_pow(ctx, a, km_add_scalar(ctx, b, -1)));
        km_tensor *zero = full_like(ctx, b, 0);
        km_tensor *flat = km_eq(ctx, b, zero); /* a^0 is flat, even where a^(-1) is infinite */
        km_grad_add(ctx, a, km_mul(ctx, dy, km_where(ctx, flat, zero, slope)));
    }
    if (km_needs(n, 1)) {
        km_tensor *zero = full_like(ctx, a, 0);
        km_tensor *live = km_gt(ctx, a, zero); /* y ln a is 0 at a = 0, and nothing below */
        km_tensor *safe = km_where(ctx, live, a, full_like(ctx, a, 1));
        km_grad_add(ctx, b, km_mul(ctx, dy, km_mul(ctx, n->out[0], km_log(ctx, safe))));
    }
}

/* The larger (smaller) operand takes it all; equals share. */
static void grad_extreme(km_ctx *ctx, km_node *n) {
    km_tensor *dy = n->grad[0], *zero = full_like(ctx, dy, 0);
    km_tensor *half =
        km_where(ctx, km_eq(ctx, n->in[0], n->in[1]), km_mul_scalar(ctx, dy, 0.5), zero);
    for (int i = 0; i < 2; i++) {
        if (!km_needs(n, i)) continue;
        km_tensor *a = n->in[i], *b = n->in[1 - i];
        km_tensor *wins = n->op == KM_OP_MAXIMUM ? km_gt(ctx, a, b) : km_lt(ctx, a, b);
        km_grad_add(ctx, a, km_where(ctx, wins, dy, half));
    }
}

static void grad_where(km_ctx *ctx, km_node *n) {
    km_tensor *dy = n->grad[0], *zero = full_like(ctx, dy, 0);
    if (km_needs(n, 1)) km_grad_add(ctx, n->in[1], km_where(ctx, n->in[0], dy, zero));
    if (km_needs(n, 2)) km_grad_add(ctx, n->in[2], km_where(ctx, n->in[0], zero, dy));
}

static void grad_masked_fill(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_masked_fill(ctx, n->grad[0], n->in[1], 0));
}

/* Triangles and dropout are linear maps that are their own transpose. */
static void grad_same_op(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_apply1(ctx, n->op, n->grad[0], &n->p));
}

#define BINARY(OP, text, rule, in, out, tolerance)                                                 \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = 2, .max_in = 2, .dtypes = KM_NUMBERS,                           \
        .flags = KM_OP_ELEMENTWISE, .infer = infer_binary, .grad = rule, .save_in = in,            \
        .save_out = out, .tol = tolerance                                                          \
    }
#define COMPARE(OP, text)                                                                          \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = 2, .max_in = 2, .dtypes = KM_ANY, .flags = KM_OP_ELEMENTWISE,   \
        .infer = infer_compare                                                                     \
    }

void km_rows_elementwise(km_op_row *t) {
    BINARY(ADD, "a + b", grad_add, 0, 0, KM_TOL_ELEM);
    BINARY(SUB, "a - b", grad_sub, 0, 0, KM_TOL_ELEM);
    BINARY(MUL, "a b", grad_mul, 3, 0, KM_TOL_ELEM);
    BINARY(DIV, "a / b", grad_div, 2, 1, KM_TOL_ELEM);
    BINARY(POW, "a^b", grad_pow, 3, 1, KM_TOL_TRANS);
    BINARY(MAXIMUM, "max(a, b)", grad_extreme, 3, 0, KM_TOL_EXACT);
    BINARY(MINIMUM, "min(a, b)", grad_extreme, 3, 0, KM_TOL_EXACT);
    COMPARE(EQ, "a == b");
    COMPARE(NE, "a != b");
    COMPARE(LT, "a < b");
    COMPARE(LE, "a <= b");
    COMPARE(GT, "a > b");
    COMPARE(GE, "a >= b");
    t[KM_OP_WHERE] = (km_op_row){.formula = "cond ? a : b",
                                 .min_in = 3,
                                 .max_in = 3,
                                 .dtypes = KM_BIT(KM_BOOL),
                                 .flags = KM_OP_ELEMENTWISE,
                                 .infer = infer_where,
                                 .grad = grad_where,
                                 .save_in = 1};
    t[KM_OP_MASKED_FILL] = (km_op_row){.formula = "mask ? value : x",
                                       .min_in = 2,
                                       .max_in = 2,
                                       .dtypes = KM_ANY,
                                       .flags = KM_OP_ELEMENTWISE,
                                       .infer = infer_masked_fill,
                                       .grad = grad_masked_fill,
                                       .save_in = 2};
    t[KM_OP_TRIU] = (km_op_row){.formula = "j - i >= d ? x : 0",
                                .min_in = 1,
                                .max_in = 1,
                                .dtypes = KM_ANY,
                                .infer = infer_triangle,
                                .grad = grad_same_op};
    t[KM_OP_TRIL] = (km_op_row){.formula = "j - i <= d ? x : 0",
                                .min_in = 1,
                                .max_in = 1,
                                .dtypes = KM_ANY,
                                .infer = infer_triangle,
                                .grad = grad_same_op};
    t[KM_OP_DROPOUT] = (km_op_row){.formula = "u >= p ? x / (1 - p) : 0",
                                   .min_in = 1,
                                   .max_in = 1,
                                   .dtypes = KM_FLOATS,
                                   .infer = infer_dropout,
                                   .grad = grad_same_op,
                                   .tol = KM_TOL_ELEM};
}

#define PUBLIC2(name, OP)                                                                          \
    km_tensor *km_##name(km_ctx *ctx, km_tensor *a, km_tensor *b) {                                \
        return km_apply2(ctx, KM_OP_##OP, a, b, NULL);                                             \
    }
PUBLIC2(add, ADD)
PUBLIC2(sub, SUB)
PUBLIC2(mul, MUL)
PUBLIC2(div, DIV)
PUBLIC2(pow, POW)
PUBLIC2(maximum, MAXIMUM)
PUBLIC2(minimum, MINIMUM)
PUBLIC2(eq, EQ)
PUBLIC2(ne, NE)
PUBLIC2(lt, LT)
PUBLIC2(le, LE)
PUBLIC2(gt, GT)
PUBLIC2(ge, GE)

km_tensor *km_where(km_ctx *ctx, km_tensor *cond, km_tensor *a, km_tensor *b) {
    return km_apply(ctx, KM_OP_WHERE, (km_tensor *[]){cond, a, b}, 3, NULL, NULL);
}

km_tensor *km_masked_fill(km_ctx *ctx, km_tensor *x, km_tensor *mask, double value) {
    return km_apply2(ctx, KM_OP_MASKED_FILL, x, mask, &(km_params){.f = {[KM_F_VALUE] = value}});
}

km_tensor *km_triu(km_ctx *ctx, km_tensor *x, int diagonal) {
    return km_apply1(ctx, KM_OP_TRIU, x, &(km_params){.n = {[KM_N_DIAGONAL] = diagonal}});
}

km_tensor *km_tril(km_ctx *ctx, km_tensor *x, int diagonal) {
    return km_apply1(ctx, KM_OP_TRIL, x, &(km_params){.n = {[KM_N_DIAGONAL] = diagonal}});
}

km_tensor *km_dropout(km_ctx *ctx, km_tensor *x, double p) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    km_params params = {.f = {[KM_F_DROP] = p}, .seed = ctx->seed, .stream = ctx->draws++};
    return km_apply1(ctx, KM_OP_DROPOUT, x, &params);
}
