/* Embeddings: OpenAI's /v1/embeddings and Ollama's /api/embed and /api/embeddings. A worker tokenises,
 * and the thread for long computations embeds; steps of the engine take turns with it. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 2048 };

typedef struct km_embedding_state {
    float *vectors; /* (n_prompts, dimensions) */
    int64_t dimensions;
    bool base64, one; /* one: Ollama's older form, a single text */
    double seconds;
} km_embedding_state;

static void free_state(void *state) {
    km_embedding_state *st = state;
    km_free(st->vectors);
    km_free(st);
}

/* ---- Reading ---- */

static km_status add_text(km_api_call *c, const char *key, const json_t *v, bool truncate,
                          km_error *err) {
    int64_t context = c->served->info.context;
    km_status s;
    if (json_is_string(v))
        s = km_call_prompt_tokens_of(c, json_string_value(v), json_string_length(v), true, err);
    else if (json_is_array(v) && json_is_integer(json_array_get(v, 0)))
        s = km_call_prompt_ids(c, v, err);
    else
        return km_call_refuse(c, 400, key, "'%s' is a text, tokens, or a list of these", key);
    if (s != KM_OK) {
        if (c->status) snprintf(c->param, sizeof c->param, "%s", key);
        return s;
    }
    km_prompt *p = &c->prompts[c->n_prompts - 1];
    if (p->n == 0)
        return km_call_refuse(c, 400, key, "'%s' holds an empty text, which has no embedding", key);
    if ((int64_t)p->n > context && truncate) p->n = (size_t)context;
    if ((int64_t)p->n > context)
        return km_call_refuse(c, 400, key, "text %d has %zu tokens, and the context holds %lld",
                              c->n_prompts, p->n, (long long)context);
    return KM_OK;
}

static km_status read_texts(km_api_call *c, const char *key, bool truncate, km_error *err) {
    const json_t *v = json_object_get(c->request, key);
    if (json_is_string(v) || json_is_integer(json_array_get(v, 0)))
        return add_text(c, key, v, truncate, err);
    if (!json_is_array(v) || json_array_size(v) == 0)
        return km_call_refuse(c, 400, key, "'%s' is a text, tokens, or a list of these", key);
    if (json_array_size(v) > MOST_TEXTS)
        return km_call_refuse(c, 400, key, "at most %d texts in one request", MOST_TEXTS);
    km_status s = KM_OK;
    for (size_t i = 0; i < json_array_size(v) && s == KM_OK; i++)
        s = add_text(c, key, json_array_get(v, i), truncate, err);
    return s;
}

km_status km_embeddings_read(km_api_call *c, const char *key, bool truncate, km_error *err) {
    const km_served *m = c->served;
    c->no_text = true;
    if (!m->info.can_embed)
        return km_call_refuse(c, 501, "model",
                              "the model '%.100s' is split over devices: it gives no embeddings",
                              m->name);
    if (km_model_pooling(m->model) == KM_POOLING_RANK)
        return km_call_refuse(c, 501, "model", "the model '%.100s' ranks: it gives no embeddings",
                              m->name);
    return read_texts(c, key, truncate, err);
}

static km_status read_shared(km_api_call *c, const char *key, bool truncate, km_error *err) {
    km_embedding_state *st = km_calloc(1, sizeof *st);
    if (!st) return km_no_memory(err);
    c->state = st;
    c->free_state = free_state;
    if (!km_field_int(c, "dimensions", 1, c->served->info.dim, &st->dimensions))
        return KM_ERR_RANGE;
    if (st->dimensions == 0) st->dimensions = c->served->info.dim;
    return km_embeddings_read(c, key, truncate, err);
}

