/* Many rows of x against weights in blocks, by tiles of bytes (AMX). As in quant_words.c a step of 256
 * elements of either factor is rounded to whole numbers of 16 bits with one scale; here each is two
 * bytes, v = 256 high + low, and of the four products of bytes
 *
 *   x w = 65536 xh wh + 256 (xh wl + xl wh) + xl wl
 *
 * the last is left out: both lows are below 2^-8 of their step's largest, so it changes a product by
 * 5e-5 of its usual size, and rounding by 4e-5. Sums of a step stay below 2^24 in each of the two
 * accumulators; they take their scales once. Weights are the products' rows and x their columns, so
 * what comes out of a block's bytes needs no turning; the sums are turned once, at the end.
 *
 * Floor for a tile of 16 outputs and 16 rows of x over a step, 65,536 multiply-adds: 12 products of
 * 16 cycles, 192; beside them, on other ports, 16 vectors of sums take 5 instructions each. */
#include "backend/cpu/simd/quant_codes.h"
#include "backend/cpu/simd/amx/tile.h"

#define ROWS KM_TILE_ROWS
#define DEPTHS 4 /* tiles of 64 elements to a step */

/* A step of 16 rows of x, turned: four elements of each row side by side. Elements lie as
 * place_of says. */
typedef struct quant_x_tile {
    _Alignas(64) int8_t high[DEPTHS][16][ROWS][4];
    int8_t low[DEPTHS][16][ROWS][4];
    float scale[ROWS];
} quant_x_tile;

/* A step of KM_QUANT_TILE_OUTS rows of weights. */
typedef struct quant_w_panel {
    _Alignas(64) int8_t high[KM_QUANT_TILE_OUTS / 16][DEPTHS][16][64];
    int8_t low[KM_QUANT_TILE_OUTS / 16][DEPTHS][16][64];
    float scale[KM_QUANT_TILE_OUTS];
} quant_w_panel;

#define X_LARGEST 32600.0f /* so that the high byte of a rounded number fits */

extern const km_quant_tiles km_quant_tiles_amx;

/* ---- x ---- */

/* Where the elements of half group h (of 16) lie in a step. A tile of 64 holds a half of each of four
 * groups, as packing words of weights to bytes leaves them: eights of groups 0 and 2, then their other
 * eights, then groups 1 and 3. */
KM_INLINE int place_of(int h) {
    int g = h / 2 % 4;
    return h / 8 * 128 + h % 2 * 64 + g % 2 * 32 + g / 2 * 8;
}

KM_INLINE void put_halves(int8_t *p, __m128i v) {
    _mm_storel_epi64((__m128i *)(void *)p, v);
    _mm_storeh_pd((double *)(void *)(p + 16), _mm_castsi128_pd(v));
}

/* A step of one row as codes in their places; its unit. */
KM_INLINE float encode_step(const float *x, int groups, int8_t *high, int8_t *low) {
    __m512i most = _mm512_setzero_si512(), sign = _mm512_set1_epi32(0x7fffffff);
    for (int i = 0; i < 32 * groups; i += 16)
        most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), sign));
    uint32_t bits = _mm512_reduce_max_epu32(most);
    float top, unit;
    memcpy(&top, &bits, sizeof top);
    unit = top / X_LARGEST;
    if (!(top > 1e-30f)) unit = 0; /* too small to matter */
    if (bits >= 0x7f800000u) unit = __builtin_nanf("");
    __m512 by = _mm512_set1_ps(unit > 0 ? X_LARGEST / top : 0);
    for (int h = 0; h < 2 * groups; h++) {
        int at = place_of(h);
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), by));
        __m512i up = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
        put_halves(low + at, _mm512_cvtepi32_epi8(v));
        put_halves(high + at, _mm512_cvtepi32_epi8(up));
    }
    return unit;
}

