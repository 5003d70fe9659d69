/* A norm of a few rows held back: a layer that reads its result makes it on the way (quant.c), which
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

#define KM_HELD_ROWS 8

/* Runs it, if there is one. */
km_status km_cuda_held_flush(km_lane *lane);
/* Whether the norm held back makes x, (rows, n), and nothing that is written to out[0..n_out-1]
 * beside it is read by it. Then it is the caller's to make. */
bool km_cuda_held_take(km_lane *lane, const void *x, int64_t rows, int64_t n, km_tensor *const *out,
                       int n_out, km_norm_args *a);

#endif
