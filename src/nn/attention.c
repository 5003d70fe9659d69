/* Causal attention over heads that lie side by side in memory from the first product to the last,
 * (B, T, H, D), so that splitting and joining them are views. Rotation, norms of heads, windows and
 * soft caps are switched on by the layer's fields. A running model's rows, each with a place in a
 * cache, take one op for all of that. */
#include "nn/nn.h"
#include "ops/infer.h"
#include <math.h>

/* (B, T, H D) -> (B, H, T, D), a view. */
static km_tensor *split_heads(km_ctx *ctx, km_tensor *x, int heads, int64_t d) {
    km_tensor *parted =
        km_reshape(ctx, x, KM_SHAPE(km_tensor_dim(x, 0), km_tensor_dim(x, 1), heads, d));
    return km_permute(ctx, parted, (int[]){0, 2, 1, 3});
}

/* (B, H, T, D) -> (B, T, H D), a view of what attention leaves. */
static km_tensor *join_heads(km_ctx *ctx, km_tensor *x) {
    km_tensor *turned = km_permute(ctx, x, (int[]){0, 2, 1, 3});
    return km_reshape(ctx, turned,
                      KM_SHAPE(km_tensor_dim(turned, 0), km_tensor_dim(turned, 1), -1));
}

/* Each head of x (B, T, H D) normalised by itself. */
static km_tensor *norm_heads(km_ctx *ctx, const km_nn_norm *n, km_tensor *x, int heads, int64_t d) {
    km_shape s = km_tensor_shape(x);
    if (!n->w || km_failed(ctx)) return x;
    km_tensor *each = km_reshape(ctx, x, KM_SHAPE(s.dim[0], s.dim[1], heads, d));
    return km_reshape(ctx, km_nn_norm_forward(ctx, n, each), s);
}

/* The positions of T tokens' (token, head) rows, made for the occasion. */
static km_tensor *positions_of_rows(km_ctx *ctx, int64_t tokens, int heads) {
    km_tensor *each = km_unsqueeze(ctx, km_arange(ctx, KM_I32, tokens, 0, 1), 1);
    km_tensor *rows = km_contiguous(ctx, km_broadcast(ctx, each, KM_SHAPE(tokens, heads)));
    return km_reshape(ctx, rows, KM_SHAPE(tokens * heads));
}

/* x (B, n, D) with the first `dims` of each row multiplied by m. */
static km_tensor *magnify(km_ctx *ctx, km_tensor *x, int64_t dims, double m) {
    int64_t d = km_tensor_dim(x, 2);
    if (m <= 0 || m == 1 || km_failed(ctx)) return x;
    if (dims == 0 || dims == d) return km_mul_scalar(ctx, x, m);
    km_tensor *part[] = {km_mul_scalar(ctx, km_narrow(ctx, x, 2, 0, dims), m),
                         km_narrow(ctx, x, 2, dims, d - dims)};
    return km_concat(ctx, part, 2, 2);
}

/* Rotates each head of x (B, T, H D) by its token's position. The rows of a head are not together
 * in memory, so each (token, head) is a row of its own, and `rows` knows its position. */
static km_tensor *rotate(km_ctx *ctx, const km_nn_attention *a, km_tensor *x, int heads,
                         km_tensor *rows) {
    km_shape s = km_tensor_shape(x); /* (B, T, H D) */
    if (km_failed(ctx) || a->rope_base <= 0) return x;
    int64_t n = s.dim[1] * heads;
    km_tensor *flat = km_reshape(ctx, x, KM_SHAPE(s.dim[0], n, a->head_dim));
    km_tensor *at = rows ? km_narrow(ctx, rows, 0, 0, n) : positions_of_rows(ctx, s.dim[1], heads);
    km_tensor *turned =
        km_rope_divided(ctx, flat, at, a->rope_divisors, a->pairs, a->rope_base, a->rope_dims);
    return km_reshape(ctx, magnify(ctx, turned, a->rope_dims, a->rope_magnitude), s);
}

