/* Choosing the next token where the logits are. */
#include "backend/sample.h"
#include "ops/families.h"
#include "ops/infer.h"

static km_status infer_sample(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    (void)n_in, (void)p;
    if (in[0]->shape.ndim != 2 || in[0]->shape.dim[1] < 1 || in[0]->shape.dim[1] > INT32_MAX)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: logits must be [rows, v], not %s", name,
                       km_shape_text(text, in[0]->shape));
    int64_t rows = in[0]->shape.dim[0];
    if (km_want_dtype(ctx, name, "the settings", in[1], KM_BIT(KM_F32)) != KM_OK ||
        km_want_shape(ctx, name, "the settings", in[1], KM_SHAPE(rows, KM_SAMPLE_SETTINGS)) !=
            KM_OK ||
        km_want_dtype(ctx, name, "the state", in[2], KM_BIT(KM_I32)) != KM_OK ||
        km_want_shape(ctx, name, "the state", in[2], KM_SHAPE(rows, KM_SAMPLE_STATE)) != KM_OK)
        return ctx->error.code;
    *out = (km_outputs){.n = 2,
                        .dtype = {KM_I32, KM_I32},
                        .shape = {KM_SHAPE(rows), KM_SHAPE(rows, KM_SAMPLE_STATE)}};
    return KM_OK;
}

void km_rows_sample(km_op_row *t) {
    t[KM_OP_SAMPLE] = (km_op_row){.formula = "the token that a number falls on",
                                  .min_in = 3,
                                  .max_in = 3,
                                  .dtypes = KM_BIT(KM_F32),
                                  .infer = infer_sample,
                                  .tol = KM_TOL_EXACT};
}

km_tensor *km_sample_rows(km_ctx *ctx, km_tensor *logits, km_tensor *settings, km_tensor *state,
                          bool penalties, km_tensor **after) {
    km_tensor *in[] = {logits, settings, state}, *out[KM_MAX_OUTPUTS] = {NULL};
    km_apply(ctx, KM_OP_SAMPLE, in, 3, &(km_params){.n = {[KM_N_PENALTIES] = penalties}}, out);
    if (after) *after = out[1];
    return out[0];
}
