/* Writing a tokenizer.json as Hugging Face's `tokenizers` reads it. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/file.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

typedef struct saver {
    const km_token *t;
    km_writer *w;
    km_text text; /* what is being written */
} saver;

static void flush(saver *s) {
    km_writer_put(s->w, km_text_str(&s->text), s->text.len);
    s->text.len = 0;
}

static void put(saver *s, const char *text) { km_text_add(&s->text, text); }

/* A JSON string. Bytes that are not UTF-8, which no vocabulary should have, become U+FFFD. */
static void put_string(saver *s, const char *text, size_t n) {
    km_text *out = &s->text;
    km_text_put(out, "\"", 1);
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int length = km_utf8_read(text + i, n - i, &cp);
        if (length == 0)
            km_text_add(out, "\xEF\xBF\xBD");
        else if (cp < 0x20 || cp == 0x7F)
            km_text_printf(out, "\\u%04x", cp);
        else if (cp == '"' || cp == '\\')
            km_text_printf(out, "\\%c", (char)cp);
        else
            km_text_put(out, text + i, (size_t)length);
        i += length ? (size_t)length : 1;
    }
    km_text_put(out, "\"", 1);
}

/* The text of a token as the file has it. */
static void put_token(saver *s, int32_t id) {
    size_t n;
    const char *text = km_vocab_text(&s->t->vocab, id, &n);
    if (!s->t->byte_level || s->t->mark[id] & KM_MARK_LITERAL) {
        put_string(s, text, n);
        return;
    }
    km_text_put(&s->text, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        uint32_t cp = km_byte_char[(unsigned char)text[i]];
        if (cp == '"' || cp == '\\') km_text_put(&s->text, "\\", 1);
        km_text_put(&s->text, c, (size_t)km_utf8_write(c, cp));
    }
    km_text_put(&s->text, "\"", 1);
}

static bool put_section(saver *s, const char *name, const json_t *section) {
    char *dump = section ? json_dumps(section, JSON_INDENT(2)) : NULL;
    if (section && !dump) return false;
    km_text_printf(&s->text, "  \"%s\": ", name);
    for (const char *p = dump ? dump : "null"; *p; p++) {
        km_text_put(&s->text, p, 1);
        if (*p == '\n') put(s, "  ");
    }
    put(s, ",\n");
    free(dump);
    return true;
}

static void put_added(saver *s) {
    const km_token *t = s->t;
    put(s, "  \"added_tokens\": [");
    for (int32_t i = 0; i < t->n_added; i++) {
        const km_added *a = &t->added[i];
        size_t n;
        const char *text = km_vocab_text(&t->vocab, a->id, &n);
        km_text_printf(&s->text, "%s\n    {\"id\": %d, \"content\": ", i ? "," : "", (int)a->id);
        put_string(s, text, n);
        km_text_printf(&s->text,
                       ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, "
                       "\"special\": %s}",
                       a->single_word ? "true" : "false", a->lstrip ? "true" : "false",
                       a->rstrip ? "true" : "false", a->normalized ? "true" : "false",
                       t->mark[a->id] & KM_MARK_SPECIAL ? "true" : "false");
    }
    put(s, t->n_added ? "\n  ],\n" : "],\n");
}

/* Added tokens have a list of their own; in the model's vocabulary is what it may come to: also
 * the bytes it falls back to, and the unknown token. SentencePiece has all of them there. */
static bool in_vocab(const km_token *t, int32_t id) {
    if (!km_vocab_has(&t->vocab, id)) return false;
    return t->mark[id] & KM_MARK_MODEL || !(t->mark[id] & KM_MARK_ADDED) ||
           id == km_token_unknown(t) || t->model == KM_MODEL_SPM;
}

static void put_vocab(saver *s) {
    put(s, "    \"vocab\": {");
    const char *between = "\n";
    for (int32_t id = 0; id < s->t->vocab.count; id++) {
        if (!in_vocab(s->t, id)) continue;
        km_text_printf(&s->text, "%s      ", between);
        put_token(s, id);
        km_text_printf(&s->text, ": %d", (int)id);
        between = ",\n";
        if (s->text.len > 65536) flush(s);
    }
    put(s, "\n    }");
}

/* ---- Merges ---- */

/* SentencePiece has none: they follow from its scores. Of the ways to make a token the one whose
 * parts come first is best; all are written, as Hugging Face does. */
typedef struct derived {
    float score;
    int32_t to, left, right;
} derived;

static int by_score(const void *pa, const void *pb) {
    const derived *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    return a->left < b->left ? -1 : a->left > b->left;
}

