/* The verify engine. Both sides get the same bits; the reference computes in double and rounds
 * once, so what is measured is the fast kernel's own error. */
#include "ops/verify.h"
#include "ops/cases.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

double km_tolerance(km_tol tol, km_dtype d, int64_t length) {
    double unit = d == KM_F16 ? 0x1p-11 : d == KM_BF16 ? 0x1p-8 : 0x1p-24;
    bool half = d == KM_F16 || d == KM_BF16;
    if (!km_dtype_is_float(d)) return 0;
    switch (tol) {
    case KM_TOL_EXACT: return 0;
    case KM_TOL_ELEM: return half ? 2 * unit : 1e-6; /* two roundings of nearly the same value */
    case KM_TOL_SLOPE:
    case KM_TOL_TRANS: return half ? 2 * unit + 1e-5 : 1e-5;
    case KM_TOL_RANDOM: return half ? 2 * unit + 1e-5 : 1e-5;
    case KM_TOL_BITS: return 3.0 / 127 + 2 * unit; /* of short rows, too, and of two factors */
    case KM_TOL_WORDS: return 1e-3 + 2 * unit;
    case KM_TOL_SUM: return 2 * unit + 0x1p-24 * (16 + 4 * sqrt((double)length));
    }
    return 0;
}

typedef struct tally {
    double max, sum;
    int64_t n;
    char why[64]; /* the first mismatch that no tolerance excuses */
} tally;

static double load(const void *base, km_dtype d, int64_t i) {
    switch (d) {
    case KM_F32: return ((const float *)base)[i];
    case KM_F64: return ((const double *)base)[i];
    case KM_F16: return km_f16_to_f32(((const uint16_t *)base)[i]);
    case KM_BF16: return km_bf16_to_f32(((const uint16_t *)base)[i]);
    case KM_I32: return ((const int32_t *)base)[i];
    case KM_I64: return (double)((const int64_t *)base)[i];
    case KM_I8: return ((const int8_t *)base)[i];
    default: return ((const uint8_t *)base)[i];
    }
}

static double largest(const km_tensor *t) { /* finite magnitude, of a contiguous host tensor */
    double m = 0;
    int64_t n = km_shape_count(t->shape);
    for (int64_t i = 0; i < n; i++) {
        double v = fabs(load(km_tensor_ptr(t), t->dtype, i));
        if (isfinite(v) && v > m) m = v;
    }
    return m;
}

/* Below the smallest normal number relative error means nothing. */
static double floor_of(km_tol tol, km_dtype d) {
    double smallest = d == KM_F16 ? 0x1p-14 : FLT_MIN, step = d == KM_F16 ? 0x1p-24 : 0x1p-149;
    return tol == KM_TOL_TRANS || tol == KM_TOL_SLOPE ? smallest * 1e-3
           : d == KM_BF16                             ? 0x1p-133
                                                      : step;
}

/* `size`, when there, gives each element's own magnitude to measure against. */
static void compare(const km_tensor *want, const km_tensor *got, km_tol tol, double scale,
                    const km_tensor *size, tally *t) {
    km_dtype d = want->dtype;
    int64_t n = km_shape_count(want->shape);
    double most = d == KM_F16 ? 65504 : d == KM_BF16 ? 3.38e38 : FLT_MAX, tiny = floor_of(tol, d);
    for (int64_t i = 0; i < n; i++) {
        double w = load(km_tensor_ptr(want), d, i), g = load(km_tensor_ptr(got), d, i);
        t->n++;
        if (w == g || (isnan(w) && isnan(g))) continue;
        if (!isfinite(w) || !isfinite(g)) {
            /* One step around the largest finite number is rounding, anything else a mistake. */
            bool edge = !isnan(w) && !isnan(g) && tol != KM_TOL_EXACT && (w > 0) == (g > 0) &&
                        fmin(fabs(w), fabs(g)) >= 0.99 * most;
            if (!edge && !t->why[0]) snprintf(t->why, sizeof t->why, "%g where ref has %g", g, w);
            continue;
        }
        double diff = fabs(w - g), against = fabs(w);
        if (diff <= tiny) continue;
        if (tol == KM_TOL_SUM || tol == KM_TOL_BITS || tol == KM_TOL_RANDOM)
            against = fmax(against, scale);
        if (size) against = fmax(against, fabs(load(km_tensor_ptr(size), size->dtype, i)));
        double error = against > 0 ? diff / against : INFINITY;
        t->sum += isfinite(error) ? error : 1;
        if (error > t->max) t->max = error;
    }
}

