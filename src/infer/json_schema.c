/* Schemas as grammars. Every schema becomes an expression; objects, arrays and what $ref names
 * become rules, so that schemas that contain themselves do too. */
#include "infer/json_schema.h"
#include "base/alloc.h"
#include "format/json_read.h"
#include "infer/json_schema_merge.h"
#include "infer/json_schema_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 64
#define MAX_RULES 20000
#define MAX_TEXT ((size_t)8 << 20)

typedef struct reference {
    const json_t *target;
    int number;
} reference;

typedef struct maker {
    const json_t *root;
    km_text *rules; /* finished ones */
    reference *refs;
    size_t n_refs, cap_refs;
    int n_rules, depth;
    km_text path; /* where in the schema */
    km_error *err;
} maker;

static bool fail(maker *m, km_status code, const char *what) {
    km_error_set(m->err, code, "JSON schema, at #%s: %s", km_text_str(&m->path), what);
    return false;
}

static bool expression(maker *m, const json_t *schema, km_text *out);

/* The expression of a part of the schema, whose place is shown in messages. */
static bool part(maker *m, const char *key, const json_t *schema, km_text *out) {
    size_t length = m->path.len;
    km_text_printf(&m->path, "/%s", key);
    bool ok = expression(m, schema, out);
    if (ok || !m->path.data) {
        m->path.len = length;
        if (m->path.data) m->path.data[length] = '\0';
    }
    return ok;
}

static bool new_rule(maker *m, int *number) {
    if (++m->n_rules > MAX_RULES || m->rules->len > MAX_TEXT)
        return fail(m, KM_ERR_RANGE, "the schema is too large");
    *number = m->n_rules;
    return true;
}

static void finish_rule(maker *m, const char *kind, int number, const km_text *body) {
    km_text_printf(m->rules, "%s-%d ::= ", kind, number);
    km_text_put(m->rules, km_text_str(body), body->len);
    km_text_add(m->rules, "\n");
    if (body->failed) m->rules->failed = true;
}

/* ---- Texts ---- */

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"},
    {"time", "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
             "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"date-time",
     "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
     "(\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}"
             "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$"},
};

/* A count such as minLength; `otherwise` when it is not there. */
static bool count(maker *m, const json_t *schema, const char *key, int64_t otherwise,
                  int64_t *value) {
    const json_t *v = json_object_get(schema, key);
    *value = otherwise;
    if (!v) return true;
    double f = json_number_value(v);
    if (!json_is_number(v) || f < 0 || f > 1e15 || f != floor(f)) {
        char what[80];
        snprintf(what, sizeof what, "%s is no count", key);
        return fail(m, KM_ERR_FORMAT, what);
    }
    *value = (int64_t)f;
    return true;
}

static bool repetition(maker *m, km_text *out, int64_t least, int64_t most) {
    if (least > 10000 || most > 10000)
        return fail(m, KM_ERR_RANGE, "a length or number of items beyond 10000");
    if (most >= 0 && most < least)
        return fail(m, KM_ERR_FORMAT, "the largest length is below the smallest");
    if (least == 0 && most < 0)
        km_text_add(out, "*");
    else if (most < 0)
        km_text_printf(out, "{%" PRId64 ",}", least);
    else
        km_text_printf(out, "{%" PRId64 ",%" PRId64 "}", least, most);
    return true;
}

static bool string(maker *m, const json_t *schema, km_text *out) {
    const json_t *pattern = json_object_get(schema, "pattern");
    const char *format = json_string_value(json_object_get(schema, "format"));
    const char *text = json_string_value(pattern);
    size_t bytes = json_string_length(pattern);
    int64_t least, most;
    if (!count(m, schema, "minLength", 0, &least) || !count(m, schema, "maxLength", -1, &most))
        return false;
    if (pattern && !text) return fail(m, KM_ERR_FORMAT, "pattern is no string");
    for (size_t i = 0; !text && format && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, format) == 0) {
            text = formats[i].pattern;
            bytes = strlen(text);
        }
    if (text && (least > 0 || most >= 0))
        return fail(m, KM_ERR_UNSUPPORTED,
                    "a length together with a pattern or format is not supported");
    km_text_add(out, "\"\\\"\" ");
    if (text) {
        const char *wrong = km_gbnf_pattern(out, text, bytes);
        char what[200];
        snprintf(what, sizeof what, "pattern: %s", wrong ? wrong : "");
        if (wrong) return fail(m, KM_ERR_UNSUPPORTED, what);
    } else {
        km_text_add(out, "char");
        if (!repetition(m, out, least, most)) return false;
    }
    km_text_add(out, " \"\\\"\"");
    return true;
}

