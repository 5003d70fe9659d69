/* Filters of sequences: map, select, sort, join and the like. */
#include "text/jinja_eval.h"
#include <string.h>

/* An item's attribute by a path such as "function.name" or a number; the item itself where there
 * is no path. */
static bool attribute(km_jrun *r, const km_jv *item, const km_jv *path, km_jv *out) {
    *out = *item;
    if (!path || path->kind == KM_JV_NONE) return true;
    if (path->kind != KM_JV_STRING) return km_jinja_item(r, item, path, out);
    for (size_t at = 0; at <= path->bytes;) {
        const char *dot = memchr(path->text + at, '.', path->bytes - at);
        size_t n = dot ? (size_t)(dot - path->text) - at : path->bytes - at;
        km_jv key = km_jv_text(path->text + at, n), of = *out;
        int64_t i = 0;
        bool digits = n > 0 && n < 10;
        for (size_t k = 0; digits && k < n; k++) {
            digits = key.text[k] >= '0' && key.text[k] <= '9';
            i = i * 10 + (key.text[k] - '0');
        }
        if (digits) key = km_jv_int(i);
        if (!km_jinja_item(r, &of, &key, out)) return false;
        at += n + 1;
    }
    return true;
}

/* What items are compared by: text in small letters unless case counts. */
static bool key_of(km_jrun *r, const km_jv *item, const km_jv *path, bool case_counts, km_jv *out) {
    km_jv v;
    if (!attribute(r, item, path, &v)) return false;
    *out = v;
    return case_counts || v.kind != KM_JV_STRING || km_jstr_case(r, &v, KM_JCASE_LOWER, out);
}

static bool flag(const km_jargs *a, size_t at, const char *name) {
    const km_jv *v = km_jarg(a, at, name);
    return v && km_jv_true(v);
}

bool km_jseq_join(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *between = km_jarg(a, 0, "d"), *path = km_jarg(a, 1, "attribute");
    km_jv list;
    if (!km_jv_iterate(r, v, &list)) return false;
    size_t start = r->out->len;
    for (size_t i = 0; i < list.list->n; i++) {
        km_jv part;
        if (i && between && !km_jv_write(r, between)) return false;
        if (!attribute(r, &list.list->items[i], path, &part) || !km_jv_write(r, &part))
            return false;
    }
    return km_jv_take(r, start, out);
}

static bool at_end(km_jrun *r, const km_jv *v, bool first, km_jv *out) {
    km_jv list;
    if (!km_jv_iterate(r, v, &list)) return false;
    const char *why = first ? "the first item of nothing" : "the last item of nothing";
    if (list.list->n == 0)
        *out = (km_jv){.kind = KM_JV_UNDEFINED, .text = why, .bytes = strlen(why)};
    else
        *out = list.list->items[first ? 0 : list.list->n - 1];
    return true;
}
bool km_jseq_first(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return at_end(r, v, true, out);
}
bool km_jseq_last(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return at_end(r, v, false, out);
}

bool km_jseq_reverse(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (v->kind == KM_JV_STRING) {
        km_jv back = km_jv_int(-1);
        return km_jinja_slice(r, v, NULL, NULL, &back, out);
    }
    km_jv list;
    if (!km_jv_iterate(r, v, &list) || !km_jv_new_list(r, KM_JV_GENERATOR, list.list->n, out))
        return false;
    for (size_t i = list.list->n; i-- > 0;)
        if (!km_jv_push(r, out, &list.list->items[i])) return false;
    return true;
}

/* ---- Sorting ---- */

/* Merges sorted halves until all is one; equal items keep their order, also when it is reversed. */
static bool merge_sort(km_jrun *r, km_jv *keys, km_jv *items, size_t n, bool reverse) {
    km_jv *other_keys = km_jinja_alloc(r, n * sizeof *keys),
          *other = km_jinja_alloc(r, n * sizeof *items);
    if (!other_keys || !other) return false;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n;
            size_t end = middle + width < n ? middle + width : n, i = begin, j = middle;
            for (size_t k = begin; k < end; k++) {
                int order = 0;
                if (!km_jinja_step(r, 0)) return false;
                if (i < middle && j < end && !km_jv_order(r, &keys[i], &keys[j], &order))
                    return false;
                bool left = j >= end || (i < middle && (reverse ? order >= 0 : order <= 0));
                size_t from = left ? i++ : j++;
                other_keys[k] = keys[from];
                other[k] = items[from];
            }
        }
        memcpy(keys, other_keys, n * sizeof *keys);
        memcpy(items, other, n * sizeof *items);
    }
    return true;
}

