/* Where the rows of a matrix lie in a file of vectors. Each format's parser checks a file's head
 * against its size and fills one of these; what reads the rows needs to know no more. */
#ifndef KM_FORMAT_ROW_LAYOUT_H
#define KM_FORMAT_ROW_LAYOUT_H
#include "base/error.h"
#include <stddef.h>
#include <stdint.h>

typedef struct km_row_layout {
    km_dtype dtype;   /* of the elements: F32 F16 BF16 F64 I32 I64 U8 I8 */
    bool is_unsigned; /* I32, I64 and words without a sign */
    bool words;   /* whole numbers of 16 bits, for which there is no dtype: it says F16, as large */
    bool swapped; /* elements are big-endian */
    bool columns; /* column after column, not row after row */
    int64_t rows, dim; /* elements beyond the first axis count as one row */
    uint64_t offset;   /* of the first row */
    uint64_t prefix;   /* bytes in front of each row, which repeat `dim` as i32 */
    km_shape shape;    /* of npy: all axes; ndim may be more than there is room for */
    char type[4];      /* of npy: "<f4" */
} km_row_layout;

#define KM_MAX_VECTOR_DIM ((int64_t)1 << 20)

/* Of the elements: "f32", "u16", ... */
const char *km_row_layout_type(const km_row_layout *l);
/* Bytes of one row, its prefix included. */
uint64_t km_row_layout_bytes(const km_row_layout *l);
/* Sizes in range and all rows inside a file of `size` bytes; `exact`: and nothing behind them. */
km_status km_row_layout_check(const km_row_layout *l, uint64_t size, bool exact, const char *shown,
                              km_error *err);

/* Bytes of a file's front that the parsers below want to see, or the whole of a shorter file. */
#define KM_LAYOUT_HEAD 65600

/* NumPy's .npy, versions 1 to 3. `head`: the first n bytes of a file of `size` bytes. */
bool km_npy_is(const void *head, size_t n);
km_status km_npy_parse(km_row_layout *l, const void *head, size_t n, uint64_t size,
                       const char *shown, km_error *err);
/* The same as one tensor of any shape, booleans too; *bytes: of its elements. */
km_status km_npy_parse_tensor(km_row_layout *l, const void *head, size_t n, uint64_t size,
                              size_t *bytes, const char *shown, km_error *err);
/* Puts the head of an array of `rows` x `dim` (dim 0: one axis) into out; returns its length. `type`
 * is NumPy's name, "<f4". */
#define KM_NPY_HEAD 128
size_t km_npy_head(char out[KM_NPY_HEAD], const char *type, int64_t rows, int64_t dim);

/* .fvecs, .ivecs (i32) and .bvecs (u8): i32 dim and then the elements, row after row. That all rows
 * have that dim is checked as they are read. */
km_status km_vecs_parse(km_row_layout *l, km_dtype dtype, const void *head, size_t n, uint64_t size,
                        const char *shown, km_error *err);

/* IDX, as MNIST comes: 0 0 type axes, then the sizes, big-endian. */
bool km_idx_is(const void *head, size_t n);
km_status km_idx_parse(km_row_layout *l, const void *head, size_t n, uint64_t size,
                       const char *shown, km_error *err);

#endif
