/* One operand, element by element. Where a gradient is not a plain product it has an op of its
 * own (tanh_grad, ...), so that the backward pass is one kernel too. */
#include "ops/families.h"

static km_status infer_pair(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    return km_want_same_dtype(ctx, name, in[0], in[1]);
}

static km_status infer_clamp(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    if (!(p->f[KM_F_LO] <= p->f[KM_F_HI]))
        return km_fail(ctx, KM_ERR_RANGE, "%s: bounds %g and %g are not in order", name,
                       p->f[KM_F_LO], p->f[KM_F_HI]);
    return KM_OK;
}

static void grad_neg(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_neg(ctx, n->grad[0]));
}

static void grad_exp(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_mul(ctx, n->grad[0], n->out[0]));
}

static void grad_log(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_div(ctx, n->grad[0], n->in[0]));
}

static void grad_add_scalar(km_ctx *ctx, km_node *n) { km_grad_add(ctx, n->in[0], n->grad[0]); }

static void grad_mul_scalar(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_mul_scalar(ctx, n->grad[0], n->p.f[KM_F_VALUE]));
}

/* y = x^s: dx = dy s x^(s-1), and 0 for s = 0, even where x^(-1) is infinite. */
static void grad_pow_scalar(km_ctx *ctx, km_node *n) {
    double s = n->p.f[KM_F_VALUE];
    km_tensor *slope = km_mul_scalar(ctx, km_pow_scalar(ctx, n->in[0], s == 0 ? 0 : s - 1), s);
    km_grad_add(ctx, n->in[0], km_mul(ctx, n->grad[0], slope));
}

/* Rules by an op of their own: of the input, or of the output. */
#define FROM_INPUT(name, OP)                                                                       \
    static void grad_##name(km_ctx *ctx, km_node *n) {                                             \
        km_grad_add(ctx, n->in[0], km_apply2(ctx, KM_OP_##OP, n->grad[0], n->in[0], &n->p));       \
    }
#define FROM_OUTPUT(name, OP)                                                                      \
    static void grad_##name(km_ctx *ctx, km_node *n) {                                             \
        km_grad_add(ctx, n->in[0], km_apply2(ctx, KM_OP_##OP, n->grad[0], n->out[0], &n->p));      \
    }
FROM_INPUT(abs, ABS_GRAD)
FROM_OUTPUT(sqrt, SQRT_GRAD)
FROM_OUTPUT(rsqrt, RSQRT_GRAD)
FROM_INPUT(sin, SIN_GRAD)
FROM_INPUT(cos, COS_GRAD)
FROM_OUTPUT(tanh, TANH_GRAD)
FROM_OUTPUT(sigmoid, SIGMOID_GRAD)
FROM_OUTPUT(relu, RELU_GRAD)
FROM_INPUT(gelu, GELU_GRAD)
FROM_INPUT(gelu_erf, GELU_ERF_GRAD)
FROM_INPUT(silu, SILU_GRAD)
FROM_INPUT(clamp, CLAMP_GRAD)

#define UNARY(OP, text, kinds, rule, in, out, tolerance)                                           \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = 1, .max_in = 1, .dtypes = kinds, .flags = KM_OP_ELEMENTWISE,    \
        .grad = rule, .save_in = in, .save_out = out, .tol = tolerance                             \
    }
#define PAIR(OP, text, tolerance)                                                                  \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = 2, .max_in = 2, .dtypes = KM_FLOATS,                            \
        .flags = KM_OP_ELEMENTWISE, .infer = infer_pair, .tol = tolerance                          \
    }

