/* Merging and splitting, judged by energy. A merge of anchors a and b costs na nb / (na + nb) times
 * their squared distance; a split of a cell gains what 2-means takes off its members' energy. The
 * cheapest merge pays for the best split as long as it gains more than it costs, so that a pass never
 * makes things worse. Everything is judged on a sample that all ranks share. */
#include "vector/maintain.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/nearest.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6           /* of 2-means */
#define MOST_MEMBERS 1024 /* of a cell, looked at for a split */
/* Unless told otherwise: */
#define MERGE_BELOW 1e-9 /* of a mean cell's energy: two anchors at one place, or no vectors */
#define SPLIT_ABOVE 1.1  /* by which a gain must exceed its cost */

typedef struct cell_change { /* a merge with `other`, or a split; worth is its cost or gain */
    double worth;
    int64_t cell, other;
} cell_change;

typedef struct pass {
    km_ctx *ctx;
    km_maintenance *m;
    int32_t *id;          /* (rows) */
    float *dist;          /* (rows) */
    int64_t *start, *row; /* (k + 1), (rows): members of each cell in the sample */
    double *energy;       /* (k) in the sample */
    int32_t *near;        /* (k): the nearest other anchor, and its squared distance */
    float *apart;
    cell_change *merge, *split;
    float *halves; /* (k, 2, d): where a split would put its two anchors */
    bool *used;    /* (k) */
} pass;

/* ---- What is where ---- */

static km_status assign_sample(pass *p) {
    km_ctx *ctx = p->ctx;
    km_maintenance *m = p->m;
    km_tensor *id, *dist;
    km_scope_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(m->rows, m->d), m->sample);
    km_tensor *c = km_from_data(ctx, KM_F32, KM_SHAPE(m->k, m->d), m->centre);
    if (km_nearest_of(ctx, x, c, NULL, true, false, &id, &dist) == KM_OK) {
        km_read(ctx, id, p->id, sizeof *p->id * (size_t)m->rows);
        km_read(ctx, dist, p->dist, sizeof *p->dist * (size_t)m->rows);
    }
    km_scope_end(ctx, NULL);
    if (km_failed(ctx)) return km_ctx_status(ctx);
    for (int64_t j = 0; j <= m->k; j++) p->start[j] = 0;
    for (int64_t j = 0; j < m->k; j++) p->energy[j] = 0;
    for (int64_t i = 0; i < m->rows; i++) {
        p->start[p->id[i]]++;
        p->energy[p->id[i]] += (double)p->dist[i];
    }
    int64_t at = 0;
    for (int64_t j = 0; j < m->k; j++) {
        at += p->start[j];
        p->start[j] = at; /* the end; walked down to the beginning below */
    }
    p->start[m->k] = at;
    for (int64_t i = m->rows - 1; i >= 0; i--) p->row[--p->start[p->id[i]]] = i;
    return KM_OK;
}

/* The nearest other anchor of each: any two differ in some bit of their numbers, so for each bit the
 * anchors that have it set look for the nearest of those that have not, and the other way round. */
