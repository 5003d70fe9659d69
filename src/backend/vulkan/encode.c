/* Encoding of residuals: levels (shaders/encode_levels.comp), a workgroup to a row; trellises
 * (encode_trellis.comp), some rows at a time, since each needs room for its search. */
#include "backend/trellis.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define ROOM_WORDS (INT64_C(1) << 24) /* of all rows that are searched at once */
#define BACK_WORDS 512                /* of a column, as in the shader */

static bool fits(const km_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (km_shape_count(c->in[i]->shape) >= KM_VULKAN_MOST || c->in[i]->storage->drop)
            return false;
    return km_shape_count(c->out[0]->shape) < KM_VULKAN_MOST;
}

static km_status run_levels(km_ctx *ctx, const km_call *c) {
    int64_t n = c->in[0]->shape.dim[0], d = c->in[0]->shape.dim[1];
    struct {
        uint64_t z, squares, bits, at, amps, tables, codes;
        uint32_t n, d, bytes;
        float dim, low, step;
    } push = {.z = km_vulkan_at(c->in[0]),
              .squares = km_vulkan_at(c->in[1]),
              .bits = km_vulkan_at(c->in[2]),
              .at = km_vulkan_at(c->in[3]),
              .amps = km_vulkan_at(c->in[4]),
              .tables = km_vulkan_at(c->in[5]),
              .codes = km_vulkan_at(c->out[0]),
              .n = (uint32_t)n,
              .d = (uint32_t)d,
              .bytes = (uint32_t)c->p->n[KM_N_CODE_BYTES],
              .dim = (float)c->p->n[KM_N_DIM],
              .low = (float)c->p->f[KM_F_LOW],
              .step = (float)c->p->f[KM_F_SCALE_STEP]};
    (void)ctx;
    if (!fits(c)) return KM_ERR_UNSUPPORTED;
    return km_vulkan_launch(km_vulkan_lane(c), "encode_levels", NULL, 0, &push, sizeof push,
                            km_groups_for(n), (double)n * (2000 + (double)d * 60));
}

static km_status run_trellis(km_ctx *ctx, const km_call *c) {
    enum { Z, SQUARE, AMP, RATE, CLASSES, WATER, TABLES };
    int64_t n = c->in[Z]->shape.dim[0], most = c->p->n[KM_N_MOST];
    int64_t each = 2 * KM_TRELLIS_STATES + most * BACK_WORDS;
    int64_t at_once = km_clamp64(ROOM_WORDS / each, 1, km_max64(1, n));
    km_lane *lane = km_vulkan_lane(c);
    if (!fits(c) || each >= KM_VULKAN_MOST) return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    km_tensor *room = km_tensor_new(ctx, lane, "encode_trellis", KM_F32, KM_SHAPE(at_once * each));
    if (!room) return ctx->error.code;
    struct {
        uint64_t z, squares, amps, rates, classes, water, tables, codes, room;
        uint32_t first, n, width, bytes, n_classes, class_bits, each;
        float dim, low, step;
    } push = {.z = km_vulkan_at(c->in[Z]),
              .squares = km_vulkan_at(c->in[SQUARE]),
              .amps = km_vulkan_at(c->in[AMP]),
              .rates = km_vulkan_at(c->in[RATE]),
              .classes = km_vulkan_at(c->in[CLASSES]),
              .water = km_vulkan_at(c->in[WATER]),
              .tables = km_vulkan_at(c->in[TABLES]),
              .codes = km_vulkan_at(c->out[0]),
              .room = km_vulkan_at(room),
              .width = (uint32_t)c->in[Z]->shape.dim[1],
              .bytes = (uint32_t)c->p->n[KM_N_CODE_BYTES],
              .n_classes = (uint32_t)c->in[WATER]->shape.dim[0],
              .class_bits = (uint32_t)c->p->n[KM_N_CLASS_BITS],
              .each = (uint32_t)each,
              .dim = (float)c->p->n[KM_N_DIM],
              .low = (float)c->p->f[KM_F_LOW],
              .step = (float)c->p->f[KM_F_SCALE_STEP]};
    km_status s = KM_OK;
    for (int64_t i = 0; i < n && s == KM_OK; i += at_once) {
        push.first = (uint32_t)i;
        push.n = (uint32_t)km_min64(at_once, n - i);
        /* A path is searched three times about; one of a short ring eighteen. A row of groups is what a
         * submission cannot be cut below, so few go into one. */
        km_groups g = push.n <= 8 ? KM_GROUPS(push.n) : KM_GROUPS(8, km_ceil_div(push.n, 8));
        s = km_vulkan_launch(lane, "encode_trellis", NULL, 0, &push, sizeof push, g,
                             (double)push.n * (double)most * KM_TRELLIS_STATES * 30);
    }
    return s;
}

void km_vulkan_register_encode(km_kernel *table) {
    table[KM_OP_ENCODE_LEVELS] = run_levels;
    table[KM_OP_ENCODE_TRELLIS] = run_trellis;
}
