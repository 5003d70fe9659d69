/* Choosing tokens on the GPU: two launches, three with penalties. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/rows/sample_args.h"
#include "backend/cuda/launch.h"

static km_cuda_kernel penalise = {.module = "sample", .name = "sample_penalise", .waits = true};
static km_cuda_kernel peaks = {.module = "sample", .name = "sample_peaks", .waits = true};
static km_cuda_kernel pick = {.module = "sample", .name = "sample_pick", .waits = true};

static km_status run_sample(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    int64_t rows = c->in[0]->shape.dim[0], v = c->in[0]->shape.dim[1];
    if (rows == 0) return KM_OK;
    if (rows > 65535) return KM_ERR_UNSUPPORTED;
    km_sample_args a = {.logits = km_tensor_ptr(c->in[0]),
                        .settings = km_tensor_ptr(c->in[1]),
                        .before = km_tensor_ptr(c->in[2]),
                        .ids = km_tensor_ptr(c->out[0]),
                        .after = km_tensor_ptr(c->out[1]),
                        .v = (int32_t)v,
                        .blocks = (int32_t)((v + KM_SAMPLE_BLOCK - 1) / KM_SAMPLE_BLOCK)};
    size_t cap = 0, edited_cap = 0;
    km_status s = KM_OK;
    a.peaks = km_cuda_scratch(lane, sizeof *a.peaks * (size_t)(rows * a.blocks), &cap);
    if (!a.peaks) return ctx->error.code;
    if (c->p->n[KM_N_PENALTIES]) {
        a.edited = km_cuda_scratch(lane, sizeof *a.edited * (size_t)(rows * v), &edited_cap);
        s = a.edited ? km_cuda_launch1(lane, &penalise, KM_DIM((v + 4095) / 4096, rows),
                                       KM_DIM(256), 0, &a)
                     : ctx->error.code;
    }
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &peaks, KM_DIM((a.blocks + 7) / 8, rows), KM_DIM(256), 0, &a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &pick, KM_DIM(rows), KM_DIM(KM_SAMPLE_THREADS), 0, &a);
    if (a.edited) km_cuda_scratch_free(lane, a.edited, edited_cap);
    km_cuda_scratch_free(lane, a.peaks, cap);
    return s;
}

void km_cuda_register_sample(km_kernel *table) { table[KM_OP_SAMPLE] = run_sample; }
