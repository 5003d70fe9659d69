/* Writing GGUF version 3. Metadata is turned into the file's bytes as it is put, tensors are
 * listed; writing lays them out in the given order, each at a multiple of the alignment. */
#include "base/alloc.h"
#include "base/array.h"
#include "format/gguf_meta.h"
#include "base/shown.h"
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 32
#define MAX_NAME 63 /* what ggml's tensors hold */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are written as they lie in memory, which must be little-endian"
#endif

typedef struct gguf_bytes {
    uint8_t *data;
    size_t n, room;
} gguf_bytes;

typedef struct gguf_item {
    char *name;
    const km_ggml_info *info;
    km_shape shape;
    km_source source;
} gguf_item;

typedef struct written_pair {
    char *name;
    size_t at; /* where the pair begins in the metadata's bytes */
} written_pair;

struct km_gguf_out {
    gguf_bytes meta;
    written_pair *keys;
    size_t n_keys, room_keys;
    gguf_item *items;
    size_t n, room;
    km_error error;
};

km_gguf_out *km_gguf_out_new(km_error *err) {
    km_gguf_out *o = km_calloc(1, sizeof *o);
    if (!o) km_no_memory(err);
    return o;
}

void km_gguf_out_free(km_gguf_out *o) {
    if (!o) return;
    for (size_t i = 0; i < o->n_keys; i++) km_free(o->keys[i].name);
    for (size_t i = 0; i < o->n; i++) km_free(o->items[i].name);
    km_free(o->keys);
    km_free(o->items);
    km_free(o->meta.data);
    km_free(o);
}

/* ---- Metadata ---- */

static bool failed(const km_gguf_out *o) { return !o || o->error.code != KM_OK; }

static void no_memory(km_gguf_out *o) {
    km_error_set(&o->error, KM_ERR_MEMORY, "cannot write GGUF: out of memory");
}

