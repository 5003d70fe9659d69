/* Running one checked call: operands are brought into the form the row promises to kernels, and
 * the call goes to the device that holds them or, where that one has no kernel or the kernel fails,
 * to its fallback. A fallback across memories copies operands there and results back. */
#include "backend/host.h"
#include "base/clock.h"
#include "base/guard.h"
#include "base/log.h"
#include "ops/op.h"
#include <stdatomic.h>
#include <string.h>

/* A matrix operand is fine when one of its last two strides is 1 and the other spans the rows. */
static bool is_matrix(const km_tensor *t) {
    int r = t->shape.ndim - 2;
    if (r < 0) return km_is_contiguous(t);
    int64_t rows = t->shape.dim[r], cols = t->shape.dim[r + 1];
    int64_t rs = t->stride[r], cs = t->stride[r + 1];
    bool by_rows = (cs == 1 || cols <= 1) && (rs >= cols || rows <= 1);
    bool by_cols = (rs == 1 || rows <= 1) && (cs >= rows || cols <= 1);
    return by_rows || by_cols;
}

/* A slice that goes backwards. */
static bool is_reversed(const km_tensor *t) {
    for (int i = 0; i < t->shape.ndim; i++)
        if (t->stride[i] < 0 && t->shape.dim[i] > 1) return true;
    return false;
}

static bool needs_copy(const km_op_row *row, const km_tensor *t) {
    if (is_reversed(t)) return !(row->flags & KM_OP_BACKWARDS);
    if (row->flags & (KM_OP_ELEMENTWISE | KM_OP_STRIDED)) return false;
    if (row->flags & KM_OP_MATRIX) return !is_matrix(t);
    if (row->flags & KM_OP_HEADS && t->shape.ndim == 4)
        return t->stride[3] != 1 && t->shape.dim[3] > 1;
    if (row->flags & KM_OP_ROWS && t->shape.ndim == 2 && km_dtype_is_float(t->dtype))
        return t->stride[1] != 1 && t->shape.dim[1] > 1;
    return !km_is_contiguous(t);
}

/* Says once per op and device that another device does its work, where that was not meant so. */
static void note_fallback(km_op op, const km_device *from, const km_device *to, km_dtype dtype) {
    static atomic_uchar said[KM_OP_COUNT];
    unsigned char bit = from->host ? 1 : 2;
    if (from->host && (km_op_get(op)->flags & KM_OP_GPU_ALONE)) return;
    if (atomic_fetch_or(&said[op], bit) & bit) return;
    km_note(KM_LOG_INFO, "%s has no kernel for %s of %s; using %s", from->name, km_op_name(op),
            km_dtype_name(dtype), to->name);
}

static km_status run_on(km_ctx *ctx, km_device *device, const km_call *c);

/* Elements from the first in memory to the last that t shows, those between them included. */
static int64_t span_of(const km_tensor *t) {
    int64_t n = 1;
    if (km_shape_count(t->shape) == 0) return 0;
    for (int i = 0; i < t->shape.ndim; i++)
        n += (t->shape.dim[i] - 1) * (t->stride[i] < 0 ? -t->stride[i] : t->stride[i]);
    return n;
}

/* How many of them lie before t's own first element: those of axes that go backwards. */
static int64_t before(const km_tensor *t) {
    int64_t n = 0;
    if (km_shape_count(t->shape) == 0) return 0;
    for (int i = 0; i < t->shape.ndim; i++)
        if (t->stride[i] < 0) n -= (t->shape.dim[i] - 1) * t->stride[i];
    return n;
}

static void *lowest(const km_tensor *t) {
    return (char *)km_tensor_ptr(t) - km_dtype_bytes(t->dtype, before(t));
}

