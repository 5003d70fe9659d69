/* What the kernels for weights in blocks need beyond simd.h: vectors of bytes, products of bytes
 * summed by fours, and the small tables of scales. A vector of bytes holds 16 elements of each of
 * KM_QG groups: four with AVX-512, two with AVX2, else one. All names below hold for every set, so
 * that each type of block is taken apart in one place only (quant_codes.h). */
#ifndef KM_BACKEND_CPU_SIMD_QUANT_VEC_H
#define KM_BACKEND_CPU_SIMD_QUANT_VEC_H
#include "backend/cpu/quant_kernels.h"
#include "backend/cpu/simd/simd.h"
#include "tensor/quant.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define KM_QG (KM_VF / 4)   /* groups in a vector of bytes */
#define KM_QV (8 / KM_QG)   /* pairs of such vectors in a step */
#define KM_Q16 (16 / KM_VF) /* float vectors that hold 16 values */
/* Before loops of a constant few turns, where what they index are registers. */
#if KM_QG == 1 && !defined(__wasm_simd128__)
#define KM_UNROLL
#elif defined(__clang__)
#define KM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KM_UNROLL _Pragma("GCC unroll 16")
#endif

/* A step of a tile of x in words, each pair of all rows together (by fours). */
#if defined(KM_AVX512)
#define KM_WORD_ROWS 12
#else
#define KM_WORD_ROWS 4
#endif
typedef struct km_word_tile {
    int32_t pair[KM_QUANT_PAIRS][KM_WORD_ROWS];
    float scale[16];
} km_word_tile;

typedef uint8_t vb __attribute__((vector_size(4 * KM_VF)));

/* Codes of types that use all 8 bits: unsigned with an offset of 128 where the processor multiplies
 * unsigned by signed bytes without saturation, else signed. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define KM_VNNI 1
#define KM_WIDE_OFFSET 128
#else
#define KM_WIDE_OFFSET 0
#endif

/* ---- Bytes ---- */

KM_INLINE vb vb_set1(uint8_t x) {
#if defined(KM_AVX512)
    return (vb)_mm512_set1_epi8((char)x);
#elif defined(KM_AVX2)
    return (vb)_mm256_set1_epi8((char)x);
#else
    return (vb){0} + x;
#endif
}

KM_INLINE vb vb_load(const void *p) {
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* 16 bytes from each p[q], q < KM_QG. */
KM_INLINE vb vb_join(const uint8_t *const p[4]) {
#if defined(KM_AVX512)
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)p[0]));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)p[1]), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)p[2]), 2);
    return (vb)_mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)p[3]), 3);
#elif defined(KM_AVX2)
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p[0]));
    return (vb)_mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(const void *)p[1]), 1);
#else
    return vb_load(p[0]);
#endif
}

/* 16 bytes from b for the groups whose bit is set in from_b, from a for the others. */
KM_INLINE vb vb_pick(const uint8_t *a, const uint8_t *b, const int from_b) {
    const uint8_t *p[4] = {from_b & 1 ? b : a, from_b & 2 ? b : a, a, a};
#if defined(KM_AVX512)
    static const __mmask16 lanes[16] = {0x0000, 0x000f, 0x00f0, 0x00ff, 0x0f00, 0x0f0f,
                                        0x0ff0, 0x0fff, 0xf000, 0xf00f, 0xf0f0, 0xf0ff,
                                        0xff00, 0xff0f, 0xfff0, 0xffff};
    (void)p;
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)a));
    if (!from_b) return (vb)v;
    return (vb)_mm512_mask_broadcast_i32x4(v, lanes[from_b],
                                           _mm_loadu_si128((const __m128i *)(const void *)b));
#elif defined(KM_AVX2)
    if (p[0] != p[1]) return vb_join(p);
    return (vb)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p[0]));
#else
    return vb_join(p);
#endif
}

