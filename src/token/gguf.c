/* The tokenizer of a GGUF file, brought into the form of a tokenizer.json: byte-level BPE with the
 * pattern of its family, SentencePiece with scores, WordPiece. */
#include "token/gguf.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "token/families.h"
#include "token/internal.h"
#include <string.h>

#define SPACE "\xE2\x96\x81"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE }; /* tokenizer.ggml.token_type */

typedef struct gguf_loader {
    const km_gguf *g;
    km_token *t;
    const char *name;
    int8_t *type; /* by id */
    bool byte_level, wordpiece;
    km_text text, joined; /* a token's text; both halves of a merge */
    km_error *err;
} gguf_loader;

static km_status wrong(const gguf_loader *l, const char *what) {
    return km_error_set(l->err, KM_ERR_FORMAT, "%s: %s", l->name, what);
}

static km_status no_memory(const gguf_loader *l) {
    return km_error_set(l->err, KM_ERR_MEMORY, "%s: out of memory for the tokenizer", l->name);
}

static const km_gguf_value *array_of(const km_gguf *g, const char *key, km_gguf_type type) {
    const km_gguf_value *v = km_gguf_get(g, key);
    return v && v->type == KM_GGUF_ARRAY && v->array.type == type ? v : NULL;
}

/* ---- Tokens ---- */

static km_status read_types(gguf_loader *l, size_t n) {
    const km_gguf_value *types = array_of(l->g, "tokenizer.ggml.token_type", KM_GGUF_I32);
    l->type = km_alloc(n + 1);
    if (!l->type) return no_memory(l);
    memset(l->type, NORMAL, n + 1);
    if (!types) return KM_OK;
    if (types->array.count != n) return wrong(l, "token_type has not one entry for each token");
    km_gguf_value item;
    size_t i = 0;
    for (km_gguf_iter it = km_gguf_begin(types); km_gguf_next(&it, &item); i++)
        if (item.i >= NORMAL && item.i <= BYTE) l->type[i] = (int8_t)item.i;
    return KM_OK;
}

/* The text of a token in the form of a tokenizer.json, in l->text; true when it stands for
 * itself in a byte-level vocabulary. */
static bool convert_text(gguf_loader *l, const char *text, size_t n, int type) {
    l->text.len = 0;
    if (l->byte_level && type != CONTROL && type != USER) {
        km_text_put(&l->text, text, n);
        size_t made = km_text_ok(&l->text) && n ? km_bytes_from_alphabet(text, n, l->text.data) : n;
        if (made == SIZE_MAX) return true;
        l->text.len = made;
        return false;
    }
    if (l->wordpiece && !(n > 1 && text[0] == '[' && text[n - 1] == ']')) {
        /* The file marks what starts a word; WordPiece what does not. */
        bool starts = n > 3 && memcmp(text, SPACE, 3) == 0;
        if (!starts) km_text_add(&l->text, "##");
        km_text_put(&l->text, text + (starts ? 3 : 0), n - (starts ? 3 : 0));
        return false;
    }
    km_text_put(&l->text, text, n);
    return l->byte_level;
}

static unsigned marks_of(const gguf_loader *l, int type, bool literal) {
    unsigned marks = literal ? KM_MARK_LITERAL : 0;
    if (type == CONTROL || type == UNKNOWN) return marks | KM_MARK_SPECIAL | KM_MARK_ADDED;
    if (type == USER) return marks | KM_MARK_ADDED | (l->byte_level ? 0u : KM_MARK_MODEL);
    if (type == BYTE && !l->byte_level) return marks; /* reached by falling back only */
    return marks | KM_MARK_MODEL;
}

