/* How well a model predicts a text. */
#ifndef KM_INFER_PERPLEXITY_H
#define KM_INFER_PERPLEXITY_H
#include "model/net.h"
#include "token/token.h"

typedef struct km_perplexity {
    int64_t tokens; /* predicted */
    int64_t pieces; /* read */
    double loss;    /* mean of -log p, in nats; perplexity is exp(loss) */
} km_perplexity;

typedef struct km_perplexity_options {
    int64_t context; /* tokens of a piece */
    int64_t pieces;  /* at most this many; 0: all of the text */
    int32_t bos;     /* >= 0: takes the place of a piece's first token */
    bool decode;     /* one token at a time through a session's cache, as when a text is written;
                      * else a piece at once, as a prompt is read. Other kernels, other roundings. */
    /* Called after each piece with the tokens read; returning false stops (KM_ERR_STATE). May be
     * NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    /* Called with the logits (vocab) of each prediction, on the host, and the token that came. May
     * be NULL. */
    km_status (*row)(void *user, const float *logits, int32_t came, km_error *err);
    void *user, *row_user; /* of the two */
} km_perplexity_options;

/* Cuts the ids into pieces of `context` tokens (the last may be shorter) and predicts each token of
 * a piece but its first from those before it in the piece. With bos the first token is not lost: it
 * is predicted from bos. */
km_status km_perplexity_of(km_ctx *ctx, km_net *m, const km_ids *ids,
                           const km_perplexity_options *o, km_perplexity *out, km_error *err);

/* How many tokens that predicts, and the piece that comes first: the same for every model. */
int64_t km_perplexity_count(const km_ids *ids, const km_perplexity_options *o);

#endif
