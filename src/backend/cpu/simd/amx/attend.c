/* Attention of prompts by tiles of bf16 (AMX). Queries, keys, values and weights are each two numbers
 * of bf16, x = high + low, where low is what cutting off high leaves: 16 bits, and all of an f16 or
 * bf16 cache. Of the four products the one of the lows is left out.
 *
 * Scores are (keys, lanes) as keys times queries, so that a softmax runs down the columns; two rows of
 * weights then make a row of pairs for the product with the values by itself, and only values are
 * turned.
 *
 * Floor for 32 keys and 64 lanes at d 64: 96 products of 16 cycles, 1,536; the softmax between them
 * takes about as long on other ports. */
#include "backend/cpu/attend.h"
#include "backend/cpu/simd/gemm_simd.h"
#include "backend/cpu/simd/amx/tile.h"

#define COLS (KM_NR / 16) /* tiles of lanes */
#define DEPTHS (KM_ATTEND_KEYS / 32)
_Static_assert(COLS % 2 == 0, "lanes come by two tiles");

extern const km_attend_tiles km_attend_tiles_amx;

/* ---- Two numbers of bf16 ---- */

/* Elements of a and of b: their high or low parts as words, not yet put together. */
typedef struct two_parts {
    __m512i a, b;
} two_parts;

KM_INLINE __m512i upper_half(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(-65536)); }

/* The low part, rounded, in the upper half of each word. */
KM_INLINE __m512i low_of(__m512 x) {
    __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(upper_half(_mm512_castps_si512(x))));
    return _mm512_add_epi32(_mm512_castps_si512(rest), _mm512_set1_epi32(0x8000));
}

/* Where x is infinite or no number, high says so alone. */
KM_INLINE __m512i low_of_any(__m512 x) {
    __mmask16 finite = _mm512_cmp_ps_mask(_mm512_sub_ps(x, x), _mm512_setzero_ps(), _CMP_EQ_OQ);
    return _mm512_maskz_mov_epi32(finite, low_of(x));
}

/* Upper halves of a and b side by side: a's in the even places. */
KM_INLINE __m512i pairs_of(two_parts v) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(v.a, 16), v.b);
}

/* Upper halves of a, then of b. */
KM_INLINE __m512i joined(two_parts v) {
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(v.a, odd, v.b);
}

KM_INLINE __m512 load_first(const float *p, int64_t n) {
    return n >= 16  ? _mm512_loadu_ps(p)
           : n <= 0 ? _mm512_setzero_ps()
                    : _mm512_maskz_loadu_ps(first_of16(n), p);
}

KM_INLINE two_parts high_parts(__m512 a, __m512 b) {
    return (two_parts){_mm512_castps_si512(a), _mm512_castps_si512(b)};
}
KM_INLINE two_parts low_parts(__m512 a, __m512 b) {
    return (two_parts){low_of_any(a), low_of_any(b)};
}

/* ---- Operands ---- */

KM_INLINE int64_t padded(int64_t n) { return (n + 31) & ~(int64_t)31; }

/* Keys: rows of dp, zeros behind d and behind the last. */
static void lay_keys(const float *x, int64_t n, int64_t d, uint16_t *out) {
    int64_t dp = padded(d), rows = padded(n);
    uint16_t *low = out + KM_ATTEND_KEYS * dp;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < dp; i += 32) {
            __m512 a = load_first(x + r * d + i, d - i),
                   b = load_first(x + r * d + i + 16, d - i - 16);
            _mm512_storeu_si512(out + r * dp + i, joined(high_parts(a, b)));
            _mm512_storeu_si512(low + r * dp + i, joined(low_parts(a, b)));
        }
    memset(out + n * dp, 0, (size_t)((rows - n) * dp) * sizeof *out);
    memset(low + n * dp, 0, (size_t)((rows - n) * dp) * sizeof *low);
}

