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

typedef struct km_param_list {
    km_param *at;
    int n, cap;
} km_param_list;

/* Adds a kept zero tensor under a name made as by printf, and returns it; the list owns it. NULL
 * with the context's error set. */
km_tensor *km_param_add(km_ctx *ctx, km_param_list *list, km_dtype dtype, km_shape shape,
                        bool decay, const char *name, ...) __attribute__((format(printf, 6, 7)));
/* Adds a kept tensor as a frozen parameter; the list owns it from now on, also if this fails (NULL
 * with the context's error set). */
km_tensor *km_param_adopt(km_ctx *ctx, km_param_list *list, km_tensor *t, const char *name);
km_param *km_param_find(const km_param_list *list, const char *name); /* NULL: none */
void km_param_clear(km_param_list *list);                             /* releases them all */

/* Whether `name` fits a pattern: '*' stands for any run of characters, '?' for one; several
 * patterns may be given with commas between them. The whole name must fit. */
bool km_name_matches(const char *pattern, const char *name);
/* Freezes (or frees again) all that fit the pattern; returns how many did. */
int km_param_freeze(km_ctx *ctx, km_param_list *list, const char *pattern, bool frozen);
int64_t km_param_elements(const km_param_list *list, bool trainable_only);

#endif
