/* What tests on a real GPU share: which device, a small training step, and what the driver says is
 * free. Each such program ends with exit code 77 where there is no GPU. */
#ifndef KM_TESTS_BACKEND_LIVE_GPU_H
#define KM_TESTS_BACKEND_LIVE_GPU_H
#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

#define GPU "cuda:0"

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

static inline size_t gpu_free_bytes(void) {
    size_t left = 0, total = 0;
    km_cuda_dev *dev = km_cuda_device(0, NULL)->impl;
    assert_int_equal(km_cuda_enter(dev), KM_CU_OK);
    assert_int_equal(km_cuda_api()->mem_info(&left, &total), KM_CU_OK);
    return left;
}

static inline size_t gpu_held_bytes(void) {
    return atomic_load(&((km_cuda_dev *)km_cuda_device(0, NULL)->impl)->held);
}

/* Two layers, trained on a batch of `rows`: dropout for random numbers, AdamW for an update. */
typedef struct net {
    km_ctx *ctx;
    km_tensor *p[4], *m[4], *v[4]; /* w1 (64, 32), b1 (64), w2 (8, 64), b2 (8) */
    km_tensor *x, *targets, *loss; /* (rows, 32), (rows), () */
    int64_t rows, step;
    int runs; /* of the step's own code */
} net;

static inline void net_batch(net *n, int64_t rows) {
    km_release(n->x);
    km_release(n->targets);
    n->rows = rows;
    n->x = km_keep(n->ctx, km_zeros(n->ctx, KM_F32, KM_SHAPE(rows, 32)));
    n->targets = km_keep(n->ctx, km_zeros(n->ctx, KM_I32, KM_SHAPE(rows)));
    km_step_end(n->ctx);
}

static inline net net_open(km_ctx *ctx, int64_t rows) {
    static const int64_t shape[4][2] = {{64, 32}, {64, 0}, {8, 64}, {8, 0}};
    net n = {.ctx = ctx};
    km_seed(ctx, 3);
    for (int i = 0; i < 4; i++) {
        km_shape s = shape[i][1] ? KM_SHAPE(shape[i][0], shape[i][1]) : KM_SHAPE(shape[i][0]);
        n.p[i] = engine_parameter(ctx, km_normal(ctx, KM_F32, s, 0, 0.2));
        n.m[i] = km_keep(ctx, km_zeros(ctx, KM_F32, s));
        n.v[i] = km_keep(ctx, km_zeros(ctx, KM_F32, s));
    }
    n.loss = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SCALAR));
    net_batch(&n, rows);
    return n;
}

static inline void net_close(net *n) {
    for (int i = 0; i < 4; i++) {
        km_release(n->p[i]);
        km_release(n->m[i]);
        km_release(n->v[i]);
    }
    km_release(n->x);
    km_release(n->targets);
    km_release(n->loss);
}

/* New data for step `i`. */
static inline void net_feed(net *n, int i) {
    float *x = malloc(sizeof *x * (size_t)n->rows * 32);
    int32_t *t = malloc(sizeof *t * (size_t)n->rows);
    for (int64_t k = 0; k < n->rows * 32; k++) x[k] = sinf((float)(k * 7 + i * 13));
    for (int64_t k = 0; k < n->rows; k++) t[k] = (int32_t)((k + i) % 8);
    km_write(n->ctx, n->x, x, sizeof *x * (size_t)n->rows * 32);
    km_write(n->ctx, n->targets, t, sizeof *t * (size_t)n->rows);
    free(x);
    free(t);
}

static inline void net_step(km_ctx *ctx, void *user) {
    net *n = user;
    n->runs++;
    km_tensor *h = km_linear(ctx, n->x, n->p[0], n->p[1], KM_ACT_GELU);
    h = km_dropout(ctx, h, 0.1);
    km_tensor *logits = km_linear(ctx, h, n->p[2], n->p[3], KM_ACT_NONE);
    km_tensor *loss = km_cross_entropy(ctx, logits, n->targets, -1, KM_MEAN);
    km_backward(ctx, loss);
    /* A step counter would be frozen into a graph, so the bias correction stays that of step 1. */
    km_adamw how = {
        .size = sizeof(km_adamw), .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 1};
    km_adamw_step(ctx, n->p, n->m, n->v, 4, &how);
    km_zero_grad(ctx, n->p, 4);
    km_assign(ctx, n->loss, loss);
}

#endif
