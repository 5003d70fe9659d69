/* Choosing tokens (shaders/sample_*.comp): the largest of every 64 logits, then one workgroup a row
 * chooses; before both a copy of the logits, where there are penalties. */
#include "backend/sample.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define BLOCK 64                       /* logits to a peak, as in the shaders */
#define MOST_TOKENS (INT64_C(1) << 19) /* of a vocabulary: sums of more could overflow */

typedef struct sample_push {
    uint64_t logits, edited, settings, before, peaks, ids, after;
    uint32_t v, blocks;
} sample_push;

static km_status start(km_lane *lane, const sample_push *push, int64_t rows) {
    double all = (double)rows * push->v;
    km_status s = KM_OK;
    if (push->edited)
        s = km_vulkan_launch(lane, "sample_penalise", NULL, 0, push, sizeof *push,
                             KM_GROUPS(km_ceil_div(push->v, 4096), rows), all * 4);
    if (s == KM_OK)
        s = km_vulkan_launch(lane, "sample_peaks", NULL, 0, push, sizeof *push,
                             KM_GROUPS(km_ceil_div(push->blocks, 32), rows), all * 4);
    if (s == KM_OK)
        s = km_vulkan_launch(lane, "sample_pick", NULL, 0, push, sizeof *push, KM_GROUPS(rows),
                             all * 20);
    return s;
}

/* logits (rows, v), settings, state -> ids, state */
static km_status run_sample(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_vulkan_lane(c);
    int64_t rows = c->in[0]->shape.dim[0], v = c->in[0]->shape.dim[1];
    size_t cap = 0, edited_cap = 0;
    void *edited = NULL;
    if (c->n_in > 3) return KM_ERR_UNSUPPORTED; /* masks and biases */
    if (rows > 65535 || v > MOST_TOKENS || rows * v >= KM_VULKAN_MOST) return KM_ERR_UNSUPPORTED;
    if (rows == 0) return KM_OK;
    sample_push push = {.logits = km_vulkan_at(c->in[0]),
                        .settings = km_vulkan_at(c->in[1]),
                        .before = km_vulkan_at(c->in[2]),
                        .ids = km_vulkan_at(c->out[0]),
                        .after = km_vulkan_at(c->out[1]),
                        .v = (uint32_t)v,
                        .blocks = (uint32_t)km_ceil_div(v, BLOCK)};
    void *peaks = km_vulkan_scratch(lane, sizeof(float) * (size_t)(rows * push.blocks), &cap);
    if (peaks && c->p->n[KM_N_PENALTIES])
        edited = km_vulkan_scratch(lane, sizeof(float) * (size_t)(rows * v), &edited_cap);
    push.peaks = (uintptr_t)peaks;
    push.edited = (uintptr_t)edited;
    bool all = peaks && (edited || !c->p->n[KM_N_PENALTIES]);
    km_status s = all ? start(lane, &push, rows) : ctx->error.code;
    km_vulkan_scratch_free(lane, edited, edited_cap);
    km_vulkan_scratch_free(lane, peaks, cap);
    return s;
}

void km_vulkan_register_sample(km_kernel *table) { table[KM_OP_SAMPLE] = run_sample; }
