/* The functions of mathematics on one vector. Infinities, NaN, zeros and subnormals come out as
 * libm's do. Errors, in units of the last place, against double-precision libm (measured by
 * tests/backend/test_cpu_vmath.c, which holds them to these bounds):
 *
 *   exp, expm1, log, log1p, sin, cos, tanh, erf, rsqrt, pow   under 2
 *   sigmoid, silu, gelu                                       under 4, in the tails too
 *   gelu_erf                                                  under 4, under 5 without FMA
 *
 * sqrt is exact to the last bit. Polynomials are minimax fits made for these intervals. */
#ifndef KM_BACKEND_CPU_SIMD_VMATH_H
#define KM_BACKEND_CPU_SIMD_VMATH_H
#include "backend/cpu/simd/simd.h"
#include <math.h>

/* ln 2 in two parts; a multiple of the first by a whole |n| < 512 is exact. */
#define KM_LN2_HI 0x1.62e4p-1f
#define KM_LN2_LO 1.42860682030942e-6f

/* ---- exp ---- */

#define KM_LOG2E 1.4426950408889634074
#define KM_LOG2E_HI 0x1.715476p+0f
#define KM_LOG2E_LO 0x1.4ae0c0p-26f
#if defined(KM_AVX512) || defined(KM_AVX2) || defined(KM_BASE_FMA)
#define KM_HAS_FMA 1
#endif

/* e^r - 1 for |r| <= ln(2) / 2 */
KM_INLINE vf v_expm1_core(vf r) {
    vf q = v_fma(v_set1(0.001395060171f), r, v_set1(0.008368953505f));
    q = v_fma(q, r, v_set1(0.04166620415f));
    q = v_fma(q, r, v_set1(0.1666651831f));
    q = v_fma(q, r, v_set1(0.5000000096f));
    return v_fma(r * r, q, r);
}

/* 2^f for |f| <= 1/2 */
KM_INLINE vf v_exp2_core(vf f) {
    vf p = v_fma(v_set1(0.0001547627917f), f, v_set1(0.001340023525f));
    p = v_fma(p, f, v_set1(0.009618003979f));
    p = v_fma(p, f, v_set1(0.05550327909f));
    p = v_fma(p, f, v_set1(0.2402265135f));
    p = v_fma(p, f, v_set1(0.6931472062f));
    return v_fma(p, f, v_set1(1.0f));
}

/* x = n ln 2 + r; gives r, n in *n. */
KM_INLINE vf v_exp_reduce(vf x, vf *n) {
    *n = v_round(x * KM_LOG2E_HI);
    return v_fnma(*n, v_set1(KM_LN2_LO), v_fnma(*n, v_set1(KM_LN2_HI), x));
}

/* e^x for x in [-104, 89]. With FMA the fraction of x log2(e) comes out right without going
 * through ln 2. */
KM_INLINE vf v_exp_within(vf x) {
#ifdef KM_HAS_FMA
    vf n = v_round(x * KM_LOG2E_HI), f = v_fma(x, v_set1(KM_LOG2E_HI), -n);
    return v_ldexp(v_exp2_core(v_fma(x, v_set1(KM_LOG2E_LO), f)), n);
#else
    vf n, r = v_exp_reduce(x, &n);
    return v_ldexp(v_expm1_core(r) + 1.0f, n);
#endif
}
/* e^(x + lo), |lo| far below |x| */
KM_INLINE vf v_exp_two(vf x, vf lo) {
    vf n, r = v_exp_reduce(x, &n) + lo;
    return v_ldexp(v_expm1_core(r) + 1.0f, n);
}

/* e^x for |x| < 87, where 2^n is a normal number: n is taken from the bits of a sum too large to
 * have a fraction, and never becomes an integer. */
