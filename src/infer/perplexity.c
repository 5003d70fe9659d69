/* The loss of a text, window by window: a window is read at once, its logits are made some rows at a
 * time, so that a large vocabulary does not need them all in memory. Or token by token. */
#include "infer/perplexity.h"
#include "base/alloc.h"
#include "base/util.h"
#include "infer/sequence.h"
#include "model/parts.h"
#include <math.h>

#define ROWS 64 /* of logits at a time */

typedef struct perplexity_job {
    km_ctx *ctx;     /* of the end */
    km_net *m, *end; /* the first part and the last; the same as a rule */
    const km_windows *o;
    float *logits;        /* (ROWS, vocab) on the host, where somebody wants to see them */
    km_sequence *session; /* with decode */
    double sum;
    km_error *err;
} perplexity_job;

static km_status show(perplexity_job *j, km_tensor *y, const int32_t *came, int64_t rows) {
    int64_t vocab = j->m->config.vocab;
    if (!j->o->row) return KM_OK;
    if (km_read(j->ctx, y, j->logits, sizeof *j->logits * (size_t)(rows * vocab)) != KM_OK)
        return KM_OK; /* the context has the error */
    km_status s = KM_OK;
    for (int64_t i = 0; i < rows && s == KM_OK; i++)
        s = j->o->row(j->o->row_user, j->logits + i * vocab, came[i], j->err);
    return s;
}

/* What the last layer gives for each token, part after part. */
static km_tensor *read_all(km_net *m, const int32_t *ids, int64_t n) {
    km_tensor *x = km_from_data(m->ctx, KM_I32, KM_SHAPE(1, n), ids);
    for (km_net *p = m; p; p = p->next) {
        km_no_grad_begin(p->ctx);
        if (p != m) x = km_net_pass(p->ctx, x);
        x = km_net_forward(p->ctx, p, x, NULL);
        km_no_grad_end(p->ctx);
    }
    return x;
}

/* Adds -log p of ids[first ..] given what is before them; 1 <= first < n. */
static km_status read_window(perplexity_job *j, const int32_t *ids, int64_t n, int64_t first) {
    km_ctx *ctx = j->ctx;
    km_status s = KM_OK;
    km_no_grad_begin(ctx);
    km_tensor *targets = km_from_data(ctx, KM_I32, KM_SHAPE(1, n - 1), ids + 1);
    km_tensor *h = read_all(j->m, ids, n - 1); /* (1, n - 1, C) */
    for (int64_t at = first - 1; at < n - 1 && !km_failed(ctx) && s == KM_OK; at += ROWS) {
        int64_t rows = n - 1 - at < ROWS ? n - 1 - at : ROWS;
        km_scope_begin(ctx);
        km_tensor *y = km_net_logits(ctx, j->end, km_narrow(ctx, h, 1, at, rows));
        km_tensor *t = km_narrow(ctx, targets, 1, at, rows);
        y = km_cast(ctx, y, KM_F32);
        j->sum += km_item(ctx, km_cross_entropy(ctx, y, t, KM_NO_IGNORE, KM_SUM));
        if (!km_failed(ctx)) s = show(j, y, ids + 1 + at, rows);
        km_scope_end(ctx, NULL);
    }
    km_no_grad_end(ctx);
    return s;
}

static double loss_of(const float *logits, int64_t vocab, int32_t came) {
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < vocab; i++) most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < vocab; i++) sum += exp(logits[i] - most);
    return most + log(sum) - logits[came];
}

/* The same, each token by itself. */
static km_status read_by_token(perplexity_job *j, const int32_t *ids, int64_t n, int64_t first) {
    km_status s = KM_OK;
    km_sequence_reset(j->session);
    for (int64_t i = 0; i < n - 1 && s == KM_OK; i++) {
        s = km_sequence_read(j->session, ids + i, 1, j->err);
        if (s != KM_OK) break;
        if (i + 1 < first) continue;
        const float *logits = km_sequence_logits(j->session);
        j->sum += loss_of(logits, j->m->config.vocab, ids[i + 1]);
        if (j->o->row) s = j->o->row(j->o->row_user, logits, ids[i + 1], j->err);
    }
    return s;
}

/* Tokens of the text that a window takes. */
static int64_t fresh_of(const km_windows *o) { return o->context - (o->bos >= 0); }