/* The bytes of group q shifted right by by[q] bits, and what is left masked. */
KM_INLINE vb vb_shift(vb v, const int by[4], uint8_t mask) {
#if defined(KM_AVX512)
    __m512i n = _mm512_setr_epi64(by[0], by[0], by[1], by[1], by[2], by[2], by[3], by[3]);
    return (vb)_mm512_srlv_epi64((__m512i)v, n) & vb_set1(mask);
#elif defined(KM_AVX2)
    __m256i n = _mm256_setr_epi64x(by[0], by[0], by[1], by[1]);
    return (vb)_mm256_srlv_epi64((__m256i)v, n) & vb_set1(mask);
#elif defined(__wasm_simd128__) /* bits of the byte beside it are masked away */
    return (vb)wasm_u16x8_shr((v128_t)v, (uint32_t)by[0]) & vb_set1(mask);
#else
    return (v >> by[0]) & vb_set1(mask);
#endif
}
KM_INLINE vb vb_low(vb v) { return v & vb_set1(15); }
KM_INLINE vb vb_high(vb v) { return vb_shift(v, (const int[4]){4, 4, 4, 4}, 15); }
/* v << n for bytes whose top n bits are clear. */
KM_INLINE vb vb_raise(vb v, int n) {
#if defined(KM_AVX512)
    return (vb)_mm512_slli_epi16((__m512i)v, (unsigned)n);
#elif defined(KM_AVX2)
    return (vb)_mm256_slli_epi16((__m256i)v, n);
#elif defined(__wasm_simd128__)
    return (vb)wasm_i16x8_shl((v128_t)v, (uint32_t)n);
#else
    return v << n;
#endif
}

/* `value` where group q's bytes have bit bit[q] set, else 0. */
KM_INLINE vb vb_where_bit(vb v, const int bit[4], uint8_t value) {
#if defined(KM_AVX512)
    __m512i m = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_set1_epi8((char)(1 << bit[0])),
                                                       _mm_set1_epi8((char)(1 << bit[1])), 1)),
        _mm256_inserti128_si256(_mm256_set1_epi8((char)(1 << bit[2])),
                                _mm_set1_epi8((char)(1 << bit[3])), 1),
        1);
    return (vb)_mm512_maskz_mov_epi8(_mm512_test_epi8_mask((__m512i)v, m), (__m512i)vb_set1(value));
#elif defined(KM_AVX2)
    __m256i m = _mm256_inserti128_si256(_mm256_set1_epi8((char)(1 << bit[0])),
                                        _mm_set1_epi8((char)(1 << bit[1])), 1);
    return (vb)_mm256_cmpeq_epi8(_mm256_and_si256((__m256i)v, m), m) & vb_set1(value);
#elif defined(__wasm_simd128__)
    vb m = vb_set1((uint8_t)(1 << bit[0]));
    return (vb)wasm_i8x16_eq((v128_t)(v & m), (v128_t)m) & vb_set1(value);
#else
    return ((v >> bit[0]) & 1) * value;
#endif
}

/* `value` for byte i of group q where bit i of bits[q] is set, else 0. */
KM_INLINE vb vb_from_bits(const uint16_t bits[4], uint8_t value) {
#if defined(KM_AVX512)
    uint64_t m =
        bits[0] | (uint64_t)bits[1] << 16 | (uint64_t)bits[2] << 32 | (uint64_t)bits[3] << 48;
    return (vb)_mm512_maskz_set1_epi8(m, (char)value);
#elif defined(KM_AVX2)
    __m256i v = _mm256_set1_epi32((int)(bits[0] | (uint32_t)bits[1] << 16));
    v = _mm256_shuffle_epi8(v, _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                                2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    __m256i m = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    return (vb)_mm256_cmpeq_epi8(_mm256_and_si256(v, m), m) & vb_set1(value);
#elif defined(__wasm_simd128__)
    v128_t v = wasm_i16x8_splat((int16_t)bits[0]),
           m = wasm_i64x2_splat((int64_t)0x8040201008040201ull);
    v = wasm_i8x16_shuffle(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return (vb)wasm_i8x16_eq(wasm_v128_and(v, m), m) & vb_set1(value);
#else
    uint8_t b[16];
    for (int i = 0; i < 16; i++) b[i] = bits[0] >> i & 1 ? value : 0;
    return vb_load(b);
#endif
}

/* table[v], for bytes below 16. */
KM_INLINE vb vb_lookup(vb v, const int8_t table[16]) {
#if defined(KM_AVX512)
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), (__m512i)v);
#elif defined(KM_AVX2)
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), (__m256i)v);
#elif defined(__aarch64__)
    return (vb)vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table)), (uint8x16_t)v);
