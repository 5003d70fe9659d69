/* The ops behind encoding on a GPU: turned residuals become codes, a row at a time, as vector/coder.c
 * makes them. Nothing is on the tape.
 *
 * Both scale a row z to x = z / s with s = sqrt(square / dim), choose a value for each of its columns so
 * that amp * value is near x, and put into byte 0 the step of the geometric row low exp(step (b - 1))
 * that is nearest to the best scale for these values, s <x, amp value> / |amp value|^2. Rows whose s is
 * below low / 2 become zeros. */
#ifndef KM_OPS_ENCODE_CODES_H
#define KM_OPS_ENCODE_CODES_H
#include "kermes.h"

typedef struct km_code_form {
    int64_t bytes;   /* of a code */
    int64_t dim;     /* of a residual before it was turned */
    float low, step; /* of scales */
} km_code_form;

/* Levels. Columns come in groups of eight with the same number of bits; bit l of a level, the highest
 * first, is bit j % 8 of byte at[j / 8][l]. */
typedef struct km_level_code {
    km_code_form form;
    km_tensor *bits;   /* (d) i32, 0 to 8 */
    km_tensor *at;     /* (groups, 8) i32, in [1, bytes) */
    km_tensor *amp;    /* (d) f32; 0: level 0 */
    km_tensor *tables; /* (9, 256) f32: sorted levels of 0 to 8 bits */
} km_level_code;

/* z (n, d), square (n) f32 -> codes (n, bytes) u8. */
km_tensor *km_encode_levels(km_ctx *ctx, km_tensor *z, km_tensor *square, const km_level_code *how);

/* Trellises (vector/trellis.h): of each row the class that suits it best, within the rounding of z, and the
 * cheapest path round that class' ring by Viterbi's search, with costs in f32. A code is 8 bits of scale, the class, and
 * the ring, lowest bit first. */
typedef struct km_trellis_code {
    km_code_form form;
    int64_t class_bits;
    int64_t most;    /* columns of the largest class */
    km_tensor *amp;  /* (width) f32 */
    km_tensor *rate; /* (width) i32, 0 to 8 */
    km_tensor *
        classes; /* (classes, 2) i32: the first column, and how many; rates add up to 12 at least */
    km_tensor *water;  /* (classes) f32 */
    km_tensor *tables; /* (9, 4096) f32: values of states, newest bit lowest */
} km_trellis_code;

/* z (n, width), square (n) f32 -> codes (n, bytes) u8. */
km_tensor *km_encode_trellis(km_ctx *ctx, km_tensor *z, km_tensor *square,
                             const km_trellis_code *how);

#endif
