/* Reference vector quantisation: every distance by its definition, and sums row after row. */
#include "backend/ref/ref.h"

km_status km_ref_nearest(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *centre = c->in[1];
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = centre->shape.dim[0];
    (void)ctx;
    for (int64_t i = 0; i < n; i++) {
        double best = NAN;
        int64_t id = 0;
        for (int64_t j = 0; j < k; j++) {
            km_ref_sum sum = {0};
            for (int64_t e = 0; e < d; e++) {
                double diff =
                    km_ref_get(x, (int64_t[]){i, e}) - km_ref_get(centre, (int64_t[]){j, e});
                km_ref_sum_add(&sum, diff * diff);
            }
            double dist = km_ref_sum_value(&sum);
            if (dist < best || (isnan(best) && !isnan(dist))) {
                best = dist;
                id = j;
            }
        }
        km_ref_set_int(c->out[0], &i, id);
        km_ref_set(c->out[1], &i, best);
    }
    return KM_OK;
}

km_status km_ref_cell_sums(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *id = c->in[1];
    const km_tensor *weight = km_ref_in(c, 2), *dist = km_ref_in(c, 3);
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = c->p->n[KM_N_CELLS];
    /* Of a cell: d sums, mass, count, spread. */
    double *all = km_ctx_scratch(ctx, (size_t)(k * (d + 3) + 1) * sizeof *all);
    if (!all) return KM_ERR_MEMORY;
    for (int64_t i = 0; i < k * (d + 3); i++) all[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = km_ref_get_int(id, &i);
        if (j < 0 || j >= k) continue;
        double *cell = all + j * (d + 3), w = weight ? km_ref_get(weight, &i) : 1;
        for (int64_t e = 0; e < d; e++) cell[e] += w * km_ref_get(x, (int64_t[]){i, e});
        cell[d] += w;
        cell[d + 1] += 1;
        cell[d + 2] += dist ? km_ref_get(dist, &i) : 0;
    }
    for (int64_t j = 0; j < k; j++) {
        for (int64_t e = 0; e < d; e++)
            km_ref_set(c->out[0], (int64_t[]){j, e}, all[j * (d + 3) + e]);
        for (int o = 1; o < 4; o++) km_ref_set(c->out[o], &j, all[j * (d + 3) + d + o - 1]);
    }
    return KM_OK;
}
