/* Making text: the prompt's tokens, then one after the other, by one of the ways of maker.h. */
#include "base/alloc.h"
#include "base/clock.h"
#include "infer/maker.h"
#include <string.h>

/* ---- The prompt ---- */

/* The text's ids with what the tokenizer puts before them, but without an end that it puts after
 * them: the text is to go on. */
static km_status encode(const km_token *token, const char *text, size_t bytes, bool rendered,
                        km_ids *ids, km_error *err) {
    unsigned flags = KM_TOKEN_PARSE_SPECIAL;
    km_ids plain = {0};
    if (rendered) return km_token_encode(token, text, bytes, flags, ids, err);
    km_status s = km_token_encode(token, text, bytes, flags, &plain, err);
    if (s == KM_OK) s = km_token_encode(token, text, bytes, flags | KM_TOKEN_ADD_SPECIAL, ids, err);
    if (s == KM_OK && ids->len > plain.len && ids->data[ids->len - 1] == km_token_eos(token) &&
        (plain.len == 0 || plain.data[plain.len - 1] != km_token_eos(token)))
        ids->len--;
    km_ids_free(&plain);
    return s;
}

/* One that stands for nothing when the prompt is empty, since a model goes on from something. */
km_status km_prompt_ids(const km_token *token, const char *prompt, size_t bytes, bool rendered,
                        km_ids *ids, km_error *err) {
    km_status s = encode(token, prompt, bytes, rendered, ids, err);
    int32_t bos = km_token_bos(token), eos = km_token_eos(token);
    if (s != KM_OK || ids->len > 0) return s;
    if (bos >= 0 || eos >= 0) return km_ids_put(ids, bos >= 0 ? &bos : &eos, 1, err);
    km_error ignored = {0};
    if (km_token_encode(token, "\n", 1, KM_TOKEN_PLAIN, ids, &ignored) == KM_OK && ids->len > 0)
        return KM_OK;
    return km_ids_put(ids, &(int32_t){0}, 1, err);
}

/* A device that failed in the middle: its session's tokens go on elsewhere, if somebody can see to
 * that. Guesses, and what was tried, are forgotten. */
static bool rescued(km_maker *g, km_error *err) {
    bool device = err->code == KM_ERR_GPU || err->code == KM_ERR_MEMORY ||
                  err->code == KM_ERR_DEVICE || err->code == KM_ERR_UNSUPPORTED;
    if (!g->how->rescue || !device) return false;
    km_sequence *other = g->how->rescue(g->how->rescuer, g->session, err);
    if (!other) return false;
    g->session = other;
    km_sequence_cancel_by(other, g->how->cancel);
    g->n_tried = g->n_chosen = g->taken = 0;
    g->way = g->base = &km_next_host;
    *err = (km_error){0};
    return true;
}

static bool cancelled(const km_maker *g) {
    return g->how->cancel && atomic_load_explicit(g->how->cancel, memory_order_relaxed);
}

/* A reading that ended early since it was told to (a prompt's, or that of the tokens that stay when a
 * context is shifted) is no failure: the text ends. Otherwise s. */
static km_status unless_cancelled(km_maker *g, km_status s, km_error *err) {
    if (s != KM_ERR_STATE || !cancelled(g)) return s;
    *err = (km_error){0};
    return km_voice_end(&g->voice, KM_ENDED_CANCELLED, err);
}

/* Reads what the session does not hold yet, a chunk at a time. */
static km_status read_rest(km_maker *g, const int32_t *ids, int64_t n, km_error *err) {
    int64_t most = km_sequence_chunk(g->session), same = km_sequence_length(g->session);
    bool watched = g->how->on_prompt || g->how->cancel;
    while (same < n) {
        int64_t part = most - same % most; /* to a bound of the sequence */
        if (!watched || part > n - same) part = n - same;
        km_status s = km_sequence_read(g->session, ids + same, (size_t)part, err);
        if (s != KM_OK && rescued(g, err)) {
            same = km_sequence_length(g->session);
            continue;
        }
        if (s != KM_OK) return unless_cancelled(g, s, err); /* in the middle of a chunk */
        same += part;
        bool on = !g->how->on_prompt || g->how->on_prompt(g->how->user, same, n);
        if (!on || (cancelled(g) && same < n))
            return km_voice_end(&g->voice, KM_ENDED_CANCELLED, err);
    }
    return KM_OK;
}

