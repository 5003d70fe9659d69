/* Inner loops of attention over the paged cache: a head's norm and rotation, the cache's dtypes, and
 * the products of a few queries with keys and values as they lie in a page. */
#include "backend/cpu/attend.h"
#include "backend/cpu/simd/gemm_simd.h"
#include "backend/cpu/simd/vmath.h"

/* ---- A cache's elements as floats ---- */

KM_INLINE float half_scale(const uint8_t *b) {
    uint16_t h;
    memcpy(&h, b, 2);
#if defined(KM_AVX512) || defined(KM_AVX2)
    return _cvtsh_ss(h);
#else
    return km_f16_to_f32(h);
#endif
}

KM_INLINE vi signed_bytes(const uint8_t *p) {
#if defined(KM_AVX512)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(KM_AVX2)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    vi v;
    for (int i = 0; i < KM_VF; i++) v[i] = (int8_t)p[i];
    return v;
#endif
}

KM_INLINE vi bytes(const uint8_t *p) {
#if defined(KM_AVX512)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(KM_AVX2)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    vi v;
    for (int i = 0; i < KM_VF; i++) v[i] = p[i];
    return v;
#endif
}

/* Elements i .. i + m - 1 of a vector; block dtypes have no tails. */
KM_INLINE vf kv_load(const void *p, int64_t i, int64_t m, const km_dtype cache) {
    if (cache == KM_Q8_0) {
        const uint8_t *b = (const uint8_t *)p + i / 32 * 34;
        return vi_to_float(signed_bytes(b + 2 + i % 32)) * v_set1(half_scale(b));
    }
    if (cache == KM_Q4_0) {
        const uint8_t *b = (const uint8_t *)p + i / 32 * 18;
        vi codes = bytes(b + 2 + i % 16);
        codes = i % 32 < 16 ? codes & vi_set1(15) : codes >> 4;
        return vi_to_float(codes - vi_set1(8)) * v_set1(half_scale(b));
    }
    return row_load_n(p, i, m,
                      cache == KM_F32   ? KM_SLOT_F32
                      : cache == KM_F16 ? KM_SLOT_F16
                                        : KM_SLOT_BF16);
}

KM_INLINE int64_t kv_bytes(int64_t d, const km_dtype cache) {
    return cache == KM_Q8_0   ? d / 32 * 34
           : cache == KM_Q4_0 ? d / 32 * 18
           : cache == KM_F32  ? 4 * d
                              : 2 * d;
}

/* Calls fn(..., dtype) with the dtype a constant. */
#define BY_CACHE(cache, fn, ...)                                                                   \
    switch (cache) {                                                                               \
    case KM_F32: fn(__VA_ARGS__, KM_F32); break;                                                   \
    case KM_F16: fn(__VA_ARGS__, KM_F16); break;                                                   \
    case KM_BF16: fn(__VA_ARGS__, KM_BF16); break;                                                 \
    case KM_Q8_0: fn(__VA_ARGS__, KM_Q8_0); break;                                                 \
    default: fn(__VA_ARGS__, KM_Q4_0); break;                                                      \
    }

KM_INLINE void decode_as(const void *from, int64_t n, float *out, const km_dtype cache) {
    for (int64_t i = 0; i < n; i += KM_VF) {
        int64_t m = row_min(n - i, KM_VF);
        v_store_n(out + i, kv_load(from, i, m, cache), m);
    }
}

static void decode(km_dtype cache, const void *from, int64_t n, float *out) {
    BY_CACHE(cache, decode_as, from, n, out)
}

/* Blocks are rounded as attend.h says, element for element. */
static void encode_q8_0(const float *x, uint8_t *b) {
    vf most = v_zero();
    for (int i = 0; i < 32; i += KM_VF) most = v_max(v_abs(v_load(x + i)), most);
    float d = v_reduce_max(most) / 127, by = d > 0 ? 1 / d : 0;
    uint16_t half = km_f32_to_f16(d);
    memcpy(b, &half, 2);
    for (int i = 0; i < 32; i += KM_VF) {
        vi q = v_to_int(v_load(x + i) * v_set1(by));
        for (int k = 0; k < KM_VF; k++) b[2 + i + k] = (uint8_t)(int8_t)q[k];
    }
}

static void encode(km_dtype cache, const float *x, int64_t n, void *to) {
    int slot = km_float_slot(cache);
    uint8_t *b = to;
    for (int64_t i = 0; i < n && slot >= 0; i += KM_VF) {
        int64_t m = row_min(n - i, KM_VF);
        row_store_n(to, i, v_load_n(x + i, m), m, slot);
    }
    for (int64_t i = 0; i < n && cache == KM_Q8_0; i += 32, b += 34) encode_q8_0(x + i, b);
    for (int64_t i = 0; i < n && cache == KM_Q4_0; i += 32, b += 18) km_attend_q4_0(x + i, b);
}

/* ---- A head ---- */

