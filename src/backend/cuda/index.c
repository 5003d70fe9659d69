/* Picking and placing by index on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_cuda_kernel take_rows[] = {{.module = "index", .name = "take_rows_1"},
                                     {.module = "index", .name = "take_rows_4"},
                                     {.module = "index", .name = "take_rows_16"}};
static km_cuda_kernel gather[] = {{.module = "index", .name = "gather_1"},
                                  {.module = "index", .name = "gather_2"},
                                  {.module = "index", .name = "gather_4"},
                                  {.module = "index", .name = "gather_8"}};
static km_cuda_kernel scatter_add[] = {{.module = "index", .name = "scatter_add_f32"},
                                       {.module = "index", .name = "scatter_add_1"},
                                       {.module = "index", .name = "scatter_add_4"},
                                       {.module = "index", .name = "scatter_add_8"}};
static km_cuda_kernel scatter_put[] = {{.module = "index", .name = "scatter_put_1"},
                                       {.module = "index", .name = "scatter_put_2"},
                                       {.module = "index", .name = "scatter_put_4"},
                                       {.module = "index", .name = "scatter_put_8"}};
static km_cuda_kernel scatter_seek[] = {{.module = "index", .name = "scatter_seek_f16"},
                                        {.module = "index", .name = "scatter_seek_bf16"}};

/* Whole rows of `bytes`, by the widest unit that divides everything. */
static km_status launch_take(km_lane *lane, km_index_args *a) {
    int unit = 1, slot = 0;
    for (int wider = 4; wider <= 16; wider *= 4) {
        if (a->bytes % wider || !km_cuda_aligned(a->x, (size_t)wider) ||
            !km_cuda_aligned(a->out, (size_t)wider))
            break;
        unit = wider;
        slot++;
    }
    int64_t threads = a->outer * a->items * (a->bytes / unit);
    return km_cuda_launch1(lane, &take_rows[slot], KM_DIM(km_ceil_div(threads, 256)), KM_DIM(256),
                           0, a);
}

static int64_t product(km_shape s, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= s.dim[i];
    return n;
}

static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1];
    km_index_args a = {.x = km_tensor_ptr(table),
                       .index = km_tensor_ptr(ids),
                       .out = km_tensor_ptr(c->out[0]),
                       .outer = 1,
                       .items = km_shape_count(ids->shape),
                       .wide = ids->dtype == KM_I64,
                       .axis = table->shape.dim[0],
                       .limit = table->shape.dim[0]};
    a.bytes = table->shape.dim[1] * (int64_t)km_dtype_size(table->dtype);
    return launch_take(km_cuda_lane(c), &a);
}

static km_status run_index_select(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1];
    int axis = c->p->axis;
    km_index_args a = {.x = km_tensor_ptr(x),
                       .index = km_tensor_ptr(index),
                       .out = km_tensor_ptr(c->out[0]),
                       .outer = product(x->shape, 0, axis),
                       .items = index->shape.dim[0],
                       .wide = index->dtype == KM_I64,
                       .axis = x->shape.dim[axis],
                       .limit = x->shape.dim[axis]};
    a.bytes = product(x->shape, axis + 1, x->shape.ndim) * (int64_t)km_dtype_size(x->dtype);
    return launch_take(km_cuda_lane(c), &a);
}

/* gather and scatter_add: index's axes, and where they lie in x (contiguous). */
static km_index_args along(const km_call *c, const km_tensor *x, const km_tensor *index) {
    int axis = c->p->axis;
    km_index_args a = {.x = km_tensor_ptr(x),
                       .index = km_tensor_ptr(index),
                       .out = km_tensor_ptr(c->out[0]),
                       .items = km_shape_count(index->shape),
                       .limit = x->shape.dim[axis],
                       .ndim = x->shape.ndim,
                       .axis_at = axis,
                       .x_axis = x->stride[axis],
                       .wide = index->dtype == KM_I64,
                       .outer = product(index->shape, 0, axis),
                       .inner = product(index->shape, axis + 1, index->shape.ndim)};
    for (int i = 0; i < a.ndim; i++) {
        a.dim[i] = index->shape.dim[i];
        a.x_stride[i] = x->stride[i];
    }
    return a;
}

