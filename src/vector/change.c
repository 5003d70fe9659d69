/* Adding, deleting and looking up rows by id, and joining indexes. */
#include "base/alloc.h"
#include "base/log.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include "vector/input.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8192 };

static km_status no_memory(km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "out of memory");
}

/* ---- Ids ---- */

typedef struct found {
    uint64_t id;
    km_place at;
} found;

int km_by_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static km_status check_ids(const km_index *x, const km_segment *s, km_error *err) {
    (void)x;
    return s->file ? km_kmx_check(s->file, KM_KMX_IDS, 0, km_id_bytes(s->rows, s->id_bits), err)
                   : KM_OK;
}

/* Calls each(user, id, place) for all live rows. */
typedef void (*each_fn)(void *user, uint64_t id, km_place at);

static km_status each_row(const km_index *x, each_fn each, void *user, km_error *err) {
    for (int i = 0; i < x->n_segments; i++) {
        const km_segment *s = &x->segments[i];
        km_status status = check_ids(x, s, err);
        if (status != KM_OK) return status;
        for (int64_t r = 0; r < s->rows; r++)
            if (!km_segment_is_dead(s, r))
                each(user, km_id_get(s->ids, r, s->id_bits), (km_place){i, r});
    }
    return KM_OK;
}

typedef struct id_list {
    uint64_t *id;
    int64_t n;
} id_list;

static void take_id(void *user, uint64_t id, km_place at) {
    id_list *l = user;
    (void)at;
    l->id[l->n++] = id;
}

uint64_t *km_index_ids(const km_index *x, int64_t *n, km_error *err) {
    id_list l = {.id = km_alloc(sizeof(uint64_t) * (size_t)(km_index_live(x) + 1))};
    *n = 0;
    if (!l.id) {
        no_memory(err);
        return NULL;
    }
    if (each_row(x, take_id, &l, err) != KM_OK) {
        km_free(l.id);
        return NULL;
    }
    qsort(l.id, (size_t)l.n, sizeof *l.id, km_by_id);
    *n = l.n;
    return l.id;
}

/* The wanted ids, ascending and without repeats, get their places. */
typedef struct lookup {
    found *list;
    int64_t n;
} lookup;

static found *look(const lookup *l, uint64_t id) {
    return bsearch(&id, l->list, (size_t)l->n, sizeof *l->list, km_by_id);
}

static void note_place(void *user, uint64_t id, km_place at) {
    found *f = look(user, id);
    if (f) f->at = at;
}

static km_status look_up(const km_index *x, const uint64_t *ids, int64_t n, lookup *l,
                         km_error *err) {
    l->list = km_alloc(sizeof *l->list * (size_t)(n + 1));
    l->n = 0;
    if (!l->list) return no_memory(err);
    for (int64_t i = 0; i < n; i++) l->list[i] = (found){ids[i], {-1, 0}};
    qsort(l->list, (size_t)n, sizeof *l->list, km_by_id);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || l->list[i].id != l->list[l->n - 1].id) l->list[l->n++] = l->list[i];
    km_status s = each_row(x, note_place, l, err);
    if (s != KM_OK) km_free(l->list);
    return s;
}

km_place *km_index_places(const km_index *x, const uint64_t *ids, int64_t n, km_error *err) {
    lookup l;
    if (look_up(x, ids, n, &l, err) != KM_OK) return NULL;
    km_place *places = km_alloc(sizeof *places * (size_t)(n + 1));
    if (!places) no_memory(err);
    for (int64_t i = 0; places && i < n; i++) {
        places[i] = look(&l, ids[i])->at;
        if (places[i].segment >= 0) continue;
        km_error_set(err, KM_ERR_RANGE, "there is no vector with id %" PRIu64, ids[i]);
        km_free(places);
        places = NULL;
    }
    km_free(l.list);
    return places;
}

/* ---- Deleting ---- */

km_status km_index_remove(km_index *x, const uint64_t *ids, int64_t n, bool missing_ok,
                          int64_t *removed, km_error *err) {
    lookup l;
    *removed = 0;
    km_status s = look_up(x, ids, n, &l, err);
    if (s != KM_OK) return s;
    for (int64_t i = 0; i < l.n && !missing_ok; i++)
        if (l.list[i].at.segment < 0) {
            s = km_error_set(err, KM_ERR_RANGE,
                             "there is no vector with id %" PRIu64 "; nothing was deleted",
                             l.list[i].id);
            break;
        }
    for (int i = 0; s == KM_OK && i < x->n_segments; i++) /* memory first: then nothing can fail */
        if (!x->segments[i].dead &&
            !(x->segments[i].dead = km_calloc((size_t)(x->segments[i].rows + 7) / 8 + 1, 1)))
            s = no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < l.n; i++) {
        if (l.list[i].at.segment < 0) continue;
        km_segment *g = &x->segments[l.list[i].at.segment];
        int64_t row = l.list[i].at.row;
        g->dead[row >> 3] |= (uint8_t)(1u << (row & 7));
        g->dead_rows++;
        ++*removed;
    }
    if (*removed) x->file_bytes = 0;
    km_free(l.list);
    return s;
}

