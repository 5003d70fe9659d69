/* Embeddings: hidden states of tokens, and of whole texts by pooling or for a ranking head. Texts of about the same length go
 * through the model together, padded on the right: no token sees what stands after it. */
#include "base/alloc.h"
#include "base/sized.h"
#include "base/util.h"
#include "engine/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512 }; /* tokens of several texts in one pass: others wait for their turn no longer */

/* What each of n rows has of each adapter, the same for all: (n, slots). */
static km_tensor *rows_of(km_ctx *ctx, const km_adapter_mix *mix, int64_t n) {
    float row[KM_ADAPTER_SLOTS] = {0};
    for (int i = 0; i < mix->n; i++) row[mix->slot[i]] = mix->scale[i];
    km_tensor *one = km_from_data(ctx, KM_F32, KM_SHAPE(1, KM_ADAPTER_SLOTS), row);
    return km_repeat(ctx, one, 0, n);
}

/* ids (b, t) to out (b, t, dim). */
static km_status embed(km_model *m, km_ground *g, const km_adapter_mix *mix, const int32_t *ids,
                       size_t b, size_t t, float *out, km_error *err) {
    km_ctx *ctx = g->ctx;
    int64_t dim = g->net->config.dim;
    int turn = km_gate_enter(&m->gate, 1);
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE((int64_t)b, (int64_t)t), ids);
    km_net_place place = {0};
    if (mix->n) place.at.mix = rows_of(ctx, mix, (int64_t)(b * t));
    km_tensor *y = km_cast(ctx, km_net_forward(ctx, g->net, x, mix->n ? &place : NULL), KM_F32);
    km_no_grad_end(ctx);
    km_status s = km_read(ctx, y, out, sizeof *out * b * t * (size_t)dim);
    if (s != KM_OK) {
        km_error_set(err, s, "%s", km_ctx_error(ctx));
        km_ctx_clear_error(ctx);
    }
    km_step_end(ctx);
    km_gate_leave(&m->gate, turn);
    return s;
}

static km_status check_ids(const char *call, const km_model *m, const int32_t *ids, size_t n) {
    if (!ids || n == 0) return km_public_fail(KM_ERR_NULL, "%s: no tokens given", call);
    if (n > (size_t)m->config.context)
        return km_public_fail(KM_ERR_RANGE, "%s: %zu tokens, and a context of %lld", call, n,
                              (long long)m->config.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->config.vocab)
            return km_public_fail(KM_ERR_RANGE, "token %d is not in the model's vocabulary of %lld",
                                  (int)ids[i], (long long)m->config.vocab);
    return KM_OK;
}

static bool is_whole(const char *call, const km_model *m, const km_ground *g, km_error *err) {
    if (!g->net->next && !m->comm) return true;
    km_error_set(err, KM_ERR_UNSUPPORTED, "%s: not where the model is split over devices or ranks",
                 call);
    return false;
}

km_status km_embed_tokens(km_model *m, const int32_t *ids, size_t n, float *out) {
    km_error err = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_embed_tokens", m, true)) return km_last_status();
    if (!out) return km_public_fail(KM_ERR_NULL, "km_embed_tokens: no tokens, or no room for them");
    if (check_ids("km_embed_tokens", m, ids, n) != KM_OK) return km_last_status();
    km_adapter_mix mix = {0};
    if (km_adapters_mix(m, NULL, -1, &mix, &err) != KM_OK) return km_told(&err);
    km_ground *g = km_ground_hold(m);
    if (is_whole("km_embed_tokens", m, g, &err) &&
        embed(m, g, &mix, ids, 1, n, out, &err) != KM_OK && km_ground_again(m, &g, &err))
        embed(m, g, &mix, ids, 1, n, out, &err);
    km_ground_drop(g);
    km_adapters_drop(m, &mix);
    return km_told(&err);
}

/* ---- Whole texts ---- */

km_status km_embed_defaults_sized(km_embed_options *out, size_t size) {
    km_embed_options own = {.size = sizeof(km_embed_options), .n_adapters = -1};
    return KM_HAND_OUT(out, size, &own, km_embed_options);
}

km_pooling km_model_pooling(km_model *m) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_pooling", m, false)) return KM_POOLING_AUTO;
    switch (m->pooling) {
    case 2: return KM_POOLING_FIRST;
    case 3: return KM_POOLING_LAST;
    case 4: return KM_POOLING_RANK;
    default: return KM_POOLING_MEAN;
    }
}

typedef struct text_order { /* a text's place among those sorted by length */
    size_t text, length;
} text_order;

static int by_length(const void *a, const void *b) {
    const text_order *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->text < y->text ? -1 : 1;
}

