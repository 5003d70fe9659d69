/* Values of templates as text: as Python's str and repr write them, and as its json does. */
#include "text/jinja_value.h"
#include "base/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool ready(km_jrun *r, size_t bytes) {
    if (r->out->failed) return km_jinja_fail(r, KM_ERR_MEMORY, "out of memory");
    return km_jinja_step(r, bytes);
}

static void put(km_jrun *r, const char *s) { km_text_add(r->out, s); }

/* The shortest decimal that reads back as the same number, laid out as Python does. */
static void write_float(km_text *out, double f) {
    if (isnan(f) || isinf(f)) {
        km_text_add(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char buf[40];
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*e", digits - 1, f);
        if (strtod(buf, NULL) == f) break;
    }
    int exponent = atoi(strchr(buf, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(buf, 'e');
        int whole = (int)(e - buf);
        km_text_printf(out, "%.*se%c%02d", whole, buf, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = digits - 1 - exponent;
    km_text_printf(out, "%.*f", decimals > 0 ? decimals : 1, f);
}

/* ---- str and repr ---- */

static bool printable(uint32_t cp) {
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static bool quote(km_jrun *r, const km_jv *v) {
    if (!ready(r, v->bytes)) return false;
    bool has_single = v->bytes && memchr(v->text, '\'', v->bytes);
    char mark = has_single && !memchr(v->text, '"', v->bytes) ? '"' : '\'';
    km_text_put(r->out, &mark, 1);
    for (size_t i = 0; i < v->bytes;) {
        uint32_t cp;
        int n = km_utf8_read(v->text + i, v->bytes - i, &cp);
        if (!n) { /* all strings are valid, so this is not reached */
            i++;
            continue;
        }
        if (cp == '\n')
            put(r, "\\n");
        else if (cp == '\r')
            put(r, "\\r");
        else if (cp == '\t')
            put(r, "\\t");
        else if (cp == '\\' || cp == (uint32_t)mark)
            km_text_printf(r->out, "\\%c", (char)cp);
        else if (printable(cp))
            km_text_put(r->out, v->text + i, (size_t)n);
        else
            km_text_printf(r->out,
                           cp < 0x100     ? "\\x%02" PRIx32
                           : cp < 0x10000 ? "\\u%04" PRIx32
                                          : "\\U%08" PRIx32,
                           cp);
        i += (size_t)n;
    }
    km_text_put(r->out, &mark, 1);
    return true;
}

static bool repr(km_jrun *r, const km_jv *v, int depth);

static bool repr_items(km_jrun *r, const km_jv *v, int depth) {
    for (size_t i = 0; i < v->list->n; i++) {
        if (i) put(r, ", ");
        if (!repr(r, &v->list->items[i], depth)) return false;
    }
    return true;
}

static bool repr_list(km_jrun *r, const km_jv *v, int depth) {
    static const char *const open[] = {
        [KM_JV_PLAIN] = "[",           [KM_JV_TUPLE] = "(",
        [KM_JV_RANGE] = "range(",      [KM_JV_GENERATOR] = "<generator",
        [KM_JV_KEYS] = "dict_keys([",  [KM_JV_VALUES] = "dict_values([",
        [KM_JV_ITEMS] = "dict_items(["};
    put(r, open[v->flavor]);
    switch (v->flavor) {
    case KM_JV_GENERATOR: put(r, ">"); return true;
    case KM_JV_RANGE: {
        int64_t n = (int64_t)v->list->n;
        int64_t first = n ? v->list->items[0].i : 0, step = n > 1 ? v->list->items[1].i - first : 1;
        km_text_printf(r->out, "%" PRId64 ", %" PRId64, first, first + n * step);
        if (step != 1) km_text_printf(r->out, ", %" PRId64, step);
        put(r, ")");
        return true;
    }
    case KM_JV_TUPLE:
        if (!repr_items(r, v, depth)) return false;
        put(r, v->list->n == 1 ? ",)" : ")");
        return true;
    case KM_JV_PLAIN:
        if (!repr_items(r, v, depth)) return false;
        put(r, "]");
        return true;
    default:
        if (!repr_items(r, v, depth)) return false;
        put(r, "])");
        return true;
    }
}

static bool repr(km_jrun *r, const km_jv *v, int depth) {
    if (!ready(r, 0)) return false;
    if (depth > KM_JINJA_DEPTH)
        return km_jinja_fail(r, KM_ERR_RANGE, "a value nested more than %d deep cannot be written",
                             KM_JINJA_DEPTH);
    switch (v->kind) {
    case KM_JV_UNDEFINED: put(r, "Undefined"); return true;
    case KM_JV_NONE: put(r, "None"); return true;
    case KM_JV_BOOL: put(r, v->b ? "True" : "False"); return true;
    case KM_JV_INT: km_text_printf(r->out, "%" PRId64, v->i); return true;
    case KM_JV_FLOAT: write_float(r->out, v->f); return true;
    case KM_JV_STRING: return quote(r, v);
    case KM_JV_LIST: return repr_list(r, v, depth + 1);
    case KM_JV_NAMESPACE:
        put(r, "<Namespace ");
        /* fallthrough */
    case KM_JV_DICT:
        put(r, "{");
        for (size_t i = 0; i < v->dict->n; i++) {
            if (i) put(r, ", ");
            if (!repr(r, &v->dict->keys[i], depth + 1)) return false;
            put(r, ": ");
            if (!repr(r, &v->dict->values[i], depth + 1)) return false;
        }
        put(r, v->kind == KM_JV_DICT ? "}" : "}>");
        return true;
    default: km_text_printf(r->out, "<%s>", km_jv_type(v)); return true;
    }
}

bool km_jv_write(km_jrun *r, const km_jv *v) {
    if (v->kind == KM_JV_UNDEFINED) return true;
    if (v->kind != KM_JV_STRING) return repr(r, v, 0);
    if (!ready(r, v->bytes)) return false;
    km_text_put(r->out, v->text, v->bytes);
    return true;
}

bool km_jv_write_repr(km_jrun *r, const km_jv *v) { return repr(r, v, 0); }

bool km_jv_string(km_jrun *r, const km_jv *v, km_jv *out) {
    if (v->kind == KM_JV_STRING) {
        *out = *v;
        return true;
    }
    size_t start = r->out->len;
    return km_jv_write(r, v) && km_jv_take(r, start, out);
}

/* ---- JSON ---- */

static bool write_json_string(km_jrun *r, const char *s, size_t n, bool ascii) {
    if (!ready(r, n)) return false;
    put(r, "\"");
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int length = km_utf8_read(s + i, n - i, &cp);
        static const char short_forms[] = "btn\0fr";
        if (cp == '"' || cp == '\\')
            km_text_printf(r->out, "\\%c", (char)cp);
        else if (cp >= 8 && cp <= 13 && cp != 11)
            km_text_printf(r->out, "\\%c", short_forms[cp - 8]);
        else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000))
            km_text_printf(r->out, "\\u%04" PRIx32, cp);
        else if (ascii && cp >= 0x10000)
            km_text_printf(r->out, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((cp - 0x10000) >> 10),
                           0xdc00 + ((cp - 0x10000) & 0x3ff));
        else
            km_text_put(r->out, s + i, (size_t)length);
        i += length ? (size_t)length : 1;
    }
    put(r, "\"");
    return true;
}

static void new_line(km_jrun *r, const km_jv_json *how, int depth) {
    if (how->indent < 0 && !how->indent_text) return;
    put(r, "\n");
    for (int64_t i = 0; i < depth; i++) {
        if (how->indent_text) km_text_put(r->out, how->indent_text, how->indent_bytes);
        for (int64_t k = 0; !how->indent_text && k < how->indent; k++) put(r, " ");
    }
}

static void separator(km_jrun *r, const km_jv_json *how) {
    if (how->item.kind == KM_JV_STRING)
        km_text_put(r->out, how->item.text, how->item.bytes);
    else
        put(r, how->indent < 0 && !how->indent_text ? ", " : ",");
}

static bool json(km_jrun *r, const km_jv *v, const km_jv_json *how, int depth);

static bool json_key(km_jrun *r, const km_jv *key, const km_jv_json *how) {
    if (key->kind == KM_JV_STRING) return write_json_string(r, key->text, key->bytes, how->ascii);
    if (key->kind == KM_JV_LIST)
        return km_jinja_fail(r, KM_ERR_FORMAT, "tojson: a tuple cannot be a key in JSON");
    put(r, "\"");
    if (!json(r, key, how, 0)) return false;
    put(r, "\"");
    return true;
}

/* The places of a dict's keys in sorted order, by insertion: dicts here are small. */
static bool sorted_keys(km_jrun *r, const km_jv_dict *d, size_t *place) {
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            if (!km_jv_order(r, &d->keys[place[at - 1]], &d->keys[i], &order)) return false;
            if (!km_jinja_step(r, 0)) return false;
            if (order <= 0) break;
            place[at] = place[at - 1];
        }
        place[at] = i;
    }
    return true;
}

