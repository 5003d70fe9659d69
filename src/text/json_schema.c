/* Schemas as grammars. Every schema becomes an expression; objects, arrays and what $ref names
 * become rules, so that schemas that contain themselves do too. */
#include "text/json_schema.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/log.h"
#include "base/json_read.h"
#include "text/json_schema_choice.h"
#include "text/json_schema_merge.h"
#include "text/json_schema_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 64
#define MAX_RULES 20000
#define MAX_TEXT ((size_t)8 << 20)

/* A schema that has a rule of its own: what $ref names, or a choice. It is held on to, so that no
 * other comes to lie at its address. */
typedef struct reference {
    json_t *target;
    const char *kind; /* "ref" or "choice" */
    int number;
} reference;

typedef struct schema_maker {
    const json_t *root;
    km_text *rules; /* finished ones */
    reference *refs;
    size_t n_refs, cap_refs;
    int n_rules, depth;
    km_text path; /* where in the schema */
    bool strict;
    const char *loose[16]; /* formats that were noted */
    size_t n_loose;
    km_error *err;
} schema_maker;

static bool fail(schema_maker *m, km_status code, const char *what) {
    km_error_set(m->err, code, "JSON schema, at #%s: %s", km_text_str(&m->path), what);
    return false;
}

static bool expression(schema_maker *m, const json_t *schema, km_text *out);

/* The expression of a part of the schema, whose place is shown in messages: a key, and a name or
 * number under it or NULL. */
static bool part(schema_maker *m, const char *key, const char *name, const json_t *schema,
                 km_text *out) {
    size_t length = m->path.len;
    km_text_printf(&m->path, "/%s%s%.100s", key, name ? "/" : "", name ? name : "");
    bool ok = expression(m, schema, out);
    if (ok || !m->path.data) {
        m->path.len = length;
        if (m->path.data) m->path.data[length] = '\0';
    }
    return ok;
}

static bool new_rule(schema_maker *m, int *number) {
    if (++m->n_rules > MAX_RULES || m->rules->len > MAX_TEXT)
        return fail(m, KM_ERR_RANGE, "the schema is too large");
    *number = m->n_rules;
    return true;
}

static void finish_rule(schema_maker *m, const char *kind, int number, const km_text *body) {
    km_text_printf(m->rules, "%s-%d ::= ", kind, number);
    km_text_put(m->rules, km_text_str(body), body->len);
    km_text_add(m->rules, "\n");
    if (body->failed) m->rules->failed = true;
}

/* ---- Texts ---- */

/* Notes a format that nothing is known of, once; an error where the schema is to be strict. */
static bool loose_format(schema_maker *m, const char *name, const char *what) {
    if (m->strict) {
        char line[200];
        snprintf(line, sizeof line, "format '%.60s' %s", name, what);
        return fail(m, KM_ERR_UNSUPPORTED, line);
    }
    for (size_t i = 0; i < m->n_loose; i++)
        if (strcmp(m->loose[i], name) == 0) return true;
    if (m->n_loose == sizeof m->loose / sizeof *m->loose) return true;
    m->loose[m->n_loose++] = name;
    km_note(KM_LOG_WARN, "JSON schema, at #%s: format '%.60s' %s", km_text_str(&m->path), name,
            what);
    return true;
}

static bool check_format(schema_maker *m, const json_t *schema) {
    const json_t *format = json_object_get(schema, "format");
    const char *name = json_string_value(format);
    if (!format) return true;
    if (!name) return fail(m, KM_ERR_FORMAT, "format is no string");
    if (!km_schema_format_known(name))
        return loose_format(m, name, "is not known here: texts are not held to it");
    if (json_object_get(schema, "pattern") && km_schema_format_pattern(name))
        return loose_format(m, name, "stands beside a pattern: texts are held to that alone");
    return true;
}