static km_status read_openai(km_api_call *c, km_error *err) {
    const json_t *v = json_object_get(c->request, "encoding_format");
    const char *format = json_is_string(v) ? json_string_value(v) : v ? "?" : "float";
    if (json_is_null(v)) format = "float";
    if (strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
        return km_call_refuse(c, 400, "encoding_format", "'encoding_format' is float or base64");
    km_status s = read_shared(c, "input", false, err);
    if (s == KM_OK) ((km_embedding_state *)c->state)->base64 = strcmp(format, "base64") == 0;
    return s;
}

static km_status read_ollama(km_api_call *c, km_error *err) {
    bool truncate = true;
    if (!km_field_bool(c, "truncate", &truncate)) return KM_ERR_RANGE;
    if (km_fields_keep_alive(c) != KM_OK) return KM_ERR_RANGE;
    return read_shared(c, "input", truncate, err);
}

static km_status read_ollama_old(km_api_call *c, km_error *err) {
    km_status s = read_shared(c, "prompt", true, err);
    if (s != KM_OK) return s;
    if (c->n_prompts > 1) return km_call_refuse(c, 400, "prompt", "'prompt' is a text");
    ((km_embedding_state *)c->state)->one = true;
    return KM_OK;
}

/* ---- Computing ---- */

static bool still_wanted(void *user, size_t done, size_t total) {
    (void)done;
    (void)total;
    km_api_call *c = user;
    return !atomic_load(&c->gone);
}

float *km_embeddings_compute(km_api_call *c, int64_t dimensions) {
    size_t n = (size_t)c->n_prompts, width = dimensions ? (size_t)dimensions : 1;
    const int32_t **ids = km_alloc(n * sizeof *ids);
    size_t *lengths = km_alloc(n * sizeof *lengths);
    float *vectors = km_alloc(n * width * sizeof *vectors);
    if (!ids || !lengths || !vectors) {
        km_call_refuse(c, 503, NULL, "out of memory");
    } else {
        km_embed_options o = km_embed_defaults();
        o.adapters = c->adapters;
        o.n_adapters = c->how.n_adapters;
        o.dimensions = dimensions;
        o.progress = still_wanted;
        o.user = c;
        for (size_t i = 0; i < n; i++) {
            ids[i] = c->prompts[i].ids;
            lengths[i] = c->prompts[i].n;
        }
        km_status s = dimensions ? km_embed(c->served->model, ids, lengths, n, &o, vectors)
                                 : km_relevance(c->served->model, ids, lengths, n, &o, vectors);
        if (s != KM_OK)
            km_call_refuse(c,
                           s == KM_ERR_UNSUPPORTED ? 501
                           : s == KM_ERR_MEMORY    ? 503
                                                   : 500,
                           NULL, "%s", km_last_error());
    }
    km_free(ids);
    km_free(lengths);
    if (!c->status) return vectors;
    km_free(vectors);
    return NULL;
}

static void compute(km_api_call *c) {
    km_embedding_state *st = c->state;
    double began = km_now();
    st->vectors = km_embeddings_compute(c, st->dimensions);
    st->seconds = km_now() - began;
}

/* ---- Writing ---- */

static void put_base64(km_text *t, const unsigned char *p, size_t n) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    km_text_put(t, "\"", 1);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        char four[4] = {letters[v >> 18], letters[v >> 12 & 63], letters[v >> 6 & 63],
                        letters[v & 63]};
        if (i + 1 >= n) four[2] = '=';
        if (i + 2 >= n) four[3] = '=';
        km_text_put(t, four, 4);
    }
    km_text_put(t, "\"", 1);
}

static void put_vector(const km_api_call *c, km_text *t, int i) {
    const km_embedding_state *st = c->state;
    const float *v = st->vectors + (size_t)i * (size_t)st->dimensions;
    if (st->base64) { /* f32, little-endian, as the machines are that this runs on */
        put_base64(t, (const unsigned char *)v, (size_t)st->dimensions * sizeof *v);
        return;
    }
    for (int64_t k = 0; k < st->dimensions; k++)
        km_text_printf(t, "%s%.8g", k ? "," : "[", (double)v[k]);
    km_text_add(t, "]");
}

static void whole_openai(km_api_call *c, km_text *t) {
    km_text_add(t, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < c->n_prompts; i++) {
        km_text_printf(t, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "",
                       i);
        put_vector(c, t, i);
        km_text_add(t, "}");
    }
    km_text_add(t, "],\"model\":");
    km_put_string0(t, km_call_model(c));
    long long n = km_call_prompt_tokens(c);
    km_text_printf(t, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}\n", n, n);
}

static void whole_ollama(km_api_call *c, km_text *t) {
    const km_embedding_state *st = c->state;
    km_text_add(t, "{\"model\":");
    km_put_string0(t, km_call_model(c));
    km_text_add(t, st->one ? ",\"embedding\":" : ",\"embeddings\":[");
    for (int i = 0; i < c->n_prompts; i++) {
        if (i) km_text_add(t, ",");
        put_vector(c, t, i);
    }
    km_text_printf(
        t, "%s,\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%lld}\n",
        st->one ? "" : "]", (long long)(st->seconds * 1e9), (long long)km_call_prompt_tokens(c));
}

static void error_openai(km_text *t, int status, const char *param, const char *message,
                         bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

static void error_ollama(km_text *t, int status, const char *param, const char *message,
                         bool stream) {
    km_dialect_ollama_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_embeddings = {.name = "openai",
                                          .read = read_openai,
                                          .compute = compute,
                                          .whole = whole_openai,
                                          .error = error_openai};
const km_dialect km_dialect_ollama_embed = {.name = "ollama",
                                            .read = read_ollama,
                                            .compute = compute,
                                            .whole = whole_ollama,
                                            .error = error_ollama};
const km_dialect km_dialect_ollama_embed_old = {.name = "ollama",
                                                .read = read_ollama_old,
                                                .compute = compute,
                                                .whole = whole_ollama,
                                                .error = error_ollama};
