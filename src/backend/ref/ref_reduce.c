/* Reference reductions over any set of axes. x is walked twice over: the outer walk goes over the
 * kept axes in the order of the output's elements, the inner walk over the reduced ones. */
#include "backend/ref/ref.h"

/* x's shape with only the reduced axes (or only the others) left, the rest set to size 1. */
static km_shape only(const km_tensor *x, uint32_t axes, bool reduced) {
    km_shape s = x->shape;
    for (int a = 0; a < s.ndim; a++)
        if (((axes >> a) & 1) != reduced) s.dim[a] = 1;
    return s;
}

/* How far an inner index lies from the outer one. */
static int64_t inner_pos(const km_tensor *x, const int64_t i[]) {
    return km_ref_pos(x, i) - x->offset;
}

/* Sum of x - minus, or of its square, over the inner walk from position `base`. */
static double sum_of(const km_tensor *x, int64_t base, km_shape inner, double minus, bool square) {
    km_ref_sum s = {0};
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, inner) {
        double v = km_ref_load(x, base + inner_pos(x, i)) - minus;
        km_ref_sum_add(&s, square ? v * v : v);
    }
    return km_ref_sum_value(&s);
}

static int64_t whole_sum_of(const km_tensor *x, int64_t base, km_shape inner) {
    uint64_t s = 0; /* wraps around */
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, inner) s += (uint64_t)km_ref_load_int(x, base + inner_pos(x, i));
    return (int64_t)s;
}

static double max_of(const km_tensor *x, int64_t base, km_shape inner) {
    double m = -INFINITY;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, inner) m = km_ref_max(m, km_ref_load(x, base + inner_pos(x, i)));
    return m;
}

/* log sum exp(x), from the largest down; an infinite or NaN largest is the answer itself. */
static double logsumexp_of(const km_tensor *x, int64_t base, km_shape inner) {
    double m = max_of(x, base, inner);
    if (!isfinite(m)) return m;
    km_ref_sum s = {0};
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, inner) km_ref_sum_add(&s, exp(km_ref_load(x, base + inner_pos(x, i)) - m));
    return m + log(km_ref_sum_value(&s));
}

/* sum, mean, var, sumsq, logsumexp: x -> out. Over no elements: 0, NaN, NaN, 0, -inf. */
km_status km_ref_reduce(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_shape outer = only(x, c->p->axes, false), inner = only(x, c->p->axes, true);
    double n = 1; /* elements that go into one output */
    for (int a = 0; a < inner.ndim; a++) n *= (double)inner.dim[a];

    int64_t i[KM_MAX_DIMS], k = 0;
    KM_REF_EACH(i, outer) {
        int64_t base = km_ref_pos(x, i), to = km_ref_nth(out, k++);
        double mean;
        switch (c->op) {
        case KM_OP_SUM:
            if (km_dtype_is_float(x->dtype))
                km_ref_store(out, to, sum_of(x, base, inner, 0, false));
            else
                km_ref_store_int(out, to, whole_sum_of(x, base, inner));
            break;
        case KM_OP_MEAN: km_ref_store(out, to, sum_of(x, base, inner, 0, false) / n); break;
        case KM_OP_VAR:
            mean = sum_of(x, base, inner, 0, false) / n;
            km_ref_store(out, to,
                         sum_of(x, base, inner, mean, true) /
                             fmax(n - (double)c->p->n[KM_N_CORRECTION], 0));
            break;
        case KM_OP_SUMSQ: km_ref_store(out, to, sum_of(x, base, inner, 0, true)); break;
        default: /* KM_OP_LOGSUMEXP */ km_ref_store(out, to, logsumexp_of(x, base, inner)); break;
        }
    }
    return KM_OK;
}

/* The largest element as seen from `base`: how many elements the inner walk meets before it (-1
 * when there are none at all), and its position. NaN counts as largest; the first of equals. */
static int64_t largest(const km_tensor *x, int64_t base, km_shape inner, int64_t *pos) {
    int64_t best = -1, n = 0, i[KM_MAX_DIMS];
    KM_REF_EACH(i, inner) {
        int64_t at = base + inner_pos(x, i);
        bool better;
        if (best < 0) {
            better = true;
        } else if (km_dtype_is_float(x->dtype)) {
            double v = km_ref_load(x, at), top = km_ref_load(x, *pos);
            better = v > top || (isnan(v) && !isnan(top));
        } else {
            better = km_ref_load_int(x, at) > km_ref_load_int(x, *pos);
        }
        if (better) {
            best = n;
            *pos = at;
        }
        n++;
    }
    return best;
}

/* x -> out; over no elements -inf, or the dtype's smallest integer */
km_status km_ref_reduce_max(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_shape outer = only(x, c->p->axes, false), inner = only(x, c->p->axes, true);
    int64_t i[KM_MAX_DIMS], k = 0, pos = 0;
    KM_REF_EACH(i, outer) {
        int64_t to = km_ref_nth(out, k++);
        if (largest(x, km_ref_pos(x, i), inner, &pos) >= 0)
            km_ref_move(out, to, x, pos);
        else
            km_ref_store(out, to, -INFINITY);
    }
    return KM_OK;
}

/* x -> out (i64): the index along the reduced axis; over no elements 0 */
km_status km_ref_argmax(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_shape outer = only(x, c->p->axes, false), inner = only(x, c->p->axes, true);
    int64_t i[KM_MAX_DIMS], k = 0, pos = 0;
    KM_REF_EACH(i, outer) {
        int64_t at = largest(x, km_ref_pos(x, i), inner, &pos);
        km_ref_store_int(out, km_ref_nth(out, k++), at < 0 ? 0 : at);
    }
    return KM_OK;
}
