/* Operands laid out for tiles with AVX-512: rows to columns, and the two layouts of bf16 that products by
 * tiles (amx/) and by pairs (bf16/) share; see gemm_tiles.h. */
#ifndef KM_BACKEND_CPU_SIMD_TILE_PACK_H
#define KM_BACKEND_CPU_SIMD_TILE_PACK_H
#include "backend/cpu/simd/simd.h"

/* 16 vectors of 16 numbers of 32 bits, rows to columns. */
KM_INLINE void km_transpose16(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            r[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + k + 2]);
            r[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + k + 2]);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

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

KM_INLINE void put_tile(uint16_t *dst, const __m512i v[16]) {
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, v[i]);
}

KM_INLINE void km_pack_tile_b(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned,
                              int64_t depth, int64_t cols) {
    __m512i v[16];
    if (turned) {
        take_rows(v, src, ld, depth, cols);
        km_transpose16(v);
    } else {
        take_pairs(v, src, ld, depth, cols);
    }
    put_tile(dst, v);
}

KM_INLINE void km_pack_tile_a(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned,
                              int64_t rows, int64_t depth) {
    __m512i v[16];
    if (turned) {
        take_pairs(v, src, ld, depth, rows);
        km_transpose16(v);
    } else {
        take_rows(v, src, ld, depth, rows);
    }
    put_tile(dst, v);
}

#endif
