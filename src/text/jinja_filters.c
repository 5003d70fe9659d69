/* Filters: {{ value | name(arguments) }}. */
#include "text/jinja_chars.h"
#include "text/jinja_eval.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef bool (*filter_fn)(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);

/* Filters of text take any value, as its text. */
static bool text_of(km_jrun *r, const km_jv *v, km_jv *out) { return km_jv_string(r, v, out); }

static bool flag(const km_jargs *a, size_t at, const char *name, bool otherwise) {
    const km_jv *v = km_jarg(a, at, name);
    return v ? km_jv_true(v) : otherwise;
}

/* ---- Text ---- */

static bool f_trim(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv s;
    return text_of(r, v, &s) && km_jstr_strip(r, &s, km_jarg(a, 0, "chars"), 3, out);
}
static bool cased(km_jrun *r, const km_jv *v, km_jcase how, km_jv *out) {
    km_jv s;
    return text_of(r, v, &s) && km_jstr_case(r, &s, how, out);
}
static bool f_lower(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return cased(r, v, KM_JCASE_LOWER, out);
}
static bool f_upper(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return cased(r, v, KM_JCASE_UPPER, out);
}
static bool f_capitalize(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return cased(r, v, KM_JCASE_CAPITAL, out);
}
static bool f_title(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return cased(r, v, KM_JCASE_WORDS, out);
}

static bool f_replace(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *old = km_jarg(a, 0, "old"), *with = km_jarg(a, 1, "new"),
                *count = km_jarg(a, 2, "count");
    km_jv s, from, to;
    int64_t most = -1;
    if (!old || !with) return km_jinja_fail(r, KM_ERR_FORMAT, "replace needs two texts");
    if (count && count->kind != KM_JV_NONE && !km_jv_as_int(count, &most))
        return km_jinja_fail(r, KM_ERR_FORMAT, "replace: the count is an integer");
    return text_of(r, v, &s) && text_of(r, old, &from) && text_of(r, with, &to) &&
           km_jstr_replace(r, &s, &from, &to, most, out);
}

static bool f_string(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return text_of(r, v, out);
}

static bool f_safe(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (!text_of(r, v, out)) return false;
    out->flavor = KM_JV_SAFE;
    return true;
}

static bool f_escape(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv s;
    (void)a;
    return text_of(r, v, &s) && km_jstr_escape(r, &s, out);
}

static bool f_indent(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *width = km_jarg(a, 0, "width");
    bool first = flag(a, 1, "first", false), blank = flag(a, 2, "blank", false);
    km_jv s, with_end, lines;
    km_jv space = km_jv_text("    ", 4);
    int64_t n;
    if (width && width->kind == KM_JV_STRING) {
        space = *width;
    } else if (width) {
        km_jv one = km_jv_text(" ", 1);
        if (!km_jv_as_int(width, &n))
            return km_jinja_fail(r, KM_ERR_FORMAT, "indent: the width is an integer or text");
        if (!km_jinja_binary(r, '*', &one, width, &space)) return false;
    }
    const km_jv newline = km_jv_text("\n", 1); /* so that a newline at the end stays one */
    if (!text_of(r, v, &s) || !km_jinja_binary(r, '+', &s, &newline, &with_end) ||
        !km_jstr_lines(r, &with_end, &lines))
        return false;
    size_t start = r->out->len;
    for (size_t i = 0; i < lines.list->n; i++) {
        const km_jv *line = &lines.list->items[i];
        if (i) km_text_put(r->out, "\n", 1);
        if (!km_jinja_step(r, line->bytes + space.bytes)) return false;
        if (i ? blank || line->bytes : first) km_text_put(r->out, space.text, space.bytes);
        km_text_put(r->out, line->text, line->bytes);
    }
    return km_jv_take(r, start, out);
}

static bool f_format(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv s, values;
    if (!text_of(r, v, &s) || !km_jv_new_list(r, KM_JV_TUPLE, 0, &values)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!km_jv_push(r, &values, &a->values[i])) return false;
    return km_jstr_percent(r, &s, &values, out);
}

static bool f_wordcount(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv s;
    bool inside = false;
    (void)a;
    if (!text_of(r, v, &s) || !km_jinja_step(r, s.bytes)) return false;
    *out = km_jv_int(0);
    for (size_t i = 0; i < s.bytes; i += (size_t)km_utf8_length(s.text[i])) {
        unsigned char c = (unsigned char)s.text[i];
        bool word = isalnum(c) || c == '_' || c >= 0x80;
        out->i += word && !inside;
        inside = word;
    }
    return true;
}

