/* Writing a tokenizer into the metadata of a GGUF file, as its readers expect it there. */
#include "base/alloc.h"
#include "token/families.h"
#include "token/gguf.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <string.h>

#define SPACE "\xE2\x96\x81"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

typedef struct texts { /* many strings in one block */
    km_text block;
    size_t *at, *size;
    const char **item;
    size_t n;
} texts;

static bool texts_make(texts *t, size_t n) {
    t->at = km_alloc((n + 1) * sizeof *t->at);
    t->size = km_alloc((n + 1) * sizeof *t->size);
    t->item = km_alloc((n + 1) * sizeof *t->item);
    return t->at && t->size && t->item;
}

static void texts_free(texts *t) {
    km_text_free(&t->block);
    km_free(t->at);
    km_free(t->size);
    km_free((void *)t->item);
}

static void texts_begin(texts *t) { t->at[t->n] = t->block.len; }
static void texts_end(texts *t) {
    t->size[t->n] = t->block.len - t->at[t->n];
    t->n++;
}

static bool texts_put(texts *t, km_gguf_out *out, const char *key) {
    if (!km_text_ok(&t->block)) return false;
    for (size_t i = 0; i < t->n; i++) t->item[i] = km_text_str(&t->block) + t->at[i];
    km_gguf_put_strings(out, key, t->item, t->size, t->n);
    return true;
}

/* A token's text as the file has it. */
static void put_token(const km_token *t, int32_t id, km_text *out) {
    size_t n;
    const char *text = km_vocab_text(&t->vocab, id, &n);
    if (t->byte_level && !(t->mark[id] & KM_MARK_LITERAL)) {
        for (size_t i = 0; i < n; i++) {
            char c[4];
            km_text_put(out, c, (size_t)km_utf8_write(c, km_byte_char[(unsigned char)text[i]]));
        }
        return;
    }
    if (t->model == KM_MODEL_WORDPIECE && !(n > 1 && text[0] == '[' && text[n - 1] == ']')) {
        /* The file marks what starts a word; WordPiece what does not. */
        size_t prefix = strlen(t->continuing);
        bool inside = n > prefix && memcmp(text, t->continuing, prefix) == 0;
        if (!inside) km_text_add(out, SPACE);
        km_text_put(out, text + (inside ? prefix : 0), n - (inside ? prefix : 0));
        return;
    }
    km_text_put(out, text, n);
}

static int32_t type_of(const km_token *t, int32_t id) {
    size_t n;
    if (!km_vocab_has(&t->vocab, id)) return UNUSED;
    const char *text = km_vocab_text(&t->vocab, id, &n);
    if (id == km_token_unknown(t) && t->mark[id] & KM_MARK_SPECIAL) return UNKNOWN;
    if (t->mark[id] & KM_MARK_SPECIAL) return CONTROL;
    if (t->mark[id] & KM_MARK_ADDED) return USER;
    return t->byte_fallback && km_byte_token(text, n) >= 0 ? BYTE : NORMAL;
}

static bool put_tokens(const km_token *t, km_gguf_out *out) {
    size_t n = (size_t)t->vocab.count;
    texts list = {0};
    int32_t *types = km_alloc(n * sizeof *types);
    bool ok = texts_make(&list, n) && types;
    for (int32_t id = 0; ok && id < t->vocab.count; id++) {
        texts_begin(&list);
        if (km_vocab_has(&t->vocab, id))
            put_token(t, id, &list.block);
        else
            km_text_printf(&list.block, "[PAD%d]", (int)id); /* ids without a token */
        texts_end(&list);
        types[id] = type_of(t, id);
    }
    ok = ok && texts_put(&list, out, "tokenizer.ggml.tokens");
    if (ok) km_gguf_put_array(out, "tokenizer.ggml.token_type", KM_GGUF_I32, types, n);
    texts_free(&list);
    km_free(types);
    return ok;
}

static bool put_merges(const km_token *t, km_gguf_out *out) {
    texts list = {0};
    bool ok = texts_make(&list, (size_t)t->merges.count);
    for (int32_t i = 0; ok && i < t->merges.count; i++) {
        texts_begin(&list);
        put_token(t, t->merges.list[i].left, &list.block);
        km_text_add(&list.block, " ");
        put_token(t, t->merges.list[i].right, &list.block);
        texts_end(&list);
    }
    ok = ok && texts_put(&list, out, "tokenizer.ggml.merges");
    texts_free(&list);
    return ok;
}