#elif defined(__wasm_simd128__)
    return (vb)wasm_i8x16_swizzle(wasm_v128_load(table), (v128_t)v);
#else
    uint8_t b[16];
    for (int i = 0; i < 16; i++) b[i] = (uint8_t)table[v[i]];
    return vb_load(b);
#endif
}

/* ---- Products ---- */

/* acc + the sums of four products of bytes of w and of x in each lane. w's bytes are at most 127, or
 * (`wide`) any, meant as KM_WIDE_OFFSET says. */
KM_INLINE vi vi_dot(vi acc, vb w, vb x, bool wide) {
#if defined(KM_AVX512) && defined(KM_VNNI)
    (void)wide;
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(KM_AVX512)
    __m512i a = (__m512i)w, b = (__m512i)x;
    if (wide) { /* |w| times x with w's sign */
        b = _mm512_mask_sub_epi8(b, _mm512_movepi8_mask(a), _mm512_setzero_si512(), b);
        a = _mm512_abs_epi8(a);
    }
    __m512i s = _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1));
    return acc + (vi)s;
#elif defined(KM_AVX2) && defined(KM_VNNI)
    (void)wide;
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif defined(KM_AVX2)
    __m256i a = (__m256i)w, b = (__m256i)x;
    if (wide) {
        b = _mm256_sign_epi8(b, a);
        a = _mm256_abs_epi8(a);
    }
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
    return acc + (vi)s;
#elif defined(__ARM_FEATURE_DOTPROD)
    (void)wide;
    return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
#elif defined(__aarch64__)
    (void)wide; /* at most 127, or signed: a signed byte either way, as below */
    int8x16_t a = (int8x16_t)w, b = (int8x16_t)x;
    int32x4_t lo = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    int32x4_t hi = vpaddlq_s16(vmull_high_s8(a, b));
    return acc + (vi)vpaddq_s32(lo, hi);
#elif defined(__x86_64__)
    (void)wide;
    __m128i a = (__m128i)w, b = (__m128i)x;
    __m128i lo = _mm_madd_epi16(_mm_srai_epi16(_mm_unpacklo_epi8(a, a), 8),
                                _mm_srai_epi16(_mm_unpacklo_epi8(b, b), 8));
    __m128i hi = _mm_madd_epi16(_mm_srai_epi16(_mm_unpackhi_epi8(a, a), 8),
                                _mm_srai_epi16(_mm_unpackhi_epi8(b, b), 8));
    __m128 l = _mm_castsi128_ps(lo), h = _mm_castsi128_ps(hi);
    return acc + (vi)_mm_shuffle_ps(l, h, 0x88) + (vi)_mm_shuffle_ps(l, h, 0xdd);
#elif defined(__wasm_simd128__)
    (void)wide;
    v128_t a = (v128_t)w, b = (v128_t)x;
    v128_t lo =
        wasm_i32x4_dot_i16x8(wasm_i16x8_extend_low_i8x16(a), wasm_i16x8_extend_low_i8x16(b));
    v128_t hi =
        wasm_i32x4_dot_i16x8(wasm_i16x8_extend_high_i8x16(a), wasm_i16x8_extend_high_i8x16(b));
    return acc + (vi)wasm_i32x4_shuffle(lo, hi, 0, 2, 4, 6) +
           (vi)wasm_i32x4_shuffle(lo, hi, 1, 3, 5, 7);
