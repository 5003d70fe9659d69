/* Weights of a few bits: what is in a block, as plain C says it. The block types are those of ggml
 * and bit-compatible with its files; every number below is little-endian. These functions are the
 * reference that devices are checked against; they trust their lengths. */
#ifndef KM_TENSOR_QUANT_H
#define KM_TENSOR_QUANT_H
#include "tensor/dtype.h"

/* The n elements (whole blocks) at `blocks` as floats, bit for bit what ggml's own code gives. */
void km_dequantise(km_dtype d, const void *blocks, int64_t n, float *out);

/* The n floats (whole blocks) at x encoded as well as the type can: the squared error is what is
 * made small, each element's weighed by weight[i] where there are weights (an importance matrix's);
 * weight may be NULL. */
void km_quantise(km_dtype d, const float *x, const float *weight, int64_t n, void *blocks);

/* The values behind the 4-bit codes of iq4_nl and iq4_xs, and of mxfp4 (doubled). */
extern const int8_t km_iq4_values[16], km_mxfp4_values[16];

/* Scale j (of 8) and minimum j of the 12 packed bytes in q4_k and q5_k. */
static inline void km_k4_scale(const uint8_t *packed, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *min = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

/* Scale j (of 16) of the 12 packed bytes in q3_k: -32 to 31. */
static inline int km_q3_scale(const uint8_t *packed, int j) {
    int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    return (low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
}

/* Scale j (of 8) of iq4_xs: -32 to 31. */
static inline int km_iq4_scale(const uint8_t *low, uint16_t high, int j) {
    return ((low[j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4) - 32;
}

static inline uint16_t km_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline float km_load_f16(const uint8_t *p) { return km_f16_to_f32(km_load_u16(p)); }
/* 2^(e - 128): the shared scale of an mxfp4 block, halved because its values are doubled. */
static inline float km_mxfp4_scale(uint8_t e) {
    return km_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
