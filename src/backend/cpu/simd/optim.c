/* Optimiser steps. Floor: p, g and the state read once, p and the state written once. */
#include "backend/cpu/optim.h"
#include "backend/cpu/simd/rowio.h"
#include "backend/cpu/simd/vmath.h"

KM_INLINE void sgd(const km_optim_job *j, int slot) {
    vf lr = v_set1(j->lr), momentum = v_set1(j->momentum), decay = v_set1(j->decay);
    for (int64_t i = j->begin; i < j->end; i += KM_VF) {
        int64_t n = j->end - i < KM_VF ? j->end - i : KM_VF;
        vf p = row_load_n(j->p, i, n, slot);
        vf d = v_fma(decay, p, row_load_n(j->g, i, n, slot)), step = d;
        if (j->m) {
            vf m = v_fma(momentum, row_load_n(j->m, i, n, KM_SLOT_F32), d);
            step = j->nesterov ? v_fma(momentum, m, d) : m;
            row_store_n(j->m_out, i, m, n, KM_SLOT_F32);
        }
        row_store_n(j->p_out, i, p - lr * step, n, slot);
    }
}

KM_INLINE void adamw(const km_optim_job *j, int slot) {
    vf lr = v_set1(j->lr), beta1 = v_set1(j->beta1), beta2 = v_set1(j->beta2), eps = v_set1(j->eps);
    vf rest1 = v_set1(1) - beta1, rest2 = v_set1(1) - beta2;
    vf scale1 = v_set1(j->scale1), scale2 = v_set1(j->scale2);
    vf through = v_set1(j->decoupled ? 0 : j->decay), apart = v_set1(j->decoupled ? j->decay : 0);
    for (int64_t i = j->begin; i < j->end; i += KM_VF) {
        int64_t n = j->end - i < KM_VF ? j->end - i : KM_VF;
        vf p = row_load_n(j->p, i, n, slot), d = v_fma(through, p, row_load_n(j->g, i, n, slot));
        vf m = v_fma(beta1, row_load_n(j->m, i, n, KM_SLOT_F32), rest1 * d);
        vf v = v_fma(beta2, row_load_n(j->v, i, n, KM_SLOT_F32), rest2 * d * d);
        vf step = v_fma(apart, p, m * scale1 / (v_sqrt(v * scale2) + eps));
        row_store_n(j->m_out, i, m, n, KM_SLOT_F32);
        row_store_n(j->v_out, i, v, n, KM_SLOT_F32);
        row_store_n(j->p_out, i, p - lr * step, n, slot);
    }
}

KM_PER_SLOT(sgd, km_optim_job)
KM_PER_SLOT(adamw, km_optim_job)

const km_optim_table KM_SIMD(km_simd_optim) = {
    .sgd = KM_SLOT_TABLE(sgd),
    .adamw = KM_SLOT_TABLE(adamw),
};
