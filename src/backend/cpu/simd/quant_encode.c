/* Rounding x to one or two planes of bytes for products with weights in blocks. */
#include "backend/cpu/simd/quant_vec.h"

/* 16 whole numbers in [-128, 127] as bytes. */
KM_INLINE void put_bytes(int8_t *p, const vi v[KM_Q16]) {
#if defined(KM_AVX512)
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8((__m512i)v[0]));
#elif defined(KM_AVX2)
    __m256i h = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
    h = _mm256_permute4x64_epi64(h, 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
#else
    for (int i = 0; i < 16; i++) p[i] = (int8_t)v[i / 4][i % 4];
#endif
}

/* One group of 32, number g of its step, to 8 bits or (with low) two planes of them. Numbers too
 * small to matter become zero. */
KM_INLINE void encode_group(const float *x, int g, km_quant_x *out, km_quant_low *low, vf *odd) {
    const float largest = low ? 127 << KM_QUANT_LOW_BITS : 127;
    vf v[2 * KM_Q16], most = v_zero();
    KM_UNROLL
    for (int i = 0; i < 2 * KM_Q16; i++) {
        v[i] = v_load(x + i * KM_VF);
        most = v_max(v_abs(v[i]), most);
        *odd += v[i] - v[i]; /* NaN for what is not finite */
    }
    float top = v_reduce_max(most), by = top > 1e-30f ? largest / top : 0, scale = top / largest;
    float sum[2];
    KM_UNROLL
    for (int h = 0; h < 2; h++) {
        vf total = v_zero();
        vi code[KM_Q16], rest[KM_Q16];
        const int at = km_quant_place(32 * g + 16 * h);
        KM_UNROLL
        for (int i = 0; i < KM_Q16; i++) {
            vf whole = v_round(v[h * KM_Q16 + i] * v_set1(by));
            total += whole;
            code[i] = v_to_int(whole);
            if (!low) continue;
            vi first = (code[i] + (1 << (KM_QUANT_LOW_BITS - 1))) >> KM_QUANT_LOW_BITS;
            rest[i] = code[i] - vi_shift_up(first);
            code[i] = first;
        }
        put_bytes(out->code + at, code);
        if (low) put_bytes(low->code + at, rest);
        sum[h] = v_reduce_add(total); /* exact */
        out->half[2 * g + h] = scale * sum[h];
    }
    out->scale[g] = scale;
    out->sum[g] = scale * (sum[0] + sum[1]);
}

void KM_SIMD(km_quant_encode)(const float *x, int64_t n, km_quant_x *out, km_quant_low *low) {
    vf odd = v_zero();
    for (int64_t i = 0; i < n; i += KM_QUANT_STEP) {
        km_quant_x *step = out + i / KM_QUANT_STEP;
        int64_t left = n - i;
        int groups = left < KM_QUANT_STEP ? (int)left / 32 : 8;
        if (groups < 8) memset(step, 0, sizeof *step);
        if (groups < 8 && low) memset(low, 0, sizeof *low);
        for (int g = 0; g < groups; g++) {
            if (low)
                encode_group(x + i + 32 * g, g, step, low, &odd);
            else
                encode_group(x + i + 32 * g, g, step, NULL, &odd);
        }
        low = low ? low + 1 : NULL;
    }
    if (n > 0 && vm_any(v_isnan(odd)))
        out[0].scale[0] = __builtin_nanf(""); /* so will results be */
}
