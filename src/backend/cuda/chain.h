/* Chains of elementwise ops. The launch of an op over contiguous floats is held back; when the next
 * op is of the same kind and size and reads its result, it joins, and when anything else is to
 * happen on the lane the chain runs as one kernel (kernels/chain.cu). What the ops hand on to each
 * other stays in registers, and a result that nobody holds any more when the chain runs is not
 * written at all.
 *
 * The lane's stream is the one door to the GPU: km_cuda_stream (launch.h) runs what was held back
 * before it gives the stream out, and nothing else knows the stream. So whatever is launched,
 * copied, waited for, captured or replayed comes after the chain. Memory that goes back to the
 * driver is the only other door, and lane.c runs the chain there too.
 *
 * KERMES_FUSE=0 in the environment when a context is made: every op is launched at once. */
#ifndef KM_BACKEND_CUDA_CHAIN_H
#define KM_BACKEND_CUDA_CHAIN_H
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/map/chain_args.h"
#include "backend/cuda/launch.h"

/* An op that could be a step: contiguous, 16-byte aligned operands of args.n elements. */
typedef struct km_cuda_link {
    km_op op;
    int slot;               /* the float type (walker.h) */
    km_cuda_kernel *kernel; /* what runs it by itself, with args */
    km_map_args args;
    km_storage *storage; /* of args.out: looked at, not held */
    uint8_t a, b;        /* the operands: an input, or KM_CHAIN_INPUTS + a step */
} km_cuda_link;

typedef struct km_cuda_chain {
    km_cuda_link link[KM_CHAIN_STEPS];
    const void *in[KM_CHAIN_INPUTS]; /* what is read from memory */
    int n, n_in;
    bool off;
    uint64_t ops, kernels; /* ops that ran in chains of two or more, and those chains */
} km_cuda_chain;

/* Runs the op now or holds it back. KM_OK, or an error set on the context. */
km_status km_cuda_chain_push(km_lane *lane, const km_cuda_link *link);
/* Runs what is held back. */
km_status km_cuda_chain_flush(km_lane *lane);

#endif
