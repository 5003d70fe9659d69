/* The branches of a choice: siblings joined in, discriminators, and one branch only for each text. */
#include "text/json_schema_choice.h"
#include "base/alloc.h"
#include "text/json_schema_merge.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static json_t *loose(const json_t *v) { return (json_t *)(uintptr_t)v; }

static bool because(char why[KM_SCHEMA_WHY], const char *what) {
    snprintf(why, KM_SCHEMA_WHY, "%s", what);
    return false;
}

static bool is_required(const json_t *schema, const char *name) {
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}

/* "Cat" of "#/$defs/Cat"; NULL where the branch is no reference. */
static const char *ref_name(const json_t *branch) {
    const char *ref = json_string_value(json_object_get(branch, "$ref"));
    const char *slash = ref ? strrchr(ref, '/') : NULL;
    return slash ? slash + 1 : NULL;
}

/* ---- Discriminators ---- */

/* "propertyName" of OpenAPI 3, or the string that OpenAPI 2 has; NULL without one. */
static const char *tag_of(const json_t *schema) {
    const json_t *d = json_object_get(schema, "discriminator");
    if (json_is_string(d)) return json_string_value(d);
    return json_string_value(json_object_get(d, "propertyName"));
}

/* Whether the branch itself says which values its tag has, in each of its own branches. */
static bool tag_is_bound(const json_t *root, const json_t *branch, const char *tag, int depth) {
    static const char *const keys[] = {"anyOf", "oneOf"};
    json_t *whole = depth < 8 ? km_schema_flat(root, branch) : NULL;
    const json_t *property = json_object_get(json_object_get(whole, "properties"), tag);
    json_t *own = property ? km_schema_flat(root, property) : NULL;
    bool bound = json_object_get(own, "const") || json_object_get(own, "enum");
    for (int k = 0; !bound && k < 2; k++) {
        const json_t *list = json_object_get(whole, keys[k]);
        size_t i = 0;
        while (i < json_array_size(list) &&
               tag_is_bound(root, json_array_get(list, i), tag, depth + 1))
            i++;
        bound = i > 0 && i == json_array_size(list);
    }
    json_decref(own);
    json_decref(whole);
    return bound;
}

/* The names that the mapping gives to a branch: by its reference, the name at the end of that, or
 * the branch itself (pydantic writes branches out). Without any, it goes by its own name. */
static json_t *tag_names(const json_t *schema, const json_t *branch) {
    json_t *mapping = json_object_get(json_object_get(schema, "discriminator"), "mapping");
    json_t *names = json_array();
    const char *name = ref_name(branch), *ref = json_string_value(json_object_get(branch, "$ref"));
    bool ok = names != NULL;
    for (void *it = json_object_iter(mapping); ok && it; it = json_object_iter_next(mapping, it)) {
        json_t *to = json_object_iter_value(it);
        const char *text = json_string_value(to);
        if (text ? ref && (strcmp(text, ref) == 0 || strcmp(text, name ? name : ref) == 0)
                 : json_equal(to, loose(branch)))
            ok = json_array_append_new(names, json_string(json_object_iter_key(it))) == 0;
    }
    if (ok && json_array_size(names) == 0 && name)
        ok = json_array_append_new(names, json_string(name)) == 0;
    if (!ok) json_decref(names), names = NULL;
    return names;
}

/* The branch with its tag required, and held to the mapping's names where it leaves them open. */
static json_t *tagged(const json_t *root, const json_t *schema, const json_t *branch,
                      const char *tag, char why[KM_SCHEMA_WHY]) {
    json_t *whole = km_schema_flat(root, branch), *both = NULL;
    bool bound = tag_is_bound(root, branch, tag, 0), must = is_required(whole, tag);
    json_decref(whole);
    if (bound && must) return json_incref(loose(branch));
    json_t *names = bound ? NULL : tag_names(schema, branch);
    json_t *more = json_pack("{s:[s]}", "required", tag);
    because(why, "out of memory");
    if (!bound && names && json_array_size(names) == 0)
        because(why, "the discriminator maps no value to a branch that gives its property none");
    else if (more && (bound || (names && json_object_set_new(
                                             more, "properties",
                                             json_pack("{s:{s:O}}", tag, "enum", names)) == 0))) {
        const char *wrong = km_schema_merge(root, more, branch, &both);
        if (wrong) because(why, wrong);
    }
    json_decref(more);
    json_decref(names);
    return both;
}