/* SentencePiece wants scores; merges by rank have them: the earlier the higher. */
static bool put_scores(const km_token *t, km_gguf_out *out) {
    size_t n = (size_t)t->vocab.count;
    float *score = km_calloc(n, sizeof *score);
    if (!score) return false;
    if (t->score) memcpy(score, t->score, n * sizeof *score);
    for (int32_t i = t->merges.count - 1; i >= 0 && !t->score; i--)
        score[t->merges.list[i].to] = -(float)(i + 1);
    km_gguf_put_array(out, "tokenizer.ggml.scores", KM_GGUF_F32, score, n);
    km_free(score);
    return true;
}

static bool is_member(const int32_t *list, int n, int32_t id) {
    for (int i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

static void put_special(const km_token *t, km_gguf_out *out) {
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", t->bos},
               {"tokenizer.ggml.eos_token_id", t->eos},
               {"tokenizer.ggml.unknown_token_id", t->unk},
               {"tokenizer.ggml.padding_token_id", t->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].id >= 0) km_gguf_put_u32(out, ids[i].key, (uint32_t)ids[i].id);
    if (t->model == KM_MODEL_WORDPIECE) {
        if (t->bos >= 0) km_gguf_put_u32(out, "tokenizer.ggml.cls_token_id", (uint32_t)t->bos);
        if (t->eos >= 0)
            km_gguf_put_u32(out, "tokenizer.ggml.seperator_token_id", (uint32_t)t->eos);
    }
    km_gguf_put_bool(out, "tokenizer.ggml.add_bos_token",
                     t->bos >= 0 && is_member(t->prefix, t->n_prefix, t->bos));
    km_gguf_put_bool(out, "tokenizer.ggml.add_eos_token",
                     t->eos >= 0 && is_member(t->suffix, t->n_suffix, t->eos));
}

static bool is_family(const km_token *t, const km_family *f) {
    int n = 0;
    for (; n < 7 && f->pattern[n]; n++)
        if (n >= t->n_split || strcmp(f->pattern[n], km_pattern_source(t->split[n].pattern)) != 0 ||
            t->split[n].kind != KM_SPLIT_ISOLATED || t->split[n].invert)
            return false;
    bool nfc = t->n_normal == 1 && t->normal[0].kind == KM_NORMAL_NFC;
    return n == t->n_split && f->ignore_merges == t->ignore_merges && f->nfc == nfc &&
           (nfc || t->n_normal == 0);
}

/* The family of a byte-level tokenizer, by how it cuts text; NULL: none that GGUF names. */
static const char *family_of(const km_token *t) {
    int n;
    const km_family *list = km_family_list(&n);
    /* Without merges it does not matter how text is cut. */
    if (t->n_normal == 0 && t->merges.count == 0) return "gpt-2";
    for (int i = 0; i < n; i++)
        if (is_family(t, &list[i])) return list[i].names + 1;
    return NULL;
}

km_status km_token_put_gguf(const km_token *t, km_gguf_out *out, km_error *err) {
    bool ok = true;
    if (t->model == KM_MODEL_BPE && t->byte_level) {
        const char *family = family_of(t);
        if (!family)
            return km_error_set(err, KM_ERR_UNSUPPORTED,
                                "GGUF has no name for how this tokenizer cuts text");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(family, " "), family);
        km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
        km_gguf_put_string(out, "tokenizer.ggml.pre", name);
        ok = put_tokens(t, out) && put_merges(t, out);
    } else if (t->model == KM_MODEL_WORDPIECE) {
        km_gguf_put_string(out, "tokenizer.ggml.model", "bert");
        ok = put_tokens(t, out);
    } else if (t->model == KM_MODEL_SPM || (t->model == KM_MODEL_BPE && t->byte_fallback)) {
        km_gguf_put_string(out, "tokenizer.ggml.model", "llama");
        km_gguf_put_string(out, "tokenizer.ggml.pre", "default");
        km_gguf_put_bool(out, "tokenizer.ggml.add_space_prefix",
                         km_section_has(t->normalizer, "Prepend") ||
                             km_section_has(t->pre_tokenizer, "Metaspace"));
        ok = put_tokens(t, out) && put_scores(t, out);
    } else {
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "GGUF has no words for a tokenizer of %s; export it as tokenizer.json",
                            t->kind);
    }
    put_special(t, out);
    return ok ? KM_OK : km_no_memory_for(err, "the tokenizer");
}