/* t as it is, strides and all, in `there`'s memory; with its elements when `filled`. */
static km_tensor *twin(km_ctx *ctx, km_lane *there, const char *name, const km_tensor *t,
                       bool filled) {
    int64_t span = span_of(t);
    if (km_unsettle(ctx, t) != KM_OK) return NULL;
    km_tensor *flat = km_tensor_new(ctx, there, name, t->dtype, KM_SHAPE(span));
    km_tensor *view = flat ? km_tensor_view(ctx, flat, t->shape, t->stride, before(t)) : NULL;
    km_lane *from = t->storage->lane;
    size_t bytes = (size_t)km_dtype_bytes(t->dtype, span);
    if (view && filled && bytes && t->storage->drop) /* in the host's memory, whoever uses it */
        memcpy(km_tensor_ptr(flat), lowest(t), bytes);
    else if (view && filled && bytes &&
             from->device->ops->download(from, km_tensor_ptr(flat), lowest(t), bytes) != KM_OK)
        return NULL;
    return view;
}

/* An input: gathered first where gaps would make most of the bytes, unless gathering is the very
 * thing that the device cannot do. */
static km_tensor *bring(km_ctx *ctx, km_lane *there, km_op op, km_tensor *t) {
    if (op != KM_OP_COPY && span_of(t) / 2 > km_shape_count(t->shape)) t = km_to_contiguous(ctx, t);
    return t ? twin(ctx, there, km_op_name(op), t, true) : NULL;
}

/* The result `made` of a call in its output's place. Between the elements of one output may lie those of
 * another, as with the three gradients of attention: then what lies there now goes back with it. */
static km_status bring_back(km_ctx *ctx, const km_call *c, int i, km_tensor *made) {
    const km_tensor *o = c->out[i];
    km_lane *lane = o->storage->lane;
    int64_t span = span_of(o);
    if (c->n_out > 1 && span != km_shape_count(o->shape)) {
        km_tensor *now = twin(ctx, made->storage->lane, km_op_name(c->op), o, true);
        if (!now || km_copy_into(ctx, made, now) != KM_OK) return ctx->error.code;
        made = now;
    }
    size_t bytes = (size_t)km_dtype_bytes(o->dtype, span);
    return bytes ? lane->device->ops->upload(lane, lowest(o), lowest(made), bytes) : KM_OK;
}

static bool adds_to_output(const km_call *c) {
    bool scales = km_op_get(c->op)->flags & KM_OP_SCALES_OUT;
    return c->p->accumulate || (scales && c->p->f[KM_F_BETA] != 0);
}

/* The same call with all operands copied to `device`'s memory, and the outputs copied back. */
static km_status run_elsewhere(km_ctx *ctx, km_device *device, const km_call *c) {
    km_lane *there = km_ctx_lane(ctx, device);
    if (!there) return ctx->error.code;
    km_tensor **in = km_arena_alloc(&ctx->arena, sizeof *in * (size_t)(c->n_in + 1));
    km_tensor **out = km_arena_alloc(&ctx->arena, sizeof *out * (size_t)(c->n_out + 1));
    if (!in || !out) return km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", km_op_name(c->op));
    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i] ? bring(ctx, there, c->op, c->in[i]) : NULL;
        if (c->in[i] && !in[i]) return ctx->error.code;
    }
    for (int i = 0; i < c->n_out; i++) {
        const km_tensor *o = c->out[i];
        if (!o) continue; /* an optimiser without state */
        /* What is there is needed by a call that adds to it, and to fill the gaps again. */
        bool reads = adds_to_output(c);
        bool gaps = span_of(o) != km_shape_count(o->shape);
        out[i] = twin(ctx, there, km_op_name(c->op), o, reads || gaps);
        if (!out[i]) return ctx->error.code;
    }
    km_call moved = *c;
    moved.in = in;
    moved.out = out;
    km_status s = run_on(ctx, device, &moved);
    for (int i = 0; i < c->n_out && s == KM_OK; i++)
        if (out[i]) s = bring_back(ctx, c, i, out[i]);
    uint32_t changed = km_op_get(c->op)->changes; /* a cache, say */
    for (int i = 0; i < c->n_in && i < 32 && s == KM_OK; i++) {
        if (!(changed >> i & 1)) continue;
        km_lane *lane = c->in[i]->storage->lane;
        s = lane->device->ops->upload(lane, km_tensor_ptr(c->in[i]), km_tensor_ptr(in[i]),
                                      (size_t)km_dtype_bytes(in[i]->dtype, span_of(in[i])));
    }
    return s;
}

