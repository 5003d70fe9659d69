/* Finding added tokens in text: leftmost first, and of those that start there the longest. */
#include "base/alloc.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int by_length_down(const void *a, const void *b) {
    return (int)*(const uint16_t *)b - (int)*(const uint16_t *)a;
}

/* Adds a length to the list of a first byte, if it is not there yet. */
static bool put_length(uint16_t **list, uint16_t length) {
    size_t n = 0;
    for (; *list && (*list)[n]; n++)
        if ((*list)[n] == length) return true;
    uint16_t *more = km_realloc(*list, (n + 2) * sizeof *more);
    if (!more) return false;
    more[n] = length;
    more[n + 1] = 0;
    *list = more;
    return true;
}

km_status km_finder_build(km_finder *f, const km_token *t, bool normalized, km_error *err) {
    km_matcher *m = NULL;
    km_text buffer[2] = {{0}};
    km_status s = KM_OK;
    for (int32_t i = 0; s == KM_OK && i < t->n_added; i++) {
        if (t->added[i].normalized != normalized) continue;
        size_t n;
        const char *text = km_vocab_text(&t->vocab, t->added[i].id, &n);
        if (normalized) {
            /* What is looked for goes through the normaliser as the text does, but for a prefix. */
            if (!m && !(m = km_matcher_new(err))) s = KM_ERR_MEMORY;
            if (s == KM_OK)
                s = km_normal_run(t, 0, t->n_before, KM_PLACE_INSIDE, m, buffer, &text, &n, err);
        }
        if (s != KM_OK || n == 0) continue;
        if (n > UINT16_MAX) {
            s = km_error_set(err, KM_ERR_FORMAT, "an added token of %zu bytes", n);
            break;
        }
        s = km_vocab_put(&f->texts, i, text, n, err);
        if (s == KM_OK && !put_length(&f->length[(unsigned char)text[0]], (uint16_t)n))
            s = km_no_memory_for(err, "added tokens");
        f->count++;
        f->plain += !(t->mark[t->added[i].id] & KM_MARK_SPECIAL);
    }
    for (int b = 0; b < 256; b++) {
        size_t n = 0;
        while (f->length[b] && f->length[b][n]) n++;
        if (n) qsort(f->length[b], n, sizeof *f->length[b], by_length_down);
    }
    if (s == KM_OK && f->count) s = km_vocab_index(&f->texts, NULL, err);
    km_matcher_free(m);
    km_text_free(&buffer[0]);
    km_text_free(&buffer[1]);
    return s;
}

void km_finder_free(km_finder *f) {
    km_vocab_free(&f->texts);
    for (int b = 0; b < 256; b++) km_free(f->length[b]);
    *f = (km_finder){0};
}

/* ---- Around a match ---- */

static bool is_word(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') ||
               cp == '_';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

static bool space_at(const char *text, size_t n, size_t *length) {
    uint32_t cp;
    *length = (size_t)km_utf8_read(text, n, &cp);
    if (*length == 0) return false;
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == 0x85 || c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL ||
           c == UTF8PROC_CATEGORY_ZP;
}

static size_t character_before(const char *text, size_t at) {
    size_t back = 1;
    while (back < at && back < 4 && km_utf8_continues(text[at - back])) back++;
    return back;
}

static bool stands_alone(const char *text, size_t n, size_t begin, size_t end) {
    uint32_t cp;
    if (begin > 0) {
        size_t back = character_before(text, begin);
        if (km_utf8_read(text + begin - back, back, &cp) && is_word(cp)) return false;
    }
    return !(end < n && km_utf8_read(text + end, n - end, &cp) && is_word(cp));
}

static int32_t match_at(const km_finder *f, const km_token *t, const char *text, size_t n,
                        size_t at, bool special, size_t *end) {
    const uint16_t *length = f->length[(unsigned char)text[at]];
    for (; length && *length; length++) {
        if (*length > n - at) continue;
        int32_t i = km_vocab_find(&f->texts, text + at, *length);
        if (i < 0 || (!special && (t->mark[t->added[i].id] & KM_MARK_SPECIAL))) continue;
        if (t->added[i].single_word && !stands_alone(text, n, at, at + *length)) continue;
        *end = at + *length;
        return i;
    }
    return -1;
}

int32_t km_finder_next(const km_finder *f, const km_token *t, const char *text, size_t n,
                       size_t from, bool special, size_t *begin, size_t *end) {
    if ((special ? f->count : f->plain) == 0) return -1;
    for (size_t at = from; at < n; at++) {
        if (!f->length[(unsigned char)text[at]]) continue;
        int32_t i = match_at(f, t, text, n, at, special, end);
        if (i < 0) continue;
        size_t length;
        *begin = at;
        while (t->added[i].lstrip && *begin > from) {
            size_t back = character_before(text, *begin);
            if (back > *begin - from || !space_at(text + *begin - back, back, &length)) break;
            *begin -= back;
        }
        while (t->added[i].rstrip && *end < n && space_at(text + *end, n - *end, &length))
            *end += length;
        return i;
    }
    return -1;
}
