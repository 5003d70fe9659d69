/* A model over several devices (layer offload): a chain of parts, each holding some layers in a context of its own.
 * The residual stream goes from part to part through the host. What belongs to the caller is the
 * first part's context; the others' go with the model. */
#ifndef KM_MODEL_PARTS_H
#define KM_MODEL_PARTS_H
#include "model/net.h"

#define KM_MAX_PARTS 8

/* Which layers go where, in order. */
typedef struct km_open_split {
    char device[KM_MAX_PARTS][24];
    int layers[KM_MAX_PARTS];
    int n; /* 0 or 1: all layers, on the context's own device */
    int streamed
        [KM_MAX_PARTS]; /* the matrices of so many of its layers, the first ones, stay in the
                                 * host's memory and are brought over as they are used */
} km_open_split;

/* A model from a source, in parts; ctx is on the first device of the split (NULL: no split). NULL
 * with *err set. */
km_net *km_net_parts(km_ctx *ctx, const km_config *c, km_dtype dtype, const km_net_source *source,
                     const km_open_split *split, km_error *err);

/* Tells the device's memory which tensors are about to come, so that it is laid out for them. Each
 * once, before km_net_parts, which is the end of it. Does nothing if the model is split. */
typedef struct km_expecting {
    km_ctx *ctx;      /* NULL: expectations are dropped */
    size_t spare[32]; /* sizes of matrices that are settled: one block more for all of a size */
    int n;
} km_expecting;
km_expecting km_net_expecting(km_ctx *ctx, const km_open_split *split);
void km_net_expect(km_expecting *e, km_dtype dtype, size_t bytes);

/* Whether a matrix of a layer can stay in the host's memory, as `streamed` has it. */
bool km_net_can_lend(km_dtype dtype, km_shape shape);

/* The part whose context has failed, or NULL. Its error is set on the first part's context too, if
 * that has none. */
km_net *km_net_failed(km_net *m);
km_net *km_net_end(km_net *m); /* the last part, which has the head */
/* t of one context in another, by way of the host. NULL with an error set on one of them. */
km_tensor *km_net_pass(km_ctx *to, km_tensor *t);
/* Layers and devices: "cuda:0", or "cpu 20 + cuda:0 16". */
const char *km_net_devices(const km_net *m, char *buf, size_t n);

#endif
