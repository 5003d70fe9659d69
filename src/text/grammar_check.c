/* Refuses rules that begin with themselves: expanding one would never come to a character. Which
 * rules can be empty is found first, since "a ::= b? a" begins with a too, when b is nothing. */
#include "base/alloc.h"
#include "text/grammar_rules.h"
#include <string.h>

/* ---- Which rules can be empty ---- */

/* An alternative is empty when all its items are, so each waits for the rules in it. */
typedef struct waits {
    uint32_t *of_rule; /* (rules + 1): where a rule's users begin in `alts` */
    uint32_t *alts;    /* alternatives, by the place of their first item, once for each use */
    uint32_t *left;    /* by first item: items not known to be empty; UINT32_MAX: it never is */
    uint32_t *owner;   /* by first item: its rule */
    uint32_t *queue;
} waits;

static bool waits_alloc(waits *w, const km_grammar *g) {
    w->of_rule = km_calloc(g->n_rules + 2, sizeof *w->of_rule);
    w->alts = km_alloc((g->n_items + 1) * sizeof *w->alts);
    w->left = km_alloc((g->n_items + 1) * sizeof *w->left);
    w->owner = km_alloc((g->n_items + 1) * sizeof *w->owner);
    w->queue = km_alloc((g->n_rules + 1) * sizeof *w->queue);
    return w->of_rule && w->alts && w->left && w->owner && w->queue;
}

static void waits_free(waits *w) {
    km_free(w->of_rule);
    km_free(w->alts);
    km_free(w->left);
    km_free(w->owner);
    km_free(w->queue);
}

static void find_empty(const km_grammar *g, waits *w, bool *empty) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < g->n_rules; r++)
        for (uint32_t a = 0; a < g->rules[r].n_alts; a++) {
            uint32_t first = g->rules[r].alts[a], count = 0;
            bool chars = false;
            for (uint32_t i = first; g->items[i].kind != KM_ITEM_END; i++, count++)
                chars = chars || g->items[i].kind == KM_ITEM_CHARS;
            w->left[first] = chars ? UINT32_MAX : count;
            w->owner[first] = r;
            for (uint32_t i = first; !chars && g->items[i].kind != KM_ITEM_END; i++)
                w->of_rule[g->items[i].arg + 2]++;
            if (count == 0 && !empty[r]) {
                empty[r] = true;
                w->queue[n++] = r;
            }
        }
    for (size_t r = 2; r < g->n_rules + 2; r++) w->of_rule[r] += w->of_rule[r - 1];
    for (uint32_t r = 0; r < g->n_rules; r++) /* of_rule[r + 1] moves up to its end meanwhile */
        for (uint32_t a = 0; a < g->rules[r].n_alts; a++) {
            uint32_t first = g->rules[r].alts[a];
            for (uint32_t i = first;
                 w->left[first] != UINT32_MAX && g->items[i].kind != KM_ITEM_END; i++)
                w->alts[w->of_rule[g->items[i].arg + 1]++] = first;
        }
    while (n > 0) {
        uint32_t r = w->queue[--n];
        for (uint32_t i = w->of_rule[r]; i < w->of_rule[r + 1]; i++) {
            uint32_t first = w->alts[i];
            if (--w->left[first] > 0 || empty[w->owner[first]]) continue;
            empty[w->owner[first]] = true;
            w->queue[n++] = w->owner[first];
        }
    }
}

/* ---- Which rules begin with which ---- */

typedef struct rule_place { /* where the walk is in a rule */
    uint32_t rule, alt, item;
} rule_place;

/* The next rule that `p->rule` can begin with; false when there is no more. */
static bool next_edge(const km_grammar *g, const bool *empty, rule_place *p, uint32_t *to,
                      bool *harmless) {
    const km_grammar_rule *r = &g->rules[p->rule];
    while (p->alt < r->n_alts) {
        uint32_t first = r->alts[p->alt], at = first + p->item;
        const km_grammar_item *i = &g->items[at];
        /* Only what can be empty may stand before. */
        bool blocked = p->item && !(i[-1].kind == KM_ITEM_RULE && empty[i[-1].arg]);
        if (blocked || i->kind != KM_ITEM_RULE) {
            p->alt++;
            p->item = 0;
            continue;
        }
        *to = i->arg;
        /* "r ::= x r" comes round without growing anything, so x may be empty: that is x*. */
        *harmless = p->item > 0 && i[1].kind == KM_ITEM_END;
        p->item++;
        return true;
    }
    return false;
}

