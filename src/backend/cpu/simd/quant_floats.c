/* Few rows of x against weights of f32, f16 or bf16: each weight is read once and converted in
 * registers. Like the product with a quantised row, what is computed for a row of x does not depend
 * on the others. */
#include "backend/cpu/simd/gemm_simd.h"

#ifdef KM_AVX512
#define SHARE 4 /* rows of x that share one reading */
#else
#define SHARE 2
#endif
#define AT_ONCE 4 /* rows of weights */

/* y for `count` rows of weights and n rows of x. */
KM_INLINE void dots_block(const void *w, int64_t k, const int count, const float *x, int64_t ldx,
                          const int n, float *y, int64_t ldy, int slot) {
    vf acc[AT_ONCE][SHARE];
    KM_UNROLL
    for (int i = 0; i < count * n; i++) acc[i / n][i % n] = v_zero();
    for (int64_t p = 0; p < k; p += KM_VF) {
        int64_t take = row_min(k - p, KM_VF);
        vf xv[SHARE];
        KM_UNROLL
        for (int r = 0; r < n; r++) xv[r] = row_load_n(x, r * ldx + p, take, KM_SLOT_F32);
        KM_UNROLL
        for (int j = 0; j < count; j++) {
            vf wv = row_load_n(w, j * k + p, take, slot);
            KM_UNROLL
            for (int r = 0; r < n; r++) acc[j][r] = v_fma(xv[r], wv, acc[j][r]);
        }
    }
    KM_UNROLL
    for (int i = 0; i < count * n; i++) y[i % n * ldy + i / n] = v_reduce_add(acc[i / n][i % n]);
}

KM_INLINE void dots_rows(const void *w, int64_t k, const int count, const float *x, int64_t ldx,
                         int64_t rows, float *y, int64_t ldy, int slot) {
    int64_t r = 0;
    for (; r + SHARE <= rows; r += SHARE)
        dots_block(w, k, count, x + r * ldx, ldx, SHARE, y + r * ldy, ldy, slot);
    for (; r < rows; r++) dots_block(w, k, count, x + r * ldx, ldx, 1, y + r * ldy, ldy, slot);
}

KM_INLINE void dots(const void *w, int64_t k, int64_t outs, const float *x, int64_t ldx,
                    int64_t rows, float *y, int64_t ldy, int slot) {
    int64_t j = 0;
    for (; j + AT_ONCE <= outs; j += AT_ONCE)
        dots_rows(row_at(w, j * k, slot), k, AT_ONCE, x, ldx, rows, y + j, ldy, slot);
    for (; j < outs; j++) dots_rows(row_at(w, j * k, slot), k, 1, x, ldx, rows, y + j, ldy, slot);
}

void KM_SIMD(km_quant_few_floats)(km_dtype d, const void *w, int64_t n, int64_t outs,
                                  const float *x, int64_t ldx, int64_t rows, float *y,
                                  int64_t ldy) {
    switch (km_float_slot(d)) {
    case KM_SLOT_F32: dots(w, n, outs, x, ldx, rows, y, ldy, KM_SLOT_F32); break;
    case KM_SLOT_F16: dots(w, n, outs, x, ldx, rows, y, ldy, KM_SLOT_F16); break;
    default: dots(w, n, outs, x, ldx, rows, y, ldy, KM_SLOT_BF16); break;
    }
}
