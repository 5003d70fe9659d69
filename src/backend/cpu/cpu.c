/* The CPU backend's table of kernels, put together once from the families'. */
#include "backend/cpu/cpu.h"
#include <pthread.h>

static km_backend backend = {.name = "cpu"};

static void fill_table(void) {
    km_kernel *k = backend.kernel;
    km_cpu_register_fill(k);
    km_cpu_register_copy(k);
    km_cpu_register_elementwise(k);
    km_cpu_register_reduce(k);
    km_cpu_register_matmul(k);
    km_cpu_register_attention(k);
    km_cpu_register_rows(k);
    km_cpu_register_norm(k);
    km_cpu_register_index(k);
    km_cpu_register_order(k);
    km_cpu_register_loss(k);
    km_cpu_register_rope(k);
    km_cpu_register_quant(k);
    km_cpu_register_low_rank(k);
    km_cpu_register_attend(k);
    km_cpu_register_sample(k);
    km_cpu_register_nearest(k);
    km_cpu_register_optim(k);
}

const km_backend *km_cpu_backend(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &backend;
}
