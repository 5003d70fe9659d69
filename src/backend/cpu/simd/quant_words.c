/* Many rows of x against weights in blocks, with both as whole numbers of 16 bits: what activations
 * of 16 bits mean for prompts. A step (256 elements) of a row of x has one scale, and so has a step of
 * a row of weights, which is unpacked to floats and rounded, too. So a whole step is one sum of
 * products in 32 bits, whatever the type, and takes its two scales once.
 *
 * How large codes may be: by Cauchy and Schwarz no sum of products, nor any part of it, exceeds the
 * product of the two lengths sqrt(sum of squares). Both are scaled to less than sqrt(2^31), so nothing
 * overflows, and codes of 256 numbers of like size have a standard deviation of 2900: rounding changes
 * each by 1e-4 of that, where 8 bits for each 32 change it by 5e-3.
 *
 * With AVX-512 and VNNI a tile is 12 rows of x and two vectors of outputs: 24 products to two loads of
 * weights and 12 of x, two products a cycle. The floor for 32 elements of one row with 32 outputs is
 * 32 products, 16 cycles; the kernel for 8 bits (quant_tile.c) has one of 12. Rows that end within a
 * step end here, too, where that one takes the whole step. */
#include "backend/cpu/simd/quant_codes.h"

#define OUTS KM_QUANT_OUTS
#define PAIRS KM_QUANT_PAIRS
#define LENGTH                                                                                     \
    46320.0f /* of a step's codes: below sqrt(2^31) by more than rounding adds, 0.5 * 16 */
#define LARGEST 32700.0f
#define WIDE 2 /* vectors of a tile; its sums stay in registers */
#define TILE KM_WORD_ROWS

/* ---- Rounding ---- */

/* Rounds numbers to multiples of the unit: pairs have one of the first and one of the second half of
 * a group. */
KM_INLINE void put_pairs(const float *v, int groups, float unit, int32_t *pair) {
    vf by = v_set1(unit > 0 ? 1 / unit : 0);
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < 16; i += KM_VF) {
            vi lo = v_to_int(v_load(v + 32 * g + i) * by);
            vi hi = v_to_int(v_load(v + 32 * g + 16 + i) * by);
            vi_store(pair + 16 * g + i, (lo & 0xffff) | (vi)((vu)hi << 16));
        }
}

/* The unit of numbers whose squares are no good: too large, too small, or not numbers. */
static float unit_of_extremes(const float *v, int n) {
    float top = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        float a = __builtin_fabsf(v[i]);
        if (!(a <= 3.4028235e38f)) return __builtin_nanf("");
        if (a > top) top = a;
    }
    if (top <= 1e-30f) return 0; /* too small to matter */
    for (int i = 0; i < n; i++) squares += v[i] / top * (v[i] / top);
    float length = __builtin_sqrtf(squares) / LENGTH;
    return (length > 1 / LARGEST ? length : 1 / LARGEST) * top;
}

/* A step of numbers, of which there are `groups` of 32, as codes. Returns their unit; where something
 * is not a number that is not one either. */
KM_INLINE float round_step(const float *v, int groups, int32_t *pair) {
    vf squares = v_zero(), more = v_zero(), most = v_zero();
    for (int i = 0; i < 32 * groups; i += 2 * KM_VF) {
        vf a = v_load(v + i), b = v_load(v + i + KM_VF);
        squares = v_fma(a, a, squares);
        more = v_fma(b, b, more);
        most = v_max(v_max(v_abs(a), v_abs(b)), most);
    }
    float sum = v_reduce_add(squares + more), unit;
    if (sum > 1e-30f && sum < 1e36f) {
        float length = __builtin_sqrtf(sum) / LENGTH, top = v_reduce_max(most) / LARGEST;
        unit = length > top ? length : top;
    } else {
        unit = unit_of_extremes(v, 32 * groups);
    }
    put_pairs(v, groups, unit, pair);
    return unit;
}

