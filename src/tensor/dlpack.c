/* Tensors from and to other libraries without a copy. What comes in is a storage whose bytes are
 * given back instead of freed; what goes out is a loan: a kept handle that the other's deleter ends. A
 * deleter may run in any thread and after km_ctx_free, so it only puts the loan on a list, which the
 * context's own thread empties at the end of a step, and the last holder of a context frees it. */
#include "tensor/dlpack.h"
#include "base/alloc.h"
#include "tensor/tensor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Dtypes and devices ---- */

static const struct {
    uint8_t code, bits;
    km_dtype dtype;
} types[] = {{KM_DL_FLOAT, 32, KM_F32}, {KM_DL_FLOAT, 16, KM_F16}, {KM_DL_BFLOAT, 16, KM_BF16},
             {KM_DL_FLOAT, 64, KM_F64}, {KM_DL_INT, 32, KM_I32},   {KM_DL_INT, 64, KM_I64},
             {KM_DL_UINT, 8, KM_U8},    {KM_DL_INT, 8, KM_I8},     {KM_DL_BOOL, 8, KM_BOOL}};
enum { TYPES = sizeof types / sizeof *types };

static km_dtype dtype_of(const km_dl_tensor *d) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].code == d->dtype.code && types[i].bits == d->dtype.bits && d->dtype.lanes == 1)
            return types[i].dtype;
    return KM_DTYPE_COUNT;
}

/* The number of a CUDA device by its name; -1: it is none. */
static int cuda_number(const km_device *device) {
    return strncmp(device->name, "cuda:", 5) == 0 ? atoi(device->name + 5) : -1;
}

/* ---- In ---- */

typedef struct loan_in { /* whose memory a storage is */
    struct DLManagedTensor *plain;
    struct DLManagedTensorVersioned *versioned;
} loan_in;

static void give_back(void *owner) {
    loan_in *l = owner;
    if (l->plain && l->plain->deleter) l->plain->deleter(l->plain);
    if (l->versioned && l->versioned->deleter) l->versioned->deleter(l->versioned);
    km_free(l);
}

static km_status check_place(km_ctx *ctx, const km_dl_tensor *d) {
    bool host = d->device.type == KM_DL_CPU || d->device.type == KM_DL_CUDA_HOST;
    if (host && ctx->device->host) return KM_OK;
    bool gpu = d->device.type == KM_DL_CUDA || d->device.type == KM_DL_CUDA_MANAGED;
    if (gpu && cuda_number(ctx->device) == d->device.id) return KM_OK;
    return km_fail(
        ctx, KM_ERR_DEVICE,
        "from_dlpack: memory of device type %d, number %d, cannot be used in place on %s",
        d->device.type, d->device.id, ctx->device->name);
}

/* Shape, strides and bounds into *t, with offset as the elements before (0, 0, ...), and how many
 * elements lie between the first and the last in memory. */
static km_status read_layout(km_ctx *ctx, const km_dl_tensor *d, km_tensor *t, int64_t *extent) {
    if (d->ndim < 0 || d->ndim > KM_MAX_DIMS)
        return km_fail(ctx, KM_ERR_SHAPE, "from_dlpack: %d axes; at most %d are possible", d->ndim,
                       KM_MAX_DIMS);
    if (d->ndim && !d->shape) return km_fail(ctx, KM_ERR_NULL, "from_dlpack: no shape");
    t->dtype = dtype_of(d);
    if (t->dtype == KM_DTYPE_COUNT)
        return km_fail(ctx, KM_ERR_DTYPE, "from_dlpack: no dtype for type %d of %d bits, %d lanes",
                       d->dtype.code, d->dtype.bits, d->dtype.lanes);
    t->shape.ndim = d->ndim;
    for (int i = 0; i < d->ndim; i++) t->shape.dim[i] = d->shape[i];
    if (km_shape_check(ctx, "from_dlpack", t->dtype, t->shape) != KM_OK) return ctx->error.code;
    km_shape_strides(t->shape, t->stride);
    int64_t low = 0, high = 0;
    for (int i = 0; i < d->ndim && km_shape_count(t->shape) > 0; i++) {
        int64_t reach, stride = d->strides && t->shape.dim[i] > 1 ? d->strides[i] : t->stride[i];
        t->stride[i] = stride;
        bool far = __builtin_mul_overflow(stride, t->shape.dim[i] - 1, &reach);
        far = far ||
              __builtin_add_overflow(stride < 0 ? low : high, reach, stride < 0 ? &low : &high);
        if (far || high > INT64_MAX / 16 || low < -INT64_MAX / 16)
            return km_fail(ctx, KM_ERR_RANGE, "from_dlpack: strides reach beyond all memory");
    }
    t->offset = -low;
    *extent = km_shape_count(t->shape) ? high - low + 1 : 0;
    return KM_OK;
}

static km_tensor *bring_in(km_ctx *ctx, const km_dl_tensor *d, loan_in from, bool read_only) {
    static char nothing[64]; /* where a tensor without elements may be */
    km_tensor layout = {0};
    int64_t extent = 0;
    if (check_place(ctx, d) != KM_OK || read_layout(ctx, d, &layout, &extent) != KM_OK) return NULL;
    size_t size = km_dtype_size(layout.dtype);
    char *first = (char *)d->data + (d->data ? d->byte_offset : 0);
    if (extent && !d->data) {
        km_fail(ctx, KM_ERR_NULL, "from_dlpack: no data");
        return NULL;
    }
    if (extent && (uintptr_t)first % size != 0) {
        km_fail(ctx, KM_ERR_UNSUPPORTED, "from_dlpack: elements of %s are not aligned; copy them",
                km_dtype_name(layout.dtype));
        return NULL;
    }
    loan_in *owner = km_alloc(sizeof *owner);
    km_tensor *t = owner
                       ? km_wrap_lent(ctx, extent ? first - (size_t)layout.offset * size : nothing,
                                      (size_t)extent * size, give_back, owner)
                       : NULL;
    if (!t) {
        km_free(owner);
        km_fail(ctx, KM_ERR_MEMORY, "from_dlpack: out of memory");
        return NULL;
    }
    *owner = from;
    t->storage->read_only = read_only;
    t->dtype = layout.dtype;
    t->shape = layout.shape;
    t->offset = layout.offset;
    memcpy(t->stride, layout.stride, sizeof t->stride);
    return t;
}

