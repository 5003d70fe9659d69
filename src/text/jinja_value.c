/* Values of templates: making, reading, comparing. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "text/jinja_value.h"
#include "base/utf8.h"
#include <math.h>
#include <string.h>

bool km_jinja_fail(km_jrun *r, km_status code, const char *fmt, ...) {
    char text[KM_ERROR_TEXT];
    km_error inner = {0};
    va_list ap;
    va_start(ap, fmt);
    km_error_setv(&inner, code, fmt, ap);
    va_end(ap);
    memcpy(text, inner.text, sizeof text);
    km_error_set(r->err, code, "%s, line %d: %s", r->name, r->line, text);
    return false;
}

bool km_jinja_step(km_jrun *r, size_t bytes) {
    size_t cost = 1 + bytes / 64;
    if (r->steps <= 0 || (uint64_t)r->steps < cost) {
        r->steps = 0;
        return km_jinja_fail(r, KM_ERR_RANGE, "the template runs for too long");
    }
    r->steps -= (int64_t)cost;
    if (r->out->len > r->memory)
        return km_jinja_fail(r, KM_ERR_RANGE, "the template writes more than %zu bytes", r->memory);
    return true;
}

void *km_jinja_alloc(km_jrun *r, size_t bytes) {
    if (bytes > r->memory || r->arena.used > r->memory - bytes) {
        km_jinja_fail(r, KM_ERR_RANGE, "the template needs more than %zu bytes", r->memory);
        return NULL;
    }
    void *p = km_arena_alloc(&r->arena, bytes);
    if (!p) km_jinja_fail(r, KM_ERR_MEMORY, "out of memory");
    return p;
}

/* ---- What a value is ---- */

bool km_jv_is(const km_jv *v, const char *text) {
    return v->kind == KM_JV_STRING && v->bytes == strlen(text) &&
           memcmp(v->text, text, v->bytes) == 0;
}

bool km_jv_number(const km_jv *v) {
    return v->kind == KM_JV_INT || v->kind == KM_JV_FLOAT || v->kind == KM_JV_BOOL;
}

double km_jv_as_double(const km_jv *v) {
    return v->kind == KM_JV_FLOAT ? v->f : v->kind == KM_JV_BOOL ? v->b : (double)v->i;
}

bool km_jv_as_int(const km_jv *v, int64_t *i) {
    if (v->kind == KM_JV_INT) *i = v->i;
    if (v->kind == KM_JV_BOOL) *i = v->b;
    return v->kind == KM_JV_INT || v->kind == KM_JV_BOOL;
}

bool km_jv_true(const km_jv *v) {
    switch (v->kind) {
    case KM_JV_UNDEFINED:
    case KM_JV_NONE: return false;
    case KM_JV_BOOL: return v->b;
    case KM_JV_INT: return v->i != 0;
    case KM_JV_FLOAT: return v->f != 0;
    case KM_JV_STRING: return v->bytes > 0;
    case KM_JV_LIST: return v->flavor == KM_JV_GENERATOR || v->list->n > 0;
    case KM_JV_DICT: return v->dict->n > 0;
    default: return true;
    }
}

const char *km_jv_type(const km_jv *v) {
    static const char *const kinds[] = {
        [KM_JV_UNDEFINED] = "Undefined", [KM_JV_NONE] = "NoneType",
        [KM_JV_BOOL] = "bool",           [KM_JV_INT] = "int",
        [KM_JV_FLOAT] = "float",         [KM_JV_STRING] = "str",
        [KM_JV_LIST] = "list",           [KM_JV_DICT] = "dict",
        [KM_JV_MACRO] = "Macro",         [KM_JV_NAMESPACE] = "Namespace",
        [KM_JV_FUNCTION] = "function",   [KM_JV_METHOD] = "method",
        [KM_JV_LOOP] = "LoopContext",
    };
    static const char *const lists[] = {
        [KM_JV_PLAIN] = "list",          [KM_JV_TUPLE] = "tuple",    [KM_JV_RANGE] = "range",
        [KM_JV_GENERATOR] = "generator", [KM_JV_KEYS] = "dict_keys", [KM_JV_VALUES] = "dict_values",
        [KM_JV_ITEMS] = "dict_items",
    };
    return v->kind == KM_JV_LIST ? lists[v->flavor] : kinds[v->kind];
}

/* ---- Making ---- */

bool km_jv_copy_text(km_jrun *r, const char *s, size_t n, km_jv *out) {
    if (!km_jinja_step(r, n)) return false;
    char *copy = km_jinja_alloc(r, n + 1);
    if (!copy) return false;
    if (n) memcpy(copy, s, n);
    *out = km_jv_text(copy, n);
    return true;
}

