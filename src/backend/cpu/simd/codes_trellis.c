/* Vector codes: rows against axes, a step of Viterbi's search through a bit-shift trellis, and the
 * products of a trellis code with a query; what scans ask of a query and an anchor. */
#include "backend/cpu/codes.h"
#include "backend/cpu/simd/simd.h"

static void turn(const float *x, const float *axis, int64_t axes, int64_t dim, float *out,
                 int64_t ldo) {
    for (int64_t j = 0; j < axes; j++, axis += dim) {
        vf s[KM_TURN_ROWS];
        for (int i = 0; i < KM_TURN_ROWS; i++) s[i] = v_zero();
        int64_t k = 0;
        for (; k + KM_VF <= dim; k += KM_VF) {
            vf a = v_load(axis + k);
            for (int i = 0; i < KM_TURN_ROWS; i++) s[i] = v_fma(a, v_load(x + i * dim + k), s[i]);
        }
        if (k < dim) {
            vf a = v_load_n(axis + k, dim - k);
            for (int i = 0; i < KM_TURN_ROWS; i++)
                s[i] = v_fma(a, v_load_n(x + i * dim + k, dim - k), s[i]);
        }
        for (int i = 0; i < KM_TURN_ROWS; i++) out[i * ldo + j] = v_reduce_add(s[i]);
    }
}

static float dot(const float *x, const float *y, int64_t n) {
    vf s = v_zero(), t = v_zero();
    int64_t i = 0;
    for (; i + 2 * KM_VF <= n; i += 2 * KM_VF) {
        s = v_fma(v_load(x + i), v_load(y + i), s);
        t = v_fma(v_load(x + i + KM_VF), v_load(y + i + KM_VF), t);
    }
    for (; i < n; i += KM_VF) {
        int64_t m = n - i < KM_VF ? n - i : KM_VF;
        s = v_fma(v_load_n(x + i, m), v_load_n(y + i, m), s);
    }
    return v_reduce_add(s + t);
}

static float gap(const float *x, const float *y, int64_t n) {
    vf s = v_zero(), t = v_zero();
    int64_t i = 0;
    for (; i + 2 * KM_VF <= n; i += 2 * KM_VF) {
        vf d = v_load(x + i) - v_load(y + i), e = v_load(x + i + KM_VF) - v_load(y + i + KM_VF);
        s = v_fma(d, d, s);
        t = v_fma(e, e, t);
    }
    for (; i < n; i += KM_VF) {
        int64_t m = n - i < KM_VF ? n - i : KM_VF;
        vf d = v_load_n(x + i, m) - v_load_n(y + i, m);
        s = v_fma(d, d, s);
    }
    return v_reduce_add(s + t);
}

KM_INLINE vf offset_at(const float *q, const float *a, const float *amp, float *p, int64_t i) {
    vf x = v_load(q + i);
    if (a) x -= v_load(a + i);
    x *= v_load(amp + i);
    v_store(p + i, x);
    return x;
}

static float offset(const float *q, const float *a, const float *amp, int64_t n, float *p) {
    vf s = v_zero(), t = v_zero();
    int64_t i = 0;
    for (; i + 2 * KM_VF <= n; i += 2 * KM_VF) {
        vf x = offset_at(q, a, amp, p, i), y = offset_at(q, a, amp, p, i + KM_VF);
        s = v_fma(x, x, s);
        t = v_fma(y, y, t);
    }
    for (; i < n; i += KM_VF) {
        vf x = offset_at(q, a, amp, p, i);
        s = v_fma(x, x, s);
    }
    return v_reduce_add(s + t);
}

