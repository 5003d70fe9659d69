/* Gradients by back-propagation against central differences, in double precision. The output is
 * folded to one number with fixed irregular weights, so that errors cannot cancel by symmetry. */
#include "ops/op.h"
#include "base/alloc.h"
#include <math.h>

static double weight(int64_t i) { return 0.5 + fmod((double)(i + 1) * 0.6180339887498949, 1.0); }

/* The folded output as a tensor, for backward. */
static km_tensor *fold(km_ctx *ctx, km_tensor *y) {
    if (km_failed(ctx)) return NULL;
    if (!y) {
        km_fail(ctx, KM_ERR_NULL, "check_grad: the function returned no tensor");
        return NULL;
    }
    if (y->dtype != KM_F64 || !km_tensor_dev(y)->host) {
        km_fail(ctx, KM_ERR_DTYPE, "check_grad: the function must give f64 in host memory, not %s",
                km_dtype_name(y->dtype));
        return NULL;
    }
    int64_t n = km_shape_count(y->shape);
    km_tensor *w = km_tensor_new(ctx, y->storage->lane, "check_grad", y->dtype, y->shape);
    if (!w) return NULL;
    double *p = km_tensor_ptr(w);
    for (int64_t i = 0; i < n; i++) p[i] = weight(i);
    return km_sum(ctx, km_mul(ctx, y, w), NULL, 0, false);
}

/* The user's function may neither end the step nor release an input. */
static bool intact(km_ctx *ctx, uint64_t steps, km_tensor *const *inputs, int n) {
    bool whole = ctx->steps == steps;
    for (int i = 0; whole && i < n; i++) whole = inputs[i]->kept;
    if (!whole && !km_failed(ctx))
        km_fail(ctx, KM_ERR_STATE, "check_grad: the function ended the step, or released an input");
    return whole;
}

static km_tensor *call(km_ctx *ctx, km_grad_fn fn, void *user, km_tensor *const *inputs, int n) {
    uint64_t steps = ctx->steps;
    km_tensor *y = fn(ctx, inputs, n, user);
    return intact(ctx, steps, inputs, n) ? fold(ctx, y) : NULL;
}

static double value(km_ctx *ctx, km_grad_fn fn, void *user, km_tensor *const *inputs, int n) {
    uint64_t draws = ctx->draws; /* random ops must draw the same numbers in every evaluation */
    km_scope_begin(ctx);
    ctx->no_grad++;
    km_tensor *y = call(ctx, fn, user, inputs, n);
    double v = km_failed(ctx) ? 0 : km_item(ctx, y);
    ctx->no_grad--;
    km_scope_end(ctx, NULL);
    ctx->draws = draws;
    return v;
}

static km_status check_args(km_ctx *ctx, km_grad_fn fn, km_tensor *const *inputs, int n,
                            const km_grad_report *report) {
    if (!fn || !inputs || !report || n < 1)
        return km_fail(ctx, KM_ERR_NULL, "check_grad: a function, inputs and a report are needed");
    for (int i = 0; i < n; i++) {
        const km_tensor *t = inputs[i];
        if (!t || !t->kept || !t->requires_grad || t->dtype != KM_F64 || !km_is_contiguous(t) ||
            !km_tensor_dev(t)->host)
            return km_fail(ctx, KM_ERR_STATE,
                           "check_grad: input %d must be a kept, contiguous f64 tensor in host "
                           "memory that requires a gradient",
                           i + 1);
    }
    return KM_OK;
}

km_status km_check_grad(km_ctx *ctx, km_grad_fn fn, void *user, km_tensor *const *inputs, int n,
                        double tolerance, km_grad_report *report) {
    if (report) *report = (km_grad_report){0};
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (check_args(ctx, fn, inputs, n, report) != KM_OK) return ctx->error.code;
    uint64_t draws = ctx->draws, steps = ctx->steps;
    km_zero_grad(ctx, inputs, n);
    km_tensor *loss = call(ctx, fn, user, inputs, n);
    ctx->draws = draws;
    if (loss && loss->requires_grad) km_backward(ctx, loss);
    for (int i = 0; i < n && !km_failed(ctx); i++) {
        double *x = km_tensor_ptr(inputs[i]);
        km_tensor *g = km_grad(inputs[i]);
        km_tensor *flat = g ? km_copy(ctx, g) : NULL; /* the function may have others made */
        const double *dx = flat ? km_tensor_ptr(flat) : NULL;
        int64_t count = km_shape_count(inputs[i]->shape);
        for (int64_t e = 0; e < count && !km_failed(ctx); e++) {
            double at = x[e], h = 1e-5 * fmax(1, fabs(at));
            x[e] = at + h;
            double up = value(ctx, fn, user, inputs, n);
            if (!intact(ctx, steps, inputs, n)) break;
            double above = x[e];
            x[e] = at - h;
            double down = value(ctx, fn, user, inputs, n);
            if (!intact(ctx, steps, inputs, n)) break;
            double below = x[e];
            x[e] = at;
            double numeric = (up - down) / (above - below), analytic = dx ? dx[e] : 0;
            double error = fabs(analytic - numeric) / fmax(1, fmax(fabs(analytic), fabs(numeric)));
            if (error > report->max_error || isnan(error)) {
                report->max_error = isnan(error) ? INFINITY : error;
                report->input = i;
                report->element = e;
                report->analytic = analytic;
                report->numeric = numeric;
            }
        }
    }
    if (intact(ctx, steps, inputs, n)) km_zero_grad(ctx, inputs, n);
    report->passed = !km_failed(ctx) && report->max_error <= tolerance;
    return km_ctx_status(ctx);
}
