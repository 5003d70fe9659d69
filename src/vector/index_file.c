/* Indexes and files: opening one, or a manifest of several, and writing all segments as one file. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

static bool cells_fit(const uint64_t *start, int64_t cells, int64_t rows) {
    if (start[0] != 0 || start[cells] != (uint64_t)rows) return false;
    for (int64_t c = 0; c < cells; c++)
        if (start[c] > start[c + 1]) return false;
    return true;
}

/* A copy of the bits for deleted rows, when there are as many as the header says. */
static km_status read_dead(km_kmx *f, km_segment *s, km_error *err) {
    size_t n;
    const uint8_t *dead = km_kmx_data(f, KM_KMX_DEAD, &n);
    if (!dead) return KM_OK;
    km_status status = km_kmx_check(f, KM_KMX_DEAD, 0, n, err);
    if (status != KM_OK) return status;
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        atomic_init(&s->dead[i], dead[i]);
        count += __builtin_popcount(dead[i]);
    }
    atomic_init(&s->dead_rows, count);
    if (count != km_kmx_header(f)->dead || (s->rows % 8 && dead[n - 1] >> s->rows % 8))
        return km_error_set(err, KM_ERR_FORMAT,
                            "a damaged index: its deleted vectors are not as many as it says");
    return KM_OK;
}

/* The rows of a file as a segment, which has taken it over; NULL when they cannot be. */
static km_segment *segment_of(const km_index *x, km_kmx *f, km_error *err) {
    const km_kmx_head *h = km_kmx_header(f);
    km_segment *s = km_calloc(1, sizeof *s);
    void *dead = km_calloc((size_t)(h->rows + 7) / 8 + 1, 1);
    if (!s || !dead) {
        km_free(s);
        km_free(dead);
        km_kmx_close(f);
        km_no_memory_for(err, "the index");
        return NULL;
    }
    size_t n;
    atomic_init(&s->refs, 1);
    s->rows = h->rows;
    s->id_bits = h->id_bits;
    s->file = f;
    s->dead = dead;
    /* A copy: rows are found by these, and the file may become shorter (base/guard.h). */
    const uint8_t *cells = km_kmx_data(f, KM_KMX_CELLS, &n);
    km_status status = km_kmx_check(f, KM_KMX_CELLS, 0, n, err);
    s->start = s->owned[0] = status == KM_OK ? km_alloc(n) : NULL;
    if (s->owned[0]) memcpy(s->owned[0], cells, n);
    if (status == KM_OK && !s->start) status = km_no_memory_for(err, "the index");
    s->codes = km_kmx_data(f, KM_KMX_CODES, &n);
    s->ids = km_kmx_data(f, KM_KMX_IDS, &n);
    s->vectors = km_kmx_data(f, KM_KMX_VECTORS, &n);
    if (status == KM_OK && !cells_fit(s->start, x->cells, h->rows))
        status = km_error_set(err, KM_ERR_FORMAT, "a damaged index: its cells cannot be");
    if (status == KM_OK) status = read_dead(f, s, err);
    if (status == KM_OK) return s;
    km_segment_drop(s);
    return NULL;
}

km_status km_index_attach(km_index *x, km_kmx *f, km_error *err) {
    const km_kmx_head *h = km_kmx_header(f);
    const km_snapshot *now = x->rows;
    uint64_t next = h->next_id > now->next_id ? h->next_id : now->next_id;
    double bytes = now->file_bytes + (double)km_kmx_file_bytes(f);
    km_error own = {0};
    km_segment *s = segment_of(x, f, &own);
    if (s && km_index_list(x, s, next, bytes, &own) == KM_OK) return KM_OK;
    return km_error_set(err, own.code, "%s", own.text);
}

static float *read_anchors(km_kmx *f, km_error *err) {
    const km_kmx_head *h = km_kmx_header(f);
    size_t bytes;
    const uint8_t *p = km_kmx_data(f, KM_KMX_ANCHORS, &bytes);
    if (km_kmx_check(f, KM_KMX_ANCHORS, 0, bytes, err) != KM_OK) return NULL;
    int64_t n = h->cells * h->dim;
    float *a = km_alloc(sizeof *a * (size_t)n);
    if (!a) km_no_memory_for(err, "the index");
    for (int64_t i = 0; a && i < n; i++) {
        uint16_t half;
        if (h->anchor_dtype == KM_F16) {
            memcpy(&half, p + 2 * i, 2);
            a[i] = km_f16_to_f32(half);
        } else {
            memcpy(a + i, p + 4 * i, 4);
        }
        if ((km_f32_bits(a[i]) & 0x7f800000u) != 0x7f800000u) continue;
        km_error_set(err, KM_ERR_FORMAT, "a damaged index: an anchor is not finite");
        km_free(a);
        return NULL;
    }
    return a;
}

