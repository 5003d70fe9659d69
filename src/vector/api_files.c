/* The public calls on files of vectors, and on the way from them to indexes and back: arguments checked,
 * the error told. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/sized.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include "vector/input.h"
#include "vector/learn.h"
#include "vector/make.h"
#include <math.h>
#include <string.h>

/* ---- Files of vectors ---- */

km_status km_vectors_defaults_sized(km_vectors_options *out, size_t size) {
    km_vectors_options own = {.size = sizeof(km_vectors_options)};
    return KM_HAND_OUT(out, size, &own, km_vectors_options);
}

km_vectors *km_vectors_open(const char *path, const km_vectors_options *options) {
    km_error err = {0};
    km_vectors_options o = km_vectors_defaults();
    km_vectors *v = NULL;
    if (!path)
        km_error_set(&err, KM_ERR_NULL, "km_vectors_open: no path");
    else if (km_take_sized(&o, sizeof o, options, "km_vectors_options", &err) == KM_OK &&
             (o.dim < 0 || (unsigned)o.dtype > KM_I8))
        km_error_set(&err, KM_ERR_RANGE, "km_vectors_open: no such dimension or dtype");
    if (err.code == KM_OK && !(v = km_calloc(1, sizeof *v)))
        km_error_set(&err, KM_ERR_MEMORY, "out of memory for a file of vectors");
    if (v) v->in = km_input_open(path, &(km_input_options){o.tensor, o.dim, o.dtype}, &err);
    if (v && v->in) {
        km_handle_add(&v->handle, KM_HANDLE_VECTORS);
        return v;
    }
    km_free(v);
    km_told(&err);
    return NULL;
}

static void drop(void *vectors) {
    km_vectors *v = vectors;
    km_input_close(v->in);
    km_free(v);
}

void km_vectors_close(km_vectors *v) {
    km_handle_free("km_vectors_close", v, KM_HANDLE_VECTORS, drop);
}

/* A question about a file: of none, there is no answer; of one that is closed, the error is told. */
static bool look(km_inside *in, const char *call, const km_vectors *v) {
    return v && km_enter(in, call, v, KM_HANDLE_VECTORS);
}

int64_t km_vectors_count(const km_vectors *v) {
    KM_INSIDE(in);
    return look(&in, "km_vectors_count", v) ? km_input_rows(v->in) : 0;
}
int64_t km_vectors_dim(const km_vectors *v) {
    KM_INSIDE(in);
    return look(&in, "km_vectors_dim", v) ? km_input_dim(v->in) : 0;
}
const char *km_vectors_type(const km_vectors *v) {
    KM_INSIDE(in);
    return look(&in, "km_vectors_type", v) ? km_row_layout_type(km_input_layout(v->in)) : "";
}

km_status km_vectors_read(km_vectors *v, int64_t first, int64_t n, float *x) {
    km_error err = {0};
    if (!v || (n && !x)) return km_missing("km_vectors_read");
    KM_INSIDE(file);
    if (!km_enter(&file, "km_vectors_read", v, KM_HANDLE_VECTORS)) return km_last_status();
    int64_t count = km_input_rows(v->in);
    if (first < 0 || n < 0 || first > count || n > count - first)
        km_error_set(&err, KM_ERR_RANGE, "%lld vectors from %lld on, of %lld", (long long)n,
                     (long long)first, (long long)count);
    else if (n)
        km_input_read(v->in, first, n, x, &err);
    return km_told(&err);
}

km_vectors *km_vectors_open_memory(const void *npy, size_t bytes, const char *name) {
    km_error err = {0};
    if (!npy || !bytes || !name) {
        km_missing("km_vectors_open_memory");
        return NULL;
    }
    km_vectors *v = km_calloc(1, sizeof *v);
    if (!v)
        km_no_memory_for(&err, "a file of vectors");
    else if (!(v->in = km_input_parse(npy, bytes, name, &err))) {
        km_free(v);
        v = NULL;
    } else {
        km_handle_add(&v->handle, KM_HANDLE_VECTORS);
    }
    km_told(&err);
    return v;
}

