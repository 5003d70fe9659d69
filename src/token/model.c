/* The models: what ids a piece of text gets. BPE and SentencePiece merge neighbours, the best
 * pair first and of equals the leftmost; a short piece by looking at all pairs each time, a long
 * one with a heap, so that time grows with n log n whatever the text. */
#include "base/alloc.h"
#include "base/array.h"
#include "token/encode.h"
#include "base/utf8.h"
#include <stdatomic.h>
#include <string.h>

#define SHORT 24 /* symbols; up to here looking is faster than keeping order */
#define NONE UINT32_MAX
#define LONGEST_WHOLE 64 /* bytes; hardly a longer piece is one token */

/* ---- Unknown text ---- */

km_status km_encode_unknown(const km_encoder *e, const char *text, size_t n) {
    uint32_t cp = 0;
    int length = km_utf8_read(text, n, &cp);
    char what[64];
    if (length == 0)
        snprintf(what, sizeof what, "byte 0x%02X, which is not UTF-8,", (unsigned char)*text);
    else if (cp < 0x20 || (cp >= 0x7F && cp < 0xA0))
        snprintf(what, sizeof what, "the character U+%04X", cp);
    else
        snprintf(what, sizeof what, "the character '%.*s' (U+%04X)", length, text, cp);
    uintptr_t begin = (uintptr_t)e->origin, at = (uintptr_t)text;
    if (at < begin || at >= begin + e->origin_bytes)
        return km_error_set(e->err, KM_ERR_RANGE, "%s is not in the tokenizer's vocabulary", what);
    size_t line = 1, column = 1;
    for (const char *p = e->origin; p < text; p++) {
        if (*p == '\n') line++, column = 0;
        column += !km_utf8_continues(*p);
    }
    return km_error_set(e->err, KM_ERR_RANGE,
                        "%s at byte %zu (line %zu, column %zu) is not in the tokenizer's "
                        "vocabulary",
                        what, (size_t)(at - begin), line, column);
}

km_status km_encode_bytes(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    bool bytes = t->byte_level || t->byte_fallback;
    for (size_t i = 0; i < n; i++) {
        int32_t id = bytes ? t->byte_id[(unsigned char)text[i]] : -1;
        if (id < 0) id = km_token_unknown(t);
        if (id < 0 && t->byte_level) continue;
        if (id < 0) return km_encode_unknown(e, text + i, 1);
        km_status s = km_put_id(e, id);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

/* ---- Symbols ---- */

static bool room_for_symbols(km_scratch *s, size_t n) {
    if (n <= s->symbols) return true;
    km_symbol *more = km_realloc(s->symbol, n * sizeof *more);
    if (!more) return false;
    s->symbol = more;
    s->symbols = n;
    return true;
}

static int32_t char_id(const km_token *t, const char *text, size_t n) {
    if (n == 1 && (unsigned char)*text < 0x80) return t->ascii_id[(unsigned char)*text];
    return km_vocab_find(&t->vocab, text, n);
}

/* Whether every byte of the character has a token. */
static bool has_bytes(const km_token *t, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(unsigned char)text[i]] < 0) return false;
    return true;
}

/* The piece as symbols, their number in *count: bytes, or characters with what stands for those
 * that are no token. */
static km_status read_symbols(km_encoder *e, const char *text, size_t n, uint32_t *count) {
    const km_token *t = e->t;
    km_symbol *to = e->s->symbol;
    uint32_t made = 0;
    for (size_t i = 0; i < n;) {
        size_t length = t->byte_level ? 1 : (size_t)km_utf8_length(text[i]);
        int32_t id =
            t->byte_level ? t->byte_id[(unsigned char)text[i]] : char_id(t, text + i, length);
        bool late = t->model == KM_MODEL_SPM; /* it may still become part of a token */
        if (id < 0 && !late && !t->byte_level && t->byte_fallback &&
            has_bytes(t, text + i, length)) {
            for (size_t k = 0; k < length; k++)
                to[made++] = (km_symbol){.at = (uint32_t)(i + k),
                                         .len = 1,
                                         .id = t->byte_id[(unsigned char)text[i + k]]};
            i += length;
            continue;
        }
        if (id < 0 && !late) {
            id = km_token_unknown(t);
            if (id < 0 && t->byte_level) { /* dropped: its neighbours may merge, as in tokenizers */
                i += length;
                continue;
            }
            if (id < 0) return km_encode_unknown(e, text + i, n - i);
            if (t->fuse_unk && made > 0 && to[made - 1].id == id) {
                to[made - 1].len += (uint32_t)length;
                i += length;
                continue;
            }
        }
        to[made++] = (km_symbol){.at = (uint32_t)i, .len = (uint32_t)length, .id = id};
        i += length;
    }
    *count = made;
    return KM_OK;
}

