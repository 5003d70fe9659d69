/* Merges of neighbouring tokens: which pair becomes what, and in which order. */
#ifndef KM_TOKEN_MERGES_H
#define KM_TOKEN_MERGES_H
#include "base/error.h"
#include <stdint.h>

typedef struct km_merge {
    int32_t left, right, to;
} km_merge;

typedef struct km_merges { /* all-zero is valid and empty */
    km_merge *list;        /* by rank: list[0] goes first */
    int32_t count, room;
    struct km_merge_slot {
        int32_t left, right; /* left -1: empty */
        uint32_t rank;
        int32_t to;
    } * slot;
    uint32_t mask;
} km_merges;

#define KM_NO_RANK UINT32_MAX

km_status km_merges_put(km_merges *m, int32_t left, int32_t right, int32_t to, km_error *err);
/* Makes km_merges_find work. A pair that comes twice keeps its first place. */
km_status km_merges_index(km_merges *m, km_error *err);
void km_merges_free(km_merges *m);

static inline uint32_t km_pair_hash(int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32);
}

/* The rank of the pair, and in *to what it becomes; KM_NO_RANK: it does not merge. */
static inline uint32_t km_merges_find(const km_merges *m, int32_t left, int32_t right,
                                      int32_t *to) {
    if (!m->slot) return KM_NO_RANK;
    uint32_t i = km_pair_hash(left, right) & m->mask;
    while (m->slot[i].left >= 0) {
        if (m->slot[i].left == left && m->slot[i].right == right) {
            *to = m->slot[i].to;
            return m->slot[i].rank;
        }
        i = (i + 1) & m->mask;
    }
    return KM_NO_RANK;
}

#endif
