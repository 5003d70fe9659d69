/* Attention of training (shaders/attention.comp), its gradient in two dispatches (attention_dq.comp, then
 * attention_dkv.comp), and rotary positions (rope.comp). Heads of up to 256. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"
#include <math.h>

#define MOST_DIMS 256
#define ROWS 16 /* of a workgroup, as in the shaders */
#define DEEP 32

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

typedef struct attention_push {
    uint64_t q, k, v, o, grad, lse, delta, dq, dk, dv, strides;
    uint32_t heads, kv_heads, tq, tk, d, causal, parts;
    float scale;
} attention_push;

enum { Q, K, V, O, GRAD, DQ, DK, DV, OPERANDS }; /* as in the shader */

typedef struct attention_call {
    const km_tensor *t[OPERANDS]; /* those that are there */
    attention_push push;
    uint32_t batch;
} attention_call;

/* Shapes and strides that the shaders take: 1 along D, and no element beyond their reach. */
static bool describe(attention_call *a, const km_call *c) {
    const km_tensor *q = a->t[Q], *k = a->t[K];
    for (int i = 0; i < OPERANDS; i++) {
        const km_tensor *t = a->t[i];
        int64_t reach = 0;
        if (!t) continue;
        if (t->dtype != q->dtype || (t->stride[3] != 1 && t->shape.dim[3] > 1)) return false;
        for (int axis = 0; axis < 4; axis++) {
            if (t->stride[axis] < 0) return false;
            reach += (t->shape.dim[axis] - 1) * t->stride[axis];
        }
        if (reach >= KM_VULKAN_MOST) return false;
    }
    if (!is_float(q->dtype) || q->shape.dim[3] > MOST_DIMS || q->shape.dim[0] > 65535 ||
        q->shape.dim[1] > 65535 || km_shape_count(q->shape) >= KM_VULKAN_MOST)
        return false;
    a->batch = (uint32_t)q->shape.dim[0];
    a->push = (attention_push){.q = km_vulkan_at(q),
                               .k = km_vulkan_at(k),
                               .v = km_vulkan_at(a->t[V]),
                               .o = km_vulkan_at(a->t[O]),
                               .grad = km_vulkan_at(a->t[GRAD]),
                               .dq = km_vulkan_at(a->t[DQ]),
                               .dk = km_vulkan_at(a->t[DK]),
                               .dv = km_vulkan_at(a->t[DV]),
                               .heads = (uint32_t)q->shape.dim[1],
                               .kv_heads = (uint32_t)k->shape.dim[1],
                               .tq = (uint32_t)q->shape.dim[2],
                               .tk = (uint32_t)k->shape.dim[2],
                               .d = (uint32_t)q->shape.dim[3],
                               .causal = c->p->causal,
                               .scale = (float)c->p->f[KM_F_SCALE]};
    return true;
}

/* products: how many of q k^T's size are made. */
static km_status start(km_lane *lane, const char *shader, attention_call *a, bool by_key,
                       int products) {
    uint32_t strides[OPERANDS][3] = {{0}};
    attention_push *p = &a->push;
    for (int i = 0; i < OPERANDS; i++)
        for (int axis = 0; axis < 3 && a->t[i]; axis++)
            strides[i][axis] = (uint32_t)a->t[i]->stride[axis];
    p->strides = km_vulkan_words(lane, strides, sizeof strides);
    if (!p->strides) return lane->ctx->error.code;
    uint32_t chunks = p->d > 64 ? 4 : 2; /* few shaders to compile, and few registers in each */
    p->parts = (uint32_t)km_max64(1, km_ceil_div(p->d, chunks * DEEP));
    uint32_t spec[] = {(uint32_t)a->t[Q]->dtype, chunks};
    double work = (double)a->batch * p->heads * (double)km_round_up(p->tq, ROWS) *
                  (double)km_round_up(p->tk, 2 * ROWS) * (km_round_up(p->d, DEEP) + 8.0) *
                  products * p->parts;
    if (p->causal && p->tq > ROWS) work /= 2;
    return km_vulkan_launch(lane, shader, spec, 2, p, sizeof *p,
                            KM_GROUPS(km_ceil_div(by_key ? p->tk : p->tq, ROWS) * p->parts,
                                      by_key ? p->kv_heads : p->heads, a->batch),
                            work);
}

