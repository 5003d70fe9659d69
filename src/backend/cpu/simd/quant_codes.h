/* A step of weights (256 elements) taken apart: codes as bytes, in the order of km_quant_x, and of
 * each group of 32 (or of 16) a scale and a least value, so that an element is
 * scale * code + least. What the bytes of each type mean is in tensor/quant.c. */
#ifndef KM_BACKEND_CPU_SIMD_QUANT_CODES_H
#define KM_BACKEND_CPU_SIMD_QUANT_CODES_H
#include "backend/cpu/simd/quant_vec.h"

/* Kernels are compiled apart for each number of rows and kind of activations. With sanitizers, for which gcc
 * takes half a minute over all of them, one row and several do, and one function serves both kinds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KM_FEWER_COPIES 1
#else
#define KM_FEWER_COPIES 0
#endif

/* ---- What distinguishes the types ---- */

/* clang-format off */
#define KM_QUANT_TYPES(X)                                                                          \
    X(KM_Q4_0, q4_0) X(KM_Q4_1, q4_1) X(KM_Q5_0, q5_0) X(KM_Q5_1, q5_1) X(KM_Q8_0, q8_0)           \
    X(KM_Q2_K, q2_k) X(KM_Q3_K, q3_k) X(KM_Q4_K, q4_k) X(KM_Q5_K, q5_k) X(KM_Q6_K, q6_k)           \
    X(KM_IQ4_NL, iq4_nl) X(KM_IQ4_XS, iq4_xs) X(KM_MXFP4, mxfp4)
/* clang-format on */

KM_INLINE int step_bytes(const km_dtype d) {
    switch (d) {
    case KM_Q4_0:
    case KM_IQ4_NL: return 8 * 18;
    case KM_Q4_1: return 8 * 20;
    case KM_Q5_0: return 8 * 22;
    case KM_Q5_1: return 8 * 24;
    case KM_Q8_0: return 8 * 34;
    case KM_MXFP4: return 8 * 17;
    case KM_Q2_K: return 84;
    case KM_Q3_K: return 110;
    case KM_Q4_K: return 144;
    case KM_Q5_K: return 176;
    case KM_Q6_K: return 210;
    default: return 136; /* iq4_xs */
    }
}

/* Blocks of 32: rows may end within a step. */
KM_INLINE bool in_small_blocks(const km_dtype d) {
    return d == KM_Q4_0 || d == KM_Q4_1 || d == KM_Q5_0 || d == KM_Q5_1 || d == KM_Q8_0 ||
           d == KM_IQ4_NL || d == KM_MXFP4;
}

/* A scale for each 16 elements, not 32. */
KM_INLINE bool by_halves(const km_dtype d) { return d == KM_Q2_K || d == KM_Q3_K || d == KM_Q6_K; }

/* Codes may be above 127. */
KM_INLINE bool is_wide(const km_dtype d) {
    return d == KM_Q8_0 || d == KM_IQ4_NL || d == KM_IQ4_XS;
}

/* The code that stands for zero. */
KM_INLINE int offset_of(const km_dtype d) {
    switch (d) {
    case KM_Q4_0: return 8;
    case KM_Q5_0: return 16;
    case KM_Q3_K: return 4;
    case KM_Q6_K: return 32;
    case KM_MXFP4: return 12;
    case KM_Q8_0:
    case KM_IQ4_NL:
    case KM_IQ4_XS: return KM_WIDE_OFFSET;
    default: return 0;
    }
}

/* Its blocks hold their least value themselves. */
KM_INLINE bool has_least(const km_dtype d) {
    return d == KM_Q4_1 || d == KM_Q5_1 || d == KM_Q2_K || d == KM_Q4_K || d == KM_Q5_K;
}

/* ---- Codes ---- */

/* 16 bytes of each of the vth groups, from places `stride` apart. */
KM_INLINE vb pieces(const uint8_t *b, int v, const int stride) {
#ifdef KM_AVX512
    if (stride ==
        20) { /* whole numbers of 32 bits apart: a permutation, where joining takes three */
        const uint8_t *from = b + v * KM_QG * stride;
        __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 18, 19);
        __m128i last = _mm_loadu_si128((const __m128i *)(const void *)(from + 60));
        return (vb)_mm512_permutex2var_epi32(_mm512_loadu_si512(from), at,
                                             _mm512_castsi128_si512(last));
    }
#endif
    const uint8_t *p[4];
    KM_UNROLL
    for (int q = 0; q < 4; q++) p[q] = b + (v * KM_QG + q) * stride;
    return vb_join(p);
}

KM_INLINE vb fifth_bits(const uint8_t *b, int v, int stride, int half) {
    uint16_t bits[4];
    KM_UNROLL
    for (int q = 0; q < KM_QG; q++) bits[q] = km_load_u16(b + (v * KM_QG + q) * stride + 2 * half);
    return vb_from_bits(bits, 16);
}

