/* Tests ({{ value is name }}) and the functions that every template knows. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "text/jinja_eval.h"
#include <string.h>
#include <time.h>

/* ---- Tests ---- */

typedef enum test_kind {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_STRING,
    T_MAPPING,
    T_ITERABLE,
    T_SEQUENCE,
    T_NUMBER,
    T_INTEGER,
    T_FLOAT,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_CALLABLE,
    T_ODD,
    T_EVEN,
    T_LOWER,
    T_UPPER,
    T_FILTER,
    T_TEST,
    /* with an argument */
    T_DIVISIBLE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_IN,
    T_SAME
} test_kind;

static const struct {
    const char *name;
    test_kind kind;
} tests[] = {
    {"defined", T_DEFINED},
    {"undefined", T_UNDEFINED},
    {"none", T_NONE},
    {"string", T_STRING},
    {"mapping", T_MAPPING},
    {"iterable", T_ITERABLE},
    {"sequence", T_SEQUENCE},
    {"number", T_NUMBER},
    {"integer", T_INTEGER},
    {"float", T_FLOAT},
    {"boolean", T_BOOLEAN},
    {"true", T_TRUE},
    {"false", T_FALSE},
    {"callable", T_CALLABLE},
    {"odd", T_ODD},
    {"even", T_EVEN},
    {"lower", T_LOWER},
    {"upper", T_UPPER},
    {"filter", T_FILTER},
    {"test", T_TEST},
    {"divisibleby", T_DIVISIBLE},
    {"eq", T_EQ},
    {"equalto", T_EQ},
    {"==", T_EQ},
    {"ne", T_NE},
    {"!=", T_NE},
    {"lt", T_LT},
    {"lessthan", T_LT},
    {"<", T_LT},
    {"le", T_LE},
    {"<=", T_LE},
    {"gt", T_GT},
    {"greaterthan", T_GT},
    {">", T_GT},
    {"ge", T_GE},
    {">=", T_GE},
    {"in", T_IN},
    {"sameas", T_SAME},
};

int km_jinja_find_test(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == bytes && memcmp(tests[i].name, name, bytes) == 0)
            return (int)i;
    return -1;
}

static bool is_iterable(const km_jv *v) {
    return v->kind == KM_JV_STRING || v->kind == KM_JV_LIST || v->kind == KM_JV_DICT ||
           v->kind == KM_JV_UNDEFINED || v->kind == KM_JV_LOOP;
}

static bool is_sequence(const km_jv *v) {
    return is_iterable(v) && !(v->kind == KM_JV_LIST && v->flavor > KM_JV_RANGE) &&
           v->kind != KM_JV_LOOP;
}

static bool plain(km_jrun *r, test_kind kind, const km_jv *v, bool *out) {
    km_jv text;
    int64_t i;
    switch (kind) {
    case T_DEFINED: *out = v->kind != KM_JV_UNDEFINED; return true;
    case T_UNDEFINED: *out = v->kind == KM_JV_UNDEFINED; return true;
    case T_NONE: *out = v->kind == KM_JV_NONE; return true;
    case T_STRING: *out = v->kind == KM_JV_STRING; return true;
    case T_MAPPING: *out = v->kind == KM_JV_DICT; return true;
    case T_ITERABLE: *out = is_iterable(v); return true;
    case T_SEQUENCE: *out = is_sequence(v); return true;
    case T_NUMBER: *out = km_jv_number(v); return true;
    case T_INTEGER: *out = v->kind == KM_JV_INT; return true;
    case T_FLOAT: *out = v->kind == KM_JV_FLOAT; return true;
    case T_BOOLEAN: *out = v->kind == KM_JV_BOOL; return true;
    case T_TRUE:
    case T_FALSE: *out = v->kind == KM_JV_BOOL && v->b == (kind == T_TRUE); return true;
    case T_CALLABLE:
        *out = v->kind == KM_JV_MACRO || v->kind == KM_JV_FUNCTION || v->kind == KM_JV_METHOD;
        return true;
    case T_ODD:
    case T_EVEN:
        if (v->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, v);
        if (!km_jv_as_int(v, &i))
            return km_jinja_fail(r, KM_ERR_FORMAT, "odd and even are said of integers");
        *out = (i % 2 != 0) == (kind == T_ODD);
        return true;
    case T_LOWER:
    case T_UPPER: {
        if (!km_jv_string(r, v, &text)) return false;
        km_jv_method m = {text, kind == T_LOWER ? "islower" : "isupper", 7};
        km_jv yes;
        if (!km_jinja_method(r, &m, &(km_jargs){0}, &yes)) return false;
        *out = yes.b;
        return true;
    }
    default: /* T_FILTER, T_TEST */
        if (v->kind != KM_JV_STRING)
            *out = false;
        else
            *out = (kind == T_FILTER ? km_jinja_find_filter(v->text, v->bytes)
                                     : km_jinja_find_test(v->text, v->bytes)) >= 0;
        return true;
    }
}

static bool same_object(const km_jv *a, const km_jv *b) {
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case KM_JV_NONE:
    case KM_JV_UNDEFINED: return true;
    case KM_JV_BOOL: return a->b == b->b;
    case KM_JV_STRING: return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
    case KM_JV_FLOAT: return a->f == b->f;
    default:
        return a->i == b->i && a->flavor == b->flavor; /* a number, or one pointer or another */
    }
}

