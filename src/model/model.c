/* Building a model from its configuration, and running it. */
#include "model/model.h"
#include "autograd/recompute.h"
#include "base/alloc.h"
#include <stdio.h>

/* ---- Building ---- */

/* Hugging Face's Conv1D keeps its matrices transposed. */
static km_nn_linear conv1d(const km_nn *nn, int64_t in, int64_t out, bool bias, const char *name) {
    int first = nn->params->n;
    km_nn_linear l = km_nn_linear_new(nn, in, out, bias, name);
    if (nn->params->n > first) nn->params->at[first].conv1d = true;
    return l;
}

static km_nn_block gpt2_block(const km_nn *nn, const km_config *c, int i) {
    char name[64];
#define NAMED(part) (snprintf(name, sizeof name, "transformer.h.%d." part, i), name)
    km_nn_block b = {0};
    b.norm1 = km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, NAMED("ln_1"));
    b.attention =
        (km_nn_attention){.heads = c->heads, .kv_heads = c->heads, .head_dim = c->head_dim};
    b.attention.qkv = conv1d(nn, c->dim, 3 * c->dim, c->bias, NAMED("attn.c_attn"));
    b.attention.proj = conv1d(nn, c->dim, c->dim, c->bias, NAMED("attn.c_proj"));
    b.norm2 = km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, NAMED("ln_2"));
    b.mlp.up = conv1d(nn, c->dim, c->hidden, c->bias, NAMED("mlp.c_fc"));
    b.mlp.down = conv1d(nn, c->hidden, c->dim, c->bias, NAMED("mlp.c_proj"));
#undef NAMED
    return b;
}

static void build_gpt2(km_model *m, const km_nn *nn) {
    const km_config *c = &m->config;
    m->wte = km_nn_embedding_new(nn, km_config_rows(c), c->dim, "transformer.wte");
    m->wpe = km_nn_embedding_new(nn, c->context, c->dim, "transformer.wpe");
    for (int i = 0; i < c->layers; i++) m->block[i] = gpt2_block(nn, c, i);
    m->norm =
        km_nn_norm_new(nn, KM_NN_LAYER_NORM, c->dim, c->bias, c->norm_eps, "transformer.ln_f");
}