/* The kernel, remembered when the step is being captured on the host; a GPU's stream does that by
 * itself. */
static km_status run_kernel(km_ctx *ctx, km_kernel k, const km_call *c) {
    km_lane *lane = c->out[0]->storage->lane;
    return lane->device->host ? km_host_run(ctx, lane, k, c) : k(ctx, c);
}

/* The kernel by itself on the device, and how long it took. */
static km_status run_timed(km_ctx *ctx, km_kernel k, const km_call *c) {
    km_lane *lane = c->out[0]->storage->lane;
    lane->device->ops->sync(lane);
    double begin = km_now();
    km_status s = run_kernel(ctx, k, c);
    lane->device->ops->sync(lane);
    if (s == KM_OK) ctx->timed(ctx->timed_user, c, km_now() - begin);
    return s;
}

/* The call changes what its outputs hold: once half done, it cannot be done again. */
static bool in_place(const km_call *c) {
    return adds_to_output(c) || (km_op_get(c->op)->flags & KM_OP_IN_PLACE);
}

/* Whether a call whose kernel failed can be done by another device: what it needs can still be read,
 * and nothing has been changed that it needs. */
static bool repeatable(const km_ctx *ctx, const km_device *device, const km_call *c, km_status s,
                       bool untouched) {
    if ((s != KM_ERR_GPU && s != KM_ERR_MEMORY) || !device->fallback || ctx->no_fallback)
        return false;
    if (device->ops->lost && device->ops->lost(device)) return false;
    return untouched || !in_place(c);
}

/* Says once per op and device that a kernel failed, and why. */
static void note_failure(km_op op, const km_device *from, const km_device *to, const char *why) {
    static atomic_uchar said[KM_OP_COUNT];
    unsigned char bit = from->host ? 1 : 2;
    if (atomic_fetch_or(&said[op], bit) & bit) return;
    km_note(KM_LOG_WARN, "%s failed on %s (%s); using %s", km_op_name(op), from->name, why,
            to->name);
}

static km_status run_next(km_ctx *ctx, km_device *device, const km_call *c) {
    km_device *next = device->fallback;
    ctx->fallbacks++;
    return device->host && next->host ? run_on(ctx, next, c) : run_elsewhere(ctx, next, c);
}

static km_status run_on(km_ctx *ctx, km_device *device, const km_call *c) {
    km_kernel k = device->backend->kernel[c->op];
    km_dtype dtype = (c->n_in && c->in[0] ? c->in[0] : c->out[0])->dtype;
    const km_lane *lane = c->out[0]->storage->lane;
    uint64_t launches = lane->launches;
    km_status s = !k           ? KM_ERR_UNSUPPORTED
                  : ctx->timed ? run_timed(ctx, k, c)
                               : run_kernel(ctx, k, c);
    if (s == KM_OK) {
        ctx->kernels++;
        return s;
    }
    if (s == KM_ERR_UNSUPPORTED && device->fallback && !ctx->no_fallback) {
        note_fallback(c->op, device, device->fallback, dtype);
        return run_next(ctx, device, c);
    }
    if (s == KM_ERR_UNSUPPORTED)
        return km_fail(ctx, s, "%s: no kernel for %s%s%s%s", km_op_name(c->op),
                       km_dtype_name(dtype), device->fallback ? " on " : "",
                       device->fallback ? device->name : "",
                       device->fallback ? ", and fallback is off" : "");
    if (!repeatable(ctx, device, c, s, lane->launches == launches)) return s;
    km_error why = ctx->error;
    ctx->error = (km_error){0};
    note_failure(c->op, device, device->fallback, why.text);
    ctx->failed_kernels++;
    s = run_next(ctx, device, c);
    if (s != KM_OK) ctx->error = why; /* what was first wrong */
    return s;
}

