/* Unpacking an index for a device, all threads cell by cell. */
#include "vector/device_rows.h"
#include "base/alloc.h"
#include <stdatomic.h>

typedef struct unpack_job {
    const km_index *x;
    const km_snapshot *v;
    const km_segment *g;
    int64_t first;        /* row of the segment, in the order of segments and cells */
    uint8_t *kind;        /* (n): classes; NULL where there is one */
    const int32_t *to;    /* (n): where a row goes; NULL where it stays */
    const int32_t *place; /* (dim + 1) of levels */
    km_device_rows *out;  /* NULL: classes are noted, and nothing else */
    atomic_int failed;
} unpack_job;

static int class_of(const km_coder *c, const uint8_t *code) {
    int k = km_code_class(c, code);
    return k < c->classes ? k : 0;
}

/* Levels one after the other; of trellises, the ring with its first bits again behind it. */
static void lay_code(const unpack_job *j, const uint8_t *code, uint8_t *ready, uint8_t *out) {
    const km_coder *c = j->x->coder;
    size_t stride = (size_t)j->out->stride;
    if (c->trellis) {
        km_code_ready(c, &c->axes[class_of(c, code)], code, ready);
        memcpy(out, ready, stride);
        return;
    }
    memset(out, 0, stride);
    for (int64_t a = 0; a < c->axes[0].count; a++)
        km_bits_put(out, j->place[a], c->axes[0].bits[a], km_stage_get(&c->stage, code, a));
}

static void unpack_cells(void *arg, int64_t begin, int64_t end, int worker) {
    unpack_job *j = arg;
    const km_index *x = j->x;
    (void)worker;
    for (int64_t cell = begin; cell < end && !atomic_load(&j->failed); cell++) {
        int64_t first = (int64_t)j->g->start[cell], n = (int64_t)j->g->start[cell + 1] - first;
        size_t bytes = (size_t)n * x->code_bytes;
        uint8_t *plain = n ? km_alloc(bytes + x->code_bytes + KM_CODER_PAD) : NULL;
        km_error err = {0};
        if (n && (!plain || km_segment_codes(x, j->g, cell, plain, &err) != KM_OK))
            atomic_store(&j->failed, err.code ? (int)err.code : (int)KM_ERR_MEMORY);
        for (int64_t i = 0; i < n && !atomic_load(&j->failed); i++) {
            const uint8_t *code = plain + (size_t)i * x->code_bytes;
            int64_t row = j->first + first + i, to = j->to ? j->to[row] : row;
            if (!j->out) {
                j->kind[row] = (uint8_t)class_of(x->coder, code);
                continue;
            }
            lay_code(j, code, plain + bytes, j->out->codes + to * j->out->stride);
            j->out->scale[to] = code[0];
            j->out->cell[to] = km_segment_is_dead(j->g, first + i) ? -1 : (int32_t)cell;
            j->out->ids[to] = km_id_get(j->g->ids, first + i, j->g->id_bits);
        }
        km_free(plain);
    }
}

static km_status all_segments(unpack_job *j, km_threads *t, km_error *err) {
    j->first = 0;
    for (int i = 0; i < j->v->n; i++) {
        j->g = j->v->at[i];
        km_threads_for(t, j->x->cells, 1, unpack_cells, j);
        j->first += j->g->rows;
        if (atomic_load(&j->failed))
            return km_error_set(err, (km_status)atomic_load(&j->failed),
                                "the codes of the index cannot be read");
    }
    return KM_OK;
}

/* Classes one after the other, rows in their order within. */
static void sort_rows(const uint8_t *kind, int64_t n, int64_t *start, int32_t *to) {
    int64_t at[KM_CODER_CLASSES + 1] = {0};
    for (int64_t i = 0; i < n; i++) at[kind[i] + 1]++;
    for (int k = 0; k < KM_CODER_CLASSES; k++) at[k + 1] += at[k];
    memcpy(start, at, sizeof at);
    for (int64_t i = 0; i < n; i++) to[i] = (int32_t)at[kind[i]]++;
}

static int64_t stride_of(const km_coder *c) {
    int64_t most = 0;
    for (int k = 0; k < c->classes; k++) {
        int64_t bits = c->axes[k].ring + (c->trellis ? km_coder_head(c) + KM_TRELLIS_LENGTH : 0);
        if (bits > most) most = bits;
    }
    return (most + 31) / 32 * 4;
}

static km_status read_rows(const km_index *x, const km_snapshot *v, km_threads *t,
                           km_device_rows *out, km_error *err) {
    const km_coder *c = x->coder;
    int64_t dead;
    *out = (km_device_rows){.n = km_snapshot_count(v, &dead), .stride = stride_of(c)};
    if (out->n > INT32_MAX)
        return km_error_set(err, KM_ERR_UNSUPPORTED, "too many rows for a device");
    size_t n = (size_t)out->n;
    int32_t *place = km_calloc((size_t)x->dim + 1, sizeof *place);
    uint8_t *kind = c->classes > 1 ? km_alloc(n + 1) : NULL;
    int32_t *to = c->classes > 1 ? km_alloc(sizeof *to * (n + 1)) : NULL;
    out->codes = km_alloc(n * (size_t)out->stride + 8);
    out->scale = km_alloc(n + 1);
    out->cell = km_alloc(sizeof *out->cell * (n + 1));
    out->ids = km_alloc(sizeof *out->ids * (n + 1));
    km_status s = KM_OK;
    if (!place || !out->codes || !out->scale || !out->cell || !out->ids ||
        (c->classes > 1 && (!kind || !to)))
        s = km_no_memory_for(err, "the rows of an index");
    unpack_job j = {.x = x, .v = v, .kind = kind, .place = place};
    for (int k = 1; k <= KM_CODER_CLASSES; k++) out->start[k] = out->n;
    if (s == KM_OK && kind) {
        s = all_segments(&j, t, err);
        if (s == KM_OK) sort_rows(kind, out->n, out->start, to);
        j.to = to;
    }
    for (int64_t i = 0; s == KM_OK && i < c->axes[0].count; i++)
        place[i + 1] = place[i] + c->axes[0].bits[i];
    j.out = out;
    if (s == KM_OK) s = all_segments(&j, t, err);
    km_free(place);
    km_free(kind);
    km_free(to);
    if (s != KM_OK) km_device_rows_free(out);
    return s;
}

km_status km_device_rows_read(const km_index *x, km_threads *t, km_device_rows *out,
                              km_error *err) {
    km_snapshot *v = km_index_rows(x);
    km_status s = read_rows(x, v, t, out, err);
    km_snapshot_drop(v);
    return s;
}

void km_device_rows_free(km_device_rows *r) {
    km_free(r->codes);
    km_free(r->scale);
    km_free(r->cell);
    km_free(r->ids);
    *r = (km_device_rows){0};
}
