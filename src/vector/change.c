/* Adding, deleting and looking up rows by id, and joining indexes. */
#include "base/alloc.h"
#include "base/log.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include "vector/input.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8192, FEW = 64 };

/* ---- Ids ---- */

typedef struct found {
    uint64_t id;
    km_row_place at;
} found;

int km_by_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static km_status check_ids(const km_segment *s, km_error *err) {
    while (s->of) s = s->of;
    return s->file ? km_kmx_check(s->file, KM_KMX_IDS, 0, km_id_bytes(s->rows, s->id_bits), err)
                   : KM_OK;
}

uint64_t *km_index_live_ids(const km_index *x, int64_t *n, km_error *err) {
    km_snapshot *v = km_index_rows(x);
    int64_t dead, rows = km_snapshot_count(v, &dead), count = 0;
    uint64_t *ids = km_alloc(sizeof *ids * (size_t)(rows + 1));
    km_status status = ids ? KM_OK : km_no_memory(err);
    for (int i = 0; status == KM_OK && i < v->n; i++) {
        const km_segment *s = v->at[i];
        status = check_ids(s, err);
        for (int64_t r = 0; status == KM_OK && r < s->rows; r++)
            if (!km_segment_is_dead(s, r)) ids[count++] = km_id_get(s->ids, r, s->id_bits);
    }
    status = km_snapshot_intact(v, status, err);
    km_snapshot_drop(v);
    *n = count;
    if (status == KM_OK) {
        qsort(ids, (size_t)count, sizeof *ids, km_by_id);
        return ids;
    }
    km_free(ids);
    *n = 0;
    return NULL;
}

/* The wanted ids, ascending and without repeats, get their places. */
typedef struct lookup {
    found *list;
    int64_t n;
} lookup;

static found *look(const lookup *l, uint64_t id) {
    return bsearch(&id, l->list, (size_t)l->n, sizeof *l->list, km_by_id);
}

static bool lists(const km_snapshot *v, const km_segment *s) {
    for (int i = 0; v && i < v->n; i++)
        if (v->at[i] == s) return true;
    return false;
}

/* Places in the live rows of v, of segments that `known` does not list. */
static km_status note_places(const km_snapshot *v, const km_snapshot *known, lookup *l,
                             km_error *err) {
    if (l->n == 0) return KM_OK;
    uint64_t least = l->list[0].id, most = l->list[l->n - 1].id;
    for (int i = 0; i < v->n; i++) {
        const km_segment *s = v->at[i];
        if (lists(known, s) || (s->ranged && (s->most < least || s->least > most))) continue;
        km_status status = check_ids(s, err);
        if (status != KM_OK) return status;
        for (int64_t r = 0; r < s->rows; r++) {
            uint64_t id = km_id_get(s->ids, r, s->id_bits);
            if (id < least || id > most || km_segment_is_dead(s, r)) continue;
            found *f = look(l, id);
            if (f) f->at = (km_row_place){i, r};
        }
    }
    return km_snapshot_intact(v, KM_OK, err);
}

static km_status look_up(const km_snapshot *v, const uint64_t *ids, int64_t n, lookup *l,
                         km_error *err) {
    *l = (lookup){0};
    if (n >= INT64_MAX / (int64_t)sizeof *l->list)
        return km_error_set(err, KM_ERR_RANGE, "%lld ids are beyond all memory", (long long)n);
    l->list = km_alloc(sizeof *l->list * (size_t)(n + 1));
    if (!l->list) return km_no_memory(err);
    for (int64_t i = 0; i < n; i++) l->list[i] = (found){ids[i], {-1, 0}};
    qsort(l->list, (size_t)n, sizeof *l->list, km_by_id);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || l->list[i].id != l->list[l->n - 1].id) l->list[l->n++] = l->list[i];
    km_status s = note_places(v, NULL, l, err);
    if (s != KM_OK) {
        km_free(l->list);
        *l = (lookup){0};
    }
    return s;
}

/* Places found in `then` as places in `now`: of what was added or joined since, and without what was
 * deleted. Little is left to look at, so this may be done where others wait. */
