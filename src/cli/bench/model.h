/* A small transformer for the benchmarks of whole steps: speed (bench_step.c), memory over the step
 * (bench_memory.c) and what a steady loop allocates (bench_pool.c). */
#ifndef KM_CLI_BENCH_MODEL_H
#define KM_CLI_BENCH_MODEL_H
#include "kermes.h"

typedef struct km_net_size {
    int layers, width, heads, vocabulary, batch, tokens;
} km_net_size;

typedef struct km_bench_model km_bench_model;

/* The model with random data to train on; NULL with the context's error set. */
km_bench_model *km_bench_model_new(km_ctx *ctx, const km_net_size *size);
void km_bench_model_free(km_ctx *ctx, km_bench_model *m); /* NULL is fine; trims the pool */
/* Forward, loss, backward and update; ends the step and returns the loss. */
double km_bench_model_step(km_ctx *ctx, const km_bench_model *m);
double km_bench_model_parameters(const km_bench_model *m);
double km_bench_model_flops(const km_bench_model *m); /* of one step */

#endif
