/* The loss of a text, piece by piece: a piece is read at once, its logits are made some rows at a
 * time, so that a large vocabulary does not need them all in memory. */
#include "infer/perplexity.h"
#include "base/alloc.h"

#define ROWS 64 /* of logits at a time */

/* Sum of -log p of ids[1 ..] given what is before them; n >= 2. */
static double piece(km_ctx *ctx, km_model *m, const int32_t *ids, int64_t n) {
    double sum = 0;
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, n - 1), ids);
    km_tensor *targets = km_from_data(ctx, KM_I32, KM_SHAPE(1, n - 1), ids + 1);
    km_tensor *h = km_model_forward(ctx, m, x, NULL); /* (1, n - 1, C) */
    for (int64_t at = 0; at < n - 1 && !km_failed(ctx); at += ROWS) {
        int64_t rows = n - 1 - at < ROWS ? n - 1 - at : ROWS;
        km_scope_begin(ctx);
        km_tensor *y = km_model_logits(ctx, m, km_narrow(ctx, h, 1, at, rows));
        km_tensor *t = km_narrow(ctx, targets, 1, at, rows);
        sum += km_item(ctx, km_cross_entropy(ctx, km_cast(ctx, y, KM_F32), t, KM_NO_IGNORE, KM_SUM));
        km_scope_end(ctx, NULL);
    }
    km_no_grad_end(ctx);
    return sum;
}

km_status km_perplexity_of(km_ctx *ctx, km_model *m, const km_ids *ids, int64_t context, int32_t bos,
                           km_perplexity_progress progress, void *user, km_perplexity *out,
                           km_error *err) {
    int64_t total = (int64_t)ids->len, fresh = context - (bos >= 0);
    *out = (km_perplexity){0};
    if (context < 2 || context > m->config.context)
        return km_error_set(err, KM_ERR_RANGE,
                            "pieces of %lld tokens; the model's context is %lld, and 2 the least",
                            (long long)context, (long long)m->config.context);
    if (total + (bos >= 0) < 2)
        return km_error_set(err, KM_ERR_RANGE,
                            "the text has %lld tokens; there is nothing to predict",
                            (long long)total);
    int32_t *row = km_alloc(sizeof *row * (size_t)context);
    if (!row) return km_error_set(err, KM_ERR_MEMORY, "perplexity: out of memory");
    double sum = 0;
    km_status s = KM_OK;
    for (int64_t at = 0; at < total && s == KM_OK; at += fresh) {
        int64_t n = total - at < fresh ? total - at : fresh, lead = bos >= 0;
        if (lead) row[0] = bos;
        for (int64_t i = 0; i < n; i++) row[lead + i] = ids->data[at + i];
        if (n + lead >= 2) {
            sum += piece(ctx, m, row, n + lead);
            out->tokens += n + lead - 1;
        }
        if (!km_failed(ctx)) km_step_end(ctx);
        if (km_failed(ctx)) s = km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
        if (s == KM_OK && progress && !progress(user, at + n, total))
            s = km_error_set(err, KM_ERR_STATE, "stopped");
    }
    km_free(row);
    out->loss = out->tokens ? sum / (double)out->tokens : 0;
    return s;
}
