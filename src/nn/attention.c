/* Causal attention over heads that lie side by side in memory from the first product to the last,
 * (B, T, H, D), so that splitting and joining them are views. Rotation, norms of heads, windows and
 * soft caps are switched on by the layer's fields. */
#include "nn/nn.h"
#include "ops/rope.h"
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

/* Rotates each head of x (B, T, H D) by its token's position. The rows of a head are not together
 * in memory, so each (token, head) is a row of its own, and `rows` knows its position. */
static km_tensor *rotate(km_ctx *ctx, const km_nn_attention *a, km_tensor *x, int heads,
                         km_tensor *rows, int64_t position) {
    km_shape s = km_tensor_shape(x); /* (B, T, H D) */
    if (km_failed(ctx) || a->rope_base <= 0) return x;
    int64_t n = s.dim[1] * heads;
    km_tensor *flat = km_reshape(ctx, x, KM_SHAPE(s.dim[0], n, a->head_dim));
    km_tensor *at = km_narrow(ctx, rows, 0, position * heads, n);
    km_tensor *turned =
        km_rope_divided(ctx, flat, at, a->rope_divisors, a->pairs, a->rope_base, a->rope_dims);
    return km_reshape(ctx, turned, s);
}

/* Puts x (B, Hkv, T, D) into the cache at `position`; all of the cache up to there and with it. */
static km_tensor *remember(km_ctx *ctx, km_tensor *cache, km_tensor *x, int64_t position) {
    int64_t t = km_tensor_dim(x, 2);
    if (km_failed(ctx)) return NULL;
    km_assign(ctx, km_narrow(ctx, cache, 2, position, t), x);
    return km_narrow(ctx, cache, 2, 0, position + t);
}

/* s (..., Tq, Tk) with -inf where a query may not look: at keys after it, or before its window. */
static km_tensor *hide(km_ctx *ctx, km_tensor *s, int64_t tq, int64_t tk, int64_t window) {
    km_tensor *query = km_unsqueeze(ctx, km_arange(ctx, KM_I32, tq, (double)(tk - tq), 1), 1);
    km_tensor *key = km_arange(ctx, KM_I32, tk, 0, 1);
    if (tq > 1) s = km_masked_fill(ctx, s, km_gt(ctx, key, query), -INFINITY);
    if (window <= 0 || tk <= window) return s;
    km_tensor *edge = km_unsqueeze(
        ctx, km_arange(ctx, KM_I32, tq, (double)(tk - tq - window), 1), 1); /* query - window */
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

/* q (B, H, Tq, D), k, v (B, Hkv, Tk, D) -> (B, H, Tq, D) */
static km_tensor *look(km_ctx *ctx, const km_nn_attention *a, km_tensor *q, km_tensor *k,
                       km_tensor *v) {
    int64_t tq = km_tensor_dim(q, 2), tk = km_tensor_dim(k, 2);
    bool cut = a->window > 0 && tk > a->window;
    double scale = a->scale > 0 ? a->scale : 1 / sqrt((double)a->head_dim);
    if (a->softcap > 0 || (cut && tq > 1)) return attend_by_scores(ctx, a, q, k, v, scale);
    if (cut) { /* one query: the window is the end of the keys */
        k = km_narrow(ctx, k, 2, tk - a->window, a->window);
        v = km_narrow(ctx, v, 2, tk - a->window, a->window);
    }
    return km_attention(ctx, q, k, v, true, scale);
}

/* q, k, v (B, T, H D): attention over them, or over what the cache holds. */
static km_tensor *attend(km_ctx *ctx, const km_nn_attention *a, km_tensor *q, km_tensor *k,
                         km_tensor *v, const km_nn_kv *kv, int64_t position) {
    q = norm_heads(ctx, &a->q_norm, q, a->heads, a->head_dim);
    k = norm_heads(ctx, &a->k_norm, k, a->kv_heads, a->head_dim);
    q = split_heads(ctx, rotate(ctx, a, q, a->heads, a->q_rows, position), a->heads, a->head_dim);
    k = split_heads(ctx, rotate(ctx, a, k, a->kv_heads, a->k_rows, position), a->kv_heads,
                    a->head_dim);
    v = split_heads(ctx, v, a->kv_heads, a->head_dim);
    if (kv) {
        k = remember(ctx, kv->k, k, position);
        v = remember(ctx, kv->v, v, position);
    }
    return join_heads(ctx, look(ctx, a, q, k, v));
}

/* One product for all three, and where nothing else is asked for nothing copied on the way. */
static km_tensor *attend_together(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                  const km_nn_kv *kv, int64_t position) {
    km_tensor *qkv = km_nn_linear_forward(ctx, &a->qkv, x, KM_ACT_NONE); /* (B, T, (H + 2Hkv) D) */
    bool plain = a->rope_base <= 0 && a->softcap <= 0 && a->window <= 0 && !a->q_norm.w;
    if (!kv && plain) return km_attention_qkv(ctx, qkv, a->heads, a->kv_heads, true, a->scale);
    int64_t nq = a->heads * a->head_dim, nk = a->kv_heads * a->head_dim;
    return attend(ctx, a, km_narrow(ctx, qkv, 2, 0, nq), km_narrow(ctx, qkv, 2, nq, nk),
                  km_narrow(ctx, qkv, 2, nq + nk, nk), kv, position);
}

static km_tensor *attend_apart(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                               const km_nn_kv *kv, int64_t position) {
    km_tensor *q = km_nn_linear_forward(ctx, &a->q, x, KM_ACT_NONE);
    km_tensor *k = km_nn_linear_forward(ctx, &a->k, x, KM_ACT_NONE);
    km_tensor *v = km_nn_linear_forward(ctx, &a->v, x, KM_ACT_NONE);
    return attend(ctx, a, q, k, v, kv, position);
}

km_tensor *km_nn_attention_forward(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                   const km_nn_kv *kv, int64_t position) {
    km_tensor *y =
        a->qkv.w ? attend_together(ctx, a, x, kv, position) : attend_apart(ctx, a, x, kv, position);
    return km_nn_linear_forward(ctx, &a->proj, y, KM_ACT_NONE);
}