km_status km_vectors_read_ids(km_vectors *v, uint64_t *ids, int64_t n) {
    km_error err = {0};
    if (!v || n < 0 || (n && !ids)) return km_missing("km_vectors_read_ids");
    KM_INSIDE(file);
    if (!km_enter(&file, "km_vectors_read_ids", v, KM_HANDLE_VECTORS)) return km_last_status();
    km_input_read_ids(v->in, n, ids, &err);
    return km_told(&err);
}

km_status km_vectors_save(const char *path, const char *type, const void *x, int64_t n,
                          int64_t dim) {
    static const struct {
        const char *name, *npy;
        size_t size;
    } known[] = {{"f32", "<f4", 4}, {"f16", "<f2", 2}, {"i32", "<i4", 4}, {"u64", "<u8", 8}};
    km_error err = {0};
    char head[KM_NPY_HEAD];
    size_t i = 0, kinds = sizeof known / sizeof *known;
    if (!path || !type || n < 0 || dim < 0 || (n && !x)) return km_missing("km_vectors_save");
    while (i < kinds && strcmp(known[i].name, type) != 0) i++;
    if (i == kinds)
        return km_public_fail(KM_ERR_DTYPE,
                              "km_vectors_save: a file of f32, f16, i32 or u64, not '%.40s'", type);
    if (n > INT64_MAX / 8 / (dim ? dim : 1))
        return km_public_fail(KM_ERR_RANGE, "km_vectors_save: %lld vectors of %lld dimensions",
                              (long long)n, (long long)dim);
    km_writer *w = km_writer_open(path, &err);
    if (w) {
        km_writer_put(w, head, km_npy_head(head, known[i].npy, n, dim));
        if (n) km_writer_put(w, x, known[i].size * (size_t)(n * (dim ? dim : 1)));
        km_writer_commit(w, &err);
    }
    return km_told(&err);
}

/* ---- Compressing ---- */

km_status km_index_take_options(const km_index_options *given, km_index_options *own,
                                km_anchor_training *training, km_error *err) {
    *own = km_index_defaults();
    *training = km_anchor_training_defaults();
    km_status s = km_take_sized(own, sizeof *own, given, "km_index_options", err);
    if (s == KM_OK && own->training) {
        s = km_take_sized(training, sizeof *training, own->training, "km_anchor_training", err);
        own->training = training;
    }
    return s;
}

/* Of several ranks, the first one that met an error of its own tells it. */
static bool first_to_fail(km_comm *comm, const km_error *err) {
    int n = km_comm_size(comm), rank = km_comm_rank(comm);
    double *failed = km_calloc((size_t)n, sizeof *failed);
    bool own = err->code != KM_OK && strcmp(err->text, "another rank failed") != 0;
    if (!failed) return own;
    failed[rank] = own;
    bool first = own && km_comm_sum(comm, failed, n, NULL) == KM_OK;
    if (!own) km_comm_sum(comm, failed, n, NULL);
    for (int r = 0; r < rank; r++) first = first && failed[r] == 0;
    km_free(failed);
    return first;
}

static void fill(km_compressed *out, const km_made *made, const km_row_layout *y) {
    out->count = made->rows;
    out->dim = made->dim;
    out->anchors = made->anchors;
    out->skipped = made->skipped;
    out->first_skipped = made->first_skipped;
    out->code_bytes = made->code_bytes;
    out->bytes = made->bytes;
    out->input_bytes = (double)made->rows * (double)y->dim * (double)km_dtype_size(y->dtype);
    out->energy = made->energy;
    out->mse = made->mse;
    out->recall = made->recall.recall;
    out->recall_low = made->recall.low;
    out->recall_high = made->recall.high;
    out->recall_queries = made->recall.queries;
    out->rounds = made->rounds;
    out->parts = made->parts;
}

