/* A line of kermes run --prompts: a JSON object with a prompt or messages, and settings under the names
 * that the server's requests use. A field that is not known is refused, since one that is misspelt would
 * silently do nothing; "metadata" is for whatever the caller likes to keep there. */
#include "base/alloc.h"
#include "cli/run_many.h"
#include "cli/use_model.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- Fields ---- */

typedef struct field_row { /* a number of km_sampling */
    const char *name;
    size_t at;
    bool whole;
    double lo, hi;
} field_row;

#define SAMPLING(field) offsetof(km_sampling, field)
static const field_row rows[] = {
    {"temperature", SAMPLING(temperature), false, 0, 100},
    {"top_k", SAMPLING(top_k), true, 0, 1e9},
    {"top_p", SAMPLING(top_p), false, 1e-6, 1},
    {"min_p", SAMPLING(min_p), false, 0, 1},
    {"typical_p", SAMPLING(typical), false, 0, 1},
    {"repeat_penalty", SAMPLING(repeat_penalty), false, 0, 100},
    {"repeat_last_n", SAMPLING(repeat_last), true, -1, 1e9},
    {"frequency_penalty", SAMPLING(frequency_penalty), false, -100, 100},
    {"presence_penalty", SAMPLING(presence_penalty), false, -100, 100},
    {"dry_multiplier", SAMPLING(dry_multiplier), false, 0, 100},
    {"dry_base", SAMPLING(dry_base), false, 1, 100},
    {"dry_allowed_length", SAMPLING(dry_allowed_length), true, 0, 1e6},
    {"mirostat_tau", SAMPLING(mirostat_tau), false, 1e-3, 100},
    {"mirostat_eta", SAMPLING(mirostat_eta), false, 0, 10},
};
enum { ROWS = sizeof rows / sizeof *rows };

static km_status take_number(km_sampling *s, const field_row *r, const json_t *v, km_error *err) {
    double d = json_number_value(v);
    bool whole = json_is_integer(v) || (json_is_real(v) && d == floor(d));
    if (!json_is_number(v) || !(d >= r->lo && d <= r->hi) || (r->whole && !whole))
        return km_error_set(err, KM_ERR_RANGE, "'%s' is a %snumber from %g to %g", r->name,
                            r->whole ? "whole " : "", r->lo, r->hi);
    if (r->whole)
        *(int64_t *)((char *)s + r->at) = (int64_t)d;
    else
        *(double *)((char *)s + r->at) = d;
    return KM_OK;
}

static km_status take_stops(km_run_line *l, const json_t *v, km_error *err) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > 64) return km_error_set(err, KM_ERR_RANGE, "'stop' holds at most 64 texts");
    l->stops = km_calloc(n + 1, sizeof *l->stops);
    if (!l->stops) return km_no_memory(err);
    l->how.n_stops = 0;
    l->how.stops = l->stops;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one) || json_string_length(one) == 0)
            return km_error_set(err, KM_ERR_RANGE, "'stop' is a text, or a list of texts");
        l->stops[l->how.n_stops++] = json_string_value(one);
    }
    return KM_OK;
}

static km_status take_bias(km_run_line *l, km_model *m, json_t *v, km_error *err) {
    const char *key;
    json_t *one;
    if (!json_is_object(v) || json_object_size(v) > 4096)
        return km_error_set(err, KM_ERR_RANGE, "'logit_bias' is an object of tokens and numbers");
    l->bias = km_calloc(json_object_size(v) + 1, sizeof *l->bias);
    if (!l->bias) return km_no_memory(err);
    l->how.sampling.bias = l->bias;
    l->how.sampling.n_bias = 0;
    json_object_foreach(v, key, one) {
        char *end;
        long id = strtol(key, &end, 10);
        double add = json_number_value(one);
        if (*end || end == key || id < 0 || id > INT32_MAX ||
            !km_token_piece(m, (int32_t)id, NULL) || !json_is_number(one) || fabs(add) > 1000)
            return km_error_set(err, KM_ERR_RANGE,
                                "'logit_bias' holds '%.40s', which is no token with a number from "
                                "-100 (never) to 100",
                                key);
        l->bias[l->how.sampling.n_bias++] =
            (km_logit_bias){(int32_t)id, add <= -100 ? -INFINITY : (float)add};
    }
    return KM_OK;
}