/* s (..., Tq, Tk) with -inf where a query may not look: at keys after it, or before its window. */
static km_tensor *hide(km_ctx *ctx, km_tensor *s, int64_t tq, int64_t tk, int64_t window) {
    km_tensor *query = km_unsqueeze(ctx, km_arange(ctx, KM_I32, tq, (double)(tk - tq), 1), 1);
    km_tensor *key = km_arange(ctx, KM_I32, tk, 0, 1);
    if (tq > 1) s = km_masked_fill(ctx, s, km_gt(ctx, key, query), -INFINITY);
    if (window <= 0 || tk <= window) return s;
    km_tensor *edge = km_unsqueeze(ctx, km_arange(ctx, KM_I32, tq, (double)(tk - tq - window), 1),
                                   1); /* query - window */
    return km_masked_fill(ctx, s, km_le(ctx, key, edge), -INFINITY);
}

/* Attention step by step, for what the fused op does not know. The heads that share a key stand in
 * an axis of their own, (B, Hkv, G, Tq, Tk), along which k and v are repeated by broadcasting. */
static km_tensor *attend_by_scores(km_ctx *ctx, const km_nn_attention *a, km_tensor *q,
                                   km_tensor *k, km_tensor *v, double scale) {
    km_shape s = km_tensor_shape(q); /* (B, H, Tq, D) */
    int64_t tq = s.dim[2], tk = km_tensor_dim(k, 2), groups = a->heads / a->kv_heads;
    if (km_failed(ctx)) return NULL;
    q = km_reshape(ctx, q, KM_SHAPE(s.dim[0], a->kv_heads, groups, tq, a->head_dim));
    k = km_transpose(ctx, km_unsqueeze(ctx, k, 2), 3, 4); /* (B, Hkv, 1, D, Tk) */
    km_tensor *scores = km_mul_scalar(ctx, km_matmul(ctx, q, k), scale);
    if (a->softcap > 0) {
        scores = km_tanh(ctx, km_mul_scalar(ctx, scores, 1 / a->softcap));
        scores = km_mul_scalar(ctx, scores, a->softcap);
    }
    scores = km_softmax(ctx, hide(ctx, scores, tq, tk, a->window), -1);
    return km_reshape(ctx, km_matmul(ctx, scores, km_unsqueeze(ctx, v, 2)), s);
}

static double scale_of(const km_nn_attention *a) {
    return a->scale > 0 ? a->scale : 1 / sqrt((double)a->head_dim);
}

/* q (B, H, T, D), k, v (B, Hkv, T, D) -> (B, H, T, D) */
static km_tensor *look(km_ctx *ctx, const km_nn_attention *a, km_tensor *q, km_tensor *k,
                       km_tensor *v) {
    bool cut = a->window > 0 && km_tensor_dim(k, 2) > a->window;
    if (a->softcap > 0 || cut) return attend_by_scores(ctx, a, q, k, v, scale_of(a));
    return km_attention(ctx, q, k, v, true, scale_of(a));
}

/* q, k, v (B, T, H D): attention among them. */
static km_tensor *attend(km_ctx *ctx, const km_nn_attention *a, km_tensor *q, km_tensor *k,
                         km_tensor *v) {
    q = norm_heads(ctx, &a->q_norm, q, a->heads, a->head_dim);
    k = norm_heads(ctx, &a->k_norm, k, a->kv_heads, a->head_dim);
    q = split_heads(ctx, rotate(ctx, a, q, a->heads, a->q_rows), a->heads, a->head_dim);
    k = split_heads(ctx, rotate(ctx, a, k, a->kv_heads, a->k_rows), a->kv_heads, a->head_dim);
    v = split_heads(ctx, v, a->kv_heads, a->head_dim);
    return join_heads(ctx, look(ctx, a, q, k, v));
}

