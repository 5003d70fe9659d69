/* Reading GGUF: the front part of each file becomes tables of pairs and tensors; then offsets are
 * checked in order, so that no two tensors share a byte and none ends beyond the file. A split
 * model is read from its first file, which names how many there are. */
#include "format/gguf.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "format/gguf_meta.h"
#include "base/shown.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 1000
#define MAX_KEY 65535
#define MAX_ALIGNMENT ((int64_t)1 << 20)
#define MIN_PAIR (8 + 1 + 4 + 1)       /* bytes: a key of one letter, a type, a value */
#define MIN_TENSOR (8 + 1 + 4 + 4 + 8) /* a name of one letter, no dimensions, type, offset */
#define MAX_TENSOR_DIMS 4

typedef struct gguf_pair {
    const char *key;
    km_gguf_value value;
} gguf_pair;

typedef struct gguf_file { /* one file */
    char *path;
    km_map map;
    gguf_pair *pairs; /* in file order */
    int n_pairs;
    const gguf_pair **by_key;
    int64_t alignment;
} gguf_file;

struct km_gguf {
    gguf_file *parts;
    int n_parts, version;
    km_gguf_tensor *tensors;
    int n;
    const km_gguf_tensor **by_name;
    km_arena texts; /* keys, names and string values, with a NUL at the end */
};

static km_status cut_short(const gguf_file *p, const char *what, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT,
                        "'%s': %s reaches beyond the end of the file: it is cut short or damaged",
                        p->path, what);
}

/* ---- Front part ---- */

typedef struct counts {
    uint64_t tensors, pairs;
} counts;

static km_status read_head(km_gguf *g, const gguf_file *p, km_gguf_cursor *c, counts *n,
                           km_error *err) {
    uint32_t version;
    if (p->map.size < 4 || memcmp(p->map.data, "GGUF", 4) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is not GGUF", p->path);
    c->at += 4;
    if (!km_gguf_take_u32(c, &version)) return cut_short(p, "the head", err);
    if (version && (version & 0xffff) == 0)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s' is a big-endian GGUF file, and Kermes reads little-endian ones",
                            p->path);
    if (version < 2 || version > 3)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s' has GGUF version %u, and Kermes reads versions 2 and 3", p->path,
                            version);
    g->version = (int)version;
    if (!km_gguf_take_u64(c, &n->tensors) || !km_gguf_take_u64(c, &n->pairs))
        return cut_short(p, "the head", err);
    uint64_t left = (uint64_t)(c->end - c->at);
    if (n->pairs > left / MIN_PAIR || n->pairs > INT_MAX / 2)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' claims %llu metadata pairs, more than the file can hold", p->path,
                            (unsigned long long)n->pairs);
    if (n->tensors > left / MIN_TENSOR || n->tensors > (uint64_t)(INT_MAX / 2 - g->n))
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' claims %llu tensors, more than the file can hold", p->path,
                            (unsigned long long)n->tensors);
    return KM_OK;
}

static const char *copy_text(km_gguf *g, const char *data, size_t size) {
    char *copy = km_arena_alloc(&g->texts, size + 1);
    if (copy && size) memcpy(copy, data, size);
    return copy;
}

/* A key or tensor name: not empty, and no NUL inside, so that it is a C string. */
static km_status read_name(km_gguf *g, const gguf_file *p, km_gguf_cursor *c, const char *what,
                           int i, const char **name, km_error *err) {
    const char *data;
    size_t size;
    char text[64];
    snprintf(text, sizeof text, "the name of %s %d", what, i);
    if (!km_gguf_take_text(c, &data, &size)) return cut_short(p, text, err);
    if (size == 0 || size > MAX_KEY || memchr(data, 0, size))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %s is empty, too long or holds a NUL",
                            p->path, text);
    *name = copy_text(g, data, size);
    return *name ? KM_OK : km_no_memory_for(err, "'%s'", p->path);
}