#else
    (void)wide;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) acc[i] += (int8_t)w[4 * i + k] * (int8_t)x[4 * i + k];
    return acc;
#endif
}

/* Sums of the first plane's products, to which the second plane's are added. */
KM_INLINE vi vi_shift_up(vi sum) { return (vi)((vu)sum << KM_QUANT_LOW_BITS); }

/* Without VNNI: products of pairs of bytes added up in 16 bits, as many as fit (see
 * pairs_together in quant_tile.c), and later joined. */
#if defined(KM_AVX512) && !defined(KM_VNNI)
KM_INLINE vi vi_add_pairs(vi few, vb w, vb x) {
    return (vi)_mm512_add_epi16((__m512i)few, _mm512_maddubs_epi16((__m512i)w, (__m512i)x));
}
KM_INLINE vi vi_join_pairs(vi few) {
    return (vi)_mm512_madd_epi16((__m512i)few, _mm512_set1_epi16(1));
}
#elif defined(KM_AVX2) && !defined(KM_VNNI)
KM_INLINE vi vi_add_pairs(vi few, vb w, vb x) {
    return (vi)_mm256_add_epi16((__m256i)few, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
}
KM_INLINE vi vi_join_pairs(vi few) {
    return (vi)_mm256_madd_epi16((__m256i)few, _mm256_set1_epi16(1));
}
#endif

/* Four bytes in every lane. */
KM_INLINE vb vb_four(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return (vb)vi_set1(four);
}

/* ---- Tables of 8 or 16 floats ---- */

typedef struct q16 {
    vf v[KM_Q16]; /* of 8: the first half; the rest is zero, or is not looked at */
} q16;
#define KM_Q8 (KM_VF > 8 ? 1 : 8 / KM_VF) /* vectors that hold the first 8 */

KM_INLINE q16 q16_zero(void) {
    q16 q;
    KM_UNROLL
    for (int i = 0; i < KM_Q16; i++) q.v[i] = v_zero();
    return q;
}

KM_INLINE int32_t q_four_bytes(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

#if defined(KM_AVX512) || defined(KM_AVX2)
/* Eight times four bytes that lie `stride` bytes apart; a gather takes longer. */
KM_INLINE __m256i q_eight_fours(const uint8_t *p, const int stride) {
#ifdef KM_AVX512
    if (stride == 20) {
        __m512i at = _mm512_setr_epi32(0, 5, 10, 15, 16, 21, 26, 31, 0, 0, 0, 0, 0, 0, 0, 0);
        return _mm512_castsi512_si256(
            _mm512_permutex2var_epi32(_mm512_loadu_si512(p), at, _mm512_loadu_si512(p + 80)));
    }
#endif
    __m128i half[2];
    KM_UNROLL
    for (int h = 0; h < 2; h++, p += 4 * stride) {
        half[h] = _mm_cvtsi32_si128(q_four_bytes(p));
        half[h] = _mm_insert_epi32(half[h], q_four_bytes(p + stride), 1);
        half[h] = _mm_insert_epi32(half[h], q_four_bytes(p + 2 * stride), 2);
        half[h] = _mm_insert_epi32(half[h], q_four_bytes(p + 3 * stride), 3);
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half[0]), half[1], 1);
}
#endif

/* Eight pairs of f16 that lie `stride` bytes apart: the first of each, and the second. */
KM_INLINE void q16_f16_pairs(const uint8_t *p, const int stride, q16 *first, q16 *second) {
    *first = *second = q16_zero();
#if defined(KM_AVX512) || defined(KM_AVX2)
    __m256i v = q_eight_fours(p, stride);
    /* In each half of the vector the four firsts, then the four seconds. */
    v = _mm256_shuffle_epi8(v,
                            _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                             0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    v = _mm256_permute4x64_epi64(v, 0xd8);
#ifdef KM_AVX512
    vf wide = (vf)_mm512_cvtph_ps(v);
    first->v[0] = (vf)_mm512_zextps256_ps512(_mm512_castps512_ps256((__m512)wide));
    second->v[0] = (vf)_mm512_zextps256_ps512(_mm512_extractf32x8_ps((__m512)wide, 1));
#else
    first->v[0] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(v));
    second->v[0] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
#endif
#elif defined(__wasm_simd128__)
    KM_UNROLL
    for (int h = 0; h < 2; h++, p += 4 * stride) {
        v128_t v = wasm_v128_load32_zero(p);
        v = wasm_v128_load32_lane(p + stride, v, 1);
        v = wasm_v128_load32_lane(p + 2 * stride, v, 2);
        v = wasm_v128_load32_lane(p + 3 * stride, v, 3);
        first->v[h] = v_from_f16_bits((vu)v & 0xffffu);
        second->v[h] = v_from_f16_bits((vu)v >> 16);
    }
#else
    float f[8], s[8];
    for (int i = 0; i < 8; i++) {
        f[i] = km_load_f16(p + i * stride);
        s[i] = km_load_f16(p + i * stride + 2);
    }
    memcpy(first, f, sizeof f);
    memcpy(second, s, sizeof s);
#endif
}

/* Eight f16 that lie `stride` bytes apart. */
KM_INLINE q16 q16_f16(const uint8_t *p, const int stride) {
#if defined(KM_AVX512) || defined(KM_AVX2)
    /* Put together by scalar instructions: what moves among lanes has a port or two. */
    uint64_t half[2] = {0, 0};
    KM_UNROLL
    for (int i = 0; i < 8; i++) half[i / 4] |= (uint64_t)km_load_u16(p + i * stride) << i % 4 * 16;
    __asm__("" : "+r"(half[0]), "+r"(half[1]));
    __m128i v = _mm_set_epi64x((long long)half[1], (long long)half[0]);
    q16 q = q16_zero();
#ifdef KM_AVX512
    q.v[0] = (vf)_mm512_zextps256_ps512(_mm256_cvtph_ps(v));
#else
    q.v[0] = (vf)_mm256_cvtph_ps(v);
#endif
    return q;
#else
    q16 first, second;
    q16_f16_pairs(p, stride, &first, &second);
    return first;
#endif
}

/* Bytes as floats: eight in lo and, of a table of 16, eight in hi. */
KM_INLINE q16 q16_bytes(uint64_t lo, uint64_t hi, bool is_signed) {
    q16 q;
#if defined(KM_AVX512)
    __m128i b = _mm_set_epi64x((long long)hi, (long long)lo);
    __m512i i = is_signed ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b);
    q.v[0] = (vf)_mm512_cvtepi32_ps(i);
#elif defined(KM_AVX2)
    __m128i b[2] = {_mm_cvtsi64_si128((long long)lo), _mm_cvtsi64_si128((long long)hi)};
    KM_UNROLL
    for (int k = 0; k < 2; k++)
        q.v[k] = (vf)_mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b[k])
                                                  : _mm256_cvtepu8_epi32(b[k]));
