/* Reading safetensors. One pass over the header makes a table of views, one over the table in
 * order of offsets proves that they tile the data exactly: no overlap, no gap, no end beyond the
 * file. Names and texts stay in the parsed header, which lives as long as the file. */
#include "format/safetensors.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/shown.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEADER ((uint64_t)100 << 20) /* as in the reference implementation */
#define MAX_FILES 4096

typedef struct st_file { /* one file */
    char *path;
    km_map map;
    json_t *header;
} st_file;

struct km_safetensors {
    st_file *parts;
    int n_parts, room_parts;
    km_st_tensor *tensors;
    int n, room;
    const km_st_tensor **by_name; /* sorted by name */
    const char **meta_keys;
    int n_meta;
};

/* ---- The header ---- */

static const char *lfs_hint(const uint8_t *data, size_t size) {
    static const char pointer[] = "version https://git-lfs";
    size_t n = sizeof pointer - 1;
    return size >= n && memcmp(data, pointer, n) == 0
               ? " (it is a Git LFS pointer; 'git lfs pull' fetches the file itself)"
               : "";
}

static km_status read_shape(const json_t *v, km_shape *shape, const char *name, const char *shown,
                            km_error *err) {
    char text[KM_SHOWN];
    if (!json_is_array(v))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' has no shape", shown,
                            km_shown(text, name));
    size_t n = json_array_size(v);
    if (n > KM_MAX_DIMS)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': tensor '%s' has %zu dimensions, and Kermes takes at most %d",
                            shown, km_shown(text, name), n, KM_MAX_DIMS);
    *shape = (km_shape){.ndim = (int)n};
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(v, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s': tensor '%s': a dimension is no whole number", shown,
                                km_shown(text, name));
        shape->dim[i] = json_integer_value(d);
    }
    return KM_OK;
}

/* The bytes of that many elements; false when they overflow or are no whole bytes. */
static bool shape_bytes(km_shape shape, int bits, uint64_t *bytes) {
    uint64_t total = (uint64_t)bits;
    for (int i = 0; i < shape.ndim; i++)
        if (shape.dim[i] == 0) {
            *bytes = 0;
            return true;
        }
    for (int i = 0; i < shape.ndim; i++)
        if (__builtin_mul_overflow(total, (uint64_t)shape.dim[i], &total)) return false;
    *bytes = total / 8;
    return total % 8 == 0 && *bytes <= PTRDIFF_MAX;
}

static bool offset_at(const json_t *pair, size_t i, uint64_t *offset) {
    const json_t *v = json_array_get(pair, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *offset = (uint64_t)json_integer_value(v);
    return true;
}

static km_status read_tensor(const st_file *p, size_t start, const char *name, const json_t *v,
                             km_st_tensor *t, km_error *err) {
    char text[KM_SHOWN], word[KM_SHOWN];
    const char *type = json_string_value(json_object_get(v, "dtype"));
    if (!json_is_object(v) || !type)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' has no dtype", p->path,
                            km_shown(text, name));
    const km_st_type *known = km_st_type_find(type);
    if (!known)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' has the unknown dtype '%s'",
                            p->path, km_shown(text, name), km_shown(word, type));
    km_shape shape;
    km_status status = read_shape(json_object_get(v, "shape"), &shape, name, p->path, err);
    if (status != KM_OK) return status;
    const json_t *pair = json_object_get(v, "data_offsets");
    uint64_t from, to, want;
    if (!json_is_array(pair) || json_array_size(pair) != 2 || !offset_at(pair, 0, &from) ||
        !offset_at(pair, 1, &to) || from > to)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' has no valid data_offsets",
                            p->path, km_shown(text, name));
    uint64_t size = p->map.size - start;
    if (to > size)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': tensor '%s' ends at byte %llu of the data, and there are only "
                            "%llu: the file is cut short",
                            p->path, km_shown(text, name), (unsigned long long)to,
                            (unsigned long long)size);
    if (!shape_bytes(shape, known->bits, &want) || want != to - from)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': tensor '%s' has %llu bytes, which is not what its shape and "
                            "dtype need",
                            p->path, km_shown(text, name), (unsigned long long)(to - from));
    const uint8_t *data = p->map.data + start + from;
    size_t align = known->bits > 8 ? (size_t)known->bits / 8 : 1;
    *t = (km_st_tensor){.name = name,
                        .type = known->name,
                        .dtype = known->dtype,
                        .shape = shape,
                        .data = data, /* of an empty one too, until the tiling is proved */
                        .bytes = (size_t)want,
                        .aligned = (uintptr_t)data % align == 0};
    return KM_OK;
}

