/* The MLP, and the transformer block made of it and of attention. */
#include "nn/nn.h"
#include "ops/infer.h"
#include "ops/op.h"

/* ---- MLP ---- */

static km_tensor *activate(km_ctx *ctx, km_tensor *x, km_act act) {
    return act == KM_ACT_GELU ? km_gelu(ctx, x) : km_silu(ctx, x);
}

/* gate and up from one product */
static km_tensor *joined_forward(km_ctx *ctx, const km_nn_mlp *m, km_tensor *x,
                                 const km_nn_place *at) {
    km_tensor *both[2] = {NULL, NULL};
    km_split(ctx, km_nn_linear_run(ctx, &m->up, x, KM_ACT_NONE, at), -1, 2, both);
    km_tensor *h = km_mul(ctx, activate(ctx, both[0], m->act), both[1]);
    return km_nn_linear_run(ctx, &m->down, h, KM_ACT_NONE, at);
}

/* Whether gate and up can be one op: rows of a running model, and no corrections. */
static bool gated_at_once(km_ctx *ctx, const km_nn_mlp *m, km_tensor *x, const km_nn_place *at) {
    km_tensor *in[] = {x, m->up.w, m->gate.w};
    if (km_nn_is_adapted(&m->up, at) || km_nn_is_adapted(&m->gate, at)) return false;
    if (km_failed(ctx) || x->shape.ndim != 2 || m->up.lora.a || m->gate.lora.a) return false;
    return (m->joined || m->gate.w) && !m->up.b && !m->gate.b && !km_recording(ctx, in, 3);
}

/* Whether both products can be km_mlp, which wants floats of x's own dtype: a file's 16-bit weights
 * meet f32 rows where a running model reads a text. */
static bool as_one_op(const km_nn_mlp *m, const km_tensor *x, const km_nn_place *at) {
    const km_tensor *up = m->up.w, *down = m->down.w;
    if (km_nn_is_adapted(&m->up, at) || km_nn_is_adapted(&m->down, at)) return false;
    if (!x || !up || !down || m->up.lora.a || m->down.lora.a || x->shape.ndim == 2) return false;
    return (up->dtype == x->dtype || km_dtype_is_block(up->dtype)) &&
           (down->dtype == x->dtype || km_dtype_is_block(down->dtype));
}

km_tensor *km_nn_mlp_forward(km_ctx *ctx, const km_nn_mlp *m, km_tensor *x, const km_nn_place *at) {
    if (gated_at_once(ctx, m, x, at)) {
        km_act kind = m->act == KM_ACT_NONE ? KM_ACT_SILU : m->act;
        km_tensor *h = m->joined ? km_gated(ctx, x, m->up.w, NULL, kind)
                                 : km_gated(ctx, x, m->gate.w, m->up.w, kind);
        return km_nn_linear_run(ctx, &m->down, h, KM_ACT_NONE, at);
    }
    if (m->joined) return joined_forward(ctx, m, x, at);
    if (!m->gate.w) {
        if (as_one_op(m, x, at))
            return km_mlp(ctx, x, m->up.w, m->up.b, KM_ACT_GELU, m->down.w, m->down.b);
        km_tensor *h = km_nn_linear_run(ctx, &m->up, x, KM_ACT_GELU, at);
        return km_nn_linear_run(ctx, &m->down, h, KM_ACT_NONE, at);
    }
    km_act act = m->act == KM_ACT_NONE ? KM_ACT_SILU : m->act;
    km_tensor *gate = km_nn_linear_run(ctx, &m->gate, x, act, at);
    km_tensor *up = km_nn_linear_run(ctx, &m->up, x, KM_ACT_NONE, at);
    return km_nn_linear_run(ctx, &m->down, km_mul(ctx, gate, up), KM_ACT_NONE, at);
}

/* ---- Block ---- */

/* The sum of what the ranks have made of their shares; y itself where there is one rank. */
static km_tensor *over_ranks(km_ctx *ctx, const km_nn_block *b, km_tensor *y) {
    if (b->ranks && !km_failed(ctx)) km_comm_run(ctx, b->ranks, KM_COMM_ALL_REDUCE, y);
    return y;
}

km_tensor *km_nn_block_forward(km_ctx *ctx, const km_nn_block *b, km_tensor *delta,
                               km_tensor **residual, const km_nn_kv *kv, const km_nn_place *at,
                               double dropout) {
    if (km_failed(ctx)) return NULL;
    int mark = ctx->n_step;
    km_tensor *x = *residual;
    km_tensor *h =
        delta ? km_nn_norm_add(ctx, &b->norm1, delta, &x) : km_nn_norm_forward(ctx, &b->norm1, x);
    h = over_ranks(ctx, b, km_nn_attention_forward(ctx, &b->attention, h, kv, at));
    if (b->post1.w) h = km_nn_norm_forward(ctx, &b->post1, h);
    x = km_nn_last(ctx, at, x);
    h = km_nn_norm_add(ctx, &b->norm2, km_nn_dropout(ctx, h, dropout), &x);
    h = over_ranks(ctx, b, km_nn_mlp_forward(ctx, &b->mlp, h, at));
    if (b->post2.w) h = km_nn_norm_forward(ctx, &b->post2, h);
    h = km_nn_dropout(ctx, h, dropout);
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
               km_requires_grad(b->norm2.w) || km_requires_grad(b->norm2.b) ||
               km_requires_grad(b->post1.w) || km_requires_grad(b->post2.w) ||
               km_requires_grad(b->attention.q_norm.w) || km_requires_grad(b->attention.k_norm.w);
    for (int i = 0; i < n; i++)
        any |= km_requires_grad(l[i]->w) || km_requires_grad(l[i]->b) ||
               km_requires_grad(l[i]->lora.a) || km_requires_grad(l[i]->lora.b);
    return any;
}
