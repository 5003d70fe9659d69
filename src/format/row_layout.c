/* Checks that all matrices in files share, and the formats whose heads are a few bytes: fvecs and
 * its siblings, and IDX. */
#include "format/row_layout.h"
#include "tensor/dtype.h"

const char *km_row_layout_type(const km_row_layout *l) {
    return !l->words ? km_dtype_name(l->dtype) : l->is_unsigned ? "u16" : "i16";
}

uint64_t km_row_layout_bytes(const km_row_layout *l) {
    return l->prefix + (uint64_t)l->dim * km_dtype_size(l->dtype);
}

km_status km_row_layout_check(const km_row_layout *l, uint64_t size, bool exact, const char *shown,
                              km_error *err) {
    if (l->rows < 0 || l->dim < 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': a negative size", shown);
    if (l->rows == 0 || l->dim == 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' holds no vectors", shown);
    if (l->dim > KM_MAX_VECTOR_DIM)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': vectors of %lld dimensions; at most %lld",
                            shown, (long long)l->dim, (long long)KM_MAX_VECTOR_DIM);
    uint64_t row = km_row_layout_bytes(l), left = l->offset <= size ? size - l->offset : 0;
    if ((uint64_t)l->rows > left / row)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' is cut short: %lld vectors of %lld dimensions would take more "
                            "than its %llu bytes",
                            shown, (long long)l->rows, (long long)l->dim, (unsigned long long)size);
    if (exact && (uint64_t)l->rows * row != left)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' does not end with a whole vector of %lld dimensions", shown,
                            (long long)l->dim);
    return KM_OK;
}

km_status km_vecs_parse(km_row_layout *l, km_dtype dtype, const void *head, size_t n, uint64_t size,
                        const char *shown, km_error *err) {
    const uint8_t *b = head;
    *l = (km_row_layout){.dtype = dtype, .prefix = 4};
    if (n < 4) return km_error_set(err, KM_ERR_FORMAT, "'%s' holds no vectors", shown);
    l->dim = (int32_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                       (uint32_t)b[3] << 24);
    if (l->dim < 1 || l->dim > KM_MAX_VECTOR_DIM)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': the first vector says it has %lld dimensions; 1 to %lld can be",
                            shown, (long long)l->dim, (long long)KM_MAX_VECTOR_DIM);
    l->rows = (int64_t)(size / km_row_layout_bytes(l));
    if (l->rows == 0) l->rows = 1; /* cut short, and told so */
    return km_row_layout_check(l, size, true, shown, err);
}

static uint32_t big_u32(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | (uint32_t)b[3];
}

bool km_idx_is(const void *head, size_t n) {
    const uint8_t *b = head;
    return n >= 8 && b[0] == 0 && b[1] == 0 && b[2] >= 8 && b[2] <= 14 && b[2] != 10 && b[3] >= 1 &&
           b[3] <= 8;
}

km_status km_idx_parse(km_row_layout *l, const void *head, size_t n, uint64_t size,
                       const char *shown, km_error *err) {
    const uint8_t *b = head;
    static const km_dtype types[] = {[8] = KM_U8,   [9] = KM_I8,   [12] = KM_I32,
                                     [13] = KM_F32, [14] = KM_F64, [15] = KM_DTYPE_COUNT};
    if (!km_idx_is(head, n) || b[2] == 11)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is no IDX file of u8, i8, i32, f32 or f64",
                            shown);
    int axes = b[3];
    *l = (km_row_layout){
        .dtype = types[b[2]], .swapped = true, .dim = 1, .offset = 4 + 4 * (uint64_t)axes};
    if (n < l->offset) return km_error_set(err, KM_ERR_FORMAT, "'%s' is cut short", shown);
    l->rows = axes == 1 ? 1 : big_u32(b + 4);
    for (int i = axes == 1 ? 0 : 1; i < axes; i++) {
        l->dim *= big_u32(b + 4 + 4 * i);
        if (l->dim > KM_MAX_VECTOR_DIM) l->dim = KM_MAX_VECTOR_DIM + 1;
    }
    return km_row_layout_check(l, size, true, shown, err);
}
