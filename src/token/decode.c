/* From ids to text. The decoder section says how a token is written; that is worked out for every
 * token once, so decoding is copying. */
#include "base/alloc.h"
#include "base/shown.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <string.h>

/* ---- The decoder section ---- */

typedef struct rules {
    const char *from[8], *to[8]; /* replacements, in order */
    int n;
    bool bytes;         /* <0xNN> is that byte */
    bool fused;         /* what comes after this works on the whole text */
    const char *prefix; /* WordPiece */
} rules;

static km_status refuse(const char *name, const char *what, km_error *err) {
    char shown[KM_SHOWN];
    return km_error_set(err, KM_ERR_UNSUPPORTED, "%s: decoder '%s' is not supported", name,
                        km_shown(shown, what));
}

static km_status add_rule(rules *r, const char *from, const char *to, const char *name,
                          km_error *err) {
    if (!from || !*from || !to || r->n == 8) return refuse(name, "Replace", err);
    r->from[r->n] = from;
    r->to[r->n++] = to;
    return KM_OK;
}

static km_status read_strip(km_token *t, const rules *r, const json_t *o, const char *name,
                            km_error *err) {
    const char *what = json_string_value(json_object_get(o, "content"));
    json_int_t start = json_integer_value(json_object_get(o, "start"));
    json_int_t stop = json_integer_value(json_object_get(o, "stop"));
    if (!what || strcmp(what, " ") != 0 || stop != 0 || start < 0 || start > 16 || !r->fused)
        return refuse(name, "Strip", err);
    t->strip_left = (int)start;
    return KM_OK;
}

static km_status read_decoder(km_token *t, rules *r, const json_t *o, int depth, const char *name,
                              km_error *err) {
    const char *type = km_section_type(o);
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(o, "decoders");
        km_status s = KM_OK;
        for (size_t i = 0; s == KM_OK && i < json_array_size(list); i++)
            s = read_decoder(t, r, json_array_get(list, i), depth + 1, name, err);
        return s;
    }
    if (strcmp(type, "ByteLevel") == 0 && t->byte_level) return KM_OK;
    if (strcmp(type, "ByteFallback") == 0) {
        r->bytes = true;
        return KM_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        r->fused = true;
        return KM_OK;
    }
    if (strcmp(type, "Strip") == 0) return read_strip(t, r, o, name, err);
    if (strcmp(type, "Replace") == 0) {
        const char *from =
            json_string_value(json_object_get(json_object_get(o, "pattern"), "String"));
        return add_rule(r, from, json_string_value(json_object_get(o, "content")), name, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *mark = json_string_value(json_object_get(o, "replacement"));
        const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
        bool never = scheme ? strcmp(scheme, "never") == 0
                            : json_is_false(json_object_get(o, "add_prefix_space"));
        t->strip_left = !never;
        return add_rule(r, mark ? mark : "\xE2\x96\x81", " ", name, err);
    }
    if (strcmp(type, "WordPiece") == 0) {
        const char *prefix = json_string_value(json_object_get(o, "prefix"));
        r->prefix = prefix ? prefix : "##";
        t->join = true;
        t->cleanup = !json_is_false(json_object_get(o, "cleanup"));
        return KM_OK;
    }
    return refuse(name, type, err);
}

/* ---- What each token decodes to ---- */

static void apply_rule(km_text *text, km_text *other, const char *from, const char *to) {
    const char *at = km_text_str(text), *end = at + text->len, *hit;
    size_t length = strlen(from);
    other->len = 0;
    for (; (hit = memmem(at, (size_t)(end - at), from, length)); at = hit + length) {
        km_text_put(other, at, (size_t)(hit - at));
        km_text_add(other, to);
    }
    km_text_put(other, at, (size_t)(end - at));
    km_text swap = *text;
    *text = *other;
    *other = swap;
}

static km_status show_tokens(km_token *t, const rules *r, km_error *err) {
    km_text text = {0}, other = {0};
    km_status s = KM_OK;
    size_t prefix = r->prefix ? strlen(r->prefix) : 0;
    for (int32_t id = 0; s == KM_OK && id < t->vocab.count; id++) {
        if (!km_vocab_has(&t->vocab, id)) continue;
        size_t n;
        const char *token = km_vocab_text(&t->vocab, id, &n);
        int byte = r->bytes ? km_byte_token(token, n) : -1;
        bool literal = t->mark[id] & (KM_MARK_SPECIAL | KM_MARK_ADDED);
        text.len = 0;
        if (byte >= 0) {
            km_text_put(&text, (char[]){(char)byte}, 1);
        } else if (t->mark[id] & KM_MARK_HIDDEN) {
            ; /* nothing */
        } else {
            size_t skip =
                prefix && n > prefix && memcmp(token, r->prefix, prefix) == 0 ? prefix : 0;
            km_text_put(&text, token + skip, n - skip);
            for (int i = 0; i < r->n && !literal; i++)
                apply_rule(&text, &other, r->from[i], r->to[i]);
        }
        if (!km_text_ok(&text) || !km_text_ok(&other))
            s = km_no_memory_for(err, "a tokenizer");
        else
            s = km_vocab_put(&t->shown, id, km_text_str(&text), text.len, err);
    }
    km_text_free(&text);
    km_text_free(&other);
    return s;
}

