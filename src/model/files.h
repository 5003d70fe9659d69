/* Models in files: folders as Hugging Face's transformers reads and writes them, with config.json
 * and model.safetensors (or its index and shards). A checkpoint's weights are such a folder too. */
#ifndef KM_MODEL_FILES_H
#define KM_MODEL_FILES_H
#include "format/safetensors.h"
#include "model/net.h"

/* The model in a folder, in `dtype`, or with KM_DTYPE_COUNT as it is stored (16 bits stay 16 bits,
 * if all tensors are alike; else f32). NULL with *err set; nothing is left behind. */
km_net *km_net_load(km_ctx *ctx, const char *folder, km_dtype dtype, km_error *err);
/* Overwrites the model's parameters from a file that holds all of them, converting dtypes. A tensor
 * that is missing, of another shape, or unknown to the model is an error that names it; nothing has
 * been changed then. The prefix "transformer." or "model." may be absent. */
km_status km_net_read(km_net *m, const km_safetensors *f, km_error *err);

/* Writes config.json and model.safetensors into a folder that exists, as transformers expects them:
 * padding of the vocabulary is left out, and gpt2 without biases gets biases of zero (km_net_load
 * undoes both). */
km_status km_net_save(km_net *m, const char *folder, km_error *err);
/* The tensors as they are written there, for writers that put more into the same file. The items
 * stand for the parameters as they are when the file is written; free them afterwards. */
typedef struct km_net_items {
    km_st_item *item;
    int n;
    struct km_net_item *user;
} km_net_items;
km_status km_net_items_of(km_net *m, km_net_items *out, km_error *err);
void km_net_items_free(km_net_items *items);

#endif
