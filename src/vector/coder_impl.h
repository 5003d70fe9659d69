/* What a coder holds; shared by training, files and scans. */
#ifndef KM_VECTOR_CODER_IMPL_H
#define KM_VECTOR_CODER_IMPL_H
#include "vector/coder.h"
#include "vector/levels.h"
#include <stdbool.h>
#include <string.h>

#define KM_SCALE_STEPS 255 /* scale byte: 0 is a residual of zero, then steps of a geometric row */

struct km_coder {
    int64_t dim;
    int64_t bytes;
    km_code_mode mode;
    km_code_turn turn;
    uint64_t seed;
    double error;
    float scale_low, scale_step; /* scale of byte b >= 1: scale_low * exp(scale_step * (b - 1)) */
    float lost;                  /* |r|^2 - |r^|^2 is about lost * scale^2 */
    uint8_t *bits;               /* (dim) of each axis */
    float *sigma;                /* (dim) of each axis, for a residual of scale 1 */
    float *signs;                /* of the Hadamard rotation */
    float scales[KM_SCALE_STEPS + 1];
    float levels[KM_LEVEL_BITS + 1][1 << KM_LEVEL_BITS];
};

/* Fills what follows from the stored fields: scales, levels, signs. */
km_status km_coder_prepare(km_coder *c, km_error *err);

/* The row's axes (dim), to be multiplied by its scale, which is returned. */
float km_coder_axes(const km_coder *c, const uint8_t *code, float *axes);

/* n bits at bit `at` of a string, lowest first; the reader may look at the byte behind the last. */
static inline uint32_t km_bits_get(const uint8_t *p, int64_t at, int n) {
    uint32_t v = p[at >> 3];
    if ((at & 7) + n > 8) v |= (uint32_t)p[(at >> 3) + 1] << 8;
    return v >> (at & 7) & ((1u << n) - 1);
}
static inline void km_bits_put(uint8_t *p, int64_t at, int n, uint32_t v) {
    p[at >> 3] |= (uint8_t)(v << (at & 7));
    if ((at & 7) + n > 8) p[(at >> 3) + 1] |= (uint8_t)(v >> (8 - (at & 7)));
}

#endif