KM_INLINE vf v_exp_mid(vf x) {
    vf magic = v_set1(12582912.0f), t = v_fma(x, v_set1(KM_LOG2E_HI), magic), n = t - magic;
    vf scale = (vf)(((vu)t << 23) + 0x3f800000u);
#ifdef KM_HAS_FMA
    vf f = v_fma(x, v_set1(KM_LOG2E_LO), v_fma(x, v_set1(KM_LOG2E_HI), -n));
    return v_exp2_core(f) * scale;
#else
    vf r = v_fnma(n, v_set1(KM_LN2_LO), v_fnma(n, v_set1(KM_LN2_HI), x));
    return v_fma(v_expm1_core(r), scale, scale);
#endif
}

/* Whether v_exp_mid does for all lanes; with AVX-512, which scales in one instruction, the other
 * way is as fast. */
KM_INLINE bool v_exp_is_mid(vf x) {
#ifdef KM_AVX512
    (void)x;
    return false;
#else
    return __builtin_expect(vm_all(v_lt(v_abs(x), v_set1(87.0f))), 1);
#endif
}

KM_INLINE vf v_exp(vf x) {
    if (v_exp_is_mid(x)) return v_exp_mid(x);
    /* Beyond these the result is infinite or zero anyway; NaN passes, as the second operand. */
    return v_exp_within(v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x)));
}
/* For x <= 0. */
KM_INLINE vf v_exp_neg(vf x) {
    if (v_exp_is_mid(x)) return v_exp_mid(x);
    return v_exp_within(v_max(v_set1(-104.0f), x));
}

/* a / b for b in [1, 2]. */
KM_INLINE vf v_div_by_1_to_2(vf a, vf b) {
#ifdef KM_AVX512 /* whose divider is slow: an estimate, improved, and the quotient corrected */
    vf y = (vf)_mm512_rcp14_ps((__m512)b);
    y = v_fma(v_fnma(b, y, v_set1(1.0f)), y, y);
    vf q = a * y;
    return v_fma(v_fnma(b, q, a), y, q);
#else
    return a / b;
#endif
}

/* e^x - 1, keeping the precision near 0 */
KM_INLINE vf v_expm1(vf x) {
    vf c = v_min(v_set1(89.0f), v_max(v_set1(-20.0f), x));
    vf n, p = v_expm1_core(v_exp_reduce(c, &n));
    vf half = (vf)(((vu)v_to_int(n) + 126u) << 23); /* 2^(n-1): 2^n may not fit */
    vf y = v_fma(half, p, half - 0.5f) * 2.0f;
    return v_select(v_lt(v_abs(x), v_set1(1e-10f)), x, y); /* -0 and subnormals as they are */
}

/* ---- log ---- */

/* x = m 2^e with sqrt(1/2) <= m < sqrt(2); gives m, e in *e. x is positive and finite. */
KM_INLINE vf v_log_reduce(vf x, vf *e) {
    vm tiny = v_lt(x, v_set1(0x1p-126f));
    vu b = (vu)v_select(tiny, x * 0x1p23f, x);
    vi k = (vi)(b - 0x3f3504f3u) >> 23; /* the shift keeps the sign */
    *e = vi_to_float(k) - v_keep(tiny, v_set1(23.0f));
    return (vf)(b - ((vu)k << 23));
}

KM_INLINE vf v_log(vf x) {
    vf e, f = v_log_reduce(x, &e) - 1.0f;
    vf p = v_fma(v_set1(-0.07860447982f), f, v_set1(0.1288192842f));
    p = v_fma(p, f, v_set1(-0.1312853596f));
    p = v_fma(p, f, v_set1(0.1418114641f));
    p = v_fma(p, f, v_set1(-0.1662457828f));
    p = v_fma(p, f, v_set1(0.2000228857f));
    p = v_fma(p, f, v_set1(-0.2500080949f));
    p = v_fma(p, f, v_set1(0.333333167f));
    vf ff = f * f;
    vf t = v_fma(f * ff, p, v_fma(e, v_set1(KM_LN2_LO), ff * -0.5f));
    vf y = v_fma(e, v_set1(KM_LN2_HI), f + t);
    y = v_select(v_eq(x, v_zero()), v_set1(-INFINITY), y);
    y = v_select(v_lt(x, v_zero()), v_set1(NAN), y);
    return v_select(v_lt(x, v_set1(INFINITY)), y, x); /* infinity and NaN */
}

