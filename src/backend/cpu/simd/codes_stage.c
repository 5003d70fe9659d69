/* Fast vector codes: table look-ups for 32 rows at a time, and one row's levels against a query. */
#include "backend/cpu/codes.h"
#include "backend/cpu/simd/simd.h"
#include <math.h>

#define ROWS 32    /* of a block */
#define CHUNK 1024 /* nibbles whose sums fit in 16 bits */

/* The levels of sixteen axes, two groups. */
#if defined(KM_AVX512)

/* Planes are masks. Groups mostly have the same bits, and up to four come from one register. */
KM_INLINE vf pair_alike(const km_level_plan *plan, int64_t g, const uint8_t *code, int bits) {
    const int32_t *low = plan->at[g], *high = plan->at[g + 1];
    __m512i level = _mm512_setzero_si512();
    for (int l = 0; l < bits; l++) {
        __mmask16 m = (__mmask16)(code[low[l]] | code[high[l]] << 8);
        level = _mm512_mask_or_epi32(level, m, level, _mm512_set1_epi32(1 << (bits - 1 - l)));
    }
    const float *values = plan->values + (bits << 8);
    return bits <= 4 ? (vf)_mm512_permutexvar_ps(level, _mm512_loadu_ps(values))
                     : (vf)_mm512_i32gather_ps(level, values, 4);
}

KM_INLINE vf pair(const km_level_plan *plan, int64_t g, const uint8_t *code) {
    int first = plan->bits[g], second = plan->bits[g + 1];
    switch (first == second ? first : -1) {
    case 4: return pair_alike(plan, g, code, 4);
    case 3: return pair_alike(plan, g, code, 3);
    case -1: break;
    default: return pair_alike(plan, g, code, first);
    }
    __m512i level = _mm512_mask_mov_epi32(_mm512_set1_epi32(first << 8), 0xff00,
                                          _mm512_set1_epi32(second << 8));
    for (int l = 0; l < first; l++)
        level = _mm512_mask_or_epi32(level, code[plan->at[g][l]], level,
                                     _mm512_set1_epi32(1 << (first - 1 - l)));
    for (int l = 0; l < second; l++)
        level = _mm512_mask_or_epi32(level, (__mmask16)(code[plan->at[g + 1][l]] << 8), level,
                                     _mm512_set1_epi32(1 << (second - 1 - l)));
    return (vf)_mm512_i32gather_ps(level, plan->values, 4);
}

#else

#if defined(__aarch64__)

/* Four floats of a table from the bytes of their numbers: 32 floats at most. */
KM_INLINE float32x4_t four_of(const uint8x16x4_t *table, bool large, uint8x16_t levels, int first) {
    const uint8x16_t spread = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    const uint8x16_t byte = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    uint8x16_t at = vqtbl1q_u8(levels, vaddq_u8(spread, vdupq_n_u8((uint8_t)first)));
    at = vorrq_u8(vshlq_n_u8(at, 2), byte);
    uint8x16_t x = vqtbl4q_u8(table[0], at);
    if (large) x = vqtbx4q_u8(x, table[1], vsubq_u8(at, vdupq_n_u8(64)));
    return vreinterpretq_f32_u8(x);
}

