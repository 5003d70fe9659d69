/* The arguments of an optimiser step: every tensor of the model in one launch. They travel by value,
 * so a captured step needs no table in device memory. For C and CUDA. */
#ifndef KM_CUDA_OPTIM_ARGS_H
#define KM_CUDA_OPTIM_ARGS_H
#include <stdint.h>

#define KM_OPTIM_MOST 360 /* tensors to a launch: within the 32764 bytes that arguments may take */
#define KM_OPTIM_BLOCK 4096 /* elements to a block */
#define KM_SUMSQ_MOST 1300

typedef struct km_optim_tensor {
    const void *p, *g;
    const float *m, *v, *w; /* m may be NULL for sgd; w, when there, is the weight that p rounds */
    void *p_out;
    float *m_out, *v_out, *w_out;
    int64_t n;
    int32_t first; /* block of this tensor's first element */
    int32_t index; /* of its pair in the control; -1: it has none */
} km_optim_tensor;

typedef struct km_optim_args {
    float lr, momentum, decay, beta1, beta2, eps, scale1, scale2;
    int32_t nesterov, decoupled, count;
    const float *control; /* NULL: the settings above */
    km_optim_tensor t[KM_OPTIM_MOST];
} km_optim_args;

typedef struct km_sumsq_tensor {
    const void *x;
    int64_t n;
    int32_t first; /* chunk of this tensor's first element */
    int32_t dtype; /* a km_dtype: f32, f16 or bf16 */
} km_sumsq_tensor;

typedef struct km_sumsq_args {
    float *out; /* (chunks) of this launch */
    int32_t count;
    km_sumsq_tensor t[KM_SUMSQ_MOST];
} km_sumsq_args;

typedef struct km_control_args {
    const float *sums, *knobs, *old;
    float *out;
    int64_t n_sums, n; /* n: of the control */
    double most, beta1, beta2;
    int64_t growth;
} km_control_args;

#endif
