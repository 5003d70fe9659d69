/* One vector of floats, as wide as the instruction set of this compilation: 16 lanes with AVX-512,
 * 8 with AVX2, 4 otherwise (SSE2, NEON, WebAssembly's SIMD128 or whatever the compiler makes of it). Sources in this
 * folder are compiled once per set and name their symbols KM_SIMD(name).
 *
 *   vf, vi, vu   float, int32_t, uint32_t lanes; + - * / & | ^ ~ << >> work on them as operators
 *   vd           KM_VF / 2 doubles, for the few places that need them
 *   vm           a mask, from a comparison; use it with v_select, vm_and, vm_any, ...
 *
 * Comparison operators of the language are not for masks: v_lt and friends are. Where a rounding
 * matters, say v_fma_exact or use v_two_prod: plain a * b + c may or may not be fused. */
#ifndef KM_BACKEND_CPU_SIMD_SIMD_H
#define KM_BACKEND_CPU_SIMD_SIMD_H
#include "tensor/dtype.h"
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#ifndef KM_ISA_SUFFIX
#define KM_ISA_SUFFIX base
#endif
#define KM_SIMD_JOIN2(name, suffix) name##_##suffix
#define KM_SIMD_JOIN(name, suffix) KM_SIMD_JOIN2(name, suffix)
#define KM_SIMD(name) KM_SIMD_JOIN(name, KM_ISA_SUFFIX)

#define KM_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define KM_AVX512 1
#define KM_VF 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KM_AVX2 1
#define KM_VF 8
#else
#define KM_VF 4
#endif

typedef float vf __attribute__((vector_size(4 * KM_VF)));
typedef int32_t vi __attribute__((vector_size(4 * KM_VF)));
typedef uint32_t vu __attribute__((vector_size(4 * KM_VF)));
typedef double vd __attribute__((vector_size(4 * KM_VF)));
typedef uint16_t vh __attribute__((vector_size(2 * KM_VF)));
#ifdef KM_AVX512
typedef __mmask16 vm;
#else
typedef vi vm;
#endif

/* ---- Making and moving ---- */

#if defined(KM_AVX512)
KM_INLINE vf v_set1(float x) { return (vf)_mm512_set1_ps(x); }
KM_INLINE vi vi_set1(int32_t x) { return (vi)_mm512_set1_epi32(x); }
#elif defined(KM_AVX2)
KM_INLINE vf v_set1(float x) { return (vf)_mm256_set1_ps(x); }
KM_INLINE vi vi_set1(int32_t x) { return (vi)_mm256_set1_epi32(x); }
#else
KM_INLINE vf v_set1(float x) { return (vf){x, x, x, x}; }
KM_INLINE vi vi_set1(int32_t x) { return (vi){x, x, x, x}; }
#endif
KM_INLINE vf v_zero(void) { return (vf){0}; }
KM_INLINE vu vu_set1(uint32_t x) { return (vu)vi_set1((int32_t)x); }
KM_INLINE vd vd_set1(double x) { return (vd){0} + x; }

KM_INLINE vf v_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
KM_INLINE void v_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
KM_INLINE vi vi_load(const int32_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
KM_INLINE void vi_store(int32_t *p, vi v) { memcpy(p, &v, sizeof v); }

/* The lowest byte of each lane. */
KM_INLINE void vi_store_bytes(uint8_t *p, vi v) {
#if defined(KM_AVX512)
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__aarch64__)
    uint16x4_t half = vmovn_u32((uint32x4_t)v);
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(half, half))), 0);
    memcpy(p, &four, sizeof four);
#elif defined(__wasm_simd128__)
    v128_t bytes = wasm_i8x16_shuffle((v128_t)v, (v128_t)v, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12,
                                      0, 4, 8, 12);
    wasm_v128_store32_lane(p, bytes, 0);
#else
    for (int i = 0; i < KM_VF; i++) p[i] = (uint8_t)v[i];
#endif
}

/* Bit patterns. */
KM_INLINE vi v_bits(vf x) { return (vi)x; }
KM_INLINE vf v_from_bits(vi x) { return (vf)x; }