/* ---- Numbers ---- */

static bool bound(maker *m, const json_t *schema, const char *key, double *value, bool *there) {
    const json_t *v = json_object_get(schema, key);
    *there = v != NULL;
    if (!v) return true;
    if (!json_is_number(v)) return fail(m, KM_ERR_FORMAT, "a bound is no number");
    *value = json_number_value(v);
    return true;
}

static bool integer(maker *m, const json_t *schema, km_text *out) {
    static const double far = 999999999999999999.0; /* 18 digits */
    double lo = -far, hi = far, v = 0;
    bool there, any = false;
    if (!bound(m, schema, "minimum", &v, &there)) return false;
    if (there) lo = ceil(v), any = true;
    if (!bound(m, schema, "exclusiveMinimum", &v, &there)) return false;
    if (there && floor(v) + 1 > lo) lo = floor(v) + 1, any = true;
    if (!bound(m, schema, "maximum", &v, &there)) return false;
    if (there) hi = floor(v), any = true;
    if (!bound(m, schema, "exclusiveMaximum", &v, &there)) return false;
    if (there && ceil(v) - 1 < hi) hi = ceil(v) - 1, any = true;
    if (!any) {
        km_text_add(out, "integer");
        return true;
    }
    if (!(lo <= hi)) return fail(m, KM_ERR_FORMAT, "no integer lies between the bounds");
    if (lo < -far) lo = -far;
    if (hi > far) hi = far;
    if (lo > far || hi < -far)
        return fail(m, KM_ERR_RANGE, "a bound of integers has more than 18 digits");
    km_gbnf_integers(out, lo <= -far ? -999999999999999999 : (int64_t)lo,
                     hi >= far ? 999999999999999999 : (int64_t)hi);
    return true;
}

static bool number(maker *m, const json_t *schema, km_text *out) {
    double v = 0;
    bool there;
    const char *rule = "number";
    static const char *const keys[] = {"maximum", "exclusiveMaximum", "exclusiveMinimum",
                                       "minimum"};
    for (int i = 0; i < 4; i++) {
        if (!bound(m, schema, keys[i], &v, &there)) return false;
        if (there && (i != 3 || v != 0))
            return fail(m, KM_ERR_UNSUPPORTED,
                        "bounds of numbers are not supported, other than a minimum of 0; "
                        "those of integers are");
        if (there) rule = "positive";
    }
    km_text_add(out, rule);
    return true;
}

/* ---- Arrays ---- */

