/* Proofs that schemas exclude values and each other. "No" means "not proven". */
#include "text/json_schema_choice.h"
#include "text/json_schema_merge.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Schemas come from strangers and may contain themselves: a search that is long ends unproven. */
#define MAX_DEPTH 24

typedef struct prover {
    const json_t *root;
    int depth, *steps; /* steps that are left */
} prover;

static bool enter(prover *p) {
    if (p->depth >= MAX_DEPTH || *p->steps <= 0) return false;
    p->depth++;
    --*p->steps;
    return true;
}

static json_t *loose(const json_t *v) { return (json_t *)(uintptr_t)v; }

static const json_t *get(const json_t *schema, const char *key) {
    return json_object_get(schema, key);
}

/* ---- Values ---- */

/* As JSON schema compares: 1 and 1.0 are the same number. */
static bool same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b))
            return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        bool equal = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; equal && i < json_array_size(a); i++)
            equal = same(json_array_get(a, i), json_array_get(b, i));
        return equal;
    }
    if (json_is_object(a)) {
        bool equal = json_object_size(a) == json_object_size(b);
        json_t *o = loose(a);
        for (void *it = json_object_iter(o); equal && it; it = json_object_iter_next(o, it)) {
            const json_t *other = get(b, json_object_iter_key(it));
            equal = other && same(json_object_iter_value(it), other);
        }
        return equal;
    }
    return json_equal(loose(a), loose(b)) != 0;
}

/* Types as bits; a number is whole or not by its value, however it is written. */
enum { NONE = 0, NIL = 1, TRUTH = 2, WHOLE = 4, FRACTION = 8, TEXT = 16, LIST = 32, OBJECT = 64 };
#define ANY (NIL | TRUTH | WHOLE | FRACTION | TEXT | LIST | OBJECT)

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        {"null", NIL},    {"boolean", TRUTH}, {"integer", WHOLE}, {"number", WHOLE | FRACTION},
        {"string", TEXT}, {"array", LIST},    {"object", OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (name && strcmp(types[i].name, name) == 0) return types[i].bits;
    return NONE;
}

static unsigned type_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_NULL: return NIL;
    case JSON_TRUE:
    case JSON_FALSE: return TRUTH;
    case JSON_INTEGER: return WHOLE;
    case JSON_REAL: return floor(json_real_value(v)) == json_real_value(v) ? WHOLE : FRACTION;
    case JSON_STRING: return TEXT;
    case JSON_ARRAY: return LIST;
    default: return OBJECT;
    }
}

/* The types that `type` names; ANY without it. */
static unsigned types_said(const json_t *schema) {
    const json_t *type = get(schema, "type");
    unsigned bits = NONE;
    if (!type) return ANY;
    if (json_is_string(type)) return type_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        bits |= type_named(json_string_value(json_array_get(type, i)));
    return bits;
}

static double limit(const json_t *schema, const char *key, double otherwise) {
    const json_t *v = get(schema, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static size_t characters(const char *s, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

static bool outside(const json_t *schema, const char *least, const char *most, size_t n) {
    return (double)n < limit(schema, least, 0) || (double)n > limit(schema, most, INFINITY);
}

static bool is_required(const json_t *schema, const char *name) {
    const json_t *list = get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}

/* What a validator asks of a property: true where no keyword is about it. */
static const json_t *property(const json_t *schema, const char *name) {
    const json_t *own = get(get(schema, "properties"), name);
    if (!own) own = get(schema, "additionalProperties");
    return own ? own : json_true();
}

static const json_t *item(const json_t *schema, size_t i) {
    const json_t *items = get(schema, "items"), *first = get(schema, "prefixItems");
    if (json_is_array(items)) first = items, items = get(schema, "additionalItems");
    if (i < json_array_size(first)) return json_array_get(first, i);
    return items ? items : json_true();
}

static bool rejects(prover *p, const json_t *schema, const json_t *value);

static bool rejects_members(prover *p, const json_t *schema, const json_t *value) {
    const json_t *list = get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !get(value, name)) return true;
    }
    json_t *o = loose(value);
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it))
        if (rejects(p, property(schema, json_object_iter_key(it)), json_object_iter_value(it)))
            return true;
    return false;
}

static bool rejects_items(prover *p, const json_t *schema, const json_t *value) {
    if (outside(schema, "minItems", "maxItems", json_array_size(value))) return true;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (rejects(p, item(schema, i), json_array_get(value, i))) return true;
    return false;
}