KM_INLINE void turn_plane(int8_t codes[ROWS][256], int depths, int8_t out[DEPTHS][16][ROWS][4]) {
    for (int k = 0; k < depths; k++) {
        __m512i v[16];
        for (int r = 0; r < 16; r++) v[r] = _mm512_load_si512(codes[r] + 64 * k);
        km_transpose16(v);
        for (int r = 0; r < 16; r++) _mm512_store_si512(out[k][r], v[r]);
    }
}

/* Tiles of 64 elements that hold the first `groups` groups: they come four at a time. */
KM_INLINE int depths_of(int groups) { return (groups + 3) / 4 * 2; }

static void encode_tiles(const float *x, int64_t n, int64_t rows, void *out) {
    _Alignas(64) int8_t high[ROWS][256], low[ROWS][256];
    quant_x_tile *tile = out;
    for (int64_t i = 0; i < n; i += KM_QUANT_STEP, tile++) {
        int groups = n - i < KM_QUANT_STEP ? (int)(n - i) / 32 : 8;
        if (groups < 8 || rows < ROWS) {
            memset(high, 0, sizeof high);
            memset(low, 0, sizeof low);
            memset(tile->scale, 0, sizeof tile->scale);
        }
        for (int r = 0; r < rows; r++)
            tile->scale[r] = 256 * encode_step(x + r * n + i, groups, high[r], low[r]);
        turn_plane(high, depths_of(groups), tile->high);
        turn_plane(low, depths_of(groups), tile->low);
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

KM_INLINE void unpack_of(const km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, quant_w_panel *panel) {
    uint8_t room[8 * 34];
    int valid = n < KM_QUANT_STEP ? (int)n / 32 : 8;
    for (int o = first; o < first + outs; o++, w += bytes) {
        const uint8_t *b = w;
        if (valid < 8) { /* the blocks behind it would be read, too */
            memset(room, 0, sizeof room);
            memcpy(room, b, (size_t)(valid * (step_bytes(d) / 8)));
            b = room;
        }
        panel->scale[o] = encode_weights(d, b, valid, panel->high[o / 16][0][o % 16],
                                         panel->low[o / 16][0][o % 16], sizeof panel->high[0][0]);
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

/* Sums of a step that have not had their scales yet: 32 outputs, (output, row). */
typedef struct tile_sums {
    _Alignas(64) int32_t high[32][16], cross[32][16];
} tile_sums;

/* Outputs `from` on take their scales sw (32) and sx, and go to y (32, 16). */
KM_INLINE void scale_sums(const tile_sums *restrict p, const float *restrict sw, __m512 sx,
                          const int from, const int n, const bool add, float *restrict y) {
    KM_UNROLL
    for (int o = from; o < from + n; o++) {
        __m512i sum = _mm512_slli_epi32(_mm512_load_si512(p->high[o]), 8);
        sum = _mm512_add_epi32(sum, _mm512_load_si512(p->cross[o]));
        __m512 by = _mm512_mul_ps(_mm512_set1_ps(sw[o]), sx);
        __m512 before = add ? _mm512_load_ps(y + 16 * o) : _mm512_setzero_ps();
        _mm512_store_ps(y + 16 * o, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, before));
    }
}

/* 32 outputs, two tiles of them (wh, wl), and 16 rows of x over a step. Meanwhile the sums of the pair
 * before (sw, sx, y) take their scales, on other ports. */
KM_INLINE void tile_pair(const int8_t *wh, const int8_t *wl, const quant_x_tile *x,
                         const int depths, const bool add, tile_sums *now, const tile_sums *before,
                         const float *sw, __m512 sx, float *y) {
    enum { DEPTH = 16 * 64, OTHER = DEPTHS * DEPTH }; /* to the next depth; to the other outputs */
    KM_TILE_ZERO(0);
    KM_TILE_ZERO(1);
    KM_TILE_ZERO(2);
    KM_TILE_ZERO(3);
    KM_UNROLL
    for (int k = 0; k < depths; k++) {
        const int each = 16 / depths;
        KM_TILE_LOAD(4, x->high[k], 64);
        KM_TILE_LOAD(6, wh + k * DEPTH, 64);
        KM_TILE_DOT(0, 6, 4);
        KM_TILE_LOAD(5, x->low[k], 64);
        KM_TILE_DOT(1, 6, 5);
        if (before) scale_sums(before, sw, sx, 2 * k * each, each, add, y);
        KM_TILE_LOAD(7, wh + OTHER + k * DEPTH, 64);
        KM_TILE_DOT(2, 7, 4);
        KM_TILE_DOT(3, 7, 5);
        KM_TILE_LOAD(6, wl + k * DEPTH, 64);
        KM_TILE_DOT(1, 6, 4);
        if (before) scale_sums(before, sw, sx, (2 * k + 1) * each, each, add, y);
        KM_TILE_LOAD(7, wl + OTHER + k * DEPTH, 64);
        KM_TILE_DOT(3, 7, 4);
    }
    KM_TILE_STORE(0, now->high, 64);
    KM_TILE_STORE(1, now->cross, 64);
    KM_TILE_STORE(2, now->high + 16, 64);
    KM_TILE_STORE(3, now->cross + 16, 64);
    KM_TILE_FENCE();
}

KM_INLINE void multiply_of(const quant_w_panel *w, const quant_x_tile *x, int64_t ldx,
                           int64_t tiles, const int depths, const bool add, float *y) {
    tile_sums sums[2], *now = &sums[0], *before = &sums[1];
    const int8_t *wh = w->high[0][0][0], *wl = w->low[0][0][0];
    __m512 sx = _mm512_loadu_ps(x->scale);
    tile_pair(wh, wl, x, depths, add, before, NULL, w->scale, sx, y);
    for (int64_t t = 1; t < tiles; t++, y += 2 * 256) {
        x += ldx;
        tile_pair(wh, wl, x, depths, add, now, before, w->scale, sx, y);
        tile_sums *swap = now;
        now = before;
        before = swap;
        sx = _mm512_loadu_ps(x->scale);
    }
    scale_sums(before, w->scale, sx, 0, 16, add, y);
    scale_sums(before, w->scale, sx, 16, 16, add, y);
}

static void multiply_tiles(const void *panel, const void *x, int64_t ldx, int64_t tiles, int64_t n,
                           bool add, float *y) {
    int depths = depths_of(n < KM_QUANT_STEP ? (int)n / 32 : 8);
    km_tiles_begin();
    if (depths == 4 && add)
        multiply_of(panel, x, ldx, tiles, 4, true, y);
    else if (depths == 4)
        multiply_of(panel, x, ldx, tiles, 4, false, y);
    else if (add)
        multiply_of(panel, x, ldx, tiles, 2, true, y);
    else
        multiply_of(panel, x, ldx, tiles, 2, false, y);
    km_tiles_end();
}

/* y as the products leave it to rows. */
static void turn_tiles(const float *y, int64_t rows, float *out, int64_t ldo) {
    for (int64_t t = 0; t * 16 < rows; t++)
        for (int o = 0; o < 32; o += 16, y += 256) {
            __m512i v[16];
            for (int i = 0; i < 16; i++) v[i] = _mm512_load_si512(y + 16 * i);
            km_transpose16(v);
            for (int i = 0; i < 16 && t * 16 + i < rows; i++)
                _mm512_storeu_si512(out + (t * 16 + i) * ldo + o, v[i]);
        }
}

/* The set: what is not tiles' work is AVX-512's with VNNI, chosen when the processor is known. */
const km_quant_tiles km_quant_tiles_amx = {
    .x_bytes = sizeof(quant_x_tile),
    .panel_bytes = sizeof(quant_w_panel),
    .encode = encode_tiles,
    .unpack = unpack_tiles,
    .multiply = multiply_tiles,
    .turn = turn_tiles,
};
