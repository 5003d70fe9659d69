/* Vectors for JavaScript: an .npy file is read into memory once, compressed to an index, and searched.
 * The index is a file in the module's own file system, from where JavaScript can take it. */
#include "web.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct web_vectors {
    void *npy;
    km_vectors *vectors;
    km_index *index;
    km_compressed done;
} web_vectors;

WEB void web_vectors_close(web_vectors *v) {
    if (!v) return;
    km_index_close(v->index);
    km_vectors_close(v->vectors);
    free(v->npy);
    free(v);
}

/* The file `handle`, read piece by piece. */
WEB web_vectors *web_vectors_open(int handle, double bytes, const char *name) {
    const size_t most = (size_t)8 << 20;
    web_vectors *v = calloc(1, sizeof *v);
    size_t n = bytes > 0 && bytes < PTRDIFF_MAX ? (size_t)bytes : 0;
    if (v && n) v->npy = malloc(n);
    if (!v || !v->npy) {
        web_fail(n ? "there is not enough memory for this file" : "the file is empty or too large");
        web_vectors_close(v);
        return NULL;
    }
    bool ok = true;
    for (size_t at = 0; at < n && ok; at += most) {
        size_t some = n - at < most ? n - at : most;
        ok = web_read(handle, (double)at, (char *)v->npy + at, (int)some) == 0;
    }
    if (!ok) web_fail("the file could not be read");
    v->vectors = ok ? km_vectors_open_memory(v->npy, n, name) : NULL;
    if (v->vectors) return v;
    web_vectors_close(v);
    return NULL;
}

static bool progress(void *user, const char *stage, int64_t done, int64_t total) {
    char *text = web_dump(json_pack("{s:s, s:I, s:I}", "stage", stage, "done", (json_int_t)done,
                                    "total", (json_int_t)total));
    (void)user;
    bool on = !text || web_tell(text) != 0;
    free(text);
    return on;
}

static km_metric metric_of(const char *name) {
    if (name && strcmp(name, "cosine") == 0) return KM_METRIC_COSINE;
    return name && strcmp(name, "ip") == 0 ? KM_METRIC_IP : KM_METRIC_L2;
}

/* settings: metric, mode ("fast", "dense"), and one of bytes, ratio, recall. Writes the index to `path`. */
WEB int web_vectors_compress(web_vectors *v, const char *path, const char *settings) {
    json_t *s = web_settings(settings);
    if (!s) return -1;
    km_index_options o = km_index_defaults();
    const char *mode = web_text(s, "mode");
    o.metric = metric_of(web_text(s, "metric"));
    o.mode = mode && strcmp(mode, "dense") == 0 ? KM_INDEX_DENSE : KM_INDEX_FAST;
    o.bytes = web_number(s, "bytes", 0);
    o.ratio = web_number(s, "ratio", 0);
    o.recall = web_number(s, "recall", 0);
    o.seed = (uint64_t)web_number(s, "seed", 0);
    o.memory = (size_t)512 << 20;
    o.skip_bad = json_is_true(json_object_get(s, "skip_bad"));
    o.progress = progress;
    json_decref(s);
    km_index_close(v->index);
    v->index = NULL;
    v->done = (km_compressed){.size = sizeof v->done};
    km_ctx *ctx = km_ctx_new("cpu", 0);
    km_status status =
        ctx ? km_index_compress_from(ctx, v->vectors, NULL, path, &o, &v->done) : KM_ERR_MEMORY;
    km_ctx_free(ctx);
    if (status == KM_OK) v->index = km_index_open(path);
    return v->index ? 0 : -1;
}

static json_t *known(double x) { return isfinite(x) ? json_real(x) : json_null(); }

WEB char *web_vectors_describe(web_vectors *v) {
    const km_compressed *d = &v->done;
    json_t *o =
        json_pack("{s:I, s:I, s:s}", "count", (json_int_t)km_vectors_count(v->vectors), "dim",
                  (json_int_t)km_vectors_dim(v->vectors), "type", km_vectors_type(v->vectors));
    if (v->index) {
        json_object_set_new(o, "bytes", json_real(d->bytes));
        json_object_set_new(o, "input_bytes", json_real(d->input_bytes));
        json_object_set_new(o, "code_bytes", json_integer((json_int_t)d->code_bytes));
        json_object_set_new(o, "anchors", json_integer(d->anchors));
        json_object_set_new(o, "recall", known(d->recall));
        json_object_set_new(o, "mse", known(d->mse));
        json_object_set_new(o, "skipped", json_integer(d->skipped));
    }
    return web_dump(o);
}

/* The vector with that number as a query: (dim), to be freed by web_free. */
WEB float *web_vectors_row(web_vectors *v, double row) {
    int64_t dim = km_vectors_dim(v->vectors);
    float *x = malloc((size_t)dim * sizeof *x);
    if (x && km_vectors_read(v->vectors, (int64_t)row, 1, x) == KM_OK) return x;
    free(x);
    return NULL;
}

/* The k nearest of a query (dim), as a JSON array of {"id": ..., "distance": ...}. exact: compared by the
 * vectors of the file, all of them. */
WEB char *web_vectors_search(web_vectors *v, const float *query, int k, int exact) {
    int64_t count = km_vectors_count(v->vectors);
    if (!v->index) {
        web_fail("the vectors have not been compressed yet");
        return NULL;
    }
    if (k < 1 || k > 1000) {
        web_fail("1 to 1000 neighbours can be asked for");
        return NULL;
    }
    uint64_t *ids = malloc((size_t)k * sizeof *ids), *all = NULL;
    float *distances = malloc((size_t)k * sizeof *distances);
    km_status status = ids && distances ? KM_OK : KM_ERR_MEMORY;
    if (status == KM_OK && exact) {
        all = malloc((size_t)count * sizeof *all);
        for (int64_t i = 0; all && i < count; i++) all[i] = (uint64_t)i;
        k = k < count ? k : (int)count;
        status = all ? km_vectors_rerank(v->vectors, km_index_describe(v->index).metric, query, 1,
                                         all, count, k, ids, distances)
                     : KM_ERR_MEMORY;
    } else if (status == KM_OK) {
        status = km_index_search(v->index, query, 1, k, NULL, 0, ids, distances);
    }
    json_t *list = json_array();
    for (int i = 0; i < k && status == KM_OK; i++)
        if (ids[i] != KM_NO_ID)
            json_array_append_new(list, json_pack("{s:I, s:f}", "id", (json_int_t)ids[i],
                                                  "distance", (double)distances[i]));
    free(all);
    free(ids);
    free(distances);
    char *text = web_dump(list);
    if (status == KM_OK) return text;
    if (status == KM_ERR_MEMORY) web_fail("there is not enough memory for this search");
    free(text);
    return NULL;
}
