/* Compaction: joining small segments, so that a search meets few of them. Sizes double from the last segment back:
 * one is joined with those behind it when it is at most twice as large as they are together, so that a
 * row is copied a number of times that is logarithmic.
 *
 * What takes a moment is done by whoever added the last rows; the rest by a thread that lives as long
 * as there is something to join. Either works beside searches and changes: the rows are copied from
 * segments that stay listed, and what was deleted meanwhile is deleted in the copy before it takes
 * their place. */
#include "base/alloc.h"
#include "vector/index.h"
#include <signal.h>
#include <string.h>

enum { JOIN = 65536 };              /* segments of more rows stay as they are */
#define A_MOMENT ((size_t)64 << 10) /* bytes that are joined by whoever adds */

typedef struct joint {
    km_snapshot *from; /* the segments in their order; then copies, with the bits of before */
    km_segment *both;
} joint;

/* The last segments that should be one: the first of them, or their end where there is nothing to join.
 * `bytes`: of all their rows. */
static int first_to_join(const km_index *x, const km_snapshot *v, size_t *bytes) {
    int first = v->n;
    int64_t rows = 0;
    for (; first > 0; first--) {
        const km_segment *s = v->at[first - 1];
        if (s->file || s->joining || s->rows > JOIN || (rows && s->rows > 2 * rows)) break;
        rows += s->rows;
    }
    *bytes = (size_t)rows * (x->code_bytes + x->vector_bytes + sizeof(uint64_t));
    return v->n - first < 2 ? v->n : first;
}

static void joint_drop(joint *j) {
    km_snapshot_drop(j->from);
    km_segment_drop(j->both);
    *j = (joint){0};
}

/* Takes what should be joined, if there is something, and it is small where `small`. *large: there is
 * something, but it is not. `change` is held. */
static bool take_joint(km_index *x, bool small, joint *j, bool *large) {
    size_t bytes;
    const km_snapshot *v = x->rows;
    int first = first_to_join(x, v, &bytes), n = v->n - first;
    *j = (joint){0};
    *large = n > 0 && bytes > A_MOMENT;
    if (n == 0 || (small && *large) || !(j->from = km_snapshot_new(n, NULL))) return false;
    for (int i = 0; i < n; i++) {
        km_segment_hold(j->from->at[i] = v->at[first + i]);
        v->at[first + i]->joining = true;
    }
    return true;
}

/* Copies of the segments take their place in `from`. What is deleted meanwhile shows in one of them, or is
 * found when the new segment is put in. */
static bool freeze(joint *j) {
    for (int i = 0; i < j->from->n; i++) {
        km_segment *copy = km_segment_frozen(j->from->at[i]);
        if (!copy) return false;
        km_segment_drop(j->from->at[i]); /* the copy holds it */
        j->from->at[i] = copy;
    }
    return true;
}

/* The live rows of all, cell by cell. */
static km_status copy_rows(const km_index *x, joint *j, km_error *err) {
    const km_snapshot *v = j->from;
    int64_t dead, at = 0;
    size_t n = (size_t)km_snapshot_count(v, &dead), code = x->code_bytes, vector = x->vector_bytes;
    int32_t *cell = km_alloc(n * sizeof *cell + 1);
    uint64_t *id = km_alloc(n * sizeof *id + 1);
    uint8_t *codes = km_alloc(n * code + 1), *vectors = km_alloc(n * vector + 1);
    int64_t *order = NULL;
    km_status status = cell && id && codes && vectors
                           ? KM_OK
                           : km_error_set(err, KM_ERR_MEMORY, "no memory to join segments");
    for (int64_t c = 0; status == KM_OK && c < x->cells; c++)
        for (int k = 0; k < v->n; k++) {
            const km_segment *s = v->at[k];
            int64_t first = (int64_t)s->start[c], end = (int64_t)s->start[c + 1];
            if (first == end) continue;
            km_segment_codes(x, s, c, codes + (size_t)at * code, err);
            for (int64_t i = first, to = at; i < end; i++, to++) {
                if (km_segment_is_dead(s, i)) continue;
                /* Codes were unpacked where they would go if none were dead: close the gaps. */
                if (to != at) memmove(codes + (size_t)at * code, codes + (size_t)to * code, code);
                if (vector)
                    memcpy(vectors + (size_t)at * vector, s->vectors + (size_t)i * vector, vector);
                cell[at] = (int32_t)c;
                id[at++] = km_id_get(s->ids, i, s->id_bits);
            }
        }
    if (status == KM_OK) {
        j->both = km_segment_new(x, &(km_new_rows){at, cell, codes, vectors}, &order, err);
        status = j->both ? km_segment_name(j->both, id, order, err) : KM_ERR_MEMORY;
    }
    km_free(cell);
    km_free(id);
    km_free(codes);
    km_free(vectors);
    km_free(order);
    return status;
}

