/* Scans: a row's values against the query, in the axes of the row's class. Rows are looked at in
 * stages, what tells most of them first; what is certainly too far goes no further. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define SURE 3.0f  /* deviations of a stage's error beyond which a row is out */
#define FIRST 0.5f /* the part of the leading planes in stage one */

struct km_scan {
    const km_coder *c;
    bool product, fresh; /* fresh: the query has not met a cell yet */
    float *query;   /* (km_coder_turned) */
    float *p;       /* (turned) query minus anchor along the axes, times amp */
    uint8_t *ready; /* a row */
    int32_t *left;  /* (KM_STAGE_GROUP + 32) rows for the last stage, and their bounds */
    float *bound;
    float base, add;
    float norm;     /* |r|^2 / scale^2, about */
    float length;   /* |q|, or of L2 |q - anchor| */

    /* Of fast codes: the rows' plan, and the first two stages. */
    km_level_plan plan;
    int64_t planes[2];   /* leading ones, of each stage */
    float more[2];       /* what estimates are made longer by */
    float *weight;       /* (leading planes) what a plane's bit adds or takes */
    float *error;        /* (2, padded) of a stage's estimate along an axis of variance 1 */
    float *quad;         /* room for tables */
    uint8_t *lut;        /* (nibbles, 16), 64 bytes of 0 behind */
    uint8_t *block;      /* the rows behind the last whole block */
    float spread[2];     /* variance of the stages' errors in <p, r^> / scale */
    km_stage_query stage;
    float least, slack;  /* sums of the tables so far */
    int staged;          /* stages that are ready for this cell */
};

/* ---- Plans ---- */

/* A stage's estimate comes from its planes' bits alone, made longer by `more`, since leading bits
 * shorten a row, and for one that lies along the query, which is one that is near, this has to be
 * made up for. */
static void plan_stage(km_scan *s, int stage, int64_t planes) {
    const km_coder *c = s->c;
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    double all = 0, led = 0;
    for (int round = 0; round < 2; round++) {
        double more = led > 0 ? all / led : 1, along, square;
        for (int64_t k = 0; k < g->groups; k++) {
            float weight[KM_LEVEL_BITS] = {0};
            int lead = 0;
            for (; lead < g->bits[k] && g->at[k][lead] <= planes; lead++)
                weight[lead] = s->weight[g->at[k][lead] - 1];
            km_level_estimate(g->bits[k], c->levels[g->bits[k]], lead, weight, &along, &square);
            for (int64_t i = 8 * k; i < 8 * k + 8 && i < a->count; i++) {
                double v = (double)a->amp[i] * a->amp[i];
                all += v;
                led += v * along;
                s->error[stage * a->padded + i] =
                    (float)(1 - 2 * more * along + more * more * square);
            }
        }
        s->more[stage] = (float)more;
    }
}

static void plan_levels(km_scan *s) {
    const km_coder *c = s->c;
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    int64_t lead = g->nibbles / 2, first = (int64_t)(FIRST * (float)lead) / 8 * 8;
    double norm = c->lost;
    for (int64_t k = 0; k < g->groups; k++) {
        int bits = g->bits[k], some = 0;
        float weight[KM_LEVEL_BITS] = {0}, unused[KM_LEVEL_BITS];
        double along, kept, square;
        while (some < bits && g->at[k][some] < g->rest_byte) some++;
        km_level_planes(bits, c->levels[bits], some, weight, &along, &square);
        for (int l = 0; l < some; l++) s->weight[g->at[k][l] - 1] = weight[l];
        km_level_planes(bits, c->levels[bits], bits, unused, &along, &kept);
        for (int64_t i = 8 * k; i < 8 * k + 8 && i < a->count; i++)
            norm += kept * a->amp[i] * a->amp[i];
    }
    s->norm = (float)norm;
    s->planes[0] = first > 0 ? first : lead;
    s->planes[1] = lead - s->planes[0];
    plan_stage(s, 0, s->planes[0]);
    plan_stage(s, 1, lead);
    s->plan = (km_level_plan){(g->groups + 1) & ~(int64_t)1, g->bits,
                              (const int32_t(*)[8])(const void *)g->at, a->amp, c->levels[0]};
}

