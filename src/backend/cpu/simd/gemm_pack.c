/* Operands on their way into a product: b into panels, 16-bit blocks of a into plain f32. */
#include "backend/cpu/simd/gemm_simd.h"

/* ---- Panels from rows of b ---- */

/* A few rows at a time, all panels across: reads run along the rows, which the processor foresees,
 * and each panel gets a whole stretch. */
#define TOGETHER 8

KM_INLINE void pack_rows(float *dst, const void *src, int64_t ld, int64_t k, int64_t n, int slot) {
    for (int64_t p0 = 0; p0 < k; p0 += TOGETHER) {
        int64_t p1 = row_min(k, p0 + TOGETHER), j = 0;
        for (; j + KM_NR <= n; j += KM_NR) {
            for (int64_t p = p0; p < p1; p++) {
                KM_UNROLL
                for (int v = 0; v < KM_NR; v += KM_VF)
                    v_store(dst + j * k + p * KM_NR + v, row_load(src, p * ld + j + v, slot));
            }
        }
        for (int64_t p = p0; p < p1 && j < n; p++) {
            for (int64_t v = 0; v < KM_NR; v += KM_VF) {
                int64_t cols = n - j - v;
                vf x = cols > 0 ? row_load_n(src, p * ld + j + v, cols, slot) : v_zero();
                v_store(dst + j * k + p * KM_NR + v, x);
            }
        }
    }
}

void KM_SIMD(km_gemm_pack)(float *dst, const void *src, km_dtype dtype, int64_t ld, int64_t k,
                           int64_t n) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: pack_rows(dst, src, ld, k, n, KM_SLOT_F32); break;
    case KM_SLOT_F16: pack_rows(dst, src, ld, k, n, KM_SLOT_F16); break;
    default: pack_rows(dst, src, ld, k, n, KM_SLOT_BF16); break;
    }
}

/* ---- Panels from columns of b ---- */

/* One square: up to KM_VF columns of b, rows p .. p + take - 1, into dst's first `take` rows. */
KM_INLINE void turn_square(float *dst, const void *src, int64_t ld, int64_t p, int64_t cols,
                           int64_t take, int slot) {
    vf r[KM_VF];
    if (cols == KM_VF && take == KM_VF) {
        KM_UNROLL
        for (int j = 0; j < KM_VF; j++) r[j] = row_load(src, j * ld + p, slot);
        v_turn(r);
        KM_UNROLL
        for (int i = 0; i < KM_VF; i++) v_store(dst + i * KM_NR, r[i]);
    } else {
        for (int j = 0; j < KM_VF; j++)
            r[j] = j < cols ? row_load_n(src, j * ld + p, take, slot) : v_zero();
        v_turn(r);
        for (int i = 0; i < take; i++) v_store(dst + i * KM_NR, r[i]);
    }
}

KM_INLINE void pack_cols(float *dst, const void *src, int64_t ld, int64_t k, int64_t n, int slot) {
    for (int64_t j = 0; j < n; j += KM_NR, dst += k * KM_NR) {
        for (int64_t v = 0; v < KM_NR; v += KM_VF) {
            int64_t cols = n - j - v;
            if (cols <= 0) {
                for (int64_t p = 0; p < k; p++) v_store(dst + p * KM_NR + v, v_zero());
                continue;
            }
            const void *from = row_at(src, (j + v) * ld, slot);
            for (int64_t p = 0; p < k; p += KM_VF)
                turn_square(dst + p * KM_NR + v, from, ld, p, row_min(cols, KM_VF),
                            row_min(k - p, KM_VF), slot);
        }
    }
}

void KM_SIMD(km_gemm_pack_turned)(float *dst, const void *src, km_dtype dtype, int64_t ld,
                                  int64_t k, int64_t n) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: pack_cols(dst, src, ld, k, n, KM_SLOT_F32); break;
    case KM_SLOT_F16: pack_cols(dst, src, ld, k, n, KM_SLOT_F16); break;
    default: pack_cols(dst, src, ld, k, n, KM_SLOT_BF16); break;
    }
}

/* ---- Plain rows ---- */

KM_INLINE void widen_rows(float *dst, int64_t ldd, const void *src, int64_t lds, int64_t rows,
                          int64_t cols, int slot) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t j = 0;
        for (; j + KM_VF <= cols; j += KM_VF)
            v_store(dst + i * ldd + j, row_load(src, i * lds + j, slot));
        if (j < cols)
            v_store_n(dst + i * ldd + j, row_load_n(src, i * lds + j, cols - j, slot), cols - j);
    }
}

void KM_SIMD(km_gemm_widen)(float *dst, int64_t ldd, const void *src, km_dtype dtype, int64_t lds,
                            int64_t rows, int64_t cols) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: widen_rows(dst, ldd, src, lds, rows, cols, KM_SLOT_F32); break;
    case KM_SLOT_F16: widen_rows(dst, ldd, src, lds, rows, cols, KM_SLOT_F16); break;
    default: widen_rows(dst, ldd, src, lds, rows, cols, KM_SLOT_BF16); break;
    }
}
