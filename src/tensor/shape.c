/* Shapes: counting, printing, broadcasting, and the check that no size is absurd. */
#include "tensor/mempool.h"
#include "tensor/tensor.h"
#include <stdio.h>

const char *km_dtype_name(km_dtype d) {
    static const char *const names[] = {
#define NAME(name, text, bytes, last) text,
        KM_DTYPE_LIST(NAME) KM_BLOCK_LIST(NAME)
#undef NAME
    };
    return (unsigned)d < KM_DTYPE_COUNT ? names[d] : "?";
}

size_t km_dtype_size(km_dtype d) {
    static const size_t sizes[] = {
#define SIZE(name, text, bytes, last) bytes,
        KM_DTYPE_LIST(SIZE) KM_BLOCK_LIST(SIZE)
#undef SIZE
    };
    return (unsigned)d < KM_DTYPE_COUNT ? sizes[d] : 0;
}

int64_t km_dtype_block(km_dtype d) {
    static const int16_t blocks[] = {
#define BLOCK(name, text, bytes, elements) [KM_##name] = elements,
        KM_BLOCK_LIST(BLOCK)
#undef BLOCK
    };
    return (unsigned)d < KM_DTYPE_COUNT && blocks[d] ? blocks[d] : 1;
}

const char *km_shape_text(char buf[KM_SHAPE_TEXT], km_shape s) {
    int at = snprintf(buf, KM_SHAPE_TEXT, "[");
    for (int i = 0; i < s.ndim && i < KM_MAX_DIMS; i++)
        at += snprintf(buf + at, (size_t)(KM_SHAPE_TEXT - at), i ? ", %lld" : "%lld",
                       (long long)s.dim[i]);
    snprintf(buf + at, (size_t)(KM_SHAPE_TEXT - at), s.ndim > KM_MAX_DIMS ? ", ...]" : "]");
    return buf;
}

int64_t km_shape_count(km_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    return n;
}

km_status km_shape_check(km_ctx *ctx, const char *what, km_dtype dtype, km_shape s) {
    char text[KM_SHAPE_TEXT];
    if ((unsigned)dtype >= KM_DTYPE_COUNT)
        return km_fail(ctx, KM_ERR_DTYPE, "%s: no such dtype: %d", what, (int)dtype);
    if (s.ndim < 0 || s.ndim > KM_MAX_DIMS)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: %d dimensions; 0 to %d are possible", what, s.ndim,
                       KM_MAX_DIMS);
    int64_t bytes = (int64_t)km_dtype_size(dtype), block = km_dtype_block(dtype);
    if (block > 1 && (s.ndim < 1 || s.dim[s.ndim - 1] % block))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: rows of %s are no whole blocks of %lld, as %s needs",
                       what, km_shape_text(text, s), (long long)block, km_dtype_name(dtype));
    bool empty = false, absurd = false;
    for (int i = 0; i < s.ndim; i++) {
        if (s.dim[i] < 0)
            return km_fail(ctx, KM_ERR_SHAPE, "%s: negative size in %s", what,
                           km_shape_text(text, s));
        empty |= s.dim[i] == 0;
        absurd |= s.dim[i] != 0 && __builtin_mul_overflow(bytes, s.dim[i], &bytes);
    }
    /* Counts and strides of an empty tensor must not overflow either. */
    if (absurd || (!empty && bytes > KM_MEMPOOL_MOST))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: %s of %s is larger than any memory", what,
                       km_shape_text(text, s), km_dtype_name(dtype));
    return KM_OK;
}

bool km_shape_equal(km_shape a, km_shape b) {
    if (a.ndim != b.ndim) return false;
    for (int i = 0; i < a.ndim; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

void km_shape_strides(km_shape s, int64_t stride[KM_MAX_DIMS]) {
    int64_t step = 1;
    for (int i = KM_MAX_DIMS; i-- > 0;) {
        stride[i] = 0;
        if (i >= s.ndim) continue;
        stride[i] = step;
        step *= s.dim[i] > 0 ? s.dim[i] : 1;
    }
}

bool km_shape_broadcast(km_shape a, km_shape b, km_shape *out) {
    km_shape r = {a.ndim > b.ndim ? a.ndim : b.ndim, {0}};
    for (int i = 0; i < r.ndim; i++) {
        int ia = i - (r.ndim - a.ndim), ib = i - (r.ndim - b.ndim);
        int64_t da = ia < 0 ? 1 : a.dim[ia], db = ib < 0 ? 1 : b.dim[ib];
        if (da != db && da != 1 && db != 1) return false;
        r.dim[i] = da == 1 ? db : da;
    }
    *out = r;
    return true;
}

bool km_broadcast_strides(const km_tensor *t, km_shape to, int64_t stride[KM_MAX_DIMS]) {
    int lead = to.ndim - t->shape.ndim;
    if (lead < 0) return false;
    for (int i = 0; i < to.ndim; i++) {
        int64_t d = i < lead ? 1 : t->shape.dim[i - lead];
        if (d != to.dim[i] && d != 1) return false;
        stride[i] = i < lead || d != to.dim[i] ? 0 : t->stride[i - lead];
    }
    return true;
}

int km_axis(int axis, int ndim) {
    if (axis < 0) axis += ndim;
    return axis >= 0 && axis < ndim ? axis : -1;
}

bool km_is_contiguous(const km_tensor *t) {
    int64_t step = 1;
    bool lies_so = true;
    for (int i = t->shape.ndim; i-- > 0;) {
        int64_t d = t->shape.dim[i];
        if (d == 0) return true;
        if (d != 1 && t->stride[i] != step) lies_so = false;
        step *= d;
    }
    return lies_so;
}
