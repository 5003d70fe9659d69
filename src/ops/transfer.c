/* Data in and out: host memory to tensors and back, and from device to device. */
#include "base/guard.h"
#include "ops/op.h"
#include "tensor/profile.h"

static size_t bytes_of(const km_tensor *t) {
    return (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
}

static km_status usable(km_ctx *ctx, const char *what, const km_tensor *t) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!t) return km_fail(ctx, KM_ERR_NULL, "%s: no tensor", what);
    if (t->ctx != ctx)
        return km_fail(ctx, KM_ERR_STATE, "%s: the tensor belongs to another context", what);
    if (!t->storage || !t->storage->data)
        return km_fail(ctx, KM_ERR_STATE,
                       "%s: the tensor was freed (released, or made in a scope "
                       "that has ended)",
                       what);
    return km_unsettle(ctx, t);
}

/* Whether t's elements may be overwritten: one place each, and no part of a recorded result. */
static km_status changeable(km_ctx *ctx, const char *what, const km_tensor *t) {
    if (t->node)
        return km_fail(ctx, KM_ERR_STATE, "%s: an intermediate of the tape cannot be changed",
                       what);
    if (t->storage->drop)
        return km_fail(ctx, KM_ERR_STATE, "%s: the memory of a mapped file cannot be changed",
                       what);
    if (t->storage->read_only)
        return km_fail(ctx, KM_ERR_STATE, "%s: memory that its owner marked as read-only", what);
    for (int i = 0; i < t->shape.ndim && km_shape_count(t->shape) > 0; i++)
        if (t->stride[i] == 0 && t->shape.dim[i] > 1)
            return km_fail(ctx, KM_ERR_STATE, "%s: a broadcast tensor cannot be changed", what);
    return KM_OK;
}

/* After reading host memory that may be a mapped file's (base/guard.h). */
static km_status check_file(km_ctx *ctx, const void *p) {
    km_error gone = {0};
    if (km_guard_check_at(p, &gone) == KM_OK) return KM_OK;
    return km_fail(ctx, gone.code, "%s", gone.text);
}

static km_status upload(km_tensor *t, const void *src) {
    km_lane *lane = t->storage->lane;
    km_status s = lane->device->ops->upload(lane, km_tensor_ptr(t), src, bytes_of(t));
    return s == KM_OK ? check_file(t->ctx, src) : s;
}

km_tensor *km_from_data(km_ctx *ctx, km_dtype dtype, km_shape shape, const void *data) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    km_profile_op(ctx, "from_data");
    km_tensor *t = km_tensor_new(ctx, ctx->lanes[0], "from_data", dtype, shape);
    if (!t || bytes_of(t) == 0) return t;
    if (!data) {
        km_fail(ctx, KM_ERR_NULL, "from_data: no data");
        return NULL;
    }
    return upload(t, data) == KM_OK ? t : NULL;
}

km_status km_read(km_ctx *ctx, const km_tensor *t, void *dst, size_t bytes) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (usable(ctx, "read", t) != KM_OK) return km_ctx_status(ctx);
    char text[KM_SHAPE_TEXT];
    if (bytes != bytes_of(t))
        return km_fail(ctx, KM_ERR_RANGE, "read: %s of %s is %zu bytes, not %zu",
                       km_shape_text(text, t->shape), km_dtype_name(t->dtype), bytes_of(t), bytes);
    if (!dst && bytes) return km_fail(ctx, KM_ERR_NULL, "read: no memory given");
    int mark = ctx->n_step;
    km_tensor *flat = km_to_contiguous(ctx, (km_tensor *)t);
    if (!flat) return ctx->error.code;
    km_lane *lane = flat->storage->lane;
    km_status s =
        bytes ? lane->device->ops->download(lane, dst, km_tensor_ptr(flat), bytes) : KM_OK;
    if (s == KM_OK && t->storage->drop) s = check_file(ctx, t->storage->data);
    km_step_drop(ctx, mark, NULL, 0);
    return s;
}

km_status km_write(km_ctx *ctx, km_tensor *t, const void *src, size_t bytes) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (usable(ctx, "write", t) != KM_OK) return km_ctx_status(ctx);
    char text[KM_SHAPE_TEXT];
    if (bytes != bytes_of(t))
        return km_fail(ctx, KM_ERR_RANGE, "write: %s of %s is %zu bytes, not %zu",
                       km_shape_text(text, t->shape), km_dtype_name(t->dtype), bytes_of(t), bytes);
    if (!src && bytes) return km_fail(ctx, KM_ERR_NULL, "write: no data");
    if (changeable(ctx, "write", t) != KM_OK) return ctx->error.code;
    t->storage->version++;
    if (!bytes) return KM_OK;
    if (km_is_contiguous(t)) return upload(t, src);
    int mark = ctx->n_step;
    km_tensor *flat = km_tensor_new(ctx, t->storage->lane, "write", t->dtype, t->shape);
    km_status s = flat ? upload(flat, src) : ctx->error.code;
    if (s == KM_OK) s = km_copy_into(ctx, flat, t);
    km_step_drop(ctx, mark, NULL, 0);
    return s;
}