static km_nn_block llama_block(const km_nn *nn, const km_model *m, int i) {
    const km_config *c = &m->config;
    char name[64];
#define NAMED(part) (snprintf(name, sizeof name, "model.layers.%d." part, i), name)
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    km_nn_block b = {0};
    b.norm1 =
        km_nn_norm_new(nn, KM_NN_RMS_NORM, c->dim, false, c->norm_eps, NAMED("input_layernorm"));
    b.attention = (km_nn_attention){.heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->head_dim,
                                    .rope_base = c->rope_base,
                                    .q_rows = m->q_rows,
                                    .k_rows = m->k_rows};
    b.attention.q = km_nn_linear_new(nn, c->dim, q, false, NAMED("self_attn.q_proj"));
    b.attention.k = km_nn_linear_new(nn, c->dim, kv, false, NAMED("self_attn.k_proj"));
    b.attention.v = km_nn_linear_new(nn, c->dim, kv, false, NAMED("self_attn.v_proj"));
    b.attention.proj = km_nn_linear_new(nn, q, c->dim, false, NAMED("self_attn.o_proj"));
    b.norm2 = km_nn_norm_new(nn, KM_NN_RMS_NORM, c->dim, false, c->norm_eps,
                             NAMED("post_attention_layernorm"));
    b.mlp.gate = km_nn_linear_new(nn, c->dim, c->hidden, false, NAMED("mlp.gate_proj"));
    b.mlp.up = km_nn_linear_new(nn, c->dim, c->hidden, false, NAMED("mlp.up_proj"));
    b.mlp.down = km_nn_linear_new(nn, c->hidden, c->dim, false, NAMED("mlp.down_proj"));
#undef NAMED
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

static void build_llama(km_model *m, const km_nn *nn) {
    const km_config *c = &m->config;
    m->q_rows = positions_of_rows(nn->ctx, c->context, c->heads);
    m->k_rows = positions_of_rows(nn->ctx, c->context, c->kv_heads);
    m->wte = km_nn_embedding_new(nn, km_config_rows(c), c->dim, "model.embed_tokens");
    for (int i = 0; i < c->layers; i++) m->block[i] = llama_block(nn, m, i);
    m->norm = km_nn_norm_new(nn, KM_NN_RMS_NORM, c->dim, false, c->norm_eps, "model.norm");
}

km_model *km_model_new(km_ctx *ctx, const km_config *c, km_dtype dtype) {
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
    km_model *m = km_calloc(1, sizeof *m);
    km_nn_block *block = m ? km_calloc((size_t)full.layers, sizeof *block) : NULL;
    if (!block) {
        km_free(m);
        km_fail(ctx, KM_ERR_MEMORY, "model: out of memory");
        return NULL;
    }
    *m = (km_model){.ctx = ctx, .config = full, .dtype = dtype, .block = block};
    km_nn nn = {ctx, &m->params, dtype};
    if (full.arch == KM_ARCH_GPT2)
        build_gpt2(m, &nn);
    else
        build_llama(m, &nn);
    if (full.tied)
        m->head.w = m->wte.w;
    else
        m->head = km_nn_linear_new(&nn, full.dim, km_config_rows(&full), false, "lm_head");
    if (km_failed(ctx)) {
        km_model_free(m);
        return NULL;
    }
    return m;
}

void km_model_free(km_model *m) {
    if (!m) return;
    km_param_clear(&m->params);
    km_release(m->q_rows);
    km_release(m->k_rows);
    km_free(m->block);
    km_free(m);
}

/* ---- Running ---- */

/* One block as a piece that can be run again. */
typedef struct rerun {
    const km_nn_block *block;
    double dropout;
    int n_in;
} rerun;

/* in: residual and, after the first block, delta; out: delta, residual. */
static void run_again(km_ctx *ctx, const void *user, km_tensor *const *in, km_tensor **out) {
    const rerun *r = user;
    out[1] = in[0];
    out[0] = km_nn_block_forward(ctx, r->block, r->n_in > 1 ? in[1] : NULL, &out[1], NULL, 0,
                                 r->dropout);
}

static km_tensor *block_again(km_ctx *ctx, const km_nn_block *block, km_tensor *delta,
                              km_tensor **residual, double dropout) {
    rerun r = {block, dropout, delta ? 2 : 1};
    km_tensor *in[] = {*residual, delta}, *out[2] = {NULL, NULL};
    bool trains = km_nn_block_trains(block);
    if (km_recompute(ctx, run_again, &r, sizeof r, trains, in, r.n_in, out, 2) != KM_OK)
        return NULL;
    *residual = out[1];
    return out[0];
}

static km_status check_ids(km_ctx *ctx, const km_model *m, const km_tensor *ids,
                           const km_cache *cache) {
    char text[KM_SHAPE_TEXT];
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!ids) return km_fail(ctx, KM_ERR_NULL, "model: no ids");
    if (ids->shape.ndim != 2 || ids->shape.dim[0] < 1 || ids->shape.dim[1] < 1)
        return km_fail(ctx, KM_ERR_SHAPE, "model: ids must be [B, T], not %s",
                       km_shape_text(text, ids->shape));
    int64_t past = cache ? cache->length : 0, t = ids->shape.dim[1];
    if (past + t > m->config.context)
        return km_fail(ctx, KM_ERR_RANGE,
                       "model: %lld tokens after %lld do not fit the context of %lld", (long long)t,
                       (long long)past, (long long)m->config.context);
    if (!cache) return KM_OK;
    if (past + t > cache->room || ids->shape.dim[0] != cache->batch)
        return km_fail(ctx, KM_ERR_SHAPE,
                       "model: ids %s after %lld tokens do not fit a cache for %lld rows of %lld",
                       km_shape_text(text, ids->shape), (long long)past, (long long)cache->batch,
                       (long long)cache->room);
    return KM_OK;
}