static int by_key(const void *a, const void *b) {
    const gguf_pair *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static km_status read_pairs(km_gguf *g, gguf_file *p, km_gguf_cursor *c, uint64_t n,
                            km_error *err) {
    char text[KM_SHOWN];
    p->pairs = km_calloc(n ? n : 1, sizeof *p->pairs);
    p->by_key = km_calloc(n ? n : 1, sizeof *p->by_key);
    if (!p->pairs || !p->by_key) return km_no_memory_for(err, "'%s'", p->path);
    for (int i = 0; i < (int)n; i++) {
        gguf_pair *v = &p->pairs[i];
        uint32_t type;
        const char *why = "reaches beyond the end of the file";
        km_status status = read_name(g, p, c, "metadata pair", i, &v->key, err);
        if (status != KM_OK) return status;
        if (!km_gguf_take_u32(c, &type) || !km_gguf_take_value(c, type, &v->value, &why))
            return km_error_set(err, KM_ERR_FORMAT, "'%s': metadata '%s' %s", p->path,
                                km_shown(text, v->key), why);
        if (v->value.type == KM_GGUF_STRING) {
            v->value.text.data = copy_text(g, v->value.text.data, v->value.text.size);
            if (!v->value.text.data) return km_no_memory_for(err, "'%s'", p->path);
        }
        p->by_key[p->n_pairs++] = v;
    }
    qsort(p->by_key, (size_t)p->n_pairs, sizeof *p->by_key, by_key);
    for (int i = 1; i < p->n_pairs; i++)
        if (strcmp(p->by_key[i - 1]->key, p->by_key[i]->key) == 0)
            return km_error_set(err, KM_ERR_FORMAT, "'%s': metadata '%s' is there twice", p->path,
                                km_shown(text, p->by_key[i]->key));
    return KM_OK;
}

static const km_gguf_value *find_pair(const gguf_file *p, const char *key) {
    gguf_pair wanted = {.key = key};
    const gguf_pair *at = &wanted;
    const gguf_pair **found =
        bsearch(&at, p->by_key, (size_t)p->n_pairs, sizeof *p->by_key, by_key);
    return found ? &(*found)->value : NULL;
}

/* A whole number of the part's own metadata; `fallback` when absent. */
static km_status part_int(const gguf_file *p, const char *key, int64_t lo, int64_t hi,
                          int64_t *value, km_error *err) {
    /* A file of one part, so that the checks live in one place. */
    const km_gguf alone = {.parts = (gguf_file *)(uintptr_t)p, .n_parts = 1};
    return km_gguf_int(&alone, key, lo, hi, value, err);
}

/* ---- Tensors ---- */

static km_status read_dims(const gguf_file *p, km_gguf_cursor *c, km_gguf_tensor *t,
                           km_error *err) {
    char text[KM_SHOWN];
    uint32_t n;
    if (!km_gguf_take_u32(c, &n)) return cut_short(p, "a tensor's shape", err);
    if (n > MAX_TENSOR_DIMS)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': tensor '%s' has %u dimensions, and GGUF allows %d", p->path,
                            km_shown(text, t->name), n, MAX_TENSOR_DIMS);
    t->shape = (km_shape){.ndim = (int)n};
    for (int i = (int)n - 1; i >= 0; i--) { /* the fastest comes first in the file */
        uint64_t d;
        if (!km_gguf_take_u64(c, &d)) return cut_short(p, "a tensor's shape", err);
        if (d > INT64_MAX)
            return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' has a dimension of %llu",
                                p->path, km_shown(text, t->name), (unsigned long long)d);
        t->shape.dim[i] = (int64_t)d;
    }
    return KM_OK;
}

