/* The table of kernels, filled once by the families. */
#include "backend/cuda/cuda.h"
#include <pthread.h>

static km_backend backend = {.name = "cuda"};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    km_kernel *table = backend.kernel;
    (void)table;
    /* A family registers from the moment its file is there. */
#if __has_include("backend/cuda/elementwise.c")
    km_cuda_register_elementwise(table);
#endif
#if __has_include("backend/cuda/fill.c")
    km_cuda_register_fill(table);
#endif
#if __has_include("backend/cuda/copy.c")
    km_cuda_register_copy(table);
#endif
#if __has_include("backend/cuda/reduce.c")
    km_cuda_register_reduce(table);
#endif
#if __has_include("backend/cuda/rows.c")
    km_cuda_register_rows(table);
#endif
#if __has_include("backend/cuda/norm.c")
    km_cuda_register_norm(table);
#endif
#if __has_include("backend/cuda/loss.c")
    km_cuda_register_loss(table);
#endif
#if __has_include("backend/cuda/index.c")
    km_cuda_register_index(table);
#endif
#if __has_include("backend/cuda/rope.c")
    km_cuda_register_rope(table);
#endif
#if __has_include("backend/cuda/optim.c")
    km_cuda_register_optim(table);
#endif
#if __has_include("backend/cuda/matmul.c")
    km_cuda_register_matmul(table);
#endif
#if __has_include("backend/cuda/attention.c")
    km_cuda_register_attention(table);
#endif
}

const km_backend *km_cuda_backend(void) {
    pthread_once(&once, fill);
    return &backend;
}
