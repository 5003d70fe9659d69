/* Inner loops of binary ops, comparisons, and gradients of unary ops. */
#include "backend/cpu/simd/elementwise.h"
#include "backend/cpu/simd/map.h"
#include "backend/cpu/simd/vmath.h"

/* X(op, loop, value of the vectors a, b) */
#define BINARY_LIST(X)                                                                             \
    X(ADD, KM_MAP, a + b)                                                                          \
    X(SUB, KM_MAP, a - b)                                                                          \
    X(MUL, KM_MAP, a *b)                                                                           \
    X(DIV, KM_MAP, a / b)                                                                          \
    X(MAXIMUM, KM_MAP, v_max_nan(a, b))                                                            \
    X(MINIMUM, KM_MAP, v_min_nan(a, b))                                                            \
    X(POW, KM_MAP_LONG, v_pow(a, b))

/* X(op, loop, value of the incoming gradient a, the op's input or output b, and f0, f1) */
#define GRAD_LIST(X)                                                                               \
    X(ABS_GRAD, KM_MAP, sign_times(a, b))                                                          \
    X(SQRT_GRAD, KM_MAP, a * 0.5f / b)                                                             \
    X(RSQRT_GRAD, KM_MAP, a * -0.5f * b * b * b)                                                   \
    X(TANH_GRAD, KM_MAP, a *(1.0f - b) * (1.0f + b))                                               \
    X(SIGMOID_GRAD, KM_MAP, a *(1.0f - b) * b)                                                     \
    X(RELU_GRAD, KM_MAP, v_keep(v_gt(b, v_zero()), a))                                             \
    X(CLAMP_GRAD, KM_MAP, v_keep(vm_and(v_ge(b, f0), v_le(b, f1)), a))                             \
    X(SIN_GRAD, KM_MAP_LONG, a *v_cos(b))                                                          \
    X(COS_GRAD, KM_MAP_LONG, -a *v_sin(b))                                                         \
    X(GELU_GRAD, KM_MAP_LONG, a *v_gelu_deriv(b))                                                  \
    X(GELU_ERF_GRAD, KM_MAP_LONG, a *v_gelu_erf_deriv(b))                                          \
    X(SILU_GRAD, KM_MAP_LONG, a *v_silu_deriv(b))

/* a sign(b), with sign(0) = sign(NaN) = 0 */
KM_INLINE vf sign_times(vf a, vf b) {
    vf below = v_keep(v_lt(b, v_zero()), v_set1(-1.0f));
    return a * v_select(v_gt(b, v_zero()), v_set1(1.0f), below);
}

#define ARGS float *out, const float *a, const float *b, int64_t n, const float *f, bool stream

#define BINARY_ROWS(OP, MAP, value)                                                                \
    KM_INLINE vf value_##OP(vf a, vf b) { return value; }                                          \
    static void both_##OP(ARGS) {                                                                  \
        (void)f;                                                                                   \
        MAP(out, n, stream, (KM_FETCH(a + i), KM_FETCH(b + i)),                                    \
            value_##OP(v_load_m(a + i, m), v_load_m(b + i, m)));                                   \
    }                                                                                              \
    static void fixed_b_##OP(ARGS) {                                                               \
        vf y = v_set1(*b);                                                                         \
        (void)f;                                                                                   \
        MAP(out, n, stream, KM_FETCH(a + i), value_##OP(v_load_m(a + i, m), y));                   \
    }                                                                                              \
    static void fixed_a_##OP(ARGS) {                                                               \
        vf x = v_set1(*a);                                                                         \
        (void)f;                                                                                   \
        MAP(out, n, stream, KM_FETCH(b + i), value_##OP(x, v_load_m(b + i, m)));                   \
    }
BINARY_LIST(BINARY_ROWS)

#define GRAD_ROW(OP, MAP, value)                                                                   \
    KM_INLINE vf value_##OP(vf a, vf b, vf f0, vf f1) {                                            \
        (void)f0, (void)f1;                                                                        \
        return value;                                                                              \
    }                                                                                              \
    static void both_##OP(ARGS) {                                                                  \
        vf f0 = v_set1(f[0]), f1 = v_set1(f[1]);                                                   \
        MAP(out, n, stream, (KM_FETCH(a + i), KM_FETCH(b + i)),                                    \
            value_##OP(v_load_m(a + i, m), v_load_m(b + i, m), f0, f1));                           \
    }
GRAD_LIST(GRAD_ROW)

/* ---- Comparisons ---- */

/* 1 where the mask is set */
KM_INLINE void store_bools(uint8_t *out, vm mask) {
#ifdef KM_AVX512
    _mm_storeu_si128((__m128i *)(void *)out, _mm_maskz_set1_epi8(mask, 1));
#else
    typedef int8_t bytes __attribute__((vector_size(KM_VF)));
    bytes b = __builtin_convertvector(mask & 1, bytes);
    memcpy(out, &b, sizeof b);
#endif
}

#define COMPARE_LIST(X)                                                                            \
    X(EQ, v_eq(a, b))                                                                              \
    X(NE, v_ne(a, b)) X(LT, v_lt(a, b)) X(LE, v_le(a, b)) X(GT, v_gt(a, b)) X(GE, v_ge(a, b))

#define COMPARE_ROW(OP, value)                                                                     \
    KM_INLINE vm mask_##OP(vf a, vf b) { return value; }                                           \
    static void compare_##OP(uint8_t *out, const float *a, const float *b, int64_t n) {            \
        int64_t i = 0;                                                                             \
        for (; i + KM_VF <= n; i += KM_VF)                                                         \
            store_bools(out + i, mask_##OP(v_load(a + i), v_load(b + i)));                         \
        if (i < n) {                                                                               \
            uint8_t last[KM_VF];                                                                   \
            store_bools(last, mask_##OP(v_load_n(a + i, n - i), v_load_n(b + i, n - i)));          \
            memcpy(out + i, last, (size_t)(n - i));                                                \
        }                                                                                          \
    }
COMPARE_LIST(COMPARE_ROW)

#define BOTH(OP, MAP, value) [KM_OP_##OP] = both_##OP,
#define FIXED_B(OP, MAP, value) [KM_OP_##OP] = fixed_b_##OP,
#define FIXED_A(OP, MAP, value) [KM_OP_##OP] = fixed_a_##OP,
#define COMPARE(OP, value) [KM_OP_##OP] = compare_##OP,

const km_binary_rows KM_SIMD(km_simd_binary) = {
    .both = {BINARY_LIST(BOTH) GRAD_LIST(BOTH)},
    .fixed_b = {BINARY_LIST(FIXED_B)},
    .fixed_a = {BINARY_LIST(FIXED_A)},
    .compare = {COMPARE_LIST(COMPARE)},
};
