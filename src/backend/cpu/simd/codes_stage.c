/* Fast vector codes: table look-ups for 32 rows at a time, and one row's levels against a query. */
#include "backend/cpu/codes.h"
#include "backend/cpu/simd/simd.h"
#include <math.h>

#define CHUNK 256 /* nibbles whose sums of bytes fit in 16 bits */

/* The levels of sixteen axes, two groups. */
KM_INLINE void pair(const km_level_plan *plan, int64_t g, const uint8_t *code, float *out) {
    for (int h = 0; h < 2; h++) {
        int bits = plan->bits[g + h];
        const int32_t *at = plan->at[g + h];
        for (int i = 0; i < 8; i++) {
            uint32_t level = 0;
            for (int l = 0; l < bits; l++) level = level << 1 | (code[at[l]] >> i & 1);
            out[8 * h + i] = plan->values[(bits << 8) + (int)level];
        }
    }
}

#if defined(KM_AVX512)
/* Both groups have the same bits, at most four: planes are masks, levels come from one register. */
KM_INLINE vf pair_alike(const km_level_plan *plan, int64_t g, const uint8_t *code, int bits) {
    const int32_t *low = plan->at[g], *high = plan->at[g + 1];
    __m512i level = _mm512_setzero_si512();
    for (int l = 0; l < bits; l++) {
        __mmask16 m = (__mmask16)(code[low[l]] | code[high[l]] << 8);
        level = _mm512_mask_or_epi32(level, m, level, _mm512_set1_epi32(1 << (bits - 1 - l)));
    }
    return (vf)_mm512_permutexvar_ps(level, _mm512_loadu_ps(plan->values + (bits << 8)));
}
#endif

