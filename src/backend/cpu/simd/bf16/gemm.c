/* Products of pairs of bf16 with AVX-512 (vdpbf16ps), for CPUs that have it and no tiles: Zen 4, Cooper
 * Lake, or where tiles are not to be had. The layouts are those of tiles, so that gemm_tiles.c shares the
 * work out for both.
 *
 * Floor for 32 x 32 sums and 32 of k (32,768 multiply-adds): 1,024 products of 32 each, a cycle each on
 * Zen 4, twice the rate of f32. 8 rows meet 2 vectors of columns: 16 products to 10 loads. */
#include "backend/cpu/gemm_tiles.h"
#include "backend/cpu/simd/gemm_simd.h"
#include "backend/cpu/simd/tile_pack.h"

#define ROWS 8

KM_INLINE __m512bh pair_at(const char *p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* ROWS rows of a tile of a, and `cols` tiles of b. */
KM_INLINE void multiply_rows(const km_tile_rows *a, int64_t row, const uint16_t *b, int64_t b_next,
                             const int cols, int64_t depths, bool add, float *c, int64_t ldc) {
    __m512 sum[ROWS][2];
    KM_UNROLL
    for (int i = 0; i < ROWS * cols; i++)
        sum[i / cols][i % cols] =
            add ? _mm512_loadu_ps(c + i / cols * ldc + 16 * (i % cols)) : _mm512_setzero_ps();
    const char *x = a->data + row * a->stride;
    for (int64_t k = 0; k < depths; k++, x += a->next, b += 512)
        for (int p = 0; p < KM_TILE_DEPTH / 2; p++) {
            __m512bh w[2];
            KM_UNROLL
            for (int v = 0; v < cols; v++)
                w[v] = (__m512bh)_mm512_loadu_si512((const char *)(b + 32 * p) + v * b_next);
            KM_UNROLL
            for (int r = 0; r < ROWS; r++) {
                __m512bh pair = pair_at(x + r * a->stride + 4 * p);
                KM_UNROLL
                for (int v = 0; v < cols; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pair, w[v]);
            }
        }
    KM_UNROLL
    for (int i = 0; i < ROWS * cols; i++)
        _mm512_storeu_ps(c + i / cols * ldc + 16 * (i % cols), sum[i / cols][i % cols]);
}

static void multiply(const km_tile_rows *a, int rows, const uint16_t *b, int64_t b_next, int cols,
                     int64_t depths, bool add, float *c, int64_t ldc) {
    for (int t = 0; t < rows; t++)
        for (int r = 0; r < 16; r += ROWS, c += ROWS * ldc)
            if (cols == 2)
                multiply_rows(a + t, r, b, b_next, 2, depths, add, c, ldc);
            else
                multiply_rows(a + t, r, b, b_next, 1, depths, add, c, ldc);
}

static void nothing(void) {}

extern const km_gemm_tiles km_gemm_tiles_avx512bf16;
const km_gemm_tiles km_gemm_tiles_avx512bf16 = {km_pack_tile_b, km_pack_tile_a, multiply, nothing,
                                                nothing};
