/* Many rows of x against weights in blocks, by tiles of bytes (AMX). As in quant_words.c a step of 256
 * elements of either factor is rounded to whole numbers of 16 bits with one scale; here each is two
 * bytes, v = 256 high + low, and of the four products of bytes
 *
 *   x w = 65536 xh wh + 256 (xh wl + xl wh) + xl wl
 *
 * the last is left out: both lows are below 2^-8 of their step's largest, so it changes a product by
 * 5e-5 of its usual size, and rounding by 4e-5. Sums of a step stay below 2^24 in each of the two
 * accumulators; they take their scales once. x are the products' rows and weights their columns: weights
 * are turned as they are unpacked, once for all rows, and sums come out as rows.
 *
 * Floor for a tile of 16 outputs and 16 rows of x over a step, 65,536 multiply-adds: 12 products of
 * 16 cycles, 192; beside them, on other ports, 16 vectors of sums take 5 instructions each. */
#include "backend/cpu/simd/quant_codes.h"
#include "backend/cpu/simd/amx/tile.h"

#define ROWS KM_TILE_ROWS
#define DEPTHS 4 /* tiles of 64 elements to a step */

/* A step of 16 rows of x, in the order of encode_quarter. */
typedef struct quant_x_tile {
    _Alignas(64) int8_t high[DEPTHS][ROWS][64];
    int8_t low[DEPTHS][ROWS][64];
    float scale[ROWS];
} quant_x_tile;

/* A step of KM_QUANT_TILE_OUTS rows of weights, turned: four elements of 16 outputs side by side. */
typedef struct quant_w_panel {
    _Alignas(64) int8_t high[KM_QUANT_TILE_OUTS / 16][DEPTHS][16][16][4];
    int8_t low[KM_QUANT_TILE_OUTS / 16][DEPTHS][16][16][4];
    float scale[KM_QUANT_TILE_OUTS];
} quant_w_panel;

#define X_LARGEST 32600.0f /* so that the high byte of a rounded number fits */

extern const km_quant_tiles km_quant_tiles_amx;

/* ---- x ---- */

/* 64 elements, halves h of groups g to g + 3, as bytes in the order in which packing words of weights to
 * bytes leaves them: eights of groups 0 and 2, then their other eights, then groups 1 and 3. */
KM_INLINE void encode_quarter(const float *x, __m512 by, int8_t *high, int8_t *low) {
    __m512i v[4], byte = _mm512_set1_epi16(255), half = _mm512_set1_epi16(128);
    for (int q = 0; q < 4; q++)
        v[q] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32 * q), by));
    /* By fours, as packing goes: groups 0 and 2, fours 0 to 3; then 1 and 3. */
    __m512i a = _mm512_packs_epi32(v[0], v[2]), b = _mm512_packs_epi32(v[1], v[3]);
    __m512i up_a = _mm512_srai_epi16(_mm512_add_epi16(a, half), 8);
    __m512i up_b = _mm512_srai_epi16(_mm512_add_epi16(b, half), 8);
    __m512i h = _mm512_packs_epi16(up_a, up_b);
    __m512i l = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    /* A lane has a four of groups 0, 2, 1 and 3: the fours' lanes become eights of groups. */
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15);
    _mm512_store_si512(high, _mm512_permutexvar_epi32(order, h));
    _mm512_store_si512(low, _mm512_permutexvar_epi32(order, l));
}

/* A step of one row, r of its tile. Of a short step's last four groups those that are not there are
 * zeros in x. */
KM_INLINE void encode_step(const float *x, const int fours, int r, quant_x_tile *tile) {
    __m512i most = _mm512_setzero_si512(), sign = _mm512_set1_epi32(0x7fffffff);
    for (int i = 0; i < 128 * fours; i += 16)
        most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), sign));
    uint32_t bits = _mm512_reduce_max_epu32(most);
    float top, unit;
    memcpy(&top, &bits, sizeof top);
    unit = top / X_LARGEST;
    if (!(top > 1e-30f)) unit = 0; /* too small to matter */
    if (bits >= 0x7f800000u) unit = __builtin_nanf("");
    __m512 by = _mm512_set1_ps(unit > 0 ? X_LARGEST / top : 0);
    for (int v = 0; v < fours; v++)
        for (int h = 0; h < 2; h++)
            encode_quarter(x + 128 * v + 16 * h, by, tile->high[2 * v + h][r],
                           tile->low[2 * v + h][r]);
    tile->scale[r] = 256 * unit;
}