/* The offset stays in *offset until the end of the front part is known. */
static km_status read_tensor(km_gguf *g, const gguf_file *p, km_gguf_cursor *c, km_gguf_tensor *t,
                             int i, uint64_t *offset, km_error *err) {
    char text[KM_SHOWN];
    uint32_t type;
    km_status status = read_name(g, p, c, "tensor", i, &t->name, err);
    if (status == KM_OK) status = read_dims(p, c, t, err);
    if (status != KM_OK) return status;
    if (!km_gguf_take_u32(c, &type) || !km_gguf_take_u64(c, offset))
        return cut_short(p, "a tensor's description", err);
    t->info = km_ggml_info_of(type);
    if (!t->info)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': tensor '%s' has type %u, which Kermes does not know", p->path,
                            km_shown(text, t->name), type);
    if (!km_ggml_bytes(t->info, t->shape, &t->bytes))
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': tensor '%s' has rows of %lld elements or is too large, which "
                            "does not fit %s with its blocks of %d",
                            p->path, km_shown(text, t->name),
                            (long long)(t->shape.ndim ? t->shape.dim[t->shape.ndim - 1] : 1),
                            t->info->name, t->info->block);
    if (*offset % (uint64_t)p->alignment)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s': tensor '%s' begins at byte %llu, which is not a multiple of the "
                            "alignment %lld",
                            p->path, km_shown(text, t->name), (unsigned long long)*offset,
                            (long long)p->alignment);
    return KM_OK;
}

static int by_place(const void *a, const void *b) {
    const km_gguf_tensor *const *x = a, *const *y = b;
    const uint8_t *p = (*x)->data, *q = (*y)->data;
    if (p != q) return p < q ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

static km_status check_overlap(const gguf_file *p, km_gguf_tensor *tensors, int n, km_error *err) {
    char text[KM_SHOWN];
    const km_gguf_tensor **order = km_alloc((n ? (size_t)n : 1) * sizeof *order);
    if (!order) return km_no_memory_for(err, "'%s'", p->path);
    for (int i = 0; i < n; i++) order[i] = &tensors[i];
    qsort(order, (size_t)n, sizeof *order, by_place);
    km_status status = KM_OK;
    const uint8_t *end = p->map.data;
    for (int i = 0; i < n && status == KM_OK; i++) {
        const uint8_t *data = order[i]->data;
        if (order[i]->bytes && data < end)
            status = km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' overlaps another one",
                                  p->path, km_shown(text, order[i]->name));
        if (order[i]->bytes) end = data + order[i]->bytes;
    }
    km_free(order);
    return status;
}

/* Puts the tensors in their places, now that the data is known to begin after `c`. */
static km_status place_tensors(const gguf_file *p, const km_gguf_cursor *c, km_gguf_tensor *tensors,
                               const uint64_t *offsets, int n, km_error *err) {
    char text[KM_SHOWN];
    uint64_t front = (uint64_t)(c->at - p->map.data), align = (uint64_t)p->alignment;
    uint64_t start = (front + align - 1) / align * align;
    uint64_t size = start < p->map.size ? p->map.size - start : 0;
    for (int i = 0; i < n; i++) {
        km_gguf_tensor *t = &tensors[i];
        if (t->bytes && (offsets[i] > size || t->bytes > size - offsets[i]))
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s': tensor '%s' ends beyond the file, which is cut short or "
                                "damaged",
                                p->path, km_shown(text, t->name));
        t->data = t->bytes ? p->map.data + start + offsets[i] : p->map.data;
    }
    km_status status = check_overlap(p, tensors, n, err);
    for (int i = 0; i < n; i++)
        if (!tensors[i].bytes) tensors[i].data = NULL;
    return status;
}

static km_status read_tensors(km_gguf *g, int which, km_gguf_cursor *c, uint64_t n, km_error *err) {
    const gguf_file *p = &g->parts[which];
    km_gguf_tensor *grown = km_realloc(g->tensors, (size_t)(g->n + (int)n + 1) * sizeof *grown);
    if (!grown) return km_no_memory_for(err, "'%s'", p->path);
    g->tensors = grown;
    uint64_t *offsets = km_alloc((n ? n : 1) * sizeof *offsets);
    if (!offsets) return km_no_memory_for(err, "'%s'", p->path);
    km_status status = KM_OK;
    for (int i = 0; i < (int)n && status == KM_OK; i++) {
        km_gguf_tensor *t = &g->tensors[g->n + i];
        *t = (km_gguf_tensor){.file = which};
        status = read_tensor(g, p, c, t, i, &offsets[i], err);
    }
    if (status == KM_OK) status = place_tensors(p, c, g->tensors + g->n, offsets, (int)n, err);
    if (status == KM_OK) g->n += (int)n;
    km_free(offsets);
    return status;
}

