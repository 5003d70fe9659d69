/* Copies and casts: contiguous ones as bytes, swapped axes by tiles, the rest through strides in
 * the widest units that the layout allows. A copy may go through its axes in any order, so they
 * are sorted by where out's elements lie. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_cuda_kernel copy_bytes = {.module = "copy", .name = "copy_bytes", .waits = true};
static km_cuda_kernel cast_walk = {.module = "copy", .name = "cast_walk", .waits = true};
#define PER_UNIT(name_)                                                                            \
    { .module = "copy", .name = name_, .waits = true }
static km_cuda_kernel copy_walk[] = {PER_UNIT("copy_walk_1"), PER_UNIT("copy_walk_2"),
                                     PER_UNIT("copy_walk_4"), PER_UNIT("copy_walk_8"),
                                     PER_UNIT("copy_walk_16")};
static km_cuda_kernel transpose[] = {PER_UNIT("transpose_1"), PER_UNIT("transpose_2"),
                                     PER_UNIT("transpose_4"), PER_UNIT("transpose_8")};
static km_cuda_kernel cast_kernel[KM_CUDA_SLOTS][KM_CUDA_SLOTS] = {
    {{0}, PER_UNIT("cast_f32_f16"), PER_UNIT("cast_f32_bf16")},
    {PER_UNIT("cast_f16_f32"), {0}, PER_UNIT("cast_f16_bf16")},
    {PER_UNIT("cast_bf16_f32"), PER_UNIT("cast_bf16_f16"), {0}}};

/* ---- Axes ---- */

static void swap_axes(km_iter *it, int a, int b) {
    int64_t d = it->dim[a];
    it->dim[a] = it->dim[b];
    it->dim[b] = d;
    for (int k = 0; k < it->n; k++) {
        int64_t s = it->stride[k][a];
        it->stride[k][a] = it->stride[k][b];
        it->stride[k][b] = s;
    }
}

/* out's slowest axis first, then axes that continue each other merged. */
static void sort_axes(km_iter *it) {
    for (int i = 1; i < it->ndim; i++)
        for (int j = i; j > 0 && it->stride[0][j - 1] < it->stride[0][j]; j--)
            swap_axes(it, j - 1, j);
    int n = 1;
    for (int a = 1; a < it->ndim; a++) {
        bool goes_on = true;
        for (int k = 0; k < it->n; k++)
            goes_on &= it->stride[k][n - 1] == it->stride[k][a] * it->dim[a];
        if (goes_on) {
            it->dim[n - 1] *= it->dim[a];
        } else {
            it->dim[n] = it->dim[a];
            n++;
        }
        for (int k = 0; k < it->n; k++) it->stride[k][n - 1] = it->stride[k][a];
    }
    it->ndim = n;
    it->rows = 1;
    for (int a = 0; a < n - 1; a++) it->rows *= it->dim[a];
}

/* ---- Same bits ---- */

/* Whether out's fast axis (the last) is a slow one of x and the other way round; launches it. */
static bool try_transpose(km_lane *lane, const km_iter *it, km_status *result) {
    int last = it->ndim - 1, fast = -1, n = 0;
    if (it->ndim < 2 || it->stride[0][last] != 1 || it->stride[1][last] <= 1) return false;
    for (int a = 0; a < last; a++)
        if (it->stride[1][a] == 1) fast = a;
    if (fast < 0 || it->dim[fast] < 8 || it->dim[last] < 8 || it->size[0] > 8) return false;
    int64_t rows = it->dim[fast], cols = it->dim[last], batch[3] = {1, 1, 1};
    if (rows >= KM_WALK_MAX || cols >= KM_WALK_MAX) return false;
    km_transpose_args args = {.x = it->base[1],
                              .out = it->base[0],
                              .rows = (uint32_t)rows,
                              .cols = (uint32_t)cols,
                              .x_col = it->stride[1][last],
                              .out_row = it->stride[0][fast]};
    for (int a = last - 1; a >= 0; a--) { /* at most three are left */
        if (a == fast) continue;
        batch[n] = it->dim[a];
        args.x_batch[n] = it->stride[1][a];
        args.out_batch[n++] = it->stride[0][a];
    }
    int64_t tiles_r = km_ceil_div(rows, KM_TILE), tiles_c = km_ceil_div(cols, KM_TILE);
    int64_t blocks = tiles_r * tiles_c * (it->rows / rows);
    if (blocks >= KM_WALK_MAX) return false;
    args.tiles_r = km_divisor_make((uint32_t)tiles_r);
    args.tiles_c = km_divisor_make((uint32_t)tiles_c);
    args.batch1 = km_divisor_make((uint32_t)batch[0]);
    args.batch2 = km_divisor_make((uint32_t)batch[1]);
    *result = km_cuda_launch1(lane, &transpose[km_cuda_size_slot(it->size[0])], KM_DIM(blocks),
                              KM_DIM(KM_TILE, 4), 0, &args);
    return true;
}