static int by_offset(const void *a, const void *b) {
    const km_st_tensor *x = a, *y = b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return p < q ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

/* The tensors from `first` on, in order of offsets, must tile the data. */
static km_status check_tiling(km_safetensors *f, int first, const st_file *p, size_t start,
                              km_error *err) {
    char text[KM_SHOWN];
    if (f->n > first)
        qsort(f->tensors + first, (size_t)(f->n - first), sizeof *f->tensors, by_offset);
    const uint8_t *at = p->map.data + start, *end = p->map.data + p->map.size;
    for (int i = first; i < f->n; i++) {
        km_st_tensor *t = &f->tensors[i];
        const uint8_t *data = t->data;
        if (data != at)
            return km_error_set(
                err, KM_ERR_FORMAT, "'%s': tensor '%s' %s", p->path, km_shown(text, t->name),
                data < at ? "overlaps another one" : "does not begin where the one before it ends");
        at += t->bytes;
        if (!t->bytes) {
            t->data = NULL;
            t->aligned = true;
        }
    }
    if (at != end)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %llu bytes at the end belong to no tensor",
                            p->path, (unsigned long long)(end - at));
    return KM_OK;
}

static km_status read_meta(const st_file *p, const json_t *meta, km_error *err) {
    char text[KM_SHOWN];
    if (!json_is_object(meta))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': __metadata__ must be an object", p->path);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)meta, key, v) if (!json_is_string(v)) return km_error_set(
        err, KM_ERR_FORMAT, "'%s': metadata '%s' is no string", p->path, km_shown(text, key));
    return KM_OK;
}

static km_status load_header(st_file *p, size_t *start, km_error *err) {
    const uint8_t *data = p->map.data;
    size_t size = p->map.size;
    if (size < 8)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is not safetensors: %zu bytes are too few",
                            p->path, size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    /* The first byte decides first: a file of another kind has a senseless length. */
    if (length < 2 || (size > 8 && data[8] != '{'))
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is not safetensors%s", p->path,
                            lfs_hint(data, size));
    if (length > MAX_HEADER)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': the header claims %llu bytes, and at most 100 MiB are allowed",
                            p->path, (unsigned long long)length);
    if (length > size - 8)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': the header claims %llu bytes and the file has %zu after it "
                            "begins: the file is cut short",
                            p->path, (unsigned long long)length, size - 8);
    p->header = km_json_parse(data + 8, (size_t)length, p->path, err);
    if (!p->header) return err->code;
    if (!json_is_object(p->header))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': the header is no JSON object", p->path);
    *start = 8 + (size_t)length;
    return KM_OK;
}

static km_status reserve(km_safetensors *f, size_t more, const char *shown, km_error *err) {
    size_t want = (size_t)f->n + more;
    if (want > INT_MAX / 2)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': too many tensors", shown);
    if (want <= (size_t)f->room) return KM_OK;
    km_st_tensor *grown = km_realloc(f->tensors, want * sizeof *grown);
    if (!grown) return km_no_memory_for(err, "'%s'", shown);
    f->tensors = grown;
    f->room = (int)want;
    return KM_OK;
}

/* Reads the last part's header and adds its tensors. */
static km_status read_part(km_safetensors *f, km_error *err) {
    st_file *p = &f->parts[f->n_parts - 1];
    size_t start = 0;
    int first = f->n;
    km_status status = load_header(p, &start, err);
    if (status == KM_OK) status = reserve(f, json_object_size(p->header), p->path, err);
    if (status != KM_OK) return status;
    const char *name;
    json_t *v;
    json_object_foreach(p->header, name, v) {
        if (strcmp(name, "__metadata__") == 0) {
            status = read_meta(p, v, err);
        } else {
            status = read_tensor(p, start, name, v, &f->tensors[f->n], err);
            if (status == KM_OK) f->tensors[f->n++].file = f->n_parts - 1;
        }
        if (status != KM_OK) return status;
    }
    return check_tiling(f, first, p, start, err);
}