static km_coder *read_coder(km_kmx *f, km_error *err) {
    const km_kmx_head *h = km_kmx_header(f);
    size_t bytes;
    const uint8_t *p = km_kmx_data(f, KM_KMX_CODER, &bytes);
    if (km_kmx_check(f, KM_KMX_CODER, 0, bytes, err) != KM_OK) return NULL;
    km_coder *c = km_coder_read(p, bytes, err);
    int mode = c && km_coder_mode(c) == KM_CODE_DENSE ? 2 : 1;
    if (c && (km_coder_dim(c) != h->dim || (int64_t)km_coder_bytes(c) != h->code_bytes ||
              mode != h->mode)) {
        km_coder_free(c);
        km_error_set(err, KM_ERR_FORMAT, "a damaged index: its coder does not fit it");
        return NULL;
    }
    return c;
}

static void read_meta(km_index *x, km_kmx *f) {
    size_t n;
    const uint8_t *p = km_kmx_data(f, KM_KMX_META, &n);
    if (!p || km_kmx_check(f, KM_KMX_META, 0, n, NULL) != KM_OK) return;
    json_t *meta = km_json_parse(p, n, "META", NULL);
    if (json_is_object(meta)) {
        json_decref(x->meta);
        x->meta = meta;
    } else {
        json_decref(meta);
    }
}

/* Lengths of rows: nothing is said of them where products are to be worked out as such. */
static void read_lengths(km_index *x) {
    const json_t *of = json_object_get(x->meta, "lengths"), *mixed = json_object_get(of, "mixed"),
                 *at;
    double length = json_number_value(json_object_get(of, "all"));
    size_t i;
    if (x->metric == KM_METRIC_L2 || !(length > 0) || !(length < FLT_MAX)) return;
    x->length = (float)length;
    json_array_foreach(mixed, i, at) {
        json_int_t c = json_integer_value(at);
        if (c >= 0 && c < x->cells) x->mixed[c] = 1;
    }
}

static json_t *with_lengths(const km_index *x) {
    enum { MANY = 1024 };
    json_t *meta = json_copy(x->meta), *mixed = json_array();
    for (int64_t c = 0; c < x->cells; c++)
        if (x->mixed[c]) json_array_append_new(mixed, json_integer(c));
    size_t n = json_array_size(mixed);
    json_object_del(meta, "lengths");
    if (x->length > 0 && (n < MANY || n < (size_t)x->cells / 4))
        json_object_set_new(meta, "lengths",
                            json_pack("{s:f, s:O}", "all", (double)x->length, "mixed", mixed));
    json_decref(mixed);
    return meta;
}

km_index *km_index_from_file(km_kmx *f, km_error *err) {
    const km_kmx_head *h = km_kmx_header(f);
    float *anchors = read_anchors(f, err);
    km_coder *coder = anchors && h->mode ? read_coder(f, err) : NULL;
    if (!anchors || (h->mode && !coder)) {
        km_free(anchors);
        km_kmx_close(f);
        return NULL;
    }
    km_threads *t = h->cells * h->dim > 1 << 17 ? km_threads_new(0) : NULL;
    km_index *x = km_index_frame(t, h->metric, h->rerank, h->dim, anchors, h->cells, coder, err);
    km_threads_free(t);
    if (!x) {
        km_kmx_close(f);
        return NULL;
    }
    x->dtype = h->dtype;
    x->seed = h->seed;
    x->energy = h->energy;
    x->half = h->anchor_dtype == KM_F16;
    read_meta(x, f);
    read_lengths(x);
    if (km_index_attach(x, f, err) == KM_OK) return x;
    km_index_close(x);
    return NULL;
}

/* ---- Manifests ---- */

