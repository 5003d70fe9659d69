/* Data parallelism with ZeRO-1: several ranks, one model. Gradients are summed over the ranks bucket by bucket while the backward
 * pass still runs, and each rank updates its share of every bucket.
 *
 * A bucket is a run of parameters of one dtype, about 25 MB, whose elements lie in one flat tensor,
 * padded so that it splits evenly; rank r owns the rth part. Gradients are copied into a second flat
 * tensor as they get ready, reduced to their owners, and after the update the owners' parts of the
 * parameters are gathered again. */
#ifndef KM_NN_REDUCER_H
#define KM_NN_REDUCER_H
#include "comm/comm.h"
#include "nn/param.h"

typedef struct km_reducer km_reducer;

extern int64_t km_reducer_bucket_bytes; /* a bucket is full from here on; tests make it small */

/* Moves the parameters into buckets and gives them rank 0's values. `param` must stay and is not
 * owned; dtypes must come in runs. NULL with the context's error set. */
km_reducer *km_reducer_new(km_ctx *ctx, km_param *const *param, int n, km_comm *comm);
void km_reducer_free(km_reducer *r); /* NULL is fine */

/* The runs of elements that this rank owns: at most this many; for run i the parameter, and which
 * of its elements (count 0: none). */
int km_reducer_pieces(const km_reducer *r);
int km_reducer_piece(const km_reducer *r, int i, int64_t *first, int64_t *count);

/* The next km_backward is the last of the step. */
void km_reducer_arm(km_ctx *ctx, km_reducer *r);
/* Waits until all gradients are reduced; those that were not ready before are sent now. */
km_status km_reducer_finish(km_ctx *ctx, km_reducer *r);
/* A flat view of an owned run's reduced gradient; false when the parameter got none. */
bool km_reducer_gradient(const km_reducer *r, int param, int64_t first, int64_t count,
                         km_tensor *view);
/* Each rank's sum of `sums` (n) -> (ranks); NULL on failure. */
km_tensor *km_reducer_sums(km_ctx *ctx, km_reducer *r, km_tensor *sums);
/* Gives all ranks the updated parameters. */
km_status km_reducer_share(km_ctx *ctx, km_reducer *r);
/* Host memory in the shape of a parameter, of which each rank has filled what it owns: completed. */
km_status km_reducer_join(km_ctx *ctx, km_reducer *r, int param, float *data);

#endif
