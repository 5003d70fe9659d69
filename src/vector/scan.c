/* Scans: a row's values against the query, in the axes of the row's class. Fast codes are looked at
 * in two stages, their leading bits first; what is certainly too far goes no further. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define SURE 3.0f /* deviations of the first stage's error beyond which a row is out */

struct km_scan {
    const km_coder *c;
    bool product;
    float *query;   /* (km_coder_turned) */
    float *p;       /* (turned) query minus anchor along the axes, times amp */
    uint8_t *ready; /* a row */
    float base;

    /* Of fast codes: the level plan and the first stage's tables. */
    km_level_plan plan;
    int32_t *lists;              /* (4, padded) the plan's */
    float (*lead)[16];           /* (9, 16): mean of what begins so, by [bits * 3 + which][lead] */
    float lead_error[27];
    float norm;                  /* |r|^2 / scale^2, about */
    uint8_t *lut;                /* (nibbles, 16), 64 bytes of 0 behind */
    uint32_t *sums;              /* (KM_STAGE_GROUP) */
    float lut_step, lut_base, spread;
    bool staged;                 /* lut is that of this cell */
};

/* Leading bits come as 1, 2 or 4. */
static int which(int lead) { return lead == 4 ? 2 : lead - 1; }

static void plan_levels(km_scan *s) {
    const km_coder *c = s->c;
    const km_axes *a = &c->axes[0];
    const km_stage *g = &c->stage;
    int64_t n = a->padded;
    int32_t *lead_mask = s->lists, *rest_mask = lead_mask + n, *rest = rest_mask + n;
    int32_t *table = rest + n;
    double error[KM_LEVEL_BITS + 1], norm = c->lost;
    for (int b = 0; b <= KM_LEVEL_BITS; b++) {
        float unused[1 << KM_LEVEL_BITS];
        error[b] = km_level_lead(b, b, c->levels[b], unused);
        for (int l = 1; l <= 4 && l <= b; l *= 2)
            s->lead_error[b * 3 + which(l)] =
                (float)km_level_lead(b, l, c->levels[b], s->lead[b * 3 + which(l)]);
    }
    for (int64_t i = 0; i < n; i++) {
        rest[i] = a->bits[i] - g->lead[i];
        lead_mask[i] = (1 << g->lead[i]) - 1;
        rest_mask[i] = (1 << rest[i]) - 1;
        table[i] = a->bits[i] << KM_LEVEL_BITS;
        norm += (double)a->amp[i] * a->amp[i] * (1 - error[a->bits[i]]);
    }
    s->norm = (float)norm;
    s->plan = (km_level_plan){n,         g->lead_at, g->rest_at, lead_mask,     rest_mask,
                              rest,      table,      a->amp,     c->levels[0]};
}

km_scan *km_scan_new(const km_coder *c, km_error *err) {
    int64_t lut = c->trellis ? 0 : c->stage.nibbles * 16 + 64, n = c->trellis ? 0 : c->turned;
    size_t floats = (size_t)(c->dim + 2 * c->turned) * sizeof(float);
    size_t lists = (size_t)(4 * n) * sizeof(int32_t), lead = 27 * 16 * sizeof(float);
    size_t sums = c->trellis ? 0 : KM_STAGE_GROUP * sizeof(uint32_t);
    km_scan *s = km_calloc(1, sizeof *s);
    uint8_t *p = s ? km_calloc(floats + lists + lead + sums + (size_t)lut + (size_t)c->bytes +
                                   KM_CODER_PAD, 1)
                   : NULL;
    if (!p) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        km_free(s);
        return NULL;
    }
    s->c = c;
    s->query = (float *)p;
    s->p = s->query + c->dim + c->turned;
    s->lists = (int32_t *)(p + floats);
    s->lead = (float(*)[16])(p + floats + lists);
    s->sums = (uint32_t *)(p + floats + lists + lead);
    s->lut = p + floats + lists + lead + sums;
    s->ready = s->lut + lut;
    if (!c->trellis) plan_levels(s);
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
    s->staged = false;
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

