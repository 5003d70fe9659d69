/* Layers that the kernels for weights of a few bits do not take: rows that are no whole units of
 * 64 elements, a gated pair of two types, x of 16 bits. Models have them rarely, so it is done
 * plainly: the matrices of this one call become floats in memory of the step, and the ops for floats
 * do the rest. No copy outlives the call. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/quant.h"
#include "tensor/dtype.h"

/* Where the weights of a call begin among its inputs. */
static int first_weight(km_op op) {
    return op == KM_OP_QUANT_EMBEDDING || op == KM_OP_DEQUANTISE ? 0 : 1;
}

bool km_cuda_quant_is_odd(const km_call *c) {
    const km_tensor *w = c->in[first_weight(c->op)];
    if (w->shape.ndim > 0 && w->shape.dim[w->shape.ndim - 1] % KM_QUANT_UNIT) return true;
    if (c->op == KM_OP_GATED && c->n_in > 2 && c->in[2] && c->in[2]->dtype != w->dtype) return true;
    return first_weight(c->op) == 1 && c->in[0]->dtype != KM_F32;
}

static km_status call(km_ctx *ctx, km_op op, km_tensor **in, int n_in, km_tensor *out,
                      const km_params *p) {
    km_call c = {.op = op, .n_in = n_in, .n_out = 1, .in = in, .out = &out, .p = p};
    return km_cuda_backend()->kernel[op](ctx, &c);
}

static km_status cast(km_ctx *ctx, km_tensor *from, km_tensor *to) {
    return call(ctx, KM_OP_CAST, &from, 1, to, &(km_params){.dtype = to->dtype});
}

/* What the call is computed in: the dtype of x where all its weights have it too, else f32. */
static km_dtype work_of(const km_call *c) {
    km_dtype d = c->in[0]->dtype;
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i] && c->in[i]->dtype != d) return KM_F32;
    return d;
}

static km_tensor *room_for(km_ctx *ctx, km_lane *lane, km_dtype d, km_shape shape) {
    return km_tensor_new(ctx, lane, "linear", d, shape);
}

