/* Reading vectors. Files are read with pread and not mapped: pages of a mapped file would count as
 * memory of the process, and `compress` promises to stay inside a budget. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "vector/input.h"
#include "base/alloc.h"
#include "format/safetensors.h"
#include "base/shown.h"
#include "tensor/dtype.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STAGE ((size_t)4 << 20) /* bytes read at a time when they have to be converted */

struct km_input {
    km_row_layout layout;
    int fd;              /* -1: in memory */
    const uint8_t *data; /* in memory; NULL: read from fd */
    uint8_t *stage;
    char *name;
};

/* ---- Opening ---- */

static km_status read_at(int fd, void *dst, size_t n, uint64_t at, const char *shown,
                         km_error *err) {
    uint8_t *p = dst;
    while (n > 0) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return km_error_set(err, KM_ERR_FILE, "cannot read '%s': %s", shown, strerror(errno));
        if (got == 0)
            return km_error_set(err, KM_ERR_FILE, "cannot read '%s': it became shorter", shown);
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return KM_OK;
}

static bool ends(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* The tensor's place in its file: tensors have no gaps, so the first begins where the header ends. */
static km_status safetensors_layout(km_row_layout *l, const char *path, const char *name,
                                    char **file, km_error *err) {
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return err->code;
    const km_st_tensor *t = name ? km_safetensors_find(f, name) : NULL;
    int found = 0;
    for (int i = 0; !name && i < km_safetensors_count(f); i++)
        if (km_safetensors_at(f, i)->shape.ndim == 2) {
            t = km_safetensors_at(f, i);
            found++;
        }
    km_status s = KM_OK;
    char shown[KM_SHOWN];
    if (name && !t)
        s = km_error_set(err, KM_ERR_RANGE, "'%s' holds no tensor '%s'", path,
                         km_shown(shown, name));
    else if (!t || (!name && found > 1))
        s = km_error_set(err, KM_ERR_RANGE,
                         "'%s' holds %d tensors with two axes; --tensor NAME says which", path,
                         found);
    else if (t->dtype == KM_DTYPE_COUNT || t->dtype == KM_BOOL)
        s = km_error_set(err, KM_ERR_DTYPE, "'%s': tensor '%s' is of type %s", path,
                         km_shown(shown, t->name), t->type);
    else if (t->shape.ndim < 1)
        s = km_error_set(err, KM_ERR_SHAPE, "'%s': tensor '%s' is a single number", path,
                         km_shown(shown, t->name));
    const uint8_t *base = NULL;
    for (int i = 0; s == KM_OK && i < km_safetensors_count(f); i++) {
        const km_st_tensor *o = km_safetensors_at(f, i);
        if (o->file == t->file && o->data && (!base || (const uint8_t *)o->data < base))
            base = o->data;
    }
    if (s == KM_OK) {
        *l = (km_row_layout){.dtype = t->dtype, .rows = 1, .dim = 1};
        for (int i = 0; i < t->shape.ndim; i++)
            if (i == 0 && t->shape.ndim > 1)
                l->rows = t->shape.dim[0];
            else if (l->dim <= KM_MAX_VECTOR_DIM)
                l->dim *= t->shape.dim[i];
        l->offset = base ? (uint64_t)((const uint8_t *)t->data - base) : 0;
        *file = km_strdup(km_safetensors_file(f, t->file));
        if (!*file) s = km_no_memory(err);
    }
    km_safetensors_close(f);
    return s;
}

static km_status find_layout(km_input *in, const char *path, const km_input_options *o,
                             uint64_t size, km_error *err) {
    uint8_t *head = km_alloc(KM_LAYOUT_HEAD);
    if (!head) return km_no_memory(err);
    size_t n = size < KM_LAYOUT_HEAD ? (size_t)size : KM_LAYOUT_HEAD;
    km_row_layout *l = &in->layout;
    km_status s = read_at(in->fd, head, n, 0, path, err);
    if (s != KM_OK) {
    } else if (km_npy_is(head, n) || ends(path, ".npy")) {
        s = km_npy_parse(l, head, n, size, path, err);
    } else if (ends(path, ".fvecs") || ends(path, ".ivecs") || ends(path, ".bvecs")) {
        char kind = path[strlen(path) - 5];
        km_dtype dtype = kind == 'f' ? KM_F32 : kind == 'i' ? KM_I32 : KM_U8;
        s = km_vecs_parse(l, dtype, head, n, size, path, err);
    } else if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b) {
        s = km_error_set(err, KM_ERR_FORMAT, "'%s' is compressed; unpack it first: gunzip -k",
                         path);
    } else if (o && o->dim > 0) {
        *l = (km_row_layout){.dtype = o->dtype, .dim = o->dim};
        l->rows = (int64_t)(size / km_row_layout_bytes(l));
        s = km_row_layout_check(l, size, true, path, err);
    } else if (km_idx_is(head, n)) {
        s = km_idx_parse(l, head, n, size, path, err);
    } else if (size == 0) {
        s = km_error_set(err, KM_ERR_FORMAT, "'%s' is empty", path);
    } else {
        s = km_error_set(err, KM_ERR_FORMAT,
                         "'%s' is no .npy, .fvecs, .bvecs, .ivecs, .safetensors or IDX file; "
                         "--dim N reads it as raw numbers",
                         path);
    }
    km_free(head);
    return s;
}

