/* The tile kernel: a block of rows by vectors of c held in registers over the whole of k. Every
 * smaller block has a kernel of its own, so edges cost what they hold and no more.
 *
 * A tile keeps the multiply-adders busy: 24 (AVX-512) or 12 (AVX2) independent chains, for each
 * step of k one load per vector of b and one broadcast per row of a. */
#include "backend/cpu/simd/gemm_simd.h"

/* What a tile fetches for those after it: a little at each step of k. */
typedef struct ahead {
    const char *from;
    int64_t step;
} ahead;

typedef void tile_fn(int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                     int64_t ldb, const float *bias, float *c, int64_t ldc, float alpha, float beta,
                     ahead next);

KM_INLINE void tile(const int rows, const int vecs, int64_t k, const float *a, int64_t a_row,
                    int64_t a_col, const float *b, int64_t ldb, const float *bias, float *c,
                    int64_t ldc, float alpha, float beta, ahead next) {
    vf acc[KM_MR][KM_NV];
    const float *row[KM_MR];
    KM_UNROLL
    for (int i = 0; i < rows; i++) {
        row[i] = a + i * a_row;
        KM_UNROLL
        for (int j = 0; j < vecs; j++) {
            __builtin_prefetch(c + i * ldc + j * KM_VF, 1); /* far away; wanted in the end */
            acc[i][j] = v_zero();
        }
    }
    for (int64_t p = 0, at = 0; p < k; p++, at += a_col, b += ldb) {
        vf bv[KM_NV];
        __builtin_prefetch(next.from, 0, 2);
        next.from += next.step;
        KM_UNROLL
        for (int j = 0; j < vecs; j++) bv[j] = v_load(b + j * KM_VF);
        KM_UNROLL
        for (int i = 0; i < rows; i++) {
            vf av = v_set1(row[i][at]);
            KM_UNROLL
            for (int j = 0; j < vecs; j++) acc[i][j] = v_fma(av, bv[j], acc[i][j]);
        }
    }
    KM_UNROLL
    for (int i = 0; i < rows; i++) {
        KM_UNROLL
        for (int j = 0; j < vecs; j++) {
            float *at = c + i * ldc + j * KM_VF;
            vf v = acc[i][j] * v_set1(alpha);
            if (beta != 0) v = v_fma(v_set1(beta), v_load(at), v);
            if (bias) v += v_load(bias + j * KM_VF);
            v_store(at, v);
        }
    }
}

#define TILE(ROWS, VECS)                                                                           \
    static void tile_##ROWS##_##VECS(int64_t k, const float *a, int64_t a_row, int64_t a_col,      \
                                     const float *b, int64_t ldb, const float *bias, float *c,     \
                                     int64_t ldc, float alpha, float beta, ahead next) {           \
        tile(ROWS, VECS, k, a, a_row, a_col, b, ldb, bias, c, ldc, alpha, beta, next);             \
    }
