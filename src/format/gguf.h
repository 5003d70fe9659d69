/* GGUF, versions 2 and 3, little-endian: metadata as typed key-value pairs, tensor infos, then the
 * tensors' bytes, each aligned.
 *
 * Reading maps the file and believes nothing in it: what km_gguf_open returns has passed every
 * check, every element of every array included, so its views can be used as they are. The file
 * counts dimensions from the fastest; shapes here are row-major as everywhere in Kermes, so ggml's
 * {ne0, ne1} is (ne1, ne0). */
#ifndef KM_FORMAT_GGUF_H
#define KM_FORMAT_GGUF_H
#include "base/error.h"
#include "format/fill.h"
#include "format/ggml_types.h"
#include <stddef.h>
#include <stdint.h>

/* ---- Metadata ---- */

typedef enum km_gguf_type { /* numbered as in the file */
                            KM_GGUF_U8,
                            KM_GGUF_I8,
                            KM_GGUF_U16,
                            KM_GGUF_I16,
                            KM_GGUF_U32,
                            KM_GGUF_I32,
                            KM_GGUF_F32,
                            KM_GGUF_BOOL,
                            KM_GGUF_STRING,
                            KM_GGUF_ARRAY,
                            KM_GGUF_U64,
                            KM_GGUF_I64,
                            KM_GGUF_F64,
                            KM_GGUF_TYPE_COUNT
} km_gguf_type;

typedef struct km_gguf_array {
    km_gguf_type type; /* of the elements */
    uint64_t count;
    const uint8_t *data; /* as in the file, unaligned; km_gguf_next walks it */
    size_t bytes;
} km_gguf_array;

typedef struct km_gguf_value {
    km_gguf_type type;
    union {
        uint64_t u; /* U8 U16 U32 U64 */
        int64_t i;  /* I8 I16 I32 I64 */
        double f;   /* F32 F64 */
        bool b;
        struct {
            const char *data; /* any bytes; NUL-terminated only when not in an array */
            size_t size;
        } text;
        km_gguf_array array;
    };
} km_gguf_value;

const char *km_gguf_type_name(km_gguf_type type); /* "u32", "array" */

/* Walks an array: for (km_gguf_iter it = km_gguf_begin(&v); km_gguf_next(&it, &item);) ... */
typedef struct km_gguf_iter {
    km_gguf_type type;
    uint64_t left;
    const uint8_t *at, *end;
} km_gguf_iter;
km_gguf_iter km_gguf_begin(const km_gguf_value *array); /* of another value: empty */
bool km_gguf_next(km_gguf_iter *it, km_gguf_value *item);

/* ---- Reading ---- */

typedef struct km_gguf km_gguf;

typedef struct km_gguf_tensor {
    const char *name;
    const km_ggml_info *info; /* name, block and dtype of its type */
    km_shape shape;           /* row-major, at most 4 dimensions */
    const void *data;         /* in the mapping; NULL when bytes is 0 */
    size_t bytes;
    int file; /* which of the split's files it lies in */
} km_gguf_tensor;

/* Opens a GGUF file; of a split model the first, whose others must lie beside it. NULL with the
 * error set when anything is wrong. */
km_gguf *km_gguf_open(const char *path, km_error *err);
/* The same for one file in memory, which must stay until close. */
km_gguf *km_gguf_parse(const void *data, size_t bytes, const char *shown, km_error *err);
void km_gguf_close(km_gguf *g); /* NULL is fine */
/* KM_OK, or a file became shorter while it was used (km_map_check). */
km_status km_gguf_check(const km_gguf *g, km_error *err);

int km_gguf_version(const km_gguf *g);
int km_gguf_files(const km_gguf *g);
const char *km_gguf_path(const km_gguf *g); /* of the first file */

int km_gguf_count(const km_gguf *g);
const km_gguf_tensor *km_gguf_at(const km_gguf *g, int i);
const km_gguf_tensor *km_gguf_find(const km_gguf *g, const char *name); /* or NULL */

int km_gguf_meta_count(const km_gguf *g); /* of the first file, as for all below */
const char *km_gguf_meta_key(const km_gguf *g, int i);
const km_gguf_value *km_gguf_meta_at(const km_gguf *g, int i);
const km_gguf_value *km_gguf_get(const km_gguf *g, const char *key); /* NULL: no such key */

/* The value of a key with its type and range checked. Absent leaves *value as it is, so that it
 * can hold the default. Whole numbers of every width are one, reals likewise. */
km_status km_gguf_int(const km_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *value,
                      km_error *err);
km_status km_gguf_real(const km_gguf *g, const char *key, double lo, double hi, double *value,
                       km_error *err);
km_status km_gguf_bool(const km_gguf *g, const char *key, bool *value, km_error *err);
km_status km_gguf_string(const km_gguf *g, const char *key, const char **value, km_error *err);

/* ---- Writing ---- */

/* A file in the making: put metadata, add tensors, write. Errors stick and come out of
 * km_gguf_write; keys must differ, and so must tensor names. */
typedef struct km_gguf_out km_gguf_out;
km_gguf_out *km_gguf_out_new(km_error *err);
void km_gguf_out_free(km_gguf_out *o); /* NULL is fine */

void km_gguf_put_u32(km_gguf_out *o, const char *key, uint32_t v);
void km_gguf_put_u64(km_gguf_out *o, const char *key, uint64_t v);
void km_gguf_put_i32(km_gguf_out *o, const char *key, int32_t v);
void km_gguf_put_f32(km_gguf_out *o, const char *key, float v);
void km_gguf_put_bool(km_gguf_out *o, const char *key, bool v);
void km_gguf_put_string(km_gguf_out *o, const char *key, const char *v);
/* Arrays: elements of `type` in host order (no strings, no arrays); strings with their sizes (NULL
 * sizes: NUL-terminated). */
void km_gguf_put_array(km_gguf_out *o, const char *key, km_gguf_type type, const void *items,
                       size_t n);
void km_gguf_put_strings(km_gguf_out *o, const char *key, const char *const *items,
                         const size_t *sizes, size_t n);
void km_gguf_put_value(km_gguf_out *o, const char *key, const km_gguf_value *v); /* as read */
/* What was put, until the next put or drop (a string is not NUL-terminated); false: no such key. */
bool km_gguf_out_get(const km_gguf_out *o, const char *key, km_gguf_value *v);
void km_gguf_drop(km_gguf_out *o, const char *key); /* fine if it is not there */

/* The bytes come from data, which must stay until the write, or from fill. */
void km_gguf_add(km_gguf_out *o, const char *name, km_ggml_type type, km_shape shape,
                 const void *data, km_fill_fn fill, void *user);

/* Writes version 3 with alignment 32. On any failure `path` stays as it was and nothing is left
 * beside it. The file in the making is not changed. */
km_status km_gguf_write(km_gguf_out *o, const char *path, km_error *err);

#endif