static km_status meet_others(pass *p, int bit, bool set) {
    km_ctx *ctx = p->ctx;
    km_maintenance *m = p->m;
    int64_t mine = 0, theirs = 0, k = m->k, d = m->d;
    float *a = km_alloc(sizeof *a * (size_t)(k * d)), *b = km_alloc(sizeof *b * (size_t)(k * d));
    int32_t *who = km_alloc(sizeof *who * (size_t)(3 * k)), *other = who + k, *found = who + 2 * k;
    float *apart = km_alloc(sizeof *apart * (size_t)k);
    if (!a || !b || !who || !apart) {
        km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
        goto end;
    }
    for (int64_t j = 0; j < k; j++) {
        bool in = (((j >> bit) & 1) == 1) == set;
        if (in)
            who[mine] = (int32_t)j;
        else
            other[theirs] = (int32_t)j;
        memcpy(in ? a + mine * d : b + theirs * d, m->centre + j * d, sizeof *a * (size_t)d);
        mine += in;
        theirs += !in;
    }
    if (mine && theirs) {
        km_tensor *id, *dist;
        km_scope_begin(ctx);
        km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(mine, d), a);
        km_tensor *c = km_from_data(ctx, KM_F32, KM_SHAPE(theirs, d), b);
        if (km_nearest_of(ctx, x, c, NULL, true, false, &id, &dist) == KM_OK) {
            km_read(ctx, id, found, sizeof *found * (size_t)mine);
            km_read(ctx, dist, apart, sizeof *apart * (size_t)mine);
        }
        km_scope_end(ctx, NULL);
        for (int64_t i = 0; i < mine && !km_failed(ctx); i++) {
            int32_t j = who[i], to = other[found[i]];
            if (p->near[j] >= 0 &&
                (apart[i] > p->apart[j] || (apart[i] == p->apart[j] && to > p->near[j])))
                continue;
            p->near[j] = to;
            p->apart[j] = apart[i];
        }
    }
end:
    km_free(a);
    km_free(b);
    km_free(who);
    km_free(apart);
    return km_ctx_status(ctx);
}

static km_status find_neighbours(pass *p) {
    for (int64_t j = 0; j < p->m->k; j++) p->near[j] = -1;
    for (int bit = 0; (p->m->k - 1) >> bit; bit++)
        if (meet_others(p, bit, true) != KM_OK || meet_others(p, bit, false) != KM_OK)
            return km_ctx_status(p->ctx);
    return KM_OK;
}

/* ---- What a split would gain ---- */

