/* Loading a tokenizer.json. Its two long parts, the vocabulary and the merges, are scanned in
 * place; the rest is small. Everything is checked: ids given twice, merges of tokens that do not
 * exist, a file that ends in the middle. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/shown.h"
#include "token/gguf.h"
#include "token/internal.h"
#include "token/json_scan.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct json_loader {
    km_token *t;
    const char *name;
    km_error *err;
    km_text a, b, raw; /* strings being read */
    km_span whole;
    km_span added, normalizer, pre_tokenizer, post_processor, decoder, model; /* slices */
    km_span vocab, merges;
    json_t *settings; /* of the model: all but the two lists */
} json_loader;

static km_status wrong(const json_loader *l, const char *what) {
    return km_error_set(l->err, KM_ERR_FORMAT, "%s: %s", l->name, what);
}

static km_json_scan scan_of(const json_loader *l, km_span part) {
    const char *data = part.data ? part.data : l->whole.data; /* a missing part is empty */
    return (km_json_scan){l->whole.data, data, data + part.bytes, l->name, l->err};
}

/* ---- Slices ---- */

typedef km_status (*member_fn)(json_loader *l, const char *key, km_span value);

static km_status each_member(json_loader *l, km_span object, member_fn fn) {
    km_json_scan s = scan_of(l, object);
    km_status status = km_json_expect(&s, '{');
    bool more = status == KM_OK && km_json_peek(&s) != '}';
    while (status == KM_OK && more) {
        km_span value;
        status = km_json_read_string(&s, &l->a);
        if (status == KM_OK) status = km_json_expect(&s, ':');
        if (status == KM_OK) status = km_json_skip(&s, &value);
        if (status == KM_OK) status = fn(l, km_text_str(&l->a), value);
        if (status == KM_OK) status = km_json_more(&s, '}', &more);
    }
    return status;
}

static km_status top_member(json_loader *l, const char *key, km_span value) {
    const struct {
        const char *key;
        km_span *slice;
    } known[] = {{"added_tokens", &l->added}, {"normalizer", &l->normalizer},
                 {"decoder", &l->decoder},    {"post_processor", &l->post_processor},
                 {"model", &l->model},        {"pre_tokenizer", &l->pre_tokenizer}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i].key) == 0) *known[i].slice = value;
    return KM_OK;
}