KM_INLINE uint8x16x4_t table_at(const float *values) {
    const uint8_t *p = (const uint8_t *)values;
    return (uint8x16x4_t){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

KM_INLINE void eight(const float *values, const int32_t *at, int bits, const uint8_t *code,
                     float *out) {
    const uint8x8_t axis = {1, 2, 4, 8, 16, 32, 64, 128};
    uint8x8_t level = vdup_n_u8(0);
    for (int l = 0; l < bits; l++) /* a set bit is 255, which is -1 */
        level = vsub_u8(vadd_u8(level, level), vtst_u8(vdup_n_u8(code[at[l]]), axis));
    if (bits <= 5) {
        uint8x16x4_t table[2] = {table_at(values), table_at(values + (bits == 5 ? 16 : 0))};
        uint8x16_t levels = vcombine_u8(level, level);
        vst1q_f32(out, four_of(table, bits == 5, levels, 0));
        vst1q_f32(out + 4, four_of(table, bits == 5, levels, 4));
        return;
    }
    uint8_t number[8];
    vst1_u8(number, level);
    for (int i = 0; i < 8; i++) out[i] = values[number[i]];
}

#else

KM_INLINE void eight(const float *values, const int32_t *at, int bits, const uint8_t *code,
                     float *out) {
    for (int i = 0; i < 8; i++) {
        uint32_t level = 0;
        for (int l = 0; l < bits; l++) level = level << 1 | (code[at[l]] >> i & 1);
        out[i] = values[level];
    }
}

#endif

KM_INLINE void pair(const km_level_plan *plan, int64_t g, const uint8_t *code, float *out) {
    for (int h = 0; h < 2; h++) {
        int bits = plan->bits[g + h];
        eight(plan->values + (bits << 8), plan->at[g + h], bits, code, out + 8 * h);
    }
}

#endif

void KM_SIMD(km_code_levels)(const km_level_plan *plan, const uint8_t *code, const float *p,
                             float *dot, float *norm) {
    vf d = v_zero(), n = v_zero();
    for (int64_t g = 0; g < plan->groups; g += 2) {
#if defined(KM_AVX512)
        vf v = pair(plan, g, code), scaled = v * v_load(plan->amp + 8 * g);
        d = v_fma(v, v_load(p + 8 * g), d);
        n = v_fma(scaled, scaled, n);
#else
        float level[16];
        pair(plan, g, code, level);
        for (int i = 0; i < 16; i += KM_VF) {
            vf v = v_load(level + i), scaled = v * v_load(plan->amp + 8 * g + i);
            d = v_fma(v, v_load(p + 8 * g + i), d);
            n = v_fma(scaled, scaled, n);
        }
#endif
    }
    *dot = v_reduce_add(d);
    *norm = v_reduce_add(n);
}

/* ---- Tables ---- */

void KM_SIMD(km_code_tables)(int64_t planes, const int32_t (*plane)[2], const float *weight,
                             int64_t groups, const float *p, float *quad, uint8_t *lut,
                             float *least, float *step) {
    static const float sign[4][16] = {{-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1},
                                      {-1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1},
                                      {-1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1},
                                      {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1}};
    float top = 0, low = 0;
    for (int64_t i = 0; i < 2 * groups; i++)
        quad[i] =
            (fabsf(p[4 * i]) + fabsf(p[4 * i + 1])) + (fabsf(p[4 * i + 2]) + fabsf(p[4 * i + 3]));
    for (int64_t j = 0; j < planes; j++) {
        const float *q = quad + 2 * plane[j][0];
        float half = fabsf(weight[j]) * (q[0] > q[1] ? q[0] : q[1]);
        low -= fabsf(weight[j]) * (q[0] + q[1]);
        top = half > top ? half : top;
    }
    float unit = top > 0 ? 2 * top / KM_STAGE_TOP : 1, scale = 1 / unit;
    *least = low;
    *step = unit;
    for (int64_t j = 0; j < 2 * planes; j++, lut += 16) {
        int64_t at = 2 * plane[j / 2][0] + j % 2;
        const float *x = p + 4 * at;
        vf w = v_set1(weight[j / 2] * scale),
           more = v_set1(fabsf(weight[j / 2]) * scale * quad[at]);
        for (int i = 0; i < 16; i += KM_VF) {
            vf a = v_fma(v_load(sign[0] + i), v_set1(x[0]), v_load(sign[1] + i) * v_set1(x[1]));
            vf b = v_fma(v_load(sign[2] + i), v_set1(x[2]), v_load(sign[3] + i) * v_set1(x[3]));
            vi v = v_to_int(v_fma(a + b, w, more));
            vi_store_bytes(lut + i, v);
        }
    }
}

/* ---- Blocks ---- */

/* A sum that rows within the limit have at least: of all scales between the smallest and the
 * largest, that where bound 1 asks for least. Blocks without such a sum need no bounds. */
KM_INLINE int32_t least_sum(const km_stage_query *q, const km_stage_rows *rows, float limit) {
    float s = q->scales[rows->least], most = q->scales[rows->most], far = q->base - limit;
    if (far > 0) { /* far / s + s square has its least in between */
        float best = q->square > 0 ? sqrtf(far / q->square) : most;
        s = best < s ? s : best > most ? most : best;
    }
    if (!(s > 0) || !isfinite(limit)) return 0;
    float need = ((far / s + s * q->square) / -q->along - q->low[0]) / q->step[0];
    need -= 1 + 1e-4f * fabsf(need); /* for rounding */
    return need < 0 ? 0 : need > 1e9f ? 1000000000 : (int32_t)need;
}

#if defined(KM_AVX512)

/* Two lists of 16-bit sums, each over the four lanes: one in lanes 0 and 1, the other in 2 and 3. */
KM_INLINE __m512i over_lanes(__m512i a, __m512i b) {
    __m512i x =
        _mm512_add_epi16(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
    return _mm512_add_epi16(x, _mm512_shuffle_i64x2(x, x, 0xb1));
}

/* The sums of at most CHUNK nibbles of 32 rows, those of even rows and of odd ones, in lanes 0 and 1
 * of rows 0 to 15, in 2 and 3 of the others. Bytes hold four look-ups; as words, of which the higher
 * byte is summed once more by itself, they hold many. */
KM_INLINE void sum_chunk(const uint8_t *p, const uint8_t *lut, int64_t nibbles, __m512i *even,
                         __m512i *odd) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i all0 = _mm512_setzero_si512(), high0 = all0, all1 = all0, high1 = all0;
    int64_t j = 0;
    while (j < nibbles) {
        __m512i a = _mm512_setzero_si512(), b = a;
        if (j + 16 <= nibbles) {
            for (int k = 0; k < 4; k++, j += 4) {
                __m512i x = _mm512_loadu_si512(p + 16 * j), t = _mm512_loadu_si512(lut + 16 * j);
                a = _mm512_add_epi8(a, _mm512_shuffle_epi8(t, _mm512_and_si512(x, low)));
                x = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
                b = _mm512_add_epi8(b, _mm512_shuffle_epi8(t, x));
            }
        } else {
            __m512i x = _mm512_maskz_loadu_epi64(j + 4 <= nibbles ? 0xff : 0xf, p + 16 * j);
            __m512i t = _mm512_loadu_si512(lut + 16 * j);
            a = _mm512_shuffle_epi8(t, _mm512_and_si512(x, low));
            b = _mm512_shuffle_epi8(t, _mm512_and_si512(_mm512_srli_epi16(x, 4), low));
            j += 4;
        }
        all0 = _mm512_add_epi16(all0, a);
        all1 = _mm512_add_epi16(all1, b);
        high0 = _mm512_add_epi16(high0, _mm512_srli_epi16(a, 8));
        high1 = _mm512_add_epi16(high1, _mm512_srli_epi16(b, 8));
    }
    *odd = over_lanes(high0, high1);
    *even = _mm512_sub_epi16(over_lanes(all0, all1), _mm512_slli_epi16(*odd, 8));
}

KM_INLINE void add_words(__m512i even, __m512i odd, __m512i sums[2]) {
    __m512i rows = _mm512_mask_blend_epi64(0xcc, _mm512_unpacklo_epi16(even, odd),
                                           _mm512_unpackhi_epi16(even, odd));
    sums[0] = _mm512_add_epi32(sums[0], _mm512_cvtepu16_epi32(_mm512_castsi512_si256(rows)));
    sums[1] = _mm512_add_epi32(sums[1], _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(rows, 1)));
}

KM_INLINE void add_sums(const uint8_t *p, const uint8_t *lut, int64_t nibbles, __m512i sums[2]) {
    sums[0] = sums[1] = _mm512_setzero_si512();
    for (int64_t j = 0; j < nibbles; j += CHUNK) {
        __m512i even, odd;
        sum_chunk(p + 16 * j, lut + 16 * j, nibbles - j < CHUNK ? nibbles - j : CHUNK, &even, &odd);
        add_words(even, odd, sums);
    }
}

/* The sums of 32 rows, or false when none of them is `need` or more. */
KM_INLINE bool sums_from(const uint8_t *p, const uint8_t *lut, int64_t nibbles, int32_t need,
                         __m512i sums[2]) {
    if (nibbles <= CHUNK) {
        const __m512i least = _mm512_set1_epi16((short)(need < 65535 ? need : 65535));
        __m512i even, odd;
        sum_chunk(p, lut, nibbles, &even, &odd);
        if (!(_mm512_cmpge_epu16_mask(even, least) | _mm512_cmpge_epu16_mask(odd, least)))
            return false;
        sums[0] = sums[1] = _mm512_setzero_si512();
        add_words(even, odd, sums);
        return true;
    }
    const __m512i least = _mm512_set1_epi32(need);
    add_sums(p, lut, nibbles, sums);
    return _mm512_cmpge_epi32_mask(sums[0], least) | _mm512_cmpge_epi32_mask(sums[1], least);
}

int64_t KM_SIMD(km_code_near)(const km_stage_query *q, const km_stage_rows *rows, float limit,
                              int32_t *left, float *bound) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const vf base = v_set1(q->base), square = v_set1(q->square), along = v_set1(q->along);
    const vf most = v_set1(limit);
    const int32_t need = least_sum(q, rows, limit);
    const uint8_t *codes = rows->codes, *blocks = rows->blocks;
    int64_t count = 0, n = rows->n;
    for (int64_t i = 0; i < n; i += ROWS, blocks += q->size) {
        for (int64_t k = 0; k < 16 * q->nibbles[0]; k += 64) KM_FETCH(blocks + 2 * q->size + k);
        uint32_t there = n - i < ROWS ? (1u << (n - i)) - 1 : ~0u, near = 0;
        __m512i sum[2], more[2];
        vf least[2], s[2], fixed[2];
        if (!sums_from(blocks, q->lut, q->nibbles[0], need, sum)) continue;
        for (int h = 0; h < 2; h++) {
            __mmask16 m = (__mmask16)(there >> 16 * h);
            __m128i c = _mm_maskz_loadu_epi8(m, codes + i + 16 * h);
            s[h] = (vf)_mm512_i32gather_ps(_mm512_cvtepu8_epi32(c), q->scales, 4);
            fixed[h] = v_fma(s[h] * s[h], square, base);
            s[h] *= along;
            vf t = v_fma(v_set1(q->step[0]), vi_to_float((vi)sum[h]), v_set1(q->low[0]));
            least[h] = v_fma(s[h], t, fixed[h]);
            near |= (uint32_t)(v_le(least[h], most) & m) << 16 * h;
        }
        if (!near) continue;
        add_sums(blocks + 16 * q->nibbles[0], q->lut + 16 * q->nibbles[0], q->nibbles[1], more);
        for (int h = 0; h < 2; h++) {
            __mmask16 m = (__mmask16)(near >> 16 * h);
            if (q->nibbles[1]) {
                vf t = v_fma(v_set1(q->again), vi_to_float((vi)sum[h]), v_set1(q->low[1]));
                t = v_fma(v_set1(q->step[1]), vi_to_float((vi)more[h]), t);
                least[h] = v_max(least[h], v_fma(s[h], t, fixed[h]));
                m &= v_le(least[h], most);
            }
            __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32((int)i + 16 * h));
            _mm512_mask_compressstoreu_epi32(left + count, m, at);
            _mm512_mask_compressstoreu_ps(bound + count, m, (__m512)least[h]);
            count += __builtin_popcount(m);
        }
    }
    return count;
}