/* ---- Adding ---- */

/* None of the ids is there already, and none twice. */
static km_status check_new(const km_index *x, const uint64_t *ids, int64_t n, km_error *err) {
    lookup l;
    km_status s = look_up(x, ids, n, &l, err);
    if (s != KM_OK) return s;
    for (int64_t i = 0; s == KM_OK && i < l.n; i++)
        if (l.list[i].at.segment >= 0)
            s = km_error_set(err, KM_ERR_RANGE, "there is a vector with id %" PRIu64 " already",
                             l.list[i].id);
    if (s == KM_OK && l.n < n) s = km_error_set(err, KM_ERR_RANGE, "an id is given twice");
    if (s == KM_OK && l.n && l.list[l.n - 1].id == KM_NO_ID)
        s = km_error_set(err, KM_ERR_RANGE, "%" PRIu64 " cannot be an id", KM_NO_ID);
    km_free(l.list);
    return s;
}

km_status km_index_append(km_ctx *ctx, km_index *x, const float *rows, int64_t n,
                          const uint64_t *ids, km_error *err) {
    int64_t bad = km_first_bad_row(rows, n, x->dim);
    if (bad >= 0)
        return km_error_set(err, KM_ERR_RANGE, "vector %lld holds a NaN or an infinity",
                            (long long)bad);
    if (n <= 0) return KM_OK;
    km_status s = ids ? check_new(x, ids, n, err) : KM_OK;
    if (s != KM_OK) return s;
    int64_t block = n < BLOCK ? n : BLOCK;
    size_t code = x->code_bytes, vector = x->vector_bytes;
    km_encoder *e = km_encoder_new(ctx, x, block, err);
    int32_t *cell = km_alloc(sizeof *cell * (size_t)n);
    uint64_t *id = km_alloc(sizeof *id * (size_t)n), next = x->next_id;
    uint8_t *codes = km_alloc((size_t)n * code + 1), *vectors = km_alloc((size_t)n * vector + 1);
    float *copy = km_alloc(sizeof *copy * (size_t)(block * x->dim));
    if (!e)
        s = err ? err->code : KM_ERR_MEMORY;
    else if (!cell || !id || !codes || !vectors || !copy)
        s = no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        km_encoded got;
        memcpy(copy, rows + i * x->dim, sizeof *copy * (size_t)(m * x->dim));
        s = km_encoder_run(e, copy, m, false, &got, err);
        if (s != KM_OK) break;
        memcpy(cell + i, got.cell, sizeof *cell * (size_t)m);
        if (code) memcpy(codes + (size_t)i * code, got.codes, (size_t)m * code);
        if (vector) memcpy(vectors + (size_t)i * vector, got.vectors, (size_t)m * vector);
    }
    for (int64_t i = 0; s == KM_OK && i < n; i++) {
        id[i] = ids ? ids[i] : next;
        if (id[i] >= next) next = id[i] + 1;
    }
    if (s == KM_OK && next < x->next_id)
        s = km_error_set(err, KM_ERR_RANGE, "there are no more ids to count on with");
    if (s == KM_OK) s = km_segment_add(x, &(km_rows){n, cell, id, codes, vectors}, err);
    if (s == KM_OK) x->next_id = next;
    km_encoder_free(e);
    km_free(cell);
    km_free(id);
    km_free(codes);
    km_free(vectors);
    km_free(copy);
    return s;
}

/* ---- Merging ---- */

static bool same_coder(const km_index *a, const km_index *b) {
    if (!a->coder || !b->coder) return !a->coder && !b->coder;
    size_t n = km_coder_written(a->coder);
    if (n != km_coder_written(b->coder)) return false;
    uint8_t *p = km_alloc(2 * n);
    bool same = false;
    if (p) {
        km_coder_write(a->coder, p);
        km_coder_write(b->coder, p + n);
        same = memcmp(p, p + n, n) == 0;
    }
    km_free(p);
    return same;
}

bool km_index_same_frame(const km_index *a, const km_index *b) {
    return a->metric == b->metric && a->dim == b->dim && a->cells == b->cells &&
           a->rerank == b->rerank &&
           memcmp(a->anchors, b->anchors, sizeof(float) * (size_t)(a->cells * a->dim)) == 0 &&
           same_coder(a, b);
}

