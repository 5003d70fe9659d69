/* Elementwise ops on integers, by plain loops the compiler vectorises. Arithmetic wraps around:
 * it is done unsigned, where that is defined. Division truncates, and x / 0 is 0. */
#include "backend/cpu/cast.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/walk.h"

typedef void (*run_fn)(void *out, int64_t so, const void *a, int64_t sa, const void *b, int64_t sb,
                       int64_t n);

static int64_t quotient(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y; /* the smallest has no positive twin */
}

/* out[i] = value of x and y; U is wide enough for the arithmetic and unsigned. */
#define LOOP(name, TO, T, U, value)                                                                \
    static void name##_##T(void *out, int64_t so, const void *a, int64_t sa, const void *b,        \
                           int64_t sb, int64_t n) {                                                \
        TO *o = out;                                                                               \
        const T *p = a, *q = b;                                                                    \
        if (so == 1 && sa == 1 && sb == 1) {                                                       \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T x = p[i], y = q[i];                                                              \
                o[i] = (TO)(value);                                                                \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T x = p[i * sa], y = q[i * sb];                                                    \
                o[i * so] = (TO)(value);                                                           \
            }                                                                                      \
        }                                                                                          \
    }
#define ARITHMETIC(T, U)                                                                           \
    LOOP(add, T, T, U, (U)x + (U)y)                                                                \
    LOOP(sub, T, T, U, (U)x - (U)y)                                                                \
    LOOP(mul, T, T, U, (U)x *(U)y)                                                                 \
    LOOP(div, T, T, U, quotient(x, y))                                                             \
    LOOP(max, T, T, U, x > y ? x : y)                                                              \
    LOOP(min, T, T, U, x < y ? x : y)                                                              \
    LOOP(eq, uint8_t, T, U, x == y)                                                                \
    LOOP(ne, uint8_t, T, U, x != y)                                                                \
    LOOP(lt, uint8_t, T, U, x < y)                                                                 \
    LOOP(le, uint8_t, T, U, x <= y)
ARITHMETIC(int32_t, uint32_t)
ARITHMETIC(int64_t, uint64_t)
ARITHMETIC(uint8_t, uint32_t)
ARITHMETIC(int8_t, uint32_t)

#define FOR_TYPES(name)                                                                            \
    {                                                                                              \
        [KM_I32] = name##_int32_t, [KM_I64] = name##_int64_t, [KM_U8] = name##_uint8_t,            \
        [KM_I8] = name##_int8_t                                                                    \
    }
static const run_fn loops[KM_OP_COUNT][KM_DTYPE_COUNT] = {
    [KM_OP_ADD] = FOR_TYPES(add),     [KM_OP_SUB] = FOR_TYPES(sub),
    [KM_OP_MUL] = FOR_TYPES(mul),     [KM_OP_DIV] = FOR_TYPES(div),
    [KM_OP_MAXIMUM] = FOR_TYPES(max), [KM_OP_MINIMUM] = FOR_TYPES(min),
    [KM_OP_EQ] = FOR_TYPES(eq),       [KM_OP_NE] = FOR_TYPES(ne),
    [KM_OP_LT] = FOR_TYPES(lt),       [KM_OP_LE] = FOR_TYPES(le),
};

typedef struct integer_job {
    run_fn fn, then;
    int64_t so, sa, sb;
    _Alignas(8) unsigned char first[8], second[8]; /* scalars, in the tensors' dtype */
    bool scalar_left;
} integer_job;

static void binary_run(void *arg, char *const *ptr, int64_t n) {
    const integer_job *j = arg;
    j->fn(ptr[0], j->so, ptr[1], j->sa, ptr[2], j->sb, n);
}

static km_status walk_pair(km_ctx *ctx, const km_tensor *out, const km_tensor *a,
                           const km_tensor *b, run_fn fn) {
    if (!fn) return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 3, (const km_tensor *[]){out, a, b});
    int last = it.ndim - 1;
    integer_job j = {
        .fn = fn, .so = it.stride[0][last], .sa = it.stride[1][last], .sb = it.stride[2][last]};
    km_cpu_walk(ctx, &it, 4, binary_run, &j);
    return KM_OK;
}

