/* Importance matrices in files. GGUF holds two tensors for each matrix: sums of squares and how
 * many rows they are over. The older form is a list: name, calls, and means times calls. */
#include "model/imatrix.h"
#include "base/alloc.h"
#include "base/file.h"
#include "format/gguf.h"
#include "base/shown.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SUMS ".in_sum2"
#define COUNTS ".counts"

km_imatrix *km_imatrix_new(int rows, km_error *err) {
    km_imatrix *m = km_calloc(1, sizeof *m);
    if (m) m->row = km_calloc((size_t)(rows > 0 ? rows : 1), sizeof *m->row);
    if (m && m->row) return m;
    km_free(m);
    km_no_memory_for(err, "an importance matrix");
    return NULL;
}

void km_imatrix_free(km_imatrix *m) {
    if (!m) return;
    for (int i = 0; i < m->n; i++) {
        km_free(m->row[i].name);
        km_free(m->row[i].mean);
    }
    km_free(m->row);
    km_free(m->dataset);
    km_free(m);
}

const km_imatrix_row *km_imatrix_find(const km_imatrix *m, const char *name) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].name, name) == 0) return &m->row[i];
    return NULL;
}

/* The next row, with memory for its parts; NULL when there is none. */
static km_imatrix_row *add(km_imatrix *m, const char *name, size_t length, int64_t in) {
    km_imatrix_row *r = &m->row[m->n++];
    *r = (km_imatrix_row){.name = km_alloc(length + 1), .in = in};
    r->mean = km_calloc((size_t)in, sizeof *r->mean);
    if (!r->name || !r->mean) return NULL;
    memcpy(r->name, name, length);
    r->name[length] = 0;
    return r;
}

static km_status check(const km_imatrix_row *r, const char *path, km_error *err) {
    char text[KM_SHOWN];
    for (int64_t i = 0; i < r->in; i++)
        if (!isfinite(r->mean[i]) || r->mean[i] < 0)
            return km_error_set(err, KM_ERR_FORMAT, "'%s': '%s' has a mean square of %g", path,
                                km_shown(text, r->name), (double)r->mean[i]);
    return KM_OK;
}

/* ---- GGUF ---- */

static km_status take_gguf(km_imatrix *m, const km_gguf *g, const km_gguf_tensor *t,
                           km_error *err) {
    char name[160], text[KM_SHOWN];
    size_t length = strlen(t->name) - strlen(SUMS);
    snprintf(name, sizeof name, "%.*s" COUNTS, (int)(length < 128 ? length : 128), t->name);
    const km_gguf_tensor *c = km_gguf_find(g, name);
    int64_t in = t->shape.ndim > 0 ? t->shape.dim[t->shape.ndim - 1] : 0;
    bool plain = in > 0 && t->bytes == (size_t)in * sizeof(float) && t->info->dtype == KM_F32;
    if (!plain || !c || c->info->dtype != KM_F32 || c->bytes != sizeof(float))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': '%s' is no row of f32 with a count",
                            km_gguf_path(g), km_shown(text, t->name));
    km_imatrix_row *r = add(m, t->name, length, in);
    if (!r) return km_no_memory_for(err, "'%s'", km_gguf_path(g));
    float count;
    memcpy(&count, c->data, sizeof count);
    memcpy(r->mean, t->data, t->bytes);
    if (!(count >= 0) || !isfinite(count))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': '%s' counts %g rows", km_gguf_path(g),
                            km_shown(text, r->name), (double)count);
    r->count = count;
    for (int64_t i = 0; i < in && count > 0; i++) r->mean[i] /= count;
    return check(r, km_gguf_path(g), err);
}

static bool is_sums(const char *name) {
    size_t n = strlen(name);
    return n > strlen(SUMS) && strcmp(name + n - strlen(SUMS), SUMS) == 0;
}

static km_imatrix *load_gguf(const char *path, km_error *err) {
    km_gguf *g = km_gguf_open(path, err);
    if (!g) return NULL;
    int n = 0;
    for (int i = 0; i < km_gguf_count(g); i++) n += is_sums(km_gguf_at(g, i)->name);
    km_imatrix *m = km_imatrix_new(n, err);
    km_status s = m ? KM_OK : err->code;
    for (int i = 0; i < km_gguf_count(g) && s == KM_OK; i++)
        if (is_sums(km_gguf_at(g, i)->name)) s = take_gguf(m, g, km_gguf_at(g, i), err);
    if (s == KM_OK && n == 0)
        s = km_error_set(err, KM_ERR_FORMAT, "'%s' holds no importance matrix", path);
    if (km_gguf_check(g, err) != KM_OK) s = err->code;
    if (s == KM_OK) {
        km_gguf_int(g, "imatrix.chunk_count", 0, INT32_MAX, &m->chunks, NULL);
        km_gguf_int(g, "imatrix.chunk_size", 0, INT32_MAX, &m->chunk_size, NULL);
    }
    km_gguf_close(g);
    if (s == KM_OK) return m;
    km_imatrix_free(m);
    return NULL;
}

typedef struct imatrix_sums { /* a row as it goes into the file */
    float *values;
    float count;
} imatrix_sums;

