/* What templates do with strings, as Python does it: by characters, not bytes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "text/jinja_chars.h"
#include "text/jinja_eval.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

static bool cased(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static void put_case(km_text *out, uint32_t cp, bool upper) {
    char buf[4];
    if (upper && cp == 0xdf) { /* the one letter of common texts that becomes two */
        km_text_add(out, "SS");
        return;
    }
    utf8proc_int32_t to =
        upper ? utf8proc_toupper((utf8proc_int32_t)cp) : utf8proc_tolower((utf8proc_int32_t)cp);
    km_text_put(out, buf, (size_t)km_utf8_write(buf, (uint32_t)to));
}

bool km_jstr_case(km_jrun *r, const km_jv *v, km_jcase how, km_jv *out) {
    size_t start = r->out->len;
    bool inside = false; /* of a word */
    if (!km_jinja_step(r, v->bytes * 4)) return false;
    for (size_t i = 0; i < v->bytes;) {
        uint32_t cp = 0;
        int n = km_utf8_read(v->text + i, v->bytes - i, &cp);
        bool upper = how == KM_JCASE_UPPER || (how >= KM_JCASE_CAPITAL && !inside);
        put_case(r->out, cp, upper);
        if (how == KM_JCASE_TITLE)
            inside = cased(cp);
        else if (how == KM_JCASE_WORDS)
            inside = !(km_is_space(cp) || (cp < 128 && cp && strchr("-({[<", (int)cp)));
        else
            inside = true;
        i += n > 0 ? (size_t)n : 1;
    }
    return km_jv_take(r, start, out);
}

static bool in_set(const km_jv *chars, const char *c, size_t n) {
    for (size_t i = 0; i < chars->bytes;) {
        size_t length = (size_t)km_utf8_length(chars->text[i]);
        if (length == n && memcmp(chars->text + i, c, n) == 0) return true;
        i += length;
    }
    return false;
}

bool km_jstr_strip(km_jrun *r, const km_jv *v, const km_jv *chars, int sides, km_jv *out) {
    size_t begin = 0, end = v->bytes;
    if (chars && chars->kind == KM_JV_NONE) chars = NULL;
    if (chars && chars->kind != KM_JV_STRING)
        return km_jinja_fail(r, KM_ERR_FORMAT, "what to strip is a str, not a %s",
                             km_jv_type(chars));
    if (!km_jinja_step(r, v->bytes)) return false;
    if (!chars) {
        if (sides & 1) begin = km_leading_space(v->text, end);
        if (sides & 2) end = begin + km_trim_end(v->text + begin, end - begin);
    }
    while (chars && (sides & 1) && begin < end) {
        size_t n = (size_t)km_utf8_length(v->text[begin]);
        if (!in_set(chars, v->text + begin, n)) break;
        begin += n;
    }
    while (chars && (sides & 2) && begin < end) {
        size_t first = end - 1;
        while (first > begin && km_utf8_continues(v->text[first])) first--;
        if (!in_set(chars, v->text + first, end - first)) break;
        end = first;
    }
    *out = km_jv_text(v->text + begin, end - begin);
    return true;
}

bool km_jstr_replace(km_jrun *r, const km_jv *v, const km_jv *old, const km_jv *with, int64_t count,
                     km_jv *out) {
    size_t start = r->out->len, at = 0;
    if (!km_jinja_step(r, v->bytes)) return false;
    while (count != 0) {
        const char *hit = NULL;
        if (old->bytes == 0)
            hit = v->text + at;
        else if (at < v->bytes)
            hit = memmem(v->text + at, v->bytes - at, old->text, old->bytes);
        if (!hit) break;
        size_t to = (size_t)(hit - v->text);
        if (!km_jinja_step(r, to - at + with->bytes)) return false;
        km_text_put(r->out, v->text + at, to - at);
        km_text_put(r->out, with->text, with->bytes);
        at = to + old->bytes;
        count -= count > 0;
        if (old->bytes == 0) { /* nothing is found before every character and at the end */
            if (at >= v->bytes) break;
            size_t n = (size_t)km_utf8_length(v->text[at]);
            km_text_put(r->out, v->text + at, n);
            at += n;
        }
    }
    if (at < v->bytes) km_text_put(r->out, v->text + at, v->bytes - at);
    return km_jv_take(r, start, out);
}

/* The bytes of the line break at s; 0 when it is none. */
static size_t break_length(const char *s, size_t n) {
    uint32_t cp;
    int length = km_utf8_read(s, n, &cp);
    if (!length) return 0;
    if (cp == '\r' && n > 1 && s[1] == '\n') return 2;
    bool is = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
              cp == 0x2029;
    return is ? (size_t)length : 0;
}

