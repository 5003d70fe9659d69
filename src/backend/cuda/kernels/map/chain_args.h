/* A chain of elementwise ops as one kernel runs it (chain.cu): a small program over the elements of
 * contiguous, 16-byte aligned tensors of one float type and size. For C and CUDA. */
#ifndef KM_CUDA_CHAIN_ARGS_H
#define KM_CUDA_CHAIN_ARGS_H
#include <stdint.h>

#define KM_CHAIN_STEPS 12
#define KM_CHAIN_INPUTS 8
#define KM_CHAIN_THREADS 256
#define KM_CHAIN_LAST 0xff /* an operand: what the step before gave; as a place: none */

/* Operands are places: first the inputs, then the results that are kept for a later step. */
typedef struct km_chain_step {
    double f0, f1; /* the op's numbers */
    void *out;     /* where the result is stored; NULL: nowhere */
    uint16_t op;   /* a km_op */
    uint8_t a, b;  /* places of the operands */
    uint8_t keep;  /* the place of the result, or KM_CHAIN_LAST */
} km_chain_step;

typedef struct km_chain_args {
    const void *in[KM_CHAIN_INPUTS];
    int64_t n; /* elements */
    int32_t n_in, n_steps;
    km_chain_step step[KM_CHAIN_STEPS];
} km_chain_args;

#endif
