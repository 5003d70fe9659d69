/* Reference scan of codes: every row decoded, every distance by its definition, k times the least. */
#include "backend/ref/ref.h"
#include "backend/trellis.h"

enum { QUERY, CODES, SCALE, CELL, PLACE, AMP, TABLES, CENTRE, RATE, WINDOWS };

/* The bits [at, at + n) of a row's code, lowest first. */
static int64_t field(const km_tensor *codes, int64_t row, int64_t at, int64_t n) {
    int64_t v = 0;
    for (int64_t b = 0; b < n; b++) {
        int64_t byte = km_ref_get_int(codes, (int64_t[]){row, (at + b) / 8});
        v |= (byte >> (at + b) % 8 & 1) << b;
    }
    return v;
}

static double value(const km_call *c, int64_t row, int64_t cell, double scale, int64_t j) {
    int64_t at = km_ref_get_int(c->in[PLACE], &j),
            end = km_ref_get_int(c->in[PLACE], (int64_t[]){j + 1});
    bool trellis = c->n_in > RATE;
    int64_t table = trellis ? km_ref_get_int(c->in[RATE], &j) : end - at;
    int64_t number = field(c->in[CODES], row, at, trellis ? KM_TRELLIS_LENGTH : end - at);
    double level = km_ref_get(c->in[trellis ? WINDOWS : TABLES], (int64_t[]){table, number});
    return km_ref_get(c->in[CENTRE], (int64_t[]){cell, j}) +
           scale * km_ref_get(c->in[AMP], &j) * level;
}

km_status km_ref_scan_codes(km_ctx *ctx, const km_call *c) {
    int64_t queries = c->in[QUERY]->shape.dim[0], d = c->in[QUERY]->shape.dim[1];
    int64_t n = c->in[CODES]->shape.dim[0], cells = c->in[CENTRE]->shape.dim[0],
            k = c->p->n[KM_N_NEAREST];
    double *dist = km_ctx_scratch(ctx, (size_t)(queries * n + 1) * sizeof *dist);
    if (!dist) return KM_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        int64_t cell = km_ref_get_int(c->in[CELL], &i);
        for (int64_t q = 0; q < queries; q++) dist[q * n + i] = INFINITY;
        if (cell < 0 || cell >= cells) continue;
        double scale = km_ref_get(c->in[TABLES], (int64_t[]){9, km_ref_get_int(c->in[SCALE], &i)});
        for (int64_t q = 0; q < queries; q++)
            dist[q * n + i] = c->p->n[KM_N_PRODUCT] ? 0 : c->p->f[KM_F_LOST] * scale * scale;
        for (int64_t j = 0; j < d; j++) {
            double y = value(c, i, cell, scale, j);
            for (int64_t q = 0; q < queries; q++) {
                double x = km_ref_get(c->in[QUERY], (int64_t[]){q, j});
                dist[q * n + i] += c->p->n[KM_N_PRODUCT] ? -x * y : (x - y) * (x - y);
            }
        }
    }
    for (int64_t q = 0; q < queries; q++)
        for (int64_t m = 0; m < k; m++) {
            int64_t best = -1;
            for (int64_t i = 0; i < n; i++)
                if (dist[q * n + i] < (best < 0 ? INFINITY : dist[q * n + best])) best = i;
            km_ref_set_int(c->out[0], (int64_t[]){q, m}, best);
            km_ref_set(c->out[1], (int64_t[]){q, m}, best < 0 ? INFINITY : dist[q * n + best]);
            if (best >= 0) dist[q * n + best] = INFINITY;
        }
    return KM_OK;
}
