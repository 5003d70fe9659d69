/* The inner loops of layers whose weights are in blocks, one table per instruction set
 * (simd/quant_*.c). Activations are rounded and meet the weights' codes in integer arithmetic; each
 * sum then takes its two scales. What they are rounded to (ctx->activations):
 *
 *   8 bits     one byte, a scale for each 32                 |error| <= largest of 32 / 254
 *   16, few    two bytes (planes), a scale for each 32       |error| <= largest of 32 / 32512
 *   16, many   a word, a scale for each 256; the weights     rms error 1e-4 of an rms element, of
 *              are words, too (simd/quant_words.c)           either factor
 *
 *   by tiles   two bytes, a scale for each 256; the         rms error 7e-5, and faster than either:
 *              weights are, too (simd/amx/quant.c)           AMX takes it for 8 bits as well
 *
 * Where products of bytes are far cheaper than of words (NEON's dot products), many rows take planes.
 *
 * A step is 256 elements along a row: one block of the larger types, eight of the smaller. The last
 * step of a row may be shorter; what is missing counts as zero. */
#ifndef KM_BACKEND_CPU_QUANT_KERNELS_H
#define KM_BACKEND_CPU_QUANT_KERNELS_H
#include "base/cpu.h"
#include "tensor/dtype.h"

#define KM_QUANT_STEP 256
#define KM_QUANT_PAIRS (KM_QUANT_STEP / 2)
#define KM_QUANT_OUTS 32 /* of a panel */

/* A step of x. Groups come four at a time: the first halves of four groups side by side, then their
 * second halves, which is how most weights' codes come out of their bytes. */
typedef struct km_quant_x {
    int8_t code[256];
    float scale[8]; /* of each group of 32 */
    float sum[8];   /* the group's sum: scale times that of its codes */
    float half[16]; /* likewise of each 16 */
} km_quant_x;

/* The second plane of a step, in the same order: an element is scale * (128 code + low), with low in
 * [-64, 63] (so products with weights' codes still add up by pairs in 16 bits). */
#define KM_QUANT_LOW_BITS 7
typedef struct km_quant_low {
    int8_t code[256];
} km_quant_low;

/* Where element i of a step has its code. */
static inline int km_quant_place(int i) {
    return i / 128 * 128 + i / 16 % 2 * 64 + i / 32 % 4 * 16 + i % 16;
}

/* A step of 32 rows of weights made ready for the tile kernel: each group's codes as [8][32][4], four
 * elements of each of 32 outputs together, and each output's scale and least value (of each 16
 * elements for the types that have them so; else only the first 8 of 16 are used). */
typedef struct km_quant_panel {
    uint8_t code[8][8][KM_QUANT_OUTS][4];
    float scale[16][KM_QUANT_OUTS], least[16][KM_QUANT_OUTS];
} km_quant_panel;

/* A step of one row of weights for several rows of x: codes in the order in which vectors take them, and
 * each group's (or half group's) scale and least value, the scale four times as the sums of a group lie. */
typedef struct km_quant_apart {
    _Alignas(64) uint8_t code[256];
    float scale[64], least[16];
} km_quant_apart;

static inline int64_t km_quant_steps(int64_t n) { return (n + KM_QUANT_STEP - 1) / KM_QUANT_STEP; }

/* Rows of x as an array of steps: row r begins at x + r * ldx. */
typedef struct km_quant_rows {
    const km_quant_x *x;
    const km_quant_low *low; /* the second plane; NULL: 8 bits */
    int64_t ldx, rows, steps;
} km_quant_rows;

/* A step of 32 rows of weights in words of 16 bits: pair 16 g + i has elements i and i + 16 of group g,
 * each pair of all outputs together. */
typedef struct km_quant_word_panel {
    int32_t pair[KM_QUANT_PAIRS][KM_QUANT_OUTS];
    float scale[KM_QUANT_OUTS];
} km_quant_word_panel;

/* Rows of vectors before many queries, in bytes: a product within known bounds tells which rows cannot
 * be near (vector/exact.c). Row r of a tile is about scale * code, its codes in fours beside those of
 * the tile's other rows. */
#define KM_NEAR_ROWS 32    /* of a tile */
#define KM_NEAR_QUERIES 12 /* that meet a tile together */

typedef struct km_near_tile {
    uint8_t *code; /* (steps, KM_NEAR_ROWS, 4), four elements a step; zeros behind the last */
    int64_t steps;
    float scale[KM_NEAR_ROWS];
    float lost[KM_NEAR_ROWS]; /* |row - scale code| */
    float size[KM_NEAR_ROWS]; /* |scale code| */
    float rest[KM_NEAR_ROWS]; /* what is subtracted */
} km_near_tile;

typedef struct km_near_query {
    const int8_t *code; /* (steps, 4) */
    int32_t sum;        /* of the codes */
    float scale, lost, size, limit;
} km_near_query;
/* Many rows by tiles (AMX): x as 16 bits for 16 rows at a time, weights for up to
 * KM_QUANT_TILE_OUTS outputs, a step at a time. Bits of a row do not depend on the others. */
