/* Reference kernels for two or more operands, element by element, and those that pick or drop
 * elements: binary ops, comparisons, where, masked_fill, triu and tril, dropout. Operands have
 * the output's shape; broadcasting has already been written into their strides. */
#include "backend/ref/ref.h"
#include "base/rng.h"

/* ---- Binary ops. Floats in double; integers in int64, wrapping around. ---- */

static double real_add(double a, double b) { return a + b; }
static double real_sub(double a, double b) { return a - b; }
static double real_mul(double a, double b) { return a * b; }
static double real_div(double a, double b) { return a / b; }

/* Unsigned arithmetic wraps by definition, and gives the same bits. */
static int64_t whole_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t whole_sub(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static int64_t whole_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t whole_max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t whole_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Truncates towards zero; x / 0 = 0. */
static int64_t whole_div(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return whole_sub(0, a); /* the smallest integer has no positive twin */
    return a / b;
}

/* a^b; for negative b the truncated 1 / a^-b. */
static int64_t whole_pow(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    int64_t result = 1;
    for (; b; b /= 2) {
        if (b % 2) result = whole_mul(result, a);
        a = whole_mul(a, a);
    }
    return result;
}

static const struct {
    double (*real)(double, double);
    int64_t (*whole)(int64_t, int64_t);
} binary[KM_OP_COUNT] = {
    [KM_OP_ADD] = {real_add, whole_add},
    [KM_OP_SUB] = {real_sub, whole_sub},
    [KM_OP_MUL] = {real_mul, whole_mul},
    [KM_OP_DIV] = {real_div, whole_div},
    [KM_OP_POW] = {pow, whole_pow},
    [KM_OP_MAXIMUM] = {km_ref_max, whole_max},
    [KM_OP_MINIMUM] = {km_ref_min, whole_min},
};

/* a, b -> out */
km_status km_ref_binary(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        if (km_dtype_is_float(a->dtype))
            km_ref_set(out, i, binary[c->op].real(km_ref_get(a, i), km_ref_get(b, i)));
        else
            km_ref_set_int(out, i, binary[c->op].whole(km_ref_get_int(a, i), km_ref_get_int(b, i)));
    }
    return KM_OK;
}

/* ---- Comparisons ---- */

/* What an op says of a < b, a == b and a > b; unordered operands (NaN) are none of these. */
static bool comparison(km_op op, bool less, bool equal, bool greater) {
    switch (op) {
    case KM_OP_EQ: return equal;
    case KM_OP_NE: return !equal;
    case KM_OP_LT: return less;
    case KM_OP_LE: return less || equal;
    case KM_OP_GT: return greater;
    default: return greater || equal;
    }
}

/* a, b -> out (bool) */
km_status km_ref_compare(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        bool yes;
        if (km_dtype_is_float(a->dtype)) {
            double x = km_ref_get(a, i), y = km_ref_get(b, i);
            yes = comparison(c->op, x<y, x == y, x> y);
        } else {
            int64_t x = km_ref_get_int(a, i), y = km_ref_get_int(b, i);
            yes = comparison(c->op, x<y, x == y, x> y);
        }
        km_ref_set_int(out, i, yes);
    }
    return KM_OK;
}

/* ---- Choosing and dropping ---- */

/* cond, a, b -> out = cond ? a : b */
km_status km_ref_where(km_ctx *ctx, const km_call *c) {
    const km_tensor *cond = c->in[0], *a = c->in[1], *b = c->in[2], *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        const km_tensor *pick = km_ref_get(cond, i) != 0 ? a : b;
        km_ref_move(out, km_ref_pos(out, i), pick, km_ref_pos(pick, i));
    }
    return KM_OK;
}

/* x, mask -> out = mask ? value : x */
km_status km_ref_masked_fill(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *mask = c->in[1], *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        if (km_ref_get(mask, i) != 0)
            km_ref_set(out, i, c->p->f[KM_F_VALUE]);
        else
            km_ref_move(out, km_ref_pos(out, i), x, km_ref_pos(x, i));
    }
    return KM_OK;
}

/* triu and tril: x (..., r, c) -> out, 0 below (above) the diagonal n[0] */
km_status km_ref_triangle(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int64_t i[KM_MAX_DIMS], diagonal = c->p->n[KM_N_DIAGONAL];
    int row = out->shape.ndim - 2, col = out->shape.ndim - 1;
    KM_REF_EACH(i, out->shape) {
        int64_t d = i[col] - i[row];
        if (c->op == KM_OP_TRIU ? d >= diagonal : d <= diagonal)
            km_ref_move(out, km_ref_pos(out, i), x, km_ref_pos(x, i));
        else
            km_ref_set_int(out, i, 0);
    }
    return KM_OK;
}

/* x -> out: element n (row-major) lives when its uniform number is at least p */
km_status km_ref_dropout(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    double p = c->p->f[KM_F_DROP], scale = 1 / (1 - p);
    int64_t i[KM_MAX_DIMS];
    uint64_t n = 0;
    KM_REF_EACH(i, out->shape) {
        uint32_t word = km_philox(c->p->seed, c->p->stream, n / 4).v[n % 4];
        bool lives = (double)km_u32_to_unit(word) >= p;
        km_ref_set(out, i, lives ? km_ref_get(x, i) * scale : 0);
        n++;
    }
    return KM_OK;
}
