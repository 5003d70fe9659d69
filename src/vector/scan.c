/* Scans: a row's values against the query, in the axes of the row's class. Fast codes are looked at
 * in two stages, their leading bits first; what is certainly too far goes no further. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define SURE 3.0f /* deviations of the first stage's error beyond which a row is out */

struct km_scan {
    const km_coder *c;
    bool product, fresh; /* fresh: the query has not met a cell yet */
    float *query;   /* (km_coder_turned) */
    float *p;       /* (turned) query minus anchor along the axes, times amp */
    uint8_t *ready; /* a row */
    float base;

    /* Of fast codes: the rows' plan, and the first stage. */
    km_level_plan plan;
    float norm;                  /* |r|^2 / scale^2, about */
    float *weight;               /* (leading planes) what a plane's bit adds or takes */
    float *error;                /* (groups) of the first stage, for an axis of variance 1 */
    uint8_t *lut;                /* (nibbles, 16), 64 bytes of 0 behind */
    uint32_t *sums;              /* (KM_STAGE_GROUP) */
    int32_t *left;               /* (KM_STAGE_GROUP + 16) rows for the second stage */
    float lut_more, lut_step, lut_base, spread;
    bool staged;                 /* lut is that of this cell */
};

/* The first stage's estimate: the best from the leading planes of each group, made longer by `more`,
 * since leading bits shorten a row, and for one that lies along the query, which is one that is near,
 * this has to be made up for. */
static void plan_levels(km_scan *s) {
    const km_coder *c = s->c;
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    double all = 0, led = 0, norm = c->lost;
    for (int round = 0; round < 2; round++) {
        double more = led > 0 ? all / led : 1;
        for (int64_t k = 0; k < g->groups; k++) {
            int bits = g->bits[k], lead = 0;
            float weight[KM_LEVEL_BITS] = {0}, ignored[KM_LEVEL_BITS];
            double along, square, kept, unused, v = 0;
            while (lead < bits && g->at[k][lead] < g->rest_byte) lead++;
            km_level_planes(bits, c->levels[bits], lead, weight, &along, &square);
            km_level_planes(bits, c->levels[bits], bits, ignored, &unused, &kept);
            for (int64_t i = 8 * k; i < 8 * k + 8 && i < a->count; i++)
                v += (double)a->amp[i] * a->amp[i];
            if (round == 0) {
                all += v;
                led += v * along;
                norm += v * kept;
            }
            for (int l = 0; l < lead; l++) s->weight[g->at[k][l] - 1] = weight[l];
            s->error[k] = (float)(1 - 2 * more * along + more * more * square);
        }
        s->lut_more = (float)more;
    }
    s->norm = (float)norm;
    s->plan = (km_level_plan){(g->groups + 1) & ~(int64_t)1, g->bits,
                              (const int32_t(*)[8])(const void *)g->at, a->amp, c->levels[0]};
}

km_scan *km_scan_new(const km_coder *c, km_error *err) {
    bool fast = !c->trellis;
    size_t floats = (size_t)(c->dim + 2 * c->turned) * sizeof(float);
    size_t weights = fast ? (size_t)(c->stage.planes + c->stage.groups) * sizeof(float) : 0;
    size_t sums = fast ? (2 * KM_STAGE_GROUP + 16) * sizeof(uint32_t) : 0;
    size_t lut = fast ? (size_t)c->stage.nibbles * 16 + 64 : 0;
    km_scan *s = km_calloc(1, sizeof *s);
    uint8_t *p = s ? km_calloc(floats + weights + sums + lut + (size_t)c->bytes + KM_CODER_PAD, 1)
                   : NULL;
    if (!p) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        km_free(s);
        return NULL;
    }
    s->c = c;
    s->query = (float *)p;
    s->p = s->query + c->dim + c->turned;
    s->weight = (float *)(p + floats);
    s->error = s->weight + (fast ? c->stage.planes : 0);
    s->sums = (uint32_t *)(p + floats + weights);
    s->left = (int32_t *)(s->sums + KM_STAGE_GROUP);
    s->lut = p + floats + weights + sums;
    s->ready = s->lut + lut;
    if (fast) plan_levels(s);
    return s;
}

void km_scan_free(km_scan *s) {
    if (!s) return;
    km_free(s->query);
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
    double sum = 0;
    for (int64_t i = 0; i < c->dim; i++) {
        double a = turned_anchor ? turned_anchor[i] : 0, q = s->query[i];
        sum += s->product ? -q * a : (q - a) * (q - a);
    }
    s->base = (float)sum + add;
    if (s->product && !s->fresh) return; /* what follows is the query's alone */
    s->fresh = s->staged = false;
    const float *q = s->query + c->dim, *a = turned_anchor ? turned_anchor + c->dim : NULL;
    float *p = s->p;
    for (int k = 0; k < c->classes; k++) {
        const km_axes *x = &c->axes[k];
        for (int64_t i = 0; i < x->padded; i++)
            p[i] = (a && !s->product ? q[i] - a[i] : q[i]) * x->amp[i];
        p += x->padded;
        q += x->padded;
        if (a) a += x->padded;
    }
}

