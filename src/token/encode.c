/* From text to ids: added tokens are found first, then what lies between them is normalised, cut
 * and given to the model. Bytes that are not UTF-8 are set aside before that. */
#include "token/encode.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/utf8.h"
#include <string.h>

/* ---- Lists of ids ---- */

km_status km_ids_put(km_ids *ids, const int32_t *more, size_t n, km_error *err) {
    if (n > SIZE_MAX - ids->len || !km_array_reserve(&ids->data, &ids->cap, ids->len + n))
        return km_no_memory_for(err, "%zu more ids", n);
    if (n) memcpy(ids->data + ids->len, more, n * sizeof *more);
    ids->len += n;
    return KM_OK;
}

void km_ids_free(km_ids *ids) {
    km_free(ids->data);
    *ids = (km_ids){0};
}

/* ---- Scratches ---- */

km_scratch *km_scratch_take(const km_token *t, km_error *err) {
    km_token *own = (km_token *)(uintptr_t)t; /* the list is not part of what t means */
    pthread_mutex_lock(&own->lock);
    km_scratch *s = own->scratches;
    if (s) own->scratches = s->next;
    pthread_mutex_unlock(&own->lock);
    if (s) return s;
    s = km_calloc(1, sizeof *s);
    if (!s) {
        km_error_set(err, KM_ERR_MEMORY, "out of memory while encoding");
        return NULL;
    }
    s->matcher = km_matcher_new(err);
    if (s->matcher) return s;
    km_free(s);
    return NULL;
}

void km_scratch_give(const km_token *t, km_scratch *s) {
    km_token *own = (km_token *)(uintptr_t)t;
    pthread_mutex_lock(&own->lock);
    s->next = own->scratches;
    own->scratches = s;
    pthread_mutex_unlock(&own->lock);
}

void km_scratch_free(km_scratch *s) {
    if (!s) return;
    km_matcher_free(s->matcher);
    km_free(s->cache);
    for (int i = 0; i < 4; i++) km_text_free(&s->buffer[i]);
    km_text_free(&s->word);
    km_free(s->symbol);
    km_free(s->heap);
    km_free(s);
}

/* ---- Text ---- */

/* Text after the normaliser: added tokens that are looked for there, then the pre-tokeniser. */
static km_status encode_normalized(km_encoder *e, km_text_place place, const char *text, size_t n) {
    const km_token *t = e->t;
    bool special = e->flags & KM_TOKEN_PARSE_SPECIAL;
    km_status s = KM_OK;
    for (size_t at = 0; s == KM_OK && at < n;) {
        size_t begin = n, end = n;
        int32_t found = km_finder_next(&t->normalized, t, text, n, at, special, &begin, &end);
        if (found < 0) begin = end = n;
        const char *part = text + at;
        size_t length = begin - at;
        s = km_normal_run(t, t->n_before, t->n_normal, place, e->s->matcher, &e->s->buffer[2],
                          &part, &length, e->err);
        if (s == KM_OK) s = (e->large ? e->large : km_encode_split)(e, part, length);
        if (s == KM_OK && found >= 0) s = km_put_id(e, t->added[found].id);
        place = KM_PLACE_SEGMENT;
        at = end;
    }
    return s;
}

km_status km_encode_stretch(km_encoder *e, km_text_place place, const char *text, size_t n) {
    const km_token *t = e->t;
    km_status s = KM_OK;
    while (s == KM_OK && n > 0) {
        size_t valid = km_utf8_valid(text, n);
        if (valid) {
            const char *part = text;
            size_t length = valid;
            s = km_normal_run(t, 0, t->n_before, place, e->s->matcher, e->s->buffer, &part, &length,
                              e->err);
            if (s == KM_OK) s = encode_normalized(e, place, part, length);
        } else {
            valid = km_utf8_invalid(text, n);
            s = km_encode_bytes(e, text, valid);
        }
        place = KM_PLACE_INSIDE;
        text += valid;
        n -= valid;
    }
    return s;
}

km_status km_encode_all(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    bool special = e->flags & KM_TOKEN_PARSE_SPECIAL;
    km_text_place place = KM_PLACE_TEXT;
    km_status s = KM_OK;
    for (size_t at = 0; s == KM_OK && at < n;) {
        size_t begin = n, end = n;
        int32_t found = km_finder_next(&t->raw, t, text, n, at, special, &begin, &end);
        if (found < 0) begin = end = n;
        s = km_encode_stretch(e, place, text + at, begin - at);
        if (s == KM_OK && found >= 0) s = km_put_id(e, t->added[found].id);
        place = KM_PLACE_SEGMENT;
        at = end;
    }
    return s;
}

km_status km_token_encode(const km_token *t, const char *text, size_t bytes, unsigned flags,
                          km_ids *out, km_error *err) {
    if (!t || !out || (!text && bytes)) return km_error_set(err, KM_ERR_NULL, "no text to encode");
    km_error own = {0};
    size_t before = out->len;
    km_encoder e = {
        .t = t, .out = out, .origin = text, .origin_bytes = bytes, .flags = flags, .err = &own};
    km_status s = KM_ERR_MEMORY;
    e.s = km_scratch_take(t, &own);
    if (e.s) {
        s = flags & KM_TOKEN_ADD_SPECIAL ? km_ids_put(out, t->prefix, (size_t)t->n_prefix, &own)
                                         : KM_OK;
        if (s == KM_OK) s = km_encode_all(&e, text, bytes);
        if (s == KM_OK && flags & KM_TOKEN_ADD_SPECIAL)
            s = km_ids_put(out, t->suffix, (size_t)t->n_suffix, &own);
        km_scratch_give(t, e.s);
    }
    if (s == KM_OK) return KM_OK;
    out->len = before;
    return km_error_set(err, s, "%s", own.text);
}
