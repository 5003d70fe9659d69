/* Files of named tensors as one idea over three formats: opened and listed, loaded into a context,
 * written from one. The public calls on files. */
#include "base/alloc.h"
#include "format/gguf.h"
#include "base/json_read.h"
#include "format/row_layout.h"
#include "format/safetensors.h"
#include "ops/op.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct km_file {
    km_handle handle;
    atomic_int users;            /* its owner, and calls on it */
    km_safetensors *safetensors; /* one of these three is open */
    km_gguf *gguf;
    km_map npy;
    bool swapped, columns; /* of npy: elements that are big-endian; axes in Fortran's order */
    char type[4];
    km_file_tensor *tensor;
    int n;
    char *path;
};

/* ---- Opening ---- */

static km_status list_safetensors(km_file *f, km_error *err) {
    f->n = km_safetensors_count(f->safetensors);
    f->tensor = km_calloc((size_t)f->n + 1, sizeof *f->tensor);
    if (!f->tensor) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a list of tensors");
    for (int i = 0; i < f->n; i++) {
        const km_st_tensor *t = km_safetensors_at(f->safetensors, i);
        f->tensor[i] = (km_file_tensor){t->name, t->type, t->dtype, t->shape, t->data, t->bytes};
    }
    return KM_OK;
}

static km_status list_gguf(km_file *f, km_error *err) {
    f->n = km_gguf_count(f->gguf);
    f->tensor = km_calloc((size_t)f->n + 1, sizeof *f->tensor);
    if (!f->tensor) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a list of tensors");
    for (int i = 0; i < f->n; i++) {
        const km_gguf_tensor *t = km_gguf_at(f->gguf, i);
        f->tensor[i] =
            (km_file_tensor){t->name, t->info->name, t->info->dtype, t->shape, t->data, t->bytes};
    }
    return KM_OK;
}

static km_status open_npy(km_file *f, const char *path, km_error *err) {
    km_row_layout l;
    size_t bytes = 0;
    km_status s = km_map_open(&f->npy, path, err);
    if (s != KM_OK) return s;
    s = km_npy_parse_tensor(&l, f->npy.data, f->npy.size, f->npy.size, &bytes, path, err);
    km_status whole = km_map_check(&f->npy, err);
    if (whole != KM_OK || s != KM_OK) return whole != KM_OK ? whole : s;
    f->n = 1;
    f->tensor = km_calloc(1, sizeof *f->tensor);
    if (!f->tensor) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a list of tensors");
    f->swapped = l.swapped;
    f->columns = l.columns;
    memcpy(f->type, l.type, sizeof f->type);
    bool known = !l.words && (!l.is_unsigned || l.dtype == KM_U8 || l.dtype == KM_BOOL);
    f->tensor[0] = (km_file_tensor){"",
                                    f->type,
                                    known ? l.dtype : KM_DTYPE_COUNT,
                                    l.shape,
                                    bytes ? f->npy.data + l.offset : NULL,
                                    bytes};
    return KM_OK;
}

/* What a file begins with decides; the name's ending only where it cannot be looked at. */
static km_status open_any(km_file *f, const char *path, km_error *err) {
    char head[8] = {0};
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(head, 1, sizeof head, in) : 0;
    if (in) fclose(in);
    if (km_npy_is(head, n)) return open_npy(f, path, err);
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0) {
        f->gguf = km_gguf_open(path, err);
        return f->gguf ? list_gguf(f, err) : err->code;
    }
    f->safetensors = km_safetensors_open(path, err);
    return f->safetensors ? list_safetensors(f, err) : err->code;
}

static void close_file(km_file *f) {
    if (!f) return;
    km_safetensors_close(f->safetensors);
    km_gguf_close(f->gguf);
    km_map_close(&f->npy);
    km_free(f->tensor);
    km_free(f->path);
    km_free(f);
}

static km_file *open_file(const char *path, km_error *err) {
    km_file *f = NULL;
    if (!path)
        km_error_set(err, KM_ERR_NULL, "no path to a file of tensors");
    else if (!(f = km_calloc(1, sizeof *f)) || !(f->path = km_strdup(path)))
        km_error_set(err, KM_ERR_MEMORY, "out of memory");
    else
        open_any(f, path, err);
    if (err->code == KM_OK) return f;
    close_file(f);
    return NULL;
}

