/* Search: the cells nearest to a query are scanned, and the best rows kept in a heap whose worst
 * distance lets the scan leave rows out early. Many queries are shared out over the threads; of one
 * query, the cells are. */
#include "base/alloc.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include "vector/input.h"
#include "vector/scan.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct hit {
    float dist;
    uint64_t id;
    km_place at;
} hit;

/* Nearer first, the lower id at equal distance: one order for every number of threads. */
static bool before(const hit *a, const hit *b) {
    return a->dist < b->dist || (a->dist == b->dist && a->id < b->id);
}

static int compare(const void *a, const void *b) { return before(a, b) ? -1 : before(b, a); }

typedef struct heap { /* the worst on top */
    hit *at;
    int64_t n, cap;
} heap;

static void sift_down(heap *h, int64_t i) {
    hit v = h->at[i];
    for (int64_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(&h->at[c], &h->at[c + 1])) c++;
        if (!before(&v, &h->at[c])) break;
        h->at[i] = h->at[c];
    }
    h->at[i] = v;
}

static void push(heap *h, hit v) {
    if (h->n == h->cap) {
        if (!before(&v, &h->at[0])) return;
        h->at[0] = v;
        sift_down(h, 0);
        return;
    }
    int64_t i = h->n++;
    for (int64_t up; i > 0 && before(&h->at[up = (i - 1) / 2], &v); i = up) h->at[i] = h->at[up];
    h->at[i] = v;
}

static float worst(const heap *h) { return h->n < h->cap ? INFINITY : h->at[0].dist; }

/* ---- One query ---- */

typedef struct near_cell {
    float dist;
    int32_t cell;
} near_cell;

static int by_dist(const void *a, const void *b) {
    const near_cell *x = a, *y = b;
    if (x->dist != y->dist) return x->dist < y->dist ? -1 : 1;
    return (x->cell > y->cell) - (x->cell < y->cell);
}

typedef struct seeker { /* what one thread works with */
    km_index *x;
    const km_search_options *o;
    km_scan *scan;
    float *query;     /* (dim): scaled for cosine */
    float *dist;      /* (the largest cell) */
    near_cell *cells; /* (cells) */
    heap best;        /* room for the candidates */
    float *vector;    /* (dim): one row for re-ranking */
    km_error error;
} seeker;

static int64_t largest_cell(const km_index *x) {
    uint64_t most = 0;
    for (int i = 0; i < x->n_segments; i++)
        for (int64_t c = 0; c < x->cells; c++) {
            uint64_t n = x->segments[i].start[c + 1] - x->segments[i].start[c];
            most = n > most ? n : most;
        }
    return (int64_t)most;
}

static void seeker_close(seeker *s) {
    km_scan_free(s->scan);
    km_free(s->query);
    km_free(s->dist);
    km_free(s->cells);
    km_free(s->best.at);
    km_free(s->vector);
}

static km_status seeker_open(seeker *s, km_index *x, const km_search_options *o, int64_t keep,
                             int64_t cell) {
    *s = (seeker){.x = x, .o = o};
    s->query = km_alloc(sizeof(float) * (size_t)x->dim);
    s->vector = km_alloc(sizeof(float) * (size_t)x->dim);
    s->dist = km_alloc(sizeof(float) * (size_t)(cell + 1));
    s->cells = km_alloc(sizeof *s->cells * (size_t)x->cells);
    s->best.at = km_alloc(sizeof(hit) * (size_t)keep);
    s->best.cap = keep;
    if (x->coder) s->scan = km_scan_new(x->coder, &s->error);
    if (!s->query || !s->vector || !s->dist || !s->cells || !s->best.at || (x->coder && !s->scan))
        return km_error_set(&s->error, KM_ERR_MEMORY, "no memory for a search");
    return KM_OK;
}

