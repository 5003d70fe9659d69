/* The arguments of an optimiser step: every tensor of the model in one launch. They travel by value,
 * so a captured step needs no table in device memory. For C and CUDA. */
#ifndef KM_CUDA_OPTIM_ARGS_H
#define KM_CUDA_OPTIM_ARGS_H
#include <stdint.h>

#define KM_OPTIM_MOST 320    /* tensors to a launch: within the 32764 bytes that arguments may take */
#define KM_OPTIM_BLOCK 4096  /* elements to a block */

typedef struct km_optim_tensor {
    const void *p, *g;
    const float *m, *v;      /* m may be NULL for sgd */
    void *p_out;
    float *m_out, *v_out;
    int64_t n;
    int64_t first;           /* block of this tensor's first element */
} km_optim_tensor;

typedef struct km_optim_args {
    float lr, momentum, decay, beta1, beta2, eps, scale1, scale2;
    int32_t nesterov, decoupled, count;
    km_optim_tensor t[KM_OPTIM_MOST];
} km_optim_args;

#endif
