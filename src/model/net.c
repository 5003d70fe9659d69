/* Running a model: forward, logits, loss. build.c makes one. */
#include "model/net.h"
#include "autograd/recompute.h"
#include "model/arch.h"
#include <math.h>

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
    out[0] = km_nn_block_forward(ctx, r->block, r->n_in > 1 ? in[1] : NULL, &out[1], NULL, NULL,
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

static km_status check_ids(km_ctx *ctx, const km_net *m, const km_tensor *ids,
                           const km_net_place *place) {
    char text[KM_SHAPE_TEXT];
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!ids) return km_fail(ctx, KM_ERR_NULL, "model: no ids");
    if (m->first > 0) return KM_OK; /* what a part before this one gave */
    if (place && place->kv) {
        int64_t rows = ids->shape.dim[0];
        if (ids->shape.ndim != 1 || rows < 1 || place->at.last < 0 || place->at.last > rows)
            return km_fail(ctx, KM_ERR_SHAPE, "model: the last %lld of ids %s",
                           (long long)place->at.last, km_shape_text(text, ids->shape));
        return KM_OK;
    }
    if (ids->shape.ndim != 2 || ids->shape.dim[0] < 1 || ids->shape.dim[1] < 1)
        return km_fail(ctx, KM_ERR_SHAPE, "model: ids must be [B, T], not %s",
                       km_shape_text(text, ids->shape));
    int64_t t = ids->shape.dim[1];
    if (t > m->config.context)
        return km_fail(ctx, KM_ERR_RANGE,
                       "model: %lld tokens after 0 do not fit the context of %lld", (long long)t,
                       (long long)m->config.context);
    return KM_OK;
}

/* Of all that was made since `mark`, the step holds on to a and b alone. */
static void only(km_ctx *ctx, int mark, km_tensor *a, km_tensor *b) {
    if (!km_failed(ctx)) km_step_drop(ctx, mark, (km_tensor *[]){a, b}, 2);
}

/* The embeddings of positions: (T, C) of the first T, or (rows, C) of the rows' own. */
static km_tensor *positions(km_ctx *ctx, km_net *m, int64_t t, const km_net_place *place) {
    if (place && place->kv) {
        km_tensor *own = km_reshape(ctx, km_narrow(ctx, place->at.rows, 1, 1, 1), KM_SHAPE(-1));
        return km_nn_embedding_forward(ctx, &m->wpe, own);
    }
    return t == m->wpe.w->shape.dim[0] ? m->wpe.w : km_narrow(ctx, m->wpe.w, 0, 0, t);
}

/* A file's table of 16-bit floats gives rows of these; the model goes on in its own dtype. */
static km_tensor *own(km_ctx *ctx, const km_net *m, km_tensor *x) {
    return x && x->dtype != m->dtype && m->borrowed ? km_cast(ctx, x, m->dtype) : x;
}

/* What the first layer gets: (..., C). */
static km_tensor *embed(km_ctx *ctx, km_net *m, km_tensor *ids, const km_net_place *place,
                        double dropout) {
    const km_config *c = &m->config;
    km_tensor *x = own(ctx, m, km_nn_embedding_forward(ctx, &m->wte, ids));
    if (m->wpe.w) x = km_add(ctx, x, own(ctx, m, positions(ctx, m, km_tensor_dim(ids, -1), place)));
    if (km_arch_traits(c->arch)->scaled_embedding) x = km_mul_scalar(ctx, x, sqrt((double)c->dim));
    return km_nn_dropout(ctx, x, dropout);
}

static km_tensor *run(km_ctx *ctx, km_net *m, km_tensor *ids, const km_net_place *place) {
    const km_config *c = &m->config;
    double dropout = m->train && !place ? c->dropout : 0;
    bool again = m->recompute && !place && !ctx->no_grad;
    int mark = ctx->n_step;

    km_tensor *x = m->first == 0 ? embed(ctx, m, ids, place, dropout) : ids;
    km_tensor *delta = NULL; /* what is still to be added to x */
    for (int i = m->first; i < m->last && !km_failed(ctx); i++) {
        const km_nn_block *b = &m->block[i];
        km_nn_place at = place ? place->at : (km_nn_place){0};
        if (i + 1 < c->layers) at.last = 0; /* the layers after it need all rows */
        if (place && place->cancel && atomic_load_explicit(place->cancel, memory_order_relaxed))
            return NULL;
        delta = again   ? block_again(ctx, b, delta, &x, dropout)
                : place ? km_nn_block_forward(ctx, b, delta, &x, place->kv ? &place->kv[i] : NULL,
                                              &at, 0)
                        : km_nn_block_forward(ctx, b, delta, &x, NULL, NULL, dropout);
        only(ctx, mark, delta, x); /* the block's inputs go, where the tape has no use for them */
    }
    km_tensor *h =
        m->last < c->layers ? km_add(ctx, x, delta) : km_nn_norm_add(ctx, &m->norm, delta, &x);
    only(ctx, mark, h, NULL);
    return km_failed(ctx) ? NULL : h;
}