km_status km_index_compress_from(km_ctx *ctx, km_vectors *vectors, const uint64_t *ids,
                                 const char *path, const km_index_options *options,
                                 km_compressed *done) {
    km_index_options own;
    km_anchor_training training;
    km_error err = {0};
    km_made made = {0};
    km_comm *comm = NULL;
    if (!ctx || !vectors || !path) return km_missing("km_index_compress_from");
    KM_INSIDE(on);
    KM_INSIDE(file);
    if (!km_enter(&on, "km_index_compress_from", ctx, KM_HANDLE_CONTEXT) ||
        !km_enter(&file, "km_index_compress_from", vectors, KM_HANDLE_VECTORS))
        return km_last_status();
    km_status s = km_check_sized(done, sizeof *done, "km_compressed", &err);
    if (s != KM_OK) return km_told(&err);
    km_compressed out = {.size = sizeof out, .first_skipped = -1, .recall = NAN};
    s = km_index_take_options(options, &own, &training, &err);
    out.rank = s == KM_OK && own.comm ? km_comm_env_rank() : 0;
    out.tells = out.rank == 0;
    if (s == KM_OK && own.comm && !(comm = km_comm_open(own.comm, ctx, &err))) s = err.code;
    if (s == KM_OK) s = km_index_make(ctx, comm, vectors->in, ids, path, &own, &made, &err);
    if (comm && km_comm_size(comm) > 1) out.tells = first_to_fail(comm, &err);
    if (s == KM_OK) fill(&out, &made, km_input_layout(vectors->in));
    km_comm_close(comm);
    km_give_sized(done, &out, sizeof out);
    return km_told(&err);
}

km_status km_index_compress(km_ctx *ctx, const char *vectors, const char *path,
                            const km_index_options *options) {
    if (!ctx || !vectors || !path) return km_missing("km_index_compress");
    KM_INSIDE(on);
    if (!km_enter(&on, "km_index_compress", ctx, KM_HANDLE_CONTEXT)) return km_last_status();
    km_vectors *v = km_vectors_open(vectors, NULL);
    km_status s = v ? km_index_compress_from(ctx, v, NULL, path, options, NULL) : km_last_status();
    km_vectors_close(v);
    return s;
}

/* ---- Adding ---- */

enum { ADD_BLOCK = 65536, DECODE_BLOCK = 32768 };

/* Moves the rows that can be added to the front; how many, or -1 where one cannot and is not skipped. */
static int64_t pick(const km_index *x, const km_input *in, int64_t first, float *rows, int64_t n,
                    const uint64_t *ids, uint64_t *own, bool skip, km_error *err) {
    int64_t dim = x->dim, good = 0;
    for (int64_t k = 0; k < n; k++) {
        char why[KM_TROUBLE_TEXT];
        float *row = rows + k * dim;
        if (km_first_unfit_row(row, 1, dim, x->metric) == 0) {
            if (skip) continue;
            km_error_set(err, KM_ERR_RANGE, "'%s': vector %lld %s", km_input_name(in),
                         (long long)(first + k), km_row_trouble(why, row, dim, x->metric));
            return -1;
        }
        if (good != k) memmove(rows + good * dim, row, sizeof *rows * (size_t)dim);
        own[good++] = ids ? ids[first + k] : 0;
    }
    return good;
}

