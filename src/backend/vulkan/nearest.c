/* Vector quantisation: the nearest centre of each row (shaders/nearest.comp), and sums over the rows of
 * each cell (cell_sums.comp), which are sorted by cell first so that sums have an order. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define ROWS 32 /* of a workgroup, as in shaders/gaps.glsl */

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* x (n, d), c (k, d) -> id (n), dist (n); differences are taken as they are, so that no notes on x help. */
static km_status run_nearest(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *centres = c->in[1];
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = centres->shape.dim[0];
    struct {
        uint64_t x, centres, ids, dists;
        uint32_t n, k, d;
    } push = {.x = km_vulkan_at(x),
              .centres = km_vulkan_at(centres),
              .ids = km_vulkan_at(c->out[0]),
              .dists = km_vulkan_at(c->out[1]),
              .n = (uint32_t)n,
              .k = (uint32_t)k,
              .d = (uint32_t)d};
    (void)ctx;
    if (!is_float(x->dtype) || centres->dtype != KM_F32 || n * d >= KM_VULKAN_MOST ||
        k * d >= KM_VULKAN_MOST || n >= KM_VULKAN_MOST || x->storage->drop)
        return KM_ERR_UNSUPPORTED;
    uint32_t spec[] = {(uint32_t)x->dtype};
    return km_vulkan_launch(km_vulkan_lane(c), "nearest", spec, 1, &push, sizeof push,
                            km_groups_for(km_ceil_div(n, ROWS)),
                            (double)km_round_up(n, ROWS) * (double)(k + 64) * (double)(d + 8));
}

enum { COUNT, START, PLACE, SUM }; /* as in the shader */

typedef struct cells_push {
    uint64_t x, ids, weights, dists, counts, begins, list, sum, mass, number, spread;
    uint32_t n, d, k, parts, part;
} cells_push;

/* x (n, d), id (n), weight? (n), dist? (n) -> sum (k, d), mass, count, spread (k) */
static km_status run_cell_sums(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *weights = c->n_in > 2 ? c->in[2] : NULL,
                    *dists = c->n_in > 3 ? c->in[3] : NULL;
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = c->p->n[KM_N_CELLS];
    int64_t part = km_max64(1024, km_ceil_div(n, 64)), parts = km_max64(1, km_ceil_div(n, part));
    km_lane *lane = km_vulkan_lane(c);
    if (!is_float(x->dtype) || n * d >= KM_VULKAN_MOST || k * d >= KM_VULKAN_MOST ||
        k * parts >= KM_VULKAN_MOST || n >= KM_VULKAN_MOST || x->storage->drop ||
        (weights && weights->dtype != KM_F32) || (dists && dists->dtype != KM_F32))
        return KM_ERR_UNSUPPORTED;
    if (k == 0) return KM_OK;
    km_tensor *counts = km_tensor_new(ctx, lane, "cell_sums", KM_I32, KM_SHAPE(k * parts));
    km_tensor *begins = km_tensor_new(ctx, lane, "cell_sums", KM_I32, KM_SHAPE(k + 1));
    km_tensor *list = km_tensor_new(ctx, lane, "cell_sums", KM_I32, KM_SHAPE(n + 1));
    if (!counts || !begins || !list) return ctx->error.code;
    km_params zero = {.dtype = KM_I32};
    km_call fill = {.op = KM_OP_FULL, .n_out = 1, .out = &counts, .p = &zero};
    km_status s = km_vulkan_backend()->kernel[KM_OP_FULL](ctx, &fill);
    cells_push push = {.x = km_vulkan_at(x),
                       .ids = km_vulkan_at(c->in[1]),
                       .weights = km_vulkan_at(weights),
                       .dists = km_vulkan_at(dists),
                       .counts = km_vulkan_at(counts),
                       .begins = km_vulkan_at(begins),
                       .list = km_vulkan_at(list),
                       .sum = km_vulkan_at(c->out[0]),
                       .mass = km_vulkan_at(c->out[1]),
                       .number = km_vulkan_at(c->out[2]),
                       .spread = km_vulkan_at(c->out[3]),
                       .n = (uint32_t)n,
                       .d = (uint32_t)d,
                       .k = (uint32_t)k,
                       .parts = (uint32_t)parts,
                       .part = (uint32_t)part};
    const double work[] = {(double)n * 4, (double)(k * parts) * 4, (double)n * 400,
                           (double)n * (double)(d + 4) * 8 + (double)k * 500};
    for (uint32_t step = COUNT; step <= SUM && s == KM_OK; step++) {
        km_groups g = step == START ? KM_GROUPS(1) : km_groups_for(step == SUM ? k : parts);
        if (step == SUM) g.z = (uint32_t)km_max64(1, km_ceil_div(d, KM_VULKAN_THREADS));
        uint32_t spec[] = {step, (uint32_t)x->dtype};
        s = km_vulkan_launch(lane, "cell_sums", spec, 2, &push, sizeof push, g, work[step]);
    }
    return s;
}

void km_vulkan_register_nearest(km_kernel *table) {
    table[KM_OP_NEAREST] = run_nearest;
    table[KM_OP_CELL_SUMS] = run_cell_sums;
}