/* ---- Lookups ---- */

static int by_name(const void *a, const void *b) {
    const km_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static km_status index_names(km_safetensors *f, km_error *err) {
    char text[KM_SHOWN];
    const st_file *first = &f->parts[0];
    f->by_name = km_alloc((f->n ? (size_t)f->n : 1) * sizeof *f->by_name);
    if (!f->by_name) return km_no_memory_for(err, "'%s'", first->path);
    for (int i = 0; i < f->n; i++) f->by_name[i] = &f->tensors[i];
    qsort(f->by_name, (size_t)f->n, sizeof *f->by_name, by_name);
    for (int i = 1; i < f->n; i++) {
        const km_st_tensor *a = f->by_name[i - 1], *b = f->by_name[i];
        if (strcmp(a->name, b->name) == 0)
            return km_error_set(err, KM_ERR_FORMAT, "'%s' and '%s' both hold a tensor '%s'",
                                f->parts[a->file].path, f->parts[b->file].path,
                                km_shown(text, a->name));
    }
    json_t *meta = json_object_get(first->header, "__metadata__");
    size_t n = json_object_size(meta);
    f->meta_keys = km_alloc((n ? n : 1) * sizeof *f->meta_keys);
    if (!f->meta_keys) return km_no_memory_for(err, "'%s'", first->path);
    const char *key;
    json_t *v;
    json_object_foreach(meta, key, v) f->meta_keys[f->n_meta++] = key;
    return KM_OK;
}

int km_safetensors_count(const km_safetensors *f) { return f ? f->n : 0; }

const km_st_tensor *km_safetensors_at(const km_safetensors *f, int i) {
    return f && i >= 0 && i < f->n ? &f->tensors[i] : NULL;
}

const km_st_tensor *km_safetensors_find(const km_safetensors *f, const char *name) {
    int lo = 0, hi = f && name ? f->n : 0;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const km_st_tensor *t = f->by_name[mid];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

int km_safetensors_meta_count(const km_safetensors *f) { return f ? f->n_meta : 0; }

const char *km_safetensors_meta_key(const km_safetensors *f, int i) {
    return f && i >= 0 && i < f->n_meta ? f->meta_keys[i] : NULL;
}

const char *km_safetensors_meta(const km_safetensors *f, const char *key) {
    if (!f || !key) return NULL;
    const json_t *meta = json_object_get(f->parts[0].header, "__metadata__");
    return json_string_value(json_object_get(meta, key));
}

int km_safetensors_files(const km_safetensors *f) { return f ? f->n_parts : 0; }

const char *km_safetensors_file(const km_safetensors *f, int i) {
    return f && i >= 0 && i < f->n_parts ? f->parts[i].path : NULL;
}

/* ---- Opening ---- */

void km_safetensors_close(km_safetensors *f) {
    if (!f) return;
    for (int i = 0; i < f->n_parts; i++) {
        json_decref(f->parts[i].header);
        km_map_close(&f->parts[i].map);
        km_free(f->parts[i].path);
    }
    km_free(f->parts);
    km_free(f->tensors);
    km_free(f->by_name);
    km_free(f->meta_keys);
    km_free(f);
}

static st_file *add_part(km_safetensors *f, const char *path, km_error *err) {
    if (f->n_parts == MAX_FILES) {
        km_error_set(err, KM_ERR_FORMAT, "'%s' would be file %d of the model: too many", path,
                     MAX_FILES + 1);
        return NULL;
    }
    if (!km_array_reserve(&f->parts, &f->room_parts, f->n_parts + 1)) {
        km_no_memory_for(err, "'%s'", path);
        return NULL;
    }
    st_file *p = &f->parts[f->n_parts];
    *p = (st_file){.path = km_strdup(path)};
    if (!p->path) {
        km_no_memory_for(err, "'%s'", path);
        return NULL;
    }
    f->n_parts++;
    return p;
}

static km_status check_files(const km_safetensors *f, km_error *err) {
    km_status s = KM_OK;
    for (int i = 0; i < f->n_parts && s == KM_OK; i++) s = km_map_check(&f->parts[i].map, err);
    return s;
}

static km_safetensors *finish(km_safetensors *f, km_status status, km_error *own, km_error *err) {
    if (status == KM_OK) status = index_names(f, own);
    if (check_files(f, own) == KM_OK && status == KM_OK) return f;
    km_error_set(err, own->code, "%s", own->text);
    km_safetensors_close(f);
    return NULL;
}

static km_safetensors *new_file(const char *shown, km_error *err) {
    km_safetensors *f = km_calloc(1, sizeof *f);
    if (!f) km_no_memory_for(err, "'%s'", shown);
    return f;
}

km_safetensors *km_safetensors_parse(const void *data, size_t bytes, const char *shown,
                                     km_error *err) {
    km_error own = {0};
    km_safetensors *f = new_file(shown, err);
    if (!f) return NULL;
    st_file *p = add_part(f, shown, &own);
    if (!p) return finish(f, own.code, &own, err);
    p->map = (km_map){.data = data, .size = bytes};
    km_status status = read_part(f, &own);
    p->map = (km_map){0}; /* not ours to unmap */
    return finish(f, status, &own, err);
}

static km_status open_part(km_safetensors *f, const char *path, km_error *err) {
    st_file *p = add_part(f, path, err);
    if (!p) return err->code;
    km_status status = km_map_open(&p->map, path, err);
    return status == KM_OK ? read_part(f, err) : status;
}

static int has_part(const km_safetensors *f, const char *path) {
    for (int i = 0; i < f->n_parts; i++)
        if (strcmp(f->parts[i].path, path) == 0) return i;
    return -1;
}

/* {"weight_map": {"tensor": "file beside the index", ...}} */
static km_status open_index(km_safetensors *f, const char *path, km_error *err) {
    char text[KM_SHOWN], file[PATH_MAX];
    json_t *root = km_json_load(path, err);
    if (!root) return err->code;
    json_t *map = json_object_get(root, "weight_map");
    km_status status = KM_OK;
    if (json_object_size(map) == 0)
        status = km_error_set(err, KM_ERR_FORMAT, "'%s' names no tensors: no weight_map", path);
    const char *slash = strrchr(path, '/'), *name;
    int folder = slash ? (int)(slash - path) + 1 : 0, last = -1;
    json_t *v;
    json_object_foreach(map, name, v) {
        const char *word = json_string_value(v);
        if (status != KM_OK) break;
        /* Only files beside the index: a model must not reach elsewhere. */
        if (!word || !*word || strchr(word, '/') ||
            snprintf(file, sizeof file, "%.*s%s", folder, path, word) >= (int)sizeof file)
            status = km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' is in no valid file", path,
                                  km_shown(text, name));
        else if ((last < 0 || strcmp(f->parts[last].path, file) != 0) &&
                 (last = has_part(f, file)) < 0) {
            status = open_part(f, file, err);
            last = f->n_parts - 1;
        }
        if (status == KM_OK && !json_object_get(f->parts[last].header, name))
            status = km_error_set(err, KM_ERR_FORMAT, "'%s' lacks tensor '%s', which '%s' promises",
                                  file, km_shown(text, name), path);
    }
    json_decref(root);
    return status;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static km_status open_folder(km_safetensors *f, const char *path, km_error *err) {
    char file[PATH_MAX];
    struct stat st;
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        if (snprintf(file, sizeof file, "%s/%s", path, names[i]) >= (int)sizeof file) break;
        if (stat(file, &st) == 0)
            return i == 0 ? open_part(f, file, err) : open_index(f, file, err);
    }
    return km_error_set(err, KM_ERR_FILE, "folder '%s' holds no model.safetensors", path);
}

km_safetensors *km_safetensors_open(const char *path, km_error *err) {
    km_error own = {0};
    if (!path || !*path) {
        km_error_set(err, KM_ERR_NULL, "no file name given");
        return NULL;
    }
    km_safetensors *f = new_file(path, err);
    if (!f) return NULL;
    km_status status = is_folder(path)            ? open_folder(f, path, &own)
                       : ends_with(path, ".json") ? open_index(f, path, &own)
                                                  : open_part(f, path, &own);
    return finish(f, status, &own, err);
}
