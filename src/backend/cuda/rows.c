/* Softmax, log-softmax and their gradients on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/row_team.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_row_kernels softmax = KM_ROW_KERNELS("softmax", "softmax");
static km_row_kernels softmax_grad = KM_ROW_KERNELS("softmax", "softmax_grad");
static km_cuda_kernel wide[] = KM_CUDA_PER_TYPE("wide_rows", "wide_softmax");
static km_cuda_kernel columns[] = KM_CUDA_PER_TYPE("softmax", "softmax_columns");
static km_cuda_kernel grad_columns[] = KM_CUDA_PER_TYPE("softmax", "softmax_grad_columns");

static km_status run_softmax(km_ctx *ctx, const km_call *c) {
    bool back = c->n_in == 2;
    const km_tensor *x = c->in[back ? 1 : 0], *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    km_softmax_args a = {.x = km_tensor_ptr(x),
                         .dy = back ? km_tensor_ptr(c->in[0]) : NULL,
                         .out = km_tensor_ptr(out),
                         .rows = 1,
                         .inner = 1};
    a.log = c->op == KM_OP_LOG_SOFTMAX || c->op == KM_OP_LOG_SOFTMAX_GRAD;
    int64_t n = x->shape.ndim ? x->shape.dim[c->p->axis] : 1;
    if (slot < 0 || n > INT32_MAX) return KM_ERR_UNSUPPORTED;
    a.n = (int32_t)n;
    for (int i = 0; i < x->shape.ndim; i++) {
        if (i < c->p->axis) a.rows *= x->shape.dim[i];
        if (i > c->p->axis) a.inner *= x->shape.dim[i];
    }
    if (km_cuda_empty(x)) return KM_OK;
    if (a.inner > 1)
        return km_cuda_launch1(lane, back ? &grad_columns[slot] : &columns[slot],
                               KM_DIM(km_ceil_div(a.rows * a.inner, 256)), KM_DIM(256), 0, &a);
    size_t size = km_dtype_size(x->dtype);
    bool aligned =
        km_cuda_rows_aligned(c->in, c->n_in, n, size) && km_cuda_rows_aligned(c->out, 1, n, size);
    int blocks = back ? 0 : km_cuda_wide_blocks(lane, n, size, aligned, 0);
    if (blocks) return km_cuda_launch_wide(lane, &wide[slot], blocks, a.rows, n, size, 0, &a);
    return km_cuda_launch_rows(lane, back ? softmax_grad : softmax, slot, size, a.rows, a.n,
                               aligned, &a);
}

void km_cuda_register_rows(km_kernel *table) {
    table[KM_OP_SOFTMAX] = table[KM_OP_LOG_SOFTMAX] = run_softmax;
    table[KM_OP_SOFTMAX_GRAD] = table[KM_OP_LOG_SOFTMAX_GRAD] = run_softmax;
}