/* The pairs of a step of four rows to columns `stride` apart. */
KM_INLINE void interleave(int32_t pair[4][PAIRS], int pairs, int32_t *out, const int stride) {
    for (int at = 0; at < pairs; at += KM_VF) {
        vf v[4];
        for (int r = 0; r < 4; r++) memcpy(&v[r], pair[r] + at, sizeof v[r]);
        v_transpose4(v);
        for (int c = 0; c < 4; c++) {
            int32_t quads[KM_QG][4];
            memcpy(quads, &v[c], sizeof quads);
            for (int q = 0; q < KM_QG; q++) memcpy(out + (at + 4 * q + c) * stride, quads[q], 16);
        }
    }
}

void KM_SIMD(km_quant_encode_words)(const float *x, int64_t n, int64_t rows, void *out) {
    _Alignas(64) int32_t pair[4][PAIRS];
    km_word_tile *tile = out;
    for (int64_t i = 0; i < n; i += KM_QUANT_STEP, tile++) {
        int groups = n - i < KM_QUANT_STEP ? (int)(n - i) / 32 : 8;
        for (int r = 0; r < (rows + 3) / 4 * 4; r++) {
            if (r < rows)
                tile->scale[r] = round_step(x + r * n + i, groups, pair[r % 4]);
            else
                memset(pair[r % 4], 0, sizeof pair[0]), tile->scale[r] = 0;
            if (r % 4 == 3) interleave(pair, 16 * groups, &tile->pair[0][r - 3], TILE);
        }
    }
}

/* ---- Unpacking ---- */

/* KM_VF bytes as floats. */
KM_INLINE vf v_from_bytes(const uint8_t *p, const bool is_signed) {
#if defined(KM_AVX512)
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vf)_mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b));
#elif defined(KM_AVX2)
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return (vf)_mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
#else
    vi v;
    for (int i = 0; i < KM_VF; i++) v[i] = is_signed ? (int8_t)p[i] : p[i];
    return vi_to_float(v);
#endif
}

/* One step of a row of weights as floats, of which `valid` groups are there. */
KM_INLINE void step_floats(const km_dtype d, const uint8_t *b, int valid, float *v) {
    const bool is_signed = is_wide(d) && KM_WIDE_OFFSET == 0;
    _Alignas(64) uint8_t codes[256];
    float s[16], l[16];
    q16 scale, least;
    step_scales(d, b, valid, &scale, &least);
    memcpy(s, &scale, sizeof s);
    memcpy(l, &least, sizeof l);
    KM_UNROLL
    for (int k = 0; k < KM_QV; k++) {
        vb c[2];
        int at = k * KM_QG / 4 * 128 + k * KM_QG % 4 * 16;
        step_codes(d, b, k, c);
        memcpy(codes + at, &c[0], sizeof c[0]);
        memcpy(codes + at + 64, &c[1], sizeof c[1]);
    }
    for (int h = 0; h < 2 * valid; h++) { /* halves of groups */
        vf by = v_set1(s[by_halves(d) ? h : h / 2]), from = v_set1(l[by_halves(d) ? h : h / 2]);
        const uint8_t *at = codes + km_quant_place(16 * h);
        for (int i = 0; i < 16; i += KM_VF)
            v_store(v + 16 * h + i, v_fma(v_from_bytes(at + i, is_signed), by, from));
    }
}

KM_INLINE void unpack_of(const km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, km_quant_word_panel *panel) {
    _Alignas(64) float v[KM_QUANT_STEP];
    _Alignas(64) int32_t pair[4][PAIRS];
    uint8_t room[8 * 34];
    for (int64_t at = 0; at < n; at += KM_QUANT_STEP, w += step_bytes(d), panel++) {
        int valid = n - at < KM_QUANT_STEP ? (int)(n - at) / 32 : 8;
        for (int o = 0; o < (outs + 3) / 4 * 4; o++) {
            const uint8_t *b = w + (o < outs ? o : 0) * bytes;
            if (valid < 8) { /* the blocks behind it would be read, too */
                memset(room, 0, sizeof room);
                memcpy(room, b, (size_t)(valid * (step_bytes(d) / 8)));
                b = room;
            }
            step_floats(d, b, valid, v);
            panel->scale[first + o] = round_step(v, valid, pair[o % 4]);
            if (o % 4 == 3) interleave(pair, 16 * valid, &panel->pair[0][first + o - 3], OUTS);
        }
    }
}

#define OF_TYPE(d, name)                                                                           \
    static void unpack_##name(const uint8_t *w, int64_t bytes, int64_t n, int first, int outs,     \
                              km_quant_word_panel *panel) {                                        \
        unpack_of(d, w, bytes, n, first, outs, panel);                                             \
    }