static km_status read_tokens(gguf_loader *l) {
    const km_gguf_value *tokens = array_of(l->g, "tokenizer.ggml.tokens", KM_GGUF_STRING);
    if (!tokens || tokens->array.count == 0) return wrong(l, "it holds no tokens");
    if (tokens->array.count > KM_VOCAB_MAX) return wrong(l, "it holds too many tokens");
    km_status s = read_types(l, (size_t)tokens->array.count);
    km_gguf_value item;
    int32_t id = 0;
    for (km_gguf_iter it = km_gguf_begin(tokens); s == KM_OK && km_gguf_next(&it, &item); id++) {
        int type = l->type[id];
        bool literal = convert_text(l, item.text.data, item.text.size, type);
        unsigned marks = marks_of(l, type, literal);
        /* WordPiece files of old call all tokens normal; the unknown one must stay in the model. */
        if (l->wordpiece && type == UNKNOWN) marks |= KM_MARK_MODEL;
        if (!km_text_ok(&l->text)) return no_memory(l);
        s = km_token_put(l->t, id, km_text_str(&l->text), l->text.len, marks, l->err);
        if (s == KM_OK && marks & KM_MARK_ADDED && l->text.len > 0)
            s = km_token_put_added(l->t, &(km_added){.id = id}, l->err);
    }
    return s == KM_OK ? km_vocab_index(&l->t->vocab, NULL, l->err) : s;
}

/* A half of a merge: its token, or -1. */
static int32_t find_part(gguf_loader *l, const char *text, size_t n) {
    convert_text(l, text, n, NORMAL);
    return km_vocab_find(&l->t->vocab, km_text_str(&l->text), l->text.len);
}

static km_status read_merges(gguf_loader *l) {
    const km_gguf_value *merges = array_of(l->g, "tokenizer.ggml.merges", KM_GGUF_STRING);
    if (!merges) return wrong(l, "it holds no merges");
    km_gguf_value item;
    km_status s = KM_OK;
    for (km_gguf_iter it = km_gguf_begin(merges); s == KM_OK && km_gguf_next(&it, &item);) {
        const char *text = item.text.data;
        size_t n = item.text.size;
        /* The space in the middle; one at the very start belongs to the first token. */
        const char *space = n > 1 ? memchr(text + 1, ' ', n - 1) : NULL;
        if (!space) return wrong(l, "a merge that is not two tokens");
        size_t left_n = (size_t)(space - text);
        int32_t left = find_part(l, text, left_n), right = find_part(l, space + 1, n - left_n - 1);
        char shown[KM_SHOWN];
        int32_t to = -1;
        if (left >= 0 && right >= 0) {
            l->joined.len = 0;
            km_text_put(&l->joined, text, left_n);
            km_text_put(&l->joined, space + 1, n - left_n - 1);
            if (!km_text_ok(&l->joined)) return no_memory(l);
            to = find_part(l, km_text_str(&l->joined), l->joined.len);
        }
        if (to < 0)
            return km_error_set(l->err, KM_ERR_FORMAT,
                                "%s: merge %d, '%s', is of or makes something that is no token",
                                l->name, l->t->merges.count, km_shown_bytes(shown, text, n));
        s = km_merges_put(&l->t->merges, left, right, to, l->err);
    }
    return s;
}

static km_status read_scores(gguf_loader *l) {
    const km_gguf_value *scores = array_of(l->g, "tokenizer.ggml.scores", KM_GGUF_F32);
    if (!scores || scores->array.count != (uint64_t)l->t->vocab.count)
        return wrong(l, "it has not one score for each token");
    l->t->score = km_alloc((size_t)l->t->vocab.count * sizeof *l->t->score);
    if (!l->t->score) return no_memory(l);
    km_gguf_value item;
    size_t i = 0;
    for (km_gguf_iter it = km_gguf_begin(scores); km_gguf_next(&it, &item);)
        l->t->score[i++] = item.f == item.f ? (float)item.f : 0; /* NaN has no place in an order */
    return KM_OK;
}

/* ---- Special tokens ---- */

static km_status read_id(gguf_loader *l, const char *key, int32_t *id) {
    int64_t v = *id;
    km_status s = km_gguf_int(l->g, key, -1, (int64_t)UINT32_MAX, &v, l->err);
    if (s != KM_OK) return s;
    if (v != *id) *id = v == UINT32_MAX || !km_vocab_has(&l->t->vocab, v) ? -1 : (int32_t)v;
    return KM_OK;
}

