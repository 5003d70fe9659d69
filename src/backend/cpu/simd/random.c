/* Random numbers, KM_VF Philox blocks at a time: word w of each block in one vector. Four vectors
 * then are 4 * KM_VF elements, out of order; which block goes to which lane is chosen so that
 * transposing 4 x 4 within each 128 bits puts them in order. */
#include "backend/cpu/simd/random.h"
#include "backend/cpu/simd/vmath.h"
#include "base/rng.h"

#define GROUP (4 * KM_VF) /* elements of a step */

/* ---- Philox ---- */

/* a * m in 64 bits: high and low words */
KM_INLINE vu mul_wide(vu a, uint32_t m, vu *lo) {
#if defined(KM_AVX512)
    __m512i k = _mm512_set1_epi32((int)m), v = (__m512i)a;
    __m512i even = _mm512_mul_epu32(v, k), odd = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), k);
    *lo = (vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    return (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif defined(KM_AVX2)
    __m256i k = _mm256_set1_epi32((int)m), v = (__m256i)a;
    __m256i even = _mm256_mul_epu32(v, k), odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), k);
    *lo = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    vu hi;
    for (int i = 0; i < KM_VF; i++) {
        uint64_t p = (uint64_t)a[i] * m;
        (*lo)[i] = (uint32_t)p;
        hi[i] = (uint32_t)(p >> 32);
    }
    return hi;
#endif
}

/* Lane l = 4q + r (q counts 128-bit parts) takes block r * KM_VF / 4 + q. */
KM_INLINE vu lane_blocks(void) {
    vu v;
    for (int l = 0; l < KM_VF; l++) v[l] = (uint32_t)(l % 4 * (KM_VF / 4) + l / 4);
    return v;
}

KM_INLINE void philox(vu w[4], uint64_t seed, uint64_t stream, uint64_t block) {
    if ((uint32_t)block > UINT32_MAX - KM_VF) { /* the low half is about to wrap around */
        vu order = lane_blocks();
        for (int l = 0; l < KM_VF; l++) {
            km_philox4 p = km_philox(seed, stream, block + order[l]);
            for (int k = 0; k < 4; k++) w[k][l] = p.v[k];
        }
        return;
    }
    vu c0 = lane_blocks() + (uint32_t)block, c1 = vu_set1((uint32_t)(block >> 32));
    vu c2 = vu_set1((uint32_t)stream), c3 = vu_set1((uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vu lo0, lo1, hi0 = mul_wide(c0, 0xD2511F53u, &lo0), hi1 = mul_wide(c2, 0xCD9E8D57u, &lo1);
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

KM_INLINE void store_group(float *out, int64_t n, const vf v[4]) {
    if (n >= GROUP) {
        for (int k = 0; k < 4; k++) v_store(out + k * KM_VF, v[k]);
    } else {
        float all[GROUP];
        for (int k = 0; k < 4; k++) v_store(all + k * KM_VF, v[k]);
        memcpy(out, all, (size_t)n * sizeof *out);
    }
}

/* A word's upper 24 bits, as a number below 2^24: exact in a float. */
KM_INLINE vf upper_bits(vu w) { return vi_to_float((vi)(w >> 8)); }

/* ---- Fills ---- */

static void uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t block,
                    double lo, double hi) {
    vd base = vd_set1(lo), width = vd_set1((hi - lo) * 0x1p-24);
    for (int64_t i = 0; i < n; i += GROUP, block += KM_VF) {
        vu w[4];
        vf v[4];
        philox(w, seed, stream, block);
        for (int k = 0; k < 4; k++) {
            vf u = upper_bits(w[k]);
            v[k] = vd_join(base + width * vd_lo(u), base + width * vd_hi(u));
        }
        v_transpose4(v);
        store_group(out + i, n - i, v);
    }
}

/* Box-Muller: two words to two normal numbers */
KM_INLINE void normal_pair(vu a, vu b, vf *z0, vf *z1) {
    vf u1 = (upper_bits(a) + 1.0f) * 0x1p-24f; /* (0, 1] */
    vf r = v_sqrt(v_log(u1) * -2.0f);
    /* The angle is 2 pi b / 2^24: the nearest quarter turn and the rest come out exactly. */
    vf turn = upper_bits(b) * 0x1p-22f, quarter = v_round(turn), s, c;
    v_sincos_core((turn - quarter) * 1.57079633f, &s, &c);
    v_quadrant(v_to_int(quarter), &s, &c);
    *z0 = r * c;
    *z1 = r * s;
}

static void normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t block,
                   float mean, float sd) {
    vf m = v_set1(mean), s = v_set1(sd);
    for (int64_t i = 0; i < n; i += GROUP, block += KM_VF) {
        vu w[4];
        vf v[4];
        philox(w, seed, stream, block);
        normal_pair(w[0], w[1], &v[0], &v[1]);
        normal_pair(w[2], w[3], &v[2], &v[3]);
        for (int k = 0; k < 4; k++) v[k] = v_fma(v[k], s, m);
        v_transpose4(v);
        store_group(out + i, n - i, v);
    }
}

static void dropout(float *out, const float *x, int64_t n, uint64_t seed, uint64_t stream,
                    uint64_t block, uint32_t least, float scale) {
    vf limit = v_set1((float)least), s = v_set1(scale);
    for (int64_t i = 0; i < n; i += GROUP, block += KM_VF) {
        vu w[4];
        vf v[4];
        philox(w, seed, stream, block);
        for (int k = 0; k < 4; k++) v[k] = upper_bits(w[k]);
        v_transpose4(v);
        for (int k = 0; k < 4; k++) {
            int64_t at = i + k * KM_VF, left = n - at;
            if (left <= 0) break;
            if (left > KM_VF) left = KM_VF;
            vf value = v_keep(v_ge(v[k], limit), v_load_n(x + at, left) * s);
            v_store_n(out + at, value, left);
        }
    }
}

const km_random_rows KM_SIMD(km_simd_random) = {
    .uniform = uniform,
    .normal = normal,
    .dropout = dropout,
};
