/* Sums of cells on the GPU: rows sorted by cell, then added up cell by cell (kernels/cells.cu). More
 * cells than shared memory has room to count are sorted as the embedding's gradient sorts its ids. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/kernels/vector/nearest_args.h"
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

#define ONE(name_)                                                                                 \
    { .module = "cells", .name = name_, .waits = true }
static km_cuda_kernel count = ONE("cells_count"), scan = ONE("cells_scan"),
                      starts = ONE("cells_starts"), place = ONE("cells_place");
static km_cuda_kernel sum[2][3] = {
    {ONE("cells_sum1_f32"), ONE("cells_sum1_f16"), ONE("cells_sum1_bf16")},
    {ONE("cells_sum_f32"), ONE("cells_sum_f16"), ONE("cells_sum_bf16")}};
#define SORT(name_)                                                                                \
    { .module = "embedding_grad", .name = "embedding_grad_" name_ }
static km_cuda_kernel sort_count = SORT("count"), sort_scan = SORT("scan"),
                      sort_place = SORT("place"), sort_starts = SORT("starts");

/* Few cells: one pass, all counters in shared memory. */
static km_status order_few(km_lane *lane, km_cells_args *a, uint32_t *room) {
    a->tile_count = room;
    km_status s =
        km_cuda_launch1(lane, &count, KM_DIM(a->tiles), KM_DIM(256), (unsigned)a->k * 4, a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &scan, KM_DIM(km_ceil_div(a->k, 128)), KM_DIM(128), 0, a);
    if (s == KM_OK) s = km_cuda_launch1(lane, &starts, KM_DIM(1), KM_DIM(1024), 0, a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &place, KM_DIM(a->tiles), KM_DIM(256),
                            (unsigned)a->k * 2 * KM_CELLS_WARPS, a);
    return s;
}

/* Many: by eight bits at a time. room: keys and positions twice, and the digits. */
static km_status order_many(km_lane *lane, km_cells_args *a, uint32_t *room) {
    km_embedding_grad_args e = {.index = a->id, .items = a->n, .rows = a->k, .start = a->start};
    km_status s = KM_OK;
    int turn = 0;
    e.tiles = (int32_t)km_ceil_div(a->n, KM_SORT_TILE);
    if (e.tiles < 1) e.tiles = 1;
    e.heavy = room;
    e.digits = room + 1;
    uint32_t *two = e.digits + 256 * (int64_t)e.tiles;
    for (e.shift = 0; s == KM_OK && (e.shift == 0 || e.rows >> e.shift); e.shift += 8) {
        e.key = two + 2 * turn * a->n;
        e.at = e.key + a->n;
        s = km_cuda_launch1(lane, &sort_count, KM_DIM(e.tiles), KM_DIM(256), 0, &e);
        if (s == KM_OK) s = km_cuda_launch1(lane, &sort_scan, KM_DIM(1), KM_DIM(1024), 0, &e);
        if (s == KM_OK) s = km_cuda_launch1(lane, &sort_place, KM_DIM(e.tiles), KM_DIM(256), 0, &e);
        e.key_in = e.key;
        e.at_in = e.at;
        turn = !turn;
    }
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &sort_starts, KM_DIM(km_ceil_div(a->n + 1, 256)), KM_DIM(256), 0,
                            &e);
    a->order = e.at;
    a->total = NULL;
    return s == KM_OK ? km_cuda_launch1(lane, &starts, KM_DIM(1), KM_DIM(1024), 0, a) : s;
}

static int64_t tile_rows_for(const km_cuda_dev *dev, int64_t n) {
    int64_t rows = km_ceil_div(km_ceil_div(n, 2 * (int64_t)dev->sms), 256) * 256;
    return rows < 512 ? 512 : rows > 8192 ? 8192 : rows;
}

km_status km_cuda_cell_sums(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *weight = c->n_in > 2 ? c->in[2] : NULL;
    const km_tensor *dist = c->n_in > 3 ? c->in[3] : NULL;
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = c->p->n[KM_N_CELLS];
    if (slot < 0 || d > INT32_MAX / 8 || n >= INT32_MAX) return KM_ERR_UNSUPPORTED;
    if (k == 0) return KM_OK;
    const void *rows = km_cuda_bytes_of(lane, x); /* they may be lent */
    if (km_failed(ctx)) return ctx->error.code;
    km_cells_args a = {.x = rows,
                       .id = km_tensor_ptr(c->in[1]),
                       .weight = weight ? km_tensor_ptr(weight) : NULL,
                       .dist = dist ? km_tensor_ptr(dist) : NULL,
                       .sum = km_tensor_ptr(c->out[0]),
                       .mass = km_tensor_ptr(c->out[1]),
                       .count = km_tensor_ptr(c->out[2]),
                       .spread = km_tensor_ptr(c->out[3]),
                       .n = n,
                       .d = (int32_t)d,
                       .k = (int32_t)k};
    size_t size = km_dtype_size(x->dtype);
    bool wide = (size_t)d * size % 16 == 0 && d > 0 && km_cuda_aligned(a.x, 16);
    int64_t packs = wide ? d * (int64_t)size / 16 : d > 0 ? d : 1;
    a.columns = (int32_t)(packs < 256 ? packs : 256);
    if (a.columns > 128 && packs % 256 && packs % 192 == 0) a.columns = 192;
    a.groups = 256 / a.columns;
    a.slabs = (int32_t)km_ceil_div(packs, a.columns);
    a.tile_rows = (int32_t)tile_rows_for(km_cuda_dev_of(lane), n);
    a.tiles = (int32_t)km_ceil_div(n, a.tile_rows);
    a.chunks = (int32_t)(k + n / KM_CELLS_CHUNK);
    bool few = k <= KM_CELLS_MOST;
    int64_t sort_tiles = km_ceil_div(n, KM_SORT_TILE) + 1;
    int64_t sorting = few ? a.tiles * k : 4 * n + 256 * sort_tiles + 1;
    int64_t words = (k + 1) + (k + 1) + k + k + n + sorting + 4;
    size_t cap, part_cap;
    uint32_t *room = km_cuda_scratch(lane, (size_t)words * sizeof *room, &cap);
    if (!room) return ctx->error.code;
    /* Only cells of several chunks have partial sums, but which ones is known on the device alone. */
    a.part = km_cuda_scratch(lane, (size_t)a.chunks * (size_t)(d + 4) * sizeof(float), &part_cap);
    if (!a.part) {
        km_cuda_scratch_free(lane, room, cap);
        return ctx->error.code;
    }
    a.start = room;
    a.chunk = a.start + k + 1;
    a.total = a.chunk + k + 1;
    a.done = a.total + k;
    a.order = a.done + k;
    uint32_t *rest = a.order + n;
    km_status s = few ? order_few(lane, &a, rest) : order_many(lane, &a, rest);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &sum[wide][slot], KM_DIM(a.chunks, a.slabs), KM_DIM(256), 0, &a);
    km_cuda_scratch_free(lane, a.part, part_cap);
    km_cuda_scratch_free(lane, room, cap);
    return s;
}
