/* Segments: rows sorted by cell, with their codes packed cell by cell. */
#include "base/alloc.h"
#include "vector/index.h"
#include <string.h>

enum { JOIN = 65536 }; /* segments in memory of fewer rows are joined with their neighbour */

void km_segment_close(km_segment *s) {
    for (int i = 0; i < 4; i++) km_free(s->owned[i]);
    km_free(s->dead);
    km_kmx_close(s->file);
    *s = (km_segment){0};
}

bool km_segment_is_dead(const km_segment *s, int64_t row) {
    return s->dead && (s->dead[row >> 3] >> (row & 7) & 1);
}

km_status km_segment_check(const km_index *x, const km_segment *s, int64_t first, int64_t n,
                           bool vectors, km_error *err) {
    if (!s->file || n == 0) return KM_OK;
    size_t bits = (size_t)s->id_bits, at = (size_t)first * bits / 8;
    size_t end = ((size_t)(first + n) * bits + 7) / 8 + 8; /* ids are loaded 8 bytes at a time */
    if (end > km_id_bytes(s->rows, s->id_bits)) end = km_id_bytes(s->rows, s->id_bits);
    km_status status = km_kmx_check(s->file, KM_KMX_IDS, at, end - at, err);
    if (status == KM_OK)
        status = km_kmx_check(s->file, KM_KMX_CODES, (size_t)first * x->code_bytes,
                              (size_t)n * x->code_bytes, err);
    if (status == KM_OK && vectors)
        status = km_kmx_check(s->file, KM_KMX_VECTORS, (size_t)first * x->vector_bytes,
                              (size_t)n * x->vector_bytes, err);
    return status;
}

static km_status no_memory(km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "no memory for more vectors in the index");
}

static bool make_room(km_index *x) {
    if (x->n_segments < x->cap_segments) return true;
    int cap = x->cap_segments ? 2 * x->cap_segments : 4;
    km_segment *more = km_realloc(x->segments, sizeof *more * (size_t)cap);
    if (!more) return false;
    x->segments = more;
    x->cap_segments = cap;
    return true;
}

/* The rows as a segment of their own. */
static km_status build(const km_index *x, const km_rows *r, km_segment *s, km_error *err) {
    size_t n = (size_t)r->n, code = x->code_bytes, vector = x->vector_bytes;
    uint64_t most = 0;
    for (int64_t i = 0; i < r->n; i++) most = r->id[i] > most ? r->id[i] : most;
    *s = (km_segment){.rows = r->n, .id_bits = km_id_bits(most)};
    uint64_t *start = s->owned[0] = km_calloc((size_t)x->cells + 2, sizeof *start);
    uint8_t *codes = s->owned[1] = km_alloc(n * code + 1);
    uint8_t *ids = s->owned[2] = km_calloc(km_id_bytes(r->n, s->id_bits), 1);
    uint8_t *vectors = s->owned[3] = km_alloc(n * vector + 1);
    uint8_t *plain = km_alloc(n * code + 1);
    if (!start || !codes || !ids || !vectors || !plain) {
        km_free(plain);
        km_segment_close(s);
        return no_memory(err);
    }
    for (int64_t i = 0; i < r->n; i++) start[r->cell[i] + 2]++;
    for (int64_t c = 0; c < x->cells; c++) start[c + 2] += start[c + 1];
    for (int64_t i = 0; i < r->n; i++) { /* start[c + 1] moves from the cell's begin to its end */
        uint64_t at = start[r->cell[i] + 1]++;
        km_id_put(ids, (int64_t)at, s->id_bits, r->id[i]);
        if (code) memcpy(plain + at * code, r->codes + (size_t)i * code, code);
        if (vector) memcpy(vectors + at * vector, r->vectors + (size_t)i * vector, vector);
    }
    for (int64_t c = 0; code && c < x->cells; c++)
        km_coder_pack(x->coder, plain + start[c] * code, (int64_t)(start[c + 1] - start[c]),
                      codes + start[c] * code);
    km_free(plain);
    s->start = start;
    s->codes = code ? codes : NULL;
    s->ids = ids;
    s->vectors = vector ? vectors : NULL;
    return KM_OK;
}