/* log(1 + x), keeping the precision near 0 */
KM_INLINE vf v_log1p(vf x) {
    vf u = x + 1.0f, d = u - 1.0f;
    /* What the sum lost, by whichever operand is the larger. */
    vf c = v_select(v_lt(x, v_set1(1.0f)), x - d, 1.0f - (u - x));
    vm plain = vm_and(v_gt(u, v_zero()), v_lt(u, v_set1(INFINITY)));
    vf y = v_log(u) + v_keep(plain, c / u);
    return v_select(v_lt(v_abs(x), v_set1(1e-10f)), x, y);
}

/* ---- tanh, sigmoid ---- */

KM_INLINE vf v_tanh(vf x) {
    vf a = v_abs(x), z = a * a;
    /* |x| < 0.55: x + x^3 P(x^2) */
    vf p = v_fma(v_set1(-0.006232146667f), z, v_set1(0.02104412827f));
    p = v_fma(p, z, v_set1(-0.05384621977f));
    p = v_fma(p, z, v_set1(0.1333253458f));
    p = v_fma(p, z, v_set1(-0.3333331626f));
    vf small = v_fma(a * z, p, a);
    /* beyond: 1 - 2e / (1 + e), e = e^(-2|x|), which is 1 from 9.02 on */
    vf e = v_exp_neg(v_min(v_set1(10.0f), a) * -2.0f);
    vf large = 1.0f - v_div_by_1_to_2(e * 2.0f, e + 1.0f);
    return v_copysign(v_select(v_lt(a, v_set1(0.55f)), small, large), x);
}

KM_INLINE vf v_sigmoid(vf x) {
    vf e = v_exp_neg(-v_abs(x)); /* never overflows, so the left tail keeps its digits */
    return v_div_by_1_to_2(v_select(v_lt(x, v_zero()), e, v_set1(1.0f)), e + 1.0f);
}

/* ---- sin, cos ---- */

#define KM_TRIG_LIMIT 1e5f

/* sin and cos of r, |r| <= pi/4 */
KM_INLINE void v_sincos_core(vf r, vf *s, vf *c) {
    vf z = r * r;
    vf p = v_fma(v_fma(v_set1(-0.0001951694955f), z, v_set1(0.008332176259f)), z,
                 v_set1(-0.1666665493f));
    vf q =
        v_fma(v_fma(v_set1(2.443875923e-5f), z, v_set1(-0.001388737184f)), z, v_set1(0.041666647f));
    *s = v_fma(r * z, p, r);
    *c = v_fma(z * z, q, v_fma(z, v_set1(-0.5f), v_set1(1.0f)));
}

/* Turns (s, c), of r, into those of r + k pi/2. */
KM_INLINE void v_quadrant(vi k, vf *s, vf *c) {
    vm odd = vi_eq(k & 1, vi_set1(1));
    vf a = v_select(odd, *c, *s), b = v_select(odd, *s, *c);
    *s = (vf)((vu)a ^ ((vu)(k & 2) << 30));
    *c = (vf)((vu)b ^ ((vu)((k + 1) & 2) << 30));
}

/* For |x| <= KM_TRIG_LIMIT: k pi/2 is taken off in three parts, the products kept whole. */
KM_INLINE void v_sincos_reduced(vf x, vf *s, vf *c) {
    vf n = v_round(x * 0.636619772f);
    vf r = v_fma_exact(-n, v_set1(0x1.921fb6p+0f), x);
    r = v_fma_exact(-n, v_set1(-0x1.777a5cp-25f), r);
    r = v_fnma(n, v_set1(-0x1.ee59dap-50f), r);
    v_sincos_core(r, s, c);
    v_quadrant(v_to_int(n), s, c);
}