static km_status look_again(const km_snapshot *then, const km_snapshot *now, lookup *l,
                            km_error *err) {
    for (int64_t i = 0; i < l->n; i++) {
        km_row_place *at = &l->list[i].at;
        if (at->segment < 0) continue;
        const km_segment *s = then->at[at->segment];
        at->segment = -1;
        for (int k = 0; k < now->n; k++)
            if (now->at[k] == s && !km_segment_is_dead(s, at->row)) at->segment = k;
    }
    return note_places(now, then, l, err);
}

km_row_place *km_index_places(const km_index *x, const km_snapshot *v, const uint64_t *ids,
                              int64_t n, km_error *err) {
    lookup l;
    (void)x;
    if (look_up(v, ids, n, &l, err) != KM_OK) return NULL;
    km_row_place *places = km_alloc(sizeof *places * (size_t)(n + 1));
    if (!places) km_no_memory(err);
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

/* From here on the size of the files opened is not that of the index. `change` is held. */
static km_status forget_files(km_index *x, km_error *err) {
    const km_snapshot *now = x->rows;
    if (now->file_bytes == 0) return KM_OK;
    km_snapshot *next = km_snapshot_new(now->n, err);
    if (!next) return KM_ERR_MEMORY;
    for (int i = 0; i < now->n; i++) km_segment_hold(next->at[i] = now->at[i]);
    next->next_id = now->next_id;
    km_index_swap(x, next);
    return KM_OK;
}

km_status km_index_remove(km_index *x, const uint64_t *ids, int64_t n, bool missing_ok,
                          int64_t *removed, km_error *err) {
    lookup l;
    *removed = 0;
    km_snapshot *then = km_index_rows(x);
    km_status s = look_up(then, ids, n, &l, err);
    pthread_mutex_lock(&x->change);
    if (s == KM_OK) s = look_again(then, x->rows, &l, err);
    for (int64_t i = 0; s == KM_OK && i < l.n && !missing_ok; i++)
        if (l.list[i].at.segment < 0)
            s = km_error_set(err, KM_ERR_RANGE,
                             "there is no vector with id %" PRIu64 "; nothing was deleted",
                             l.list[i].id);
    if (s == KM_OK && l.n) s = forget_files(x, err); /* the last that can fail */
    for (int64_t i = 0; s == KM_OK && i < l.n; i++) {
        km_row_place at = l.list[i].at;
        if (at.segment >= 0) *removed += km_segment_kill(x->rows->at[at.segment], at.row);
    }
    pthread_mutex_unlock(&x->change);
    km_snapshot_drop(then);
    km_free(l.list);
    return s;
}

/* ---- Adding ---- */

typedef struct newcomers { /* rows that are to be a segment */
    km_segment *segment;
    int64_t *order, n;
    const uint64_t *ids; /* (n), or NULL: counted */
} newcomers;

static km_status refuse_known(const lookup *l, km_error *err) {
    for (int64_t i = 0; i < l->n; i++)
        if (l->list[i].at.segment >= 0)
            return km_error_set(err, KM_ERR_RANGE, "there is a vector with id %" PRIu64 " already",
                                l->list[i].id);
    return KM_OK;
}

/* None of the ids is there already, and none twice. The places of all are looked up in v. */
static km_status check_new(const km_snapshot *v, const uint64_t *ids, int64_t n, lookup *l,
                           km_error *err) {
    km_status s = look_up(v, ids, n, l, err);
    if (s == KM_OK) s = refuse_known(l, err);
    if (s == KM_OK && l->n < n) s = km_error_set(err, KM_ERR_RANGE, "an id is given twice");
    if (s == KM_OK && l->n && l->list[l->n - 1].id == KM_NO_ID)
        s = km_error_set(err, KM_ERR_RANGE, "%" PRIu64 " cannot be an id", KM_NO_ID);
    return s;
}

/* Counted ids, in `counted` (n). */
static km_status count_ids(uint64_t first, uint64_t *counted, int64_t n, km_error *err) {
    if ((uint64_t)n > KM_NO_ID - first)
        return km_error_set(err, KM_ERR_RANGE, "there are no more ids to count on with");
    for (int64_t i = 0; i < n; i++) counted[i] = first + (uint64_t)i;
    return KM_OK;
}

/* The segment gets its ids and is listed; it is the index's from then on, also when that fails. Ids
 * that are given were looked up in `then`: only what has come since is looked at while others wait. */
static km_status let_in(km_index *x, newcomers *r, const km_snapshot *then, lookup *l,
                        km_error *err) {
    uint64_t *counted = r->ids ? NULL : km_alloc(sizeof *counted * (size_t)(r->n + 1)), most = 0;
    km_status s = r->ids || counted ? KM_OK : km_no_memory(err);
    for (int64_t i = 0; r->ids && i < r->n; i++) most = r->ids[i] > most ? r->ids[i] : most;
    pthread_mutex_lock(&x->change);
    uint64_t next = x->rows->next_id;
    if (s == KM_OK && r->ids) s = look_again(then, x->rows, l, err);
    if (s == KM_OK && r->ids) s = refuse_known(l, err);
    if (s == KM_OK && !r->ids) s = count_ids(next, counted, r->n, err);
    if (s == KM_OK) s = km_segment_name(r->segment, r->ids ? r->ids : counted, r->order, err);
    if (!r->ids && r->n) most = next + (uint64_t)r->n - 1;
    if (r->n && most >= next) next = most + 1;
    if (s == KM_OK)
        s = km_index_list(x, r->segment, next, 0, err);
    else
        km_segment_drop(r->segment);
    pthread_mutex_unlock(&x->change);
    r->segment = NULL;
    km_free(counted);
    return s;
}

/* Rows become a segment beside the index, which is then let in. */
static km_status add_rows(km_index *x, const km_new_rows *rows, const uint64_t *ids,
                          const km_snapshot *then, lookup *l, km_error *err) {
    newcomers r = {.n = rows->n, .ids = ids};
    r.segment = km_segment_new(x, rows, &r.order, err);
    if (!r.segment) return KM_ERR_MEMORY;
    km_status s = let_in(x, &r, then, l, err);
    km_free(r.order);
    if (s == KM_OK) km_index_tidy(x);
    return s;
}

typedef struct encoding {
    km_ctx *ctx;
    const km_index *x;
    const float *rows;
    int64_t n;
    int32_t *cell; /* (n), and what follows */
    uint8_t *codes, *vectors;
    km_status status;
    km_error *err;
} encoding;

static void encode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    encoding *c = arg;
    const km_index *x = c->x;
    (void)begin, (void)end, (void)worker;
    int64_t block = c->n < BLOCK ? c->n : BLOCK;
    size_t code = x->code_bytes, vector = x->vector_bytes;
    km_index_encoder *e = km_index_encoder_new(c->ctx, x, block, c->err);
    float *copy = km_alloc(sizeof *copy * (size_t)(block * x->dim));
    c->status = !e ? c->err->code : copy ? KM_OK : km_no_memory(c->err);
    for (int64_t i = 0; c->status == KM_OK && i < c->n; i += block) {
        int64_t m = c->n - i < block ? c->n - i : block;
        km_encoded got;
        memcpy(copy, c->rows + i * x->dim, sizeof *copy * (size_t)(m * x->dim));
        c->status = km_index_encoder_run(e, copy, m, false, &got, c->err);
        if (c->status != KM_OK) break;
        memcpy(c->cell + i, got.cell, sizeof *c->cell * (size_t)m);
        if (code) memcpy(c->codes + (size_t)i * code, got.codes, (size_t)m * code);
        if (vector) memcpy(c->vectors + (size_t)i * vector, got.vectors, (size_t)m * vector);
    }
    km_index_encoder_free(e);
    km_free(copy);
}

