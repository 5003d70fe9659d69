/* Sampling flags: biases by id or text, grammars and schemas from files. */
#include "cli/sampling.h"
#include "base/alloc.h"
#include "base/file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

km_cli_sampling km_cli_sampling_defaults(int64_t top_k, double top_p, double min_p) {
    km_cli_sampling s = {.set = km_sampling_defaults(), .seed = 1};
    s.set.temperature = 0.8;
    s.set.top_k = top_k;
    s.set.top_p = top_p;
    s.set.min_p = min_p;
    s.set.typical = s.set.repeat_penalty = 1; /* off, as the flags say it */
    return s;
}

void km_cli_sampling_said(km_cli_sampling *s, const km_spec *spec, const km_args *args) {
    const void *fields[KM_SAID_COUNT] = {&s->set.temperature, &s->set.top_k, &s->set.top_p,
                                         &s->set.min_p, &s->set.repeat_penalty};
    for (int i = 0; spec->options[i].name; i++)
        for (int f = 0; f < KM_SAID_COUNT; f++)
            if (args->given[i] && spec->options[i].dest == fields[f]) s->said[f] = true;
}

void km_cli_sampling_of_model(km_cli_sampling *s, km_model *m) {
    km_sampling of = km_model_sampling(m);
    if (!s->said[0]) s->set.temperature = of.temperature;
    if (!s->said[1]) s->set.top_k = of.top_k;
    if (!s->said[2]) s->set.top_p = of.top_p;
    if (!s->said[3]) s->set.min_p = of.min_p;
    if (!s->said[4] && of.repeat_penalty > 0) s->set.repeat_penalty = of.repeat_penalty;
    bool all = s->said[0] && s->said[1] && s->said[2] && s->said[3] && s->said[4];
    snprintf(s->from, sizeof s->from, "%s", all ? "" : km_model_describe(m).sampling_from);
}

km_status km_cli_sampling_check(km_cli_sampling *s, km_error *err) {
    s->set.seed = (uint64_t)s->seed;
    s->set.mirostat = (int)s->mirostat;
    if (s->grammar && s->schema)
        return km_error_set(err, KM_ERR_RANGE, "--grammar and --json-schema exclude each other");
    if (s->strict_schema && !s->schema)
        return km_error_set(err, KM_ERR_RANGE, "--strict-schema goes with --json-schema");
    for (int i = 0; i < s->bias.n; i++) {
        const char *equals = strrchr(s->bias.at[i], '=');
        char *end = NULL;
        double v = equals ? strtod(equals + 1, &end) : NAN;
        if (!equals || equals == s->bias.at[i] || end == equals + 1 || *end || isnan(v) ||
            v == INFINITY)
            return km_error_set(err, KM_ERR_RANGE,
                                "--logit-bias takes ID=X or TEXT=X, as 42=-5 or ' no'=-inf, "
                                "not '%.60s'",
                                s->bias.at[i]);
    }
    if (km_sampling_check(&s->set) == KM_OK) return KM_OK;
    return km_error_set(err, km_last_status(), "%s", km_last_error());
}

/* The token that is meant by what stands before the '='. */
static km_status find_token(km_model *m, const char *word, size_t length, int32_t *id,
                            km_error *err) {
    int32_t ids[16];
    if (length < 10 && strspn(word, "0123456789") == length) {
        long v = strtol(word, NULL, 10);
        if (!km_token_piece(m, (int32_t)v, NULL))
            return km_error_set(err, KM_ERR_RANGE,
                                "--logit-bias: there is no token %ld; the vocabulary has %lld", v,
                                (long long)km_model_describe(m).vocab);
        *id = (int32_t)v;
        return KM_OK;
    }
    int64_t n = km_tokenize(m, word, length, KM_TOKENS_PARSE_SPECIAL, ids, 16);
    if (n < 0) return km_error_set(err, km_last_status(), "%s", km_last_error());
    *id = ids[0];
    if (n == 1) return KM_OK;
    km_text list = {0};
    for (int64_t i = 0; i < n && i < 16; i++)
        km_text_printf(&list, "%s%d", i ? ", " : "", (int)ids[i]);
    km_error_set(err, KM_ERR_RANGE,
                 "--logit-bias: '%.*s' is not one token but %lld (%s%s); name them by their "
                 "ids",
                 (int)(length < 60 ? length : 60), word, (long long)n, km_text_str(&list),
                 n > 16 ? ", ..." : "");
    km_text_free(&list);
    return err->code;
}

static km_status open_biases(km_cli_sampling *s, km_model *m, km_error *err) {
    if (s->bias.n == 0) return KM_OK;
    s->biases = km_calloc((size_t)s->bias.n, sizeof *s->biases);
    if (!s->biases) return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    for (int i = 0; i < s->bias.n; i++) {
        const char *word = s->bias.at[i], *equals = strrchr(word, '=');
        s->biases[i].add = (float)strtod(equals + 1, NULL);
        km_status e = find_token(m, word, (size_t)(equals - word), &s->biases[i].id, err);
        if (e != KM_OK) return e;
    }
    s->set.bias = s->biases;
    s->set.n_bias = (size_t)s->bias.n;
    return KM_OK;
}

static bool is_json_text(const char *given) {
    given += strspn(given, " \t\n");
    return *given == '{' || strcmp(given, "true") == 0 || strcmp(given, "false") == 0;
}

/* Errors of what a file holds name the file. */
static km_status open_grammar(km_cli_sampling *s, km_error *err) {
    const char *given = s->schema ? s->schema : s->grammar;
    bool text = s->schema && is_json_text(s->schema);
    km_map map = {0};
    km_status e = KM_OK;
    if (text)
        km_text_add(&s->rules, given);
    else if ((e = km_map_open(&map, given, err)) == KM_OK)
        km_text_put(&s->rules, map.data ? (const char *)map.data : "", map.size);
    if (!text) e = km_map_done(&map, e, err);
    if (e == KM_OK && !km_text_ok(&s->rules))
        e = km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    if (e != KM_OK) return e;
    const char *rules = km_text_str(&s->rules);
    e = km_grammar_check(s->schema ? NULL : rules, s->schema ? rules : NULL, s->strict_schema);
    if (e == KM_OK) return e;
    return text ? km_error_set(err, e, "%s", km_last_error())
                : km_error_set(err, e, "%.200s: %s", given, km_last_error());
}

km_status km_cli_sampling_open(km_cli_sampling *s, km_model *m, km_error *err) {
    km_status e = open_biases(s, m, err);
    if (e == KM_OK && (s->grammar || s->schema)) e = open_grammar(s, err);
    return e;
}

void km_cli_sampling_close(km_cli_sampling *s) {
    km_text_free(&s->rules);
    km_free(s->biases);
    s->biases = NULL;
}

void km_cli_sampling_apply(const km_cli_sampling *s, km_generation *g) {
    g->sampling = s->set;
    g->past_end = s->past_end;
    g->stops = s->stop.at;
    g->n_stops = (size_t)s->stop.n;
    g->strict_schema = s->strict_schema;
    if (s->schema) g->schema = km_text_str(&s->rules);
    if (s->grammar) g->grammar = km_text_str(&s->rules);
}
