/* Search over indexes of vectors that the server has open (--index NAME=FILE): /v1/search by vectors or by
 * texts, which a model embeds, and /v1/indexes. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_QUERIES = 256, MOST_RESULTS = 10000 };

/* ---- The indexes ---- */

km_status km_indexes_open(km_serve *s, km_error *err) {
    for (int i = 0; i < s->o.n_indexes; i++) {
        const char *given = s->o.indexes[i], *path = strchr(given, '=');
        km_open_index one = {0};
        int n = path ? (int)(path - given) : 0;
        if (!path || n == 0 || n >= (int)sizeof one.name || !path[1])
            return km_error_set(err, KM_ERR_RANGE,
                                "an index is given as NAME=FILE, and not '%.100s'", given);
        snprintf(one.name, sizeof one.name, "%.*s", n, given);
        if (km_indexes_find(s, one.name))
            return km_error_set(err, KM_ERR_STATE, "two indexes are called '%s'", one.name);
        one.index = km_index_open(path + 1);
        if (!one.index) return km_error_set(err, km_last_status(), "%s", km_last_error());
        one.info = km_index_describe(one.index);
        if (!km_array_reserve(&s->indexes, &s->cap_indexes, s->n_indexes + 1)) {
            km_index_close(one.index);
            return km_no_memory(err);
        }
        s->indexes[s->n_indexes++] = one;
    }
    return KM_OK;
}

void km_indexes_close(km_serve *s) {
    for (int i = 0; i < s->n_indexes; i++) km_index_close(s->indexes[i].index);
    km_free(s->indexes);
}

km_open_index *km_indexes_find(km_serve *s, const char *name) {
    if (!name) return s->n_indexes == 1 ? &s->indexes[0] : NULL;
    for (int i = 0; i < s->n_indexes; i++)
        if (strcmp(s->indexes[i].name, name) == 0) return &s->indexes[i];
    return NULL;
}

void km_endpoint_indexes(km_serve *s, km_exchange *x) {
    static const char *const metrics[] = {"l2", "ip", "cosine"};
    json_t *all = json_array();
    for (int i = 0; i < s->n_indexes; i++) {
        km_index_info d = km_index_describe(s->indexes[i].index);
        json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:I, s:s}", "id", s->indexes[i].name,
                                             "object", "index", "count", (json_int_t)d.count, "dim",
                                             (json_int_t)d.dim, "metric", metrics[d.metric]));
    }
    km_send_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", all));
}

/* ---- Reading ---- */

typedef struct km_search_state {
    km_open_index *index;
    float *queries; /* (n, dim) */
    int64_t n, k;
    km_search_options how;
    uint64_t *ids;
    float *distances;
} km_search_state;

static void free_state(void *state) {
    km_search_state *st = state;
    km_free(st->queries);
    km_free(st->ids);
    km_free(st->distances);
    km_free(st);
}

static bool has_vectors(const km_api_call *c) {
    return json_object_get(c->request, "vector") || json_object_get(c->request, "vectors");
}

static bool needs_model(const km_api_call *c) { return !has_vectors(c); }

static km_status take_vector(km_api_call *c, const json_t *v, float *to) {
    const km_search_state *st = c->state;
    size_t dim = (size_t)st->index->info.dim;
    if (!json_is_array(v) || json_array_size(v) != dim)
        return km_call_refuse(c, 400, "vector", "a vector of this index has %zu numbers", dim);
    for (size_t k = 0; k < dim; k++) {
        const json_t *one = json_array_get(v, k);
        to[k] = (float)json_number_value(one);
        if (!json_is_number(one) || !isfinite(to[k]))
            return km_call_refuse(c, 400, "vector", "number %zu of a vector is none", k + 1);
    }
    return KM_OK;
}

