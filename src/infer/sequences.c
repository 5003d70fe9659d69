/* Sequences: their tokens, their logits, and the order of things when they go on. */
#include "infer/sequences_impl.h"
#include "base/alloc.h"
#include <string.h>

km_sequences_options km_sequences_defaults(void) {
    return (km_sequences_options){.cache = KM_F16, .sequences = 1};
}

/* The host's kernels for weights in blocks do; products of floats (a library's, maybe) and a GPU's may
 * go another way for another number of rows. */
static bool rows_are_alone(const km_net *m) {
    for (; m; m = m->next) {
        if (!m->ctx->device->host) return false;
        for (int i = 0; i < m->params.n; i++)
            if (m->params.at[i].t->shape.ndim == 2 && !km_dtype_is_block(m->params.at[i].t->dtype))
                return false;
    }
    return true;
}

km_status km_sequences_failed(km_sequences *b, km_error *err) {
    return km_error_set(err, km_ctx_status(b->ctx), "%s", km_ctx_error(b->ctx));
}

km_sequences *km_sequences_new(km_ctx *ctx, km_net *m, const km_sequences_options *o,
                               km_error *err) {
    km_sequences *b = km_calloc(1, sizeof *b);
    if (!b) {
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return NULL;
    }
    b->ctx = ctx;
    b->m = m;
    b->alone = rows_are_alone(m);
    b->how = o ? *o : km_sequences_defaults();
    if (b->how.context <= 0 || b->how.context > m->config.context)
        b->how.context = m->config.context;
    if (b->how.sequences < 1) b->how.sequences = 1;
    if (b->how.keep < 0 || b->how.keep > b->how.context / 2) b->how.keep = b->how.context / 2;
    km_cache_options c = {b->how.cache, b->how.sequences, b->how.context, 0};
    if (b->how.memory) c.pages = km_cache_pages_in(&m->config, &c, b->how.memory);
    if (b->how.memory && c.pages == 0) {
        km_error_set(err, KM_ERR_RANGE, "session: %zu bytes hold no page of the cache",
                     b->how.memory);
        km_free(b);
        return NULL;
    }
    b->cache = km_cache_new(ctx, m, &c);
    b->plan = b->cache ? km_plan_new(ctx, m, b->cache) : NULL;
    b->seq = km_calloc((size_t)b->how.sequences, sizeof *b->seq);
    b->mix = km_calloc((size_t)b->how.sequences, sizeof *b->mix);
    bool made = b->plan && b->seq && b->mix;
    km_status told = made ? km_lead_begin(m, &c, &b->lead, err) : KM_OK;
    if (made) km_plan_mixes(b->plan, b->mix);
    if (made && told == KM_OK) return b;
    if (km_failed(ctx))
        km_sequences_failed(b, err);
    else if (told == KM_OK)
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    km_sequences_free(b);
    return NULL;
}

void km_sequences_free(km_sequences *b) {
    if (!b) return;
    for (int64_t i = 0; i < b->how.sequences && b->seq; i++) {
        km_free(b->seq[i].seen);
        km_free(b->seq[i].logits);
        km_free(b->seq[i].tried);
    }
    km_lead_end(b->lead);
    km_plan_free(b->plan);
    km_cache_free(b->cache);
    km_free(b->seq);
    km_free(b->mix);
    km_free(b->rows);
    km_free(b);
}

const km_sequences_options *km_sequences_how(const km_sequences *b) { return &b->how; }

void km_sequences_on_progress(km_sequences *b,
                              bool (*progress)(void *user, int64_t done, int64_t total),
                              void *user) {
    b->how.progress = progress;
    b->how.user = user;
}

/* ---- The cache and the plan, of which ranks that follow are told ---- */

km_status km_sequences_reserve(km_sequences *b, int s, int64_t n, km_error *err) {
    km_status status = km_cache_reserve(b->cache, s, n, err);
    if (status == KM_OK) km_lead_note(b->lead, KM_LEAD_RESERVE, s, n);
    return status;
}

void km_sequences_add(km_sequences *b, int s, int64_t n) {
    km_cache_add(b->cache, s, n);
    km_lead_note(b->lead, KM_LEAD_ADD, s, n);
}

