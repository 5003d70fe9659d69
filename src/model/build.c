/* Building a model from its configuration: new, or over parameters that exist already. */
#include "base/alloc.h"
#include "model/adapters.h"
#include "model/arch.h"
#include "model/net.h"
#include "model/config.h"
#include <math.h>
#include <stdio.h>

/* The table of tokens is where ids come in, and where a tied head is. */
static bool has_table(const km_net *m) {
    return m->first == 0 || (m->last == m->config.layers && m->config.tied);
}

/* Hugging Face's Conv1D keeps its matrices transposed. */
static km_nn_linear conv1d(const km_nn *nn, int64_t in, int64_t out, bool bias, const char *name) {
    int first = nn->params->n;
    km_nn_linear l = km_nn_linear_new(nn, in, out, bias, name);
    if (nn->params->n > first) nn->params->at[first].conv1d = true;
    return l;
}

static km_nn_block gpt2_block(const km_nn *nn, const km_config *c, int i) {
    int64_t wide = c->heads * c->head_dim; /* dim, or a rank's share of it */
    char name[64];
#define NAMED(part) (snprintf(name, sizeof name, "transformer.h.%d." part, i), name)
    km_nn_block b = {0};
    b.norm1 = km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, NAMED("ln_1"));
    b.attention =
        (km_nn_attention){.heads = c->heads, .kv_heads = c->heads, .head_dim = c->head_dim};
    b.attention.qkv = conv1d(nn, c->dim, 3 * wide, c->bias, NAMED("attn.c_attn"));
    b.attention.proj = conv1d(nn, wide, c->dim, c->bias, NAMED("attn.c_proj"));
    b.norm2 = km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, NAMED("ln_2"));
    b.mlp.up = conv1d(nn, c->dim, c->hidden, c->bias, NAMED("mlp.c_fc"));
    b.mlp.down = conv1d(nn, c->hidden, c->dim, c->bias, NAMED("mlp.c_proj"));
#undef NAMED
    return b;
}

static void build_gpt2(km_net *m, const km_nn *nn) {
    const km_config *c = &m->config;
    if (has_table(m))
        m->wte = km_nn_embedding_new(nn, km_config_rows(c), c->dim, "transformer.wte");
    if (m->first == 0) m->wpe = km_nn_embedding_new(nn, c->context, c->dim, "transformer.wpe");
    for (int i = m->first; i < m->last; i++) m->block[i] = gpt2_block(nn, c, i);
    if (m->last == c->layers)
        m->norm =
            km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, "transformer.ln_f");
}

/* ---- All others ---- */

/* A layer's place while it is built. */
typedef struct block_maker {
    const km_nn *nn;
    const km_config *c;
    const km_traits *t;
    int layer;
    char name[64];
} block_maker;

static const char *named(block_maker *k, const char *part) {
    snprintf(k->name, sizeof k->name, "model.layers.%d.%s", k->layer, part);
    return k->name;
}

static km_nn_linear linear(block_maker *k, int64_t in, int64_t out, bool bias, const char *part) {
    return km_nn_linear_new(k->nn, in, out, bias, named(k, part));
}

static km_nn_norm norm(block_maker *k, int64_t dim, const char *part) {
    return km_nn_norm_new(k->nn, KM_NN_RMS_NORM, dim, false, k->c->norm_eps, named(k, part));
}