static km_status read_part(km_gguf *g, int which, km_error *err) {
    gguf_file *p = &g->parts[which];
    km_gguf_cursor c = {p->map.data, p->map.data + p->map.size};
    counts n = {0, 0};
    km_status status = read_head(g, p, &c, &n, err);
    if (status == KM_OK) status = read_pairs(g, p, &c, n.pairs, err);
    p->alignment = 32;
    if (status == KM_OK)
        status = part_int(p, "general.alignment", 1, MAX_ALIGNMENT, &p->alignment, err);
    if (status == KM_OK && (p->alignment & (p->alignment - 1)))
        status = km_error_set(err, KM_ERR_FORMAT, "'%s': the alignment %lld is no power of two",
                              p->path, (long long)p->alignment);
    return status == KM_OK ? read_tensors(g, which, &c, n.tensors, err) : status;
}

/* ---- Lookups ---- */

static int by_name(const void *a, const void *b) {
    const km_gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static km_status index_names(km_gguf *g, km_error *err) {
    char text[KM_SHOWN];
    g->by_name = km_alloc((g->n ? (size_t)g->n : 1) * sizeof *g->by_name);
    if (!g->by_name) return km_no_memory_for(err, "'%s'", g->parts[0].path);
    for (int i = 0; i < g->n; i++) g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, (size_t)g->n, sizeof *g->by_name, by_name);
    for (int i = 1; i < g->n; i++)
        if (strcmp(g->by_name[i - 1]->name, g->by_name[i]->name) == 0)
            return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' is there twice",
                                g->parts[g->by_name[i]->file].path,
                                km_shown(text, g->by_name[i]->name));
    return KM_OK;
}

int km_gguf_version(const km_gguf *g) { return g->version; }
int km_gguf_files(const km_gguf *g) { return g->n_parts; }
const char *km_gguf_path(const km_gguf *g) { return g->parts[0].path; }
int km_gguf_count(const km_gguf *g) { return g ? g->n : 0; }

const km_gguf_tensor *km_gguf_at(const km_gguf *g, int i) {
    return g && i >= 0 && i < g->n ? &g->tensors[i] : NULL;
}

const km_gguf_tensor *km_gguf_find(const km_gguf *g, const char *name) {
    if (!g || !name) return NULL;
    km_gguf_tensor wanted = {.name = name};
    const km_gguf_tensor *at = &wanted;
    const km_gguf_tensor **found =
        bsearch(&at, g->by_name, (size_t)g->n, sizeof *g->by_name, by_name);
    return found ? *found : NULL;
}

int km_gguf_meta_count(const km_gguf *g) { return g ? g->parts[0].n_pairs : 0; }

const char *km_gguf_meta_key(const km_gguf *g, int i) {
    return i >= 0 && i < km_gguf_meta_count(g) ? g->parts[0].pairs[i].key : NULL;
}

const km_gguf_value *km_gguf_meta_at(const km_gguf *g, int i) {
    return i >= 0 && i < km_gguf_meta_count(g) ? &g->parts[0].pairs[i].value : NULL;
}

const km_gguf_value *km_gguf_get(const km_gguf *g, const char *key) {
    return g && key ? find_pair(&g->parts[0], key) : NULL;
}

/* ---- Opening ---- */

void km_gguf_close(km_gguf *g) {
    if (!g) return;
    for (int i = 0; i < g->n_parts; i++) {
        gguf_file *p = &g->parts[i];
        km_map_close(&p->map);
        km_free(p->path);
        km_free(p->pairs);
        km_free(p->by_key);
    }
    km_free(g->parts);
    km_free(g->tensors);
    km_free(g->by_name);
    km_arena_free(&g->texts);
    km_free(g);
}

static km_gguf *new_gguf(const char *path, km_error *err) {
    km_gguf *g = km_calloc(1, sizeof *g);
    gguf_file *first = g ? km_calloc(1, sizeof *first) : NULL;
    if (first) first->path = km_strdup(path);
    if (first && first->path) {
        g->parts = first;
        g->n_parts = 1;
        return g;
    }
    km_free(first);
    km_free(g);
    km_no_memory_for(err, "'%s'", path);
    return NULL;
}

