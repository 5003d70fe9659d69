/* References and merging of schemas. */
#include "text/json_schema_merge.h"
#include <stdint.h>
#include <string.h>

static const char no_memory[] = "out of memory";

static json_t *loose(const json_t *v) {
    return (json_t *)(uintptr_t)v;
} /* Jansson's calls take no const */

/* One step of a JSON pointer: ~1 is a slash, ~0 a tilde, and %25 a percent sign as in URLs. */
static const json_t *step(const json_t *in, const char *s, size_t n) {
    char name[256];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (k + 1 >= sizeof name) return NULL;
        if (s[i] == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1')) {
            name[k++] = s[++i] == '0' ? '~' : '/';
        } else if (s[i] == '%' && i + 2 < n && strchr("0123456789abcdefABCDEF", s[i + 1]) &&
                   strchr("0123456789abcdefABCDEF", s[i + 2])) {
            int hi = s[i + 1] <= '9' ? s[i + 1] - '0' : (s[i + 1] | 32) - 'a' + 10;
            int lo = s[i + 2] <= '9' ? s[i + 2] - '0' : (s[i + 2] | 32) - 'a' + 10;
            name[k++] = (char)(hi * 16 + lo);
            i += 2;
        } else {
            name[k++] = s[i];
        }
    }
    name[k] = 0;
    if (!json_is_array(in)) return json_object_get(in, name);
    size_t at = 0;
    for (size_t i = 0; i < k; i++) {
        if (name[i] < '0' || name[i] > '9' || at > 1000000) return NULL;
        at = at * 10 + (size_t)(name[i] - '0');
    }
    return k ? json_array_get(in, at) : NULL;
}

const json_t *km_schema_find(const json_t *root, const char *reference, const char **wrong) {
    *wrong = "$ref is no string";
    if (!reference) return NULL;
    *wrong = "$ref to another document is not supported";
    if (reference[0] != '#' || (reference[1] && reference[1] != '/')) return NULL;
    const json_t *at = root;
    for (const char *s = reference + 1; at && *s;) {
        size_t n = strcspn(s + 1, "/");
        at = step(at, s + 1, n);
        s += 1 + n;
    }
    *wrong = "$ref points to nothing";
    return at;
}

static bool among(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

#define COUNT(x) (sizeof(x) / sizeof *(x))

bool km_schema_says(const json_t *schema) {
    static const char *const notes[] = {
        "title", "description", "default",    "examples", "$schema",   "$id",     "$comment",
        "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "$anchor", "discriminator"};
    json_t *o = loose(schema);
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it))
        if (!among(notes, COUNT(notes), json_object_iter_key(it))) return true;
    return false;
}

const char *km_schema_foreign(const json_t *schema) {
    static const char *const foreign[] = {"not",
                                          "if",
                                          "then",
                                          "else",
                                          "patternProperties",
                                          "propertyNames",
                                          "minProperties",
                                          "maxProperties",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "dependencies",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "multipleOf",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          "$dynamicRef",
                                          "$recursiveRef"};
    for (size_t i = 0; i < COUNT(foreign); i++)
        if (json_object_get(schema, foreign[i])) return foreign[i];
    return json_is_true(json_object_get(schema, "uniqueItems")) ? "uniqueItems" : NULL;
}

const char *km_schema_implied_type(const json_t *schema) {
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
                                          {"exclusiveMaximum", "number"},
                                          {"format", "string"}};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (json_object_get(schema, keys[i][0])) return keys[i][1];
    return NULL;
}

/* ---- Merging ---- */

static const char *merge_properties(const json_t *a, const json_t *b, json_t **out) {
    json_t *all = json_copy(loose(a));
    json_t *o = loose(b);
    bool ok = all != NULL;
    for (void *it = json_object_iter(o); ok && it; it = json_object_iter_next(o, it)) {
        const char *key = json_object_iter_key(it);
        json_t *old = json_object_get(all, key), *value = json_object_iter_value(it);
        if (!old)
            ok = json_object_set(all, key, value) == 0;
        else if (!json_equal(old, value))
            ok = json_object_set_new(all, key, json_pack("{s:[O,O]}", "allOf", old, value)) == 0;
    }
    if (ok)
        *out = all;
    else
        json_decref(all);
    return ok ? NULL : no_memory;
}

static bool holds(const json_t *list, const json_t *v) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), loose(v))) return true;
    return false;
}

/* Values of both lists (together), or of either. */
static const char *merge_lists(const json_t *a, const json_t *b, bool together, json_t **out) {
    json_t *all = json_array();
    bool ok = all != NULL;
    for (size_t i = 0; ok && i < json_array_size(a); i++)
        if (!together || holds(b, json_array_get(a, i)))
            ok = json_array_append(all, json_array_get(a, i)) == 0;
    for (size_t i = 0; ok && !together && i < json_array_size(b); i++)
        if (!holds(a, json_array_get(b, i))) ok = json_array_append(all, json_array_get(b, i)) == 0;
    const char *wrong = ok ? NULL : no_memory;
    if (ok && json_array_size(all) == 0) wrong = "nothing fits both parts of allOf";
    if (!wrong)
        *out = all;
    else
        json_decref(all);
    return wrong;
}