km_status km_cpu_binary_integers(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *a = c->in[0], *b = c->in[1];
    if (b->dtype != a->dtype || out->dtype != a->dtype) return KM_ERR_UNSUPPORTED;
    return walk_pair(ctx, out, a, b, loops[c->op][a->dtype]);
}

km_status km_cpu_compare_integers(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1];
    if (b->dtype != a->dtype || c->out[0]->dtype != KM_BOOL) return KM_ERR_UNSUPPORTED;
    km_op op = c->op;
    if (op == KM_OP_GT || op == KM_OP_GE) { /* the mirror image */
        const km_tensor *t = a;
        a = b;
        b = t;
        op = op == KM_OP_GT ? KM_OP_LT : KM_OP_LE;
    }
    km_dtype d = a->dtype == KM_BOOL ? KM_U8 : a->dtype; /* a bool's byte is 0 or 1 */
    return walk_pair(ctx, c->out[0], a, b, loops[op][d]);
}

/* ---- Unary: a scalar stands for the second operand ---- */

static void unary_run(void *arg, char *const *ptr, int64_t n) {
    const integer_job *j = arg;
    if (j->scalar_left)
        j->fn(ptr[0], j->so, j->first, 0, ptr[1], j->sa, n);
    else
        j->fn(ptr[0], j->so, ptr[1], j->sa, j->first, 0, n);
    if (j->then) j->then(ptr[0], j->so, ptr[0], j->so, j->second, 0, n);
}

/* |x| = max(x, 0 - x), which needs x twice */
#define ABS_LOOP(T, U)                                                                             \
    static void abs_##T(void *out, int64_t so, const void *a, int64_t sa, const void *b,           \
                        int64_t sb, int64_t n) {                                                   \
        T *o = out;                                                                                \
        const T *p = a;                                                                            \
        (void)b, (void)sb;                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = p[i * sa];                                                                       \
            o[i * so] = x < 0 ? (T)(0 - (U)x) : x;                                                 \
        }                                                                                          \
    }
ABS_LOOP(int32_t, uint32_t)
ABS_LOOP(int64_t, uint64_t)
ABS_LOOP(int8_t, uint32_t)

static void abs_uint8_t(void *out, int64_t so, const void *a, int64_t sa, const void *b, int64_t sb,
                        int64_t n) {
    max_uint8_t(out, so, a, sa, b, sb, n); /* with 0: x itself */
}

km_status km_cpu_unary_integers(km_ctx *ctx, const km_call *c) {
    static const run_fn absolute[KM_DTYPE_COUNT] = FOR_TYPES(abs);
    const km_tensor *out = c->out[0], *x = c->in[0];
    km_dtype d = x->dtype;
    if (km_dtype_is_float(d) || d == KM_BOOL || out->dtype != d) return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 2, (const km_tensor *[]){out, x});
    int last = it.ndim - 1;
    integer_job j = {.so = it.stride[0][last], .sa = it.stride[1][last]};
    switch (c->op) {
    case KM_OP_NEG:
        j.fn = loops[KM_OP_SUB][d];
        j.scalar_left = true;
        break;
    case KM_OP_ABS: j.fn = absolute[d]; break;
    case KM_OP_RELU: j.fn = loops[KM_OP_MAXIMUM][d]; break;
    case KM_OP_ADD_SCALAR: j.fn = loops[KM_OP_ADD][d]; break;
    case KM_OP_MUL_SCALAR: j.fn = loops[KM_OP_MUL][d]; break;
    case KM_OP_CLAMP:
        j.fn = loops[KM_OP_MAXIMUM][d];
        j.then = loops[KM_OP_MINIMUM][d];
        break;
    default: return KM_ERR_UNSUPPORTED;
    }
    if (c->op == KM_OP_CLAMP || c->op == KM_OP_ADD_SCALAR || c->op == KM_OP_MUL_SCALAR) {
        km_cast_doubles(d, j.first, 1, &c->p->f[KM_F_LO], 1);
        km_cast_doubles(d, j.second, 1, &c->p->f[KM_F_HI], 1);
    }
    km_cpu_walk(ctx, &it, 4, unary_run, &j);
    return KM_OK;
}
