/* What adding corrections and reading them from files share. */
#ifndef KM_MODEL_LORA_PARTS_H
#define KM_MODEL_LORA_PARTS_H
#include "model/lora.h"

/* Every linear layer of the blocks with its name ("transformer.h.0.attn.c_attn"). */
typedef void (*km_lora_visit)(void *user, km_nn_linear *l, const char *name);
void km_lora_each(km_net *m, km_lora_visit visit, void *user);
/* Adds A and B of zero; the last two of m->params. */
void km_lora_attach(km_net *m, km_nn_linear *l, const char *name, int rank, double alpha);

#endif