/* The first n lanes, 0 <= n <= KM_VF; the rest are zero and their memory is not touched. */
#if defined(KM_AVX512)
KM_INLINE __mmask16 v_tail_mask(int64_t n) { return (__mmask16)((1u << n) - 1); }
KM_INLINE vf v_load_n(const float *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_ps(v_tail_mask(n), p);
}
KM_INLINE void v_store_n(float *p, vf v, int64_t n) {
    _mm512_mask_storeu_ps(p, v_tail_mask(n), (__m512)v);
}
#elif defined(KM_AVX2)
KM_INLINE __m256i v_tail_mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
KM_INLINE vf v_load_n(const float *p, int64_t n) {
    return (vf)_mm256_maskload_ps(p, v_tail_mask(n));
}
KM_INLINE void v_store_n(float *p, vf v, int64_t n) {
    _mm256_maskstore_ps(p, v_tail_mask(n), (__m256)v);
}
#else
KM_INLINE vf v_load_n(const float *p, int64_t n) {
    float t[KM_VF] = {0};
    for (int64_t i = 0; i < n && i < KM_VF; i++) t[i] = p[i];
    return v_load(t);
}
KM_INLINE void v_store_n(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n && i < KM_VF; i++) p[i] = v[i];
}
#endif

/* Past the caches: p is aligned to sizeof(vf). A thread that streamed ends with a fence. */
#if defined(KM_AVX512)
KM_INLINE void v_stream(float *p, vf v) { _mm512_stream_ps(p, (__m512)v); }
KM_INLINE void v_stream_fence(void) { _mm_sfence(); }
#elif defined(KM_AVX2)
KM_INLINE void v_stream(float *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
KM_INLINE void v_stream_fence(void) { _mm_sfence(); }
#elif defined(__x86_64__)
KM_INLINE void v_stream(float *p, vf v) { _mm_stream_ps(p, (__m128)v); }
KM_INLINE void v_stream_fence(void) { _mm_sfence(); }
#else
KM_INLINE void v_stream(float *p, vf v) { v_store(p, v); }
KM_INLINE void v_stream_fence(void) {}
#endif

/* Asks for the line at p, to read it soon; p may lie beyond the end. */
#define KM_FETCH(p) __builtin_prefetch((p), 0, 3)

/* ---- Masks ---- */

#if defined(KM_AVX512)
KM_INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
KM_INLINE vm v_le(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
KM_INLINE vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
KM_INLINE vm v_ne(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ); }
KM_INLINE vm vi_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
KM_INLINE vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
KM_INLINE vf v_select(vm m, vf a, vf b) {
    return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a);
}
KM_INLINE vi vi_select(vm m, vi a, vi b) {
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}
KM_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
KM_INLINE vm vm_or(vm a, vm b) { return (vm)(a | b); }
KM_INLINE vm vm_not(vm a) { return (vm)~a; }
KM_INLINE bool vm_any(vm a) { return a != 0; }
KM_INLINE bool vm_all(vm a) { return a == 0xffff; }
#else
KM_INLINE vm v_lt(vf a, vf b) { return (vm)(a < b); }
KM_INLINE vm v_le(vf a, vf b) { return (vm)(a <= b); }
KM_INLINE vm v_eq(vf a, vf b) { return (vm)(a == b); }
KM_INLINE vm v_ne(vf a, vf b) { return (vm)(a != b); }
KM_INLINE vm vi_lt(vi a, vi b) { return (vm)(a < b); }
KM_INLINE vm vi_eq(vi a, vi b) { return (vm)(a == b); }
#ifdef KM_AVX2
KM_INLINE vf v_select(vm m, vf a, vf b) {
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m);
}
KM_INLINE bool vm_any(vm a) { return _mm256_movemask_ps((__m256)a) != 0; }
KM_INLINE bool vm_all(vm a) { return _mm256_movemask_ps((__m256)a) == 0xff; }
#else
#if defined(__wasm_simd128__)
KM_INLINE vf v_select(vm m, vf a, vf b) {
    return (vf)wasm_v128_bitselect((v128_t)a, (v128_t)b, (v128_t)m);
}
#else
KM_INLINE vf v_select(vm m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
#endif
#if defined(__aarch64__)
KM_INLINE bool vm_any(vm a) { return vmaxvq_u32((uint32x4_t)a) != 0; }
KM_INLINE bool vm_all(vm a) { return vminvq_u32((uint32x4_t)a) != 0; }
#elif defined(__wasm_simd128__)
KM_INLINE bool vm_any(vm a) { return wasm_v128_any_true((v128_t)a); }
KM_INLINE bool vm_all(vm a) { return wasm_i32x4_all_true((v128_t)a); }
#else
KM_INLINE bool vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
KM_INLINE bool vm_all(vm a) { return (a[0] & a[1] & a[2] & a[3]) != 0; }
#endif
#endif
KM_INLINE vi vi_select(vm m, vi a, vi b) { return (vi)v_select(m, (vf)a, (vf)b); }
KM_INLINE vm vm_and(vm a, vm b) { return a & b; }
KM_INLINE vm vm_or(vm a, vm b) { return a | b; }
KM_INLINE vm vm_not(vm a) { return ~a; }
#endif
KM_INLINE vm v_gt(vf a, vf b) { return v_lt(b, a); }
KM_INLINE vm v_ge(vf a, vf b) { return v_le(b, a); }
KM_INLINE vm v_isnan(vf a) { return v_ne(a, a); }
/* a where m, else 0 */
KM_INLINE vf v_keep(vm m, vf a) { return v_select(m, a, v_zero()); }

/* ---- Arithmetic ---- */

/* a * b + c, fused where the processor can. */
#if defined(KM_AVX512)
KM_INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
KM_INLINE vf v_fnma(vf a, vf b, vf c) { /* c - a * b */
    return (vf)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(KM_AVX2)
KM_INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
KM_INLINE vf v_fnma(vf a, vf b, vf c) {
    return (vf)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#elif defined(__aarch64__)
#define KM_BASE_FMA 1
KM_INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
KM_INLINE vf v_fnma(vf a, vf b, vf c) {
    return (vf)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
KM_INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
KM_INLINE vf v_fnma(vf a, vf b, vf c) { return c - a * b; }
#endif

/* max and min as the processor does them: b when either is NaN (or both are zero). */
#if defined(KM_AVX512)
KM_INLINE vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
KM_INLINE vf v_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(KM_AVX2)
KM_INLINE vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
KM_INLINE vf v_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__x86_64__)
KM_INLINE vf v_max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
KM_INLINE vf v_min(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
#elif defined(__wasm_simd128__)
KM_INLINE vf v_max(vf a, vf b) { return (vf)wasm_f32x4_pmax((v128_t)b, (v128_t)a); }
KM_INLINE vf v_min(vf a, vf b) { return (vf)wasm_f32x4_pmin((v128_t)b, (v128_t)a); }
#else
KM_INLINE vf v_max(vf a, vf b) { return v_select(v_gt(a, b), a, b); }
KM_INLINE vf v_min(vf a, vf b) { return v_select(v_lt(a, b), a, b); }
#endif
/* NaN when either is NaN, and a of two equal ones: the rule of km_maximum. */
KM_INLINE vf v_max_nan(vf a, vf b) { return v_select(v_isnan(b), b, v_max(b, a)); }
KM_INLINE vf v_min_nan(vf a, vf b) { return v_select(v_isnan(b), b, v_min(b, a)); }

KM_INLINE vf v_abs(vf a) { return (vf)((vi)a & vi_set1(0x7fffffff)); }
KM_INLINE vf v_neg(vf a) { return (vf)((vu)a ^ vu_set1(0x80000000u)); }
KM_INLINE vi v_signbit(vf a) { return (vi)((vu)a & vu_set1(0x80000000u)); }
/* |a| with b's sign */
KM_INLINE vf v_copysign(vf a, vf b) { return (vf)((vi)v_abs(a) | v_signbit(b)); }

#if defined(KM_AVX512)
KM_INLINE vf v_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
#elif defined(KM_AVX2)
KM_INLINE vf v_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
#elif defined(__x86_64__)
KM_INLINE vf v_sqrt(vf a) { return (vf)_mm_sqrt_ps((__m128)a); }
#elif defined(__aarch64__)
KM_INLINE vf v_sqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
#elif defined(__wasm_simd128__)
KM_INLINE vf v_sqrt(vf a) { return (vf)wasm_f32x4_sqrt((v128_t)a); }
#else
KM_INLINE vf v_sqrt(vf a) {
    for (int i = 0; i < KM_VF; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
}
#endif

/* To the nearest whole number, ties to even; v_to_int needs |a| < 2^31, base's v_round 2^22. */
#if defined(KM_AVX512)
KM_INLINE vf v_round(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 0x08); }
KM_INLINE vi v_to_int(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
KM_INLINE vf vi_to_float(vi a) { return (vf)_mm512_cvtepi32_ps((__m512i)a); }
#elif defined(KM_AVX2)
KM_INLINE vf v_round(vf a) { return (vf)_mm256_round_ps((__m256)a, 0x08); }
KM_INLINE vi v_to_int(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
KM_INLINE vf vi_to_float(vi a) { return (vf)_mm256_cvtepi32_ps((__m256i)a); }
#elif defined(__aarch64__)
KM_INLINE vf v_round(vf a) { return (vf)vrndnq_f32((float32x4_t)a); }
KM_INLINE vi v_to_int(vf a) { return (vi)vcvtnq_s32_f32((float32x4_t)a); }
KM_INLINE vf vi_to_float(vi a) { return (vf)vcvtq_f32_s32((int32x4_t)a); }
#else
KM_INLINE vf v_round(vf a) {
    vf magic = v_set1(12582912.0f); /* 1.5 * 2^23: the sum has no room for a fraction */
    return (a + magic) - magic;
}
#if defined(__x86_64__)
KM_INLINE vi v_to_int(vf a) { return (vi)_mm_cvtps_epi32((__m128)a); }
#elif defined(__wasm_simd128__)
KM_INLINE vi v_to_int(vf a) {
    return (vi)wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)a));
}
#else
KM_INLINE vi v_to_int(vf a) {
    vi r;
    for (int i = 0; i < KM_VF; i++) r[i] = (int32_t)__builtin_rintf(a[i]);
    return r;
}
#endif
KM_INLINE vf vi_to_float(vi a) { return __builtin_convertvector(a, vf); }
#endif

/* 2^k for k in [-126, 127] */
KM_INLINE vf v_pow2(vi k) { return (vf)(((vu)k + 127u) << 23); }

/* a * 2^n for whole n in [-252, 254], rounded once, into subnormals and infinity as need be. */
#if defined(KM_AVX512)
KM_INLINE vf v_ldexp(vf a, vf n) { return (vf)_mm512_scalef_ps((__m512)a, (__m512)n); }
#else
KM_INLINE vf v_ldexp(vf a, vf n) {
    vi k = v_to_int(n), k1 = k >> 1, k2 = k - k1;
    return a * v_pow2(k1) * v_pow2(k2);
}
#endif

/* ---- Doubles: half a vector at a time ---- */

#if defined(KM_AVX512)
KM_INLINE vd vd_lo(vf a) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)a)); }
KM_INLINE vd vd_hi(vf a) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)a, 1)); }
KM_INLINE vf vd_join(vd lo, vd hi) {
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)lo)),
                                  _mm512_cvtpd_ps((__m512d)hi), 1);
}
KM_INLINE vd vd_round(vd a) { return (vd)_mm512_roundscale_pd((__m512d)a, 0x08); }
KM_INLINE vd vd_fma(vd a, vd b, vd c) {
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(KM_AVX2)
KM_INLINE vd vd_lo(vf a) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)a)); }
KM_INLINE vd vd_hi(vf a) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)a, 1)); }
KM_INLINE vf vd_join(vd lo, vd hi) {
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)hi), _mm256_cvtpd_ps((__m256d)lo));
}
KM_INLINE vd vd_round(vd a) { return (vd)_mm256_round_pd((__m256d)a, 0x08); }
KM_INLINE vd vd_fma(vd a, vd b, vd c) {
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
#if defined(__x86_64__)
KM_INLINE vd vd_lo(vf a) { return (vd)_mm_cvtps_pd((__m128)a); }
KM_INLINE vd vd_hi(vf a) { return (vd)_mm_cvtps_pd(_mm_movehl_ps((__m128)a, (__m128)a)); }
KM_INLINE vf vd_join(vd lo, vd hi) {
    return (vf)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lo), _mm_cvtpd_ps((__m128d)hi));
}
#else
/* Through half vectors in memory, not lane by lane: gcc 12 takes the rounding out of
 * (double)(float)x when it turns lanes into vectors. */
