/* A vocabulary as a tree of bytes, its nodes in the order of a walk: the subtree of a node is the
 * stretch of nodes after it, and its tokens are a stretch of the tokens in order of their bytes. */
#ifndef KM_TEXT_GRAMMAR_TRIE_H
#define KM_TEXT_GRAMMAR_TRIE_H
#include "text/grammar.h"

/* Bytes fall into groups, so that a set of 64 bits says which occur below a node. Of characters
 * beyond ASCII there is one group for whole characters and one for pieces. */
enum { KM_GROUP_WHOLE = 62, KM_GROUP_PIECES = 63 };
int km_trie_group(uint8_t ascii); /* 0 to 61 */

typedef struct km_trie_node {
    uint64_t groups; /* that occur below it */
    uint32_t end;    /* the node after its subtree */
    uint32_t first;  /* of its tokens, in order: those that end here, up to the `first` of the node
                      * after it, then those of its subtree, up to the `first` of node `end` */
    uint16_t depth;  /* 1 for a token's first byte */
    uint8_t byte;
    uint8_t height; /* characters of the longest text below it; 255: or more */
    uint8_t before; /* characters up to this node, its own included; 255: or more */
} km_trie_node;

struct km_trie {
    km_trie_node *nodes; /* n + 1: the last is a sentinel */
    size_t n, cap;
    int32_t *ids; /* of tokens, in order of their bytes */
    size_t n_ids;
    uint8_t *chars; /* of tokens in that order: their characters; 255: or more */
    uint64_t *all;  /* as a mask: every token that has a text */
    int max_depth;
    int64_t vocab;
    uint32_t *at;     /* (vocab): where a token's bytes begin in `bytes` ... */
    uint32_t *length; /* ... and how many they are; 0: it never matches */
    char *bytes;
    int32_t *ends;
    size_t n_ends;
};

#endif