/* 16 rows' 64 bytes to lists of columns: register c holds column 16 l + c in its lane l. */
KM_INLINE void columns(const uint8_t *rows, int64_t stride, int64_t n, __mmask64 there,
                       __m512i out[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i++)
        out[i] = _mm512_maskz_loadu_epi8(there, rows + (i < n ? i : 0) * stride);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            t[2 * i] = _mm512_unpacklo_epi8(out[i], out[i + 8]);
            t[2 * i + 1] = _mm512_unpackhi_epi8(out[i], out[i + 8]);
        }
        for (int i = 0; i < 16; i++) out[i] = t[i];
    }
}

void KM_SIMD(km_code_lay)(const uint8_t *rows, int64_t stride, int64_t n, int64_t planes,
                          uint8_t *block) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int64_t j = 0; j < planes; j += 64) {
        int64_t m = planes - j < 64 ? planes - j : 64;
        __mmask64 there = m < 64 ? (1ull << m) - 1 : ~0ull;
        __m512i a[16], b[16];
        columns(rows + j, stride, n, there, a);
        columns(n > 16 ? rows + 16 * stride + j : rows + j, stride, n - 16, there, b);
        for (int c = 0; c < 16; c++) {
            __m512i x = _mm512_or_si512(_mm512_and_si512(a[c], low),
                                        _mm512_slli_epi16(_mm512_and_si512(b[c], low), 4));
            __m512i y = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(a[c], 4), low),
                                        _mm512_andnot_si512(low, b[c]));
            uint8_t lines[2][64];
            _mm512_storeu_si512(lines[0], x);
            _mm512_storeu_si512(lines[1], y);
            for (int l = 0; l < 4 && 16 * l + c < m; l++) {
                memcpy(block + 32 * (j + 16 * l + c), lines[0] + 16 * l, 16);
                memcpy(block + 32 * (j + 16 * l + c) + 16, lines[1] + 16 * l, 16);
            }
        }
    }
}