km_status km_index_append(km_ctx *ctx, km_index *x, const float *rows, int64_t n,
                          const uint64_t *ids, km_error *err) {
    if (n > 0 && x->dim > INT64_MAX / (int64_t)sizeof *rows / n)
        return km_error_set(err, KM_ERR_RANGE,
                            "%lld vectors of %lld dimensions are beyond all memory", (long long)n,
                            (long long)x->dim);
    int64_t bad = km_first_unfit_row(rows, n, x->dim, x->metric);
    char why[KM_TROUBLE_TEXT];
    if (bad >= 0)
        return km_error_set(err, KM_ERR_RANGE, "vector %lld %s", (long long)bad,
                            km_row_trouble(why, rows + bad * x->dim, x->dim, x->metric));
    if (n <= 0) return KM_OK;
    lookup l = {0};
    km_error own = {0};
    km_snapshot *then = ids ? km_index_rows(x) : NULL;
    km_status s = ids ? check_new(then, ids, n, &l, &own) : KM_OK;
    encoding c = {.ctx = ctx, .x = x, .rows = rows, .n = n, .err = &own};
    if (s == KM_OK) {
        c.cell = km_alloc(sizeof *c.cell * (size_t)n);
        c.codes = km_alloc((size_t)n * x->code_bytes + 1);
        c.vectors = km_alloc((size_t)n * x->vector_bytes + 1);
        if (!c.cell || !c.codes || !c.vectors) s = km_no_memory(&own);
    }
    if (s == KM_OK) {
        /* Few rows are encoded by this thread alone: on a busy machine, waiting for a worker at the
         * end of each short loop takes longer than the work. */
        if (n <= FEW)
            km_threads_for(NULL, 1, 1, encode_rows, &c);
        else
            encode_rows(&c, 0, 1, 0);
        s = c.status;
    }
    if (s == KM_OK)
        s = add_rows(x, &(km_new_rows){n, c.cell, c.codes, c.vectors}, ids, then, &l, &own);
    if (s != KM_OK) km_error_set(err, s, "%s", own.text);
    km_snapshot_drop(then);
    km_free(l.list);
    km_free(c.cell);
    km_free(c.codes);
    km_free(c.vectors);
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
static km_status shift_ids(const km_snapshot *then, uint64_t *ids, int64_t n, uint64_t shift,
                           lookup *l, km_error *err) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= KM_NO_ID - shift)
            return km_error_set(err, KM_ERR_RANGE, "id %" PRIu64 " cannot be moved by %" PRIu64,
                                ids[i], shift);
        ids[i] += shift;
    }
    return check_new(then, ids, n, l, err);
}

