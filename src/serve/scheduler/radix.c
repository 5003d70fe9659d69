/* The radix tree of the prefix cache. Children are found by one hash table of the whole tree, since below a
 * system prompt there may be thousands of them. */
#include "serve/scheduler/radix.h"
#include "base/alloc.h"
#include "base/hash.h"
#include <string.h>

size_t km_common_tokens(const int32_t *a, size_t n, const int32_t *b, size_t m) {
    size_t most = n < m ? n : m, i = 0;
    while (i + 64 <= most && memcmp(a + i, b + i, 64 * sizeof *a) == 0) i += 64;
    while (i < most && a[i] == b[i]) i++;
    return i;
}

/* ---- Order of use ---- */

static void unlink_use(km_radix *t, km_radix_node *x) {
    if (x->older)
        x->older->newer = x->newer;
    else
        t->oldest = x->newer;
    if (x->newer)
        x->newer->older = x->older;
    else
        t->newest = x->older;
}

/* Behind `after`; NULL: it becomes the oldest. */
static void link_use(km_radix *t, km_radix_node *x, km_radix_node *after) {
    x->older = after;
    x->newer = after ? after->newer : t->oldest;
    if (x->older)
        x->older->newer = x;
    else
        t->oldest = x;
    if (x->newer)
        x->newer->older = x;
    else
        t->newest = x;
}

/* From the node up, so that none is older than what is below it. */
static void mark_used(km_radix *t, km_radix_node *x) {
    for (; x && x->parent; x = x->parent) {
        unlink_use(t, x);
        link_use(t, x, t->newest);
    }
}

/* ---- Children ---- */

static size_t bucket_of(const km_radix *t, const km_radix_node *parent, int32_t id) {
    uint64_t key = (uint64_t)(uintptr_t)parent * 0x9e3779b97f4a7c15u + (uint32_t)id;
    return km_hash_u64(key) & (t->buckets - 1);
}

static km_radix_node *child(const km_radix *t, const km_radix_node *parent, int32_t id) {
    km_radix_node *x = t->buckets ? t->bucket[bucket_of(t, parent, id)] : NULL;
    while (x && (x->parent != parent || x->ids[0] != id)) x = x->chain;
    return x;
}

static void link_child(km_radix *t, km_radix_node *x, km_radix_node *parent) {
    km_radix_node **at = &t->bucket[bucket_of(t, parent, x->ids[0])];
    x->parent = parent;
    x->chain = *at;
    *at = x;
    x->next = parent->first;
    parent->first = x;
}

static void unlink_child(km_radix *t, km_radix_node *x) {
    km_radix_node **at = &t->bucket[bucket_of(t, x->parent, x->ids[0])];
    while (*at != x) at = &(*at)->chain;
    *at = x->chain;
    for (at = &x->parent->first; *at != x;) at = &(*at)->next;
    *at = x->next;
}

/* Room for two nodes more: an insertion makes no more than that. */
static bool grow(km_radix *t) {
    if (t->nodes + 2 <= t->buckets) return true;
    size_t n = t->buckets ? 2 * t->buckets : 64, before = t->buckets;
    km_radix_node **old = t->bucket, **more = km_calloc(n, sizeof(km_radix_node *));
    if (!more) return false;
    t->bucket = more;
    t->buckets = n;
    for (size_t i = 0; i < before; i++)
        for (km_radix_node *x = old[i], *next; x; x = next) {
            next = x->chain;
            km_radix_node **at = &more[bucket_of(t, x->parent, x->ids[0])];
            x->chain = *at;
            *at = x;
        }
    km_free(old);
    return true;
}

/* ---- Nodes ---- */

static km_radix_node *root_of(const km_radix *t, const km_radix_key *k) {
    km_radix_node *r = t->roots;
    while (r && (r->domain != k->domain || r->variant != k->variant)) r = r->next;
    return r;
}

static km_radix_node *new_root(km_radix *t, const km_radix_key *k) {
    km_radix_node *r = km_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->domain = k->domain;
    r->variant = k->variant;
    r->next = t->roots;
    t->roots = r;
    return r;
}

static void drop_empty_root(km_radix *t, km_radix_node *r) {
    if (r->first) return;
    km_radix_node **at = &t->roots;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    km_free(r);
}

