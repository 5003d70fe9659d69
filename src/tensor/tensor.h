/* Tensors, their storage, and the context that owns them.
 *
 * A tensor is a view (dtype, shape, strides, offset) of a storage, which is a block of a lane's
 * pool. Tensor structs of the step live in the context's arena; storages are counted, because a
 * view, the tape, a gradient or a kept handle may each need the bytes longer than the step's
 * scope does. When the count reaches zero the bytes go back to the pool at once, and `data` is
 * NULL from then on, so a use after free is an error message and not a crash. */
#ifndef KM_TENSOR_TENSOR_H
#define KM_TENSOR_TENSOR_H
#include "base/arena.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/threads.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include <stdatomic.h>

typedef struct km_storage {
    km_lane *lane;
    void *data;        /* NULL once freed */
    size_t bytes, cap; /* asked for, and what the pool gave */
    int refs;
    unsigned version;          /* counts changes in place, so that the tape can notice them */
    struct km_storage *next;   /* in the context's list of unused or dead records */
    bool settled;              /* blocks lie as the device's kernels like them (km_settle) */
    void (*drop)(void *owner); /* set: the bytes are another's (km_wrap), and only to be read */
    void *owner;
    void (*give_back)(void *owner); /* set: the bytes are another library's (tensor/dlpack.c) */
    bool read_only;                 /* of these, not to be changed */
} km_storage;

struct km_node;
struct km_call;
struct km_profile;

struct km_tensor {
    km_ctx *ctx;
    km_storage *storage;
    km_dtype dtype;
    km_shape shape;
    int64_t stride[KM_MAX_DIMS]; /* in elements; 0 along a broadcast axis */
    int64_t offset;              /* of element (0, 0, ...), in elements */
    bool kept;                   /* a handle of the user's, on the heap */
    bool is_one;                 /* the gradient of a loss by itself: known to be 1 */
    bool requires_grad;          /* set on parameters and on all that depends on them */
    struct km_node *node;        /* what made it, when recorded; NULL for a parameter */
    int node_output;             /* which output of that node */
    km_tensor *grad;             /* of a parameter, kept; its storage is NULL while cleared */
    struct km_node *last_use;    /* the last node that a backward pass will find it at */
    km_tensor *next_released;    /* a released handle's struct lives until the step's end */
};

#define KM_MAX_LANES 12
#define KM_MAX_SCOPES 64

struct km_ctx {
    km_handle handle;
    km_error error;
    km_device *device;
    km_threads *threads; /* for kernels on the host */
    km_lane *lanes[KM_MAX_LANES];
    int n_lanes;

    km_arena arena;    /* tensor structs and tape nodes of this step */
    km_storage **step; /* storages the step holds a reference to */
    int n_step, cap_step;
    int scope[KM_MAX_SCOPES]; /* index into step at each km_scope_begin */
    int n_scopes;
    km_storage *unused, *dead;       /* dead: freed this step, its tensors may still look */
    struct km_storage_block *blocks; /* where the records live */

    struct km_node *tape;            /* the last recorded node */
    void (*tape_reset)(km_ctx *ctx); /* set with the first node; drops what the tape holds */
    km_tensor *released;
    int no_grad;                                                  /* depth of km_no_grad_begin */
    int backwards;                                                /* depth of km_backward */
    void (*ready)(void *user, km_ctx *ctx, km_tensor *parameter); /* autograd/ready.h */
    void *ready_user;
    uint64_t seed, draws; /* each random op takes draws++ as its stream */
    bool ending;          /* the step, which gives lent memory back: its owner may call in */
    uint64_t steps, kernels, fallbacks, failed_kernels;
    uint64_t spills;    /* tensors that found no room on the device */
    bool no_fallback;   /* km_ctx_set_fallback */
    bool must_fit;      /* what is made now has to lie on the device: weights, caches */
    bool told_spill;    /* that there was no room was said */
    bool tf32;          /* km_ctx_allow_tf32 */
    int activations;    /* 16 or 8: km_ctx_set_activations */
    int64_t rows_alone; /* km_rows_alone (backend/backend.h); 0: as always */
    /* > 0: the last so many rows of each call are each alone, those before them are a prompt's
     * (backend/cpu/rows_tail.h). */
    int64_t rows_tail;
    bool reproducible; /* bits of a row are to depend neither on its place nor on the other rows */
    bool uncaptured;   /* steps have work that cannot be captured: they always run */
    struct km_profile *profile; /* NULL before the first km_profile_begin */
    const char *grad_of;        /* the op whose gradient rule runs; NULL otherwise */
    /* For measuring: called with each kernel's time, which then runs alone. NULL: nobody asks. */
    void (*timed)(void *user, const struct km_call *call, double seconds);
    void *timed_user;
    void *scratch; /* km_ctx_scratch */
    size_t scratch_bytes;
    atomic_int holders;                  /* the caller, and whoever has memory of it on loan */
    struct km_loan *_Atomic loans_ended; /* given back by any thread, until the next step's end */
};

/* ---- Contexts ---- */

/* Lets go of the tensors whose loans have ended (tensor/dlpack.c). */
void km_loans_settle(km_ctx *ctx);
/* One holder fewer; the last one's call frees the context. */
void km_ctx_unhold(km_ctx *ctx);

km_ctx *km_ctx_make(km_device *device, int threads, km_error *err); /* NULL with *err set */

