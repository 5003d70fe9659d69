/* How well a model predicts a text. */
#ifndef KM_INFER_PERPLEXITY_H
#define KM_INFER_PERPLEXITY_H
#include "model/model.h"
#include "token/token.h"

typedef struct km_perplexity {
    int64_t tokens; /* predicted */
    double loss;    /* mean of -log p, in nats; perplexity is exp(loss) */
} km_perplexity;

/* Called after each piece with the tokens read; returning false stops (KM_ERR_STATE). May be NULL. */
typedef bool (*km_perplexity_progress)(void *user, int64_t done, int64_t total);

/* Cuts the ids into pieces of `context` tokens (the last may be shorter) and predicts each token of
 * a piece but its first from those before it in the piece. bos >= 0 takes the place of a piece's
 * first token, and that token is not lost: it is predicted from bos. */
km_status km_perplexity_of(km_ctx *ctx, km_model *m, const km_ids *ids, int64_t context, int32_t bos,
                           km_perplexity_progress progress, void *user, km_perplexity *out,
                           km_error *err);

#endif