static km_nn_attention attention(block_maker *k, const km_net *m, km_rope_pairs pairs) {
    const km_config *c = k->c;
    const km_traits *t = k->t;
    bool window = km_config_layer_has_window(c, k->layer);
    bool local = window && c->local_rope_base > 0; /* with frequencies of its own */
    double magnitude = local ? 1 : km_rope_magnitude(c);
    double scale = c->attn_scale > 0 ? c->attn_scale : 1 / sqrt((double)c->head_dim);
    if (!c->rope_dims) scale *= magnitude * magnitude; /* all of q and k: once, in their product */
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    km_nn_attention a = {.heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .rope_base = local ? c->local_rope_base : c->rope_base,
                         .rope_dims = c->rope_dims,
                         .pairs = pairs,
                         .rope_divisors = local ? NULL : m->divisors,
                         .rope_magnitude = c->rope_dims ? magnitude : 1,
                         .scale = scale,
                         .softcap = c->attn_softcap,
                         .window = window ? c->window : 0,
                         .q_rows = m->q_rows,
                         .k_rows = m->k_rows};
    if (t->joined_qkv) {
        a.qkv = linear(k, c->dim, q + 2 * kv, t->qkv_bias, "self_attn.qkv_proj");
    } else {
        a.q = linear(k, c->dim, q, t->qkv_bias, "self_attn.q_proj");
        a.k = linear(k, c->dim, kv, t->qkv_bias, "self_attn.k_proj");
        a.v = linear(k, c->dim, kv, t->qkv_bias, "self_attn.v_proj");
    }
    if (t->qk_norm) {
        a.q_norm = norm(k, c->head_dim, "self_attn.q_norm");
        a.k_norm = norm(k, c->head_dim, "self_attn.k_norm");
    }
    a.proj = linear(k, q, c->dim, false, "self_attn.o_proj");
    return a;
}

static km_nn_mlp mlp(block_maker *k) {
    const km_config *c = k->c;
    km_nn_mlp m = {.joined = k->t->joined_up, .act = k->t->act};
    if (m.joined) {
        m.up = linear(k, c->dim, 2 * c->hidden, false, "mlp.gate_up_proj");
    } else {
        m.gate = linear(k, c->dim, c->hidden, false, "mlp.gate_proj");
        m.up = linear(k, c->dim, c->hidden, false, "mlp.up_proj");
    }
    m.down = linear(k, c->hidden, c->dim, false, "mlp.down_proj");
    return m;
}

static km_nn_block rotary_block(const km_nn *nn, const km_net *m, int i, km_rope_pairs pairs) {
    block_maker k = {.nn = nn, .c = &m->config, .t = km_arch_traits(m->config.arch), .layer = i};
    int64_t dim = k.c->dim;
    km_nn_block b = {0};
    b.norm1 = norm(&k, dim, "input_layernorm");
    b.attention = attention(&k, m, pairs);
    if (k.t->post_norms) {
        b.post1 = norm(&k, dim, "post_attention_layernorm");
        b.norm2 = norm(&k, dim, "pre_feedforward_layernorm");
    } else {
        b.norm2 = norm(&k, dim, "post_attention_layernorm");
    }
    b.mlp = mlp(&k);
    if (k.t->post_norms) b.post2 = norm(&k, dim, "post_feedforward_layernorm");
    return b;
}

/* The position of each of the context's (token, head) rows: 0 0 0 1 1 1 ... */
static km_tensor *positions_of_rows(km_ctx *ctx, int64_t context, int heads) {
    km_scope_begin(ctx);
    km_tensor *each = km_unsqueeze(ctx, km_arange(ctx, KM_I32, context, 0, 1), 1);
    km_tensor *rows = km_contiguous(ctx, km_broadcast(ctx, each, KM_SHAPE(context, heads)));
    km_tensor *kept = km_keep(ctx, km_reshape(ctx, rows, KM_SHAPE(context * heads)));
    km_scope_end(ctx, NULL);
    return kept;
}

static km_tensor *divisors_of(km_ctx *ctx, const km_config *c, const float *given) {
    if (c->rope.kind == KM_ROPE_PLAIN) return NULL;
    int64_t n = (c->rope_dims ? c->rope_dims : c->head_dim) / 2;
    float *own = km_calloc((size_t)n, sizeof *own);
    if (!own || (c->rope.kind == KM_ROPE_DIVISORS && !given)) {
        km_fail(ctx, own ? KM_ERR_STATE : KM_ERR_MEMORY,
                own ? "model: the rotation's divisors are missing" : "model: out of memory");
        km_free(own);
        return NULL;
    }
    if (!given) km_rope_divisors(c, own);
    km_scope_begin(ctx);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(n), given ? given : own));
    km_scope_end(ctx, NULL);
    km_free(own);
    return t;
}

