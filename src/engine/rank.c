/* Ranking: how well documents answer a query (cross-encoders, "rerankers", as GGUF has them: pooling type
 * rank). The model reads both in one text, by a template of its file, and a head of one or two rows looks at
 * the last token's hidden state. A head of two is for "yes" and "no", and the score their softmax; where
 * the file has no head, these are the rows of the two words in the output matrix (Qwen3-Reranker). */
#include "base/alloc.h"
#include "base/sized.h"
#include "base/util.h"
#include "engine/engine.h"
#include "format/gguf.h"
#include "model/layout.h"
#include "tensor/quant.h"
#include <math.h>
#include <string.h>

enum { PARTS = 9 }; /* of a template: texts, and the places of query and document between them */

typedef enum rank_part_kind { PART_TEXT, PART_QUERY, PART_DOCUMENT } rank_part_kind;

typedef struct rank_part {
    rank_part_kind kind;
    size_t from, bytes; /* of a text, in the template */
} rank_part;

typedef struct km_ranker {
    char *template; /* with {query} and {document} in it */
    rank_part part[PARTS];
    int n_parts;
    size_t n_special; /* tokens of the template that are no text */
    int rows;         /* 1, or 2: "yes" and then "no" */
    float *head;      /* (rows, dim) */
    float bias[2];
} km_ranker;

void km_ranker_free(km_ranker *r) {
    if (!r) return;
    km_free(r->template);
    km_free(r->head);
    km_free(r);
}

/* ---- From the file ---- */

/* n elements of a tensor from one of its rows on, as floats. */
static km_status floats_of(const km_gguf_tensor *t, int64_t row, size_t n, float *out,
                           km_error *err) {
    km_dtype d = t->info->dtype;
    int64_t dim = t->shape.dim[t->shape.ndim - 1];
    const char *data = (const char *)t->data + km_dtype_bytes(d, row * dim);
    if (km_dtype_is_block(d)) {
        km_dequantise(d, data, (int64_t)n, out);
        return KM_OK;
    }
    km_layout_row plain = {.shape = KM_SHAPE((int64_t)n)};
    km_stored stored = {d, data};
    return km_layout_copy(&plain, &stored, KM_STORE_GGUF, KM_STORE_GGUF, KM_F32, 0, n, out, err);
}

static bool can_read(const km_gguf_tensor *t) {
    km_dtype d = t->info->dtype;
    return d != KM_DTYPE_COUNT && (km_dtype_is_float(d) || km_dtype_is_block(d));
}

/* Which of two rows is that for "yes": the first, unless the file says otherwise. */
static bool no_comes_first(const km_gguf *g, const char *arch) {
    char key[96];
    snprintf(key, sizeof key, "%.60s.classifier.output_labels", arch);
    const km_gguf_value *labels = km_gguf_get(g, key);
    km_gguf_value first;
    km_gguf_iter it = labels ? km_gguf_begin(labels) : (km_gguf_iter){0};
    return labels && km_gguf_next(&it, &first) && first.type == KM_GGUF_STRING &&
           first.text.size == 2 && memcmp(first.text.data, "no", 2) == 0;
}

static void swap_rows(km_ranker *r, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) {
        float yes = r->head[dim + i];
        r->head[dim + i] = r->head[i];
        r->head[i] = yes;
    }
    float yes = r->bias[1];
    r->bias[1] = r->bias[0];
    r->bias[0] = yes;
}

