/* Making text: the prompt's tokens, then one after the other, each through the sampler, the
 * grammar, the tokenizer's stream and the texts to stop at. */
#include "infer/generate.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "infer/stop.h"
#include <string.h>

const char *km_end_name(km_end e) {
    static const char *const names[] = {"tokens", "end", "stop", "grammar", "context", "stopped"};
    return names[e];
}

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

typedef struct generate_run {
    km_sequence *session;
    const km_generation *how;
    const km_token *token;
    int64_t context;
    km_sampler *sampler;
    km_stop *stop;
    km_token_stream stream;
    km_text raw, text; /* what became whole; what of it can be shown */
    double start;
    const float *logits; /* of the token to come */
    int64_t vocab;       /* of the model: a row of logits */
    /* Tokens that went through the model together; those from `at` on are guesses so far. */
    int32_t tried[KM_FEW_ROWS];
    int n_tried, at;
    const float *rows; /* their logits */
    km_drafter *draft;
    /* Tokens that a device has chosen, of which some were taken already; the session held `base`
     * tokens before it ran ahead. */
    bool ahead;
    km_chooser chooser;
    int32_t chosen[64];
    int n_chosen, taken;
    int64_t base;
    double pace; /* seconds of a token; 0: not known yet */
} generate_run;

/* A device that failed in the middle: its session's tokens go on elsewhere, if somebody can see to
 * that. Guesses, and what was tried, are forgotten. */
static bool rescued(generate_run *r, km_error *err) {
    bool device = err->code == KM_ERR_GPU || err->code == KM_ERR_MEMORY ||
                  err->code == KM_ERR_DEVICE || err->code == KM_ERR_UNSUPPORTED;
    if (!r->how->rescue || !device) return false;
    km_sequence *other = r->how->rescue(r->how->user, r->session, err);
    if (!other) return false;
    r->session = other;
    r->n_tried = r->n_chosen = r->taken = 0;
    r->draft = NULL;
    r->ahead = false;
    *err = (km_error){0};
    return true;
}

/* Reads what the session does not hold yet; a part at a time where somebody watches. */
static km_status read_prompt(generate_run *r, const km_ids *ids, km_generated *out, km_error *err) {
    int64_t n = (int64_t)ids->len, most = km_sequence_chunk(r->session);
    int64_t same = r->how->exact ? km_sequence_settled(r->session, ids->data, ids->len)
                                 : km_sequence_match(r->session, ids->data, ids->len);
    if (same == n) same = n - 1; /* the last is read for its logits */
    km_sequence_rewind(r->session, same);
    same = km_sequence_length(r->session); /* a window may have let go of more */
    out->prompt_tokens = n;
    out->reused = same;
    while (same < n) {
        int64_t part = most - same % most; /* to a bound of the sequence */
        if (!r->how->on_prompt || part > n - same) part = n - same;
        km_status s = km_sequence_read(r->session, ids->data + same, (size_t)part, err);
        if (s != KM_OK && rescued(r, err)) {
            same = km_sequence_length(r->session);
            continue;
        }
        if (s != KM_OK) return s;
        same += part;
        if (r->how->on_prompt && !r->how->on_prompt(r->how->user, same, n) && same < n) {
            out->end = KM_END_CALLER;
            break;
        }
    }
    out->prompt_seconds = km_now() - r->start;
    if (r->ahead) km_chooser_see(&r->chooser, ids->data, ids->len);
    return km_sampler_see(r->sampler, ids->data, ids->len, err);
}

/* ---- The answer ---- */

/* Hands on what can be shown. */
static bool show(generate_run *r, int32_t id) {
    bool on = !r->how->on_text ||
              r->how->on_text(r->how->user, id, r->text.data ? r->text.data : "", r->text.len);
    r->text.len = 0;
    return on;
}

/* The text that became whole goes through the stops; true when one of them is complete. */
static bool pass_on(generate_run *r) {
    bool stopped = false;
    if (r->stop)
        stopped = km_stop_put(r->stop, km_text_str(&r->raw), r->raw.len, &r->text);
    else
        km_text_put(&r->text, km_text_str(&r->raw), r->raw.len);
    r->raw.len = 0;
    return stopped;
}