/* Whether every branch rejects. */
static bool all_reject(prover *p, const json_t *list, const json_t *value) {
    size_t i = 0;
    while (i < json_array_size(list) && rejects(p, json_array_get(list, i), value)) i++;
    return i > 0 && i == json_array_size(list);
}

static bool rejects_here(prover *p, const json_t *schema, const json_t *value) {
    const json_t *constant = get(schema, "const"), *list = get(schema, "enum");
    const char *wrong, *to = json_string_value(get(schema, "$ref"));
    const json_t *target = to ? km_schema_find(p->root, to, &wrong) : NULL;
    if (constant && !same(constant, value)) return true;
    if (json_is_array(list)) {
        bool there = false;
        for (size_t i = 0; i < json_array_size(list); i++)
            there = there || same(json_array_get(list, i), value);
        if (!there) return true;
    }
    if (!(types_said(schema) & type_of(value))) return true;
    if (target && rejects(p, target, value)) return true;
    list = get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (rejects(p, json_array_get(list, i), value)) return true;
    if (all_reject(p, get(schema, "anyOf"), value) || all_reject(p, get(schema, "oneOf"), value))
        return true;
    if (json_is_object(value)) return rejects_members(p, schema, value);
    if (json_is_array(value)) return rejects_items(p, schema, value);
    if (json_is_string(value))
        return outside(schema, "minLength", "maxLength",
                       characters(json_string_value(value), json_string_length(value)));
    if (!json_is_number(value)) return false;
    double v = json_number_value(value);
    return v < limit(schema, "minimum", -INFINITY) || v > limit(schema, "maximum", INFINITY) ||
           v <= limit(schema, "exclusiveMinimum", -INFINITY) ||
           v >= limit(schema, "exclusiveMaximum", INFINITY);
}

static bool rejects(prover *p, const json_t *schema, const json_t *value) {
    if (json_is_false(schema)) return true;
    if (!json_is_object(schema) || !enter(p)) return false;
    bool yes = rejects_here(p, schema, value);
    p->depth--;
    return yes;
}

bool km_schema_rejects(const json_t *root, const json_t *schema, const json_t *value) {
    int steps = KM_SCHEMA_STEPS;
    prover p = {.root = root, .steps = &steps};
    return rejects(&p, schema, value);
}

/* ---- Two schemas ---- */

static bool excludes(prover *p, const json_t *a, const json_t *b);

/* By how many items there are, or by one that is there in all lists that could be valid in both. */
static bool lists_differ(prover *p, const json_t *a, const json_t *b) {
    double least = fmax(limit(a, "minItems", 0), limit(b, "minItems", 0));
    if (limit(a, "minItems", 0) > limit(b, "maxItems", INFINITY) ||
        limit(b, "minItems", 0) > limit(a, "maxItems", INFINITY))
        return true;
    for (size_t i = 0; i < 16 && (double)i < least; i++)
        if (excludes(p, item(a, i), item(b, i))) return true;
    return false;
}

static bool texts_differ(const json_t *a, const json_t *b) {
    return limit(a, "minLength", 0) > limit(b, "maxLength", INFINITY) ||
           limit(b, "minLength", 0) > limit(a, "maxLength", INFINITY);
}

static bool lies_below(const json_t *a, const json_t *b) {
    double top = limit(a, "maximum", INFINITY), edge = limit(a, "exclusiveMaximum", INFINITY),
           bottom = limit(b, "minimum", -INFINITY), rim = limit(b, "exclusiveMinimum", -INFINITY);
    return top < bottom || top <= rim || edge <= bottom || edge <= rim;
}

/* Whether the grammar of a never writes the member. */
static bool never_writes(const json_t *a, const char *name) {
    const json_t *more = get(a, "additionalProperties");
    bool some = json_object_size(get(a, "properties")) || json_array_size(get(a, "required"));
    if (get(get(a, "properties"), name) || is_required(a, name)) return false;
    return more ? json_is_false(more) : some;
}

static bool member_differs(prover *p, const json_t *a, const json_t *b, const char *name) {
    if (is_required(b, name) && never_writes(a, name)) return true;
    return excludes(p, property(a, name), property(b, name));
}