static json_t *parse_small(const json_loader *l, km_span part, km_status *status) {
    if (!part.data) return NULL;
    json_error_t why;
    json_t *v = json_loadb(part.data, part.bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!v) {
        char shown[KM_SHOWN];
        *status = km_error_set(l->err, KM_ERR_FORMAT, "%s: %s", l->name, km_shown(shown, why.text));
    }
    if (json_is_null(v)) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

static km_status model_member(json_loader *l, const char *key, km_span value) {
    if (strcmp(key, "vocab") == 0) {
        l->vocab = value;
    } else if (strcmp(key, "merges") == 0) {
        l->merges = value;
    } else {
        km_status status = KM_OK;
        json_t *v = parse_small(l, value, &status);
        if (v && json_object_set_new(l->settings, key, v) != 0) return wrong(l, "out of memory");
        return status;
    }
    return KM_OK;
}

/* ---- The model ---- */

static bool setting(const json_loader *l, const char *key) {
    return json_is_true(json_object_get(l->settings, key));
}

static km_status read_settings(json_loader *l) {
    km_token *t = l->t;
    const char *type = json_string_value(json_object_get(l->settings, "type"));
    char shown[KM_SHOWN];
    if (!type) /* files from before models were named */
        type = l->merges.data                                             ? "BPE"
               : json_object_get(l->settings, "max_input_chars_per_word") ? "WordPiece"
                                                                          : "";
    if (strcmp(type, "BPE") == 0) {
        t->model = KM_MODEL_BPE;
        t->kind = "bpe";
        t->byte_level = km_section_has(t->pre_tokenizer, "ByteLevel");
    } else if (strcmp(type, "WordPiece") == 0) {
        t->model = KM_MODEL_WORDPIECE;
        t->kind = "wordpiece";
    } else if (strcmp(type, "WordLevel") == 0) {
        t->model = KM_MODEL_WORDS;
        t->kind = "words";
    } else {
        return km_error_set(l->err, KM_ERR_UNSUPPORTED, "%s: a model of type '%s' is not supported",
                            l->name, km_shown(shown, type));
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2 && t->model == KM_MODEL_BPE; i++) {
        const char *affix = json_string_value(json_object_get(l->settings, affixes[i]));
        if (affix && *affix)
            return km_error_set(l->err, KM_ERR_UNSUPPORTED, "%s: a BPE with %s is not supported",
                                l->name, affixes[i]);
    }
    if (json_number_value(json_object_get(l->settings, "dropout")) > 0)
        return km_error_set(l->err, KM_ERR_UNSUPPORTED, "%s: a BPE with dropout is not supported",
                            l->name);
    t->byte_fallback = setting(l, "byte_fallback");
    t->fuse_unk = setting(l, "fuse_unk");
    t->ignore_merges = setting(l, "ignore_merges");
    if (t->model != KM_MODEL_WORDPIECE) return KM_OK;
    const char *prefix =
        json_string_value(json_object_get(l->settings, "continuing_subword_prefix"));
    const json_t *longest = json_object_get(l->settings, "max_input_chars_per_word");
    if (json_is_integer(longest)) t->longest_word = json_integer_value(longest);
    t->continuing = km_strdup(prefix ? prefix : "##");
    return t->continuing ? KM_OK
                         : km_error_set(l->err, KM_ERR_MEMORY, "%s: out of memory", l->name);
}

/* A text as the vocabulary keeps it: of a byte-level model, the bytes it stands for. */
static const char *inner_text(json_loader *l, const km_text *text, size_t *n, unsigned *marks) {
    *n = text->len;
    if (!l->t->byte_level) return km_text_str(text);
    l->raw.len = 0;
    km_text_put(&l->raw, km_text_str(text), text->len); /* room: bytes are never more */
    size_t made = km_text_ok(&l->raw) && l->raw.data
                      ? km_bytes_from_alphabet(km_text_str(text), text->len, l->raw.data)
                      : text->len;
    if (made == SIZE_MAX) {
        if (marks) *marks |= KM_MARK_LITERAL;
        return km_text_str(text);
    }
    *n = made;
    return km_text_str(&l->raw);
}

static km_status read_vocab(json_loader *l) {
    km_json_scan s = scan_of(l, l->vocab);
    if (!l->vocab.data || km_json_peek(&s) != '{') return wrong(l, "the model has no vocabulary");
    s.at++;
    bool more = km_json_peek(&s) != '}';
    km_status status = KM_OK;
    while (status == KM_OK && more) {
        int64_t id;
        unsigned marks = KM_MARK_MODEL;
        size_t n;
        status = km_json_read_string(&s, &l->a);
        if (status == KM_OK) status = km_json_expect(&s, ':');
        if (status == KM_OK) status = km_json_read_int(&s, &id);
        if (status != KM_OK) break;
        const char *text = inner_text(l, &l->a, &n, &marks);
        km_error why = {0};
        status = km_token_put(l->t, id, text, n, marks, &why);
        if (status != KM_OK) return km_error_set(l->err, status, "%s: %s", l->name, why.text);
        status = km_json_more(&s, '}', &more);
    }
    if (status == KM_OK && l->t->vocab.count == 0) return wrong(l, "the vocabulary is empty");
    if (status != KM_OK) return status;
    int32_t sparse = 0;
    for (int32_t i = 0; i < l->t->vocab.count; i++) sparse += !km_vocab_has(&l->t->vocab, i);
    if (sparse > l->t->vocab.count / 2 + 65536)
        return wrong(l, "more than half of the ids have no token");
    return km_vocab_index(&l->t->vocab, NULL, l->err);
}

static int32_t find_text(json_loader *l, const km_text *text) {
    size_t n;
    const char *inner = inner_text(l, text, &n, NULL);
    return km_vocab_find(&l->t->vocab, inner, n);
}

/* One merge: "a b", or ["a", "b"]. */
static km_status read_pair(json_loader *l, km_json_scan *s) {
    if (km_json_peek(s) == '[') {
        s->at++;
        km_status status = km_json_read_string(s, &l->a);
        if (status == KM_OK) status = km_json_expect(s, ',');
        if (status == KM_OK) status = km_json_read_string(s, &l->b);
        return status == KM_OK ? km_json_expect(s, ']') : status;
    }
    km_status status = km_json_read_string(s, &l->a);
    if (status != KM_OK) return status;
    const char *text = km_text_str(&l->a);
    const char *space = memchr(text, ' ', l->a.len);
    if (!space || memchr(space + 1, ' ', (size_t)(text + l->a.len - space - 1)))
        return km_json_wrong(s, "a merge that is not two tokens");
    l->b.len = 0;
    km_text_put(&l->b, space + 1, (size_t)(text + l->a.len - space - 1));
    l->a.data[l->a.len = (size_t)(space - text)] = 0;
    return KM_OK;
}

static km_status read_merge(json_loader *l, km_json_scan *s) {
    km_status status = read_pair(l, s);
    if (status != KM_OK) return status;
    char shown[KM_SHOWN];
    int32_t left = find_text(l, &l->a), right = find_text(l, &l->b);
    if (left < 0 || right < 0)
        return km_error_set(l->err, KM_ERR_FORMAT, "%s: merge %d is of '%s', which is no token",
                            l->name, l->t->merges.count,
                            left < 0 ? km_shown_bytes(shown, km_text_str(&l->a), l->a.len)
                                     : km_shown_bytes(shown, km_text_str(&l->b), l->b.len));
    km_text_put(&l->a, km_text_str(&l->b), l->b.len);
    int32_t to = find_text(l, &l->a);
    if (to < 0)
        return km_error_set(l->err, KM_ERR_FORMAT, "%s: merge %d makes '%s', which is no token",
                            l->name, l->t->merges.count,
                            km_shown_bytes(shown, km_text_str(&l->a), l->a.len));
    return km_merges_put(&l->t->merges, left, right, to, l->err);
}

static km_status read_merges(json_loader *l) {
    km_json_scan s = scan_of(l, l->merges);
    if (l->t->model != KM_MODEL_BPE || !l->merges.data) return KM_OK;
    km_status status = km_json_expect(&s, '[');
    bool more = status == KM_OK && km_json_peek(&s) != ']';
    while (status == KM_OK && more) {
        status = read_merge(l, &s);
        if (status == KM_OK) status = km_json_more(&s, ']', &more);
    }
    return status;
}

static km_status read_unk(json_loader *l) {
    const json_t *v = json_object_get(l->settings, "unk_token");
    if (!json_is_string(v)) return KM_OK;
    l->a.len = 0;
    km_text_put(&l->a, json_string_value(v), json_string_length(v));
    l->t->unk = find_text(l, &l->a);
    return KM_OK; /* WordPiece files name one that may not be there; it is needed or it is not */
}

/* ---- Added tokens ---- */

static km_status read_added(json_loader *l) {
    km_status status = KM_OK;
    json_t *list = parse_small(l, l->added, &status);
    if (list && !json_is_array(list)) status = wrong(l, "added_tokens is no list");
    for (size_t i = 0; status == KM_OK && i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i), *text = json_object_get(o, "content");
        const json_t *id = json_object_get(o, "id");
        if (!json_is_string(text) || !json_is_integer(id) || json_string_length(text) == 0) {
            status = wrong(l, "an added token without id or content");
            break;
        }
        json_int_t at = json_integer_value(id);
        const char *content = json_string_value(text);
        size_t n = json_string_length(text);
        bool special = json_is_true(json_object_get(o, "special"));
        unsigned marks = KM_MARK_ADDED | KM_MARK_LITERAL | (special ? KM_MARK_SPECIAL : 0u);
        if (km_vocab_has(&l->t->vocab, at)) {
            /* In the model's vocabulary too, and then it must be the same. Byte-level models keep
             * the bytes; text of the plain alphabet is the same in both. */
            size_t own;
            const char *known = km_vocab_text(&l->t->vocab, (int32_t)at, &own);
            bool same = own == n && memcmp(known, content, n) == 0;
            if (!same) {
                l->a.len = 0;
                km_text_put(&l->a, content, n);
                same = find_text(l, &l->a) == at;
            }
            if (!same) {
                char a[KM_SHOWN], b[KM_SHOWN];
                status = km_error_set(l->err, KM_ERR_FORMAT,
                                      "%s: id %lld is given twice, to '%s' and to '%s'", l->name,
                                      (long long)at, km_shown_bytes(a, known, own),
                                      km_shown_bytes(b, content, n));
                break;
            }
            l->t->mark[at] |= (uint8_t)(marks & ~(unsigned)KM_MARK_LITERAL);
        } else {
            km_error why = {0};
            status = km_token_put(l->t, at, content, n, marks, &why);
            if (status != KM_OK) km_error_set(l->err, status, "%s: %s", l->name, why.text);
        }
        km_added a = {.id = (int32_t)at,
                      .lstrip = json_is_true(json_object_get(o, "lstrip")),
                      .rstrip = json_is_true(json_object_get(o, "rstrip")),
                      .single_word = json_is_true(json_object_get(o, "single_word")),
                      .normalized = json_is_true(json_object_get(o, "normalized"))};
        if (status == KM_OK) status = km_token_put_added(l->t, &a, l->err);
    }
    json_decref(list);
    return status;
}

