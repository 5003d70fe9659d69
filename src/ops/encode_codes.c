/* The rows of the op table for encoding, and their calls. */
#include "ops/encode_codes.h"
#include "backend/trellis.h"
#include "ops/families.h"

enum { Z, SQUARE, BITS, AT, LEVEL_AMP, LEVELS, LEVEL_INPUTS };
enum { AMP = 2, RATE, CLASSES, WATER, TABLES, TRELLIS_INPUTS };

static km_status want(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                      km_dtype dtype, km_shape shape) {
    if (km_want_dtype(ctx, name, arg, t, KM_BIT(dtype)) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, t, shape);
}

static km_status rows_in(km_ctx *ctx, const char *name, km_tensor *const *in, const km_params *p) {
    char text[KM_SHAPE_TEXT];
    if (in[Z]->shape.ndim != 2 || in[Z]->shape.dim[1] < 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: rows are a matrix, not %s", name,
                       km_shape_text(text, in[Z]->shape));
    if (p->n[KM_N_CODE_BYTES] < 1 || p->n[KM_N_DIM] < 1 || !(p->f[KM_F_LOW] > 0) ||
        !(p->f[KM_F_SCALE_STEP] >= 0))
        return km_fail(ctx, KM_ERR_RANGE, "%s: codes of %lld bytes for %lld dimensions", name,
                       (long long)p->n[KM_N_CODE_BYTES], (long long)p->n[KM_N_DIM]);
    return want(ctx, name, "square", in[SQUARE], KM_F32, KM_SHAPE(in[Z]->shape.dim[0]));
}

static km_status infer_levels(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    (void)n_in;
    if (rows_in(ctx, name, in, p) != KM_OK) return ctx->error.code;
    int64_t d = in[Z]->shape.dim[1];
    if (want(ctx, name, "bits", in[BITS], KM_I32, KM_SHAPE(d)) != KM_OK ||
        want(ctx, name, "at", in[AT], KM_I32, KM_SHAPE((d + 7) / 8, 8)) != KM_OK ||
        want(ctx, name, "amp", in[LEVEL_AMP], KM_F32, KM_SHAPE(d)) != KM_OK ||
        want(ctx, name, "tables", in[LEVELS], KM_F32, KM_SHAPE(9, 256)) != KM_OK)
        return ctx->error.code;
    *out = (km_outputs){
        .n = 1, .dtype = {KM_U8}, .shape = {KM_SHAPE(in[Z]->shape.dim[0], p->n[KM_N_CODE_BYTES])}};
    return KM_OK;
}

static km_status infer_trellis(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    (void)n_in;
    if (rows_in(ctx, name, in, p) != KM_OK) return ctx->error.code;
    int64_t w = in[Z]->shape.dim[1], classes = in[WATER]->shape.ndim ? in[WATER]->shape.dim[0] : 0;
    if (classes < 1 || classes > 1 << p->n[KM_N_CLASS_BITS] || p->n[KM_N_CLASS_BITS] > 8 ||
        p->n[KM_N_MOST] < 1 || p->n[KM_N_MOST] > w)
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld classes in %lld bits, of at most %lld columns",
                       name, (long long)classes, (long long)p->n[KM_N_CLASS_BITS],
                       (long long)p->n[KM_N_MOST]);
    if (want(ctx, name, "amp", in[AMP], KM_F32, KM_SHAPE(w)) != KM_OK ||
        want(ctx, name, "rate", in[RATE], KM_I32, KM_SHAPE(w)) != KM_OK ||
        want(ctx, name, "classes", in[CLASSES], KM_I32, KM_SHAPE(classes, 2)) != KM_OK ||
        want(ctx, name, "water", in[WATER], KM_F32, KM_SHAPE(classes)) != KM_OK ||
        want(ctx, name, "tables", in[TABLES], KM_F32,
             KM_SHAPE(KM_TRELLIS_RATE + 1, KM_TRELLIS_STATES)) != KM_OK)
        return ctx->error.code;
    *out = (km_outputs){
        .n = 1, .dtype = {KM_U8}, .shape = {KM_SHAPE(in[Z]->shape.dim[0], p->n[KM_N_CODE_BYTES])}};
    return KM_OK;
}

void km_rows_encode_codes(km_op_row *t) {
    t[KM_OP_ENCODE_LEVELS] = (km_op_row){.formula = "rows to codes of a level a column",
                                         .min_in = LEVEL_INPUTS,
                                         .max_in = LEVEL_INPUTS,
                                         .dtypes = KM_BIT(KM_F32),
                                         .infer = infer_levels,
                                         .flags = KM_OP_GPU_ALONE,
                                         .tol = KM_TOL_EXACT};
    t[KM_OP_ENCODE_TRELLIS] =
        (km_op_row){.formula = "rows to codes of a trellis over their columns",
                    .min_in = TRELLIS_INPUTS,
                    .max_in = TRELLIS_INPUTS,
                    .dtypes = KM_BIT(KM_F32),
                    .infer = infer_trellis,
                    .flags = KM_OP_GPU_ALONE,
                    .tol = KM_TOL_EXACT};
}

km_tensor *km_encode_levels(km_ctx *ctx, km_tensor *z, km_tensor *square,
                            const km_level_code *how) {
    km_tensor *in[LEVEL_INPUTS] = {z, square, how->bits, how->at, how->amp, how->tables};
    km_tensor *out[KM_MAX_OUTPUTS] = {0};
    km_params p = {.n = {[KM_N_CODE_BYTES] = how->form.bytes, [KM_N_DIM] = how->form.dim},
                   .f = {[KM_F_LOW] = how->form.low, [KM_F_SCALE_STEP] = how->form.step}};
    km_apply(ctx, KM_OP_ENCODE_LEVELS, in, LEVEL_INPUTS, &p, out);
    return out[0];
}

km_tensor *km_encode_trellis(km_ctx *ctx, km_tensor *z, km_tensor *square,
                             const km_trellis_code *how) {
    km_tensor *in[TRELLIS_INPUTS] = {z,          square,     how->amp, how->rate, how->classes,
                                     how->water, how->tables};
    km_tensor *out[KM_MAX_OUTPUTS] = {0};
    km_params p = {.n = {[KM_N_CODE_BYTES] = how->form.bytes,
                         [KM_N_DIM] = how->form.dim,
                         [KM_N_CLASS_BITS] = how->class_bits,
                         [KM_N_MOST] = how->most},
                   .f = {[KM_F_LOW] = how->form.low, [KM_F_SCALE_STEP] = how->form.step}};
    km_apply(ctx, KM_OP_ENCODE_TRELLIS, in, TRELLIS_INPUTS, &p, out);
    return out[0];
}