km_status km_segment_codes(const km_index *x, const km_segment *s, int64_t cell, uint8_t *codes,
                           km_error *err) {
    int64_t first = (int64_t)s->start[cell], n = (int64_t)s->start[cell + 1] - first;
    km_status status = km_segment_check(x, s, first, n, false, err);
    if (status == KM_OK && x->code_bytes)
        km_coder_unpack(x->coder, s->codes + (size_t)first * x->code_bytes, n, codes);
    return status;
}

/* The live rows of segments a and b, both in memory, as one segment in a's place. */
static km_status join(km_index *x, km_segment *a, km_segment *b, km_error *err) {
    const km_segment *from[2] = {a, b};
    size_t n = (size_t)(a->rows + b->rows), code = x->code_bytes, vector = x->vector_bytes;
    int32_t *cell = km_alloc(n * sizeof *cell);
    uint64_t *id = km_alloc(n * sizeof *id);
    uint8_t *codes = km_alloc(n * code + 1), *vectors = km_alloc(n * vector + 1);
    km_status status = cell && id && codes && vectors ? KM_OK : no_memory(err);
    int64_t at = 0;
    for (int64_t c = 0; status == KM_OK && c < x->cells; c++)
        for (int k = 0; k < 2; k++) {
            const km_segment *s = from[k];
            int64_t first = (int64_t)s->start[c], end = (int64_t)s->start[c + 1];
            km_segment_codes(x, s, c, codes + (size_t)at * code, err);
            for (int64_t i = first, to = at; i < end; i++, to++) {
                if (km_segment_is_dead(s, i)) continue;
                /* Codes were unpacked where they would go if none were dead: close the gaps. */
                memmove(codes + (size_t)at * code, codes + (size_t)to * code, code);
                if (vector)
                    memcpy(vectors + (size_t)at * vector, s->vectors + (size_t)i * vector, vector);
                cell[at] = (int32_t)c;
                id[at++] = km_id_get(s->ids, i, s->id_bits);
            }
        }
    km_segment both = {0};
    if (status == KM_OK) status = build(x, &(km_rows){at, cell, id, codes, vectors}, &both, err);
    km_free(cell);
    km_free(id);
    km_free(codes);
    km_free(vectors);
    if (status != KM_OK) return status;
    km_segment_close(a);
    km_segment_close(b);
    *a = both;
    return KM_OK;
}

km_status km_segment_add(km_index *x, const km_rows *r, km_error *err) {
    if (!make_room(x)) return no_memory(err);
    km_segment *s = &x->segments[x->n_segments];
    km_status status = build(x, r, s, err);
    if (status != KM_OK) return status;
    x->n_segments++;
    while (x->n_segments >= 2) {
        km_segment *last = &x->segments[x->n_segments - 1], *before = last - 1;
        if (before->file || before->rows > JOIN || before->rows > 2 * last->rows) break;
        km_error why = {0}; /* they stay apart, which is as good */
        if (join(x, before, last, &why) != KM_OK) break;
        x->n_segments--;
    }
    x->file_bytes = 0;
    return KM_OK;
}

/* ---- Cells over all segments ---- */

int64_t km_cell_rows(const km_index *x, int64_t cell) {
    int64_t n = 0;
    for (int i = 0; i < x->n_segments; i++)
        n += (int64_t)(x->segments[i].start[cell + 1] - x->segments[i].start[cell]);
    return n;
}

int64_t km_cell_live(const km_index *x, int64_t cell, bool with_dead, km_place *places) {
    int64_t n = 0;
    for (int i = 0; i < x->n_segments; i++) {
        const km_segment *s = &x->segments[i];
        for (uint64_t r = s->start[cell]; r < s->start[cell + 1]; r++)
            if (with_dead || !km_segment_is_dead(s, (int64_t)r))
                places[n++] = (km_place){i, (int64_t)r};
    }
    return n;
}