/* ---- Which tokens mean what ---- */

static int32_t first_of(const km_token *t, const char *const *names) {
    for (; *names; names++) {
        int32_t id = km_token_find(t, *names);
        if (id >= 0 && t->mark[id] & KM_MARK_ADDED) return id;
    }
    return -1;
}

/* The file does not say; a tokenizer_config.json beside it may, and the usual names do. */
static void guess_special(km_token *t) {
    static const char *const bos[] = {
        "<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]", NULL};
    static const char *const eos[] = {
        "</s>", KM_TOKEN_END, "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>", NULL};
    static const char *const pad[] = {"<pad>", "[PAD]", "<|pad|>", "<|padding|>", NULL};
    t->bos = t->n_prefix ? t->prefix[0] : first_of(t, bos);
    t->eos = t->n_suffix ? t->suffix[t->n_suffix - 1] : first_of(t, eos);
    t->pad = first_of(t, pad);
}

/* ---- All ---- */

static km_status load_all(json_loader *l) {
    km_json_scan s = scan_of(l, l->whole);
    km_span object;
    if (km_json_peek(&s) != '{') return wrong(l, "not a tokenizer.json: it is no JSON object");
    km_status status = km_json_skip(&s, &object);
    if (status == KM_OK && (km_json_peek(&s) || s.at != s.end))
        status = km_json_wrong(&s, "something after the end");
    if (status == KM_OK) status = each_member(l, object, top_member);
    if (status != KM_OK) return status;
    if (!l->model.data || l->model.data[0] != '{')
        return wrong(l, "not a tokenizer.json: it has no model");
    l->t->normalizer = parse_small(l, l->normalizer, &status);
    l->t->pre_tokenizer = parse_small(l, l->pre_tokenizer, &status);
    l->t->post_processor = parse_small(l, l->post_processor, &status);
    l->t->decoder = parse_small(l, l->decoder, &status);
    if (status == KM_OK) status = each_member(l, l->model, model_member);
    if (status == KM_OK) status = read_settings(l);
    if (status == KM_OK) status = read_vocab(l);
    if (status == KM_OK) status = read_merges(l);
    if (status == KM_OK) status = read_unk(l);
    if (status == KM_OK) status = read_added(l);
    if (status == KM_OK && (!km_text_ok(&l->a) || !km_text_ok(&l->b) || !km_text_ok(&l->raw)))
        status = km_error_set(l->err, KM_ERR_MEMORY, "%s: out of memory", l->name);
    if (status == KM_OK) status = km_token_finish(l->t, l->name, l->err);
    if (status == KM_OK) guess_special(l->t);
    return status;
}