static km_status read_head(km_ranker *r, const km_gguf *g, const km_gguf_tensor *t, int64_t dim,
                           km_error *err) {
    const km_gguf_tensor *bias = km_gguf_find(g, "cls.output.bias");
    int64_t rows = t->shape.ndim == 1 ? 1 : t->shape.dim[0];
    const char *arch = "";
    if (t->shape.ndim < 1 || t->shape.ndim > 2 || t->shape.dim[t->shape.ndim - 1] != dim ||
        !can_read(t) || (bias && (km_shape_count(bias->shape) != rows || !can_read(bias))))
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': the head cls.output does not fit the model's %lld dimensions",
                            km_gguf_path(g), (long long)dim);
    if (rows > 2) return KM_OK; /* it sorts texts into classes: nothing to rank by */
    r->rows = (int)rows;
    if (floats_of(t, 0, (size_t)(rows * dim), r->head, err) != KM_OK ||
        (bias && floats_of(bias, 0, (size_t)rows, r->bias, err) != KM_OK))
        return err->code;
    km_gguf_string(g, "general.architecture", &arch, err);
    if (rows == 2 && no_comes_first(g, arch)) swap_rows(r, dim);
    return err->code;
}

static km_status read_words(km_ranker *r, const km_gguf *g, const km_token *token, int64_t dim,
                            km_error *err) {
    const km_gguf_tensor *t = km_gguf_find(g, "output.weight");
    if (!t) t = km_gguf_find(g, "token_embd.weight");
    int32_t word[] = {km_token_find(token, "yes"), km_token_find(token, "no")};
    if (!t || t->shape.ndim != 2 || t->shape.dim[1] != dim || !can_read(t)) return KM_OK;
    for (int i = 0; i < 2; i++) {
        if (word[i] < 0 || word[i] >= t->shape.dim[0]) return KM_OK;
        if (floats_of(t, word[i], (size_t)dim, r->head + i * dim, err) != KM_OK) return err->code;
    }
    r->rows = 2;
    return KM_OK;
}

/* ---- The template ---- */

static size_t specials_in(const km_token *token, const km_ids *ids) {
    size_t n = 0;
    for (size_t i = 0; i < ids->len; i++) n += km_token_is_special(token, ids->data[i]);
    return n;
}

static bool add_part(km_ranker *r, rank_part p) {
    if (p.kind == PART_TEXT && p.bytes == 0) return true;
    if (r->n_parts == PARTS) return false;
    r->part[r->n_parts++] = p;
    return true;
}

static km_status read_template(km_ranker *r, const km_gguf *g, const km_token *token,
                               km_error *err) {
    static const char *const places[] = {"{query}", "{document}"};
    const char *given = NULL;
    int seen[2] = {0};
    if (km_gguf_string(g, "tokenizer.chat_template.rerank", &given, err) != KM_OK) return err->code;
    if (!given) return KM_OK;
    if (!(r->template = km_strdup(given))) return km_no_memory_for(err, "a template");
    size_t n = strlen(given), from = 0;
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        for (int k = 0; k < 2; k++) {
            size_t bytes = strlen(places[k]);
            if (strncmp(given + i, places[k], bytes) != 0) continue;
            ok = add_part(r, (rank_part){PART_TEXT, from, i - from}) &&
                 add_part(r, (rank_part){k ? PART_DOCUMENT : PART_QUERY, 0, 0});
            seen[k]++;
            from = i + bytes;
            i = from - 1;
            break;
        }
    ok = ok && add_part(r, (rank_part){PART_TEXT, from, n - from});
    if (!ok || !seen[0] || !seen[1])
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': its template for ranking has no places, or too many, for "
                            "{query} and {document}",
                            km_gguf_path(g));
    for (int i = 0; i < r->n_parts && err->code == KM_OK; i++) {
        km_ids ids = {0};
        if (r->part[i].kind == PART_TEXT)
            km_token_encode(token, given + r->part[i].from, r->part[i].bytes,
                            KM_TOKEN_PARSE_SPECIAL, &ids, err);
        r->n_special += specials_in(token, &ids);
        km_ids_free(&ids);
    }
    return err->code;
}

