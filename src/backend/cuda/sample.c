/* Choosing tokens on the GPU: two launches, three where logits are edited first; and telling how likely
 * tokens are. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/rows/sample_args.h"
#include "backend/cuda/launch.h"

static km_cuda_kernel edit = {.module = "sample", .name = "sample_edit", .waits = true};
static km_cuda_kernel peaks = {.module = "sample", .name = "sample_peaks", .waits = true};
static km_cuda_kernel pick = {.module = "sample", .name = "sample_pick", .waits = true};
static km_cuda_kernel tell = {.module = "logprobs", .name = "logprobs", .waits = true};

/* Masks and biases, where there are any. */
static void add_tables(const km_call *c, km_sample_args *a) {
    const km_tensor *masks = c->n_in > 3 ? c->in[3] : NULL, *biases = c->n_in > 4 ? c->in[4] : NULL;
    if (masks) {
        a->masks = km_tensor_ptr(masks);
        a->n_masks = (int32_t)masks->shape.dim[0];
        a->words = (int32_t)masks->shape.dim[1];
    }
    if (biases) {
        a->biases = km_tensor_ptr(biases);
        a->n_biases = (int32_t)biases->shape.dim[0];
    }
    a->penalties = c->p->n[KM_N_PENALTIES] != 0;
}

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
    add_tables(c, &a);
    a.peaks = km_cuda_scratch(lane, sizeof *a.peaks * (size_t)(rows * a.blocks), &cap);
    if (!a.peaks) return ctx->error.code;
    if (a.penalties || a.masks || a.biases) {
        a.edited = km_cuda_scratch(lane, sizeof *a.edited * (size_t)(rows * v), &edited_cap);
        s = a.edited
                ? km_cuda_launch1(lane, &edit, KM_DIM((v + 4095) / 4096, rows), KM_DIM(256), 0, &a)
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

static km_status run_logprobs(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    int64_t n = c->in[1]->shape.dim[0], v = c->in[0]->shape.dim[1], tokens = c->p->n[KM_N_TOKENS];
    if (n == 0) return KM_OK;
    if (n > INT32_MAX) return KM_ERR_UNSUPPORTED;
    if (tokens < 1 || tokens > v) tokens = v;
    km_logprobs_args a = {.logits = km_tensor_ptr(c->in[0]),
                          .which = km_tensor_ptr(c->in[1]),
                          .out = km_tensor_ptr(c->out[0]),
                          .ids = km_tensor_ptr(c->out[1]),
                          .rows = (int32_t)c->in[0]->shape.dim[0],
                          .v = (int32_t)v,
                          .tokens = (int32_t)tokens,
                          .top = (int32_t)c->p->n[KM_N_TOP],
                          .blocks = (int32_t)((tokens + KM_SAMPLE_BLOCK - 1) / KM_SAMPLE_BLOCK)};
    size_t cap = 0;
    a.peaks = km_cuda_scratch(lane, sizeof *a.peaks * (size_t)(n * a.blocks), &cap);
    if (!a.peaks) return ctx->error.code;
    km_status s = km_cuda_launch1(lane, &tell, KM_DIM(n), KM_DIM(KM_SAMPLE_THREADS), 0, &a);
    km_cuda_scratch_free(lane, a.peaks, cap);
    return s;
}

void km_cuda_register_sample(km_kernel *table) {
    table[KM_OP_SAMPLE] = run_sample;
    table[KM_OP_LOGPROBS] = run_logprobs;
}
