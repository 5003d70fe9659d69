/* Choosing the next token where the logits are, and telling how likely tokens are. */
#include "backend/sample.h"
#include "ops/families.h"
#include "ops/infer.h"

enum { LOGITS, SETTINGS, STATE, MASKS, BIASES, INPUTS };

/* i32 (any number, columns; 0: any). */
static km_status want_table(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                            int64_t columns) {
    char text[KM_SHAPE_TEXT];
    if (km_want_dtype(ctx, name, arg, t, KM_BIT(KM_I32)) != KM_OK) return ctx->error.code;
    if (t->shape.ndim == 2 && (!columns || t->shape.dim[1] == columns)) return KM_OK;
    return km_fail(ctx, KM_ERR_SHAPE, "%s: %s must have %lld columns, and are %s", name, arg,
                   (long long)columns, km_shape_text(text, t->shape));
}

static km_status want_logits(km_ctx *ctx, const char *name, const km_tensor *t) {
    char text[KM_SHAPE_TEXT];
    if (t->shape.ndim == 2 && t->shape.dim[1] >= 1 && t->shape.dim[1] <= INT32_MAX) return KM_OK;
    return km_fail(ctx, KM_ERR_SHAPE, "%s: logits must be [rows, v], not %s", name,
                   km_shape_text(text, t->shape));
}

static km_status infer_sample(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    const km_tensor *masks = n_in > MASKS ? in[MASKS] : NULL;
    const km_tensor *biases = n_in > BIASES ? in[BIASES] : NULL;
    (void)p;
    if (want_logits(ctx, name, in[LOGITS]) != KM_OK) return ctx->error.code;
    int64_t rows = in[LOGITS]->shape.dim[0];
    if (km_want_dtype(ctx, name, "the settings", in[SETTINGS], KM_BIT(KM_F32)) != KM_OK ||
        km_want_shape(ctx, name, "the settings", in[SETTINGS],
                      KM_SHAPE(rows, KM_SAMPLE_SETTINGS)) != KM_OK ||
        km_want_dtype(ctx, name, "the state", in[STATE], KM_BIT(KM_I32)) != KM_OK ||
        km_want_shape(ctx, name, "the state", in[STATE], KM_SHAPE(rows, KM_SAMPLE_STATE)) !=
            KM_OK ||
        (masks && want_table(ctx, name, "the masks", masks, 0) != KM_OK) ||
        (biases && want_table(ctx, name, "the biases", biases, 3) != KM_OK))
        return ctx->error.code;
    *out = (km_outputs){.n = 2,
                        .dtype = {KM_I32, KM_I32},
                        .shape = {KM_SHAPE(rows), KM_SHAPE(rows, KM_SAMPLE_STATE)}};
    return KM_OK;
}

static km_status infer_logprobs(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                const km_params *p, km_outputs *out) {
    int64_t top = p->n[KM_N_TOP];
    (void)n_in;
    if (want_logits(ctx, name, in[0]) != KM_OK ||
        want_table(ctx, name, "rows and tokens", in[1], 2) != KM_OK)
        return ctx->error.code;
    if (top < 0 || top > KM_LOGPROBS_TOP)
        return km_fail(ctx, KM_ERR_RANGE, "%s: the %lld likeliest; at most %d", name,
                       (long long)top, KM_LOGPROBS_TOP);
    int64_t n = in[1]->shape.dim[0];
    *out = (km_outputs){
        .n = 2, .dtype = {KM_F32, KM_I32}, .shape = {KM_SHAPE(n, 1 + top), KM_SHAPE(n, top)}};
    return KM_OK;
}

void km_rows_sample(km_op_row *t) {
    t[KM_OP_SAMPLE] = (km_op_row){.formula = "the token that a number falls on",
                                  .min_in = MASKS,
                                  .max_in = INPUTS,
                                  .dtypes = KM_BIT(KM_F32),
                                  .infer = infer_sample,
                                  .tol = KM_TOL_EXACT};
    t[KM_OP_LOGPROBS] = (km_op_row){.formula = "log softmax of some tokens, and of the likeliest",
                                    .min_in = 2,
                                    .max_in = 2,
                                    .dtypes = KM_BIT(KM_F32),
                                    .infer = infer_logprobs,
                                    .tol = KM_TOL_SUM};
}

km_tensor *km_sample_edited(km_ctx *ctx, km_tensor *logits, km_tensor *settings, km_tensor *state,
                            bool penalties, km_tensor *masks, km_tensor *biases,
                            km_tensor **after) {
    km_tensor *in[] = {logits, settings, state, masks, biases}, *out[KM_MAX_OUTPUTS] = {NULL};
    int n = biases ? INPUTS : masks ? BIASES : MASKS;
    km_apply(ctx, KM_OP_SAMPLE, in, n, &(km_params){.n = {[KM_N_PENALTIES] = penalties}}, out);
    if (after) *after = out[1];
    return out[0];
}

km_tensor *km_sample_rows(km_ctx *ctx, km_tensor *logits, km_tensor *settings, km_tensor *state,
                          bool penalties, km_tensor **after) {
    return km_sample_edited(ctx, logits, settings, state, penalties, NULL, NULL, after);
}

km_tensor *km_logprobs(km_ctx *ctx, km_tensor *logits, km_tensor *which, int64_t tokens,
                       int64_t top, km_tensor **best) {
    km_tensor *in[] = {logits, which}, *out[KM_MAX_OUTPUTS] = {NULL};
    km_params p = {.n = {[KM_N_TOP] = top, [KM_N_TOKENS] = tokens}};
    km_apply(ctx, KM_OP_LOGPROBS, in, 2, &p, out);
    if (best) *best = out[1];
    return out[0];
}
