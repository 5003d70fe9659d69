/* Products with few rows, where each weight is used once or a few times and reading it is the
 * work: weights are read once, in order, converted in registers, and never written back. */
#include "backend/cpu/simd/gemm_simd.h"

/* Rows of x that share one reading of the weights. */
#ifdef KM_AVX512
#define SHARE 4
#else
#define SHARE 2
#endif

/* ---- Weights that lie along k: dot products ---- */

/* y for `count` weights (at most 4) and `share` rows of x. Two sums each when there is but one
 * row, so that an addition need not wait for the last. */
KM_INLINE void dots_block(const void *w, int64_t ldw, const int count, int64_t k, const float *x,
                          int64_t ldx, const int share, float *y, int64_t ldy, int slot) {
    vf acc[SHARE][4], more[4];
    KM_UNROLL
    for (int j = 0; j < count; j++) {
        more[j] = v_zero();
        KM_UNROLL
        for (int r = 0; r < share; r++) acc[r][j] = v_zero();
    }
    int64_t p = 0;
    if (share == 1) {
        for (; p + 2 * KM_VF <= k; p += 2 * KM_VF) {
            vf x0 = v_load(x + p), x1 = v_load(x + p + KM_VF);
            KM_UNROLL
            for (int j = 0; j < count; j++) {
                acc[0][j] = v_fma(x0, row_load(w, j * ldw + p, slot), acc[0][j]);
                more[j] = v_fma(x1, row_load(w, j * ldw + p + KM_VF, slot), more[j]);
            }
        }
    }
    for (; p < k; p += KM_VF) {
        int64_t take = row_min(k - p, KM_VF);
        vf xv[SHARE];
        KM_UNROLL
        for (int r = 0; r < share; r++)
            xv[r] = take == KM_VF ? v_load(x + r * ldx + p) : v_load_n(x + r * ldx + p, take);
        KM_UNROLL
        for (int j = 0; j < count; j++) {
            vf wv = row_load_n(w, j * ldw + p, take, slot);
            KM_UNROLL
            for (int r = 0; r < share; r++) acc[r][j] = v_fma(xv[r], wv, acc[r][j]);
        }
    }
    KM_UNROLL
    for (int r = 0; r < share; r++) {
        KM_UNROLL
        for (int j = 0; j < count; j++) {
            vf sum = share == 1 ? acc[r][j] + more[j] : acc[r][j];
            y[r * ldy + j] = v_reduce_add(sum);
        }
    }
}

KM_INLINE void dots(const void *w, int64_t ldw, int64_t n, int64_t k, const float *x, int64_t ldx,
                    int64_t rows, float *y, int64_t ldy, int slot) {
    for (int64_t j = 0; j < n; j += 4) {
        const void *wj = row_at(w, j * ldw, slot);
        for (int64_t r = 0; r < rows;) {
            const float *xr = x + r * ldx;
            float *yr = y + r * ldy + j;
            bool whole = n - j >= 4, many = rows - r >= SHARE;
            if (whole && many) {
                dots_block(wj, ldw, 4, k, xr, ldx, SHARE, yr, ldy, slot);
            } else if (whole) {
                dots_block(wj, ldw, 4, k, xr, ldx, 1, yr, ldy, slot);
            } else {
                for (int64_t i = 0; i < n - j; i++) {
                    const void *wi = row_at(wj, i * ldw, slot);
                    if (many) dots_block(wi, ldw, 1, k, xr, ldx, SHARE, yr + i, ldy, slot);
                    else dots_block(wi, ldw, 1, k, xr, ldx, 1, yr + i, ldy, slot);
                }
            }
            r += many ? SHARE : 1;
        }
    }
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

/* Rows of w taken together, so that y is read and written once for all of them. */
#define TOGETHER 8
/* Columns taken together: y stays in the first-level cache. */
#define STRETCH 2048

KM_INLINE void sums_step(const void *w, int64_t ldw, int64_t p, int64_t j, int64_t cols,
                         const int together, const float *x, float *y, int slot) {
    vf xv[TOGETHER];
    KM_UNROLL
    for (int i = 0; i < together; i++) xv[i] = v_set1(x[p + i]);
    int64_t c = 0;
    for (; c + KM_VF <= cols; c += KM_VF) {
        vf s = v_load(y + c), t = v_zero();
        KM_UNROLL
        for (int i = 0; i < together; i++) {
            vf wv = row_load(w, (p + i) * ldw + j + c, slot);
            if (i & 1) t = v_fma(xv[i], wv, t);
            else s = v_fma(xv[i], wv, s);
        }
        v_store(y + c, s + t);
    }
    if (c < cols) {
        vf s = v_load_n(y + c, cols - c), t = v_zero();
        for (int i = 0; i < together; i++) {
            vf wv = row_load_n(w, (p + i) * ldw + j + c, cols - c, slot);
            if (i & 1) t = v_fma(xv[i], wv, t);
            else s = v_fma(xv[i], wv, s);
        }
        v_store_n(y + c, s + t, cols - c);
    }
}

KM_INLINE void sums(const void *w, int64_t ldw, int64_t n, int64_t k, const float *x, int64_t ldx,
                    int64_t rows, float *y, int64_t ldy, int slot) {
    for (int64_t r = 0; r < rows; r++) memset(y + r * ldy, 0, (size_t)n * sizeof *y);
    for (int64_t j = 0; j < n; j += STRETCH) {
        int64_t cols = row_min(n - j, STRETCH), p = 0;
        for (; p + TOGETHER <= k; p += TOGETHER)
            for (int64_t r = 0; r < rows; r++)
                sums_step(w, ldw, p, j, cols, TOGETHER, x + r * ldx, y + r * ldy + j, slot);
        for (; p < k; p++)
            for (int64_t r = 0; r < rows; r++)
                sums_step(w, ldw, p, j, cols, 1, x + r * ldx, y + r * ldy + j, slot);
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