static bool derive_merges(const km_token *t, km_merges *out) {
    size_t n = 0, room = 0;
    derived *list = NULL;
    bool ok = true;
    for (int32_t id = 0; ok && id < t->vocab.count; id++) {
        size_t length;
        if (!(t->mark[id] & KM_MARK_MODEL)) continue;
        const char *text = km_vocab_text(&t->vocab, id, &length);
        for (size_t cut = 1; ok && cut < length; cut++) {
            if (km_utf8_continues(text[cut])) continue;
            int32_t left = km_vocab_find(&t->vocab, text, cut);
            int32_t right = left < 0 ? -1 : km_vocab_find(&t->vocab, text + cut, length - cut);
            if (right < 0) continue;
            ok = km_array_reserve(&list, &room, n + 1);
            if (!ok) break;
            list[n++] = (derived){t->score[id], id, left, right};
        }
    }
    if (n) qsort(list, n, sizeof *list, by_score);
    for (size_t i = 0; ok && i < n; i++)
        ok = km_merges_put(out, list[i].left, list[i].right, list[i].to, NULL) == KM_OK;
    km_free(list);
    return ok;
}

/* "a b" where that is clear, which every version reads; ["a", "b"] otherwise. */
static void put_merges(saver *s, const km_merges *m) {
    bool pairs = !s->t->byte_level;
    put(s, "    \"merges\": [");
    for (int32_t i = 0; i < m->count; i++) {
        put(s, i ? ",\n      " : "\n      ");
        if (pairs) put(s, "[");
        put_token(s, m->list[i].left);
        if (pairs)
            put(s, ", ");
        else if (km_text_ok(&s->text))
            s->text.len--; /* one string of both: the quotes between them go */
        size_t second = s->text.len;
        put_token(s, m->list[i].right);
        if (!pairs && km_text_ok(&s->text)) s->text.data[second] = ' ';
        if (pairs) put(s, "]");
        if (s->text.len > 65536) flush(s);
    }
    put(s, m->count ? "\n    ]\n" : "]\n");
}

/* ---- The model ---- */

static void put_name(saver *s, const char *key, int32_t id) {
    km_text_printf(&s->text, "    \"%s\": ", key);
    if (id < 0)
        put(s, "null");
    else
        put_token(s, id);
    put(s, ",\n");
}

static bool put_model(saver *s) {
    const km_token *t = s->t;
    bool ok = true;
    put(s, "  \"model\": {\n");
    if (t->model == KM_MODEL_WORDPIECE) {
        put(s, "    \"type\": \"WordPiece\",\n");
        put_name(s, "unk_token", t->unk);
        put(s, "    \"continuing_subword_prefix\": ");
        put_string(s, t->continuing, strlen(t->continuing));
        km_text_printf(&s->text, ",\n    \"max_input_chars_per_word\": %lld,\n",
                       (long long)t->longest_word);
        put_vocab(s);
        put(s, "\n");
    } else if (t->model == KM_MODEL_WORDS) {
        put(s, "    \"type\": \"WordLevel\",\n");
        put_vocab(s);
        put(s, ",\n    \"unk_token\": ");
        if (t->unk < 0)
            put(s, "\"\"");
        else
            put_token(s, t->unk);
        put(s, "\n");
    } else {
        km_merges derived_merges = {0};
        if (t->model == KM_MODEL_SPM) ok = derive_merges(t, &derived_merges);
        put(s, "    \"type\": \"BPE\",\n    \"dropout\": null,\n");
        put_name(s, "unk_token", km_token_unknown(t));
        km_text_printf(&s->text,
                       "    \"continuing_subword_prefix\": null,\n"
                       "    \"end_of_word_suffix\": null,\n"
                       "    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n"
                       "    \"ignore_merges\": %s,\n",
                       t->fuse_unk ? "true" : "false", t->byte_fallback ? "true" : "false",
                       t->ignore_merges ? "true" : "false");
        put_vocab(s);
        put(s, ",\n");
        put_merges(s, t->model == KM_MODEL_SPM ? &derived_merges : &t->merges);
        km_merges_free(&derived_merges);
    }
    put(s, "  }\n}\n");
    return ok;
}

km_status km_token_save(const km_token *t, const char *path, km_error *err) {
    if (!t) return km_error_set(err, KM_ERR_NULL, "no tokenizer to save");
    saver s = {.t = t, .w = km_writer_open(path, err)};
    if (!s.w) return err ? err->code : KM_ERR_FILE;
    put(&s, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(&s);
    bool ok = put_section(&s, "normalizer", t->normalizer) &&
              put_section(&s, "pre_tokenizer", t->pre_tokenizer) &&
              put_section(&s, "post_processor", t->post_processor) &&
              put_section(&s, "decoder", t->decoder) && put_model(&s) && km_text_ok(&s.text);
    flush(&s);
    km_text_free(&s.text);
    if (ok) return km_writer_commit(s.w, err);
    km_writer_abort(s.w);
    return km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
}
