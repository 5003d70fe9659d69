/* layer_norm, rms_norm, their fused forms and gradients on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/on_host.h"
#include "backend/cuda/row_team.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_row_kernels norm = KM_ROW_KERNELS("norm", "norm");
static km_cuda_kernel wide[2][KM_CUDA_SLOTS] = {KM_CUDA_PER_TYPE("wide_rows", "wide_rms_norm"),
                                                KM_CUDA_PER_TYPE("wide_rows", "wide_layer_norm")};
#define WARP_GRAD(n)                                                                               \
    {                                                                                              \
        {.module = "norm_grad", .name = "norm_grad_f32_warp" #n},                                  \
            {.module = "norm_grad", .name = "norm_grad_f16_warp" #n}, {                            \
            .module = "norm_grad", .name = "norm_grad_bf16_warp" #n                                \
        }                                                                                          \
    }
/* By packs to a thread. */
static km_cuda_kernel grad_warp[KM_WARP_PACKS][KM_CUDA_SLOTS] = {WARP_GRAD(1), WARP_GRAD(2),
                                                                 WARP_GRAD(3), WARP_GRAD(4)};
static km_cuda_kernel grad_block[] = {{.module = "norm_grad", .name = "norm_grad_f32_block"},
                                      {.module = "norm_grad", .name = "norm_grad_f16_block"},
                                      {.module = "norm_grad", .name = "norm_grad_bf16_block"}};
static km_cuda_kernel grad_stream[] = {{.module = "norm_grad", .name = "norm_grad_f32_stream"},
                                       {.module = "norm_grad", .name = "norm_grad_f16_stream"},
                                       {.module = "norm_grad", .name = "norm_grad_bf16_stream"}};
static km_cuda_kernel grad_columns[] = KM_CUDA_PER_TYPE("norm_grad", "norm_grad_columns");
static km_cuda_kernel grad_finish[] = KM_CUDA_PER_TYPE("norm_grad", "norm_grad_finish");

static void *ptr(const km_tensor *t) { return t ? km_tensor_ptr(t) : NULL; }

static bool shape_of(const km_tensor *x, int64_t *rows, int32_t *n) {
    int64_t width = x->shape.dim[x->shape.ndim - 1];
    *rows = width ? km_shape_count(x->shape) / width : 0;
    *n = (int32_t)width;
    return km_cuda_slot(x->dtype) >= 0 && width <= INT32_MAX;
}

/* ---- A norm held back ---- */

km_status km_cuda_held_flush(km_lane *lane) {
    km_cuda_held_norm *held = &km_cuda_queue_of(lane)->held;
    if (!held->on) return KM_OK;
    held->on = false;
    km_norm_args a = held->a;
    bool sound = !km_failed(lane->ctx);
    km_status s = km_cuda_launch_rows(lane, norm, km_cuda_slot(KM_F32), 4, a.rows, a.n, true, &a);
    if (s == KM_OK || !sound) return s;
    km_params p = {.f = {[KM_F_EPS] = a.eps}};
    km_shape rows = KM_SHAPE(a.rows, a.n), row = KM_SHAPE(a.n), stats = KM_SHAPE(a.rows);
    bool fused = a.residual != NULL;
    const km_cuda_operand in[] = {
        {(void *)(uintptr_t)a.x, KM_F32, rows},
        {(void *)(uintptr_t)(fused ? a.residual : a.w), KM_F32, fused ? rows : row},
        {(void *)(uintptr_t)a.w, KM_F32, row}};
    const km_cuda_operand out[] = {{a.y, KM_F32, rows},
                                   {fused ? a.sum : a.rstd, KM_F32, fused ? rows : stats},
                                   {a.rstd, KM_F32, stats}};
    return km_cuda_on_host(lane, s, fused ? KM_OP_ADD_RMS_NORM : KM_OP_RMS_NORM, &p, in, 2 + fused,
                           out, 2 + fused);
}

