/* Scans: a row's values against the query, in the axes of the row's class. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"

struct km_scan {
    const km_coder *c;
    bool product;
    float *query;   /* (km_coder_turned) */
    float *p;       /* (turned) query minus anchor along the axes, times amp */
    float *values;  /* (turned) of a row, for levels */
    uint8_t *ready; /* a row */
    float base;
};

km_scan *km_scan_new(const km_coder *c, km_error *err) {
    size_t floats = (size_t)(c->dim + 3 * c->turned);
    km_scan *s = km_calloc(1, sizeof *s);
    if (s) s->query = km_calloc(floats * sizeof *s->query + (size_t)c->bytes + KM_CODER_PAD, 1);
    if (!s || !s->query) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        km_free(s);
        return NULL;
    }
    s->c = c;
    s->p = s->query + c->dim + c->turned;
    s->values = s->p + c->turned;
    s->ready = (uint8_t *)(s->values + c->turned);
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

void km_scan_codes(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    const km_coder *c = s->c;
    const float *starts[KM_CODER_CLASSES], *p = s->p;
    for (int k = 0; k < c->classes; k++) {
        starts[k] = p;
        p += c->axes[k].padded;
    }
    (void)limit;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *code = packed + i * c->bytes;
        float scale = c->scales[code[0]], dot = 0, norm = 0;
        int k = km_code_class(c, code);
        if (k >= c->classes) k = 0;
        const km_axes *a = &c->axes[k];
        if (c->trellis) {
            km_trellis_plan plan = {a->padded, a->at, a->table, a->amp, c->tables->window[0]};
            km_code_ready(c, a, code, s->ready);
            km_simd_codes()->trellis(&plan, s->ready, starts[k], &dot, &norm);
        } else {
            int64_t at = km_coder_head(c);
            for (int64_t j = 0; j < a->count; j++) {
                int b = a->bits[j];
                float v = b ? c->levels[b][km_bits_get(code, at, b)] : 0;
                dot += starts[k][j] * v;
                norm += a->amp[j] * a->amp[j] * v * v;
                at += b;
            }
        }
        dist[i] = s->base +
                  (s->product ? -scale * dot : scale * (scale * (norm + c->lost) - 2 * dot));
    }
}
