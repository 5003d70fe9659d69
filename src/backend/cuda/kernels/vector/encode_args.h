/* Encoding on the GPU: what both sides know. */
#ifndef KM_CUDA_ENCODE_ARGS_H
#define KM_CUDA_ENCODE_ARGS_H
#include <stdint.h>

typedef struct km_levels_args {
    const float *z, *square;   /* (n, d), (n) */
    const int32_t *bits, *at;  /* (d), (groups, 8) */
    const float *amp, *tables; /* (d), (9, 256) */
    uint8_t *codes;            /* (n, bytes) */
    int64_t n, bytes;
    int32_t d, dim;
    float low, step;
} km_levels_args;

/* The search of a trellis. A thread holds 16 of the 4096 states of each of its block's rows. At first
 * they are those with its own number in their low 8 bits. As bits come in, up to 4 of them, new states
 * depend on states of the same thread alone; then threads exchange. With b bits come in since,
 *
 *   state = (r >> b) << (8 + b) | thread << b | r % 2^b       r: the number of the register
 *
 * Costs and values of states lie in shared memory in the order of states, but for a swizzle. */
#define KM_TRELLIS_THREADS 256
#define KM_TRELLIS_TABLE 16384 /* bytes of one rate's values */

/* A column's place: rate, bits in before it, and which exchange follows it. */
#define KM_TRELLIS_PLACE(k, b, exchange) ((k) | (b) << 4 | (exchange) << 8)

typedef struct km_trellis_class {
    int32_t first, axes, ring;
    int32_t tail,
        head; /* where the search for the closing state begins and ends; tail -1: a short ring */
    int32_t spot[9]; /* of each rate: by how many columns it is used, 0 the most */
} km_trellis_class;

typedef struct km_trellis_args {
    const float *z, *square;       /* (n, width), (n) */
    const float *amp;              /* (width) */
    const int32_t *rate, *classes; /* (width), (count, 2) */
    const float *water, *tables;   /* (count), (9, 4096) */
    uint8_t *codes;                /* (n, bytes) */
    float *inverse;                /* (width): 1 / (amp^2 + water) */
    int32_t *place;                /* (width) */
    int32_t *owner; /* (width, 8): of each bit of a class' ring, 16 * axis + bit of the state */
    km_trellis_class *kind; /* (count) */
    uint32_t *counts;       /* (count): rows of each class */
    int32_t *list;          /* (count, n): which these are */
    uint32_t *back;         /* (blocks, back_words): the ways taken, (exchange, thread, row) */
    int64_t n, bytes, back_words;
    int32_t width, count, dim, class_bits, most;
    int32_t tables_held; /* rates whose values fit into shared memory */
    float low, step;
} km_trellis_args;

/* Shared memory of a block with so many rows at once, beside tables: two sets of costs; and x, amp, place
 * and the states of the path, of each column. */
#define KM_TRELLIS_SHARED(rows, axes) ((rows)*2 * 16384 + ((axes) + 8) * (6 * (rows) + 8))

#endif
