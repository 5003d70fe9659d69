/* Layers over weights of a few bits, or of 16 bits with f32 x, on the GPU: the ops, and what their
 * calls are made of. A few rows of x are run by quant_few.c, more by quant_many.c. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/quant_call.h"
#include "base/util.h"

#define ROWS(type, ...)                                                                            \
    [KM_QUANT_##type] = {.module = "quant_rows", .name = "quant_rows_" #type, .waits = true},
static km_cuda_kernel rows[KM_QUANT_TYPES] = {KM_QUANT_PLANES(ROWS)};

static int type_of(km_dtype d) {
    return d == KM_F16 ? KM_PLAIN_F16 : d == KM_BF16 ? KM_PLAIN_BF16 : km_cuda_quant_type(d);
}

/* Bytes that a thread takes of the weights of a type at a time. */
size_t km_quant_item_bytes(int type) {
#define ITEM(name, bytes) [KM_QUANT_##name] = bytes,
    static const uint8_t items[KM_PLAIN_TYPES] = {
        KM_QUANT_ITEMS(ITEM)[KM_PLAIN_F16] = 16 * KM_PLAIN_PIECES, [KM_PLAIN_BF16] =
                                                                       16 * KM_PLAIN_PIECES};
#undef ITEM
    return items[type];
}

/* Whether its runs stand apart (kernels/quant.cuh). */
bool km_quant_is_apart(int type) {
    return type == KM_QUANT_Q2_K || type == KM_QUANT_Q3_K || type == KM_QUANT_Q6_K;
}

/* ---- One call ---- */

static km_status take(km_quant_call *q, const km_tensor *t, km_cuda_quant *w) {
    if (type_of(t->dtype) >= KM_QUANT_TYPES) {
        w->m = (km_quant_matrix){.planes = km_cuda_bytes_of(q->lane, t)};
        q->made |= t->storage->drop != NULL;
        if (!w->m.planes) return q->lane->ctx->error.code;
        return km_is_contiguous(t) && (uintptr_t)w->m.planes % 16 == 0 ? KM_OK : KM_ERR_UNSUPPORTED;
    }
    km_status s = km_cuda_quant_get(q->lane, t, w);
    q->made |= w->scratch != NULL;
    return s;
}

static km_status begin(km_quant_call *q, const km_call *c) {
    const km_tensor *x = c->in[0];
    *q = (km_quant_call){.lane = km_cuda_lane(c),
                         .x = km_tensor_ptr(x),
                         .act = c->p->act,
                         .out = c->out,
                         .n_out = c->n_out};
    if (x->dtype != KM_F32 || x->shape.ndim != 2) return KM_ERR_UNSUPPORTED;
    q->m = x->shape.dim[0];
    q->k = x->shape.dim[1];
    bool fits = q->k > 0 && q->k % KM_QUANT_UNIT == 0 && q->k <= 1 << 20 && q->m <= 1 << 24 &&
                (uintptr_t)q->x % 16 == 0;
    return fits ? KM_OK : KM_ERR_UNSUPPORTED;
}

static void end(km_quant_call *q) {
    for (int i = 0; i < q->layers; i++) {
        km_cuda_quant_put(q->lane, &q->l[i].w);
        km_cuda_quant_put(q->lane, &q->l[i].up);
    }
}

/* Adds w (n, k), or the halves or pair of a gated layer. */
static km_status add_layer(km_quant_call *q, const km_tensor *w, const km_tensor *up, bool gated,
                           const km_tensor *bias, const km_tensor *out) {
    km_quant_layer *l = &q->l[q->layers];
    *l = (km_quant_layer){.type = type_of(w->dtype),
                          .n = w->shape.dim[0],
                          .bias = bias ? km_tensor_ptr(bias) : NULL,
                          .out = km_tensor_ptr(out)};
    if (l->type < 0 || (up && up->dtype != w->dtype) || l->n > INT32_MAX) return KM_ERR_UNSUPPORTED;
    if (l->type < KM_QUANT_TYPES) {
        l->step = km_cuda_quant_step(w->dtype) * (gated ? 2 : 1);
        l->step_groups = 32 * KM_QUANT_UNIT / km_cuda_quant_group(w->dtype);
    }
    km_status s = take(q, w, &l->w);
    q->layers++;
    if (s != KM_OK || !gated) return s;
    if (up) return take(q, up, &l->up);
    l->n /= 2;
    l->up.m = l->w.m;
    if (l->type >= KM_QUANT_TYPES)
        l->up.m.planes += l->n * q->k * 2;
    else
        l->up.m.first += l->n * q->k / km_cuda_quant_group(w->dtype);
    return KM_OK;
}