static km_status states_of(const char *call, km_model *m, km_ground *g, const km_adapter_mix *mix,
                           const km_texts *x, const km_embed_options *o, km_error *err) {
    size_t dim = (size_t)g->net->config.dim, n = x->n;
    text_order *order = km_alloc(n * sizeof *order);
    size_t longest = 0;
    for (size_t i = 0; order && i < n; i++) {
        order[i] = (text_order){i, x->lengths[i]};
        longest = (size_t)km_max64((int64_t)longest, (int64_t)x->lengths[i]);
    }
    size_t rows = (size_t)km_max64((int64_t)longest, ROWS);
    int32_t *batch = km_alloc(rows * sizeof *batch);       /* (b, t) */
    float *states = km_alloc(rows * dim * sizeof *states); /* (b, t, dim) */
    km_status s = order && batch && states ? KM_OK : km_no_memory_for(err, "embeddings");
    if (s == KM_OK) qsort(order, n, sizeof *order, by_length);
    for (size_t from = 0, b; from < n && s == KM_OK; from += b) {
        size_t t = order[from].length;
        for (b = 1; from + b < n && (b + 1) * order[from + b].length <= rows; b++)
            t = order[from + b].length;
        for (size_t i = 0; i < b; i++) {
            const text_order *one = &order[from + i];
            memcpy(batch + i * t, x->ids[one->text], one->length * sizeof *batch);
            for (size_t k = one->length; k < t; k++) batch[i * t + k] = 0;
        }
        if (o->progress && !o->progress(o->user, from, n))
            s = km_error_set(err, KM_ERR_STATE, "%s: stopped by the caller", call);
        else
            s = embed(m, g, mix, batch, b, t, states, err);
        for (size_t i = 0; i < b && s == KM_OK; i++)
            x->take(x->user, order[from + i].text, states + i * t * dim, order[from + i].length);
    }
    km_free(order);
    km_free(batch);
    km_free(states);
    return s;
}

km_status km_texts_read(const char *call, km_model *m, const km_texts *x,
                        const km_embed_options *o) {
    km_error err = {0};
    for (size_t i = 0; i < x->n; i++)
        if (check_ids(call, m, x->ids[i], x->lengths[i]) != KM_OK) return km_last_status();
    km_adapter_mix mix = {0};
    if (km_adapters_mix(m, o->adapters, o->n_adapters, &mix, &err) != KM_OK) return km_told(&err);
    km_ground *g = km_ground_hold(m);
    if (is_whole(call, m, g, &err) && states_of(call, m, g, &mix, x, o, &err) != KM_OK &&
        km_ground_again(m, &g, &err))
        states_of(call, m, g, &mix, x, o, &err);
    km_ground_drop(g);
    km_adapters_drop(m, &mix);
    return km_told(&err);
}

/* ---- Embeddings ---- */

typedef struct text_pooling {
    km_pooling how;
    size_t dim;
    const km_embed_options *options;
    float *out; /* (n, dimensions) */
} text_pooling;

/* states (n, dim) to its row: the first ones of the pooled vector, of length 1 again. */
static void pool(void *user, size_t text, const float *states, size_t n) {
    const text_pooling *p = user;
    size_t dim = p->dim, keep = p->options->dimensions > 0 ? (size_t)p->options->dimensions : dim;
    float *out = p->out + text * keep;
    double squares = 0;
    for (size_t k = 0; k < keep; k++) {
        double sum = 0;
        if (p->how == KM_POOLING_FIRST) sum = states[k];
        if (p->how == KM_POOLING_LAST) sum = states[(n - 1) * dim + k];
        for (size_t i = 0; i < n && p->how == KM_POOLING_MEAN; i++) sum += states[i * dim + k];
        if (p->how == KM_POOLING_MEAN) sum /= (double)n;
        out[k] = (float)sum;
        squares += sum * sum;
    }
    double scale = p->options->raw || squares <= 0 ? 1 : 1 / sqrt(squares);
    for (size_t k = 0; k < keep; k++) out[k] = (float)(out[k] * scale);
}

km_status km_embed(km_model *m, const int32_t *const *ids, const size_t *lengths, size_t n,
                   const km_embed_options *options, float *out) {
    km_embed_options o = km_embed_defaults();
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_embed", m, true)) return km_last_status();
    if (km_take_options("km_embed", &o, sizeof o, options) != KM_OK) return km_last_status();
    if (!ids || !lengths || !out || n == 0)
        return km_public_fail(KM_ERR_NULL, "km_embed: no texts, or no room for them");
    if (o.dimensions < 0 || o.dimensions > m->config.dim)
        return km_public_fail(KM_ERR_RANGE, "km_embed: %lld dimensions, and the model has %lld",
                              (long long)o.dimensions, (long long)m->config.dim);
    if (o.pooling < KM_POOLING_AUTO || o.pooling >= KM_POOLING_RANK ||
        (o.pooling == KM_POOLING_AUTO && km_model_pooling(m) == KM_POOLING_RANK))
        return km_public_fail(KM_ERR_UNSUPPORTED,
                              "km_embed: texts are pooled by their mean, first or last token; "
                              "a model that ranks gives no embeddings");
    text_pooling p = {.how = o.pooling == KM_POOLING_AUTO ? km_model_pooling(m) : o.pooling,
                      .dim = (size_t)m->config.dim,
                      .options = &o,
                      .out = out};
    km_texts x = {ids, lengths, n, pool, &p};
    return km_texts_read("km_embed", m, &x, &o);
}