km_file *km_file_open(const char *path) {
    km_error err = {0};
    km_file *f = open_file(path, &err);
    if (f)
        atomic_init(&f->users, 1), km_handle_add(&f->handle, KM_HANDLE_FILE);
    else
        km_last_error_set(&err);
    return f;
}

static void drop_file(void *file) {
    km_file *f = file;
    if (atomic_fetch_sub(&f->users, 1) == 1) close_file(f);
}

void km_file_close(km_file *f) {
    if (km_handle_remove(f, KM_HANDLE_FILE)) drop_file(f);
}

/* A question about a file: of none, there is no answer; of one that is closed, the error is told. */
static bool is_open(km_holding *held, const char *call, const km_file *f) {
    return f && km_hold(held, call, f, KM_HANDLE_FILE, offsetof(km_file, users), drop_file);
}

int km_file_count(const km_file *f) {
    KM_HOLDING(held);
    return is_open(&held, "km_file_count", f) ? f->n : 0;
}

const km_file_tensor *km_file_at(const km_file *f, int i) {
    KM_HOLDING(held);
    return is_open(&held, "km_file_at", f) && i >= 0 && i < f->n ? &f->tensor[i] : NULL;
}

static const km_file_tensor *find(const km_file *f, const char *name) {
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
    return NULL;
}

const km_file_tensor *km_file_find(const km_file *f, const char *name) {
    KM_HOLDING(held);
    return is_open(&held, "km_file_find", f) && name ? find(f, name) : NULL;
}

const char *km_file_meta(const km_file *f, const char *key) {
    KM_HOLDING(held);
    if (!is_open(&held, "km_file_meta", f) || !key) return NULL;
    if (f->safetensors) return km_safetensors_meta(f->safetensors, key);
    const km_gguf_value *v = f->gguf ? km_gguf_get(f->gguf, key) : NULL;
    return v && v->type == KM_GGUF_STRING ? v->text.data : NULL;
}

bool km_file_meta_int(const km_file *f, const char *key, int64_t *value) {
    km_error err = {0};
    int64_t v = INT64_MIN;
    if (!f || !key || !value) {
        km_missing("km_file_meta_int");
        return false;
    }
    KM_HOLDING(held);
    if (!is_open(&held, "km_file_meta_int", f)) return false;
    if (!f->gguf || km_gguf_int(f->gguf, key, INT64_MIN + 1, INT64_MAX, &v, &err) != KM_OK ||
        v == INT64_MIN)
        return false;
    *value = v;
    return true;
}

/* ---- Loading ---- */

static void swap_bytes(uint8_t *p, size_t bytes, size_t size) {
    for (size_t at = 0; at + size <= bytes; at += size)
        for (size_t i = 0; i < size / 2; i++) {
            uint8_t t = p[at + i];
            p[at + i] = p[at + size - 1 - i];
            p[at + size - 1 - i] = t;
        }
}

/* Of npy only: big-endian elements are turned, Fortran's order becomes a view. */
static km_tensor *load_unusual(km_ctx *ctx, const km_file *f, const km_file_tensor *t) {
    km_shape s = t->shape;
    int axes[KM_MAX_DIMS];
    for (int i = 0; i < s.ndim; i++) {
        axes[i] = s.ndim - 1 - i;
        if (f->columns) s.dim[i] = t->shape.dim[axes[i]];
    }
    uint8_t *turned = f->swapped ? km_alloc(t->bytes) : NULL;
    if (f->swapped && !turned) {
        km_fail(ctx, KM_ERR_MEMORY, "load: out of memory");
        return NULL;
    }
    if (turned) {
        memcpy(turned, t->data, t->bytes);
        swap_bytes(turned, t->bytes, km_dtype_size(t->dtype));
    }
    km_tensor *x = km_from_data(ctx, t->dtype, s, turned ? turned : t->data);
    km_free(turned);
    return f->columns ? km_permute(ctx, x, axes) : x;
}

static km_tensor *load(km_ctx *ctx, const km_file *f, const char *name) {
    const km_file_tensor *t = NULL;
    if (!name && f->n != 1)
        km_fail(ctx, KM_ERR_RANGE, "load: '%s' holds %d tensors; name one", f->path, f->n);
    else if (!(t = name ? find(f, name) : &f->tensor[0]))
        km_fail(ctx, KM_ERR_RANGE, "load: no tensor '%.80s' in '%s'", name, f->path);
    else if (t->dtype == KM_DTYPE_COUNT)
        km_fail(ctx, KM_ERR_UNSUPPORTED, "load: '%.80s' in '%s' is of type %s, which Kermes lacks",
                t->name, f->path, t->type);
    if (km_failed(ctx)) return NULL;
    if ((f->swapped || f->columns) && t->bytes) return load_unusual(ctx, f, t);
    return km_from_data(ctx, t->dtype, t->shape, t->data);
}

