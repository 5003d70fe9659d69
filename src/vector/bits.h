/* Up to 8 bits at any place of a byte string, lowest first. */
#ifndef KM_VECTOR_BITS_H
#define KM_VECTOR_BITS_H
#include <stdint.h>

static inline uint32_t km_bits_get(const uint8_t *p, int64_t at, int n) {
    if (n == 0) return 0;
    uint32_t v = p[at >> 3];
    if ((at & 7) + n > 8) v |= (uint32_t)p[(at >> 3) + 1] << 8;
    return v >> (at & 7) & ((1u << n) - 1);
}

/* Into bits that are 0. */
static inline void km_bits_put(uint8_t *p, int64_t at, int n, uint32_t v) {
    if (n == 0) return;
    p[at >> 3] |= (uint8_t)(v << (at & 7));
    if ((at & 7) + n > 8) p[(at >> 3) + 1] |= (uint8_t)(v >> (8 - (at & 7)));
}

#endif
