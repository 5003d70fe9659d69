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
} km_sample_args;

#endif
