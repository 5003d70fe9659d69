/* Operators, attributes, items and slices of values. */
#include "text/jinja_eval.h"
#include "base/utf8.h"
#include <math.h>
#include <string.h>

/* ---- Arithmetic ---- */

static bool too_large(km_jrun *r) {
    return km_jinja_fail(r, KM_ERR_RANGE, "an integer does not fit in 64 bits");
}

static bool power(km_jrun *r, int64_t base, int64_t exponent, km_jv *out) {
    if (exponent < 0) {
        if (!base) return km_jinja_fail(r, KM_ERR_FORMAT, "division by zero");
        *out = km_jv_float(pow((double)base, (double)exponent));
        return true;
    }
    int64_t result = 1;
    if (base >= -1 && base <= 1) exponent = base == -1 ? exponent % 2 : exponent > 0;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result)) return too_large(r);
    *out = km_jv_int(result);
    return true;
}

static bool integers(km_jrun *r, char op, int64_t a, int64_t b, km_jv *out) {
    int64_t result = 0;
    bool over = false;
    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &result); break;
    case '-': over = __builtin_sub_overflow(a, b, &result); break;
    case '*': over = __builtin_mul_overflow(a, b, &result); break;
    case '^': return power(r, a, b, out);
    default:
        if (b == 0) return km_jinja_fail(r, KM_ERR_FORMAT, "division by zero");
        if (op == '/') {
            *out = km_jv_float((double)a / (double)b);
            return true;
        }
        if (b == -1) { /* INT64_MIN / -1 does not exist */
            over = op == 'f' && __builtin_sub_overflow(0, a, &result);
            break;
        }
        result = op == 'f' ? a / b : a % b; /* Python rounds down, so remainders have b's sign */
        if (a % b != 0 && (a < 0) != (b < 0)) result += op == 'f' ? -1 : b;
    }
    if (over) return too_large(r);
    *out = km_jv_int(result);
    return true;
}

static bool reals(km_jrun *r, char op, double a, double b, km_jv *out) {
    if (b == 0 && (op == '/' || op == 'f' || op == '%'))
        return km_jinja_fail(r, KM_ERR_FORMAT, "division by zero");
    double rest = op == '%' || op == 'f' ? fmod(a, b) : 0;
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    double v = op == '+'   ? a + b
               : op == '-' ? a - b
               : op == '*' ? a * b
               : op == '/' ? a / b
               : op == 'f' ? round((a - rest) / b)
               : op == '%' ? rest
                           : pow(a, b);
    *out = km_jv_float(v);
    return true;
}

static bool join_strings(km_jrun *r, const km_jv *a, const km_jv *b, km_jv *out) {
    km_jv left = *a, right = *b;
    bool safe = a->flavor == KM_JV_SAFE || b->flavor == KM_JV_SAFE;
    if (safe && (!km_jstr_escape(r, a, &left) || !km_jstr_escape(r, b, &right))) return false;
    if (!km_jinja_step(r, left.bytes + right.bytes)) return false;
    char *text = km_jinja_alloc(r, left.bytes + right.bytes + 1);
    if (!text) return false;
    if (left.bytes) memcpy(text, left.text, left.bytes);
    if (right.bytes) memcpy(text + left.bytes, right.text, right.bytes);
    *out = km_jv_text(text, left.bytes + right.bytes);
    if (safe) out->flavor = KM_JV_SAFE;
    return true;
}

static bool repeat(km_jrun *r, const km_jv *v, int64_t times, km_jv *out) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (v->kind == KM_JV_STRING) {
        if (v->bytes && n > r->memory / v->bytes)
            return km_jinja_fail(r, KM_ERR_RANGE, "a string repeated %zu times is too long", n);
        if (!km_jinja_step(r, n * v->bytes)) return false;
        char *text = km_jinja_alloc(r, n * v->bytes + 1);
        if (!text) return false;
        for (size_t i = 0; v->bytes && i < n; i++) memcpy(text + i * v->bytes, v->text, v->bytes);
        *out = km_jv_text(text, n * v->bytes);
        return true;
    }
    if (!km_jv_new_list(r, v->flavor, 0, out)) return false;
    for (size_t i = 0; v->list->n && i < n; i++)
        for (size_t k = 0; k < v->list->n; k++)
            if (!km_jv_push(r, out, &v->list->items[k])) return false;
    return true;
}

static bool is_sequence(const km_jv *v) {
    return v->kind == KM_JV_STRING || (v->kind == KM_JV_LIST && v->flavor <= KM_JV_TUPLE);
}