/* A new list of v's items, with the keys to sort them by. */
static bool with_keys(km_jrun *r, const km_jv *v, const km_jv *path, bool case_counts, km_jv *keys,
                      km_jv *items) {
    km_jv list;
    if (!km_jv_iterate(r, v, &list) || !km_jv_new_list(r, KM_JV_PLAIN, list.list->n, keys) ||
        !km_jv_new_list(r, KM_JV_PLAIN, list.list->n, items))
        return false;
    for (size_t i = 0; i < list.list->n; i++) {
        km_jv key;
        if (!key_of(r, &list.list->items[i], path, case_counts, &key) ||
            !km_jv_push(r, keys, &key) || !km_jv_push(r, items, &list.list->items[i]))
            return false;
    }
    return true;
}

bool km_jseq_sort(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv keys;
    return with_keys(r, v, km_jarg(a, 2, "attribute"), flag(a, 1, "case_sensitive"), &keys, out) &&
           (out->list->n < 2 ||
            merge_sort(r, keys.list->items, out->list->items, out->list->n, flag(a, 0, "reverse")));
}

bool km_jseq_dictsort(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *by = km_jarg(a, 1, "by");
    if (v->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, v);
    if (v->kind != KM_JV_DICT)
        return km_jinja_fail(r, KM_ERR_FORMAT, "dictsort needs a dict, not a %s", km_jv_type(v));
    if (by && !km_jv_is(by, "key") && !km_jv_is(by, "value"))
        return km_jinja_fail(r, KM_ERR_FORMAT, "dictsort: by is 'key' or 'value'");
    km_jv_method m = {*v, "items", 5};
    km_jv pairs, keys, place = km_jv_int(by && km_jv_is(by, "value"));
    return km_jinja_method(r, &m, &(km_jargs){0}, &pairs) &&
           with_keys(r, &pairs, &place, flag(a, 0, "case_sensitive"), &keys, out) &&
           (out->list->n < 2 ||
            merge_sort(r, keys.list->items, out->list->items, out->list->n, flag(a, 2, "reverse")));
}

bool km_jseq_unique(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv keys, items, seen;
    if (!with_keys(r, v, km_jarg(a, 1, "attribute"), flag(a, 0, "case_sensitive"), &keys, &items) ||
        !km_jv_new_list(r, KM_JV_PLAIN, 0, &seen) || !km_jv_new_list(r, KM_JV_GENERATOR, 0, out))
        return false;
    for (size_t i = 0; i < items.list->n; i++) {
        bool known;
        if (!km_jv_contains(r, &seen, &keys.list->items[i], &known)) return false;
        if (!known && (!km_jv_push(r, &seen, &keys.list->items[i]) ||
                       !km_jv_push(r, out, &items.list->items[i])))
            return false;
    }
    return true;
}

static bool extreme(km_jrun *r, const km_jv *v, const km_jargs *a, int sign, km_jv *out) {
    km_jv keys, items;
    if (!with_keys(r, v, km_jarg(a, 1, "attribute"), flag(a, 0, "case_sensitive"), &keys, &items))
        return false;
    if (items.list->n == 0) return at_end(r, v, true, out);
    size_t best = 0;
    for (size_t i = 1; i < items.list->n; i++) {
        int order;
        if (!km_jv_order(r, &keys.list->items[i], &keys.list->items[best], &order)) return false;
        if (order * sign > 0) best = i;
    }
    *out = items.list->items[best];
    return true;
}
bool km_jseq_min(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return extreme(r, v, a, -1, out);
}
bool km_jseq_max(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return extreme(r, v, a, 1, out);
}

