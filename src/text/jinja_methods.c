/* Methods of strings, lists and dicts. Templates cannot change what they are given: of the methods
 * that change a value, only append to a list is here, since some templates build lists with it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "text/jinja_chars.h"
#include "text/jinja_eval.h"
#include <string.h>
#include <utf8proc.h>

typedef bool (*method_fn)(km_jrun *r, km_jv *self, const km_jargs *a, km_jv *out);
typedef struct method {
    const char *name;
    method_fn run;
    size_t most;       /* arguments by position */
    const char *names; /* of arguments */
} method;

/* An argument that must be a string; NULL with the error set when it is another thing. */
static const km_jv *text_arg(km_jrun *r, const km_jargs *a, size_t at, const char *name,
                             const char *what) {
    const km_jv *v = km_jarg(a, at, name);
    if (v && v->kind == KM_JV_STRING) return v;
    km_jinja_fail(r, KM_ERR_FORMAT, "%s needs a str, not %s", what, v ? km_jv_type(v) : "nothing");
    return NULL;
}

static bool int_arg(km_jrun *r, const km_jargs *a, size_t at, const char *name, int64_t otherwise,
                    int64_t *out) {
    const km_jv *v = km_jarg(a, at, name);
    *out = otherwise;
    if (!v || v->kind == KM_JV_NONE || km_jv_as_int(v, out)) return true;
    return km_jinja_fail(r, KM_ERR_FORMAT, "an integer is needed, not a %s", km_jv_type(v));
}

/* ---- Strings ---- */

static bool s_strip(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return km_jstr_strip(r, v, km_jarg(a, 0, "chars"), 3, out);
}
static bool s_lstrip(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return km_jstr_strip(r, v, km_jarg(a, 0, "chars"), 1, out);
}
static bool s_rstrip(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return km_jstr_strip(r, v, km_jarg(a, 0, "chars"), 2, out);
}
static bool s_lower(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return km_jstr_case(r, v, KM_JCASE_LOWER, out);
}
static bool s_upper(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return km_jstr_case(r, v, KM_JCASE_UPPER, out);
}
static bool s_title(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return km_jstr_case(r, v, KM_JCASE_TITLE, out);
}
static bool s_capitalize(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return km_jstr_case(r, v, KM_JCASE_CAPITAL, out);
}

static bool has_end(const km_jv *v, const km_jv *part, bool front) {
    return part->bytes <= v->bytes &&
           memcmp(v->text + (front ? 0 : v->bytes - part->bytes), part->text, part->bytes) == 0;
}

static bool ends(km_jrun *r, const km_jv *v, const km_jargs *a, bool front, km_jv *out) {
    const km_jv *part = km_jarg(a, 0, NULL);
    *out = km_jv_bool(false);
    if (part && part->kind == KM_JV_LIST && part->flavor == KM_JV_TUPLE) {
        for (size_t i = 0; i < part->list->n && !out->b; i++) {
            const km_jv *one = &part->list->items[i];
            *out = km_jv_bool(one->kind == KM_JV_STRING && has_end(v, one, front));
        }
        return true;
    }
    if (!(part = text_arg(r, a, 0, NULL, front ? "startswith" : "endswith"))) return false;
    *out = km_jv_bool(has_end(v, part, front));
    return true;
}
static bool s_startswith(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return ends(r, v, a, true, out);
}
static bool s_endswith(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return ends(r, v, a, false, out);
}

static bool without_end(km_jrun *r, const km_jv *v, const km_jargs *a, bool front, km_jv *out) {
    const km_jv *part = text_arg(r, a, 0, NULL, front ? "removeprefix" : "removesuffix");
    if (!part) return false;
    *out = *v;
    if (has_end(v, part, front))
        *out = km_jv_text(v->text + (front ? part->bytes : 0), v->bytes - part->bytes);
    return true;
}
static bool s_removeprefix(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return without_end(r, v, a, true, out);
}
static bool s_removesuffix(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return without_end(r, v, a, false, out);
}