/* ---- The first stage ---- */

/* What nibble j adds for each of its 16 values is least + (a sum over its bits that are 1). */
static float nibble_values(const km_scan *s, int64_t j, float *t) {
    const km_stage *g = &s->c->stage;
    const float *p = s->p + 8 * g->plane[j / 2][0] + j % 2 * 4;
    float w = s->weight[j / 2] * s->lut_more, least = 0, base = 0;
    for (int i = 0; i < 4; i++) base -= w * p[i];
    for (int v = 0; v < 16; v++) {
        t[v] = base;
        for (int i = 0; i < 4; i++) t[v] += v >> i & 1 ? 2 * w * p[i] : 0;
        least = v == 0 || t[v] < least ? t[v] : least;
    }
    return least;
}

static void prepare_stage(km_scan *s) {
    const km_axes *a = &s->c->axes[0];
    const km_stage *g = &s->c->stage;
    float top = 0, base = 0, t[16];
    double spread = 0;
    for (int64_t j = 0; j < g->nibbles; j++) {
        const float *p = s->p + 8 * g->plane[j / 2][0] + j % 2 * 4;
        float w = fabsf(s->weight[j / 2]) * s->lut_more;
        float half = w * (fabsf(p[0]) + fabsf(p[1]) + fabsf(p[2]) + fabsf(p[3]));
        top = half > top ? half : top;
    }
    float step = top > 0 ? 2 * top / 255 : 1;
    for (int64_t j = 0; j < g->nibbles; j++) {
        float least = nibble_values(s, j, t);
        base += least;
        for (int v = 0; v < 16; v++) {
            float x = (t[v] - least) / step + 0.5f;
            s->lut[16 * j + v] = (uint8_t)(x > 255 ? 255 : x);
        }
    }
    for (int64_t i = 0; i < a->count; i++)
        spread += (double)s->p[i] * s->p[i] * s->error[i / KM_STAGE_AXES];
    s->lut_step = step;
    s->lut_base = base;
    s->spread = SURE * (float)sqrt(spread) + step * 0.5f * sqrtf((float)g->nibbles);
    s->staged = true;
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

/* One group of n fast rows. */
static void scan_group(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    const km_coder *c = s->c;
    int64_t i = 0, whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS;
    if (whole > 0 && isfinite(limit) && c->stage.nibbles > 0) {
        if (!s->staged) prepare_stage(s);
        km_simd_codes()->stage(packed + whole, whole / KM_STAGE_ROWS, s->lut, c->stage.nibbles,
                               s->sums);
        km_stage_bound b = {c->scales,
                            s->base,
                            s->product ? 0 : s->norm,
                            s->product ? -1 : -2,
                            s->lut_base + s->spread,
                            s->lut_step};
        int64_t left = km_simd_codes()->pick(&b, s->sums, packed, whole, limit, dist, s->left);
        for (int64_t k = 0; k < left; k++)
            dist[s->left[k]] = level_row(s, packed, n, s->left[k]);
        i = whole;
    }
    for (; i < n; i++) dist[i] = level_row(s, packed, n, i);
}

static void scan_trellis(km_scan *s, const uint8_t *packed, int64_t n, float *dist) {
    const km_coder *c = s->c;
    const float *starts[KM_CODER_CLASSES], *p = s->p;
    km_trellis_plan plans[KM_CODER_CLASSES];
    for (int k = 0; k < c->classes; k++) {
        const km_axes *a = &c->axes[k];
        plans[k] = (km_trellis_plan){a->padded, a->at, a->table, a->amp, c->tables->window[0]};
        starts[k] = p;
        p += a->padded;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *code = packed + i * c->bytes;
        float dot, norm;
        int k = km_code_class(c, code);
        if (k >= c->classes) k = 0; /* no code of ours */
        km_code_ready(c, &c->axes[k], code, s->ready);
        km_simd_codes()->trellis(&plans[k], s->ready, starts[k], &dot, &norm);
        dist[i] = finish(s, c->scales[code[0]], dot, norm);
    }
}

void km_scan_codes(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    if (s->c->trellis) {
        scan_trellis(s, packed, n, dist);
        return;
    }
    for (int64_t i = 0; i < n; i += KM_STAGE_GROUP)
        scan_group(s, packed + i * s->c->bytes, n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP,
                   limit, dist + i);
}
