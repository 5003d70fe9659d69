/* Sampling flags: biases by id or text, grammars and schemas from files. */
#include "cli/sampling.h"
#include "base/alloc.h"
#include "base/file.h"
#include "text/json_schema.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

km_cli_sampling km_cli_sampling_defaults(int64_t top_k, double top_p, double min_p) {
    km_cli_sampling s = {.set = km_sampling_defaults(), .seed = 1};
    s.set.temperature = 0.8;
    s.set.top_k = top_k;
    s.set.top_p = top_p;
    s.set.min_p = min_p;
    return s;
}

void km_cli_sampling_said(km_cli_sampling *s, const km_spec *spec, const km_args *args) {
    const void *fields[KM_SUGGEST_COUNT] = {&s->set.temperature, &s->set.top_k, &s->set.top_p,
                                            &s->set.min_p, &s->set.repeat_penalty};
    for (int i = 0; spec->options[i].name; i++)
        for (int f = 0; f < KM_SUGGEST_COUNT; f++)
            if (args->given[i] && spec->options[i].dest == fields[f]) s->said[f] = true;
}

void km_cli_sampling_of_model(km_cli_sampling *s, const char *path) {
    km_suggested m = km_suggested_of(path);
    double *reals[KM_SUGGEST_COUNT] = {&s->set.temperature, NULL, &s->set.top_p, &s->set.min_p,
                                       &s->set.repeat_penalty};
    for (int i = 0; i < KM_SUGGEST_COUNT; i++) {
        if (s->said[i] || isnan(m.value[i])) continue;
        if (reals[i])
            *reals[i] = m.value[i];
        else
            s->set.top_k = (int64_t)m.value[i];
        snprintf(s->from, sizeof s->from, "%s", m.from);
    }
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
    return km_sampling_check(&s->set, err);
}

/* The token that is meant by what stands before the '='. */
static km_status find_token(const km_token *token, const char *word, size_t length, int32_t *id,
                            km_error *err) {
    int64_t vocab = km_token_vocab(token);
    if (length < 10 && strspn(word, "0123456789") == length) {
        long v = strtol(word, NULL, 10);
        if (v >= vocab)
            return km_error_set(err, KM_ERR_RANGE,
                                "--logit-bias: there is no token %ld; the vocabulary has %lld", v,
                                (long long)vocab);
        *id = (int32_t)v;
        return KM_OK;
    }
    km_ids ids = {0};
    km_status s = km_token_encode(token, word, length, KM_TOKEN_PARSE_SPECIAL, &ids, err);
    if (s == KM_OK && ids.len != 1) {
        km_text list = {0};
        for (size_t i = 0; i < ids.len && i < 16; i++)
            km_text_printf(&list, "%s%d", i ? ", " : "", (int)ids.data[i]);
        s = km_error_set(err, KM_ERR_RANGE,
                         "--logit-bias: '%.*s' is not one token but %zu (%s%s); name them by their "
                         "ids",
                         (int)(length < 60 ? length : 60), word, ids.len, km_text_str(&list),
                         ids.len > 16 ? ", ..." : "");
        km_text_free(&list);
    }
    if (s == KM_OK) *id = ids.data[0];
    km_ids_free(&ids);
    return s;
}

static km_status open_biases(km_cli_sampling *s, const km_token *token, km_error *err) {
    if (s->bias.n == 0) return KM_OK;
    s->biases = km_calloc((size_t)s->bias.n, sizeof *s->biases);
    if (!s->biases) return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    for (int i = 0; i < s->bias.n; i++) {
        const char *word = s->bias.at[i], *equals = strrchr(word, '=');
        s->biases[i].add = (float)strtod(equals + 1, NULL);
        km_status e = find_token(token, word, (size_t)(equals - word), &s->biases[i].id, err);
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
static km_grammar *parse_file(const char *path, bool schema, bool strict, km_error *err) {
    km_map map = {0};
    if (km_map_open(&map, path, err) != KM_OK) return NULL;
    const char *text = map.data ? (const char *)map.data : "";
    km_error inside = {0};
    km_grammar *g = schema ? km_json_schema_grammar(text, map.size, strict, &inside)
                           : km_grammar_parse(text, map.size, &inside);
    if (!g) km_error_set(err, inside.code, "%.200s: %s", path, inside.text);
    if (km_map_done(&map, KM_OK, err) == KM_OK) return g;
    km_grammar_free(g);
    return NULL;
}

static km_status open_grammar(km_cli_sampling *s, const km_token *token, km_error *err) {
    if (s->schema && is_json_text(s->schema))
        s->rules = km_json_schema_grammar(s->schema, strlen(s->schema), s->strict_schema, err);
    else
        s->rules = parse_file(s->schema ? s->schema : s->grammar, s->schema != NULL,
                              s->strict_schema, err);
    if (s->rules) s->trie = km_trie_new(token, err);
    if (s->trie) s->guide = km_guide_new(s->rules, s->trie, err);
    return s->guide ? KM_OK : err->code;
}

km_status km_cli_sampling_open(km_cli_sampling *s, const km_token *token, km_error *err) {
    km_status e = open_biases(s, token, err);
    if (e == KM_OK && (s->grammar || s->schema)) e = open_grammar(s, token, err);
    return e;
}

void km_cli_sampling_close(km_cli_sampling *s) {
    km_guide_free(s->guide);
    km_trie_free(s->trie);
    km_grammar_free(s->rules);
    km_free(s->biases);
    s->guide = NULL;
    s->trie = NULL;
    s->rules = NULL;
    s->biases = NULL;
}

void km_cli_sampling_apply(const km_cli_sampling *s, km_making *g) {
    g->sampling = s->set;
    g->past_end = s->past_end;
    g->stops = s->stop.at;
    g->n_stops = (size_t)s->stop.n;
    g->guide = s->guide;
}
