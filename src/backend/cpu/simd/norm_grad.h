/* The norms' gradients. With h = (x - mean) rstd (mean 0 for RMS norm) and g = dy w:
 *   layer norm  dx = rstd (g - mean(g) - h mean(g h)) + dsum
 *   RMS norm    dx = rstd (g - h mean(g h)) + dsum
 *   dw += sum over the rows of dy h, db += sum of dy
 * Rows go four at a time, so that w, dw and db are loaded once for four. */
#ifndef KM_BACKEND_CPU_SIMD_NORM_GRAD_H
#define KM_BACKEND_CPU_SIMD_NORM_GRAD_H
#include "backend/cpu/norm.h"
#include "backend/cpu/simd/rows_sums.h"

#define KM_GRAD_ROWS 4

typedef struct grad_row {
    const void *dy, *x, *dsum;
    void *dx;
    float mean, rstd;
    float mean_g, mean_gh;
} grad_row;

KM_INLINE void grad_means(grad_row *r, const float *w, int64_t n, bool centre, int slot) {
    vf mean = v_set1(r->mean), rstd = v_set1(r->rstd);
    double sum_g = 0, sum_gh = 0;
    for (int64_t begin = 0; begin < n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(n, begin + KM_SUM_BLOCK), i = begin;
        vf a0 = v_zero(), a1 = a0, b0 = a0, b1 = a0;
        for (; i + 2 * KM_VF <= end; i += 2 * KM_VF) {
            vf g0 = row_load(r->dy, i, slot) * v_load(w + i);
            vf g1 = row_load(r->dy, i + KM_VF, slot) * v_load(w + i + KM_VF);
            vf x0 = row_load(r->x, i, slot), x1 = row_load(r->x, i + KM_VF, slot);
            vf h0 = centre ? (x0 - mean) * rstd : x0 * rstd;
            vf h1 = centre ? (x1 - mean) * rstd : x1 * rstd;
            a0 += g0;
            a1 += g1;
            b0 = v_fma(g0, h0, b0);
            b1 = v_fma(g1, h1, b1);
        }
        for (; i < end; i += KM_VF) {
            int64_t m = row_min(end - i, KM_VF);
            vf g = row_load_n(r->dy, i, m, slot) * v_load_n(w + i, m); /* 0 past the end */
            vf x = row_load_n(r->x, i, m, slot);
            a0 += g;
            b0 = v_fma(g, centre ? (x - mean) * rstd : x * rstd, b0);
        }
        sum_g += v_reduce_add(a0 + a1);
        sum_gh += v_reduce_add(b0 + b1);
    }
    r->mean_g = centre ? (float)(sum_g / (double)n) : 0;
    r->mean_gh = (float)(sum_gh / (double)n);
}

/* Elements i .. i + m - 1 of `count` rows. */
KM_INLINE void grad_lanes(const grad_row *rows, int count, const km_norm_grad_job *j, int64_t i,
                          int64_t m, bool centre, int slot) {
    vf w = row_load_n(j->w, i, m, KM_SLOT_F32);
    vf dw = row_load_n(j->dw, i, m, KM_SLOT_F32);
    vf db = centre ? row_load_n(j->db, i, m, KM_SLOT_F32) : v_zero();
    for (int k = 0; k < count; k++) {
        const grad_row *r = &rows[k];
        vf rstd = v_set1(r->rstd);
        vf dy = row_load_n(r->dy, i, m, slot), x = row_load_n(r->x, i, m, slot), g = dy * w;
        vf h = centre ? (x - v_set1(r->mean)) * rstd : x * rstd;
        vf t = centre ? g - v_set1(r->mean_g) : g;
        vf dx = rstd * v_fnma(h, v_set1(r->mean_gh), t);
        if (r->dsum) dx += row_load_n(r->dsum, i, m, slot);
        row_store_n(r->dx, i, dx, m, slot);
        dw = v_fma(dy, h, dw);
        if (centre) db += dy;
    }
    row_store_n(j->dw, i, dw, m, KM_SLOT_F32);
    if (centre) row_store_n(j->db, i, db, m, KM_SLOT_F32);
}

KM_INLINE void grad_group(const km_norm_grad_job *j, int64_t first, int count, bool centre,
                          int slot) {
    grad_row rows[KM_GRAD_ROWS];
    for (int k = 0; k < count; k++) {
        int64_t at = (first + k) * j->n;
        rows[k] = (grad_row){.dy = row_at(j->dy, at, slot),
                             .x = row_at(j->x, at, slot),
                             .dx = row_at(j->dx, at, slot),
                             .dsum = j->dsum ? row_at(j->dsum, at, slot) : NULL,
                             .mean = centre ? j->mean[first + k] : 0,
                             .rstd = j->rstd[first + k]};
        grad_means(&rows[k], j->w, j->n, centre, slot);
    }
    int64_t i = 0;
    for (; i + KM_VF <= j->n; i += KM_VF) grad_lanes(rows, count, j, i, KM_VF, centre, slot);
    if (i < j->n) grad_lanes(rows, count, j, i, j->n - i, centre, slot);
}

KM_INLINE void grad_rows(const km_norm_grad_job *j, bool centre, int slot) {
    int64_t r = 0;
    for (; r + KM_GRAD_ROWS <= j->rows; r += KM_GRAD_ROWS)
        grad_group(j, r, KM_GRAD_ROWS, centre, slot);
    if (r < j->rows) grad_group(j, r, (int)(j->rows - r), centre, slot);
}

KM_INLINE void layer_norm_grad(const km_norm_grad_job *j, int slot) { grad_rows(j, true, slot); }
KM_INLINE void rms_norm_grad(const km_norm_grad_job *j, int slot) { grad_rows(j, false, slot); }

#endif