bool km_jv_take(km_jrun *r, size_t start, km_jv *out) {
    if (r->out->failed) return km_jinja_fail(r, KM_ERR_MEMORY, "out of memory");
    bool ok =
        km_jv_copy_text(r, r->out->data ? r->out->data + start : "", r->out->len - start, out);
    r->out->len = start;
    if (r->out->data) r->out->data[start] = '\0';
    return ok;
}

bool km_jv_new_list(km_jrun *r, km_jv_flavor flavor, size_t cap, km_jv *out) {
    if (!km_jinja_step(r, 0)) return false;
    km_jv_list *list = km_jinja_alloc(r, sizeof *list);
    if (!list || cap > SIZE_MAX / sizeof(km_jv)) return false;
    list->items = cap ? km_jinja_alloc(r, cap * sizeof(km_jv)) : NULL;
    if (cap && !list->items) return false;
    list->cap = cap;
    *out = (km_jv){.kind = KM_JV_LIST, .flavor = (uint8_t)flavor, .list = list};
    return true;
}

bool km_jv_push(km_jrun *r, km_jv *v, const km_jv *item) {
    km_jv_list *list = v->list;
    if (!km_jinja_step(r, 0)) return false;
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        km_jv *items = km_jinja_alloc(r, cap * sizeof *items);
        if (!items) return false;
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = *item;
    return true;
}

bool km_jv_new_dict(km_jrun *r, size_t cap, km_jv *out) {
    if (!km_jinja_step(r, 0)) return false;
    km_jv_dict *dict = km_jinja_alloc(r, sizeof *dict);
    if (!dict) return false;
    if (cap) {
        dict->keys = km_jinja_alloc(r, cap * 2 * sizeof(km_jv));
        if (!dict->keys) return false;
        dict->values = dict->keys + cap;
        dict->cap = cap;
    }
    *out = (km_jv){.kind = KM_JV_DICT, .dict = dict};
    return true;
}

static bool can_be_key(const km_jv *v) {
    return v->kind == KM_JV_STRING || km_jv_number(v) || v->kind == KM_JV_NONE ||
           (v->kind == KM_JV_LIST && v->flavor == KM_JV_TUPLE);
}

bool km_jv_put(km_jrun *r, km_jv *v, const km_jv *key, const km_jv *value) {
    if (!can_be_key(key))
        return km_jinja_fail(r, KM_ERR_FORMAT, "a %s cannot be the key of a dict", km_jv_type(key));
    if (!km_jinja_step(r, v->dict->n)) return false;
    km_jv *old = (km_jv *)(uintptr_t)km_jv_get(r, v, key);
    if (old) {
        *old = *value;
        return true;
    }
    km_jv_dict *dict = v->dict;
    if (dict->n == dict->cap) {
        km_jv grown;
        if (!km_jv_new_dict(r, dict->cap ? dict->cap * 2 : 4, &grown)) return false;
        if (dict->n) {
            memcpy(grown.dict->keys, dict->keys, dict->n * sizeof(km_jv));
            memcpy(grown.dict->values, dict->values, dict->n * sizeof(km_jv));
        }
        grown.dict->n = dict->n;
        *dict = *grown.dict;
    }
    dict->keys[dict->n] = *key;
    dict->values[dict->n++] = *value;
    return true;
}

static bool convert(km_jrun *r, const json_t *j, int depth, km_jv *out) {
    if (depth > KM_JINJA_DEPTH)
        return km_jinja_fail(r, KM_ERR_RANGE, "a variable is nested more than %d deep",
                             KM_JINJA_DEPTH);
    switch (json_typeof(j)) {
    case JSON_NULL: *out = km_jv_none(); return true;
    case JSON_TRUE:
    case JSON_FALSE: *out = km_jv_bool(json_is_true(j)); return true;
    case JSON_INTEGER: *out = km_jv_int(json_integer_value(j)); return true;
    case JSON_REAL: *out = km_jv_float(json_real_value(j)); return true;
    case JSON_STRING: /* outlives the rendering, as all of the variables do */
        *out = km_jv_text(json_string_value(j), json_string_length(j));
        return true;
    case JSON_ARRAY: {
        if (!km_jv_new_list(r, KM_JV_PLAIN, json_array_size(j), out)) return false;
        for (size_t i = 0; i < json_array_size(j); i++) {
            km_jv item;
            if (!convert(r, json_array_get(j, i), depth + 1, &item)) return false;
            if (!km_jv_push(r, out, &item)) return false;
        }
        return true;
    }
    case JSON_OBJECT: {
        if (!km_jv_new_dict(r, json_object_size(j), out)) return false;
        km_jv_dict *d = out->dict;
        json_t *o = (json_t *)(uintptr_t)j; /* iteration takes it as mutable and leaves it alone */
        for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
            if (!km_jinja_step(r, 0)) return false;
            const char *key = json_object_iter_key(it);
            d->keys[d->n] = km_jv_text(key, strlen(key));
            if (!convert(r, json_object_iter_value(it), depth + 1, &d->values[d->n])) return false;
            d->n++; /* keys of an object differ, so none is looked for */
        }
        return true;
    }
    }
    return km_jinja_fail(r, KM_ERR_FORMAT, "a variable is of no JSON type");
}

