/* Reference layer norm and RMS norm over the last axis, fused residual forms, and gradients.
 * Throughout: x, y, dy, dx, sum (rows..., n); w, b, dw, db (n); mean, rstd (rows). */
#include "backend/ref/ref.h"

/* Element j of row r, and element j of a vector. */
static double at(const km_tensor *t, int64_t r, int64_t j) {
    return km_ref_load(t, km_ref_row(t, r) + j * km_ref_step(t));
}
static void put(const km_tensor *t, int64_t r, int64_t j, double v) {
    km_ref_store(t, km_ref_row(t, r) + j * km_ref_step(t), v);
}
static double at1(const km_tensor *t, int64_t j) { return km_ref_load(t, km_ref_nth(t, j)); }
static void put1(const km_tensor *t, int64_t j, double v) { km_ref_store(t, km_ref_nth(t, j), v); }

/* y = (x - mean) rstd w + b, rstd = 1 / sqrt(var + eps), var = mean((x - mean)^2) */
static void layer_norm(const km_tensor *x, const km_tensor *w, const km_tensor *b, double eps,
                       const km_tensor *y, const km_tensor *mean, const km_tensor *rstd) {
    int64_t rows = km_ref_rows(x), n = km_ref_width(x);
    for (int64_t r = 0; r < rows; r++) {
        double m = 0, var = 0;
        for (int64_t j = 0; j < n; j++) m += at(x, r, j);
        m /= (double)n;
        for (int64_t j = 0; j < n; j++) var += (at(x, r, j) - m) * (at(x, r, j) - m);
        var /= (double)n;
        double s = 1 / sqrt(var + eps);
        for (int64_t j = 0; j < n; j++)
            put(y, r, j, (at(x, r, j) - m) * s * at1(w, j) + (b ? at1(b, j) : 0));
        if (mean) put1(mean, r, m);
        if (rstd) put1(rstd, r, s);
    }
}

/* y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps) */
static void rms_norm(const km_tensor *x, const km_tensor *w, double eps, const km_tensor *y,
                     const km_tensor *rstd) {
    int64_t rows = km_ref_rows(x), n = km_ref_width(x);
    for (int64_t r = 0; r < rows; r++) {
        double ms = 0;
        for (int64_t j = 0; j < n; j++) ms += at(x, r, j) * at(x, r, j);
        ms /= (double)n;
        double s = 1 / sqrt(ms + eps);
        for (int64_t j = 0; j < n; j++) put(y, r, j, at(x, r, j) * s * at1(w, j));
        if (rstd) put1(rstd, r, s);
    }
}

/* x, w, b? -> y, mean, rstd */
km_status km_ref_layer_norm(km_ctx *ctx, const km_call *c) {
    layer_norm(c->in[0], c->in[1], km_ref_in(c, 2), c->p->f[KM_F_EPS], c->out[0], km_ref_out(c, 1),
               km_ref_out(c, 2));
    return KM_OK;
}

/* x, w -> y, rstd */
km_status km_ref_rms_norm(km_ctx *ctx, const km_call *c) {
    rms_norm(c->in[0], c->in[1], c->p->f[KM_F_EPS], c->out[0], km_ref_out(c, 1));
    return KM_OK;
}

/* sum = x + residual, rounded to its dtype; the norm is that of the rounded sum, so that the fused
 * op is exactly an add and then a norm, and the gradient sees the very numbers that were used. */
static void add(const km_tensor *x, const km_tensor *residual, const km_tensor *sum) {
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, sum->shape) km_ref_set(sum, i, km_ref_get(x, i) + km_ref_get(residual, i));
}

/* x, residual, w, b? -> y, sum, mean, rstd */
km_status km_ref_add_layer_norm(km_ctx *ctx, const km_call *c) {
    const km_tensor *sum = c->out[1];
    add(c->in[0], c->in[1], sum);
    layer_norm(sum, c->in[2], km_ref_in(c, 3), c->p->f[KM_F_EPS], c->out[0], km_ref_out(c, 2),
               km_ref_out(c, 3));
    return KM_OK;
}

/* x, residual, w -> y, sum, rstd */
km_status km_ref_add_rms_norm(km_ctx *ctx, const km_call *c) {
    const km_tensor *sum = c->out[1];
    add(c->in[0], c->in[1], sum);
    rms_norm(sum, c->in[2], c->p->f[KM_F_EPS], c->out[0], km_ref_out(c, 2));
    return KM_OK;
}

/* With h = (x - mean) rstd (mean 0 for RMS) and g = dy w:
 *   layer norm: dx = rstd (g - mean(g) - h mean(g h)) + dsum
 *   RMS norm:   dx = rstd (g - h mean(g h)) + dsum
 *   dw = sum over rows of dy h, db = sum over rows of dy
 * mean NULL makes it RMS; dsum, dx, dw, db may be NULL. */
static void norm_grad(const km_tensor *dy, const km_tensor *x, const km_tensor *w,
                      const km_tensor *mean, const km_tensor *rstd, const km_tensor *dsum,
                      const km_tensor *dx, const km_tensor *dw, const km_tensor *db) {
    int64_t rows = km_ref_rows(x), n = km_ref_width(x);
    for (int64_t r = 0; dx && r < rows; r++) {
        double m = mean ? at1(mean, r) : 0, s = at1(rstd, r);
        double mean_g = 0, mean_gh = 0;
        for (int64_t j = 0; j < n; j++) {
            double g = at(dy, r, j) * at1(w, j), h = (at(x, r, j) - m) * s;
            mean_g += g / (double)n;
            mean_gh += g * h / (double)n;
        }
        if (!mean) mean_g = 0;
        for (int64_t j = 0; j < n; j++) {
            double g = at(dy, r, j) * at1(w, j), h = (at(x, r, j) - m) * s;
            put(dx, r, j, s * (g - mean_g - h * mean_gh) + (dsum ? at(dsum, r, j) : 0));
        }
    }
    for (int64_t j = 0; j < n; j++) {
        double sum_dyh = 0, sum_dy = 0;
        for (int64_t r = 0; r < rows; r++) {
            double m = mean ? at1(mean, r) : 0, s = at1(rstd, r);
            sum_dyh += at(dy, r, j) * (at(x, r, j) - m) * s;
            sum_dy += at(dy, r, j);
        }
        if (dw) put1(dw, j, sum_dyh);
        if (db) put1(db, j, sum_dy);
    }
}

/* dy, x, w, mean, rstd, dsum? -> dx, dw, db */
km_status km_ref_layer_norm_grad(km_ctx *ctx, const km_call *c) {
    norm_grad(c->in[0], c->in[1], c->in[2], c->in[3], c->in[4], km_ref_in(c, 5), c->out[0],
              km_ref_out(c, 1), km_ref_out(c, 2));
    return KM_OK;
}

/* dy, x, w, rstd, dsum? -> dx, dw */
km_status km_ref_rms_norm_grad(km_ctx *ctx, const km_call *c) {
    norm_grad(c->in[0], c->in[1], c->in[2], NULL, c->in[3], km_ref_in(c, 4), c->out[0],
              km_ref_out(c, 1), NULL);
    return KM_OK;
}
