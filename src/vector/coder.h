/* Codes: short byte strings for vectors, from which inner products and distances come back well.
 *
 * A coder is trained once on a sample of residuals r = x - anchor and never changes after that. It
 * turns r by an orthogonal transform (a seeded Hadamard rotation, or principal axes), gives each
 * axis its share of the bits, and codes the axes one by one (fast) or by a trellis over all of them
 * (dense). A code holds the residual's norm, on a logarithmic scale, too, and takes the same number
 * of bytes for every row. All functions on a trained coder are thread
 * safe, and every result is the same for any number of threads. */
#ifndef KM_VECTOR_CODER_H
#define KM_VECTOR_CODER_H
#include "base/error.h"
#include "base/threads.h"
#include <stddef.h>
#include <stdint.h>

typedef struct km_coder km_coder;

typedef enum km_code_mode {
    KM_CODE_FAST, /* one level an axis: the quickest scan */
    KM_CODE_DENSE /* a trellis over all axes: the best recall for the bytes */
} km_code_mode;

typedef enum km_code_turn {
    KM_TURN_AUTO, /* both are tried on held-out rows, and the better is kept */
    KM_TURN_HADAMARD,
    KM_TURN_PCA
} km_code_turn;

typedef struct km_coder_options {
    int64_t dim;  /* 1 to KM_CODER_MAX_DIM */
    double bytes; /* of one code, its scale included; rounded down, at least 1 */
    km_code_mode mode;
    km_code_turn turn;
    uint64_t seed;
    int64_t rows; /* that will be coded, which decides how large the coder may be; 0: n */
} km_coder_options;

#define KM_CODER_MAX_DIM 65536

/* Trains on residuals (n, dim), n >= 1, all finite. NULL with *err set when out of memory or given
 * what cannot be. The caller frees it. */
km_coder *km_coder_train(km_threads *t, const float *residuals, int64_t n,
                         const km_coder_options *options, km_error *err);
void km_coder_free(km_coder *c); /* NULL is fine */

/* A coder as bytes and back: one string that stands alone. Reading trusts nothing: KM_ERR_FORMAT for
 * whatever km_coder_write would not have written. */
size_t km_coder_written(const km_coder *c); /* bytes that km_coder_write fills */
void km_coder_write(const km_coder *c, void *out);
km_coder *km_coder_read(const void *bytes, size_t size, km_error *err);

int64_t km_coder_dim(const km_coder *c);
size_t km_coder_bytes(const km_coder *c); /* of one row's code */
km_code_mode km_coder_mode(const km_coder *c);
km_code_turn km_coder_turned_by(const km_coder *c); /* HADAMARD or PCA */
double km_coder_error(const km_coder *c);           /* mean |r - r^|^2 on the training rows */

/* residuals (n, dim) to codes (n, km_coder_bytes), row after row, and back. KM_ERR_MEMORY is the
 * only way to fail. */
km_status km_coder_encode(const km_coder *c, km_threads *t, const float *residuals, int64_t n,
                          uint8_t *codes);
km_status km_coder_decode(const km_coder *c, km_threads *t, const uint8_t *codes, int64_t n,
                          float *out);

/* How rows lie where they are scanned: n rows take n * km_coder_bytes, in groups of
 * km_coder_block_rows (the last may be shorter), which can be scanned one by one. A list of rows (a
 * cell) is packed as one piece; km_coder_unpack undoes it. `packed` and `codes` do not overlap. */
int64_t km_coder_block_rows(const km_coder *c);
void km_coder_pack(const km_coder *c, const uint8_t *codes, int64_t n, uint8_t *packed);
void km_coder_unpack(const km_coder *c, const uint8_t *packed, int64_t n, uint8_t *codes);

/* The transform by itself: x (dim) to out (km_coder_turned). Linear, so anchors can be kept
 * turned; scans take them so. */
int64_t km_coder_turned(const km_coder *c);
void km_coder_turn(const km_coder *c, const float *x, float *out);

#endif
