/* Reading the fields that dialects share: numbers in their ranges, samplers, formats, tools. A field that
 * is absent or null keeps its default; one of the wrong type or out of range is refused by its name. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ollama keeps samplers in "options". */
static json_t *find(const km_api_call *c, const char *key) {
    json_t *v = json_object_get(c->request, key);
    if (!v || json_is_null(v)) v = json_object_get(json_object_get(c->request, "options"), key);
    return json_is_null(v) ? NULL : v;
}

bool km_field_number(km_api_call *c, const char *key, double lo, double hi, double *out) {
    json_t *v = find(c, key);
    if (!v) return true;
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d >= lo && d <= hi)) {
        km_call_refuse(c, 400, key, "'%s' is a number from %g to %g", key, lo, hi);
        return false;
    }
    *out = d;
    return true;
}

bool km_field_int(km_api_call *c, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    json_t *v = find(c, key);
    if (!v) return true;
    double d = json_number_value(v);
    int64_t i = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    if (json_is_real(v) && d == floor(d) && fabs(d) < 9e15) i = (int64_t)d; /* 16.0 */
    bool whole = json_is_integer(v) || (json_is_real(v) && d == floor(d) && fabs(d) < 9e15);
    if (!whole || i < lo || i > hi) {
        km_call_refuse(c, 400, key, "'%s' is a whole number from %lld to %lld", key, (long long)lo,
                       (long long)hi);
        return false;
    }
    *out = i;
    return true;
}

bool km_field_bool(km_api_call *c, const char *key, bool *out) {
    json_t *v = find(c, key);
    if (!v) return true;
    if (!json_is_boolean(v)) {
        km_call_refuse(c, 400, key, "'%s' is true or false", key);
        return false;
    }
    *out = json_is_true(v);
    return true;
}

/* ---- Samplers ---- */

static bool read_stops(km_api_call *c) {
    json_t *v = find(c, "stop");
    if (!v) v = find(c, "stop_sequences");
    if (!v) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > 64) return km_call_refuse(c, 400, "stop", "at most 64 texts to stop at"), false;
    c->stops = km_calloc(n + 1, sizeof *c->stops);
    if (!c->stops) return km_call_refuse(c, 503, NULL, "out of memory"), false;
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one) || json_string_length(one) > 1000)
            return km_call_refuse(c, 400, "stop", "'stop' is a text, or a list of texts"), false;
        if (json_string_length(one) == 0) continue;
        c->stops[c->how.n_stops++] = json_string_value(one);
    }
    c->how.stops = c->stops;
    return true;
}

static bool read_bias(km_api_call *c) {
    json_t *v = find(c, "logit_bias"), *one;
    const char *key;
    if (!v) return true;
    if (!json_is_object(v) || json_object_size(v) > 4096)
        return km_call_refuse(c, 400, "logit_bias",
                              "'logit_bias' is an object of tokens and numbers"),
               false;
    c->bias = km_calloc(json_object_size(v) + 1, sizeof *c->bias);
    if (!c->bias) return km_call_refuse(c, 503, NULL, "out of memory"), false;
    size_t n = 0;
    json_object_foreach(v, key, one) {
        char *end;
        long id = strtol(key, &end, 10);
        double add = json_number_value(one);
        if (*end || end == key || id < 0 || id >= c->served->info.vocab || !json_is_number(one) ||
            fabs(add) > 1000)
            return km_call_refuse(
                       c, 400, "logit_bias",
                       "'logit_bias' holds '%.40s', which is no token with a number from -100 to 100",
                       key),
                   false;
        c->bias[n++] = (km_logit_bias){(int32_t)id, add <= -100 ? -INFINITY : (float)add};
    }
    c->how.sampling.bias = c->bias;
    c->how.sampling.n_bias = n;
    return true;
}

static bool read_limit(km_api_call *c) {
    static const char *const keys[] = {"max_tokens", "max_completion_tokens", "n_predict",
                                       "num_predict", "max_output_tokens"};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t n = 0;
        if (!km_field_int(c, keys[i], -2, 1 << 30, &n)) return false;
        if (n == 0 && find(c, keys[i]))
            return km_call_refuse(c, 400, keys[i], "'%s' is at least 1", keys[i]), false;
        if (n > 0) most = n;
    }
    if (most == 0) most = c->serve->o.max_tokens;
    if (c->key.tokens && (most == 0 || most > c->key.tokens)) most = c->key.tokens;
    c->how.max_tokens = most;
    return true;
}