/* Makes elements of up to 16 bytes out of those that lie together on both sides. */
static void widen(km_iter *it) {
    int last = it->ndim - 1;
    size_t unit = it->size[0];
    if (it->stride[0][last] != 1 || it->stride[1][last] != 1) return;
    while (unit < 16) {
        int64_t per = (int64_t)(2 * unit / it->size[0]);
        bool fits = it->dim[last] % per == 0;
        for (int k = 0; k < 2; k++) {
            fits &= km_cuda_aligned(it->base[k], 2 * unit);
            for (int a = 0; a < last; a++) fits &= it->stride[k][a] % per == 0;
        }
        if (!fits) break;
        unit *= 2;
    }
    int64_t per = (int64_t)(unit / it->size[0]);
    it->dim[last] /= per;
    for (int k = 0; k < 2; k++) {
        for (int a = 0; a < last; a++) it->stride[k][a] /= per;
        it->size[k] = unit;
    }
}

static km_status copy_bits(km_lane *lane, km_iter *it) {
    km_status result;
    if (km_cuda_is_flat(it)) {
        km_cast_args args = {it->base[1], it->base[0], it->dim[0] * (int64_t)it->size[0]};
        km_cuda_grid g = km_cuda_grid_for(lane, args.n / 16, 1);
        return km_cuda_launch1(lane, &copy_bytes, g.blocks, g.threads, 0, &args);
    }
    if (try_transpose(lane, it, &result)) return result;
    widen(it);
    int slot = it->size[0] == 16 ? 4 : km_cuda_size_slot(it->size[0]);
    km_walk_args args = {0};
    return km_cuda_walk(lane, &copy_walk[slot], it, &args, 4);
}

km_status km_cuda_copy(km_lane *lane, const km_tensor *x, const km_tensor *out) {
    const km_tensor *t[] = {out, x};
    km_iter it;
    km_iter_init(&it, 2, t);
    if (it.rows == 0) return KM_OK;
    sort_axes(&it);
    return copy_bits(lane, &it);
}

/* ---- Casts ---- */

static km_status run_copy(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    if (x->dtype == out->dtype) return km_cuda_copy(lane, x, out);
    const km_tensor *t[] = {out, x};
    int from = km_cuda_slot(x->dtype), to = km_cuda_slot(out->dtype);
    km_iter it;
    km_iter_init(&it, 2, t);
    if (it.rows == 0) return KM_OK;
    sort_axes(&it);
    /* Eight elements at a time: 32 bytes of f32. */
    if (from >= 0 && to >= 0 && km_cuda_is_flat(&it) &&
        km_cuda_aligned(it.base[0], it.size[0] * 8) &&
        km_cuda_aligned(it.base[1], it.size[1] * 8)) {
        km_cast_args args = {it.base[1], it.base[0], it.dim[0]};
        km_cuda_grid g = km_cuda_grid_for(lane, args.n / 8, 1);
        return km_cuda_launch1(lane, &cast_kernel[from][to], g.blocks, g.threads, 0, &args);
    }
    km_walk_args args = {.op = (int)x->dtype, .dtype = (int)out->dtype};
    return km_cuda_walk(lane, &cast_walk, &it, &args, 1);
}

void km_cuda_register_copy(km_kernel *table) { table[KM_OP_COPY] = table[KM_OP_CAST] = run_copy; }
