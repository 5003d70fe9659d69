/* What adapters (LoRA) add to a layer of a running model, each row by its own mix of them. Which
 * adapters a row has is a tensor, so that one captured step serves every mix. Off the tape. */
#include "ops/families.h"
#include "ops/infer.h"

enum { Y, X, MIX, SLOT, A, B, INPUTS };

static km_status infer_low_rank(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                const km_params *p, km_outputs *out) {
    char ty[KM_SHAPE_TEXT], tx[KM_SHAPE_TEXT];
    const km_tensor *y = in[Y], *x = in[X], *slot = in[SLOT];
    (void)n_in, (void)p;
    if (y->shape.ndim != 2 || x->shape.ndim != 2 || x->shape.dim[0] != y->shape.dim[0])
        return km_fail(ctx, KM_ERR_SHAPE, "%s: y %s and x %s must be rows, as many", name,
                       km_shape_text(ty, y->shape), km_shape_text(tx, x->shape));
    for (int i = X; i < INPUTS; i++)
        if (i != SLOT && km_want_same_dtype(ctx, name, y, in[i]) != KM_OK) return ctx->error.code;
    if (km_want_dtype(ctx, name, "slot", slot, KM_BIT(KM_I32)) != KM_OK) return ctx->error.code;
    if (slot->shape.ndim != 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: slot must be [ranks], not %s", name,
                       km_shape_text(ty, slot->shape));
    int64_t rows = x->shape.dim[0], ranks = slot->shape.dim[0];
    if (in[MIX]->shape.ndim != 2 || in[MIX]->shape.dim[0] != rows)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: mix must be [%lld, slots], not %s", name,
                       (long long)rows, km_shape_text(ty, in[MIX]->shape));
    if (km_want_shape(ctx, name, "a", in[A], KM_SHAPE(ranks, x->shape.dim[1])) != KM_OK ||
        km_want_shape(ctx, name, "b", in[B], KM_SHAPE(ranks, y->shape.dim[1])) != KM_OK)
        return ctx->error.code;
    *out = (km_outputs){.n = 1, .dtype = {y->dtype}, .shape = {y->shape}};
    return KM_OK;
}

void km_rows_low_rank(km_op_row *t) {
    t[KM_OP_LOW_RANK] = (km_op_row){.formula = "y + mix (x a^T) b, a mix for each row",
                                    .min_in = INPUTS,
                                    .max_in = INPUTS,
                                    .dtypes = KM_BIT(KM_F32),
                                    .infer = infer_low_rank,
                                    .tol = KM_TOL_SUM};
}

/* A device without the kernel: products over all adapters, those of others times 0. */
static km_tensor *composed(km_ctx *ctx, km_tensor *y, km_tensor *x, km_tensor *mix, km_tensor *slot,
                           km_tensor *a, km_tensor *b) {
    km_tensor *weight = km_index_select(ctx, mix, 1, slot); /* (rows, ranks) */
    km_tensor *low = km_mul(ctx, km_linear(ctx, x, a, NULL, KM_ACT_NONE), weight);
    return km_add(ctx, y, km_matmul(ctx, low, b));
}

km_tensor *km_low_rank(km_ctx *ctx, km_tensor *y, km_tensor *x, km_tensor *mix, km_tensor *slot,
                       km_tensor *a, km_tensor *b) {
    km_tensor *in[INPUTS] = {y, x, mix, slot, a, b};
    if (km_failed(ctx)) return NULL;
    if (y && !km_tensor_dev(y)->host && !km_tensor_dev(y)->backend->kernel[KM_OP_LOW_RANK])
        return composed(ctx, y, x, mix, slot, a, b);
    return km_apply(ctx, KM_OP_LOW_RANK, in, INPUTS, &(km_params){0}, NULL);
}