static json_t *as_list(const json_t *v) {
    return json_is_array(v) ? json_incref(loose(v)) : json_pack("[O]", loose(v));
}

static const char *merge_types(const json_t *a, const json_t *b, json_t **out) {
    json_t *x = as_list(a), *y = as_list(b), *type = NULL;
    const char *wrong = x && y ? merge_lists(x, y, true, &type) : no_memory;
    if (wrong && wrong != no_memory) { /* an integer is a number */
        bool whole = (json_is_string(a) && strcmp(json_string_value(a), "integer") == 0 &&
                      json_is_string(b) && strcmp(json_string_value(b), "number") == 0) ||
                     (json_is_string(b) && strcmp(json_string_value(b), "integer") == 0 &&
                      json_is_string(a) && strcmp(json_string_value(a), "number") == 0);
        type = whole ? json_string("integer") : NULL;
        if (type) wrong = NULL;
    } else if (!wrong && json_array_size(type) == 1) {
        json_t *one = json_incref(json_array_get(type, 0));
        json_decref(type);
        type = one;
    }
    json_decref(x);
    json_decref(y);
    *out = wrong ? NULL : type;
    return wrong;
}

static const char *merge_key(const char *key, const json_t *a, const json_t *b, json_t **out) {
    static const char *const largest[] = {"minLength", "minItems", "minimum", "exclusiveMinimum"};
    static const char *const smallest[] = {"maxLength", "maxItems", "maximum", "exclusiveMaximum"};
    bool low = among(largest, COUNT(largest), key), high = among(smallest, COUNT(smallest), key);
    *out = NULL;
    if (json_equal(loose(a), loose(b))) {
        *out = json_incref(loose(a));
        return NULL;
    }
    if ((low || high) && json_is_number(a) && json_is_number(b)) {
        bool first = (json_number_value(a) > json_number_value(b)) == low;
        *out = json_incref(loose(first ? a : b));
        return NULL;
    }
    if (strcmp(key, "properties") == 0 && json_is_object(a) && json_is_object(b))
        return merge_properties(a, b, out);
    if (strcmp(key, "required") == 0) return merge_lists(a, b, false, out);
    if (strcmp(key, "enum") == 0) return merge_lists(a, b, true, out);
    if (strcmp(key, "type") == 0) return merge_types(a, b, out);
    if (strcmp(key, "additionalProperties") == 0 && (json_is_boolean(a) || json_is_boolean(b))) {
        const json_t *strict = json_is_false(a) || json_is_true(b) ? a : b;
        *out = json_incref(loose(strict));
        return NULL;
    }
    if (strcmp(key, "items") == 0) {
        *out = json_pack("{s:[O,O]}", "allOf", loose(a), loose(b));
        return *out ? NULL : no_memory;
    }
    static const char *const notes[] = {"title",       "description", "default",  "examples",
                                        "$schema",     "$id",         "$comment", "$defs",
                                        "definitions", "deprecated",  "readOnly", "writeOnly"};
    if (among(notes, COUNT(notes), key)) {
        *out = json_incref(loose(a));
        return NULL;
    }
    return "parts that say different things of the same keyword cannot be joined";
}

/* b without its reference; what it refers to is merged in as well. */
static const char *resolve(const json_t *root, const json_t *b, json_t **out) {
    json_t *now = json_incref(loose(b));
    const char *wrong = NULL;
    for (int i = 0; !wrong && json_object_get(now, "$ref"); i++) {
        const json_t *target =
            km_schema_find(root, json_string_value(json_object_get(now, "$ref")), &wrong);
        if (!target) break;
        wrong = i < 20 ? NULL : "references go in a circle";
        json_t *rest = json_copy(now), *both = NULL;
        if (!wrong && (!rest || json_object_del(rest, "$ref") != 0)) wrong = no_memory;
        if (!wrong && !km_schema_says(rest))
            both = json_incref(loose(target));
        else if (!wrong)
            wrong = json_object_get(target, "$ref")
                        ? "references beside other keywords to references are not supported"
                        : km_schema_merge(root, rest, target, &both);
        json_decref(rest);
        json_decref(now);
        now = both;
    }
    if (wrong) json_decref(now);
    *out = wrong ? NULL : now;
    return wrong;
}

const char *km_schema_merge(const json_t *root, const json_t *a, const json_t *b, json_t **both) {
    json_t *part = NULL, *all = NULL;
    *both = NULL;
    const char *wrong = resolve(root, b, &part);
    if (wrong) return wrong;
    if (json_is_true(part)) {
        json_decref(part);
        *both = json_incref(loose(a));
        return NULL;
    }
    if (!json_is_object(part)) wrong = "a part is no schema";
    all = wrong ? NULL : json_copy(loose(a));
    if (!wrong && !all) wrong = no_memory;
    for (void *it = json_object_iter(part); !wrong && it; it = json_object_iter_next(part, it)) {
        const char *key = json_object_iter_key(it);
        json_t *value = json_object_iter_value(it), *old = json_object_get(all, key),
               *joined = NULL;
        if (old)
            wrong = merge_key(key, old, value, &joined);
        else
            joined = json_incref(value);
        if (!wrong && json_object_set_new(all, key, joined) != 0) wrong = no_memory;
    }
    json_decref(part);
    if (wrong)
        json_decref(all);
    else
        *both = all;
    return wrong;
}
