/* What ranks that build an index do together: find out whether all can go on, measure the recall of
 * all parts as one index, and write the manifest. Lists travel by a broadcast of each rank in turn. */
#include "base/alloc.h"
#include "base/file.h"
#include "vector/learn.h"
#include "vector/make_impl.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

km_status km_ranks_agree(km_comm *comm, km_status s, km_error *err) {
    double failed = s == KM_OK ? 0 : 1;
    km_status sent = km_comm_sum(comm, &failed, 1, err);
    if (s == KM_OK) s = sent;
    return s == KM_OK && failed > 0 ? km_error_set(err, KM_ERR_STATE, "another rank failed") : s;
}

/* ---- Recall ---- */

typedef struct near_list { /* of n queries, `deep` ids each, the nearest first, then KM_NO_ID */
    int64_t n, deep;
    uint64_t *id;
    float *dist;
} near_list;

static bool list_new(near_list *l, int64_t n, int64_t deep) {
    *l = (near_list){n, deep, km_alloc(sizeof *l->id * (size_t)(n * deep)),
                     km_alloc(sizeof *l->dist * (size_t)(n * deep))};
    return l->id && l->dist;
}

static void list_free(near_list *l) {
    km_free(l->id);
    km_free(l->dist);
}

/* out = the nearest of a and b, of which no id is in both. */
static void merge_lists(const near_list *a, const near_list *b, near_list *out) {
    for (int64_t q = 0; q < out->n; q++) {
        int64_t i = q * out->deep, j = i, end = i + out->deep;
        for (int64_t to = q * out->deep; to < end; to++) {
            bool second =
                a->id[i] == KM_NO_ID ||
                (b->id[j] != KM_NO_ID &&
                 (b->dist[j] < a->dist[i] || (b->dist[j] == a->dist[i] && b->id[j] < a->id[i])));
            out->id[to] = second ? b->id[j] : a->id[i];
            out->dist[to] = second ? b->dist[j++] : a->dist[i++];
        }
    }
}

/* Every rank's own list becomes the nearest of all ranks' lists. */
static km_status join_lists(km_comm *comm, near_list *own, km_error *err) {
    near_list all = {0}, one = {0}, both = {0};
    size_t count = (size_t)(own->n * own->deep);
    bool room = list_new(&all, own->n, own->deep) && list_new(&one, own->n, own->deep) &&
                list_new(&both, own->n, own->deep);
    km_status s = room ? KM_OK : km_no_memory_for(err, "measuring recall");
    s = km_ranks_agree(comm, s, err);
    for (size_t i = 0; s == KM_OK && i < count; i++) all.id[i] = KM_NO_ID, all.dist[i] = INFINITY;
    for (int r = 0; s == KM_OK && r < km_comm_size(comm); r++) {
        if (r == km_comm_rank(comm)) {
            memcpy(one.id, own->id, sizeof *one.id * count);
            memcpy(one.dist, own->dist, sizeof *one.dist * count);
        }
        s = km_comm_broadcast(comm, r, one.id, sizeof *one.id * count, err);
        if (s == KM_OK) s = km_comm_broadcast(comm, r, one.dist, sizeof *one.dist * count, err);
        if (s != KM_OK) break;
        merge_lists(&all, &one, &both);
        near_list turn = all;
        all = both;
        both = turn;
    }
    if (s == KM_OK) {
        memcpy(own->id, all.id, sizeof *own->id * count);
        memcpy(own->dist, all.dist, sizeof *own->dist * count);
    }
    list_free(&all);
    list_free(&one);
    list_free(&both);
    return s;
}

static km_status find_in_part(const km_build_work *m, const char *part, near_list *found,
                              km_error *err) {
    const km_heldout *h = m->held;
    if (!list_new(found, h->n, KM_HELDOUT_K + 1)) return km_no_memory_for(err, "measuring recall");
    if (!km_tell(m->o, "recall", 0, 1)) return km_stopped(err);
    km_index *x = km_index_load(part, err);
    if (!x) return err->code;
    km_status s = km_index_find(x, h->queries, h->n, KM_HELDOUT_K + 1, NULL, m->ctx->threads,
                                found->id, found->dist, err);
    km_index_close(x);
    return s;
}

