/* Walking the bytes of a GGUF file's front part: a cursor that never passes its end, and values. */
#ifndef KM_FORMAT_GGUF_META_H
#define KM_FORMAT_GGUF_META_H
#include "format/gguf.h"

typedef struct km_gguf_cursor {
    const uint8_t *at, *end;
} km_gguf_cursor;

/* Each is false, and moves nothing, when too few bytes are left. */
bool km_gguf_take_u32(km_gguf_cursor *c, uint32_t *v);
bool km_gguf_take_u64(km_gguf_cursor *c, uint64_t *v);
bool km_gguf_take_text(km_gguf_cursor *c, const char **data, size_t *size);

/* A value of the type, checked to the last element. On failure *why says what is wrong. */
bool km_gguf_take_value(km_gguf_cursor *c, uint32_t type, km_gguf_value *v, const char **why);

size_t km_gguf_type_size(km_gguf_type type); /* of a number or bool; 0 for strings and arrays */

#endif
