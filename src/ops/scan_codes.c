/* The row of the op table for scans of codes, and its call. */
#include "ops/scan_codes.h"
#include "backend/trellis.h"
#include "ops/families.h"

enum { QUERY, CODES, SCALE, CELL, PLACE, AMP, TABLES, CENTRE, RATE, WINDOWS, INPUTS };

static km_status want(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                      km_dtype dtype, km_shape shape) {
    if (km_want_dtype(ctx, name, arg, t, KM_BIT(dtype)) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, t, shape);
}

static km_status infer_scan(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    static const int wanted[] = {QUERY, CODES, CENTRE};
    for (int i = 0; i < 3; i++)
        if (in[wanted[i]]->shape.ndim != 2)
            return km_fail(ctx, KM_ERR_SHAPE, "%s: queries, codes and centres are matrices, not %s",
                           name, km_shape_text(text, in[wanted[i]]->shape));
    int64_t q = in[QUERY]->shape.dim[0], d = in[QUERY]->shape.dim[1], n = in[CODES]->shape.dim[0];
    int64_t stride = in[CODES]->shape.dim[1], cells = in[CENTRE]->shape.dim[0];
    if (d < 1 || n > INT32_MAX || cells > INT32_MAX || stride % 4 || p->n[KM_N_NEAREST] < 1 ||
        p->n[KM_N_NEAREST] > KM_SCAN_MOST)
        return km_fail(
            ctx, KM_ERR_RANGE, "%s: %lld columns, %lld rows of %lld bytes, the nearest %lld", name,
            (long long)d, (long long)n, (long long)stride, (long long)p->n[KM_N_NEAREST]);
    if (want(ctx, name, "codes", in[CODES], KM_U8, KM_SHAPE(n, stride)) != KM_OK ||
        want(ctx, name, "scale", in[SCALE], KM_U8, KM_SHAPE(n)) != KM_OK ||
        want(ctx, name, "cell", in[CELL], KM_I32, KM_SHAPE(n)) != KM_OK ||
        want(ctx, name, "place", in[PLACE], KM_I32, KM_SHAPE(d + 1)) != KM_OK ||
        want(ctx, name, "amp", in[AMP], KM_F32, KM_SHAPE(d)) != KM_OK ||
        want(ctx, name, "tables", in[TABLES], KM_F32, KM_SHAPE(KM_SCAN_TABLES, 256)) != KM_OK ||
        want(ctx, name, "centre", in[CENTRE], KM_F32, KM_SHAPE(cells, d)) != KM_OK)
        return ctx->error.code;
    if (n_in > RATE &&
        (n_in != INPUTS || want(ctx, name, "rate", in[RATE], KM_I32, KM_SHAPE(d)) != KM_OK ||
         want(ctx, name, "windows", in[WINDOWS], KM_F32,
              KM_SHAPE(KM_TRELLIS_RATE + 1, KM_TRELLIS_STATES)) != KM_OK))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: rates and windows come together", name);
    *out =
        (km_outputs){.n = 2,
                     .dtype = {KM_I32, KM_F32},
                     .shape = {KM_SHAPE(q, p->n[KM_N_NEAREST]), KM_SHAPE(q, p->n[KM_N_NEAREST])}};
    return KM_OK;
}

void km_rows_scan_codes(km_op_row *t) {
    t[KM_OP_SCAN_CODES] = (km_op_row){.formula = "the k coded rows nearest to each query",
                                      .min_in = RATE,
                                      .max_in = INPUTS,
                                      .dtypes = KM_BIT(KM_F32),
                                      .flags = KM_OP_GPU_ALONE,
                                      .infer = infer_scan,
                                      .tol = KM_TOL_SUM};
}

km_status km_scan_coded(km_ctx *ctx, km_tensor *query, const km_coded *r, int64_t k,
                        const km_scan_codes_options *o, km_tensor **id, km_tensor **dist) {
    static const km_scan_codes_options plain;
    if (!o) o = &plain;
    km_tensor *in[INPUTS] = {query,  r->codes,  r->scale,  r->cell, r->place,
                             r->amp, r->tables, r->centre, r->rate, r->windows};
    km_tensor *out[KM_MAX_OUTPUTS] = {0};
    km_params p = {.n = {[KM_N_NEAREST] = k,
                         [KM_N_PRODUCT] = o->product,
                         [KM_N_EXACT] = o->exact,
                         [KM_N_CHUNK] = o->chunk},
                   .f = {[KM_F_LOST] = r->lost}};
    km_apply(ctx, KM_OP_SCAN_CODES, in, r->rate ? INPUTS : RATE, &p, out);
    *id = out[0];
    *dist = out[1];
    return km_ctx_status(ctx);
}
