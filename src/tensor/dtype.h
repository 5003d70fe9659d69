/* Dtypes: names, sizes, and the exact conversions every device agrees on. */
#ifndef KM_TENSOR_DTYPE_H
#define KM_TENSOR_DTYPE_H
#include "kermes.h"
#include <string.h>

/* Bit sets of dtypes, for the op table. */
#define KM_BIT(d) (1u << (d))
#define KM_FLOATS (KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16) | KM_BIT(KM_F64))
#define KM_INDICES (KM_BIT(KM_I32) | KM_BIT(KM_I64))
#define KM_NUMBERS (KM_FLOATS | KM_INDICES | KM_BIT(KM_U8) | KM_BIT(KM_I8))
#define KM_PLAIN_COUNT KM_Q4_0 /* plain dtypes come first */
#define KM_ANY ((1u << KM_PLAIN_COUNT) - 1)
#define KM_BLOCKS (((1u << KM_DTYPE_COUNT) - 1) & ~KM_ANY) /* those of a few bits */

static inline bool km_dtype_is_block(km_dtype d) { return (KM_BLOCKS >> d) & 1u; }

/* Bytes of `count` elements, a whole number of blocks. */
static inline int64_t km_dtype_bytes(km_dtype d, int64_t count) {
    return km_dtype_is_block(d) ? count / km_dtype_block(d) * (int64_t)km_dtype_size(d)
                                : count * (int64_t)km_dtype_size(d);
}

static inline bool km_dtype_is_float(km_dtype d) { return (KM_FLOATS >> d) & 1u; }

static inline uint32_t km_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float km_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float km_bf16_to_f32(uint16_t h) { return km_bits_f32((uint32_t)h << 16); }

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t km_f32_to_bf16(float f) {
    uint32_t u = km_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float km_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return km_bits_f32(sign | 0x7f800000u | (m << 13));
    if (e) return km_bits_f32(sign | ((e + 112) << 23) | (m << 13));
    float f = (float)m * 0x1p-24f; /* zero and subnormals, exact */
    return sign ? -f : f;
}

/* Round to nearest even; overflow gives infinity; NaN stays NaN. */
static inline uint16_t km_f32_to_f16(float f) {
    uint32_t u = km_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below the smallest normal: let the adder do the rounding */
        float s = km_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (km_f32_bits(s) - 0x3f000000u));
    }
    uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((r - 0x38000000u) >> 13));
}

/* double to a 16-bit float in one rounding: through f32 rounded to odd. */
static inline float km_f64_to_f32_odd(double d) {
    float f = (float)d;
    double back = (double)f;
    if (back != d && back == back) {
        uint32_t u = km_f32_bits(f);
        bool away = (back > d) == (d > 0); /* |f| > |d|: step back toward zero first */
        if ((u & 0x7fffffffu) == 0) return f;
        if (away) u--;
        return km_bits_f32(u | 1u);
    }
    return f;
}

#endif
