/* Products of f32, f16 and bf16 matrices (shaders/matmul.comp): matmul, linear with bias and activation,
 * and the gradients of linear layers, put together as on other devices. */
#include "backend/compose.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

typedef struct matmul_push {
    uint64_t a, b, o, bias, pre, batch;
    uint32_t m, n, k;
    uint32_t a_row, a_col, b_row, b_col, o_row;
    float alpha, beta;
    uint32_t act;
} matmul_push;

#define TILE 64

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* Elements from the first to the last in memory. */
static bool reachable(const km_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->shape.ndim; i++) {
        if (t->stride[i] < 0) return false;
        n += (t->shape.dim[i] - 1) * t->stride[i];
    }
    return n < KM_VULKAN_MOST;
}

static km_status start(km_lane *lane, km_dtype d, const matmul_push *push, int64_t batch) {
    uint32_t spec[] = {(uint32_t)d};
    double work = (double)batch * (double)km_round_up(push->m, TILE) *
                  (double)km_round_up(push->n, TILE) * (push->k + 16.0);
    return km_vulkan_launch(
        lane, "matmul", spec, 1, push, sizeof *push,
        KM_GROUPS(km_ceil_div(push->n, TILE), km_ceil_div(push->m, TILE), batch), work);
}

static km_status run_matmul(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1], *o = c->out[0];
    km_lane *lane = km_vulkan_lane(c);
    int r = o->shape.ndim - 2, nb = r;
    int64_t batch = 1, k = a->shape.dim[r + 1];
    uint32_t words[12] = {1, 1, 1};
    (void)ctx;
    if (!is_float(a->dtype) || b->dtype != a->dtype || o->dtype != a->dtype || nb > 3)
        return KM_ERR_UNSUPPORTED;
    if (!reachable(a) || !reachable(b) || !reachable(o)) return KM_ERR_UNSUPPORTED;
    if (km_shape_count(o->shape) == 0) return KM_OK;
    if (o->stride[r + 1] != 1 && o->shape.dim[r + 1] > 1) return KM_ERR_UNSUPPORTED;
    for (int i = 0; i < nb; i++) {
        int at = 3 - nb + i;
        words[at] = (uint32_t)o->shape.dim[i];
        words[3 + at] = (uint32_t)a->stride[i];
        words[6 + at] = (uint32_t)b->stride[i];
        words[9 + at] = (uint32_t)o->stride[i];
        batch *= o->shape.dim[i];
    }
    if (batch > 65535) return KM_ERR_UNSUPPORTED;
    matmul_push push = {.a = km_vulkan_at(a),
                        .b = km_vulkan_at(b),
                        .o = km_vulkan_at(o),
                        .m = (uint32_t)o->shape.dim[r],
                        .n = (uint32_t)o->shape.dim[r + 1],
                        .k = (uint32_t)k,
                        .a_row = (uint32_t)a->stride[r],
                        .a_col = (uint32_t)a->stride[r + 1],
                        .b_row = (uint32_t)b->stride[r],
                        .b_col = (uint32_t)b->stride[r + 1],
                        .o_row = (uint32_t)o->stride[r],
                        .alpha = (float)c->p->f[KM_F_ALPHA],
                        .beta = (float)c->p->f[KM_F_BETA]};
    if (batch > 1 && !(push.batch = km_vulkan_words(lane, words, sizeof words)))
        return lane->ctx->error.code;
    return start(lane, a->dtype, &push, batch);
}

/* x (rows, in), w (out, in), b? (out) -> y, pre? (rows, out) */
static km_status run_linear(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *w = c->in[1], *b = c->n_in > 2 ? c->in[2] : NULL,
                    *y = c->out[0];
    const km_tensor *pre = c->n_out > 1 ? c->out[1] : NULL;
    (void)ctx;
    if (!is_float(x->dtype) || w->dtype != x->dtype || (b && b->dtype != x->dtype) ||
        y->dtype != x->dtype || x->shape.ndim != 2)
        return KM_ERR_UNSUPPORTED;
    if (!reachable(x) || !reachable(w) || !reachable(y)) return KM_ERR_UNSUPPORTED;
    if (km_shape_count(y->shape) == 0) return KM_OK;
    if (!km_is_contiguous(y) || (b && !km_is_contiguous(b))) return KM_ERR_UNSUPPORTED;
    matmul_push push = {.a = km_vulkan_at(x),
                        .b = km_vulkan_at(w),
                        .o = km_vulkan_at(y),
                        .bias = km_vulkan_at(b),
                        .pre = km_vulkan_at(pre),
                        .m = (uint32_t)x->shape.dim[0],
                        .n = (uint32_t)w->shape.dim[0],
                        .k = (uint32_t)x->shape.dim[1],
                        .a_row = (uint32_t)x->stride[0],
                        .a_col = (uint32_t)x->stride[1],
                        .b_row = (uint32_t)w->stride[1],
                        .b_col = (uint32_t)w->stride[0],
                        .o_row = (uint32_t)y->stride[0],
                        .alpha = 1,
                        .act = (uint32_t)c->p->act};
    return start(km_vulkan_lane(c), x->dtype, &push, 1);
}

void km_vulkan_register_matmul(km_kernel *table) {
    table[KM_OP_MATMUL] = run_matmul;
    table[KM_OP_LINEAR] = run_linear;
    table[KM_OP_LINEAR_DX] = km_compose_linear_dx;
    table[KM_OP_LINEAR_DW] = km_compose_linear_dw;
}
