/* States of a grammar and the steps between them. Stacks of rules to come back to are shared lists:
 * equal ones are one, so sets of places compare as numbers. A rule that ends with another does not
 * leave itself on the stack, so lists as long as one likes take no room. */
#include "text/grammar_states.h"
#include "base/alloc.h"
#include "base/array.h"
#include <stdlib.h>
#include <string.h>

#define STACK_BITS 29
#define NODE_BITS 15
#define MAX_STACKS ((size_t)1 << STACK_BITS)

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static bool no_memory(km_states *s) {
    km_error_set(&s->error, KM_ERR_MEMORY, "cannot match a grammar: out of memory");
    return false;
}

static bool too_ambiguous(km_states *s) {
    km_error_set(&s->error, KM_ERR_UNSUPPORTED,
                 "the grammar is too ambiguous: a text can be read in too many ways at once");
    return false;
}

/* ---- Stacks ---- */

static bool push(km_states *s, uint32_t item, uint32_t below, uint32_t *stack) {
    uint64_t key = (uint64_t)item << 32 | below;
    uint32_t hash = km_hash_u64(key);
    for (size_t step = 0; (*stack = km_hash_next(&s->stack_table, hash, &step)) != KM_HASH_NONE;)
        if (s->stacks[*stack] == key) return true;
    if (s->n_stacks >= MAX_STACKS) return too_ambiguous(s);
    *stack = (uint32_t)s->n_stacks;
    if (!km_array_reserve(&s->stacks, &s->cap_stacks, s->n_stacks + 1) ||
        !km_hash_put(&s->stack_table, hash, *stack))
        return no_memory(s);
    s->stacks[s->n_stacks++] = key;
    return true;
}

/* ---- Closures ---- */

/* Whether (item, stack) was seen in this closure; marks it. */
static bool seen(km_states *s, uint64_t key, bool *was) {
    if ((s->n_seen + 1) * 2 > s->seen_slots) {
        size_t slots = s->seen_slots ? s->seen_slots * 2 : 256;
        uint64_t *table = km_calloc(slots, sizeof *table);
        if (!table) return no_memory(s);
        for (size_t i = 0; i < s->seen_slots; i++) {
            if (!s->seen[i]) continue;
            size_t at = mix(s->seen[i]) & (slots - 1);
            while (table[at]) at = (at + 1) & (slots - 1);
            table[at] = s->seen[i];
        }
        km_free(s->seen);
        s->seen = table;
        s->seen_slots = slots;
    }
    size_t at = mix(key) & (s->seen_slots - 1);
    for (; s->seen[at]; at = (at + 1) & (s->seen_slots - 1))
        if (s->seen[at] == key) {
            *was = true;
            return true;
        }
    *was = false;
    s->seen[at] = key;
    s->n_seen++;
    return true;
}

static bool later(km_states *s, uint32_t item, uint32_t stack) {
    uint64_t key = ((uint64_t)item + 1) << 32 | stack; /* never 0 */
    bool was;
    if (--s->budget < 0) return too_ambiguous(s);
    if (!seen(s, key, &was)) return false;
    if (was) return true;
    if (!km_array_reserve(&s->work, &s->cap_work, s->n_work + 1)) return no_memory(s);
    s->work[s->n_work++] = key;
    return true;
}

static bool find(km_states *s, uint64_t place) {
    if (s->n_found >= KM_STATE_PLACES * 4) return too_ambiguous(s);
    if (!km_array_reserve(&s->found, &s->cap_found, s->n_found + 1)) return no_memory(s);
    s->found[s->n_found++] = place;
    return true;
}

/* Everything that a byte may belong to from (item, stack) on, into `found`. */
static bool expand(km_states *s, uint32_t item, uint32_t stack) {
    const km_grammar *g = s->g;
    if (!later(s, item, stack)) return false;
    while (s->n_work) {
        uint64_t key = s->work[--s->n_work];
        item = (uint32_t)(key >> 32) - 1;
        stack = (uint32_t)key;
        const km_grammar_item *i = &g->items[item];
        if (i->kind == KM_ITEM_CHARS) {
            if (!find(s, (uint64_t)item << 44 | (uint64_t)i->arg << STACK_BITS | stack))
                return false;
        } else if (i->kind == KM_ITEM_END) {
            if (!stack)
                s->ends = true;
            else if (!later(s, (uint32_t)(s->stacks[stack] >> 32), (uint32_t)s->stacks[stack]))
                return false;
        } else {
            uint32_t back = stack;
            if (i[1].kind != KM_ITEM_END && !push(s, item + 1, stack, &back)) return false;
            const km_grammar_rule *rule = &g->rules[i->arg];
            for (uint32_t a = 0; a < rule->n_alts; a++)
                if (!later(s, rule->alts[a], back)) return false;
        }
    }
    return true;
}