bool km_jinja_binary(km_jrun *r, char op, const km_jv *a, const km_jv *b, km_jv *out) {
    if (a->kind == KM_JV_STRING && b->kind == KM_JV_STRING && op == '+')
        return join_strings(r, a, b, out);
    if (a->kind == KM_JV_STRING && op == '%') return km_jstr_percent(r, a, b, out);
    if (a->kind == KM_JV_UNDEFINED || b->kind == KM_JV_UNDEFINED)
        return km_jinja_undefined(r, a->kind == KM_JV_UNDEFINED ? a : b);
    int64_t i, j;
    if (km_jv_as_int(a, &i) && km_jv_as_int(b, &j)) return integers(r, op, i, j, out);
    if (km_jv_number(a) && km_jv_number(b))
        return reals(r, op, km_jv_as_double(a), km_jv_as_double(b), out);
    if (op == '*' && is_sequence(a) && km_jv_as_int(b, &j)) return repeat(r, a, j, out);
    if (op == '*' && is_sequence(b) && km_jv_as_int(a, &i)) return repeat(r, b, i, out);
    if (op == '+' && a->kind == KM_JV_LIST && b->kind == KM_JV_LIST && a->flavor == b->flavor &&
        a->flavor <= KM_JV_TUPLE) {
        if (!km_jv_new_list(r, a->flavor, a->list->n + b->list->n, out)) return false;
        for (size_t k = 0; k < a->list->n + b->list->n; k++)
            if (!km_jv_push(r, out,
                            k < a->list->n ? &a->list->items[k] : &b->list->items[k - a->list->n]))
                return false;
        return true;
    }
    static const char *const names[] = {['+'] = "+",  ['-'] = "-", ['*'] = "*", ['/'] = "/",
                                        ['f'] = "//", ['%'] = "%", ['^'] = "**"};
    return km_jinja_fail(r, KM_ERR_FORMAT, "%s %s %s is not possible", km_jv_type(a),
                         names[(unsigned char)op], km_jv_type(b));
}

/* ---- Attributes and items ---- */

static bool missing(km_jrun *r, const km_jv *of, const char *name, size_t bytes, km_jv *out) {
    size_t start = r->out->len;
    km_text_printf(r->out, "%s.%.*s", km_jv_type(of), bytes < 100 ? (int)bytes : 100, name);
    if (!km_jv_take(r, start, out)) return false;
    out->kind = KM_JV_UNDEFINED;
    return true;
}

static bool loop_attribute(km_jrun *r, const km_jv *v, const char *name, size_t bytes, km_jv *out) {
    static const char *const names[] = {"index",  "index0",   "revindex", "revindex0",
                                        "first",  "last",     "length",   "depth",
                                        "depth0", "previtem", "nextitem"};
    const km_jv_loop *loop = v->loop;
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->items->n;
    size_t which = 0;
    while (which < sizeof names / sizeof *names &&
           (strlen(names[which]) != bytes || memcmp(names[which], name, bytes) != 0))
        which++;
    const km_jv numbers[] = {km_jv_int(at + 1),     km_jv_int(at),       km_jv_int(n - at),
                             km_jv_int(n - at - 1), km_jv_bool(at == 0), km_jv_bool(at == n - 1),
                             km_jv_int(n),          km_jv_int(1),        km_jv_int(0)};
    if (which < 9)
        *out = numbers[which];
    else if (which == 9 && at > 0)
        *out = loop->items->items[at - 1];
    else if (which == 10 && at < n - 1)
        *out = loop->items->items[at + 1];
    else
        return missing(r, v, name, bytes, out);
    return true;
}

bool km_jinja_attribute(km_jrun *r, const km_jv *of, const char *name, size_t bytes, km_jv *out) {
    if (of->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, of);
    if (km_jinja_has_method(of, name, bytes)) {
        km_jv_method *m = km_jinja_alloc(r, sizeof *m);
        if (!m) return false;
        *m = (km_jv_method){*of, name, bytes};
        *out = (km_jv){.kind = KM_JV_METHOD, .method = m};
        return true;
    }
    if (of->kind == KM_JV_LOOP) return loop_attribute(r, of, name, bytes, out);
    if (of->kind == KM_JV_DICT || of->kind == KM_JV_NAMESPACE) {
        const km_jv *v = km_jv_find(of, name, bytes);
        if (!km_jinja_step(r, of->dict->n)) return false;
        if (v) {
            *out = *v;
            return true;
        }
    }
    if (of->kind == KM_JV_MACRO && bytes == 4 && memcmp(name, "name", 4) == 0) {
        *out = km_jv_text(of->macro->node->text, of->macro->node->bytes);
        return true;
    }
    return missing(r, of, name, bytes, out);
}