static bool apart(const void *p, size_t p_bytes, const void *q, size_t q_bytes) {
    return !p || !q || (const char *)p + p_bytes <= (const char *)q ||
           (const char *)q + q_bytes <= (const char *)p;
}

bool km_cuda_held_take(km_lane *lane, const void *x, int64_t rows, int64_t n, km_norm_args *a) {
    km_cuda_held_norm *held = &km_cuda_queue_of(lane)->held;
    if (!held->on || held->a.y != x || held->a.rows != rows || held->a.n != n) return false;
    held->on = false;
    *a = held->a;
    return true;
}

bool km_cuda_held_apart(const km_lane *lane, const void *p, size_t bytes) {
    const km_cuda_held_norm *held = &km_cuda_queue_of(lane)->held;
    if (!held->on) return true;
    size_t size = (size_t)(held->a.rows * held->a.n) * sizeof(float);
    return apart(held->a.x, size, p, bytes) && apart(held->a.residual, size, p, bytes) &&
           apart(held->a.sum, size, p, bytes) && apart(held->a.y, size, p, bytes) &&
           apart(held->a.rstd, (size_t)held->a.rows * sizeof(float), p, bytes);
}

/* x, w, b? -> y, (mean,) rstd; or x, residual, w, b? -> y, sum, (mean,) rstd. */
static km_status run_norm(km_ctx *ctx, const km_call *c) {
    bool fused = c->op == KM_OP_ADD_LAYER_NORM || c->op == KM_OP_ADD_RMS_NORM;
    bool layer = c->op == KM_OP_LAYER_NORM || c->op == KM_OP_ADD_LAYER_NORM;
    const km_tensor *x = c->in[0];
    int w = fused ? 2 : 1, stats = fused ? 2 : 1;
    km_norm_args a = {.x = ptr(x),
                      .residual = fused ? ptr(c->in[1]) : NULL,
                      .w = ptr(c->in[w]),
                      .b = c->n_in > w + 1 ? ptr(c->in[w + 1]) : NULL,
                      .y = ptr(c->out[0]),
                      .sum = fused ? ptr(c->out[1]) : NULL,
                      .mean = layer ? ptr(c->out[stats]) : NULL,
                      .rstd = ptr(c->out[stats + layer]),
                      .eps = (float)c->p->f[KM_F_EPS]};
    if (!shape_of(x, &a.rows, &a.n)) return KM_ERR_UNSUPPORTED;
    size_t size = km_dtype_size(x->dtype);
    bool aligned = km_cuda_rows_aligned(c->in, c->n_in, a.n, size) &&
                   km_cuda_rows_aligned(c->out, fused ? 2 : 1, a.n, size);
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype), weights = a.b ? 2 : 1;
    int blocks = fused ? 0 : km_cuda_wide_blocks(lane, a.n, size, aligned, weights);
    if (!layer && !a.b && aligned && x->dtype == KM_F32 && a.rows > 0 &&
        a.rows <= (blocks ? KM_HELD_WIDE : KM_HELD_ROWS) && a.n % 128 == 0 &&
        !km_cuda_queue_of(lane)->chain.off) {
        km_cuda_stream(lane); /* what came before comes first */
        km_cuda_queue_of(lane)->held = (km_cuda_held_norm){true, a};
        return lane->ctx->error.code;
    }
    if (blocks)
        return km_cuda_launch_wide(lane, &wide[layer][slot], blocks, a.rows, a.n, size, weights,
                                   &a);
    return km_cuda_launch_rows(lane, norm, slot, size, a.rows, a.n, aligned, &a);
}

/* Blocks that walk over the rows while they carry dw and db: as many as the multiprocessors hold at
 * once, so that the parts to add up stay few. */
static int64_t parts_for(const km_lane *lane, int64_t rows, int rows_at_once, int held) {
    int64_t most = (int64_t)km_cuda_dev_of(lane)->sms * (rows_at_once > 1 ? held : 2);
    int64_t useful = km_ceil_div(rows, rows_at_once);
    return useful < most ? (useful > 0 ? useful : 1) : most;
}