static bool array(maker *m, const json_t *schema, km_text *out) {
    const json_t *prefix = json_object_get(schema, "prefixItems"),
                 *items = json_object_get(schema, "items");
    int64_t least, most;
    int rule;
    if (json_is_array(items)) prefix = items, items = json_object_get(schema, "additionalItems");
    if (!count(m, schema, "minItems", 0, &least) || !count(m, schema, "maxItems", -1, &most) ||
        !new_rule(m, &rule))
        return false;
    if (least > 10000 || most > 10000)
        return fail(m, KM_ERR_RANGE, "a length or number of items beyond 10000");
    if (most >= 0 && most < least) return fail(m, KM_ERR_FORMAT, "maxItems is below minItems");
    size_t first = json_array_size(prefix);
    bool more = !json_is_false(items) && (most < 0 || most > (int64_t)first);
    if ((int64_t)first < least && !more)
        return fail(m, KM_ERR_FORMAT, "minItems asks for more items than there may be");
    km_text body = {0}, item = {0};
    bool ok = true;
    /* Items one in another, "a (, b (, c)?)?", so that the list may stop after any of them. */
    size_t open = 0;
    km_text_add(&body, "\"[\" ws ");
    for (size_t i = 0; ok && i < first && (most < 0 || (int64_t)i < most); i++) {
        if ((int64_t)i >= least) km_text_add(&body, "("), open++;
        if (i) km_text_add(&body, "\",\" ws ");
        km_text_add(&body, "(");
        ok = part(m, "prefixItems", json_array_get(prefix, i), &body);
        km_text_add(&body, ") ");
    }
    if (ok && more && most != 0) {
        int64_t at_least = least > (int64_t)first ? least - (int64_t)first : 0,
                at_most = most < 0 ? -1 : most - (int64_t)first;
        if (items)
            ok = part(m, "items", items, &item);
        else
            km_text_add(&item, "value");
        if (first) {
            km_text_printf(&body, "(\",\" ws (%s))", km_text_str(&item));
            ok = ok && repetition(m, &body, at_least, at_most);
        } else {
            if (at_least == 0) km_text_add(&body, "("), open++;
            km_text_printf(&body, "(%s) (\",\" ws (%s))", km_text_str(&item), km_text_str(&item));
            ok = ok && repetition(m, &body, at_least > 0 ? at_least - 1 : 0,
                                  at_most < 0 ? -1 : at_most - 1);
        }
    }
    for (; open > 0; open--) km_text_add(&body, ")?");
    km_text_add(&body, " ws \"]\"");
    if (body.len > MAX_TEXT) ok = fail(m, KM_ERR_RANGE, "the schema is too large");
    if (ok) finish_rule(m, "array", rule, &body);
    km_text_printf(out, "array-%d", rule);
    km_text_free(&body);
    km_text_free(&item);
    return ok;
}

/* ---- Objects ---- */

