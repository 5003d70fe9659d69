/* Growing text, HTML escaping, and numbers written the way people read them. */
#include "base/text.h"
#include "base/alloc.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool reserve(km_text *t, size_t extra) {
    if (extra >= SIZE_MAX / 2 - t->len) t->failed = true; /* beyond all memory */
    if (t->failed) return false;
    size_t need = t->len + extra + 1;
    if (need <= t->cap) return true;
    size_t cap = t->cap ? t->cap : 256;
    while (cap < need) cap *= 2;
    char *data = km_realloc(t->data, cap);
    if (!data) {
        t->failed = true;
        return false;
    }
    t->data = data;
    t->cap = cap;
    return true;
}

void km_text_put(km_text *t, const char *s, size_t n) {
    if (!reserve(t, n)) return;
    if (n) memcpy(t->data + t->len, s, n);
    t->len += n;
    t->data[t->len] = '\0';
}

void km_text_add(km_text *t, const char *s) { km_text_put(t, s, strlen(s)); }

void km_text_vprintf(km_text *t, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && reserve(t, (size_t)n)) {
        vsnprintf(t->data + t->len, (size_t)n + 1, fmt, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

void km_text_printf(km_text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    km_text_vprintf(t, fmt, ap);
    va_end(ap);
}

/* The length of the UTF-8 sequence at s, 0 when it is not one. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || beyond ? 0 : n;
}

void km_text_escape(km_text *t, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        size_t n = utf8_length(s);
        bool control = *s < 0x20 && *s != '\t' && *s != '\n';
        if (n == 0 || control || *s == 0x7f) {
            km_text_add(t, "\xef\xbf\xbd");
            s++;
            continue;
        }
        switch (*s) {
        case '&': km_text_add(t, "&amp;"); break;
        case '<': km_text_add(t, "&lt;"); break;
        case '>': km_text_add(t, "&gt;"); break;
        case '"': km_text_add(t, "&quot;"); break;
        case '\'': km_text_add(t, "&#39;"); break;
        default: km_text_put(t, (const char *)s, n);
        }
        s += n;
    }
}

const char *km_text_str(const km_text *t) { return t->data ? t->data : ""; }

bool km_text_ok(const km_text *t) { return !t->failed; }

void km_text_free(km_text *t) {
    km_free(t->data);
    *t = (km_text){0};
}

const char *km_format_number(char buf[KM_NUMBER_TEXT], double v) {
    double a = fabs(v);
    if (!isfinite(v))
        snprintf(buf, KM_NUMBER_TEXT, "-");
    else if (a == 0)
        snprintf(buf, KM_NUMBER_TEXT, "0");
    else if (a < 1e-3 || a >= 1e9)
        snprintf(buf, KM_NUMBER_TEXT, "%.2e", v);
    else if (a < 0.1)
        snprintf(buf, KM_NUMBER_TEXT, "%.4f", v);
    else if (a < 10)
        snprintf(buf, KM_NUMBER_TEXT, "%.2f", v);
    else if (a < 100)
        snprintf(buf, KM_NUMBER_TEXT, "%.1f", v);
    else
        snprintf(buf, KM_NUMBER_TEXT, "%.0f", v);
    return buf;
}

/* v over the largest power of `step` below it, with at most two decimals and no trailing zeros. */
static const char *scaled(char *buf, double v, double step, const char *const *units, int n) {
    if (!isfinite(v)) {
        snprintf(buf, KM_NUMBER_TEXT, "-");
        return buf;
    }
    int i = 0;
    while (i < n - 1 && fabs(v) >= step * 0.9995) {
        v /= step;
        i++;
    }
    char digits[24];
    snprintf(digits, sizeof digits, "%.*f", fabs(v) < 10 ? 2 : fabs(v) < 100 ? 1 : 0, v);
    if (strchr(digits, '.')) {
        size_t end = strlen(digits);
        while (digits[end - 1] == '0') digits[--end] = '\0';
        if (digits[end - 1] == '.') digits[--end] = '\0';
    }
    snprintf(buf, KM_NUMBER_TEXT, "%s%s", digits, units[i]);
    return buf;
}

const char *km_format_si(char buf[KM_NUMBER_TEXT], double v) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    return scaled(buf, v, 1000, units, 6);
}

const char *km_format_binary(char buf[KM_NUMBER_TEXT], double v) {
    static const char *const units[] = {"", "K", "M", "G", "T"};
    return scaled(buf, v, 1024, units, 5);
}

const char *km_format_bytes(char buf[KM_NUMBER_TEXT], double v) {
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    return scaled(buf, v, 1024, units, 5);
}

const char *km_format_seconds(char buf[KM_NUMBER_TEXT], double s) {
    if (!isfinite(s))
        snprintf(buf, KM_NUMBER_TEXT, "-");
    else if (s < 1e-6)
        snprintf(buf, KM_NUMBER_TEXT, "%.0f ns", s * 1e9);
    else if (s < 1e-3)
        snprintf(buf, KM_NUMBER_TEXT, "%.2f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, KM_NUMBER_TEXT, "%.2f ms", s * 1e3);
    else
        snprintf(buf, KM_NUMBER_TEXT, "%.2f s", s);
    return buf;
}
