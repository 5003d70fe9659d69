/* Adapters (LoRA) of a model that runs: several at once, each in a slot, none of them merged into the
 * weights, so that every row of a step can have a mix of its own (km_nn_place.mix). Base weights may be
 * of any kind. */
#ifndef KM_MODEL_ADAPTERS_H
#define KM_MODEL_ADAPTERS_H
#include "model/net.h"

/* path: PEFT's folder (adapter_config.json and adapter_model.safetensors), or a GGUF file as llama.cpp's
 * converter writes it. All of it goes into an empty slot of every part of the model, or nothing does.
 * Not where ranks share the model. Steps that were captured have to be made anew, which
 * km_net.adapters.changes tells. */
km_status km_adapter_load(km_net *m, int slot, const char *path, km_error *err);
/* Empties a slot; on failure (memory) it stays. */
km_status km_adapter_unload(km_net *m, int slot, km_error *err);
void km_adapters_release(km_net *m); /* of one part, all of them: for km_net_free */

/* ---- Files ---- */

/* An adapter's file with what tells how to read it. */
typedef struct km_adapter_file km_adapter_file;
km_adapter_file *km_adapter_file_open(const km_net *m, const char *path, km_error *err);
void km_adapter_file_close(km_adapter_file *f); /* NULL is fine */
int km_adapter_file_tensors(const km_adapter_file *f);
/* Its correction of the layer of that name, whose weights are w (out, in): 0 none, 1 one whose rank is
 * *rank, -1 with *err set. */
int km_adapter_file_find(const km_adapter_file *f, const char *layer, const km_tensor *w, int *rank,
                         km_error *err);
/* Of a layer that it corrects: a (rank, in), and b (rank, out), times alpha / rank, in the order that
 * `pairs` says of rotated rows. */
km_status km_adapter_file_read(const km_adapter_file *f, const char *layer, km_rope_pairs pairs,
                               float *a, float *b, km_error *err);
/* The first tensor that corrects no layer of those that were asked for, for a message. */
const char *km_adapter_file_stray(const km_adapter_file *f);
const char *km_adapter_file_path(const km_adapter_file *f);

#endif