bool km_windows_next(const km_windows *o, int64_t total, km_window *w) {
    int64_t fresh = fresh_of(o), stride = o->stride ? o->stride : fresh, reached = w->end;
    if (w->number == 0 ? total == 0 : w->end >= total || w->number == o->windows) return false;
    w->begin = w->number ? w->begin + stride : 0;
    w->end = total - w->begin < fresh ? total : w->begin + fresh;
    w->first = km_max64(reached, w->begin + (o->bos < 0));
    w->first = km_min64(w->first, w->end);
    w->number++;
    return true;
}

int64_t km_windows_count(const km_ids *ids, const km_windows *o) {
    km_window w = {0};
    int64_t n = 0;
    while (km_windows_next(o, (int64_t)ids->len, &w)) n += w.end - w.first;
    return n;
}

static km_status check(const km_net *m, const km_ids *ids, const km_windows *o, km_error *err) {
    if (o->context < 2 || o->context > m->config.context)
        return km_error_set(err, KM_ERR_RANGE,
                            "windows of %lld tokens; the model's context is %lld, and 2 the least",
                            (long long)o->context, (long long)m->config.context);
    if (o->stride < 0 || o->stride > fresh_of(o))
        return km_error_set(err, KM_ERR_RANGE,
                            "a stride of %lld tokens, where a window takes %lld of the text",
                            (long long)o->stride, (long long)fresh_of(o));
    if (km_windows_count(ids, o) < 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "the text has %lld tokens; there is nothing to predict",
                            (long long)ids->len);
    return KM_OK;
}

/* One window, in its turn at the gate; row has room for it. */
static km_status predict(perplexity_job *j, const km_ids *ids, const km_window *w, int32_t *row) {
    int64_t lead = j->o->bos >= 0, n = w->end - w->begin;
    km_status s = KM_OK;
    if (lead) row[0] = j->o->bos;
    for (int64_t i = 0; i < n; i++) row[lead + i] = ids->data[w->begin + i];
    int64_t first = lead + w->first - w->begin;
    if (first < lead + n) s = (j->o->decode ? read_by_token : read_window)(j, row, lead + n, first);
    if (!km_net_failed(j->m))
        for (km_net *p = j->m; p; p = p->next) km_step_end(p->ctx);
    km_ctx *ctx = j->m->ctx;
    return km_failed(ctx) ? km_error_set(j->err, km_ctx_status(ctx), "%s", km_ctx_error(ctx)) : s;
}

km_status km_windows_loss(km_ctx *ctx, km_net *m, const km_ids *ids, const km_windows *o,
                          km_window_loss *out, km_error *err) {
    *out = (km_window_loss){0};
    km_status s = check(m, ids, o, err);
    if (s != KM_OK) return s;
    int64_t total = (int64_t)ids->len, last = 0;
    perplexity_job j = {.m = m, .end = km_net_end(m), .o = o, .err = err};
    j.ctx = j.end->ctx;
    int32_t *row = km_alloc(sizeof *row * (size_t)o->context);
    if (o->row) j.logits = km_alloc(sizeof *j.logits * (size_t)(ROWS * m->config.vocab));
    if (!row || (o->row && !j.logits)) s = km_no_memory_for(err, "a window of text");
    km_sequences_options each = km_sequences_defaults();
    each.context = o->context;
    int turn = o->gate ? km_gate_enter(o->gate, 1) : 0;
    if (s == KM_OK && o->decode && !(j.session = km_sequence_open(ctx, m, &each, err)))
        s = err->code;
    if (o->gate) km_gate_leave(o->gate, turn);
    for (km_window w = {0}; km_windows_next(o, total, &w);) last = w.end;
    for (km_window w = {0}; s == KM_OK && km_windows_next(o, total, &w);) {
        turn = o->gate ? km_gate_enter(o->gate, 1) : 0;
        s = predict(&j, ids, &w, row);
        if (o->gate) km_gate_leave(o->gate, turn);
        out->tokens += w.end - w.first;
        out->windows++;
        if (s == KM_OK && o->progress && !o->progress(o->user, w.end, last))
            s = km_error_set(err, KM_ERR_STATE, "stopped");
    }
    turn = o->gate ? km_gate_enter(o->gate, 1) : 0;
    km_sequence_free(j.session);
    if (o->gate) km_gate_leave(o->gate, turn);
    km_free(row);
    km_free(j.logits);
    out->loss = out->tokens ? j.sum / (double)out->tokens : 0;
    return s;
}
