/* km_perplexity: how well a model predicts a text, and what may come of it on the side: predictions
 * saved, their distance from saved ones, an importance matrix. */
#include "infer/perplexity.h"
#include "base/alloc.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "infer/collect.h"
#include "infer/divergence.h"

#define USUAL_CONTEXT 512

km_status km_perplexity_defaults_sized(km_perplexity_options *out, size_t size) {
    km_perplexity_options own = {.size = sizeof(km_perplexity_options)};
    return KM_HAND_OUT(out, size, &own, km_perplexity_options);
}

typedef struct extras {
    km_logits_writer *writer;
    km_comparison *comparison;
    km_collector *collector;
} extras;

static km_status on_row(void *user, const float *logits, int32_t came, km_error *err) {
    extras *e = user;
    km_status s = e->writer ? km_logits_put(e->writer, logits, came, err) : KM_OK;
    if (s == KM_OK && e->comparison) s = km_compare_row(e->comparison, logits, came, err);
    return s;
}

static km_status open_extras(const km_perplexity_options *o, const km_ground *g, const km_ids *ids,
                             km_windows *how, extras *e, km_error *err) {
    km_logits_about about = km_logits_of(g->net, ids, how);
    if (o->against && !(e->comparison = km_compare_open(o->against, &about, err))) return err->code;
    if (o->save_logits && !(e->writer = km_logits_create(o->save_logits, &about, err)))
        return err->code;
    if (o->imatrix && !(e->collector = km_collect_begin(g->ctx, g->net, err))) return err->code;
    if (e->writer || e->comparison) {
        how->row = on_row;
        how->row_user = e;
    }
    return KM_OK;
}

static km_status save_imatrix(const km_perplexity_options *o, extras *e,
                              const km_perplexity_result *r, int *layers, km_error *err) {
    km_imatrix *m = km_collect_end(e->collector, err);
    e->collector = NULL;
    if (!m) return err->code;
    m->chunks = r->windows;
    m->chunk_size = r->context;
    km_status s = KM_OK;
    if (o->dataset && !(m->dataset = km_strdup(o->dataset))) s = km_no_memory(err);
    if (s == KM_OK) s = km_imatrix_save(m, o->imatrix, err);
    *layers = m->n;
    km_imatrix_free(m);
    return s;
}

/* Finishes what went well, and drops the rest. */
static km_status close_extras(const km_perplexity_options *o, extras *e, km_status s,
                              km_perplexity_result *r, km_error *err) {
    if (s == KM_OK && e->comparison) s = km_compare_result(e->comparison, &r->divergence, err);
    km_compare_close(e->comparison);
    if (s == KM_OK && e->collector) s = save_imatrix(o, e, r, &r->imatrix_layers, err);
    if (e->collector) km_imatrix_free(km_collect_end(e->collector, &(km_error){0}));
    if (s == KM_OK && e->writer) return km_logits_commit(e->writer, err);
    km_logits_abort(e->writer);
    return s;
}

/* The beginning-of-text token, where the tokenizer puts it before every text; else -1. */
static km_status leading(const km_token *token, int32_t *bos, km_error *err) {
    km_ids ids = {0};
    int32_t first = km_token_bos(token);
    km_error unknown = {0}; /* a tokenizer without the letter puts nothing before a text either */
    km_status s = km_token_encode(token, "a", 1, KM_TOKEN_ADD_SPECIAL, &ids, &unknown);
    *bos = ids.len > 0 && ids.data[0] == first && first >= 0 ? first : -1;
    km_ids_free(&ids);
    return s == KM_ERR_MEMORY ? km_no_memory(err) : KM_OK;
}

/* Of the text that the predicted tokens stand for. */
static int64_t bytes_of(const km_token *token, const km_ids *ids, const km_windows *how) {
    int64_t bytes = 0;
    for (km_window w = {0}; km_windows_next(how, (int64_t)ids->len, &w);)
        for (int64_t i = w.first; i < w.end; i++) {
            size_t n = 0;
            if (!km_token_is_special(token, ids->data[i]) && km_token_text(token, ids->data[i], &n))
                bytes += (int64_t)n;
        }
    return bytes;
}

static km_status measure(km_model *m, km_ground *g, const km_ids *ids,
                         const km_perplexity_options *o, km_perplexity_result *r, km_error *err) {
    km_windows how = {.stride = o->stride,
                      .windows = o->windows,
                      .decode = o->decode,
                      .gate = &m->gate,
                      .progress = o->progress,
                      .user = o->user};
    int64_t most = g->net->config.context;
    how.context = o->context ? o->context : most < USUAL_CONTEXT ? most : USUAL_CONTEXT;
    km_status s = leading(m->token, &how.bos, err);
    extras e = {0};
    km_window_loss loss = {0};
    /* A collector sees whatever its context computes, so nobody else gets a turn meanwhile. */
    int turn = o->imatrix ? km_gate_enter(&m->gate, 1) : 0;
    if (s == KM_OK) s = open_extras(o, g, ids, &how, &e, err);
    if (s == KM_OK) s = km_windows_loss(g->ctx, g->net, ids, &how, &loss, err);
    r->tokens = loss.tokens;
    r->windows = loss.windows;
    r->context = how.context;
    r->loss = loss.loss;
    s = close_extras(o, &e, s, r, err);
    if (s == KM_OK) r->bytes = bytes_of(m->token, ids, &how);
    if (s != KM_OK) {
        int again = o->imatrix ? 0 : km_gate_enter(&m->gate, 1);
        for (km_net *p = g->net; p; p = p->next) km_ctx_clear_error(p->ctx);
        if (!o->imatrix) km_gate_leave(&m->gate, again);
    }
    if (o->imatrix) km_gate_leave(&m->gate, turn);
    return s;
}

static km_status check(const km_model *m, const km_ground *g, const km_perplexity_options *o,
                       km_error *err) {
    if (o->context < 0 || o->stride < 0 || o->windows < 0)
        return km_error_set(err, KM_ERR_RANGE,
                            "km_perplexity: a context, a stride or a number of windows below 0");
    if (m->comm)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "km_perplexity: not of a model that ranks share");
    if (o->imatrix && o->decode)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "an importance matrix comes from windows read at once, without decode");
    if (o->imatrix && g->net->next)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "an importance matrix needs all layers on one device");
    return KM_OK;
}

km_status km_perplexity(km_model *m, const char *text, size_t bytes,
                        const km_perplexity_options *options, km_perplexity_result *out) {
    km_perplexity_options o = km_perplexity_defaults();
    km_perplexity_result r = {.size = sizeof r};
    km_error err = {0};
    km_ids ids = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_perplexity", m, true)) return km_last_status();
    if (!text || !out)
        return km_public_fail(KM_ERR_NULL, "km_perplexity: no %s given", text ? "result" : "text");
    if (km_take_options("km_perplexity", &o, sizeof o, options) != KM_OK) return km_last_status();
    km_status s = km_check_sized(out, sizeof r, "km_perplexity_result", &err);
    km_ground *g = km_ground_hold(m);
    if (s == KM_OK) s = check(m, g, &o, &err);
    if (s == KM_OK) s = km_token_encode(m->token, text, bytes, KM_TOKEN_PLAIN, &ids, &err);
    if (s == KM_OK) s = measure(m, g, &ids, &o, &r, &err);
    if (s != KM_OK && km_ground_again(m, &g, &err)) s = measure(m, g, &ids, &o, &r, &err);
    km_ground_drop(g);
    km_ids_free(&ids);
    if (s == KM_OK) km_give_sized(out, &r, sizeof r);
    km_last_error_set(&err);
    return s;
}
