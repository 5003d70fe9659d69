/* The cache of keys and values: kept tensors with room for a whole context, filled from the front.
 * */
#ifndef KM_INFER_CACHE_H
#define KM_INFER_CACHE_H
#include "model/model.h"

/* For `batch` rows of at most `room` tokens (0: the model's context). NULL with the context's error
 * set. */
km_cache *km_cache_new(km_ctx *ctx, const km_model *m, int64_t batch, int64_t room);
void km_cache_free(km_cache *c, const km_model *m); /* NULL is fine */
size_t km_cache_bytes(const km_model *m, int64_t batch, int64_t room);

#endif
