/* Making walks from merged axes, and cutting what is too long for one launch. */
#include "backend/cuda/walker.h"
#include "base/util.h"
#include <math.h>

bool km_cuda_is_flat(const km_iter *it) {
    if (it->ndim != 1) return false;
    for (int k = 0; k < it->n; k++)
        if (it->stride[k][0] != 1 || !km_cuda_aligned(it->base[k], 16)) return false;
    return true;
}

km_cuda_grid km_cuda_grid_for(const km_lane *lane, int64_t items, int per_thread) {
    int64_t threads = KM_MAP_THREADS, enough = km_cuda_dev_of(lane)->sms;
    while (threads > 64 && km_ceil_div(items, threads * per_thread) < enough) threads /= 2;
    int64_t blocks = km_ceil_div(items, threads * per_thread);
    return (km_cuda_grid){KM_DIM(blocks > 0 ? blocks : 1), KM_DIM(threads)};
}

void km_cuda_walk_make(km_walk *w, int ndim, const int64_t *dim, int n,
                       const int64_t (*stride)[KM_MAX_DIMS]) {
    *w = (km_walk){.ndim = ndim, .count = 1};
    for (int a = 0; a < ndim; a++) {
        w->dim[a] = km_divisor_make((uint32_t)dim[a]);
        w->count *= (uint32_t)dim[a];
        for (int k = 0; k < n; k++) w->stride[k][a] = stride[k][a];
    }
}

static km_status launch_part(km_lane *lane, km_cuda_kernel *k, const km_iter *it,
                             km_walk_args *args, int unit) {
    const void *base[KM_ITER_MAX] = {0};
    for (int i = 0; i < it->n; i++) base[i] = it->base[i];
    args->out = it->base[0];
    args->a = base[1];
    args->b = base[2];
    args->c = base[3];
    km_cuda_walk_make(&args->walk, it->ndim, it->dim, it->n, it->stride);
    km_cuda_grid g = km_cuda_grid_for(lane, args->walk.count, unit);
    return km_cuda_launch1(lane, k, g.blocks, g.threads, 0, args);
}

/* Cuts along the first axis from `axis` on that is longer than one. */
static km_status cut(km_lane *lane, km_cuda_kernel *k, const km_iter *it, km_walk_args *args,
                     int unit, int axis) {
    int64_t total = it->dim[it->ndim - 1] * it->rows;
    if (total < KM_WALK_MAX) return launch_part(lane, k, it, args, unit);
    int64_t behind = total / it->dim[axis];
    int64_t step = (KM_WALK_MAX - 1) / behind; /* 0: one index of this axis is too much still */
    if (step == 0) step = 1;
    for (int64_t at = 0; at < it->dim[axis]; at += step) {
        km_iter part = *it;
        part.dim[axis] = it->dim[axis] - at < step ? it->dim[axis] - at : step;
        part.rows = 1;
        for (int a = 0; a < part.ndim - 1; a++) part.rows *= part.dim[a];
        for (int i = 0; i < part.n; i++)
            part.base[i] += at * it->stride[i][axis] * (int64_t)it->size[i];
        km_status s = cut(lane, k, &part, args, unit, axis + 1 < it->ndim ? axis + 1 : axis);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

km_status km_cuda_walk(km_lane *lane, km_cuda_kernel *k, const km_iter *it, km_walk_args *args,
                       int unit) {
    if (it->rows == 0) return KM_OK;
    return cut(lane, k, it, args, unit, 0);
}

int64_t km_cuda_whole(km_dtype dtype, double v) {
    int64_t lo = INT64_MIN, hi = INT64_MAX;
    if (dtype == KM_BOOL) return v != 0;
    if (dtype == KM_I32) lo = INT32_MIN, hi = INT32_MAX;
    if (dtype == KM_U8) lo = 0, hi = UINT8_MAX;
    if (dtype == KM_I8) lo = INT8_MIN, hi = INT8_MAX;
    if (isnan(v)) return 0;
    if (v <= (double)lo) return lo;
    if (v >= (double)hi) return hi;
    return (int64_t)v;
}

uint64_t km_cuda_bits(km_dtype dtype, double v) {
    uint64_t u;
    switch (dtype) {
    case KM_F32: return km_f32_bits((float)v);
    case KM_F16: return km_f32_to_f16(km_f64_to_f32_odd(v));
    case KM_BF16: return km_f32_to_bf16(km_f64_to_f32_odd(v));
    case KM_F64: memcpy(&u, &v, sizeof u); return u;
    case KM_I32: return (uint32_t)km_cuda_whole(dtype, v);
    case KM_I64: return (uint64_t)km_cuda_whole(dtype, v);
    default: return (uint8_t)km_cuda_whole(dtype, v);
    }
}