double km_item(km_ctx *ctx, const km_tensor *t) {
    KM_CTX_CALL(ctx, 0);
    if (usable(ctx, "item", t) != KM_OK) return 0;
    char text[KM_SHAPE_TEXT];
    if (km_shape_count(t->shape) != 1) {
        km_fail(ctx, KM_ERR_SHAPE, "item: %s has more or less than one element",
                km_shape_text(text, t->shape));
        return 0;
    }
    union {
        float f32;
        double f64;
        uint16_t h;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        int8_t i8;
    } v;
    if (km_read(ctx, t, &v, km_dtype_size(t->dtype)) != KM_OK) return 0;
    switch (t->dtype) {
    case KM_F32: return v.f32;
    case KM_F64: return v.f64;
    case KM_F16: return km_f16_to_f32(v.h);
    case KM_BF16: return km_bf16_to_f32(v.h);
    case KM_I32: return v.i32;
    case KM_I64: return (double)v.i64;
    case KM_I8: return v.i8;
    default: return v.u8;
    }
}

/* A copy of t, which is usable, on another device; unrecorded. */
static km_tensor *moved(km_ctx *ctx, km_tensor *t, km_device *dev) {
    km_lane *lane = km_ctx_lane(ctx, dev);
    km_tensor *flat = lane ? km_to_contiguous(ctx, t) : NULL;
    km_tensor *there = flat ? km_tensor_new(ctx, lane, "to", t->dtype, t->shape) : NULL;
    if (!there || bytes_of(t) == 0) return there;
    km_lane *from = flat->storage->lane;
    km_status s;
    if (dev->host) {
        s = from->device->ops->download(from, km_tensor_ptr(there), km_tensor_ptr(flat),
                                        bytes_of(t));
    } else if (from->device->host) {
        s = upload(there, km_tensor_ptr(flat));
    } else { /* between GPUs: through the host */
        km_lane *host = km_ctx_lane(ctx, km_cpu_device());
        km_tensor *stop = host ? km_tensor_new(ctx, host, "to", t->dtype, t->shape) : NULL;
        if (!stop) return NULL;
        s = from->device->ops->download(from, km_tensor_ptr(stop), km_tensor_ptr(flat),
                                        bytes_of(t));
        if (s == KM_OK) s = upload(there, km_tensor_ptr(stop));
    }
    return s == KM_OK ? there : NULL;
}

km_tensor *km_move(km_ctx *ctx, km_tensor *t, km_device *device) {
    if (usable(ctx, "to", t) != KM_OK) return NULL;
    if (device == km_tensor_dev(t)) return t;
    km_tensor *there = moved(ctx, t, device);
    /* On the tape it is a copy, whose rule brings the gradient back to the input's device. */
    if (there && km_recording(ctx, &t, 1))
        km_record(ctx, KM_OP_COPY, &t, 1, &(km_params){0}, &there, 1, NULL);
    return km_failed(ctx) ? NULL : there;
}

km_tensor *km_to(km_ctx *ctx, km_tensor *t, const char *device) {
    KM_CTX_CALL(ctx, NULL);
    if (usable(ctx, "to", t) != KM_OK) return NULL;
    if (!device) {
        km_fail(ctx, KM_ERR_NULL, "to: no device named");
        return NULL;
    }
    km_device *dev = km_device_find(device, &ctx->error);
    return dev ? km_move(ctx, t, dev) : NULL;
}

km_status km_assign(km_ctx *ctx, km_tensor *dst, const km_tensor *src) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (usable(ctx, "assign", dst) != KM_OK || usable(ctx, "assign", src) != KM_OK)
        return km_ctx_status(ctx);
    if (changeable(ctx, "assign", dst) != KM_OK) return ctx->error.code;
    if (km_tensor_dev(dst) != km_tensor_dev(src))
        return km_fail(ctx, KM_ERR_DEVICE,
                       "assign: operands are on %s and %s; bring them together with km_to",
                       km_tensor_dev(dst)->name, km_tensor_dev(src)->name);
    int mark = ctx->n_step;
    int64_t stride[KM_MAX_DIMS];
    if (!km_broadcast_strides(src, dst->shape, stride)) {
        char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
        return km_fail(ctx, KM_ERR_SHAPE, "assign: %s does not fit %s",
                       km_shape_text(a, src->shape), km_shape_text(b, dst->shape));
    }
    km_tensor seen = *src;
    km_profile_op(ctx, "assign");
    if (src->storage == dst->storage) { /* they may overlap: all is read before any is written */
        km_tensor *apart = km_tensor_new(ctx, src->storage->lane, "assign", src->dtype, src->shape);
        if (!apart || km_copy_into(ctx, &seen, apart) != KM_OK) return km_ctx_status(ctx);
        seen = *apart;
        km_broadcast_strides(apart, dst->shape, stride);
    }
    seen.shape = dst->shape;
    for (int i = 0; i < seen.shape.ndim; i++) seen.stride[i] = stride[i];
    dst->storage->version++;
    km_status s = km_copy_into(ctx, &seen, dst);
    km_step_drop(ctx, mark, NULL, 0);
    return s;
}