/* What kind a file of ours was, before it was saved. */
static const char *name_kind(const km_token *t) {
    if (t->model != KM_MODEL_BPE || t->merges.count || t->n_added) return t->kind;
    if (t->byte_level) return t->vocab.count == 256 ? "bytes" : t->kind;
    return t->border == KM_BORDER_CHAR ? "chars" : t->kind;
}

km_token *km_token_parse(const char *json, size_t bytes, const char *name, km_error *err) {
    if (!json || !name) {
        km_error_set(err, KM_ERR_NULL, "no tokenizer given");
        return NULL;
    }
    km_error own = {0};
    json_loader l = {.name = name, .err = &own, .whole = {json, bytes}};
    l.t = km_token_new("bpe", KM_MODEL_BPE, &own);
    l.settings = json_object();
    km_status s = l.t && l.settings ? load_all(&l) : KM_ERR_MEMORY;
    json_decref(l.settings);
    km_text_free(&l.a);
    km_text_free(&l.b);
    km_text_free(&l.raw);
    if (s == KM_OK) {
        l.t->kind = name_kind(l.t);
        return l.t;
    }
    km_token_free(l.t);
    km_error_set(err, s, "%s", own.text[0] ? own.text : "out of memory for a tokenizer");
    return NULL;
}

/* ---- Files ---- */

