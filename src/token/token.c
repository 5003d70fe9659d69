/* Making a tokenizer from its parts, and what it tells about itself. Bytes and characters are the
 * two kinds that need nothing but this. */
#include "base/alloc.h"
#include "token/encode.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- Parts ---- */

km_token *km_token_new(const char *kind, km_token_model model, km_error *err) {
    km_token *t = km_calloc(1, sizeof *t);
    if (!t) {
        km_no_memory_for(err, "a tokenizer");
        return NULL;
    }
    t->kind = kind;
    t->model = model;
    t->bos = t->eos = t->unk = t->pad = -1;
    t->longest_word = 100;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

km_status km_token_put(km_token *t, int64_t id, const char *text, size_t n, unsigned marks,
                       km_error *err) {
    int32_t had = t->vocab.count, room = t->vocab.room_items;
    km_status s = km_vocab_put(&t->vocab, id, text, n, err);
    if (s != KM_OK) return s;
    if (!t->mark || t->vocab.room_items != room) {
        uint8_t *mark = km_realloc(t->mark, (size_t)t->vocab.room_items);
        if (!mark) return km_no_memory_for(err, "a tokenizer");
        t->mark = mark;
    }
    if (t->vocab.count > had) memset(t->mark + had, 0, (size_t)(t->vocab.count - had));
    t->mark[id] = (uint8_t)marks;
    return KM_OK;
}

km_status km_token_put_added(km_token *t, const km_added *a, km_error *err) {
    if ((t->n_added & (t->n_added - 1)) == 0) { /* full at every power of two */
        size_t room = t->n_added ? 2 * (size_t)t->n_added : 1;
        km_added *more = km_realloc(t->added, room * sizeof *more);
        if (!more) return km_no_memory_for(err, "a tokenizer");
        t->added = more;
    }
    t->added[t->n_added++] = *a;
    return KM_OK;
}

/* ---- Tables ---- */

static km_status index_model(km_token *t, km_error *err) {
    bool *listed = km_alloc((size_t)t->vocab.count + 1);
    if (!listed) return km_no_memory_for(err, "a tokenizer");
    for (int32_t i = 0; i < t->vocab.count; i++) listed[i] = t->mark[i] & KM_MARK_MODEL;
    km_status s = km_vocab_index(&t->vocab, listed, err);
    km_free(listed);
    return s == KM_OK ? km_merges_index(&t->merges, err) : s;
}

static void fill_symbols(km_token *t) {
    for (int b = 0; b < 256; b++) {
        char text[1] = {(char)b};
        int32_t id = km_vocab_find(&t->vocab, text, 1);
        t->byte_id[b] = t->byte_level ? id : -1;
        if (b < 128) t->ascii_id[b] = id;
    }
    /* The tokens that stand for bytes may be outside of what the model itself produces. */
    for (int32_t id = 0; t->byte_fallback && !t->byte_level && id < t->vocab.count; id++) {
        if (!km_vocab_has(&t->vocab, id)) continue;
        size_t n;
        const char *text = km_vocab_text(&t->vocab, id, &n);
        int byte = km_byte_token(text, n);
        if (byte >= 0) t->byte_id[byte] = id;
    }
}

/* Where the text may be cut although the tokenizer has no pattern: no token reaches across. */
static km_border find_border(const km_token *t) {
    static const char mark[] = "\xE2\x96\x81";
    if (t->n_split > 0 || t->ignore_merges) return KM_BORDER_NONE;
    if (t->model == KM_MODEL_BPE && t->merges.count == 0)
        return t->fuse_unk && km_token_unknown(t) >= 0 ? KM_BORDER_NONE : KM_BORDER_CHAR;
    if (t->model != KM_MODEL_BPE && t->model != KM_MODEL_SPM) return KM_BORDER_NONE;
    if (t->byte_level || km_vocab_find(&t->vocab, mark, 3) < 0) return KM_BORDER_NONE;
    for (int32_t id = 0; id < t->vocab.count; id++) {
        if (!(t->mark[id] & KM_MARK_MODEL)) continue;
        size_t n;
        const char *text = km_vocab_text(&t->vocab, id, &n);
        const char *last = NULL, *end = text + n;
        for (const char *at = text; (at = memmem(at, (size_t)(end - at), mark, 3)); at += 3) {
            if (at != text && at != last) return KM_BORDER_NONE;
            last = at + 3;
        }
    }
    return KM_BORDER_SPACE;
}

static void hash_section(XXH3_state_t *h, const json_t *section) {
    char *dump = section ? json_dumps(section, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (dump) XXH3_64bits_update(h, dump, strlen(dump) + 1);
    free(dump);
}

/* What a tokenizer is known by stays when it goes through a file. SentencePiece comes back as BPE
 * with merges for scores, so there neither counts: its vocabulary is enough. */
static km_status hash_all(km_token *t, km_error *err) {
    XXH3_state_t *h = XXH3_createState();
    if (!h) return km_no_memory_for(err, "a tokenizer");
    XXH3_64bits_reset(h);
    bool sentencepiece = t->byte_fallback && !t->byte_level;
    const int32_t plain[] = {t->model == KM_MODEL_SPM ? KM_MODEL_BPE : (int32_t)t->model,
                             t->byte_level,
                             t->byte_fallback,
                             t->fuse_unk,
                             t->ignore_merges,
                             km_token_unknown(t),
                             t->vocab.count};
    XXH3_64bits_update(h, plain, sizeof plain);
    for (int32_t id = 0; id < t->vocab.count; id++) {
        if (!km_vocab_has(&t->vocab, id)) continue;
        size_t n;
        const char *text = km_vocab_text(&t->vocab, id, &n);
        const int32_t row[] = {id, t->mark[id] & (KM_MARK_ADDED | KM_MARK_SPECIAL), (int32_t)n};
        XXH3_64bits_update(h, row, sizeof row);
        XXH3_64bits_update(h, text, n);
    }
    if (t->merges.count && !sentencepiece)
        XXH3_64bits_update(h, t->merges.list, (size_t)t->merges.count * sizeof *t->merges.list);
    for (int32_t i = 0; i < t->n_added; i++) {
        const km_added *a = &t->added[i];
        const int32_t row[] = {a->id, a->lstrip, a->rstrip, a->single_word, a->normalized};
        XXH3_64bits_update(h, row, sizeof row);
    }
    hash_section(h, t->normalizer);
    hash_section(h, t->pre_tokenizer);
    hash_section(h, t->post_processor);
    t->hash = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return KM_OK;
}

km_status km_token_finish(km_token *t, const char *name, km_error *err) {
    if (t->vocab.count == 0)
        return km_error_set(err, KM_ERR_FORMAT, "%s: the vocabulary is empty", name);
    km_status s = index_model(t, err);
    if (s != KM_OK) return s;
    fill_symbols(t);
    s = km_token_compile(t, name, err);
    if (s == KM_OK) s = km_token_compile_decoder(t, name, err);
    if (s == KM_OK) s = km_finder_build(&t->raw, t, false, err);
    if (s == KM_OK) s = km_finder_build(&t->normalized, t, true, err);
    t->border = find_border(t);
    t->whole = km_calloc((size_t)t->vocab.count, 1);
    if (s == KM_OK && !t->whole) s = km_no_memory_for(err, "a tokenizer");
    return s == KM_OK ? hash_all(t, err) : s;
}

void km_token_free(km_token *t) {
    if (!t) return;
    for (km_scratch *s = t->scratches, *next; s; s = next) {
        next = s->next;
        km_scratch_free(s);
    }
    km_token_compile_free(t);
    km_finder_free(&t->raw);
    km_finder_free(&t->normalized);
    km_vocab_free(&t->vocab);
    km_vocab_free(&t->shown);
    km_merges_free(&t->merges);
    km_free(t->mark);
    km_free(t->score);
    km_free((void *)t->whole);
    km_free(t->continuing);
    km_free(t->added);
    json_decref(t->normalizer);
    json_decref(t->pre_tokenizer);
    json_decref(t->post_processor);
    json_decref(t->decoder);
    pthread_mutex_destroy(&t->lock);
    km_free(t);
}

/* ---- Bytes and characters ---- */

/* Finishes t, or frees it and gives NULL. */
static km_token *finished(km_token *t, km_status s, const char *name, km_error *err) {
    if (s == KM_OK) s = km_token_finish(t, name, err);
    if (s == KM_OK) return t;
    km_token_free(t);
    return NULL;
}

km_status km_token_byte_sections(km_token *t, bool regex, km_error *err) {
    t->byte_level = true;
    t->pre_tokenizer = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                 "trim_offsets", 1, "use_regex", (int)regex);
    t->decoder = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                           "trim_offsets", 1, "use_regex", 1);
    return t->pre_tokenizer && t->decoder ? KM_OK : km_no_memory_for(err, "a tokenizer");
}