typedef float v_half_floats __attribute__((vector_size(2 * KM_VF)));
KM_INLINE vd vd_lo(vf a) {
    v_half_floats h;
    memcpy(&h, &a, sizeof h);
    return __builtin_convertvector(h, vd);
}
KM_INLINE vd vd_hi(vf a) {
    v_half_floats h;
    memcpy(&h, (const char *)&a + sizeof h, sizeof h);
    return __builtin_convertvector(h, vd);
}
KM_INLINE vf vd_join(vd lo, vd hi) {
    v_half_floats h[2] = {__builtin_convertvector(lo, v_half_floats),
                          __builtin_convertvector(hi, v_half_floats)};
    vf r;
    memcpy(&r, h, sizeof r);
    return r;
}
#endif
KM_INLINE vd vd_round(vd a) { /* |a| < 2^51 */
    vd magic = vd_set1(6755399441055744.0);
    return (a + magic) - magic;
}
KM_INLINE vd vd_fma(vd a, vd b, vd c) { return a * b + c; }
#endif
KM_INLINE double vd_reduce_add(vd a) {
    double s = a[0];
    for (int i = 1; i < KM_VF / 2; i++) s += a[i];
    return s;
}

/* a * b + c with the product kept whole. */
#if defined(KM_AVX512) || defined(KM_AVX2) || defined(KM_BASE_FMA)
KM_INLINE vf v_fma_exact(vf a, vf b, vf c) { return v_fma(a, b, c); }
#else
KM_INLINE vf v_fma_exact(vf a, vf b, vf c) {
    return vd_join(vd_lo(a) * vd_lo(b) + vd_lo(c), vd_hi(a) * vd_hi(b) + vd_hi(c));
}
#endif
/* a * b = returned + *lo, exactly (barring underflow). */
KM_INLINE vf v_two_prod(vf a, vf b, vf *lo) {
    vf p = a * b;
    *lo = v_fma_exact(a, b, -p);
    return p;
}
/* a + b = returned + *lo, exactly, for |a| >= |b|. */
KM_INLINE vf v_two_sum(vf a, vf b, vf *lo) {
    vf s = a + b;
    *lo = b - (s - a);
    return s;
}

