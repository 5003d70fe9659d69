/* From logits to a token and from a token to text. */
#include "infer/voice.h"
#include "base/alloc.h"
#include <math.h>
#include <string.h>

const char *km_end_name(km_end_reason e) {
    static const char *const names[] = {"",        "tokens",  "end",    "stop",
                                        "grammar", "context", "stopped"};
    return (size_t)e < sizeof names / sizeof *names ? names[e] : "";
}

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

km_status km_voice_open(km_voice *v, const km_making *how, const km_token *token, int64_t vocab,
                        km_error *err) {
    *v = (km_voice){.how = how, .token = token, .vocab = vocab};
    uint64_t *breaks = NULL;
    if (how->sampling.dry_multiplier > 0 && !(breaks = dry_breaks(token, vocab)))
        return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    v->sampler = km_sampler_new(&how->sampling, vocab, breaks, err);
    km_free(breaks);
    if (!v->sampler) return err->code;
    if (how->n_stops && !(v->stop = km_stop_new(how->stops, how->n_stops, err))) return err->code;
    if (how->logprobs && how->top_logprobs > 0) {
        v->top = km_calloc((size_t)how->top_logprobs, sizeof *v->top);
        if (!v->top) return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    }
    if (how->guide) km_guide_reset(how->guide);
    v->stream = km_token_stream_begin(token, how->rendered ? KM_TOKEN_SKIP_SPECIAL : 0);
    return KM_OK;
}

void km_voice_close(km_voice *v) {
    km_text_free(&v->raw);
    km_text_free(&v->text);
    km_stop_free(v->stop);
    km_sampler_free(v->sampler);
    km_free(v->top);
    *v = (km_voice){0};
}

km_status km_voice_read(km_voice *v, const int32_t *ids, size_t n, km_error *err) {
    return km_sampler_see(v->sampler, ids, n, err);
}

/* ---- Choosing ---- */

/* Keeps the likeliest from the first on; the lowest id among equals comes first. */
static void rank(km_voice *v, int32_t id, float x) {
    int most = v->how->top_logprobs, at = v->n_top;
    if (at == most && !(x > v->top[most - 1].logprob)) return;
    if (at < most) v->n_top++;
    if (at == most) at--;
    for (; at > 0 && x > v->top[at - 1].logprob; at--) v->top[at] = v->top[at - 1];
    v->top[at] = (km_logprob){id, x};
}

/* The logarithm of the softmax of the model's own logits. */
static void tell_odds(km_voice *v, const float *logits, int32_t id) {
    float top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < v->vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (int64_t i = 0; i < v->vocab; i++)
        if (logits[i] > -INFINITY) sum += exp((double)logits[i] - top);
    float all = top + (float)log(sum);
    v->logprob = logits[id] - all;
    v->n_top = 0;
    if (v->how->top_logprobs > 0)
        for (int64_t i = 0; i < v->vocab; i++) rank(v, (int32_t)i, logits[i]);
    for (int i = 0; i < v->n_top; i++) v->top[i].logprob -= all;
}

km_status km_voice_choose(km_voice *v, const float *logits, int32_t *id, km_error *err) {
    const uint64_t *mask = NULL;
    if (v->how->guide && !(mask = km_guide_mask(v->how->guide, err)))
        return err->code != KM_OK ? err->code : KM_ERR_STATE;
    *id = km_sampler_pick(v->sampler, logits, mask);
    if (*id < 0)
        return km_error_set(err, KM_ERR_RANGE,
                            "the model's logits are not numbers; its weights may be broken");
    if (v->how->logprobs) tell_odds(v, logits, *id);
    return KM_OK;
}

/* ---- Text ---- */

/* The text that became whole goes through the stops; true when one of them is complete. */
static bool pass_on(km_voice *v) {
    bool stopped = false;
    if (v->stop)
        stopped = km_stop_put(v->stop, km_text_str(&v->raw), v->raw.len, &v->text);
    else
        km_text_put(&v->text, km_text_str(&v->raw), v->raw.len);
    v->raw.len = 0;
    return stopped;
}

static km_status check_text(const km_voice *v, km_error *err) {
    if (km_text_ok(&v->raw) && km_text_ok(&v->text)) return KM_OK;
    return km_error_set(err, KM_ERR_MEMORY, "generating: out of memory");
}

/* What the stream and the stops still hold is text after all, unless a stop ended it. */
static km_status finish(km_voice *v, km_end_reason why, km_error *err) {
    v->end = why;
    km_token_stream_end(&v->stream, &v->raw);
    if (why != KM_ENDED_STOP && !pass_on(v) && v->stop) km_stop_end(v->stop, &v->text);
    return check_text(v, err);
}

km_status km_voice_end(km_voice *v, km_end_reason why, km_error *err) {
    if (why == KM_ENDED_CANCELLED) {
        v->end = why;
        return KM_OK;
    }
    return finish(v, why, err);
}

km_status km_voice_take(km_voice *v, int32_t id, km_error *err) {
    const km_making *how = v->how;
    v->text.len = 0;
    if (km_token_is_end(v->token, id) && (!how->past_end || how->guide))
        return finish(v, KM_ENDED_TEXT, err);
    v->tokens++;
    km_status s = km_sampler_see(v->sampler, &id, 1, err);
    if (s == KM_OK && how->guide) s = km_guide_accept(how->guide, id, err);
    if (s == KM_OK) s = km_token_stream_put(&v->stream, id, &v->raw, err);
    if (s != KM_OK) return s;
    bool stopped = pass_on(v);
    if (stopped) return finish(v, KM_ENDED_STOP, err);
    if (how->guide && km_guide_must_end(how->guide)) return finish(v, KM_ENDED_GRAMMAR, err);
    if (v->tokens >= how->tokens) return finish(v, KM_ENDED_TOKENS, err);
    return check_text(v, err);
}

km_piece_event km_voice_event(const km_voice *v, int32_t id) {
    bool told = v->how->logprobs && id >= 0;
    return (km_piece_event){.id = id,
                            .text = v->text.data ? v->text.data : "",
                            .bytes = v->text.len,
                            .logprob = told ? v->logprob : 0,
                            .top = told ? v->top : NULL,
                            .n_top = told ? v->n_top : 0,
                            .end = v->end};
}