static bool is_required(const json_t *schema, const char *name) {
    const json_t *list = json_object_get(schema, "required"), *item;
    size_t i;
    json_array_foreach(list, i, item) if (json_is_string(item) &&
                                          strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

static void key_literal(km_text *out, const char *name) {
    json_t *key = json_string(name);
    char *text = key ? json_dumps(key, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (text)
        km_gbnf_literal(out, text, strlen(text));
    else
        out->failed = true;
    free(text);
    json_decref(key);
}

static void put_class_char(km_text *out, const char *c, size_t n) { /* within [ ] */
    if (n == 1 && strchr("]^-\\[", *c))
        km_text_printf(out, "\\x%02X", (unsigned char)*c);
    else
        km_text_put(out, c, n);
}

static size_t char_length(const char *s) {
    unsigned char c = (unsigned char)*s;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Strings other than the names, of which `depth` bytes are read: what may come then, with the quote
 * at the end. Names with characters that JSON escapes are left aside. */
static bool other_keys(maker *m, const char *const *names, size_t n, size_t depth, km_text *out,
                       int level) {
    if (level > MAX_DEPTH * 4 || out->len > MAX_TEXT)
        return fail(m, KM_ERR_RANGE, "a name is too long");
    bool ends = false, ok = true;
    km_text set = {0}, ways = {0};
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(names[i] + depth) ? char_length(names[i] + depth) : 0;
        ends = ends || length == 0;
        bool seen = length == 0;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strncmp(names[k] + depth, names[i] + depth, length) == 0;
        if (seen) continue;
        const char **with = km_alloc(n * sizeof *with);
        size_t n_with = 0;
        if (!with) return fail(m, KM_ERR_MEMORY, "out of memory");
        for (size_t k = 0; k < n; k++)
            if (strncmp(names[k] + depth, names[i] + depth, length) == 0) with[n_with++] = names[k];
        put_class_char(&set, names[i] + depth, length);
        km_text_add(&ways, " | ");
        km_gbnf_literal(&ways, names[i] + depth, length);
        km_text_add(&ways, " (");
        ok = other_keys(m, with, n_with, depth + length, &ways, level + 1);
        km_text_add(&ways, ")");
        km_free(with);
        if (!ok) break;
    }
    km_text_printf(out, "([^\"\\\\\\x00-\\x1F\\x7F%s] | escape) char* \"\\\"\"%s",
                   km_text_str(&set), km_text_str(&ways));
    if (!ends) km_text_add(out, " | \"\\\"\"");
    km_text_free(&set);
    km_text_free(&ways);
    return ok;
}

static bool additional_key(maker *m, const json_t *properties, km_text *out) {
    const char **names = km_alloc((json_object_size(properties) + 1) * sizeof *names);
    size_t n = 0;
    if (!names) return fail(m, KM_ERR_MEMORY, "out of memory");
    json_t *o = (json_t *)(uintptr_t)properties; /* iteration takes it as mutable */
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        const char *name = json_object_iter_key(it);
        bool plain = true;
        for (const char *c = name; *c; c++)
            plain = plain && (unsigned char)*c >= 0x20 && !strchr("\"\\\x7f", *c);
        if (plain) names[n++] = name;
    }
    km_text_add(out, "\"\\\"\" (");
    bool ok = other_keys(m, names, n, 0, out, 0);
    km_text_add(out, ")");
    km_free(names);
    return ok;
}

/* Members in order: rule N-i is what may come from property i on when some have come already, and
 * N-i-first when none has. */
static bool members(maker *m, const json_t *schema, const json_t *properties, int rule, size_t *n) {
    json_t *o = (json_t *)(uintptr_t)properties;
    km_text line = {0};
    bool ok = true;
    *n = 0;
    for (void *it = json_object_iter(o); ok && it; it = json_object_iter_next(o, it), ++*n) {
        const char *name = json_object_iter_key(it);
        bool must = is_required(schema, name);
        km_text_printf(&line, "pair-%d-%zu ::= ", rule, *n);
        key_literal(&line, name);
        km_text_add(&line, " \":\" ws (");
        ok = part(m, name, json_object_iter_value(it), &line);
        km_text_printf(&line, ")\nfirst-%d-%zu ::= pair-%d-%zu more-%d-%zu", rule, *n, rule, *n,
                       rule, *n + 1);
        if (!must) km_text_printf(&line, " | first-%d-%zu", rule, *n + 1);
        km_text_printf(&line, "\nmore-%d-%zu ::= \",\" ws pair-%d-%zu more-%d-%zu", rule, *n, rule,
                       *n, rule, *n + 1);
        if (!must) km_text_printf(&line, " | more-%d-%zu", rule, *n + 1);
        km_text_add(&line, "\n");
        if (m->rules->len + line.len > MAX_TEXT)
            ok = fail(m, KM_ERR_RANGE, "the schema is too large");
    }
    if (ok) km_text_put(m->rules, km_text_str(&line), line.len);
    if (line.failed) m->rules->failed = true;
    km_text_free(&line);
    return ok;
}

static bool object(maker *m, const json_t *schema, km_text *out) {
    const json_t *properties = json_object_get(schema, "properties"),
                 *more = json_object_get(schema, "additionalProperties"), *item;
    size_t n, i;
    int rule;
    if (!new_rule(m, &rule)) return false;
    if (properties && !json_is_object(properties))
        return fail(m, KM_ERR_FORMAT, "properties is no object");
    json_t *all = json_object(), *none = json_object();
    bool ok = all && none &&
              (!properties || json_object_update(all, (json_t *)(uintptr_t)properties) == 0);
    /* What is required without being described may be anything, but must be there. */
    json_array_foreach(json_object_get(schema, "required"), i, item) {
        const char *name = json_string_value(item);
        if (!name) ok = fail(m, KM_ERR_FORMAT, "required holds something that is no string");
        if (ok && name && !json_object_get(all, name)) {
            bool any = !json_is_false(more);
            if (!any)
                ok = fail(
                    m, KM_ERR_FORMAT,
                    "a required member is not among the properties, and others are not allowed");
            if (ok)
                ok = json_object_set(all, name,
                                     json_is_object(more) ? (json_t *)(uintptr_t)more : none) == 0;
        }
    }
    ok = ok && members(m, schema, all, rule, &n);
    km_text line = {0};
    bool others = ok && (more ? !json_is_false(more) : json_object_size(all) == 0);
    if (others) {
        km_text_printf(&line, "other-%d ::= ", rule);
        ok = additional_key(m, all, &line);
        km_text_add(&line, " \":\" ws (");
        if (ok && json_is_object(more))
            ok = part(m, "additionalProperties", more, &line);
        else
            km_text_add(&line, "value");
        km_text_printf(&line,
                       ")\nfirst-%d-%zu ::= (other-%d (\",\" ws other-%d)*)?\n"
                       "more-%d-%zu ::= (\",\" ws other-%d)*\n",
                       rule, n, rule, rule, rule, n, rule);
    } else if (ok) {
        km_text_printf(&line, "first-%d-%zu ::= \"\"\nmore-%d-%zu ::= \"\"\n", rule, n, rule, n);
    }
    if (ok) km_text_printf(&line, "object-%d ::= \"{\" ws first-%d-0 ws \"}\"\n", rule, rule);
    if (ok) km_text_put(m->rules, km_text_str(&line), line.len);
    if (line.failed) m->rules->failed = true;
    km_text_free(&line);
    km_text_printf(out, "object-%d", rule);
    json_decref(all);
    json_decref(none);
    return ok || (m->err->code == KM_OK && fail(m, KM_ERR_MEMORY, "out of memory"));
}

/* ---- Choices ---- */

static bool constant(const json_t *v, km_text *out) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (text)
        km_gbnf_literal(out, text, strlen(text));
    else
        out->failed = true;
    free(text);
    return true;
}

static bool of_type(maker *m, const json_t *schema, const char *type, km_text *out) {
    if (strcmp(type, "object") == 0) return object(m, schema, out);
    if (strcmp(type, "array") == 0) return array(m, schema, out);
    if (strcmp(type, "string") == 0) return string(m, schema, out);
    if (strcmp(type, "integer") == 0) return integer(m, schema, out);
    if (strcmp(type, "number") == 0) return number(m, schema, out);
    if (strcmp(type, "boolean") == 0)
        km_text_add(out, "boolean");
    else if (strcmp(type, "null") == 0)
        km_text_add(out, "null");
    else
        return fail(m, KM_ERR_FORMAT, "type is none of JSON's");
    return true;
}

/* What a schema without a type is about, by its keywords. */
static const char *implied_type(const json_t *schema) {
    static const char *const keys[][2] = {{"properties", "object"},
                                          {"required", "object"},
                                          {"additionalProperties", "object"},
                                          {"items", "array"},
                                          {"prefixItems", "array"},
                                          {"minItems", "array"},
                                          {"maxItems", "array"},
                                          {"pattern", "string"},
                                          {"minLength", "string"},
                                          {"maxLength", "string"},
                                          {"minimum", "number"},
                                          {"maximum", "number"},
                                          {"exclusiveMinimum", "number"},
                                          {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(schema, keys[i][0])) return keys[i][1];
    return NULL;
}

static bool choices(maker *m, const json_t *schema, const char *key, km_text *out) {
    const json_t *list = json_object_get(schema, key);
    if (!json_array_size(list))
        return fail(m, KM_ERR_FORMAT, "anyOf or oneOf is no list of schemas");
    json_t *rest = json_copy((json_t *)(uintptr_t)schema);
    bool ok = rest && json_object_del(rest, key) == 0;
    bool alone = ok && !km_schema_says(rest);
    km_text_add(out, "(");
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *choice = json_array_get(list, i);
        char place[40];
        snprintf(place, sizeof place, "%s/%zu", key, i);
        if (i) km_text_add(out, " | ");
        if (alone) {
            ok = part(m, place, choice, out);
            continue;
        }
        json_t *both = NULL;
        const char *wrong = km_schema_merge(m->root, rest, choice, &both);
        ok = wrong ? fail(m, KM_ERR_UNSUPPORTED, wrong) : part(m, place, both, out);
        json_decref(both);
    }
    km_text_add(out, ")");
    json_decref(rest);
    return ok || (m->err->code == KM_OK && fail(m, KM_ERR_MEMORY, "out of memory"));
}

static bool merged(maker *m, const json_t *schema, km_text *out) {
    json_t *all = json_copy((json_t *)(uintptr_t)schema);
    const json_t *list = json_object_get(schema, "allOf");
    if (!all || json_object_del(all, "allOf") != 0) {
        json_decref(all);
        return fail(m, KM_ERR_MEMORY, "out of memory");
    }
    const char *wrong = json_array_size(list) ? NULL : "allOf is no list of schemas";
    for (size_t i = 0; !wrong && i < json_array_size(list); i++) {
        json_t *both = NULL;
        wrong = km_schema_merge(m->root, all, json_array_get(list, i), &both);
        if (both) json_decref(all), all = both;
    }
    bool ok = wrong ? fail(m, KM_ERR_UNSUPPORTED, wrong) : part(m, "allOf", all, out);
    json_decref(all);
    return ok;
}

static bool by_reference(maker *m, const json_t *schema, km_text *out) {
    const char *wrong = NULL;
    const json_t *target =
        km_schema_find(m->root, json_string_value(json_object_get(schema, "$ref")), &wrong);
    if (!target) return fail(m, KM_ERR_UNSUPPORTED, wrong);
    json_t *rest = json_copy((json_t *)(uintptr_t)schema);
    bool says = rest && json_object_del(rest, "$ref") == 0 && km_schema_says(rest);
    if (says) { /* more than the reference: both hold */
        json_t *both = NULL;
        wrong = km_schema_merge(m->root, rest, target, &both);
        bool ok = wrong ? fail(m, KM_ERR_UNSUPPORTED, wrong) : part(m, "$ref", both, out);
        json_decref(both);
        json_decref(rest);
        return ok;
    }
    json_decref(rest);
    for (size_t i = 0; i < m->n_refs; i++)
        if (m->refs[i].target == target) {
            km_text_printf(out, "ref-%d", m->refs[i].number);
            return true;
        }
    if (m->n_refs == m->cap_refs) {
        size_t cap = m->cap_refs ? m->cap_refs * 2 : 16;
        reference *refs = km_realloc(m->refs, cap * sizeof *refs);
        if (!refs) return fail(m, KM_ERR_MEMORY, "out of memory");
        m->refs = refs;
        m->cap_refs = cap;
    }
    int number_of;
    if (!new_rule(m, &number_of)) return false;
    m->refs[m->n_refs++] = (reference){target, number_of};
    km_text body = {0};
    bool ok = part(m, "$ref", target, &body);
    if (ok) finish_rule(m, "ref", number_of, &body);
    km_text_printf(out, "ref-%d", number_of);
    km_text_free(&body);
    return ok;
}

static bool listed(maker *m, const json_t *list, km_text *out) {
    if (!json_array_size(list)) return fail(m, KM_ERR_FORMAT, "enum is no list of values");
    km_text_add(out, "(");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i) km_text_add(out, " | ");
        constant(json_array_get(list, i), out);
    }
    km_text_add(out, ")");
    return true;
}

