/* Decoding blocks of quantised weights, one type at a time. In the comments a block is written as
 * its fields in order; d, m are f16. The order of float operations is part of the format: it is
 * what makes the result the same, bit for bit, as that of other readers. */
#include "tensor/quant.h"

const int8_t km_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
const int8_t km_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---- Blocks of 32 ---- */

static void q4_0(const uint8_t *b, float *y) { /* d, 16 bytes: elements i and i + 16 */
    float d = km_load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void q4_1(const uint8_t *b, float *y) { /* d, m, 16 bytes */
    float d = km_load_f16(b), m = km_load_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* The fifth bits are in four bytes, element i's in bit i. */
static int fifth(const uint8_t *bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

static void q5_0(const uint8_t *b, float *y) { /* d, 4 bytes of fifth bits, 16 bytes */
    float d = km_load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(((b[6 + i] & 15) | fifth(b + 2, i)) - 16) * d;
        y[i + 16] = (float)((b[6 + i] >> 4 | fifth(b + 2, i + 16)) - 16) * d;
    }
}

static void q5_1(const uint8_t *b, float *y) { /* d, m, 4 bytes of fifth bits, 16 bytes */
    float d = km_load_f16(b), m = km_load_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[8 + i] & 15) | fifth(b + 4, i)) * d + m;
        y[i + 16] = (float)(b[8 + i] >> 4 | fifth(b + 4, i + 16)) * d + m;
    }
}

static void q8_0(const uint8_t *b, float *y) { /* d, 32 signed bytes */
    float d = km_load_f16(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

static void iq4_nl(const uint8_t *b, float *y) { /* d, 16 bytes of codes */
    float d = km_load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)km_iq4_values[b[2 + i] & 15];
        y[i + 16] = d * (float)km_iq4_values[b[2 + i] >> 4];
    }
}

static void mxfp4(const uint8_t *b, float *y) { /* exponent, 16 bytes of codes */
    float d = km_mxfp4_scale(b[0]);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)km_mxfp4_values[b[1 + i] & 15] * d;
        y[i + 16] = (float)km_mxfp4_values[b[1 + i] >> 4] * d;
    }
}

/* ---- Blocks of 256 ---- */

static void q2_k(const uint8_t *b, float *y) { /* 16 scales and minima, 64 bytes, d, dmin */
    const uint8_t *codes = b + 16;
    float d = km_load_f16(b + 80), dmin = km_load_f16(b + 82);
    for (int i = 0; i < 256; i++) { /* 16 to a scale; 128 share 32 bytes, two bits each */
        uint8_t s = b[i / 16];
        int q = codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        y[i] = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
    }
}

static void q3_k(const uint8_t *b,
                 float *y) { /* 32 bytes of third bits, 64 bytes, 12 of scales, d */
    const uint8_t *codes = b + 32, *scales = b + 96;
    float d = km_load_f16(b + 108);
    for (int i = 0; i < 256; i++) {
        int q = codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        if (!(b[i % 32] >> i / 32 & 1)) q -= 4;
        y[i] = d * (float)km_q3_scale(scales, i / 16) * (float)q;
    }
}

static void q4_k(const uint8_t *b, float *y) { /* d, dmin, 12 bytes of scales, 128 bytes */
    float d = km_load_f16(b), dmin = km_load_f16(b + 2);
    for (int j = 0; j < 8; j++) { /* 32 to a scale; two of them share 32 bytes */
        int scale, min;
        km_k4_scale(b + 4, j, &scale, &min);
        float d1 = d * (float)scale, m1 = dmin * (float)min;
        const uint8_t *codes = b + 16 + j / 2 * 32;
        for (int i = 0; i < 32; i++)
            y[j * 32 + i] = d1 * (float)(codes[i] >> (j % 2 * 4) & 15) - m1;
    }
}

static void q5_k(const uint8_t *b, float *y) { /* d, dmin, 12 of scales, 32 of fifth bits, 128 */
    float d = km_load_f16(b), dmin = km_load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        km_k4_scale(b + 4, j, &scale, &min);
        float d1 = d * (float)scale, m1 = dmin * (float)min;
        const uint8_t *codes = b + 48 + j / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int q = (codes[i] >> (j % 2 * 4) & 15) | (b[16 + i] >> j & 1) << 4;
            y[j * 32 + i] = d1 * (float)q - m1;
        }
    }
}

static void q6_k(const uint8_t *b, float *y) { /* 128 low halves, 64 high pairs, 16 scales, d */
    float d = km_load_f16(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, j = i % 128; /* 128 share 64 bytes of low and 32 of high bits */
        int low = b[half * 64 + j % 64] >> (j / 64 * 4) & 15;
        int high = b[128 + half * 32 + j % 32] >> (j / 32 * 2) & 3;
        y[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

static void iq4_xs(const uint8_t *b, float *y) { /* d, high bits of scales, 4 of low, 128 codes */
    float d = km_load_f16(b);
    for (int j = 0; j < 8; j++) {
        float d1 = d * (float)km_iq4_scale(b + 4, km_load_u16(b + 2), j);
        const uint8_t *codes = b + 8 + j * 16;
        for (int i = 0; i < 16; i++) {
            y[j * 32 + i] = d1 * (float)km_iq4_values[codes[i] & 15];
            y[j * 32 + i + 16] = d1 * (float)km_iq4_values[codes[i] >> 4];
        }
    }
}

void km_dequantise(km_dtype d, const void *blocks, int64_t n, float *out) {
    static void (*const decode[KM_DTYPE_COUNT])(const uint8_t *, float *) = {
        [KM_Q4_0] = q4_0,  [KM_Q4_1] = q4_1, [KM_Q5_0] = q5_0,     [KM_Q5_1] = q5_1,
        [KM_Q8_0] = q8_0,  [KM_Q2_K] = q2_k, [KM_Q3_K] = q3_k,     [KM_Q4_K] = q4_k,
        [KM_Q5_K] = q5_k,  [KM_Q6_K] = q6_k, [KM_IQ4_NL] = iq4_nl, [KM_IQ4_XS] = iq4_xs,
        [KM_MXFP4] = mxfp4};
    int64_t block = km_dtype_block(d), bytes = (int64_t)km_dtype_size(d);
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i += block, b += bytes) decode[d](b, out + i);
}