KM_INLINE vm v_trig_beyond(vf x) { return vm_not(v_le(v_abs(x), v_set1(KM_TRIG_LIMIT))); }

KM_INLINE void v_sincos(vf x, vf *s, vf *c) {
    vm far = v_trig_beyond(x);
    v_sincos_reduced(v_select(far, v_zero(), x), s, c);
    if (__builtin_expect(vm_any(far), 0)) {
        for (int i = 0; i < KM_VF; i++) {
            if (fabsf(x[i]) <= KM_TRIG_LIMIT) continue;
            (*s)[i] = sinf(x[i]);
            (*c)[i] = cosf(x[i]);
        }
    }
}
KM_INLINE vf v_sin(vf x) {
    vf s, c;
    v_sincos(x, &s, &c);
    return v_select(v_eq(x, v_zero()), x, s); /* -0 */
}
KM_INLINE vf v_cos(vf x) {
    vf s, c;
    v_sincos(x, &s, &c);
    return c;
}

/* ---- erf and the normal distribution ---- */

KM_INLINE vf v_erf(vf x) {
    vf a = v_abs(x), z = a * a;
    /* |x| <= 0.9: x P(x^2) */
    vf p = v_fma(v_set1(8.513104999e-5f), z, v_set1(-0.0008175639521f));
    p = v_fma(p, z, v_set1(0.005203859181f));
    p = v_fma(p, z, v_set1(-0.02686050847f));
    p = v_fma(p, z, v_set1(0.1128371503f));
    p = v_fma(p, z, v_set1(-0.3761263498f));
    vf small = v_fma(a, v_fma(p, z, v_set1(0.128379167f)), a);
    /* beyond: 1 - e^Q(x), 1 from 3.92 on */
    vf b = v_min(v_set1(4.0f), a);
    vf q = v_fma(v_set1(-2.0531028e-5f), b, v_set1(0.0004279898675f));
    q = v_fma(q, b, v_set1(-0.004139962934f));
    q = v_fma(q, b, v_set1(0.02503829444f));
    q = v_fma(q, b, v_set1(-0.1081559108f));
    q = v_fma(q, b, v_set1(-0.6334584862f));
    q = v_fma(q, b, v_set1(-1.129460392f));
    q = v_fma(q, b, v_set1(0.0001634886f));
    vf large = 1.0f - v_exp(q);
    return v_copysign(v_select(v_lt(a, v_set1(0.9f)), small, large), x);
}

/* P(N <= x) of the standard normal distribution, its density's e^(-x^2/2) in *e. */
KM_INLINE vf v_normal_cdf(vf x, vf *e) {
    vf a = v_min(v_set1(15.0f), v_abs(x));
    vf lo, s = v_two_prod(a, a, &lo);
    *e = v_exp_two(v_max(v_set1(-104.0f), s * -0.5f), lo * -0.5f);
    /* The tail: e^(-a^2/2) P(t) / (a + 4), with t = (a - 4) / (a + 4) */
    vf d = a + 4.0f, k = 1.0f / d;
    vf rest = (v_fma_exact(-d, k, v_set1(1.0f)) - (a - (d - 4.0f)) * k) * k; /* what k lacks */
    vf t = v_fma(a - 4.0f, k, (a - 4.0f) * rest);
    vf p = v_fma(v_set1(-0.0001319702853f), t, v_set1(0.0001793566966f));
    p = v_fma(p, t, v_set1(0.001569923043f));
    p = v_fma(p, t, v_set1(-0.003512556015f));
    p = v_fma(p, t, v_set1(-0.007525271561f));
    p = v_fma(p, t, v_set1(0.06040383165f));
    p = v_fma(p, t, v_set1(-0.1865234414f));
    p = v_fma(p, t, v_set1(0.3871369011f));
    p = v_fma(p, t, v_set1(-0.6078965883f));
    p = v_fma(p, t, v_set1(0.7552851354f));
    p *= *e;
    vf tail = v_fma(p, k, p * rest);
    vf far = v_select(v_lt(x, v_zero()), tail, 1.0f - tail);
    /* Near 0: 1/2 + x Q(x^2) */
    vf q = v_fma(v_set1(0.000107043833f), s, v_set1(-0.00118464244f));
    q = v_fma(q, s, v_set1(0.009973203229f));
    q = v_fma(q, s, v_set1(-0.06649036368f));
    q = v_fma(q, s, v_set1(0.3989422803f));
    return v_select(v_lt(a, v_set1(0.6f)), v_fma(x, q, v_set1(0.5f)), far);
}