/* Codes in the smaller half of a byte: of a first half of a group low, of a second high. */
KM_INLINE void nibbles(const uint8_t *b, int v, int stride, vb c[2]) {
    vb raw = pieces(b, v, stride);
    c[0] = vb_low(raw);
    c[1] = vb_high(raw);
}

/* As q4_k and q5_k have them: two groups share 32 bytes. */
KM_INLINE vb k4_nibbles(const uint8_t *b, const int v, int half) {
    const uint8_t *p = b + v * KM_QG / 2 * 32 + half * 16;
    int by[4];
    KM_UNROLL
    for (int q = 0; q < 4; q++) by[q] = (v * KM_QG + q) % 2 * 4;
    return vb_shift(vb_pick(p, p + 32, KM_QG == 4 ? 12 : 0), by, 15);
}

/* As q2_k and q3_k have them: four groups share 32 bytes. */
KM_INLINE vb pairs_of_bits(const uint8_t *b, const int v, int half) {
    const uint8_t *p = b + v * KM_QG / 4 * 32 + half * 16;
    int by[4];
    KM_UNROLL
    for (int q = 0; q < 4; q++) by[q] = (v * KM_QG + q) % 4 * 2;
    return vb_shift(vb_pick(p, p, 0), by, 3);
}

/* Low halves of bytes: groups 0 and 2 share 32 bytes, 1 and 3; high pairs of bits as above. */
KM_INLINE vb q6_codes(const uint8_t *b, const int v, int half) {
    const int g = v * KM_QG;
    const uint8_t *low = b + g / 4 * 64 + g % 2 * 32 + half * 16;
    int by[4];
    KM_UNROLL
    for (int q = 0; q < 4; q++) by[q] = (g + q) % 4 / 2 * 4;
    vb bits = vb_shift(vb_pick(low, low + 32, KM_QG == 1 ? 0 : 10), by, 15);
    return bits | vb_raise(pairs_of_bits(b + 128, v, half), 4);
}

/* One bit of each of 32 bytes for each group. */
KM_INLINE vb group_bit(const uint8_t *b, int v, int half, uint8_t value) {
    int bit[4];
    KM_UNROLL
    for (int q = 0; q < 4; q++) bit[q] = (v * KM_QG + q) % 8;
    return vb_where_bit(vb_pick(b + half * 16, b, 0), bit, value);
}

/* c[0]: the codes of the first halves of the vth KM_QG groups, c[1]: of their second halves. */
KM_INLINE void step_codes(const km_dtype d, const uint8_t *b, const int v, vb c[2]) {
    static const int8_t mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    switch (d) {
    case KM_Q4_0: nibbles(b + 2, v, 18, c); break;
    case KM_Q4_1: nibbles(b + 4, v, 20, c); break;
    case KM_Q5_0: nibbles(b + 6, v, 22, c); break;
    case KM_Q5_1: nibbles(b + 8, v, 24, c); break;
    case KM_IQ4_NL: nibbles(b + 2, v, 18, c); break;
    case KM_IQ4_XS: nibbles(b + 8, v, 16, c); break;
    case KM_MXFP4: nibbles(b + 1, v, 17, c); break;
    default: break;
    }
    KM_UNROLL
    for (int h = 0; h < 2; h++) switch (d) {
        case KM_Q5_0: c[h] |= fifth_bits(b + 2, v, 22, h); break;
        case KM_Q5_1: c[h] |= fifth_bits(b + 4, v, 24, h); break;
        case KM_Q8_0: c[h] = pieces(b + 2 + 16 * h, v, 34) ^ vb_set1(KM_WIDE_OFFSET); break;
        case KM_IQ4_NL:
        case KM_IQ4_XS: c[h] = vb_lookup(c[h], km_iq4_values) ^ vb_set1(KM_WIDE_OFFSET); break;
        case KM_MXFP4: c[h] = vb_lookup(c[h], mxfp4); break;
        case KM_Q2_K: c[h] = pairs_of_bits(b + 16, v, h); break;
        case KM_Q3_K: c[h] = pairs_of_bits(b + 32, v, h) | group_bit(b, v, h, 4); break;
        case KM_Q4_K: c[h] = k4_nibbles(b + 16, v, h); break;
        case KM_Q5_K: c[h] = k4_nibbles(b + 48, v, h) | group_bit(b + 16, v, h, 16); break;
        case KM_Q6_K: c[h] = q6_codes(b, v, h); break;
        default: break;
        }
}

/* ---- Scales ---- */

KM_INLINE float f16_at(const uint8_t *p) {
#if defined(KM_AVX512) || defined(KM_AVX2)
    return _cvtsh_ss(km_load_u16(p));
#else
    return km_load_f16(p);
#endif
}

