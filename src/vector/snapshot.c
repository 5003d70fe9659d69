/* Snapshots of the rows of an index: taken by readers, replaced by changes. */
#include "base/alloc.h"
#include "vector/index.h"

km_snapshot *km_snapshot_new(int n, km_error *err) {
    km_snapshot *v = km_calloc(1, sizeof *v + sizeof *v->at * (size_t)n);
    if (!v) {
        km_no_memory_for(err, "a list of segments");
        return NULL;
    }
    atomic_init(&v->refs, 1);
    v->n = n;
    return v;
}

void km_snapshot_drop(km_snapshot *v) {
    if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) > 1) return;
    for (int i = 0; i < v->n; i++) km_segment_drop(v->at[i]);
    km_free(v);
}

km_snapshot *km_index_rows(const km_index *x) {
    pthread_mutex_t *swap = (pthread_mutex_t *)&x->swap; /* reading is a change to nobody else */
    pthread_mutex_lock(swap);
    km_snapshot *v = x->rows;
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(swap);
    return v;
}

void km_index_swap(km_index *x, km_snapshot *next) {
    pthread_mutex_lock(&x->swap);
    km_snapshot *last = x->rows;
    x->rows = next;
    pthread_mutex_unlock(&x->swap);
    km_snapshot_drop(last);
}

km_status km_index_list(km_index *x, km_segment *s, uint64_t next_id, double file_bytes,
                        km_error *err) {
    const km_snapshot *now = x->rows;
    km_snapshot *next = km_snapshot_new(now->n + 1, err);
    if (!next) {
        km_segment_drop(s);
        return KM_ERR_MEMORY;
    }
    for (int i = 0; i < now->n; i++) km_segment_hold(next->at[i] = now->at[i]);
    next->at[now->n] = s;
    next->next_id = next_id;
    next->file_bytes = file_bytes;
    km_index_swap(x, next);
    return KM_OK;
}

km_snapshot *km_index_frozen(km_index *x, km_error *err) {
    pthread_mutex_lock(&x->change); /* a deletion of many rows is seen as a whole */
    const km_snapshot *now = x->rows;
    km_snapshot *v = km_snapshot_new(now->n, err);
    for (int i = 0; v && i < now->n; i++) {
        if ((v->at[i] = km_segment_frozen(now->at[i]))) continue;
        km_no_memory_for(err, "a copy of what is deleted");
        v->n = i;
        km_snapshot_drop(v);
        v = NULL;
    }
    if (v) {
        v->next_id = now->next_id;
        v->file_bytes = now->file_bytes;
    }
    pthread_mutex_unlock(&x->change);
    return v;
}

/* ---- What is in one ---- */

km_status km_snapshot_intact(const km_snapshot *v, km_status status, km_error *err) {
    for (int i = 0; i < v->n; i++) {
        const km_segment *s = v->at[i];
        while (s->of) s = s->of;
        if (s->file && km_kmx_intact(s->file, err) != KM_OK) return KM_ERR_FILE;
    }
    return status;
}

int64_t km_snapshot_count(const km_snapshot *v, int64_t *dead) {
    int64_t rows = 0;
    *dead = 0;
    for (int i = 0; i < v->n; i++) {
        rows += v->at[i]->rows;
        *dead += atomic_load_explicit(&v->at[i]->dead_rows, memory_order_relaxed);
    }
    return rows;
}

int64_t km_cell_rows(const km_snapshot *v, int64_t cell) {
    int64_t n = 0;
    for (int i = 0; i < v->n; i++)
        n += (int64_t)(v->at[i]->start[cell + 1] - v->at[i]->start[cell]);
    return n;
}

int64_t km_cell_live(const km_snapshot *v, int64_t cell, bool with_dead, km_row_place *places) {
    int64_t n = 0;
    for (int i = 0; i < v->n; i++) {
        const km_segment *s = v->at[i];
        for (uint64_t r = s->start[cell]; r < s->start[cell + 1]; r++)
            if (with_dead || !km_segment_is_dead(s, (int64_t)r))
                places[n++] = (km_row_place){i, (int64_t)r};
    }
    return n;
}
