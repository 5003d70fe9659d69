/* The elementwise ops of floats, one row each: X(OP, name, vectors, expression). `vectors` is how
 * many 16-byte vectors a thread of the contiguous kernel handles (half of that, at least one, for
 * 16-bit types, whose vectors hold twice the elements): enough loads in flight, little enough code.
 * The host needs OP, name and vectors; the expressions are CUDA's, see math.cuh. p holds the op's
 * numbers; scalars are doubles, so that x + 0.1 is rounded once. For C and CUDA. */
#ifndef KM_CUDA_MAP_LIST_H
#define KM_CUDA_MAP_LIST_H

#define KM_UNARY_LIST(X)                                                                           \
    X(NEG, neg, 4, -x)                                                                             \
    X(ABS, abs, 4, fabsf(x))                                                                       \
    X(SQRT, sqrt, 2, sqrtf(x))                                                                     \
    X(RSQRT, rsqrt, 2, rsqrtf(x))                                                                  \
    X(EXP, exp, 2, expf(x))                                                                        \
    X(LOG, log, 2, logf(x))                                                                        \
    X(SIN, sin, 1, sinf(x))                                                                        \
    X(COS, cos, 1, cosf(x))                                                                        \
    X(TANH, tanh, 2, tanhf(x))                                                                     \
    X(SIGMOID, sigmoid, 2, sigmoid(x))                                                             \
    X(RELU, relu, 4, relu(x))                                                                      \
    X(GELU, gelu, 2, gelu(x))                                                                      \
    X(GELU_ERF, gelu_erf, 2, gelu_erf(x))                                                          \
    X(SILU, silu, 2, silu(x))                                                                      \
    X(CLAMP, clamp, 4, nan_min(nan_max(x, (float)p.f0), (float)p.f1))                              \
    X(ADD_SCALAR, add_scalar, 4, (float)((double)x + p.f0))                                        \
    X(MUL_SCALAR, mul_scalar, 4, (float)((double)x * p.f0))

/* dy, and v: the op's input x or its output y, whichever op_list.h names. */
#define KM_UNARY_GRAD_LIST(X)                                                                      \
    X(ABS_GRAD, abs_grad, 2, dy * (float)((v > 0) - (v < 0)))                                      \
    X(SQRT_GRAD, sqrt_grad, 2, dy / (2 * v))                                                       \
    X(RSQRT_GRAD, rsqrt_grad, 2, -0.5f * dy * v * v * v)                                           \
    X(SIN_GRAD, sin_grad, 1, dy * cosf(v))                                                         \
    X(COS_GRAD, cos_grad, 1, -dy * sinf(v))                                                        \
    X(TANH_GRAD, tanh_grad, 2, dy * fmaf(-v, v, 1.0f))                                             \
    X(SIGMOID_GRAD, sigmoid_grad, 2, dy * v * (1.0f - v))                                          \
    X(RELU_GRAD, relu_grad, 2, v > 0 ? dy : 0.0f)                                                  \
    X(GELU_GRAD, gelu_grad, 2, dy * gelu_grad(v))                                                  \
    X(GELU_ERF_GRAD, gelu_erf_grad, 2, dy * gelu_erf_grad(v))                                      \
    X(SILU_GRAD, silu_grad, 2, dy * silu_grad(v))                                                  \
    X(CLAMP_GRAD, clamp_grad, 2, v >= (float)p.f0 && v <= (float)p.f1 ? dy : 0.0f)

#define KM_BINARY_LIST(X)                                                                          \
    X(ADD, add, 2, a + b)                                                                          \
    X(SUB, sub, 2, a - b)                                                                          \
    X(MUL, mul, 2, a * b)                                                                          \
    X(DIV, div, 2, a / b)                                                                          \
    X(POW, pow, 1, powf(a, b))                                                                     \
    X(MAXIMUM, maximum, 2, nan_max(a, b))                                                          \
    X(MINIMUM, minimum, 2, nan_min(a, b))

#endif
