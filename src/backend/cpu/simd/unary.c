/* Inner loops of unary ops. */
#include "backend/cpu/simd/elementwise.h"
#include "backend/cpu/simd/map.h"
#include "backend/cpu/simd/vmath.h"

/* X(op, loop, value of the vector x and the op's numbers f0, f1) */
#define UNARY_LIST(X)                                                                              \
    X(NEG, KM_MAP, v_neg(x))                                                                       \
    X(ABS, KM_MAP, v_abs(x))                                                                       \
    X(RELU, KM_MAP, v_max(v_zero(), x)) /* x when x is NaN or -0 */                                \
    X(CLAMP, KM_MAP, v_min(f1, v_max(f0, x)))                                                      \
    X(ADD_SCALAR, KM_MAP, (x + f0) + f1) /* the scalar in two parts */                             \
    X(MUL_SCALAR, KM_MAP, x *f0)                                                                   \
    X(POW_SCALAR, KM_MAP_LONG, v_pow(x, f0))                                                       \
    X(SQRT, KM_MAP_LONG, v_sqrt(x))                                                                \
    X(RSQRT, KM_MAP_LONG, v_rsqrt(x))                                                              \
    X(EXP, KM_MAP_LONG, v_exp(x))                                                                  \
    X(LOG, KM_MAP_LONG, v_log(x))                                                                  \
    X(SIN, KM_MAP_LONG, v_sin(x))                                                                  \
    X(COS, KM_MAP_LONG, v_cos(x))                                                                  \
    X(TANH, KM_MAP_LONG, v_tanh(x))                                                                \
    X(SIGMOID, KM_MAP_LONG, v_sigmoid(x))                                                          \
    X(GELU, KM_MAP_LONG, v_gelu(x))                                                                \
    X(GELU_ERF, KM_MAP_LONG, v_gelu_erf(x))                                                        \
    X(SILU, KM_MAP_LONG, v_silu(x))

#define ROW(OP, MAP, value)                                                                        \
    KM_INLINE vf value_##OP(vf x, vf f0, vf f1) {                                                  \
        (void)f0, (void)f1;                                                                        \
        return value;                                                                              \
    }                                                                                              \
    static void row_##OP(float *out, const float *x, int64_t n, const float *f, bool stream) {     \
        vf f0 = v_set1(f[0]), f1 = v_set1(f[1]);                                                   \
        MAP(out, n, stream, KM_FETCH(x + i), value_##OP(v_load_m(x + i, m), f0, f1));              \
    }
UNARY_LIST(ROW)

#define ENTRY(OP, MAP, value) [KM_OP_##OP] = row_##OP,
const km_unary_rows KM_SIMD(km_simd_unary) = {.row = {UNARY_LIST(ENTRY)}};