km_tensor *km_file_load(km_ctx *ctx, const km_file *f, const char *name) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    KM_HOLDING(held);
    if (km_handle_is(f, KM_HANDLE_FILE) && is_open(&held, "km_file_load", f))
        return load(ctx, f, name);
    km_fail(ctx, f ? KM_ERR_STATE : KM_ERR_NULL, "load: no open file");
    return NULL;
}

km_tensor *km_load(km_ctx *ctx, const char *path, const char *name) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    km_error err = {0};
    km_file *f = open_file(path, &err);
    if (!f) {
        km_fail(ctx, err.code, "load: %s", err.text);
        return NULL;
    }
    km_tensor *t = load(ctx, f, name);
    close_file(f);
    return t;
}

/* ---- Saving ---- */

/* Bytes of a contiguous tensor, wherever it is (km_fill_fn). */
static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    km_tensor *t = user;
    km_lane *lane = t->storage->lane;
    km_status s =
        lane->device->ops->download(lane, dst, (const char *)km_tensor_ptr(t) + offset, bytes);
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", km_ctx_error(t->ctx));
}

static const char *npy_type(km_dtype d) {
    static const char *const types[KM_PLAIN_COUNT] = {
        [KM_F32] = "<f4", [KM_F16] = "<f2", [KM_F64] = "<f8", [KM_I32] = "<i4",
        [KM_I64] = "<i8", [KM_U8] = "|u1",  [KM_I8] = "|i1",  [KM_BOOL] = "|b1"};
    return (int)d < KM_PLAIN_COUNT ? types[d] : NULL;
}

static km_status save_npy(const char *path, km_tensor *t, km_error *err) {
    char text[256], shape[128] = "";
    const char *type = npy_type(t->dtype);
    if (!type)
        return km_error_set(err, KM_ERR_DTYPE, "npy has no type for %s; cast it first",
                            km_dtype_name(t->dtype));
    for (int i = 0, at = 0; i < t->shape.ndim; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%lld%s", (long long)t->shape.dim[i],
                       i + 1 < t->shape.ndim ? ", "
                       : t->shape.ndim == 1  ? ","
                                             : "");
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                     type, shape);
    int pad = 63 - (n + 10) % 64; /* the elements begin at a multiple of 64 */
    uint8_t front[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};
    front[8] = (uint8_t)((n + pad + 1) & 255);
    front[9] = (uint8_t)((n + pad + 1) >> 8);
    km_writer *w = km_writer_open(path, err);
    if (!w) return err->code;
    km_writer_put(w, front, sizeof front);
    km_writer_printf(w, "%s%*s\n", text, pad, "");
    size_t bytes = (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
    km_source source = {.name = "",
                        .data = km_tensor_data(t),
                        .fill = fill,
                        .user = t,
                        .bytes = bytes,
                        .unit = km_dtype_size(t->dtype)};
    km_fill_buffer buffer = {0};
    if (!source.data && bytes && km_fill_buffer_open(&buffer, bytes, path, err) != KM_OK) {
        km_writer_abort(w);
        return err->code;
    }
    km_status s = km_put_source(w, &source, &buffer, err);
    km_fill_buffer_close(&buffer);
    if (err->code != KM_OK) {
        km_writer_abort(w);
        return s;
    }
    return km_writer_commit(w, err);
}

static km_status save_safetensors(const char *path, const km_named_tensor *in, int n,
                                  km_tensor *const *flat, const json_t *meta, km_error *err) {
    int n_meta = 0;
    km_st_item *items = km_calloc((size_t)n + 1, sizeof *items);
    km_st_pair *pairs = km_calloc(json_object_size(meta) + 1, sizeof *pairs);
    const char *key;
    json_t *v;
    if (!items || !pairs) km_error_set(err, KM_ERR_MEMORY, "out of memory for a list of tensors");
    json_object_foreach((json_t *)meta, key, v) {
        if (err->code == KM_OK && !json_is_string(v))
            km_error_set(err, KM_ERR_DTYPE, "metadata of safetensors is text, and '%.80s' is none",
                         key);
        if (err->code == KM_OK) pairs[n_meta++] = (km_st_pair){key, json_string_value(v)};
    }
    for (int i = 0; i < n && err->code == KM_OK; i++)
        items[i] = (km_st_item){.name = in[i].name,
                                .dtype = flat[i]->dtype,
                                .shape = flat[i]->shape,
                                .data = km_tensor_data(flat[i]),
                                .fill = fill,
                                .user = flat[i]};
    if (err->code == KM_OK) km_safetensors_write(path, items, n, pairs, n_meta, err);
    km_free(items);
    km_free(pairs);
    return err->code;
}