typedef struct verify_run {
    km_ctx *ctx;
    const char *device;
    const km_verify_how *how;
    km_dtype dtype;
    unsigned seen; /* larger cases so far */
    km_verify_result r;
    double sum;
    int64_t elements;
} verify_run;

/* The longest sum in the call: what its error bound grows with. */
static int64_t length_of(const km_case *c, km_tensor *const *in) {
    int64_t longest = 1;
    for (int i = 0; i < c->n_in; i++) {
        if (!in[i]) continue;
        bool all = km_op_get(c->op)->flags & KM_OP_WHOLE || c->p.axes != 0;
        int64_t n = all ? km_shape_count(in[i]->shape) : 1;
        for (int k = 0; !all && k < in[i]->shape.ndim; k++)
            if (in[i]->shape.dim[k] > n) n = in[i]->shape.dim[k];
        if (n > longest) longest = n;
    }
    return longest;
}

/* The size of a layer's results, with inputs as large as 1. Where terms cancel out a result is far
 * smaller, but what rounding them to 8 bits adds is not. */
static double size_of_layer(const km_case *c) {
    const km_shape *x = &c->in[0].shape;
    switch (c->op) {
    case KM_OP_QUANT_LINEAR:
    case KM_OP_LINEARS: return sqrt((double)x->dim[1]);
    case KM_OP_GATED: return 3.0 * (double)x->dim[1]; /* two of them, one far from the middle */
    default: return 1;
    }
}

/* What a shorter run leaves out: most of the larger cases, spread evenly over their forms, and all of
 * the largest. The first of the larger ones stays. */
static bool left_out(verify_run *r, const km_case *c) {
    int64_t elements = km_shape_count(c->p.shape);
    unsigned one_in = r->how->one_in ? (unsigned)r->how->one_in : r->how->quick ? 4 : 1;
    int64_t most = r->how->most ? r->how->most : r->how->quick ? 400000 : INT64_MAX;
    if (c->kept) return false;
    for (int i = 0; i < c->n_in; i++) elements += km_shape_count(c->in[i].shape);
    if (elements <= 3000) return false;
    return elements > most || (r->seen++ * 2654435761u >> 16) % one_in != 0;
}

/* Layers with weights in blocks: on the host, activations keep 16 bits unless 8 were asked for. An op
 * that writes 4-bit codes (a KV cache of q4_0) may round a tie either way, and a step of a code is an
 * eighth of its block's largest value. */
static double allowed_error(const verify_run *r, const km_case *c, km_tol tol, km_dtype d,
                            int64_t length) {
    const km_op_row *row = km_op_get(c->op);
    bool layer = row->flags & KM_OP_BLOCK_LAYER;
    for (int i = 0; i < c->n_in; i++)
        if ((row->changes >> i & 1u) && c->in[i].dtype == KM_Q4_0)
            return km_tolerance(tol, d, length) + 1.0 / 8;
    if (tol == KM_TOL_BITS && layer && r->ctx->device->host && r->ctx->activations == 16)
        return km_tolerance(KM_TOL_WORDS, d, length);
    return km_tolerance(tol, d, length);
}

