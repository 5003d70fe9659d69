/* Importance matrices: for each matrix of a model, how large its inputs were on average (squared)
 * while the model read some text. Quantising with them keeps the error small where it would be
 * multiplied by something large. Files are llama.cpp's: GGUF, and the older ".dat". */
#ifndef KM_MODEL_IMATRIX_H
#define KM_MODEL_IMATRIX_H
#include "base/error.h"

typedef struct km_imatrix_row {
    char *name;  /* of the matrix in GGUF: "blk.0.attn_q.weight" */
    float *mean; /* (in): mean square of each input */
    int64_t in;
    double count; /* rows of input seen */
} km_imatrix_row;

typedef struct km_imatrix {
    km_imatrix_row *row;
    int n;
    int64_t chunks, chunk_size; /* how much text: pieces, and tokens of each */
    char *dataset;              /* where it came from; NULL: unknown */
} km_imatrix;

km_imatrix *km_imatrix_new(int rows, km_error *err);
void km_imatrix_free(km_imatrix *m); /* NULL is fine */

/* Either form, told by the file's first bytes. NULL with the error set. */
km_imatrix *km_imatrix_load(const char *path, km_error *err);
/* GGUF, or the older form where the name ends in ".dat". */
km_status km_imatrix_save(const km_imatrix *m, const char *path, km_error *err);

const km_imatrix_row *km_imatrix_find(const km_imatrix *m, const char *name); /* NULL: none */

#endif