static km_status run_gather(km_ctx *ctx, const km_call *c) {
    km_index_args a = along(c, c->in[0], c->in[1]);
    int slot = km_cuda_size_slot(km_dtype_size(c->in[0]->dtype));
    return km_cuda_launch1(km_cuda_lane(c), &gather[slot], KM_DIM(km_ceil_div(a.items, 256)),
                           KM_DIM(256), 0, &a);
}

/* scatter_add of f32 and of integers, and scatter, go line by line. */
static km_cuda_kernel *line_kernel(const km_call *c) {
    km_dtype d = c->in[0]->dtype;
    if (c->op == KM_OP_SCATTER) return &scatter_put[km_cuda_size_slot(km_dtype_size(d))];
    if (d == KM_F32) return &scatter_add[0];
    return &scatter_add[km_dtype_size(d) == 1 ? 1 : km_dtype_size(d) == 4 ? 2 : 3];
}

static km_status run_scatter(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    km_lane *lane = km_cuda_lane(c);
    bool adds = c->op == KM_OP_SCATTER_ADD;
    int slot = adds && km_dtype_is_float(x->dtype) ? km_cuda_slot(x->dtype) : 0;
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_status s = km_cuda_copy(lane, x, c->out[0]);
    km_index_args a = along(c, x, c->in[1]);
    a.src = km_tensor_ptr(c->in[2]);
    if (s != KM_OK || a.items == 0) return s;
    int64_t lines = a.outer * a.inner * (slot ? a.limit : 1);
    return km_cuda_launch1(lane, slot ? &scatter_seek[slot - 1] : line_kernel(c),
                           KM_DIM(km_ceil_div(lines, 128)), KM_DIM(128), 0, &a);
}

/* ---- What a mask picks ---- */

static km_cuda_kernel compact_count[] = {{.module = "compact", .name = "compact_count_1"},
                                         {.module = "compact", .name = "compact_count_2"},
                                         {.module = "compact", .name = "compact_count_4"},
                                         {.module = "compact", .name = "compact_count_8"}};
static km_cuda_kernel compact_offsets = {.module = "compact", .name = "compact_offsets"};
static km_cuda_kernel compact_select[] = {{.module = "compact", .name = "compact_select_1"},
                                          {.module = "compact", .name = "compact_select_2"},
                                          {.module = "compact", .name = "compact_select_4"},
                                          {.module = "compact", .name = "compact_select_8"}};
static km_cuda_kernel compact_place[] = {{.module = "compact", .name = "compact_place_1"},
                                         {.module = "compact", .name = "compact_place_2"},
                                         {.module = "compact", .name = "compact_place_4"},
                                         {.module = "compact", .name = "compact_place_8"}};
static km_cuda_kernel compact_nonzero[] = {{.module = "compact", .name = "compact_nonzero_1"},
                                           {.module = "compact", .name = "compact_nonzero_2"},
                                           {.module = "compact", .name = "compact_nonzero_4"},
                                           {.module = "compact", .name = "compact_nonzero_8"}};

/* Tiles are counted, the counts turned into where each tile's results begin, and the tiles written. */
static km_status launch_compact(km_lane *lane, km_compact_args *a, km_dtype flags,
                                km_cuda_kernel *write) {
    size_t cap;
    int64_t tiles = km_ceil_div(a->n, KM_COMPACT_TILE);
    if (a->n == 0 || a->limit == 0) return KM_OK;
    if (tiles > INT32_MAX) return KM_ERR_UNSUPPORTED;
    a->tiles = (int32_t)tiles;
    a->first = km_cuda_scratch(lane, (size_t)(tiles + 1) * sizeof *a->first, &cap);
    if (!a->first) return lane->ctx->error.code;
    int size = km_cuda_size_slot(km_dtype_size(flags));
    km_dim threads = KM_DIM(KM_COMPACT_THREADS);
    km_status s = km_cuda_launch1(lane, &compact_count[size], KM_DIM(tiles), threads, 0, a);
    if (s == KM_OK) s = km_cuda_launch1(lane, &compact_offsets, KM_DIM(1), KM_DIM(1024), 0, a);
    if (s == KM_OK) s = km_cuda_launch1(lane, write, KM_DIM(tiles), threads, 0, a);
    km_cuda_scratch_free(lane, a->first, cap);
    return s;
}

