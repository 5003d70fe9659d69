/* Element access for the reference kernels: storing with one rounding, and stepping through
 * indices and rows of tensors with any strides. */
#include "backend/ref/ref.h"

/* An int64 as a double that rounds to any narrower float as the integer itself would: bits that
 * do not fit are folded into the lowest one kept (rounding to odd), far below what f32 keeps. */
static double sticky_double(int64_t v) {
    const int64_t low = 0x7ff;
    if (v > -(INT64_C(1) << 53) && v < INT64_C(1) << 53) return (double)v;
    return (double)((v & ~low) | (v & low ? low + 1 : 0));
}

static void store_float(const km_tensor *t, void *p, double v) {
    switch (t->dtype) {
    case KM_F32: *(float *)p = (float)v; break;
    case KM_F16: *(uint16_t *)p = km_f32_to_f16(km_f64_to_f32_odd(v)); break;
    case KM_BF16: *(uint16_t *)p = km_f32_to_bf16(km_f64_to_f32_odd(v)); break;
    default: *(double *)p = v; break;
    }
}

void km_ref_store_int(const km_tensor *t, int64_t pos, int64_t v) {
    void *p = km_ref_ptr(t, pos);
    switch (t->dtype) {
    case KM_I32: *(int32_t *)p = (int32_t)(uint32_t)v; break;
    case KM_I64: *(int64_t *)p = v; break;
    case KM_U8: *(uint8_t *)p = (uint8_t)v; break;
    case KM_I8: *(int8_t *)p = (int8_t)(uint8_t)v; break;
    case KM_BOOL: *(uint8_t *)p = v != 0; break;
    case KM_F64: *(double *)p = (double)v; break;
    default: store_float(t, p, sticky_double(v)); break;
    }
}

void km_ref_store(const km_tensor *t, int64_t pos, double v) {
    if (km_dtype_is_float(t->dtype))
        store_float(t, km_ref_ptr(t, pos), v);
    else
        km_ref_store_int(t, pos, km_ref_to_int(t->dtype, v));
}

int64_t km_ref_to_int(km_dtype d, double v) {
    int64_t lo = INT64_MIN, hi = INT64_MAX;
    if (d == KM_BOOL) return v != 0;
    if (d == KM_I32) lo = INT32_MIN, hi = INT32_MAX;
    if (d == KM_U8) lo = 0, hi = UINT8_MAX;
    if (d == KM_I8) lo = INT8_MIN, hi = INT8_MAX;
    if (isnan(v)) return 0;
    if (v <= (double)lo) return lo;
    if (v >= (double)hi) return hi; /* (double)INT64_MAX is 2^63: all below it fits */
    return (int64_t)v;
}

void km_ref_move(const km_tensor *dst, int64_t dpos, const km_tensor *src, int64_t spos) {
    if (dst->dtype == src->dtype)
        memcpy(km_ref_ptr(dst, dpos), km_ref_ptr(src, spos), km_dtype_size(src->dtype));
    else if (km_dtype_is_float(src->dtype))
        km_ref_store(dst, dpos, km_ref_load(src, spos));
    else
        km_ref_store_int(dst, dpos, km_ref_load_int(src, spos));
}

bool km_ref_first(km_shape s, int64_t i[KM_MAX_DIMS]) {
    for (int a = 0; a < KM_MAX_DIMS; a++) i[a] = 0;
    for (int a = 0; a < s.ndim; a++)
        if (s.dim[a] == 0) return false;
    return true;
}

bool km_ref_next(km_shape s, int64_t i[KM_MAX_DIMS]) {
    for (int a = s.ndim - 1; a >= 0; a--) {
        if (++i[a] < s.dim[a]) return true;
        i[a] = 0;
    }
    return false;
}

/* Position of element n, in row-major order, of the first `ndim` axes, the others being at 0. */
static int64_t nth_of_leading(const km_tensor *t, int ndim, int64_t n) {
    int64_t pos = t->offset;
    for (int a = ndim - 1; a >= 0; a--) {
        pos += n % t->shape.dim[a] * t->stride[a];
        n /= t->shape.dim[a];
    }
    return pos;
}

int64_t km_ref_nth(const km_tensor *t, int64_t n) { return nth_of_leading(t, t->shape.ndim, n); }

int64_t km_ref_row(const km_tensor *t, int64_t r) {
    return nth_of_leading(t, t->shape.ndim - 1, r);
}

int64_t km_ref_rows(const km_tensor *t) {
    int64_t rows = 1;
    for (int a = 0; a < t->shape.ndim - 1; a++) rows *= t->shape.dim[a];
    return rows;
}
