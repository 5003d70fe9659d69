/* Tensor handles: looking at them, keeping them past the step, letting them go. */
#include "tensor/tensor.h"
#include "base/alloc.h"

km_shape km_tensor_shape(const km_tensor *t) { return t ? t->shape : (km_shape){0, {0}}; }
int km_tensor_ndim(const km_tensor *t) { return t ? t->shape.ndim : 0; }
int64_t km_tensor_count(const km_tensor *t) { return t ? km_shape_count(t->shape) : 0; }
km_dtype km_tensor_dtype(const km_tensor *t) { return t ? t->dtype : KM_F32; }
bool km_tensor_is_contiguous(const km_tensor *t) { return t && km_is_contiguous(t); }
bool km_requires_grad(const km_tensor *t) { return t && t->requires_grad; }

int64_t km_tensor_dim(const km_tensor *t, int axis) {
    int a = t ? km_axis(axis, t->shape.ndim) : -1;
    return a < 0 ? 0 : t->shape.dim[a];
}

const char *km_tensor_device(const km_tensor *t) {
    return t && t->storage ? km_tensor_dev(t)->name : "";
}

void *km_tensor_data(km_tensor *t) {
    if (!t || !t->storage || !t->storage->data || !km_tensor_dev(t)->host || !km_is_contiguous(t))
        return NULL;
    return km_tensor_ptr(t);
}

void *km_tensor_device_data(km_tensor *t) {
    if (!t) return NULL;
    KM_CTX_CALL(t->ctx, NULL);
    if (!t->storage || !t->storage->data || km_failed(t->ctx) || !km_is_contiguous(t)) return NULL;
    const km_device *d = km_tensor_dev(t);
    if (d->host) return km_tensor_ptr(t);
    if (t->storage->drop || km_unsettle(t->ctx, t) != KM_OK)
        return NULL; /* the host's; or in the way */
    if (d->ops->stream)
        d->ops->stream(t->storage->lane); /* what makes it may have been held back */
    return km_failed(t->ctx) ? NULL : km_tensor_ptr(t);
}

km_tensor *km_keep(km_ctx *ctx, km_tensor *t) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!t || !t->storage || !t->storage->data) {
        km_fail(ctx, t ? KM_ERR_STATE : KM_ERR_NULL,
                t ? "keep: the tensor was freed (released, or made in a scope that has ended)"
                  : "keep: no tensor");
        return NULL;
    }
    if (t->ctx != ctx) {
        km_fail(ctx, KM_ERR_STATE, "keep: the tensor belongs to another context");
        return NULL;
    }
    km_tensor *k = km_calloc(1, sizeof *k);
    if (!k) {
        km_fail(ctx, KM_ERR_MEMORY, "keep: out of memory");
        return NULL;
    }
    *k = (km_tensor){.ctx = ctx,
                     .storage = t->storage,
                     .dtype = t->dtype,
                     .shape = t->shape,
                     .offset = t->offset,
                     .kept = true};
    for (int i = 0; i < KM_MAX_DIMS; i++) k->stride[i] = t->stride[i];
    km_storage_retain(t->storage);
    return k;
}

static void release(km_ctx *ctx, km_tensor *t) {
    if (!t || !t->kept) return;
    t->kept = false; /* first: what lent the memory is told, and may release once more */
    release(ctx, t->grad);
    /* The tape may still point here and hold a reference of its own, so the struct lives until the
     * step's end and goes on naming its storage. */
    if (t->storage) km_storage_release(ctx, t->storage);
    t->grad = NULL;
    t->requires_grad = false; /* a gradient would find no owner */
    t->next_released = ctx->released;
    ctx->released = t;
}

void km_release(km_tensor *t) {
    if (!t || !t->kept || !t->ctx) return;
    km_ctx *ctx = t->ctx;
    KM_INSIDE(in); /* one that was freed inside a call is there until it ends */
    if (km_try_enter(&in, ctx, KM_HANDLE_CONTEXT) == KM_ENTRY_BUSY)
        km_public_fail(KM_ERR_STATE, "release: another thread is using this tensor's context");
    else
        release(ctx, t);
}

/* ---- Layout of weights ---- */

km_status km_settle(km_ctx *ctx, km_tensor *t) {
    if (km_failed(ctx) || !t || !t->storage || !t->storage->data) return km_ctx_status(ctx);
    km_storage *s = t->storage;
    const km_device_ops *ops = s->lane->device->ops;
    if (s->settled || s->drop || !ops->settle || !km_dtype_is_block(t->dtype)) return KM_OK;
    return ops->settle(s->lane, s, t->dtype);
}

km_status km_unsettle(km_ctx *ctx, const km_tensor *t) {
    if (km_failed(ctx) || !t || !t->storage || !t->storage->settled) return km_ctx_status(ctx);
    return t->storage->lane->device->ops->unsettle(t->storage->lane, t->storage, t->dtype);
}
