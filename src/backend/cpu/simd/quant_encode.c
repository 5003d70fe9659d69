/* Rounding x to 8 bits for products with weights in blocks. */
#include "backend/cpu/simd/quant_vec.h"

/* 16 whole numbers in [-127, 127] as bytes. */
KM_INLINE void put_codes(int8_t *p, const vf v[KM_Q16]) {
#if defined(KM_AVX512)
    __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)v[0]));
    _mm_storeu_si128((__m128i *)(void *)p, b);
#elif defined(KM_AVX2)
    __m256i a = _mm256_cvtps_epi32((__m256)v[0]), b = _mm256_cvtps_epi32((__m256)v[1]);
    __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi16(_mm256_castsi256_si128(h),
                                                           _mm256_extracti128_si256(h, 1)));
#else
    for (int i = 0; i < 16; i++) p[i] = (int8_t)v[i / 4][i % 4];
#endif
}

/* One group of 32, number g of its step. Numbers too small to matter become zero. */
KM_INLINE void encode_group(const float *x, int g, km_quant_x *out, vf *odd) {
    vf v[2 * KM_Q16], most = v_zero();
    KM_UNROLL
    for (int i = 0; i < 2 * KM_Q16; i++) {
        v[i] = v_load(x + i * KM_VF);
        most = v_max(v_abs(v[i]), most);
        *odd += v[i] - v[i]; /* NaN for what is not finite */
    }
    float top = v_reduce_max(most), by = top > 1e-30f ? 127 / top : 0, scale = top / 127;
    float sum[2];
    KM_UNROLL
    for (int h = 0; h < 2; h++) {
        vf *half = v + h * KM_Q16, total = v_zero();
        KM_UNROLL
        for (int i = 0; i < KM_Q16; i++) {
            half[i] = v_round(half[i] * v_set1(by));
            total += half[i];
        }
        put_codes(out->code + km_quant_place(32 * g + 16 * h), half);
        sum[h] = v_reduce_add(total); /* exact */
        out->half[2 * g + h] = scale * sum[h];
    }
    out->scale[g] = scale;
    out->sum[g] = scale * (sum[0] + sum[1]);
}

void KM_SIMD(km_quant_encode)(const float *x, int64_t n, km_quant_x *out) {
    vf odd = v_zero();
    for (int64_t i = 0; i < n; i += KM_QUANT_STEP) {
        km_quant_x *step = out + i / KM_QUANT_STEP;
        int64_t left = n - i;
        if (left < KM_QUANT_STEP) memset(step, 0, sizeof *step);
        for (int g = 0; g < 8 && 32 * g < left; g++) encode_group(x + i + 32 * g, g, step, &odd);
    }
    if (n > 0 && vm_any(v_isnan(odd))) out[0].scale[0] = __builtin_nanf(""); /* so will results be */
}
