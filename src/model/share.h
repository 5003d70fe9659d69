/* Tensor parallelism: a rank's share of a model that several ranks hold together. Heads are shared out by groups, a
 * key/value head with the query heads that look at it; the MLP by its hidden columns; the head by
 * tokens. What makes heads and columns is cut by rows (q, k, v, gate, up), what brings them back to
 * the residual stream by columns (output, down), and there the ranks add up what each of them has.
 * Embeddings and norms are whole on every rank. A rank's model is thus a narrower model. */
#ifndef KM_MODEL_SHARE_H
#define KM_MODEL_SHARE_H
#include "model/config.h"

typedef struct km_share {
    int rank, ranks;              /* ranks 0: the model is whole */
    int kv_first, kv_heads;       /* with heads / kv_heads query heads each */
    int64_t hidden_first, hidden; /* columns of the MLP */
    int64_t token_first, tokens;  /* rows of the head */
    int64_t token_part;           /* of every rank but the last, which may have fewer */
} km_share;

/* The configuration of a rank's model. */
km_config km_share_config(const km_config *c, const km_share *s);

#endif