km_status km_ranker_open(km_model *m, const km_gguf *g, km_error *err) {
    const km_gguf_tensor *t = km_gguf_find(g, "cls.output.weight");
    int64_t dim = m->config.dim;
    if (!t && m->pooling != 4) return KM_OK;
    km_ranker *r = km_calloc(1, sizeof *r);
    if (r) r->head = km_alloc(2 * (size_t)dim * sizeof *r->head);
    if (!r || !r->head)
        km_no_memory_for(err, "a ranking head");
    else if ((t ? read_head(r, g, t, dim, err) : read_words(r, g, m->token, dim, err)) == KM_OK)
        read_template(r, g, m->token, err);
    if (err->code == KM_OK && r->rows && r->template) {
        m->ranker = r;
        m->pooling = 4;
        return KM_OK;
    }
    km_ranker_free(r);
    return err->code;
}

/* ---- Pairs as tokens ---- */

typedef struct rank_pair {
    const km_ranker *ranker;
    const km_token *token;
    const char *text[3]; /* by kind */
    size_t bytes[3];
} rank_pair;

static const char *part_text(const rank_pair *p, int i, size_t *bytes) {
    const rank_part *part = &p->ranker->part[i];
    *bytes = part->kind == PART_TEXT ? part->bytes : p->bytes[part->kind];
    return part->kind == PART_TEXT ? p->ranker->template + part->from : p->text[part->kind];
}

static km_status encode(const rank_pair *p, km_text *text, unsigned flags, km_ids *out,
                        km_error *err) {
    if (!km_text_ok(text)) return km_no_memory_for(err, "a text");
    km_status s = text->len
                      ? km_token_encode(p->token, km_text_str(text), text->len, flags, out, err)
                      : KM_OK;
    text->len = 0;
    return s;
}

/* All that stands between two special tokens of the template, as plain letters. */
static km_status encode_guarded(const rank_pair *p, km_ids *out, km_error *err) {
    km_text run = {0};
    for (int i = 0; i < p->ranker->n_parts && err->code == KM_OK; i++) {
        size_t bytes, from = 0;
        const char *text = part_text(p, i, &bytes);
        km_ids ids = {0};
        if (p->ranker->part[i].kind == PART_TEXT)
            km_token_encode(p->token, text, bytes, KM_TOKEN_PARSE_SPECIAL, &ids, err);
        for (size_t k = 0; k < ids.len && err->code == KM_OK; k++) {
            size_t n = 0;
            const char *special = km_token_is_special(p->token, ids.data[k])
                                      ? km_token_text(p->token, ids.data[k], &n)
                                      : NULL;
            const char *hit = special && n ? memmem(text + from, bytes - from, special, n) : NULL;
            if (!hit) continue;
            km_text_put(&run, text + from, (size_t)(hit - text) - from);
            encode(p, &run, KM_TOKEN_PLAIN, out, err);
            if (err->code == KM_OK) km_ids_put(out, &ids.data[k], 1, err);
            from = (size_t)(hit - text) + n;
        }
        km_ids_free(&ids);
        km_text_put(&run, text + from, bytes - from);
    }
    if (err->code == KM_OK) encode(p, &run, KM_TOKEN_PLAIN, out, err);
    km_text_free(&run);
    return err->code;
}

static km_status encode_pair(const rank_pair *p, km_ids *out, km_error *err) {
    km_text whole = {0};
    out->len = 0;
    for (int i = 0; i < p->ranker->n_parts; i++) {
        size_t bytes;
        const char *text = part_text(p, i, &bytes);
        km_text_put(&whole, text, bytes);
    }
    encode(p, &whole, KM_TOKEN_PARSE_SPECIAL, out, err);
    km_text_free(&whole);
    if (err->code != KM_OK || specials_in(p->token, out) == p->ranker->n_special) return err->code;
    out->len = 0; /* one of the texts holds a special token's letters */
    return encode_guarded(p, out, err);
}

