/* The normaliser's steps over valid UTF-8. A step that has nothing to change leaves the text where
 * it is, so plain text is not copied. Unicode's tables come from utf8proc. */
#include "base/alloc.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void km_normal_free(km_normal_step *n) {
    km_free(n->a);
    km_free(n->b);
    km_pattern_free(n->pattern);
}

static void put_char(km_text *out, uint32_t cp) {
    char c[4];
    km_text_put(out, c, (size_t)km_utf8_write(c, cp));
}

static bool is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static bool is_ascii(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0x80) return false;
    return true;
}

/* ---- One step each: true when the result is in *out, false when the text stays as it is ---- */

static bool replace_text(const km_normal_step *s, const char *text, size_t n, km_text *out) {
    const char *at = text, *end = text + n, *hit = memmem(text, n, s->a, s->n_a);
    if (!hit) return false;
    for (; hit; hit = memmem(at, (size_t)(end - at), s->a, s->n_a)) {
        km_text_put(out, at, (size_t)(hit - at));
        km_text_put(out, s->b, s->n_b);
        at = hit + s->n_a;
    }
    km_text_put(out, at, (size_t)(end - at));
    return true;
}

static km_status replace_matches(const km_normal_step *s, km_matcher *m, const char *text, size_t n,
                                 km_text *out, bool *changed, km_error *err) {
    size_t at = 0, from = 0, begin, end;
    int found;
    while (from <= n &&
           (found = km_pattern_find(s->pattern, m, text, n, from, &begin, &end, err)) != 0) {
        if (found < 0) return err ? err->code : KM_ERR_UNSUPPORTED;
        km_text_put(out, text + at, begin - at);
        km_text_put(out, s->b, s->n_b);
        at = end;
        from = end;
        if (begin == end) from += end < n ? (size_t)km_utf8_length(text[end]) : 1;
        *changed = true;
    }
    if (*changed) km_text_put(out, text + at, n - at);
    return KM_OK;
}

/* A canonical or compatibility form, cut at ASCII so that a long text needs no long buffer:
 * between two ASCII characters nothing composes. */
static bool compose(km_normal_kind kind, const char *text, size_t n, km_text *out) {
    static const utf8proc_option_t options[] = {
        [KM_NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [KM_NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [KM_NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [KM_NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    if (is_ascii(text, n)) return false;
    for (size_t at = 0; at < n;) {
        size_t end = at;
        while (end < n && !((unsigned char)text[end] < 0x80 &&
                            (end + 1 == n || (unsigned char)text[end + 1] < 0x80)))
            end++;
        if (end > at) {
            if (end < n)
                end++; /* an ASCII character may be the base of what follows, not precede */
            utf8proc_uint8_t *made = NULL;
            utf8proc_ssize_t length =
                utf8proc_map((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(end - at),
                             &made, options[kind]);
            if (length < 0) {
                out->failed = true;
                return true;
            }
            km_text_put(out, (const char *)made, (size_t)length);
            free(made);
            at = end;
        } else {
            while (end < n && (unsigned char)text[end] < 0x80 &&
                   (end + 1 == n || (unsigned char)text[end + 1] < 0x80))
                end++;
            km_text_put(out, text + at, end - at);
            at = end;
        }
    }
    return true;
}

/* Rust's to_lowercase knows two things that a simple mapping does not. */
static void put_lower(km_text *out, uint32_t cp) {
    if (cp == 0x130) {
        km_text_put(out, "i\xCC\x87", 3);
        return;
    }
    put_char(out, cp < 0x80 ? cp + (cp >= 'A' && cp <= 'Z' ? 32u : 0)
                            : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static bool is_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

static void put_clean(km_text *out, uint32_t cp) {
    if (is_space(cp) && cp != 0x0B && cp != 0x0C && cp != 0x85) {
        km_text_put(out, " ", 1);
        return;
    }
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    bool control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                   category == UTF8PROC_CATEGORY_CO;
    if (cp != 0xFFFD && !control) put_char(out, cp);
}

static bool by_character(km_normal_kind kind, const char *text, size_t n, km_text *out) {
    if (kind != KM_NORMAL_LOWER && kind != KM_NORMAL_CLEAN && is_ascii(text, n)) return false;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        i += (size_t)km_utf8_read(text + i, n - i, &cp);
        if (kind == KM_NORMAL_LOWER) {
            put_lower(out, cp);
        } else if (kind == KM_NORMAL_CLEAN) {
            put_clean(out, cp);
        } else if (kind == KM_NORMAL_ACCENTS) {
            if (cp < 0x300 || utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_MN)
                put_char(out, cp);
        } else {
            if (is_cjk(cp)) km_text_put(out, " ", 1);
            put_char(out, cp);
            if (is_cjk(cp)) km_text_put(out, " ", 1);
        }
    }
    return true;
}

static void strip(const km_normal_step *s, const char **text, size_t *n) {
    uint32_t cp = 0;
    while (s->left && *n) {
        int length = km_utf8_read(*text, *n, &cp);
        if (!is_space(cp)) break;
        *text += length;
        *n -= (size_t)length;
    }
    while (s->right && *n) {
        size_t back = 1;
        while (back < *n && km_utf8_continues((*text)[*n - back])) back++;
        km_utf8_read(*text + *n - back, back, &cp);
        if (!is_space(cp)) break;
        *n -= back;
    }
}

static bool prepend(const km_normal_step *s, km_text_place place, const char *text, size_t n,
                    km_text *out) {
    if (n == 0 || place == KM_PLACE_INSIDE) return false;
    if (s->kind == KM_NORMAL_PREFIX &&
        ((s->first && place != KM_PLACE_TEXT) || (n >= s->n_a && memcmp(text, s->a, s->n_a) == 0)))
        return false;
    km_text_put(out, s->a, s->n_a);
    km_text_put(out, text, n);
    return true;
}

static bool lies_in(const km_text *buffer, const char *text) {
    uintptr_t begin = (uintptr_t)buffer->data, at = (uintptr_t)text;
    return buffer->data && at >= begin && at <= begin + buffer->len;
}

km_status km_normal_run(const km_token *t, int first, int last, km_text_place place, km_matcher *m,
                        km_text buffer[2], const char **text, size_t *n, km_error *err) {
    for (int i = first; i < last; i++) {
        const km_normal_step *s = &t->normal[i];
        km_text *out = &buffer[lies_in(&buffer[0], *text)];
        out->len = 0;
        bool changed = false;
        km_status status = KM_OK;
        switch (s->kind) {
        case KM_NORMAL_PREPEND:
        case KM_NORMAL_PREFIX: changed = prepend(s, place, *text, *n, out); break;
        case KM_NORMAL_REPLACE:
            if (s->pattern)
                status = replace_matches(s, m, *text, *n, out, &changed, err);
            else
                changed = replace_text(s, *text, *n, out);
            break;
        case KM_NORMAL_NFC:
        case KM_NORMAL_NFD:
        case KM_NORMAL_NFKC:
        case KM_NORMAL_NFKD: changed = compose(s->kind, *text, *n, out); break;
        case KM_NORMAL_STRIP: strip(s, text, n); break;
        case KM_NORMAL_LOWER:
        case KM_NORMAL_ACCENTS:
        case KM_NORMAL_CLEAN:
        case KM_NORMAL_CJK: changed = by_character(s->kind, *text, *n, out); break;
        }
        if (status != KM_OK) return status;
        if (!changed) continue;
        if (!km_text_ok(out)) return km_no_memory_for(err, "the normalised text");
        *text = out->data ? out->data : "";
        *n = out->len;
    }
    return KM_OK;
}
