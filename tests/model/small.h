/* Small models for tests: two layers, a few heads, and batches that a formula makes. */
#ifndef KM_TESTS_MODEL_SMALL_H
#define KM_TESTS_MODEL_SMALL_H
#include "model/net.h"
#include "support/engine.h"
#include <math.h>

enum { SMALL_B = 2, SMALL_T = 7, SMALL_VOCAB = 29 };

static inline km_config small_config(km_arch arch) {
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = 4,
                   .dim = 16,
                   .context = 12,
                   .vocab = SMALL_VOCAB,
                   .tied = true,
                   .bias = arch == KM_ARCH_GPT2};
    if (arch == KM_ARCH_LLAMA) c.kv_heads = 2, c.hidden = 24;
    return c;
}

/* Token t of a row, next to it the one that follows. */
static inline int32_t small_token(int64_t row, int64_t t) {
    return (int32_t)((row * 11 + t * 7 + t * t * 3) % SMALL_VOCAB);
}

static inline km_tensor *small_ids(km_ctx *ctx, int64_t rows, int64_t length, int64_t ahead) {
    int32_t ids[256];
    for (int64_t b = 0; b < rows; b++)
        for (int64_t t = 0; t < length; t++) ids[b * length + t] = small_token(b, t + ahead);
    return km_from_data(ctx, KM_I32, KM_SHAPE(rows, length), ids);
}

static inline km_net *small_model(km_ctx *ctx, km_arch arch, km_dtype dtype) {
    km_config c = small_config(arch);
    km_net *m = km_net_new(ctx, &c, dtype);
    assert_ok(ctx);
    assert_int_equal(km_net_init(m, 7), KM_OK);
    return m;
}

/* All of a tensor as floats, freed with km_free. */
static inline float *small_floats(km_ctx *ctx, km_tensor *t) {
    size_t bytes = sizeof(float) * (size_t)km_tensor_count(t);
    float *v = km_alloc(bytes ? bytes : 1);
    km_scope_begin(ctx);
    km_no_grad_begin(ctx);
    km_read(ctx, km_cast(ctx, t, KM_F32), v, bytes);
    km_no_grad_end(ctx);
    km_scope_end(ctx, NULL);
    assert_ok(ctx);
    return v;
}

#endif
