/* Weights of a few bits on the CPU. Decoding and encoding go row by row over all threads. The layer
 * decodes a few rows of weights into a thread's cache and multiplies them with all rows of x: each
 * weight is read from memory once, in its packed form. */
#include "backend/cpu/cpu.h"
#include "tensor/quant.h"
#include <math.h>

static float load(const km_tensor *t, int64_t i) {
    const void *p = km_tensor_ptr(t);
    return t->dtype == KM_F32   ? ((const float *)p)[i]
           : t->dtype == KM_F16 ? km_f16_to_f32(((const uint16_t *)p)[i])
                                : km_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void store(const km_tensor *t, int64_t i, float v) {
    void *p = km_tensor_ptr(t);
    if (t->dtype == KM_F32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t->dtype == KM_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
}

static const char *blocks_at(const km_tensor *t, int64_t element) {
    return (const char *)km_tensor_ptr(t) + km_dtype_bytes(t->dtype, element);
}

typedef struct quant_call {
    const km_call *c;
    const km_tensor *x, *w, *b, *up, *y; /* b and up may be NULL; up may be w: its second half */
    km_act act;
    float *room;
    int64_t each;
} quant_call;

/* ---- Decoding and encoding, in stretches of 256 elements ---- */

#define STRETCH 256

static void dequantise_range(void *arg, int64_t begin, int64_t end, int worker) {
    const km_call *c = ((const quant_call *)arg)->c;
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
    const km_call *c = ((const quant_call *)arg)->c;
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
    quant_call q = {.c = c};
    km_threads_for(ctx->threads, (km_shape_count(c->in[0]->shape) + STRETCH - 1) / STRETCH, 64,
                   dequantise_range, &q);
    return KM_OK;
}

static km_status quantise(km_ctx *ctx, const km_call *c) {
    quant_call q = {.c = c};
    km_threads_for(ctx->threads, (km_shape_count(c->in[0]->shape) + STRETCH - 1) / STRETCH, 8,
                   quantise_range, &q);
    return KM_OK;
}

/* ---- Layers ---- */

static float activated(km_act act, float v) {
    switch (act) {
    case KM_ACT_RELU: return v > 0 ? v : 0;
    case KM_ACT_GELU: return 0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
    case KM_ACT_GELU_ERF: return 0.5f * v * (1 + erff(v * 0.70710678f));
    case KM_ACT_SILU: return v / (1 + expf(-v));
    default: return v;
    }
}

static float dot(const float *a, const float *b, int64_t n) { /* eight chains */
    float s[8] = {0};
    for (int64_t i = 0; i + 7 < n; i += 8)
        for (int k = 0; k < 8; k++) s[k] += a[i + k] * b[i + k];
    for (int64_t i = n / 8 * 8; i < n; i++) s[0] += a[i] * b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* A row of weights as floats. */
static void decode(const km_tensor *w, int64_t o, int64_t n, float *row) {
    if (km_dtype_is_block(w->dtype)) km_dequantise(w->dtype, blocks_at(w, o * n), n, row);
    else
        for (int64_t i = 0; i < n; i++) row[i] = load(w, o * n + i);
}

/* room: x as floats, shared; then two rows of weights for each thread. */
static void linear_range(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_call *q = arg;
    int64_t rows = q->x->shape.dim[0], n = q->x->shape.dim[1], outs = q->y->shape.dim[1];
    float *row = q->room + rows * n + worker * 2 * q->each, *second = row + q->each;
    for (int64_t o = begin; o < end; o++) {
        decode(q->w, o, n, row);
        if (q->up) decode(q->up, q->up == q->w ? outs + o : o, n, second);
        float bias = q->b ? load(q->b, o) : 0;
        for (int64_t r = 0; r < rows; r++) {
            float v = activated(q->act, dot(row, q->room + r * n, n) + bias);
            if (q->up) v *= dot(second, q->room + r * n, n);
            store(q->y, r * outs + o, v);
        }
    }
}

static km_status run(km_ctx *ctx, quant_call *q) {
    int64_t n = q->x->shape.dim[1], count = q->x->shape.dim[0] * n;
    q->each = (n + 15) / 16 * 16 + 16; /* threads write to lines of their own */
    int64_t floats = count + (int64_t)km_ctx_threads(ctx) * 2 * q->each;
    q->room = km_ctx_scratch(ctx, (size_t)(floats + 1) * sizeof(float));
    if (!q->room) return KM_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) q->room[i] = load(q->x, i);
    km_threads_for(ctx->threads, q->y->shape.dim[1], 8, linear_range, q);
    return KM_OK;
}

static km_status linear(km_ctx *ctx, const km_call *c) {
    quant_call q = {.x = c->in[0], .w = c->in[1], .b = c->n_in > 2 ? c->in[2] : NULL,
                    .act = c->p->act, .y = c->out[0]};
    return run(ctx, &q);
}

static km_status linears(km_ctx *ctx, const km_call *c) {
    km_status s = KM_OK;
    for (int i = 0; i < c->n_out && s == KM_OK; i++) {
        quant_call q = {.x = c->in[0], .w = c->in[1 + 2 * i], .y = c->out[i],
                        .b = 2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL};
        s = run(ctx, &q);
    }
    return s;
}

static km_status gated(km_ctx *ctx, const km_call *c) {
    quant_call q = {.x = c->in[0], .w = c->in[1], .up = c->n_in > 2 ? c->in[2] : c->in[1],
                    .act = c->p->act, .y = c->out[0]};
    return run(ctx, &q);
}

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
    k[KM_OP_QUANT_LINEAR] = linear;
    k[KM_OP_LINEARS] = linears;
    k[KM_OP_GATED] = gated;
    k[KM_OP_QUANT_EMBEDDING] = embedding;
}