KM_INLINE uint64_t u64_at(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
KM_INLINE uint32_t u32_at(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

#define KM_EACH_BYTE(x) ((x)*0x0101010101010101ull)

/* The eight scales and eight minima in the 12 bytes of q4_k and q5_k; see km_k4_scale. */
KM_INLINE void k4_scales(const uint8_t *b, q16 *scale, q16 *least) {
    uint32_t a = u32_at(b + 4), m = u32_at(b + 8), both = u32_at(b + 12);
    uint32_t s_high = (both & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    uint32_t m_high = (both >> 4 & 0x0f0f0f0fu) | (m >> 2 & 0x30303030u);
    uint64_t s8 = (a & 0x3f3f3f3fu) | (uint64_t)s_high << 32;
    uint64_t m8 = (m & 0x3f3f3f3fu) | (uint64_t)m_high << 32;
#if defined(__x86_64__)
    __asm__("" : "+r"(s8), "+r"(m8)); /* scalar: vectors' ports are busy */
#endif
    q16_two_tables(s8, m8, b, scale, least);
}

KM_INLINE q16 q3_scales(const uint8_t *b) { /* see km_q3_scale */
    uint64_t low = u64_at(b + 96);
    uint32_t high = u32_at(b + 104), m = 0x03030303u;
    uint64_t first = (high & m) | (uint64_t)(high >> 2 & m) << 32;
    uint64_t second = (high >> 4 & m) | (uint64_t)(high >> 6 & m) << 32;
    q16 q = q16_bytes((low & KM_EACH_BYTE(15)) | first << 4,
                      (low >> 4 & KM_EACH_BYTE(15)) | second << 4, false);
    KM_UNROLL
    for (int i = 0; i < KM_Q16; i++) q.v[i] -= v_set1(32);
    return q16_times(q, f16_at(b + 108));
}

KM_INLINE q16 iq4_scales(const uint8_t *b) { /* see km_iq4_scale */
    uint64_t low = u32_at(b + 4), high = km_load_u16(b + 2);
    low = (low | low << 16) & 0x0000ffff0000ffffull; /* a nibble, and two bits, to each byte */
    low = (low | low << 8) & 0x00ff00ff00ff00ffull;
    low = (low | low << 4) & KM_EACH_BYTE(15);
    high = (high | high << 24) & 0x000000ff000000ffull;
    high = (high | high << 12) & 0x000f000f000f000full;
    high = (high | high << 6) & KM_EACH_BYTE(3);
    q16 q = q16_bytes(low | high << 4, 0, false);
    KM_UNROLL
    for (int i = 0; i < KM_Q8; i++) q.v[i] -= v_set1(32);
    return q16_first(q16_times(q, f16_at(b)), 8);
}

KM_INLINE q16 mxfp4_scales(const uint8_t *b) { /* see km_mxfp4_scale */
    uint64_t bytes = 0;
    KM_UNROLL
    for (int i = 0; i < 8; i++) bytes |= (uint64_t)b[i * 17] << 8 * i;
    q16 q = q16_bytes(bytes, 0, false);
    KM_UNROLL
    for (int i = 0; i < KM_Q8; i++) {
        vi e = v_to_int(q.v[i]), small = vi_set1(0x00200000) * (e + 1);
        q.v[i] = (vf)vi_select(vi_lt(e, vi_set1(2)), small, (vi)((vu)(e - 1) << 23));
    }
    return q16_first(q, 8);
}

/* The step's scales and least values; groups from `valid` on (in types of blocks of 32) count as
 * zero, whatever is there. */
KM_INLINE void step_scales(const km_dtype d, const uint8_t *b, int valid, q16 *scale, q16 *least) {
    switch (d) {
    case KM_Q4_0:
    case KM_Q5_0:
    case KM_Q8_0:
    case KM_IQ4_NL: *scale = q16_f16(b, step_bytes(d) / 8); break;
    case KM_Q4_1:
    case KM_Q5_1: q16_f16_pairs(b, step_bytes(d) / 8, scale, least); break;
    case KM_MXFP4: *scale = mxfp4_scales(b); break;
    case KM_Q4_K:
    case KM_Q5_K: k4_scales(b, scale, least); break;
    case KM_Q2_K: {
        uint64_t lo = u64_at(b), hi = u64_at(b + 8), m = KM_EACH_BYTE(15);
        *scale = q16_times(q16_bytes(lo & m, hi & m, false), f16_at(b + 80));
        *least = q16_times(q16_bytes(lo >> 4 & m, hi >> 4 & m, false), -f16_at(b + 82));
        break;
    }
    case KM_Q3_K: *scale = q3_scales(b); break;
    case KM_Q6_K:
        *scale = q16_times(q16_bytes(u64_at(b + 192), u64_at(b + 200), true), f16_at(b + 208));
        break;
    default: *scale = iq4_scales(b); break;
    }
    if (valid < 8) *scale = q16_first(*scale, valid);
    if (valid < 8 && has_least(d)) *least = q16_first(*least, valid);
    if (!has_least(d)) *least = q16_times(*scale, (float)-offset_of(d));
}

#endif
