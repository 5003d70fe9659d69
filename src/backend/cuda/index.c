/* Picking and placing by index on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/row_args.h"
#include "backend/cuda/walker.h"

static km_cuda_kernel take_rows[] = {{.module = "index", .name = "take_rows_1"},
                                     {.module = "index", .name = "take_rows_4"},
                                     {.module = "index", .name = "take_rows_16"}};
static km_cuda_kernel gather[] = {{.module = "index", .name = "gather_1"},
                                  {.module = "index", .name = "gather_2"},
                                  {.module = "index", .name = "gather_4"},
                                  {.module = "index", .name = "gather_8"}};
static km_cuda_kernel scatter_lines = {.module = "index", .name = "scatter_lines"};
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
    return km_cuda_launch1(lane, &take_rows[slot], KM_DIM(km_cuda_ceil(threads, 256)), KM_DIM(256), 0,
                           a);
}

static int64_t product(km_shape s, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= s.dim[i];
    return n;
}

static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1];
    km_index_args a = {.x = km_tensor_ptr(table), .index = km_tensor_ptr(ids),
                       .out = km_tensor_ptr(c->out[0]), .outer = 1,
                       .items = km_shape_count(ids->shape), .wide = ids->dtype == KM_I64,
                       .axis = table->shape.dim[0], .limit = table->shape.dim[0]};
    a.bytes = table->shape.dim[1] * (int64_t)km_dtype_size(table->dtype);
    return launch_take(km_cuda_lane(c), &a);
}

static km_status run_index_select(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1];
    int axis = c->p->axis;
    km_index_args a = {.x = km_tensor_ptr(x), .index = km_tensor_ptr(index),
                       .out = km_tensor_ptr(c->out[0]), .outer = product(x->shape, 0, axis),
                       .items = index->shape.dim[0], .wide = index->dtype == KM_I64,
                       .axis = x->shape.dim[axis], .limit = x->shape.dim[axis]};
    a.bytes = product(x->shape, axis + 1, x->shape.ndim) * (int64_t)km_dtype_size(x->dtype);
    return launch_take(km_cuda_lane(c), &a);
}

/* gather and scatter_add: index's axes, and where they lie in x (contiguous). */
static km_index_args along(const km_call *c, const km_tensor *x, const km_tensor *index) {
    int axis = c->p->axis;
    km_index_args a = {.x = km_tensor_ptr(x), .index = km_tensor_ptr(index),
                       .out = km_tensor_ptr(c->out[0]), .items = km_shape_count(index->shape),
                       .limit = x->shape.dim[axis], .ndim = x->shape.ndim, .axis_at = axis,
                       .x_axis = x->stride[axis], .wide = index->dtype == KM_I64,
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
    return km_cuda_launch1(km_cuda_lane(c), &gather[slot], KM_DIM(km_cuda_ceil(a.items, 256)),
                           KM_DIM(256), 0, &a);
}

static km_status run_scatter_add(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_status s = km_cuda_copy(lane, x, c->out[0]);
    km_index_args a = along(c, x, c->in[1]);
    a.src = km_tensor_ptr(c->in[2]);
    if (s != KM_OK || a.items == 0) return s;
    int64_t lines = a.outer * a.inner * (slot ? a.limit : 1);
    return km_cuda_launch1(lane, slot ? &scatter_seek[slot - 1] : &scatter_lines,
                           KM_DIM(km_cuda_ceil(lines, 128)), KM_DIM(128), 0, &a);
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
    table[KM_OP_SCATTER_ADD] = run_scatter_add;
    table[KM_OP_CONCAT] = run_concat;
}