typedef struct room { /* lays one allocation out */
    uint8_t *p;
    size_t used;
} room;

static void *take(room *r, size_t bytes) {
    uint8_t *at = r->p ? r->p + r->used : NULL;
    r->used += (bytes + 63) / 64 * 64;
    return at;
}

static size_t lay_out(km_scan *s, uint8_t *p) {
    const km_coder *c = s->c;
    room r = {p, 0};
    size_t axes = (size_t)c->axes[0].padded, row = (size_t)c->bytes + KM_CODER_PAD;
    s->query = take(&r, (size_t)(c->dim + c->turned) * sizeof(float));
    s->p = take(&r, (size_t)c->turned * sizeof(float));
    s->ready = take(&r, row);
    s->left = take(&r, (KM_STAGE_GROUP + 32) * sizeof *s->left);
    s->bound = take(&r, (KM_STAGE_GROUP + 32) * sizeof *s->bound);
    if (c->trellis) return r.used;
    s->weight = take(&r, (size_t)c->stage.planes * sizeof(float));
    s->error = take(&r, 2 * axes * sizeof(float));
    s->quad = take(&r, axes / 4 * sizeof(float));
    s->lut = take(&r, (size_t)c->stage.nibbles * 16 + 64);
    s->block = take(&r, (size_t)c->stage.nibbles * 16 + KM_STAGE_ROWS);
    return r.used;
}

km_scan *km_scan_new(const km_coder *c, km_error *err) {
    km_scan *s = km_calloc(1, sizeof *s);
    uint8_t *p = NULL;
    if (s) {
        s->c = c;
        size_t bytes = lay_out(s, NULL);
        p = km_alloc_aligned(bytes);
        if (p) memset(p, 0, bytes);
    }
    if (!p) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        km_free(s);
        return NULL;
    }
    lay_out(s, p);
    if (!c->trellis) plan_levels(s);
    return s;
}

void km_scan_free(km_scan *s) {
    if (!s) return;
    km_free_aligned(s->query, lay_out(s, (uint8_t *)s->query));
    km_free(s);
}

void km_scan_query(km_scan *s, const float *query, km_metric metric) {
    s->product = metric != KM_METRIC_L2;
    km_coder_turn(s->c, query, s->query);
    s->fresh = true;
    km_scan_cell(s, NULL, 0);
}

void km_scan_cell(km_scan *s, const float *turned_anchor, float add) {
    const km_coder *c = s->c;
    const km_code_kernels *k = km_simd_codes();
    const float *a = turned_anchor;
    float own = a && !s->product ? k->gap(s->query, a, c->dim) : k->dot(s->query, s->query, c->dim);
    s->add = add;
    s->base = add + (!s->product ? own : a ? -k->dot(s->query, a, c->dim) : 0);
    if (s->product && !s->fresh) { /* what follows is the query's alone */
        s->stage.base = s->base;
        return;
    }
    s->length = sqrtf(own);
    s->fresh = false;
    s->staged = 0;
    const float *q = s->query + c->dim;
    float *p = s->p;
    if (a) a += c->dim;
    for (int i = 0; i < c->classes; i++) {
        const km_axes *x = &c->axes[i];
        k->offset(q, s->product ? NULL : a, x->amp, s->error, x->padded, p, s->spread);
        p += x->padded;
        q += x->padded;
        if (a) a += x->padded;
    }
}

/* ---- Leaving rows out ---- */

/* The least distance of rows with a scale of at most `most`: those straight ahead. */
static float least_ahead(const km_scan *s, float most) {
    float r = most * sqrtf(s->norm);
    if (s->product) return s->base - s->length * r;
    return s->length > r ? s->add + (s->length - r) * (s->length - r) : -INFINITY;
}