/* What nibble j adds for each of its 16 values, to t; returns the least. */
static float nibble_values(const km_scan *s, int64_t j, float *t) {
    const km_axes *a = &s->c->axes[0];
    const int32_t *slot = s->c->stage.slot[j];
    int lead = s->c->stage.lead[slot[0]], each = 4 / lead;
    for (int v = 0; v < 16; v++) t[v] = 0;
    for (int e = 0; e < each; e++) {
        const float *mean = s->lead[a->bits[slot[e]] * 3 + which(lead)];
        for (int v = 0; v < 16; v++)
            t[v] += s->p[slot[e]] * mean[v >> (e * lead) & ((1 << lead) - 1)];
    }
    float least = t[0];
    for (int v = 1; v < 16; v++) least = t[v] < least ? t[v] : least;
    return least;
}

static void prepare_stage(km_scan *s) {
    const km_axes *a = &s->c->axes[0];
    const km_stage *g = &s->c->stage;
    float top = 0, base = 0, t[16];
    double spread = 0, all = 0, led = 0;
    /* Leading bits shorten a row; for one that lies along the query, which is one that is near, this
     * has to be made up for: `more`. It makes the error of the others larger. */
    for (int64_t i = 0; i < a->count; i++) {
        double v = (double)a->amp[i] * a->amp[i];
        all += v;
        if (g->lead[i]) led += v * (1 - s->lead_error[a->bits[i] * 3 + which(g->lead[i])]);
    }
    double more = led > 0 ? all / led : 1;
    for (int64_t j = 0; j < g->nibbles; j++) {
        float least = nibble_values(s, j, t);
        base += least;
        for (int v = 0; v < 16; v++) top = t[v] - least > top ? t[v] - least : top;
    }
    float step = top > 0 ? top / 255 : 1;
    for (int64_t j = 0; j < g->nibbles; j++) {
        float least = nibble_values(s, j, t);
        for (int v = 0; v < 16; v++) s->lut[16 * j + v] = (uint8_t)lrintf((t[v] - least) / step);
    }
    for (int64_t i = 0; i < a->count; i++) {
        double kept = g->lead[i] ? 1 - s->lead_error[a->bits[i] * 3 + which(g->lead[i])] : 0;
        spread += (double)s->p[i] * s->p[i] * (1 - 2 * more * kept + more * more * kept);
    }
    s->lut_step = step * (float)more;
    s->lut_base = base * (float)more;
    s->spread = SURE * (float)sqrt(spread) + s->lut_step * 0.5f * sqrtf((float)g->nibbles);
    s->staged = true;
}

/* ---- Rows ---- */

static float finish(const km_scan *s, float scale, float dot, float norm) {
    return s->base +
           (s->product ? -scale * dot : scale * (scale * (norm + s->c->lost) - 2 * dot));
}

/* One group of n fast rows. */
static void scan_group(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    const km_coder *c = s->c;
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS;
    bool look = whole > 0 && isfinite(limit) && c->stage.nibbles > 0;
    if (look) {
        if (!s->staged) prepare_stage(s);
        km_simd_codes()->stage(packed + whole, whole / KM_STAGE_ROWS, s->lut, c->stage.nibbles,
                               s->sums);
    }
    for (int64_t i = 0; i < n; i++) {
        if (look && i < whole) {
            float scale = c->scales[packed[i]];
            float most = s->lut_base + s->lut_step * (float)s->sums[i] + s->spread;
            float least = s->base + (s->product ? -scale * most
                                                : scale * (scale * s->norm - 2 * most));
            if (least > limit) {
                dist[i] = INFINITY;
                continue;
            }
        }
        float dot, norm;
        km_stage_row(&c->stage, c->bytes, packed, n, i, s->ready);
        km_simd_codes()->levels(&s->plan, s->ready, s->p, &dot, &norm);
        dist[i] = finish(s, c->scales[s->ready[0]], dot, norm);
    }
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