static json_t *template_of(const km_token *t, bool bos, bool eos) {
    json_t *single = json_array(), *tokens = json_object();
    const int32_t ids[] = {bos ? t->bos : -1, -2, eos ? t->eos : -1};
    for (int i = 0; i < 3; i++) {
        if (ids[i] == -1) continue;
        if (ids[i] == -2) {
            json_array_append_new(single,
                                  json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
            continue;
        }
        size_t n;
        const char *text = km_vocab_text(&t->vocab, ids[i], &n);
        json_array_append_new(
            single, json_pack("{s:{s:s%, s:i}}", "SpecialToken", "id", text, n, "type_id", 0));
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)(n < 255 ? n : 255), text);
        json_object_set_new(tokens, key,
                            json_pack("{s:s%, s:[i], s:[s%]}", "id", text, n, "ids", (int)ids[i],
                                      "tokens", text, n));
    }
    json_t *pair = json_pack("[{s:{s:s, s:i}}, {s:{s:s, s:i}}]", "Sequence", "id", "A", "type_id",
                             0, "Sequence", "id", "B", "type_id", 1);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

static km_status read_special(gguf_loader *l, bool add_bos, bool add_eos) {
    km_token *t = l->t;
    if (l->wordpiece) {
        km_status s = read_id(l, "tokenizer.ggml.cls_token_id", &t->bos);
        if (s == KM_OK) s = read_id(l, "tokenizer.ggml.seperator_token_id", &t->eos);
        if (s == KM_OK) s = read_id(l, "tokenizer.ggml.separator_token_id", &t->eos);
        if (s != KM_OK) return s;
    }
    km_status s = read_id(l, "tokenizer.ggml.bos_token_id", &t->bos);
    if (s == KM_OK) s = read_id(l, "tokenizer.ggml.eos_token_id", &t->eos);
    if (s == KM_OK) s = read_id(l, "tokenizer.ggml.unknown_token_id", &t->unk);
    if (s == KM_OK) s = read_id(l, "tokenizer.ggml.padding_token_id", &t->pad);
    if (s == KM_OK) s = km_gguf_bool(l->g, "tokenizer.ggml.add_bos_token", &add_bos, l->err);
    if (s == KM_OK) s = km_gguf_bool(l->g, "tokenizer.ggml.add_eos_token", &add_eos, l->err);
    if (s != KM_OK) return s;
    add_bos = add_bos && t->bos >= 0;
    add_eos = add_eos && t->eos >= 0;
    if (add_bos || add_eos) t->post_processor = template_of(t, add_bos, add_eos);
    return (add_bos || add_eos) && !t->post_processor ? no_memory(l) : KM_OK;
}

/* ---- The three models ---- */

static km_status load_bpe(gguf_loader *l) {
    const char *pre = NULL, *arch = NULL;
    km_status s = km_gguf_string(l->g, "tokenizer.ggml.pre", &pre, l->err);
    if (s == KM_OK) s = km_gguf_string(l->g, "general.architecture", &arch, l->err);
    if (s != KM_OK) return s;
    if (!pre) pre = arch && strcmp(arch, "gpt2") == 0 ? "gpt-2" : "default";
    const km_family *family = km_family_find(pre);
    char shown[KM_SHOWN];
    if (!family)
        return km_error_set(l->err, KM_ERR_UNSUPPORTED,
                            "%s: the pre-tokenizer '%s' is not known here", l->name,
                            km_shown(shown, pre));
    l->byte_level = true;
    s = km_token_byte_sections(l->t, false, l->err);
    json_decref(l->t->pre_tokenizer);
    l->t->pre_tokenizer = km_family_section(family);
    if (s == KM_OK && !l->t->pre_tokenizer) s = no_memory(l);
    if (s == KM_OK && family->nfc && !(l->t->normalizer = json_pack("{s:s}", "type", "NFC")))
        s = no_memory(l);
    l->t->ignore_merges = family->ignore_merges;
    /* unknown_token_id is what a configuration calls unknown, mostly the end of text: no model of
     * this kind makes it of anything. */
    l->t->unk_unused = true;
    if (s == KM_OK) s = read_tokens(l);
    if (s == KM_OK) s = read_merges(l);
    return s == KM_OK ? read_special(l, family->add_bos, false) : s;
}