static bool s_replace(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *old = text_arg(r, a, 0, NULL, "replace"),
                *with = old ? text_arg(r, a, 1, NULL, "replace") : NULL;
    int64_t count;
    return with && int_arg(r, a, 2, "count", -1, &count) &&
           km_jstr_replace(r, v, old, with, count, out);
}

static bool s_join(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *of = km_jarg(a, 0, NULL);
    km_jv list;
    if (!of) return km_jinja_fail(r, KM_ERR_FORMAT, "join needs a list");
    if (!km_jv_iterate(r, of, &list)) return false;
    size_t start = r->out->len;
    for (size_t i = 0; i < list.list->n; i++) {
        const km_jv *part = &list.list->items[i];
        if (part->kind != KM_JV_STRING)
            return km_jinja_fail(r, KM_ERR_FORMAT, "join needs strings, not a %s",
                                 km_jv_type(part));
        if ((i && !km_jv_write(r, v)) || !km_jv_write(r, part)) return false;
    }
    return km_jv_take(r, start, out);
}

/* ---- Splitting ---- */

static bool push_part(km_jrun *r, km_jv *list, const char *s, size_t n) {
    km_jv part = km_jv_text(s, n);
    return km_jv_push(r, list, &part);
}

/* By runs of space; those at the ends do not count. */
static bool split_space(km_jrun *r, const km_jv *v, int64_t most, km_jv *out) {
    size_t at = km_leading_space(v->text, v->bytes);
    while (at < v->bytes) {
        size_t end = at;
        if (most == 0) end = v->bytes; /* the rest as it is */
        while (most != 0 && end < v->bytes && !km_space_length(v->text + end, v->bytes - end))
            end += (size_t)km_utf8_length(v->text[end]);
        if (!push_part(r, out, v->text + at, end - at)) return false;
        at = end + km_leading_space(v->text + end, v->bytes - end);
        most -= most > 0;
    }
    return true;
}

/* The same from the end, for rsplit with a limit; parts come in reverse. */
static bool rsplit_space(km_jrun *r, const km_jv *v, int64_t most, km_jv *out) {
    size_t end = km_trim_end(v->text, v->bytes);
    while (end > 0) {
        size_t begin = end;
        if (most == 0) begin = 0;
        while (most != 0 && begin > 0) {
            size_t first = begin - 1;
            while (first > 0 && km_utf8_continues(v->text[first])) first--;
            if (km_space_length(v->text + first, begin - first)) break;
            begin = first;
        }
        if (begin == end) break;
        if (!push_part(r, out, v->text + begin, end - begin)) return false;
        end = most == 0 ? 0 : km_trim_end(v->text, begin);
        most -= most > 0;
    }
    return true;
}

static bool split_by(km_jrun *r, const km_jv *v, const km_jv *by, int64_t most, km_jv *out) {
    size_t at = 0;
    for (; most != 0; most -= most > 0) {
        const char *hit =
            at < v->bytes ? memmem(v->text + at, v->bytes - at, by->text, by->bytes) : NULL;
        if (!hit) break;
        if (!push_part(r, out, v->text + at, (size_t)(hit - v->text) - at)) return false;
        at = (size_t)(hit - v->text) + by->bytes;
    }
    return push_part(r, out, v->text + at, v->bytes - at);
}

/* Where `by` lies last in the first n bytes; n when it does not. */
static size_t find_last(const km_jv *v, size_t n, const km_jv *by) {
    for (size_t i = n >= by->bytes ? n - by->bytes + 1 : 0; i-- > 0;)
        if (memcmp(v->text + i, by->text, by->bytes) == 0) return i;
    return n;
}

static bool rsplit_by(km_jrun *r, const km_jv *v, const km_jv *by, int64_t most, km_jv *out) {
    size_t end = v->bytes;
    for (; most != 0; most -= most > 0) {
        size_t hit = find_last(v, end, by);
        if (hit == end) break;
        if (!push_part(r, out, v->text + hit + by->bytes, end - hit - by->bytes)) return false;
        end = hit;
    }
    return push_part(r, out, v->text, end);
}

