/* The states of a grammar while it is matched, made when they are met. A state is a set of places
 * where the next byte may belong, each with the rules to come back to; what it becomes after a byte
 * is looked up the second time. */
#ifndef KM_TEXT_GRAMMAR_STATES_H
#define KM_TEXT_GRAMMAR_STATES_H
#include "text/grammar_rules.h"
#include "base/hash.h"

enum { KM_STATE_DEAD, KM_STATE_START };
#define KM_RUN_ANY 255

#define KM_STATE_PLACES 8192               /* of one state */
#define KM_STATES_WORK ((int64_t)20000000) /* places looked at in one call */

typedef struct km_state {
    size_t first; /* of its places */
    uint32_t n;
    bool may_end;
    bool same_known; /* the next two are worked out */
    bool stops;      /* after a run of that many no more of them can follow */
    uint8_t run;     /* characters of `same` that can follow; KM_RUN_ANY: as many as one likes */
    uint64_t same;   /* groups of characters (grammar_trie.h) that all lead to one state ... */
    uint64_t dead;   /* groups of characters none of which can follow */
    int32_t after;   /* ... this one */
    int32_t mask;    /* its slot among the masks; -1: none */
} km_state;

typedef struct km_states {
    const km_grammar *g;
    km_state *states;
    int32_t *next; /* (states, classes): the state after a byte of a class; -1: not known yet */
    size_t n, cap;
    km_hash table;    /* states by their places */
    uint64_t *places; /* item << 44 | node << 29 | stack, sorted in each state */
    size_t n_places, cap_places;
    uint64_t *stacks; /* item to come back to << 32 | the stack below; stack 0 is empty */
    size_t n_stacks, cap_stacks;
    km_hash stack_table;
    /* the closure in the making */
    uint64_t *work, *seen, *found;
    size_t n_work, cap_work, n_seen, seen_slots, n_found, cap_found;
    bool ends;
    int64_t budget; /* places that may still be looked at */
    km_error error; /* sticks until the next call that begins one */
} km_states;

km_status km_states_begin(km_states *s, const km_grammar *g, km_error *err);
void km_states_free(km_states *s);

/* The state after a byte; KM_STATE_DEAD with s->error set where the grammar grows out of bounds. */
int32_t km_states_next(km_states *s, int32_t state, uint8_t byte);

/* Forgets all but one state, whose new number is returned; -1 when out of memory. */
int32_t km_states_forget(km_states *s, int32_t keep);
bool km_states_crowded(const km_states *s); /* time to forget */

#endif
