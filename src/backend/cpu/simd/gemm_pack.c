/* Operands on their way into a product: b into panels, blocks of a into plain rows of f32 or into
 * tiles. */
#include "backend/cpu/simd/gemm_simd.h"
#include <string.h>

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

/* One square: rows 0 .. rows - 1 of src from column p on, `cols` of them, turned into dst's first
 * `cols` rows. Lanes past `rows` are zero, and stored up to `lanes`. */
KM_INLINE void turn_square(float *dst, int64_t ldd, int64_t lanes, const void *src, int64_t lds,
                           int64_t p, int64_t rows, int64_t cols, int slot) {
    vf r[KM_VF];
    if (rows == KM_VF && cols == KM_VF) {
        KM_UNROLL
        for (int j = 0; j < KM_VF; j++) r[j] = row_load(src, j * lds + p, slot);
        v_turn(r);
        KM_UNROLL
        for (int i = 0; i < KM_VF; i++) v_store(dst + i * ldd, r[i]);
    } else {
        for (int j = 0; j < KM_VF; j++)
            r[j] = j < rows ? row_load_n(src, j * lds + p, cols, slot) : v_zero();
        v_turn(r);
        for (int i = 0; i < cols; i++) v_store_n(dst + i * ldd, r[i], lanes);
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
                turn_square(dst + p * KM_NR + v, KM_NR, KM_VF, from, ld, p, row_min(cols, KM_VF),
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

#define AHEAD 8 /* rows to fetch before they are wanted */

KM_INLINE void widen_rows(float *dst, int64_t ldd, const void *src, int64_t lds, int64_t rows,
                          int64_t cols, int slot) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t j = 0;
        if (i + AHEAD < rows) v_fetch(row_at(src, (i + AHEAD) * lds, slot), cols, slot);
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

/* ---- Tiles of a ---- */

/* Elements i .. i + KM_LAID - 1 of a row, or as many as there are, to their place in a tile. What
 * is written beyond them is the place of the next step of k, or the gap between tiles. */
KM_INLINE void lay_part(float *dst, const void *src, int64_t i, int64_t rows, int slot) {
    if (slot == KM_SLOT_F32 && i + KM_LAID <= rows) {
        memcpy(dst, (const float *)src + i, KM_LAID * sizeof *dst);
    } else {
        for (int64_t v = 0; v < row_min(KM_LAID, rows - i); v += KM_VF)
            v_store(dst + v, row_load_n(src, i + v, rows - i - v, slot));
    }
}

KM_INLINE void add_rows(float *sums, const void *src, int64_t lds, int64_t k, int64_t rows,
                        int slot) {
    for (int64_t i = 0; i < rows; i += KM_VF) {
        int64_t take = row_min(rows - i, KM_VF);
        vf s = v_load_n(sums + i, take);
        for (int64_t p = 0; p < k; p++) s += row_load_n(src, p * lds + i, take, slot);
        v_store_n(sums + i, s, take);
    }
}

KM_INLINE void lay_rows(float *dst, const void *src, int64_t lds, int64_t k, int64_t rows,
                        float *sums, int slot) {
    int64_t step = km_laid_step(k);
    for (int64_t p0 = 0; p0 < k; p0 += TOGETHER) {
        int64_t p1 = row_min(k, p0 + TOGETHER);
        for (int64_t p = p0; p < p1; p++) {
            const void *row = row_at(src, p * lds, slot);
            if (p + AHEAD < k) v_fetch(row_at(src, (p + AHEAD) * lds, slot), rows, slot);
            float *to = dst + p * KM_LAID;
            for (int64_t i = 0; i < rows; i += KM_MR, to += step) lay_part(to, row, i, rows, slot);
        }
        if (sums) add_rows(sums, row_at(src, p0 * lds, slot), lds, p1 - p0, rows, slot);
    }
}

void KM_SIMD(km_gemm_lay)(float *dst, const void *src, km_dtype dtype, int64_t lds, int64_t k,
                          int64_t rows, float *sums) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: lay_rows(dst, src, lds, k, rows, sums, KM_SLOT_F32); break;
    case KM_SLOT_F16: lay_rows(dst, src, lds, k, rows, sums, KM_SLOT_F16); break;
    default: lay_rows(dst, src, lds, k, rows, sums, KM_SLOT_BF16); break;
    }
}