static bool against(km_jrun *r, test_kind kind, const km_jv *v, const km_jv *to, bool *out) {
    int order;
    km_jv rest;
    switch (kind) {
    case T_EQ:
    case T_NE:
        if (!km_jv_equal(r, v, to, out)) return false;
        *out = *out == (kind == T_EQ);
        return true;
    case T_IN: return km_jv_contains(r, to, v, out);
    case T_SAME: *out = same_object(v, to); return true;
    case T_DIVISIBLE:
        if (!km_jinja_binary(r, '%', v, to, &rest)) return false;
        *out = !km_jv_true(&rest);
        return true;
    default:
        if (v->kind == KM_JV_UNDEFINED || to->kind == KM_JV_UNDEFINED)
            return km_jinja_undefined(r, v->kind == KM_JV_UNDEFINED ? v : to);
        if (!km_jv_order(r, v, to, &order)) return false;
        *out = kind == T_LT   ? order < 0
               : kind == T_LE ? order <= 0
               : kind == T_GT ? order > 0
                              : order >= 0;
        return true;
    }
}

bool km_jinja_test(km_jrun *r, int which, const km_jv *v, const km_jargs *a, bool *out) {
    test_kind kind = tests[which].kind;
    if (kind < T_DIVISIBLE) return plain(r, kind, v, out);
    if (a->n != 1)
        return km_jinja_fail(r, KM_ERR_FORMAT, "the test '%s' needs one value", tests[which].name);
    return against(r, kind, v, &a->values[0], out);
}

/* ---- Functions ---- */

static bool fn_raise(km_jrun *r, const km_jargs *a, km_jv *out) {
    km_jv text = km_jv_text("", 0);
    (void)out;
    if (a->n && !km_jv_string(r, &a->values[0], &text)) return false;
    return km_jinja_fail(r, KM_ERR_STATE, "the template refuses this conversation: %.*s",
                         text.bytes < 300 ? (int)text.bytes : 300, text.text);
}

static bool fn_strftime(km_jrun *r, const km_jargs *a, km_jv *out) {
    const km_jv *format = km_jarg(a, 0, "format");
    if (!format || format->kind != KM_JV_STRING || format->bytes > 200)
        return km_jinja_fail(r, KM_ERR_FORMAT, "strftime_now needs a format of at most 200 bytes");
    char pattern[204], text[1024];
    memcpy(pattern, format->text, format->bytes);
    pattern[format->bytes] = '.'; /* an empty result is then told from one that does not fit */
    pattern[format->bytes + 1] = 0;
    time_t now = (time_t)r->now;
    struct tm parts;
    size_t n = localtime_r(&now, &parts) ? strftime(text, sizeof text, pattern, &parts) : 0;
    if (!n) return km_jinja_fail(r, KM_ERR_RANGE, "strftime_now: the date is too long");
    return km_jv_copy_text(r, text, n - 1, out);
}

static bool fn_range(km_jrun *r, const km_jargs *a, km_jv *out) {
    int64_t v[3] = {0, 0, 1};
    if (a->n < 1 || a->n > 3)
        return km_jinja_fail(r, KM_ERR_FORMAT, "range takes one to three integers");
    for (size_t i = 0; i < a->n; i++) {
        if (a->values[i].kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, &a->values[i]);
        if (!km_jv_as_int(&a->values[i], &v[a->n == 1 ? 1 : i]))
            return km_jinja_fail(r, KM_ERR_FORMAT, "range takes integers, not a %s",
                                 km_jv_type(&a->values[i]));
    }
    if (v[2] == 0) return km_jinja_fail(r, KM_ERR_FORMAT, "range: the step is 0");
    if (!km_jv_new_list(r, KM_JV_RANGE, 0, out)) return false;
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (out->list->n >= 100000)
            return km_jinja_fail(r, KM_ERR_RANGE, "range: more than 100000 numbers");
        km_jv item = km_jv_int(i);
        if (!km_jv_push(r, out, &item)) return false;
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return true;
}

static bool fn_dict(km_jrun *r, const km_jargs *a, km_jv *out) {
    if (!km_jv_new_dict(r, 0, out)) return false;
    if (a->n > 1) return km_jinja_fail(r, KM_ERR_FORMAT, "one dict and names are taken");
    if (a->n && a->values[0].kind != KM_JV_DICT)
        return km_jinja_fail(r, KM_ERR_UNSUPPORTED, "a dict from a %s is not supported",
                             km_jv_type(&a->values[0]));
    for (size_t i = 0; a->n && i < a->values[0].dict->n; i++)
        if (!km_jv_put(r, out, &a->values[0].dict->keys[i], &a->values[0].dict->values[i]))
            return false;
    for (size_t i = 0; i < a->n_named; i++) {
        km_jv key = km_jv_text(a->names[i], a->name_bytes[i]);
        if (!km_jv_put(r, out, &key, &a->values[a->n + i])) return false;
    }
    return true;
}

static bool fn_namespace(km_jrun *r, const km_jargs *a, km_jv *out) {
    if (!fn_dict(r, a, out)) return false;
    out->kind = KM_JV_NAMESPACE;
    return true;
}

static const struct {
    const char *name;
    bool (*run)(km_jrun *r, const km_jargs *a, km_jv *out);
} functions[] = {
    {"raise_exception", fn_raise}, {"strftime_now", fn_strftime},
    {"range", fn_range},           {"dict", fn_dict},
    {"namespace", fn_namespace},
};

int km_jinja_find_function(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strlen(functions[i].name) == bytes && memcmp(functions[i].name, name, bytes) == 0)
            return (int)i;
    return -1;
}

bool km_jinja_function(km_jrun *r, int which, const km_jargs *a, km_jv *out) {
    return functions[which].run(r, a, out);
}