static bool one_case(void *user, const km_case *c) {
    verify_run *r = user;
    km_ctx *ctx = r->ctx;
    if (!((c->dtypes >> r->dtype) & 1u)) return true;
    if (left_out(r, c)) return true;
    km_tensor *ref_in[KM_CASE_INPUTS] = {0}, *dev_in[KM_CASE_INPUTS] = {0};
    km_tensor *want[KM_MAX_OUTPUTS], *got[KM_MAX_OUTPUTS];
    char text[96];
    for (int i = 0; i < c->n_in; i++) {
        km_tensor *base = km_case_base(ctx, c, i, r->dtype, r->how->seed);
        if (!base) continue;
        ref_in[i] = km_case_view(ctx, c, i, base);
        dev_in[i] = km_case_view(ctx, c, i, km_to(ctx, base, r->device));
    }
    if (c->derive) {
        c->derive(ctx, c, ref_in);
        for (int i = 0; i < c->n_in; i++)
            if (c->in[i].values == KM_V_DERIVED && ref_in[i])
                dev_in[i] = km_to(ctx, ref_in[i], r->device);
    }
    km_device *dev = km_device_find(r->device, &ctx->error);
    km_apply_on(ctx, km_ref_device(), c->op, ref_in, c->n_in, &c->p, want);
    uint64_t before = ctx->fallbacks;
    km_apply_on(ctx, dev, c->op, dev_in, c->n_in, &c->p, got);
    bool meant = dev && dev->host && (km_op_get(c->op)->flags & KM_OP_GPU_ALONE);
    r->r.reference |= meant;
    r->r.fallback |= !meant && ctx->fallbacks != before;
    tally t = {0};
    double scale = size_of_layer(c), tolerance = 0;
    km_tol tol = km_op_get(c->op)->tol;
    for (int i = 0; i < c->n_in && !km_failed(ctx); i++)
        if (ref_in[i] && km_dtype_is_float(ref_in[i]->dtype))
            scale = fmax(scale, largest(km_contiguous(ctx, ref_in[i])));
    for (int i = 0; i < KM_MAX_OUTPUTS && !km_failed(ctx) && want[i]; i++) {
        km_tensor *w = km_contiguous(ctx, want[i]);
        km_tensor *g = km_to(ctx, km_contiguous(ctx, got[i]), "ref");
        if (!w || !g) break;
        if (km_dtype_is_block(w->dtype)) { /* judged by what they stand for */
            w = km_cast(ctx, w, KM_F32);
            g = km_cast(ctx, g, KM_F32);
            if (!w || !g) break;
        }
        /* Sums of products: the terms are as large as the largest input, squared for gradients of
         * rows, so the bound is taken against the largest result as well. */
        km_tensor *size = NULL;
        if (tol == KM_TOL_SLOPE) size = km_contiguous(ctx, km_broadcast(ctx, ref_in[0], w->shape));
        compare(w, g, tol, fmax(scale, largest(w)), size, &t);
        double allowed = allowed_error(r, c, tol, w->dtype, length_of(c, ref_in));
        /* The loss of half-precision rows is f32, but its terms were rounded to half. */
        if (allowed > tolerance) tolerance = allowed;
    }
    r->r.cases++;
    bool ok = !km_failed(ctx) && !t.why[0] && t.max <= tolerance;
    if (!ok) r->r.failed++;
    if (t.max > r->r.max_error || (!ok && r->r.failed == 1)) {
        km_case_text(text, sizeof text, c);
        snprintf(r->r.worst, sizeof r->r.worst, "%s%s%.60s", text, ok ? "" : ": ",
                 km_failed(ctx) ? km_ctx_error(ctx) : t.why);
    }
    if (t.max > r->r.max_error) r->r.max_error = t.max;
    if (tolerance > r->r.tolerance) r->r.tolerance = tolerance;
    r->sum += t.sum;
    r->elements += t.n;
    km_ctx_clear_error(ctx);
    km_step_end(ctx);
    return true;
}

static bool any_case(void *user, const km_case *c) {
    *(uint32_t *)user |= c->dtypes;
    return true;
}

km_status km_verify(const char *device, const km_verify_how *how, km_verify_fn fn, void *user,
                    km_error *err) {
    int total = 0, index = 0;
    uint32_t kinds[KM_OP_COUNT] = {0};
    for (int op = 0; op < KM_OP_COUNT; op++) {
        if (how->op && strcmp(how->op, km_op_name((km_op)op)) != 0) continue;
        km_cases_each((km_op)op, any_case, &kinds[op]);
        if (how->dtypes) kinds[op] &= how->dtypes;
        for (int d = 0; d < KM_DTYPE_COUNT; d++) total += (kinds[op] >> d) & 1u;
    }
    if (total == 0)
        return km_error_set(err, KM_ERR_RANGE, "verify: no op named %.40s has a kernel", how->op);
    km_device *found = km_device_find(device, err);
    if (!found) return err ? err->code : KM_ERR_DEVICE;
    km_ctx *ctx = km_ctx_make(found, 0, err);
    if (!ctx) return err ? err->code : KM_ERR_MEMORY;
    ctx->no_grad++;
    for (int op = 0; op < KM_OP_COUNT; op++)
        for (int d = 0; d < KM_DTYPE_COUNT; d++) {
            if (!((kinds[op] >> d) & 1u)) continue;
            verify_run r = {.ctx = ctx, .device = found->name, .how = how, .dtype = (km_dtype)d};
            r.r.op = km_op_name((km_op)op);
            r.r.dtype = km_dtype_name((km_dtype)d);
            snprintf(r.r.detail, sizeof r.r.detail, "%s", km_op_get((km_op)op)->formula);
            km_cases_each((km_op)op, one_case, &r);
            r.r.mean_error = r.elements ? r.sum / (double)r.elements : 0;
            r.r.passed = r.r.failed == 0;
            fn(user, &r.r, index++, total);
        }
    km_ctx_free(ctx);
    return KM_OK;
}
