/* The fallback of work that was held back (chain.h, held_norm.h): its call has long returned, so that
 * ops/run.c cannot send it elsewhere when its launch fails. */
#ifndef KM_BACKEND_CUDA_ON_HOST_H
#define KM_BACKEND_CUDA_ON_HOST_H
#include "backend/cuda/launch.h"

typedef struct km_cuda_operand { /* contiguous, in the GPU's memory */
    void *at;
    km_dtype dtype;
    km_shape shape;
} km_cuda_operand;

/* After a launch that gave `failed`: the op by the CPU's kernel, operands copied there and results back.
 * KM_OK with the context's error taken away; `failed` where the fallback rule does not allow it. */
km_status km_cuda_on_host(km_lane *lane, km_status failed, km_op op, const km_params *p,
                          const km_cuda_operand *in, int n_in, const km_cuda_operand *out,
                          int n_out);

#endif
