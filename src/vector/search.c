/* Search. The cells nearest to a query come first, and the best rows found there let the scan leave
 * most of the others out early. Queries go in small groups, which meet every other cell together:
 * its codes are in the cache, and dense ones are decoded once for the group. Of one query alone, the
 * threads share the cells.
 *
 * Rows are kept in the order of their keys (vector/scan.h), so that the answer is the same in
 * whatever order cells are met. */
#include "backend/cpu/codes.h"
#include "base/alloc.h"
#include "base/gate.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include "vector/input.h"
#include "vector/scan.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUP = 48,       /* queries that meet a cell together */
    DENSE = 16,       /* and its dense codes: queries have axes for every class there */
    LISTED = 4 << 20, /* cells in a thread's lists, about */
    AHEAD = 64,       /* one cell in so many is looked at before the others */
    AT_LEAST = 8,     /* and so many */
    STEP = 256        /* rows scanned with one limit, or a block of the coder's */
};

typedef struct search_hit {
    float key, dist;
    uint64_t id;
    km_row_place at;
} search_hit;

/* The lower id at equal keys: one order for every number of threads. */
static bool before(const search_hit *a, const search_hit *b) {
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

static int nearer(const void *a, const void *b) {
    const search_hit *x = a, *y = b;
    if (x->dist != y->dist) return x->dist < y->dist ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

typedef struct heap { /* the worst on top */
    search_hit *at;
    int64_t n, cap;
} heap;

static void sift_down(heap *h, int64_t i) {
    search_hit v = h->at[i];
    for (int64_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(&h->at[c], &h->at[c + 1])) c++;
        if (!before(&v, &h->at[c])) break;
        h->at[i] = h->at[c];
    }
    h->at[i] = v;
}

static void push(heap *h, search_hit v) {
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

static float worst(const heap *h) { return h->n < h->cap ? INFINITY : h->at[0].key; }

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

typedef struct asked { /* one query of a group */
    km_scan *scan;
    float
        *query; /* (dim): scaled to length 1 for cosine, to that of the rows where they have one */
    float stretch;    /* what the query was longer by */
    float square;     /* |query|^2 */
    float *apart;     /* (cells): squared distance from the anchor, or product with it */
    near_cell *cells; /* (cells), the nearest first */
    bool *later;      /* (cells): those left for the whole group */
    int64_t probe,
        ahead;     /* cells to look at, and how many of them first; only these are in order */
    heap best;     /* room for the candidates */
    float limit;   /* that other threads have left */
    float aim;     /* told to the scan (km_scan_aim) */
    km_near *near; /* (step) */
} asked;

typedef struct seeker { /* what one thread works with */
    const km_index *x;
    const km_snapshot *v;
    const km_search_options *o;
    asked asked[GROUP];
    int group;
    int64_t step;  /* rows at a time */
    float length;  /* of rows, but for those of mixed cells; or 0 (vector/index.h) */
    bool gaps;     /* keys and cells go by squared distance; else by products */
    float *vector; /* (dim): one row for re-ranking */
    bool ready;    /* of one query: it has been set */
    km_error error;
} seeker;

static void seeker_close(seeker *s) {
    for (int i = s->group - 1; i >= 0; i--) { /* the first scan's plan is the others', too */
        asked *q = &s->asked[i];
        km_scan_free(q->scan);
        km_free(q->query);
        km_free(q->apart);
        km_free(q->cells);
        km_free(q->later);
        km_free(q->best.at);
        km_free(q->near);
    }
    km_free(s->vector);
}

static km_status seeker_open(seeker *s, const km_index *x, const km_snapshot *v,
                             const km_search_options *o, int group, int64_t keep) {
    *s = (seeker){.x = x, .v = v, .o = o, .group = group, .step = STEP, .length = x->length};
    s->gaps = x->metric == KM_METRIC_L2 || s->length > 0;
    if (x->coder && km_coder_block_rows(x->coder) > STEP) s->step = km_coder_block_rows(x->coder);
    s->vector = km_alloc(sizeof(float) * (size_t)x->dim);
    bool ok = s->vector;
    for (int i = 0; i < group; i++) {
        asked *q = &s->asked[i];
        q->query = km_alloc(sizeof(float) * (size_t)x->dim);
        q->apart = km_alloc(sizeof *q->apart * (size_t)x->cells);
        q->cells = km_alloc(sizeof *q->cells * (size_t)x->cells);
        q->later = km_alloc(sizeof *q->later * (size_t)x->cells);
        q->best = (heap){km_alloc(sizeof(search_hit) * (size_t)keep), 0, keep};
        q->near = km_alloc(sizeof *q->near * (size_t)s->step);
        if (x->coder && i == 0) q->scan = km_scan_new(x->coder, &s->error);
        if (s->asked[0].scan && i > 0) q->scan = km_scan_like(s->asked[0].scan, &s->error);
        ok = ok && q->query && q->apart && q->cells && q->later && q->best.at && q->near &&
             (!x->coder || q->scan);
    }
    return ok ? KM_OK : km_no_memory_for(&s->error, "a search");
}

static void set_query(const seeker *s, asked *q, const float *query) {
    const km_index *x = s->x;
    memcpy(q->query, query, sizeof(float) * (size_t)x->dim);
    q->stretch = 1;
    if (x->metric == KM_METRIC_COSINE) km_unit(q->query, 1, x->dim);
    if (s->length >
        0) { /* as long as the rows, the query is nearest to them and told from them best */
        double sum = 0;
        for (int64_t j = 0; j < x->dim; j++) sum += (double)q->query[j] * q->query[j];
        q->stretch = (float)sqrt(sum) / s->length;
        float by = q->stretch > 0 ? 1 / q->stretch : 0;
        for (int64_t j = 0; j < x->dim; j++) q->query[j] *= by;
        q->square = by > 0 ? s->length * s->length : 0;
    }
    if (q->scan) km_scan_query(q->scan, q->query, s->gaps ? KM_METRIC_L2 : x->metric);
    q->best.n = 0;
    q->limit = q->aim = INFINITY;
}

static void aim(asked *q, float limit) {
    q->aim = limit;
    if (q->scan) km_scan_aim(q->scan, limit);
}

/* How far the anchors are from some queries. */
static void measure_cells(const seeker *s, asked *q, int queries) {
    const km_code_kernels *k = km_simd_codes();
    const km_index *x = s->x;
    for (int64_t c = 0; c < x->cells; c++) {
        const float *a = x->anchors + c * x->dim;
        for (int i = 0; i < queries; i++)
            q[i].apart[c] = s->gaps ? k->gap(q[i].query, a, x->dim) : k->dot(q[i].query, a, x->dim);
    }
}

/* Brings the m least of n to the front, in whatever order. */
static void select_least(near_cell *v, int64_t n, int64_t m) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi && m > 0 && m < n) {
        near_cell pivot = v[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (by_dist(&v[i], &pivot) < 0) i++;
            while (by_dist(&pivot, &v[j]) < 0) j--;
            if (i > j) break;
            near_cell t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
        if (m <= j + 1)
            hi = j;
        else if (m > i)
            lo = i;
        else
            return;
    }
}

/* Which cells to look at: the nearest first, the others in any order. Where there are no codes the
 * order of the cells is that of the rows. */
static void choose_cells(const seeker *s, asked *q, int64_t probe) {
    const km_index *x = s->x;
    for (int64_t c = 0; c < x->cells; c++)
        q->cells[c] = (near_cell){s->gaps ? q->apart[c] : -q->apart[c], (int32_t)c};
    q->probe = probe > 0 && probe < x->cells ? probe : x->cells;
    q->ahead = q->probe / AHEAD > AT_LEAST ? q->probe / AHEAD : AT_LEAST;
    if (q->ahead > q->probe) q->ahead = q->probe;
    if (x->coder && km_coder_mode(x->coder) == KM_CODE_DENSE) q->ahead = 0; /* nobody is left out */
    if (!x->coder) q->ahead = q->probe;
    select_least(q->cells, x->cells, q->probe);
    select_least(q->cells, q->probe, q->ahead);
    qsort(q->cells, (size_t)q->ahead, sizeof *q->cells, by_dist);
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

/* Of rows from `first` on of a segment, those that may be among the best. */
static void take_rows(seeker *s, asked *q, int segment, int64_t first, int64_t count) {
    const km_segment *g = s->v->at[segment];
    for (int64_t k = 0; k < count; k++) {
        km_near r = q->near[k];
        if (r.key > worst(&q->best) || km_segment_is_dead(g, first + r.row)) continue;
        uint64_t id = km_id_get(g->ids, first + r.row, g->id_bits);
        if (wanted(s->o, id))
            push(&q->best, (search_hit){r.key, r.dist, id, {segment, first + r.row}});
    }
}

/* Products and the squared distances that they would be if all rows had one length. */
static float as_gap(const seeker *s, const asked *q, float product) {
    return q->square + s->length * s->length + 2 * product;
}

static float as_product(const seeker *s, const asked *q, float gap) {
    return (gap - q->square - s->length * s->length) / 2;
}

/* Rows [first, first + n) of a segment, for some queries; `dist` from the only one's anchor where
 * there are no codes. Of a mixed cell, scans tell products. */
static void scan_rows(seeker *s, asked *const *q, int queries, int segment, int64_t first,
                      int64_t n, float dist, bool mixed) {
    const km_index *x = s->x;
    int64_t count[GROUP];
    if (x->coder) {
        km_scan *scan[GROUP];
        km_near *near[GROUP];
        float limit[GROUP];
        for (int i = 0; i < queries; i++) {
            scan[i] = q[i]->scan;
            near[i] = q[i]->near;
            limit[i] = fminf(worst(&q[i]->best), q[i]->limit);
            if (mixed) limit[i] = as_product(s, q[i], limit[i]);
        }
        km_scan_near_each(scan, queries, s->v->at[segment]->codes + (size_t)first * x->code_bytes,
                          n, limit, near, count);
    } else {
        for (int64_t k = 0; k < n; k++) q[0]->near[k] = (km_near){dist, dist, (int32_t)k};
        count[0] = n;
    }
    for (int i = 0; i < queries; i++) {
        for (int64_t k = 0; k < count[i] && mixed; k++) {
            km_near *r = &q[i]->near[k];
            *r = (km_near){as_gap(s, q[i], r->key), as_gap(s, q[i], r->dist), r->row};
        }
        take_rows(s, q[i], segment, first, count[i]);
    }
}

/* A cell for some queries; for one where there are no codes. */
static km_status scan_cell(seeker *s, asked *const *q, int queries, near_cell c) {
    const km_index *x = s->x;
    bool cosine = x->metric == KM_METRIC_COSINE && !s->gaps;
    bool mixed = s->length > 0 && atomic_load_explicit(&x->mixed[c.cell], memory_order_relaxed);
    const float *anchor = x->anchors + c.cell * x->dim;
    for (int i = 0; x->coder && i < queries; i++) {
        float apart = q[i]->apart[c.cell];
        if (mixed) {
            apart = km_simd_codes()->dot(q[i]->query, anchor, x->dim);
            km_scan_switch(q[i]->scan, KM_METRIC_IP, as_product(s, q[i], q[i]->aim));
        }
        km_scan_cell_at(q[i]->scan, x->turned + c.cell * x->axes, apart, cosine ? 1.0f : 0.0f);
    }
    if (!x->coder && mixed) c.dist = -km_simd_codes()->dot(q[0]->query, anchor, x->dim);
    for (int i = 0; i < s->v->n; i++) {
        const km_segment *g = s->v->at[i];
        int64_t first = (int64_t)g->start[c.cell], n = (int64_t)g->start[c.cell + 1] - first;
        if (n == 0) continue;
        km_status status = km_segment_check(x, g, first, n, false, &s->error);
        if (status != KM_OK) return status;
        for (int64_t k = 0; k < n; k += s->step)
            scan_rows(s, q, queries, i, first + k, n - k < s->step ? n - k : s->step,
                      cosine ? 1 + c.dist : c.dist, mixed);
    }
    for (int i = 0; x->coder && mixed && i < queries; i++)
        km_scan_switch(q[i]->scan, KM_METRIC_L2, q[i]->aim);
    return KM_OK;
}

/* Prefetches the beginning of a cell that is scanned soon. */
static void expect_cell(const seeker *s, const asked *q, int64_t cell) {
    const km_index *x = s->x;
    const km_segment *g = s->v->n ? s->v->at[0] : NULL;
    if (!q->scan || !g || g->start[cell] == g->start[cell + 1]) return;
    km_scan_expect(q->scan, x->turned + cell * x->axes, g->codes + g->start[cell] * x->code_bytes,
                   (int64_t)(g->start[cell + 1] - g->start[cell]));
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
    if (metric == KM_METRIC_L2) return km_simd_codes()->gap(a, b, dim);
    float d = km_simd_codes()->dot(a, b, dim);
    return metric == KM_METRIC_IP ? -d : 1 - d;
}

static km_status rerank(seeker *s, asked *q) {
    const km_index *x = s->x;
    for (int64_t i = 0; i < q->best.n; i++) {
        search_hit *h = &q->best.at[i];
        const km_segment *g = s->v->at[h->at.segment];
        km_status status = km_segment_check(x, g, h->at.row, 1, true, &s->error);
        if (status != KM_OK) return status;
        load_vector(x, g->vectors + (size_t)h->at.row * x->vector_bytes, s->vector);
        h->dist = km_distance(x->metric, q->query, s->vector, x->dim);
        if (x->metric == KM_METRIC_IP) h->dist *= q->stretch;
    }
    return KM_OK;
}

/* ---- All queries ---- */

/* Of all searches that there are, two for each core compute at a time: changes beside them get a core
 * soon, and what is begun is done sooner. Where there is little to scan, it is not worth being woken
 * for. */
static km_gate gate = KM_GATE(0);
#define MUCH 1e6 /* bytes to scan, for all queries */

typedef struct search_job {
    const km_index *x;
    const km_snapshot *v;
    const km_search_options *o;
    const float *queries;
    int64_t n, k;
    seeker *seekers; /* one a worker */
    uint64_t *ids;
    float *dist;
    bool much; /* goes by the gate */
} search_job;

/* From squared distances to what the metric says. */
static void tell_products(const seeker *s, asked *q) {
    bool product = s->x->metric == KM_METRIC_IP; /* a query of zero has no direction */
    float by = product ? q->stretch : q->stretch > 0 ? 1 : 0, add = product ? 0 : 1;
    for (int64_t i = 0; i < q->best.n; i++)
        q->best.at[i].dist = by * as_product(s, q, q->best.at[i].dist) + add;
}

static km_status give(const search_job *j, seeker *s, asked *q, int64_t query) {
    heap *best = &q->best;
    km_status status = j->o->rerank > 0 ? rerank(s, q) : KM_OK;
    if (j->o->rerank <= 0 && s->length > 0) tell_products(s, q);
    qsort(best->at, (size_t)best->n, sizeof(search_hit), nearer);
    for (int64_t i = 0; i < j->k; i++) {
        bool there = i < best->n;
        j->ids[query * j->k + i] = there ? best->at[i].id : KM_NO_ID;
        j->dist[query * j->k + i] = there ? best->at[i].dist : INFINITY;
    }
    return status;
}

/* The cells nearest to a query; the others are marked. What they leave is near to the limit in the
 * end, and the same however queries and threads are grouped. */
static km_status look_ahead(seeker *s, asked *q) {
    memset(q->later, 0, sizeof *q->later * (size_t)s->x->cells);
    for (int64_t c = 0; c < q->ahead; c++) {
        km_status status = scan_cell(s, &q, 1, q->cells[c]);
        if (status != KM_OK) return status;
    }
    for (int64_t c = q->ahead; c < q->probe; c++) q->later[q->cells[c].cell] = true;
    aim(q, worst(&q->best));
    return KM_OK;
}

static void answer_group(search_job *j, seeker *s, int64_t begin, int n) {
    const km_index *x = j->x;
    for (int i = 0; i < n; i++) set_query(s, &s->asked[i], j->queries + (begin + i) * x->dim);
    measure_cells(s, s->asked, n);
    for (int i = 0; i < n; i++) {
        choose_cells(s, &s->asked[i], j->o->probe);
        if (look_ahead(s, &s->asked[i]) != KM_OK) return;
    }
    for (int64_t c = 0; c < x->cells; c++) {
        asked *q[GROUP];
        int here = 0;
        for (int i = 0; i < n; i++)
            if (s->asked[i].later[c]) q[here++] = &s->asked[i];
        if (c + 1 < x->cells) expect_cell(s, &s->asked[0], c + 1);
        if (here && scan_cell(s, q, here, (near_cell){0, (int32_t)c}) != KM_OK) return;
    }
    for (int i = 0; i < n; i++)
        if (give(j, s, &s->asked[i], begin + i) != KM_OK) return;
}

/* A group of queries, at most as many as a seeker takes; between groups others have their turn. */
static void search_group(void *arg, int64_t begin, int64_t end, int worker) {
    search_job *j = arg;
    seeker *s = &j->seekers[worker];
    if (s->error.code != KM_OK) return;
    int taken = j->much ? km_gate_enter(&gate, 1) : 0;
    answer_group(j, s, begin, (int)(end - begin));
    km_gate_leave(&gate, taken);
}

/* Those of some cells that one query has not looked at yet. */
static void search_cells(void *arg, int64_t begin, int64_t end, int worker) {
    search_job *j = arg;
    seeker *s = &j->seekers[worker];
    const asked *first = &j->seekers[0].asked[0];
    asked *q = &s->asked[0];
    if (!s->ready) {
        set_query(s, q, j->queries);
        memcpy(q->apart, first->apart, sizeof *q->apart * (size_t)j->x->cells);
        q->limit = first->limit;
        aim(q, first->limit);
        s->ready = true;
    }
    for (int64_t c = begin; c < end && s->error.code == KM_OK; c++) {
        if (c + 1 < end && first->later[c + 1]) expect_cell(s, q, c + 1);
        if (first->later[c]) scan_cell(s, &q, 1, (near_cell){0, (int32_t)c});
    }
}

static km_status first_error(const search_job *j, int n, km_error *err) {
    for (int i = 0; i < n; i++)
        if (j->seekers[i].error.code != KM_OK)
            return km_error_set(err, j->seekers[i].error.code, "%s", j->seekers[i].error.text);
    return KM_OK;
}

static km_status search_one(search_job *j, km_threads *t, int workers, km_error *err) {
    seeker *s = &j->seekers[0];
    asked *q = &s->asked[0];
    set_query(s, q, j->queries);
    measure_cells(s, q, 1);
    choose_cells(s, q, j->o->probe);
    s->ready = true;
    if (look_ahead(s, q) == KM_OK) {
        q->limit = worst(&q->best);
        if (q->probe > q->ahead) km_threads_for(t, j->x->cells, 8, search_cells, j);
    }
    km_status status = first_error(j, workers, err);
    for (int i = 1; status == KM_OK && i < workers; i++) {
        const heap *other = &j->seekers[i].asked[0].best;
        for (int64_t k = 0; k < other->n; k++) push(&q->best, other->at[k]);
    }
    if (status == KM_OK && give(j, s, q, 0) != KM_OK) status = first_error(j, 1, err);
    return status;
}

static km_status check(const km_index *x, const float *queries, int64_t n, int64_t k,
                       const km_search_options *o, km_error *err) {
    if (k < 1) return km_error_set(err, KM_ERR_RANGE, "k must be at least 1");
    if (o->rerank > 0 && !x->vector_bytes)
        return km_error_set(
            err, KM_ERR_STATE,
            "the index keeps no vectors to re-rank with: compress --rerank keeps them, "
            "search --base brings them");
    int64_t bad = km_first_unfit_row(queries, n, x->dim, x->metric);
    char why[KM_TROUBLE_TEXT];
    if (bad >= 0)
        return km_error_set(err, KM_ERR_RANGE, "query %lld %s", (long long)bad,
                            km_row_trouble(why, queries + bad * x->dim, x->dim, x->metric));
    return KM_OK;
}

static km_status find(const km_index *x, const km_snapshot *v, const float *queries, int64_t n,
                      int64_t k, const km_search_options *o, km_threads *t, uint64_t *ids,
                      float *dist, km_error *err) {
    km_status status = KM_OK;
    int64_t dead, live = km_snapshot_count(v, &dead), keep = o->rerank > k ? o->rerank : k;
    live -= dead;
    if (keep > live) keep = live > 0 ? live : 1;
    /* One query is worth sharing out when there is much to scan. */
    int workers = km_threads_count(t);
    double bytes = (double)live * (double)(x->code_bytes + 8);
    if (n == 1 && bytes < MUCH) workers = 1;
    /* Groups as large as may be, and as many for each thread; of many cells, lists are long. */
    int64_t top = x->mode == KM_INDEX_DENSE ? DENSE : GROUP, most = LISTED / x->cells;
    most = most < 1 ? 1 : most > top ? top : most;
    int64_t rounds = (n + workers * most - 1) / (workers * most);
    int group = (int)((n + workers * rounds - 1) / (workers * rounds));
    search_job j = {.x = x,
                    .v = v,
                    .o = o,
                    .queries = queries,
                    .n = n,
                    .k = k,
                    .ids = ids,
                    .dist = dist,
                    .much = (double)n * bytes >= MUCH};
    j.seekers = km_calloc((size_t)workers, sizeof *j.seekers);
    if (!j.seekers) return km_no_memory_for(err, "a search");
    for (int i = 0; i < workers && status == KM_OK; i++) {
        status = seeker_open(&j.seekers[i], x, v, o, group, keep);
        if (status != KM_OK) km_error_set(err, status, "%s", j.seekers[i].error.text);
    }
    if (status == KM_OK && n == 1) {
        int taken = j.much ? km_gate_enter(&gate, workers) : 0;
        status = search_one(&j, workers > 1 ? t : NULL, workers, err);
        km_gate_leave(&gate, taken);
    } else if (status == KM_OK) {
        km_threads_for(t, n, group, search_group, &j);
        status = first_error(&j, workers, err);
    }
    for (int i = 0; i < workers; i++) seeker_close(&j.seekers[i]);
    km_free(j.seekers);
    return km_snapshot_intact(v, status, err);
}

km_status km_index_find(km_index *x, const float *queries, int64_t n, int64_t k,
                        const km_search_options *o, km_threads *t, uint64_t *ids, float *dist,
                        km_error *err) {
    static const km_search_options plain;
    if (!o) o = &plain;
    km_status status = check(x, queries, n, k, o, err);
    if (status != KM_OK || n == 0) return status;
    km_snapshot *v = km_index_rows(x);
    status = find(x, v, queries, n, k, o, t, ids, dist, err);
    km_snapshot_drop(v);
    return status;
}