/* Queries: tiles of 32 elements and 16 lanes, [d / 32][COLS][16][16][2]. */
static void lay_queries(const float *x, int64_t lanes, int64_t d, uint16_t *out) {
    int64_t depths = padded(d) / 32;
    uint16_t *low = out + depths * COLS * 512;
    for (int64_t k = 0; k < depths; k++)
        for (int64_t c = 0; c < COLS; c++) {
            __m512i h[16], l[16];
            for (int64_t i = 0; i < 16; i++) {
                const float *at = x + (16 * c + i) * d + 32 * k;
                int64_t left = 16 * c + i < lanes ? d - 32 * k : 0;
                __m512 a = load_first(at, left), b = load_first(at + 16, left - 16);
                h[i] = joined(high_parts(a, b));
                l[i] = joined(low_parts(a, b));
            }
            km_transpose16(h);
            km_transpose16(l);
            put_tile(out + (k * COLS + c) * 512, h);
            put_tile(low + (k * COLS + c) * 512, l);
        }
}

/* Values turned: tiles of 16 elements and 32 keys, [dp / 16][DEPTHS][16][32]. */
static void lay_values(const float *x, int64_t n, int64_t d, uint16_t *out) {
    int64_t dp = padded(d);
    uint16_t *low = out + dp * KM_ATTEND_KEYS;
    for (int64_t k = 0; k < padded(n) / 32; k++)
        for (int64_t i = 0; i < dp; i += 16) {
            __m512i h[16], l[16];
            for (int64_t r = 0; r < 16; r++) {
                int64_t key = 32 * k + 2 * r;
                const float *at = x + key * d + i;
                __m512 a = load_first(at, key < n ? d - i : 0);
                __m512 b = load_first(at + d, key + 1 < n ? d - i : 0);
                h[r] = pairs_of(high_parts(a, b));
                l[r] = pairs_of(low_parts(a, b));
            }
            km_transpose16(h);
            km_transpose16(l);
            put_tile(out + (i / 16 * DEPTHS + k) * 512, h);
            put_tile(low + (i / 16 * DEPTHS + k) * 512, l);
        }
}

/* Weights s (n, KM_NR), at most 1: tiles of 32 keys and 16 lanes, [n / 32][COLS][16][16][2]. */
static void lay_weights(const float *s, int64_t n, int64_t cols, uint16_t *out) {
    uint16_t *low = out + padded(n) * KM_NR;
    for (int64_t r = 0; r < padded(n); r += 2)
        for (int64_t c = 0; c < cols; c++) {
            const float *at = s + r * KM_NR + 16 * c;
            uint16_t *to = out + (r / 32 * COLS + c) * 512 + r % 32 * 16;
            uint16_t *rest = low + (to - out);
            __m512 a = r < n ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
            __m512 b = r + 1 < n ? _mm512_loadu_ps(at + KM_NR) : _mm512_setzero_ps();
            _mm512_storeu_si512(to, pairs_of(high_parts(a, b)));
            _mm512_storeu_si512(rest, pairs_of((two_parts){low_of(a), low_of(b)}));
        }
}

/* ---- Products ---- */

/* Two tiles of rows of a, `stride` bytes from row to row, `next` from depth to depth and `low` to the low
 * parts; likewise two of columns of b. */
typedef struct factor {
    const char *one, *two;
    int64_t stride, next, low;
} factor;