void KM_SIMD(km_code_levels)(const km_level_plan *plan, const uint8_t *code, const float *p,
                             float *dot, float *norm) {
    vf d = v_zero(), n = v_zero();
    for (int64_t g = 0; g < plan->groups; g += 2) {
        float level[16];
#if defined(KM_AVX512)
        int bits = plan->bits[g];
        vf v;
        if (bits != plan->bits[g + 1] || bits > 4) {
            pair(plan, g, code, level);
            v = v_load(level);
        } else if (bits == 4) {
            v = pair_alike(plan, g, code, 4);
        } else {
            v = pair_alike(plan, g, code, bits);
        }
        vf scaled = v * v_load(plan->amp + 8 * g);
        d = v_fma(v, v_load(p + 8 * g), d);
        n = v_fma(scaled, scaled, n);
#else
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

#if defined(KM_AVX512)

/* Sums of even and odd rows, over the four lanes, to 16 numbers in order. */
static inline void flush(__m512i even, __m512i odd, uint32_t *sums) {
    __m128i e = _mm_add_epi16(
        _mm_add_epi16(_mm512_castsi512_si128(even), _mm512_extracti32x4_epi32(even, 1)),
        _mm_add_epi16(_mm512_extracti32x4_epi32(even, 2), _mm512_extracti32x4_epi32(even, 3)));
    __m128i o = _mm_add_epi16(
        _mm_add_epi16(_mm512_castsi512_si128(odd), _mm512_extracti32x4_epi32(odd, 1)),
        _mm_add_epi16(_mm512_extracti32x4_epi32(odd, 2), _mm512_extracti32x4_epi32(odd, 3)));
    __m256i all = _mm256_set_m128i(_mm_unpackhi_epi16(e, o), _mm_unpacklo_epi16(e, o));
    __m512i wide = _mm512_add_epi32(_mm512_cvtepu16_epi32(all), _mm512_loadu_si512(sums));
    _mm512_storeu_si512(sums, wide);
}

static void block(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    const __m512i low = _mm512_set1_epi8(15), byte = _mm512_set1_epi16(255);
    __m512i even0 = _mm512_setzero_si512(), odd0 = even0, even1 = even0, odd1 = even0;
    for (int64_t j = 0; j < nibbles; j += 4) {
        __m512i x = j + 4 <= nibbles ? _mm512_loadu_si512(p + 16 * j)
                                     : _mm512_maskz_loadu_epi64(0xf, p + 16 * j);
        __m512i t = _mm512_loadu_si512(lut + 16 * j);
        __m512i a = _mm512_shuffle_epi8(t, _mm512_and_si512(x, low));
        __m512i b = _mm512_shuffle_epi8(t, _mm512_and_si512(_mm512_srli_epi16(x, 4), low));
        even0 = _mm512_add_epi16(even0, _mm512_and_si512(a, byte));
        odd0 = _mm512_add_epi16(odd0, _mm512_srli_epi16(a, 8));
        even1 = _mm512_add_epi16(even1, _mm512_and_si512(b, byte));
        odd1 = _mm512_add_epi16(odd1, _mm512_srli_epi16(b, 8));
    }
    flush(even0, odd0, sums);
    flush(even1, odd1, sums + 16);
}

#elif defined(KM_AVX2)

static inline void flush(__m256i even, __m256i odd, uint32_t *sums) {
    __m128i e = _mm_add_epi16(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
    __m128i o = _mm_add_epi16(_mm256_castsi256_si128(odd), _mm256_extracti128_si256(odd, 1));
    __m128i half[2] = {_mm_unpacklo_epi16(e, o), _mm_unpackhi_epi16(e, o)};
    for (int i = 0; i < 2; i++) {
        __m256i *to = (__m256i *)(sums + 8 * i);
        _mm256_storeu_si256(
            to, _mm256_add_epi32(_mm256_cvtepu16_epi32(half[i]), _mm256_loadu_si256(to)));
    }
}

static void block(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    const __m256i low = _mm256_set1_epi8(15), byte = _mm256_set1_epi16(255);
    __m256i even0 = _mm256_setzero_si256(), odd0 = even0, even1 = even0, odd1 = even0;
    for (int64_t j = 0; j < nibbles; j += 2) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(p + 16 * j));
        __m256i t = _mm256_loadu_si256((const __m256i *)(lut + 16 * j));
        __m256i a = _mm256_shuffle_epi8(t, _mm256_and_si256(x, low));
        __m256i b = _mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
        even0 = _mm256_add_epi16(even0, _mm256_and_si256(a, byte));
        odd0 = _mm256_add_epi16(odd0, _mm256_srli_epi16(a, 8));
        even1 = _mm256_add_epi16(even1, _mm256_and_si256(b, byte));
        odd1 = _mm256_add_epi16(odd1, _mm256_srli_epi16(b, 8));
    }
    flush(even0, odd0, sums);
    flush(even1, odd1, sums + 16);
}

#else

static void block(const uint8_t *p, const uint8_t *lut, int64_t nibbles, uint32_t *sums) {
    for (int64_t j = 0; j < nibbles; j++, p += 16, lut += 16) {
        for (int i = 0; i < 16; i++) {
            sums[i] += lut[p[i] & 15];
            sums[16 + i] += lut[p[i] >> 4];
        }
    }
}

#endif

void KM_SIMD(km_code_stage)(const uint8_t *blocks, int64_t count, const uint8_t *lut,
                            int64_t nibbles, uint32_t *sums) {
    for (int64_t b = 0; b < count; b++, sums += 32) {
        for (int i = 0; i < 32; i++) sums[i] = 0;
        for (int64_t j = 0; j < nibbles; j += CHUNK)
            block(blocks + (b * nibbles + j) * 16, lut + 16 * j,
                  nibbles - j < CHUNK ? nibbles - j : CHUNK, sums);
    }
}

int64_t KM_SIMD(km_code_pick)(const km_stage_bound *b, const uint32_t *sums, const uint8_t *codes,
                              int64_t n, float limit, float *dist, int32_t *left) {
    int64_t count = 0, i = 0;
#if defined(KM_AVX512)
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    vf far = v_set1(INFINITY);
    for (; i + 16 <= n; i += 16) {
        __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + i)));
        vf s = (vf)_mm512_i32gather_ps(c, b->scales, 4);
        vf sum = (vf)_mm512_cvtepi32_ps(_mm512_loadu_si512(sums + i));
        vf t = v_set1(b->along) * v_fma(v_set1(b->step), sum, v_set1(b->low));
        vf least = v_fma(s, v_fma(s, v_set1(b->square), t), v_set1(b->base));
        vm near = v_le(least, v_set1(limit));
        v_store(dist + i, far);
        _mm512_mask_compressstoreu_epi32(left + count, near,
                                         _mm512_add_epi32(lane, _mm512_set1_epi32((int)i)));
        count += __builtin_popcount(near);
    }
#endif
    for (; i < n; i++) {
        float s = b->scales[codes[i]];
        float t = b->along * (b->low + b->step * (float)sums[i]);
        dist[i] = INFINITY;
        left[count] = (int32_t)i;
        count += b->base + s * (s * b->square + t) <= limit;
    }
    return count;
}