static float spread_of(const float *p, const float *error, int64_t n) {
    vf s = v_zero(), t = v_zero();
    int64_t i = 0;
    for (; i + 2 * KM_VF <= n; i += 2 * KM_VF) {
        vf x = v_load(p + i), y = v_load(p + i + KM_VF);
        s = v_fma(x * x, v_load(error + i), s);
        t = v_fma(y * y, v_load(error + i + KM_VF), t);
    }
    for (; i < n; i += KM_VF) {
        vf x = v_load(p + i);
        s = v_fma(x * x, v_load(error + i), s);
    }
    return v_reduce_add(s + t);
}

static void add4(float *sum, const float *const x[4], const float w[4], int64_t n) {
    vf a = v_set1(w[0]), b = v_set1(w[1]), c = v_set1(w[2]), d = v_set1(w[3]);
    for (int64_t i = 0; i < n; i += KM_VF) {
        int64_t m = n - i < KM_VF ? n - i : KM_VF;
        vf s = v_fma(a, v_load_n(x[0] + i, m), v_load_n(sum + i, m));
        s = v_fma(b, v_load_n(x[1] + i, m), s);
        s = v_fma(c, v_load_n(x[2] + i, m), s);
        v_store_n(sum + i, v_fma(d, v_load_n(x[3] + i, m), s), m);
    }
}

/* Lane l of the result is lane (first + l) >> rate of m. */
KM_INLINE vf spread(vf m, int first, int rate) {
#if defined(KM_AVX512)
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i from =
        _mm512_srl_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(first)), _mm_cvtsi32_si128(rate));
    return (vf)_mm512_permutexvar_ps(from, (__m512)m);
#elif defined(KM_AVX2)
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    __m256i from =
        _mm256_srl_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(first)), _mm_cvtsi32_si128(rate));
    return (vf)_mm256_permutevar8x32_ps((__m256)m, from);
#elif defined(__aarch64__)
    const uint32x4_t lane = {0, 1, 2, 3};
    uint32x4_t from = vshlq_u32(vaddq_u32(lane, vdupq_n_u32((uint32_t)first)), vdupq_n_s32(-rate));
    from = vmlaq_n_u32(vdupq_n_u32(0x03020100), from, 0x04040404); /* its four bytes */
    return (vf)vqtbl1q_u8((uint8x16_t)m, vreinterpretq_u8_u32(from));
#else
    return (vf){m[first >> rate], m[(first + 1) >> rate], m[(first + 2) >> rate],
                m[(first + 3) >> rate]};
#endif
}

KM_INLINE void step_at(int rate, const float *values, float x, float amp, const float *cost,
                       float *next, uint8_t *back) {
    int group = KM_TRELLIS_STATES >> rate, ways = 1 << rate;
    vf xv = v_set1(x), av = v_set1(amp);
    for (int u = 0; u < group; u += KM_VF) {
        vf best = v_load(cost + u);
        vi from = vi_set1(0);
        for (int j = 1; j < ways; j++) {
            vf c = v_load(cost + j * group + u);
            vm less = v_lt(c, best);
            best = v_select(less, c, best);
            from = vi_select(less, vi_set1(j), from);
        }
        vi_store_bytes(back + u, from);
        for (int i = 0; i < ways * KM_VF; i += KM_VF) {
            int s = (u << rate) + i;
            vf e = v_fnma(av, v_load(values + s), xv);
            v_store(next + s, v_fma(e, e, spread(best, i, rate)));
        }
    }
}

static void step(int rate, const float *values, float x, float amp, float *cost, float *next,
                 uint8_t *back) {
    switch (rate) {
    case 0: {
        vf xv = v_set1(x), av = v_set1(amp);
        for (int s = 0; s < KM_TRELLIS_STATES; s += KM_VF) {
            vf e = v_fnma(av, v_load(values + s), xv);
            v_store(cost + s, v_fma(e, e, v_load(cost + s)));
        }
        break;
    }
    case 1: step_at(1, values, x, amp, cost, next, back); break;
    case 2: step_at(2, values, x, amp, cost, next, back); break;
    case 3: step_at(3, values, x, amp, cost, next, back); break;
    default: step_at(rate, values, x, amp, cost, next, back);
    }
}