km_status km_index_add_from(km_ctx *ctx, km_index *index, km_vectors *vectors, const uint64_t *ids,
                            bool skip_bad, int64_t *added) {
    km_error err = {0};
    if (!ctx || !index || !vectors) return km_missing("km_index_add_from");
    KM_HOLDING(held);
    KM_INSIDE(on);
    KM_INSIDE(file);
    if (!km_enter(&on, "km_index_add_from", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_index_add_from", index) ||
        !km_enter(&file, "km_index_add_from", vectors, KM_HANDLE_VECTORS))
        return km_last_status();
    km_input *in = vectors->in;
    int64_t n = km_input_rows(in), dim = index->dim, block = n < ADD_BLOCK ? n : ADD_BLOCK, all = 0;
    float *rows = NULL;
    uint64_t *own = NULL;
    km_status s = KM_OK;
    if (km_input_dim(in) != dim)
        s = km_error_set(&err, KM_ERR_SHAPE,
                         "'%s' holds vectors of %lld dimensions, the index %lld", km_input_name(in),
                         (long long)km_input_dim(in), (long long)dim);
    if (s == KM_OK) rows = km_alloc(sizeof *rows * (size_t)(block * dim + 1));
    if (s == KM_OK) own = km_alloc(sizeof *own * (size_t)(block + 1));
    if (s == KM_OK && (!rows || !own)) s = km_no_memory_for(&err, "a block of vectors");
    for (int64_t i = 0; s == KM_OK && i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        s = km_input_read(in, i, m, rows, &err);
        if (s == KM_OK && (m = pick(index, in, i, rows, m, ids, own, skip_bad, &err)) < 0)
            s = err.code;
        if (s == KM_OK) s = km_index_append(ctx, index, rows, m, ids ? own : NULL, &err);
        if (s == KM_OK) all += m;
    }
    if (added) *added = all;
    km_free(rows);
    km_free(own);
    return km_told(&err);
}

/* ---- Decompressing ---- */

km_status km_decompress_defaults_sized(km_decompress_options *out, size_t size) {
    km_decompress_options own = {.size = sizeof(km_decompress_options)};
    return KM_HAND_OUT(out, size, &own, km_decompress_options);
}

/* In place: f16 is never ahead of what is read. */
static void halve(float *rows, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = km_f32_to_f16(rows[i]);
        memcpy((char *)rows + 2 * i, &h, 2);
    }
}

static km_status write_rows(km_index *x, const uint64_t *ids, int64_t n, const char *path,
                            const km_decompress_options *o, km_error *err) {
    char head[KM_NPY_HEAD];
    bool half = o->dtype == KM_F16;
    int64_t block = n < DECODE_BLOCK ? n : DECODE_BLOCK;
    km_snapshot *v = km_index_rows(x);
    km_row_place *places = km_index_places(x, v, ids, n, err);
    float *rows = places ? km_alloc(sizeof *rows * (size_t)(block * x->dim + 1)) : NULL;
    if (places && !rows) km_no_memory_for(err, "a block of vectors");
    km_threads *t = rows ? km_threads_new(o->threads) : NULL;
    km_writer *w = rows ? km_writer_open(path, err) : NULL;
    if (w) km_writer_put(w, head, km_npy_head(head, half ? "<f2" : "<f4", n, x->dim));
    for (int64_t i = 0; w && err->code == KM_OK && i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        if (km_index_restore(x, v, t, places + i, m, rows, err) != KM_OK) break;
        if (half) halve(rows, m * x->dim);
        if (km_writer_put(w, rows, (size_t)(m * x->dim) * (half ? 2 : 4)) != KM_OK) break;
        if (o->progress && !o->progress(o->user, i + m, n)) km_stopped(err);
    }
    if (w && err->code == KM_OK)
        km_writer_commit(w, err); /* also tells a failed put */
    else
        km_writer_abort(w);
    km_threads_free(t);
    km_snapshot_drop(v);
    km_free(rows);
    km_free(places);
    return err->code;
}

int64_t km_index_decompress(km_index *index, const char *path,
                            const km_decompress_options *options) {
    km_decompress_options o = km_decompress_defaults();
    km_error err = {0};
    uint64_t *all = NULL;
    if (!index || !path) {
        km_missing("km_index_decompress");
        return -1;
    }
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_decompress", index)) return -1;
    km_status s = km_take_sized(&o, sizeof o, options, "km_decompress_options", &err);
    if (s == KM_OK && (o.n_ids < 0 || (o.n_ids && !o.ids) || o.threads < 0))
        s = km_error_set(&err, KM_ERR_RANGE, "km_index_decompress: %lld ids, %d threads",
                         (long long)o.n_ids, o.threads);
    if (s == KM_OK && o.dtype != KM_F32 && o.dtype != KM_F16)
        s = km_error_set(&err, KM_ERR_DTYPE, "vectors are written as f32 or f16, not %s",
                         km_dtype_name(o.dtype));
    int64_t n = o.n_ids;
    if (s == KM_OK && !o.ids && !(all = km_index_live_ids(index, &n, &err))) s = err.code;
    if (s == KM_OK) write_rows(index, o.ids ? o.ids : all, n, path, &o, &err);
    km_free(all);
    return km_told(&err) == KM_OK ? n : -1;
}
