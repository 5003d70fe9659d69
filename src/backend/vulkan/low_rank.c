/* What adapters (LoRA) add to a layer of a running model (shaders/low_rank.comp). */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

typedef struct low_rank_push {
    uint64_t y, x, mix, slot, a, b, low, o;
    uint32_t rows, n, outs, slots, ranks;
} low_rank_push;

/* y (rows, out), x (rows, in), mix (rows, slots), slot (ranks), a (ranks, in), b (ranks, out) -> out */
static km_status run_low_rank(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_vulkan_lane(c);
    int64_t rows = c->in[1]->shape.dim[0], n = c->in[1]->shape.dim[1],
            outs = c->in[0]->shape.dim[1];
    int64_t slots = c->in[2]->shape.dim[1], ranks = c->in[3]->shape.dim[0];
    size_t cap = 0;
    if (rows * n >= KM_VULKAN_MOST || rows * outs >= KM_VULKAN_MOST ||
        rows * slots >= KM_VULKAN_MOST || rows * ranks >= KM_VULKAN_MOST ||
        ranks * n >= KM_VULKAN_MOST || ranks * outs >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if (rows * outs == 0) return KM_OK;
    void *low = km_vulkan_scratch(lane, sizeof(float) * (size_t)(rows * ranks), &cap);
    if (!low) return ctx->error.code;
    low_rank_push push = {.y = km_vulkan_at(c->in[0]),
                          .x = km_vulkan_at(c->in[1]),
                          .mix = km_vulkan_at(c->in[2]),
                          .slot = km_vulkan_at(c->in[3]),
                          .a = km_vulkan_at(c->in[4]),
                          .b = km_vulkan_at(c->in[5]),
                          .low = (uintptr_t)low,
                          .o = km_vulkan_at(c->out[0]),
                          .rows = (uint32_t)rows,
                          .n = (uint32_t)n,
                          .outs = (uint32_t)outs,
                          .slots = (uint32_t)slots,
                          .ranks = (uint32_t)ranks};
    const uint32_t first[] = {false}, second[] = {true};
    km_status s = KM_OK;
    if (ranks > 0)
        s = km_vulkan_launch(lane, "low_rank", first, 1, &push, sizeof push,
                             km_groups_for(rows * ranks),
                             (double)(rows * ranks) * (double)(n + 500));
    if (s == KM_OK)
        s = km_vulkan_launch(lane, "low_rank", second, 1, &push, sizeof push,
                             km_groups_for(km_ceil_div(rows * outs, KM_VULKAN_THREADS)),
                             (double)(rows * outs) * (double)(4 * ranks + 8));
    km_vulkan_scratch_free(lane, low, cap);
    return s;
}

void km_vulkan_register_low_rank(km_kernel *table) { table[KM_OP_LOW_RANK] = run_low_rank; }