static km_index *load_part(const char *folder, const json_t *part, const char *path,
                           km_error *err) {
    const char *file = NULL, *hash = NULL;
    char name[PATH_MAX], text[17];
    if (!json_is_object(part) || km_json_string(part, "file", &file, path, err) != KM_OK ||
        km_json_string(part, "xxh3", &hash, path, err) != KM_OK || !file || !hash ||
        strchr(file, '/') || snprintf(name, sizeof name, "%s%s", folder, file) >= PATH_MAX) {
        km_error_set(err, KM_ERR_FORMAT, "'%s': a part cannot be", path);
        return NULL;
    }
    km_kmx *f = km_kmx_open(name, err);
    if (!f) return NULL;
    snprintf(text, sizeof text, "%016" PRIx64, km_kmx_table_hash(f));
    if (strcmp(text, hash) != 0) {
        km_error_set(err, KM_ERR_FORMAT, "'%s' is not the part that '%s' was written with", name,
                     path);
        km_kmx_close(f);
        return NULL;
    }
    return km_index_from_file(f, err);
}

/* Takes the segments of `other` over. */
static km_status join(km_index *x, km_index *other, const char *path, km_error *err) {
    if (!km_index_same_frame(x, other))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': its parts have different anchors or codes",
                            path);
    km_index_mix(x, other);
    const km_snapshot *from = other->rows;
    for (int i = 0; i < from->n; i++) {
        const km_snapshot *now = x->rows;
        uint64_t next = from->next_id > now->next_id ? from->next_id : now->next_id;
        double bytes = now->file_bytes + (i == 0 ? from->file_bytes : 0);
        km_segment_hold(from->at[i]);
        if (km_index_list(x, from->at[i], next, bytes, err) != KM_OK)
            return km_no_memory_for(err, "the index '%s'", path);
    }
    return KM_OK;
}

static km_index *load_manifest(const char *path, km_error *err) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/'), *format = NULL;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 0, path);
    json_t *m = km_json_load(path, err);
    if (!m) return NULL;
    int64_t version = 0;
    km_json_string(m, "format", &format, path, NULL);
    km_json_int(m, "version", 0, INT32_MAX, &version, path, NULL);
    json_t *parts = json_object_get(m, "parts"), *part;
    km_index *x = NULL;
    size_t i;
    if (!format || strcmp(format, "kmx-manifest") != 0 || json_array_size(parts) == 0)
        km_error_set(err, KM_ERR_FORMAT, "'%s' is no index and no manifest of indexes", path);
    else if (version != 1)
        km_error_set(err, KM_ERR_FORMAT,
                     "'%s' is a manifest of version %lld, which takes a newer Kermes", path,
                     (long long)version);
    else
        json_array_foreach(parts, i, part) {
            km_index *one = load_part(folder, part, path, err);
            km_status s = !one ? KM_ERR_FORMAT : x ? join(x, one, path, err) : KM_OK;
            if (one && (x || s != KM_OK))
                km_index_close(one);
            else if (one)
                x = one;
            if (s == KM_OK) continue;
            km_index_close(x);
            x = NULL;
            break;
        }
    json_t *told = json_object_get(m, "measured"); /* of all parts together */
    if (x && json_is_object(told)) {
        json_t *measured = json_object_get(x->meta, "measured");
        if (json_is_object(measured)) json_object_update(measured, told);
    }
    json_decref(m);
    return x;
}

km_index *km_index_load(const char *path, km_error *err) {
    km_map m;
    km_error own = {0};
    if (!err) err = &own;
    if (km_map_open(&m, path, err) != KM_OK) return NULL;
    size_t i = 0;
    while (i < m.size && i < 64 && strchr(" \t\r\n", m.data[i]) && m.data[i]) i++;
    bool manifest = i < m.size && m.data[i] == '{';
    km_map_close(&m);
    if (manifest) return load_manifest(path, err);
    km_kmx *f = km_kmx_open(path, err);
    if (!f) return NULL;
    km_error inner = {0};
    km_index *x = km_index_from_file(f, &inner);
    if (x) return x;
    /* Some messages above know no file name. */
    bool named = strstr(inner.text, path) != NULL;
    km_error_set(err, inner.code, named ? "%s" : "%s ('%s')", inner.text, path);
    return NULL;
}

/* ---- Writing ---- */

