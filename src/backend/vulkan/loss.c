/* Losses: cross entropy in three dispatches (shaders/cross_entropy.comp): how many rows count, each row,
 * the total; and those of two tensors (pair_loss.comp). */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

enum { COUNT, ROWS, TOTAL, SLOPE }; /* as in the shader */

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }
static bool aligned(const km_tensor *t) { return !t || km_vulkan_at(t) % 4 == 0; }

typedef struct entropy_push {
    uint64_t logits, targets, numbers, losses, lse, dlogits, loss;
    uint32_t rows, v, ignored, mean;
} entropy_push;

static km_status start(km_lane *lane, uint32_t step, km_dtype kind, km_dtype targets,
                       const entropy_push *push) {
    uint32_t spec[] = {step, (uint32_t)kind, (uint32_t)targets};
    bool by_row = step == ROWS || step == SLOPE;
    double work =
        by_row ? (double)push->rows * (500 + (push->dlogits ? 50.0 : 25.0) * push->v) : push->rows;
    return km_vulkan_launch(lane, "cross_entropy", spec, 3, push, sizeof *push,
                            by_row ? km_groups_for(push->rows) : KM_GROUPS(1), work);
}

static bool entropy_fits(const km_tensor *logits, const km_tensor *targets,
                         const km_tensor *dlogits) {
    return is_float(logits->dtype) && (targets->dtype == KM_I32 || targets->dtype == KM_I64) &&
           km_shape_count(logits->shape) < KM_VULKAN_MOST &&
           logits->shape.dim[0] < KM_VULKAN_MOST && aligned(dlogits);
}

static entropy_push entropy_of(const km_call *c, const km_tensor *logits,
                               const km_tensor *targets) {
    int64_t v = logits->shape.dim[1], ignore = c->p->n[KM_N_IGNORE];
    return (entropy_push){.logits = km_vulkan_at(logits),
                          .targets = km_vulkan_at(targets),
                          .rows = (uint32_t)logits->shape.dim[0],
                          .v = (uint32_t)v,
                          .ignored = (uint32_t)(ignore >= 0 && ignore < v ? ignore : v),
                          .mean = c->p->n[KM_N_REDUCTION] == KM_MEAN};
}

/* logits, targets -> loss, lse, dlogits? */
static km_status run_cross_entropy(km_ctx *ctx, const km_call *c) {
    const km_tensor *logits = c->in[0], *targets = c->in[1];
    const km_tensor *dlogits = c->n_out > 2 ? c->out[2] : NULL;
    km_lane *lane = km_vulkan_lane(c);
    if (!entropy_fits(logits, targets, dlogits)) return KM_ERR_UNSUPPORTED;
    entropy_push push = entropy_of(c, logits, targets);
    km_tensor *room =
        km_tensor_new(ctx, lane, "cross_entropy", KM_F32, KM_SHAPE((int64_t)push.rows + 1));
    if (!room) return ctx->error.code;
    push.numbers = km_vulkan_at(room);
    push.losses = push.numbers + sizeof(float);
    push.loss = km_vulkan_at(c->out[0]);
    push.lse = km_vulkan_at(c->out[1]);
    push.dlogits = km_vulkan_at(dlogits);
    for (uint32_t step = COUNT; step <= TOTAL; step++) {
        km_status s = start(lane, step, logits->dtype, targets->dtype, &push);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

/* dloss, logits, targets, lse -> dlogits */
static km_status run_cross_entropy_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *logits = c->in[1], *targets = c->in[2], *dlogits = c->out[0];
    km_lane *lane = km_vulkan_lane(c);
    if (!entropy_fits(logits, targets, dlogits) || c->in[0]->dtype != KM_F32)
        return KM_ERR_UNSUPPORTED;
    entropy_push push = entropy_of(c, logits, targets);
    km_tensor *room = km_tensor_new(ctx, lane, "cross_entropy_grad", KM_F32, KM_SHAPE(1));
    if (!room) return ctx->error.code;
    push.numbers = km_vulkan_at(room);
    push.loss = km_vulkan_at(c->in[0]);
    push.lse = km_vulkan_at(c->in[3]);
    push.dlogits = km_vulkan_at(dlogits);
    km_status s = start(lane, COUNT, logits->dtype, targets->dtype, &push);
    return s == KM_OK ? start(lane, SLOPE, logits->dtype, targets->dtype, &push) : s;
}

/* ---- Losses of two tensors ---- */

#define PART 16384 /* elements to a partial sum, as in the shader */

static km_status run_pair_loss(km_ctx *ctx, const km_call *c) {
    bool back = c->op == KM_OP_MSE_GRAD || c->op == KM_OP_BCE_GRAD;
    bool bce = c->op == KM_OP_BCE || c->op == KM_OP_BCE_GRAD;
    const km_tensor *x = c->in[back], *target = c->in[back + 1];
    km_lane *lane = km_vulkan_lane(c);
    int64_t n = km_shape_count(x->shape), parts = km_max64(1, km_ceil_div(n, PART));
    km_tensor *sums = c->out[0];
    if (!is_float(x->dtype) || target->dtype != x->dtype || n >= KM_VULKAN_MOST ||
        !aligned(c->out[0]) || (back && c->in[0]->dtype != KM_F32))
        return KM_ERR_UNSUPPORTED;
    if (n == 0) return back ? KM_OK : KM_ERR_UNSUPPORTED; /* the mean over nothing */
    if (!back && parts > 1) sums = km_tensor_new(ctx, lane, "loss", KM_F32, KM_SHAPE(parts));
    if (!sums) return ctx->error.code;
    struct {
        uint64_t x, target, parts, dloss;
        uint32_t n;
        float by;
    } push = {.x = km_vulkan_at(x),
              .target = km_vulkan_at(target),
              .parts = km_vulkan_at(sums),
              .dloss = back ? km_vulkan_at(c->in[0]) : 0,
              .n = (uint32_t)n,
              .by = c->p->n[KM_N_REDUCTION] == KM_SUM ? 1 : (float)(1 / (double)n)};
    uint32_t spec[] = {bce, (uint32_t)x->dtype, back};
    int64_t groups =
        back ? km_ceil_div(x->dtype == KM_F32 ? n : km_ceil_div(n, 2), KM_VULKAN_THREADS) : parts;
    km_status s = km_vulkan_launch(lane, "pair_loss", spec, 3, &push, sizeof push,
                                   km_groups_for(groups), (double)n * 30);
    if (s != KM_OK || back || parts == 1) return s;
    km_params all = {.axes = 1};
    km_call sum = {.op = KM_OP_SUM, .n_in = 1, .n_out = 1, .in = &sums, .out = c->out, .p = &all};
    return km_vulkan_backend()->kernel[KM_OP_SUM](ctx, &sum);
}

void km_vulkan_register_loss(km_kernel *table) {
    table[KM_OP_CROSS_ENTROPY] = run_cross_entropy;
    table[KM_OP_CROSS_ENTROPY_GRAD] = run_cross_entropy_grad;
    table[KM_OP_MSE] = table[KM_OP_BCE] = run_pair_loss;
    table[KM_OP_MSE_GRAD] = table[KM_OP_BCE_GRAD] = run_pair_loss;
}