static km_status read_vectors(km_api_call *c, km_error *err) {
    km_search_state *st = c->state;
    const json_t *many = json_object_get(c->request, "vectors"),
                 *one = json_object_get(c->request, "vector");
    size_t n = many ? json_array_size(many) : 1;
    if (n == 0 || n > MOST_QUERIES)
        return km_call_refuse(c, 400, "vectors", "'vectors' is a list of 1 to %d vectors",
                              MOST_QUERIES);
    st->queries = km_alloc(n * (size_t)st->index->info.dim * sizeof *st->queries);
    if (!st->queries) return km_no_memory(err);
    st->n = (int64_t)n;
    for (size_t i = 0; i < n; i++)
        if (take_vector(c, many ? json_array_get(many, i) : one,
                        st->queries + i * (size_t)st->index->info.dim) != KM_OK)
            return KM_ERR_RANGE;
    return KM_OK;
}

static km_status read_search(km_api_call *c, km_error *err) {
    const json_t *name = json_object_get(c->request, "index");
    km_search_state *st = km_calloc(1, sizeof *st);
    if (!st) return km_no_memory(err);
    c->state = st;
    c->free_state = free_state;
    c->no_text = true;
    st->index = km_indexes_find(c->serve, json_string_value(name));
    if (!st->index)
        return km_call_refuse(c, 404, "index", "there is no index '%.60s' here",
                              json_is_string(name) ? json_string_value(name) : "");
    st->k = 10;
    st->how = km_search_defaults();
    if (!km_field_int(c, "k", 1, MOST_RESULTS, &st->k) ||
        !km_field_int(c, "probe", 0, INT32_MAX, &st->how.probe) ||
        !km_field_int(c, "rerank", 0, 1 << 20, &st->how.rerank))
        return KM_ERR_RANGE;
    if (has_vectors(c)) return read_vectors(c, err);
    if (c->served->info.dim != st->index->info.dim)
        return km_call_refuse(
            c, 400, "model",
            "the model '%.60s' gives %lld numbers, and a vector of this index has "
            "%lld",
            c->served->name, (long long)c->served->info.dim, (long long)st->index->info.dim);
    km_status s = km_embeddings_read(c, "input", false, err);
    if (s == KM_OK && c->n_prompts > MOST_QUERIES)
        return km_call_refuse(c, 400, "input", "at most %d texts in one search", MOST_QUERIES);
    st->n = c->n_prompts;
    return s;
}

/* ---- Searching ---- */

static void compute(km_api_call *c) {
    km_search_state *st = c->state;
    size_t n = (size_t)(st->n * st->k);
    if (!st->queries) {
        st->queries = km_embeddings_compute(c, st->index->info.dim);
        if (!st->queries) return;
    }
    st->ids = km_alloc(n * sizeof *st->ids);
    st->distances = km_alloc(n * sizeof *st->distances);
    if (!st->ids || !st->distances)
        km_call_refuse(c, 503, NULL, "out of memory");
    else if (km_index_search(st->index->index, st->queries, st->n, st->k, &st->how, 1, st->ids,
                             st->distances) != KM_OK)
        km_call_refuse(c, km_last_status() == KM_ERR_RANGE ? 400 : 500, NULL, "%s",
                       km_last_error());
}

static void whole(km_api_call *c, km_text *t) {
    const km_search_state *st = c->state;
    km_text_add(t, "{\"object\":\"list\",\"index\":");
    km_put_string0(t, st->index->name);
    km_text_add(t, ",\"data\":[");
    for (int64_t i = 0; i < st->n; i++) {
        km_text_printf(t, "%s{\"index\":%lld,\"results\":[", i ? "," : "", (long long)i);
        for (int64_t k = 0; k < st->k && st->ids[i * st->k + k] != KM_NO_ID; k++)
            km_text_printf(t, "%s{\"id\":%llu,\"distance\":%.8g}", k ? "," : "",
                           (unsigned long long)st->ids[i * st->k + k],
                           (double)st->distances[i * st->k + k]);
        km_text_add(t, "]}");
    }
    km_text_add(t, "]}\n");
}

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_search = {.name = "kermes",
                                      .needs_model = needs_model,
                                      .read = read_search,
                                      .compute = compute,
                                      .whole = whole,
                                      .error = put_error};