static km_status open_file(km_input *in, const char *path, const km_input_options *o,
                           km_error *err) {
    char *file = NULL;
    bool safetensors = ends(path, ".safetensors") || ends(path, ".safetensors.index.json");
    km_status s = KM_OK;
    if (safetensors) s = safetensors_layout(&in->layout, path, o ? o->tensor : NULL, &file, err);
    if (s != KM_OK) return s;
    in->fd = open(file ? file : path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    km_free(file);
    struct stat st;
    if (in->fd < 0 || fstat(in->fd, &st) != 0)
        return km_error_set(err, KM_ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return km_error_set(err, KM_ERR_FILE, "cannot open '%s': not a regular file", path);
    if (!safetensors) return find_layout(in, path, o, (uint64_t)st.st_size, err);
    uint8_t b[8];
    uint64_t header = 0;
    s = read_at(in->fd, b, 8, 0, path, err);
    for (int i = 7; i >= 0; i--) header = header << 8 | b[i];
    if (s != KM_OK) return s;
    in->layout.offset += 8 + header;
    return km_row_layout_check(&in->layout, (uint64_t)st.st_size, false, path, err);
}

static km_input *make(const char *name, km_error *err) {
    km_input *in = km_calloc(1, sizeof *in);
    if (in) in->fd = -1;
    if (in && !(in->name = km_strdup(name))) {
        km_free(in);
        in = NULL;
    }
    if (!in) km_no_memory(err);
    return in;
}

km_input *km_input_open(const char *path, const km_input_options *o, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    km_input *in = make(path, err);
    if (in && open_file(in, path, o, err) != KM_OK) {
        km_input_close(in);
        in = NULL;
    }
    return in;
}

km_input *km_input_parse(const void *data, size_t bytes, const char *shown, km_error *err) {
    km_input *in = make(shown, err);
    if (!in) return NULL;
    in->data = data;
    if (km_npy_parse(&in->layout, data, bytes, bytes, shown, err) == KM_OK) return in;
    km_input_close(in);
    return NULL;
}

km_input *km_input_memory(const float *x, int64_t rows, int64_t dim, km_error *err) {
    km_input *in = make("memory", err);
    if (!in) return NULL;
    in->data = (const uint8_t *)x;
    in->layout = (km_row_layout){.dtype = KM_F32, .rows = rows, .dim = dim};
    return in;
}

void km_input_close(km_input *in) {
    if (!in) return;
    if (in->fd >= 0) close(in->fd);
    km_free(in->stage);
    km_free(in->name);
    km_free(in);
}

int64_t km_input_rows(const km_input *in) { return in->layout.rows; }
int64_t km_input_dim(const km_input *in) { return in->layout.dim; }
const km_row_layout *km_input_layout(const km_input *in) { return &in->layout; }
const char *km_input_name(const km_input *in) { return in->name; }

/* ---- Reading ---- */

static km_status fetch(km_input *in, void *dst, size_t n, uint64_t at, km_error *err) {
    if (!in->data) return read_at(in->fd, dst, n, at, in->name, err);
    memcpy(dst, in->data + at, n);
    return KM_OK;
}

static uint8_t *stage_of(km_input *in, km_error *err) {
    if (!in->stage) in->stage = km_alloc(STAGE);
    if (!in->stage) km_no_memory(err);
    return in->stage;
}

static void swap_bytes(uint8_t *p, size_t n, size_t size) {
    for (size_t i = 0; i < n; i += size)
        for (size_t a = 0, b = size - 1; a < b; a++, b--) {
            uint8_t t = p[i + a];
            p[i + a] = p[i + b];
            p[i + b] = t;
        }
}

/* n elements from src to out[0], out[step], ...; src need not be aligned. */
static void convert(const km_row_layout *l, const uint8_t *src, int64_t n, float *out,
                    int64_t step) {
#define EACH(type, expression)                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                              \
        type v;                                                                                    \
        memcpy(&v, src + i * (int64_t)sizeof v, sizeof v);                                         \
        out[i * step] = (float)(expression);                                                       \
    }                                                                                              \
    break
    switch (l->dtype) {
    case KM_F32: EACH(float, v);
    case KM_F64: EACH(double, v);
    case KM_F16:
        EACH(uint16_t, !l->words        ? km_f16_to_f32(v)
                       : l->is_unsigned ? (float)v
                                        : (float)(int16_t)v);
    case KM_BF16: EACH(uint16_t, km_bf16_to_f32(v));
    case KM_U8: EACH(uint8_t, v);
    case KM_I8: EACH(int8_t, v);
    case KM_I32: EACH(int32_t, l->is_unsigned ? (double)(uint32_t)v : (double)v);
    default: EACH(int64_t, l->is_unsigned ? (double)(uint64_t)v : (double)v);
    }
#undef EACH
}

static km_status read_columns(km_input *in, int64_t first, int64_t count, float *out,
                              km_error *err) {
    const km_row_layout *l = &in->layout;
    size_t size = km_dtype_size(l->dtype);
    int64_t most = (int64_t)(STAGE / size);
    for (int64_t j = 0; j < l->dim; j++)
        for (int64_t i = 0; i < count; i += most) {
            int64_t n = count - i < most ? count - i : most;
            uint64_t at =
                l->offset + ((uint64_t)j * (uint64_t)l->rows + (uint64_t)(first + i)) * size;
            if (fetch(in, in->stage, (size_t)n * size, at, err) != KM_OK) return err->code;
            if (l->swapped) swap_bytes(in->stage, (size_t)n * size, size);
            convert(l, in->stage, n, out + i * l->dim + j, l->dim);
        }
    return KM_OK;
}

/* One row in the stage: the dim in front of it is that of the file, and then its elements. */
static km_status take_row(km_input *in, uint8_t *row, int64_t index, float *out, km_error *err) {
    const km_row_layout *l = &in->layout;
    if (l->prefix) {
        int32_t dim = (int32_t)((uint32_t)row[0] | (uint32_t)row[1] << 8 | (uint32_t)row[2] << 16 |
                                (uint32_t)row[3] << 24);
        if (dim != l->dim)
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s': vector %lld says it has %d dimensions, the first one %lld",
                                in->name, (long long)index, (int)dim, (long long)l->dim);
    }
    row += l->prefix;
    size_t size = km_dtype_size(l->dtype);
    if (l->swapped) swap_bytes(row, (size_t)l->dim * size, size);
    convert(l, row, l->dim, out, 1);
    return KM_OK;
}