/* Tiles of 64 elements that hold the first `groups` groups: they come four at a time. */
KM_INLINE int depths_of(int groups) { return (groups + 3) / 4 * 2; }

static void encode_tiles(const float *x, int64_t n, int64_t rows, void *out) {
    quant_x_tile *tile = out;
    for (int64_t i = 0; i < n; i += KM_QUANT_STEP, tile++) {
        int groups = n - i < KM_QUANT_STEP ? (int)(n - i) / 32 : 8;
        if (rows < ROWS) memset(tile, 0, sizeof *tile);
        for (int r = 0; r < rows; r++) {
            const float *at = x + r * n + i;
            float rest[256] = {0};
            if (groups == 8) {
                encode_step(at, 2, r, tile);
                continue;
            }
            memcpy(rest, at, (size_t)groups * 32 * sizeof *at);
            if (groups > 4)
                encode_step(rest, 2, r, tile);
            else
                encode_step(rest, 1, r, tile);
        }
    }
}

/* ---- Weights ---- */

KM_INLINE int code_bits(const km_dtype d) {
    switch (d) {
    case KM_Q2_K: return 2;
    case KM_Q3_K: return 3;
    case KM_Q4_0:
    case KM_Q4_1:
    case KM_Q4_K: return 4;
    case KM_Q5_0:
    case KM_Q5_1:
    case KM_Q5_K:
    case KM_MXFP4: return 5;
    case KM_Q6_K: return 6;
    default: return 8;
    }
}

/* Words of 16 bits twice in each 32, for each of 16 groups. */
KM_INLINE __m512i words_of(__m512 v) {
    __m512i i = _mm512_cvtps_epi32(v);
    return _mm512_or_si512(_mm512_slli_epi32(i, 16),
                           _mm512_and_si512(i, _mm512_set1_epi32(0xffff)));
}

/* 16 codes of group g and of the next as words of 16 bits: code * sw + lw. */
KM_INLINE __m512i scaled(const km_dtype d, __m256i codes, const int g, const int half, __m512i sw,
                         __m512i lw) {
    const int bits = code_bits(d), one = by_halves(d) ? 2 * g + half : g;
    const int two = by_halves(d) ? one + 2 : g + 1;
    __m512i at = _mm512_setr_epi32(one, one, one, one, one, one, one, one, two, two, two, two, two,
                                   two, two, two);
    __m512i w = _mm512_cvtepu8_epi16(codes);
    w = _mm512_sub_epi16(w, _mm512_set1_epi16((short)(1 << (bits - 1))));
    w = _mm512_mulhrs_epi16(_mm512_slli_epi16(w, 16 - bits), _mm512_permutexvar_epi32(at, sw));
    return _mm512_add_epi16(w, _mm512_permutexvar_epi32(at, lw));
}

KM_INLINE __m512i upper(__m512i w) {
    return _mm512_srai_epi16(_mm512_add_epi16(w, _mm512_set1_epi16(128)), 8);
}

/* A step of one row of weights: scale * code + least, rounded to multiples of the unit that makes the
 * largest that may occur `largest`. In 16 bits: with codes around zero, c in [-2^(b-1), 2^(b-1)), and
 * shifted to the top, a rounding multiplication gives c S for an S of 2^(b-1) / 2^15. */
KM_INLINE float encode_weights(const km_dtype d, const uint8_t *b, int valid, int8_t *high,
                               int8_t *low, int64_t apart) {
    const int bits = code_bits(d), half = 1 << (bits - 1), codes = 1 << bits;
    const float largest = 32000.0f * (float)(codes - 1) / (float)codes; /* S stays below 2^15 */
    q16 scale, least;
    step_scales(d, b, valid, &scale, &least);
    __mmask16 used = by_halves(d) ? 0xffff : 0xff;
    __m512 s = _mm512_maskz_mov_ps(used, (__m512)scale.v[0]);
    __m512 l = _mm512_maskz_mov_ps(used, (__m512)least.v[0]);
    __m512 far = _mm512_fmadd_ps(s, _mm512_set1_ps((float)(codes - 1)), l);
    float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(l), _mm512_abs_ps(far)));
    bool odd =
        _mm512_cmp_ps_mask(_mm512_sub_ps(far, far), _mm512_setzero_ps(), _CMP_EQ_OQ) != 0xffff;
    float by = top > 1e-30f ? largest / top : 0;
    __m512 middle = _mm512_fmadd_ps(s, _mm512_set1_ps((float)half), l); /* of codes */
    __m512i sw = words_of(_mm512_mul_ps(s, _mm512_set1_ps(by * (float)half)));
    __m512i lw = words_of(_mm512_mul_ps(middle, _mm512_set1_ps(by)));
    KM_UNROLL
    for (int v = 0; v < DEPTHS / 2; v++) {
        vb c[2];
        if (v > 0 && valid <= 4) break;
        step_codes(d, b, v, c);
        KM_UNROLL
        for (int h = 0; h < 2; h++) { /* halves of groups 4 v to 4 v + 3 */
            const int k = 2 * v + h;
            __m512i all = (__m512i)c[h], low_byte = _mm512_set1_epi16(255);
            __m512i a = scaled(d, _mm512_castsi512_si256(all), 4 * v, h, sw, lw);
            __m512i z = scaled(d, _mm512_extracti64x4_epi64(all, 1), 4 * v + 2, h, sw, lw);
            _mm512_store_si512(low + k * apart, _mm512_packus_epi16(_mm512_and_si512(a, low_byte),
                                                                    _mm512_and_si512(z, low_byte)));
            _mm512_store_si512(high + k * apart, _mm512_packs_epi16(upper(a), upper(z)));
        }
    }
    return odd ? __builtin_nanf("") : top > 1e-30f ? top / largest : 0;
}