static km_status load_spm(gguf_loader *l) {
    km_token *t = l->t;
    bool prefix = true;
    t->model = KM_MODEL_SPM;
    t->kind = "spm";
    t->byte_fallback = true;
    t->fuse_unk = true;
    km_status s = km_gguf_bool(l->g, "tokenizer.ggml.add_space_prefix", &prefix, l->err);
    if (s == KM_OK) s = read_tokens(l);
    if (s == KM_OK) s = read_scores(l);
    if (s == KM_OK) s = read_special(l, true, false);
    if (s != KM_OK) return s;
    json_t *steps = json_array(), *decoders = json_array();
    if (prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
    json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                           "String", " ", "content", SPACE));
    json_array_append_new(decoders, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                              "String", SPACE, "content", " "));
    json_array_append_new(decoders, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(decoders, json_pack("{s:s}", "type", "Fuse"));
    if (prefix)
        json_array_append_new(decoders, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                                  "content", " ", "start", 1, "stop", 0));
    t->normalizer = json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
    t->decoder = json_pack("{s:s, s:o}", "type", "Sequence", "decoders", decoders);
    return t->normalizer && t->decoder ? KM_OK : no_memory(l);
}

static km_status load_bert(gguf_loader *l) {
    km_token *t = l->t;
    t->model = KM_MODEL_WORDPIECE;
    t->kind = "wordpiece";
    l->wordpiece = true;
    km_status s = read_tokens(l);
    if (s == KM_OK) s = read_special(l, true, true);
    if (s != KM_OK) return s;
    t->continuing = km_strdup("##");
    t->normalizer = json_pack("{s:s, s:b, s:b, s:n, s:b}", "type", "BertNormalizer", "clean_text",
                              1, "handle_chinese_chars", 1, "strip_accents", "lowercase", 1);
    t->pre_tokenizer = json_pack("{s:s}", "type", "BertPreTokenizer");
    t->decoder = json_pack("{s:s, s:s, s:b}", "type", "WordPiece", "prefix", "##", "cleanup", 1);
    return t->continuing && t->normalizer && t->pre_tokenizer && t->decoder ? KM_OK : no_memory(l);
}

km_token *km_token_from_gguf(const km_gguf *g, km_error *err) {
    km_error own = {0};
    gguf_loader l = {.g = g, .name = km_gguf_path(g), .err = &own};
    const char *model = NULL;
    char shown[KM_SHOWN];
    km_status s = KM_ERR_MEMORY;
    l.t = km_token_new("bpe", KM_MODEL_BPE, &own);
    if (l.t) s = km_gguf_string(g, "tokenizer.ggml.model", &model, &own);
    if (s == KM_OK && !model)
        s = km_error_set(&own, KM_ERR_FORMAT, "%s: it holds no tokenizer", l.name);
    else if (s == KM_OK && strcmp(model, "gpt2") == 0)
        s = load_bpe(&l);
    else if (s == KM_OK && strcmp(model, "llama") == 0)
        s = load_spm(&l);
    else if (s == KM_OK && strcmp(model, "bert") == 0)
        s = load_bert(&l);
    else if (s == KM_OK)
        s = km_error_set(&own, KM_ERR_UNSUPPORTED, "%s: a tokenizer of type '%s' is not supported",
                         l.name, km_shown(shown, model));
    if (s == KM_OK) s = km_token_finish(l.t, l.name, &own);
    km_free(l.type);
    km_text_free(&l.text);
    km_text_free(&l.joined);
    if (s == KM_OK) return l.t;
    km_token_free(l.t);
    km_error_set(err, s, "%s", own.text);
    return NULL;
}

km_token *km_token_load_gguf(const char *path, km_error *err) {
    km_gguf *g = km_gguf_open(path, err);
    if (!g) return NULL;
    km_token *t = km_token_from_gguf(g, err);
    if (km_gguf_check(g, err) != KM_OK) {
        km_token_free(t);
        t = NULL;
    }
    km_gguf_close(g);
    return t;
}