bool km_sequences_cut(km_sequences *b, int s, int64_t length) {
    if (!km_cache_cut(b->cache, s, length)) return false;
    if (b->seq[s].settled > length) b->seq[s].settled = length;
    km_lead_note(b->lead, KM_LEAD_CUT, s, length);
    return true;
}

static void leave(km_sequences *b, int s) {
    km_cache_leave(b->cache, s);
    km_lead_note(b->lead, KM_LEAD_LEAVE, s, 0);
}

static km_status run_few(km_sequences *b, const int32_t *ids, const int32_t *rows, int64_t n,
                         float *logits) {
    km_status status = km_lead_few(b->lead, ids, rows, n);
    return status == KM_OK ? km_plan_few(b->plan, ids, rows, n, logits) : status;
}

static km_status run_prompt(km_sequences *b, const int32_t *ids, int64_t n, int s, int64_t position,
                            float *logits) {
    km_status status = km_lead_prompt(b->lead, ids, n, s, position, logits != NULL);
    km_plan_cancel_by(b->plan, b->lead ? NULL : b->seq[s].cancel); /* ranks would not agree on it */
    return status == KM_OK ? km_plan_prompt(b->plan, ids, n, s, position, logits) : status;
}

static km_status run_choose(km_sequences *b, const int32_t *ids, const int32_t *rows, int64_t n,
                            int64_t steps, km_chooser *const *chooser) {
    km_status status = km_lead_choose(b->lead, ids, rows, n, steps, chooser);
    return status == KM_OK ? km_plan_choose(b->plan, ids, rows, n, steps, chooser) : status;
}

/* ---- Sequences ---- */

static int begin(km_sequences *b, int s, km_error *err) {
    if (s < 0) return s;
    km_sequence_state *q = &b->seq[s];
    if (!q->seen) q->seen = km_calloc((size_t)b->how.context, sizeof *q->seen);
    if (!q->logits) q->logits = km_calloc((size_t)b->m->config.vocab, sizeof *q->logits);
    if (!q->seen || !q->logits) {
        leave(b, s);
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return -1;
    }
    q->used = true;
    q->ready = false;
    q->settled = 0;
    q->cancel = NULL;
    b->mix[s] = (km_adapter_mix){0};
    q->shift = b->how.shift;
    q->keep = b->how.keep;
    return s;
}

void km_sequences_set_shift(km_sequences *b, int s, bool on, int64_t keep) {
    b->seq[s].shift = on;
    b->seq[s].keep = keep < 0 || keep > b->how.context / 2 ? b->how.context / 2 : keep;
}

int km_sequences_join(km_sequences *b, km_error *err) {
    int s = km_cache_join(b->cache, err);
    if (s >= 0) km_lead_note(b->lead, KM_LEAD_JOIN, s, 0);
    return begin(b, s, err);
}

int km_sequences_fork(km_sequences *b, int from, km_error *err) {
    int s = km_cache_fork(b->cache, from, err);
    if (s >= 0) km_lead_note(b->lead, KM_LEAD_FORK, s, from);
    s = begin(b, s, err);
    if (s < 0) return s;
    const km_sequence_state *f = &b->seq[from];
    memcpy(b->seq[s].seen, f->seen, sizeof *f->seen * (size_t)km_cache_length(b->cache, from));
    if (f->ready)
        memcpy(b->seq[s].logits, f->logits, sizeof *f->logits * (size_t)b->m->config.vocab);
    b->seq[s].ready = f->ready;
    b->seq[s].settled = f->settled;
    b->seq[s].shift = f->shift;
    b->seq[s].keep = f->keep;
    b->mix[s] = b->mix[from];
    return s;
}

void km_sequences_set_mix(km_sequences *b, int s, const km_adapter_mix *mix) {
    if (km_adapter_mix_equal(&b->mix[s], mix)) return;
    km_sequences_cut(b, s, 0);
    b->seq[s].ready = false;
    b->mix[s] = *mix;
}

void km_sequences_cancel_by(km_sequences *b, int s, const atomic_bool *flag) {
    b->seq[s].cancel = flag;
}

int64_t km_sequences_pages_left(const km_sequences *b) { return km_cache_pages_left(b->cache); }