km_status km_maker_read(km_maker *g, const int32_t *ids, size_t n, km_error *err) {
    if ((int64_t)n > g->context)
        return km_error_set(err, KM_ERR_RANGE,
                            "the prompt has %zu tokens and the model's context %lld", n,
                            (long long)g->context);
    if (n == 0) return km_error_set(err, KM_ERR_RANGE, "the prompt has no tokens");
    int64_t same = g->how->exact ? km_sequence_settled(g->session, ids, n)
                                 : km_sequence_match(g->session, ids, n);
    if (same == (int64_t)n) same--; /* the last is read for its logits */
    km_sequence_rewind(g->session, same);
    g->got.prompt_tokens = (int64_t)n;
    g->got.reused = km_sequence_length(g->session); /* a window may have let go of more */
    km_status s = read_rest(g, ids, (int64_t)n, err);
    g->got.prompt_seconds = km_now() - g->start;
    if (s != KM_OK) return s;
    km_next_device_see(g, ids, n);
    g->logits = km_sequence_logits(g->session);
    return km_voice_read(&g->voice, ids, n, err);
}

/* ---- The answer ---- */

/* What was tried and turned out right is the session's; what was chosen and never taken is not. */
static void keep_tried(km_maker *g) {
    if (g->n_tried) km_sequence_take(g->session, g->tried, g->at);
    if (g->taken < g->n_chosen) km_sequence_rewind(g->session, g->held + g->taken);
    g->n_tried = g->n_chosen = g->taken = 0;
}

/* Tokens that the session holds, or will when what was tried is kept. */
static int64_t length_of(const km_maker *g) {
    if (g->n_chosen) return g->held + g->taken;
    return km_sequence_length(g->session) + (g->n_tried ? g->at : 0);
}

/* The token chosen last goes through the model, on another device if this one fails. */
static km_status go_on(km_maker *g, km_error *err) {
    int32_t id = g->last;
    if (id < 0) return KM_OK;
    if (g->voice.tokens == 1) km_next_device_see(g, &id, 1); /* the host chose it */
    km_status s = g->way->advance(g, id, err);
    if (s != KM_OK && rescued(g, err)) s = g->way->advance(g, id, err);
    g->last = -1;
    return s;
}

static km_status next(km_maker *g, int32_t *id, km_error *err) {
    km_status s = KM_OK;
    *id = -1;
    g->voice.text.len = 0;
    if (cancelled(g)) return km_voice_end(&g->voice, KM_ENDED_CANCELLED, err);
    if (g->how->tokens < 1) return km_voice_end(&g->voice, KM_ENDED_TOKENS, err);
    if ((s = go_on(g, err)) != KM_OK || (s = g->way->choose(g, id, err)) != KM_OK)
        return unless_cancelled(g, s, err);
    if (g->voice.tokens == 0) g->got.first_seconds = km_now() - g->start;
    if ((s = km_voice_take(&g->voice, *id, err)) != KM_OK) return s;
    g->last = *id;
    if (g->voice.end == KM_ENDED_TEXT) *id = -1;
    if (g->voice.end == KM_ENDED_NOT && !g->how->shift && length_of(g) >= g->context)
        return km_voice_end(&g->voice, KM_ENDED_CONTEXT, err);
    return KM_OK;
}

