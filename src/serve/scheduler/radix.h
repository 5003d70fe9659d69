/* A radix tree over token ids: a compressed trie whose edges are runs of tokens. Every leaf has a holder,
 * the caller's, that has all tokens from the root to it; so whatever prompts have in common is one path,
 * and any holder below a node can serve it. Nodes are in order of use, and a node is never used later than
 * the one above it: the least recently used one is always a leaf. A lookup costs the tokens it compares and
 * one hash probe a node, however many entries there are. */
#ifndef KM_SERVE_SCHEDULER_RADIX_H
#define KM_SERVE_SCHEDULER_RADIX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_radix_node {
    struct km_radix_node *parent;       /* NULL: a root */
    struct km_radix_node *first, *next; /* children, and the next child of the parent */
    struct km_radix_node *chain;        /* the next in its bucket of the hash table */
    struct km_radix_node *older, *newer;
    int32_t *ids;             /* its run */
    size_t n, end;            /* tokens of the run, and from the root to its end */
    void *holder;             /* of a leaf; NULL: of any other */
    uint64_t domain, variant; /* of a root */
} km_radix_node;

typedef struct km_radix {   /* all-zero is an empty tree */
    km_radix_node *roots;   /* one for each domain and variant, which share nothing */
    km_radix_node **bucket; /* children by parent and first token */
    size_t buckets;
    km_radix_node *oldest, *newest;
    size_t nodes; /* roots aside */
} km_radix;

typedef struct km_radix_key {
    uint64_t domain, variant;
    const int32_t *ids;
    size_t n;
} km_radix_key;

/* The node where the longest common beginning ends, perhaps within its run, and the beginning's length;
 * NULL: there is none. */
km_radix_node *km_radix_find(const km_radix *t, const km_radix_key *k, size_t *length);
/* A holder that has all of what a node stands for. */
void *km_radix_holder(const km_radix_node *node);
/* Marks the first `length` tokens of a path, which end in `node`, as used just now, and gives the node
 * that ends there: the rest of the run becomes a node of its own, left as old as it was. */
km_radix_node *km_radix_use(km_radix *t, km_radix_node *node, size_t length);
/* Puts a holder of these tokens in, as used just now: its leaf. NULL, and *covered: others have all of them
 * already; NULL and not: out of memory. *displaced: a holder that is covered now, and in the tree no longer;
 * NULL: none. */
km_radix_node *km_radix_add(km_radix *t, const km_radix_key *k, void *holder, bool *covered,
                            void **displaced);
/* The leaf that was used least recently, `but` and leaves held by `but_of` (both may be NULL) aside; NULL:
 * there is none. */
km_radix_node *km_radix_oldest(const km_radix *t, const km_radix_node *but, const void *but_of);
/* Takes the run of a leaf off. If nothing else is below the node above it, that becomes the holder's leaf and
 * is returned; NULL: the holder is in the tree no longer. */
km_radix_node *km_radix_cut(km_radix *t, km_radix_node *leaf);
/* Takes a leaf off, and what above it nobody else holds. */
void km_radix_remove(km_radix *t, km_radix_node *leaf);
void km_radix_free(km_radix *t); /* nodes; holders are the caller's */

size_t km_common_tokens(const int32_t *a, size_t n, const int32_t *b, size_t m);

#endif
