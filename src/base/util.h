/* Arithmetic on whole numbers that every room needs. Sizes here fit in 63 bits, so that one type
 * serves; none of these checks for overflow. */
#ifndef KM_BASE_UTIL_H
#define KM_BASE_UTIL_H
#include <stdint.h>

static inline int64_t km_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t km_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t km_clamp64(int64_t v, int64_t lo, int64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}
static inline int64_t km_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; } /* a >= 0 */
static inline int64_t km_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#endif
