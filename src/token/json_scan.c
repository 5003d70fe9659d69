/* Reading JSON in place. */
#include "token/json_scan.h"
#include "base/utf8.h"
#include <string.h>

#define DEEPEST 64

km_status km_json_wrong(km_json_scan *s, const char *what) {
    if (s->at >= s->end)
        return km_error_set(s->err, KM_ERR_FORMAT, "%s: the file ends too early (%s)", s->name,
                            what);
    return km_error_set(s->err, KM_ERR_FORMAT, "%s: %s at byte %zu", s->name, what,
                        (size_t)(s->at - s->begin));
}

char km_json_peek(km_json_scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
    return s->at < s->end ? *s->at : 0;
}

km_status km_json_expect(km_json_scan *s, char c) {
    if (km_json_peek(s) != c || s->at == s->end) {
        char what[16];
        snprintf(what, sizeof what, "no '%c'", c);
        return km_json_wrong(s, what);
    }
    s->at++;
    return KM_OK;
}

static int hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* \uXXXX, with the second half of a surrogate pair; s->at is behind the 'u'. */
static km_status read_escape(km_json_scan *s, km_text *out) {
    int unit = s->end - s->at >= 4 ? hex4(s->at) : -1;
    if (unit < 0) return km_json_wrong(s, "a wrong escape");
    s->at += 4;
    uint32_t cp = (uint32_t)unit;
    if (cp >= 0xD800 && cp < 0xE000) {
        int low = s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u' ? hex4(s->at + 2) : -1;
        if (cp >= 0xDC00 || low < 0xDC00 || low > 0xDFFF)
            return km_json_wrong(s, "half a surrogate");
        cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        s->at += 6;
    }
    char text[4];
    km_text_put(out, text, (size_t)km_utf8_write(text, cp));
    return KM_OK;
}

km_status km_json_read_string(km_json_scan *s, km_text *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (km_json_peek(s) != '"') return km_json_wrong(s, "no string");
    s->at++;
    if (out) out->len = 0;
    km_text unused = {0};
    if (!out) out = &unused;
    km_status status = KM_OK;
    for (;;) {
        const char *begin = s->at;
        while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20)
            s->at++;
        size_t n = (size_t)(s->at - begin);
        if (km_utf8_valid(begin, n) != n) {
            s->at = begin;
            status = km_json_wrong(s, "a string that is not UTF-8");
            break;
        }
        if (out != &unused) km_text_put(out, begin, n);
        if (s->at == s->end || (unsigned char)*s->at < 0x20) {
            status = km_json_wrong(s, "a string without an end");
            break;
        }
        if (*s->at++ == '"') break;
        const char *e = s->at < s->end && *s->at ? strchr(from, *s->at) : NULL;
        if (e) {
            s->at++;
            if (out != &unused) km_text_put(out, &to[e - from], 1);
        } else if (s->at < s->end && *s->at == 'u') {
            s->at++;
            status = read_escape(s, out);
            unused.len = 0;
            if (status != KM_OK) break;
        } else {
            status = km_json_wrong(s, "a wrong escape");
            break;
        }
    }
    if (status == KM_OK && !km_text_ok(out))
        status = km_error_set(s->err, KM_ERR_MEMORY, "%s: out of memory", s->name);
    km_text_free(&unused);
    return status;
}

km_status km_json_read_int(km_json_scan *s, int64_t *value) {
    bool negative = km_json_peek(s) == '-';
    if (negative) s->at++;
    int64_t v = 0;
    const char *first = s->at;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
        if (v < (int64_t)1 << 50) v = v * 10 + (*s->at - '0');
    if (s->at == first || (s->at < s->end && strchr(".eE", *s->at) && *s->at))
        return km_json_wrong(s, "no whole number");
    *value = negative ? -v : v;
    return KM_OK;
}

km_status km_json_more(km_json_scan *s, char close, bool *more) {
    char c = km_json_peek(s);
    if (s->at == s->end || (c != ',' && c != close))
        return km_json_wrong(s,
                             close == '}' ? "an object without an end" : "a list without an end");
    s->at++;
    *more = c == ',';
    return KM_OK;
}

static km_status skip_plain(km_json_scan *s) {
    const char *first = s->at;
    while (s->at < s->end &&
           ((*s->at >= '0' && *s->at <= '9') || (*s->at >= 'a' && *s->at <= 'z') || *s->at == '-' ||
            *s->at == '+' || *s->at == '.' || *s->at == 'E'))
        s->at++;
    return s->at > first ? KM_OK : km_json_wrong(s, "no value");
}

static km_status skip(km_json_scan *s, int depth) {
    char c = km_json_peek(s);
    if (c == '"') return km_json_read_string(s, NULL);
    if (c != '{' && c != '[') return skip_plain(s);
    if (depth == DEEPEST) return km_json_wrong(s, "lists nested too deep");
    s->at++;
    char close = c == '{' ? '}' : ']';
    if (km_json_peek(s) == close) {
        s->at++;
        return KM_OK;
    }
    for (bool more = true; more;) {
        km_status status = KM_OK;
        if (c == '{') {
            status = km_json_read_string(s, NULL);
            if (status == KM_OK) status = km_json_expect(s, ':');
        }
        if (status == KM_OK) status = skip(s, depth + 1);
        if (status == KM_OK) status = km_json_more(s, close, &more);
        if (status != KM_OK) return status;
    }
    return KM_OK;
}

km_status km_json_skip(km_json_scan *s, km_span *value) {
    km_json_peek(s);
    const char *begin = s->at;
    km_status status = skip(s, 0);
    if (value) *value = (km_span){begin, (size_t)(s->at - begin)};
    return status;
}
