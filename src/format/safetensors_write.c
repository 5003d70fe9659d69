/* Writing safetensors, and the names of its dtypes. The header is made first, since all offsets
 * follow from shapes; then the tensors go out one after another, larger dtypes first, which
 * aligns each for its own. */
#include "base/alloc.h"
#include "base/file.h"
#include "format/safetensors.h"
#include "base/shown.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static const km_st_type types[] = {
    {"F32", 32, KM_F32},
    {"F16", 16, KM_F16},
    {"BF16", 16, KM_BF16},
    {"F64", 64, KM_F64},
    {"I32", 32, KM_I32},
    {"I64", 64, KM_I64},
    {"U8", 8, KM_U8},
    {"I8", 8, KM_I8},
    {"BOOL", 8, KM_BOOL},
    {"I16", 16, KM_DTYPE_COUNT},
    {"U16", 16, KM_DTYPE_COUNT},
    {"U32", 32, KM_DTYPE_COUNT},
    {"U64", 64, KM_DTYPE_COUNT},
    {"F8_E4M3", 8, KM_DTYPE_COUNT},
    {"F8_E5M2", 8, KM_DTYPE_COUNT},
    {"F8_E8M0", 8, KM_DTYPE_COUNT},
    {"F8_E4M3FNUZ", 8, KM_DTYPE_COUNT},
    {"F8_E5M2FNUZ", 8, KM_DTYPE_COUNT},
    {"F6_E2M3", 6, KM_DTYPE_COUNT},
    {"F6_E3M2", 6, KM_DTYPE_COUNT},
    {"F4", 4, KM_DTYPE_COUNT},
    {"C64", 64, KM_DTYPE_COUNT},
};
enum { N_TYPES = sizeof types / sizeof *types };

const km_st_type *km_st_type_find(const char *name) {
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(name, types[i].name) == 0) return &types[i];
    return NULL;
}

const char *km_safetensors_type(km_dtype dtype) {
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == dtype && dtype != KM_DTYPE_COUNT) return types[i].name;
    return NULL;
}

/* ---- The plan ---- */

typedef struct st_place {
    const km_st_item *item;
    size_t element, bytes;
    int turn; /* as given, to keep the order among equals */
} st_place;

static int by_size(const void *a, const void *b) {
    const st_place *x = a, *y = b;
    if (x->element != y->element) return x->element > y->element ? -1 : 1;
    return x->turn - y->turn;
}

static km_status plan_item(st_place *p, const char *path, km_error *err) {
    char text[KM_SHOWN];
    const km_st_item *item = p->item;
    if (!item->name || strcmp(item->name, "__metadata__") == 0)
        return km_error_set(err, KM_ERR_RANGE, "cannot write '%s': '%s' cannot name a tensor", path,
                            item->name ? item->name : "");
    if (!km_safetensors_type(item->dtype))
        return km_error_set(err, KM_ERR_DTYPE, "cannot write '%s': tensor '%s' has no dtype", path,
                            km_shown(text, item->name));
    p->element = km_dtype_size(item->dtype);
    p->bytes = p->element;
    bool ok = item->shape.ndim >= 0 && item->shape.ndim <= KM_MAX_DIMS;
    for (int i = 0; ok && i < item->shape.ndim; i++)
        ok = item->shape.dim[i] >= 0 &&
             !__builtin_mul_overflow(p->bytes, (size_t)item->shape.dim[i], &p->bytes);
    if (!ok)
        return km_error_set(err, KM_ERR_SHAPE, "cannot write '%s': tensor '%s' has no valid shape",
                            path, km_shown(text, item->name));
    if (p->bytes > 0 && !item->data && !item->fill)
        return km_error_set(err, KM_ERR_NULL, "cannot write '%s': tensor '%s' has no data", path,
                            km_shown(text, item->name));
    return KM_OK;
}

/* ---- The header ---- */