/* 16 outputs of a step, (output, element), to tiles. */
KM_INLINE void turn_plane(int8_t codes[16][256], int depths, int8_t out[DEPTHS][16][16][4]) {
    for (int k = 0; k < depths; k++) {
        __m512i v[16];
        KM_UNROLL
        for (int o = 0; o < 16; o++) v[o] = _mm512_load_si512(codes[o] + 64 * k);
        km_transpose16(v);
        KM_UNROLL
        for (int o = 0; o < 16; o++) _mm512_store_si512(out[k][o], v[o]);
    }
}

KM_INLINE void unpack_of(const km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, quant_w_panel *panel) {
    _Alignas(64) int8_t high[16][256], low[16][256];
    uint8_t room[8 * 34];
    int groups = n < KM_QUANT_STEP ? (int)n / 32 : 8;
    for (int from = first, last; from < first + outs; from = last) {
        last = from + 16 < first + outs ? from + 16 : first + outs;
        for (int o = from; o < last; o++, w += bytes) {
            const uint8_t *b = w;
            KM_UNROLL
            for (int i = 0; i < step_bytes(d); i += 64) KM_FETCH(w + step_bytes(d) + i);
            if (groups < 8) { /* the blocks behind it would be read, too */
                memset(room, 0, sizeof room);
                memcpy(room, b, (size_t)(groups * (step_bytes(d) / 8)));
                b = room;
            }
            panel->scale[o] = encode_weights(d, b, groups, high[o - from], low[o - from], 64);
        }
        for (int o = last - from; o < 16; o++) memset(high[o], 0, 256), memset(low[o], 0, 256);
        turn_plane(high, depths_of(groups), panel->high[from / 16]);
        turn_plane(low, depths_of(groups), panel->low[from / 16]);
    }
}

#define OF_TYPE(d, name)                                                                           \
    static void unpack_##name(const uint8_t *w, int64_t bytes, int64_t n, int first, int outs,     \
                              quant_w_panel *panel) {                                              \
        unpack_of(d, w, bytes, n, first, outs, panel);                                             \
    }
KM_QUANT_TYPES(OF_TYPE)

static void unpack_tiles(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, void *panel) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: unpack_##name(w, bytes, n, first, outs, panel); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}

/* ---- Products ---- */

/* Sums of a step that have not had their scales yet, of 16 outputs each: (row, output). */
typedef struct tile_sums {
    _Alignas(64) int32_t high[2][16][16], cross[2][16][16];
} tile_sums;

/* What waits for its scales: sums of 16 rows, which go to y (16, 32), added to what it holds or, add 0,
 * to zeros. */
typedef struct tile_waits {
    const tile_sums *sums; /* NULL: nothing does */
    const float *sx;
    __m512 sw[2];
    __mmask16 add;
    float *y;
} tile_waits;

/* Rows `from` on take their scales, of x and w. */
KM_INLINE void scale_rows(const tile_waits *b, const int from, const int n) {
    KM_UNROLL
    for (int r = from; r < from + n; r++) {
        __m512 sx = _mm512_set1_ps(b->sx[r]);
        KM_UNROLL
        for (int h = 0; h < 2; h++) {
            __m512i sum = _mm512_slli_epi32(_mm512_load_si512(b->sums->high[h][r]), 8);
            sum = _mm512_add_epi32(sum, _mm512_load_si512(b->sums->cross[h][r]));
            float *y = b->y + 32 * r + 16 * h;
            __m512 before = _mm512_maskz_load_ps(b->add, y);
            __m512 by = _mm512_mul_ps(b->sw[h], sx);
            _mm512_store_ps(y, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, before));
        }
    }
}