static km_status save_gguf(const km_imatrix *m, const char *path, km_error *err) {
    km_gguf_out *out = km_gguf_out_new(err);
    imatrix_sums *s = km_calloc((size_t)m->n + 1, sizeof *s);
    const char *dataset = m->dataset ? m->dataset : "text";
    char name[160];
    bool ok = out && s;
    if (ok) {
        km_gguf_put_string(out, "general.type", "imatrix");
        km_gguf_put_strings(out, "imatrix.datasets", &dataset, NULL, 1);
        km_gguf_put_u32(out, "imatrix.chunk_count", (uint32_t)m->chunks);
        km_gguf_put_u32(out, "imatrix.chunk_size", (uint32_t)m->chunk_size);
    }
    for (int i = 0; ok && i < m->n; i++) {
        const km_imatrix_row *r = &m->row[i];
        s[i] = (imatrix_sums){km_alloc((size_t)r->in * sizeof(float)), (float)r->count};
        ok = s[i].values != NULL;
        for (int64_t k = 0; ok && k < r->in; k++) s[i].values[k] = (float)(r->mean[k] * r->count);
        snprintf(name, sizeof name, "%s" SUMS, r->name);
        if (ok) km_gguf_add(out, name, KM_GGML_F32, KM_SHAPE(1, r->in), s[i].values, NULL, NULL);
        snprintf(name, sizeof name, "%s" COUNTS, r->name);
        if (ok) km_gguf_add(out, name, KM_GGML_F32, KM_SHAPE(1, 1), &s[i].count, NULL, NULL);
    }
    km_status status = ok ? km_gguf_write(out, path, err) : km_no_memory_for(err, "'%s'", path);
    for (int i = 0; s && i < m->n; i++) km_free(s[i].values);
    km_free(s);
    km_gguf_out_free(out);
    return status;
}

/* ---- The older form ---- */

typedef struct imatrix_cursor {
    const uint8_t *at, *end;
} imatrix_cursor;

static bool take(imatrix_cursor *c, void *to, size_t n) {
    if ((size_t)(c->end - c->at) < n) return false;
    memcpy(to, c->at, n);
    c->at += n;
    return true;
}

static bool take_size(imatrix_cursor *c, int32_t *n,
                      size_t unit) { /* of things that must be there yet */
    return take(c, n, 4) && *n > 0 && (size_t)*n <= (size_t)(c->end - c->at) / unit;
}

static km_imatrix *load_dat(const char *path, imatrix_cursor *c, km_error *err) {
    int32_t n, length, calls, in;
    if (!take_size(c, &n, 13)) { /* a row has 12 bytes at least, and a letter */
        km_error_set(err, KM_ERR_FORMAT, "'%s' is no importance matrix", path);
        return NULL;
    }
    km_imatrix *m = km_imatrix_new(n, err);
    km_status s = m ? KM_OK : err->code;
    for (int i = 0; i < n && s == KM_OK; i++) {
        const uint8_t *name = NULL;
        bool ok = take_size(c, &length, 1);
        if (ok) name = c->at, c->at += length;
        ok = ok && take(c, &calls, 4) && take_size(c, &in, sizeof(float));
        km_imatrix_row *r = ok ? add(m, (const char *)name, (size_t)length, in) : NULL;
        if (!ok) {
            s = km_error_set(err, KM_ERR_FORMAT, "'%s' is cut off in entry %d of %d", path, i + 1,
                             (int)n);
        } else if (!r) {
            s = km_no_memory_for(err, "'%s'", path);
        } else {
            take(c, r->mean, (size_t)in * sizeof(float));
            r->count = calls > 0 ? calls : 1;
            for (int k = 0; k < in; k++) r->mean[k] /= (float)r->count;
            s = check(r, path, err);
        }
    }
    if (s == KM_OK && take(c, &calls, 4) && calls > 0) m->chunks = calls;
    if (s == KM_OK) return m;
    km_imatrix_free(m);
    return NULL;
}

static km_status save_dat(const km_imatrix *m, const char *path, km_error *err) {
    km_writer *w = km_writer_open(path, err);
    if (!w) return err->code;
    int32_t n = m->n, chunks = (int32_t)m->chunks;
    const char *dataset = m->dataset ? m->dataset : "text";
    km_writer_put(w, &n, 4);
    for (int i = 0; i < m->n; i++) {
        const km_imatrix_row *r = &m->row[i];
        int32_t length = (int32_t)strlen(r->name), in = (int32_t)r->in;
        int32_t calls = m->chunks > 0 ? (int32_t)m->chunks : 1;
        km_writer_put(w, &length, 4);
        km_writer_put(w, r->name, (size_t)length);
        km_writer_put(w, &calls, 4);
        km_writer_put(w, &in, 4);
        for (int64_t k = 0; k < r->in; k++) {
            float v = r->mean[k] * (float)calls;
            km_writer_put(w, &v, 4);
        }
    }
    n = (int32_t)strlen(dataset);
    km_writer_put(w, &chunks, 4);
    km_writer_put(w, &n, 4);
    km_writer_put(w, dataset, (size_t)n);
    return km_writer_commit(w, err);
}

/* ---- Either ---- */

km_imatrix *km_imatrix_load(const char *path, km_error *err) {
    km_map map;
    if (km_map_open(&map, path, err) != KM_OK) return NULL;
    bool gguf = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    imatrix_cursor c = {map.data, map.data + map.size};
    km_imatrix *m = gguf ? NULL : load_dat(path, &c, err);
    if (km_map_done(&map, KM_OK, err) != KM_OK) {
        km_imatrix_free(m);
        return NULL;
    }
    return gguf ? load_gguf(path, err) : m;
}

km_status km_imatrix_save(const km_imatrix *m, const char *path, km_error *err) {
    size_t n = strlen(path);
    bool older = n > 4 && strcasecmp(path + n - 4, ".dat") == 0;
    return older ? save_dat(m, path, err) : save_gguf(m, path, err);
}
