/* Tensors for tests that call kernels directly: a view and its bytes in one block, with no
 * context, lane or pool behind them. The layout is row-major, or "odd": axes in reverse order, gaps
 * between elements, an offset, and a pattern in every byte that is not an element, so that a
 * kernel that ignores strides or writes outside the view is caught. */
#ifndef KM_TESTS_BACKEND_REF_TENSOR_H
#define KM_TESTS_BACKEND_REF_TENSOR_H
#include "backend/ref/ref.h"
#include "base/alloc.h"
#include <stdlib.h>

#define RT_GAP 0xa5

typedef struct rt_block {
    km_tensor t;
    km_storage storage;
    struct rt_block *next;
    _Alignas(16) unsigned char bytes[];
} rt_block;

static rt_block *rt_all; /* every tensor of the running test */
static km_ctx rt_ctx;    /* kernels ask it for scratch memory and report errors to it */

static inline km_tensor *rt_make(km_dtype dtype, km_shape shape, bool odd) {
    int64_t stride[KM_MAX_DIMS] = {0}, count = 1, span = odd ? 2 : 1;
    for (int k = 0; k < shape.ndim; k++) {
        int a = odd ? k : shape.ndim - 1 - k;
        stride[a] = span;
        span *= shape.dim[a] + odd;
        count *= shape.dim[a];
    }
    if (!rt_all) km_handle_add(&rt_ctx.handle, KM_HANDLE_CONTEXT);
    int64_t offset = odd ? 3 : 0;
    size_t bytes = (size_t)(offset + span) * km_dtype_size(dtype);
    rt_block *b = malloc(sizeof *b + bytes);
    if (!b) abort();
    memset(b, 0, sizeof *b);
    memset(b->bytes, RT_GAP, bytes);
    b->storage.data = count ? b->bytes : NULL; /* an empty tensor must not be touched */
    b->storage.bytes = bytes;
    b->t.storage = &b->storage;
    b->t.dtype = dtype;
    b->t.shape = shape;
    b->t.offset = offset;
    memcpy(b->t.stride, stride, sizeof stride);
    b->next = rt_all;
    rt_all = b;
    return &b->t;
}

static inline km_tensor *rt_new(km_dtype dtype, km_shape shape) {
    return rt_make(dtype, shape, false);
}

/* A row-major tensor from doubles. */
static inline km_tensor *rt_from(km_dtype dtype, km_shape shape, const double *values) {
    km_tensor *t = rt_new(dtype, shape);
    int64_t i[KM_MAX_DIMS], n = 0;
    KM_REF_EACH(i, shape) km_ref_set(t, i, values[n++]);
    return t;
}
#define RT(dtype, shape, ...) rt_from(dtype, shape, (const double[]){__VA_ARGS__})

/* A vector of integers, exactly. */
static inline km_tensor *rt_ints(km_dtype dtype, int64_t n, const int64_t *values) {
    km_tensor *t = rt_new(dtype, KM_SHAPE(n));
    for (int64_t i = 0; i < n; i++) km_ref_set_int(t, &i, values[i]);
    return t;
}
#define RT_INTS(dtype, ...)                                                                        \
    rt_ints(dtype, sizeof((int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__})

/* A copy of t's elements in another dtype and layout; NULL for NULL. */
static inline km_tensor *rt_copy(const km_tensor *t, km_dtype dtype, bool odd) {
    if (!t) return NULL;
    km_tensor *out = rt_make(dtype, t->shape, odd);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, t->shape) km_ref_move(out, km_ref_pos(out, i), t, km_ref_pos(t, i));
    return out;
}

/* Whether every byte that is not an element still holds the pattern. */
static inline bool rt_gaps_intact(const km_tensor *t) {
    size_t size = km_dtype_size(t->dtype), bytes = t->storage->bytes;
    if (!t->storage->data) return true;
    unsigned char *copy = malloc(bytes);
    if (!copy) abort();
    memcpy(copy, t->storage->data, bytes);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, t->shape) memset(copy + km_ref_pos(t, i) * (int64_t)size, RT_GAP, size);
    bool intact = true;
    for (size_t k = 0; k < bytes; k++) intact = intact && copy[k] == RT_GAP;
    free(copy);
    return intact;
}

static inline km_status rt_run(km_op op, const km_params *p, km_tensor *const *in, int n_in,
                               km_tensor *const *out, int n_out) {
    static const km_params none;
    km_call c = {.op = op, .n_in = n_in, .n_out = n_out, .in = in, .out = out, .p = p ? p : &none};
    return km_ref_backend.kernel[op](&rt_ctx, &c);
}

/* Frees the running test's tensors; a cmocka teardown. */
static inline int rt_teardown(void **state) {
    (void)state;
    km_handle_remove(&rt_ctx, KM_HANDLE_CONTEXT);
    while (rt_all) {
        rt_block *next = rt_all->next;
        free(rt_all);
        rt_all = next;
    }
    km_free_aligned(rt_ctx.scratch, rt_ctx.scratch_bytes);
    rt_ctx = (km_ctx){0};
    return 0;
}

#endif
