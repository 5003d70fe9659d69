/* Scans: a row's values against the query, in the axes of the row's class. Rows are looked at in
 * stages, what tells most of them first; what is certainly too far goes no further. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define SURE 3.0f  /* deviations of a stage's error beyond which a row is out */
#define FIRST 0.5f /* the part of the leading planes in stage one, at most */
#define TIERS 3    /* ways to divide the leading planes between the stages */
#define CLEAR 3.5f /* deviations of rows that a division has to leave between them and the limit */

/* A way to divide the leading planes. Where most rows are far beyond the limit, few planes tell so. */
typedef struct tier {
    int64_t planes[2];     /* of each stage */
    int64_t groups[2];     /* of axes that these are of, at most */
    float more[2];         /* what estimates are made longer by */
    const float *error[2]; /* (padded) of an estimate along an axis of variance 1 */
} tier;

/* What all scans of a coder share. */
typedef struct scan_plan {
    km_level_plan rows;
    int tiers;
    tier tier[TIERS];
    float norm;    /* |r|^2 / scale^2, about */
    float *weight; /* (planes) what a leading plane's bit adds or takes */
    float *error;  /* (TIERS + 1, padded) */
} scan_plan;

typedef struct staged_query { /* a query's tables in one tier */
    km_stage_query query;
    uint8_t *lut;       /* (nibbles, 16), 64 bytes of 0 behind */
    float spread;       /* variance of stage one's error in <p, r^> / scale; below 0: not known */
    float least, slack; /* sums of the tables so far */
    int ready;          /* stages with tables */
} staged_query;

struct km_scan {
    const km_coder *c;
    scan_plan *plan, *own; /* of fast codes; own: NULL where another scan's is used */
    bool product, entered; /* entered: p is that of this cell */
    const float *axes;     /* of the cell's anchor; NULL: none */
    float *query;          /* (km_coder_turned) */
    float *p;              /* (turned) query minus anchor along the axes, times amp */
    float size;            /* |p|^2, of the last class */
    uint8_t *ready;        /* a row */
    int32_t *left;         /* (KM_STAGE_GROUP + 32) rows for the last stage, and their bounds */
    float *bound;
    float base, add, aim;
    float length; /* |q|, or of L2 |q - anchor| */

    /* Of fast codes. */
    float *quad;    /* room for tables */
    uint8_t *block; /* the rows behind the last whole block */
    staged_query staged[TIERS];
    int tier; /* that this cell is met with; -1: not chosen */
};

/* ---- Plans ---- */

/* A stage's estimate comes from its planes' bits alone, made longer by `more`, since leading bits
 * shorten a row, and for one that lies along the query, which is one that is near, this has to be
 * made up for. */
static float plan_stage(const km_coder *c, const float *weights, int64_t planes, float *error) {
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    double all = 0, led = 0, more = 1;
    for (int round = 0; round < 2; round++) {
        double along, square;
        more = led > 0 ? all / led : 1;
        for (int64_t k = 0; k < g->groups; k++) {
            float weight[KM_LEVEL_BITS] = {0};
            int lead = 0;
            for (; lead < g->bits[k] && g->at[k][lead] <= planes; lead++)
                weight[lead] = weights[g->at[k][lead] - 1];
            km_level_estimate(g->bits[k], c->levels[g->bits[k]], lead, weight, &along, &square);
            for (int64_t i = 8 * k; i < 8 * k + 8 && i < a->count; i++) {
                double v = (double)a->amp[i] * a->amp[i];
                all += v;
                led += v * along;
                error[i] = (float)(1 - 2 * more * along + more * more * square);
            }
        }
    }
    return (float)more;
}

static void plan_weights(const km_coder *c, scan_plan *p) {
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    double norm = c->lost;
    for (int64_t k = 0; k < g->groups; k++) {
        int bits = g->bits[k], some = 0;
        float weight[KM_LEVEL_BITS] = {0}, unused[KM_LEVEL_BITS];
        double along, kept, square;
        while (some < bits && g->at[k][some] < g->rest_byte) some++;
        km_level_planes(bits, c->levels[bits], some, weight, &along, &square);
        for (int l = 0; l < some; l++) p->weight[g->at[k][l] - 1] = weight[l];
        km_level_planes(bits, c->levels[bits], bits, unused, &along, &kept);
        for (int64_t i = 8 * k; i < 8 * k + 8 && i < a->count; i++)
            norm += kept * a->amp[i] * a->amp[i];
    }
    p->norm = (float)norm;
}

static int64_t groups_of(const km_stage *g, int64_t from, int64_t to) {
    int64_t most = 0;
    for (int64_t j = from; j < to; j++) most = g->plane[j][0] >= most ? g->plane[j][0] + 1 : most;
    return most;
}