/* A score as a rank: the higher, the earlier. */
static uint32_t rank_of_score(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u; /* in the order of the numbers */
    uint32_t rank = ~bits;
    return rank == KM_NO_RANK ? rank - 1 : rank;
}

static uint32_t pair_rank(const km_token *t, const char *text, const km_symbol *a,
                          const km_symbol *b, int32_t *to) {
    if (t->model == KM_MODEL_BPE) return km_merges_find(&t->merges, a->id, b->id, to);
    *to = km_vocab_find(&t->vocab, text + a->at, a->len + b->len);
    return *to < 0 ? KM_NO_RANK : rank_of_score(t->score[*to]);
}

/* ---- Merging ---- */

static uint32_t merge_short(const km_token *t, const char *text, km_symbol *symbol, uint32_t n) {
    uint32_t rank[SHORT];
    int32_t to[SHORT];
    for (uint32_t i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(t, text, &symbol[i], &symbol[i + 1], &to[i]);
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == KM_NO_RANK) break;
        symbol[best].id = to[best];
        symbol[best].len += symbol[best + 1].len;
        n--;
        memmove(&symbol[best + 1], &symbol[best + 2], (n - best - 1) * sizeof *symbol);
        if (best + 1 < n) { /* the rank of (best, best + 1) is made below */
            memmove(&rank[best], &rank[best + 1], (n - best - 1) * sizeof *rank);
            memmove(&to[best], &to[best + 1], (n - best - 1) * sizeof *to);
            rank[best] = pair_rank(t, text, &symbol[best], &symbol[best + 1], &to[best]);
        }
        if (best > 0)
            rank[best - 1] = pair_rank(t, text, &symbol[best - 1], &symbol[best], &to[best - 1]);
    }
    return n;
}

