/* A grammar, compiled: rules are lists of alternatives, alternatives are rows of items, and an item
 * is a set of characters or a rule. Sets of characters are automata over the bytes of UTF-8. */
#ifndef KM_TEXT_GRAMMAR_RULES_H
#define KM_TEXT_GRAMMAR_RULES_H
#include "text/grammar.h"
#include "base/hash.h"

#define KM_GRAMMAR_ITEMS ((size_t)1 << 20) /* of one grammar; so that positions fit in 20 bits */
#define KM_GRAMMAR_NODES ((size_t)1 << 15)
#define KM_GRAMMAR_REPEAT 10000 /* the largest bound in {m,n} */
#define KM_GRAMMAR_NESTED 200   /* groups within groups */

enum { KM_ITEM_END, KM_ITEM_CHARS, KM_ITEM_RULE };

typedef struct km_grammar_item {
    uint32_t kind : 2;
    uint32_t arg : 30; /* CHARS: a node, RULE: a rule */
} km_grammar_item;

typedef struct km_grammar_rule {
    char *name; /* "" for those made from groups and repetition */
    int line;   /* where it is defined; of a made one: of its operator */
    bool defined;
    uint32_t *alts; /* where each alternative begins in items */
    uint32_t n_alts, cap;
} km_grammar_rule;

/* ---- Characters ---- */

typedef struct km_char_range { /* of code points, both ends included */
    uint32_t lo, hi;
} km_char_range;

/* Automata over bytes: node DEAD leads nowhere, at node DONE a character is complete. While a
 * grammar is made nodes have 256 ways out; then bytes that no node tells apart become one class. */
enum { KM_NODE_DEAD, KM_NODE_DONE };

typedef struct km_char_nodes {
    uint16_t (*next)[256];
    size_t n, cap;
    km_hash table; /* nodes by their ways out */
} km_char_nodes;

km_status km_char_nodes_begin(km_char_nodes *k, km_error *err);
void km_char_nodes_free(km_char_nodes *k);
/* The node where characters of the ranges begin; the ranges are sorted and joined in place. */
km_status km_char_nodes_class(km_char_nodes *k, km_char_range *ranges, size_t n, bool negated,
                              uint16_t *node, km_error *err);

/* ---- A grammar ---- */

struct km_grammar {
    km_grammar_item *items;
    size_t n_items, cap_items;
    km_grammar_rule *rules;
    size_t n_rules, cap_rules;
    uint32_t root;
    km_char_nodes nodes; /* empty once the next two are made */
    uint16_t *step;      /* (n_nodes, n_classes): the node after a byte of a class */
    size_t n_nodes;
    uint8_t class_of[256];
    int n_classes;
};

/* Makes `step` from the nodes. */
km_status km_grammar_compress(km_grammar *g, km_error *err);
/* Refuses rules that begin with themselves. */
km_status km_grammar_bounded(const km_grammar *g, km_error *err);

#endif
