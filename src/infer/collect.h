/* Importance matrices in the making: while a model runs, the inputs of its linear layers are
 * watched, and their mean squares kept. */
#ifndef KM_INFER_COLLECT_H
#define KM_INFER_COLLECT_H
#include "model/imatrix.h"
#include "model/net.h"

typedef struct km_collector km_collector;

/* Watches the model's layers until the end; one at a time on a context. NULL with the error set. */
km_collector *km_collect_begin(km_ctx *ctx, km_net *m, km_error *err);
/* Stops watching. The matrix of what was seen, with the names of GGUF; the caller frees it. NULL
 * with the error set. */
km_imatrix *km_collect_end(km_collector *c, km_error *err);

#endif