/* Tiers end at thirds of the most that stage one may have, all of them at whole registers. */
static scan_plan *plan_new(const km_coder *c) {
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    int64_t lead = g->nibbles / 2, most = (int64_t)(FIRST * (float)lead) / 8 * 8;
    size_t floats = (size_t)(g->planes + (TIERS + 1) * a->padded);
    scan_plan *p = km_calloc(1, sizeof *p + floats * sizeof(float));
    if (!p) return NULL;
    p->error = (float *)(p + 1);
    p->weight = p->error + (TIERS + 1) * a->padded;
    plan_weights(c, p);
    float *error = p->error + TIERS * a->padded, more = plan_stage(c, p->weight, lead, error);
    for (int i = 1; i <= TIERS; i++) {
        int64_t planes = most * i / TIERS / 8 * 8;
        if (i == TIERS && planes == 0) planes = lead; /* which is 0 where codes are but a scale */
        if (planes == 0 && i < TIERS) continue;
        if (p->tiers && planes == p->tier[p->tiers - 1].planes[0]) continue;
        float *own = p->error + p->tiers * a->padded;
        p->tier[p->tiers++] = (tier){{planes, lead - planes},
                                     {groups_of(g, 0, planes), groups_of(g, planes, lead)},
                                     {plan_stage(c, p->weight, planes, own), more},
                                     {own, error}};
    }
    p->rows = (km_level_plan){(g->groups + 1) & ~(int64_t)1, g->bits,
                              (const int32_t(*)[8])(const void *)g->at, a->amp, c->levels[0]};
    return p;
}

typedef struct scan_room { /* lays one allocation out */
    uint8_t *p;
    size_t used;
} scan_room;

static void *take(scan_room *r, size_t bytes) {
    uint8_t *at = r->p ? r->p + r->used : NULL;
    r->used += (bytes + 63) / 64 * 64;
    return at;
}

static size_t lay_out(km_scan *s, uint8_t *p) {
    const km_coder *c = s->c;
    scan_room r = {p, 0};
    size_t axes = (size_t)c->axes[0].padded, row = (size_t)c->bytes + KM_CODER_PAD;
    s->query = take(&r, (size_t)(c->dim + c->turned) * sizeof(float));
    s->p = take(&r, (size_t)c->turned * sizeof(float));
    s->ready = take(&r, row);
    s->left = take(&r, (KM_STAGE_GROUP + 32) * sizeof *s->left);
    s->bound = take(&r, (KM_STAGE_GROUP + 32) * sizeof *s->bound);
    if (c->trellis) return r.used;
    s->quad = take(&r, axes / 4 * sizeof(float));
    for (int i = 0; i < s->plan->tiers; i++)
        s->staged[i].lut = take(&r, (size_t)c->stage.nibbles * 16 + 64);
    s->block = take(&r, (size_t)c->stage.nibbles * 16 + KM_STAGE_ROWS);
    return r.used;
}

static km_scan *make(const km_coder *c, scan_plan *plan, km_error *err) {
    km_scan *s = km_calloc(1, sizeof *s);
    uint8_t *p = NULL;
    if (s) {
        s->c = c;
        s->plan = plan;
        if (!plan && !c->trellis) s->plan = s->own = plan_new(c);
        size_t bytes = s->plan || c->trellis ? lay_out(s, NULL) : 0;
        p = bytes ? km_alloc_aligned(bytes) : NULL;
        if (p) memset(p, 0, bytes);
    }
    if (!p) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        if (s) km_free(s->own);
        km_free(s);
        return NULL;
    }
    lay_out(s, p);
    return s;
}

km_scan *km_scan_new(const km_coder *c, km_error *err) { return make(c, NULL, err); }
km_scan *km_scan_like(const km_scan *s, km_error *err) { return make(s->c, s->plan, err); }

void km_scan_free(km_scan *s) {
    if (!s) return;
    km_free_aligned(s->query, lay_out(s, (uint8_t *)s->query));
    km_free(s->own);
    km_free(s);
}

/* ---- Queries and cells ---- */

void km_scan_query(km_scan *s, const float *query, km_metric metric) {
    s->product = metric != KM_METRIC_L2;
    km_coder_turn(s->c, query, s->query);
    s->length = sqrtf(km_simd_codes()->dot(query, query, s->c->dim));
    s->entered = false;
    s->aim = INFINITY;
    km_scan_cell(s, NULL, 0);
}

void km_scan_aim(km_scan *s, float limit) { s->aim = limit; }