/* All ids moved by `shift`; none of them may be there already. */
static km_status shift_ids(const km_index *x, uint64_t *ids, int64_t n, uint64_t shift,
                           km_error *err) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= KM_NO_ID - shift)
            return km_error_set(err, KM_ERR_RANGE, "id %" PRIu64 " cannot be moved by %" PRIu64,
                                ids[i], shift);
        ids[i] += shift;
    }
    return check_new(x, ids, n, err);
}

/* Rows with codes as they are, cell by cell. */
static km_status copy_rows(km_index *x, const km_index *other, uint64_t shift, km_error *err) {
    int64_t live = km_index_live(other), n = 0, most = 0;
    size_t code = x->code_bytes, vector = x->vector_bytes;
    for (int64_t c = 0; c < other->cells; c++)
        for (int i = 0; i < other->n_segments; i++) {
            const km_segment *g = &other->segments[i];
            int64_t rows = (int64_t)(g->start[c + 1] - g->start[c]);
            most = rows > most ? rows : most;
        }
    int32_t *cell = km_alloc(sizeof *cell * (size_t)(live + 1));
    uint64_t *id = km_alloc(sizeof *id * (size_t)(live + 1));
    uint8_t *codes = km_alloc((size_t)live * code + 1), *plain = km_alloc((size_t)most * code + 1);
    uint8_t *vectors = km_alloc((size_t)live * vector + 1);
    km_status s = cell && id && codes && vectors && plain ? KM_OK : no_memory(err);
    for (int64_t c = 0; s == KM_OK && c < other->cells; c++)
        for (int i = 0; s == KM_OK && i < other->n_segments; i++) {
            const km_segment *g = &other->segments[i];
            int64_t first = (int64_t)g->start[c], end = (int64_t)g->start[c + 1];
            s = km_segment_codes(other, g, c, plain, err);
            if (s == KM_OK) s = km_segment_check(other, g, first, end - first, true, err);
            for (int64_t r = first; s == KM_OK && r < end; r++) {
                if (km_segment_is_dead(g, r)) continue;
                if (code)
                    memcpy(codes + (size_t)n * code, plain + (size_t)(r - first) * code, code);
                if (vector)
                    memcpy(vectors + (size_t)n * vector, g->vectors + (size_t)r * vector, vector);
                cell[n] = (int32_t)c;
                id[n++] = km_id_get(g->ids, r, g->id_bits);
            }
        }
    if (s == KM_OK) s = shift_ids(x, id, n, shift, err);
    if (s == KM_OK && n) km_index_mix(x, other);
    if (s == KM_OK && n) s = km_segment_add(x, &(km_rows){n, cell, id, codes, vectors}, err);
    km_free(cell);
    km_free(id);
    km_free(codes);
    km_free(plain);
    km_free(vectors);
    return s;
}

/* Vectors as the other index knows them, coded by this one. All or nothing. */
static km_status recode_rows(km_ctx *ctx, km_index *x, const km_index *other, uint64_t shift,
                             km_error *err) {
    int64_t n;
    uint64_t *ids = km_index_ids(other, &n, err);
    if (!ids) return err->code;
    km_place *places = km_index_places(other, ids, n, err);
    float *rows = km_alloc(sizeof *rows * (size_t)(n * x->dim + 1));
    km_status s = !places ? err->code : !rows ? no_memory(err) : KM_OK;
    if (s == KM_OK) s = shift_ids(x, ids, n, shift, err);
    if (s == KM_OK)
        km_note(KM_LOG_INFO, "the indexes have different anchors or codes: the second is decoded "
                             "and coded anew, which costs a little recall");
    if (s == KM_OK) s = km_index_restore(other, ctx->threads, places, n, rows, err);
    if (s == KM_OK && other->length > 0) km_restore_lengths(other, rows, n);
    if (s == KM_OK) s = km_index_append(ctx, x, rows, n, ids, err);
    km_free(ids);
    km_free(places);
    km_free(rows);
    return s;
}

km_status km_index_behind(const km_index *x, uint64_t *id, km_error *err) {
    int64_t n;
    uint64_t *ids = km_index_ids(x, &n, err);
    if (!ids) return err->code;
    *id = n && ids[n - 1] >= x->next_id ? ids[n - 1] + 1 : x->next_id;
    km_free(ids);
    return KM_OK;
}

km_status km_index_absorb(km_ctx *ctx, km_index *x, km_index *other, uint64_t shift,
                          km_error *err) {
    if (x->dim != other->dim || x->metric != other->metric)
        return km_error_set(err, KM_ERR_SHAPE, "indexes of different %s cannot be merged",
                            x->dim != other->dim ? "dimensions" : "metrics");
    km_status s = km_index_same_frame(x, other) ? copy_rows(x, other, shift, err)
                                                : recode_rows(ctx, x, other, shift, err);
    uint64_t next = other->next_id < KM_NO_ID - shift ? other->next_id + shift : KM_NO_ID - 1;
    if (s == KM_OK && next > x->next_id) x->next_id = next;
    return s;
}
