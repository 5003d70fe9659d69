/* Weights of a few bits in the GPU's memory: finding them in planes, as kernels want them. */
#ifndef KM_BACKEND_CUDA_QUANT_H
#define KM_BACKEND_CUDA_QUANT_H
#include "backend/cuda/kernels/quant/quant_args.h"
#include "backend/cuda/launch.h"

/* A matrix ready for kernels. One whose tensor was not settled (device.h) is laid out in scratch
 * memory for the occasion. */
typedef struct km_cuda_quant {
    km_quant_matrix m;
    void *scratch;
    size_t cap;
} km_cuda_quant;

/* The kernels' number of a block dtype, -1 for others. */
int km_cuda_quant_type(km_dtype d);
int64_t km_cuda_quant_group(km_dtype d); /* elements of a group (kernels/quant_args.h) */
/* Bytes that 32 units of a row may take in shared memory, plane after plane (kernels/quant_bulk.cuh). */
size_t km_cuda_quant_step(km_dtype d);
/* t (n, k) or of any shape with rows of k. KM_ERR_UNSUPPORTED when k is no multiple of a unit. */
km_status km_cuda_quant_get(km_lane *lane, const km_tensor *t, km_cuda_quant *out);
/* The same of rows of any length, as one row of all elements: the last unit may go beyond them. */
km_status km_cuda_quant_flat(km_lane *lane, const km_tensor *t, km_cuda_quant *out);
void km_cuda_quant_put(km_lane *lane, km_cuda_quant *q);

/* device_ops: planes for good, and back. */
km_status km_cuda_settle(km_lane *lane, km_storage *s, km_dtype dtype);
km_status km_cuda_unsettle(km_lane *lane, km_storage *s, km_dtype dtype);

/* All elements of t, of a block dtype, as f32 to `to`, which has room for whole units of them. */
km_status km_cuda_quant_floats(km_lane *lane, const km_tensor *t, float *to);

/* quant_odd.c: what the kernels of quant.c do not take. Whether this call of theirs is such a one, and
 * running it. */
bool km_cuda_quant_is_odd(const km_call *c);
km_status km_cuda_quant_odd(km_ctx *ctx, const km_call *c);

#endif
