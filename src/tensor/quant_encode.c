/* Encoding floats in blocks of a few bits. Every type is a choice of scales and then of the nearest
 * codes; the codes are easy once the scales are fixed, and the best scale for fixed codes is a
 * least-squares formula. So each group of elements tries a few dozen scales around the one its
 * largest element asks for, refines each by that formula, and keeps the best. Types with scales of
 * a few bits round those, and choose the codes again for the scales as they are stored. */
#include "tensor/quant.h"
#include <math.h>

static int nearest(float v, int lo, int hi) {
    v = v < (float)lo ? (float)lo : v > (float)hi ? (float)hi : v; /* NaN passes, and gives 0 */
    return v == v ? (int)lrintf(v) : 0;
}

static float weight_of(const float *w, const float *x, int i) {
    return w ? w[i] : x[i] * x[i]; /* without a matrix large weights matter more */
}

static float largest(const float *x, int n, float *signed_one) {
    float most = 0;
    *signed_one = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > most) {
            most = fabsf(x[i]);
            *signed_one = x[i];
        }
    return most;
}

/* ---- x[i] ~ d q[i], q from lo to hi ---- */

/* The weighed squared error of the codes for scale d, and the scale that suits these codes best. */
static double try_scale(const float *x, const float *w, int n, int lo, int hi, float d,
                        float *better) {
    double qx = 0, qq = 0, xx = 0;
    float one = d != 0 ? 1 / d : 0;
    for (int i = 0; i < n; i++) {
        int q = nearest(x[i] * one, lo, hi);
        double wi = weight_of(w, x, i);
        qx += wi * q * x[i];
        qq += wi * q * q;
        xx += wi * x[i] * x[i];
    }
    *better = qq > 0 ? (float)(qx / qq) : 0;
    return xx - (qq > 0 ? qx * qx / qq : 0);
}

static float fit_scale(const float *x, const float *w, int n, int lo, int hi) {
    float far, best = 0, most = largest(x, n, &far);
    double least = INFINITY;
    if (!(most > 0) || !isfinite(most)) return 0;
    /* The largest element may sit on either end; -lo reaches one further than hi. */
    for (int side = 0; side < 2; side++)
        for (int k = -9; k <= 9; k++) {
            float d = far / ((float)(side ? hi : lo) + 0.1f * (float)k), better, once;
            double e = try_scale(x, w, n, lo, hi, d, &better);
            double e2 = better != 0 ? try_scale(x, w, n, lo, hi, better, &once) : e;
            if (e2 < e) e = e2, better = once;
            if (e < least) least = e, best = better;
        }
    return best;
}

/* ---- x[i] ~ d q[i] - m, q from 0 to hi, d not negative; nor m, where `deep` says so ---- */

typedef struct affine {
    float d, m;
} affine;

static double try_affine(const float *x, const float *w, int n, int hi, bool deep, affine a,
                         affine *better) {
    double sw = 0, sx = 0, sq = 0, sqq = 0, sqx = 0, error = 0;
    float one = a.d > 0 ? 1 / a.d : 0;
    for (int i = 0; i < n; i++) {
        int q = nearest((x[i] + a.m) * one, 0, hi);
        double wi = w ? w[i] : 1, t = a.d * (double)q - a.m - x[i];
        error += wi * t * t;
        sw += wi, sx += wi * x[i], sq += wi * q, sqq += wi * q * q, sqx += wi * q * x[i];
    }
    double det = sw * sqq - sq * sq;
    *better = a;
    if (det > 0) {
        double d = (sw * sqx - sx * sq) / det, m = (sq * sqx - sqq * sx) / det;
        if (deep && m < 0) m = 0, d = sqq > 0 ? sqx / sqq : 0;
        if (d > 0) *better = (affine){(float)d, (float)m};
    }
    return error;
}

static affine fit_affine(const float *x, const float *w, int n, int hi, bool deep) {
    float lo = x[0], up = x[0];
    for (int i = 1; i < n; i++) lo = fminf(lo, x[i]), up = fmaxf(up, x[i]);
    if (deep && lo > 0) lo = 0;
    affine best = {0, -lo}, better;
    if (!(up > lo) || !isfinite(up - lo)) return best;
    double least = INFINITY;
    for (int k = -10; k <= 10; k++) {
        affine a = {(up - lo) / ((float)hi + 0.1f * (float)k), -lo};
        for (int again = 0; again < 4; again++) {
            double e = try_affine(x, w, n, hi, deep, a, &better);
            if (e < least) least = e, best = a;
            a = better;
        }
    }
    return best;
}