#if KM_NV == 4
#define TILES(ROWS) TILE(ROWS, 1) TILE(ROWS, 2) TILE(ROWS, 3) TILE(ROWS, 4)
#define NAMES(ROWS)                                                                                \
    { tile_##ROWS##_1, tile_##ROWS##_2, tile_##ROWS##_3, tile_##ROWS##_4 }
#else
#define TILES(ROWS) TILE(ROWS, 1) TILE(ROWS, 2)
#define NAMES(ROWS)                                                                                \
    { tile_##ROWS##_1, tile_##ROWS##_2 }
#endif

TILES(1)
TILES(2)
TILES(3)
TILES(4)
#if KM_MR >= 6
TILES(5)
TILES(6)
#endif
#if KM_MR >= 8
TILES(7)
TILES(8)
#endif

static tile_fn *const tiles[KM_MR][KM_NV] = {
    NAMES(1), NAMES(2), NAMES(3), NAMES(4),
#if KM_MR >= 6
    NAMES(5), NAMES(6),
#endif
#if KM_MR >= 8
    NAMES(7), NAMES(8),
#endif
};

/* ---- Tall tiles: few columns leave registers for twice the rows ---- */

#define TALL (2 * KM_MR)
#define TALL_NV (KM_NV / 2)

/* As tile. Every third row has a pointer of its own, the two after it are reached by their distance:
 * pointers to all of them would not fit the registers. */
KM_INLINE void tall_tile(const int rows, const int vecs, int64_t k, const float *a, int64_t a_row,
                         int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc,
                         float alpha, float beta) {
    vf acc[TALL][TALL_NV];
    const float *third[(TALL + 2) / 3];
    KM_UNROLL
    for (int i = 0; i < rows; i++) {
        if (i % 3 == 0) third[i / 3] = a + i * a_row;
        KM_UNROLL
        for (int j = 0; j < vecs; j++) acc[i][j] = v_zero();
    }
    for (int64_t p = 0; p < k; p++, b += ldb) {
        vf bv[TALL_NV];
        KM_UNROLL
        for (int j = 0; j < vecs; j++) bv[j] = v_load(b + j * KM_VF);
        KM_UNROLL
        for (int i = 0; i < rows; i++) {
            vf av = v_set1(third[i / 3][i % 3 * a_row]);
            KM_UNROLL
            for (int j = 0; j < vecs; j++) acc[i][j] = v_fma(av, bv[j], acc[i][j]);
        }
        KM_UNROLL
        for (int i = 0; i < rows; i += 3) third[i / 3] += a_col;
    }
    KM_UNROLL
    for (int i = 0; i < rows; i++) {
        KM_UNROLL
        for (int j = 0; j < vecs; j++) {
            float *at = c + i * ldc + j * KM_VF;
            vf v = acc[i][j] * v_set1(alpha);
            if (beta != 0) v = v_fma(v_set1(beta), v_load(at), v);
            v_store(at, v);
        }
    }
}

typedef void tall_fn(int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                     int64_t ldb, float *c, int64_t ldc, float alpha, float beta);

#define TALL_TILE(ROWS, VECS)                                                                      \
    static void tall_##ROWS##_##VECS(int64_t k, const float *a, int64_t a_row, int64_t a_col,      \
                                     const float *b, int64_t ldb, float *c, int64_t ldc,           \
                                     float alpha, float beta) {                                    \
        tall_tile(ROWS, VECS, k, a, a_row, a_col, b, ldb, c, ldc, alpha, beta);                    \
    }
#if KM_NV == 4
#define TALLS(ROWS) TALL_TILE(ROWS, 1) TALL_TILE(ROWS, 2)
#define TALL_NAMES(ROWS)                                                                           \
    { tall_##ROWS##_1, tall_##ROWS##_2 }
#else
#define TALLS(ROWS) TALL_TILE(ROWS, 1)
#define TALL_NAMES(ROWS)                                                                           \
    { tall_##ROWS##_1 }
#endif

#if KM_MR == 4
TALLS(4)
TALLS(5)
#endif
#if KM_MR <= 6
TALLS(6)
TALLS(7)
#endif
TALLS(8)
#if KM_MR >= 6
TALLS(9)
TALLS(10)
TALLS(11)
TALLS(12)
#endif
#if KM_MR == 8
TALLS(13)
TALLS(14)
TALLS(15)
TALLS(16)
#endif

static tall_fn *const tall_tiles[TALL - KM_MR + 1][TALL_NV] = {
#if KM_MR == 4
    TALL_NAMES(4),  TALL_NAMES(5),
#endif
#if KM_MR <= 6
    TALL_NAMES(6),  TALL_NAMES(7),
#endif
    TALL_NAMES(8),
#if KM_MR >= 6
    TALL_NAMES(9),  TALL_NAMES(10), TALL_NAMES(11), TALL_NAMES(12),
#endif
#if KM_MR == 8
    TALL_NAMES(13), TALL_NAMES(14), TALL_NAMES(15), TALL_NAMES(16),
#endif
};

/* More rows than a tile has, and at most TALL_NV whole vectors of columns: tall tiles of about the
 * same height, which is KM_MR at least. */
static void tall_panel(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                       int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc,
                       float alpha, float beta) {
    int64_t left = (m + TALL - 1) / TALL;
    for (int64_t rows; m > 0; m -= rows, left--, a += rows * a_row, c += rows * ldc) {
        rows = (m + left - 1) / left;
        tall_tiles[rows - KM_MR][n / KM_VF - 1](k, a, a_row, a_col, b, ldb, c, ldc, alpha, beta);
    }
}

/* ---- Panels ---- */

/* A tile whose last vector is not whole: through a buffer. */
static void ragged(int rows, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                   const float *b, int64_t ldb, const float *bias, float *c, int64_t ldc,
                   float alpha, float beta, ahead next) {
    float t[KM_MR * KM_NR];
    int64_t vecs = (n + KM_VF - 1) / KM_VF;
    tiles[rows - 1][vecs - 1](k, a, a_row, a_col, b, ldb, NULL, t, KM_NR, alpha, 0, next);
    for (int i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n; j += KM_VF) {
            int64_t left = n - j < KM_VF ? n - j : KM_VF;
            vf v = v_load(t + i * KM_NR + j);
            if (beta != 0) v = v_fma(v_set1(beta), v_load_n(c + i * ldc + j, left), v);
            if (bias) v += v_load_n(bias + j, left);
            v_store_n(c + i * ldc + j, v, left);
        }
    }
}

/* a_step is how far one tile of a lies from the next. */
static inline void panel(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                         int64_t a_col, int64_t a_step, const float *b, int64_t ldb,
                         const float *next_b, const float *bias, float *c, int64_t ldc, float alpha,
                         float beta) {
    ahead next = {(const char *)b, 0};
    for (int64_t i = 0; i < m; i += KM_MR, a += a_step, c += KM_MR * ldc) {
        int rows = m - i < KM_MR ? (int)(m - i) : KM_MR;
        if (next_b && ldb == KM_NR) { /* each tile a part of the panel */
            next.step = (int64_t)sizeof(float) * KM_NR * KM_MR / (m + KM_MR - 1) + 1;
            next.from = (const char *)next_b + i / KM_MR * next.step * k;
        } else if (next_b) { /* each tile one line of every row */
            next.step = (int64_t)sizeof(float) * ldb;
            next.from = (const char *)(next_b + i / KM_MR % KM_NV * KM_VF);
        } else if (a_col == 1 && a_row == k) { /* the next tile's rows of a, if any */
            next.step = (int64_t)sizeof(float) * KM_MR;
            next.from = (const char *)(a + a_step);
        } else {
            next = (ahead){(const char *)b, 0};
        }
        if (n % KM_VF)
            ragged(rows, n, k, a, a_row, a_col, b, ldb, bias, c, ldc, alpha, beta, next);
        else
            tiles[rows - 1][n / KM_VF - 1](k, a, a_row, a_col, b, ldb, bias, c, ldc, alpha, beta,
                                           next);
    }
}

void KM_SIMD(km_gemm_panel)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                            int64_t a_col, const float *b, int64_t ldb, const float *next_b,
                            float *c, int64_t ldc, float alpha, float beta) {
    if (m > KM_MR && n <= TALL_NV * KM_VF && n % KM_VF == 0)
        tall_panel(m, n, k, a, a_row, a_col, b, ldb, c, ldc, alpha, beta);
    else
        panel(m, n, k, a, a_row, a_col, KM_MR * a_row, b, ldb, next_b, NULL, c, ldc, alpha, beta);
}

static void panel_biased(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                         int64_t a_col, const float *b, int64_t ldb, const float *next_b,
                         const float *bias, float *c, int64_t ldc, float alpha, float beta) {
    panel(m, n, k, a, a_row, a_col, KM_MR * a_row, b, ldb, next_b, bias, c, ldc, alpha, beta);
}

static void panel_laid(int64_t m, int64_t n, int64_t k, const float *a, const float *b, int64_t ldb,
                       const float *next_b, float *c, int64_t ldc, float alpha, float beta) {
    panel(m, n, k, a, 1, KM_LAID, km_laid_step(k), b, ldb, next_b, NULL, c, ldc, alpha, beta);
}

const km_gemm_kernels KM_SIMD(km_gemm_kernels) = {
    .vl = KM_VF,
    .mr = KM_MR,
    .nr = KM_NR,
    .panel = KM_SIMD(km_gemm_panel),
    .panel_biased = panel_biased,
    .panel_laid = panel_laid,
    .pack = KM_SIMD(km_gemm_pack),
    .pack_turned = KM_SIMD(km_gemm_pack_turned),
    .widen = KM_SIMD(km_gemm_widen),
    .lay = KM_SIMD(km_gemm_lay),
    .finish = KM_SIMD(km_gemm_finish),
    .slope = KM_SIMD(km_gemm_slope),
    .dots = KM_SIMD(km_gemv_dots),
    .sums = KM_SIMD(km_gemv_sums),
};
