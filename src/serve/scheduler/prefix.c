/* The prefix cache: sequences that have ended are kept, and a radix tree over their tokens finds the longest
 * beginning that a prompt has in common with any of them. Pages are shared by forking, so that one system
 * prompt serves everybody of a domain. Where pages are needed, the least recently used leaf gives its own
 * back: what is above it, and used by others, stays. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <string.h>

enum { WORTH = 16 }; /* shorter beginnings are read again */

static int index_of(const km_scheduler *s, const km_slot *slot) { return (int)(slot - s->slots); }

/* Those that run are few, and change with every step: they are looked at one by one. */
static void find_running(km_scheduler *s, const km_task *t, km_prefix_match *m, bool *wait) {
    size_t n = t->n_ids;
    for (int i = 0; i < s->n_slots; i++) {
        const km_slot *slot = &s->slots[i];
        if (slot->state != KM_SLOT_RUNNING || slot->domain != t->domain ||
            slot->variant != t->variant)
            continue;
        /* One that is to match further matches there: most are told apart by this token alone. */
        size_t best = m->length;
        if (best > 0 && (best >= n || best >= slot->n || slot->ids[best] != t->ids[best])) continue;
        size_t k = km_common_tokens(t->ids, n, slot->ids, slot->n);
        if (k <= best) continue;
        int64_t held = km_batch_length(s->batch, i);
        size_t read = held > 0 ? (size_t)held : 0;
        /* Most of this prompt is being read just now: one reading serves both. */
        if (read < k && k >= 256 && 4 * k >= 3 * n) *wait = true;
        if (read < k) k = read;
        if (k > best) *m = (km_prefix_match){.slot = i, .length = k};
    }
}

km_prefix_match km_prefix_find(km_scheduler *s, const km_task *t, bool *wait) {
    km_prefix_match none = {.slot = -1}, m = none;
    km_radix_key k = {t->domain, t->variant, t->ids, t->n_ids};
    *wait = false;
    if (s->o.kept < 0) return none;
    m.node = km_radix_find(&s->prefixes, &k, &m.length);
    find_running(s, t, &m, wait);
    if (m.length < WORTH) return none;
    if (*wait && 2 * m.length >= t->n_ids) *wait = false; /* what is there is good enough */
    return m;
}

void km_prefix_use(km_scheduler *s, km_prefix_match *m) {
    if (m->node) m->node = km_radix_use(&s->prefixes, m->node, m->length);
}

int km_prefix_slot(const km_scheduler *s, const km_prefix_match *m) {
    return m->node ? index_of(s, km_radix_holder(m->node)) : m->slot;
}

void km_prefix_take(km_scheduler *s, int i) {
    km_radix_remove(&s->prefixes, s->slots[i].leaf);
    s->slots[i] = (km_slot){0};
    s->n_kept--;
}

/* Its pages are free at once: leaving alone would wait for the next step, and others would go meanwhile. */
void km_prefix_drop(km_scheduler *s, int i) {
    km_batch_rewind(s->batch, i, 0);
    km_batch_leave(s->batch, i);
    s->slots[i] = (km_slot){0};
}

static void count_evicted(km_scheduler *s, size_t tokens, bool whole) {
    pthread_mutex_lock(&s->lock);
    s->counts.evicted += whole;
    s->counts.evicted_tokens += (int64_t)tokens;
    pthread_mutex_unlock(&s->lock);
}

/* Does a node go with the leaf, which is all that is below it? */
static bool goes_with(const km_radix_node *node, const km_radix_node *leaf) {
    while (leaf != node && leaf->parent && leaf->parent->first == leaf && !leaf->next)
        leaf = leaf->parent;
    return leaf == node;
}

bool km_prefix_shrink(km_scheduler *s, km_prefix_match *but) {
    km_radix_node *leaf = km_radix_oldest(&s->prefixes, but ? but->node : NULL, NULL);
    if (!leaf) return false;
    km_slot *slot = leaf->holder;
    int i = index_of(s, slot);
    size_t n = leaf->n;
    km_shelf_put(s, i);
    leaf = km_radix_cut(&s->prefixes, leaf);
    /* A model whose layers all have windows may have lost what the shorter beginning needs. */
    if (leaf && leaf->end >= WORTH && km_batch_rewind(s->batch, i, (int64_t)leaf->end) == KM_OK &&
        km_batch_length(s->batch, i) == (int64_t)leaf->end) {
        slot->leaf = leaf;
        slot->n = leaf->end;
    } else {
        if (leaf) n = slot->n;
        if (leaf && but && but->node && goes_with(but->node, leaf))
            *but = (km_prefix_match){.slot = -1};
        km_radix_remove(&s->prefixes, leaf);
        km_prefix_drop(s, i);
        s->n_kept--;
        leaf = NULL;
    }
    count_evicted(s, n, !leaf);
    return true;
}

bool km_prefix_evict(km_scheduler *s, const km_prefix_match *but) {
    const void *used = but && but->node ? km_radix_holder(but->node) : NULL;
    km_radix_node *leaf = km_radix_oldest(&s->prefixes, NULL, used);
    if (!leaf) return false;
    km_slot *slot = leaf->holder;
    int i = index_of(s, slot);
    size_t n = leaf->n;
    km_shelf_put(s, i);
    km_prefix_take(s, i);
    km_prefix_drop(s, i);
    count_evicted(s, n, true);
    return true;
}

void km_prefix_clear(km_scheduler *s) {
    for (km_radix_node *leaf; (leaf = km_radix_oldest(&s->prefixes, NULL, NULL));) {
        int i = index_of(s, leaf->holder);
        km_prefix_take(s, i);
        km_prefix_drop(s, i);
    }
}

void km_prefix_keep(km_scheduler *s, int i) {
    km_slot *slot = &s->slots[i];
    int64_t held = km_batch_length(s->batch, i);
    int32_t *ids = s->o.kept >= 0 && held >= WORTH ? km_alloc((size_t)held * sizeof *ids) : NULL;
    int64_t n = ids ? km_batch_tokens(s->batch, i, ids, (size_t)held) : -1;
    bool covered = false;
    void *displaced = NULL;
    km_radix_node *leaf = NULL;
    if (n == held && ids) {
        km_radix_key k = {slot->domain, slot->variant, ids, (size_t)n};
        leaf = km_radix_add(&s->prefixes, &k, slot, &covered, &displaced);
    }
    km_free(ids);
    if (displaced) { /* the new one has all that it had */
        km_prefix_drop(s, index_of(s, displaced));
        s->n_kept--;
    }
    if (!leaf) {
        km_prefix_drop(s, i);
        return;
    }
    *slot = (km_slot){.state = KM_SLOT_KEPT,
                      .leaf = leaf,
                      .n = (size_t)n,
                      .domain = slot->domain,
                      .variant = slot->variant};
    s->n_kept++;
    km_prefix_match own = {.slot = i, .node = leaf};
    while (s->n_kept > s->o.kept && km_prefix_evict(s, &own)) {}
}