/* ---- Moving among lanes ---- */

/* Transposes the 4 x 4 matrices that v[0..3] hold in each 128 bits. */
KM_INLINE void v_transpose4(vf v[4]) {
#if defined(KM_AVX512)
    __m512 a = _mm512_unpacklo_ps((__m512)v[0], (__m512)v[1]);
    __m512 b = _mm512_unpackhi_ps((__m512)v[0], (__m512)v[1]);
    __m512 c = _mm512_unpacklo_ps((__m512)v[2], (__m512)v[3]);
    __m512 d = _mm512_unpackhi_ps((__m512)v[2], (__m512)v[3]);
    v[0] = (vf)_mm512_shuffle_ps(a, c, 0x44);
    v[1] = (vf)_mm512_shuffle_ps(a, c, 0xee);
    v[2] = (vf)_mm512_shuffle_ps(b, d, 0x44);
    v[3] = (vf)_mm512_shuffle_ps(b, d, 0xee);
#elif defined(KM_AVX2)
    __m256 a = _mm256_unpacklo_ps((__m256)v[0], (__m256)v[1]);
    __m256 b = _mm256_unpackhi_ps((__m256)v[0], (__m256)v[1]);
    __m256 c = _mm256_unpacklo_ps((__m256)v[2], (__m256)v[3]);
    __m256 d = _mm256_unpackhi_ps((__m256)v[2], (__m256)v[3]);
    v[0] = (vf)_mm256_shuffle_ps(a, c, 0x44);
    v[1] = (vf)_mm256_shuffle_ps(a, c, 0xee);
    v[2] = (vf)_mm256_shuffle_ps(b, d, 0x44);
    v[3] = (vf)_mm256_shuffle_ps(b, d, 0xee);
#else
    vf a = v[0], b = v[1], c = v[2], d = v[3];
    for (int r = 0; r < 4; r++) v[r] = (vf){a[r], b[r], c[r], d[r]};
#endif
}