bool km_jv_from_json(km_jrun *r, const json_t *j, km_jv *out) { return convert(r, j, 0, out); }

/* ---- Reading ---- */

static bool same(const km_jv *a, const km_jv *b, int depth, bool *equal);

const km_jv *km_jv_get(km_jrun *r, const km_jv *v, const km_jv *key) {
    const km_jv_dict *d = v->dict;
    if (key->kind == KM_JV_STRING) return km_jv_find(v, key->text, key->bytes);
    (void)r;
    for (size_t i = 0; i < d->n; i++) {
        bool equal = false;
        if (same(&d->keys[i], key, 0, &equal) && equal) return &d->values[i];
    }
    return NULL;
}

const km_jv *km_jv_find(const km_jv *v, const char *key, size_t bytes) {
    const km_jv_dict *d = v->dict;
    for (size_t i = 0; i < d->n; i++)
        if (d->keys[i].kind == KM_JV_STRING && d->keys[i].bytes == bytes &&
            memcmp(d->keys[i].text, key, bytes) == 0)
            return &d->values[i];
    return NULL;
}

bool km_jv_iterate(km_jrun *r, const km_jv *v, km_jv *list) {
    if (v->kind == KM_JV_LIST) {
        *list = *v;
        if (v->flavor == KM_JV_GENERATOR) { /* the next reader finds it empty */
            if (!km_jv_new_list(r, KM_JV_PLAIN, 0, list)) return false;
            km_jv_list rest = *list->list;
            *list->list = *v->list;
            *v->list = rest;
        } else if (v->flavor ==
                   KM_JV_PLAIN) { /* appending within a loop does not change the loop */
            if (!km_jv_new_list(r, KM_JV_PLAIN, 0, list)) return false;
            *list->list = *v->list;
            list->list->cap = list->list->n;
        }
        return true;
    }
    if (v->kind == KM_JV_UNDEFINED) return km_jv_new_list(r, KM_JV_PLAIN, 0, list);
    if (v->kind == KM_JV_DICT) {
        if (!km_jv_new_list(r, KM_JV_PLAIN, v->dict->n, list)) return false;
        if (v->dict->n) memcpy(list->list->items, v->dict->keys, v->dict->n * sizeof(km_jv));
        list->list->n = v->dict->n;
        return km_jinja_step(r, v->dict->n);
    }
    if (v->kind != KM_JV_STRING)
        return km_jinja_fail(r, KM_ERR_FORMAT, "a %s cannot be looped over", km_jv_type(v));
    if (!km_jv_new_list(r, KM_JV_PLAIN, 0, list)) return false;
    for (size_t i = 0; i < v->bytes;) {
        size_t n = (size_t)km_utf8_length(v->text[i]);
        km_jv c = km_jv_text(v->text + i, n);
        if (!km_jv_push(r, list, &c)) return false;
        i += n;
    }
    return true;
}

bool km_jv_length(km_jrun *r, const km_jv *v, int64_t *n) {
    *n = 0;
    switch (v->kind) {
    case KM_JV_UNDEFINED: return true;
    case KM_JV_STRING:
        for (size_t i = 0; i < v->bytes; i++) *n += !km_utf8_continues(v->text[i]);
        return km_jinja_step(r, v->bytes);
    case KM_JV_DICT: *n = (int64_t)v->dict->n; return true;
    case KM_JV_LIST:
        *n = (int64_t)v->list->n;
        if (v->flavor != KM_JV_GENERATOR) return true;
        /* fallthrough */
    default: return km_jinja_fail(r, KM_ERR_FORMAT, "a %s has no length", km_jv_type(v));
    }
}

/* ---- Comparing ---- */

static bool same_lists(const km_jv_list *a, const km_jv_list *b, int depth, bool *equal) {
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++)
        if (!same(&a->items[i], &b->items[i], depth + 1, equal)) return false;
    return true;
}

