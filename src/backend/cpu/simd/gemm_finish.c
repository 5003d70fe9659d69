/* The end of a product, while its block is still in the cache: old values, bias, activation or its
 * slope, and the one rounding to the output's dtype. */
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

#define AHEAD 6 /* rows to fetch before they are wanted */

KM_INLINE void finish_rows(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                           int64_t ldo, int64_t rows, int64_t cols, km_act act, int slot) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += 64 / 4) { /* past the end it does no harm */
            if (pre) __builtin_prefetch(row_at(pre, (i + AHEAD) * ldo + j, slot), 1);
            if (out != x) __builtin_prefetch(row_at(out, (i + AHEAD) * ldo + j, slot), 1);
        }
        finish_row(f, x + i * ldx, row_at(out, i * ldo, slot),
                   pre ? row_at(pre, i * ldo, slot) : NULL, cols, act, slot);
    }
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

/* ---- Gradients through an activation ---- */

KM_INLINE vf derivative(vf x, km_act act) {
    switch (act) {
    case KM_ACT_GELU: return v_gelu_deriv(x);
    case KM_ACT_GELU_ERF: return v_gelu_erf_deriv(x);
    default: return v_silu_deriv(x);
    }
}

/* At most a tile's width at a time, whose sums stay in registers. */
KM_INLINE void slope_columns(const float *x, int64_t ldx, const float *pre, float *out, int64_t ldo,
                             int64_t rows, int64_t cols, float *sums, km_act act) {
    vf total[KM_NV];
    KM_UNROLL
    for (int v = 0; v < KM_NV; v++) {
        int64_t have = sums ? row_min(cols - v * KM_VF, KM_VF) : 0;
        total[v] = have > 0 ? row_load_n(sums, v * KM_VF, have, KM_SLOT_F32) : v_zero();
    }
    for (int64_t i = 0; i < rows; i++, x += ldx, pre += ldo, out += ldo) {
        KM_UNROLL
        for (int v = 0; v < KM_NV; v++) {
            int64_t take = row_min(cols - v * KM_VF, KM_VF);
            if (take <= 0) continue;
            __builtin_prefetch(pre + v * KM_VF + AHEAD * ldo); /* past the end it does no harm */
            __builtin_prefetch(out + v * KM_VF + AHEAD * ldo, 1);
            vf d = row_load_n(x, v * KM_VF, take, KM_SLOT_F32);
            d *= derivative(row_load_n(pre, v * KM_VF, take, KM_SLOT_F32), act);
            row_store_n(out, v * KM_VF, d, take, KM_SLOT_F32);
            total[v] += d;
        }
    }
    if (!sums) return;
    for (int v = 0; v < KM_NV; v++)
        if (cols > v * KM_VF)
            v_store_n(sums + v * KM_VF, total[v], row_min(cols - v * KM_VF, KM_VF));
}

KM_INLINE void slope_act(const float *x, int64_t ldx, const float *pre, float *out, int64_t ldo,
                         int64_t rows, int64_t cols, float *sums, km_act act) {
    for (int64_t j = 0; j < cols; j += KM_NR)
        slope_columns(x + j, ldx, pre + j, out + j, ldo, rows, row_min(KM_NR, cols - j),
                      sums ? sums + j : NULL, act);
}

void KM_SIMD(km_gemm_slope)(km_act act, const float *x, int64_t ldx, const float *pre, float *out,
                            int64_t ldo, int64_t rows, int64_t cols, float *sums) {
    switch (act) {
    case KM_ACT_GELU: slope_act(x, ldx, pre, out, ldo, rows, cols, sums, KM_ACT_GELU); break;
    case KM_ACT_GELU_ERF:
        slope_act(x, ldx, pre, out, ldo, rows, cols, sums, KM_ACT_GELU_ERF);
        break;
    default: slope_act(x, ldx, pre, out, ldo, rows, cols, sums, KM_ACT_SILU); break;
    }
}