/* Tables of the first stage; of the second, when a row has got there. */
static void prepare_stage(km_scan *s, int i) {
    const km_stage *g = &s->c->stage;
    km_stage_query *q = &s->stage;
    int64_t at = i ? s->planes[0] : 0;
    if (i == 0) {
        *q = (km_stage_query){.scales = s->c->scales,
                              .lut = s->lut,
                              .size = 16 * g->nibbles,
                              .base = s->base,
                              .square = s->product ? 0 : s->norm,
                              .along = s->product ? -1 : -2};
        s->slack = s->least = 0;
    }
    float least, step;
    km_simd_codes()->tables(s->planes[i], (const int32_t(*)[2])(const void *)(g->plane + at),
                            s->weight + at, g->groups, s->p, s->quad, s->lut + 32 * at, &least,
                            &step);
    q->nibbles[i] = 2 * s->planes[i];
    s->least += least;
    s->slack += step * step * 0.25f * (float)q->nibbles[i]; /* of rounding the tables */
    q->step[i] = s->more[i] * step;
    q->low[i] = s->more[i] * s->least + SURE * sqrtf(s->spread[i]) + sqrtf(s->slack);
    if (i == 0) q->again = s->more[1] * step;
    s->staged = i + 1;
}

/* The rows of n that no stage so far leaves out, with their bounds in s->left and s->bound. */
static int64_t pass_stages(km_scan *s, const uint8_t *packed, int64_t n, float limit) {
    const km_coder *c = s->c;
    const km_code_kernels *k = km_simd_codes();
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS, lead = c->stage.nibbles / 2;
    const uint8_t *tail = packed + whole * c->bytes;
    uint8_t *codes = s->block + 32 * lead;
    int64_t left = k->near(&s->stage, packed, packed + whole, whole, limit, s->left, s->bound);
    if (whole == n) return left;
    int32_t *more = s->left + left;
    for (int64_t i = whole; i < n; i++) codes[i - whole] = tail[(i - whole) * c->bytes];
    k->lay(tail + 1, c->bytes, n - whole, s->staged < 2 ? s->planes[0] : lead, s->block);
    int64_t m = k->near(&s->stage, codes, s->block, n - whole, limit, more, s->bound + left);
    for (int64_t i = 0; i < m; i++) more[i] += (int32_t)whole;
    return left + m;
}

/* ---- Rows ---- */

static float finish(const km_scan *s, float scale, float dot, float norm) {
    return s->base +
           (s->product ? -scale * dot : scale * (scale * (norm + s->c->lost) - 2 * dot));
}

static float level_row(km_scan *s, const uint8_t *packed, int64_t n, int64_t i) {
    const km_coder *c = s->c;
    float dot, norm;
    km_stage_row(&c->stage, c->bytes, packed, n, i, s->ready);
    km_simd_codes()->levels(&s->plan, s->ready, s->p, &dot, &norm);
    return finish(s, c->scales[s->ready[0]], dot, norm);
}

/* One group of n fast rows; their numbers count from `first`. */
static int64_t near_levels(km_scan *s, const uint8_t *packed, int64_t n, float limit, int64_t first,
                           km_near *near) {
    const km_coder *c = s->c;
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS;
    uint8_t most = 0;
    for (int64_t i = 0; i < whole; i++) most = packed[i] > most ? packed[i] : most;
    for (int64_t i = whole; i < n; i++)
        most = packed[i * c->bytes] > most ? packed[i * c->bytes] : most;
    float ahead = least_ahead(s, c->scales[most]);
    if (ahead > limit) return 0;
    if (s->staged < 1) prepare_stage(s, 0);
    int64_t left = pass_stages(s, packed, n, limit);
    if (left && s->staged < 2 && s->planes[1]) {
        prepare_stage(s, 1);
        left = pass_stages(s, packed, n, limit);
    }
    for (int64_t i = 0; i < left; i++) {
        float d = level_row(s, packed, n, s->left[i]), bound = fmaxf(s->bound[i], ahead);
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
    for (int j = 0; j < scans; j++) count[j] = 0;
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
    for (int j = 0; j < scans; j++) {
        count[j] = 0;
        for (int64_t i = 0; i < n; i += KM_STAGE_GROUP) {
            int64_t m = n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP;
            count[j] += near_levels(s[j], packed + i * s[j]->c->bytes, m, limit[j], i,
                                    near[j] + count[j]);
        }
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