/* Fails the context (the first error stays) and returns `code`. */
km_status km_fail(km_ctx *ctx, km_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether it is a context; of one that was freed, or never was one, the error is told. */
static inline bool km_ctx_is(const km_ctx *ctx) {
    return ctx && km_handle_open("context", ctx, KM_HANDLE_CONTEXT);
}
/* How a public call on a context begins: it is the only one, or goes on inside one of the same thread.
 * Otherwise it returns `...`; with another thread inside the error is told to this one alone. */
#define KM_CTX_CALL(ctx, ...)                                                                      \
    KM_INSIDE(km_inside_call);                                                                     \
    if (!(ctx) || !km_enter(&km_inside_call, "context", ctx, KM_HANDLE_CONTEXT)) return __VA_ARGS__
static inline km_status km_ctx_missing(const km_ctx *ctx) {
    return ctx ? KM_ERR_STATE : KM_ERR_NULL;
}
static inline bool km_failed(const km_ctx *ctx) {
    return !km_ctx_is(ctx) || ctx->error.code != KM_OK;
}

/* The context's lane on a device, opened on first use; NULL with the error set. */
km_lane *km_ctx_lane(km_ctx *ctx, km_device *device);

/* Bytes that the context's device has left; infinity where nobody needs to ask. */
double km_room_left(const km_ctx *ctx);
/* A tensor of that many bytes is about to be made on the context's device, and kept: its memory is laid
 * out for all that were announced. 0: no more of them will come. */
void km_expect_bytes(km_ctx *ctx, size_t bytes);

/* Host memory for a kernel's private use, 64-byte aligned, kept for the context's life and
 * grown as needed. Valid until the next call. NULL with the error set. */
void *km_ctx_scratch(km_ctx *ctx, size_t bytes);

/* Drops the step's hold on every storage made since `mark` (an earlier ctx->n_step), save those
 * of keep[0..n_keep-1]. What the tape or a kept handle still needs stays alive through its count. */
void km_step_drop(km_ctx *ctx, int mark, km_tensor *const *keep, int n_keep);

/* ---- Tensors ---- */

/* A new contiguous tensor of the step, uninitialised. `what` names the caller in errors. */
km_tensor *km_tensor_new(km_ctx *ctx, km_lane *lane, const char *what, km_dtype dtype,
                         km_shape shape);
/* A kept tensor over memory of the host that is not the context's, a mapped file for instance:
 * nothing is copied and nothing may be written. `drop` is called with `owner` when the last tensor
 * over it has gone. The context must be on a host device, or the tensor a matrix in blocks or of 16
 * bits that only layers of a running model use, which bring it over each time. NULL with the error
 * set; drop is not called then. */
km_tensor *km_wrap(km_ctx *ctx, const char *what, km_dtype dtype, km_shape shape, const void *data,
                   void (*drop)(void *owner), void *owner);
/* A kept scalar of f32 over memory of the context's device that another library lends, for the caller
 * to give a dtype and a layout. give_back as drop above. */
km_tensor *km_wrap_lent(km_ctx *ctx, void *data, size_t bytes, void (*give_back)(void *owner),
                        void *owner);
/* A kept tensor with a copy of data, on the context's device. */
static inline km_tensor *km_keep_data(km_ctx *ctx, km_dtype dtype, km_shape shape,
                                      const void *data) {
    return km_keep(ctx, km_from_data(ctx, dtype, shape, data));
}
/* Another view of t's storage, off the tape. */
km_tensor *km_tensor_view(km_ctx *ctx, const km_tensor *t, km_shape shape, const int64_t *stride,
                          int64_t offset);
/* A weight in blocks that will only be used from now on: laid out as the device's kernels like it
 * best, where it has such a layout. Ops are told nothing; reading it back or moving it elsewhere
 * restores the layout of files first, and so does km_unsettle. */
km_status km_settle(km_ctx *ctx, km_tensor *t);
km_status km_unsettle(km_ctx *ctx, const km_tensor *t);
void km_storage_retain(km_storage *s);
void km_storage_release(km_ctx *ctx, km_storage *s);

static inline void *km_tensor_ptr(const km_tensor *t) {
    return (char *)t->storage->data + km_dtype_bytes(t->dtype, t->offset);
}
static inline km_device *km_tensor_dev(const km_tensor *t) { return t->storage->lane->device; }

/* ---- Shapes ---- */

#define KM_SHAPE_TEXT 112
/* "[1024, 512]" into buf; returns buf. */
const char *km_shape_text(char buf[KM_SHAPE_TEXT], km_shape s);
int64_t km_shape_count(km_shape s); /* of a valid shape */
/* Checks rank, signs and that the bytes fit in memory's address range. */
km_status km_shape_check(km_ctx *ctx, const char *what, km_dtype dtype, km_shape s);
bool km_shape_equal(km_shape a, km_shape b);
void km_shape_strides(km_shape s, int64_t stride[KM_MAX_DIMS]); /* row-major */
/* NumPy's rule; false when they do not fit. */
bool km_shape_broadcast(km_shape a, km_shape b, km_shape *out);
/* Strides that make t look like `to` (0 along repeated axes); false when it does not fit. */
bool km_broadcast_strides(const km_tensor *t, km_shape to, int64_t stride[KM_MAX_DIMS]);
/* Maps axis in [-ndim, ndim) to [0, ndim); -1 when out of range. */
int km_axis(int axis, int ndim);
bool km_is_contiguous(const km_tensor *t);

#endif
