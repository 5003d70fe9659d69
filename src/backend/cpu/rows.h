/* Softmax and its relatives over one axis: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_ROWS_H
#define KM_BACKEND_CPU_ROWS_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

/* The columns that the loops over an inner axis take at a time, at most: enough for memory to be
 * read in long runs. */
#define KM_ROWS_COLS 512

typedef struct km_rows_job {
    void *out;         /* all (rows, n), or (n, inner) of which cols columns are meant */
    const void *x, *y; /* softmax: x; gradients: x is dy, and y the result of the forward pass */
    int64_t rows, n;
    int64_t inner, cols;
    float *buffer; /* n floats (rows only) */
    bool stream;   /* write past the caches (rows only) */
} km_rows_job;

enum {
    KM_ROWS_SOFTMAX,
    KM_ROWS_LOG_SOFTMAX,
    KM_ROWS_SOFTMAX_GRAD,
    KM_ROWS_LOG_SOFTMAX_GRAD,
    KM_ROWS_OPS
};

typedef void (*km_rows_fn)(const km_rows_job *job);

typedef struct km_rows_kernels {
    km_rows_fn rows[KM_ROWS_OPS][KM_SLOTS];    /* contiguous rows */
    km_rows_fn columns[KM_ROWS_OPS][KM_SLOTS]; /* down the columns, cols <= KM_ROWS_COLS */
} km_rows_kernels;

KM_SIMD_TABLE(km_rows_kernels, km_simd_rows)

#endif
