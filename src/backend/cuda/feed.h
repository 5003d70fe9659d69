/* Weights that stay in the host's memory, of models larger than the GPU's: brought over as layers
 * use them, through pinned memory and a stream of copies of its own. A model uses its weights in the
 * same order in every step, so the next one is prefetched while the last one is computed with, across
 * the end of a step as well. */
#ifndef KM_BACKEND_CUDA_FEED_H
#define KM_BACKEND_CUDA_FEED_H
#include "backend/cuda/launch.h"

/* A call of an op uses up to three weights; one more is on its way, and one is being used up. */
#define KM_FEED_SLOTS 5

struct km_cuda_feed;

/* Where the bytes of the host are, or will be by the time that work put on the lane's stream from
 * now on gets to run: valid for the launches of one call that asks for at most three weights. NULL
 * with the error set. */
const void *km_cuda_feed_get(km_lane *lane, const void *data, size_t bytes);
/* device_ops.lend: such weights will come, and what is here of others is of no use any more. */
km_status km_cuda_feed_lend(km_lane *lane);
void km_cuda_feed_close(km_lane *lane);
/* How many weights were there already, or on their way, when asked for, and how many were not. */
void km_cuda_feed_counts(const km_lane *lane, uint64_t *ahead, uint64_t *late);

/* The bytes of a tensor on the device: its own, or brought over. */
static inline const void *km_cuda_bytes_of(km_lane *lane, const km_tensor *t) {
    if (!t->storage->drop) return km_tensor_ptr(t);
    return km_cuda_feed_get(lane, km_tensor_ptr(t),
                            (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape)));
}

#endif
