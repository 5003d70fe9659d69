/* Attention, MLP and the transformer block made of them. Heads lie side by side in memory from the
 * first product to the last, (B, T, H, D), so that splitting and joining them are views. */
#include "nn/nn.h"

/* ---- Attention ---- */

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

/* Rotates each head of x (B, T, H D) by its token's position. The rows of a head are not together
 * in memory, so each (token, head) is a row of its own, and `rows` knows its position. */
static km_tensor *rotate(km_ctx *ctx, const km_nn_attention *a, km_tensor *x, int heads,
                         km_tensor *rows, int64_t position) {
    km_shape s = km_tensor_shape(x); /* (B, T, H D) */
    if (km_failed(ctx)) return NULL;
    int64_t n = s.dim[1] * heads;
    km_tensor *flat = km_reshape(ctx, x, KM_SHAPE(s.dim[0], n, a->head_dim));
    km_tensor *at = km_narrow(ctx, rows, 0, position * heads, n);
    return km_reshape(ctx, km_rope(ctx, flat, at, KM_ROPE_HALVES, a->rope_base, 0), s);
}

/* Puts x (B, Hkv, T, D) into the cache at `position`; all of the cache up to there and with it. */
static km_tensor *remember(km_ctx *ctx, km_tensor *cache, km_tensor *x, int64_t position) {
    int64_t t = km_tensor_dim(x, 2);
    if (km_failed(ctx)) return NULL;
    km_assign(ctx, km_narrow(ctx, cache, 2, position, t), x);
    return km_narrow(ctx, cache, 2, 0, position + t);
}

/* q, k, v (B, T, H D): attention over them, or over what the cache holds. */
static km_tensor *attend(km_ctx *ctx, const km_nn_attention *a, km_tensor *q, km_tensor *k,
                         km_tensor *v, const km_nn_kv *kv, int64_t position) {
    q = split_heads(ctx, q, a->heads, a->head_dim);
    k = split_heads(ctx, k, a->kv_heads, a->head_dim);
    v = split_heads(ctx, v, a->kv_heads, a->head_dim);
    if (kv) {
        k = remember(ctx, kv->k, k, position);
        v = remember(ctx, kv->v, v, position);
    }
    return join_heads(ctx, km_attention(ctx, q, k, v, true, 0));
}

/* One product for all three, and nothing copied on the way to attention. */
static km_tensor *attend_together(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                  const km_nn_kv *kv, int64_t position) {
    km_tensor *qkv = km_nn_linear_forward(ctx, &a->qkv, x, KM_ACT_NONE); /* (B, T, (H + 2Hkv) D) */
    if (!kv) return km_attention_qkv(ctx, qkv, a->heads, a->kv_heads, true, 0);
    int64_t nq = a->heads * a->head_dim, nk = a->kv_heads * a->head_dim;
    return attend(ctx, a, km_narrow(ctx, qkv, 2, 0, nq), km_narrow(ctx, qkv, 2, nq, nk),
                  km_narrow(ctx, qkv, 2, nq + nk, nk), kv, position);
}

static km_tensor *attend_apart(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                               const km_nn_kv *kv, int64_t position) {
    km_tensor *q = km_nn_linear_forward(ctx, &a->q, x, KM_ACT_NONE);
    km_tensor *k = km_nn_linear_forward(ctx, &a->k, x, KM_ACT_NONE);
    km_tensor *v = km_nn_linear_forward(ctx, &a->v, x, KM_ACT_NONE);
    if (a->rope_base > 0) {
        q = rotate(ctx, a, q, a->heads, a->q_rows, position);
        k = rotate(ctx, a, k, a->kv_heads, a->k_rows, position);
    }
    return attend(ctx, a, q, k, v, kv, position);
}

km_tensor *km_nn_attention_forward(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                   const km_nn_kv *kv, int64_t position) {
    km_tensor *y =
        a->qkv.w ? attend_together(ctx, a, x, kv, position) : attend_apart(ctx, a, x, kv, position);
    return km_nn_linear_forward(ctx, &a->proj, y, KM_ACT_NONE);
}

/* ---- MLP ---- */

km_tensor *km_nn_mlp_forward(km_ctx *ctx, const km_nn_mlp *m, km_tensor *x) {
    if (!m->gate.w) {
        if (!m->up.lora.a && !m->down.lora.a)
            return km_mlp(ctx, x, m->up.w, m->up.b, KM_ACT_GELU, m->down.w, m->down.b);
        km_tensor *h = km_nn_linear_forward(ctx, &m->up, x, KM_ACT_GELU);
        return km_nn_linear_forward(ctx, &m->down, h, KM_ACT_NONE);
    }
    km_tensor *gate = km_nn_linear_forward(ctx, &m->gate, x, KM_ACT_SILU);
    km_tensor *up = km_nn_linear_forward(ctx, &m->up, x, KM_ACT_NONE);
    return km_nn_linear_forward(ctx, &m->down, km_mul(ctx, gate, up), KM_ACT_NONE);
}

/* ---- Block ---- */

km_tensor *km_nn_block_forward(km_ctx *ctx, const km_nn_block *b, km_tensor *delta,
                               km_tensor **residual, const km_nn_kv *kv, int64_t position,
                               double dropout) {
    if (km_failed(ctx)) return NULL;
    int mark = ctx->n_step;
    km_tensor *x = *residual;
    km_tensor *h =
        delta ? km_nn_norm_add(ctx, &b->norm1, delta, &x) : km_nn_norm_forward(ctx, &b->norm1, x);
    h = km_nn_attention_forward(ctx, &b->attention, h, kv, position);
    h = km_nn_norm_add(ctx, &b->norm2, km_nn_dropout(ctx, h, dropout), &x);
    h = km_nn_dropout(ctx, km_nn_mlp_forward(ctx, &b->mlp, h), dropout);
    if (km_failed(ctx)) return NULL;
    km_step_drop(ctx, mark, (km_tensor *[]){h, x}, 2); /* the rest is the tape's, or nobody's */
    *residual = x;
    return h;
}

int km_nn_block_linears(km_nn_block *b, km_nn_linear *out[KM_NN_BLOCK_LINEARS]) {
    km_nn_attention *a = &b->attention;
    km_nn_linear *all[] = {&a->qkv,  &a->q,        &a->k,      &a->v,
                           &a->proj, &b->mlp.gate, &b->mlp.up, &b->mlp.down};
    int n = 0;
    for (int i = 0; i < KM_NN_BLOCK_LINEARS; i++)
        if (all[i]->w) out[n++] = all[i];
    return n;
}

bool km_nn_block_trains(const km_nn_block *b) {
    km_nn_block look = *b;
    km_nn_linear *l[KM_NN_BLOCK_LINEARS];
    int n = km_nn_block_linears(&look, l);
    bool any = km_requires_grad(b->norm1.w) || km_requires_grad(b->norm1.b) ||
               km_requires_grad(b->norm2.w) || km_requires_grad(b->norm2.b);
    for (int i = 0; i < n; i++)
        any |= km_requires_grad(l[i]->w) || km_requires_grad(l[i]->b) ||
               km_requires_grad(l[i]->lora.a) || km_requires_grad(l[i]->lora.b);
    return any;
}