/* ---- States ---- */

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t hash_places(const uint64_t *p, size_t n, bool ends) {
    uint64_t h = ends;
    for (size_t i = 0; i < n; i++) h = mix(h ^ p[i]) + i;
    return mix(h);
}

static bool add_state(km_states *s, km_state k) {
    if (s->n * (size_t)s->g->n_classes > ((size_t)1 << 25) || s->n_places > ((size_t)1 << 24))
        return too_ambiguous(s);
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64, classes = (size_t)s->g->n_classes;
        km_state *states = km_realloc(s->states, cap * sizeof *states);
        if (states) s->states = states;
        int32_t *next = states ? km_realloc(s->next, cap * classes * sizeof *next) : NULL;
        if (next) s->next = next;
        if (!next) return no_memory(s);
        s->cap = cap;
    }
    size_t classes = (size_t)s->g->n_classes;
    memset(s->next + s->n * classes, 0xff, classes * sizeof *s->next);
    s->states[s->n++] = k;
    return true;
}

/* The state of what was found; found and seen are empty afterwards. -1 with the error set. */
static int32_t close_state(km_states *s) {
    size_t n = 0;
    if (s->n_found > 1) qsort(s->found, s->n_found, sizeof *s->found, by_value);
    for (size_t i = 0; i < s->n_found; i++)
        if (i == 0 || s->found[i] != s->found[i - 1]) s->found[n++] = s->found[i];
    s->n_found = 0;
    if (s->n_seen) memset(s->seen, 0, s->seen_slots * sizeof *s->seen);
    s->n_seen = 0;
    if (n == 0 && !s->ends) return KM_STATE_DEAD;
    if (n > KM_STATE_PLACES) return too_ambiguous(s) ? 0 : -1;
    uint32_t hash = (uint32_t)hash_places(s->found, n, s->ends), number;
    for (size_t step = 0; (number = km_hash_next(&s->table, hash, &step)) != KM_HASH_NONE;) {
        const km_state *k = &s->states[number];
        if (k->n == n && k->may_end == s->ends &&
            (n == 0 || memcmp(s->places + k->first, s->found, n * sizeof *s->found) == 0))
            return (int32_t)number;
    }
    if (!km_array_reserve(&s->places, &s->cap_places, s->n_places + n))
        return no_memory(s) ? 0 : -1;
    if (!add_state(
            s, (km_state){.first = s->n_places, .n = (uint32_t)n, .may_end = s->ends, .mask = -1}))
        return -1;
    if (n) memcpy(s->places + s->n_places, s->found, n * sizeof *s->found);
    s->n_places += n;
    if (!km_hash_put(&s->table, hash, (uint32_t)(s->n - 1))) return no_memory(s) ? 0 : -1;
    return (int32_t)(s->n - 1);
}

/* Leaves nothing half made behind. */
static int32_t broken(km_states *s) {
    s->n_found = s->n_work = 0;
    if (s->n_seen) memset(s->seen, 0, s->seen_slots * sizeof *s->seen);
    s->n_seen = 0;
    return KM_STATE_DEAD;
}

static int32_t step(km_states *s, int32_t state, int class) {
    const km_grammar *g = s->g;
    km_state from = s->states[state];
    size_t classes = (size_t)g->n_classes;
    s->ends = false;
    for (uint32_t i = 0; i < from.n; i++) {
        uint64_t place = s->places[from.first + i];
        uint32_t stack = (uint32_t)(place & (MAX_STACKS - 1)), item = (uint32_t)(place >> 44);
        size_t node = place >> STACK_BITS & (((size_t)1 << NODE_BITS) - 1);
        uint16_t to = g->step[node * classes + (size_t) class];
        bool ok = true;
        if (--s->budget < 0)
            ok = too_ambiguous(s);
        else if (to == KM_NODE_DONE)
            ok = expand(s, item + 1, stack);
        else if (to != KM_NODE_DEAD)
            ok = find(s, (uint64_t)item << 44 | (uint64_t)to << STACK_BITS | stack);
        if (!ok) return broken(s);
    }
    int32_t next = close_state(s);
    if (next < 0) return broken(s);
    s->next[(size_t)state * classes + (size_t) class] = next;
    return next;
}

