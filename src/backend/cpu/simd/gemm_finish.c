/* The end of a product, while its block is still in the cache: old values, bias, activation, and
 * the one rounding to the output's dtype. */
#include "backend/cpu/simd/gemm_simd.h"
#include "backend/cpu/simd/vmath.h"

KM_INLINE vf activate(vf v, km_act act) {
    switch (act) {
    case KM_ACT_RELU: return v_max_nan(v, v_zero());
    case KM_ACT_GELU: return v_gelu(v);
    case KM_ACT_GELU_ERF: return v_gelu_erf(v);
    case KM_ACT_SILU: return v_silu(v);
    default: return v;
    }
}

KM_INLINE void finish_row(const km_finish *f, const float *x, void *out, void *pre, int64_t cols,
                          km_act act, int slot) {
    for (int64_t j = 0; j < cols; j += KM_VF) {
        int64_t take = row_min(cols - j, KM_VF);
        vf v = row_load_n(x, j, take, KM_SLOT_F32);
        if (f->beta != 0) v = v_fma(v_set1(f->beta), row_load_n(out, j, take, slot), v);
        if (f->bias) v += row_load_n(f->bias, j, take, slot);
        if (pre) row_store_n(pre, j, v, take, slot);
        row_store_n(out, j, activate(v, act), take, slot);
    }
}

KM_INLINE void finish_rows(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                           int64_t ldo, int64_t rows, int64_t cols, km_act act, int slot) {
    for (int64_t i = 0; i < rows; i++)
        finish_row(f, x + i * ldx, row_at(out, i * ldo, slot),
                   pre ? row_at(pre, i * ldo, slot) : NULL, cols, act, slot);
}

KM_INLINE void finish_slot(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                           int64_t ldo, int64_t rows, int64_t cols, int slot) {
    switch (f->act) {
    case KM_ACT_RELU: finish_rows(f, x, ldx, out, pre, ldo, rows, cols, KM_ACT_RELU, slot); break;
    case KM_ACT_GELU: finish_rows(f, x, ldx, out, pre, ldo, rows, cols, KM_ACT_GELU, slot); break;
    case KM_ACT_GELU_ERF:
        finish_rows(f, x, ldx, out, pre, ldo, rows, cols, KM_ACT_GELU_ERF, slot);
        break;
    case KM_ACT_SILU: finish_rows(f, x, ldx, out, pre, ldo, rows, cols, KM_ACT_SILU, slot); break;
    default: finish_rows(f, x, ldx, out, pre, ldo, rows, cols, KM_ACT_NONE, slot); break;
    }
}

void KM_SIMD(km_gemm_finish)(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                             int64_t ldo, int64_t rows, int64_t cols) {
    switch (km_float_slot(f->dtype)) {
    case KM_SLOT_F32: finish_slot(f, x, ldx, out, pre, ldo, rows, cols, KM_SLOT_F32); break;
    case KM_SLOT_F16: finish_slot(f, x, ldx, out, pre, ldo, rows, cols, KM_SLOT_F16); break;
    default: finish_slot(f, x, ldx, out, pre, ldo, rows, cols, KM_SLOT_BF16); break;
    }
}