/* Plain numbers that stay in the host's memory, here. */
static km_tensor *brought(km_ctx *ctx, km_lane *lane, km_tensor *t, km_status *s) {
    size_t bytes = (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
    const void *from = km_cuda_bytes_of(lane, t);
    km_tensor *here = from ? room_for(ctx, lane, t->dtype, t->shape) : NULL;
    *s = here ? KM_OK : ctx->error.code;
    if (!here) return NULL;
    km_cu_result r = KM_CU(copy_within, (km_cu_ptr)(uintptr_t)km_tensor_ptr(here),
                           (km_cu_ptr)(uintptr_t)from, bytes, km_cuda_stream(lane));
    if (r != KM_CU_OK) *s = km_cuda_fail(lane, r, "copying weights");
    return *s == KM_OK ? here : NULL;
}

/* t in dtype d, f32 unless t has it already. NULL with *s set. */
static km_tensor *as(km_ctx *ctx, km_lane *lane, km_tensor *t, km_dtype d, km_status *s) {
    int64_t stride[KM_MAX_DIMS], count = km_shape_count(t->shape);
    bool block = km_dtype_is_block(t->dtype);
    if (t->storage->drop && !block) t = brought(ctx, lane, t, s);
    if (!t || t->dtype == d) return t;
    if (block) count = (count + KM_QUANT_UNIT - 1) / KM_QUANT_UNIT * KM_QUANT_UNIT;
    km_shape_strides(t->shape, stride);
    km_tensor *all = room_for(ctx, lane, KM_F32, block ? KM_SHAPE(count) : t->shape);
    km_tensor *view = all && block ? km_tensor_view(ctx, all, t->shape, stride, 0) : all;
    if (!view)
        *s = ctx->error.code;
    else
        *s = block ? km_cuda_quant_floats(lane, t, km_tensor_ptr(all)) : cast(ctx, t, view);
    return *s == KM_OK ? view : NULL;
}

/* Where a result in dtype d is made: out itself, or beside it. */
static km_tensor *made_for(km_ctx *ctx, km_tensor *out, km_dtype d) {
    return out->dtype == d ? out : room_for(ctx, out->storage->lane, d, out->shape);
}

/* act(x w^T + b) to out; x and w of the same dtype. */
static km_status product(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act,
                         km_tensor *out) {
    km_status s = KM_OK;
    if (b) b = as(ctx, out->storage->lane, b, x->dtype, &s);
    km_tensor *y = s == KM_OK ? made_for(ctx, out, x->dtype) : NULL;
    if (!y) return s != KM_OK ? s : ctx->error.code;
    km_tensor *in[] = {x, w, b};
    s = call(ctx, KM_OP_LINEAR, in, b ? 3 : 2, y, &(km_params){.act = act});
    return s == KM_OK && y != out ? cast(ctx, y, out) : s;
}

/* Half of the rows of w (2 n, k). */
static km_tensor *half(km_ctx *ctx, km_tensor *w, int which) {
    int64_t n = w->shape.dim[0] / 2, k = w->shape.dim[1];
    return km_tensor_view(ctx, w, KM_SHAPE(n, k), w->stride, w->offset + which * n * w->stride[0]);
}

static km_status gated(km_ctx *ctx, km_tensor *x, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    km_tensor *out = c->out[0], *up = c->n_in > 2 ? c->in[2] : NULL;
    km_status s = KM_OK;
    km_tensor *g = as(ctx, lane, c->in[1], x->dtype, &s);
    km_tensor *u = g && up ? as(ctx, lane, up, x->dtype, &s) : g;
    if (!u) return s;
    if (!up) g = half(ctx, g, 0), u = half(ctx, u, 1);
    km_tensor *a = room_for(ctx, lane, x->dtype, out->shape);
    km_tensor *b = room_for(ctx, lane, x->dtype, out->shape), *y = made_for(ctx, out, x->dtype);
    if (!g || !u || !a || !b || !y) return ctx->error.code;
    s = product(ctx, x, g, NULL, c->p->act, a);
    if (s == KM_OK) s = product(ctx, x, u, NULL, KM_ACT_NONE, b);
    if (s == KM_OK) s = call(ctx, KM_OP_MUL, (km_tensor *[]){a, b}, 2, y, &(km_params){0});
    return s == KM_OK && y != out ? cast(ctx, y, out) : s;
}

/* Rows that ids name, or all: of the whole table in floats. */
static km_status rows_of(km_ctx *ctx, const km_call *c) {
    km_tensor *out = c->out[0];
    km_status s = KM_OK;
    km_tensor *table = as(ctx, km_cuda_lane(c), c->in[0], KM_F32, &s);
    if (!table) return s;
    if (c->op == KM_OP_DEQUANTISE) return cast(ctx, table, out);
    km_tensor *y = made_for(ctx, out, KM_F32);
    if (!y) return ctx->error.code;
    s = call(ctx, KM_OP_EMBEDDING, (km_tensor *[]){table, c->in[1]}, 2, y, &(km_params){0});
    return s == KM_OK && y != out ? cast(ctx, y, out) : s;
}

km_status km_cuda_quant_odd(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    km_status s = KM_OK;
    if (c->op != KM_OP_LINEARS && km_shape_count(c->out[0]->shape) == 0) return KM_OK;
    if (first_weight(c->op) == 0) return rows_of(ctx, c);
    if (c->in[0]->shape.ndim != 2) return KM_ERR_UNSUPPORTED;
    km_tensor *x = as(ctx, lane, c->in[0], work_of(c), &s);
    if (!x) return s;
    if (c->op == KM_OP_GATED) return gated(ctx, x, c);
    km_act act = c->op == KM_OP_QUANT_LINEAR ? c->p->act : KM_ACT_NONE;
    for (int i = 0; i < c->n_out && s == KM_OK; i++) {
        km_tensor *b = 2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL;
        if (km_shape_count(c->out[i]->shape) == 0) continue;
        km_tensor *w = as(ctx, lane, c->in[1 + 2 * i], x->dtype, &s);
        if (w) s = product(ctx, x, w, b, act, c->out[i]);
    }
    return s;
}