static void put(km_gguf_out *o, const void *data, size_t n) {
    gguf_bytes *b = &o->meta;
    if (failed(o) || n == 0) return;
    if (n > SIZE_MAX - b->n || !km_array_reserve(&b->data, &b->room, b->n + n)) {
        no_memory(o);
        return;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_text(km_gguf_out *o, const char *data, size_t size) {
    uint64_t n = size;
    put(o, &n, 8);
    put(o, data, size);
}

static void put_key(km_gguf_out *o, const char *name, km_gguf_type type) {
    if (failed(o)) return;
    if (!name || !*name || strlen(name) > UINT16_MAX) {
        km_error_set(&o->error, KM_ERR_RANGE, "cannot write GGUF: a metadata key is empty or long");
        return;
    }
    if (!km_array_reserve(&o->keys, &o->room_keys, o->n_keys + 1)) {
        no_memory(o);
        return;
    }
    o->keys[o->n_keys] = (written_pair){km_strdup(name), o->meta.n};
    if (!o->keys[o->n_keys].name) {
        no_memory(o);
        return;
    }
    o->n_keys++;
    uint32_t number = type;
    put_text(o, name, strlen(name));
    put(o, &number, 4);
}

void km_gguf_put_u32(km_gguf_out *o, const char *key, uint32_t v) {
    put_key(o, key, KM_GGUF_U32);
    put(o, &v, 4);
}

void km_gguf_put_u64(km_gguf_out *o, const char *key, uint64_t v) {
    put_key(o, key, KM_GGUF_U64);
    put(o, &v, 8);
}

void km_gguf_put_i32(km_gguf_out *o, const char *key, int32_t v) {
    put_key(o, key, KM_GGUF_I32);
    put(o, &v, 4);
}

void km_gguf_put_f32(km_gguf_out *o, const char *key, float v) {
    put_key(o, key, KM_GGUF_F32);
    put(o, &v, 4);
}

void km_gguf_put_bool(km_gguf_out *o, const char *key, bool v) {
    uint8_t byte = v;
    put_key(o, key, KM_GGUF_BOOL);
    put(o, &byte, 1);
}

void km_gguf_put_string(km_gguf_out *o, const char *key, const char *v) {
    put_key(o, key, KM_GGUF_STRING);
    put_text(o, v, strlen(v));
}

static void put_array_head(km_gguf_out *o, const char *key, km_gguf_type type, uint64_t n) {
    uint32_t number = type;
    put_key(o, key, KM_GGUF_ARRAY);
    put(o, &number, 4);
    put(o, &n, 8);
}

void km_gguf_put_array(km_gguf_out *o, const char *key, km_gguf_type type, const void *items,
                       size_t n) {
    size_t size = km_gguf_type_size(type);
    if (failed(o)) return;
    if (!size || n > SIZE_MAX / size) {
        km_error_set(&o->error, KM_ERR_RANGE, "cannot write GGUF: '%s' is no array of numbers",
                     key ? key : "");
        return;
    }
    put_array_head(o, key, type, n);
    put(o, items, n * size);
}

void km_gguf_put_strings(km_gguf_out *o, const char *key, const char *const *items,
                         const size_t *sizes, size_t n) {
    put_array_head(o, key, KM_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_text(o, items[i], sizes ? sizes[i] : strlen(items[i]));
}

void km_gguf_put_value(km_gguf_out *o, const char *key, const km_gguf_value *v) {
    if (v->type == KM_GGUF_ARRAY) {
        put_array_head(o, key, v->array.type, v->array.count);
        put(o, v->array.data, v->array.bytes);
        return;
    }
    put_key(o, key, v->type);
    if (v->type == KM_GGUF_STRING) {
        put_text(o, v->text.data, v->text.size);
    } else if (v->type == KM_GGUF_F32) {
        float f = (float)v->f;
        put(o, &f, 4);
    } else if (v->type == KM_GGUF_BOOL) {
        uint8_t byte = v->b;
        put(o, &byte, 1);
    } else {
        put(o, &v->u, km_gguf_type_size(v->type)); /* little-endian: the low bytes come first */
    }
}

static size_t find_key(const km_gguf_out *o, const char *key) {
    size_t i = 0;
    while (i < o->n_keys && strcmp(o->keys[i].name, key) != 0) i++;
    return i;
}

bool km_gguf_out_get(const km_gguf_out *o, const char *key, km_gguf_value *v) {
    size_t i = failed(o) ? 0 : find_key(o, key);
    if (failed(o) || i == o->n_keys) return false;
    km_gguf_cursor c = {o->meta.data + o->keys[i].at, o->meta.data + o->meta.n};
    const char *text, *why;
    size_t size;
    uint32_t type;
    return km_gguf_take_text(&c, &text, &size) && km_gguf_take_u32(&c, &type) &&
           km_gguf_take_value(&c, type, v, &why);
}

void km_gguf_drop(km_gguf_out *o, const char *key) {
    size_t i = failed(o) ? 0 : find_key(o, key);
    if (failed(o) || i == o->n_keys) return;
    size_t at = o->keys[i].at, end = i + 1 < o->n_keys ? o->keys[i + 1].at : o->meta.n;
    memmove(o->meta.data + at, o->meta.data + end, o->meta.n - end);
    o->meta.n -= end - at;
    km_free(o->keys[i].name);
    o->n_keys--;
    for (; i < o->n_keys; i++)
        o->keys[i] = (written_pair){o->keys[i + 1].name, o->keys[i + 1].at - (end - at)};
}

/* ---- Tensors ---- */

void km_gguf_add(km_gguf_out *o, const char *name, km_ggml_type type, km_shape shape,
                 const void *data, km_fill_fn fill, void *user) {
    char text[KM_SHOWN];
    if (failed(o)) return;
    gguf_item it = {.info = km_ggml_info_of((uint32_t)type), .shape = shape};
    size_t n_bytes = 0;
    bool ok = it.info && shape.ndim >= 0 && shape.ndim <= 4;
    for (int i = 0; ok && i < shape.ndim; i++) ok = shape.dim[i] >= 0;
    if (!name || !*name || strlen(name) > MAX_NAME)
        km_error_set(&o->error, KM_ERR_RANGE,
                     "cannot write GGUF: tensor name '%s' is not of 1 to %d bytes",
                     km_shown(text, name ? name : ""), MAX_NAME);
    else if (!ok || !km_ggml_bytes(it.info, shape, &n_bytes))
        km_error_set(&o->error, KM_ERR_SHAPE,
                     "cannot write GGUF: the shape of '%s' does not fit %s", km_shown(text, name),
                     it.info ? it.info->name : "its type");
    else if (n_bytes && !data && !fill)
        km_error_set(&o->error, KM_ERR_NULL, "cannot write GGUF: tensor '%s' has no data",
                     km_shown(text, name));
    if (failed(o)) return;
    if (!km_array_reserve(&o->items, &o->room, o->n + 1)) {
        no_memory(o);
        return;
    }
    it.name = km_strdup(name);
    if (!it.name) {
        no_memory(o);
        return;
    }
    it.source = (km_source){it.name, data, fill, user, n_bytes, (size_t)it.info->bytes};
    o->items[o->n++] = it;
}

/* ---- The file ---- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first text that is there twice, or NULL; sorts the list. */
static const char *twice(const char **list, size_t n) {
    qsort(list, n, sizeof *list, by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(list[i - 1], list[i]) == 0) return list[i];
    return NULL;
}

static km_status check_names(km_gguf_out *o, const char *path, km_error *err) {
    char text[KM_SHOWN];
    size_t most = o->n > o->n_keys ? o->n : o->n_keys;
    const char **list = km_alloc((most ? most : 1) * sizeof *list);
    if (!list) return km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    for (size_t i = 0; i < o->n_keys; i++) list[i] = o->keys[i].name;
    const char *name = twice(list, o->n_keys);
    if (name) {
        km_error_set(err, KM_ERR_RANGE, "cannot write '%s': metadata '%s' is there twice", path,
                     km_shown(text, name));
    } else {
        for (size_t i = 0; i < o->n; i++) list[i] = o->items[i].name;
        name = twice(list, o->n);
        if (name)
            km_error_set(err, KM_ERR_RANGE, "cannot write '%s': tensor '%s' is there twice", path,
                         km_shown(text, name));
    }
    km_free(list);
    return name ? KM_ERR_RANGE : KM_OK;
}

static void put_padding(km_writer *w) {
    static const uint8_t zeros[ALIGNMENT];
    km_writer_put(w, zeros, (ALIGNMENT - km_writer_offset(w) % ALIGNMENT) % ALIGNMENT);
}

static void put_front(km_writer *w, const km_gguf_out *o) {
    uint32_t version = 3;
    uint64_t n = o->n, n_keys = o->n_keys, offset = 0;
    km_writer_put(w, "GGUF", 4);
    km_writer_put(w, &version, 4);
    km_writer_put(w, &n, 8);
    km_writer_put(w, &n_keys, 8);
    km_writer_put(w, o->meta.data, o->meta.n);
    for (size_t i = 0; i < o->n; i++) {
        const gguf_item *it = &o->items[i];
        uint64_t length = strlen(it->name);
        uint32_t ndim = (uint32_t)it->shape.ndim, type = it->info->type;
        km_writer_put(w, &length, 8);
        km_writer_put(w, it->name, length);
        km_writer_put(w, &ndim, 4);
        for (int d = it->shape.ndim - 1; d >= 0; d--) km_writer_put(w, &it->shape.dim[d], 8);
        km_writer_put(w, &type, 4);
        km_writer_put(w, &offset, 8);
        offset += (it->source.bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    put_padding(w);
}

static km_status write_all(km_gguf_out *o, const char *path, km_error *err) {
    km_status status = check_names(o, path, err);
    if (status != KM_OK) return status;
    size_t most = 0;
    for (size_t i = 0; i < o->n; i++)
        if (!o->items[i].source.data && o->items[i].source.bytes > most)
            most = o->items[i].source.bytes;
    km_fill_buffer piece;
    status = km_fill_buffer_open(&piece, most, path, err);
    km_writer *w = status == KM_OK ? km_writer_open(path, err) : NULL;
    if (w) put_front(w, o);
    for (size_t i = 0; w && i < o->n && status == KM_OK; i++) {
        status = km_put_source(w, &o->items[i].source, &piece, err);
        put_padding(w);
    }
    km_fill_buffer_close(&piece);
    if (err->code == KM_OK) return km_writer_commit(w, err);
    km_writer_abort(w);
    return err->code;
}

km_status km_gguf_write(km_gguf_out *o, const char *path, km_error *err) {
    if (!o || !path) return km_error_set(err, KM_ERR_NULL, "cannot write GGUF: missing argument");
    km_error own = o->error;
    if (own.code == KM_OK) write_all(o, path, &own);
    return own.code == KM_OK ? KM_OK : km_error_set(err, own.code, "%s", own.text);
}
