/* Models opened for inference, whatever they lie in: a GGUF file, whose weights are mapped and used
 * in the form they have there, or a Hugging Face folder. */
#ifndef KM_MODEL_OPEN_H
#define KM_MODEL_OPEN_H
#include "format/gguf.h"
#include "model/parts.h"

typedef struct km_open_options {
    int64_t context;            /* at most so many tokens; 0: as many as the model was made for */
    km_dtype dtype;             /* of a folder's model, as for km_net_load; of GGUF's, f32 */
    const km_open_split *split; /* over several devices, GGUF's only; NULL: the context's */
    km_comm *comm; /* ranks that hold it together, each its share (share.h), GGUF's only; NULL or
                    * one rank: all of it. All ranks open it, and it outlives the model. */
    /* Called with the bytes that are in place; returning false stops (KM_ERR_STATE). May be
     * NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} km_open_options;

/* options may be NULL. NULL with *err set; nothing is left behind. */
km_net *km_net_open(km_ctx *ctx, const char *path, const km_open_options *options, km_error *err);
/* The model in an open GGUF file, which is the model's from now on, also if this fails: matrices
 * stay in the mapping, in the dtypes they have; what is of 16 bits or small becomes f32 in memory.
 * On a device without access to the host's memory, all is copied there. options may be NULL. */
km_net *km_net_over_gguf(km_ctx *ctx, km_gguf *g, const km_open_options *options, km_error *err);

#endif
