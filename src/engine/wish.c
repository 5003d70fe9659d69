/* What a caller wants of a generation, made ready: texts copied, biases checked, grammar parsed. */
#include "base/alloc.h"
#include "base/sized.h"
#include "base/util.h"
#include "engine/engine.h"
#include "engine/model_sampling.h"
#include "text/json_schema.h"
#include <math.h>
#include <string.h>

/* ---- Defaults ---- */

km_sampling km_sampling_suggested(const char *path, char from[64]) {
    km_sampling s = km_sampling_defaults();
    s.temperature = 0.8;
    s.top_k = 40;
    s.top_p = 0.95;
    s.min_p = 0.05;
    if (!path) return s;
    km_suggested of = km_suggested_of(path);
    const double *v = of.value;
    memcpy(from, of.from, sizeof of.from);
    if (!isnan(v[KM_SUGGEST_TEMPERATURE])) s.temperature = v[KM_SUGGEST_TEMPERATURE];
    if (!isnan(v[KM_SUGGEST_TOP_K])) s.top_k = (int64_t)v[KM_SUGGEST_TOP_K];
    if (!isnan(v[KM_SUGGEST_TOP_P])) s.top_p = v[KM_SUGGEST_TOP_P];
    if (!isnan(v[KM_SUGGEST_MIN_P])) s.min_p = v[KM_SUGGEST_MIN_P];
    if (!isnan(v[KM_SUGGEST_REPEAT_PENALTY])) s.repeat_penalty = v[KM_SUGGEST_REPEAT_PENALTY];
    return s;
}

static km_sampling sampling_of(const char *call, km_model *m) {
    KM_HOLDING(held);
    return m && km_model_usable(&held, call, m, false) ? m->sampling
                                                       : km_sampling_suggested(NULL, NULL);
}

km_status km_model_sampling_sized(km_model *m, km_sampling *out, size_t size) {
    km_sampling own = sampling_of("km_model_sampling", m);
    return KM_HAND_OUT(out, size, &own, km_sampling);
}

km_status km_sampling_check(const km_sampling *given) {
    km_sampling s = km_sampling_defaults();
    km_error err = {0};
    if (!given) return km_public_fail(KM_ERR_NULL, "km_sampling_check: no settings given");
    if (km_take_options("km_sampling_check", &s, sizeof s, given) != KM_OK) return km_last_status();
    km_sampling_sound(&s, &err);
    return km_told(&err);
}

static km_generation defaults_with(km_sampling sampling) {
    return (km_generation){
        .size = sizeof(km_generation), .logprobs = -1, .n_adapters = -1, .sampling = sampling};
}

km_status km_generation_defaults_sized(km_model *m, km_generation *out, size_t size) {
    km_generation own = defaults_with(sampling_of("km_generation_defaults", m));
    /* Its sampling is the last member: of a shorter struct, so much of it. */
    size_t before = offsetof(km_generation, sampling);
    own.sampling.size = (size_t)km_clamp64((int64_t)size - (int64_t)before, 0, sizeof own.sampling);
    return KM_HAND_OUT(out, size, &own, km_generation);
}

/* ---- Copies ---- */

static km_status copy_stops(const km_generation *how, km_wish *w, km_error *err) {
    if (how->n_stops == 0) return KM_OK;
    if (!how->stops)
        return km_error_set(err, KM_ERR_NULL, "%zu stops, and none given", how->n_stops);
    if (how->n_stops > 1 << 16)
        return km_error_set(err, KM_ERR_RANGE, "%zu texts to stop at are too many", how->n_stops);
    w->stops = km_calloc(how->n_stops + 1, sizeof *w->stops);
    if (!w->stops) return km_no_memory_for(err, "stops");
    for (size_t i = 0; i < how->n_stops; i++) {
        if (!how->stops[i]) return km_error_set(err, KM_ERR_NULL, "stop %zu is missing", i);
        if (!(w->stops[i] = km_strdup(how->stops[i]))) return km_no_memory_for(err, "stops");
    }
    w->making.stops = (const char *const *)w->stops;
    w->making.n_stops = how->n_stops;
    return KM_OK;
}

static km_status copy_biases(const km_model *m, const km_sampling *s, km_wish *w, km_error *err) {
    if (s->n_bias == 0) return KM_OK;
    int64_t vocab = km_token_vocab(m->token);
    if (!s->bias) return km_error_set(err, KM_ERR_NULL, "%zu biases, and none given", s->n_bias);
    if (s->n_bias > (size_t)vocab)
        return km_error_set(err, KM_ERR_RANGE, "%zu biases, and a vocabulary of %lld", s->n_bias,
                            (long long)vocab);
    w->biases = km_calloc(s->n_bias, sizeof *w->biases);
    if (!w->biases) return km_no_memory_for(err, "biases");
    memcpy(w->biases, s->bias, sizeof *w->biases * s->n_bias);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (w->biases[i].id < 0 || w->biases[i].id >= vocab)
            return km_error_set(err, KM_ERR_RANGE, "a bias for token %d, and a vocabulary of %lld",
                                (int)w->biases[i].id, (long long)vocab);
        if (isnan(w->biases[i].add) || w->biases[i].add == INFINITY)
            return km_error_set(err, KM_ERR_RANGE, "the bias of token %d is no number",
                                (int)w->biases[i].id);
    }
    w->making.sampling.bias = w->biases;
    return KM_OK;
}