int32_t km_states_next(km_states *s, int32_t state, uint8_t byte) {
    int class = s->g->class_of[byte];
    int32_t known = s->next[(size_t)state * (size_t)s->g->n_classes + (size_t) class];
    return known >= 0 ? known : step(s, state, class);
}

static bool make_first_states(km_states *s) {
    const km_grammar_rule *root = &s->g->rules[s->g->root];
    size_t classes = (size_t)s->g->n_classes;
    if (!add_state(s, (km_state){.mask = -1})) return false; /* dead, and stays so */
    memset(s->next, 0, classes * sizeof *s->next);
    s->n_stacks = 1;
    if (!km_array_reserve(&s->stacks, &s->cap_stacks, 1)) return no_memory(s);
    s->stacks[0] = 0;
    s->ends = false;
    for (uint32_t a = 0; a < root->n_alts; a++)
        if (!expand(s, root->alts[a], 0)) return false;
    int32_t start = close_state(s);
    if (start == KM_STATE_DEAD)
        km_error_set(&s->error, KM_ERR_FORMAT, "the grammar matches no text at all");
    return start == KM_STATE_START;
}

km_status km_states_begin(km_states *s, const km_grammar *g, km_error *err) {
    *s = (km_states){.g = g, .budget = KM_STATES_WORK};
    if (make_first_states(s)) return KM_OK;
    return km_error_set(err, s->error.code, "%s", s->error.text);
}

void km_states_free(km_states *s) {
    km_free(s->states);
    km_free(s->next);
    km_hash_free(&s->table);
    km_free(s->places);
    km_free(s->stacks);
    km_hash_free(&s->stack_table);
    km_free(s->work);
    km_free(s->seen);
    km_free(s->found);
    *s = (km_states){0};
}

/* ---- Forgetting ---- */

bool km_states_crowded(const km_states *s) {
    return s->n > 60000 || s->n * (size_t)s->g->n_classes > ((size_t)1 << 23) ||
           s->n_places > ((size_t)1 << 22) || s->n_stacks > ((size_t)1 << 22);
}

/* The stack of the old numbering in the new one. */
static bool carry_stack(km_states *to, const uint64_t *old, uint32_t *known, uint32_t *path,
                        uint32_t stack, uint32_t *out) {
    size_t n = 0;
    while (stack && !known[stack]) {
        path[n++] = stack;
        stack = (uint32_t)old[stack];
    }
    *out = stack ? known[stack] : 0;
    while (n > 0) {
        uint32_t at = path[--n];
        if (!push(to, (uint32_t)(old[at] >> 32), *out, out)) return false;
        known[at] = *out;
    }
    return true;
}

int32_t km_states_forget(km_states *s, int32_t keep) {
    km_states fresh = {.g = s->g, .budget = KM_STATES_WORK};
    km_state kept = s->states[keep];
    uint32_t *known = km_calloc(s->n_stacks, sizeof *known),
             *path = km_alloc(s->n_stacks * sizeof *path);
    bool ok = known && path && make_first_states(&fresh);
    fresh.ends = kept.may_end;
    for (uint32_t i = 0; ok && i < kept.n; i++) {
        uint64_t place = s->places[kept.first + i];
        uint32_t stack;
        ok = carry_stack(&fresh, s->stacks, known, path, (uint32_t)(place & (MAX_STACKS - 1)),
                         &stack) &&
             find(&fresh, (place & ~(uint64_t)(MAX_STACKS - 1)) | stack);
    }
    km_free(known);
    km_free(path);
    int32_t state = ok ? close_state(&fresh) : -1;
    if (state < 0) {
        km_states_free(&fresh);
        return -1;
    }
    km_states_free(s);
    *s = fresh;
    return state;
}