km_status km_gguf_check(const km_gguf *g, km_error *err) {
    km_status s = KM_OK;
    for (int i = 0; i < g->n_parts && s == KM_OK; i++) s = km_map_check(&g->parts[i].map, err);
    return s;
}

static km_gguf *finish(km_gguf *g, km_status status, km_error *own, km_error *err) {
    if (status == KM_OK) status = index_names(g, own);
    if (km_gguf_check(g, own) == KM_OK && status == KM_OK) return g;
    km_error_set(err, own->code, "%s", own->text);
    km_gguf_close(g);
    return NULL;
}

km_gguf *km_gguf_parse(const void *data, size_t bytes, const char *shown, km_error *err) {
    km_gguf *g = new_gguf(shown, err);
    if (!g) return NULL;
    km_error own = {0};
    g->parts[0].map = (km_map){.data = data, .size = bytes};
    km_status status = read_part(g, 0, &own);
    g->parts[0].map = (km_map){0}; /* not ours to unmap */
    return finish(g, status, &own, err);
}

static km_status open_split(km_gguf *g, int64_t count, km_error *err) {
    const char *path = g->parts[0].path;
    size_t length = strlen(path);
    char tail[64];
    snprintf(tail, sizeof tail, "-00001-of-%05d.gguf", (int)count);
    size_t n = strlen(tail);
    if (length < n || strcmp(path + length - n, tail) != 0)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' is the first of %d files, and its name should end in '%s'", path,
                            (int)count, tail);
    gguf_file *grown = km_realloc(g->parts, (size_t)count * sizeof *grown);
    if (!grown) return km_no_memory_for(err, "'%s'", path);
    g->parts = grown;
    for (int i = 1; i < count; i++) {
        gguf_file *p = &g->parts[i];
        *p = (gguf_file){.path = km_strdup(path)};
        g->n_parts++;
        if (!p->path) return km_no_memory_for(err, "'%s'", path);
        snprintf(p->path + length - n, n + 1, "-%05d-of-%05d.gguf", i + 1, (int)count);
        int64_t no = -1, of = -1;
        km_status status = km_map_open(&p->map, p->path, err);
        if (status == KM_OK) status = read_part(g, i, err);
        if (status == KM_OK) status = part_int(p, "split.no", 0, UINT16_MAX, &no, err);
        if (status == KM_OK) status = part_int(p, "split.count", 0, UINT16_MAX, &of, err);
        if (status == KM_OK && (no != i || of != count))
            status = km_error_set(err, KM_ERR_FORMAT, "'%s' is not file %d of %d of this model",
                                  p->path, i + 1, (int)count);
        if (status != KM_OK) return status;
    }
    int64_t total = g->n;
    km_status status = km_gguf_int(g, "split.tensors.count", 0, INT_MAX, &total, err);
    if (status == KM_OK && total != g->n)
        status =
            km_error_set(err, KM_ERR_FORMAT, "'%s' promises %lld tensors, and its %d files hold %d",
                         path, (long long)total, (int)count, g->n);
    return status;
}

km_gguf *km_gguf_open(const char *path, km_error *err) {
    if (!path || !*path) {
        km_error_set(err, KM_ERR_NULL, "no file name given");
        return NULL;
    }
    km_gguf *g = new_gguf(path, err);
    if (!g) return NULL;
    km_error own = {0};
    km_status status = km_map_open(&g->parts[0].map, path, &own);
    if (status == KM_OK) status = read_part(g, 0, &own);
    int64_t no = 0, count = 1;
    if (status == KM_OK) status = km_gguf_int(g, "split.no", 0, UINT16_MAX, &no, &own);
    if (status == KM_OK) status = km_gguf_int(g, "split.count", 0, MAX_FILES, &count, &own);
    if (status == KM_OK && no != 0)
        status = km_error_set(&own, KM_ERR_FORMAT,
                              "'%s' is file %lld of a split model: give the first one", path,
                              (long long)no + 1);
    if (status == KM_OK && count > 1) status = open_split(g, count, &own);
    return finish(g, status, &own, err);
}