void km_scan_switch(km_scan *s, km_metric metric, float aim) {
    s->product = metric != KM_METRIC_L2;
    s->length = sqrtf(km_simd_codes()->dot(s->query, s->query, s->c->dim));
    s->entered = false;
    s->aim = aim;
}

/* What the rows of a cell are compared with: p. Of products it is the query's alone. */
static void enter(km_scan *s) {
    const km_coder *c = s->c;
    const float *q = s->query + c->dim, *a = s->product ? NULL : s->axes;
    float *p = s->p;
    s->entered = true;
    for (int i = 0; i < TIERS; i++) {
        s->staged[i].ready = 0;
        s->staged[i].spread = -1;
    }
    for (int i = 0; i < c->classes; i++) {
        const km_axes *x = &c->axes[i];
        s->size = km_simd_codes()->offset(q, a, x->amp, x->padded, p);
        p += x->padded;
        q += x->padded;
        if (a) a += x->padded;
    }
}

void km_scan_cell_at(km_scan *s, const float *axes, float own, float add) {
    s->add = add;
    s->base = add + (s->product ? -own : own);
    s->tier = -1;
    s->axes = axes;
    if (!s->product) {
        s->length = sqrtf(own);
        s->entered = false;
    }
}

void km_scan_cell(km_scan *s, const float *turned_anchor, float add) {
    const km_code_kernels *k = km_simd_codes();
    const float *a = turned_anchor, *q = s->query;
    int64_t n = s->c->dim;
    float own = s->product ? a ? k->dot(q, a, n) : 0 : a ? k->gap(q, a, n) : k->dot(q, q, n);
    km_scan_cell_at(s, a ? a + n : NULL, own, add);
}

/* Prefetches, of rows, scales and what stage one reads of the first block and of those left over. */
void km_scan_expect(const km_scan *s, const float *axes, const uint8_t *packed, int64_t n) {
    const km_coder *c = s->c;
    for (int64_t i = 0; i < c->turned; i += 16) __builtin_prefetch(axes + i);
    if (c->trellis || n == 0) return;
    if (n > KM_STAGE_GROUP) n = KM_STAGE_GROUP;
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS;
    for (int64_t i = 0; i < whole; i += 64) __builtin_prefetch(packed + i);
    for (int64_t i = 0; i < 32 * s->plan->tier[0].planes[0] && whole; i += 64)
        __builtin_prefetch(packed + whole + i);
    for (int64_t i = whole; i < n; i++) __builtin_prefetch(packed + i * c->bytes);
}

/* ---- Leaving rows out ---- */

/* The least distance of rows with a scale of at most `most`: those straight ahead. */
static float least_ahead(const km_scan *s, float most) {
    float r = most * sqrtf(s->plan->norm);
    if (s->product) return s->base - s->length * r;
    return s->length > r ? s->add + (s->length - r) * (s->length - r) : -INFINITY;
}

static float stage_one_spread(km_scan *s, int i) {
    staged_query *t = &s->staged[i];
    if (t->spread < 0)
        t->spread = km_simd_codes()->spread(s->p, s->plan->tier[i].error[0], s->c->axes[0].padded);
    return t->spread;
}

/* The shortest stage one that leaves most rows out, if the limit will be the one aimed at. Their
 * products with the query, s|p| apart, would have to be `need` deviations above the mean; an estimate
 * that errs by e of them says so of all rows but those whose known part is as far out. */
static int choose_tier(km_scan *s, float most) {
    float far = s->base - s->aim, size = sqrtf(s->size);
    int last = s->plan->tiers - 1;
    if (!(far > 0) || !(size > 0)) return last;
    float need = (s->product ? far / most : sqrtf(far * s->plan->norm)) / size;
    for (int i = 0; i < last; i++) {
        float e = sqrtf(stage_one_spread(s, i)) / size;
        if (need - SURE * e > CLEAR * sqrtf(1 + e * e)) return i;
    }
    return last;
}

