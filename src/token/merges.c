/* The table of merges. */
#include "token/merges.h"
#include "base/alloc.h"
#include "base/array.h"

#define MOST_MERGES (1 << 26)

km_status km_merges_put(km_merges *m, int32_t left, int32_t right, int32_t to, km_error *err) {
    if (m->count >= MOST_MERGES)
        return km_error_set(err, KM_ERR_FORMAT, "more than %d merges", MOST_MERGES);
    if (!km_array_reserve(&m->list, &m->room, m->count + 1)) return km_no_memory_for(err, "merges");
    m->list[m->count++] = (km_merge){left, right, to};
    return KM_OK;
}

km_status km_merges_index(km_merges *m, km_error *err) {
    if (m->count == 0) return KM_OK;
    uint32_t size = 16;
    while (size < 2 * (uint32_t)m->count) size *= 2;
    km_free(m->slot);
    m->slot = km_alloc(size * sizeof *m->slot);
    if (!m->slot) return km_no_memory_for(err, "merges");
    m->mask = size - 1;
    for (uint32_t i = 0; i < size; i++) m->slot[i].left = -1;
    for (int32_t rank = 0; rank < m->count; rank++) {
        const km_merge *e = &m->list[rank];
        uint32_t i = km_pair_hash(e->left, e->right) & m->mask;
        while (m->slot[i].left >= 0 && (m->slot[i].left != e->left || m->slot[i].right != e->right))
            i = (i + 1) & m->mask;
        if (m->slot[i].left >= 0) continue;
        m->slot[i].left = e->left;
        m->slot[i].right = e->right;
        m->slot[i].rank = (uint32_t)rank;
        m->slot[i].to = e->to;
    }
    return KM_OK;
}

void km_merges_free(km_merges *m) {
    km_free(m->list);
    km_free(m->slot);
    *m = (km_merges){0};
}