static void reverse(km_jv_list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        km_jv other = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = other;
    }
}

static bool split(km_jrun *r, const km_jv *v, const km_jargs *a, bool from_end, km_jv *out) {
    const km_jv *by = km_jarg(a, 0, "sep");
    int64_t most;
    if (!int_arg(r, a, 1, "maxsplit", -1, &most) || !km_jv_new_list(r, KM_JV_PLAIN, 0, out) ||
        !km_jinja_step(r, v->bytes))
        return false;
    if (by && by->kind == KM_JV_NONE) by = NULL;
    if (by && (by->kind != KM_JV_STRING || by->bytes == 0))
        return km_jinja_fail(r, KM_ERR_FORMAT, "split needs a str that is not empty");
    if (!from_end || most < 0)
        return by ? split_by(r, v, by, most, out) : split_space(r, v, most, out);
    if (!(by ? rsplit_by(r, v, by, most, out) : rsplit_space(r, v, most, out))) return false;
    reverse(out->list);
    return true;
}
static bool s_split(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return split(r, v, a, false, out);
}
static bool s_rsplit(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return split(r, v, a, true, out);
}
static bool s_splitlines(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return km_jstr_lines(r, v, out);
}

static bool partition(km_jrun *r, const km_jv *v, const km_jargs *a, bool last, km_jv *out) {
    const km_jv *by = text_arg(r, a, 0, NULL, "partition");
    if (!by || !km_jv_new_list(r, KM_JV_TUPLE, 3, out)) return false;
    if (by->bytes == 0)
        return km_jinja_fail(r, KM_ERR_FORMAT, "partition needs a str that is not empty");
    const char *hit = v->bytes ? memmem(v->text, v->bytes, by->text, by->bytes) : NULL;
    size_t at = hit ? (size_t)(hit - v->text) : v->bytes;
    if (hit && last) at = find_last(v, v->bytes, by);
    size_t skip = hit ? by->bytes : 0, rest = v->bytes - at - skip;
    if (!hit && last)
        return push_part(r, out, "", 0) && push_part(r, out, "", 0) &&
               push_part(r, out, v->text, v->bytes);
    return push_part(r, out, v->text, at) && push_part(r, out, v->text + at, skip) &&
           push_part(r, out, v->text + at + skip, rest);
}
static bool s_partition(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return partition(r, v, a, false, out);
}
static bool s_rpartition(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    return partition(r, v, a, true, out);
}

/* ---- Asking about strings ---- */

static bool find(km_jrun *r, const km_jv *v, const km_jargs *a, bool last, int64_t *at) {
    const km_jv *part = text_arg(r, a, 0, NULL, "find");
    if (!part || !km_jinja_step(r, v->bytes)) return false;
    const char *hit = part->bytes == 0 ? v->text
                      : v->bytes       ? memmem(v->text, v->bytes, part->text, part->bytes)
                                       : NULL;
    *at = -1;
    if (!hit) return true;
    size_t byte = last ? find_last(v, v->bytes, part) : (size_t)(hit - v->text);
    km_jv before = km_jv_text(v->text, byte);
    return km_jv_length(r, &before, at);
}
static bool s_find(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    *out = km_jv_int(-1);
    return find(r, v, a, false, &out->i);
}
static bool s_rfind(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    *out = km_jv_int(-1);
    return find(r, v, a, true, &out->i);
}
static bool s_index(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    if (!s_find(r, v, a, out)) return false;
    return out->i >= 0 || km_jinja_fail(r, KM_ERR_FORMAT, "index: the text is not there");
}
static bool s_count(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *part = text_arg(r, a, 0, NULL, "count");
    if (!part) return false;
    *out = km_jv_int(0);
    if (part->bytes == 0) return km_jv_length(r, v, &out->i) && ++out->i;
    for (size_t at = 0; at < v->bytes; out->i++) {
        const char *hit = memmem(v->text + at, v->bytes - at, part->text, part->bytes);
        if (!hit) break;
        at = (size_t)(hit - v->text) + part->bytes;
    }
    return km_jinja_step(r, v->bytes);
}

