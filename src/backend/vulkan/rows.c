/* Ops over rows: softmax, norms, reductions. A workgroup serves one row or result. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* ---- Rows that registers hold ---- */

typedef struct norm_push {
    uint64_t x, residual, w, b, y, sum, mean, rstd;
    uint32_t rows, n;
    float eps;
} norm_push;

/* Softmax (op 0, 1) and norms (2, 3) of long rows; KM_ERR_UNSUPPORTED: not of these. */
static km_status start_held(km_lane *lane, const norm_push *p, uint32_t op, km_dtype d, bool add) {
    const km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    uint64_t all = p->x | p->residual | p->w | p->b | p->y | p->sum;
    uint32_t threads = 128;
    if (p->n < 1024 || p->n % 4 || all % 16) return KM_ERR_UNSUPPORTED;
    while (threads < 1024 && threads * 4 * 4 < p->n) threads *= 2;
    uint32_t held = (uint32_t)km_ceil_div(p->n, threads * 4);
    if (threads > dev->most_threads || held > 13) return KM_ERR_UNSUPPORTED;
    uint32_t spec[] = {op, (uint32_t)d, add, p->b != 0, threads, held};
    return km_vulkan_launch(lane, "rows_held", spec, 6, p, sizeof *p, km_groups_for(p->rows),
                            (double)p->rows * (p->n * 8.0 + 500));
}

/* ---- Softmax ---- */

static km_status run_softmax(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    km_dtype d = x->dtype;
    struct {
        uint64_t x, y, o;
        uint32_t lines, n, inner;
    } push = {.x = km_vulkan_at(x),
              .y = c->n_in > 1 ? km_vulkan_at(c->in[1]) : 0,
              .o = km_vulkan_at(c->out[0])};
    int64_t count = km_shape_count(x->shape), n = x->shape.dim[c->p->axis], inner = 1;
    (void)ctx;
    if (!is_float(d) || count >= KM_VULKAN_MOST) return KM_ERR_UNSUPPORTED;
    if (count == 0) return KM_OK;
    for (int a = c->p->axis + 1; a < x->shape.ndim; a++) inner *= x->shape.dim[a];
    push.lines = (uint32_t)(count / n);
    push.n = (uint32_t)n;
    push.inner = (uint32_t)inner;
    if (inner == 1 && c->n_in == 1) {
        norm_push rows = {.x = push.x, .y = push.o, .rows = push.lines, .n = push.n};
        km_status s = start_held(km_vulkan_lane(c), &rows, c->op - KM_OP_SOFTMAX, d, false);
        if (s != KM_ERR_UNSUPPORTED) return s;
    }
    uint32_t spec[] = {(uint32_t)(c->op - KM_OP_SOFTMAX), (uint32_t)d};
    return km_vulkan_launch(km_vulkan_lane(c), "softmax", spec, 2, &push, sizeof push,
                            km_groups_for(push.lines), (double)count * 30 + push.lines * 500.0);
}

/* ---- Norms ---- */

