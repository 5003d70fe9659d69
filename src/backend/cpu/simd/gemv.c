/* Products with few rows, where each weight is used once or a few times and reading it is the
 * work: weights are read once, in order, converted in registers, and never written back. */
#include "backend/cpu/simd/gemm_simd.h"

/* Rows of x that share one reading of the weights. */
#ifdef KM_AVX512
#define SHARE 4
#else
#define SHARE 2
#endif

KM_INLINE void fetch_rows(const void *w, int64_t ldw, int64_t row, int64_t count, int64_t n,
                          int slot) {
    for (int64_t i = row; i < row + count; i++) v_fetch(row_at(w, i * ldw, slot), n, slot);
}

/* ---- Weights that lie along k: dot products ---- */

/* y for `count` weights and `share` rows of x, count * share <= 16. Two sums each when there are
 * but a few, so that an addition need not wait for the last. */
KM_INLINE void dots_block(const void *w, int64_t ldw, const int count, int64_t k, const float *x,
                          int64_t ldx, const int share, float *y, int64_t ldy, int slot) {
    const int sums = count * share;
    vf acc[16], more[4]; /* acc[r * count + j] */
    KM_UNROLL
    for (int i = 0; i < sums; i++) acc[i] = v_zero();
    int64_t p = 0;
    if (sums <= 4) {
        KM_UNROLL
        for (int j = 0; j < sums; j++) more[j] = v_zero();
        for (; p + 2 * KM_VF <= k; p += 2 * KM_VF) {
            KM_UNROLL
            for (int i = 0; i < sums; i++) {
                const float *xi = x + i / count * ldx + p;
                int64_t at = i % count * ldw + p;
                acc[i] = v_fma(v_load(xi), row_load(w, at, slot), acc[i]);
                more[i] = v_fma(v_load(xi + KM_VF), row_load(w, at + KM_VF, slot), more[i]);
            }
        }
        KM_UNROLL
        for (int j = 0; j < sums; j++) acc[j] += more[j];
    }
    for (; p < k; p += KM_VF) {
        int64_t take = row_min(k - p, KM_VF);
        vf xv[SHARE];
        KM_UNROLL
        for (int r = 0; r < share; r++) xv[r] = row_load_n(x, r * ldx + p, take, KM_SLOT_F32);
        KM_UNROLL
        for (int j = 0; j < count; j++) {
            vf wv = row_load_n(w, j * ldw + p, take, slot);
            KM_UNROLL
            for (int r = 0; r < share; r++)
                acc[r * count + j] = v_fma(xv[r], wv, acc[r * count + j]);
        }
    }
    KM_UNROLL
    for (int i = 0; i < sums; i++) y[i / count * ldy + i % count] = v_reduce_add(acc[i]);
}

/* All rows of x against `count` weights. */
KM_INLINE void dots_rows(const void *w, int64_t ldw, const int count, int64_t k, const float *x,
                         int64_t ldx, int64_t rows, float *y, int64_t ldy, int slot) {
    for (int64_t r = 0; r < rows; r += SHARE) {
        const float *xr = x + r * ldx;
        float *yr = y + r * ldy;
        switch (row_min(rows - r, SHARE)) {
#if SHARE == 4
        case 4: dots_block(w, ldw, count, k, xr, ldx, 4, yr, ldy, slot); break;
        case 3: dots_block(w, ldw, count, k, xr, ldx, 3, yr, ldy, slot); break;
#endif
        case 2: dots_block(w, ldw, count, k, xr, ldx, 2, yr, ldy, slot); break;
        default: dots_block(w, ldw, count, k, xr, ldx, 1, yr, ldy, slot); break;
        }
    }
}

KM_INLINE void dots(const void *w, int64_t ldw, int64_t n, int64_t k, const float *x, int64_t ldx,
                    int64_t rows, float *y, int64_t ldy, int slot) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        fetch_rows(w, ldw, j + 8, row_min(4, n - j - 8), k, slot);
        dots_rows(row_at(w, j * ldw, slot), ldw, 4, k, x, ldx, rows, y + j, ldy, slot);
    }
    for (; j < n; j++)
        dots_rows(row_at(w, j * ldw, slot), ldw, 1, k, x, ldx, rows, y + j, ldy, slot);
}