static km_radix_node *new_node(const int32_t *ids, size_t n) {
    km_radix_node *x = km_calloc(1, sizeof *x);
    int32_t *copy = km_alloc(n * sizeof *copy);
    if (!x || !copy) {
        km_free(x);
        km_free(copy);
        return NULL;
    }
    memcpy(copy, ids, n * sizeof *copy);
    x->ids = copy;
    x->n = n;
    return x;
}

static void free_node(km_radix *t, km_radix_node *x) {
    unlink_child(t, x);
    unlink_use(t, x);
    km_free(x->ids);
    km_free(x);
    t->nodes--;
}

/* The first n tokens of a run become a node above it, which is returned; NULL: out of memory. */
static km_radix_node *split(km_radix *t, km_radix_node *x, size_t n) {
    if (!grow(t)) return NULL;
    km_radix_node *above = new_node(x->ids, n), *parent = x->parent;
    if (!above) return NULL;
    unlink_child(t, x);
    memmove(x->ids, x->ids + n, (x->n - n) * sizeof *x->ids);
    x->n -= n;
    above->end = x->end - x->n;
    link_child(t, above, parent);
    link_child(t, x, above);
    link_use(t, above, x);
    t->nodes++;
    return above;
}

km_radix_node *km_radix_find(const km_radix *t, const km_radix_key *k, size_t *length) {
    km_radix_node *x = root_of(t, k), *next;
    size_t at = 0;
    while (x && at == x->end && at < k->n && (next = child(t, x, k->ids[at]))) {
        at += km_common_tokens(k->ids + at, k->n - at, next->ids, next->n);
        x = next;
    }
    *length = at;
    return at ? x : NULL;
}

void *km_radix_holder(const km_radix_node *node) {
    while (!node->holder) node = node->first;
    return node->holder;
}

km_radix_node *km_radix_use(km_radix *t, km_radix_node *node, size_t length) {
    if (length < node->end) {
        km_radix_node *above = split(t, node, length - (node->end - node->n));
        if (above) node = above; /* otherwise all of it counts as used */
    }
    mark_used(t, node);
    return node;
}

km_radix_node *km_radix_add(km_radix *t, const km_radix_key *k, void *holder, bool *covered,
                            void **displaced) {
    size_t at = 0;
    km_radix_node *x = km_radix_find(t, k, &at);
    *covered = false;
    *displaced = NULL;
    if (x && at == k->n) { /* all of it is there */
        x = km_radix_use(t, x, at);
        *covered = !x->holder || x->end > at; /* longer where memory ran out for the split */
        if (*covered) return NULL;
        *displaced = x->holder;
        x->holder = holder;
        return x;
    }
    km_radix_node *leaf = grow(t) ? new_node(k->ids + at, k->n - at) : NULL;
    if (leaf && x && at < x->end) x = split(t, x, at - (x->end - x->n));
    if (leaf && at == 0) x = root_of(t, k) ? root_of(t, k) : new_root(t, k);
    if (!leaf || !x) {
        if (leaf) km_free(leaf->ids);
        km_free(leaf);
        return NULL;
    }
    *displaced = x->holder;
    x->holder = NULL;
    leaf->holder = holder;
    leaf->end = k->n;
    link_child(t, leaf, x);
    link_use(t, leaf, t->newest);
    mark_used(t, leaf);
    t->nodes++;
    return leaf;
}

km_radix_node *km_radix_oldest(const km_radix *t, const km_radix_node *but, const void *but_of) {
    km_radix_node *x = t->oldest;
    while (x && (!x->holder || x == but || (but_of && x->holder == but_of))) x = x->newer;
    return x;
}

km_radix_node *km_radix_cut(km_radix *t, km_radix_node *leaf) {
    km_radix_node *parent = leaf->parent;
    void *holder = leaf->holder;
    free_node(t, leaf);
    if (parent->first) return NULL;
    if (!parent->parent) {
        drop_empty_root(t, parent);
        return NULL;
    }
    parent->holder = holder;
    return parent;
}

void km_radix_remove(km_radix *t, km_radix_node *leaf) {
    while (leaf) leaf = km_radix_cut(t, leaf);
}

void km_radix_free(km_radix *t) {
    for (km_radix_node *x; (x = km_radix_oldest(t, NULL, NULL));) km_radix_remove(t, x);
    km_free(t->bucket);
    *t = (km_radix){0};
}