/* Of all that was made since `mark`, the step holds on to a and b alone. */
static void only(km_ctx *ctx, int mark, km_tensor *a, km_tensor *b) {
    if (!km_failed(ctx)) km_step_drop(ctx, mark, (km_tensor *[]){a, b}, 2);
}

/* (T, C): the embeddings of t positions from `past` on. */
static km_tensor *positions(km_ctx *ctx, km_model *m, int64_t past, int64_t t) {
    return t == m->config.context ? m->wpe.w : km_narrow(ctx, m->wpe.w, 0, past, t);
}

km_tensor *km_model_forward(km_ctx *ctx, km_model *m, km_tensor *ids, km_cache *cache) {
    if (check_ids(ctx, m, ids, cache) != KM_OK) return NULL;
    const km_config *c = &m->config;
    int64_t t = ids->shape.dim[1], past = cache ? cache->length : 0;
    double dropout = m->train ? c->dropout : 0;
    bool again = m->recompute && !cache && !ctx->no_grad;
    int mark = ctx->n_step;

    km_tensor *x = km_nn_embedding_forward(ctx, &m->wte, ids); /* (B, T, C) */
    if (m->wpe.w) x = km_add(ctx, x, positions(ctx, m, past, t));
    x = km_nn_dropout(ctx, x, dropout);
    km_tensor *delta = NULL; /* what is still to be added to x */
    for (int i = 0; i < c->layers && !km_failed(ctx); i++) {
        delta = again ? block_again(ctx, &m->block[i], delta, &x, dropout)
                      : km_nn_block_forward(ctx, &m->block[i], delta, &x,
                                            cache ? &cache->kv[i] : NULL, past, dropout);
        only(ctx, mark, delta, x); /* the block's inputs go, where the tape has no use for them */
    }
    km_tensor *h = km_nn_norm_add(ctx, &m->norm, delta, &x);
    only(ctx, mark, h, NULL);
    if (km_failed(ctx)) return NULL;
    if (cache) cache->length += t;
    return h;
}

km_tensor *km_model_logits(km_ctx *ctx, km_model *m, km_tensor *hidden) {
    km_tensor *w = m->head.w;
    if (km_config_rows(&m->config) != m->config.vocab) w = km_narrow(ctx, w, 0, 0, m->config.vocab);
    return km_linear(ctx, hidden, w, NULL, KM_ACT_NONE);
}

km_tensor *km_model_loss(km_ctx *ctx, km_model *m, km_tensor *ids, km_tensor *targets) {
    int mark = ctx->n_step;
    km_tensor *hidden = km_model_forward(ctx, m, ids, NULL);
    int64_t ignored = m->every_target ? KM_NO_IGNORE : KM_IGNORE_TARGET;
    km_tensor *loss =
        km_linear_cross_entropy(ctx, hidden, m->head.w, targets, m->config.vocab, ignored, KM_MEAN);
    only(ctx, mark, loss, NULL);
    return loss;
}

int km_model_freeze(km_model *m, const char *pattern, bool frozen) {
    return km_param_freeze(m->ctx, &m->params, pattern, frozen);
}

double km_model_flops_per_token(const km_model *m, int64_t t) {
    const km_config *c = &m->config;
    double q = (double)c->heads * (double)c->head_dim,
           kv = (double)c->kv_heads * (double)c->head_dim;
    double d = (double)c->dim, h = (double)c->hidden;
    double block = d * (q + 2 * kv) + q * d + (c->arch == KM_ARCH_GPT2 ? 2 : 3) * d * h;
    double attention = 12 * c->layers * q * (double)t / 2;
    return 6 * (c->layers * block + (double)km_config_rows(c) * d) + attention;
}