static double between(const float *x, const float *y, int64_t d) {
    float sum[8] = {0};
    int64_t e = 0;
    for (; e + 8 <= d; e += 8)
        for (int u = 0; u < 8; u++) sum[u] += (x[e + u] - y[e + u]) * (x[e + u] - y[e + u]);
    for (; e < d; e++) sum[0] += (x[e] - y[e]) * (x[e] - y[e]);
    return (double)((sum[0] + sum[1]) + (sum[2] + sum[3])) +
           (double)((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* 2-means of the cell's members, from one member drawn by its distance to the anchor and one by its
 * distance to the first. The energy that is left, for the members looked at; *before: what it is now. */
static double two_means(pass *p, int64_t cell, float *halves, double *before) {
    km_maintenance *m = p->m;
    const int64_t *row = p->row + p->start[cell], d = m->d;
    int64_t many = p->start[cell + 1] - p->start[cell];
    if (many > MOST_MEMBERS) many = MOST_MEMBERS;
    float *one = halves, *two = halves + d;
    double total = 0, at, left = 0;
    *before = 0;
    for (int64_t i = 0; i < many; i++) *before += (double)p->dist[row[i]];
    km_philox4 r = km_philox(m->seed, 0x2b1e, (uint64_t)cell);
    at = (double)km_u32_to_unit(r.v[0]) * *before;
    int64_t pick = 0;
    for (; pick < many - 1 && at >= (double)p->dist[row[pick]]; pick++)
        at -= (double)p->dist[row[pick]];
    memcpy(one, m->sample + row[pick] * d, sizeof *one * (size_t)d);
    for (int64_t i = 0; i < many; i++) total += between(m->sample + row[i] * d, one, d);
    at = (double)km_u32_to_unit(r.v[1]) * total;
    for (pick = 0; pick < many - 1; pick++) {
        at -= between(m->sample + row[pick] * d, one, d);
        if (at < 0) break;
    }
    memcpy(two, m->sample + row[pick] * d, sizeof *two * (size_t)d);
    double *sums = (double *)(void *)(halves + 2 * d); /* (2, d) */
    for (int step = 0; step < STEPS; step++) {
        int64_t n[2] = {0, 0};
        left = 0;
        memset(sums, 0, sizeof *sums * (size_t)(2 * d));
        for (int64_t i = 0; i < many; i++) {
            const float *x = m->sample + row[i] * d;
            double a = between(x, one, d), b = between(x, two, d);
            int side = b < a;
            left += side ? b : a;
            n[side]++;
            for (int64_t e = 0; e < d; e++) sums[side * d + e] += (double)x[e];
        }
        if (!n[0] || !n[1]) return *before;
        for (int side = 0; side < 2; side++)
            for (int64_t e = 0; e < d; e++)
                halves[side * d + e] = (float)(sums[side * d + e] / (double)n[side]);
    }
    return left;
}

typedef struct split_job {
    pass *p;
    char *room;
    size_t each;
} split_job;

static void split_range(void *arg, int64_t begin, int64_t end, int worker) {
    split_job *j = arg;
    pass *p = j->p;
    km_maintenance *m = p->m;
    int64_t d = m->d;
    float *room = (float *)(void *)(j->room + (size_t)worker * j->each);
    double whole = m->total / (double)m->rows; /* vectors for each row of the sample */
    for (int64_t cell = begin; cell < end; cell++) {
        int64_t many = p->start[cell + 1] - p->start[cell];
        p->split[cell] = (cell_change){0, cell, -1};
        if (many < 2 || !(p->energy[cell] > 0)) continue;
        double before, left = two_means(p, cell, room, &before);
        /* Two means fit a few members better than they fit the cell: of m members about two parts in
         * m of the energy are won by chance. */
        double gain = before - left - (whole > 1.5 ? 2 * before / (double)many : 0);
        if (many > MOST_MEMBERS) gain *= (double)many / MOST_MEMBERS;
        if (!(gain > 0)) continue;
        p->split[cell].worth = gain * whole;
        memcpy(p->halves + 2 * cell * d, room, sizeof *room * (size_t)(2 * d));
    }
}

static km_status find_splits(pass *p) {
    size_t each = (size_t)p->m->d * (2 * sizeof(float) + 2 * sizeof(double)) + 64;
    split_job j = {p, NULL, each / 64 * 64};
    j.room = km_alloc_aligned(j.each * (size_t)km_threads_count(p->ctx->threads));
    if (!j.room) return km_fail(p->ctx, KM_ERR_MEMORY, "anchors: out of memory");
    km_threads_for(p->ctx->threads, p->m->k, 4, split_range, &j);
    km_free_aligned(j.room, j.each * (size_t)km_threads_count(p->ctx->threads));
    return KM_OK;
}

/* ---- The exchange ---- */

static int cheapest_first(const void *a, const void *b) {
    const cell_change *x = a, *y = b;
    if (x->worth != y->worth) return x->worth < y->worth ? -1 : 1;
    return (x->cell > y->cell) - (x->cell < y->cell);
}

static int best_first(const void *a, const void *b) {
    const cell_change *x = a, *y = b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    return (x->cell > y->cell) - (x->cell < y->cell);
}

static void list_merges(pass *p) {
    km_maintenance *m = p->m;
    for (int64_t j = 0; j < m->k; j++) {
        double a = (double)m->count[j], b = p->near[j] >= 0 ? (double)m->count[p->near[j]] : 0;
        double cost = a + b > 0 ? a * b / (a + b) * (double)p->apart[j] : 0;
        if (p->near[j] < 0) cost = INFINITY;
        p->merge[j] = (cell_change){cost, j, p->near[j]};
    }
    qsort(p->merge, (size_t)m->k, sizeof *p->merge, cheapest_first);
    qsort(p->split, (size_t)m->k, sizeof *p->split, best_first);
}

/* b goes into a, at their common mean. */
static void join(pass *p, int64_t a, int64_t b) {
    km_maintenance *m = p->m;
    double na = (double)m->count[a], nb = (double)m->count[b], all = na + nb;
    float *x = m->centre + a * m->d, *y = m->centre + b * m->d;
    for (int64_t e = 0; e < m->d && all > 0; e++)
        x[e] = (float)(((double)x[e] * na + (double)y[e] * nb) / all);
}

static void exchange(pass *p, bool *gone) {
    km_maintenance *m = p->m;
    double scale = 0;
    for (int64_t j = 0; j < m->k; j++) scale += p->energy[j];
    scale *= m->total / (double)m->rows / (double)m->k; /* of a cell */
    double below = scale * (m->merge_below > 0 ? m->merge_below : MERGE_BELOW);
    double above = m->split_above > 0 ? m->split_above : SPLIT_ABOVE;
    int64_t next = 0; /* split */
    for (int64_t i = 0; i < m->k; i++) {
        int64_t b = p->merge[i].cell, a = p->merge[i].other;
        if (p->merge[i].worth == INFINITY || p->used[a] || p->used[b]) continue;
        while (next < m->k && (p->used[p->split[next].cell] || p->split[next].cell == a ||
                               p->split[next].cell == b))
            next++;
        double gain = next < m->k ? p->split[next].worth : 0;
        bool idle = m->count[b] == 0, pays = gain > above * p->merge[i].worth && gain > 0;
        bool useless = p->merge[i].worth <= below;
        if (!pays && !useless) break; /* later merges cost more, later splits gain less */
        p->used[a] = p->used[b] = true;
        m->changed = true;
        if (!idle) join(p, a, b);
        if (!pays) {
            gone[b] = true;
            m->merged++;
            continue;
        }
        int64_t cell = p->split[next].cell;
        p->used[cell] = true;
        memcpy(m->centre + cell * m->d, p->halves + 2 * cell * m->d, sizeof(float) * (size_t)m->d);
        memcpy(m->centre + b * m->d, p->halves + (2 * cell + 1) * m->d,
               sizeof(float) * (size_t)m->d);
        m->split++;
        if (idle)
            m->reseeded++;
        else
            m->merged++;
    }
}

static void close_gaps(km_maintenance *m, const bool *gone) {
    int64_t left = 0;
    for (int64_t j = 0; j < m->k; j++) {
        if (gone[j]) continue;
        if (left != j)
            memcpy(m->centre + left * m->d, m->centre + j * m->d, sizeof(float) * (size_t)m->d);
        left++;
    }
    m->k = left;
}

km_status km_maintain(km_ctx *ctx, km_maintenance *m) {
    pass p = {.ctx = ctx, .m = m};
    size_t k = (size_t)m->k, rows = (size_t)m->rows, d = (size_t)m->d;
    m->changed = false;
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (m->k < 2 || m->rows < 2) return KM_OK;
    bool *gone = km_calloc(2 * k, sizeof *gone);
    p.id = km_alloc(rows * sizeof *p.id);
    p.dist = km_alloc(rows * sizeof *p.dist);
    p.start = km_alloc((k + 1 + rows) * sizeof *p.start);
    p.energy = km_alloc(k * sizeof *p.energy);
    p.near = km_alloc(k * sizeof *p.near);
    p.apart = km_alloc(k * sizeof *p.apart);
    p.merge = km_alloc(2 * k * sizeof *p.merge);
    p.halves = km_alloc(2 * k * d * sizeof *p.halves);
    if (gone && p.id && p.dist && p.start && p.energy && p.near && p.apart && p.merge && p.halves) {
        p.row = p.start + k + 1;
        p.split = p.merge + k;
        p.used = gone + k;
        if (assign_sample(&p) == KM_OK && find_neighbours(&p) == KM_OK &&
            find_splits(&p) == KM_OK) {
            list_merges(&p);
            exchange(&p, gone);
            close_gaps(m, gone);
        }
    } else {
        km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    }
    km_free(gone);
    km_free(p.id);
    km_free(p.dist);
    km_free(p.start);
    km_free(p.energy);
    km_free(p.near);
    km_free(p.apart);
    km_free(p.merge);
    km_free(p.halves);
    return km_ctx_status(ctx);
}