static bool same_dicts(const km_jv *a, const km_jv *b, int depth, bool *equal) {
    *equal = a->dict->n == b->dict->n;
    for (size_t i = 0; *equal && i < a->dict->n; i++) {
        const km_jv *other = km_jv_get(NULL, b, &a->dict->keys[i]);
        *equal = other != NULL;
        if (other && !same(&a->dict->values[i], other, depth + 1, equal)) return false;
    }
    return true;
}

/* False when the values are nested too deeply to tell. */
static bool same(const km_jv *a, const km_jv *b, int depth, bool *equal) {
    if (depth > KM_JINJA_DEPTH) return false;
    if (km_jv_number(a) && km_jv_number(b)) {
        int64_t i, j;
        *equal = km_jv_as_int(a, &i) && km_jv_as_int(b, &j)
                     ? i == j
                     : km_jv_as_double(a) == km_jv_as_double(b);
        return true;
    }
    *equal = false;
    if (a->kind != b->kind) return true;
    switch (a->kind) {
    case KM_JV_UNDEFINED:
    case KM_JV_NONE: *equal = true; return true;
    case KM_JV_STRING:
        *equal = a->bytes == b->bytes && (!a->bytes || memcmp(a->text, b->text, a->bytes) == 0);
        return true;
    case KM_JV_LIST:
        if (a->list == b->list)
            *equal = true;
        else if (a->flavor == b->flavor)
            return same_lists(a->list, b->list, depth, equal);
        return true;
    case KM_JV_DICT:
        if (a->dict == b->dict)
            *equal = true;
        else
            return same_dicts(a, b, depth, equal);
        return true;
    default: *equal = a->dict == b->dict; return true;
    }
}

bool km_jv_equal(km_jrun *r, const km_jv *a, const km_jv *b, bool *equal) {
    if (!km_jinja_step(r, a->kind == KM_JV_STRING ? a->bytes : 0)) return false;
    if (same(a, b, 0, equal)) return true;
    return km_jinja_fail(r, KM_ERR_RANGE, "values nested more than %d deep cannot be compared",
                         KM_JINJA_DEPTH);
}

static bool order_lists(km_jrun *r, const km_jv *a, const km_jv *b, int *order) {
    size_t n = a->list->n < b->list->n ? a->list->n : b->list->n;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!km_jv_equal(r, &a->list->items[i], &b->list->items[i], &equal)) return false;
        if (equal) continue;
        if (++r->depth > KM_JINJA_DEPTH)
            return km_jinja_fail(r, KM_ERR_RANGE, "values nested too deeply cannot be compared");
        bool ok = km_jv_order(r, &a->list->items[i], &b->list->items[i], order);
        r->depth--;
        return ok;
    }
    *order = (a->list->n > b->list->n) - (a->list->n < b->list->n);
    return true;
}

bool km_jv_order(km_jrun *r, const km_jv *a, const km_jv *b, int *order) {
    if (km_jv_number(a) && km_jv_number(b)) {
        int64_t i, j;
        if (km_jv_as_int(a, &i) && km_jv_as_int(b, &j)) {
            *order = (i > j) - (i < j);
        } else {
            double x = km_jv_as_double(a), y = km_jv_as_double(b);
            *order = (x > y) - (x < y);
        }
        return true;
    }
    if (a->kind == KM_JV_STRING && b->kind == KM_JV_STRING) { /* UTF-8 sorts by code point */
        size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
        int c = n ? memcmp(a->text, b->text, n) : 0;
        *order = c ? (c > 0) - (c < 0) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
        return km_jinja_step(r, n);
    }
    if (a->kind == KM_JV_LIST && b->kind == KM_JV_LIST && a->flavor == b->flavor)
        return order_lists(r, a, b, order);
    return km_jinja_fail(r, KM_ERR_FORMAT, "a %s and a %s have no order", km_jv_type(a),
                         km_jv_type(b));
}

bool km_jv_contains(km_jrun *r, const km_jv *in, const km_jv *v, bool *found) {
    *found = false;
    if (in->kind == KM_JV_STRING) {
        if (v->kind != KM_JV_STRING)
            return km_jinja_fail(r, KM_ERR_FORMAT, "a str contains strings, not a %s",
                                 km_jv_type(v));
        *found =
            v->bytes == 0 || (in->bytes && memmem(in->text, in->bytes, v->text, v->bytes) != NULL);
        return km_jinja_step(r, in->bytes);
    }
    if (in->kind == KM_JV_DICT) {
        *found = km_jv_get(r, in, v) != NULL;
        return km_jinja_step(r, in->dict->n);
    }
    km_jv list;
    if (!km_jv_iterate(r, in, &list)) return false;
    for (size_t i = 0; !*found && i < list.list->n; i++)
        if (!km_jv_equal(r, &list.list->items[i], v, found)) return false;
    return true;
}