/* ---- Grammars ---- */

/* Of all tokens, made once for all grammars. */
static const km_trie *trie_of(km_model *m, km_error *err) {
    pthread_mutex_lock(&m->lock);
    if (!m->trie) m->trie = km_trie_new(m->token, err);
    const km_trie *t = m->trie;
    pthread_mutex_unlock(&m->lock);
    return t;
}

static km_grammar *parse(const char *grammar, const char *schema, bool strict, km_error *err) {
    return schema ? km_json_schema_grammar(schema, strlen(schema), strict, err)
                  : km_grammar_parse(grammar, strlen(grammar), err);
}

km_status km_grammar_check(const char *grammar, const char *schema, bool strict_schema) {
    km_error err = {0};
    if (!grammar == !schema)
        return km_public_fail(grammar ? KM_ERR_RANGE : KM_ERR_NULL,
                              "km_grammar_check: give one of a grammar and a schema");
    km_grammar_free(parse(grammar, schema, strict_schema, &err));
    return km_told(&err);
}

static km_status make_guide(km_model *m, const km_generation *how, km_wish *w, km_error *err) {
    if (!how->grammar && !how->schema) return KM_OK;
    if (how->grammar && how->schema)
        return km_error_set(err, KM_ERR_RANGE, "a grammar and a schema exclude each other");
    w->grammar = parse(how->grammar, how->schema, how->strict_schema, err);
    const km_trie *t = w->grammar ? trie_of(m, err) : NULL;
    if (t) w->guide = km_guide_new(w->grammar, t, err);
    w->making.guide = w->guide;
    return w->guide ? KM_OK : err->code;
}

/* ---- All of it ---- */

km_status km_wish_make(const char *call, km_model *m, const km_generation *given, km_wish *w,
                       km_error *err) {
    *w = (km_wish){.how = defaults_with(m->sampling)};
    km_generation *how = &w->how;
    if (km_take_options(call, how, sizeof *how, given) != KM_OK)
        return km_error_set(err, km_last_status(), "%s", km_last_error());
    if (how->max_tokens < -1)
        return km_error_set(err, KM_ERR_RANGE, "%lld tokens at most", (long long)how->max_tokens);
    if (how->logprobs < -1 || how->logprobs > KM_MAX_LOGPROBS)
        return km_error_set(err, KM_ERR_RANGE, "logprobs of %d tokens; -1 to %d are possible",
                            how->logprobs, KM_MAX_LOGPROBS);
    w->m = m;
    w->chose = how->n_adapters >= 0;
    if (how->n_adapters < -1 || how->n_adapters > KM_MIX_MOST)
        return km_error_set(err, KM_ERR_RANGE, "%lld adapters; up to %d are possible at once",
                            (long long)how->n_adapters, KM_MIX_MOST);
    if (km_adapters_mix(m, how->adapters, how->n_adapters, &w->mix, err) != KM_OK) return err->code;
    km_status s = km_sampling_sound(&how->sampling, err);
    if (s != KM_OK) return s;
    int top = how->logprobs;
    if (top > km_token_vocab(m->token)) top = (int)km_token_vocab(m->token);
    w->making = (km_making){.tokens = how->max_tokens > 0   ? how->max_tokens
                                      : how->max_tokens < 0 ? 0
                                                            : INT64_MAX,
                            .past_end = how->past_end,
                            .rendered = how->rendered,
                            .shift = how->shift,
                            .exact = how->exact,
                            .sampling = how->sampling,
                            .logprobs = how->logprobs >= 0,
                            .top_logprobs = top};
    if (s == KM_OK) s = copy_stops(how, w, err);
    if (s == KM_OK) s = copy_biases(m, &how->sampling, w, err);
    if (s == KM_OK) s = make_guide(m, how, w, err);
    /* what the caller may take back once this returns */
    how->stops = NULL;
    how->grammar = how->schema = NULL;
    how->adapters = NULL;
    how->sampling.bias = NULL;
    return s;
}

void km_wish_free(km_wish *w) {
    km_guide_free(w->guide);
    km_grammar_free(w->grammar);
    for (size_t i = 0; w->stops && w->stops[i]; i++) km_free(w->stops[i]);
    km_free(w->stops);
    km_free(w->biases);
    if (w->m) km_adapters_drop(w->m, &w->mix);
    *w = (km_wish){0};
}