static void rotate(float *x, const float *turn, int64_t dims, bool adjacent) {
    const float *c = turn, *s = turn + dims;
    int64_t half = dims / 2;
    if (adjacent) {
        for (int64_t i = 0; i < dims; i += KM_VF) {
            int64_t m = row_min(dims - i, KM_VF);
            vf a = v_load_n(x + i, m);
            v_store_n(x + i, v_fma(swap_pairs(a), v_load_n(s + i, m), a * v_load_n(c + i, m)), m);
        }
        return;
    }
    for (int64_t i = 0; i < half; i += KM_VF) {
        int64_t m = row_min(half - i, KM_VF);
        vf a = v_load_n(x + i, m), b = v_load_n(x + half + i, m);
        vf co = v_load_n(c + i, m), si = v_load_n(s + half + i, m);
        v_store_n(x + i, v_fnma(b, si, a * co), m);
        v_store_n(x + half + i, v_fma(a, si, b * co), m);
    }
}

static void head(float *out, const void *x, km_dtype dtype, int64_t d, const float *w, float eps,
                 const float *turn, int64_t dims, bool adjacent, float by) {
    int slot = km_float_slot(dtype);
    vf squares = v_zero();
    for (int64_t i = 0; i < d; i += KM_VF) {
        int64_t m = row_min(d - i, KM_VF);
        vf v = row_load_n(x, i, m, slot);
        v_store_n(out + i, v, m);
        squares = v_fma(v, v, squares);
    }
    if (w) {
        vf r = v_set1(1 / __builtin_sqrtf(v_reduce_add(squares) / (float)d + eps));
        for (int64_t i = 0; i < d; i += KM_VF) {
            int64_t m = row_min(d - i, KM_VF);
            v_store_n(out + i, v_load_n(out + i, m) * r * v_load_n(w + i, m), m);
        }
    }
    if (dims) rotate(out, turn, dims, adjacent);
    if (by == 1) return;
    for (int64_t i = 0; i < d; i += KM_VF) {
        int64_t m = row_min(d - i, KM_VF);
        v_store_n(out + i, v_load_n(out + i, m) * by, m);
    }
}

/* ---- Queries against keys ---- */