km_status km_ranks_recall(km_build_work *m, const char *part, km_error *err) {
    km_heldout *h = m->held;
    if (!h) return KM_OK; /* on no rank: there are too few rows */
    near_list found = {0};
    km_status s = KM_OK;
    if (!m->known) {
        km_heldout_settle(h);
        near_list near = {h->n, h->deep, h->near, h->dist};
        s = join_lists(m->comm, &near, err);
        m->known = s == KM_OK;
    }
    if (s == KM_OK) s = km_ranks_agree(m->comm, find_in_part(m, part, &found, err), err);
    if (s == KM_OK) s = join_lists(m->comm, &found, err);
    km_told_recall *told = &m->made->recall;
    if (s == KM_OK && km_comm_rank(m->comm) == 0) *told = km_heldout_told(h, found.id, m->ids);
    if (s == KM_OK) s = km_comm_broadcast(m->comm, 0, told, sizeof *told, err);
    list_free(&found);
    return s;
}

/* ---- The manifest ---- */

static km_status write_manifest(const char *path, const km_rank_part *parts, int n,
                                const km_made *made, km_error *err) {
    json_t *list = json_array();
    for (int r = 0; r < n; r++) {
        char name[PATH_MAX], hash[17];
        km_part_path(name, sizeof name, path, r);
        const char *slash = strrchr(name, '/');
        snprintf(hash, sizeof hash, "%016" PRIx64, parts[r].hash);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "file", slash ? slash + 1 : name,
                                              "rows", (json_int_t)parts[r].rows, "xxh3", hash));
    }
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:I, s:o}", "kermes", km_version(), "format", "kmx-manifest",
                  "version", 1, "rows", (json_int_t)made->rows, "parts", list);
    if (o && isfinite(made->recall.recall))
        json_object_set_new(o, "measured", km_told_recall_json(&made->recall));
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    if (!text) return km_no_memory_for(err, "the manifest");
    km_writer *w = km_writer_open(path, err);
    if (w) km_writer_put(w, text, strlen(text));
    if (w) km_writer_put(w, "\n", 1);
    free(text);
    return w ? km_writer_commit(w, err) : err->code;
}

km_status km_ranks_join(km_build_work *m, const char *path, km_status s, km_rank_part own,
                        double bytes, km_error *err) {
    int n = km_comm_size(m->comm), rank = km_comm_rank(m->comm);
    if (n == 1) {
        m->made->rows = own.rows;
        m->made->bytes = bytes;
        m->made->parts = 1;
        return s;
    }
    /* Counts travel as doubles, hashes in halves, so that they come through whole. */
    size_t slots = 7 + 4 * (size_t)n;
    double *x = km_calloc(slots, sizeof *x);
    if (!x) return km_no_memory(err);
    x[0] = s == KM_OK ? 0 : 1;
    x[1] = bytes;
    x[2] = (double)own.rows;
    x[3] = (double)m->made->skipped;
    x[4] = m->energy;
    x[5] = m->lost;
    x[6] = m->measured;
    double *mine = x + 7 + 4 * rank;
    mine[0] = (double)(own.hash >> 32);
    mine[1] = (double)(own.hash & 0xffffffffu);
    mine[2] = (double)own.rows;
    km_status sent = km_comm_sum(m->comm, x, (int)slots, err);
    if (s == KM_OK && sent != KM_OK) s = sent;
    if (s == KM_OK && x[0] > 0) s = km_error_set(err, KM_ERR_STATE, "another rank failed");
    m->made->bytes = x[1];
    m->made->rows = (int64_t)x[2];
    m->made->skipped = (int64_t)x[3];
    m->energy = x[4];
    m->lost = x[5];
    m->measured = x[6];
    m->made->parts = n;
    if (s == KM_OK && rank == 0) {
        km_rank_part *parts = km_calloc((size_t)n, sizeof *parts);
        for (int r = 0; parts && r < n; r++) {
            const double *p = x + 7 + 4 * r;
            parts[r] = (km_rank_part){(uint64_t)p[0] << 32 | (uint64_t)p[1], (int64_t)p[2]};
        }
        s = parts ? write_manifest(path, parts, n, m->made, err) : km_no_memory(err);
        km_free(parts);
    }
    km_free(x);
    double failed = s == KM_OK ? 0 : 1;
    if (km_comm_sum(m->comm, &failed, 1, err) == KM_OK && failed > 0 && s == KM_OK)
        s = km_error_set(err, KM_ERR_STATE, "another rank failed");
    return s;
}