static km_status start_norm(const km_call *c, const norm_push *at, bool rms, bool add) {
    const km_tensor *x = c->in[0];
    norm_push push = *at;
    int64_t count = km_shape_count(x->shape), n = x->shape.dim[x->shape.ndim - 1];
    if (!is_float(x->dtype) || c->in[1 + add]->dtype != x->dtype || count >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if (count == 0) return KM_ERR_UNSUPPORTED; /* rows of nothing still have a mean */
    push.rows = (uint32_t)(count / n);
    push.n = (uint32_t)n;
    push.eps = (float)c->p->f[KM_F_EPS];
    km_status s = start_held(km_vulkan_lane(c), &push, rms ? 3 : 2, x->dtype, add);
    if (s != KM_ERR_UNSUPPORTED) return s;
    uint32_t spec[] = {(uint32_t)x->dtype, rms, add, push.b != 0};
    return km_vulkan_launch(km_vulkan_lane(c), "norm", spec, 4, &push, sizeof push,
                            km_groups_for(push.rows), (double)count * 12 + push.rows * 500.0);
}

static uint64_t out_at(const km_call *c, int i) {
    return i < c->n_out ? km_vulkan_at(c->out[i]) : 0;
}
static uint64_t in_at(const km_call *c, int i) { return i < c->n_in ? km_vulkan_at(c->in[i]) : 0; }

static km_status run_norm(km_ctx *ctx, const km_call *c) {
    (void)ctx;
    bool rms = c->op == KM_OP_RMS_NORM;
    norm_push push = {.x = in_at(c, 0),
                      .w = in_at(c, 1),
                      .b = rms ? 0 : in_at(c, 2),
                      .y = out_at(c, 0),
                      .mean = rms ? 0 : out_at(c, 1),
                      .rstd = out_at(c, rms ? 1 : 2)};
    return start_norm(c, &push, rms, false);
}

static km_status run_add_norm(km_ctx *ctx, const km_call *c) {
    (void)ctx;
    bool rms = c->op == KM_OP_ADD_RMS_NORM;
    norm_push push = {.x = in_at(c, 0),
                      .residual = in_at(c, 1),
                      .w = in_at(c, 2),
                      .b = rms ? 0 : in_at(c, 3),
                      .y = out_at(c, 0),
                      .sum = out_at(c, 1),
                      .mean = rms ? 0 : out_at(c, 2),
                      .rstd = out_at(c, rms ? 2 : 3)};
    return start_norm(c, &push, rms, true);
}

/* ---- Reductions ---- */

static km_status run_reduce(km_ctx *ctx, const km_call *c) {
    static const uint32_t code[KM_OP_COUNT] = {
        [KM_OP_SUM] = 0,       [KM_OP_MEAN] = 1, [KM_OP_MAX] = 2,
        [KM_OP_LOGSUMEXP] = 3, [KM_OP_VAR] = 4,  [KM_OP_SUMSQ] = 5};
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_lane *lane = km_vulkan_lane(c);
    struct {
        uint64_t x, o, keep, gone;
        uint32_t outer, n;
        float correction;
    } push = {.x = km_vulkan_at(x),
              .o = km_vulkan_at(out),
              .correction = (float)c->p->n[KM_N_CORRECTION]};
    (void)ctx;
    if (!is_float(x->dtype) || !is_float(out->dtype)) return KM_ERR_UNSUPPORTED;
    if (km_shape_count(out->shape) == 0) return KM_OK;
    if (km_shape_count(x->shape) == 0 && c->op != KM_OP_SUM && c->op != KM_OP_SUMSQ)
        return KM_ERR_UNSUPPORTED;
    /* Two walks: over kept axes, of the result and the operand; over reduced ones, of the operand. */
    km_vulkan_walk keep = {.n = 1}, gone = {.n = 1};
    int64_t kept = 1, lost = 1, stride = 1;
    for (int a = 0; a < x->shape.ndim; a++) {
        int64_t d = x->shape.dim[a], far = x->stride[a] * d;
        if (far >= KM_VULKAN_MOST / 8 || far <= -KM_VULKAN_MOST / 8) return KM_ERR_UNSUPPORTED;
        km_vulkan_walk *w = c->p->axes >> a & 1 ? &gone : &keep;
        w->dim[w->ndim] = (uint32_t)d;
        w->stride[w == &keep ? 1 : 0][w->ndim++] = (int32_t)x->stride[a];
        *(w == &keep ? &kept : &lost) *= d;
        if (x->stride[a] < 0 && d > 0) keep.start[1] += (uint32_t)(-x->stride[a] * (d - 1));
    }
    for (int a = (int)keep.ndim - 1; a >= 0; a--) { /* the result is contiguous */
        keep.stride[0][a] = (int32_t)stride;
        stride *= keep.dim[a];
    }
    if (kept * lost >= KM_VULKAN_MOST) return KM_ERR_UNSUPPORTED;
    push.x -= keep.start[1] * km_dtype_size(x->dtype); /* the lowest element */
    push.outer = (uint32_t)kept;
    push.n = (uint32_t)lost;
    km_vulkan_walk both[2] = {keep, gone};
    push.keep = km_vulkan_words(lane, both, sizeof both);
    if (!push.keep) return lane->ctx->error.code;
    push.gone = push.keep + sizeof keep;
    uint32_t spec[] = {code[c->op], (uint32_t)x->dtype, (uint32_t)out->dtype};
    return km_vulkan_launch(lane, "reduce", spec, 3, &push, sizeof push, km_groups_for(kept),
                            (double)(kept * lost) * 12 + (double)kept * 500);
}

void km_vulkan_register_rows(km_kernel *table) {
    table[KM_OP_SOFTMAX] = table[KM_OP_LOG_SOFTMAX] = run_softmax;
    table[KM_OP_SOFTMAX_GRAD] = table[KM_OP_LOG_SOFTMAX_GRAD] = run_softmax;
    table[KM_OP_LAYER_NORM] = table[KM_OP_RMS_NORM] = run_norm;
    table[KM_OP_ADD_LAYER_NORM] = table[KM_OP_ADD_RMS_NORM] = run_add_norm;
    table[KM_OP_SUM] = table[KM_OP_MEAN] = table[KM_OP_MAX] = run_reduce;
    table[KM_OP_LOGSUMEXP] = table[KM_OP_VAR] = table[KM_OP_SUMSQ] = run_reduce;
}