/* ---- One of several ---- */

/* Where b requires a member that a's grammar may write but need not: a without it. NULL: there is
 * no such member. */
static json_t *without(const json_t *root, const json_t *a, const json_t *b) {
    json_t *x = km_schema_flat(root, a), *y = km_schema_flat(root, b), *narrow = NULL;
    const json_t *list = json_object_get(y, "required"), *more;
    json_t *properties = json_object_get(x, "properties");
    more = json_object_get(x, "additionalProperties");
    for (size_t i = 0; !narrow && (!more || json_is_false(more)) && i < json_array_size(list);
         i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || !json_object_get(properties, name) || is_required(x, name)) continue;
        json_t *fewer = json_copy(properties);
        narrow = json_copy(x);
        bool ok = fewer && narrow && json_object_del(fewer, name) == 0 &&
                  json_object_set(narrow, "properties", fewer) == 0;
        /* An object that names no members may have any. */
        if (ok && !json_object_size(fewer) && !json_array_size(json_object_get(x, "required")))
            ok = json_object_set_new(narrow, "additionalProperties", json_false()) == 0;
        if (!ok) json_decref(narrow), narrow = NULL;
        json_decref(fewer);
        if (!ok) break;
    }
    json_decref(x);
    json_decref(y);
    return narrow;
}

static void say_which(char why[KM_SCHEMA_WHY], const json_t *list, size_t i, size_t j) {
    const char *a = ref_name(json_array_get(list, i)), *b = ref_name(json_array_get(list, j));
    char one[64], two[64];
    snprintf(one, sizeof one, "%zu%s%.40s%s", i, a ? " (" : "", a ? a : "", a ? ")" : "");
    snprintf(two, sizeof two, "%zu%s%.40s%s", j, b ? " (" : "", b ? b : "", b ? ")" : "");
    snprintf(why, KM_SCHEMA_WHY,
             "oneOf: branches %s and %s may hold together; give them a required property with "
             "different constants, or write anyOf",
             one, two);
}

static bool keep_apart(const json_t *root, const json_t *given, json_t *branches,
                       char why[KM_SCHEMA_WHY]) {
    int steps = KM_SCHEMA_STEPS;
    size_t n = json_array_size(branches);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const json_t *b = json_array_get(branches, j);
            while (i != j && !km_schema_excludes(root, json_array_get(branches, i), b, &steps)) {
                json_t *narrow = steps > 0 ? without(root, json_array_get(branches, i), b) : NULL;
                say_which(why, given, i < j ? i : j, i < j ? j : i);
                if (!narrow || json_array_set_new(branches, i, narrow) != 0) return false;
            }
        }
    return true;
}

json_t *km_schema_branches(const json_t *root, const json_t *schema, const char *key,
                           char why[KM_SCHEMA_WHY]) {
    const json_t *list = json_object_get(schema, key);
    const char *tag = tag_of(schema);
    json_t *rest = json_copy(loose(schema)), *all = json_array();
    bool ok = rest && all && json_object_del(rest, key) == 0;
    because(why, "out of memory");
    if (ok && json_array_size(list) == 0) ok = because(why, "anyOf or oneOf is no list of schemas");
    if (tag) json_object_del(rest, "discriminator");
    bool alone = ok && !km_schema_says(rest);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *given = json_array_get(list, i);
        json_t *branch = tag ? tagged(root, schema, given, tag, why) : json_incref(loose(given));
        if (branch && !alone) {
            json_t *both = NULL;
            const char *wrong = km_schema_merge(root, rest, branch, &both);
            if (wrong) because(why, wrong);
            json_decref(branch);
            branch = both;
        }
        ok = branch && json_array_append_new(all, branch) == 0;
    }
    if (ok && strcmp(key, "oneOf") == 0) ok = keep_apart(root, list, all, why);
    json_decref(rest);
    if (!ok) json_decref(all);
    return ok ? all : NULL;
}