void km_rows_unary(km_op_row *t) {
    UNARY(NEG, "-x", KM_NUMBERS, grad_neg, 0, 0, KM_TOL_EXACT);
    UNARY(ABS, "|x|", KM_NUMBERS, grad_abs, 1, 0, KM_TOL_EXACT);
    UNARY(SQRT, "sqrt(x)", KM_FLOATS, grad_sqrt, 0, 1, KM_TOL_ELEM);
    UNARY(RSQRT, "1 / sqrt(x)", KM_FLOATS, grad_rsqrt, 0, 1, KM_TOL_ELEM);
    UNARY(EXP, "exp(x)", KM_FLOATS, grad_exp, 0, 1, KM_TOL_TRANS);
    UNARY(LOG, "ln(x)", KM_FLOATS, grad_log, 1, 0, KM_TOL_TRANS);
    UNARY(SIN, "sin(x)", KM_FLOATS, grad_sin, 1, 0, KM_TOL_TRANS);
    UNARY(COS, "cos(x)", KM_FLOATS, grad_cos, 1, 0, KM_TOL_TRANS);
    UNARY(TANH, "tanh(x)", KM_FLOATS, grad_tanh, 0, 1, KM_TOL_TRANS);
    UNARY(SIGMOID, "1 / (1 + exp(-x))", KM_FLOATS, grad_sigmoid, 0, 1, KM_TOL_TRANS);
    UNARY(RELU, "max(x, 0)", KM_NUMBERS, grad_relu, 0, 1, KM_TOL_EXACT);
    UNARY(GELU, "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", KM_FLOATS, grad_gelu, 1, 0,
          KM_TOL_TRANS);
    UNARY(GELU_ERF, "x/2 (1 + erf(x / sqrt 2))", KM_FLOATS, grad_gelu_erf, 1, 0, KM_TOL_TRANS);
    UNARY(SILU, "x / (1 + exp(-x))", KM_FLOATS, grad_silu, 1, 0, KM_TOL_TRANS);
    UNARY(CLAMP, "min(max(x, lo), hi)", KM_NUMBERS, grad_clamp, 1, 0, KM_TOL_EXACT);
    UNARY(ADD_SCALAR, "x + s", KM_NUMBERS, grad_add_scalar, 0, 0, KM_TOL_ELEM);
    UNARY(MUL_SCALAR, "s x", KM_NUMBERS, grad_mul_scalar, 0, 0, KM_TOL_ELEM);
    UNARY(POW_SCALAR, "x^s", KM_FLOATS, grad_pow_scalar, 1, 0, KM_TOL_TRANS);
    t[KM_OP_CLAMP].infer = infer_clamp;
    PAIR(ABS_GRAD, "dy sign(x)", KM_TOL_EXACT);
    PAIR(SQRT_GRAD, "dy / (2 y)", KM_TOL_ELEM);
    PAIR(RSQRT_GRAD, "-dy y^3 / 2", KM_TOL_ELEM);
    PAIR(SIN_GRAD, "dy cos(x)", KM_TOL_TRANS);
    PAIR(COS_GRAD, "-dy sin(x)", KM_TOL_TRANS);
    PAIR(TANH_GRAD, "dy (1 - y^2)", KM_TOL_SLOPE);
    PAIR(SIGMOID_GRAD, "dy y (1 - y)", KM_TOL_ELEM);
    PAIR(RELU_GRAD, "y > 0 ? dy : 0", KM_TOL_EXACT);
    PAIR(GELU_GRAD, "dy gelu'(x)", KM_TOL_SLOPE);
    PAIR(GELU_ERF_GRAD, "dy gelu_erf'(x)", KM_TOL_SLOPE);
    PAIR(SILU_GRAD, "dy silu'(x)", KM_TOL_SLOPE);
    PAIR(CLAMP_GRAD, "lo <= x <= hi ? dy : 0", KM_TOL_EXACT);
}

#define PUBLIC1(name, OP)                                                                          \
    km_tensor *km_##name(km_ctx *ctx, km_tensor *x) { return km_apply1(ctx, KM_OP_##OP, x, NULL); }
PUBLIC1(neg, NEG)
PUBLIC1(abs, ABS)
PUBLIC1(sqrt, SQRT)
PUBLIC1(rsqrt, RSQRT)
PUBLIC1(exp, EXP)
PUBLIC1(log, LOG)
PUBLIC1(sin, SIN)
PUBLIC1(cos, COS)
PUBLIC1(tanh, TANH)
PUBLIC1(sigmoid, SIGMOID)
PUBLIC1(relu, RELU)
PUBLIC1(gelu, GELU)
PUBLIC1(gelu_erf, GELU_ERF)
PUBLIC1(silu, SILU)

km_tensor *km_clamp(km_ctx *ctx, km_tensor *x, double lo, double hi) {
    return km_apply1(ctx, KM_OP_CLAMP, x, &(km_params){.f = {[KM_F_LO] = lo, [KM_F_HI] = hi}});
}

km_tensor *km_add_scalar(km_ctx *ctx, km_tensor *a, double s) {
    return km_apply1(ctx, KM_OP_ADD_SCALAR, a, &(km_params){.f = {[KM_F_VALUE] = s}});
}

km_tensor *km_mul_scalar(km_ctx *ctx, km_tensor *a, double s) {
    return km_apply1(ctx, KM_OP_MUL_SCALAR, a, &(km_params){.f = {[KM_F_VALUE] = s}});
}

km_tensor *km_pow_scalar(km_ctx *ctx, km_tensor *a, double s) {
    return km_apply1(ctx, KM_OP_POW_SCALAR, a, &(km_params){.f = {[KM_F_VALUE] = s}});
}
