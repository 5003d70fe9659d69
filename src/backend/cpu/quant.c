/* Weights of a few bits on the CPU: decoding and encoding, over all threads, and rows of a table.
 * The layers are in quant_linear.c. */
#include "backend/cpu/kernels.h"
#include "tensor/quant.h"

static float load(const km_tensor *t, int64_t i) {
    const void *p = km_tensor_ptr(t);
    return t->dtype == KM_F32   ? ((const float *)p)[i]
           : t->dtype == KM_F16 ? km_f16_to_f32(((const uint16_t *)p)[i])
                                : km_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void store(const km_tensor *t, int64_t i, float v) {
    void *p = km_tensor_ptr(t);
    if (t->dtype == KM_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = t->dtype == KM_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
}

static const char *blocks_at(const km_tensor *t, int64_t element) {
    return (const char *)km_tensor_ptr(t) + km_dtype_bytes(t->dtype, element);
}

/* ---- Decoding and encoding, in stretches of 256 elements ---- */

#define STRETCH 256

static void dequantise_range(void *arg, int64_t begin, int64_t end, int worker) {
    const km_call *c = arg;
    (void)worker;
    int64_t n = km_shape_count(c->in[0]->shape);
    float v[STRETCH];
    for (int64_t at = begin * STRETCH; at < end * STRETCH && at < n; at += STRETCH) {
        int64_t count = n - at < STRETCH ? n - at : STRETCH;
        km_dequantise(c->in[0]->dtype, blocks_at(c->in[0], at), count, v);
        for (int64_t i = 0; i < count; i++) store(c->out[0], at + i, v[i]);
    }
}

static void quantise_range(void *arg, int64_t begin, int64_t end, int worker) {
    const km_call *c = arg;
    (void)worker;
    int64_t n = km_shape_count(c->in[0]->shape);
    float v[STRETCH];
    for (int64_t at = begin * STRETCH; at < end * STRETCH && at < n; at += STRETCH) {
        int64_t count = n - at < STRETCH ? n - at : STRETCH;
        for (int64_t i = 0; i < count; i++) v[i] = load(c->in[0], at + i);
        km_quantise(c->out[0]->dtype, v, NULL, count, (char *)blocks_at(c->out[0], at));
    }
}

static km_status dequantise(km_ctx *ctx, const km_call *c) {
    km_threads_for(ctx->threads, (km_shape_count(c->in[0]->shape) + STRETCH - 1) / STRETCH, 64,
                   dequantise_range, (void *)(uintptr_t)c);
    return KM_OK;
}

static km_status quantise(km_ctx *ctx, const km_call *c) {
    km_threads_for(ctx->threads, (km_shape_count(c->in[0]->shape) + STRETCH - 1) / STRETCH, 8,
                   quantise_range, (void *)(uintptr_t)c);
    return KM_OK;
}

/* ---- Embedding: only the rows asked for ---- */

static km_status embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1];
    int64_t n = table->shape.dim[1], count = km_shape_count(ids->shape);
    float *row = km_ctx_scratch(ctx, (size_t)(n + 1) * sizeof(float));
    if (!row) return KM_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        int64_t id = ids->dtype == KM_I64 ? ((const int64_t *)km_tensor_ptr(ids))[i]
                                          : ((const int32_t *)km_tensor_ptr(ids))[i];
        km_dequantise(table->dtype, blocks_at(table, id * n), n, row);
        for (int64_t k = 0; k < n; k++) store(c->out[0], i * n + k, row[k]);
    }
    return KM_OK;
}

void km_cpu_register_quant(km_kernel *k) {
    k[KM_OP_DEQUANTISE] = dequantise;
    k[KM_OP_QUANTISE] = quantise;
    k[KM_OP_QUANT_LINEAR] = km_cpu_quant_linear;
    k[KM_OP_LINEARS] = km_cpu_linears;
    k[KM_OP_GATED] = km_cpu_gated;
    k[KM_OP_QUANT_EMBEDDING] = embedding;
}