#elif defined(__wasm_simd128__)
    v128_t b = wasm_i64x2_make((int64_t)lo, (int64_t)hi), w[2];
    w[0] = is_signed ? wasm_i16x8_extend_low_i8x16(b) : wasm_u16x8_extend_low_u8x16(b);
    w[1] = is_signed ? wasm_i16x8_extend_high_i8x16(b) : wasm_u16x8_extend_high_u8x16(b);
    KM_UNROLL
    for (int k = 0; k < 2; k++) {
        q.v[2 * k] = vi_to_float((vi)wasm_i32x4_extend_low_i16x8(w[k]));
        q.v[2 * k + 1] = vi_to_float((vi)wasm_i32x4_extend_high_i16x8(w[k]));
    }
#else
    float f[16];
    for (int k = 0; k < 16; k++) {
        uint8_t u = (uint8_t)((k < 8 ? lo : hi) >> (k % 8 * 8));
        f[k] = is_signed ? (float)(int8_t)u : (float)u;
    }
    memcpy(&q, f, sizeof q);
#endif
    return q;
}

KM_INLINE q16 q16_times(q16 q, float by) {
    KM_UNROLL
    for (int i = 0; i < KM_Q16; i++) q.v[i] *= v_set1(by);
    return q;
}

/* Two tables of eight bytes, each times its own f16 at p and p + 2; the second less than zero. */
KM_INLINE void q16_two_tables(uint64_t a, uint64_t b, const uint8_t *p, q16 *first, q16 *second) {
#if defined(KM_AVX512)
    __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512 by = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(q_four_bytes(p))));
    vf both = q16_bytes(a, b, false).v[0] * (vf)_mm512_permutexvar_ps(at, by);
    first->v[0] = both; /* the rest is not looked at */
    second->v[0] = v_neg((vf)_mm512_zextps256_ps512(_mm512_extractf32x8_ps((__m512)both, 1)));