/* ---- Roots and powers ---- */

KM_INLINE vf v_rsqrt(vf x) { return 1.0f / v_sqrt(x); }

/* log2(m), m in [sqrt(1/2), sqrt(2)], to about 1e-11 */
KM_INLINE vd vd_log2_core(vd m) {
    vd s = (m - 1.0) / (m + 1.0), z = s * s;
    vd p = vd_fma(vd_set1(0.340732205034289767), z, vd_set1(0.41167261085879444));
    p = vd_fma(p, z, vd_set1(0.577083586671188861));
    p = vd_fma(p, z, vd_set1(0.961796673333423098));
    p = vd_fma(p, z, vd_set1(2.88539008179009233));
    return p * s;
}

/* x^y. The logarithm and its product with y are in double: the exponent multiplies its error. */
KM_INLINE vf v_pow(vf x, vf y) {
    vf a = v_abs(x), e, m = v_log_reduce(a, &e), one = v_set1(1.0f);
    vd tl = vd_lo(y) * (vd_lo(e) + vd_log2_core(vd_lo(m)));
    vd th = vd_hi(y) * (vd_hi(e) + vd_log2_core(vd_hi(m)));
    vd nl = vd_round(tl), nh = vd_round(th);
    vf t = vd_join(tl, th), n = vd_join(nl, nh), f = vd_join(tl - nl, th - nh);
    /* Far out, and for a base of zero or infinity, the result is 0 or infinite by two signs. */
    vm flat = vm_or(v_eq(a, v_zero()), v_eq(a, v_set1(INFINITY)));
    vm far = vm_or(v_gt(v_abs(t), v_set1(200.0f)), flat);
    n = v_select(
        far, v_select(v_lt(a, one), -v_copysign(v_set1(200.0f), y), v_copysign(v_set1(200.0f), y)),
        n);
    f = v_select(far, v_zero(), f);
    vf r = v_ldexp(v_exp2_core(f), n);
    /* 1^y, (-1)^inf and x^0 are 1; a negative base wants a whole exponent and takes its parity. */
    r = v_select(vm_or(v_isnan(x), v_isnan(y)), x + y, r);
    r = v_select(vm_and(v_eq(a, one), vm_not(v_isnan(y))), one, r);
    vf ay = v_abs(y), big = v_set1(0x1p24f);
    vi k = v_to_int(v_select(v_lt(ay, big), y, v_zero()));
    vm whole = vm_or(v_ge(ay, big), v_eq(vi_to_float(k), y));
    vm bad = vm_and(v_lt(x, v_zero()), vm_and(vm_not(flat), vm_not(whole)));
    r = v_select(vm_and(bad, vm_not(v_isnan(y))), v_set1(NAN), r);
    vu odd = (vu)vi_select(whole, k & 1, vi_set1(0)) << 31;
    r = (vf)((vu)r ^ (odd & (vu)v_signbit(x)));
    return v_select(vm_or(v_eq(x, one), v_eq(y, v_zero())), one, r);
}

