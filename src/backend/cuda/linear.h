/* The linear layer's kernels, registered with the matrix product's (matmul.c). */
#ifndef KM_BACKEND_CUDA_LINEAR_H
#define KM_BACKEND_CUDA_LINEAR_H
#include "backend/backend.h"

km_status km_cuda_linear(km_ctx *ctx, const km_call *c);
km_status km_cuda_linear_dx(km_ctx *ctx, const km_call *c);

#endif