static km_status save_gguf(const char *path, const km_named_tensor *in, int n,
                           km_tensor *const *flat, const json_t *meta, km_error *err) {
    km_gguf_out *o = km_gguf_out_new(err);
    const char *key;
    json_t *v;
    if (!o) return err->code;
    json_object_foreach((json_t *)meta, key, v) {
        km_gguf_value value = {.type = KM_GGUF_I64, .i = json_integer_value(v)};
        if (json_is_real(v)) value = (km_gguf_value){.type = KM_GGUF_F64, .f = json_real_value(v)};
        if (json_is_string(v))
            km_gguf_put_string(o, key, json_string_value(v));
        else if (json_is_boolean(v))
            km_gguf_put_bool(o, key, json_is_true(v));
        else if (json_is_number(v))
            km_gguf_put_value(o, key, &value);
        else
            km_error_set(err, KM_ERR_DTYPE, "metadata '%.80s' is no text, number or boolean", key);
    }
    for (int i = 0; i < n && err->code == KM_OK; i++) {
        km_ggml_type type;
        if (!km_ggml_of_dtype(flat[i]->dtype, &type))
            km_error_set(err, KM_ERR_DTYPE, "GGUF has no type for %s, of which '%.80s' is",
                         km_dtype_name(flat[i]->dtype), in[i].name);
        else
            km_gguf_add(o, in[i].name, type, flat[i]->shape, km_tensor_data(flat[i]), fill,
                        flat[i]);
    }
    if (err->code == KM_OK) km_gguf_write(o, path, err);
    km_gguf_out_free(o);
    return err->code;
}

static bool ends_in(const char *path, const char *ending) {
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

static km_status save(const char *path, const km_named_tensor *in, int n, km_tensor *const *flat,
                      const char *meta, km_error *err) {
    json_t *about = NULL;
    if (meta && !(about = km_json_parse(meta, strlen(meta), "the metadata", err))) return err->code;
    if (about && !json_is_object(about))
        km_error_set(err, KM_ERR_FORMAT, "metadata is a JSON object of texts");
    else if (ends_in(path, ".safetensors"))
        save_safetensors(path, in, n, flat, about, err);
    else if (ends_in(path, ".gguf"))
        save_gguf(path, in, n, flat, about, err);
    else if (!ends_in(path, ".npy"))
        km_error_set(err, KM_ERR_RANGE,
                     "'%s' names no format: it should end in .safetensors, .gguf or .npy", path);
    else if (n != 1 || json_object_size(about))
        km_error_set(err, KM_ERR_RANGE, "npy holds one tensor and nothing else");
    else
        save_npy(path, flat[0], err);
    json_decref(about);
    return err->code;
}

km_status km_save(km_ctx *ctx, const char *path, const km_named_tensor *in, int n,
                  const char *meta) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!path || n < 0 || (n > 0 && !in))
        return km_fail(ctx, KM_ERR_NULL, "save: an argument is missing or negative");
    int mark = ctx->n_step;
    km_error err = {0};
    km_tensor **flat = km_calloc((size_t)n + 1, sizeof *flat);
    if (!flat) km_fail(ctx, KM_ERR_MEMORY, "save: out of memory");
    for (int i = 0; i < n && !km_failed(ctx); i++) {
        if (km_want_input(ctx, "save", i, in[i].tensor) != KM_OK ||
            km_unsettle(ctx, in[i].tensor) != KM_OK)
            break;
        if (!in[i].name && !ends_in(path, ".npy"))
            km_fail(ctx, KM_ERR_NULL, "save: tensor %d has no name", i);
        else
            flat[i] = km_to_contiguous(ctx, in[i].tensor);
    }
    if (!km_failed(ctx)) km_sync(ctx);
    if (!km_failed(ctx) && save(path, in, n, flat, meta, &err) != KM_OK)
        km_fail(ctx, err.code, "save: %s", err.text);
    km_free(flat);
    km_step_drop(ctx, mark, NULL, 0);
    return km_ctx_status(ctx);
}
