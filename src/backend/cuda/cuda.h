/* The CUDA backend's table of kernels. Each family of ops fills its own entries; an entry left
 * NULL, or a kernel that declines, sends the op to the CPU. How to add a kernel: docs/cuda.md. */
#ifndef KM_BACKEND_CUDA_CUDA_H
#define KM_BACKEND_CUDA_CUDA_H
#include "backend/backend.h"

const km_backend *km_cuda_backend(void);

/* One per family: table[KM_OP_...] = its kernel. */
void km_cuda_register_elementwise(km_kernel *table); /* unary, binary, gradients, where, dropout */
void km_cuda_register_fill(km_kernel *table);
void km_cuda_register_copy(km_kernel *table);
void km_cuda_register_reduce(km_kernel *table);
void km_cuda_register_rows(km_kernel *table);
void km_cuda_register_norm(km_kernel *table);
void km_cuda_register_loss(km_kernel *table);
void km_cuda_register_index(km_kernel *table);
void km_cuda_register_embedding_grad(km_kernel *table);
void km_cuda_register_rope(km_kernel *table);
void km_cuda_register_optim(km_kernel *table);
void km_cuda_register_matmul(km_kernel *table);
void km_cuda_register_attention(km_kernel *table);
void km_cuda_register_quant(km_kernel *table);
void km_cuda_register_attend(km_kernel *table);
void km_cuda_register_sample(km_kernel *table);
void km_cuda_register_nearest(km_kernel *table); /* nearest, cell_sums */
void km_cuda_register_scan(km_kernel *table);    /* scan_codes */
void km_cuda_register_encode(km_kernel *table);  /* encode_levels, encode_trellis */
km_status km_cuda_cell_sums(km_ctx *ctx, const km_call *c);

/* The linear layer's kernels (linear.c), registered with the matrix product's. */
km_status km_cuda_linear(km_ctx *ctx, const km_call *c);
km_status km_cuda_linear_dx(km_ctx *ctx, const km_call *c);

#endif