/* c (32, 32) (+)= a b. exact: a has no low parts. */
KM_INLINE void multiply_block(factor a, factor b, int64_t depths, const bool exact, const bool add,
                              float *c) {
    KM_TILE_FENCE();
    if (add) {
        KM_TILE_LOAD(0, c, 4 * KM_NR);
        KM_TILE_LOAD(1, c + 16, 4 * KM_NR);
        KM_TILE_LOAD(2, c + 16 * KM_NR, 4 * KM_NR);
        KM_TILE_LOAD(3, c + 16 * KM_NR + 16, 4 * KM_NR);
    } else {
        KM_TILE_ZERO(0);
        KM_TILE_ZERO(1);
        KM_TILE_ZERO(2);
        KM_TILE_ZERO(3);
    }
    for (int64_t k = 0; k < depths; k++) {
        KM_TILE_LOAD(4, a.one, a.stride);
        KM_TILE_LOAD(6, b.one, 64);
        KM_TILE_DOT_BF16(0, 4, 6);
        KM_TILE_LOAD(7, b.two, 64);
        KM_TILE_DOT_BF16(1, 4, 7);
        KM_TILE_LOAD(5, a.two, a.stride);
        KM_TILE_DOT_BF16(2, 5, 6);
        KM_TILE_DOT_BF16(3, 5, 7);
        if (!exact) {
            KM_TILE_LOAD(4, a.one + a.low, a.stride);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_DOT_BF16(1, 4, 7);
            KM_TILE_LOAD(5, a.two + a.low, a.stride);
            KM_TILE_DOT_BF16(2, 5, 6);
            KM_TILE_DOT_BF16(3, 5, 7);
            KM_TILE_LOAD(4, a.one, a.stride);
            KM_TILE_LOAD(5, a.two, a.stride);
        }
        KM_TILE_LOAD(6, b.one + b.low, 64);
        KM_TILE_DOT_BF16(0, 4, 6);
        KM_TILE_DOT_BF16(2, 5, 6);
        KM_TILE_LOAD(7, b.two + b.low, 64);
        KM_TILE_DOT_BF16(1, 4, 7);
        KM_TILE_DOT_BF16(3, 5, 7);
        a.one += a.next;
        a.two += a.next;
        b.one += b.next;
        b.two += b.next;
    }
    KM_TILE_STORE(0, c, 4 * KM_NR);
    KM_TILE_STORE(1, c + 16, 4 * KM_NR);
    KM_TILE_STORE(2, c + 16 * KM_NR, 4 * KM_NR);
    KM_TILE_STORE(3, c + 16 * KM_NR + 16, 4 * KM_NR);
    KM_TILE_FENCE();
}

/* c (rows, KM_NR), the first `cols` tiles of columns and up to one more. The rows of a's tiles lie
 * `across` bytes apart by two tiles. */
KM_INLINE void multiply_all(factor a, int64_t across, int64_t rows, const uint16_t *b, int64_t low,
                            int64_t cols, int64_t depths, bool exact, const bool add, float *c) {
    for (int64_t r = 0; r < rows; r += 32)
        for (int64_t i = 0; i < cols; i += 2) {
            const char *at = (const char *)(b + i * 512);
            factor x = a, y = {at, at + 1024, 64, COLS * 1024, low};
            x.one += r / 32 * across;
            x.two += r / 32 * across;
            if (exact)
                multiply_block(x, y, depths, true, add, c + r * KM_NR + 16 * i);
            else
                multiply_block(x, y, depths, false, add, c + r * KM_NR + 16 * i);
        }
}

static void tile_scores(const uint16_t *keys, int64_t n, const uint16_t *q, int64_t d,
                        int64_t lanes, bool exact, float *s) {
    int64_t dp = padded(d), rows = padded(n);
    const char *k = (const char *)keys;
    factor a = {k, k + 32 * dp, 2 * dp, 64, 2 * KM_ATTEND_KEYS * dp};
    km_tiles_begin();
    multiply_all(a, 64 * dp, rows, q, 2 * dp * KM_NR, (lanes + 15) / 16, dp / 32, exact, false, s);
    km_tiles_end();
}

static void tile_values(const uint16_t *values, int64_t n, int64_t d, const float *s, int64_t lanes,
                        bool exact, uint16_t *room, float *acc) {
    int64_t dp = padded(d), depths = padded(n) / 32, cols = (lanes + 15) / 16;
    const char *v = (const char *)values;
    factor a = {v, v + DEPTHS * 1024, 64, 1024, 2 * KM_ATTEND_KEYS * dp};
    lay_weights(s, n, (cols + 1) & ~(int64_t)1, room);
    km_tiles_begin();
    multiply_all(a, DEPTHS * 2048, dp, room, 64 * depths * KM_NR, cols, depths, exact, true, acc);
    km_tiles_end();
}

const km_attend_tiles km_attend_tiles_amx = {
    .lay_queries = lay_queries,
    .lay_keys = lay_keys,
    .lay_values = lay_values,
    .scores = tile_scores,
    .values = tile_values,
};