static uint64_t next_after(const km_snapshot *other, uint64_t shift) {
    return other->next_id < KM_NO_ID - shift ? other->next_id + shift : KM_NO_ID - 1;
}

/* Rows with codes as they are, cell by cell. v is frozen. */
static km_status copy_rows(km_index *x, const km_index *other, const km_snapshot *v, uint64_t shift,
                           km_error *err) {
    int64_t dead, live = km_snapshot_count(v, &dead), n = 0, most = 0;
    live -= dead;
    size_t code = x->code_bytes, vector = x->vector_bytes;
    for (int64_t c = 0; c < other->cells; c++)
        for (int i = 0; i < v->n; i++) {
            int64_t rows = (int64_t)(v->at[i]->start[c + 1] - v->at[i]->start[c]);
            most = rows > most ? rows : most;
        }
    int32_t *cell = km_alloc(sizeof *cell * (size_t)(live + 1));
    uint64_t *id = km_alloc(sizeof *id * (size_t)(live + 1));
    uint8_t *codes = km_alloc((size_t)live * code + 1), *plain = km_alloc((size_t)most * code + 1);
    uint8_t *vectors = km_alloc((size_t)live * vector + 1);
    km_status s = cell && id && codes && vectors && plain ? KM_OK : km_no_memory(err);
    for (int64_t c = 0; s == KM_OK && c < other->cells; c++)
        for (int i = 0; s == KM_OK && i < v->n; i++) {
            const km_segment *g = v->at[i];
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
    s = km_snapshot_intact(v, s, err);
    lookup l = {0};
    km_snapshot *then = km_index_rows(x);
    if (s == KM_OK) s = shift_ids(then, id, n, shift, &l, err);
    if (s == KM_OK && n) km_index_mix(x, other);
    if (s == KM_OK && n)
        s = add_rows(x, &(km_new_rows){n, cell, codes, vectors}, id, then, &l, err);
    km_snapshot_drop(then);
    km_free(l.list);
    km_free(cell);
    km_free(id);
    km_free(codes);
    km_free(plain);
    km_free(vectors);
    return s;
}

/* All live rows of a frozen snapshot by their ids, which is one order however segments were joined. */
static int64_t live_rows(const km_snapshot *v, found *list, km_row_place *places, uint64_t *ids) {
    int64_t n = 0;
    for (int i = 0; i < v->n; i++)
        for (int64_t r = 0; r < v->at[i]->rows; r++)
            if (!km_segment_is_dead(v->at[i], r))
                list[n++] = (found){km_id_get(v->at[i]->ids, r, v->at[i]->id_bits), {i, r}};
    qsort(list, (size_t)n, sizeof *list, km_by_id);
    for (int64_t i = 0; i < n; i++) {
        places[i] = list[i].at;
        ids[i] = list[i].id;
    }
    return n;
}

/* Vectors as the other index knows them, coded by this one. All or nothing. */
static km_status recode_rows(km_ctx *ctx, km_index *x, const km_index *other, const km_snapshot *v,
                             uint64_t shift, km_error *err) {
    int64_t dead, n = km_snapshot_count(v, &dead);
    uint64_t *ids = km_alloc(sizeof *ids * (size_t)(n + 1));
    km_row_place *places = km_alloc(sizeof *places * (size_t)(n + 1));
    found *list = km_alloc(sizeof *list * (size_t)(n + 1));
    float *rows = km_alloc(sizeof *rows * (size_t)((n - dead) * x->dim + 1));
    km_status s = ids && places && list && rows ? KM_OK : km_no_memory(err);
    for (int i = 0; s == KM_OK && i < v->n; i++) s = check_ids(v->at[i], err);
    if (s == KM_OK) n = live_rows(v, list, places, ids);
    lookup l = {0};
    km_snapshot *then = km_index_rows(x);
    if (s == KM_OK) s = shift_ids(then, ids, n, shift, &l, err);
    km_snapshot_drop(then);
    km_free(l.list);
    if (s == KM_OK)
        km_note(KM_LOG_INFO, "the indexes have different anchors or codes: the second is decoded "
                             "and coded anew, which costs a little recall");
    if (s == KM_OK) s = km_index_restore(other, v, ctx->threads, places, n, rows, err);
    if (s == KM_OK && other->length > 0) km_restore_lengths(other, rows, n);
    if (s == KM_OK) s = km_index_append(ctx, x, rows, n, ids, err);
    km_free(ids);
    km_free(places);
    km_free(list);
    km_free(rows);
    return s;
}

/* Ids below `next` are given to nobody any more. `change` is held. */
static km_status raise_next(km_index *x, uint64_t next, km_error *err) {
    const km_snapshot *now = x->rows;
    if (next <= now->next_id) return KM_OK;
    km_snapshot *v = km_snapshot_new(now->n, err);
    if (!v) return KM_ERR_MEMORY;
    for (int i = 0; i < now->n; i++) km_segment_hold(v->at[i] = now->at[i]);
    v->next_id = next;
    v->file_bytes = now->file_bytes;
    km_index_swap(x, v);
    return KM_OK;
}

km_status km_index_behind(km_index *x, uint64_t span, uint64_t *id, km_error *err) {
    int64_t n;
    uint64_t *ids = km_index_live_ids(x, &n, err), above = 0;
    if (!ids) return err->code;
    if (n) above = ids[n - 1] + 1; /* of a file that counts on from too low */
    km_free(ids);
    pthread_mutex_lock(&x->change);
    *id = above > x->rows->next_id ? above : x->rows->next_id;
    km_status s = raise_next(x, span < KM_NO_ID - *id ? *id + span : *id, err);
    pthread_mutex_unlock(&x->change);
    return s;
}

km_status km_index_absorb(km_ctx *ctx, km_index *x, km_index *other, uint64_t shift,
                          km_error *err) {
    if (x->dim != other->dim || x->metric != other->metric)
        return km_error_set(err, KM_ERR_SHAPE, "indexes of different %s cannot be merged",
                            x->dim != other->dim ? "dimensions" : "metrics");
    km_snapshot *v = km_index_frozen(other, err);
    if (!v) return KM_ERR_MEMORY;
    km_status s = km_index_same_frame(x, other) ? copy_rows(x, other, v, shift, err)
                                                : recode_rows(ctx, x, other, v, shift, err);
    if (s == KM_OK) {
        pthread_mutex_lock(&x->change);
        s = raise_next(x, next_after(v, shift), err);
        pthread_mutex_unlock(&x->change);
    }
    km_snapshot_drop(v);
    return s;
}
