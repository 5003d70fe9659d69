/* Named parameters: what an optimiser updates, a checkpoint stores and a pattern freezes. A module
 * (a model, a layer) lists its tensors here in the order in which it uses them. */
#ifndef KM_NN_PARAM_H
#define KM_NN_PARAM_H
#include "tensor/tensor.h"

typedef struct km_param {
    char *name;   /* as in Hugging Face: "transformer.h.0.attn.c_attn.weight" */
    km_tensor *t; /* kept; requires a gradient unless frozen */
    bool decay;   /* weight decay applies: matrices, not norms and biases */
    bool frozen;  /* gets no gradient and no update */
    bool conv1d;  /* Hugging Face stores it transposed, (in, out) */
} km_param;

struct km_param_list {
    km_param *at;
    int n, cap;
    int users;   /* optimisers that point into it: it may not grow */
    bool doomed; /* freed by its owner; the last user's end frees it */
};

/* Adds a kept tensor as a frozen parameter; the list owns it from now on, also if this fails (NULL
 * with the context's error set). */
km_tensor *km_param_adopt(km_ctx *ctx, km_param_list *list, km_tensor *t, const char *name);
km_param *km_param_find(const km_param_list *list, const char *name); /* NULL: none */
void km_param_clear(km_param_list *list);                             /* releases them all */

/* Whether `name` fits a pattern: '*' stands for any run of characters, '?' for one; several
 * patterns may be given with commas between them. The whole name must fit. */
bool km_name_matches(const char *pattern, const char *name);
/* An optimiser comes, and goes. */
void km_param_list_use(km_param_list *list);
void km_param_list_unuse(km_param_list *list);
int64_t km_param_elements(const km_param_list *list, bool trainable_only);

#endif