static bool plain(maker *m, const json_t *schema, km_text *out) {
    const json_t *type = json_object_get(schema, "type"), *item;
    size_t i;
    const char *implied = implied_type(schema);
    if (json_is_string(type)) return of_type(m, schema, json_string_value(type), out);
    if (json_array_size(type)) {
        km_text_add(out, "(");
        json_array_foreach(type, i, item) {
            if (!json_is_string(item)) return fail(m, KM_ERR_FORMAT, "type is none of JSON's");
            if (i) km_text_add(out, " | ");
            if (!of_type(m, schema, json_string_value(item), out)) return false;
        }
        km_text_add(out, ")");
        return true;
    }
    if (type) return fail(m, KM_ERR_FORMAT, "type is none of JSON's");
    if (!implied) implied = json_object_get(schema, "format") ? "string" : NULL;
    if (implied) return of_type(m, schema, implied, out);
    km_text_add(out, "value");
    return true;
}

static bool schema_expression(maker *m, const json_t *schema, km_text *out) {
    if (json_is_true(schema)) {
        km_text_add(out, "value");
        return true;
    }
    if (json_is_false(schema)) return fail(m, KM_ERR_UNSUPPORTED, "a schema that nothing fits");
    if (!json_is_object(schema)) return fail(m, KM_ERR_FORMAT, "a schema is an object or true");
    const char *foreign = km_schema_foreign(schema);
    if (foreign) {
        char what[100];
        snprintf(what, sizeof what, "'%.40s' is not supported", foreign);
        return fail(m, KM_ERR_UNSUPPORTED, what);
    }
    if (json_object_get(schema, "$ref")) return by_reference(m, schema, out);
    if (json_object_get(schema, "const")) return constant(json_object_get(schema, "const"), out);
    if (json_object_get(schema, "enum")) return listed(m, json_object_get(schema, "enum"), out);
    if (json_object_get(schema, "allOf")) return merged(m, schema, out);
    if (json_object_get(schema, "anyOf")) return choices(m, schema, "anyOf", out);
    if (json_object_get(schema, "oneOf")) return choices(m, schema, "oneOf", out);
    return plain(m, schema, out);
}

