/* Losses on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/row_team.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_row_kernels rows_kernel = KM_ROW_KERNELS("loss", "cross_entropy");
static km_cuda_kernel wide[] = KM_CUDA_PER_TYPE("wide_rows", "wide_cross_entropy");
static km_cuda_kernel count_rows = {.module = "loss", .name = "cross_entropy_count"};
static km_cuda_kernel finish_rows = {.module = "loss", .name = "cross_entropy_finish"};
static km_cuda_kernel rows_grad[2][KM_CUDA_SLOTS] = {
    KM_CUDA_PER_TYPE("loss", "cross_entropy_grad1"),
    KM_CUDA_PER_TYPE("loss", "cross_entropy_grad")};
static km_cuda_kernel pair[] = KM_CUDA_PER_TYPE("loss", "pair_loss");
static km_cuda_kernel pair_grad[] = KM_CUDA_PER_TYPE("loss", "pair_loss_grad");
static km_cuda_kernel finish_pair = {.module = "loss", .name = "pair_loss_finish"};

/* What both passes of cross_entropy say about their rows. */
static bool describe(km_loss_args *a, const km_tensor *logits, const km_tensor *targets,
                     const km_params *p) {
    a->x = km_tensor_ptr(logits);
    a->targets = km_tensor_ptr(targets);
    a->rows = logits->shape.dim[0];
    a->n = (int32_t)logits->shape.dim[1];
    a->ignore = p->n[KM_N_IGNORE];
    a->mean = p->n[KM_N_REDUCTION] == KM_MEAN;
    a->wide = targets->dtype == KM_I64;
    return km_cuda_slot(logits->dtype) >= 0 && logits->shape.dim[1] <= INT32_MAX;
}

/* logits, targets -> loss, lse, and dlogits when there are three outputs. */
static km_status run_cross_entropy(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    const km_tensor *x = c->in[0];
    km_loss_args a = {.loss = km_tensor_ptr(c->out[0]),
                      .lse = km_tensor_ptr(c->out[1]),
                      .dx = c->n_out > 2 ? km_tensor_ptr(c->out[2]) : NULL};
    if (!describe(&a, x, c->in[1], c->p)) return KM_ERR_UNSUPPORTED;
    size_t size = km_dtype_size(x->dtype), cap;
    float *scratch = km_cuda_scratch(lane, ((size_t)a.rows + 4) * sizeof(float), &cap);
    if (!scratch) return ctx->error.code;
    a.count = scratch;
    a.row_loss = scratch + 4;
    bool aligned = km_cuda_rows_aligned(c->in, 1, a.n, size) &&
                   (!a.dx || km_cuda_rows_aligned(c->out + 2, 1, a.n, size));
    int slot = km_cuda_slot(x->dtype), blocks = km_cuda_wide_blocks(lane, a.n, size, aligned, 0);
    km_status s = km_cuda_launch1(lane, &count_rows, KM_DIM(1), KM_DIM(1024), 0, &a);
    if (s == KM_OK && blocks)
        s = km_cuda_launch_wide(lane, &wide[slot], blocks, a.rows, a.n, size, 0, &a);
    else if (s == KM_OK)
        s = km_cuda_launch_rows(lane, rows_kernel, slot, size, a.rows, a.n, aligned, &a);
    if (s == KM_OK) s = km_cuda_launch1(lane, &finish_rows, KM_DIM(1), KM_DIM(1024), 0, &a);
    km_cuda_scratch_free(lane, scratch, cap);
    return s;
}

/* dloss, logits, targets, lse -> dlogits */
static km_status run_cross_entropy_grad(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    const km_tensor *x = c->in[1];
    km_loss_args a = {.dloss = km_tensor_ptr(c->in[0]),
                      .lse_in = km_tensor_ptr(c->in[3]),
                      .dx = km_tensor_ptr(c->out[0])};
    if (!describe(&a, x, c->in[2], c->p) || c->in[0]->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    if (a.rows == 0 || a.n == 0) return KM_OK;
    size_t cap;
    a.count = km_cuda_scratch(lane, 256, &cap);
    if (!a.count) return ctx->error.code;
    bool aligned = km_cuda_rows_aligned(c->in + 1, 1, a.n, km_dtype_size(x->dtype)) &&
                   km_cuda_rows_aligned(c->out, 1, a.n, km_dtype_size(x->dtype));
    km_status s = km_cuda_launch1(lane, &count_rows, KM_DIM(1), KM_DIM(1024), 0, &a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &rows_grad[aligned][km_cuda_slot(x->dtype)], KM_DIM(a.rows),
                            KM_DIM(a.n > 4096 ? 512 : 128), 0, &a);
    km_cuda_scratch_free(lane, a.count, cap);
    return s;
}

#define PARTS 528 /* blocks of a sum over all elements: four on each of 132 multiprocessors */

static km_status run_pair(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(c->in[0]->dtype);
    size_t cap;
    km_loss_args a = {.x = km_tensor_ptr(c->in[0]),
                      .targets = km_tensor_ptr(c->in[1]),
                      .loss = km_tensor_ptr(c->out[0]),
                      .total = km_shape_count(c->in[0]->shape),
                      .mean = c->p->n[KM_N_REDUCTION] == KM_MEAN,
                      .bce = c->op == KM_OP_BCE};
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    int64_t blocks = km_ceil_div(a.total, 4096);
    a.parts = (int32_t)(blocks < 1 ? 1 : blocks > PARTS ? PARTS : blocks);
    a.row_loss = km_cuda_scratch(lane, (size_t)a.parts * sizeof(float), &cap);
    if (!a.row_loss) return ctx->error.code;
    km_status s = km_cuda_launch1(lane, &pair[slot], KM_DIM(a.parts), KM_DIM(1024), 0, &a);
    if (s == KM_OK) s = km_cuda_launch1(lane, &finish_pair, KM_DIM(1), KM_DIM(1024), 0, &a);
    km_cuda_scratch_free(lane, a.row_loss, cap);
    return s;
}

static km_status run_pair_grad(km_ctx *ctx, const km_call *c) {
    int slot = km_cuda_slot(c->in[1]->dtype);
    km_loss_args a = {.dloss = km_tensor_ptr(c->in[0]),
                      .x = km_tensor_ptr(c->in[1]),
                      .targets = km_tensor_ptr(c->in[2]),
                      .dx = km_tensor_ptr(c->out[0]),
                      .total = km_shape_count(c->in[1]->shape),
                      .mean = c->p->n[KM_N_REDUCTION] == KM_MEAN,
                      .bce = c->op == KM_OP_BCE_GRAD};
    if (slot < 0 || c->in[0]->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    return km_cuda_launch1(km_cuda_lane(c), &pair_grad[slot], KM_DIM(km_ceil_div(a.total, 256)),
                           KM_DIM(256), 0, &a);
}

void km_cuda_register_loss(km_kernel *table) {
    table[KM_OP_CROSS_ENTROPY] = run_cross_entropy;
    table[KM_OP_CROSS_ENTROPY_GRAD] = run_cross_entropy_grad;
    table[KM_OP_MSE] = table[KM_OP_BCE] = run_pair;
    table[KM_OP_MSE_GRAD] = table[KM_OP_BCE_GRAD] = run_pair_grad;
}