KM_QUANT_TYPES(OF_TYPE)

void KM_SIMD(km_quant_unpack_words)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n,
                                    int first, int outs, km_quant_word_panel *panel) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: unpack_##name(w, bytes, n, first, outs, panel); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}

/* ---- Multiplying ---- */

/* Outputs beyond the last of a matrix are summed as well, over whatever their codes are, and left
 * out later: such a sum may wrap around. */
KM_INLINE vi vi_wrap_add(vi a, vi b) { return (vi)((vu)a + (vu)b); }

/* acc + the sum of the two products of 16-bit numbers in each lane. */
KM_INLINE vi vi_dot_words(vi acc, vi a, vi b) {
#if defined(KM_AVX512) && defined(KM_VNNI)
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(KM_AVX512)
    return vi_wrap_add(acc, (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(KM_AVX2) && defined(KM_VNNI)
    return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(KM_AVX2)
    return vi_wrap_add(acc, (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif defined(__x86_64__)
    return vi_wrap_add(acc, (vi)_mm_madd_epi16((__m128i)a, (__m128i)b));
#elif defined(__aarch64__)
    int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return vi_wrap_add(
        acc, (vi)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
#elif defined(__wasm_simd128__)
    return vi_wrap_add(acc, (vi)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b));
#else
    vi sum;
    for (int i = 0; i < KM_VF; i++)
        sum[i] = (int32_t)((uint32_t)((int16_t)a[i] * (int16_t)b[i]) +
                           (uint32_t)((a[i] >> 16) * (b[i] >> 16)));
    return vi_wrap_add(acc, sum);
#endif
}

/* n rows of x against WIDE vectors of outputs, of which the first is o, over one step. */
KM_INLINE void tile_step(const km_quant_word_panel *panel, int pairs, const int o,
                         const km_word_tile *x, const int n, bool add, float *y, int64_t ldy) {
    vi sum[TILE][WIDE];
    KM_UNROLL
    for (int i = 0; i < n * WIDE; i++) sum[i / WIDE][i % WIDE] = (vi){0};
    for (int p = 0; p < pairs; p++) {
        vi w[WIDE];
        KM_UNROLL
        for (int v = 0; v < WIDE; v++) w[v] = vi_load(panel->pair[p] + o + v * KM_VF);
        KM_UNROLL
        for (int r = 0; r < n; r++) {
            vi xv = vi_set1(x->pair[p][r]);
            KM_UNROLL
            for (int v = 0; v < WIDE; v++) sum[r][v] = vi_dot_words(sum[r][v], w[v], xv);
        }
    }
    KM_UNROLL
    for (int i = 0; i < n * WIDE; i++) {
        const int r = i / WIDE, v = i % WIDE;
        float *at = y + r * ldy + o + v * KM_VF;
        vf scale = v_load(panel->scale + o + v * KM_VF) * v_set1(x->scale[r]);
        v_store(at, v_fma(vi_to_float(sum[r][v]), scale, add ? v_load(at) : v_zero()));
    }
}

void KM_SIMD(km_quant_tile_words)(const km_quant_word_panel *panel, const void *x, int64_t ldx,
                                  int64_t rows, int64_t n, bool add, float *y, int64_t ldy) {
    const km_word_tile *tile = x;
    for (int64_t r = 0; r < rows; r += TILE, tile += ldx, y += TILE * ldy)
        for (int64_t s = 0; s * KM_QUANT_STEP < n; s++) {
            int64_t rest = n - s * KM_QUANT_STEP, left = rows - r;
            int pairs = rest < KM_QUANT_STEP ? (int)rest / 2 : PAIRS;
            for (int o = 0; o < OUTS; o += WIDE * KM_VF) {
                bool more = add || s > 0;
                if (left > TILE - 4) tile_step(panel + s, pairs, o, tile + s, TILE, more, y, ldy);
#if TILE > 8
                else if (left > 4)
                    tile_step(panel + s, pairs, o, tile + s, 8, more, y, ldy);
#endif
#if TILE > 4
                else
                    tile_step(panel + s, pairs, o, tile + s, 4, more, y, ldy);
#endif
            }
        }
}
