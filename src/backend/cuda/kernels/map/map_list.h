/* The elementwise ops of floats, one row each: X(OP, name, expression). The host needs OP and name;
 * the expressions are CUDA's, see math.cuh. p holds the op's numbers; scalars are doubles, so that
 * x + 0.1 is rounded once; T is the type of the tensors. Those in the CHAIN lists can be steps of a
 * chain (chain.cu), where long code would be in the way of the rest. For C and CUDA. */
#ifndef KM_CUDA_MAP_LIST_H
#define KM_CUDA_MAP_LIST_H

#define KM_UNARY_CHAIN_LIST(X)                                                                     \
    X(NEG, neg, -x)                                                                                \
    X(ABS, abs, fabsf(x))                                                                          \
    X(SQRT, sqrt, sqrtf(x))                                                                        \
    X(RSQRT, rsqrt, rsqrtf(x))                                                                     \
    X(EXP, exp, expf(x))                                                                           \
    X(LOG, log, log_of<sizeof(T) == 2>(x))                                                         \
    X(TANH, tanh, tanhf(x))                                                                        \
    X(SIGMOID, sigmoid, sigmoid(x))                                                                \
    X(RELU, relu, relu(x))                                                                         \
    X(GELU, gelu, gelu<sizeof(T) == 2>(x))                                                         \
    X(GELU_ERF, gelu_erf, gelu_erf<sizeof(T) == 2>(x))                                             \
    X(SILU, silu, silu(x))                                                                         \
    X(CLAMP, clamp, nan_min(nan_max(x, (float)p.f0), (float)p.f1))                                 \
    X(ADD_SCALAR, add_scalar, (float)((double)x + p.f0))                                           \
    X(MUL_SCALAR, mul_scalar, (float)((double)x * p.f0))
#define KM_UNARY_LIST(X)                                                                           \
    KM_UNARY_CHAIN_LIST(X)                                                                         \
    X(POW_SCALAR, pow_scalar, pow_scalar(x, p.f0))                                                 \
    X(SIN, sin, sinf(x))                                                                           \
    X(COS, cos, cosf(x))

/* dy, and v: the op's input x or its output y, whichever op_list.h names. */
#define KM_UNARY_GRAD_CHAIN_LIST(X)                                                                \
    X(ABS_GRAD, abs_grad, dy *(float)((v > 0) - (v < 0)))                                          \
    X(SQRT_GRAD, sqrt_grad, dy / (2 * v))                                                          \
    X(RSQRT_GRAD, rsqrt_grad, -0.5f * dy * v * v * v)                                              \
    X(TANH_GRAD, tanh_grad, dy *fmaf(-v, v, 1.0f))                                                 \
    X(SIGMOID_GRAD, sigmoid_grad, dy *v *(1.0f - v))                                               \
    X(RELU_GRAD, relu_grad, v > 0 ? dy : 0.0f)                                                     \
    X(GELU_GRAD, gelu_grad, dy *gelu_grad<sizeof(T) == 2>(v))                                      \
    X(GELU_ERF_GRAD, gelu_erf_grad, dy *gelu_erf_grad<sizeof(T) == 2>(v))                          \
    X(SILU_GRAD, silu_grad, dy *silu_grad(v))                                                      \
    X(CLAMP_GRAD, clamp_grad, v >= (float)p.f0 && v <= (float)p.f1 ? dy : 0.0f)
#define KM_UNARY_GRAD_LIST(X)                                                                      \
    KM_UNARY_GRAD_CHAIN_LIST(X)                                                                    \
    X(SIN_GRAD, sin_grad, dy *cosf(v))                                                             \
    X(COS_GRAD, cos_grad, -dy *sinf(v))

#define KM_BINARY_CHAIN_LIST(X)                                                                    \
    X(ADD, add, a + b)                                                                             \
    X(SUB, sub, a - b)                                                                             \
    X(MUL, mul, a *b)                                                                              \
    X(DIV, div, a / b)                                                                             \
    X(MAXIMUM, maximum, nan_max(a, b))                                                             \
    X(MINIMUM, minimum, nan_min(a, b))
#define KM_BINARY_LIST(X)                                                                          \
    KM_BINARY_CHAIN_LIST(X)                                                                        \
    X(POW, pow, powf(a, b))

#endif
