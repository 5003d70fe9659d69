/* LoRA (Hu et al. 2021): the weights of a model stay as they are, and chosen linear layers get a
 * correction of low rank, W + alpha/rank B A, which alone is trained. */
#ifndef KM_MODEL_LORA_H
#define KM_MODEL_LORA_H
#include "model/net.h"

typedef struct km_lora_config {
    int rank;            /* of the corrections */
    double alpha;        /* their weight, times rank; 0: twice the rank */
    const char *targets; /* patterns over layer names ("*.attn.c_attn") or their last parts
                          * ("c_attn,c_proj"); NULL: c_attn, or q_proj and v_proj */
} km_lora_config;

/* Freezes all parameters and adds "<layer>.lora_A.weight" (rank, in), drawn from the seed, and
 * "<layer>.lora_B.weight" (out, rank), zero: the model computes what it did before. To be called
 * before an optimiser is made. A pattern that fits no layer is an error. */
km_status km_lora_add(km_net *m, const km_lora_config *c, uint64_t seed, km_error *err);
/* Adds the corrections to the weights they belong to, removes them, and frees the parameters. */
km_status km_lora_merge(km_net *m, km_error *err);

/* adapter_config.json and adapter_model.safetensors, as Hugging Face's PEFT reads them. */
km_status km_lora_save(km_net *m, const char *folder, km_error *err);
/* Adds the corrections in a folder to a model that has none, as km_lora_add does. */
km_status km_lora_load(km_net *m, const char *folder, km_error *err);

/* ---- Shared by adding corrections and reading them from files ---- */

/* Every linear layer of the blocks with its name ("transformer.h.0.attn.c_attn"). */
typedef void (*km_lora_visit)(void *user, km_nn_linear *l, const char *name);
void km_lora_each(km_net *m, km_lora_visit visit, void *user);
/* Adds A and B of zero; the last two of m->params. */
void km_lora_attach(km_net *m, km_nn_linear *l, const char *name, int rank, double alpha);

#endif
