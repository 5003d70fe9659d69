/* Vectors from a file, read in blocks as f32, so that a file may be larger than memory: .npy,
 * .fvecs, .bvecs, .ivecs, .safetensors (one tensor), IDX, and raw bytes. Or from memory. */
#ifndef KM_VECTOR_INPUT_H
#define KM_VECTOR_INPUT_H
#include "base/handle.h"
#include "format/row_layout.h"
#include "kermes.h"

typedef struct km_input km_input;
struct km_vectors { /* kermes.h's handle on one */
    km_handle handle;
    km_input *in;
};

typedef struct km_input_options {
    const char *tensor; /* of a safetensors file; NULL: the only one with two axes */
    int64_t dim;        /* of a file without a head; 0: raw bytes are refused */
    km_dtype dtype;     /* of raw bytes; KM_F32 is 0 */
} km_input_options;

/* NULL with the error set. The kind is told by the first bytes, else by the name. o may be NULL. */
km_input *km_input_open(const char *path, const km_input_options *o, km_error *err);
/* A whole file in memory (what came over stdin), which must stay; .npy only. */
km_input *km_input_parse(const void *data, size_t bytes, const char *shown, km_error *err);
/* An array x (rows, dim), which must stay. */
km_input *km_input_memory(const float *x, int64_t rows, int64_t dim, km_error *err);
void km_input_close(km_input *in); /* NULL is fine */

int64_t km_input_rows(const km_input *in);
int64_t km_input_dim(const km_input *in);
const km_row_layout *km_input_layout(const km_input *in);
const char *km_input_name(const km_input *in); /* for messages */

/* Rows [first, first + count) as f32 to out (count, dim). */
km_status km_input_read(km_input *in, int64_t first, int64_t count, float *out, km_error *err);
/* The same of a matrix of whole numbers with one column or one row: ids. n must be all of them. */
km_status km_input_read_ids(km_input *in, int64_t n, uint64_t *out, km_error *err);

/* The first of n rows with a NaN or an infinity, or -1. */
int64_t km_first_bad_row(const float *x, int64_t n, int64_t dim);
/* The same, and the first whose squares are too large or too small for f32; -1: none. */
int64_t km_first_unfit_row(const float *x, int64_t n, int64_t dim, km_metric metric);
#define KM_TROUBLE_TEXT 128
/* What is wrong with such a row: "vector 3 ..." goes on with it. */
const char *km_row_trouble(char out[KM_TROUBLE_TEXT], const float *row, int64_t dim,
                           km_metric metric);

#endif