km_kmx_head km_index_head(const km_index *x, int64_t rows, int64_t dead, uint64_t next_id,
                          int id_bits) {
    static const int modes[] = {[KM_INDEX_FAST] = 1, [KM_INDEX_DENSE] = 2};
    return (km_kmx_head){.metric = x->metric,
                         .mode = x->mode == KM_INDEX_ANCHORS_ONLY ? 0 : modes[x->mode],
                         .dtype = x->dtype,
                         .dim = x->dim,
                         .rows = rows,
                         .dead = dead,
                         .cells = x->cells,
                         .code_bytes = (int64_t)x->code_bytes,
                         .next_id = next_id,
                         .seed = x->seed,
                         .id_bits = id_bits,
                         .anchor_dtype = x->half ? KM_F16 : KM_F32,
                         .rerank = x->rerank,
                         .energy = x->energy};
}

km_status km_index_put_frame(const km_index *x, km_kmx_writer *w, km_error *err) {
    json_t *all = with_lengths(x);
    char *meta = json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(all);
    if (meta) {
        km_kmx_begin(w, KM_KMX_META);
        km_kmx_put(w, meta, strlen(meta));
        free(meta);
    }
    km_kmx_begin(w, KM_KMX_ANCHORS);
    for (int64_t c = 0; c < x->cells; c++) {
        const float *a = x->anchors + c * x->dim;
        if (!x->half) {
            km_kmx_put(w, a, sizeof *a * (size_t)x->dim);
            continue;
        }
        for (int64_t j = 0; j < x->dim;) {
            uint16_t half[256];
            int64_t n = 0;
            while (n < 256 && j < x->dim) half[n++] = km_f32_to_f16(a[j++]);
            km_kmx_put(w, half, sizeof *half * (size_t)n);
        }
    }
    if (!x->coder) return KM_OK;
    size_t bytes = km_coder_written(x->coder);
    uint8_t *coder = km_alloc(bytes);
    if (!coder) return km_no_memory_for(err, "the index");
    km_coder_write(x->coder, coder);
    km_kmx_begin(w, KM_KMX_CODER);
    km_kmx_put(w, coder, bytes);
    km_free(coder);
    return KM_OK;
}

typedef struct saving {
    const km_index *x;
    const km_snapshot *v; /* frozen: every pass meets the same rows */
    bool with_dead;
    bool as_they_are; /* one segment, all of whose rows are written */
    km_row_place *places;
    uint8_t *plain, *packed, *out; /* a cell's codes: of one segment, of all, packed */
    int64_t rows, dead;
    int id_bits;
} saving;

static km_status open_saving(saving *v, km_error *err) {
    const km_index *x = v->x;
    int64_t most = 0;
    uint64_t largest = 0;
    for (int64_t c = 0; c < x->cells; c++) {
        int64_t n = km_cell_rows(v->v, c);
        most = n > most ? n : most;
    }
    v->as_they_are = v->v->n == 1 && (v->with_dead || !atomic_load(&v->v->at[0]->dead_rows));
    size_t room = v->as_they_are ? 1 : (size_t)most * x->code_bytes + 1;
    v->places = km_alloc(sizeof *v->places * (size_t)(most + 1));
    v->plain = km_alloc(room);
    v->packed = km_alloc(room);
    v->out = km_alloc(room);
    if (!v->places || !v->plain || !v->packed || !v->out) return km_no_memory_for(err, "the index");
    for (int i = 0; i < v->v->n; i++) {
        const km_segment *s = v->v->at[i];
        km_status status = km_segment_check(x, s, 0, s->rows, true, err);
        if (status != KM_OK) return status;
        for (int64_t r = 0; r < s->rows; r++) {
            if (!v->with_dead && km_segment_is_dead(s, r)) continue;
            uint64_t id = km_id_get(s->ids, r, s->id_bits);
            largest = id > largest ? id : largest;
            v->rows++;
        }
        v->dead += v->with_dead ? atomic_load(&s->dead_rows) : 0;
    }
    v->id_bits = km_id_bits(largest);
    return KM_OK;
}

static void put_cells(saving *v, km_kmx_writer *w) {
    uint64_t at = 0;
    km_kmx_begin(w, KM_KMX_CELLS);
    km_kmx_put(w, &at, sizeof at);
    for (int64_t c = 0; c < v->x->cells; c++) {
        at += (uint64_t)km_cell_live(v->v, c, v->with_dead, v->places);
        km_kmx_put(w, &at, sizeof at);
    }
}

