/* The table of ggml's tensor types. */
#include "format/ggml_types.h"
#include <stdint.h>
#include <strings.h>

static const km_ggml_info infos[] = {
#define KM_GGML_ROW(name, number, block, bytes, dtype) {#name, KM_GGML_##name, block, bytes, dtype},
    KM_GGML_LIST(KM_GGML_ROW)
#undef KM_GGML_ROW
};
enum { N_INFOS = sizeof infos / sizeof *infos };

/* Blocks are used where they lie, so both sides must mean the same by them. */
#define SAME_BLOCKS(name, text, n_bytes, n_elements)                                               \
    _Static_assert(GGML_BYTES_##name == n_bytes && GGML_BLOCK_##name == n_elements, text);
enum {
#define SIZES(name, number, block, bytes, dtype)                                                   \
    GGML_BLOCK_##name = block, GGML_BYTES_##name = bytes,
    KM_GGML_LIST(SIZES)
#undef SIZES
};
KM_BLOCK_LIST(SAME_BLOCKS)
#undef SAME_BLOCKS

const km_ggml_info *km_ggml_info_of(uint32_t type) {
    for (int i = 0; i < N_INFOS; i++)
        if ((uint32_t)infos[i].type == type) return &infos[i];
    return NULL;
}

bool km_ggml_of_dtype(km_dtype dtype, km_ggml_type *type) {
    for (int i = 0; i < N_INFOS; i++)
        if (infos[i].dtype == dtype && dtype != KM_DTYPE_COUNT) {
            *type = infos[i].type;
            return true;
        }
    return false;
}

bool km_ggml_bytes(const km_ggml_info *info, km_shape shape, size_t *bytes) {
    int64_t row = shape.ndim ? shape.dim[shape.ndim - 1] : 1;
    if (row % info->block) return false;
    uint64_t total = (uint64_t)info->bytes;
    bool empty = row == 0,
         ok = !__builtin_mul_overflow(total, (uint64_t)(row / info->block), &total);
    for (int i = 0; i + 1 < shape.ndim; i++) {
        empty = empty || shape.dim[i] == 0;
        ok = ok && !__builtin_mul_overflow(total, (uint64_t)shape.dim[i], &total);
    }
    if (empty) total = 0;
    *bytes = (size_t)total;
    return empty || (ok && total <= PTRDIFF_MAX);
}
