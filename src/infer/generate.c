/* From a prompt to text: tokens in, tokens chosen, text out as it becomes whole. */
#include "base/alloc.h"
#include "infer/generate.h"
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

/* The prompt's ids; one that stands for nothing when it is empty, since a model goes on from
 * something. */
static km_status prompt_ids(const km_token *token, const char *prompt, size_t bytes, bool rendered,
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

typedef struct run {
    km_session *session;
    const km_generation *how;
    km_token_stream stream;
    km_candidate *room;
    km_text text;
    const km_token *token;
} run;

/* Hands on what has become text. */
static bool show(run *r, int32_t id) {
    bool on = !r->how->on_text ||
              r->how->on_text(r->how->user, id, r->text.data ? r->text.data : "", r->text.len);
    r->text.len = 0;
    return on;
}

static km_status go_on(run *r, int64_t vocab, km_generated *out, km_error *err) {
    for (int64_t i = 0; i < r->how->tokens; i++) {
        const float *logits = km_session_logits(r->session);
        int32_t id = km_sampling_draw(&r->how->sampling, logits, vocab, (uint64_t)i, r->room);
        if (id < 0)
            return km_error_set(err, KM_ERR_RANGE,
                                "the model's logits are not numbers; its weights may be broken");
        if (km_token_is_end(r->token, id) && !r->how->past_end) {
            out->ended = true;
            return KM_OK;
        }
        out->tokens++;
        km_status s = km_token_stream_put(&r->stream, id, &r->text, err);
        if (s != KM_OK) return s;
        if (!show(r, id)) return KM_OK;
        if (i + 1 == r->how->tokens) break;
        s = km_session_next(r->session, id, err);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

km_status km_generate(km_ctx *ctx, km_model *m, const km_token *token, const char *prompt,
                      size_t bytes, const km_generation *how, km_generated *out, km_error *err) {
    km_generated none, *got = out ? out : &none;
    *got = (km_generated){0};
    km_status s = km_sampling_check(&how->sampling, err);
    int64_t vocab = m->config.vocab, known = km_token_vocab(token);
    if (s != KM_OK) return s;
    if (known > vocab)
        return km_error_set(err, KM_ERR_RANGE,
                            "the tokenizer has %lld tokens and the model only %lld; they do not "
                            "belong together",
                            (long long)known, (long long)vocab);
    km_ids ids = {0};
    run r = {.how = how, .token = token};
    s = prompt_ids(token, prompt, bytes, how->rendered, &ids, err);
    if (s != KM_OK) goto done;
    r.room = km_alloc(sizeof *r.room * (size_t)vocab);
    r.session = r.room ? km_session_new(ctx, m, err) : NULL;
    if (!r.session) {
        s = r.room ? KM_ERR_MEMORY : km_error_set(err, KM_ERR_MEMORY, "sample: out of memory");
        goto done;
    }
    double start = now();
    s = km_session_read(r.session, ids.data, ids.len, err);
    if (s != KM_OK) goto done;
    got->prompt_tokens = (int64_t)ids.len;
    got->prompt_seconds = now() - start;
    start = now();
    r.stream = km_token_stream_begin(token, 0);
    s = go_on(&r, known, got, err); /* ids that are no token are never chosen */
    got->seconds = now() - start;
    if (s == KM_OK) {
        km_token_stream_end(&r.stream, &r.text);
        if (r.text.len) show(&r, -1);
    }
done:
    km_text_free(&r.text);
    km_session_free(r.session);
    km_free(r.room);
    km_ids_free(&ids);
    return s;
}
