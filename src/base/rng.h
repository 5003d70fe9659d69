/* Philox 4x32-10 (Salmon et al., SC'11): a counter-based generator. The value at a given
 * (seed, counter) is a pure function, so tensors fill in parallel, on any device, with the
 * same numbers, and dropout recomputes its mask instead of storing it. */
#ifndef KM_BASE_RNG_H
#define KM_BASE_RNG_H
#include <math.h>
#include <stdint.h>

typedef struct km_philox4 {
    uint32_t v[4];
} km_philox4;

/* Block `counter` (high 64 bits: `stream`) of the sequence `seed`: four random words. */
km_philox4 km_philox(uint64_t seed, uint64_t stream, uint64_t counter);

/* How an element of a tensor gets its number; every device does exactly this.
 * Element i of a fill takes word i%4 of block i/4; normals take words in pairs (Box-Muller):
 * elements 2k and 2k+1 of a block use words (2k, 2k+1), as r*cos(a) and r*sin(a). */
static inline float km_u32_to_unit(uint32_t x) { return (float)(x >> 8) * 0x1p-24f; } /* [0,1) */

/* Standard normal pair from two words: u1 in (0,1], u2 in [0,1). In double: the reference. */
static inline void km_box_muller(uint32_t a, uint32_t b, double *n0, double *n1) {
    double u1 = ((double)(a >> 8) + 1.0) * 0x1p-24, u2 = (double)(b >> 8) * 0x1p-24;
    double r = sqrt(-2.0 * log(u1)), t = 6.283185307179586 * u2;
    *n0 = r * cos(t);
    *n1 = r * sin(t);
}

#endif