/* Rows longer than the stage, piece by piece; only fvecs-like and plain rows can be that long. */
static km_status read_long_rows(km_input *in, int64_t first, int64_t count, float *out,
                                km_error *err) {
    size_t row = (size_t)km_row_layout_bytes(&in->layout);
    uint8_t *whole = km_alloc(row);
    if (!whole) return km_no_memory(err);
    km_status s = KM_OK;
    for (int64_t i = 0; s == KM_OK && i < count; i++) {
        s = fetch(in, whole, row, in->layout.offset + (uint64_t)(first + i) * row, err);
        if (s == KM_OK) s = take_row(in, whole, first + i, out + i * in->layout.dim, err);
    }
    km_free(whole);
    return s;
}

km_status km_input_read(km_input *in, int64_t first, int64_t count, float *out, km_error *err) {
    const km_row_layout *l = &in->layout;
    km_error own = {0};
    if (!err) err = &own;
    if (first < 0 || count < 0 || first > l->rows - count)
        return km_error_set(err, KM_ERR_RANGE, "'%s': no vectors %lld to %lld", in->name,
                            (long long)first, (long long)(first + count - 1));
    size_t row = (size_t)km_row_layout_bytes(l);
    if (l->dtype == KM_F32 && !l->swapped && !l->columns && !l->prefix)
        return fetch(in, out, (size_t)count * row, l->offset + (uint64_t)first * row, err);
    if (!stage_of(in, err)) return err->code;
    if (l->columns) return read_columns(in, first, count, out, err);
    if (row > STAGE) return read_long_rows(in, first, count, out, err);
    int64_t most = (int64_t)(STAGE / row);
    for (int64_t i = 0; i < count; i += most) {
        int64_t n = count - i < most ? count - i : most;
        uint64_t at = l->offset + (uint64_t)(first + i) * row;
        if (fetch(in, in->stage, (size_t)n * row, at, err) != KM_OK) return err->code;
        for (int64_t k = 0; k < n; k++)
            if (take_row(in, in->stage + (size_t)k * row, first + i + k, out + (i + k) * l->dim,
                         err) != KM_OK)
                return err->code;
    }
    return KM_OK;
}