/* What was deleted since the rows were copied. `change` is held: nothing more comes. */
static void copy_deletions(const km_index *x, joint *j) {
    const km_snapshot *v = j->from;
    bool any = false;
    for (int k = 0; k < v->n; k++)
        any |= atomic_load(&v->at[k]->of->dead_rows) != atomic_load(&v->at[k]->dead_rows);
    int64_t at = 0;
    for (int64_t c = 0; any && c < x->cells; c++)
        for (int k = 0; k < v->n; k++)
            for (uint64_t i = v->at[k]->start[c]; i < v->at[k]->start[c + 1]; i++) {
                if (km_segment_is_dead(v->at[k], (int64_t)i)) continue;
                if (km_segment_is_dead(v->at[k]->of, (int64_t)i)) km_segment_kill(j->both, at);
                at++;
            }
}

/* The new segment in the place of the old ones, which have stayed side by side: whoever adds does so
 * at the end. `change` is held. */
static bool put_joint(km_index *x, joint *j) {
    const km_snapshot *v = x->rows;
    int n = j->from->n, first = 0;
    while (first < v->n && v->at[first] != j->from->at[0]->of) first++;
    km_snapshot *next = first < v->n ? km_snapshot_new(v->n - n + 1, NULL) : NULL;
    if (!next) return false;
    copy_deletions(x, j);
    for (int i = 0; i < next->n; i++) {
        km_segment *s = i < first ? v->at[i] : i == first ? j->both : v->at[i + n - 1];
        km_segment_hold(next->at[i] = s);
    }
    next->next_id = v->next_id;
    next->file_bytes = v->file_bytes;
    km_index_swap(x, next);
    return true;
}

/* Joins what there is to join; false: not any more, and *large where it is for the joiner. `change` is
 * held on entry and on return, but not in between. Where there is no memory they stay apart, which is
 * as good. */
static bool join_once(km_index *x, bool small, bool *large) {
    joint j;
    km_error why = {0};
    if (!take_joint(x, small, &j, large)) return false;
    pthread_mutex_unlock(&x->change);
    bool ok = freeze(&j) && copy_rows(x, &j, &why) == KM_OK;
    pthread_mutex_lock(&x->change);
    ok = ok && put_joint(x, &j);
    for (int i = 0; i < j.from->n; i++) {
        km_segment *s = j.from->at[i];
        (s->of ? s->of : s)->joining = false;
    }
    pthread_mutex_unlock(&x->change);
    joint_drop(&j); /* frees the old segments, which takes a while */
    pthread_mutex_lock(&x->change);
    return ok;
}

static void *keep_joining(void *arg) {
    km_index *x = arg;
    bool large;
    pthread_mutex_lock(&x->change);
    while (join_once(x, false, &large)) continue;
    x->joiner_state = KM_JOINER_ENDS;
    pthread_mutex_unlock(&x->change);
    return NULL;
}

/* `change` is held. */
static bool start_joiner(km_index *x) {
    if (x->joiner_state == KM_JOINER_WORKS) return true;
    if (x->joiner_state == KM_JOINER_ENDS) pthread_join(x->joiner, NULL);
    sigset_t all, old; /* a program's handlers run in its own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool ok = pthread_create(&x->joiner, NULL, keep_joining, x) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    x->joiner_state = ok ? KM_JOINER_WORKS : KM_NO_JOINER;
    return ok;
}

void km_index_tidy(km_index *x) {
    bool large = false;
    pthread_mutex_lock(&x->change);
    while (join_once(x, true, &large)) continue;
    if (large && !start_joiner(x))
        while (join_once(x, false, &large)) continue;
    pthread_mutex_unlock(&x->change);
}

void km_index_end_joins(km_index *x) {
    pthread_mutex_lock(&x->change);
    bool there = x->joiner_state != KM_NO_JOINER;
    pthread_t joiner = x->joiner;
    pthread_mutex_unlock(&x->change);
    if (there) pthread_join(joiner, NULL);
    x->joiner_state = KM_NO_JOINER;
}
