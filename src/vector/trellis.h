/* Trellis codes (Marcellin and Fischer 1990, in the bit-shift form of Tseng et al. 2024).
 *
 * The code of a row is a ring of bits. Axis i looks at the window of the last 12 bits up to its own
 * end, its value is a table's entry for that window, and the next axis' window has moved on by that
 * axis' rate: 0 to 8 bits. So each bit takes part in several values, and an encoder that searches
 * all paths (Viterbi) comes within 0.3 to 0.7 dB of Shannon's bound for Gaussian axes, where levels
 * for each axis alone stay 1.6 to 4 dB away.
 *
 * The tables are not stored: entry w of rate k is the normal quantile number g_k(w), where g_k is a
 * fixed linear map of bits under which the 2^k ways out of a state spread over all quantiles. */
#ifndef KM_VECTOR_TRELLIS_H
#define KM_VECTOR_TRELLIS_H
#include "backend/cpu/codes.h"
#include <stdbool.h>
#include <stdint.h>

/* The tables of all rates: values of states for the search, newest bit lowest; and of windows as
 * they are read from a code, newest bit highest. */
typedef struct km_trellis {
    float state[KM_TRELLIS_RATE + 1][KM_TRELLIS_STATES];
    float window[KM_TRELLIS_RATE + 1][KM_TRELLIS_STATES];
} km_trellis;

const km_trellis *km_trellis_tables(void); /* worked out by the first call */

/* The path of a search: buffers for up to `axes` axes, one per thread. */
size_t km_trellis_space(int64_t axes);

/* Codes x (axes) with `rates` (axes), whose sum is `bits` >= KM_TRELLIS_LENGTH, so that
 * amp[i] * value[i] comes close to x[i] in squared error; fills bits [first, first + bits) of
 * `code`, which are 0. value (axes) gets the values chosen. `space` is km_trellis_space(axes). */
void km_trellis_encode(const km_trellis *t, int64_t axes, const float *x, const float *amp,
                       const uint8_t *rates, int64_t bits, uint8_t *code, int64_t first,
                       float *value, void *space);

/* Where axis i's window begins: bit at[i] of the ring, in [0, bits). */
void km_trellis_windows(int64_t axes, const uint8_t *rates, int64_t bits, int32_t *at);

#endif
