/* A norm held back: a layer that reads its result makes it on the way (quant.c), which
 * saves a launch in every half of a transformer's block; anything else runs it first. It keeps the
 * rule of chain.h: km_cuda_stream is the one door, and it runs what is held back. */
#ifndef KM_BACKEND_CUDA_HELD_NORM_H
#define KM_BACKEND_CUDA_HELD_NORM_H
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/launch.h"

typedef struct km_cuda_held_norm {
    bool on;
    km_norm_args a; /* an f32 rms_norm, with a residual or without */
} km_cuda_held_norm;

#define KM_HELD_ROWS 4096
#define KM_HELD_WIDE                                                                               \
    8 /* of one whose rows are so long that it has kernels of its own when it runs alone */

/* Runs it, if there is one. */
km_status km_cuda_held_flush(km_lane *lane);
/* Whether a norm held back makes x, (rows, n). Then it is the caller's to make. */
bool km_cuda_held_take(km_lane *lane, const void *x, int64_t rows, int64_t n, km_norm_args *a);
/* Whether the norm held back, if there is one, neither reads nor writes these bytes: what its operands
 * lay in may have been handed out again, to whoever would take it. */
bool km_cuda_held_apart(const km_lane *lane, const void *p, size_t bytes);

#endif
