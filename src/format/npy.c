/* NumPy's .npy: a magic, a version, the length of a Python dictionary that names type, order and
 * shape, and the elements. Only that dictionary's three keys, once each, are accepted. */
#include "format/row_layout.h"
#include "base/shown.h"
#include "tensor/dtype.h"
#include <stdio.h>
#include <string.h>

typedef struct npy_cursor {
    const char *at, *end;
} npy_cursor;

static void skip_space(npy_cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

static bool take(npy_cursor *c, char wanted) {
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

static bool take_word(npy_cursor *c, const char *word) {
    size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
    c->at += n;
    return true;
}

/* A string in either quotes, without escapes. */
static bool take_string(npy_cursor *c, const char **text, size_t *n) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    *text = c->at;
    while (c->at < c->end && *c->at != quote && *c->at != '\\') c->at++;
    if (c->at == c->end || *c->at != quote) return false;
    *n = (size_t)(c->at++ - *text);
    return true;
}

/* A tuple of sizes: all but the first are multiplied. One size is one vector. */
static bool take_shape(npy_cursor *c, km_row_layout *l) {
    int axes = 0;
    if (!take(c, '(')) return false;
    l->rows = l->dim = 1;
    while (!take(c, ')')) {
        int64_t v = 0;
        skip_space(c);
        if (c->at == c->end || *c->at < '0' || *c->at > '9') return false;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
            if (v <= INT64_MAX / 10 - 1) v = v * 10 + (*c->at - '0');
        if (axes < KM_MAX_DIMS) l->shape.dim[axes] = v;
        l->shape.ndim = axes + 1;
        if (axes++ == 0)
            l->rows = v;
        else if (v == 0 || l->dim <= KM_MAX_VECTOR_DIM / v)
            l->dim *= v;
        else
            l->dim = KM_MAX_VECTOR_DIM + 1;
        if (!take(c, ',')) {
            if (!take(c, ')')) return false;
            break;
        }
    }
    if (axes == 1) {
        l->dim = l->rows;
        l->rows = 1;
    }
    return true;
}

static bool set_type(km_row_layout *l, const char *text, size_t n) {
    static const struct {
        char name[3];
        km_dtype dtype;
        bool is_unsigned, words;
    } types[] = {
        {"f4", KM_F32, false, false}, {"f2", KM_F16, false, false}, {"f8", KM_F64, false, false},
        {"u1", KM_U8, true, false},   {"i1", KM_I8, false, false},  {"i2", KM_F16, false, true},
        {"u2", KM_F16, true, true},   {"i4", KM_I32, false, false}, {"u4", KM_I32, true, false},
        {"i8", KM_I64, false, false}, {"u8", KM_I64, true, false},  {"b1", KM_BOOL, true, false}};
    if (n != 3 || !strchr("<>|=", text[0])) return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (memcmp(text + 1, types[i].name, 2) != 0) continue;
        l->dtype = types[i].dtype;
        l->is_unsigned = types[i].is_unsigned;
        l->words = types[i].words;
        l->swapped = text[0] == '>' && km_dtype_size(l->dtype) > 1;
        memcpy(l->type, text, 3);
        return true;
    }
    return false;
}

bool km_npy_is(const void *head, size_t n) { return n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0; }

static km_status bad(const char *shown, const char *why, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT, "'%s' is no .npy file that can be read: %s", shown,
                        why);
}