/* The sums over the lanes of four vectors. */
KM_INLINE void four_sums(vf a, vf b, vf c, vf e, float *to) {
    vf v[4] = {a, b, c, e};
    v_transpose4(v);
    vf s = (v[0] + v[1]) + (v[2] + v[3]);
#if defined(KM_AVX512)
    __m256 h = _mm256_add_ps(v_half(s, 0), v_half(s, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#elif defined(KM_AVX2)
    _mm_storeu_ps(
        to, _mm_add_ps(_mm256_castps256_ps128((__m256)s), _mm256_extractf128_ps((__m256)s, 1)));
#else
    v_store(to, s);
#endif
}

#if defined(KM_AVX512)
#define HEADS 4   /* queries at a time */
#define VECTORS 4 /* of values at a time */
#else
#define HEADS 2
#define VECTORS 2
#endif

#define AHEAD                                                                                      \
    2048 /* bytes by which memory is asked for: a page is short for the processor to see */

/* G queries, keys four at a time; the last few are some of the four twice. */
KM_INLINE void scores_of(const char *keys, int64_t n, int64_t d, const float *q, float *s,
                         int64_t lds, const int G, const bool whole, const km_dtype cache) {
    int64_t each = kv_bytes(d, cache);
    for (int64_t j = 0; j < n; j += 4) {
        const char *k[4];
        for (int t = 0; t < 4; t++) k[t] = keys + (j + t < n ? j + t : n - 1) * each;
        for (int64_t at = 0; at < 4 * each; at += 64) KM_FETCH(k[0] + AHEAD + at);
        vf sum[HEADS][4];
        KM_UNROLL
        for (int g = 0; g < G; g++) KM_UNROLL
        for (int t = 0; t < 4; t++) sum[g][t] = v_zero();
        for (int64_t i = 0; i < d; i += KM_VF) {
            int64_t m = whole ? KM_VF : row_min(d - i, KM_VF);
            vf x[HEADS];
            KM_UNROLL
            for (int g = 0; g < G; g++)
                x[g] = whole ? v_load(q + g * d + i) : v_load_n(q + g * d + i, m);
            KM_UNROLL
            for (int t = 0; t < 4; t++) {
                vf y = kv_load(k[t], i, m, cache);
                KM_UNROLL
                for (int g = 0; g < G; g++) sum[g][t] = v_fma(x[g], y, sum[g][t]);
            }
        }
        float out[4];
        KM_UNROLL
        for (int g = 0; g < G; g++) {
            float *to = j + 4 <= n ? s + g * lds + j : out;
            four_sums(sum[g][0], sum[g][1], sum[g][2], sum[g][3], to);
            for (int t = 0; t < 4 && to == out && j + t < n; t++) s[g * lds + j + t] = out[t];
        }
    }
}

KM_INLINE void scores_by(const void *keys, int64_t n, int64_t d, const float *q, float *s,
                         int64_t lds, const int G, const km_dtype cache) {
    if (d % KM_VF == 0)
        scores_of(keys, n, d, q, s, lds, G, true, cache);
    else
        scores_of(keys, n, d, q, s, lds, G, false, cache);
}

KM_INLINE void scores_as(const void *keys, int64_t n, int64_t d, const float *q, int64_t group,
                         float *s, int64_t lds, const km_dtype cache) {
    int64_t g = 0;
#if HEADS == 4
    for (; g + 4 <= group; g += 4) scores_by(keys, n, d, q + g * d, s + g * lds, lds, 4, cache);
    if (g + 3 <= group) {
        scores_by(keys, n, d, q + g * d, s + g * lds, lds, 3, cache);
        g += 3;
    }
#endif
    for (; g + 2 <= group; g += 2) scores_by(keys, n, d, q + g * d, s + g * lds, lds, 2, cache);
    if (g < group) scores_by(keys, n, d, q + g * d, s + g * lds, lds, 1, cache);
}

static void scores(km_dtype cache, const void *keys, int64_t n, int64_t d, const float *q,
                   int64_t group, float *s,
                   int64_t lds){BY_CACHE(cache, scores_as, keys, n, d, q, group, s, lds)}

/* ---- Weighted sums of values ---- */

KM_INLINE void values_of(const char *values, int64_t n, int64_t d, const float *p, int64_t ldp,
                         float *acc, const int G, const km_dtype cache) {
    int64_t each = kv_bytes(d, cache), i = 0;
    for (; i + VECTORS * KM_VF <= d; i += VECTORS * KM_VF) {
        vf sum[HEADS][VECTORS];
        KM_UNROLL
        for (int g = 0; g < G; g++) KM_UNROLL
        for (int u = 0; u < VECTORS; u++) sum[g][u] = v_load(acc + g * d + i + u * KM_VF);
        for (int64_t j = 0; j < n; j++) {
            vf y[VECTORS];
            for (int64_t at = 0; at < each && i == 0; at += 64)
                KM_FETCH(values + j * each + AHEAD + at);
            KM_UNROLL
            for (int u = 0; u < VECTORS; u++)
                y[u] = kv_load(values + j * each, i + u * KM_VF, KM_VF, cache);
            KM_UNROLL
            for (int g = 0; g < G; g++) {
                vf w = v_set1(p[g * ldp + j]);
                KM_UNROLL
                for (int u = 0; u < VECTORS; u++) sum[g][u] = v_fma(w, y[u], sum[g][u]);
            }
        }
        KM_UNROLL
        for (int g = 0; g < G; g++) KM_UNROLL
        for (int u = 0; u < VECTORS; u++) v_store(acc + g * d + i + u * KM_VF, sum[g][u]);
    }
    for (; i < d; i += KM_VF) {
        int64_t m = row_min(d - i, KM_VF);
        vf sum[HEADS];
        for (int g = 0; g < G; g++) sum[g] = v_load_n(acc + g * d + i, m);
        for (int64_t j = 0; j < n; j++) {
            vf y = kv_load(values + j * each, i, m, cache);
            for (int g = 0; g < G; g++) sum[g] = v_fma(v_set1(p[g * ldp + j]), y, sum[g]);
        }
        for (int g = 0; g < G; g++) v_store_n(acc + g * d + i, sum[g], m);
    }
}

KM_INLINE void values_as(const void *values, int64_t n, int64_t d, const float *p, int64_t ldp,
                         int64_t group, float *acc, const km_dtype cache) {
    int64_t g = 0;
#if HEADS == 4
    for (; g + 4 <= group; g += 4) values_of(values, n, d, p + g * ldp, ldp, acc + g * d, 4, cache);
    if (g + 3 <= group) {
        values_of(values, n, d, p + g * ldp, ldp, acc + g * d, 3, cache);
        g += 3;
    }
#endif
    for (; g + 2 <= group; g += 2) values_of(values, n, d, p + g * ldp, ldp, acc + g * d, 2, cache);
    if (g < group) values_of(values, n, d, p + g * ldp, ldp, acc + g * d, 1, cache);
}

static void values(km_dtype cache, const void *from, int64_t n, int64_t d, const float *p,
                   int64_t ldp, int64_t group, float *acc) {
    BY_CACHE(cache, values_as, from, n, d, p, ldp, group, acc)
}

static void cap(float *s, int64_t lds, int64_t rows, int64_t n, float most) {
    vf by = v_set1(1 / most), top = v_set1(most);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += KM_VF) {
            int64_t m = row_min(n - i, KM_VF);
            float *at = s + r * lds + i;
            v_store_n(at, v_tanh(v_load_n(at, m) * by) * top, m);
        }
}

const km_attend_kernels KM_SIMD(km_simd_attend) = {
    .head = head,
    .encode = encode,
    .decode = decode,
    .scores = scores,
    .values = values,
    .cap = cap,
};