#else

#if defined(KM_AVX2)

KM_INLINE void add_words(__m256i even, __m256i odd, uint32_t *sums) {
    __m128i e = _mm_add_epi16(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
    __m128i o = _mm_add_epi16(_mm256_castsi256_si128(odd), _mm256_extracti128_si256(odd, 1));
    __m128i half[2] = {_mm_unpacklo_epi16(e, o), _mm_unpackhi_epi16(e, o)};
    for (int i = 0; i < 2; i++) {
        __m256i *to = (__m256i *)(sums + 8 * i);
        _mm256_storeu_si256(
            to, _mm256_add_epi32(_mm256_cvtepu16_epi32(half[i]), _mm256_loadu_si256(to)));
    }
}

static void add_chunk(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    const __m256i low = _mm256_set1_epi8(15), byte = _mm256_set1_epi16(255);
    __m256i even0 = _mm256_setzero_si256(), odd0 = even0, even1 = even0, odd1 = even0;
    for (int64_t j = 0; j < nibbles;) {
        __m256i a = _mm256_setzero_si256(), b = a;
        for (int k = 0; k < 4 && j < nibbles; k++, j += 2) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(p + 16 * j));
            __m256i t = _mm256_loadu_si256((const __m256i *)(lut + 16 * j));
            a = _mm256_add_epi8(a, _mm256_shuffle_epi8(t, _mm256_and_si256(x, low)));
            x = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
            b = _mm256_add_epi8(b, _mm256_shuffle_epi8(t, x));
        }
        even0 = _mm256_add_epi16(even0, _mm256_and_si256(a, byte));
        odd0 = _mm256_add_epi16(odd0, _mm256_srli_epi16(a, 8));
        even1 = _mm256_add_epi16(even1, _mm256_and_si256(b, byte));
        odd1 = _mm256_add_epi16(odd1, _mm256_srli_epi16(b, 8));
    }
    add_words(even0, odd0, sums);
    add_words(even1, odd1, sums + 16);
}