/* The byte where character i of a valid text begins. */
static size_t byte_of(const km_jv *v, int64_t i) {
    size_t at = 0;
    for (; i > 0 && at < v->bytes; i--) at += (size_t)km_utf8_length(v->text[at]);
    return at;
}

bool km_jinja_item(km_jrun *r, const km_jv *of, const km_jv *key, km_jv *out) {
    if (of->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, of);
    int64_t i;
    if (of->kind == KM_JV_DICT) {
        const km_jv *v = km_jv_get(r, of, key);
        if (!km_jinja_step(r, of->dict->n)) return false;
        if (v) {
            *out = *v;
            return true;
        }
    } else if (km_jv_as_int(key, &i) && (of->kind == KM_JV_STRING || of->kind == KM_JV_LIST)) {
        int64_t n;
        if (of->kind == KM_JV_LIST && of->flavor > KM_JV_RANGE)
            return km_jinja_fail(r, KM_ERR_FORMAT, "a %s has no items by number", km_jv_type(of));
        if (!km_jv_length(r, of, &n)) return false;
        if (i < 0) i += n;
        if (i >= 0 && i < n && of->kind == KM_JV_LIST) {
            *out = of->list->items[i];
            return true;
        }
        if (i >= 0 && i < n) {
            size_t at = byte_of(of, i);
            *out = km_jv_text(of->text + at, (size_t)km_utf8_length(of->text[at]));
            return true;
        }
    }
    if (key->kind == KM_JV_STRING) return km_jinja_attribute(r, of, key->text, key->bytes, out);
    km_jv shown;
    return km_jv_string(r, key, &shown) && missing(r, of, shown.text, shown.bytes, out);
}

/* A bound of a slice, as Python clips it: into 0..n, or -1..n-1 where steps go back. */
static bool bound(km_jrun *r, const km_jv *v, int64_t n, bool back, int64_t missing_value,
                  int64_t *out) {
    *out = missing_value;
    if (!v || v->kind == KM_JV_NONE) return true;
    if (!km_jv_as_int(v, out))
        return km_jinja_fail(r, KM_ERR_FORMAT, "a slice needs integers, not a %s", km_jv_type(v));
    if (*out < 0) *out = *out < -n ? -1 : *out + n;
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    *out = *out < low ? low : *out > high ? high : *out;
    return true;
}

bool km_jinja_slice(km_jrun *r, const km_jv *of, const km_jv *start, const km_jv *stop,
                    const km_jv *step, km_jv *out) {
    if (of->kind == KM_JV_UNDEFINED) return km_jinja_undefined(r, of);
    if (of->kind != KM_JV_STRING && (of->kind != KM_JV_LIST || of->flavor > KM_JV_RANGE))
        return km_jinja_fail(r, KM_ERR_FORMAT, "a %s has no slices", km_jv_type(of));
    int64_t n, by = 1, first, last;
    if (!km_jv_length(r, of, &n)) return false;
    if (step && step->kind != KM_JV_NONE && (!km_jv_as_int(step, &by) || by == 0))
        return km_jinja_fail(r, KM_ERR_FORMAT, "the step of a slice is an integer, and not 0");
    bool back = by < 0;
    if (!bound(r, start, n, back, back ? n - 1 : 0, &first) ||
        !bound(r, stop, n, back, back ? -1 : n, &last))
        return false;
    if (of->kind == KM_JV_STRING && by == 1) {
        size_t begin = byte_of(of, first), end = last > first ? byte_of(of, last) : begin;
        *out = km_jv_text(of->text + begin, end - begin);
        return true;
    }
    km_jv chars = *of;
    if (of->kind == KM_JV_STRING && !km_jv_iterate(r, of, &chars)) return false;
    km_jv list;
    if (!km_jv_new_list(
            r, of->kind == KM_JV_LIST && of->flavor == KM_JV_TUPLE ? KM_JV_TUPLE : KM_JV_PLAIN, 0,
            &list))
        return false;
    for (int64_t i = first; back ? i > last : i < last;) {
        if (!km_jv_push(r, &list, &chars.list->items[i])) return false;
        if (__builtin_add_overflow(i, by, &i)) break;
    }
    *out = list;
    if (of->kind == KM_JV_LIST) return true;
    size_t begin = r->out->len;
    for (size_t i = 0; i < list.list->n; i++)
        km_text_put(r->out, list.list->items[i].text, list.list->items[i].bytes);
    return km_jv_take(r, begin, out);
}