static km_status choose(generate_run *r, int32_t *id, km_error *err) {
    const uint64_t *mask = NULL;
    if (r->how->guide && !(mask = km_guide_mask(r->how->guide, err)))
        return err && err->code != KM_OK ? err->code : KM_ERR_STATE;
    if (r->taken < r->n_chosen)
        *id = r->chosen[r->taken++];
    else
        *id = km_sampler_pick(r->sampler, r->logits, mask);
    if (*id < 0)
        return km_error_set(err, KM_ERR_RANGE,
                            "the model's logits are not numbers; its weights may be broken");
    return KM_OK;
}

/* Takes the token in: what the grammar, the sampler and the text make of it. */
static km_status take(generate_run *r, int32_t id, km_error *err) {
    km_status s = km_sampler_see(r->sampler, &id, 1, err);
    if (s == KM_OK && r->how->guide) s = km_guide_accept(r->how->guide, id, err);
    if (s == KM_OK) s = km_token_stream_put(&r->stream, id, &r->raw, err);
    return s;
}

/* What was tried and turned out right is the session's; what was chosen and never taken is not. */
static void keep_tried(generate_run *r) {
    if (r->n_tried) km_sequence_take(r->session, r->tried, r->at);
    if (r->taken < r->n_chosen) km_sequence_rewind(r->session, r->base + r->taken);
    r->n_tried = r->n_chosen = r->taken = 0;
}

/* The device chooses the next tokens, as many as make a blink. */
static km_status run_ahead(generate_run *r, int32_t id, int64_t left, km_error *err) {
    int64_t room = r->context - km_sequence_length(r->session), n = km_sequence_ahead(r->session);
    if (n > (int64_t)(sizeof r->chosen / sizeof *r->chosen))
        n = sizeof r->chosen / sizeof *r->chosen;
    if (r->pace <= 0 || r->draft)
        n = 1; /* a token more, and there may be something to guess */
    else if ((double)n * r->pace > 0.02)
        n = (int64_t)(0.02 / r->pace);
    if (n > left) n = left;
    if (n > room) n = room;
    if (n < 1) n = 1;
    double start = km_now();
    r->base = km_sequence_length(r->session);
    km_status s = km_sequence_choose(r->session, id, n, &r->chooser, r->chosen, err);
    if (s != KM_OK) return s;
    double pace = (km_now() - start) / (double)n;
    r->pace = r->pace > 0 ? (3 * r->pace + pace) / 4 : pace;
    r->n_chosen = (int)n;
    km_sampler_drew(r->sampler, km_chooser_draws(&r->chooser));
    return KM_OK;
}

/* The device checks the guesses: what it has chosen up to the first wrong one was run ahead. */
static km_status check_guesses(generate_run *r, int n, km_generated *out, km_error *err) {
    r->base = km_sequence_length(r->session);
    int right = km_sequence_check(r->session, r->tried, n + 1, &r->chooser, r->chosen, err);
    if (right < 0) return err->code;
    r->n_chosen = right;
    out->accepted += right - 1;
    km_drafter_told(r->draft, right - 1, n - (right - 1));
    km_sampler_drew(r->sampler, km_chooser_draws(&r->chooser)); /* the drafter follows it */
    return KM_OK;
}

/* The token that was chosen goes through the model, with guesses of what comes after it. */
static km_status advance_with_guesses(generate_run *r, int32_t id, km_generated *out, bool *done,
                                      km_error *err) {
    int64_t left = r->how->tokens - out->tokens - 1;
    int64_t room = r->context - 1 - km_sequence_length(r->session);
    int n =
        km_drafter_guess(r->draft, km_sequence_tokens(r->session), km_sequence_length(r->session),
                         id, r->sampler, left < room ? left : room, r->tried + 1, err);
    *done = n != 0;
    if (n < 0) return err->code;
    if (n == 0) return KM_OK;
    r->tried[0] = id;
    out->guessed += n;
    if (r->ahead) return check_guesses(r, n, out, err);
    r->rows = km_sequence_try(r->session, r->tried, n + 1, err);
    if (!r->rows) return err->code;
    r->n_tried = n + 1;
    r->at = 1;
    r->logits = r->rows;
    return KM_OK;
}