static float dot(const float *a, const float *b, int64_t n) {
    float sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void set_query(seeker *s, const float *query) {
    km_index *x = s->x;
    memcpy(s->query, query, sizeof(float) * (size_t)x->dim);
    if (x->metric == KM_METRIC_COSINE) km_unit(s->query, 1, x->dim);
    if (s->scan) km_scan_query(s->scan, s->query, x->metric);
    s->best.n = 0;
}

/* Sorts the cells by the distance of their anchors; returns how many to probe. */
static int64_t sort_cells(seeker *s) {
    km_index *x = s->x;
    float own = dot(s->query, s->query, x->dim);
    for (int64_t c = 0; c < x->cells; c++) {
        float d = dot(s->query, x->anchors + c * x->dim, x->dim);
        s->cells[c] =
            (near_cell){x->metric == KM_METRIC_L2 ? own - 2 * d + x->norms[c] : -d, (int32_t)c};
    }
    qsort(s->cells, (size_t)x->cells, sizeof *s->cells, by_dist);
    return s->o->probe > 0 && s->o->probe < x->cells ? s->o->probe : x->cells;
}

static bool listed(const uint64_t *ids, size_t n, uint64_t id) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (ids[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && ids[lo] == id;
}

static bool wanted(const km_search_options *o, uint64_t id) {
    if (o->allow && !listed(o->allow, o->n_allow, id)) return false;
    return !o->deny || !listed(o->deny, o->n_deny, id);
}

static km_status scan_cell(seeker *s, const near_cell *c) {
    km_index *x = s->x;
    int64_t turned = s->scan ? km_coder_turned(x->coder) : 0;
    if (s->scan)
        km_scan_cell(s->scan, x->turned + c->cell * turned,
                     x->metric == KM_METRIC_COSINE ? 1.0f : 0.0f);
    for (int i = 0; i < x->n_segments; i++) {
        km_segment *g = &x->segments[i];
        int64_t first = (int64_t)g->start[c->cell], n = (int64_t)g->start[c->cell + 1] - first;
        if (n == 0) continue;
        km_status status = km_segment_check(x, g, first, n, false, &s->error);
        if (status != KM_OK) return status;
        if (s->scan) {
            km_scan_codes(s->scan, g->codes + (size_t)first * x->code_bytes, n, worst(&s->best),
                          s->dist);
        } else {
            float d = x->metric == KM_METRIC_COSINE ? 1 + c->dist : c->dist;
            for (int64_t k = 0; k < n; k++) s->dist[k] = d;
        }
        for (int64_t k = 0; k < n; k++) {
            if (s->dist[k] > worst(&s->best) || km_segment_is_dead(g, first + k)) continue;
            uint64_t id = km_id_get(g->ids, first + k, g->id_bits);
            if (wanted(s->o, id)) push(&s->best, (hit){s->dist[k], id, {i, first + k}});
        }
    }
    return KM_OK;
}

/* ---- Re-ranking ---- */

static void load_vector(const km_index *x, const uint8_t *p, float *out) {
    if (x->rerank == KM_RERANK_F16) {
        for (int64_t j = 0; j < x->dim; j++) {
            uint16_t h;
            memcpy(&h, p + 2 * j, 2);
            out[j] = km_f16_to_f32(h);
        }
        return;
    }
    float scale;
    memcpy(&scale, p, 4);
    for (int64_t j = 0; j < x->dim; j++) out[j] = scale * (float)(int8_t)p[4 + j];
}

float km_distance(km_metric metric, const float *a, const float *b, int64_t dim) {
    float d = dot(a, b, dim);
    if (metric == KM_METRIC_IP) return -d;
    if (metric == KM_METRIC_COSINE) return 1 - d;
    float sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8)
        for (int k = 0; k < 8; k++) {
            float e = a[i + k] - b[i + k];
            sum[k] += e * e;
        }
    for (; i < dim; i++) sum[0] += (a[i] - b[i]) * (a[i] - b[i]);
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static km_status rerank(seeker *s) {
    const km_index *x = s->x;
    for (int64_t i = 0; i < s->best.n; i++) {
        hit *h = &s->best.at[i];
        const km_segment *g = &x->segments[h->at.segment];
        km_status status = km_segment_check(x, g, h->at.row, 1, true, &s->error);
        if (status != KM_OK) return status;
        load_vector(x, g->vectors + (size_t)h->at.row * x->vector_bytes, s->vector);
        h->dist = km_distance(x->metric, s->query, s->vector, x->dim);
    }
    return KM_OK;
}

/* ---- All queries ---- */

typedef struct job {
    km_index *x;
    const float *queries;
    int64_t n, k, chunk;
    bool again;      /* re-rank */
    seeker *seekers; /* one a worker; of one query, one a chunk of cells */
    uint64_t *ids;
    float *dist;
    int64_t probe; /* of one query */
} job;

static void give(const heap *best, int64_t k, uint64_t *ids, float *dist) {
    qsort(best->at, (size_t)best->n, sizeof(hit), compare);
    for (int64_t i = 0; i < k; i++) {
        bool there = i < best->n;
        ids[i] = there ? best->at[i].id : KM_NO_ID;
        dist[i] = there ? best->at[i].dist : INFINITY;
    }
}

static void search_queries(void *arg, int64_t begin, int64_t end, int worker) {
    job *j = arg;
    seeker *s = &j->seekers[worker];
    for (int64_t q = begin; q < end && s->error.code == KM_OK; q++) {
        set_query(s, j->queries + q * j->x->dim);
        int64_t probe = sort_cells(s);
        for (int64_t c = 0; c < probe; c++)
            if (scan_cell(s, &s->cells[c]) != KM_OK) return;
        if (j->again && rerank(s) != KM_OK) return;
        give(&s->best, j->k, j->ids + q * j->k, j->dist + q * j->k);
    }
}

/* Chunks of cells of one query: each keeps its own best, and they are joined in order. The seekers
 * share the sorted list of the first. */
static void search_cells(void *arg, int64_t begin, int64_t end, int worker) {
    job *j = arg;
    seeker *s = &j->seekers[begin / j->chunk];
    (void)worker;
    set_query(s, j->queries);
    for (int64_t c = begin; c < end; c++)
        if (scan_cell(s, &j->seekers[0].cells[c]) != KM_OK) return;
}

static km_status first_error(const job *j, int n, km_error *err) {
    for (int i = 0; i < n; i++)
        if (j->seekers[i].error.code != KM_OK)
            return km_error_set(err, j->seekers[i].error.code, "%s", j->seekers[i].error.text);
    return KM_OK;
}

static km_status search_one(job *j, km_threads *t, int parts, km_error *err) {
    seeker *s = &j->seekers[0];
    set_query(s, j->queries);
    int64_t probe = sort_cells(s);
    j->chunk = (probe + parts - 1) / parts;
    km_threads_for(t, probe, j->chunk, search_cells, j);
    km_status status = first_error(j, parts, err);
    for (int i = 1; status == KM_OK && i < parts; i++)
        for (int64_t k = 0; k < j->seekers[i].best.n; k++) push(&s->best, j->seekers[i].best.at[k]);
    if (status == KM_OK && j->again && rerank(s) != KM_OK) status = first_error(j, 1, err);
    if (status == KM_OK) give(&s->best, j->k, j->ids, j->dist);
    return status;
}

static km_status check(const km_index *x, const float *queries, int64_t n, int64_t k,
                       const km_search_options *o, km_error *err) {
    if (k < 1) return km_error_set(err, KM_ERR_RANGE, "k must be at least 1");
    if (o->rerank > 0 && !x->vector_bytes)
        return km_error_set(err, KM_ERR_STATE,
                            "the index keeps no vectors to re-rank with; build it with --rerank");
    int64_t bad = km_first_bad_row(queries, n, x->dim);
    if (bad >= 0)
        return km_error_set(err, KM_ERR_RANGE, "query %lld holds a NaN or an infinity",
                            (long long)bad);
    return KM_OK;
}

km_status km_index_find(km_index *x, const float *queries, int64_t n, int64_t k,
                        const km_search_options *o, km_threads *t, uint64_t *ids, float *dist,
                        km_error *err) {
    static const km_search_options plain;
    if (!o) o = &plain;
    km_status status = check(x, queries, n, k, o, err);
    if (status != KM_OK || n == 0) return status;
    int64_t live = km_index_live(x), keep = o->rerank > k ? o->rerank : k;
    if (keep > live) keep = live > 0 ? live : 1;
    /* One query is worth sharing out when there is much to scan. */
    int threads = km_threads_count(t), parts = threads;
    if (n == 1 && (double)live * (double)(x->code_bytes + 8) < 1e6) parts = 1;
    if (n == 1 && parts > x->cells) parts = (int)x->cells;
    job j = {.x = x,
             .queries = queries,
             .n = n,
             .k = k,
             .again = o->rerank > 0,
             .ids = ids,
             .dist = dist};
    j.seekers = km_calloc((size_t)parts, sizeof *j.seekers);
    if (!j.seekers) return km_error_set(err, KM_ERR_MEMORY, "no memory for a search");
    int64_t cell = largest_cell(x);
    for (int i = 0; i < parts && status == KM_OK; i++) {
        status = seeker_open(&j.seekers[i], x, o, keep, cell);
        if (status != KM_OK) km_error_set(err, status, "%s", j.seekers[i].error.text);
    }
    if (status == KM_OK && n == 1) {
        status = search_one(&j, parts > 1 ? t : NULL, parts, err);
    } else if (status == KM_OK) {
        km_threads_for(t, n, 1, search_queries, &j);
        status = first_error(&j, parts, err);
    }
    for (int i = 0; i < parts; i++) seeker_close(&j.seekers[i]);
    km_free(j.seekers);
    return status;
}