static bool objects_differ(prover *p, const json_t *a, const json_t *b) {
    const json_t *lists[2] = {get(a, "required"), get(b, "required")};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < json_array_size(lists[k]); i++) {
            const char *name = json_string_value(json_array_get(lists[k], i));
            if (name && member_differs(p, a, b, name)) return true;
        }
    return false;
}

json_t *km_schema_flat(const json_t *root, const json_t *schema) {
    json_t *empty = json_object(), *now = NULL;
    if (!empty || km_schema_merge(root, empty, schema, &now)) now = NULL;
    json_decref(empty);
    for (int round = 0; now && get(now, "allOf"); round++) {
        json_t *list = json_incref(loose(get(now, "allOf"))), *rest = json_copy(now);
        bool ok = rest && json_object_del(rest, "allOf") == 0 && round < MAX_DEPTH;
        json_decref(now);
        for (size_t i = 0; ok && i < json_array_size(list); i++) {
            json_t *both = NULL;
            ok = km_schema_merge(root, rest, json_array_get(list, i), &both) == NULL;
            json_decref(rest);
            rest = both;
        }
        if (!ok && rest) json_decref(rest), rest = NULL;
        json_decref(list);
        now = rest;
    }
    return now;
}

/* Every branch of a's choice excluded by b, or a by every one of b's. */
static bool branches_exclude(prover *p, const json_t *a, const json_t *b, const char *key,
                             bool first) {
    const json_t *whole = first ? a : b, *list = get(whole, key);
    json_t *rest = json_copy(loose(whole));
    bool yes = rest && json_array_size(list) && json_object_del(rest, key) == 0;
    for (size_t i = 0; yes && i < json_array_size(list); i++) {
        json_t *one = NULL;
        yes = km_schema_merge(p->root, rest, json_array_get(list, i), &one) == NULL &&
              (first ? excludes(p, one, b) : excludes(p, a, one));
        json_decref(one);
    }
    json_decref(rest);
    return yes;
}

/* The values that const or enum leave; NULL: there is neither. */
static json_t *values(const json_t *schema) {
    const json_t *one = get(schema, "const"), *list = get(schema, "enum");
    if (one) return json_pack("[O]", loose(one));
    return json_is_array(list) ? json_incref(loose(list)) : NULL;
}

static bool all_rejected(prover *p, const json_t *list, const json_t *schema) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!rejects(p, schema, json_array_get(list, i))) return false;
    return true;
}

static bool types_differ(prover *p, const json_t *a, const json_t *b) {
    const char *implied = km_schema_implied_type(a);
    unsigned written = types_said(a);
    if (!get(a, "type") && implied) written = type_named(implied);
    unsigned both = written & types_said(b);
    if (both & (NIL | TRUTH)) return false;
    if (both & (WHOLE | FRACTION) && !lies_below(a, b) && !lies_below(b, a)) return false;
    if (both & TEXT && !texts_differ(a, b)) return false;
    if (both & LIST && !lists_differ(p, a, b)) return false;
    return !(both & OBJECT) || objects_differ(p, a, b);
}

static bool flat_excludes(prover *p, const json_t *a, const json_t *b) {
    static const char *const keys[] = {"anyOf", "oneOf"};
    json_t *mine = values(a), *theirs = values(b);
    bool yes = (mine && all_rejected(p, mine, b)) || (theirs && all_rejected(p, theirs, a)) ||
               types_differ(p, a, b);
    json_decref(mine);
    json_decref(theirs);
    for (int i = 0; !yes && i < 4; i++)
        if (get(i < 2 ? a : b, keys[i % 2])) yes = branches_exclude(p, a, b, keys[i % 2], i < 2);
    return yes;
}

static bool excludes(prover *p, const json_t *a, const json_t *b) {
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!enter(p)) return false;
    json_t *empty = json_is_true(a) || json_is_true(b) ? json_object() : NULL;
    json_t *x = json_is_true(a) ? json_incref(empty) : km_schema_flat(p->root, a);
    json_t *y = json_is_true(b) ? json_incref(empty) : km_schema_flat(p->root, b);
    bool yes = x && y && flat_excludes(p, x, y);
    json_decref(x);
    json_decref(y);
    json_decref(empty);
    p->depth--;
    return yes;
}

bool km_schema_excludes(const json_t *root, const json_t *a, const json_t *b, int *steps) {
    prover p = {.root = root, .steps = steps};
    return excludes(&p, a, b);
}