static json_t *describe(const st_place *p, uint64_t offset) {
    json_t *shape = json_array();
    for (int i = 0; i < p->item->shape.ndim; i++)
        json_array_append_new(shape, json_integer(p->item->shape.dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", km_safetensors_type(p->item->dtype), "shape",
                     shape, "data_offsets", (json_int_t)offset, (json_int_t)(offset + p->bytes));
}

static km_status bad_name(const char *what, const char *name, const char *path, km_error *err) {
    char text[KM_SHOWN];
    return km_error_set(err, KM_ERR_RANGE, "cannot write '%s': %s '%s' twice, or not UTF-8", path,
                        what, km_shown(text, name));
}

/* Both pairs of the header as one object; json_object_set_new refuses what is not UTF-8. */
static json_t *make_header(const st_place *places, int n, const km_st_pair *meta, int n_meta,
                           const char *path, km_error *err) {
    json_t *root = json_object();
    json_t *texts = n_meta > 0 ? json_object() : NULL;
    bool memory = root && (texts || n_meta <= 0);
    for (int i = 0; memory && i < n_meta; i++)
        if (!meta[i].key || !meta[i].value || json_object_get(texts, meta[i].key) ||
            json_object_set_new(texts, meta[i].key, json_string(meta[i].value)) != 0) {
            bad_name("metadata", meta[i].key ? meta[i].key : "", path, err);
            json_decref(texts);
            json_decref(root);
            return NULL;
        }
    memory = memory && (!texts || json_object_set_new(root, "__metadata__", texts) == 0);
    uint64_t offset = 0;
    for (int i = 0; memory && i < n; i++) {
        const char *name = places[i].item->name;
        json_t *v = describe(&places[i], offset);
        memory = v != NULL;
        if (memory && (json_object_get(root, name) || json_object_set(root, name, v) != 0)) {
            bad_name("tensor", name, path, err);
            json_decref(v);
            json_decref(root);
            return NULL;
        }
        json_decref(v);
        offset += places[i].bytes;
    }
    if (memory) return root;
    json_decref(root);
    km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    return NULL;
}

static km_status put_header(km_writer *w, json_t *root, const char *path, km_error *err) {
    static const char spaces[ALIGN + 1] =
        "                                                                ";
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text) return km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    size_t n = strlen(text), pad = (ALIGN - (8 + n) % ALIGN) % ALIGN;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)(n + pad) >> (8 * i));
    km_writer_put(w, length, 8);
    km_writer_put(w, text, n);
    free(text);
    return km_writer_put(w, spaces, pad);
}

/* ---- The data ---- */

static km_status put_items(km_writer *w, const st_place *places, int n, const char *path,
                           km_error *err) {
    size_t most = 0;
    for (int i = 0; i < n; i++)
        if (!places[i].item->data && places[i].bytes > most) most = places[i].bytes;
    km_fill_buffer piece;
    km_status status = km_fill_buffer_open(&piece, most, path, err);
    for (int i = 0; i < n && status == KM_OK; i++) {
        const km_st_item *item = places[i].item;
        km_source source = {item->name, item->data,      item->fill,
                            item->user, places[i].bytes, places[i].element};
        status = km_put_source(w, &source, &piece, err);
    }
    km_fill_buffer_close(&piece);
    return status;
}

static km_status write_all(const char *path, const st_place *places, int n, const km_st_pair *meta,
                           int n_meta, km_error *err) {
    json_t *root = make_header(places, n, meta, n_meta, path, err);
    if (!root) return err->code;
    km_writer *w = km_writer_open(path, err);
    km_status status = w ? put_header(w, root, path, err) : err->code;
    json_decref(root);
    if (status == KM_OK) status = put_items(w, places, n, path, err);
    if (status == KM_OK || err->code == KM_OK) return km_writer_commit(w, err);
    km_writer_abort(w);
    return err->code;
}

km_status km_safetensors_write(const char *path, const km_st_item *items, int n,
                               const km_st_pair *meta, int n_meta, km_error *err) {
    km_error own = {0};
    if (!path || n < 0 || (n > 0 && !items) || (n_meta > 0 && !meta))
        return km_error_set(err, KM_ERR_NULL, "cannot write safetensors: missing argument");
    st_place *places = km_calloc(n ? (size_t)n : 1, sizeof *places);
    if (!places) return km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    km_status status = KM_OK;
    for (int i = 0; i < n && status == KM_OK; i++) {
        places[i] = (st_place){.item = &items[i], .turn = i};
        status = plan_item(&places[i], path, &own);
    }
    if (status == KM_OK) {
        qsort(places, (size_t)n, sizeof *places, by_size);
        status = write_all(path, places, n, meta, n_meta, &own);
    }
    km_free(places);
    return status == KM_OK ? KM_OK : km_error_set(err, own.code, "%s", own.text);
}