static bool f_tojson(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *indent = km_jarg(a, 1, "indent"), *separators = km_jarg(a, 2, "separators");
    /* Jinja's own filter has indent first; the one of chat templates has ensure_ascii. */
    const km_jv *first = km_jarg(a, 0, "ensure_ascii");
    km_jv_json how = {.indent = -1,
                      .ascii = first && km_jv_true(first),
                      .sorted = flag(a, 3, "sort_keys", false)};
    if (indent && indent->kind == KM_JV_STRING) {
        how.indent_text = indent->text;
        how.indent_bytes = indent->bytes;
    } else if (indent && indent->kind != KM_JV_NONE &&
               (!km_jv_as_int(indent, &how.indent) || how.indent > 64)) {
        return km_jinja_fail(r, KM_ERR_FORMAT, "tojson: the indent is an integer up to 64");
    }
    if (indent && how.indent < 0 && !how.indent_text && indent->kind != KM_JV_NONE) how.indent = 0;
    if (separators && separators->kind == KM_JV_LIST && separators->list->n == 2) {
        how.item = separators->list->items[0];
        how.key = separators->list->items[1];
    } else if (separators && separators->kind != KM_JV_NONE) {
        return km_jinja_fail(r, KM_ERR_FORMAT, "tojson: separators are two strings");
    }
    size_t start = r->out->len;
    return km_jv_write_json(r, v, &how) && km_jv_take(r, start, out);
}

/* ---- Numbers ---- */

static bool f_int(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *otherwise = km_jarg(a, 0, "default"), *base = km_jarg(a, 1, "base");
    int64_t b = 10;
    if (base && (!km_jv_as_int(base, &b) || b < 0 || b == 1 || b > 36))
        return km_jinja_fail(r, KM_ERR_FORMAT, "int: the base is 0 or 2 to 36");
    *out = otherwise ? *otherwise : km_jv_int(0);
    if (v->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, v);
    if (v->kind == KM_JV_INT || v->kind == KM_JV_BOOL)
        *out = km_jv_int(v->kind == KM_JV_INT ? v->i : v->b);
    if (v->kind == KM_JV_FLOAT && v->f > -9e18 && v->f < 9e18) *out = km_jv_int((int64_t)v->f);
    if (v->kind != KM_JV_STRING || v->bytes > 60) return true;
    char text[64], *end;
    km_jv s;
    if (!km_jstr_strip(r, v, NULL, 3, &s)) return false;
    memcpy(text, s.text, s.bytes);
    text[s.bytes] = 0;
    errno = 0;
    long long i = strtoll(text, &end, (int)b);
    if (s.bytes && !*end && !errno) {
        *out = km_jv_int(i);
        return true;
    }
    double f = strtod(text, &end); /* "3.7" is 3 */
    if (s.bytes && !*end && b == 10 && f > -9e18 && f < 9e18) *out = km_jv_int((int64_t)f);
    return true;
}

static bool f_float(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *otherwise = km_jarg(a, 0, "default");
    *out = otherwise ? *otherwise : km_jv_float(0);
    if (v->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, v);
    if (km_jv_number(v)) *out = km_jv_float(km_jv_as_double(v));
    if (v->kind != KM_JV_STRING || v->bytes > 60) return true;
    char text[64], *end;
    km_jv s;
    if (!km_jstr_strip(r, v, NULL, 3, &s)) return false;
    memcpy(text, s.text, s.bytes);
    text[s.bytes] = 0;
    double f = strtod(text, &end);
    if (s.bytes && !*end && !strpbrk(text, "xX")) *out = km_jv_float(f);
    return true;
}

static bool number(km_jrun *r, const km_jv *v, const char *what) {
    if (v->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, v);
    return km_jv_number(v) ||
           km_jinja_fail(r, KM_ERR_FORMAT, "%s needs a number, not a %s", what, km_jv_type(v));
}

static bool f_abs(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (!number(r, v, "abs")) return false;
    *out = *v;
    if (v->kind == KM_JV_FLOAT) out->f = fabs(v->f);
    if (v->kind == KM_JV_BOOL) *out = km_jv_int(v->b);
    if (v->kind == KM_JV_INT && v->i < 0 && v->i != INT64_MIN) out->i = -v->i;
    return true;
}

static bool f_round(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *digits = km_jarg(a, 0, "precision"), *method = km_jarg(a, 1, "method");
    int64_t n = 0;
    if (!number(r, v, "round")) return false;
    if (digits && (!km_jv_as_int(digits, &n) || n > 300 || n < -300))
        return km_jinja_fail(r, KM_ERR_FORMAT, "round: the precision is an integer");
    double scale = pow(10, (double)n), f = km_jv_as_double(v) * scale;
    if (method && km_jv_is(method, "ceil"))
        f = ceil(f);
    else if (method && km_jv_is(method, "floor"))
        f = floor(f);
    else
        f = nearbyint(f); /* Python rounds halves to even */
    if (v->kind == KM_JV_FLOAT)
        *out = km_jv_float(f / scale);
    else
        *out = n < 0 && fabs(f / scale) < 9e18 ? km_jv_int((int64_t)(f / scale)) : *v;
    return true;
}

