/* The table of kernels, filled once by the families. */
#include "backend/cuda/cuda.h"
#include <pthread.h>

static km_backend backend = {.name = "cuda"};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    km_kernel *table = backend.kernel;
    km_cuda_register_elementwise(table);
    km_cuda_register_fill(table);
    km_cuda_register_copy(table);
    km_cuda_register_reduce(table);
    km_cuda_register_rows(table);
    km_cuda_register_norm(table);
    km_cuda_register_loss(table);
    km_cuda_register_index(table);
    km_cuda_register_embedding_grad(table);
    km_cuda_register_rope(table);
    km_cuda_register_optim(table);
    km_cuda_register_matmul(table);
    km_cuda_register_attention(table);
    km_cuda_register_quant(table);
    km_cuda_register_attend(table);
    km_cuda_register_sample(table);
    km_cuda_register_nearest(table);
    km_cuda_register_scan(table);
    km_cuda_register_encode(table);
}

const km_backend *km_cuda_backend(void) {
    pthread_once(&once, fill);
    return &backend;
}
