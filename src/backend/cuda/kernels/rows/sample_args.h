/* Arguments of the kernels that choose tokens; both sides include it. */
#ifndef KM_CUDA_SAMPLE_ARGS_H
#define KM_CUDA_SAMPLE_ARGS_H
#include "backend/sample.h"
#include <stdint.h>

#define KM_SAMPLE_BLOCK 64     /* logits to a peak */
#define KM_SAMPLE_THREADS 1024 /* that choose for one row */
#define KM_SAMPLE_LIST 2048    /* candidates that are looked at in shared memory */

typedef struct km_sample_args {
    const float *logits;   /* (rows, v) */
    float *edited;         /* (rows, v): with penalties; or NULL */
    const float *settings; /* (rows, KM_SAMPLE_SETTINGS) */
    const int32_t *before; /* (rows, KM_SAMPLE_STATE) */
    float *peaks;          /* (rows, blocks): the largest of each block of logits; never NaN */
    int32_t *ids, *after;
    int32_t v, blocks;
    const int32_t *masks, *biases; /* (n_masks, words), (n_biases, 3), of op_list.h; or NULL */
    int32_t n_masks, words, n_biases, penalties;
} km_sample_args;

typedef struct km_logprobs_args {
    const float *logits;  /* (rows, v) */
    const int32_t *which; /* (n, 2) */
    float *out;           /* (n, 1 + top) */
    int32_t *ids;         /* (n, top) */
    uint32_t *peaks; /* (n, blocks): of each block of logits the largest that is not told yet */
    int32_t rows, v, tokens, top, blocks;
} km_logprobs_args;

#endif
