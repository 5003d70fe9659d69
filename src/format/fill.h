/* Where a file writer gets a tensor's bytes when they are not in memory: from a callback, piece
 * by piece, so that a device tensor never needs more host memory than one piece. */
#ifndef KM_FORMAT_FILL_H
#define KM_FORMAT_FILL_H
#include "base/error.h"
#include "base/file.h"

/* Puts bytes [offset, offset + bytes) of the tensor's row-major data into dst. Called in order,
 * in pieces of at most KM_FILL_PIECE bytes, which hold whole elements (or blocks of them), though
 * not whole rows. A failure sets the error. */
#define KM_FILL_PIECE ((size_t)16 << 20)
typedef km_status (*km_fill_fn)(void *user, size_t offset, void *dst, size_t bytes, km_error *err);

/* Memory for pieces of a tensor of up to `most` bytes; NULL with size 0 when none is needed. */
typedef struct km_fill_buffer {
    void *data;
    size_t size;
} km_fill_buffer;
km_status km_fill_buffer_open(km_fill_buffer *p, size_t most, const char *path, km_error *err);
void km_fill_buffer_close(km_fill_buffer *p);

typedef struct km_source { /* a tensor's bytes */
    const char *name;      /* for messages */
    const void *data;      /* NULL: fill is called */
    km_fill_fn fill;
    void *user;
    size_t bytes, unit; /* in all, and of one element or block */
} km_source;

/* Writes the tensor. A failed fill is in *err; a failed write is in w, whose commit tells it. */
km_status km_put_source(km_writer *w, const km_source *s, km_fill_buffer *piece, km_error *err);

#endif
