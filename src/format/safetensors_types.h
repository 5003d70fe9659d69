/* The dtypes that safetensors knows, for its reader and writer. */
#ifndef KM_FORMAT_SAFETENSORS_TYPES_H
#define KM_FORMAT_SAFETENSORS_TYPES_H
#include "kermes.h"

typedef struct km_st_type {
    const char *name;
    int bits;       /* of one element */
    km_dtype dtype; /* KM_DTYPE_COUNT: none of ours */
} km_st_type;

const km_st_type *km_st_type_find(const char *name); /* NULL: unknown */

#endif