static km_status run_norm_grad(km_ctx *ctx, const km_call *c) {
    bool layer = c->op == KM_OP_LAYER_NORM_GRAD;
    int extra = layer ? 5 : 4;
    const km_tensor *x = c->in[1];
    km_lane *lane = km_cuda_lane(c);
    km_norm_grad_args a = {.dy = ptr(c->in[0]),
                           .x = ptr(x),
                           .w = ptr(c->in[2]),
                           .dsum = c->n_in > extra ? ptr(c->in[extra]) : NULL,
                           .mean = layer ? ptr(c->in[3]) : NULL,
                           .rstd = ptr(c->in[layer ? 4 : 3]),
                           .dx = ptr(c->out[0]),
                           .dw = ptr(c->out[1]),
                           .db = layer ? ptr(c->out[2]) : NULL};
    if (!shape_of(x, &a.rows, &a.n)) return KM_ERR_UNSUPPORTED;
    if (a.n == 0) return KM_OK;
    int slot = km_cuda_slot(x->dtype);
    size_t size = km_dtype_size(x->dtype), cap;
    bool aligned = km_cuda_rows_aligned(c->in, 3, a.n, size) &&
                   km_cuda_rows_aligned(c->out, 1, a.n, size) &&
                   km_cuda_aligned(a.dsum ? a.dsum : a.dx, 16);
    int64_t packs = (int64_t)a.n * (int64_t)size / 16;
    bool warp = aligned && packs <= 32 * KM_WARP_PACKS;
    bool block = aligned && !warp && packs <= 512 * KM_BLOCK_PACKS;
    km_cuda_kernel *by_warp = warp ? &grad_warp[(packs + 31) / 32 - 1][slot] : NULL;
    unsigned shared = (unsigned)(2 * a.n * (int)sizeof(float));
    int held = warp ? km_cuda_occupancy(lane, by_warp, 32 * KM_WARP_ROWS, shared) : 2;
    a.parts = (int32_t)parts_for(lane, a.rows, warp ? KM_WARP_ROWS : 1, held);
    if (!warp && !block && a.parts > 128) a.parts = 128;
    a.partial = km_cuda_scratch(lane, (size_t)a.parts * 2 * (size_t)a.n * sizeof(float), &cap);
    if (!a.partial) return ctx->error.code;
    km_status s;
    if (warp) {
        s = km_cuda_launch1(lane, by_warp, KM_DIM(a.parts), KM_DIM(32 * KM_WARP_ROWS), shared, &a);
    } else if (block) {
        int64_t threads = km_ceil_div(km_ceil_div(packs, KM_BLOCK_PACKS), 32) * 32;
        s = km_cuda_launch1(lane, &grad_block[slot], KM_DIM(a.parts), KM_DIM(threads), 0, &a);
    } else {
        s = km_cuda_launch1(lane, &grad_stream[slot], KM_DIM(a.rows), KM_DIM(512), 0, &a);
        if (s == KM_OK)
            s = km_cuda_launch1(lane, &grad_columns[slot], KM_DIM(km_ceil_div(a.n, 32), a.parts),
                                KM_DIM(32, 8), 0, &a);
    }
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &grad_finish[slot], KM_DIM(km_ceil_div(a.n, KM_FINISH_COLUMNS)),
                            KM_DIM(KM_FINISH_COLUMNS, KM_FINISH_GROUPS), 0, &a);
    km_cuda_scratch_free(lane, a.partial, cap);
    return s;
}

void km_cuda_register_norm(km_kernel *table) {
    table[KM_OP_LAYER_NORM] = table[KM_OP_RMS_NORM] = run_norm;
    table[KM_OP_ADD_LAYER_NORM] = table[KM_OP_ADD_RMS_NORM] = run_norm;
    table[KM_OP_LAYER_NORM_GRAD] = table[KM_OP_RMS_NORM_GRAD] = run_norm_grad;
}
