/* Safetensors: eight bytes of header length, a JSON header, then the tensors' bytes without gaps.
 *
 * Reading maps the file and believes nothing in it: what km_safetensors_open returns has passed
 * every check, so its views can be used as they are. Writing happens beside the target, which
 * changes only once all of the new file is on disk. */
#ifndef KM_FORMAT_SAFETENSORS_H
#define KM_FORMAT_SAFETENSORS_H
#include "base/error.h"
#include "format/fill.h"
#include <stddef.h>
#include <stdint.h>

/* ---- Reading ---- */

typedef struct km_safetensors km_safetensors;

typedef struct km_st_tensor {
    const char *name;
    const char *type; /* as the file says it: "BF16", "F8_E4M3" */
    km_dtype dtype;   /* KM_DTYPE_COUNT when Kermes has no such dtype */
    km_shape shape;
    const void *data; /* little-endian, row-major, in the mapping; NULL when bytes is 0 */
    size_t bytes;
    bool aligned; /* data may be read through a pointer to its type; else copy it first */
    int file;     /* which file of km_safetensors_file it lies in */
} km_st_tensor;

/* A .safetensors file, a model.safetensors.index.json with its files beside it, or a folder that
 * holds model.safetensors or such an index. NULL with the error set when anything is wrong. */
km_safetensors *km_safetensors_open(const char *path, km_error *err);
/* The same for a file in memory, which must stay until close. `shown` names it in messages. */
km_safetensors *km_safetensors_parse(const void *data, size_t bytes, const char *shown,
                                     km_error *err);
void km_safetensors_close(km_safetensors *f); /* the views and texts go with it; NULL is fine */

int km_safetensors_count(const km_safetensors *f);
const km_st_tensor *km_safetensors_at(const km_safetensors *f, int i); /* in file order */
const km_st_tensor *km_safetensors_find(const km_safetensors *f, const char *name); /* or NULL */

/* The string metadata, of the first file where there are several. */
int km_safetensors_meta_count(const km_safetensors *f);
const char *km_safetensors_meta_key(const km_safetensors *f, int i);
const char *km_safetensors_meta(const km_safetensors *f, const char *key); /* NULL: no such key */

int km_safetensors_files(const km_safetensors *f);
const char *km_safetensors_file(const km_safetensors *f, int i); /* its path */

/* ---- Writing ---- */

typedef struct km_st_item {
    const char *name;
    km_dtype dtype;
    km_shape shape;
    const void *data; /* the bytes, or NULL: fill is called */
    km_fill_fn fill;  /* format/fill.h */
    void *user;
} km_st_item;

typedef struct km_st_pair {
    const char *key, *value;
} km_st_pair;

/* Writes all n items; the data begins at a multiple of 64 bytes, larger dtypes first, so that
 * every tensor is aligned for its dtype. On any failure (a bad name, a full disk, a fill that
 * fails) `path` stays as it was and nothing is left beside it. */
km_status km_safetensors_write(const char *path, const km_st_item *items, int n,
                               const km_st_pair *meta, int n_meta, km_error *err);

/* The safetensors name of a dtype ("F32"). */
const char *km_safetensors_type(km_dtype dtype);

/* ---- The dtypes that safetensors knows ---- */

typedef struct km_st_type {
    const char *name;
    int bits;       /* of one element */
    km_dtype dtype; /* KM_DTYPE_COUNT: none of ours */
} km_st_type;

const km_st_type *km_st_type_find(const char *name); /* NULL: unknown */

#endif
