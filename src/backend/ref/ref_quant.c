/* Reference kernels for weights of a few bits: decoded block by block, then as any other float. */
#include "backend/ref/ref.h"
#include "tensor/quant.h"

static const uint8_t *block_at(const km_tensor *t, int64_t element) {
    return (const uint8_t *)km_tensor_ptr(t) + km_dtype_bytes(t->dtype, element);
}

km_status km_ref_dequantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int64_t n = km_shape_count(x->shape), block = km_dtype_block(x->dtype);
    float v[256];
    for (int64_t i = 0; i < n; i += block) {
        km_dequantise(x->dtype, block_at(x, i), block, v);
        for (int64_t k = 0; k < block; k++) km_ref_store(out, out->offset + i + k, v[k]);
    }
    return KM_OK;
}

km_status km_ref_quantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int64_t n = km_shape_count(x->shape), block = km_dtype_block(out->dtype);
    float v[256];
    for (int64_t i = 0; i < n; i += block) {
        for (int64_t k = 0; k < block; k++) v[k] = (float)km_ref_load(x, x->offset + i + k);
        km_quantise(out->dtype, v, NULL, block, (uint8_t *)block_at(out, i));
    }
    return KM_OK;
}

/* Row o of a weight, in blocks or not, times row r of x. */
static double product(const km_tensor *x, int64_t r, const km_tensor *w, int64_t o) {
    int64_t n = x->shape.dim[1], step = km_dtype_is_block(w->dtype) ? km_dtype_block(w->dtype) : 1;
    double sum = 0;
    float v[256];
    for (int64_t i = 0; i < n; i += step) {
        if (km_dtype_is_block(w->dtype))
            km_dequantise(w->dtype, block_at(w, o * n + i), step, v);
        else
            v[0] = (float)km_ref_load(w, w->offset + o * n + i);
        for (int64_t k = 0; k < step; k++)
            sum += (double)v[k] * km_ref_load(x, x->offset + r * n + i + k);
    }
    return sum;
}

static void layer(const km_tensor *x, const km_tensor *w, const km_tensor *b, km_act act,
                  const km_tensor *y) {
    int64_t outs = w->shape.dim[0];
    for (int64_t o = 0; o < outs; o++)
        for (int64_t r = 0; r < x->shape.dim[0]; r++) {
            double sum = product(x, r, w, o) + (b ? km_ref_load(b, km_ref_nth(b, o)) : 0);
            km_ref_store(y, y->offset + r * outs + o, km_ref_activation(act, sum));
        }
}

km_status km_ref_quant_linear(km_ctx *ctx, const km_call *c) {
    layer(c->in[0], c->in[1], km_ref_in(c, 2), c->p->act, c->out[0]);
    return KM_OK;
}

km_status km_ref_linears(km_ctx *ctx, const km_call *c) {
    for (int i = 0; i < c->n_out; i++)
        layer(c->in[0], c->in[1 + 2 * i], km_ref_in(c, 2 + 2 * i), KM_ACT_NONE, c->out[i]);
    return KM_OK;
}

km_status km_ref_gated(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *gate = c->in[1], *up = km_ref_in(c, 2), *y = c->out[0];
    int64_t outs = y->shape.dim[1], first = up ? 0 : outs;
    for (int64_t o = 0; o < outs; o++)
        for (int64_t r = 0; r < x->shape.dim[0]; r++) {
            double g = km_ref_activation(c->p->act, product(x, r, gate, o));
            double u = product(x, r, up ? up : gate, first + o);
            km_ref_store(y, y->offset + r * outs + o, g * u);
        }
    return KM_OK;
}

km_status km_ref_quant_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1], *out = c->out[0];
    int64_t width = table->shape.dim[1], block = km_dtype_block(table->dtype);
    int64_t count = km_shape_count(ids->shape);
    float v[256];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = km_ref_load_int(ids, km_ref_nth(ids, i));
        for (int64_t k = 0; k < width; k += block) {
            km_dequantise(table->dtype, block_at(table, row * width + k), block, v);
            for (int64_t e = 0; e < block; e++)
                km_ref_store(out, out->offset + i * width + k + e, v[e]);
        }
    }
    return KM_OK;
}
