/* Learning an index's frame from a sample: anchors, then a coder of residuals of the size asked for
 * (in bytes, by the ratio of the whole, or by the recall it reaches among all vectors). */
#ifndef KM_VECTOR_LEARN_H
#define KM_VECTOR_LEARN_H
#include "comm/comm.h"
#include "vector/heldout.h"
#include "vector/index.h"

/* What is known of the vectors when learning begins. */
typedef struct km_learn {
    km_ctx *ctx;
    km_comm *comm; /* NULL: alone. All ranks get the same frame */
    const km_index_options *options;
    float *sample; /* (n, dim), finite; scaled in place for cosine */
    int64_t n, dim;
    int64_t total;  /* vectors that the index will hold, over all ranks */
    km_dtype dtype; /* of these vectors */
    /* Where recall is asked for: queries whose neighbours are known, and these; or NULL. */
    const km_heldout *held;
    const km_crowd *crowd;
} km_learn;

km_status km_index_check_options(const km_index_options *o, int64_t total, int64_t dim,
                                 km_error *err);
/* The caller's options and training over the defaults: *own, whose training is *training where given. */
km_status km_index_take_options(const km_index_options *given, km_index_options *own,
                                km_anchor_training *training, km_error *err);
km_anchor_training km_training_of(const km_index_options *o); /* with an index's tolerance */
/* The budget in bytes; what of it goes to code, stacks, buffers of libraries and matrices of the transform;
 * and the smallest that works. */
double km_memory_budget(const km_index_options *o);
double km_memory_fixed(int64_t dim);
double km_memory_least(const km_index_options *o, int64_t dim);
/* How many vectors of `total` a sample should hold, for these options and bytes of memory. */
int64_t km_learn_sample(const km_index_options *o, int64_t total, int64_t dim, double memory);
/* An index without rows; NULL with the error set. */
km_index *km_index_learn(const km_learn *l, km_error *err);

bool km_tell(const km_index_options *o, const char *stage, int64_t done, int64_t total);
km_status km_stopped(km_error *err);

#endif