km_tensor *km_net_forward(km_ctx *ctx, km_net *m, km_tensor *ids, const km_net_place *place) {
    if (check_ids(ctx, m, ids, place) != KM_OK) return NULL;
    if (place) km_no_grad_begin(ctx);
    km_tensor *h = run(ctx, m, ids, place);
    if (place) km_no_grad_end(ctx);
    return h;
}

/* Each rank's tokens, brought together: (..., vocab). */
static km_tensor *logits_of_ranks(km_ctx *ctx, const km_net *m, km_tensor *hidden) {
    const km_share *own = &m->share;
    km_tensor *w = m->head.w;
    if (m->config.tied) w = km_narrow(ctx, w, 0, own->token_first, own->tokens);
    km_tensor *y = km_nn_product(ctx, hidden, w, NULL, KM_ACT_NONE); /* (..., tokens) */
    if (km_failed(ctx)) return NULL;
    km_shape s = y->shape;
    int64_t rows = km_shape_count(s) / own->tokens, part = own->token_part;
    km_tensor *all =
        km_tensor_new(ctx, ctx->lanes[0], "logits", y->dtype, KM_SHAPE(own->ranks, rows, part));
    km_tensor *here = km_narrow(ctx, km_select(ctx, all, 0, own->rank), 1, 0, own->tokens);
    km_assign(ctx, here, km_reshape(ctx, y, KM_SHAPE(rows, own->tokens)));
    if (km_failed(ctx) || km_comm_run(ctx, m->comm, KM_COMM_ALL_GATHER, all) != KM_OK) return NULL;
    km_tensor *row = km_contiguous(ctx, km_permute(ctx, all, (int[]){1, 0, 2}));
    row = km_narrow(ctx, km_reshape(ctx, row, KM_SHAPE(rows, own->ranks * part)), 1, 0,
                    m->config.vocab);
    s.dim[s.ndim - 1] = m->config.vocab;
    return km_reshape(ctx, km_contiguous(ctx, row), s);
}

km_tensor *km_net_logits(km_ctx *ctx, km_net *m, km_tensor *hidden) {
    km_tensor *w = m->head.w;
    if (!m->comm && km_config_rows(&m->config) != m->config.vocab)
        w = km_narrow(ctx, w, 0, 0, m->config.vocab);
    km_tensor *y = m->comm ? logits_of_ranks(ctx, m, hidden)
                           : km_nn_product(ctx, hidden, w, NULL, KM_ACT_NONE);
    double cap = m->config.logit_softcap;
    if (cap <= 0) return y;
    return km_mul_scalar(ctx, km_tanh(ctx, km_mul_scalar(ctx, y, 1 / cap)), cap);
}

km_tensor *km_net_loss(km_ctx *ctx, km_net *m, km_tensor *ids, km_tensor *targets) {
    if (m->borrowed || m->config.logit_softcap > 0) {
        km_fail(ctx, KM_ERR_UNSUPPORTED, "model: this one cannot be trained");
        return NULL;
    }
    int mark = ctx->n_step;
    km_tensor *hidden = km_net_forward(ctx, m, ids, NULL);
    int64_t ignored = m->every_target ? KM_NO_IGNORE : KM_IGNORE_TARGET;
    km_tensor *loss =
        km_linear_cross_entropy(ctx, hidden, m->head.w, targets, m->config.vocab, ignored, KM_MEAN);
    only(ctx, mark, loss, NULL);
    return loss;
}

int km_net_freeze(km_net *m, const char *pattern, bool frozen) {
    return km_param_freeze(m->ctx, &m->params, pattern, frozen);
}

double km_net_flops_per_token(const km_net *m, int64_t t) {
    const km_config *c = &m->config;
    double q = (double)c->heads * (double)c->head_dim,
           kv = (double)c->kv_heads * (double)c->head_dim;
    double d = (double)c->dim, h = (double)c->hidden;
    double block = d * (q + 2 * kv) + q * d + (km_arch_traits(c->arch)->gated ? 3 : 2) * d * h;
    double attention = 12 * c->layers * q * (double)t / 2;
    return 6 * (c->layers * block + (double)km_config_rows(c) * d) + attention;
}