bool km_jseq_sum(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *path = km_jarg(a, 0, "attribute"), *start = km_jarg(a, 1, "start");
    km_jv list;
    *out = start ? *start : km_jv_int(0);
    if (!km_jv_iterate(r, v, &list)) return false;
    for (size_t i = 0; i < list.list->n; i++) {
        km_jv part, so_far = *out;
        if (!attribute(r, &list.list->items[i], path, &part) ||
            !km_jinja_binary(r, '+', &so_far, &part, out))
            return false;
    }
    return true;
}

/* ---- map and select ---- */

/* These take none and other false values for an empty list. */
static bool items_of(km_jrun *r, const km_jv *v, km_jv *list) {
    return km_jv_true(v) ? km_jv_iterate(r, v, list) : km_jv_new_list(r, KM_JV_PLAIN, 0, list);
}

/* The arguments after the first `skip` by position. */
static km_jargs rest(const km_jargs *a, size_t skip) {
    km_jargs b = *a;
    if (skip > a->n) skip = a->n;
    if (skip) b.values += skip;
    b.n -= skip;
    return b;
}

bool km_jseq_map(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv list;
    if (!items_of(r, v, &list) || !km_jv_new_list(r, KM_JV_GENERATOR, list.list->n, out))
        return false;
    const km_jv *path = a->n ? NULL : km_jarg(a, a->n, "attribute");
    const km_jv *otherwise = km_jarg(a, a->n, "default"), *name = a->n ? &a->values[0] : NULL;
    int which =
        name && name->kind == KM_JV_STRING ? km_jinja_find_filter(name->text, name->bytes) : -1;
    if (!path && which < 0)
        return km_jinja_fail(
            r, KM_ERR_UNSUPPORTED, "map: the filter '%.*s' is not supported",
            name && name->kind == KM_JV_STRING && name->bytes < 60 ? (int)name->bytes : 0,
            name && name->kind == KM_JV_STRING ? name->text : "");
    km_jargs more = rest(a, 1);
    for (size_t i = 0; i < list.list->n; i++) {
        km_jv item;
        if (path) {
            if (!attribute(r, &list.list->items[i], path, &item)) return false;
            if (item.kind == KM_JV_UNDEFINED && otherwise) item = *otherwise;
        } else if (!km_jinja_filter(r, which, &list.list->items[i], &more, &item)) {
            return false;
        }
        if (!km_jv_push(r, out, &item)) return false;
    }
    return true;
}

static bool choose(km_jrun *r, const km_jv *v, const km_jargs *a, bool by_attribute, bool wanted,
                   km_jv *out) {
    km_jv list;
    size_t skip = by_attribute;
    if (by_attribute && !a->n)
        return km_jinja_fail(r, KM_ERR_FORMAT, "an attribute's name is missing");
    const km_jv *name = a->n > skip ? &a->values[skip] : NULL;
    int which =
        name && name->kind == KM_JV_STRING ? km_jinja_find_test(name->text, name->bytes) : -1;
    if (name && which < 0)
        return km_jinja_fail(r, KM_ERR_UNSUPPORTED, "the test '%.*s' is not supported",
                             name->kind == KM_JV_STRING && name->bytes < 60 ? (int)name->bytes : 0,
                             name->kind == KM_JV_STRING ? name->text : "");
    if (!items_of(r, v, &list) || !km_jv_new_list(r, KM_JV_GENERATOR, 0, out)) return false;
    km_jargs more = rest(a, skip + 1);
    for (size_t i = 0; i < list.list->n; i++) {
        km_jv item;
        bool yes;
        if (!attribute(r, &list.list->items[i], by_attribute ? &a->values[0] : NULL, &item))
            return false;
        yes = km_jv_true(&item);
        if (name && !km_jinja_test(r, which, &item, &more, &yes)) return false;
        if (yes == wanted && !km_jv_push(r, out, &list.list->items[i])) return false;
    }
    return true;
}
bool km_jseq_select(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return choose(r, v, a, false, true, out);
}
bool km_jseq_reject(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return choose(r, v, a, false, false, out);
}
bool km_jseq_selectattr(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return choose(r, v, a, true, true, out);
}
bool km_jseq_rejectattr(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    return choose(r, v, a, true, false, out);
}
