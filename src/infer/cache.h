/* The cache of keys and values: kept tensors, filled from the front, that grow with the text. */
#ifndef KM_INFER_CACHE_H
#define KM_INFER_CACHE_H
#include "model/model.h"

/* For `batch` rows of at most `room` tokens (0: the model's context). NULL with the context's error
 * set. */
km_cache *km_cache_new(km_ctx *ctx, const km_model *m, int64_t batch, int64_t room);
/* Makes room for so many tokens in all, at least doubling it when it must grow; what the cache holds
 * stays. After a failure only freeing it is possible. */
km_status km_cache_reserve(km_ctx *ctx, km_cache *c, const km_model *m, int64_t tokens);
void km_cache_free(km_cache *c, const km_model *m); /* NULL is fine */
size_t km_cache_bytes(const km_model *m, int64_t batch, int64_t room);

#endif