static void put_f16(uint8_t *p, float v) {
    uint16_t h = km_f32_to_f16(v);
    p[0] = (uint8_t)h, p[1] = (uint8_t)(h >> 8);
}

/* v as it comes back from f16. */
static float stored(float v) { return km_f16_to_f32(km_f32_to_f16(v)); }
static float over(float d) { return d != 0 ? 1 / d : 0; }

/* ---- Blocks of 32 ---- */

static void nibbles(const uint8_t *q, uint8_t *out) { /* elements i and i + 16 share a byte */
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void symmetric(const float *x, const float *w, uint8_t *b, int half) { /* q4_0, q5_0 */
    float d = fit_scale(x, w, 32, -half, half - 1), one = over(stored(d));
    uint8_t q[32], *fifth = b + 2;
    put_f16(b, d);
    if (half == 16) fifth[0] = fifth[1] = fifth[2] = fifth[3] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (uint8_t)(nearest(x[i] * one, -half, half - 1) + half);
        if (half == 16) fifth[i / 8] |= (uint8_t)((q[i] >> 4) << i % 8);
    }
    nibbles(q, b + (half == 16 ? 6 : 2));
}

static void with_minimum(const float *x, const float *w, uint8_t *b, int hi) { /* q4_1, q5_1 */
    affine best = fit_affine(x, w, 32, hi, false);
    uint8_t q[32], *fifth = b + 4;
    put_f16(b, best.d);
    put_f16(b + 2, -best.m);
    float one = over(stored(best.d)), m = stored(-best.m);
    if (hi == 31) fifth[0] = fifth[1] = fifth[2] = fifth[3] = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (uint8_t)nearest((x[i] - m) * one, 0, hi);
        if (hi == 31) fifth[i / 8] |= (uint8_t)((q[i] >> 4) << i % 8);
    }
    nibbles(q, b + (hi == 31 ? 8 : 4));
}

static void q8_0(const float *x, uint8_t *b) {
    float far, d = largest(x, 32, &far) / 127, one = over(d);
    put_f16(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)nearest(x[i] * one, -127, 127);
}

/* The code whose value is nearest to v; values rise with the code. */
static int nearest_value(const int8_t *values, float v) {
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(v - (float)values[i]) < fabsf(v - (float)values[best])) best = i;
    return best;
}

static float fit_values(const int8_t *values, const float *x, const float *w, int n) {
    float far, best = 0, most = largest(x, n, &far);
    double least = INFINITY;
    if (!(most > 0) || !isfinite(most)) return 0;
    for (int k = -14; k <= 14; k++) {
        float d = far / ((k < 0 ? -127.0f : 113.0f) + (float)(k < 0 ? k + 7 : k - 7));
        double qx = 0, qq = 0, xx = 0;
        for (int i = 0; i < n; i++) {
            double v = values[nearest_value(values, x[i] / d)], wi = weight_of(w, x, i);
            qx += wi * v * x[i], qq += wi * v * v, xx += wi * x[i] * x[i];
        }
        double e = xx - (qq > 0 ? qx * qx / qq : 0);
        if (qq > 0 && e < least) least = e, best = (float)(qx / qq);
    }
    return best;
}

static void iq4_nl(const float *x, const float *w, uint8_t *b) {
    float d = fit_values(km_iq4_values, x, w, 32), one = over(stored(d));
    uint8_t q[32];
    put_f16(b, d);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)nearest_value(km_iq4_values, x[i] * one);
    nibbles(q, b + 2);
}