void KM_SIMD(km_gemv_dots)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k,
                           const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: dots(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_F32); break;
    case KM_SLOT_F16: dots(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_F16); break;
    default: dots(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_BF16); break;
    }
}

/* ---- Weights that lie along n: sums of rows ---- */

/* Columns taken together, so that y stays in the nearest cache; and rows of w, so that the second
 * few rows of y find them there too. */
#define STRETCH 1024
#define DEPTH 64

/* `rows` of y (at most SHARE) += `deep` rows of w from p on, times x: y is read and written once
 * for all of them, and each vector of w is read once for all rows of y. */
KM_INLINE void sums_step(const void *w, int64_t ldw, int64_t p, int64_t j, int64_t cols,
                         const int deep, const float *x, int64_t ldx, const int rows, float *y,
                         int64_t ldy, int slot) {
    vf xv[16]; /* xv[r * deep + i], rows * deep <= 16 */
    KM_UNROLL
    for (int i = 0; i < rows * deep; i++) xv[i] = v_set1(x[i / deep * ldx + p + i % deep]);
    for (int64_t c = 0; c < cols; c += KM_VF) {
        int64_t take = row_min(cols - c, KM_VF);
        vf wv[8];
        KM_UNROLL
        for (int i = 0; i < deep; i++) wv[i] = row_load_n(w, (p + i) * ldw + j + c, take, slot);
        KM_UNROLL
        for (int r = 0; r < rows; r++) {
            vf s = row_load_n(y, r * ldy + c, take, KM_SLOT_F32), t = v_zero();
            KM_UNROLL
            for (int i = 0; i < deep; i++) {
                if (i & 1)
                    t = v_fma(xv[r * deep + i], wv[i], t);
                else
                    s = v_fma(xv[r * deep + i], wv[i], s);
            }
            row_store_n(y, r * ldy + c, s + t, take, KM_SLOT_F32);
        }
    }
}

/* Rows p .. end - 1 of w, one stretch of columns, `rows` rows of y. */
KM_INLINE void sums_stretch(const void *w, int64_t ldw, int64_t p, int64_t end, int64_t j,
                            int64_t cols, const float *x, int64_t ldx, const int rows, float *y,
                            int64_t ldy, int slot) {
    const int deep = rows == 1 ? 8 : 4;
    for (; p + deep <= end; p += deep) {
        fetch_rows(row_at(w, j, slot), ldw, p + 2 * deep, row_min(deep, end - p - 2 * deep), cols,
                   slot);
        sums_step(w, ldw, p, j, cols, deep, x, ldx, rows, y, ldy, slot);
    }
    for (; p < end; p++) sums_step(w, ldw, p, j, cols, 1, x, ldx, rows, y, ldy, slot);
}

KM_INLINE void sums(const void *w, int64_t ldw, int64_t n, int64_t k, const float *x, int64_t ldx,
                    int64_t rows, float *y, int64_t ldy, int slot) {
    int64_t depth = rows > SHARE ? DEPTH : k;
    for (int64_t r = 0; r < rows; r++) memset(y + r * ldy, 0, (size_t)n * sizeof *y);
    for (int64_t j = 0; j < n; j += STRETCH) {
        int64_t cols = row_min(n - j, STRETCH);
        for (int64_t p = 0; p < k; p += depth) {
            int64_t end = row_min(k, p + depth);
            for (int64_t r = 0; r < rows; r += SHARE) {
                const float *xr = x + r * ldx;
                float *yr = y + r * ldy + j;
                switch (row_min(rows - r, SHARE)) {
#if SHARE == 4
                case 4: sums_stretch(w, ldw, p, end, j, cols, xr, ldx, 4, yr, ldy, slot); break;
                case 3: sums_stretch(w, ldw, p, end, j, cols, xr, ldx, 3, yr, ldy, slot); break;
#endif
                case 2: sums_stretch(w, ldw, p, end, j, cols, xr, ldx, 2, yr, ldy, slot); break;
                default: sums_stretch(w, ldw, p, end, j, cols, xr, ldx, 1, yr, ldy, slot); break;
                }
            }
        }
    }
}

void KM_SIMD(km_gemv_sums)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k,
                           const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: sums(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_F32); break;
    case KM_SLOT_F16: sums(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_F16); break;
    default: sums(w, ldw, n, k, x, ldx, rows, y, ldy, KM_SLOT_BF16); break;
    }
}