int64_t km_sequences_pages_for(const km_sequences *b, int s, int64_t n) {
    return km_cache_pages_for(b->cache, s, n);
}

void km_sequences_leave(km_sequences *b, int s) {
    leave(b, s);
    b->seq[s].used = b->seq[s].ready = false;
}

const float *km_sequences_logits(const km_sequences *b, int s) {
    return b->seq[s].ready ? b->seq[s].logits : NULL;
}

int64_t km_sequences_length(const km_sequences *b, int s) { return km_cache_length(b->cache, s); }
const int32_t *km_sequences_tokens(const km_sequences *b, int s) { return b->seq[s].seen; }

void km_sequences_pages(const km_sequences *b, int64_t *all, int64_t *unused) {
    km_cache_pages(b->cache, all, unused);
}

int64_t km_sequences_page_bytes(const km_sequences *b) {
    return (int64_t)km_cache_page_bytes(b->cache) * km_cache_pools(b->cache);
}

int64_t km_sequences_match(const km_sequences *b, int s, const int32_t *ids, size_t n) {
    int64_t length = km_cache_length(b->cache, s), same = 0;
    while (same < length && (size_t)same < n && b->seq[s].seen[same] == ids[same]) same++;
    return km_cache_can_cut(b->cache, s, same) ? same : 0;
}

/* Reading all of n tokens runs them in chunks whose bounds are multiples of `most`; the last one, where
 * it has few rows, by other kernels than the rest. What is read now must run likewise. */
int64_t km_sequences_settled(const km_sequences *b, int s, const int32_t *ids, size_t n) {
    int64_t total = (int64_t)n, most = km_sequences_chunk(b);
    if (total == 0) return 0;
    int64_t last = (total - 1) / most * most, from = km_sequences_match(b, s, ids, n);
    if (from > b->seq[s].settled) from = b->seq[s].settled;
    if (from > total - 1) from = total - 1; /* it is read for its logits */
    if (!b->alone) {
        from = from / most * most;
    } else if (total - last <= KM_FEW_ROWS && from >= last) {
        from = last;
    } else { /* no piece of few rows where all together are many */
        int64_t begin = from / most * most, end = begin + most < total ? begin + most : total;
        if (end - from <= KM_FEW_ROWS) from = end - KM_FEW_ROWS - 1;
        if (from < begin) from = begin;
    }
    return km_cache_can_cut(b->cache, s, from) ? from : 0;
}

void km_sequences_rewind(km_sequences *b, int s, int64_t length) {
    if (length < 0 || length >= km_cache_length(b->cache, s)) return;
    if (!km_sequences_cut(b, s, length)) km_sequences_cut(b, s, 0);
    b->seq[s].ready = false;
}

km_status km_sequences_pretend(km_sequences *b, int s, int64_t n, km_error *err) {
    if (b->lead)
        return km_error_set(err, KM_ERR_UNSUPPORTED, "session: not where ranks share the model");
    void *zeros = km_calloc(1, km_cache_page_bytes(b->cache));
    if (!zeros) return km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    km_sequences_cut(b, s, 0);
    km_status status = km_cache_restore(b->cache, s, n, 0, err);
    for (int64_t i = 0; status == KM_OK && i * KM_KV_PAGE < n; i++)
        for (int pool = 0; pool < km_cache_pools(b->cache) && status == KM_OK; pool++)
            if (km_cache_page_write(b->cache, s, i, pool, zeros) != KM_OK)
                status = km_sequences_failed(b, err);
    memset(b->seq[s].seen, 0, sizeof *b->seq[s].seen * (size_t)n);
    b->seq[s].ready = false;
    b->seq[s].settled = 0;
    km_free(zeros);
    for (km_net *m = b->m; m; m = m->next)
        if (!km_failed(m->ctx)) km_step_end(m->ctx);
    return status;
}

/* ---- Going on ---- */

km_status km_sequences_check_id(const km_sequences *b, int32_t id, km_error *err) {
    if (id >= 0 && id < b->m->config.vocab) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "token %d is not in the model's vocabulary of %lld",
                        (int)id, (long long)b->m->config.vocab);
}