/* ---- Activations and their derivatives ---- */

/* x sigmoid(x); the derivative s + x s (1 - s), which is 0 and 1 at the infinities */
KM_INLINE vf v_silu(vf x) { return x * v_sigmoid(x); }
KM_INLINE vf v_silu_deriv(vf x) {
    vf e = v_exp_neg(-v_abs(x)), d = v_div_by_1_to_2(v_set1(1.0f), e + 1.0f);
    vf s = v_select(v_lt(x, v_zero()), e * d, d);
    vf c = v_min(v_set1(200.0f), v_max(v_set1(-200.0f), x)); /* not infinity times 0 */
    return v_fma(c * d, e * d, s);
}

/* gelu(x) = x sigmoid(v), v = 2 sqrt(2/pi) (x + 0.044715 x^3): the tanh form. In the tail v is so
 * large that its rounding would show in e^-v, so v is kept in two parts until n is taken off. */
#define KM_GELU_A 1.5957691216057307118
#define KM_GELU_B 0.071354816272600248776
/* e^-v for a = |x|, at most 11 (beyond which it is 0) */
KM_INLINE vf v_gelu_exp(vf a) {
    const double ka = -KM_GELU_A * KM_LOG2E, kb = -KM_GELU_B * KM_LOG2E; /* in powers of two */
#ifdef KM_HAS_FMA
    /* -v = a (w + wl). The constant's first part is a multiple of 2^-20, which makes ah - w exact
     * for all w there are, and the rounding error of w with it. */
    const double first = -0x24d5d8 * 0x1p-20;
    vf ah = v_set1((float)first), al = v_set1((float)(ka - first));
    vf bh = v_set1((float)kb), bl = v_set1((float)(kb - (double)(float)kb));
    vf sl, s = v_two_prod(a, a, &sl), w = v_fma(s, bh, ah);
    vf wl = v_fma(s, bh, ah - w) + v_fma(sl, bh, v_fma(s, bl, al));
    vf n = v_round(a * w), f = v_fma(a, wl, v_fma(a, w, -n));
#else
    vd vl = vd_lo(a), vh_ = vd_hi(a);
    vl *= vl * vl * kb + ka;
    vh_ *= vh_ * vh_ * kb + ka;
    vd nl = vd_round(vl), nh = vd_round(vh_);
    vf n = vd_join(nl, nh), f = vd_join(vl - nl, vh_ - nh);
#endif
    return v_ldexp(v_exp2_core(f), n);
}
KM_INLINE vf v_gelu(vf x) {
    vf e = v_gelu_exp(v_min(v_set1(11.0f), v_abs(x)));
    return x * v_div_by_1_to_2(v_select(v_lt(x, v_zero()), e, v_set1(1.0f)), e + 1.0f);
}
KM_INLINE vf v_gelu_deriv(vf x) {
    vf a = v_min(v_set1(11.0f), v_abs(x)), e = v_gelu_exp(a);
    vf d = v_div_by_1_to_2(v_set1(1.0f), e + 1.0f), s = v_select(v_lt(x, v_zero()), e * d, d);
    vf dv = v_fma(a * a, v_set1((float)(3 * KM_GELU_B)), v_set1((float)KM_GELU_A));
    return v_fma(v_copysign(a, x) * d, e * d * dv, s);
}

/* gelu_erf(x) = x P(N <= x); the derivative P(N <= x) + x e^(-x^2/2) / sqrt(2 pi) */
KM_INLINE vf v_gelu_erf(vf x) {
    vf e;
    return x * v_normal_cdf(x, &e);
}
KM_INLINE vf v_gelu_erf_deriv(vf x) {
    vf e, p = v_normal_cdf(x, &e);
    vf c = v_min(v_set1(15.0f), v_max(v_set1(-15.0f), x));
    return v_fma(c * 0.39894228f, e, p);
}

#endif
