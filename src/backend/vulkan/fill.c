/* Numbers made from their index (shaders/fill.comp): arange, random fills and dropout, which draws the
 * same numbers as on every device; comparisons and choices (compare.comp). */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"
#include <math.h>

enum { ARANGE, UNIFORM, NORMAL, DROPOUT }; /* as in the shader */

typedef struct fill_push {
    uint64_t o, x, seed, stream;
    uint32_t n;
    int32_t start, step;
    float f0, f1;
} fill_push;

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

static km_status start_fill(const km_call *c, uint32_t op, fill_push *push) {
    const km_tensor *out = c->out[0];
    int64_t n = km_shape_count(out->shape);
    km_dtype d = out->dtype;
    push->o = km_vulkan_at(out);
    if (n >= KM_VULKAN_MOST || !km_is_contiguous(out) || push->o % 4) return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    push->n = (uint32_t)n;
    push->seed = c->p->seed;
    push->stream = c->p->stream;
    uint32_t spec[] = {op, (uint32_t)d};
    int64_t threads = d == KM_F16 || d == KM_BF16 ? km_ceil_div(n, 2) : n;
    return km_vulkan_launch(km_vulkan_lane(c), "fill", spec, 2, push, sizeof *push,
                            km_groups_for(km_ceil_div(threads, KM_VULKAN_THREADS)),
                            (double)n * (op == ARANGE ? 4 : 80));
}

/* Whole numbers that the dtype holds exactly; others are the CPU's. */
static km_status run_arange(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    double start = c->p->f[KM_F_START], step = c->p->f[KM_F_STEP];
    double last = start + step * (double)km_shape_count(out->shape);
    double most = out->dtype == KM_F32                           ? 0x1p24
                  : out->dtype == KM_I32 || out->dtype == KM_I64 ? 0x1p31 - 1
                                                                 : 0;
    (void)ctx;
    if (start != floor(start) || step != floor(step) || !(fabs(start) < most) ||
        !(fabs(step) < most) || !(fabs(last) < most))
        return KM_ERR_UNSUPPORTED;
    fill_push push = {.start = (int32_t)start, .step = (int32_t)step};
    return start_fill(c, ARANGE, &push);
}

static km_status run_random(km_ctx *ctx, const km_call *c) {
    const double *f = c->p->f;
    bool normal = c->op == KM_OP_NORMAL;
    fill_push push = {.f0 = (float)f[0], .f1 = (float)(normal ? f[1] : f[1] - f[0])};
    (void)ctx;
    if (!is_float(c->out[0]->dtype)) return KM_ERR_UNSUPPORTED;
    return start_fill(c, normal ? NORMAL : UNIFORM, &push);
}

static km_status run_dropout(km_ctx *ctx, const km_call *c) {
    double p = c->p->f[KM_F_DROP];
    /* An element lives when its number, a multiple of 2^-24, is p at least. */
    fill_push push = {.x = km_vulkan_at(c->in[0]),
                      .f0 = (float)(ceil(p * 0x1p24) * 0x1p-24),
                      .f1 = (float)(1 / (1 - p))};
    (void)ctx;
    if (!is_float(c->in[0]->dtype)) return KM_ERR_UNSUPPORTED;
    return start_fill(c, DROPOUT, &push);
}

/* ---- Comparisons and choices ---- */

static km_status run_compare(km_ctx *ctx, const km_call *c) {
    static const uint8_t code[KM_OP_COUNT] = {
        [KM_OP_EQ] = 0, [KM_OP_NE] = 1, [KM_OP_LT] = 2,    [KM_OP_LE] = 3,
        [KM_OP_GT] = 4, [KM_OP_GE] = 5, [KM_OP_WHERE] = 6, [KM_OP_MASKED_FILL] = 7};
    bool where = c->op == KM_OP_WHERE, masked = c->op == KM_OP_MASKED_FILL;
    const km_tensor *t[KM_ITER_MAX] = {c->out[0], c->in[0], c->in[1], where ? c->in[2] : NULL};
    km_dtype d = t[where ? 2 : 1]->dtype;
    km_lane *lane = km_vulkan_lane(c);
    km_vulkan_walk walk;
    km_iter it;
    struct {
        uint64_t o, a, b, c, walk;
        uint32_t n, bits[2];
    } push = {0};
    (void)ctx;
    if (!is_float(d) && d != KM_I32 && d != KM_I64 && d != KM_U8 && d != KM_I8 && d != KM_BOOL)
        return KM_ERR_UNSUPPORTED;
    if (!masked && c->in[where ? 2 : 1]->dtype != d) return KM_ERR_UNSUPPORTED;
    if (masked && !km_vulkan_bits(d, c->p->f[KM_F_VALUE], push.bits)) return KM_ERR_UNSUPPORTED;
    km_iter_init(&it, where ? 4 : 3, t);
    if (it.rows == 0) return KM_OK;
    if (!km_vulkan_walk_make(&walk, &it)) return KM_ERR_UNSUPPORTED;
    push.o = (uintptr_t)it.base[0];
    push.a = (uintptr_t)it.base[1];
    push.b = (uintptr_t)it.base[2];
    if (where) push.c = (uintptr_t)it.base[3];
    push.n = walk.n;
    push.walk = km_vulkan_words(lane, &walk, sizeof walk);
    if (!push.walk) return lane->ctx->error.code;
    uint32_t spec[] = {code[c->op], (uint32_t)d};
    return km_vulkan_launch(lane, "compare", spec, 2, &push, sizeof push,
                            km_groups_for(km_ceil_div(push.n, KM_VULKAN_THREADS)),
                            (double)push.n * 12);
}

void km_vulkan_register_fill(km_kernel *table) {
    table[KM_OP_ARANGE] = run_arange;
    table[KM_OP_UNIFORM] = table[KM_OP_NORMAL] = run_random;
    table[KM_OP_DROPOUT] = run_dropout;
    for (int op = KM_OP_EQ; op <= KM_OP_GE; op++) table[op] = run_compare;
    table[KM_OP_WHERE] = table[KM_OP_MASKED_FILL] = run_compare;
}