/* A document's beginning, so that all fits into the context. */
static km_status encode_cut(rank_pair *p, size_t most, bool cut, km_ids *out, km_error *err) {
    size_t *bytes = &p->bytes[PART_DOCUMENT];
    const char *text = p->text[PART_DOCUMENT];
    while (encode_pair(p, out, err) == KM_OK && out->len > most) {
        if (!cut || *bytes == 0)
            return km_error_set(err, KM_ERR_RANGE, "%s has %zu tokens, and the context holds %zu",
                                *bytes ? "the pair" : "the query", out->len, most);
        size_t over = out->len - most;
        double each = (double)*bytes / (double)out->len; /* bytes of a token, or fewer */
        size_t less = (size_t)((double)over * each) + 1;
        *bytes -= less < *bytes ? less : *bytes;
        while (*bytes && ((unsigned char)text[*bytes] & 0xC0) == 0x80) (*bytes)--;
    }
    return err->code;
}

static const km_ranker *ranker_of(const char *call, const km_model *m) {
    if (!m->ranker)
        km_public_fail(KM_ERR_UNSUPPORTED,
                       "%s: the model does not rank: its file has no ranking head "
                       "(cls.output.weight, or pooling_type 4) with a template",
                       call);
    return m->ranker;
}

int64_t km_relevance_tokens(km_model *m, const char *query, size_t query_bytes,
                            const char *document, size_t document_bytes, bool cut, int32_t *ids,
                            size_t cap) {
    km_error err = {0};
    km_ids all = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_relevance_tokens", m, false)) return -1;
    if (!query || !document || (!ids && cap)) {
        km_public_fail(KM_ERR_NULL, "km_relevance_tokens: no %s given",
                       !query      ? "query"
                       : !document ? "document"
                                   : "room for tokens");
        return -1;
    }
    const km_ranker *r = ranker_of("km_relevance_tokens", m);
    if (!r) return -1;
    rank_pair p = {.ranker = r,
                   .token = m->token,
                   .text = {NULL, query, document},
                   .bytes = {0, query_bytes, document_bytes}};
    km_status s = encode_cut(&p, (size_t)m->config.context, cut, &all, &err);
    int64_t n = s == KM_OK ? (int64_t)all.len : -1;
    if (s == KM_OK && cap && all.len)
        memcpy(ids, all.data, sizeof *ids * (cap < all.len ? cap : all.len));
    km_ids_free(&all);
    km_last_error_set(&err);
    return n;
}

/* ---- Scores ---- */

typedef struct rank_scores {
    const km_ranker *ranker;
    size_t dim;
    float *out;
} rank_scores;

/* score = 1 / (1 + exp(-(x - y))): x the first row's logit, y the second's or 0. */
static void score(void *user, size_t text, const float *states, size_t n) {
    const rank_scores *s = user;
    const float *last = states + (n - 1) * s->dim;
    double logit[2] = {0};
    for (int r = 0; r < s->ranker->rows; r++) {
        logit[r] = s->ranker->bias[r];
        for (size_t k = 0; k < s->dim; k++)
            logit[r] += (double)s->ranker->head[(size_t)r * s->dim + k] * last[k];
    }
    s->out[text] = (float)(1 / (1 + exp(logit[1] - logit[0])));
}

km_status km_relevance(km_model *m, const int32_t *const *ids, const size_t *lengths, size_t n,
                       const km_embed_options *options, float *out) {
    km_embed_options o = km_embed_defaults();
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_relevance", m, true)) return km_last_status();
    if (km_take_options("km_relevance", &o, sizeof o, options) != KM_OK) return km_last_status();
    if (!ids || !lengths || !out || n == 0)
        return km_public_fail(KM_ERR_NULL, "km_relevance: no pairs, or no room for their scores");
    const km_ranker *r = ranker_of("km_relevance", m);
    if (!r) return km_last_status();
    rank_scores s = {.ranker = r, .dim = (size_t)m->config.dim, .out = out};
    km_texts x = {ids, lengths, n, score, &s};
    return km_texts_read("km_relevance", m, &x, &o);
}