static km_status parse_header(km_row_layout *l, npy_cursor c, bool tensor, const char *shown,
                              km_error *err) {
    bool type = false, order = false, shape = false;
    const char *text;
    size_t n;
    if (!take(&c, '{')) return bad(shown, "its header is no dictionary", err);
    while (!take(&c, '}')) {
        if (!take_string(&c, &text, &n) || !take(&c, ':'))
            return bad(shown, "its header is damaged", err);
        if (n == 5 && memcmp(text, "descr", 5) == 0 && !type) {
            const char *name;
            size_t length;
            if (!take_string(&c, &name, &length))
                return bad(shown, "its elements are records, not numbers", err);
            if (!set_type(l, name, length) || (l->dtype == KM_BOOL && !tensor)) {
                char buffer[KM_SHOWN];
                return km_error_set(err, KM_ERR_FORMAT,
                                    "'%s' holds elements of type '%s'; f4, f2, f8, u1, i1, i4 and "
                                    "i8 can be read",
                                    shown, km_shown_bytes(buffer, name, length));
            }
            type = true;
        } else if (n == 13 && memcmp(text, "fortran_order", 13) == 0 && !order) {
            l->columns = take_word(&c, "True");
            if (!l->columns && !take_word(&c, "False"))
                return bad(shown, "its header is damaged", err);
            order = true;
        } else if (n == 5 && memcmp(text, "shape", 5) == 0 && !shape) {
            if (!take_shape(&c, l)) return bad(shown, "its shape is damaged", err);
            shape = true;
        } else {
            return bad(shown, "its header is damaged", err);
        }
        if (!take(&c, ',')) {
            if (!take(&c, '}')) return bad(shown, "its header is damaged", err);
            break;
        }
    }
    skip_space(&c);
    if (!type || !order || !shape || c.at != c.end) return bad(shown, "its header is damaged", err);
    if (l->rows == 1 || l->dim == 1) l->columns = false; /* the same either way */
    return KM_OK;
}

static km_status parse(km_row_layout *l, const void *head, size_t n, bool tensor, const char *shown,
                       km_error *err) {
    const uint8_t *b = head;
    *l = (km_row_layout){0};
    if (!km_npy_is(head, n)) return bad(shown, "it does not begin as one", err);
    if (n < 12) return bad(shown, "it is cut short", err);
    size_t at = b[6] == 1 ? 10 : 12, length = (size_t)b[8] | (size_t)b[9] << 8;
    if (b[6] < 1 || b[6] > 3)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is .npy of version %d; 1 to 3 can be read",
                            shown, b[6]);
    if (b[6] > 1) length |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (length > n - at) return bad(shown, "its header is longer than can be", err);
    npy_cursor c = {(const char *)b + at, (const char *)b + at + length};
    l->offset = at + length;
    return parse_header(l, c, tensor, shown, err);
}

km_status km_npy_parse(km_row_layout *l, const void *head, size_t n, uint64_t size,
                       const char *shown, km_error *err) {
    km_status s = parse(l, head, n, false, shown, err);
    return s == KM_OK ? km_row_layout_check(l, size, false, shown, err) : s;
}

km_status km_npy_parse_tensor(km_row_layout *l, const void *head, size_t n, uint64_t size,
                              size_t *bytes, const char *shown, km_error *err) {
    km_status s = parse(l, head, n, true, shown, err);
    if (s != KM_OK) return s;
    if (l->shape.ndim > KM_MAX_DIMS)
        return km_error_set(err, KM_ERR_SHAPE, "'%s' has %d axes; at most %d are possible", shown,
                            l->shape.ndim, KM_MAX_DIMS);
    uint64_t total = km_dtype_size(l->dtype), none = 0;
    for (int i = 0; i < l->shape.ndim; i++) {
        none |= l->shape.dim[i] == 0;
        if (l->shape.dim[i] && total > size / (uint64_t)l->shape.dim[i])
            total = size + 1;
        else if (l->shape.dim[i])
            total *= (uint64_t)l->shape.dim[i];
    }
    if (none) total = 0;
    if (total > size - l->offset) return bad(shown, "it is cut short", err);
    *bytes = total;
    return KM_OK;
}

size_t km_npy_head(char out[KM_NPY_HEAD], const char *type, int64_t rows, int64_t dim) {
    memset(out, ' ', KM_NPY_HEAD);
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1, 118 bytes to follow */
    char shape[64], text[KM_NPY_HEAD];
    if (dim)
        snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)rows, (long long)dim);
    else
        snprintf(shape, sizeof shape, "(%lld,)", (long long)rows);
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                     type, shape);
    memcpy(out + 10, text, (size_t)n);
    out[KM_NPY_HEAD - 1] = '\n';
    return KM_NPY_HEAD;
}