int km_maker_next(km_maker *g, km_piece_event *e, km_error *err) {
    int32_t id = -1;
    if (g->got.end != KM_ENDED_NOT) {
        *e = (km_piece_event){.id = -1, .text = "", .end = g->got.end};
        return 0;
    }
    km_status s = KM_OK;
    double start = km_now();
    if (g->voice.end == KM_ENDED_NOT) s = next(g, &id, err); /* else: while the prompt was read */
    g->got.seconds += km_now() - start;
    g->got.tokens = g->voice.tokens;
    if (s != KM_OK) {
        g->voice.end = g->got.end = KM_ENDED_CANCELLED; /* nothing comes after a failure */
        keep_tried(g);
        return -1;
    }
    g->got.end = g->voice.end;
    if (g->got.end != KM_ENDED_NOT) keep_tried(g);
    *e = km_voice_event(&g->voice, id);
    return 1;
}

km_generated km_maker_got(const km_maker *g) { return g->got; }

/* ---- All of it ---- */

km_maker *km_maker_new(km_sequence *session, const km_net *m, const km_token *token,
                       const km_making *how, km_error *err) {
    int64_t vocab = m->config.vocab, known = km_token_vocab(token);
    if (known > vocab) {
        km_error_set(err, KM_ERR_RANGE,
                     "the tokenizer has %lld tokens and the model only %lld; they do not "
                     "belong together",
                     (long long)known, (long long)vocab);
        return NULL;
    }
    km_maker *g = km_calloc(1, sizeof *g);
    if (!g) {
        km_error_set(err, KM_ERR_MEMORY, "generating: out of memory");
        return NULL;
    }
    g->session = session;
    g->how = how;
    g->token = token;
    g->context = km_sequence_context(session);
    g->vocab = vocab;
    g->start = km_now();
    g->last = -1;
    g->got.size = sizeof g->got;
    km_sequence_set_shift(session, how->shift, km_token_bos(token) >= 0);
    km_sequence_cancel_by(session, how->cancel);
    /* ids that are no token are never chosen */
    if (km_voice_open(&g->voice, how, token, known, err) != KM_OK) {
        km_maker_free(g);
        return NULL;
    }
    g->base = km_next_device_begin(g) ? &km_next_device : &km_next_host;
    g->way = how->draft ? &km_next_draft : g->base;
    return g;
}

void km_maker_free(km_maker *g) {
    if (!g) return;
    keep_tried(g);
    km_sequence_cancel_by(g->session, NULL);
    km_voice_close(&g->voice);
    km_free(g);
}

/* Every event to on_text; what ends it there is the caller's wish. */
static km_status show_all(km_maker *g, km_error *err) {
    km_piece_event e;
    for (int more; (more = km_maker_next(g, &e, err)) != 0;) {
        if (more < 0) return err->code;
        if ((e.id < 0 && e.bytes == 0) || e.end == KM_ENDED_CANCELLED || !g->how->on_text) continue;
        if (!g->how->on_text(g->how->user, e.id, e.text, e.bytes)) g->got.end = KM_ENDED_CANCELLED;
    }
    return KM_OK;
}

km_status km_make_text_in(km_sequence *session, const km_net *m, const km_token *token,
                          const char *prompt, size_t bytes, const km_making *how, km_generated *out,
                          km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    if (out) *out = (km_generated){0};
    km_ids ids = {0};
    km_maker *g = km_maker_new(session, m, token, how, err);
    km_status s = g ? km_prompt_ids(token, prompt, bytes, how->rendered, &ids, err) : err->code;
    if (s == KM_OK) s = km_maker_read(g, ids.data, ids.len, err);
    if (s == KM_OK) s = show_all(g, err);
    if (out && g) *out = g->got;
    km_ids_free(&ids);
    km_maker_free(g);
    return s;
}

km_status km_make_text(km_ctx *ctx, km_net *m, const km_token *token, const char *prompt,
                       size_t bytes, const km_making *how, km_generated *out, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    km_sequence *session = km_sequence_new(ctx, m, err);
    if (!session) return err->code != KM_OK ? err->code : KM_ERR_MEMORY;
    km_status s = km_make_text_in(session, m, token, prompt, bytes, how, out, err);
    km_sequence_free(session);
    return s;
}