static void mxfp4(const float *x, const float *w, uint8_t *b) { /* scales are powers of two */
    float far, most = largest(x, 32, &far);
    int exponent = 0, best = 0;
    double least = INFINITY;
    uint8_t q[32];
    frexpf(most, &exponent);
    for (int e = exponent + 124; e <= exponent + 127; e++) {
        int at = e < 0 ? 0 : e > 254 ? 254 : e;
        float d = km_mxfp4_scale((uint8_t)at);
        double error = 0;
        for (int i = 0; i < 32; i++) {
            int c = nearest_value(km_mxfp4_values, x[i] / d);
            double t = km_mxfp4_values[c] * (double)d - x[i];
            error += (w ? w[i] : 1) * t * t;
        }
        if (error < least) least = error, best = at;
    }
    b[0] = (uint8_t)best;
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)nearest_value(km_mxfp4_values, x[i] / km_mxfp4_scale((uint8_t)best));
    nibbles(q, b + 1);
}

/* ---- Blocks of 256 ---- */

static const float *at(const float *w, int i) { return w ? w + i : NULL; }

/* Scales and minima of `groups` groups, rounded to `top` steps of a shared d and dmin. */
static void affine_groups(const float *x, const float *w, int groups, int size, int hi, int top,
                          float *d, float *dmin, int *scale, int *min) {
    affine a[16];
    float most = 0, deep = 0;
    for (int j = 0; j < groups; j++) {
        a[j] = fit_affine(x + j * size, at(w, j * size), size, hi, true);
        most = fmaxf(most, a[j].d), deep = fmaxf(deep, a[j].m);
    }
    *d = stored(most / (float)top);
    *dmin = stored(deep / (float)top);
    for (int j = 0; j < groups; j++) {
        scale[j] = nearest(a[j].d * over(*d), 0, top);
        min[j] = nearest(a[j].m * over(*dmin), 0, top);
    }
}

static void pack_k4_scales(const int *scale, const int *min, uint8_t *packed) {
    for (int j = 0; j < 12; j++) packed[j] = 0;
    for (int j = 0; j < 8; j++) {
        if (j < 4) {
            packed[j] |= (uint8_t)scale[j];
            packed[j + 4] |= (uint8_t)min[j];
        } else {
            packed[j + 4] |= (uint8_t)((scale[j] & 15) | (min[j] & 15) << 4);
            packed[j - 4] |= (uint8_t)((scale[j] >> 4) << 6);
            packed[j] |= (uint8_t)((min[j] >> 4) << 6);
        }
    }
}

static void q45_k(const float *x, const float *w, uint8_t *b, int hi) { /* q4_k, q5_k */
    float d, dmin;
    int scale[8], min[8];
    affine_groups(x, w, 8, 32, hi, 63, &d, &dmin, scale, min);
    put_f16(b, d);
    put_f16(b + 2, dmin);
    pack_k4_scales(scale, min, b + 4);
    uint8_t *codes = b + (hi == 31 ? 48 : 16), *fifth = b + 16;
    for (int i = 0; i < (hi == 31 ? 160 : 128); i++) b[16 + i] = 0;
    for (int i = 0; i < 256; i++) {
        int j = i / 32,
            q = nearest((x[i] + dmin * (float)min[j]) * over(d * (float)scale[j]), 0, hi);
        codes[j / 2 * 32 + i % 32] |= (uint8_t)((q & 15) << (j % 2 * 4));
        if (hi == 31) fifth[i % 32] |= (uint8_t)((q >> 4) << j);
    }
}

static void q2_k(const float *x, const float *w, uint8_t *b) {
    float d, dmin;
    int scale[16], min[16];
    affine_groups(x, w, 16, 16, 3, 15, &d, &dmin, scale, min);
    for (int j = 0; j < 16; j++) b[j] = (uint8_t)(scale[j] | min[j] << 4);
    for (int i = 0; i < 64; i++) b[16 + i] = 0;
    for (int i = 0; i < 256; i++) {
        int j = i / 16,
            q = nearest((x[i] + dmin * (float)min[j]) * over(d * (float)scale[j]), 0, 3);
        b[16 + i / 128 * 32 + i % 32] |= (uint8_t)(q << (i / 32 % 4 * 2));
    }
    put_f16(b + 80, d);
    put_f16(b + 82, dmin);
}