/* 16 rows of x and 32 outputs, two tiles of them, over a step. Meanwhile the sums before take their
 * scales, on other ports. */
KM_INLINE void tile_pair(const quant_w_panel *w, const quant_x_tile *x, const int depths,
                         tile_sums *now, const tile_waits *before) {
    enum { OTHER = sizeof w->high[0], W_LOW = sizeof w->high, X_LOW = sizeof x->high };
    const char *xat = (const char *)x, *wat = (const char *)w;
    KM_TILE_ZERO(0);
    KM_TILE_ZERO(1);
    KM_TILE_ZERO(2);
    KM_TILE_ZERO(3);
    KM_UNROLL
    for (int k = 0; k < depths; k++) {
        const int each = 8 / depths;
        KM_TILE_LOAD(4, xat + 1024 * k, 64);
        KM_TILE_LOAD(6, wat + 1024 * k, 64);
        KM_TILE_DOT(0, 4, 6);
        KM_TILE_LOAD(5, xat + X_LOW + 1024 * k, 64);
        KM_TILE_DOT(1, 5, 6);
        if (before->sums) scale_rows(before, 2 * k * each, each);
        KM_TILE_LOAD(7, wat + OTHER + 1024 * k, 64);
        KM_TILE_DOT(2, 4, 7);
        KM_TILE_DOT(3, 5, 7);
        KM_TILE_LOAD(6, wat + W_LOW + 1024 * k, 64);
        KM_TILE_DOT(1, 4, 6);
        if (before->sums) scale_rows(before, (2 * k + 1) * each, each);
        KM_TILE_LOAD(7, wat + W_LOW + OTHER + 1024 * k, 64);
        KM_TILE_DOT(3, 4, 7);
    }
    KM_TILE_STORE(0, now->high[0], 64);
    KM_TILE_STORE(1, now->cross[0], 64);
    KM_TILE_STORE(2, now->high[1], 64);
    KM_TILE_STORE(3, now->cross[1], 64);
    KM_TILE_FENCE();
}

KM_INLINE void multiply_of(const quant_w_panel *w, const quant_x_tile *x, int64_t ldx,
                           int64_t tiles, const int depths, __mmask16 add, float *y) {
    tile_sums sums[2];
    const tile_waits none = {.sums = NULL};
    tile_waits b = {.add = add};
    b.sw[0] = _mm512_loadu_ps(w->scale);
    b.sw[1] = _mm512_loadu_ps(w->scale + 16);
    for (int64_t t = 0; t < tiles; t++, x += ldx, y += ROWS * 32) {
        if (t)
            tile_pair(w, x, depths, &sums[t % 2], &b);
        else
            tile_pair(w, x, depths, &sums[0], &none);
        b.sums = &sums[t % 2];
        b.sx = x->scale;
        b.y = y;
    }
    scale_rows(&b, 0, 8);
    scale_rows(&b, 8, 8);
}

static void multiply_tiles(const void *panel, const void *x, int64_t ldx, int64_t tiles, int64_t n,
                           bool add, float *y) {
    __mmask16 all = add ? 0xffff : 0;
    km_tiles_begin();
    if (n > KM_QUANT_STEP / 2)
        multiply_of(panel, x, ldx, tiles, 4, all, y);
    else
        multiply_of(panel, x, ldx, tiles, 2, all, y);
    km_tiles_end();
}

/* Sums as they lie, rows side by side, to rows ldo apart. */
static void spread_rows(const float *y, int64_t rows, float *out, int64_t ldo) {
    for (int64_t r = 0; r < rows; r++, y += 32, out += ldo) {
        _mm512_storeu_ps(out, _mm512_load_ps(y));
        _mm512_storeu_ps(out + 16, _mm512_load_ps(y + 16));
    }
}

/* The set: what is not tiles' work is AVX-512's with VNNI, chosen when the processor is known. */
const km_quant_tiles km_quant_tiles_amx = {
    .x_bytes = sizeof(quant_x_tile),
    .panel_bytes = sizeof(quant_w_panel),
    .encode = encode_tiles,
    .unpack = unpack_tiles,
    .multiply = multiply_tiles,
    .turn = spread_rows,
};
