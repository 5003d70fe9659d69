/* A few tables of cosines and sines, one for each way of rotating that the lane has met lately. */
#include "backend/cpu/rope_rows.h"
#include "backend/host.h"
#include "base/alloc.h"
#include <math.h>

#define KINDS 4  /* a model has one or two */
#define RENEW 32 /* rotations by one step before an angle is made anew */

typedef struct table {
    km_rope_way kind;  /* divisors: our copy */
    double *frequency; /* (dims / 2), then cosine and sine of one step, then of the running angle */
    float *own;        /* the divisors, when there are any */
    int32_t *at;       /* (n) */
    float *rows;
    int64_t n, room;
    uint64_t used;
} table;

typedef struct tables {
    table t[KINDS];
    uint64_t calls;
} tables;

static void clear(table *t) {
    km_free(t->frequency);
    km_free(t->own);
    km_free(t->at);
    km_free(t->rows);
    *t = (table){0};
}

static void drop(void *kept) {
    tables *all = kept;
    for (int i = 0; i < KINDS; i++) clear(&all->t[i]);
    km_free(all);
}

static bool same_kind(const table *t, const km_rope_way *k) {
    if (!t->frequency || t->kind.base != k->base || t->kind.dims != k->dims ||
        t->kind.adjacent != k->adjacent || t->kind.magnitude != k->magnitude ||
        !t->own != !k->divisors)
        return false;
    return !k->divisors || memcmp(t->own, k->divisors, (size_t)k->dims / 2 * sizeof(float)) == 0;
}

static bool begin(table *t, const km_rope_way *k) {
    size_t half = (size_t)k->dims / 2;
    clear(t);
    t->kind = *k;
    t->frequency = km_calloc(5 * half, sizeof *t->frequency);
    t->own = k->divisors ? km_calloc(half, sizeof *t->own) : NULL;
    if (!t->frequency || (k->divisors && !t->own)) {
        clear(t);
        return false;
    }
    if (k->divisors) memcpy(t->own, k->divisors, half * sizeof *t->own);
    for (size_t i = 0; i < half; i++) {
        double f = pow(k->base, -2.0 * (double)i / (double)k->dims);
        if (k->divisors) f /= (double)k->divisors[i];
        t->frequency[i] = f;
        t->frequency[half + i] = cos(f);
        t->frequency[2 * half + i] = sin(f);
    }
    return true;
}

static void write_row(const table *t, float *to) {
    int64_t half = t->kind.dims / 2;
    const double *cs = t->frequency + 3 * half, *sn = cs + half;
    double m = t->kind.magnitude;
    float *c = to, *s = to + 2 * half;
    for (int64_t i = 0; i < half; i++) {
        int64_t a = t->kind.adjacent ? 2 * i : i, b = t->kind.adjacent ? 2 * i + 1 : i + half;
        c[a] = c[b] = (float)(m * cs[i]);
        s[b] = (float)(m * sn[i]);
        s[a] = -s[b];
    }
}

static void fill(table *t, const int32_t *at, int64_t step, int64_t n) {
    int64_t half = t->kind.dims / 2, since = 0;
    const double *f = t->frequency, *one_cos = f + half, *one_sin = f + 2 * half;
    double *cs = t->frequency + 3 * half, *sn = cs + half;
    for (int64_t r = 0; r < n; r++) {
        int32_t p = at[r * step];
        t->at[r] = p;
        if (r > 0 && p == t->at[r - 1] + 1 && since < RENEW) {
            since++;
            for (int64_t i = 0; i < half; i++) {
                double a = cs[i], b = sn[i];
                cs[i] = a * one_cos[i] - b * one_sin[i];
                sn[i] = b * one_cos[i] + a * one_sin[i];
            }
        } else {
            since = 0;
            for (int64_t i = 0; i < half; i++) {
                cs[i] = cos((double)p * f[i]);
                sn[i] = sin((double)p * f[i]);
            }
        }
        write_row(t, t->rows + r * 2 * t->kind.dims);
    }
    t->n = n;
}

const float *km_rope_rows(km_lane *lane, const km_rope_way *kind, const int32_t *at, int64_t step,
                          int64_t n) {
    km_host_queue *q = km_host_queue_of(lane);
    if (!q->kept) {
        q->kept = km_calloc(1, sizeof(tables));
        q->drop = drop;
    }
    tables *all = q->kept;
    if (!all) return NULL;
    table *t = NULL, *oldest = &all->t[0];
    for (int i = 0; i < KINDS && !t; i++) {
        if (same_kind(&all->t[i], kind)) t = &all->t[i];
        if (all->t[i].used < oldest->used) oldest = &all->t[i];
    }
    if (!t) {
        t = oldest;
        if (!begin(t, kind)) return NULL;
    }
    t->used = ++all->calls;
    bool there = t->n == n;
    for (int64_t r = 0; r < n && there; r++) there = t->at[r] == at[r * step];
    if (there) return t->rows;
    if (n > t->room) {
        t->n = 0;
        km_free(t->at);
        km_free(t->rows);
        t->at = km_calloc((size_t)n, sizeof *t->at);
        t->rows = km_calloc((size_t)(n * 2 * kind->dims), sizeof *t->rows);
        t->room = t->at && t->rows ? n : 0;
        if (!t->room) return NULL;
    }
    fill(t, at, step, n);
    return t->rows;
}