static uint64_t hash_id(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

static bool read_seed(km_api_call *c) {
    int64_t seed = -1;
    if (!km_field_int(c, "seed", INT64_MIN / 2, INT64_MAX / 2, &seed)) return false;
    if (find(c, "seed") && seed >= 0)
        c->how.sampling.seed = (uint64_t)seed;
    else
        c->how.sampling.seed =
            (c->serve->salt ^ (uint64_t)(c->began * 1e6)) * 0x9e3779b97f4a7c15u + hash_id(c->id);
    return true;
}

km_status km_fields_sampling(km_api_call *c) {
    km_sampling *p = &c->how.sampling;
    int64_t mirostat = p->mirostat, n = 1;
    bool past_end = false;
    bool ok = km_field_number(c, "temperature", 0, 100, &p->temperature) &&
              km_field_number(c, "top_p", 0, 1, &p->top_p) &&
              km_field_int(c, "top_k", -1, 1 << 30, &p->top_k) &&
              km_field_number(c, "min_p", 0, 1, &p->min_p) &&
              km_field_number(c, "typical_p", 0, 1, &p->typical) &&
              km_field_number(c, "repeat_penalty", 0, 100, &p->repeat_penalty) &&
              km_field_number(c, "repetition_penalty", 0, 100, &p->repeat_penalty) &&
              km_field_number(c, "frequency_penalty", -2, 2, &p->frequency_penalty) &&
              km_field_number(c, "presence_penalty", -2, 2, &p->presence_penalty) &&
              km_field_int(c, "repeat_last_n", -1, 1 << 30, &p->repeat_last) &&
              km_field_number(c, "dry_multiplier", 0, 100, &p->dry_multiplier) &&
              km_field_number(c, "dry_base", 1, 100, &p->dry_base) &&
              km_field_int(c, "dry_allowed_length", 1, 1 << 20, &p->dry_allowed_length) &&
              km_field_int(c, "mirostat", 0, 2, &mirostat) &&
              km_field_number(c, "mirostat_tau", 0, 100, &p->mirostat_tau) &&
              km_field_number(c, "mirostat_eta", 0, 10, &p->mirostat_eta) &&
              km_field_bool(c, "ignore_eos", &past_end) && km_field_int(c, "n", 1, 16, &n) &&
              km_field_number(c, "timeout", 0, 86400, &c->timeout) && read_stops(c) &&
              read_bias(c) && read_limit(c) && read_seed(c);
    if (!ok) return KM_ERR_RANGE;
    if (mirostat == 1)
        return km_call_refuse(c, 400, "mirostat", "of mirostat there is version 2 (and 0: off)");
    if (p->top_k < 0) p->top_k = 0;
    if (p->top_p == 0) p->top_k = 1; /* nothing but the likeliest */
    p->mirostat = (int)mirostat;
    c->how.past_end = past_end;
    c->n = (int)n;
    return KM_OK;
}

/* ---- Formats ---- */

static km_status take_schema(km_api_call *c, const json_t *schema, const char *param, bool strict) {
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return km_call_refuse(c, 400, param, "a JSON schema is an object");
    c->schema = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!c->schema) return km_call_refuse(c, 503, NULL, "out of memory");
    c->how.schema = c->schema;
    c->how.strict_schema = strict;
    return KM_OK;
}

km_status km_fields_format(km_api_call *c) {
    json_t *format = find(c, "response_format"), *schema = find(c, "json_schema"),
           *grammar = find(c, "grammar");
    if (grammar) {
        if (!json_is_string(grammar))
            return km_call_refuse(c, 400, "grammar", "'grammar' is a text in GBNF");
        c->grammar = strdup(json_string_value(grammar));
        c->how.grammar = c->grammar;
    }
    if (schema) return take_schema(c, schema, "json_schema", false);
    if (!format) return KM_OK;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type) return km_call_refuse(c, 400, "response_format", "'response_format' has a type");
    if (strcmp(type, "text") == 0) return KM_OK;
    if (strcmp(type, "json_object") == 0) {
        json_t *any = json_object_get(format, "schema");
        if (any) return take_schema(c, any, "response_format", false);
        json_t *object = json_pack("{s:s}", "type", "object");
        km_status s = take_schema(c, object, "response_format", false);
        json_decref(object);
        return s;
    }
    if (strcmp(type, "json_schema") != 0)
        return km_call_refuse(c, 400, "response_format",
                              "'response_format' is of type text, json_object or json_schema");
    json_t *named = json_object_get(format, "json_schema"),
           *inner = json_object_get(named, "schema");
    if (!inner) inner = json_object_get(format, "schema");
    if (!inner)
        return km_call_refuse(c, 400, "response_format", "'response_format' holds no schema");
    return take_schema(c, inner, "response_format", json_is_true(json_object_get(named, "strict")));
}

/* ---- Tools ---- */

/* The answer is then one call, valid by construction: {"name": one of them, "arguments": its schema}. */
km_status km_force_tool(km_api_call *c, const char *name) {
    json_t *tools = json_loads(c->tools ? c->tools : "[]", 0, NULL), *forms = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        json_t *f = json_object_get(tool, "function"), *p = json_object_get(f, "parameters");
        const char *one = json_string_value(json_object_get(f, "name"));
        if (name && strcmp(one, name) != 0) continue;
        json_t *empty = json_pack("{s:s}", "type", "object");
        json_array_append_new(forms,
                              json_pack("{s:s, s:{s:{s:s}, s:O}, s:[s,s], s:b}", "type", "object",
                                        "properties", "name", "const", one, "arguments",
                                        json_is_object(p) ? p : empty, "required", "name",
                                        "arguments", "additionalProperties", 0));
        json_decref(empty);
    }
    json_decref(tools);
    if (json_array_size(forms) == 0) {
        json_decref(forms);
        return km_call_refuse(c, 400, "tool_choice",
                              name ? "there is no tool '%.60s'" : "there are no tools", name);
    }
    json_t *schema = json_array_size(forms) == 1 ? json_incref(json_array_get(forms, 0))
                                                 : json_pack("{s:O}", "anyOf", forms);
    km_status s = take_schema(c, schema, "tool_choice", false);
    json_decref(schema);
    json_decref(forms);
    c->forced_tool = true;
    return s;
}