#elif defined(__aarch64__)

KM_INLINE void add_words(uint16x8_t words, uint32_t *sums) {
    vst1q_u32(sums, vaddw_u16(vld1q_u32(sums), vget_low_u16(words)));
    vst1q_u32(sums + 4, vaddw_high_u16(vld1q_u32(sums + 4), words));
}

static void add_chunk(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    const uint8x16_t low = vdupq_n_u8(15);
    uint16x8_t s[4] = {vdupq_n_u16(0), vdupq_n_u16(0), vdupq_n_u16(0), vdupq_n_u16(0)};
    for (int64_t j = 0; j < nibbles;) {
        uint8x16_t a = vdupq_n_u8(0), b = a;
        for (int k = 0; k < 4 && j < nibbles; k++, j++) {
            uint8x16_t x = vld1q_u8(p + 16 * j), t = vld1q_u8(lut + 16 * j);
            a = vaddq_u8(a, vqtbl1q_u8(t, vandq_u8(x, low)));
            b = vaddq_u8(b, vqtbl1q_u8(t, vshrq_n_u8(x, 4)));
        }
        s[0] = vaddw_u8(s[0], vget_low_u8(a));
        s[1] = vaddw_high_u8(s[1], a);
        s[2] = vaddw_u8(s[2], vget_low_u8(b));
        s[3] = vaddw_high_u8(s[3], b);
    }
    for (int i = 0; i < 4; i++) add_words(s[i], sums + 8 * i);
}

#elif defined(__wasm_simd128__)

KM_INLINE void add_words(v128_t words, uint32_t *sums) {
    wasm_v128_store(sums, wasm_i32x4_add(wasm_v128_load(sums), wasm_u32x4_extend_low_u16x8(words)));
    wasm_v128_store(sums + 4,
                    wasm_i32x4_add(wasm_v128_load(sums + 4), wasm_u32x4_extend_high_u16x8(words)));
}