static bool expression(maker *m, const json_t *schema, km_text *out) {
    if (++m->depth > MAX_DEPTH) return fail(m, KM_ERR_RANGE, "the schema is nested too deeply");
    if (out->len > MAX_TEXT) return fail(m, KM_ERR_RANGE, "the schema is too large");
    bool ok = schema_expression(m, schema, out);
    m->depth--;
    return ok;
}

/* ---- The whole ---- */

/* Space is optional and short, so that a model cannot lose itself in it. */
static const char common[] =
    "ws ::= (\" \" | \"\\n\" [ ]{0,20})?\n"
    "hex ::= [0-9a-fA-F]\n"
    "escape ::= \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2} | "
    "[dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}))\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | escape\n"
    "text ::= \"\\\"\" char* \"\\\"\"\n"
    "whole ::= \"0\" | [1-9] [0-9]{0,15}\n"
    "positive ::= whole (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?\n"
    "number ::= \"-\"? positive\n"
    "integer ::= \"-\"? whole\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "value ::= \"{\" ws (member (\",\" ws member)*)? ws \"}\" | "
    "\"[\" ws (value (\",\" ws value)*)? ws \"]\" | text | number | boolean | null\n"
    "member ::= text \":\" ws value\n";

km_status km_json_schema_gbnf(const json_t *schema, km_text *out, km_error *err) {
    if (!schema || !out) return km_error_set(err, KM_ERR_NULL, "no JSON schema given");
    km_error own = {0};
    if (!err) err = &own;
    km_text rules = {0}, body = {0};
    maker m = {.root = schema, .rules = &rules, .err = err};
    bool ok = expression(&m, schema, &body);
    if (ok) {
        km_text_printf(out, "root ::= %s\n", km_text_str(&body));
        km_text_put(out, km_text_str(&rules), rules.len);
        km_text_add(out, common);
        if (body.failed || rules.failed || out->failed)
            km_error_set(err, KM_ERR_MEMORY, "cannot read a JSON schema: out of memory");
    }
    km_text_free(&rules);
    km_text_free(&body);
    km_text_free(&m.path);
    km_free(m.refs);
    return err->code;
}

km_grammar *km_json_schema_grammar(const char *text, size_t bytes, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    json_t *schema = km_json_parse(text, bytes, "the JSON schema", err);
    km_text gbnf = {0};
    km_grammar *g = NULL;
    if (schema && km_json_schema_gbnf(schema, &gbnf, err) == KM_OK)
        g = km_grammar_parse(gbnf.data, gbnf.len, err);
    km_text_free(&gbnf);
    json_decref(schema);
    return g;
}