km_token *km_token_bytes(km_error *err) {
    km_token *t = km_token_new("bytes", KM_MODEL_BPE, err);
    if (!t) return NULL;
    km_status s = km_token_byte_sections(t, false, err);
    for (int b = 0; s == KM_OK && b < 256; b++)
        s = km_token_put(t, b, (char[]){(char)b}, 1, KM_MARK_MODEL, err);
    return finished(t, s, "bytes", err);
}

/* Marks the characters of one text; where it is not UTF-8 is an error. */
static km_status see_characters(const km_span *text, size_t index, uint8_t *seen, km_error *err) {
    for (size_t i = 0; i < text->bytes;) {
        uint32_t cp;
        int length = km_utf8_read(text->data + i, text->bytes - i, &cp);
        if (length == 0)
            return km_error_set(err, KM_ERR_FORMAT,
                                "text %zu is not UTF-8: byte 0x%02X at %zu; a tokenizer of bytes "
                                "takes any text",
                                index + 1, (unsigned char)text->data[i], i);
        seen[cp / 8] |= (uint8_t)(1u << (cp % 8));
        i += (size_t)length;
    }
    return KM_OK;
}

km_token *km_token_chars(const km_span *texts, size_t n, km_error *err) {
    if (!texts && n) {
        km_error_set(err, KM_ERR_NULL, "no text to make a tokenizer from");
        return NULL;
    }
    km_token *t = km_token_new("chars", KM_MODEL_BPE, err);
    uint8_t *seen = t ? km_calloc(0x110000 / 8, 1) : NULL;
    km_status s = seen ? KM_OK : km_no_memory_for(err, "a tokenizer");
    for (size_t i = 0; s == KM_OK && i < n; i++) s = see_characters(&texts[i], i, seen, err);
    int32_t id = 0;
    for (uint32_t cp = 0; s == KM_OK && cp < 0x110000; cp++) {
        if (!(seen[cp / 8] & 1u << (cp % 8))) continue;
        char text[4];
        s = km_token_put(t, id++, text, (size_t)km_utf8_write(text, cp), KM_MARK_MODEL, err);
    }
    km_free(seen);
    if (s == KM_OK && id == 0)
        s = km_error_set(err, KM_ERR_RANGE, "an empty text has no characters to make tokens of");
    if (s == KM_OK && !(t->decoder = json_pack("{s:s}", "type", "Fuse")))
        s = km_no_memory_for(err, "a tokenizer");
    return t ? finished(t, s, "chars", err) : NULL;
}