static km_status put_codes(saving *v, km_kmx_writer *w, km_error *err) {
    const km_index *x = v->x;
    size_t code = x->code_bytes;
    km_kmx_begin(w, KM_KMX_CODES);
    if (v->as_they_are) { /* checked by open_saving */
        km_kmx_put(w, v->v->at[0]->codes, (size_t)v->v->at[0]->rows * code);
        return KM_OK;
    }
    for (int64_t c = 0; c < x->cells; c++) {
        int64_t n = 0;
        for (int i = 0; i < v->v->n; i++) {
            const km_segment *s = v->v->at[i];
            km_status status = km_segment_codes(x, s, c, v->plain, err);
            if (status != KM_OK) return status;
            for (uint64_t r = s->start[c]; r < s->start[c + 1]; r++)
                if (v->with_dead || !km_segment_is_dead(s, (int64_t)r))
                    memcpy(v->out + (size_t)n++ * code, v->plain + (r - s->start[c]) * code, code);
        }
        km_coder_pack(x->coder, v->out, n, v->packed);
        km_kmx_put(w, v->packed, (size_t)n * code);
    }
    return KM_OK;
}

/* Ids and bits in pieces of 4096 rows, whose bits are whole bytes. */
static km_status put_ids(saving *v, km_kmx_writer *w, bool dead, km_error *err) {
    enum { PIECE = 4096 };
    size_t room = km_id_bytes(PIECE, 64);
    uint8_t *piece = km_calloc(room, 1);
    if (!piece) return km_no_memory_for(err, "the index");
    int bits = dead ? 1 : v->id_bits;
    int64_t n = 0;
    km_kmx_begin(w, dead ? KM_KMX_DEAD : KM_KMX_IDS);
    for (int64_t c = 0; c < v->x->cells; c++) {
        int64_t rows = km_cell_live(v->v, c, v->with_dead, v->places);
        for (int64_t i = 0; i < rows; i++) {
            const km_segment *s = v->v->at[v->places[i].segment];
            int64_t row = v->places[i].row;
            km_id_put(piece, n++, bits,
                      dead ? km_segment_is_dead(s, row) : km_id_get(s->ids, row, s->id_bits));
            if (n < PIECE) continue;
            km_kmx_put(w, piece, (size_t)PIECE * (size_t)bits / 8);
            memset(piece, 0, room);
            n = 0;
        }
    }
    km_kmx_put(w, piece, ((size_t)n * (size_t)bits + 7) / 8 + (dead ? 0 : 8));
    km_free(piece);
    return KM_OK;
}

static void put_vectors(saving *v, km_kmx_writer *w) {
    km_kmx_begin(w, KM_KMX_VECTORS);
    for (int64_t c = 0; c < v->x->cells; c++) {
        int64_t rows = km_cell_live(v->v, c, v->with_dead, v->places);
        for (int64_t i = 0; i < rows; i++)
            km_kmx_put(w,
                       v->v->at[v->places[i].segment]->vectors +
                           (size_t)v->places[i].row * v->x->vector_bytes,
                       v->x->vector_bytes);
    }
}

km_status km_index_store(km_index *x, const char *path, bool compact, uint64_t *bytes,
                         uint64_t *hash, km_error *err) {
    km_snapshot *frozen = km_index_frozen(x, err);
    if (!frozen) return KM_ERR_MEMORY;
    int64_t dead, rows = km_snapshot_count(frozen, &dead);
    saving v = {.x = x, .v = frozen, .with_dead = !compact && dead <= rows / 8};
    km_status s = open_saving(&v, err);
    km_kmx_writer *w = NULL;
    if (s == KM_OK) {
        km_kmx_head h = km_index_head(x, v.rows, v.dead, frozen->next_id, v.id_bits);
        w = km_kmx_create(path, &h, err);
        if (!w) s = err ? err->code : KM_ERR_FILE;
    }
    if (s == KM_OK) {
        s = km_index_put_frame(x, w, err);
        put_cells(&v, w);
    }
    if (s == KM_OK && x->code_bytes) {
        s = put_codes(&v, w, err);
    }
    if (s == KM_OK) s = put_ids(&v, w, false, err);
    if (s == KM_OK && v.dead) s = put_ids(&v, w, true, err);
    if (s == KM_OK && x->vector_bytes) put_vectors(&v, w);
    s = km_snapshot_intact(frozen, s, err);
    if (s == KM_OK)
        s = km_kmx_commit(w, bytes, hash, err);
    else
        km_kmx_abort(w);
    km_free(v.places);
    km_free(v.plain);
    km_free(v.packed);
    km_free(v.out);
    km_snapshot_drop(frozen);
    return s;
}