static km_status take_rules(km_run_line *l, const char *name, const json_t *v, km_error *err) {
    if (strcmp(name, "grammar") == 0) {
        if (!json_is_string(v)) return km_error_set(err, KM_ERR_RANGE, "'grammar' is GBNF");
        l->how.grammar = json_string_value(v);
        l->how.schema = NULL;
        return KM_OK;
    }
    if (!json_is_object(v) && !json_is_boolean(v))
        return km_error_set(err, KM_ERR_RANGE, "'%s' is a JSON schema, an object", name);
    if (l->schema) return km_error_set(err, KM_ERR_RANGE, "there are two schemas");
    l->schema = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!l->schema) return km_no_memory(err);
    l->how.schema = l->schema;
    l->how.grammar = NULL;
    return KM_OK;
}

static km_status take_field(km_run_line *l, km_model *m, const char *name, json_t *v,
                            km_error *err) {
    static const char *const others[] = {"prompt",     "text",   "messages",    "id",
                                         "metadata",   "stop",   "logit_bias",  "grammar",
                                         "schema",     "seed",   "json_schema", "max_tokens",
                                         "ignore_eos", "system", "mirostat"};
    enum { OTHERS = sizeof others / sizeof *others };
    json_int_t i = json_integer_value(v);
    for (int r = 0; r < ROWS; r++)
        if (strcmp(rows[r].name, name) == 0) return take_number(&l->how.sampling, &rows[r], v, err);
    if (strcmp(name, "stop") == 0) return take_stops(l, v, err);
    if (strcmp(name, "logit_bias") == 0) return take_bias(l, m, v, err);
    if (strcmp(name, "grammar") == 0 || strcmp(name, "schema") == 0 ||
        strcmp(name, "json_schema") == 0)
        return take_rules(l, name, v, err);
    if (strcmp(name, "seed") == 0) {
        if (!json_is_integer(v) || i < 0)
            return km_error_set(err, KM_ERR_RANGE, "'seed' is a whole number from 0 on");
        l->how.sampling.seed = (uint64_t)i;
    } else if (strcmp(name, "max_tokens") == 0) {
        if (!json_is_integer(v) || i < 1 || i > 1000000000)
            return km_error_set(err, KM_ERR_RANGE, "'max_tokens' is a whole number from 1 on");
        l->how.max_tokens = i;
    } else if (strcmp(name, "mirostat") == 0) {
        if (!json_is_integer(v) || (i != 0 && i != 2))
            return km_error_set(err, KM_ERR_RANGE, "'mirostat' is 2, or 0 for none");
        l->how.sampling.mirostat = (int)i;
    } else if (strcmp(name, "ignore_eos") == 0) {
        if (!json_is_boolean(v))
            return km_error_set(err, KM_ERR_RANGE, "'ignore_eos' is true or false");
        l->how.past_end = json_is_true(v);
    } else {
        const char *names[OTHERS + ROWS];
        for (int k = 0; k < OTHERS; k++)
            if (strcmp(others[k], name) == 0) return KM_OK; /* read elsewhere, or kept as it is */
        for (int k = 0; k < OTHERS + ROWS; k++)
            names[k] = k < OTHERS ? others[k] : rows[k - OTHERS].name;
        const char *near = km_nearest(name, names, OTHERS + ROWS);
        return km_error_set(err, KM_ERR_RANGE, "there is no field '%.60s'%s%s%s", name,
                            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return KM_OK;
}

/* ---- The prompt ---- */

static km_status tokenize(km_run_line *l, km_model *m, const char *text, size_t bytes,
                          km_error *err) {
    unsigned flags = KM_TOKENS_PARSE_SPECIAL | (l->how.rendered ? 0u : KM_TOKENS_ADD_SPECIAL);
    int64_t n = km_tokenize(m, text, bytes, flags, NULL, 0);
    l->ids = n > 0 ? km_alloc((size_t)n * sizeof *l->ids) : NULL;
    if (n > 0 && !l->ids) return km_no_memory(err);
    if (n > 0) n = km_tokenize(m, text, bytes, flags, l->ids, (size_t)n);
    if (n < 0) return km_error_set(err, km_last_status(), "%s", km_last_error());
    if (n == 0) return km_error_set(err, KM_ERR_RANGE, "the prompt is empty");
    /* An end that the tokenizer puts after a text is none here: the text is to go on. */
    int32_t last = 0;
    int64_t plain = km_tokenize(m, text, bytes, KM_TOKENS_PARSE_SPECIAL, NULL, 0);
    bool added = !l->how.rendered && n > 1 && n > plain && l->ids[n - 1] == km_model_eos(m);
    if (added && plain > 0) { /* unless the text says so itself */
        int32_t *own = km_alloc((size_t)plain * sizeof *own);
        if (!own) return km_no_memory(err);
        plain = km_tokenize(m, text, bytes, KM_TOKENS_PARSE_SPECIAL, own, (size_t)plain);
        last = plain > 0 ? own[plain - 1] : -1;
        km_free(own);
    }
    if (added && (plain == 0 || last != km_model_eos(m))) n--;
    l->n = (size_t)n;
    int64_t context = km_model_describe(m).context;
    if (n >= context)
        return km_error_set(err, KM_ERR_RANGE,
                            "the prompt has %lld tokens, and the context holds %lld", (long long)n,
                            (long long)context);
    return KM_OK;
}

static json_t *with_system(json_t *messages, const char *system) {
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    json_t *all = json_copy(messages);
    if (all && system && !(role && strcmp(role, "system") == 0))
        json_array_insert_new(all, 0, km_cli_message("system", system, strlen(system)));
    return all;
}

static km_status make_prompt(km_run_line *l, const km_run_many *o, km_model *m, km_error *err) {
    json_t *text = json_object_get(l->request, "prompt");
    json_t *messages = json_object_get(l->request, "messages");
    json_t *system = json_object_get(l->request, "system");
    if (!text) text = json_object_get(l->request, "text");
    if (!text == !messages)
        return km_error_set(err, KM_ERR_RANGE,
                            "a line has one of 'prompt' (or 'text') and 'messages'");
    if (text && !json_is_string(text)) return km_error_set(err, KM_ERR_RANGE, "'prompt' is a text");
    if (messages && (!json_is_array(messages) || json_array_size(messages) == 0))
        return km_error_set(err, KM_ERR_RANGE, "'messages' is a list of messages");
    if (system && !json_is_string(system))
        return km_error_set(err, KM_ERR_RANGE, "'system' is a text");
    if (system && text && !o->chat)
        return km_error_set(err, KM_ERR_RANGE, "'system' goes with 'messages', or with --chat");
    l->how.rendered = messages || o->chat;
    if (!l->how.rendered)
        return tokenize(l, m, json_string_value(text), json_string_length(text), err);
    json_t *made = messages ? json_incref(messages)
                            : json_pack("[o]", km_cli_message("user", json_string_value(text),
                                                              json_string_length(text)));
    json_t *all = made ? with_system(made, system ? json_string_value(system) : o->system) : NULL;
    km_text prompt = {0};
    km_status s = all ? km_cli_render(m, o->template, all, &prompt, err) : km_no_memory(err);
    if (s == KM_OK && !km_text_ok(&prompt)) s = km_no_memory(err);
    if (s == KM_OK) s = tokenize(l, m, km_text_str(&prompt), prompt.len, err);
    json_decref(made);
    json_decref(all);
    km_text_free(&prompt);
    return s;
}

/* ---- All of it ---- */

uint64_t km_run_line_hash(const km_text *text) {
    return XXH3_64bits(km_text_str(text), text->len) | 1;
}

km_status km_run_line_read(km_run_line *l, const km_run_many *o, km_model *m, const km_text *text,
                           km_error *err) {
    json_error_t where;
    const char *name;
    json_t *v;
    l->how = *o->how;
    l->how.sampling.seed += (uint64_t)l->index;
    l->request = json_loadb(km_text_str(text), text->len, JSON_REJECT_DUPLICATES, &where);
    if (!l->request)
        return km_error_set(err, KM_ERR_FILE, "this is no JSON: %.120s (column %d)", where.text,
                            where.column);
    if (!json_is_object(l->request)) return km_error_set(err, KM_ERR_FILE, "this is no object");
    l->id = json_object_get(l->request, "id");
    if (json_is_null(l->id)) l->id = NULL;
    if (l->id && !json_is_string(l->id) && !json_is_integer(l->id)) {
        l->id = NULL;
        return km_error_set(err, KM_ERR_RANGE, "'id' is a text or a whole number");
    }
    json_object_foreach(l->request, name, v) {
        km_status s = json_is_null(v) ? KM_OK : take_field(l, m, name, v, err);
        if (s != KM_OK) return s;
    }
    if (json_object_get(l->request, "grammar") && l->schema)
        return km_error_set(err, KM_ERR_RANGE, "a grammar and a schema exclude each other");
    if (km_sampling_check(&l->how.sampling) != KM_OK)
        return km_error_set(err, km_last_status(), "%s", km_last_error());
    return make_prompt(l, o, m, err);
}

void km_run_line_free(km_run_line *l) {
    if (!l) return;
    json_decref(l->request);
    km_free(l->ids);
    km_free(l->stops);
    km_free(l->bias);
    free(l->schema);
    km_text_free(&l->text);
    km_free(l);
}