/* Tables of the first stage; of the second, when a row has got there. */
static void prepare_stage(km_scan *s, int i) {
    const km_stage *g = &s->c->stage;
    const tier *r = &s->plan->tier[s->tier];
    staged_query *t = &s->staged[s->tier];
    km_stage_query *q = &t->query;
    int64_t at = i ? r->planes[0] : 0;
    float spread = i ? km_simd_codes()->spread(s->p, r->error[1], s->c->axes[0].padded)
                     : stage_one_spread(s, s->tier);
    if (i == 0) {
        *q = (km_stage_query){.scales = s->c->scales,
                              .lut = t->lut,
                              .size = 16 * g->nibbles,
                              .base = s->base,
                              .square = s->product ? 0 : s->plan->norm,
                              .along = s->product ? -1 : -2};
        t->slack = t->least = 0;
    }
    float least, step;
    km_simd_codes()->tables(r->planes[i], (const int32_t(*)[2])(const void *)(g->plane + at),
                            s->plan->weight + at, r->groups[i], s->p, s->quad, t->lut + 32 * at,
                            &least, &step);
    q->nibbles[i] = 2 * r->planes[i];
    t->least += least;
    t->slack += step * step * 0.25f * (float)q->nibbles[i]; /* of rounding the tables */
    q->step[i] = r->more[i] * step;
    q->low[i] = r->more[i] * t->least + SURE * sqrtf(spread) + sqrtf(t->slack);
    if (i == 0) q->again = r->more[1] * step;
    t->ready = i + 1;
}

/* A group of rows, as all queries of a scan meet it. */
typedef struct rows {
    const uint8_t *packed;
    int64_t n;
    km_stage_rows whole, tail; /* in blocks as they are, and those left over, laid into one */
    uint8_t *block;
    int64_t laid; /* planes of it */
} rows;

/* Their scales; `block` is room for one and its codes. */
static rows meet(const km_coder *c, const uint8_t *packed, int64_t n, uint8_t *block) {
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS;
    uint8_t *codes = block + 16 * c->stage.nibbles, least = 255, most = 0;
    for (int64_t i = 0; i < whole; i++) {
        least = packed[i] < least ? packed[i] : least;
        most = packed[i] > most ? packed[i] : most;
    }
    for (int64_t i = whole; i < n; i++) {
        uint8_t code = codes[i - whole] = packed[i * c->bytes];
        least = code < least ? code : least;
        most = code > most ? code : most;
    }
    return (rows){packed,
                  n,
                  {packed, packed + whole, whole, least, most},
                  {codes, block, n - whole, least, most},
                  block,
                  0};
}

/* Those of `some` rows of a group, the first of them `first`, that no stage so far leaves out: behind
 * `left` others in s->left, their bounds in s->bound. Returns how many there are then. */
static int64_t pass(km_scan *s, const km_stage_rows *some, int64_t first, float limit,
                    int64_t left) {
    int32_t *more = s->left + left;
    const km_stage_query *q = &s->staged[s->tier].query;
    int64_t m = km_simd_codes()->near(q, some, limit, more, s->bound + left);
    for (int64_t i = 0; i < m && first; i++) more[i] += (int32_t)first;
    return left + m;
}

static int64_t pass_tail(km_scan *s, rows *r, int64_t planes, float limit, int64_t left) {
    const km_coder *c = s->c;
    if (r->laid < planes) {
        km_simd_codes()->lay(r->packed + r->whole.n * c->bytes + 1, c->bytes, r->tail.n, planes,
                             r->block);
        r->laid = planes;
    }
    return pass(s, &r->tail, r->whole.n, limit, left);
}

static int64_t pass_all(km_scan *s, rows *r, float limit) {
    int64_t left = pass(s, &r->whole, 0, limit, 0), lead = s->c->stage.nibbles / 2;
    if (!r->tail.n) return left;
    return pass_tail(s, r, s->staged[s->tier].ready < 2 ? s->plan->tier[s->tier].planes[0] : lead,
                     limit, left);
}

/* The blocks of the rows left once more, now that there is another stage. */
static int64_t pass_again(km_scan *s, rows *r, int64_t left, float limit) {
    uint8_t again[KM_STAGE_GROUP / KM_STAGE_ROWS];
    int blocks = 0;
    for (int64_t i = 0; i < left; i++) {
        uint8_t block = (uint8_t)(s->left[i] / KM_STAGE_ROWS);
        if (!blocks || again[blocks - 1] != block) again[blocks++] = block;
    }
    left = 0;
    for (int i = 0; i < blocks; i++) {
        int64_t first = again[i] * KM_STAGE_ROWS;
        km_stage_rows one = r->whole;
        one.codes += first;
        one.blocks += again[i] * 16 * s->c->stage.nibbles;
        one.n = KM_STAGE_ROWS;
        left = first < r->whole.n ? pass(s, &one, first, limit, left)
                                  : pass_tail(s, r, s->c->stage.nibbles / 2, limit, left);
    }
    return left;
}

/* ---- Rows ---- */

static float finish(const km_scan *s, float scale, float dot, float norm) {
    return s->base + (s->product ? -scale * dot : scale * (scale * (norm + s->c->lost) - 2 * dot));
}