#define KM_QUANT_TILE_OUTS 32
#define KM_QUANT_TILE_ROWS 16
typedef struct km_quant_tiles {
    size_t x_bytes;     /* of 16 rows of x, for each step; a multiple of 64 */
    size_t panel_bytes; /* of a step of weights; a multiple of 64 */
    /* `rows` (up to 16) rows of n floats as steps. */
    void (*encode)(const float *x, int64_t n, int64_t rows, void *out);
    /* n elements (a step at most) of each of `outs` rows of weights as outputs `first` on. */
    void (*unpack)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first, int outs,
                   void *panel);
    /* y (tiles, 16, 32) (+)= a step of 32 outputs times as many tiles of x, ldx steps apart, of n
     * elements. */
    void (*multiply)(const void *panel, const void *x, int64_t ldx, int64_t tiles, int64_t n,
                     bool add, float *y);
    /* y (tiles, 16, 32) to (rows, 32), rows ldo apart. */
    void (*turn)(const float *y, int64_t rows, float *out, int64_t ldo);
} km_quant_tiles;

typedef struct km_quant_kernels {
    km_isa floats; /* the set whose float kernels go with these */

    /* n floats (a multiple of 32) as steps; the last is filled up with zeros. low: NULL for 8 bits. */
    void (*encode)(const float *x, int64_t n, km_quant_x *out, km_quant_low *low);
    /* y[r * ldy + j] = row r of x times row j of w, j < outs; rows of w are `bytes` apart and have n
     * elements. Nothing is read at or behind `end`. */
    void (*few)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes, int64_t n,
                int64_t outs, const km_quant_rows *x, float *y, int64_t ldy);
    /* The same in two: n elements of each of `outs` rows of w to p (outs, steps), which then meet all
     * rows of x. Bits are those of `few`. next: weights to fetch meanwhile, `bytes` to a row, or NULL. */
    void (*take_apart)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes, int64_t n,
                       int64_t outs, km_quant_apart *p);
    void (*meet)(km_dtype d, const km_quant_apart *p, int64_t n, int64_t outs,
                 const km_quant_rows *x, const uint8_t *next, int64_t bytes, float *y, int64_t ldy);
    /* The same for w of f32, f16 or bf16, rows of n elements, and x as it is. */
    void (*few_floats)(km_dtype d, const void *w, int64_t n, int64_t outs, const float *x,
                       int64_t ldx, int64_t rows, float *y, int64_t ldy);
    /* n elements from w on of each of `outs` rows of weights, as outputs `first` (a multiple of 4) to
     * first + outs - 1 of panels. Up to three outputs behind them may be written, too. */
    void (*unpack)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first, int outs,
                   km_quant_panel *panel);
    /* y[r * ldy + j] (+)= row r of x times output j of the panels, all 32. */
    void (*tile)(km_dtype d, const km_quant_panel *panel, const km_quant_rows *x, bool add,
                 float *y, int64_t ldy);

    /* The same three in words; NULL where `tile` takes two planes instead. x is in tiles of word_rows
     * rows, of which each step takes word_bytes. */
    int word_rows;
    size_t word_bytes;
    /* `rows` rows of n floats, at most a tile of them. */
    void (*encode_words)(const float *x, int64_t n, int64_t rows, void *out);
    void (*unpack_words)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, km_quant_word_panel *panel);
    /* Tiles are ldx steps apart; n elements are multiplied. Up to three rows of y behind the last are
     * written, too. */
    void (*tile_words)(const km_quant_word_panel *panel, const void *x, int64_t ldx, int64_t rows,
                       int64_t n, bool add, float *y, int64_t ldy);

    int near_offset; /* that codes of rows have */
    /* Row r of a tile from x (n), with its scale, size and what is lost. */
    void (*near_row)(const float *x, int64_t n, int r, km_near_tile *tile);
    /* The rows of a tile, as bits of left[i], for which
     *   <row, query i> (as codes) + query.size row.lost + query.lost row.size - row.rest >= limit. */
    void (*near_tile)(const km_near_query q[KM_NEAR_QUERIES], const km_near_tile *tile,
                      uint32_t left[KM_NEAR_QUERIES]);
    const km_quant_tiles *tiles; /* for many rows in place of all of these, or NULL */
} km_quant_kernels;

/* The sets built for this kind of processor, best last. km_quant_kernels_at gives the ith, or NULL
 * past the last or where this processor does not run it; km_quant_choose makes it the one in use,
 * for tests and benchmarks, between calls. */
const km_quant_kernels *km_quant_kernels_at(int i);
const char *km_quant_kernels_name(int i); /* "avx2"; NULL past the last */
const km_quant_kernels *km_quant_kernels_now(void);
bool km_quant_choose(int i);

#endif