static km_status run(km_quant_call *q) {
    bool tensor_cores = q->m > 1 && km_quant_has_hopper(km_cuda_dev_of(q->lane), q->l[0].type);
    if (km_quant_has_mma(q)) return km_quant_mma(q);
    if (q->m > KM_FEW_ROWS || tensor_cores) return km_quant_many(q);
    km_status s = km_quant_few(q);
    return s == KM_ERR_UNSUPPORTED ? km_quant_many(q) : s;
}

/* ---- Ops ---- */

static km_status run_linear(km_ctx *ctx, const km_call *c) {
    km_quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    if (s == KM_OK)
        s = add_layer(&q, c->in[1], NULL, false, c->n_in > 2 ? c->in[2] : NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_linears(km_ctx *ctx, const km_call *c) {
    km_quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    for (int i = 0; i < c->n_out && s == KM_OK; i++)
        s = add_layer(&q, c->in[1 + 2 * i], NULL, false,
                      2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL, c->out[i]);
    q.act = KM_ACT_NONE;
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_gated(km_ctx *ctx, const km_call *c) {
    km_quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    q.gated = true;
    if (s == KM_OK)
        s = add_layer(&q, c->in[1], c->n_in > 2 ? c->in[2] : NULL, true, NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status as_floats(km_lane *lane, const km_tensor *w, const km_tensor *ids, int64_t count,
                           const km_tensor *out) {
    km_cuda_quant q;
    if (out->dtype != KM_F32 && out->dtype != KM_F16 && out->dtype != KM_BF16)
        return KM_ERR_UNSUPPORTED;
    km_status s = km_cuda_quant_get(lane, w, &q);
    if (s != KM_OK) return s;
    int64_t k = w->shape.dim[w->shape.ndim - 1];
    km_quant_rows_args a = {.w = q.m,
                            .ids = ids ? km_tensor_ptr(ids) : NULL,
                            .out = km_tensor_ptr(out),
                            .rows = km_shape_count(w->shape) / k,
                            .count = count,
                            .k = (int32_t)k,
                            .wide = ids && ids->dtype == KM_I64,
                            .dtype = out->dtype == KM_F32   ? 0
                                     : out->dtype == KM_F16 ? 1
                                                            : 2};
    int64_t units = count * (k / KM_QUANT_UNIT);
    s = km_cuda_launch1(lane, &rows[km_cuda_quant_type(w->dtype)], KM_DIM((units + 127) / 128),
                        KM_DIM(128), 0, &a);
    km_cuda_quant_put(lane, &q);
    return s;
}

km_status km_cuda_quant_floats(km_lane *lane, const km_tensor *t, float *to) {
    km_cuda_quant q;
    if (km_shape_count(t->shape) == 0) return KM_OK;
    km_status s = km_cuda_quant_flat(lane, t, &q);
    if (s != KM_OK) return s;
    /* Every group a row: how its units stand in it depends on the type. */
    int64_t k = km_cuda_quant_group(t->dtype), n = km_ceil_div(km_shape_count(t->shape), k);
    int64_t units = n * (k / KM_QUANT_UNIT);
    km_quant_rows_args a = {.w = q.m, .out = to, .rows = n, .count = n, .k = (int32_t)k};
    s = km_cuda_launch1(lane, &rows[km_cuda_quant_type(t->dtype)], KM_DIM((units + 127) / 128),
                        KM_DIM(128), 0, &a);
    km_cuda_quant_put(lane, &q);
    return s;
}

static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    return as_floats(km_cuda_lane(c), c->in[0], c->in[1], km_shape_count(c->in[1]->shape),
                     c->out[0]);
}

static km_status run_dequantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *w = c->in[0];
    int64_t count = km_shape_count(w->shape);
    if (w->shape.ndim < 1 || count == 0) return KM_ERR_UNSUPPORTED;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    return as_floats(km_cuda_lane(c), w, NULL, count / w->shape.dim[w->shape.ndim - 1], c->out[0]);
}

void km_cuda_register_quant(km_kernel *table) {
    table[KM_OP_QUANT_LINEAR] = run_linear;
    table[KM_OP_LINEARS] = run_linears;
    table[KM_OP_GATED] = run_gated;
    table[KM_OP_QUANT_EMBEDDING] = run_embedding;
    table[KM_OP_DEQUANTISE] = run_dequantise;
}