static km_status read_tool_choice(km_api_call *c, const json_t *choice) {
    const char *word = json_string_value(choice);
    if (!choice || json_is_null(choice) || (word && strcmp(word, "auto") == 0)) return KM_OK;
    if (word && strcmp(word, "none") == 0) {
        c->n_tools = 0; /* the model still sees them, and its answer is text */
        return KM_OK;
    }
    if (word && (strcmp(word, "required") == 0 || strcmp(word, "any") == 0))
        return km_force_tool(c, NULL);
    const json_t *f = json_object_get(choice, "function");
    const char *name = json_string_value(json_object_get(f ? f : choice, "name"));
    if (name) return km_force_tool(c, name);
    return km_call_refuse(c, 400, "tool_choice",
                          "'tool_choice' is auto, none, required or a function's name");
}

km_status km_fields_tools(km_api_call *c, const json_t *tools, const json_t *choice) {
    if (!tools || json_is_null(tools)) return KM_OK;
    if (!json_is_array(tools) || json_array_size(tools) > 512)
        return km_call_refuse(c, 400, "tools", "'tools' is a list of functions");
    if (json_array_size(tools) == 0) return KM_OK;
    bool parallel = true;
    if (!km_field_bool(c, "parallel_tool_calls", &parallel)) return KM_ERR_RANGE;
    c->one_call |= !parallel;
    c->tool_names = km_calloc(json_array_size(tools), sizeof *c->tool_names);
    if (!c->tool_names) return km_call_refuse(c, 503, NULL, "out of memory");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *name = json_string_value(
            json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
        if (!name || !*name || strlen(name) > 100)
            return km_call_refuse(c, 400, "tools",
                                  "tool %zu has no name, or one over 100 characters", i + 1);
        c->tool_names[c->n_tools++] = name;
    }
    json_t *marked = km_guard_mark(c->served, tools, false);
    c->tools = marked ? json_dumps(marked, JSON_COMPACT) : NULL;
    json_decref(marked);
    if (!c->tools) return km_call_refuse(c, 503, NULL, "out of memory");
    return read_tool_choice(c, choice);
}

/* ---- Messages ---- */

/* Content in parts becomes one text; a part that is no text is refused. */
static json_t *joined_content(km_api_call *c, const json_t *content, size_t i) {
    if (!content || json_is_null(content)) return json_string("");
    if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
    km_text t = {0};
    size_t k;
    json_t *part, *text;
    if (!json_is_array(content)) {
        km_call_refuse(c, 400, "messages", "message %zu: its content is a text, or a list of parts",
                       i + 1);
        return NULL;
    }
    json_array_foreach(content, k, part) {
        text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (json_is_string(part)) text = part;
        if (!json_is_string(text)) {
            km_text_free(&t);
            km_call_refuse(c, 400, "messages",
                           "message %zu: this model reads text, and not '%.40s'", i + 1,
                           type ? type : "?");
            return NULL;
        }
        km_text_put(&t, json_string_value(text), json_string_length(text));
    }
    json_t *v = json_stringn(km_text_str(&t), t.len);
    km_text_free(&t);
    return v;
}

/* Arguments of earlier calls are objects for templates. */
static void parse_arguments(json_t *message) {
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *f = json_object_get(call, "function"), *a = json_object_get(f, "arguments");
        json_t *v = json_is_string(a) ? json_loads(json_string_value(a), 0, NULL) : NULL;
        if (json_is_object(v)) json_object_set(f, "arguments", v);
        json_decref(v);
    }
}

km_status km_fields_messages(km_api_call *c, const json_t *messages) {
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return km_call_refuse(c, 400, "messages", "'messages' is a list of at least one message");
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(messages) && !c->status; i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role || !*role || strlen(role) > 40) {
            km_call_refuse(c, 400, "messages", "message %zu has no role", i + 1);
            break;
        }
        json_t *content = joined_content(c, json_object_get(m, "content"), i);
        if (!content) break;
        json_t *one = json_deep_copy(m);
        json_object_set_new(one, "content", content);
        if (strcmp(role, "developer") == 0) json_object_set_new(one, "role", json_string("system"));
        parse_arguments(one);
        json_t *marked = km_guard_mark(c->served, one, strcmp(role, "assistant") == 0);
        json_decref(one);
        json_array_append_new(all, marked);
    }
    if (!c->status) c->messages = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (c->status) return KM_ERR_RANGE;
    return c->messages ? KM_OK : km_call_refuse(c, 503, NULL, "out of memory");
}
