/* The rows of an index as scans on a device read them (ops/scan_codes.h): in the host's memory, one class
 * after the other, and within a class in the order of segments and cells. */
#ifndef KM_VECTOR_DEVICE_ROWS_H
#define KM_VECTOR_DEVICE_ROWS_H
#include "vector/coder_impl.h"
#include "vector/index.h"

typedef struct km_device_rows {
    int64_t n, stride;                   /* rows; bytes of a code, a multiple of 4 */
    uint8_t *codes, *scale;              /* (n, stride), (n) */
    int32_t *cell;                       /* (n); -1: deleted */
    uint64_t *ids;                       /* (n) */
    int64_t start[KM_CODER_CLASSES + 1]; /* the first row of each class */
} km_device_rows;

/* On failure *out is empty. */
km_status km_device_rows_read(const km_index *x, km_threads *t, km_device_rows *out, km_error *err);
void km_device_rows_free(km_device_rows *r); /* empty is fine */

#endif
