/* Fast vector codes: table look-ups for 32 rows at a time, and one row's levels against a query. */
#include "backend/cpu/codes.h"
#include "backend/cpu/simd/simd.h"

#define CHUNK 256 /* nibbles whose sums of bytes fit in 16 bits */

void KM_SIMD(km_code_levels)(const km_level_plan *plan, const uint8_t *code, const float *p,
                             float *dot, float *norm) {
    vf d = v_zero(), n = v_zero();
    for (int64_t i = 0; i < plan->axes; i += KM_VF) {
#if defined(KM_AVX512)
        __m512i seven = _mm512_set1_epi32(7);
        __m512i at = _mm512_loadu_si512(plan->lead_at + i);
        __m512i lead = _mm512_i32gather_epi32(_mm512_srli_epi32(at, 3), code, 1);
        lead = _mm512_srlv_epi32(lead, _mm512_and_si512(at, seven));
        lead = _mm512_and_si512(lead, _mm512_loadu_si512(plan->lead_mask + i));
        lead = _mm512_sllv_epi32(lead, _mm512_loadu_si512(plan->rest_bits + i));
        at = _mm512_loadu_si512(plan->rest_at + i);
        __m512i rest = _mm512_i32gather_epi32(_mm512_srli_epi32(at, 3), code, 1);
        rest = _mm512_srlv_epi32(rest, _mm512_and_si512(at, seven));
        rest = _mm512_and_si512(rest, _mm512_loadu_si512(plan->rest_mask + i));
        rest = _mm512_add_epi32(_mm512_or_si512(lead, rest), _mm512_loadu_si512(plan->table + i));
        vf v = (vf)_mm512_i32gather_ps(rest, plan->values, 4);
#else
        vf v;
        for (int l = 0; l < KM_VF; l++) {
            int32_t a = plan->lead_at[i + l], r = plan->rest_at[i + l];
            uint32_t lead = (uint32_t)(code[a >> 3] | code[(a >> 3) + 1] << 8) >> (a & 7);
            uint32_t rest = (uint32_t)(code[r >> 3] | code[(r >> 3) + 1] << 8) >> (r & 7);
            lead = (lead & (uint32_t)plan->lead_mask[i + l]) << plan->rest_bits[i + l];
            rest &= (uint32_t)plan->rest_mask[i + l];
            v[l] = plan->values[(lead | rest) + (uint32_t)plan->table[i + l]];
        }
#endif
        vf scaled = v * v_load(plan->amp + i);
        d = v_fma(v, v_load(p + i), d);
        n = v_fma(scaled, scaled, n);
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