/* q, k, v -> o, lse */
static km_status run_attention(km_ctx *ctx, const km_call *c) {
    attention_call a = {.t = {[Q] = c->in[0], [K] = c->in[1], [V] = c->in[2], [O] = c->out[0]}};
    (void)ctx;
    if (c->n_out < 2 || !describe(&a, c)) return KM_ERR_UNSUPPORTED;
    a.push.lse = km_vulkan_at(c->out[1]);
    return start(km_vulkan_lane(c), "attention", &a, false, 2);
}

/* do, q, k, v, o, lse -> dq, dk, dv */
static km_status run_attention_grad(km_ctx *ctx, const km_call *c) {
    attention_call a = {.t = {[Q] = c->in[1],
                              [K] = c->in[2],
                              [V] = c->in[3],
                              [O] = c->in[4],
                              [GRAD] = c->in[0],
                              [DQ] = c->out[0],
                              [DK] = c->out[1],
                              [DV] = c->out[2]}};
    km_lane *lane = km_vulkan_lane(c);
    if (!describe(&a, c) || c->in[5]->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    km_tensor *delta = km_tensor_new(ctx, lane, "attention_grad", KM_F32, c->in[5]->shape);
    if (!delta) return ctx->error.code;
    a.push.lse = km_vulkan_at(c->in[5]);
    a.push.delta = km_vulkan_at(delta);
    km_status s = start(lane, "attention_dq", &a, false, 3);
    return s == KM_OK ? start(lane, "attention_dkv", &a, true, 4) : s;
}

/* ---- Rotary positions ---- */

typedef struct rope_push {
    uint64_t x, positions, divisors, turns, o;
    uint32_t n, time, d, dims, adjacent;
    float direction;
} rope_push;

/* x (batch..., T, d), positions? (T), divisors? -> out */
static km_status run_rope(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *positions = c->n_in > 1 ? c->in[1] : NULL;
    const km_tensor *divisors = c->n_in > 2 ? c->in[2] : NULL;
    int64_t n = km_shape_count(x->shape), dims = c->p->n[KM_N_ROPE_DIMS];
    km_lane *lane = km_vulkan_lane(c);
    float turns[MOST_DIMS / 2][2]; /* of pair i in one step of position, in two parts */
    (void)ctx;
    rope_push push = {.x = km_vulkan_at(x),
                      .positions = km_vulkan_at(positions),
                      .divisors = km_vulkan_at(divisors),
                      .o = km_vulkan_at(c->out[0]),
                      .n = (uint32_t)n,
                      .time = (uint32_t)x->shape.dim[x->shape.ndim - 2],
                      .d = (uint32_t)x->shape.dim[x->shape.ndim - 1],
                      .dims = (uint32_t)dims,
                      .adjacent = c->p->n[KM_N_ROPE_PAIRS] == KM_ROPE_ADJACENT,
                      .direction = c->p->n[KM_N_ROPE_INVERSE] ? -1 : 1};
    if (!is_float(x->dtype) || n >= KM_VULKAN_MOST || dims > MOST_DIMS || push.o % 4)
        return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    for (int64_t p = 0; p < dims / 2; p++) {
        double t =
            pow(c->p->f[KM_F_ROPE_BASE], -2.0 * (double)p / (double)dims) / 6.283185307179586;
        turns[p][0] = (float)t;
        turns[p][1] = (float)(t - (double)turns[p][0]);
    }
    push.turns = km_vulkan_words(lane, turns, sizeof turns);
    if (!push.turns) return lane->ctx->error.code;
    uint32_t spec[] = {(uint32_t)x->dtype, positions ? (uint32_t)positions->dtype : KM_I32};
    int64_t threads = x->dtype == KM_F32 ? n : km_ceil_div(n, 2);
    return km_vulkan_launch(lane, "rope", spec, 2, &push, sizeof push,
                            km_groups_for(km_ceil_div(threads, KM_VULKAN_THREADS)), (double)n * 60);
}

void km_vulkan_register_attention(km_kernel *table) {
    table[KM_OP_ATTENTION] = run_attention;
    table[KM_OP_ATTENTION_GRAD] = run_attention_grad;
    table[KM_OP_ROPE] = run_rope;
}