static float level_row(km_scan *s, const uint8_t *packed, int64_t n, int64_t i) {
    const km_coder *c = s->c;
    float dot, norm;
    km_stage_row(&c->stage, c->bytes, packed, n, i, s->ready);
    km_simd_codes()->levels(&s->plan->rows, s->ready, s->p, &dot, &norm);
    return finish(s, c->scales[s->ready[0]], dot, norm);
}

/* One group of fast rows; their numbers count from `first`. */
static int64_t near_levels(km_scan *s, rows *r, float limit, int64_t first, km_near *near) {
    float most = s->c->scales[r->whole.most], ahead = least_ahead(s, most);
    if (ahead > limit) return 0;
    if (!s->entered) enter(s);
    if (s->tier < 0) s->tier = choose_tier(s, most);
    staged_query *t = &s->staged[s->tier];
    if (t->ready < 1) prepare_stage(s, 0);
    t->query.base = s->base;
    int64_t left = pass_all(s, r, limit);
    if (left && t->ready < 2 && s->plan->tier[s->tier].planes[1]) {
        prepare_stage(s, 1);
        left = pass_again(s, r, left, limit);
    }
    for (int64_t i = 0; i < left; i++) {
        float d = level_row(s, r->packed, r->n, s->left[i]), bound = fmaxf(s->bound[i], ahead);
        near[i] = (km_near){fmaxf(d, bound), d, (int32_t)first + s->left[i]};
    }
    return left;
}

/* Dense rows have no stages: what a row near the query has on the axes left out is near as well, not
 * noise that could be bounded by its spread. They are decoded once for up to KM_TRELLIS_QUERIES
 * queries. */
static void near_trellis(km_scan *const *s, int scans, const uint8_t *packed, int64_t n,
                         const float *limit, km_near *const *near, int64_t *count) {
    const km_coder *c = s[0]->c;
    const float *p[KM_CODER_CLASSES][KM_TRELLIS_QUERIES];
    km_trellis_plan plan[KM_CODER_CLASSES];
    int64_t at = 0;
    for (int k = 0; k < c->classes; at += c->axes[k++].padded) {
        const km_axes *a = &c->axes[k];
        plan[k] = (km_trellis_plan){a->padded, a->at, a->table, a->amp, c->tables->window[0]};
        for (int j = 0; j < scans; j++) p[k][j] = s[j]->p + at;
    }
    for (int j = 0; j < scans; j++) {
        count[j] = 0;
        if (!s[j]->entered) enter(s[j]);
    }
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *code = packed + i * c->bytes;
        float dot[KM_TRELLIS_QUERIES], norm;
        int k = km_code_class(c, code);
        if (k >= c->classes) k = 0; /* no code of ours */
        km_code_ready(c, &c->axes[k], code, s[0]->ready);
        km_simd_codes()->trellis(&plan[k], s[0]->ready, scans, p[k], dot, &norm);
        for (int j = 0; j < scans; j++) {
            float d = finish(s[j], c->scales[code[0]], dot[j], norm);
            if (d <= limit[j]) near[j][count[j]++] = (km_near){d, d, (int32_t)i};
        }
    }
}

void km_scan_near_each(km_scan *const *s, int scans, const uint8_t *packed, int64_t n,
                       const float *limit, km_near *const *near, int64_t *count) {
    if (s[0]->c->trellis) {
        for (int j = 0; j < scans; j += KM_TRELLIS_QUERIES)
            near_trellis(s + j, scans - j < KM_TRELLIS_QUERIES ? scans - j : KM_TRELLIS_QUERIES,
                         packed, n, limit + j, near + j, count + j);
        return;
    }
    for (int j = 0; j < scans; j++) count[j] = 0;
    for (int64_t i = 0; i < n; i += KM_STAGE_GROUP) {
        rows r = meet(s[0]->c, packed + i * s[0]->c->bytes,
                      n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP, s[0]->block);
        for (int j = 0; j < scans; j++)
            count[j] += near_levels(s[j], &r, limit[j], i, near[j] + count[j]);
    }
}

int64_t km_scan_near(km_scan *s, const uint8_t *packed, int64_t n, float limit, km_near *near) {
    int64_t count;
    km_scan_near_each(&s, 1, packed, n, &limit, &near, &count);
    return count;
}

void km_scan_codes(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    km_near near[KM_STAGE_GROUP];
    for (int64_t i = 0; i < n; i += KM_STAGE_GROUP) {
        int64_t m = n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP;
        int64_t count = km_scan_near(s, packed + i * s->c->bytes, m, limit, near);
        for (int64_t k = 0; k < m; k++) dist[i + k] = INFINITY;
        for (int64_t k = 0; k < count; k++) dist[i + near[k].row] = near[k].dist;
    }
}
