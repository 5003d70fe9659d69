/* The rows of the op table for vector quantisation, and the calls that use them. */
#include "ops/nearest.h"
#include "ops/families.h"

/* What a device's notes on a row hold, at most: it rounded to 16 bits, in whole tiles, and numbers
 * about it. Only GPUs make notes. */
#define TILE_ROWS 128
#define TILE_COLUMNS 64
#define ROW_NOTES 64

static int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static int64_t work_bytes(int64_t n, int64_t d) {
    return up(n, TILE_ROWS) * (2 * up(d, TILE_COLUMNS) + ROW_NOTES) + 8 * up(d, TILE_COLUMNS) +
           4096;
}

static km_status want_rows(km_ctx *ctx, const char *name, const km_tensor *x) {
    char text[KM_SHAPE_TEXT];
    if (x->shape.ndim == 2 && x->shape.dim[0] <= INT32_MAX) return KM_OK;
    return km_fail(ctx, KM_ERR_SHAPE, "%s: x must be [rows, columns], not %s", name,
                   km_shape_text(text, x->shape));
}

static km_status want_f32(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                          km_shape shape) {
    if (km_want_dtype(ctx, name, arg, t, KM_BIT(KM_F32)) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, t, shape);
}

static km_status infer_nearest(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    const km_tensor *x = in[0], *c = in[1], *work = n_in > 2 ? in[2] : NULL;
    (void)p;
    if (want_rows(ctx, name, x) != KM_OK) return ctx->error.code;
    int64_t n = x->shape.dim[0], d = x->shape.dim[1];
    if (c->shape.ndim != 2 || c->shape.dim[0] < 1 || c->shape.dim[0] > INT32_MAX)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: centres must be [1 or more, %lld], not %s", name,
                       (long long)d, km_shape_text(text, c->shape));
    if (want_f32(ctx, name, "c", c, KM_SHAPE(c->shape.dim[0], d)) != KM_OK) return ctx->error.code;
    if (work && (km_want_dtype(ctx, name, "work", work, KM_BIT(KM_U8)) != KM_OK ||
                 km_want_shape(ctx, name, "work", work, KM_SHAPE(work_bytes(n, d))) != KM_OK))
        return ctx->error.code;
    *out = (km_outputs){.n = 2, .dtype = {KM_I32, KM_F32}, .shape = {KM_SHAPE(n), KM_SHAPE(n)}};
    return KM_OK;
}

static km_status infer_cell_sums(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    const km_tensor *x = in[0], *id = in[1];
    if (want_rows(ctx, name, x) != KM_OK) return ctx->error.code;
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = p->n[KM_N_CELLS];
    if (k < 0 || k > INT32_MAX)
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld cells", name, (long long)k);
    if (km_want_dtype(ctx, name, "id", id, KM_BIT(KM_I32)) != KM_OK ||
        km_want_shape(ctx, name, "id", id, KM_SHAPE(n)) != KM_OK)
        return ctx->error.code;
    static const char *const names[] = {"weight", "dist"};
    for (int i = 2; i < 4; i++)
        if (n_in > i && in[i] && want_f32(ctx, name, names[i - 2], in[i], KM_SHAPE(n)) != KM_OK)
            return ctx->error.code;
    *out = (km_outputs){.n = 4,
                        .dtype = {KM_F32, KM_F32, KM_F32, KM_F32},
                        .shape = {KM_SHAPE(k, d), KM_SHAPE(k), KM_SHAPE(k), KM_SHAPE(k)}};
    return KM_OK;
}

void km_rows_nearest(km_op_row *t) {
    uint32_t floats = KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16);
    t[KM_OP_NEAREST] = (km_op_row){.formula = "argmin_j |x - c_j|^2, and that distance",
                                   .min_in = 2,
                                   .max_in = 3,
                                   .dtypes = floats,
                                   .infer = infer_nearest,
                                   .tol = KM_TOL_SUM};
    t[KM_OP_CELL_SUMS] = (km_op_row){.formula = "sums of the rows of each cell",
                                     .min_in = 2,
                                     .max_in = 4,
                                     .dtypes = floats,
                                     .infer = infer_cell_sums,
                                     .tol = KM_TOL_SUM};
}

km_tensor *km_nearest_work(km_ctx *ctx, const km_tensor *x) {
    if (km_failed(ctx) || !x || km_tensor_dev(x)->host || want_rows(ctx, "nearest", x) != KM_OK)
        return NULL;
    km_tensor *t = km_tensor_new(ctx, x->storage->lane, "nearest", KM_U8,
                                 KM_SHAPE(work_bytes(x->shape.dim[0], x->shape.dim[1])));
    return t ? km_keep(ctx, t) : NULL;
}

km_status km_nearest_of(km_ctx *ctx, km_tensor *x, km_tensor *c, km_tensor *work, bool fresh,
                        bool quick, km_tensor **id, km_tensor **dist) {
    km_tensor *in[] = {x, c, work}, *out[KM_MAX_OUTPUTS];
    km_params p = {.n = {[KM_N_NOTED] = work && !fresh, [KM_N_QUICK] = quick}};
    km_apply(ctx, KM_OP_NEAREST, in, 3, &p, out);
    *id = out[0];
    *dist = out[1];
    return km_ctx_status(ctx);
}

km_status km_cell_sums(km_ctx *ctx, km_tensor *x, km_tensor *id, km_tensor *weight, km_tensor *dist,
                       int64_t k, km_cell_sums_result *r) {
    km_tensor *in[] = {x, id, weight, dist}, *out[KM_MAX_OUTPUTS];
    km_params p = {.n = {[KM_N_CELLS] = k}};
    km_apply(ctx, KM_OP_CELL_SUMS, in, 4, &p, out);
    *r = (km_cell_sums_result){out[0], out[1], out[2], out[3]};
    return km_ctx_status(ctx);
}
