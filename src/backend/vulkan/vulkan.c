/* The table of kernels, filled once. */
#include "backend/vulkan/vulkan.h"
#include <pthread.h>

static km_backend backend = {.name = "vulkan"};

static void fill(void) {
    km_vulkan_register_elementwise(backend.kernel);
    km_vulkan_register_copy(backend.kernel);
    km_vulkan_register_rows(backend.kernel);
    km_vulkan_register_matmul(backend.kernel);
    km_vulkan_register_layers(backend.kernel);
    km_vulkan_register_attend(backend.kernel);
    km_vulkan_register_sample(backend.kernel);
    km_vulkan_register_low_rank(backend.kernel);
    km_vulkan_register_fill(backend.kernel);
    km_vulkan_register_norm_grad(backend.kernel);
    km_vulkan_register_loss(backend.kernel);
    km_vulkan_register_embedding_grad(backend.kernel);
    km_vulkan_register_attention(backend.kernel);
    km_vulkan_register_optim(backend.kernel);
    km_vulkan_register_pick(backend.kernel);
    km_vulkan_register_nearest(backend.kernel);
    km_vulkan_register_scan(backend.kernel);
    km_vulkan_register_encode(backend.kernel);
}

const km_backend *km_vulkan_backend(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    return &backend;
}