/* ---- What it is ---- */

int64_t km_token_vocab(const km_token *t) { return t->vocab.count; }
const char *km_token_kind(const km_token *t) { return t->kind; }
int32_t km_token_bos(const km_token *t) { return t->bos; }
int32_t km_token_eos(const km_token *t) { return t->eos; }
int32_t km_token_unk(const km_token *t) { return t->unk; }
int32_t km_token_pad(const km_token *t) { return t->pad; }
uint64_t km_token_hash(const km_token *t) { return t->hash; }

int32_t km_token_find(const km_token *t, const char *text) {
    size_t n = strlen(text), length;
    for (int32_t i = 0; i < t->n_added; i++) {
        const char *other = km_vocab_text(&t->vocab, t->added[i].id, &length);
        if (length == n && memcmp(other, text, n) == 0) return t->added[i].id;
    }
    return km_vocab_find(&t->vocab, text, n);
}

bool km_token_is_special(const km_token *t, int32_t id) {
    return km_vocab_has(&t->vocab, id) && t->mark[id] & KM_MARK_SPECIAL;
}

bool km_token_is_end(const km_token *t, int32_t id) {
    static const char *const ends[] = {
        "<|im_end|>",      "<|eot_id|>", "<|end|>", "<end_of_turn>",  "<|eom_id|>",
        "<|end_of_text|>", KM_TOKEN_END, "</s>",    "<|return|>",     "<|endofturn|>",
        "<|eot|>",         "<EOT>",      "<eos>",   "<|end_of_turn|>"};
    if (!km_vocab_has(&t->vocab, id)) return false;
    if (id == t->eos) return true;
    if (!(t->mark[id] & (KM_MARK_SPECIAL | KM_MARK_ADDED))) return false;
    size_t n;
    const char *text = km_vocab_text(&t->vocab, id, &n);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strlen(ends[i]) == n && memcmp(ends[i], text, n) == 0) return true;
    return false;
}
