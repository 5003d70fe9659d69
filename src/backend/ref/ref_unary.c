/* Reference kernels for one operand, element by element, and their gradients. */
#include "backend/ref/ref.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_HALF 0.70710678118654752440
#define ONE_OVER_SQRT_2PI 0.39894228040143267794
#define GELU_CUBIC 0.044715

/* ---- Activations ---- */

static double relu(double x) { return km_ref_max(x, 0); }

/* x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 = sigmoid(2u),
 * it is computed that way: 1 + tanh(u) would lose all digits where u is far below zero. */
static double gelu_gate(double x) {
    return km_ref_sigmoid(2 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
}
static double gelu(double x) { return x * gelu_gate(x); }

/* The slope of an activation that runs into y = 0 on the left and y = x on the right. */
static double slope_at_infinity(double x) { return x > 0 ? 1 : 0; }

static double gelu_grad(double x) {
    if (isinf(x)) return slope_at_infinity(x);
    double s = gelu_gate(x);
    double slope = 2 * SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
    return s + x * s * (1 - s) * slope;
}

/* x/2 (1 + erf(x / sqrt 2)); 1 + erf(z) = erfc(-z), which keeps its digits for negative x */
static double normal_cdf(double x) { return 0.5 * erfc(-x * SQRT_HALF); }
static double gelu_erf(double x) { return x * normal_cdf(x); }
static double gelu_erf_grad(double x) {
    if (isinf(x)) return slope_at_infinity(x);
    return normal_cdf(x) + x * ONE_OVER_SQRT_2PI * exp(-0.5 * x * x);
}

static double silu(double x) { return x * km_ref_sigmoid(x); }
static double silu_grad(double x) {
    if (isinf(x)) return slope_at_infinity(x);
    double s = km_ref_sigmoid(x);
    return s + x * s * (1 - s);
}

double km_ref_activation(km_act act, double x) {
    switch (act) {
    case KM_ACT_RELU: return relu(x);
    case KM_ACT_GELU: return gelu(x);
    case KM_ACT_GELU_ERF: return gelu_erf(x);
    case KM_ACT_SILU: return silu(x);
    default: return x;
    }
}

/* ---- Forward ---- */

static double unary_real(km_op op, double x, const double f[]) {
    switch (op) {
    case KM_OP_NEG: return -x;
    case KM_OP_ABS: return fabs(x);
    case KM_OP_SQRT: return sqrt(x);
    case KM_OP_RSQRT: return 1 / sqrt(x);
    case KM_OP_EXP: return exp(x);
    case KM_OP_LOG: return log(x);
    case KM_OP_SIN: return sin(x);
    case KM_OP_COS: return cos(x);
    case KM_OP_TANH: return tanh(x);
    case KM_OP_SIGMOID: return km_ref_sigmoid(x);
    case KM_OP_RELU: return relu(x);
    case KM_OP_GELU: return gelu(x);
    case KM_OP_GELU_ERF: return gelu_erf(x);
    case KM_OP_SILU: return silu(x);
    case KM_OP_CLAMP: return km_ref_min(km_ref_max(x, f[0]), f[1]);
    case KM_OP_ADD_SCALAR: return x + f[0];
    case KM_OP_MUL_SCALAR: return x * f[0];
    case KM_OP_POW_SCALAR: return pow(x, f[0]);
    default: return NAN;
    }
}

/* The ops that make sense on integers, exactly and wrapping around; a and b are f[0] and f[1]
 * cast to the tensor's dtype. */
static int64_t unary_whole(km_op op, int64_t x, int64_t a, int64_t b) {
    uint64_t negated = 0 - (uint64_t)x;
    switch (op) {
    case KM_OP_NEG: return (int64_t)negated;
    case KM_OP_ABS: return x < 0 ? (int64_t)negated : x;
    case KM_OP_RELU: return x > 0 ? x : 0;
    case KM_OP_CLAMP: x = x < a ? a : x; return x > b ? b : x;
    case KM_OP_ADD_SCALAR: return (int64_t)((uint64_t)x + (uint64_t)a);
    default: return (int64_t)((uint64_t)x * (uint64_t)a); /* KM_OP_MUL_SCALAR */
    }
}

static bool has_whole(km_op op) {
    return op == KM_OP_NEG || op == KM_OP_ABS || op == KM_OP_RELU || op == KM_OP_CLAMP ||
           op == KM_OP_ADD_SCALAR || op == KM_OP_MUL_SCALAR;
}

/* x -> out */
km_status km_ref_unary(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    const double *f = c->p->f;
    bool whole = !km_dtype_is_float(x->dtype) && has_whole(c->op);
    int64_t a = km_ref_to_int(x->dtype, f[0]), b = km_ref_to_int(x->dtype, f[1]);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        if (whole)
            km_ref_set_int(out, i, unary_whole(c->op, km_ref_get_int(x, i), a, b));
        else
            km_ref_set(out, i, unary_real(c->op, km_ref_get(x, i), f));
    }
    return KM_OK;
}

/* ---- Gradients ---- */

/* v is the op's input x or its output y, whichever op_list.h names. */
static double unary_grad(km_op op, double dy, double v, const double f[]) {
    switch (op) {
    case KM_OP_ABS_GRAD: return dy * ((v > 0) - (v < 0));
    case KM_OP_SQRT_GRAD: return dy / (2 * v);
    case KM_OP_RSQRT_GRAD: return -0.5 * dy * v * v * v;
    case KM_OP_SIN_GRAD: return dy * cos(v);
    case KM_OP_COS_GRAD: return -dy * sin(v);
    case KM_OP_TANH_GRAD: return dy * (1 - v * v);
    case KM_OP_SIGMOID_GRAD: return dy * v * (1 - v);
    case KM_OP_RELU_GRAD: return v > 0 ? dy : 0;
    case KM_OP_GELU_GRAD: return dy * gelu_grad(v);
    case KM_OP_GELU_ERF_GRAD: return dy * gelu_erf_grad(v);
    case KM_OP_SILU_GRAD: return dy * silu_grad(v);
    case KM_OP_CLAMP_GRAD: return v >= f[0] && v <= f[1] ? dy : 0;
    default: return NAN;
    }
}

/* dy, x or y -> dx */
km_status km_ref_unary_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *v = c->in[1], *dx = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, dx->shape)
    km_ref_set(dx, i, unary_grad(c->op, km_ref_get(dy, i), km_ref_get(v, i), c->p->f));
    return KM_OK;
}