/* The call, and whether the mapped files among its inputs were whole until it ended. */
static km_status run_checked(km_ctx *ctx, km_device *device, const km_call *c) {
    km_status s = run_on(ctx, device, c);
    for (int i = 0; s == KM_OK && km_guard_broken() && i < c->n_in; i++) {
        km_error gone = {0};
        if (c->in[i] && c->in[i]->storage->drop &&
            km_guard_check_at(c->in[i]->storage->data, &gone) != KM_OK)
            s = km_fail(ctx, gone.code, "%s", gone.text);
    }
    return s;
}

km_tensor *km_to_contiguous(km_ctx *ctx, km_tensor *t) {
    if (km_is_contiguous(t)) return t;
    km_tensor *flat = km_tensor_new(ctx, t->storage->lane, "copy", t->dtype, t->shape);
    if (!flat || km_copy_into(ctx, t, flat) != KM_OK) return NULL;
    return flat;
}

km_status km_copy_into(km_ctx *ctx, km_tensor *src, km_tensor *dst) {
    static const km_params none;
    km_call c = {.op = KM_OP_COPY, .n_in = 1, .n_out = 1, .in = &src, .out = &dst, .p = &none};
    return run_checked(ctx, km_tensor_dev(dst), &c);
}

#define KM_FEW 8

km_status km_run(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                 km_tensor *const *out, int n_out) {
    const km_op_row *row = km_op_get(op);
    km_tensor few[KM_FEW], *few_ptr[KM_FEW];
    km_tensor *views = few, **ptr = few_ptr;
    if (n_in > KM_FEW) {
        views = km_arena_alloc(&ctx->arena, sizeof *views * (size_t)n_in);
        ptr = km_arena_alloc(&ctx->arena, sizeof *ptr * (size_t)n_in);
        if (!views || !ptr) return km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", row->name);
    }
    int mark = ctx->n_step;
    km_status s = KM_OK;
    for (int i = 0; i < n_in && s == KM_OK; i++) {
        ptr[i] = in[i];
        if (!in[i]) continue;
        if (row->flags & KM_OP_ELEMENTWISE) {
            views[i] = *in[i];
            views[i].shape = out[0]->shape;
            km_broadcast_strides(in[i], out[0]->shape, views[i].stride);
            ptr[i] = &views[i];
        } else if (needs_copy(row, in[i])) {
            ptr[i] = km_to_contiguous(ctx, in[i]);
            if (!ptr[i]) s = ctx->error.code;
        }
        if ((row->flags & KM_OP_MATRIX) && out[0]->shape.ndim > 2 &&
            ptr[i]) { /* broadcast batches */
            km_shape full = out[0]->shape;
            int d = full.ndim;
            full.dim[d - 2] = ptr[i]->shape.dim[d - 2];
            full.dim[d - 1] = ptr[i]->shape.dim[d - 1];
            int64_t stride[KM_MAX_DIMS];
            km_broadcast_strides(ptr[i], full, stride);
            views[i] = *ptr[i];
            views[i].shape = full;
            for (int k = 0; k < d; k++) views[i].stride[k] = stride[k];
            ptr[i] = &views[i];
        }
    }
    km_call c = {.op = op, .n_in = n_in, .n_out = n_out, .in = ptr, .out = out, .p = p};
    if (s == KM_OK) s = run_checked(ctx, km_tensor_dev(out[0]), &c);
    if (s != KM_OK && !km_failed(ctx)) km_fail(ctx, s, "%s: %s", row->name, km_status_text(s));
    km_step_drop(ctx, mark, NULL, 0); /* copies made on the way */
    return s;
}
