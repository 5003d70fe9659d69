/* The Vulkan backend's table of kernels. Each family of ops fills its own entries; an entry left NULL,
 * or a kernel that declines, sends the op to the CPU. */
#ifndef KM_BACKEND_VULKAN_VULKAN_H
#define KM_BACKEND_VULKAN_VULKAN_H
#include "backend/backend.h"

const km_backend *km_vulkan_backend(void);

void km_vulkan_register_elementwise(km_kernel *table);
void km_vulkan_register_copy(km_kernel *table); /* copy, cast, full, arange */
void km_vulkan_register_rows(km_kernel *table); /* softmax, norms, reductions */
void km_vulkan_register_matmul(km_kernel *table);
void km_vulkan_register_layers(km_kernel *table); /* of running models; rows of tables */
void km_vulkan_register_attend(km_kernel *table);
void km_vulkan_register_sample(km_kernel *table);
void km_vulkan_register_low_rank(km_kernel *table);
/* Of training. */
void km_vulkan_register_fill(km_kernel *table); /* arange, random, dropout, comparisons, choices */
void km_vulkan_register_norm_grad(km_kernel *table);
void km_vulkan_register_loss(km_kernel *table);
void km_vulkan_register_embedding_grad(km_kernel *table);
void km_vulkan_register_attention(km_kernel *table); /* with its gradient, and rope */
void km_vulkan_register_optim(km_kernel *table);
/* Of vectors. */
void km_vulkan_register_pick(km_kernel *table); /* by index; rows of plain tables, after layers */
void km_vulkan_register_nearest(km_kernel *table); /* and sums over cells */
void km_vulkan_register_scan(km_kernel *table);
void km_vulkan_register_encode(km_kernel *table);

#endif