typedef struct component_walk { /* Tarjan's components, without recursion */
    uint32_t *order, *low, *component, *open;
    rule_place *path;
    uint32_t n_order, n_open, n_components;
    size_t n_path;
} component_walk;

static void enter(component_walk *w, uint32_t rule) {
    w->order[rule] = w->low[rule] = ++w->n_order;
    w->open[w->n_open++] = rule;
    w->path[w->n_path++] = (rule_place){rule, 0, 0};
}

static void find_components(const km_grammar *g, const bool *empty, component_walk *w) {
    for (uint32_t start = 0; start < g->n_rules; start++) {
        if (w->order[start]) continue;
        enter(w, start);
        while (w->n_path) {
            rule_place *p = &w->path[w->n_path - 1];
            uint32_t to, from = p->rule;
            bool harmless;
            if (next_edge(g, empty, p, &to, &harmless)) {
                if (!w->order[to])
                    enter(w, to);
                else if (!w->component[to] && w->order[to] < w->low[from])
                    w->low[from] = w->order[to];
                continue;
            }
            w->n_path--;
            if (w->n_path && w->low[from] < w->low[w->path[w->n_path - 1].rule])
                w->low[w->path[w->n_path - 1].rule] = w->low[from];
            if (w->low[from] != w->order[from]) continue;
            uint32_t member;
            w->n_components++;
            do {
                member = w->open[--w->n_open];
                w->component[member] = w->n_components;
            } while (member != from);
        }
    }
}

static km_status refuse(const km_grammar *g, const component_walk *w, uint32_t rule,
                        km_error *err) {
    uint32_t shown = rule; /* one with a name, if the circle has any */
    for (uint32_t r = 0; r < g->n_rules && !g->rules[shown].name[0]; r++)
        if (w->component[r] == w->component[rule] && g->rules[r].name[0]) shown = r;
    const char *name = g->rules[shown].name;
    if (!name[0])
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "grammar, line %d: a repetition begins with itself (left recursion)",
                            g->rules[shown].line);
    return km_error_set(err, KM_ERR_UNSUPPORTED,
                        "grammar, line %d: the rule '%.60s' begins with itself (left recursion); "
                        "put what comes first in front",
                        g->rules[shown].line, name);
}

static km_status find_circle(const km_grammar *g, const bool *empty, component_walk *w,
                             km_error *err) {
    find_components(g, empty, w);
    for (uint32_t r = 0; r < g->n_rules; r++) {
        rule_place p = {r, 0, 0};
        uint32_t to;
        bool harmless;
        while (next_edge(g, empty, &p, &to, &harmless))
            if (w->component[to] == w->component[r] && !harmless) return refuse(g, w, r, err);
    }
    return KM_OK;
}

km_status km_grammar_bounded(const km_grammar *g, km_error *err) {
    waits w = {0};
    component_walk k = {0};
    size_t n = g->n_rules + 1;
    bool *empty = km_calloc(n, sizeof *empty);
    k.order = km_calloc(n, sizeof *k.order);
    k.low = km_calloc(n, sizeof *k.low);
    k.component = km_calloc(n, sizeof *k.component);
    k.open = km_calloc(n, sizeof *k.open);
    k.path = km_calloc(n, sizeof *k.path);
    km_status status = KM_OK;
    if (!empty || !k.order || !k.low || !k.component || !k.open || !k.path || !waits_alloc(&w, g)) {
        status = km_error_set(err, KM_ERR_MEMORY, "cannot read a grammar: out of memory");
    } else {
        find_empty(g, &w, empty);
        status = find_circle(g, empty, &k, err);
    }
    waits_free(&w);
    km_free(empty);
    km_free(k.order);
    km_free(k.low);
    km_free(k.component);
    km_free(k.open);
    km_free(k.path);
    return status;
}