/* The values of axes i to i + KM_VF. */
KM_INLINE vf values_at(const km_trellis_plan *plan, const uint8_t *code, int64_t i) {
#if defined(KM_AVX512)
    __m512i at = _mm512_loadu_si512(plan->at + i);
    __m512i word = _mm512_i32gather_epi32(_mm512_srli_epi32(at, 3), code, 1);
    word = _mm512_srlv_epi32(word, _mm512_and_si512(at, _mm512_set1_epi32(7)));
    word = _mm512_and_si512(word, _mm512_set1_epi32(KM_TRELLIS_STATES - 1));
    word = _mm512_add_epi32(word, _mm512_loadu_si512(plan->table + i));
    return (vf)_mm512_i32gather_ps(word, plan->values, 4);
#elif defined(KM_AVX2)
    __m256i at = _mm256_loadu_si256((const __m256i *)(plan->at + i));
    __m256i word = _mm256_i32gather_epi32((const int *)code, _mm256_srli_epi32(at, 3), 1);
    word = _mm256_srlv_epi32(word, _mm256_and_si256(at, _mm256_set1_epi32(7)));
    word = _mm256_and_si256(word, _mm256_set1_epi32(KM_TRELLIS_STATES - 1));
    word = _mm256_add_epi32(word, _mm256_loadu_si256((const __m256i *)(plan->table + i)));
    return (vf)_mm256_i32gather_ps(plan->values, word, 4);
#else
    vf v;
    for (int l = 0; l < KM_VF; l++) {
        int32_t at = plan->at[i + l];
        const uint8_t *b = code + (at >> 3);
        uint32_t word = ((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16) >> (at & 7);
        v[l] = plan->values[(word & (KM_TRELLIS_STATES - 1)) + (uint32_t)plan->table[i + l]];
    }
    return v;
#endif
}

KM_INLINE void trellis_of(const km_trellis_plan *plan, const uint8_t *code, int count,
                          const float *const *p, float *product, float *norm) {
    vf d[KM_TRELLIS_QUERIES], n = v_zero();
    for (int j = 0; j < count; j++) d[j] = v_zero();
    for (int64_t i = 0; i < plan->axes; i += KM_VF) {
        vf v = values_at(plan, code, i), scaled = v * v_load(plan->amp + i);
        for (int j = 0; j < count; j++) d[j] = v_fma(v, v_load(p[j] + i), d[j]);
        n = v_fma(scaled, scaled, n);
    }
    for (int j = 0; j < count; j++) product[j] = v_reduce_add(d[j]);
    *norm = v_reduce_add(n);
}

static void trellis(const km_trellis_plan *plan, const uint8_t *code, int n, const float *const *p,
                    float *product, float *norm) {
    switch (n) { /* sums in registers */
    case 1: trellis_of(plan, code, 1, p, product, norm); break;
    case 2: trellis_of(plan, code, 2, p, product, norm); break;
    case 3: trellis_of(plan, code, 3, p, product, norm); break;
    case 4: trellis_of(plan, code, 4, p, product, norm); break;
    case 5: trellis_of(plan, code, 5, p, product, norm); break;
    case 6: trellis_of(plan, code, 6, p, product, norm); break;
    case 7: trellis_of(plan, code, 7, p, product, norm); break;
    default: trellis_of(plan, code, 8, p, product, norm);
    }
}

const km_code_kernels KM_SIMD(km_simd_codes) = {.turn = turn,
                                                .dot = dot,
                                                .add4 = add4,
                                                .step = step,
                                                .trellis = trellis,
                                                .levels = KM_SIMD(km_code_levels),
                                                .offset = offset,
                                                .gap = gap,
                                                .tables = KM_SIMD(km_code_tables),
                                                .near = KM_SIMD(km_code_near),
                                                .lay = KM_SIMD(km_code_lay),
                                                .spread = spread_of};