/* ---- Of any value ---- */

static bool f_default(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *otherwise = km_jarg(a, 0, "default_value");
    bool missing = v->kind == KM_JV_UNDEFINED || (flag(a, 1, "boolean", false) && !km_jv_true(v));
    (void)r;
    *out = !missing ? *v : otherwise ? *otherwise : km_jv_text("", 0);
    return true;
}

static bool f_length(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    *out = km_jv_int(0);
    return km_jv_length(r, v, &out->i);
}

static bool f_list(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    km_jv items;
    (void)a;
    if (!km_jv_iterate(r, v, &items) || !km_jv_new_list(r, KM_JV_PLAIN, items.list->n, out))
        return false;
    for (size_t i = 0; i < items.list->n; i++)
        if (!km_jv_push(r, out, &items.list->items[i])) return false;
    return true;
}

static bool f_items(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (v->kind == KM_JV_UNDEFINED) return km_jv_new_list(r, KM_JV_GENERATOR, 0, out);
    if (v->kind != KM_JV_DICT)
        return km_jinja_fail(r, KM_ERR_FORMAT, "items needs a dict, not a %s", km_jv_type(v));
    km_jv_method m = {*v, "items", 5};
    if (!km_jinja_method(r, &m, &(km_jargs){0}, out)) return false;
    out->flavor = KM_JV_GENERATOR;
    return true;
}

static const struct {
    const char *name;
    filter_fn run;
    int16_t most; /* arguments by position; -1: not checked here */
    const char *names;
} table[] = {
    {"trim", f_trim, 1, "chars"},
    {"length", f_length, 0, ""},
    {"count", f_length, 0, ""},
    {"default", f_default, 2, "default_value boolean"},
    {"d", f_default, 2, "default_value boolean"},
    {"tojson", f_tojson, 4, "ensure_ascii indent separators sort_keys"},
    {"lower", f_lower, 0, ""},
    {"upper", f_upper, 0, ""},
    {"capitalize", f_capitalize, 0, ""},
    {"title", f_title, 0, ""},
    {"string", f_string, 0, ""},
    {"safe", f_safe, 0, ""},
    {"escape", f_escape, 0, ""},
    {"e", f_escape, 0, ""},
    {"replace", f_replace, 3, "old new count"},
    {"indent", f_indent, 3, "width first blank"},
    {"format", f_format, -1, ""},
    {"wordcount", f_wordcount, 0, ""},
    {"int", f_int, 2, "default base"},
    {"float", f_float, 1, "default"},
    {"abs", f_abs, 0, ""},
    {"round", f_round, 2, "precision method"},
    {"list", f_list, 0, ""},
    {"items", f_items, 0, ""},
    {"join", km_jseq_join, 2, "d attribute"},
    {"first", km_jseq_first, 0, ""},
    {"last", km_jseq_last, 0, ""},
    {"reverse", km_jseq_reverse, 0, ""},
    {"sort", km_jseq_sort, 3, "reverse case_sensitive attribute"},
    {"dictsort", km_jseq_dictsort, 3, "case_sensitive by reverse"},
    {"unique", km_jseq_unique, 2, "case_sensitive attribute"},
    {"min", km_jseq_min, 2, "case_sensitive attribute"},
    {"max", km_jseq_max, 2, "case_sensitive attribute"},
    {"sum", km_jseq_sum, 2, "attribute start"},
    {"map", km_jseq_map, -1, ""},
    {"select", km_jseq_select, -1, ""},
    {"reject", km_jseq_reject, -1, ""},
    {"selectattr", km_jseq_selectattr, -1, ""},
    {"rejectattr", km_jseq_rejectattr, -1, ""},
};

int km_jinja_find_filter(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == bytes && memcmp(table[i].name, name, bytes) == 0)
            return (int)i;
    return -1;
}

bool km_jinja_filter(km_jrun *r, int which, const km_jv *v, const km_jargs *a, km_jv *out) {
    if (table[which].most >= 0 &&
        !km_jargs_check(r, table[which].name, a, (size_t)table[which].most, table[which].names))
        return false;
    km_jv result;
    if (!table[which].run(r, v, a, &result)) return false;
    *out = result;
    return true;
}