#else
    *first = q16_times(q16_bytes(a, 0, false), km_load_f16(p));
    *second = q16_times(q16_bytes(b, 0, false), -km_load_f16(p + 2));
#endif
}

/* The first n of eight; the others become zero whatever they were. */
KM_INLINE q16 q16_first(q16 q, int n) {
#if defined(KM_AVX512)
    q.v[0] = v_keep(v_tail_mask(n), q.v[0]);
#elif defined(KM_AVX2)
    q.v[0] = v_keep((vm)v_tail_mask(n), q.v[0]);
#else
    float f[16];
    memcpy(f, &q, sizeof f);
    for (int i = n; i < 8; i++) f[i] = 0;
    memcpy(&q, f, sizeof f);
#endif
    return q;
}

/* Eight floats, each twice. */
KM_INLINE q16 q16_twice(const float *p) {
    q16 q;
#if defined(KM_AVX512)
    __m512i at = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    q.v[0] = (vf)_mm512_permutexvar_ps(at, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
#elif defined(KM_AVX2)
    __m256 v = _mm256_loadu_ps(p);
    q.v[0] = (vf)_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    q.v[1] = (vf)_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
#elif defined(__wasm_simd128__)
    vf lo = v_load(p), hi = v_load(p + 4);
    q.v[0] = __builtin_shufflevector(lo, lo, 0, 0, 1, 1);
    q.v[1] = __builtin_shufflevector(lo, lo, 2, 2, 3, 3);
    q.v[2] = __builtin_shufflevector(hi, hi, 0, 0, 1, 1);
    q.v[3] = __builtin_shufflevector(hi, hi, 2, 2, 3, 3);
#else
    float f[16];
    for (int i = 0; i < 16; i++) f[i] = p[i / 2];
    memcpy(&q, f, sizeof q);
#endif
    return q;
}

/* Lane i is value at + step * (i / 4) of the table: a scale for each group's four sums. */
KM_INLINE vf q16_spread(const q16 *q, const int at, const int step) {
#if defined(KM_AVX512)
    int a = at, b = at + step, c = at + 2 * step, d = at + 3 * step;
    __m512i where = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
    return (vf)_mm512_permutexvar_ps(where, (__m512)q->v[0]);
#elif defined(KM_AVX2)
    int a = at % 8, b = at % 8 + step;
    __m256i where = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
    return (vf)_mm256_permutevar8x32_ps((__m256)q->v[at / 8], where);
#else
    (void)step;
    return v_set1(q->v[at / 4][at % 4]);
#endif
}

#endif