/* Four floats from p into the first 128 bits, four from p + step into the next, and so on. */
KM_INLINE vf v_load_quads(const float *p, int64_t step) {
#if defined(KM_AVX512)
    __m256 lo =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step), 1);
    __m256 hi = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 2 * step)),
                                     _mm_loadu_ps(p + 3 * step), 1);
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
#elif defined(KM_AVX2)
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step),
                                    1);
#else
    (void)step;
    return v_load(p);
#endif
}

/* ---- Across the lanes, always in the same order ---- */

#if defined(KM_AVX512)
KM_INLINE __m256 v_half(vf a, int which) {
    return which ? _mm512_extractf32x8_ps((__m512)a, 1) : _mm512_castps512_ps256((__m512)a);
}
#endif
#if defined(KM_AVX512) || defined(KM_AVX2)
KM_INLINE float v_reduce_add(vf a) {
#ifdef KM_AVX512
    __m256 h = _mm256_add_ps(v_half(a, 0), v_half(a, 1));
#else
    __m256 h = (__m256)a;
#endif
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
#else
KM_INLINE float v_reduce_add(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
#endif
/* Plain: a NaN may be lost. */
KM_INLINE float v_reduce_max(vf a) {
#if defined(KM_AVX512) || defined(KM_AVX2)
#ifdef KM_AVX512
    __m256 h = _mm256_max_ps(v_half(a, 0), v_half(a, 1));
#else
    __m256 h = (__m256)a;
#endif
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
#elif defined(__aarch64__)
    return vmaxnmvq_f32((float32x4_t)a);
#else
    float m = a[0];
    for (int i = 1; i < KM_VF; i++) m = a[i] > m ? a[i] : m;
    return m;
#endif
}
/* NaN wins. */
KM_INLINE float v_reduce_max_nan(vf a) {
    return vm_any(v_isnan(a)) ? __builtin_nanf("") : v_reduce_max(a);
}
KM_INLINE float v_reduce_min(vf a) { return -v_reduce_max(-a); }

/* ---- 16-bit floats ---- */

KM_INLINE vh vh_load(const uint16_t *p) {
    vh v;
    memcpy(&v, p, sizeof v);
    return v;
}
KM_INLINE void vh_store(uint16_t *p, vh v) { memcpy(p, &v, sizeof v); }
#if defined(KM_AVX512)
KM_INLINE vh vh_load_n(const uint16_t *p, int64_t n) {
    return (vh)_mm256_maskz_loadu_epi16(v_tail_mask(n), p);
}
KM_INLINE void vh_store_n(uint16_t *p, vh v, int64_t n) {
    _mm256_mask_storeu_epi16(p, v_tail_mask(n), (__m256i)v);
}
KM_INLINE vu vh_widen(vh v) { return (vu)_mm512_cvtepu16_epi32((__m256i)v); }
KM_INLINE vh vu_narrow(vu v) { return (vh)_mm512_cvtepi32_epi16((__m512i)v); }
#else
KM_INLINE vh vh_load_n(const uint16_t *p, int64_t n) {
    uint16_t t[KM_VF] = {0};
    for (int64_t i = 0; i < n && i < KM_VF; i++) t[i] = p[i];
    return vh_load(t);
}
KM_INLINE void vh_store_n(uint16_t *p, vh v, int64_t n) {
    for (int64_t i = 0; i < n && i < KM_VF; i++) p[i] = v[i];
}
#ifdef KM_AVX2
KM_INLINE vu vh_widen(vh v) { return (vu)_mm256_cvtepu16_epi32((__m128i)v); }
KM_INLINE vh vu_narrow(vu v) { /* lanes hold at most 0xffff */
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)v),
                                _mm256_extracti128_si256((__m256i)v, 1));
}
#else
KM_INLINE vu vh_widen(vh v) { return __builtin_convertvector(v, vu); }
KM_INLINE vh vu_narrow(vu v) { return __builtin_convertvector(v, vh); }
#endif
#endif