km_status km_input_read_ids(km_input *in, int64_t n, uint64_t *out, km_error *err) {
    const km_row_layout *l = &in->layout;
    size_t size = km_dtype_size(l->dtype);
    bool whole = l->dtype == KM_I32 || l->dtype == KM_I64 || l->dtype == KM_U8 || l->words;
    if (!whole || l->prefix || (l->rows != 1 && l->dim != 1))
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is no list of whole numbers", in->name);
    if (l->rows * l->dim != n)
        return km_error_set(err, KM_ERR_RANGE, "'%s' holds %lld ids for %lld vectors", in->name,
                            (long long)(l->rows * l->dim), (long long)n);
    if (!stage_of(in, err)) return err->code;
    int64_t most = (int64_t)(STAGE / size);
    for (int64_t i = 0; i < n; i += most) {
        int64_t m = n - i < most ? n - i : most;
        km_status s = fetch(in, in->stage, (size_t)m * size, l->offset + (uint64_t)i * size, err);
        if (s != KM_OK) return s;
        if (l->swapped) swap_bytes(in->stage, (size_t)m * size, size);
        for (int64_t k = 0; k < m; k++) {
            uint64_t v = 0; /* little-endian hosts only, as the rest of Kermes */
            memcpy(&v, in->stage + (size_t)k * size, size);
            bool negative = !l->is_unsigned && l->dtype != KM_U8 && v >> (8 * size - 1);
            if (negative)
                return km_error_set(err, KM_ERR_RANGE, "'%s': id %lld is negative", in->name,
                                    (long long)(i + k));
            out[i + k] = v;
        }
    }
    return KM_OK;
}

#define MOST 1e15f        /* the square of a distance in 65,536 dimensions is far from FLT_MAX */
#define LEAST 1e-15f      /* and what is left of it below FLT_MIN is nothing */
#define LEAST_UNIT 1e-36f /* what can be scaled to length 1 */

static float largest(const float *row, int64_t dim) {
    float most = 0;
    for (int64_t j = 0; j < dim; j++) most = fabsf(row[j]) > most ? fabsf(row[j]) : most;
    return most;
}

/* Cosine scales every row, so that only what underflows on the way is out of its reach. */
static bool in_reach(float most, km_metric metric) {
    if (most == 0) return true;
    return metric == KM_METRIC_COSINE ? most >= LEAST_UNIT : most <= MOST && most >= LEAST;
}

int64_t km_first_unfit_row(const float *x, int64_t n, int64_t dim, km_metric metric) {
    for (int64_t i = 0; i < n; i++)
        if (km_first_bad_row(x + i * dim, 1, dim) == 0 ||
            !in_reach(largest(x + i * dim, dim), metric))
            return i;
    return -1;
}

const char *km_row_trouble(char out[KM_TROUBLE_TEXT], const float *row, int64_t dim,
                           km_metric metric) {
    if (km_first_bad_row(row, 1, dim) == 0) return "holds a NaN or an infinity";
    if (metric == KM_METRIC_COSINE)
        snprintf(out, KM_TROUBLE_TEXT, "has nothing above %g: scale it", (double)LEAST_UNIT);
    else
        snprintf(
            out, KM_TROUBLE_TEXT,
            "has %g as its largest value: distances take %g to %g, or zero; scale all vectors alike",
            (double)largest(row, dim), (double)LEAST, (double)MOST);
    return out;
}

int64_t km_first_bad_row(const float *x, int64_t n, int64_t dim) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t worst = 0; /* all bits of the exponent: NaN or infinite */
        for (int64_t j = 0; j < dim; j++) {
            uint32_t e = km_f32_bits(x[i * dim + j]) & 0x7f800000u;
            worst = e > worst ? e : worst;
        }
        if (worst == 0x7f800000u) return i;
    }
    return -1;
}
