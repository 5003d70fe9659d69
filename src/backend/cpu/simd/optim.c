/* Optimiser steps. Floor: g and the state read once, p and the state written once; p is read where
 * no f32 weight stands behind it. */
#include "backend/cpu/optim.h"
#include "backend/cpu/simd/rowio.h"
#include "backend/cpu/simd/vmath.h"

KM_INLINE vf load_weight(const km_optim_job *j, int64_t i, int64_t n, int slot) {
    return j->w ? row_load_n(j->w, i, n, KM_SLOT_F32) : row_load_n(j->p, i, n, slot);
}

KM_INLINE void store_weight(const km_optim_job *j, int64_t i, int64_t n, vf w, int slot) {
    if (j->w) row_store_n(j->w_out, i, w, n, KM_SLOT_F32);
    row_store_n(j->p_out, i, w, n, slot);
}

KM_INLINE void sgd_any(const km_optim_job *j, int slot, int slot_g) {
    vf lr = v_set1(j->lr), momentum = v_set1(j->momentum), decay = v_set1(j->decay);
    vf multiplier = v_set1(j->multiplier);
    for (int64_t i = j->begin; i < j->end; i += KM_VF) {
        int64_t n = j->end - i < KM_VF ? j->end - i : KM_VF;
        vf p = load_weight(j, i, n, slot);
        vf d = v_fma(decay, p, multiplier * row_load_n(j->g, i, n, slot_g)), step = d;
        if (j->m) {
            vf m = v_fma(momentum, row_load_n(j->m, i, n, KM_SLOT_F32), d);
            step = j->nesterov ? v_fma(momentum, m, d) : m;
            row_store_n(j->m_out, i, m, n, KM_SLOT_F32);
        }
        store_weight(j, i, n, p - lr * step, slot);
    }
}

KM_INLINE void adamw_any(const km_optim_job *j, int slot, int slot_g) {
    vf lr = v_set1(j->lr), beta1 = v_set1(j->beta1), beta2 = v_set1(j->beta2), eps = v_set1(j->eps);
    vf rest1 = v_set1(1) - beta1, rest2 = v_set1(1) - beta2, multiplier = v_set1(j->multiplier);
    vf scale1 = v_set1(j->scale1), scale2 = v_set1(j->scale2);
    vf through = v_set1(j->decoupled ? 0 : j->decay), apart = v_set1(j->decoupled ? j->decay : 0);
    for (int64_t i = j->begin; i < j->end; i += KM_VF) {
        int64_t n = j->end - i < KM_VF ? j->end - i : KM_VF;
        vf p = load_weight(j, i, n, slot);
        vf d = v_fma(through, p, multiplier * row_load_n(j->g, i, n, slot_g));
        vf m = v_fma(beta1, row_load_n(j->m, i, n, KM_SLOT_F32), rest1 * d);
        vf v = v_fma(beta2, row_load_n(j->v, i, n, KM_SLOT_F32), rest2 * d * d);
        vf step = v_fma(apart, p, m * scale1 / (v_sqrt(v * scale2) + eps));
        row_store_n(j->m_out, i, m, n, KM_SLOT_F32);
        row_store_n(j->v_out, i, v, n, KM_SLOT_F32);
        store_weight(j, i, n, p - lr * step, slot);
    }
}

KM_INLINE void sgd(const km_optim_job *j, int slot) { sgd_any(j, slot, slot); }
KM_INLINE void adamw(const km_optim_job *j, int slot) { adamw_any(j, slot, slot); }
KM_INLINE void sgd_wide(const km_optim_job *j, int slot) { sgd_any(j, slot, KM_SLOT_F32); }
KM_INLINE void adamw_wide(const km_optim_job *j, int slot) { adamw_any(j, slot, KM_SLOT_F32); }

/* Four vectors of sums side by side, so that no chain is long. */
KM_INLINE void sumsq(const km_sumsq_job *j, int slot) {
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = j->begin;
    for (; i + 4 * KM_VF <= j->end; i += 4 * KM_VF)
        for (int k = 0; k < 4; k++) {
            vf x = row_load(j->x, i + k * KM_VF, slot);
            sum[k] = v_fma(x, x, sum[k]);
        }
    for (; i < j->end; i += KM_VF) {
        vf x = row_load_n(j->x, i, row_min(j->end - i, KM_VF), slot);
        sum[0] = v_fma(x, x, sum[0]);
    }
    *j->sum = v_reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

KM_PER_SLOT(sgd, km_optim_job)
KM_PER_SLOT(sgd_wide, km_optim_job)
KM_PER_SLOT(adamw, km_optim_job)
KM_PER_SLOT(adamw_wide, km_optim_job)
KM_PER_SLOT(sumsq, km_sumsq_job)

const km_optim_table KM_SIMD(km_simd_optim) = {
    .sgd = {KM_SLOT_TABLE(sgd), KM_SLOT_TABLE(sgd_wide)},
    .adamw = {KM_SLOT_TABLE(adamw), KM_SLOT_TABLE(adamw_wide)},
    .sumsq = KM_SLOT_TABLE(sumsq),
};