/* The token that was chosen goes through the model, or has been through it already: if it was
 * guessed, or a device has run ahead. */
static km_status advance(generate_run *r, int32_t id, km_generated *out, km_error *err) {
    if (r->taken < r->n_chosen) return KM_OK;
    if (r->at < r->n_tried && r->tried[r->at] == id) {
        r->logits = r->rows + (int64_t)r->at++ * r->vocab;
        out->accepted++;
        return KM_OK;
    }
    if (r->draft && r->n_tried > 1) km_drafter_told(r->draft, r->at - 1, r->n_tried - r->at);
    keep_tried(r);
    bool done = false;
    km_status s = KM_OK;
    if (r->draft) s = advance_with_guesses(r, id, out, &done, err);
    if (s != KM_OK || done) return s;
    if (r->ahead && km_sequence_length(r->session) < r->context)
        return run_ahead(r, id, r->how->tokens - out->tokens, err);
    r->ahead = false; /* a context that is shifted: the host goes on */
    s = km_sequence_next(r->session, id, err);
    r->logits = km_sequence_logits(r->session);
    return s;
}

/* Tokens that the session holds, or will when what was tried is kept. */
static int64_t length_of(const generate_run *r) {
    if (r->n_chosen) return r->base + r->taken;
    return km_sequence_length(r->session) + (r->n_tried ? r->at : 0);
}

static km_status go_on(generate_run *r, km_generated *out, km_error *err) {
    r->logits = km_sequence_logits(r->session);
    while (out->tokens < r->how->tokens) {
        int32_t id = -1;
        km_status s = choose(r, &id, err);
        if (s != KM_OK) return s;
        if (out->tokens == 0) out->first_seconds = km_now() - r->start;
        if (km_token_is_end(r->token, id) && (!r->how->past_end || r->how->guide)) {
            out->end = KM_END_TEXT;
            return KM_OK;
        }
        out->tokens++;
        if ((s = take(r, id, err)) != KM_OK) return s;
        bool stopped = pass_on(r);
        if (!show(r, id)) {
            out->end = KM_END_CALLER;
            return KM_OK;
        }
        if (stopped || (r->how->guide && km_guide_must_end(r->how->guide))) {
            out->end = stopped ? KM_END_STOP : KM_END_GRAMMAR;
            return KM_OK;
        }
        if (out->tokens == r->how->tokens) break;
        if (!r->how->shift && length_of(r) >= r->context) {
            out->end = KM_END_CONTEXT;
            return KM_OK;
        }
        if (out->tokens == 1 && r->ahead)
            km_chooser_see(&r->chooser, &id, 1); /* the host chose it */
        s = advance(r, id, out, err);
        if (s != KM_OK && rescued(r, err)) s = advance(r, id, out, err);
        if (s != KM_OK) return s;
    }
    out->end = KM_END_TOKENS;
    return KM_OK;
}

/* What the stream and the stops still hold is text after all, unless a stop ended it. */
static void finish(generate_run *r, km_end end) {
    km_token_stream_end(&r->stream, &r->raw);
    if (end != KM_END_STOP && !pass_on(r) && r->stop) km_stop_end(r->stop, &r->text);
    if (r->text.len && end != KM_END_CALLER) show(r, -1);
}

/* ---- All of it ---- */

/* The tokens that DRY lets no repetition reach across: ends of lines, and the marks that people set
 * between things that are alike. */