static bool earlier(const km_candidate *a, const km_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static bool heap_put(km_scratch *s, km_candidate c) {
    if (!km_array_reserve(&s->heap, &s->heap_room, s->heap_len + 1)) return false;
    size_t i = s->heap_len++;
    for (; i > 0 && earlier(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
    return true;
}

static km_candidate heap_take(km_scratch *s) {
    km_candidate top = s->heap[0], last = s->heap[--s->heap_len];
    size_t i = 0, n = s->heap_len;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && earlier(&s->heap[child + 1], &s->heap[child])) child++;
        if (!earlier(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static bool propose(km_encoder *e, const char *text, uint32_t left, uint32_t right) {
    if (left == NONE || right == NONE) return true;
    const km_symbol *a = &e->s->symbol[left], *b = &e->s->symbol[right];
    km_candidate c = {.at = left, .len = a->len + b->len};
    c.rank = pair_rank(e->t, text, a, b, &c.to);
    return c.rank == KM_NO_RANK || heap_put(e->s, c);
}

static km_status merge_long(km_encoder *e, const char *text, uint32_t *count) {
    km_symbol *symbol = e->s->symbol;
    uint32_t n = *count;
    e->s->heap_len = 0;
    for (uint32_t i = 0; i < n; i++) {
        symbol[i].before = i ? i - 1 : NONE;
        symbol[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        if (!propose(e, text, i, i + 1)) return km_no_memory_for(e->err, "the text to encode");
    while (e->s->heap_len) {
        km_candidate c = heap_take(e->s);
        km_symbol *a = &symbol[c.at];
        if (a->len == 0 || a->next == NONE) continue;
        km_symbol *b = &symbol[a->next];
        if (a->len + b->len != c.len) continue; /* one of them has grown since */
        a->id = c.to;
        a->len = c.len;
        b->len = 0;
        a->next = b->next;
        if (a->next != NONE) symbol[a->next].before = c.at;
        if (!propose(e, text, a->before, c.at) || !propose(e, text, c.at, a->next))
            return km_no_memory_for(e->err, "the text to encode");
    }
    uint32_t made = 0;
    for (uint32_t i = 0; i < n; i++)
        if (symbol[i].len) symbol[made++] = symbol[i];
    *count = made;
    return KM_OK;
}

/* What SentencePiece gives for characters that became part of no token. */
static km_status put_leftover(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    if (t->byte_fallback && has_bytes(t, text, n)) return km_encode_bytes(e, text, n);
    if (t->unk < 0) return km_encode_unknown(e, text, n);
    return km_put_id(e, t->unk);
}

static km_status encode_merging(km_encoder *e, const char *text, size_t n) {
    if (n >= NONE)
        return km_error_set(e->err, KM_ERR_RANGE, "a piece of text of %zu bytes without a border",
                            n);
    if (!room_for_symbols(e->s, n)) return km_no_memory_for(e->err, "the text to encode");
    uint32_t count = 0;
    km_status s = read_symbols(e, text, n, &count);
    if (s != KM_OK) return s;
    if (count > SHORT)
        s = merge_long(e, text, &count);
    else if (count > 1)
        count = merge_short(e->t, text, e->s->symbol, count);
    const km_symbol *symbol = e->s->symbol;
    for (uint32_t i = 0; s == KM_OK && i < count; i++)
        s = symbol[i].id >= 0 ? km_put_id(e, symbol[i].id)
                              : put_leftover(e, text + symbol[i].at, symbol[i].len);
    return s;
}

/* ---- No merges: a symbol is a token ---- */

static km_status encode_plain(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    if (t->byte_level) return km_encode_bytes(e, text, n);
    bool unknown = false;
    for (size_t i = 0; i < n;) {
        size_t length = (size_t)km_utf8_length(text[i]);
        int32_t id = char_id(t, text + i, length);
        km_status s;
        if (id >= 0) {
            s = km_put_id(e, id);
        } else if (t->byte_fallback && has_bytes(t, text + i, length)) {
            s = km_encode_bytes(e, text + i, length);
        } else if (t->unk < 0) {
            return km_encode_unknown(e, text + i, n - i);
        } else {
            s = unknown && t->fuse_unk ? KM_OK : km_put_id(e, t->unk);
            unknown = true;
            i += length;
            if (s != KM_OK) return s;
            continue;
        }
        if (s != KM_OK) return s;
        unknown = false;
        i += length;
    }
    return KM_OK;
}

/* ---- WordPiece and whole words ---- */

static km_status put_unknown_word(km_encoder *e, const char *text, size_t n) {
    return e->t->unk < 0 ? km_encode_unknown(e, text, n) : km_put_id(e, e->t->unk);
}

static km_status encode_wordpiece(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    size_t prefix = strlen(t->continuing), first = e->out->len;
    int64_t characters = 0;
    for (size_t i = 0; i < n; i++) characters += !km_utf8_continues(text[i]);
    if (characters > t->longest_word) return put_unknown_word(e, text, n);
    /* The word behind the prefix, so that "##rest" is one stretch: it is written over the part of
     * the word that is done. */
    km_text *w = &e->s->word;
    w->len = 0;
    km_text_put(w, t->continuing, prefix);
    km_text_put(w, text, n);
    if (!km_text_ok(w)) return km_no_memory_for(e->err, "the text to encode");
    for (size_t at = 0; at < n;) {
        char *begin = w->data + prefix + at;
        if (at > 0) {
            begin -= prefix;
            memcpy(begin, t->continuing, prefix);
        }
        size_t end = n;
        int32_t id = -1;
        while (end > at && id < 0) {
            id = km_vocab_find(&t->vocab, begin, (size_t)(w->data + prefix + end - begin));
            if (id >= 0) break;
            do end--;
            while (end > at && km_utf8_continues(text[end]));
        }
        if (id < 0) {
            e->out->len = first; /* the whole word is unknown then */
            return put_unknown_word(e, text, n);
        }
        km_status s = km_put_id(e, id);
        if (s != KM_OK) return s;
        at = end;
    }
    return KM_OK;
}

/* Merging, but for texts that are known to become one token. */
static km_status encode_whole(km_encoder *e, const char *text, size_t n) {
    enum { YES = 1, NO };
    const km_token *t = e->t;
    int32_t id = n <= LONGEST_WHOLE ? km_vocab_find(&t->vocab, text, n) : -1;
    if (id < 0) return encode_merging(e, text, n);
    uint8_t known = atomic_load_explicit(&t->whole[id], memory_order_relaxed);
    if (known == YES) return km_put_id(e, id);
    size_t before = e->out->len;
    km_status s = encode_merging(e, text, n);
    if (s != KM_OK || known == NO) return s;
    bool one = e->out->len == before + 1 && e->out->data[before] == id;
    atomic_store_explicit(&t->whole[id], one ? YES : NO, memory_order_relaxed);
    return KM_OK;
}

static km_status encode_uncached(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    int32_t id;
    switch (t->model) {
    case KM_MODEL_WORDPIECE: return encode_wordpiece(e, text, n);
    case KM_MODEL_WORDS:
        id = km_vocab_find(&t->vocab, text, n);
        return id >= 0 ? km_put_id(e, id) : put_unknown_word(e, text, n);
    case KM_MODEL_BPE:
        if (t->ignore_merges && (id = km_vocab_find(&t->vocab, text, n)) >= 0)
            return km_put_id(e, id);
        break;
    case KM_MODEL_SPM: break;
    }
    return encode_whole(e, text, n);
}

/* ---- The cache of pieces ---- */

static uint64_t load8(const char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load4(const char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The n bytes at text, 1 to 8, the last of `total` in all: none beyond them are read. */
static uint64_t load_tail(const char *text, size_t n, size_t total) {
    if (total >= 8) return load8(text + n - 8) >> (8 * (8 - n));
    if (n >= 4) return load4(text) | load4(text + n - 4) << (8 * (n - 4));
    uint64_t v = (unsigned char)text[0];
    if (n > 1) v |= (uint64_t)(unsigned char)text[1] << 8;
    if (n > 2) v |= (uint64_t)(unsigned char)text[2] << 16;
    return v;
}

static uint32_t make_key(const char *text, size_t n, uint64_t key[3]) {
    key[1] = key[2] = 0;
    if (n <= 8) {
        key[0] = load_tail(text, n, n);
    } else if (n <= 16) {
        key[0] = load8(text);
        key[1] = load_tail(text + 8, n - 8, n);
    } else {
        key[0] = load8(text);
        key[1] = load8(text + 8);
        key[2] = load_tail(text + 16, n - 16, n);
    }
    key[2] |= (uint64_t)(n + 1) << 56;
    uint64_t h = key[0] * 0x9E3779B97F4A7C15u ^ (key[1] ^ key[2] >> 7) * 0xC2B2AE3D27D4EB4Fu ^
                 key[2] * 0x165667B19E3779F9u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (uint32_t)(h >> (64 - KM_CACHE_BITS));
}

static km_cached *cache_of(km_scratch *s) {
    if (!s->cache) s->cache = km_calloc((size_t)1 << KM_CACHE_BITS, sizeof *s->cache);
    return s->cache; /* without memory for it we do without */
}

km_status km_encode_piece(km_encoder *e, const char *text, size_t n) {
    const km_token *t = e->t;
    if (n == 0) return KM_OK;
    if (t->model == KM_MODEL_BPE && t->merges.count == 0 && !t->ignore_merges)
        return encode_plain(e, text, n);
    if (t->byte_level && n == 1 && t->byte_id[(unsigned char)*text] >= 0)
        return km_put_id(e, t->byte_id[(unsigned char)*text]);
    km_cached *cache = n <= KM_CACHED_BYTES ? cache_of(e->s) : NULL;
    if (!cache) return encode_uncached(e, text, n);
    uint64_t key[3];
    km_cached *c = &cache[make_key(text, n, key)];
    if (c->key[0] == key[0] && c->key[1] == key[1] && c->key[2] == key[2]) {
        if (c->n == 1) return km_put_id(e, c->id[0]);
        return km_ids_put(e->out, c->id, (size_t)c->n, e->err);
    }
    size_t before = e->out->len;
    km_status s = encode_uncached(e, text, n);
    size_t made = e->out->len - before;
    if (s == KM_OK && made <= KM_CACHED_IDS) {
        memcpy(c->key, key, sizeof key);
        c->n = (int32_t)made;
        memcpy(c->id, e->out->data + before, made * sizeof *c->id);
    }
    return s;
}