/* A count such as minLength; `otherwise` when it is not there. */
static bool count(schema_maker *m, const json_t *schema, const char *key, int64_t otherwise,
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

static bool repetition(schema_maker *m, km_text *out, int64_t least, int64_t most) {
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

static bool string(schema_maker *m, const json_t *schema, km_text *out) {
    const json_t *pattern = json_object_get(schema, "pattern");
    const char *format = json_string_value(json_object_get(schema, "format"));
    const char *text = json_string_value(pattern);
    size_t bytes = json_string_length(pattern);
    int64_t least, most;
    if (!count(m, schema, "minLength", 0, &least) || !count(m, schema, "maxLength", -1, &most))
        return false;
    if (pattern && !text) return fail(m, KM_ERR_FORMAT, "pattern is no string");
    if (!text && format && (text = km_schema_format_pattern(format)) != NULL) bytes = strlen(text);
    km_text_add(out, "\"\\\"\" ");
    if (text) {
        km_lengths own;
        const char *wrong = km_gbnf_pattern(out, text, bytes, &own);
        char what[200];
        snprintf(what, sizeof what, "pattern: %s", wrong ? wrong : "");
        if (wrong) return fail(m, KM_ERR_UNSUPPORTED, what);
        if (own.least < least || (most >= 0 && (own.most < 0 || own.most > most)))
            return fail(m, KM_ERR_UNSUPPORTED,
                        "a length together with a pattern or format is supported only where all "
                        "that fits the pattern has such a length");
    } else {
        km_text_add(out, "char");
        if (!repetition(m, out, least, most)) return false;
    }
    km_text_add(out, " \"\\\"\"");
    return true;
}

/* ---- Numbers ---- */

static bool bound(schema_maker *m, const json_t *schema, const char *key, double *value,
                  bool *there) {
    const json_t *v = json_object_get(schema, key);
    *there = v != NULL;
    if (!v) return true;
    if (!json_is_number(v)) return fail(m, KM_ERR_FORMAT, "a bound is no number");
    *value = json_number_value(v);
    return true;
}

static bool integer(schema_maker *m, const json_t *schema, km_text *out) {
    static const double far = 999999999999999999.0; /* 18 digits */
    double lo = -far, hi = far, v = 0;
    const char *format = json_string_value(json_object_get(schema, "format"));
    bool there, any = format && km_schema_format_bounds(format, &lo, &hi);
    if (!bound(m, schema, "minimum", &v, &there)) return false;
    if (there) lo = fmax(lo, ceil(v)), any = true;
    if (!bound(m, schema, "exclusiveMinimum", &v, &there)) return false;
    if (there && floor(v) + 1 > lo) lo = floor(v) + 1, any = true;
    if (!bound(m, schema, "maximum", &v, &there)) return false;
    if (there) hi = fmin(hi, floor(v)), any = true;
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

static bool number(schema_maker *m, const json_t *schema, km_text *out) {
    double v = 0, lo, hi;
    bool there;
    const char *rule = "number", *format = json_string_value(json_object_get(schema, "format"));
    if (format && km_schema_format_bounds(format, &lo, &hi)) return integer(m, schema, out);
    bool single = format && strcmp(format, "float") == 0; /* 1e99 is no number of 32 bits */
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
    if (single) rule = strcmp(rule, "number") == 0 ? "\"-\"? decimal" : "decimal";
    km_text_add(out, rule);
    return true;
}

/* ---- Arrays ---- */

static bool array(schema_maker *m, const json_t *schema, km_text *out) {
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
        char number_of[24];
        snprintf(number_of, sizeof number_of, "%zu", i);
        ok = part(m, "prefixItems", number_of, json_array_get(prefix, i), &body);
        km_text_add(&body, ") ");
    }
    if (ok && more && most != 0) {
        int64_t at_least = least > (int64_t)first ? least - (int64_t)first : 0,
                at_most = most < 0 ? -1 : most - (int64_t)first;
        if (items)
            ok = part(m, "items", NULL, items, &item);
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
static bool other_keys(schema_maker *m, const char *const *names, size_t n, size_t depth,
                       km_text *out, int level) {
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
    /* \u0061 is an a: only what must be escaped is, or a name could come in disguise */
    km_text_printf(out, "([^\"\\\\\\x00-\\x1F\\x7F%s] | needed-escape) char* \"\\\"\"%s",
                   km_text_str(&set), km_text_str(&ways));
    if (!ends) km_text_add(out, " | \"\\\"\"");
    km_text_free(&set);
    km_text_free(&ways);
    return ok;
}

static bool additional_key(schema_maker *m, const json_t *properties, km_text *out) {
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
static bool members(schema_maker *m, const json_t *schema, const json_t *properties, int rule,
                    size_t *n) {
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
        ok = part(m, "properties", name, json_object_iter_value(it), &line);
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

static bool object(schema_maker *m, const json_t *schema, km_text *out) {
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
            ok = part(m, "additionalProperties", NULL, more, &line);
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

static void constant(const json_t *v, km_text *out) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (text)
        km_gbnf_literal(out, text, strlen(text));
    else
        out->failed = true;
    free(text);
}

static bool of_type(schema_maker *m, const json_t *schema, const char *type, km_text *out) {
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

/* The rule of a schema: *made says whether it has one already, or its text is still to come. */
static bool rule_of(schema_maker *m, const json_t *target, const char *kind, int *number_of,
                    bool *made) {
    for (size_t i = 0; i < m->n_refs; i++)
        if (m->refs[i].target == target && strcmp(m->refs[i].kind, kind) == 0) {
            *number_of = m->refs[i].number;
            *made = true;
            return true;
        }
    *made = false;
    if (!km_array_reserve(&m->refs, &m->cap_refs, m->n_refs + 1))
        return fail(m, KM_ERR_MEMORY, "out of memory");
    if (!new_rule(m, number_of)) return false;
    m->refs[m->n_refs++] = (reference){json_incref((json_t *)(uintptr_t)target), kind, *number_of};
    return true;
}

/* A rule, because a union may contain itself and its branches are not always references. */
static bool choices(schema_maker *m, const json_t *schema, const char *key, km_text *out) {
    char why[KM_SCHEMA_WHY];
    int number_of;
    bool made, ok = true;
    if (!rule_of(m, schema, "choice", &number_of, &made)) return false;
    km_text_printf(out, "choice-%d", number_of);
    if (made) return true;
    json_t *branches = km_schema_branches(m->root, schema, key, why);
    if (!branches) return fail(m, KM_ERR_UNSUPPORTED, why);
    km_text body = {0};
    for (size_t i = 0; ok && i < json_array_size(branches); i++) {
        char place[24];
        snprintf(place, sizeof place, "%zu", i);
        if (i) km_text_add(&body, " | ");
        ok = part(m, key, place, json_array_get(branches, i), &body);
    }
    if (ok) finish_rule(m, "choice", number_of, &body);
    km_text_free(&body);
    json_decref(branches);
    return ok;
}

static bool merged(schema_maker *m, const json_t *schema, km_text *out) {
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
    bool ok = wrong ? fail(m, KM_ERR_UNSUPPORTED, wrong) : part(m, "allOf", NULL, all, out);
    json_decref(all);
    return ok;
}

static bool by_reference(schema_maker *m, const json_t *schema, km_text *out) {
    const char *wrong = NULL;
    const json_t *target =
        km_schema_find(m->root, json_string_value(json_object_get(schema, "$ref")), &wrong);
    if (!target) return fail(m, KM_ERR_UNSUPPORTED, wrong);
    json_t *rest = json_copy((json_t *)(uintptr_t)schema);
    bool says = rest && json_object_del(rest, "$ref") == 0 && km_schema_says(rest);
    if (says) { /* more than the reference: both hold */
        json_t *both = NULL;
        wrong = km_schema_merge(m->root, rest, target, &both);
        bool ok = wrong ? fail(m, KM_ERR_UNSUPPORTED, wrong) : part(m, "$ref", NULL, both, out);
        json_decref(both);
        json_decref(rest);
        return ok;
    }
    json_decref(rest);
    int number_of;
    bool made;
    if (!rule_of(m, target, "ref", &number_of, &made)) return false;
    if (made) {
        km_text_printf(out, "ref-%d", number_of);
        return true;
    }
    km_text body = {0};
    bool ok = part(m, "$ref", NULL, target, &body);
    if (ok) finish_rule(m, "ref", number_of, &body);
    km_text_printf(out, "ref-%d", number_of);
    km_text_free(&body);
    return ok;
}

/* Constants, of which those stay that the keywords beside them allow. */
static bool listed(schema_maker *m, const json_t *schema, const char *key, km_text *out) {
    const json_t *given = json_object_get(schema, key);
    bool one = strcmp(key, "const") == 0, ok = false;
    size_t n = one ? 1 : json_array_size(given);
    if (n == 0) return fail(m, KM_ERR_FORMAT, "enum is no list of values");
    km_text_add(out, "(");
    for (size_t i = 0; i < n; i++) {
        const json_t *value = one ? given : json_array_get(given, i);
        if (km_schema_rejects(m->root, schema, value)) continue;
        if (ok) km_text_add(out, " | ");
        constant(value, out);
        ok = true;
    }
    km_text_add(out, ")");
    return ok || fail(m, KM_ERR_FORMAT,
                      "no value of const or enum fits the keywords beside it, such as type");
}

static bool plain(schema_maker *m, const json_t *schema, km_text *out) {
    const json_t *type = json_object_get(schema, "type"), *item;
    size_t i;
    const char *implied = km_schema_implied_type(schema);
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
    if (implied) return of_type(m, schema, implied, out);
    km_text_add(out, "value");
    return true;
}

static bool schema_expression(schema_maker *m, const json_t *schema, km_text *out) {
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
    if (json_object_get(schema, "const")) return listed(m, schema, "const", out);
    if (json_object_get(schema, "enum")) return listed(m, schema, "enum", out);
    if (json_object_get(schema, "allOf")) return merged(m, schema, out);
    if (json_object_get(schema, "anyOf")) return choices(m, schema, "anyOf", out);
    if (json_object_get(schema, "oneOf")) return choices(m, schema, "oneOf", out);
    return check_format(m, schema) && plain(m, schema, out);
}

static bool expression(schema_maker *m, const json_t *schema, km_text *out) {
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
    "needed-escape ::= \"\\\\\" [\"\\\\bfnrt]\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | escape\n"
    "text ::= \"\\\"\" char* \"\\\"\"\n"
    "whole ::= \"0\" | [1-9] [0-9]{0,15}\n"
    "decimal ::= whole (\".\" [0-9]{1,16})?\n"
    "positive ::= decimal ([eE] [-+]? [0-9]{1,2})?\n"
    "number ::= \"-\"? positive\n"
    "integer ::= \"-\"? whole\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "value ::= \"{\" ws (member (\",\" ws member)*)? ws \"}\" | "
    "\"[\" ws (value (\",\" ws value)*)? ws \"]\" | text | number | boolean | null\n"
    "member ::= text \":\" ws value\n";

km_status km_json_schema_gbnf(const json_t *schema, bool strict, km_text *out, km_error *err) {
    if (!schema || !out) return km_error_set(err, KM_ERR_NULL, "no JSON schema given");
    km_error own = {0};
    if (!err) err = &own;
    km_text rules = {0}, body = {0};
    schema_maker m = {.root = schema, .rules = &rules, .strict = strict, .err = err};
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
    for (size_t i = 0; i < m.n_refs; i++) json_decref(m.refs[i].target);
    km_free(m.refs);
    return err->code;
}

km_grammar *km_json_schema_grammar(const char *text, size_t bytes, bool strict, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    json_t *schema = km_json_parse(text, bytes, "the JSON schema", err);
    km_text gbnf = {0};
    km_grammar *g = NULL;
    if (schema && km_json_schema_gbnf(schema, strict, &gbnf, err) == KM_OK)
        g = km_grammar_parse(gbnf.data, gbnf.len, err);
    km_text_free(&gbnf);
    json_decref(schema);
    return g;
}
