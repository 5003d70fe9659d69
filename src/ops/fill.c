/* Making tensors: fills, random numbers, copies and casts. */
#include "ops/families.h"
#include "ops/op.h"

static km_status infer_fill(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    out->n = 1;
    out->dtype[0] = p->dtype;
    out->shape[0] = p->shape;
    return km_shape_check(ctx, name, p->dtype, p->shape);
}

static km_status infer_copy(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    out->n = 1;
    out->dtype[0] = in[0]->dtype;
    out->shape[0] = in[0]->shape;
    return KM_OK;
}

static km_status infer_cast(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    infer_copy(ctx, name, in, n_in, p, out);
    out->dtype[0] = p->dtype;
    return km_shape_check(ctx, name, p->dtype, in[0]->shape);
}

static void grad_copy(km_ctx *ctx, km_node *n) { /* km_to is recorded as a copy, too */
    km_grad_add(ctx, n->in[0], km_move(ctx, n->grad[0], km_tensor_dev(n->in[0])));
}

#define FILL .min_in = 0, .max_in = 0, .infer = infer_fill, .flags = KM_OP_STRIDED

void km_rows_fill(km_op_row *t) {
    t[KM_OP_FULL] =
        (km_op_row){.formula = "y = value", .dtypes = KM_ANY, .tol = KM_TOL_EXACT, FILL};
    t[KM_OP_ARANGE] = (km_op_row){
        .formula = "y[i] = start + i step", .dtypes = KM_NUMBERS, .tol = KM_TOL_ELEM, FILL};
    t[KM_OP_UNIFORM] =
        (km_op_row){.formula = "y ~ U[lo, hi)", .dtypes = KM_FLOATS, .tol = KM_TOL_RANDOM, FILL};
    t[KM_OP_NORMAL] = (km_op_row){
        .formula = "y ~ N(mean, sd^2)", .dtypes = KM_FLOATS, .tol = KM_TOL_RANDOM, FILL};
    t[KM_OP_COPY] = (km_op_row){.formula = "y = x",
                                .min_in = 1,
                                .max_in = 1,
                                .dtypes = KM_ANY,
                                .flags = KM_OP_STRIDED | KM_OP_BACKWARDS,
                                .infer = infer_copy,
                                .grad = grad_copy};
    t[KM_OP_CAST] = (km_op_row){.formula = "y = dtype(x)",
                                .min_in = 1,
                                .max_in = 1,
                                .dtypes = KM_ANY,
                                .flags = KM_OP_STRIDED | KM_OP_BACKWARDS,
                                .infer = infer_cast,
                                .grad = grad_copy};
}

km_tensor *km_fill_on(km_ctx *ctx, km_device *device, km_dtype dtype, km_shape shape,
                      double value) {
    km_params p = {.dtype = dtype, .shape = shape, .f = {[KM_F_VALUE] = value}};
    return km_apply_on(ctx, device, KM_OP_FULL, NULL, 0, &p, NULL);
}

km_tensor *km_full(km_ctx *ctx, km_dtype dtype, km_shape shape, double value) {
    KM_CTX_CALL(ctx, NULL);
    return km_ctx_is(ctx) ? km_fill_on(ctx, ctx->device, dtype, shape, value) : NULL;
}

km_tensor *km_zeros(km_ctx *ctx, km_dtype dtype, km_shape shape) {
    return km_full(ctx, dtype, shape, 0);
}

km_tensor *km_ones(km_ctx *ctx, km_dtype dtype, km_shape shape) {
    return km_full(ctx, dtype, shape, 1);
}

static bool is_float_or_fail(km_ctx *ctx, const char *name, km_dtype dtype, uint32_t possible) {
    if (km_failed(ctx)) return false;
    km_tensor t = {.dtype = dtype};
    return (unsigned)dtype >= KM_DTYPE_COUNT ||
           km_want_dtype(ctx, name, NULL, &t, possible) == KM_OK;
}

km_tensor *km_arange(km_ctx *ctx, km_dtype dtype, int64_t count, double start, double step) {
    KM_CTX_CALL(ctx, NULL);
    if (!is_float_or_fail(ctx, "arange", dtype, KM_NUMBERS)) return NULL;
    km_params p = {
        .dtype = dtype, .shape = KM_SHAPE(count), .f = {[KM_F_START] = start, [KM_F_STEP] = step}};
    return km_apply(ctx, KM_OP_ARANGE, NULL, 0, &p, NULL);
}

static km_tensor *random_fill(km_ctx *ctx, km_op op, km_dtype dtype, km_shape shape, double a,
                              double b) {
    KM_CTX_CALL(ctx, NULL);
    if (!is_float_or_fail(ctx, km_op_name(op), dtype, KM_FLOATS)) return NULL;
    km_params p = {.dtype = dtype,
                   .shape = shape,
                   .f = {[KM_F_LO] = a, [KM_F_HI] = b},
                   .seed = ctx->seed,
                   .stream = ctx->draws++};
    return km_apply(ctx, op, NULL, 0, &p, NULL);
}

km_tensor *km_uniform(km_ctx *ctx, km_dtype dtype, km_shape shape, double lo, double hi) {
    return random_fill(ctx, KM_OP_UNIFORM, dtype, shape, lo, hi);
}

km_tensor *km_normal(km_ctx *ctx, km_dtype dtype, km_shape shape, double mean, double sd) {
    return random_fill(ctx, KM_OP_NORMAL, dtype, shape, mean, sd);
}

km_tensor *km_copy(km_ctx *ctx, km_tensor *t) { return km_apply1(ctx, KM_OP_COPY, t, NULL); }

km_tensor *km_contiguous(km_ctx *ctx, km_tensor *t) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx) || km_want_input(ctx, "contiguous", 0, t) != KM_OK) return NULL;
    return km_is_contiguous(t) ? t : km_copy(ctx, t);
}

km_tensor *km_cast(km_ctx *ctx, km_tensor *t, km_dtype dtype) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx) || km_want_input(ctx, "cast", 0, t) != KM_OK) return NULL;
    if (t->dtype == dtype) return t;
    km_op op = km_dtype_is_block(t->dtype)                                    ? KM_OP_DEQUANTISE
               : (unsigned)dtype < KM_DTYPE_COUNT && km_dtype_is_block(dtype) ? KM_OP_QUANTISE
                                                                              : KM_OP_CAST;
    return km_apply1(ctx, op, t, &(km_params){.dtype = dtype});
}