KM_INLINE vf v_from_bf16(vh h) { return (vf)(vh_widen(h) << 16); }
/* To the nearest, ties to even; NaN stays NaN. */
KM_INLINE vh v_to_bf16(vf x) {
    vu u = (vu)x;
    vi r = (vi)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    vi quiet = (vi)((u >> 16) | 0x40u);
    return vu_narrow((vu)vi_select(v_isnan(x), quiet, r));
}

#if defined(KM_AVX512)
KM_INLINE vf v_from_f16(vh h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
KM_INLINE vh v_to_f16(vf x) { return (vh)_mm512_cvtps_ph((__m512)x, 0x08); }
#elif defined(KM_AVX2)
KM_INLINE vf v_from_f16(vh h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
KM_INLINE vh v_to_f16(vf x) { return (vh)_mm256_cvtps_ph((__m256)x, 0x08); }
#elif defined(__aarch64__)
KM_INLINE vf v_from_f16(vh h) { return (vf)vcvt_f32_f16((float16x4_t)h); }
KM_INLINE vh v_to_f16(vf x) { return (vh)vcvt_f16_f32((float32x4_t)x); }
#else
KM_INLINE vf v_from_f16_bits(vu u) { /* lanes hold at most 0xffff */
    vu sign = (u & 0x8000u) << 16, a = (u & 0x7fffu) << 13;
    vf f = (vf)a * 0x1p112f; /* moves the exponent; a subnormal becomes a normal number */
    vi special = (vi)(a | 0x7f800000u);
    return (vf)(vi_select(vi_lt((vi)a, vi_set1(0x0f800000)), (vi)f, special) | (vi)sign);
}
KM_INLINE vf v_from_f16(vh h) { return v_from_f16_bits(vh_widen(h)); }
KM_INLINE vh v_to_f16(vf x) {
    vu u = (vu)x, sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    vi normal = (vi)((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13);
    vi small = (vi)((vf)a + 0.5f) - 0x3f000000; /* the adder rounds at a subnormal's last bit */
    vi nan = (vi)(((a >> 13) & 0x3ffu) | 0x7e00u);
    vi r = vi_select(vi_lt((vi)a, vi_set1(0x38800000)), small, normal);
    r = vi_select(vi_lt((vi)a, vi_set1(0x477ff000)), r, vi_set1(0x7c00));
    r = vi_select(v_isnan(x), nan, r);
    return vu_narrow((vu)r | sign);
}
#endif

KM_INLINE vf v_load_f16(const uint16_t *p) { return v_from_f16(vh_load(p)); }
KM_INLINE vf v_load_bf16(const uint16_t *p) { return v_from_bf16(vh_load(p)); }
KM_INLINE vf v_load_f16_n(const uint16_t *p, int64_t n) { return v_from_f16(vh_load_n(p, n)); }
KM_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n) { return v_from_bf16(vh_load_n(p, n)); }
KM_INLINE void v_store_f16(uint16_t *p, vf v) { vh_store(p, v_to_f16(v)); }
KM_INLINE void v_store_bf16(uint16_t *p, vf v) { vh_store(p, v_to_bf16(v)); }
KM_INLINE void v_store_f16_n(uint16_t *p, vf v, int64_t n) { vh_store_n(p, v_to_f16(v), n); }
KM_INLINE void v_store_bf16_n(uint16_t *p, vf v, int64_t n) { vh_store_n(p, v_to_bf16(v), n); }
/* p is aligned to sizeof(vh). */
KM_INLINE void vh_stream(uint16_t *p, vh v) {
#if defined(KM_AVX512)
    _mm256_stream_si256((__m256i *)(void *)p, (__m256i)v);
#elif defined(KM_AVX2)
    _mm_stream_si128((__m128i *)(void *)p, (__m128i)v);
#else
    vh_store(p, v);
#endif
}

/* (x1, x0, x3, x2, ...) */
KM_INLINE vf swap_pairs(vf x) {
#if KM_VF == 16
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif KM_VF == 8
    return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    return __builtin_shufflevector(x, x, 1, 0, 3, 2);
#endif
}

#endif