/* Signed scales of 16 groups of 16, rounded to steps of a shared d: lo to hi. */
static float signed_groups(const float *x, const float *w, int codes, int lo, int hi, int *scale) {
    float s[16], far, d;
    for (int j = 0; j < 16; j++) s[j] = fit_scale(x + j * 16, at(w, j * 16), 16, -codes, codes - 1);
    largest(s, 16, &far);
    d = stored(far / (float)lo);
    for (int j = 0; j < 16; j++) scale[j] = nearest(s[j] * over(d), lo, hi);
    return d;
}

static void q3_k(const float *x, const float *w, uint8_t *b) {
    int scale[16];
    float d = signed_groups(x, w, 4, -32, 31, scale);
    for (int i = 0; i < 110; i++) b[i] = 0;
    for (int i = 0; i < 256; i++) {
        int q = nearest(x[i] * over(d * (float)scale[i / 16]), -4, 3) + 4;
        b[32 + i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << (i / 32 % 4 * 2));
        b[i % 32] |= (uint8_t)((q >> 2) << i / 32);
    }
    for (int j = 0; j < 16; j++) {
        int s = scale[j] + 32;
        b[96 + j % 8] |= (uint8_t)((s & 15) << (j / 8 * 4));
        b[104 + j % 4] |= (uint8_t)((s >> 4) << (j / 4 * 2));
    }
    put_f16(b + 108, d);
}

static void q6_k(const float *x, const float *w, uint8_t *b) {
    int scale[16];
    float d = signed_groups(x, w, 32, -128, 127, scale);
    for (int i = 0; i < 192; i++) b[i] = 0;
    for (int i = 0; i < 256; i++) {
        int q = nearest(x[i] * over(d * (float)scale[i / 16]), -32, 31) + 32;
        int half = i / 128, j = i % 128;
        b[half * 64 + j % 64] |= (uint8_t)((q & 15) << (j / 64 * 4));
        b[128 + half * 32 + j % 32] |= (uint8_t)((q >> 4) << (j / 32 * 2));
    }
    for (int j = 0; j < 16; j++) b[192 + j] = (uint8_t)(int8_t)scale[j];
    put_f16(b + 208, d);
}

static void iq4_xs(const float *x, const float *w, uint8_t *b) {
    float s[8], far;
    unsigned high = 0;
    for (int j = 0; j < 8; j++) s[j] = fit_values(km_iq4_values, x + j * 32, at(w, j * 32), 32);
    largest(s, 8, &far);
    float d = stored(far / -32);
    put_f16(b, d);
    for (int i = 4; i < 8; i++) b[i] = 0;
    for (int j = 0; j < 8; j++) {
        int scale = nearest(s[j] * over(d), -32, 31);
        float one = over(d * (float)scale);
        uint8_t q[32];
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)nearest_value(km_iq4_values, x[j * 32 + i] * one);
        nibbles(q, b + 8 + j * 16);
        b[4 + j / 2] |= (uint8_t)(((scale + 32) & 15) << (j % 2 * 4));
        high |= (unsigned)((scale + 32) >> 4) << (2 * j);
    }
    b[2] = (uint8_t)high, b[3] = (uint8_t)(high >> 8);
}

void km_quantise(km_dtype d, const float *x, const float *weight, int64_t n, void *blocks) {
    int64_t block = km_dtype_block(d), bytes = (int64_t)km_dtype_size(d);
    uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += block, b += bytes) {
        const float *v = x + i, *w = weight ? weight + i : NULL;
        switch (d) {
        case KM_Q4_0: symmetric(v, w, b, 8); break;
        case KM_Q5_0: symmetric(v, w, b, 16); break;
        case KM_Q4_1: with_minimum(v, w, b, 15); break;
        case KM_Q5_1: with_minimum(v, w, b, 31); break;
        case KM_Q8_0: q8_0(v, b); break;
        case KM_Q2_K: q2_k(v, w, b); break;
        case KM_Q3_K: q3_k(v, w, b); break;
        case KM_Q4_K: q45_k(v, w, b, 15); break;
        case KM_Q5_K: q45_k(v, w, b, 31); break;
        case KM_Q6_K: q6_k(v, w, b); break;
        case KM_IQ4_NL: iq4_nl(v, w, b); break;
        case KM_IQ4_XS: iq4_xs(v, w, b); break;
        case KM_MXFP4: mxfp4(v, w, b); break;
        default: break;
        }
    }
}
