/* /v1/rerank, as Jina and Cohere have it: documents by how well they answer a query. A worker makes a prompt of
 * each pair, and the thread for long computations scores them. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DOCUMENTS = 2048 };

typedef struct km_ranked {
    float score;
    int index;
} km_ranked;

typedef struct km_rerank_state {
    km_ranked *ranked; /* (n_prompts), the best first */
    int64_t top;       /* how many are told */
    bool documents;
} km_rerank_state;

static void free_state(void *state) {
    km_rerank_state *st = state;
    km_free(st->ranked);
    km_free(st);
}

/* A text, or an object that has one. */
static const json_t *document_at(const km_api_call *c, size_t i) {
    const json_t *v = json_array_get(json_object_get(c->request, "documents"), i);
    return json_is_object(v) ? json_object_get(v, "text") : v;
}

static km_status read_rerank(km_api_call *c, km_error *err) {
    const json_t *query = json_object_get(c->request, "query"),
                 *list = json_object_get(c->request, "documents");
    size_t n = json_array_size(list);
    bool truncate = true;
    km_rerank_state *st = km_calloc(1, sizeof *st);
    if (!st) return km_no_memory(err);
    c->state = st;
    c->free_state = free_state;
    c->no_text = true;
    st->top = (int64_t)n;
    if (!json_is_string(query) || json_string_length(query) == 0)
        return km_call_refuse(c, 400, "query", "'query' is a text");
    if (!json_is_array(list) || n == 0)
        return km_call_refuse(c, 400, "documents", "'documents' is a list of texts");
    if (n > MOST_DOCUMENTS)
        return km_call_refuse(c, 400, "documents", "at most %d documents in one request",
                              MOST_DOCUMENTS);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(document_at(c, i)))
            return km_call_refuse(c, 400, "documents",
                                  "document %zu is neither a text nor an object with one", i + 1);
    if (!km_field_int(c, "top_n", 1, INT64_MAX, &st->top) ||
        !km_field_bool(c, "return_documents", &st->documents) ||
        !km_field_bool(c, "truncate", &truncate))
        return KM_ERR_RANGE;
    if (st->top > (int64_t)n) st->top = (int64_t)n;
    if (!c->served->info.can_rank)
        return km_call_refuse(c, 501, "model",
                              "the model '%.100s' has no ranking head: it cannot rank documents",
                              c->served->name);
    km_status s = KM_OK;
    for (size_t i = 0; i < n && s == KM_OK; i++)
        s = km_call_prompt_pair(c, query, document_at(c, i), truncate, err);
    return s;
}

static int best_first(const void *a, const void *b) {
    const km_ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void compute(km_api_call *c) {
    km_rerank_state *st = c->state;
    float *scores = km_embeddings_compute(c, 0);
    if (!scores) return;
    st->ranked = km_alloc((size_t)c->n_prompts * sizeof *st->ranked);
    if (!st->ranked) km_call_refuse(c, 503, NULL, "out of memory");
    for (int i = 0; i < c->n_prompts && !c->status; i++) {
        st->ranked[i] = (km_ranked){scores[i], i};
        if (!isfinite(scores[i]))
            km_call_refuse(c, 500, NULL, "the model gives no number for document %d", i + 1);
    }
    if (!c->status) qsort(st->ranked, (size_t)c->n_prompts, sizeof *st->ranked, best_first);
    km_free(scores);
}

static void whole(km_api_call *c, km_text *t) {
    const km_rerank_state *st = c->state;
    const km_ranked *all = st->ranked;
    km_text_printf(t, "{\"id\":\"%s\",\"object\":\"list\",\"model\":", c->id);
    km_put_string0(t, km_call_model(c));
    km_text_add(t, ",\"results\":[");
    for (int64_t k = 0; k < st->top; k++) {
        km_text_printf(t, "%s{\"index\":%d,\"relevance_score\":%.9g", k ? "," : "", all[k].index,
                       (double)all[k].score);
        const json_t *text = document_at(c, (size_t)all[k].index);
        if (st->documents) {
            km_text_add(t, ",\"document\":{\"text\":");
            km_put_string(t, json_string_value(text), json_string_length(text));
            km_text_add(t, "}");
        }
        km_text_add(t, "}");
    }
    long long n = km_call_prompt_tokens(c);
    km_text_printf(t, "],\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}\n", n, n);
}

static void error_of(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_rerank = {
    .name = "openai", .read = read_rerank, .compute = compute, .whole = whole, .error = error_of};
