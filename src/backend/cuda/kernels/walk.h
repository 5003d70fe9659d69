/* Walking strided operands on the GPU: axes are merged on the host (backend/iter.h), and an
 * element's place in each operand is found from its number by dividing by the axes' sizes, which
 * is done by multiplication. For C and CUDA. */
#ifndef KM_CUDA_WALK_H
#define KM_CUDA_WALK_H
#include <stdint.h>

#define KM_WALK_DIMS 5
#define KM_WALK_MAX ((int64_t)1 << 31) /* elements of one launch are fewer than this */

/* x / d for x < 2^31 is (high half of x * mul + x) >> shift. */
typedef struct km_divisor {
    uint32_t d, mul, shift;
} km_divisor;

static inline km_divisor km_divisor_make(uint32_t d) {
    if (d == 0) d = 1; /* of an empty walk */
    km_divisor r = {d, 0, 0};
    while (r.shift < 31 && (UINT32_C(1) << r.shift) < d) r.shift++;
    r.mul = (uint32_t)(((UINT64_C(1) << 32) * ((UINT64_C(1) << r.shift) - d)) / d + 1);
    return r;
}

/* Axis 0 is the outermost; the last one is the fastest. Strides are in elements of the operand. */
typedef struct km_walk {
    int32_t ndim;
    uint32_t count; /* elements: the product of the dims */
    km_divisor dim[KM_WALK_DIMS];
    int64_t stride[4][KM_WALK_DIMS]; /* of up to four operands */
} km_walk;

#endif
