/* The memory profile's recorder: between begin and end every change of the live bytes on the
 * context's device is written down, with the op that was running. The pool reports the changes;
 * ops only say their names. Public face: km_profile_begin and km_profile_end. */
#ifndef KM_TENSOR_PROFILE_H
#define KM_TENSOR_PROFILE_H
#include "tensor/tensor.h"

typedef struct km_profile {
    km_memory_event *events;
    void **blocks; /* (n) the block of each event */
    size_t n, cap;
    uint64_t index;     /* of the op that runs, or ran last */
    const char *op;     /* its name */
    const char *making; /* what a tensor is made for right now; NULL: for the op */
    bool on, failed;    /* failed: no memory for the list */
} km_profile;

void km_profile_free(km_ctx *ctx);

/* An op starts. */
static inline void km_profile_op(km_ctx *ctx, const char *name) {
    km_profile *p = ctx->profile;
    if (!p || !p->on) return;
    p->index++;
    p->op = name;
}

#endif