bool km_jstr_lines(km_jrun *r, const km_jv *v, km_jv *list) {
    if (!km_jv_new_list(r, KM_JV_PLAIN, 0, list) || !km_jinja_step(r, v->bytes)) return false;
    for (size_t at = 0; at < v->bytes;) {
        size_t end = at, n = 0;
        while (end < v->bytes && !(n = break_length(v->text + end, v->bytes - end)))
            end += (size_t)km_utf8_length(v->text[end]);
        km_jv line = km_jv_text(v->text + at, end - at);
        if (!km_jv_push(r, list, &line)) return false;
        at = end + n;
    }
    return true;
}

bool km_jstr_escape(km_jrun *r, const km_jv *v, km_jv *out) {
    *out = *v;
    if (v->flavor == KM_JV_SAFE) return true;
    size_t start = r->out->len;
    for (size_t i = 0; i < v->bytes; i++) {
        static const char from[] = "&<>'\"";
        static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
        const char *c = v->text[i] ? strchr(from, v->text[i]) : NULL;
        if (c)
            km_text_add(r->out, to[c - from]);
        else
            km_text_put(r->out, v->text + i, 1);
    }
    if (!km_jv_take(r, start, out)) return false;
    out->flavor = KM_JV_SAFE;
    return true;
}

/* One value by a directive of printf: flags, width and precision are between % and the letter. */
static bool directive(km_jrun *r, const char *spec, size_t n, char letter, const km_jv *v) {
    char format[32], text[400];
    int64_t i = 0;
    if (n > 16) return km_jinja_fail(r, KM_ERR_FORMAT, "a format's directive is too long");
    for (size_t k = 0, run = 0; k < n; k++) {
        run = spec[k] >= '0' && spec[k] <= '9' ? run + 1 : 0;
        if (run > 2 || !strchr("0123456789.-+ #", spec[k]))
            return km_jinja_fail(r, KM_ERR_UNSUPPORTED, "the format '%%%.*s%c' is not supported",
                                 (int)n, spec, letter);
    }
    if (letter == 's' || letter == 'r') {
        if (n)
            return km_jinja_fail(r, KM_ERR_UNSUPPORTED, "a width for %%%c is not supported",
                                 letter);
        return letter == 's' ? km_jv_write(r, v) : km_jv_write_repr(r, v);
    }
    if (!km_jv_number(v))
        return km_jinja_fail(r, KM_ERR_FORMAT, "%%%c needs a number, not a %s", letter,
                             km_jv_type(v));
    bool whole = strchr("dixXo", letter) != NULL;
    if (whole && !km_jv_as_int(v, &i)) {
        double f = km_jv_as_double(v);
        if (!(f > -9e18 && f < 9e18))
            return km_jinja_fail(r, KM_ERR_RANGE, "%%%c needs an integer of 64 bits", letter);
        i = (int64_t)f;
    }
    snprintf(format, sizeof format, whole ? "%%%.*sll%c" : "%%%.*s%c", (int)n, spec, letter);
    if (whole)
        snprintf(text, sizeof text, format, (long long)i);
    else
        snprintf(text, sizeof text, format, km_jv_as_double(v));
    km_text_add(r->out, text);
    return true;
}

bool km_jstr_percent(km_jrun *r, const km_jv *format, const km_jv *values, km_jv *out) {
    size_t start = r->out->len, used = 0;
    bool tuple = values->kind == KM_JV_LIST && values->flavor == KM_JV_TUPLE;
    size_t given = tuple ? values->list->n : 1;
    for (size_t i = 0; i < format->bytes; i++) {
        if (format->text[i] != '%') {
            km_text_put(r->out, format->text + i, 1);
            continue;
        }
        size_t spec = ++i;
        while (i < format->bytes && strchr("0123456789.-+ #", format->text[i]) && format->text[i])
            i++;
        char letter = i < format->bytes ? format->text[i] : 0;
        if (letter == '%' && i == spec) {
            km_text_put(r->out, "%", 1);
            continue;
        }
        if (!letter || !strchr("sridxXofeEgG", letter))
            return km_jinja_fail(r, KM_ERR_UNSUPPORTED, "a format with '%%%c' is not supported",
                                 letter >= 32 && letter < 127 ? letter : '?');
        if (used >= given) return km_jinja_fail(r, KM_ERR_FORMAT, "too few values for the format");
        const km_jv *v = tuple ? &values->list->items[used] : values;
        used++;
        if (!km_jinja_step(r, 0) || !directive(r, format->text + spec, i - spec, letter, v))
            return false;
    }
    if (used < given && (tuple || values->kind != KM_JV_DICT))
        return km_jinja_fail(r, KM_ERR_FORMAT, "too many values for the format");
    return km_jv_take(r, start, out);
}
