/* The loss of a text, piece by piece: a piece is read at once, its logits are made some rows at a
 * time, so that a large vocabulary does not need them all in memory. Or token by token. */
#include "infer/perplexity.h"
#include "base/alloc.h"
#include "infer/sequence.h"
#include "model/parts.h"
#include <math.h>

#define ROWS 64 /* of logits at a time */

typedef struct perplexity_job {
    km_ctx *ctx;     /* of the end */
    km_net *m, *end; /* the first part and the last; the same as a rule */
    const km_perplexity_options *o;
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

/* Adds -log p of ids[1 ..] given what is before them; n >= 2. */
static km_status piece(perplexity_job *j, const int32_t *ids, int64_t n) {
    km_ctx *ctx = j->ctx;
    km_status s = KM_OK;
    km_no_grad_begin(ctx);
    km_tensor *targets = km_from_data(ctx, KM_I32, KM_SHAPE(1, n - 1), ids + 1);
    km_tensor *h = read_all(j->m, ids, n - 1); /* (1, n - 1, C) */
    for (int64_t at = 0; at < n - 1 && !km_failed(ctx) && s == KM_OK; at += ROWS) {
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
static km_status piece_by_token(perplexity_job *j, const int32_t *ids, int64_t n) {
    km_status s = KM_OK;
    km_sequence_reset(j->session);
    for (int64_t i = 0; i < n - 1 && s == KM_OK; i++) {
        s = km_sequence_read(j->session, ids + i, 1, j->err);
        if (s != KM_OK) break;
        const float *logits = km_sequence_logits(j->session);
        j->sum += loss_of(logits, j->m->config.vocab, ids[i + 1]);
        if (j->o->row) s = j->o->row(j->o->row_user, logits, ids[i + 1], j->err);
    }
    return s;
}

/* Tokens of the text that a piece takes. */
static int64_t fresh_of(const km_perplexity_options *o) { return o->context - (o->bos >= 0); }

int64_t km_perplexity_count(const km_ids *ids, const km_perplexity_options *o) {
    int64_t total = (int64_t)ids->len, fresh = fresh_of(o), lead = o->bos >= 0, n = 0, pieces = 0;
    for (int64_t at = 0; at < total && (!o->pieces || pieces < o->pieces); at += fresh, pieces++) {
        int64_t some = total - at < fresh ? total - at : fresh;
        if (some + lead >= 2) n += some + lead - 1;
    }
    return n;
}

static km_status check(const km_net *m, const km_ids *ids, const km_perplexity_options *o,
                       km_error *err) {
    if (o->context < 2 || o->context > m->config.context)
        return km_error_set(err, KM_ERR_RANGE,
                            "pieces of %lld tokens; the model's context is %lld, and 2 the least",
                            (long long)o->context, (long long)m->config.context);
    if (km_perplexity_count(ids, o) < 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "the text has %lld tokens; there is nothing to predict",
                            (long long)ids->len);
    return KM_OK;
}

km_status km_perplexity_of(km_ctx *ctx, km_net *m, const km_ids *ids,
                           const km_perplexity_options *o, km_perplexity *out, km_error *err) {
    *out = (km_perplexity){0};
    km_status s = check(m, ids, o, err);
    if (s != KM_OK) return s;
    int64_t total = (int64_t)ids->len, fresh = fresh_of(o), lead = o->bos >= 0;
    perplexity_job j = {.m = m, .end = km_net_end(m), .o = o, .err = err};
    j.ctx = j.end->ctx;
    int32_t *row = km_alloc(sizeof *row * (size_t)o->context);
    if (o->row) j.logits = km_alloc(sizeof *j.logits * (size_t)(ROWS * m->config.vocab));
    if (!row || (o->row && !j.logits))
        s = km_error_set(err, KM_ERR_MEMORY, "perplexity: out of memory");
    km_sequences_options each = km_sequences_defaults();
    each.context = o->context;
    if (s == KM_OK && o->decode && !(j.session = km_sequence_open(ctx, m, &each, err)))
        s = err->code;
    for (int64_t at = 0; at < total && s == KM_OK; at += fresh) {
        int64_t n = total - at < fresh ? total - at : fresh;
        if (o->pieces && out->pieces == o->pieces) break;
        if (lead) row[0] = o->bos;
        for (int64_t i = 0; i < n; i++) row[lead + i] = ids->data[at + i];
        if (n + lead >= 2) {
            s = o->decode ? piece_by_token(&j, row, n + lead) : piece(&j, row, n + lead);
            out->tokens += n + lead - 1;
        }
        out->pieces++;
        if (!km_net_failed(m))
            for (km_net *p = m; p; p = p->next) km_step_end(p->ctx);
        if (km_failed(ctx)) s = km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
        if (s == KM_OK && o->progress && !o->progress(o->user, at + n, total))
            s = km_error_set(err, KM_ERR_STATE, "stopped");
    }
    km_sequence_free(j.session);
    km_free(row);
    km_free(j.logits);
    out->loss = out->tokens ? j.sum / (double)out->tokens : 0;
    return s;
}