static void add_chunk(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    const v128_t low = wasm_i8x16_splat(15), none = wasm_i8x16_splat(0);
    v128_t s[4] = {none, none, none, none};
    for (int64_t j = 0; j < nibbles;) {
        v128_t a = none, b = none;
        for (int k = 0; k < 4 && j < nibbles; k++, j++) {
            v128_t x = wasm_v128_load(p + 16 * j), t = wasm_v128_load(lut + 16 * j);
            a = wasm_i8x16_add(a, wasm_i8x16_swizzle(t, wasm_v128_and(x, low)));
            b = wasm_i8x16_add(b, wasm_i8x16_swizzle(t, wasm_v128_and(wasm_u16x8_shr(x, 4), low)));
        }
        s[0] = wasm_i16x8_add(s[0], wasm_u16x8_extend_low_u8x16(a));
        s[1] = wasm_i16x8_add(s[1], wasm_u16x8_extend_high_u8x16(a));
        s[2] = wasm_i16x8_add(s[2], wasm_u16x8_extend_low_u8x16(b));
        s[3] = wasm_i16x8_add(s[3], wasm_u16x8_extend_high_u8x16(b));
    }
    for (int i = 0; i < 4; i++) add_words(s[i], sums + 8 * i);
}

#else

static void add_chunk(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    for (int64_t j = 0; j < nibbles; j++, p += 16, lut += 16) {
        for (int i = 0; i < 16; i++) {
            sums[i] += lut[p[i] & 15];
            sums[16 + i] += lut[p[i] >> 4];
        }
    }
}

#endif

/* The sums of 32 rows, or false when none of them is `need` or more. */
KM_INLINE bool sums_from(const uint8_t *p, const uint8_t *lut, int64_t nibbles, int32_t need,
                         float *out) {
    uint32_t sums[ROWS] = {0}, most = 0;
    for (int64_t j = 0; j < nibbles; j += CHUNK)
        add_chunk(p + 16 * j, lut + 16 * j, nibbles - j < CHUNK ? nibbles - j : CHUNK, sums);
    for (int i = 0; i < ROWS; i++) most = sums[i] > most ? sums[i] : most;
    if (most < (uint32_t)need) return false;
    for (int i = 0; i < ROWS; i++) out[i] = (float)(int32_t)sums[i];
    return true;
}

int64_t KM_SIMD(km_code_near)(const km_stage_query *q, const km_stage_rows *rows, float limit,
                              int32_t *left, float *bound) {
    const int32_t need = least_sum(q, rows, limit);
    const uint8_t *codes = rows->codes, *blocks = rows->blocks;
    int64_t count = 0, n = rows->n;
    for (int64_t i = 0; i < n; i += ROWS, blocks += q->size) {
        float sum[ROWS], more[ROWS], least[ROWS];
        int64_t m = n - i < ROWS ? n - i : ROWS, near = 0;
        for (int64_t k = 0; k < 16 * q->nibbles[0]; k += 64) KM_FETCH(blocks + 2 * q->size + k);
        if (!sums_from(blocks, q->lut, q->nibbles[0], need, sum)) continue;
        for (int64_t k = 0; k < m; k++) {
            float s = q->scales[codes[i + k]];
            least[k] = q->base + s * (s * q->square + q->along * (q->low[0] + q->step[0] * sum[k]));
            near += least[k] <= limit;
        }
        if (!near) continue;
        if (q->nibbles[1])
            sums_from(blocks + 16 * q->nibbles[0], q->lut + 16 * q->nibbles[0], q->nibbles[1], 0,
                      more);
        for (int64_t k = 0; k < m; k++) {
            float s = q->scales[codes[i + k]], b = least[k];
            if (q->nibbles[1]) {
                float t = q->low[1] + q->again * sum[k] + q->step[1] * more[k];
                float c = q->base + s * (s * q->square + q->along * t);
                b = c > b ? c : b;
            }
            left[count] = (int32_t)(i + k);
            bound[count] = b;
            count += b <= limit;
        }
    }
    return count;
}

void KM_SIMD(km_code_lay)(const uint8_t *rows, int64_t stride, int64_t n, int64_t planes,
                          uint8_t *block) {
    for (int64_t i = 0; i < 16; i++) {
        const uint8_t *a = rows + (i < n ? i : 0) * stride;
        const uint8_t *b = rows + (i + 16 < n ? i + 16 : n > 16 ? 16 : 0) * stride;
        for (int64_t j = 0; j < planes; j++) {
            block[32 * j + i] = (uint8_t)((a[j] & 15) | (b[j] & 15) << 4);
            block[32 * j + 16 + i] = (uint8_t)(a[j] >> 4 | (b[j] & 0xf0));
        }
    }
}

#endif