/* What no tile writes is zeros. */
static km_status clear(km_lane *lane, const km_tensor *out) {
    size_t bytes = (size_t)km_shape_count(out->shape) * km_dtype_size(out->dtype);
    if (bytes == 0) return KM_OK;
    km_cu_stream stream = km_cuda_stream(lane);
    km_cu_result r = KM_CU(set_bytes, (km_cu_ptr)(uintptr_t)km_tensor_ptr(out), 0, bytes, stream);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "clearing memory");
}

static km_status run_masked_select(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    km_compact_args a = {.x = km_tensor_ptr(x),
                         .flags = km_tensor_ptr(c->in[1]),
                         .out = km_tensor_ptr(c->out[0]),
                         .n = km_shape_count(x->shape),
                         .limit = c->out[0]->shape.dim[0],
                         .relevant = ~UINT64_C(0)};
    km_status s = clear(km_cuda_lane(c), c->out[0]);
    if (s != KM_OK) return s;
    return launch_compact(km_cuda_lane(c), &a, KM_BOOL,
                          &compact_select[km_cuda_size_slot(km_dtype_size(x->dtype))]);
}

static km_status run_masked_scatter(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    km_compact_args a = {.x = km_tensor_ptr(c->in[2]),
                         .flags = km_tensor_ptr(c->in[1]),
                         .out = km_tensor_ptr(c->out[0]),
                         .n = km_shape_count(x->shape),
                         .limit = c->in[2]->shape.dim[0],
                         .relevant = ~UINT64_C(0)};
    km_status s = km_cuda_copy(km_cuda_lane(c), x, c->out[0]);
    if (s != KM_OK) return s;
    return launch_compact(km_cuda_lane(c), &a, KM_BOOL,
                          &compact_place[km_cuda_size_slot(km_dtype_size(x->dtype))]);
}

static km_status run_nonzero(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    size_t size = km_dtype_size(x->dtype);
    km_compact_args a = {.flags = km_tensor_ptr(x),
                         .out = km_tensor_ptr(c->out[0]),
                         .n = km_shape_count(x->shape),
                         .limit = c->out[0]->shape.dim[0],
                         .ndim = x->shape.ndim,
                         /* -0 is a zero, too */
                         .relevant = km_dtype_is_float(x->dtype) ? ~(UINT64_C(1) << (8 * size - 1))
                                                                 : ~UINT64_C(0)};
    for (int i = 0; i < a.ndim; i++) a.dim[i] = x->shape.dim[i];
    km_status s = clear(km_cuda_lane(c), c->out[0]);
    if (s != KM_OK) return s;
    return launch_compact(km_cuda_lane(c), &a, x->dtype, &compact_nonzero[km_cuda_size_slot(size)]);
}

/* Each part is a copy into its slice of out. */
static km_status run_concat(km_ctx *ctx, const km_call *c) {
    km_tensor slice = *c->out[0];
    int axis = c->p->axis;
    for (int i = 0; i < c->n_in; i++) {
        slice.shape.dim[axis] = c->in[i]->shape.dim[axis];
        if (!km_cuda_empty(c->in[i])) {
            km_status s = km_cuda_copy(km_cuda_lane(c), c->in[i], &slice);
            if (s != KM_OK) return s;
        }
        slice.offset += slice.shape.dim[axis] * slice.stride[axis];
    }
    return KM_OK;
}

void km_cuda_register_index(km_kernel *table) {
    table[KM_OP_EMBEDDING] = run_embedding;
    table[KM_OP_INDEX_SELECT] = run_index_select;
    table[KM_OP_GATHER] = run_gather;
    table[KM_OP_SCATTER] = table[KM_OP_SCATTER_ADD] = run_scatter;
    table[KM_OP_MASKED_SELECT] = run_masked_select;
    table[KM_OP_MASKED_SCATTER] = run_masked_scatter;
    table[KM_OP_NONZERO] = run_nonzero;
    table[KM_OP_CONCAT] = run_concat;
}