km_status km_sequences_too_long(const km_sequences *b, int64_t past, size_t n, km_error *err) {
    if (past)
        return km_error_set(err, KM_ERR_RANGE,
                            "%zu tokens after %lld do not fit the model's context of %lld", n,
                            (long long)past, (long long)b->how.context);
    return km_error_set(err, KM_ERR_RANGE, "the prompt has %zu tokens and the model's context %lld",
                        n, (long long)b->how.context);
}

int64_t km_sequences_chunk(const km_sequences *b) {
    return km_prompt_chunk(km_net_end(b->m)->ctx->device);
}

static km_status stopped(int64_t done, int64_t n, km_error *err) {
    return km_error_set(err, KM_ERR_STATE, "stopped after %lld of %lld tokens", (long long)done,
                        (long long)n);
}

/* Chunk after chunk, each up to a bound of the sequence; what was read before a failure stays. */
static km_status read_chunks(km_sequences *b, int s, const int32_t *ids, int64_t n, km_error *err) {
    km_sequence_state *q = &b->seq[s];
    int64_t most = km_sequences_chunk(b);
    for (int64_t at = 0, take; at < n; at += take) {
        int64_t past = km_cache_length(b->cache, s), room = most - past % most;
        take = n - at < room ? n - at : room;
        bool last = at + take == n;
        km_status status = km_sequences_reserve(b, s, take, err);
        if (status != KM_OK) return status;
        q->ready = false;
        if (n == 1)
            status = run_few(b, ids, (int32_t[]){s, (int32_t)past}, 1, q->logits);
        else
            status = run_prompt(b, ids + at, take, s, past, last ? q->logits : NULL);
        if (status == KM_ERR_STATE && !km_failed(b->ctx)) return stopped(at, n, err);
        if (status != KM_OK) return km_sequences_failed(b, err);
        memcpy(q->seen + past, ids + at, sizeof *ids * (size_t)take);
        km_sequences_add(b, s, take);
        if (q->settled >= past && (b->alone ? take > KM_FEW_ROWS : take == most))
            q->settled = past + take;
        if (b->how.progress && n > 1 && !b->how.progress(b->how.user, at + take, n) && !last)
            return stopped(at + take, n, err);
    }
    q->ready = true;
    return KM_OK;
}

km_status km_sequences_read(km_sequences *b, int s, const int32_t *ids, size_t n, km_error *err) {
    int64_t past = km_cache_length(b->cache, s);
    if (n == 0) return KM_OK;
    if (n > (size_t)(b->how.context - past)) return km_sequences_too_long(b, past, n, err);
    for (size_t i = 0; i < n; i++)
        if (km_sequences_check_id(b, ids[i], err) != KM_OK) return KM_ERR_RANGE;
    return read_chunks(b, s, ids, (int64_t)n, err);
}

/* The first `keep` tokens and the second half of the others, read anew: their positions change, and
 * with them all that was kept of them. */
static km_status shift(km_sequences *b, int s, km_error *err) {
    km_sequence_state *q = &b->seq[s];
    int64_t full = km_cache_length(b->cache, s), keep = q->keep, half = (full - keep) / 2;
    memmove(q->seen + keep, q->seen + full - half, sizeof *q->seen * (size_t)half);
    if (!km_sequences_cut(b, s, keep)) {
        km_sequences_cut(b, s, 0);
        keep = 0;
        half += q->keep;
    }
    q->ready = false;
    if (half == 0) return KM_OK;
    int32_t *again = km_alloc(sizeof *again * (size_t)half);
    if (!again) return km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    memcpy(again, q->seen + keep, sizeof *again * (size_t)half);
    km_status status = read_chunks(b, s, again, half, err);
    km_free(again);
    return status;
}

static km_status make_room(km_sequences *b, int s, km_error *err) {
    int64_t past = km_cache_length(b->cache, s);
    if (past < b->how.context) return KM_OK;
    return b->seq[s].shift ? shift(b, s, err) : km_sequences_too_long(b, past, 1, err);
}

/* Host memory for the logits of a step's n rows. */
static bool rows_ready(km_sequences *b, int n) {
    size_t each = sizeof *b->rows * (size_t)b->m->config.vocab;
    if (n <= b->n_rows) return true;
    km_free(b->rows);
    b->rows = km_alloc(each * (size_t)n);
    b->n_rows = b->rows ? n : 0;
    return b->rows != NULL;
}