static void build_rotary(km_net *m, const km_nn *nn, const km_net_source *source) {
    const km_config *c = &m->config;
    if (!source) { /* one that only runs rotates in the op that attends */
        m->q_rows = positions_of_rows(nn->ctx, c->context, c->heads);
        m->k_rows = positions_of_rows(nn->ctx, c->context, c->kv_heads);
    }
    m->divisors = divisors_of(nn->ctx, c, source ? source->divisors : NULL);
    if (has_table(m))
        m->wte = km_nn_embedding_new(nn, km_config_rows(c), c->dim, "model.embed_tokens");
    for (int i = m->first; i < m->last && !km_failed(nn->ctx); i++)
        m->block[i] = rotary_block(nn, m, i, source ? source->pairs : KM_ROPE_HALVES);
    if (m->last == c->layers)
        m->norm = km_nn_norm_new(nn, KM_NN_RMS_NORM, c->dim, false, c->norm_eps, "model.norm");
}

/* ---- The whole ---- */

km_net *km_net_from(km_ctx *ctx, const km_config *c, km_dtype dtype, const km_net_source *source) {
    if (km_failed(ctx)) return NULL;
    km_error err = {0};
    km_config full = *c;
    if (km_config_complete(&full, &err) != KM_OK) {
        km_fail(ctx, err.code, "%s", err.text);
        return NULL;
    }
    if (!km_dtype_is_float(dtype)) {
        km_fail(ctx, KM_ERR_DTYPE, "model: parameters cannot be %s", km_dtype_name(dtype));
        return NULL;
    }
    km_net *m = km_calloc(1, sizeof *m);
    km_nn_block *block = m ? km_calloc((size_t)full.layers, sizeof *block) : NULL;
    if (!block) {
        km_free(m);
        km_fail(ctx, KM_ERR_MEMORY, "model: out of memory");
        return NULL;
    }
    bool part = source && source->last > 0;
    if (source) full = km_share_config(&full, &source->share);
    *m = (km_net){.ctx = ctx,
                  .config = full,
                  .dtype = dtype,
                  .block = block,
                  .borrowed = source != NULL,
                  .first = part ? source->first : 0,
                  .last = part ? source->last : full.layers,
                  .comm = source ? source->comm : NULL,
                  .share = source ? source->share : (km_share){0}};
    km_nn nn = {ctx, &m->params, dtype, source ? &source->params : NULL};
    if (full.arch == KM_ARCH_GPT2)
        build_gpt2(m, &nn);
    else
        build_rotary(m, &nn, source);
    for (int i = m->first; i < m->last; i++) m->block[i].ranks = m->comm;
    if (m->comm && !ctx->device->host && !km_comm_capturable(m->comm)) ctx->uncaptured = true;
    int64_t rows = m->share.ranks ? m->share.tokens : km_config_rows(&full);
    if (m->last == full.layers && full.tied)
        m->head.w = m->wte.w;
    else if (m->last == full.layers)
        m->head = km_nn_linear_new(&nn, full.dim, rows, false, "lm_head");
    if (km_failed(ctx)) {
        km_net_free(m);
        return NULL;
    }
    return m;
}

km_net *km_net_new(km_ctx *ctx, const km_config *c, km_dtype dtype) {
    return km_net_from(ctx, c, dtype, NULL);
}

void km_net_free(km_net *m) {
    if (!m) return;
    km_net_free(m->next);
    km_adapters_release(m);
    km_param_clear(&m->params);
    km_release(m->q_rows);
    km_release(m->k_rows);
    km_release(m->divisors);
    if (m->own_ctx) km_ctx_free(m->ctx);
    km_free(m->block);
    km_free(m);
}
