/* Tiles of bf16: laying operands out, and a block of 32 x 32 sums.
 *
 * Floor for 32 x 32 sums and 32 of k (32,768 multiply-adds): four products of 16 cycles, 64, to four
 * loads of tiles, 8 each from the nearest cache. */
#include "backend/cpu/gemm_tiles.h"
#include "backend/cpu/simd/amx/tile.h"

/* Pairs of rows p and p + 1 of 16 columns, one below the other's upper half: a row of a tile of b. */
KM_INLINE __m512i pair_rows(const uint16_t *p, const uint16_t *q, __mmask16 cols) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(cols, p));
    __m512i high =
        q ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(cols, q)) : _mm512_setzero_si512();
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

KM_INLINE __mmask16 first_of16(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

/* Of a matrix whose rows go along k, a tile's 16 columns: [k / 2][column][2]. */
KM_INLINE void take_pairs(__m512i v[16], const uint16_t *src, int64_t ld, int64_t depth,
                          int64_t cols) {
    for (int i = 0; i < 16; i++) {
        const uint16_t *p = src + 2 * i * ld;
        v[i] = 2 * i < depth ? pair_rows(p, 2 * i + 1 < depth ? p + ld : NULL, first_of16(cols))
                             : _mm512_setzero_si512();
    }
}

/* Of a matrix whose columns go along k, 16 of them, 32 elements each. */
KM_INLINE void take_rows(__m512i v[16], const uint16_t *src, int64_t ld, int64_t depth,
                         int64_t rows) {
    __mmask32 all = depth >= 32 ? 0xffffffffu : (1u << depth) - 1;
    for (int i = 0; i < 16; i++)
        v[i] = i < rows ? _mm512_maskz_loadu_epi16(all, src + i * ld) : _mm512_setzero_si512();
}

static void put_tile(uint16_t *dst, const __m512i v[16]) {
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, v[i]);
}

static void pack_b(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned, int64_t depth,
                   int64_t cols) {
    __m512i v[16];
    if (turned) {
        take_rows(v, src, ld, depth, cols);
        km_transpose16(v);
    } else {
        take_pairs(v, src, ld, depth, cols);
    }
    put_tile(dst, v);
}

static void pack_a(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned, int64_t rows,
                   int64_t depth) {
    __m512i v[16];
    if (turned) {
        take_pairs(v, src, ld, depth, rows);
        km_transpose16(v);
    } else {
        take_rows(v, src, ld, depth, rows);
    }
    put_tile(dst, v);
}

/* Sums begin at what c holds, or at zero. */
#define OPEN(t, add, c, ldc)                                                                       \
    do {                                                                                           \
        if (add)                                                                                   \
            KM_TILE_LOAD(t, c, (ldc)*4);                                                           \
        else                                                                                       \
            KM_TILE_ZERO(t);                                                                       \
    } while (0)

static void multiply(const km_tile_rows *a, int rows, const uint16_t *b, int64_t b_next, int cols,
                     int64_t depths, bool add, float *c, int64_t ldc) {
    const char *a0 = a[0].data, *a1 = a[rows - 1].data, *b0 = (const char *)b, *b1 = b0 + b_next;
    int64_t s0 = a[0].stride, s1 = a[rows - 1].stride, n0 = a[0].next, n1 = a[rows - 1].next;
    KM_TILE_FENCE();
    OPEN(0, add, c, ldc);
    if (rows == 2 && cols == 2) {
        OPEN(1, add, c + 16, ldc);
        OPEN(2, add, c + 16 * ldc, ldc);
        OPEN(3, add, c + 16 * ldc + 16, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, a1 += n1, b0 += 1024, b1 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(7, b1, 64);
            KM_TILE_DOT_BF16(1, 4, 7);
            KM_TILE_LOAD(5, a1, s1);
            KM_TILE_DOT_BF16(2, 5, 6);
            KM_TILE_DOT_BF16(3, 5, 7);
        }
        KM_TILE_STORE(1, c + 16, ldc * 4);
        KM_TILE_STORE(2, c + 16 * ldc, ldc * 4);
        KM_TILE_STORE(3, c + 16 * ldc + 16, ldc * 4);
    } else if (cols == 2) {
        OPEN(1, add, c + 16, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, b0 += 1024, b1 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(7, b1, 64);
            KM_TILE_DOT_BF16(1, 4, 7);
        }
        KM_TILE_STORE(1, c + 16, ldc * 4);
    } else if (rows == 2) {
        OPEN(2, add, c + 16 * ldc, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, a1 += n1, b0 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(5, a1, s1);
            KM_TILE_DOT_BF16(2, 5, 6);
        }
        KM_TILE_STORE(2, c + 16 * ldc, ldc * 4);
    } else {
        for (int64_t k = 0; k < depths; k++, a0 += n0, b0 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
        }
    }
    KM_TILE_STORE(0, c, ldc * 4);
    KM_TILE_FENCE();
}

static void begin(void) { km_tiles_begin(); }
static void end(void) { km_tiles_end(); }

extern const km_gemm_tiles km_gemm_tiles_amx;
const km_gemm_tiles km_gemm_tiles_amx = {pack_b, pack_a, multiply, begin, end};