/* q, k, v (rows, H D): attention over what the cache holds, they included. */
static km_tensor *attend_cached(km_ctx *ctx, const km_nn_attention *a, km_tensor *const qkv[3],
                                const km_nn_kv *kv, const km_nn_place *at) {
    km_attend_spec s = {.heads = a->heads,
                        .kv_heads = a->kv_heads,
                        .scale = scale_of(a),
                        .softcap = a->softcap,
                        .window = a->window,
                        .rope_base = a->rope_base,
                        .rope_dims = a->rope_dims,
                        .pairs = a->pairs,
                        .divisors = a->rope_divisors,
                        .rope_magnitude = a->rope_magnitude,
                        .q_norm = a->q_norm.w,
                        .k_norm = a->k_norm.w,
                        .eps = a->q_norm.eps};
    return km_attend(ctx, &s, qkv[0], qkv[1], qkv[2], kv->k, kv->v, at->rows, at->table);
}

/* The parts q, k, v of one product over the last axis. */
static void part(km_ctx *ctx, const km_nn_attention *a, km_tensor *both, km_tensor *qkv[3]) {
    int64_t nq = a->heads * a->head_dim, nk = a->kv_heads * a->head_dim;
    qkv[0] = km_narrow(ctx, both, -1, 0, nq);
    qkv[1] = km_narrow(ctx, both, -1, nq, nk);
    qkv[2] = km_narrow(ctx, both, -1, nq + nk, nk);
}

/* q, k and v of x, as one product or three. */
static void project(km_ctx *ctx, const km_nn_attention *a, km_tensor *x, const km_nn_kv *kv,
                    const km_nn_place *at, km_tensor *qkv[3]) {
    const km_nn_linear *l[3] = {&a->q, &a->k, &a->v};
    bool corrected = a->q.lora.a || a->k.lora.a || a->v.lora.a;
    if (a->qkv.w) {
        part(ctx, a, km_nn_linear_run(ctx, &a->qkv, x, KM_ACT_NONE, at), qkv);
    } else if (kv && !corrected) {
        km_tensor *w[] = {a->q.w, a->k.w, a->v.w}, *b[] = {a->q.b, a->k.b, a->v.b};
        km_linears(ctx, x, w, b, 3, qkv);
        for (int i = 0; i < 3; i++) qkv[i] = km_nn_adapted(ctx, l[i], x, qkv[i], at);
    } else {
        for (int i = 0; i < 3; i++) qkv[i] = km_nn_linear_run(ctx, l[i], x, KM_ACT_NONE, at);
    }
}

km_tensor *km_nn_last(km_ctx *ctx, const km_nn_place *at, km_tensor *x) {
    if (!at || !at->last || km_failed(ctx) || x->shape.dim[0] == at->last) return x;
    return km_narrow(ctx, x, 0, x->shape.dim[0] - at->last, at->last);
}

km_tensor *km_nn_attention_forward(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                   const km_nn_kv *kv, const km_nn_place *at) {
    km_tensor *qkv[3] = {NULL, NULL, NULL}, *y;
    bool plain = a->rope_base <= 0 && a->softcap <= 0 && a->window <= 0 && !a->q_norm.w;
    if (!kv && plain && a->qkv.w) { /* nothing is copied on the way */
        km_tensor *both = km_nn_linear_run(ctx, &a->qkv, x, KM_ACT_NONE, at);
        y = km_attention_qkv(ctx, both, a->heads, a->kv_heads, true, a->scale);
    } else {
        project(ctx, a, x, kv, at, qkv);
        y = kv ? km_nn_last(ctx, at, attend_cached(ctx, a, qkv, kv, at))
               : attend(ctx, a, qkv[0], qkv[1], qkv[2]);
    }
    return km_nn_linear_run(ctx, &a->proj, y, KM_ACT_NONE, at);
}
