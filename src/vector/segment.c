/* Segments: rows sorted by cell, with their codes packed cell by cell. All but the bits of deleted rows
 * stays as it was made. */
#include "base/alloc.h"
#include "vector/index.h"
#include <string.h>

/* ---- Life ---- */

void km_segment_hold(km_segment *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void km_segment_drop(km_segment *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1) return;
    for (int i = 0; i < 4; i++) km_free(s->owned[i]);
    km_free((void *)s->dead);
    km_kmx_close(s->file);
    km_segment_drop(s->of);
    km_free(s);
}

static size_t dead_bytes(int64_t rows) { return (size_t)(rows + 7) / 8 + 1; }

km_segment *km_segment_frozen(km_segment *s) {
    km_segment *copy = km_calloc(1, sizeof *copy);
    _Atomic uint8_t *dead = km_alloc(dead_bytes(s->rows));
    if (!copy || !dead) {
        km_free(copy);
        km_free((void *)dead);
        return NULL;
    }
    copy->rows = s->rows;
    copy->start = s->start;
    copy->codes = s->codes;
    copy->ids = s->ids;
    copy->vectors = s->vectors;
    copy->id_bits = s->id_bits;
    copy->least = s->least;
    copy->most = s->most;
    copy->ranged = s->ranged;
    copy->of = s;
    copy->dead = dead;
    int64_t count = 0;
    for (size_t i = 0; i < dead_bytes(s->rows); i++) {
        uint8_t bits = atomic_load_explicit(&s->dead[i], memory_order_relaxed);
        atomic_init(&dead[i], bits);
        count += __builtin_popcount(bits);
    }
    atomic_init(&copy->dead_rows, count);
    atomic_init(&copy->refs, 1);
    km_segment_hold(s);
    return copy;
}

/* ---- Rows ---- */

bool km_segment_is_dead(const km_segment *s, int64_t row) {
    return atomic_load_explicit(&s->dead[row >> 3], memory_order_relaxed) >> (row & 7) & 1;
}

bool km_segment_kill(km_segment *s, int64_t row) {
    uint8_t bit = (uint8_t)(1u << (row & 7));
    if (atomic_fetch_or_explicit(&s->dead[row >> 3], bit, memory_order_relaxed) & bit) return false;
    atomic_fetch_add_explicit(&s->dead_rows, 1, memory_order_relaxed);
    return true;
}

km_status km_segment_check(const km_index *x, const km_segment *s, int64_t first, int64_t n,
                           bool vectors, km_error *err) {
    while (s->of) s = s->of;
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

km_status km_segment_codes(const km_index *x, const km_segment *s, int64_t cell, uint8_t *codes,
                           km_error *err) {
    int64_t first = (int64_t)s->start[cell], n = (int64_t)s->start[cell + 1] - first;
    km_status status = km_segment_check(x, s, first, n, false, err);
    if (status == KM_OK && x->code_bytes)
        km_coder_unpack(x->coder, s->codes + (size_t)first * x->code_bytes, n, codes);
    return status;
}

/* ---- Making one ---- */

km_segment *km_segment_new(const km_index *x, const km_new_rows *r, int64_t **order,
                           km_error *err) {
    size_t n = (size_t)r->n, code = x->code_bytes, vector = x->vector_bytes;
    km_segment *s = km_calloc(1, sizeof *s);
    uint64_t *start = km_calloc((size_t)x->cells + 2, sizeof *start);
    uint8_t *codes = km_alloc(n * code + 1), *plain = km_alloc(n * code + 1);
    uint8_t *vectors = km_alloc(n * vector + 1);
    int64_t *at = km_alloc(sizeof *at * (n + 1));
    void *dead = km_calloc(dead_bytes(r->n), 1);
    if (!s || !start || !codes || !vectors || !plain || !at || !dead) {
        km_free(s);
        km_free(start);
        km_free(codes);
        km_free(vectors);
        km_free(plain);
        km_free(at);
        km_free(dead);
        km_no_memory_for(err, "more vectors in the index");
        return NULL;
    }
    for (int64_t i = 0; i < r->n; i++) start[r->cell[i] + 2]++;
    for (int64_t c = 0; c < x->cells; c++) start[c + 2] += start[c + 1];
    for (int64_t i = 0; i < r->n; i++) { /* start[c + 1] moves from the cell's begin to its end */
        uint64_t to = start[r->cell[i] + 1]++;
        at[i] = (int64_t)to;
        if (code) memcpy(plain + to * code, r->codes + (size_t)i * code, code);
        if (vector) memcpy(vectors + to * vector, r->vectors + (size_t)i * vector, vector);
    }
    for (int64_t c = 0; code && c < x->cells; c++)
        if (start[c + 1] > start[c])
            km_coder_pack(x->coder, plain + start[c] * code, (int64_t)(start[c + 1] - start[c]),
                          codes + start[c] * code);
    km_free(plain);
    s->rows = r->n;
    s->start = s->owned[0] = start;
    s->owned[1] = codes;
    s->owned[3] = vectors;
    s->codes = code ? codes : NULL;
    s->vectors = vector ? vectors : NULL;
    s->dead = dead;
    atomic_init(&s->refs, 1);
    *order = at;
    return s;
}

km_status km_segment_name(km_segment *s, const uint64_t *ids, const int64_t *order, km_error *err) {
    uint64_t least = UINT64_MAX, most = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        most = ids[i] > most ? ids[i] : most;
        least = ids[i] < least ? ids[i] : least;
    }
    s->id_bits = km_id_bits(most);
    uint8_t *packed = s->owned[2] = km_calloc(km_id_bytes(s->rows, s->id_bits), 1);
    if (!packed) return km_no_memory_for(err, "more vectors in the index");
    for (int64_t i = 0; i < s->rows; i++) km_id_put(packed, order[i], s->id_bits, ids[i]);
    s->ids = packed;
    s->least = least;
    s->most = most;
    s->ranged = true;
    return KM_OK;
}