/* Pages for `steps` more tokens of each, or of none. */
static km_status reserve_all(km_sequences *b, const km_sequences_token *t, int n, int64_t steps,
                             km_error *err) {
    km_status status = KM_OK;
    int had = 0;
    while (had < n && (status = km_sequences_reserve(b, t[had].sequence, steps, err)) == KM_OK)
        had++;
    for (int i = 0; status != KM_OK && i < had; i++)
        km_sequences_cut(b, t[i].sequence, km_cache_length(b->cache, t[i].sequence));
    return status;
}

/* At most KM_STEP_ROWS of them, which have pages. */
static km_status step_few(km_sequences *b, const km_sequences_token *t, int n, km_error *err) {
    int32_t ids[KM_STEP_ROWS], rows[2 * KM_STEP_ROWS];
    size_t vocab = (size_t)b->m->config.vocab;
    if (n > 1 && !rows_ready(b, n))
        return km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    for (int i = 0; i < n; i++) {
        ids[i] = t[i].id;
        rows[2 * i] = t[i].sequence;
        rows[2 * i + 1] = (int32_t)km_cache_length(b->cache, t[i].sequence);
        b->seq[t[i].sequence].ready = false;
    }
    float *to = n == 1 ? b->seq[t[0].sequence].logits : b->rows;
    if (run_few(b, ids, rows, n, to) != KM_OK) return km_sequences_failed(b, err);
    for (int i = 0; i < n; i++) {
        km_sequence_state *q = &b->seq[t[i].sequence];
        if (n > 1) memcpy(q->logits, b->rows + (size_t)i * vocab, sizeof *b->rows * vocab);
        q->seen[rows[2 * i + 1]] = ids[i];
        q->ready = true;
        km_sequences_add(b, t[i].sequence, 1);
    }
    return KM_OK;
}

int64_t km_sequences_ahead(const km_sequences *b) { return b->m->next ? 1 : 64; }

km_status km_sequences_choose(km_sequences *b, const km_sequences_token *t, int n, int64_t steps,
                              km_chooser *const *chooser, int32_t *out, km_error *err) {
    int32_t ids[KM_STEP_ROWS], rows[2 * KM_STEP_ROWS];
    if (n < 1 || n > KM_STEP_ROWS || steps < 1 || steps > km_sequences_ahead(b))
        return km_error_set(err, KM_ERR_RANGE, "%lld steps of %d sequences at once",
                            (long long)steps, n);
    for (int i = 0; i < n; i++) {
        int64_t past = km_cache_length(b->cache, t[i].sequence);
        if (km_sequences_check_id(b, t[i].id, err) != KM_OK) return KM_ERR_RANGE;
        if (steps > b->how.context - past)
            return km_sequences_too_long(b, past, (size_t)steps, err);
        ids[i] = t[i].id;
        rows[2 * i] = t[i].sequence;
        rows[2 * i + 1] = (int32_t)past;
    }
    if (reserve_all(b, t, n, steps, err) != KM_OK) return err->code;
    for (int i = 0; i < n; i++) b->seq[t[i].sequence].ready = false;
    if (run_choose(b, ids, rows, n, steps, chooser) != KM_OK) return km_sequences_failed(b, err);
    for (int i = 0; i < n; i++) {
        const int32_t *state = chooser[i]->state;
        int32_t *seen = b->seq[t[i].sequence].seen + rows[2 * i + 1];
        for (int64_t k = 0; k < steps; k++) {
            int32_t at = state[KM_SAMPLE_SEEN] - (int32_t)(steps - k);
            out[i * steps + k] = state[KM_SAMPLE_TOKEN_AT + at % KM_SAMPLE_RING];
            seen[k] = k == 0 ? ids[i] : out[i * steps + k - 1];
        }
        km_sequences_add(b, t[i].sequence, steps);
    }
    return KM_OK;
}

/* The token that a chooser has chosen last. */
static int32_t last_of(const km_chooser *c) {
    return c->state[KM_SAMPLE_TOKEN_AT + (c->state[KM_SAMPLE_SEEN] - 1) % KM_SAMPLE_RING];
}