km_tensor *km_from_dlpack(km_ctx *ctx, struct DLManagedTensor *m) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!m) {
        km_fail(ctx, KM_ERR_NULL, "from_dlpack: no tensor");
        return NULL;
    }
    return bring_in(ctx, &m->tensor, (loan_in){.plain = m}, false);
}

km_tensor *km_from_dlpack_versioned(km_ctx *ctx, struct DLManagedTensorVersioned *m) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!m || m->version.major != KM_DL_MAJOR) {
        km_fail(ctx, m ? KM_ERR_UNSUPPORTED : KM_ERR_NULL,
                m ? "from_dlpack: version %u of DLPack; %d can be read" : "from_dlpack: no tensor",
                m ? m->version.major : 0, KM_DL_MAJOR);
        return NULL;
    }
    return bring_in(ctx, &m->tensor, (loan_in){.versioned = m}, m->flags & KM_DL_READ_ONLY);
}

/* ---- Out ---- */

typedef struct km_loan {
    union {
        struct DLManagedTensor plain;
        struct DLManagedTensorVersioned versioned;
    };
    km_tensor *t; /* kept */
    struct km_loan *next;
    int64_t shape[KM_MAX_DIMS], strides[KM_MAX_DIMS];
} km_loan;

void km_loans_settle(km_ctx *ctx) {
    km_loan *l = atomic_exchange(&ctx->loans_ended, NULL);
    while (l) {
        km_loan *next = l->next;
        km_release(l->t);
        km_free(l);
        l = next;
    }
}

static void end_loan(km_loan *l) {
    km_ctx *ctx = l->t->ctx;
    l->next = atomic_load(&ctx->loans_ended);
    while (!atomic_compare_exchange_weak(&ctx->loans_ended, &l->next, l)) continue;
    km_ctx_unhold(ctx);
}

static void end_plain(struct DLManagedTensor *m) {
    if (m) end_loan(m->manager);
}

static void end_versioned(struct DLManagedTensorVersioned *m) {
    if (m) end_loan(m->manager);
}

static void describe(km_dl_tensor *d, km_loan *l) {
    const km_tensor *t = l->t;
    int cuda = cuda_number(km_tensor_dev(t));
    d->data = km_tensor_ptr(t);
    d->device.type = cuda < 0 ? KM_DL_CPU : KM_DL_CUDA;
    d->device.id = cuda < 0 ? 0 : cuda;
    d->ndim = t->shape.ndim;
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == t->dtype) {
            d->dtype.code = types[i].code;
            d->dtype.bits = types[i].bits;
        }
    d->dtype.lanes = 1;
    d->shape = memcpy(l->shape, t->shape.dim, sizeof l->shape);
    d->strides = memcpy(l->strides, t->stride, sizeof l->strides);
}

static km_loan *lend(km_ctx *ctx, km_tensor *t, bool may_be_fixed) {
    if (km_failed(ctx)) return NULL;
    km_tensor *kept = km_keep(ctx, t);
    if (!kept) return NULL;
    km_loan *l = NULL;
    bool fixed = t->storage->drop || t->storage->read_only;
    if (km_dtype_is_block(t->dtype))
        km_fail(ctx, KM_ERR_DTYPE, "to_dlpack: %s has no name there; cast it", /* to a float */
                km_dtype_name(t->dtype));
    else if (fixed && !may_be_fixed)
        km_fail(ctx, KM_ERR_STATE,
                "to_dlpack: memory that may not be changed needs the versioned form");
    else if (!km_tensor_dev(t)->host && t->storage->drop)
        km_fail(ctx, KM_ERR_DEVICE, "to_dlpack: weights that stay in the host's memory");
    else if (!(l = km_calloc(1, sizeof *l)))
        km_fail(ctx, KM_ERR_MEMORY, "to_dlpack: out of memory");
    km_sync(ctx);
    if (!l || km_failed(ctx)) {
        km_free(l);
        km_release(kept);
        return NULL;
    }
    l->t = kept;
    atomic_fetch_add(&ctx->holders, 1);
    return l;
}

struct DLManagedTensor *km_to_dlpack(km_ctx *ctx, km_tensor *t) {
    KM_CTX_CALL(ctx, NULL);
    km_loan *l = lend(ctx, t, false);
    if (!l) return NULL;
    describe(&l->plain.tensor, l);
    l->plain.manager = l;
    l->plain.deleter = end_plain;
    return &l->plain;
}

struct DLManagedTensorVersioned *km_to_dlpack_versioned(km_ctx *ctx, km_tensor *t) {
    KM_CTX_CALL(ctx, NULL);
    km_loan *l = lend(ctx, t, true);
    if (!l) return NULL;
    describe(&l->versioned.tensor, l);
    l->versioned.version.major = KM_DL_MAJOR;
    l->versioned.version.minor = KM_DL_MINOR;
    l->versioned.manager = l;
    l->versioned.deleter = end_versioned;
    if (t->storage->drop || t->storage->read_only) l->versioned.flags = KM_DL_READ_ONLY;
    return &l->versioned;
}
