/* Scans: decode and multiply, row after row. */
#include "vector/scan.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"

struct km_scan {
    const km_coder *c;
    bool product;
    float *query, *p, *axes; /* (dim) each: turned query, query minus anchor, a decoded row */
    float base, add;
};

km_scan *km_scan_new(const km_coder *c, km_error *err) {
    km_scan *s = km_calloc(1, sizeof *s);
    if (s) s->query = km_calloc((size_t)c->dim * 3, sizeof *s->query);
    if (!s || !s->query) {
        km_error_set(err, KM_ERR_MEMORY, "scan: out of memory");
        km_free(s);
        return NULL;
    }
    s->c = c;
    s->p = s->query + c->dim;
    s->axes = s->p + c->dim;
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
    double sum = 0;
    for (int64_t i = 0; i < s->c->dim; i++) {
        float a = turned_anchor ? turned_anchor[i] : 0;
        s->p[i] = s->product ? s->query[i] : s->query[i] - a;
        sum += s->product ? -(double)s->query[i] * a : (double)s->p[i] * s->p[i];
    }
    s->base = (float)sum;
    s->add = add;
}

void km_scan_codes(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist) {
    const km_coder *c = s->c;
    (void)limit;
    for (int64_t i = 0; i < n; i++) {
        float scale = km_coder_axes(c, packed + i * c->bytes, s->axes), dot = 0, norm = 0;
        for (int64_t j = 0; j < c->dim; j++) {
            dot += s->p[j] * s->axes[j];
            norm += s->axes[j] * s->axes[j];
        }
        dist[i] = s->add + s->base +
                  (s->product ? -scale * dot : scale * (scale * (norm + c->lost) - 2 * dot));
    }
}