int km_sequences_check(km_sequences *b, int s, const int32_t *ids, int n, km_chooser *chooser,
                       int32_t *out, km_error *err) {
    km_chooser each[KM_FEW_ROWS], *at[KM_FEW_ROWS];
    int32_t rows[2 * KM_FEW_ROWS];
    int64_t past = km_cache_length(b->cache, s);
    if (n < 1 || n > KM_FEW_ROWS || n > b->how.context - past) {
        km_sequences_too_long(b, past, (size_t)n, err);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        if (km_sequences_check_id(b, ids[i], err) != KM_OK) return -1;
        rows[2 * i] = s;
        rows[2 * i + 1] = (int32_t)(past + i);
        at[i] = &each[i];
        /* As if what was guessed before it had been chosen: a number drawn for each. */
        each[i] = i ? each[i - 1] : *chooser;
        if (i) km_chooser_chose(&each[i], ids[i]);
    }
    if (km_sequences_reserve(b, s, n, err) != KM_OK) return -1;
    b->seq[s].ready = false;
    if (run_choose(b, ids, rows, n, 1, at) != KM_OK) {
        km_sequences_failed(b, err);
        return -1;
    }
    int right = 0;
    do out[right] = last_of(&each[right]);
    while (++right < n && out[right - 1] == ids[right]);
    *chooser = each[right - 1];
    memcpy(b->seq[s].seen + past, ids, sizeof *ids * (size_t)right);
    km_sequences_add(b, s, right);
    return right;
}

const float *km_sequences_try(km_sequences *b, int s, const int32_t *ids, int n, km_error *err) {
    int32_t rows[2 * KM_FEW_ROWS];
    int64_t past = km_cache_length(b->cache, s);
    for (int i = 0; i < n; i++) {
        if (km_sequences_check_id(b, ids[i], err) != KM_OK) return NULL;
        rows[2 * i] = s;
        rows[2 * i + 1] = (int32_t)(past + i);
    }
    if (n < 1 || n > KM_FEW_ROWS || n > b->how.context - past) {
        km_sequences_too_long(b, past, (size_t)n, err);
        return NULL;
    }
    km_sequence_state *q = &b->seq[s];
    if (!q->tried) q->tried = km_alloc(sizeof *q->tried * KM_FEW_ROWS * (size_t)b->m->config.vocab);
    if (!q->tried) {
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return NULL;
    }
    if (km_sequences_reserve(b, s, n, err) != KM_OK) return NULL;
    q->ready = false;
    if (run_few(b, ids, rows, n, q->tried) == KM_OK) return q->tried;
    km_sequences_failed(b, err);
    return NULL;
}

void km_sequences_take(km_sequences *b, int s, const int32_t *ids, int keep) {
    km_sequence_state *q = &b->seq[s];
    size_t vocab = (size_t)b->m->config.vocab;
    if (keep < 1) return;
    memcpy(q->seen + km_cache_length(b->cache, s), ids, sizeof *ids * (size_t)keep);
    memcpy(q->logits, q->tried + (size_t)(keep - 1) * vocab, sizeof *q->tried * vocab);
    km_sequences_add(b, s, keep);
    q->ready = true;
}

km_status km_sequences_step(km_sequences *b, const km_sequences_token *t, int n, km_error *err) {
    km_status status = KM_OK;
    for (int i = 0; i < n; i++) {
        if (km_sequences_check_id(b, t[i].id, err) != KM_OK) return KM_ERR_RANGE;
        for (int k = 0; k < i; k++)
            if (t[k].sequence == t[i].sequence)
                return km_error_set(err, KM_ERR_STATE, "sequence %d is in the step twice",
                                    t[i].sequence);
    }
    for (int i = 0; i < n && status == KM_OK; i++) status = make_room(b, t[i].sequence, err);
    if (status == KM_OK) status = reserve_all(b, t, n, 1, err);
    int most = KM_STEP_ROWS;
    for (int i = 0; i < n && status == KM_OK; i += most)
        status = step_few(b, t + i, n - i < most ? n - i : most, err);
    return status;
}