static bool json_dict(km_jrun *r, const km_jv *v, const km_jv_json *how, int depth) {
    const km_jv_dict *d = v->dict;
    if (d->n == 0) {
        put(r, "{}");
        return true;
    }
    size_t *place = NULL;
    if (how->sorted) {
        place = km_jinja_alloc(r, d->n * sizeof *place);
        if (!place || !sorted_keys(r, d, place)) return false;
    }
    put(r, "{");
    for (size_t i = 0; i < d->n; i++) {
        size_t at = place ? place[i] : i;
        if (i) separator(r, how);
        new_line(r, how, depth);
        if (!json_key(r, &d->keys[at], how)) return false;
        if (how->key.kind == KM_JV_STRING)
            km_text_put(r->out, how->key.text, how->key.bytes);
        else
            put(r, ": ");
        if (!json(r, &d->values[at], how, depth)) return false;
    }
    new_line(r, how, depth - 1);
    put(r, "}");
    return true;
}

static bool json(km_jrun *r, const km_jv *v, const km_jv_json *how, int depth) {
    if (!ready(r, 0)) return false;
    if (depth > KM_JINJA_DEPTH)
        return km_jinja_fail(r, KM_ERR_RANGE, "tojson: the value is nested more than %d deep",
                             KM_JINJA_DEPTH);
    switch (v->kind) {
    case KM_JV_NONE: put(r, "null"); return true;
    case KM_JV_BOOL: put(r, v->b ? "true" : "false"); return true;
    case KM_JV_INT: km_text_printf(r->out, "%" PRId64, v->i); return true;
    case KM_JV_FLOAT:
        if (isnan(v->f))
            put(r, "NaN");
        else if (isinf(v->f))
            put(r, v->f > 0 ? "Infinity" : "-Infinity");
        else
            write_float(r->out, v->f);
        return true;
    case KM_JV_STRING: return write_json_string(r, v->text, v->bytes, how->ascii);
    case KM_JV_DICT: return json_dict(r, v, how, depth + 1);
    case KM_JV_LIST:
        if (v->flavor > KM_JV_TUPLE) break;
        if (v->list->n == 0) {
            put(r, "[]");
            return true;
        }
        put(r, "[");
        for (size_t i = 0; i < v->list->n; i++) {
            if (i) separator(r, how);
            new_line(r, how, depth + 1);
            if (!json(r, &v->list->items[i], how, depth + 1)) return false;
        }
        new_line(r, how, depth);
        put(r, "]");
        return true;
    default: break;
    }
    if (v->kind == KM_JV_UNDEFINED)
        return km_jinja_fail(r, KM_ERR_FORMAT, "tojson: %.*s is undefined", (int)v->bytes, v->text);
    return km_jinja_fail(r, KM_ERR_FORMAT, "tojson: a %s cannot be written as JSON", km_jv_type(v));
}

bool km_jv_write_json(km_jrun *r, const km_jv *v, const km_jv_json *how) {
    return json(r, v, how, 0);
}