static uint64_t *dry_breaks(const km_token *token, int64_t vocab) {
    uint64_t *bits = km_calloc((size_t)vocab / 64 + 1, sizeof *bits);
    for (int64_t id = 0; bits && id < vocab; id++) {
        size_t n = 0;
        const char *text = km_token_text(token, (int32_t)id, &n);
        bool breaks = false;
        for (size_t i = 0; text && i < n && !breaks; i++)
            breaks = text[i] == '\n' || text[i] == ':' || text[i] == '"' || text[i] == '*';
        if (breaks) bits[id / 64] |= (uint64_t)1 << (id % 64);
    }
    return bits;
}

static km_status prepare(generate_run *r, int64_t vocab, km_error *err) {
    uint64_t *breaks = NULL;
    if (r->how->sampling.dry_multiplier > 0 && !(breaks = dry_breaks(r->token, vocab)))
        return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    r->sampler = km_sampler_new(&r->how->sampling, vocab, breaks, err);
    km_free(breaks);
    if (!r->sampler) return err ? err->code : KM_ERR_MEMORY;
    if (r->how->n_stops && !(r->stop = km_stop_new(r->how->stops, r->how->n_stops, err)))
        return err ? err->code : KM_ERR_MEMORY;
    if (r->how->guide) km_guide_reset(r->how->guide);
    r->draft = r->how->draft;
    /* The first token is the host's, which has the prompt's logits: it draws the first number. */
    r->ahead = !r->how->guide && r->how->choose != KM_CHOOSE_HOST &&
               (r->how->choose == KM_CHOOSE_DEVICE || !km_sequence_on_host(r->session)) &&
               km_chooser_begin(&r->chooser, &r->how->sampling, vocab, 1);
    r->stream = km_token_stream_begin(r->token, r->how->rendered ? KM_TOKEN_SKIP_SPECIAL : 0);
    return KM_OK;
}

km_status km_generate_in(km_sequence *session, const km_net *m, const km_token *token,
                         const char *prompt, size_t bytes, const km_generation *how,
                         km_generated *out, km_error *err) {
    km_generated none, *got = out ? out : &none;
    km_error own = {0};
    if (!err) err = &own;
    *got = (km_generated){0};
    int64_t vocab = m->config.vocab, known = km_token_vocab(token);
    int64_t context = km_sequence_context(session);
    if (known > vocab)
        return km_error_set(err, KM_ERR_RANGE,
                            "the tokenizer has %lld tokens and the model only %lld; they do not "
                            "belong together",
                            (long long)known, (long long)vocab);
    km_ids ids = {0};
    generate_run r = {.session = session,
                      .how = how,
                      .token = token,
                      .context = context,
                      .vocab = vocab,
                      .start = km_now()};
    km_status s = prepare(&r, known, err); /* ids that are no token are never chosen */
    if (s == KM_OK) s = km_prompt_ids(token, prompt, bytes, how->rendered, &ids, err);
    if (s == KM_OK && (int64_t)ids.len > context)
        s = km_error_set(err, KM_ERR_RANGE,
                         "the prompt has %zu tokens and the model's context %lld", ids.len,
                         (long long)context);
    if (s == KM_OK) s = read_prompt(&r, &ids, got, err);
    if (s == KM_OK && got->end != KM_END_CALLER) {
        double start = km_now();
        s = go_on(&r, got, err);
        keep_tried(&r);
        got->seconds = km_now() - start;
        if (s == KM_OK) finish(&r, got->end);
    }
    if (s == KM_OK && (!km_text_ok(&r.raw) || !km_text_ok(&r.text)))
        s = km_error_set(err, KM_ERR_MEMORY, "generating: out of memory");
    km_text_free(&r.raw);
    km_text_free(&r.text);
    km_stop_free(r.stop);
    km_sampler_free(r.sampler);
    km_ids_free(&ids);
    return s;
}

km_status km_generate(km_ctx *ctx, km_net *m, const km_token *token, const char *prompt,
                      size_t bytes, const km_generation *how, km_generated *out, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    km_sequence *session = km_sequence_new(ctx, m, err);
    if (!session) return err->code != KM_OK ? err->code : KM_ERR_MEMORY;
    km_status s = km_generate_in(session, m, token, prompt, bytes, how, out, err);
    km_sequence_free(session);
    return s;
}