/* A token by a member of tokenizer_config.json: a text, or an object with it. */
static void configure(const km_token *t, const json_t *config, const char *key, int32_t *id) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    int32_t found = json_is_string(v) ? km_token_find(t, json_string_value(v)) : -1;
    if (found >= 0) *id = found;
}

static void read_config(km_token *t, const char *folder) {
    km_text path = {0};
    km_text_printf(&path, "%s/tokenizer_config.json", folder);
    json_t *config = km_text_ok(&path) ? json_load_file(km_text_str(&path), 0, NULL) : NULL;
    configure(t, config, "bos_token", &t->bos);
    configure(t, config, "eos_token", &t->eos);
    configure(t, config, "pad_token", &t->pad);
    json_decref(config);
    km_text_free(&path);
}

static km_token *load_json(const char *path, km_error *err) {
    km_map map;
    if (km_map_open(&map, path, err) != KM_OK) return NULL;
    km_token *t = NULL;
    if (map.size == 0)
        km_error_set(err, KM_ERR_FORMAT, "%s: the file is empty", path);
    else
        t = km_token_parse((const char *)map.data, map.size, path, err);
    if (km_map_done(&map, KM_OK, err) != KM_OK) {
        km_token_free(t);
        return NULL;
    }
    if (!t) return NULL;
    const char *slash = strrchr(path, '/');
    km_text folder = {0};
    km_text_put(&folder, slash ? path : ".", slash ? (size_t)(slash - path) : 1);
    if (slash == path) km_text_put(&folder, "/", 1);
    if (km_text_ok(&folder)) read_config(t, km_text_str(&folder));
    km_text_free(&folder);
    return t;
}

km_token *km_token_load(const char *path, km_error *err) {
    if (!path || !*path) {
        km_error_set(err, KM_ERR_NULL, "no tokenizer given");
        return NULL;
    }
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        km_text file = {0};
        km_text_printf(&file, "%s/tokenizer.json", path);
        km_token *t = NULL;
        if (!km_text_ok(&file))
            km_no_memory(err);
        else if (stat(km_text_str(&file), &st) != 0)
            km_error_set(err, KM_ERR_FILE, "folder '%s' holds no tokenizer.json", path);
        else
            t = load_json(km_text_str(&file), err);
        km_text_free(&file);
        return t;
    }
    km_map map;
    if (km_map_open(&map, path, err) != KM_OK) return NULL;
    bool gguf = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    km_map_close(&map);
    return gguf ? km_token_load_gguf(path, err) : load_json(path, err);
}