km_status km_token_compile_decoder(km_token *t, const char *name, km_error *err) {
    rules r = {0};
    bool hidden = false;
    for (int32_t id = 0; id < t->vocab.count; id++) hidden |= (t->mark[id] & KM_MARK_HIDDEN) != 0;
    if (!t->decoder || json_is_null(t->decoder)) {
        t->join = !t->byte_level; /* as Hugging Face does without one */
    } else {
        km_status s = read_decoder(t, &r, t->decoder, 0, name, err);
        if (s != KM_OK) return s;
    }
    return r.n || r.bytes || r.prefix || hidden ? show_tokens(t, &r, err) : KM_OK;
}

/* ---- Decoding ---- */

const char *km_token_text(const km_token *t, int32_t id, size_t *bytes) {
    if (!km_vocab_has(&t->vocab, id)) return NULL;
    return km_vocab_text(t->shown.count ? &t->shown : &t->vocab, id, bytes);
}

/* Whether the token goes on with the word before it, or is punctuation that stands close. */
static bool stands_close(const km_token *t, int32_t id, const char *text, size_t n) {
    static const char *const close[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    size_t length = t->continuing ? strlen(t->continuing) : 0, own;
    const char *token = km_vocab_text(&t->vocab, id, &own);
    if (length && own > length && memcmp(token, t->continuing, length) == 0) return true;
    for (size_t i = 0; t->cleanup && i < sizeof close / sizeof *close; i++)
        if (strlen(close[i]) == n && memcmp(close[i], text, n) == 0) return true;
    return false;
}

static km_status put_token(const km_token *t, int32_t id, unsigned flags, bool *started,
                           km_text *out, km_error *err) {
    size_t n;
    const char *text = km_token_text(t, id, &n);
    if (!text)
        return km_error_set(err, KM_ERR_RANGE, "id %d is no token; the vocabulary has %d", (int)id,
                            (int)t->vocab.count);
    if (flags & KM_TOKEN_SKIP_SPECIAL && t->mark[id] & KM_MARK_SPECIAL) return KM_OK;
    if (!*started) {
        for (int i = 0; i < t->strip_left && n > 0 && *text == ' '; i++) text++, n--;
    } else if (t->join && !stands_close(t, id, text, n)) {
        km_text_put(out, " ", 1);
    }
    *started = true;
    km_text_put(out, text, n);
    return KM_OK;
}

km_status km_token_decode(const km_token *t, const int32_t *ids, size_t n, unsigned flags,
                          km_text *out, km_error *err) {
    if (!t || !out || (!ids && n)) return km_error_set(err, KM_ERR_NULL, "no ids to decode");
    bool started = false;
    size_t before = out->len;
    km_status s = KM_OK;
    for (size_t i = 0; s == KM_OK && i < n; i++)
        s = put_token(t, ids[i], flags, &started, out, err);
    if (s == KM_OK && !km_text_ok(out))
        s = km_error_set(err, KM_ERR_MEMORY, "out of memory while decoding");
    if (s != KM_OK && out->data) out->data[out->len = before] = 0;
    return s;
}

/* ---- Streaming ---- */

km_token_stream km_token_stream_begin(const km_token *t, unsigned flags) {
    return (km_token_stream){.token = t, .flags = flags};
}

/* Writes what is certain of the bytes; the rest, at most three, stays in s->held. */
static void put_certain(km_token_stream *s, const char *text, size_t n, km_text *out) {
    size_t tail = km_utf8_tail(text, n);
    for (size_t at = 0; at < n - tail;) {
        size_t valid = km_utf8_valid(text + at, n - tail - at);
        km_text_put(out, text + at, valid);
        at += valid;
        if (at == n - tail) break;
        km_text_add(out, "\xEF\xBF\xBD");
        /* One for the beginning of a character with all that belongs to it. */
        at++;
        while (at < n - tail && km_utf8_continues(text[at]) && !km_utf8_continues(text[at - 1]))
            at++;
    }
    memcpy(s->held, text + n - tail, tail);
    s->n_held = (int)tail;
}

/* Bytes that are no whole characters, or the first of which were held back. */
static void put_pieces(km_token_stream *s, const char *more, size_t n, km_text *out) {
    km_text text = {0};
    km_text_put(&text, (const char *)s->held, (size_t)s->n_held);
    km_text_put(&text, more, n);
    if (km_text_ok(&text))
        put_certain(s, km_text_str(&text), text.len, out);
    else
        out->failed = true;
    km_text_free(&text);
}

/* Most tokens are whole characters, and go to *out without a stop between. */
km_status km_token_stream_put(km_token_stream *s, int32_t id, km_text *out, km_error *err) {
    size_t before = out->len;
    km_status status = put_token(s->token, id, s->flags, &s->started, out, err);
    size_t n = out->len - before;
    if (status == KM_OK && km_text_ok(out) &&
        (s->n_held > 0 || km_utf8_valid(km_text_str(out) + before, n) < n)) {
        char few[64], *bytes = n <= sizeof few ? few : km_alloc(n);
        if (bytes) {
            if (n) memcpy(bytes, out->data + before, n);
            if (out->data) out->data[out->len = before] = 0;
            put_pieces(s, bytes, n, out);
        } else {
            out->failed = true;
        }
        if (bytes != few) km_free(bytes);
    }
    if (status == KM_OK && !km_text_ok(out))
        status = km_error_set(err, KM_ERR_MEMORY, "out of memory while decoding");
    return status;
}

void km_token_stream_end(km_token_stream *s, km_text *out) {
    if (s->n_held) km_text_add(out, "\xEF\xBF\xBD");
    s->n_held = 0;
}