/* Whether the text has characters and all are of some kind; of letters, only those with case. */
typedef enum letter_kind { DIGIT, ALPHA, ALNUM, SPACE, UPPER, LOWER } letter_kind;
static bool all_are(km_jrun *r, const km_jv *v, letter_kind want, km_jv *out) {
    bool all = v->bytes > 0, any = false;
    for (size_t i = 0; all && i < v->bytes; i += (size_t)km_utf8_length(v->text[i])) {
        uint32_t cp = 0;
        km_utf8_read(v->text + i, v->bytes - i, &cp);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
        bool number = c == UTF8PROC_CATEGORY_ND;
        switch (want) {
        case DIGIT: all = number; break;
        case ALPHA: all = letter; break;
        case ALNUM:
            all = letter || number || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
            break;
        case SPACE: all = km_is_space(cp); break;
        case UPPER:
        case LOWER:
            any = any || c == (want == UPPER ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
            all = c != (want == UPPER ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) &&
                  c != UTF8PROC_CATEGORY_LT;
            break;
        }
    }
    *out = km_jv_bool(all && (want < UPPER || any));
    return km_jinja_step(r, v->bytes);
}
#define ASK(name, want)                                                                            \
    static bool name(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {                        \
        (void)a;                                                                                   \
        return all_are(r, v, want, out);                                                           \
    }
ASK(s_isdigit, DIGIT)
ASK(s_isalpha, ALPHA)
ASK(s_isalnum, ALNUM)
ASK(s_isspace, SPACE)
ASK(s_isupper, UPPER)
ASK(s_islower, LOWER)

/* {} {0} {name}, {{ and }}; what may follow a colon is not here. */
static bool s_format(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    size_t start = r->out->len, next = 0;
    for (size_t i = 0; i < v->bytes; i++) {
        char c = v->text[i];
        bool twice = i + 1 < v->bytes && v->text[i + 1] == c;
        if ((c != '{' && c != '}') || twice) {
            km_text_put(r->out, v->text + i, 1);
            i += twice && (c == '{' || c == '}');
            continue;
        }
        const char *close = c == '{' ? memchr(v->text + i, '}', v->bytes - i) : NULL;
        if (!close) return km_jinja_fail(r, KM_ERR_FORMAT, "format: a brace that fits no other");
        const char *name = v->text + i + 1;
        size_t n = (size_t)(close - name), at = 0, k = 0;
        while (k < n && k < 6 && name[k] >= '0' && name[k] <= '9')
            at = at * 10 + (size_t)(name[k++] - '0');
        const km_jv *arg = NULL;
        if (n == 0)
            arg = km_jarg(a, next++, NULL);
        else if (k == n)
            arg = km_jarg(a, at, NULL);
        for (size_t j = 0; k < n && !arg && j < a->n_named; j++)
            if (a->name_bytes[j] == n && memcmp(a->names[j], name, n) == 0)
                arg = &a->values[a->n + j];
        if (!arg)
            return km_jinja_fail(r, KM_ERR_UNSUPPORTED,
                                 "format: '{%.*s}' has no value or is not supported",
                                 n < 40 ? (int)n : 40, name);
        if (!km_jv_write(r, arg)) return false;
        i += n + 1;
    }
    return km_jv_take(r, start, out);
}

static bool s_zfill(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    int64_t width, n;
    if (!int_arg(r, a, 0, NULL, 0, &width) || !km_jv_length(r, v, &n)) return false;
    if (width > 1000) return km_jinja_fail(r, KM_ERR_RANGE, "zfill: the width is above 1000");
    size_t start = r->out->len, sign = v->bytes && (v->text[0] == '-' || v->text[0] == '+');
    km_text_put(r->out, v->text, sign);
    for (; n < width; n++) km_text_put(r->out, "0", 1);
    km_text_put(r->out, v->text + sign, v->bytes - sign);
    return km_jv_take(r, start, out);
}

static const method of_strings[] = {
    {"strip", s_strip, 1, "chars"},
    {"lstrip", s_lstrip, 1, "chars"},
    {"rstrip", s_rstrip, 1, "chars"},
    {"split", s_split, 2, "sep maxsplit"},
    {"rsplit", s_rsplit, 2, "sep maxsplit"},
    {"splitlines", s_splitlines, 0, ""},
    {"startswith", s_startswith, 1, ""},
    {"endswith", s_endswith, 1, ""},
    {"removeprefix", s_removeprefix, 1, ""},
    {"removesuffix", s_removesuffix, 1, ""},
    {"replace", s_replace, 3, "count"},
    {"upper", s_upper, 0, ""},
    {"lower", s_lower, 0, ""},
    {"casefold", s_lower, 0, ""},
    {"title", s_title, 0, ""},
    {"capitalize", s_capitalize, 0, ""},
    {"join", s_join, 1, ""},
    {"format", s_format, 100, NULL},
    {"find", s_find, 1, ""},
    {"rfind", s_rfind, 1, ""},
    {"index", s_index, 1, ""},
    {"count", s_count, 1, ""},
    {"partition", s_partition, 1, ""},
    {"rpartition", s_rpartition, 1, ""},
    {"isdigit", s_isdigit, 0, ""},
    {"isnumeric", s_isdigit, 0, ""},
    {"isdecimal", s_isdigit, 0, ""},
    {"isalpha", s_isalpha, 0, ""},
    {"isalnum", s_isalnum, 0, ""},
    {"isspace", s_isspace, 0, ""},
    {"isupper", s_isupper, 0, ""},
    {"islower", s_islower, 0, ""},
    {"zfill", s_zfill, 1, ""},
};

/* ---- Lists and dicts ---- */

static bool l_append(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *item = km_jarg(a, 0, NULL);
    if (!item) return km_jinja_fail(r, KM_ERR_FORMAT, "append needs a value");
    if (v->flavor != KM_JV_PLAIN)
        return km_jinja_fail(r, KM_ERR_FORMAT, "a %s has no append", km_jv_type(v));
    *out = km_jv_none();
    return km_jv_push(r, v, item);
}

static bool l_count(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *item = km_jarg(a, 0, NULL);
    if (!item) return km_jinja_fail(r, KM_ERR_FORMAT, "count needs a value");
    *out = km_jv_int(0);
    for (size_t i = 0; i < v->list->n; i++) {
        bool equal;
        if (!km_jv_equal(r, &v->list->items[i], item, &equal)) return false;
        out->i += equal;
    }
    return true;
}

static bool l_index(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *item = km_jarg(a, 0, NULL);
    if (!item) return km_jinja_fail(r, KM_ERR_FORMAT, "index needs a value");
    for (size_t i = 0; i < v->list->n; i++) {
        bool equal;
        if (!km_jv_equal(r, &v->list->items[i], item, &equal)) return false;
        *out = km_jv_int((int64_t)i);
        if (equal) return true;
    }
    return km_jinja_fail(r, KM_ERR_FORMAT, "index: the value is not in the list");
}

static bool l_copy(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (!km_jv_new_list(r, v->flavor, v->list->n, out)) return false;
    for (size_t i = 0; i < v->list->n; i++)
        if (!km_jv_push(r, out, &v->list->items[i])) return false;
    return true;
}

static const method of_lists[] = {
    {"append", l_append, 1, ""},
    {"count", l_count, 1, ""},
    {"index", l_index, 1, ""},
    {"copy", l_copy, 0, ""},
};

static bool view(km_jrun *r, const km_jv *v, km_jv_flavor flavor, km_jv *out) {
    const km_jv_dict *d = v->dict;
    if (!km_jv_new_list(r, flavor, d->n, out)) return false;
    for (size_t i = 0; i < d->n; i++) {
        km_jv item = flavor == KM_JV_KEYS ? d->keys[i] : d->values[i];
        if (flavor == KM_JV_ITEMS) {
            km_jv pair;
            if (!km_jv_new_list(r, KM_JV_TUPLE, 2, &pair) || !km_jv_push(r, &pair, &d->keys[i]) ||
                !km_jv_push(r, &pair, &item))
                return false;
            item = pair;
        }
        if (!km_jv_push(r, out, &item)) return false;
    }
    return true;
}
static bool d_items(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return view(r, v, KM_JV_ITEMS, out);
}
static bool d_keys(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return view(r, v, KM_JV_KEYS, out);
}
static bool d_values(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    return view(r, v, KM_JV_VALUES, out);
}
static bool d_get(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    const km_jv *key = km_jarg(a, 0, NULL), *otherwise = km_jarg(a, 1, NULL);
    if (!key) return km_jinja_fail(r, KM_ERR_FORMAT, "get needs a key");
    const km_jv *found = km_jv_get(r, v, key);
    *out = found ? *found : otherwise ? *otherwise : km_jv_none();
    return km_jinja_step(r, v->dict->n);
}
static bool d_copy(km_jrun *r, km_jv *v, const km_jargs *a, km_jv *out) {
    (void)a;
    if (!km_jv_new_dict(r, v->dict->n, out)) return false;
    for (size_t i = 0; i < v->dict->n; i++)
        if (!km_jv_put(r, out, &v->dict->keys[i], &v->dict->values[i])) return false;
    return true;
}

static const method of_dicts[] = {
    {"items", d_items, 0, ""}, {"keys", d_keys, 0, ""}, {"values", d_values, 0, ""},
    {"get", d_get, 2, ""},     {"copy", d_copy, 0, ""},
};

/* Names that Python has and we refuse: a dict's key of that name is still read as d['name']. */
static const method of_loops[] = {{"cycle", NULL, 0, NULL}, {"changed", NULL, 0, NULL}};
static const char *const refused_dict[] = {"pop",        "popitem", "update",
                                           "setdefault", "clear",   "fromkeys"};
static const char *const refused_list[] = {"extend",  "insert", "pop",  "remove",
                                           "reverse", "sort",   "clear"};

#define COUNT(x) (sizeof(x) / sizeof *(x))

static const method *find_method(const km_jv *v, const char *name, size_t bytes) {
    const method *table = NULL;
    size_t n = 0;
    if (v->kind == KM_JV_STRING) table = of_strings, n = COUNT(of_strings);
    if (v->kind == KM_JV_LIST) table = of_lists, n = COUNT(of_lists);
    if (v->kind == KM_JV_DICT) table = of_dicts, n = COUNT(of_dicts);
    if (v->kind == KM_JV_LOOP) table = of_loops, n = COUNT(of_loops);
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == bytes && memcmp(table[i].name, name, bytes) == 0)
            return &table[i];
    return NULL;
}

static bool refused(const km_jv *v, const char *name, size_t bytes) {
    const char *const *names = v->kind == KM_JV_DICT ? refused_dict : refused_list;
    size_t n = v->kind == KM_JV_DICT ? COUNT(refused_dict) : COUNT(refused_list);
    for (size_t i = 0; (v->kind == KM_JV_DICT || v->kind == KM_JV_LIST) && i < n; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], name, bytes) == 0) return true;
    return false;
}

bool km_jinja_has_method(const km_jv *v, const char *name, size_t bytes) {
    return find_method(v, name, bytes) || refused(v, name, bytes);
}

bool km_jinja_method(km_jrun *r, const km_jv_method *m, const km_jargs *a, km_jv *out) {
    const method *found = find_method(&m->self, m->name, m->bytes);
    if (!found)
        return km_jinja_fail(r, KM_ERR_UNSUPPORTED,
                             "the method %s.%.*s is not supported: templates change no values",
                             km_jv_type(&m->self), (int)m->bytes, m->name);
    if (found->names && !km_jargs_check(r, found->name, a, found->most, found->names)) return false;
    km_jv self = m->self;
    return found->run(r, &self, a, out);
}
