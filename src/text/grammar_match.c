/* Follows a sequence through a grammar, and finds the tokens that may come next by walking the
 * vocabulary's tree: a byte that fits nothing takes its whole subtree with it, and so does, on the
 * other side, a state after which any of the characters below may follow, in any order. */
#include "base/alloc.h"
#include "text/grammar_states.h"
#include "text/grammar_trie.h"
#include <string.h>

#define MASKS 256 /* remembered */
#define MANY 32   /* tokens below a node that make it worth asking which may all follow */

typedef struct token_range {
    uint32_t begin, end;
} token_range;

struct km_guide {
    const km_trie *t;
    km_states s;
    int32_t state;
    bool ended;
    int32_t *path;       /* (depth + 1) states of the walk */
    token_range *ranges; /* (tokens + 1) of allowed tokens, in order of their bytes */
    size_t n_ranges, allowed;
    uint64_t **masks; /* (MASKS), made when needed */
    int32_t *mask_of; /* whose each is; 0: nobody's */
    uint64_t *only_ends;
    size_t words, next_mask;
    uint64_t asked, computed;
};

km_guide *km_guide_new(const km_grammar *g, const km_trie *t, km_error *err) {
    if (!g) {
        km_error_set(err, KM_ERR_NULL, "no grammar given");
        return NULL;
    }
    km_guide *m = km_calloc(1, sizeof *m);
    bool ok = m != NULL;
    if (ok && t) {
        m->t = t;
        m->words = ((size_t)t->vocab + 63) / 64;
        m->path = km_alloc(((size_t)t->max_depth + 1) * sizeof *m->path);
        m->ranges = km_alloc((t->n_ids + 1) * sizeof *m->ranges);
        m->masks = km_calloc(MASKS, sizeof *m->masks);
        m->mask_of = km_calloc(MASKS, sizeof *m->mask_of);
        m->only_ends = km_calloc(m->words + 1, sizeof *m->only_ends);
        ok = m->path && m->ranges && m->masks && m->mask_of && m->only_ends;
        for (size_t i = 0; ok && i < t->n_ends; i++)
            m->only_ends[t->ends[i] / 64] |= (uint64_t)1 << t->ends[i] % 64;
    }
    if (!ok) km_error_set(err, KM_ERR_MEMORY, "cannot match a grammar: out of memory");
    ok = ok && km_states_begin(&m->s, g, err) == KM_OK;
    if (!ok) {
        km_guide_free(m);
        return NULL;
    }
    m->state = KM_STATE_START;
    return m;
}

void km_guide_free(km_guide *m) {
    if (!m) return;
    for (size_t i = 0; m->masks && i < MASKS; i++) km_free(m->masks[i]);
    km_free(m->masks);
    km_free(m->mask_of);
    km_free(m->path);
    km_free(m->ranges);
    km_free(m->only_ends);
    km_states_free(&m->s);
    km_free(m);
}

void km_guide_reset(km_guide *m) {
    m->state = KM_STATE_START;
    m->ended = false;
}

/* Before each call: a fresh budget, and room. */
static km_status prepare(km_guide *m, km_error *err) {
    m->s.budget = KM_STATES_WORK;
    m->s.error = (km_error){0};
    if (!km_states_crowded(&m->s)) return KM_OK;
    int32_t state = km_states_forget(&m->s, m->state);
    if (state < 0) return km_error_set(err, KM_ERR_MEMORY, "cannot match a grammar: out of memory");
    m->state = state;
    if (m->mask_of) memset(m->mask_of, 0, MASKS * sizeof *m->mask_of);
    return KM_OK;
}

/* ---- Masks ---- */

/* The state that every whole character beyond ASCII leads to from this one; -1: not one. */
static int32_t after_characters(km_states *s, int32_t state) {
    const uint8_t *class = s->g->class_of;
    int32_t after = -1;
    for (int b = 0xc2; b <= 0xf4; b++) {
        /* As the one before, unless characters of another length or with other limits begin. */
        if (class[b] == class[b - 1] && b != 0xc2 && !strchr("\xe0\xe1\xed\xee\xf0\xf1\xf4", b))
            continue;
        int more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
        int32_t at = km_states_next(s, state, (uint8_t)b);
        /* Bytes in the middle are all alike but for the first after e0, ed, f0 and f4. */
        int low = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
        int high = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        for (; more > 0; more--) {
            int32_t next = km_states_next(s, at, (uint8_t)low);
            for (int c = low + 1; c <= high; c++)
                if (class[c] != class[c - 1] && km_states_next(s, at, (uint8_t)c) != next)
                    return -1;
            at = next;
            low = 0x80;
            high = 0xbf;
        }
        if (after >= 0 && at != after) return -1;
        after = at;
    }
    return after;
}

/* Which groups of characters lead from the state to one and the same other, which is the one that
 * most groups lead to. */
static void find_same(km_states *s, int32_t state) {
    int32_t to[64];
    memset(to, 0xff, sizeof to);
    uint64_t met = 0, mixed = (uint64_t)1 << KM_GROUP_PIECES;
    for (int c = 0; c < 128; c++) {
        int g = km_trie_group((uint8_t)c);
        int32_t next = km_states_next(s, state, (uint8_t)c);
        if (met >> g & 1 && to[g] != next) mixed |= (uint64_t)1 << g;
        met |= (uint64_t)1 << g;
        to[g] = next;
    }
    to[KM_GROUP_WHOLE] = after_characters(s, state);
    int32_t best = KM_STATE_DEAD;
    int most = 0;
    for (int g = 0; g <= KM_GROUP_WHOLE; g++) {
        int count = 0;
        for (int k = g; k <= KM_GROUP_WHOLE && to[g] > 0; k++) count += to[k] == to[g];
        if (count > most) most = count, best = to[g];
    }
    uint64_t same = 0, dead = 0;
    for (int g = 0; g <= KM_GROUP_WHOLE; g++) {
        if (mixed >> g & 1) continue;
        if (to[g] == best && best > 0) same |= (uint64_t)1 << g;
        if (to[g] == KM_STATE_DEAD) dead |= (uint64_t)1 << g;
    }
    s->states[state].same = same;
    s->states[state].dead = dead;
    s->states[state].after = best;
    s->states[state].same_known = true;
}

/* How many characters of the state's groups can follow, up to a number beyond which few tokens are
 * as long. False with s->error set. */
#define LONG_RUN 16
static bool find_run(km_states *s, int32_t state) {
    if (!s->states[state].same_known) find_same(s, state);
    uint64_t same = s->states[state].same;
    int32_t at = s->states[state].after;
    int run = same ? 1 : 0;
    while (run && run < LONG_RUN && at > 0 && !s->error.code) {
        if (!s->states[at].same_known) find_same(s, at);
        if (same & ~s->states[at].same) break;
        if (s->states[at].after == at)
            run = KM_RUN_ANY;
        else
            run++;
        at = s->states[at].after;
    }
    if (run && at > 0 && !s->states[at].same_known && !s->error.code) find_same(s, at);
    s->states[state].run = (uint8_t)run;
    s->states[state].stops =
        run && run < LONG_RUN && (at == KM_STATE_DEAD || !(same & ~s->states[at].dead));
    return s->error.code == KM_OK;
}

/* Tokens from `first` on, in order of their bytes, may come. */
static inline void allow(km_guide *m, uint32_t first, uint32_t n) {
    if (m->n_ranges && m->ranges[m->n_ranges - 1].end == first)
        m->ranges[m->n_ranges - 1].end += n;
    else if (n)
        m->ranges[m->n_ranges++] = (token_range){first, first + n};
    m->allowed += n;
}

/* The ranges as bits. Where most tokens may come, those that may not are fewer to go through. */
static void put_bits(const km_guide *m, uint64_t *mask) {
    const km_trie *t = m->t;
    bool most = m->allowed > t->n_ids / 2;
    uint32_t at = 0;
    for (size_t i = 0; i < m->words && most; i++) mask[i] |= t->all[i];
    for (size_t i = 0; i <= m->n_ranges; i++) {
        bool last = i == m->n_ranges;
        uint32_t begin = most ? at : last ? 0 : m->ranges[i].begin;
        uint32_t end = most   ? last ? (uint32_t)t->n_ids : m->ranges[i].begin
                       : last ? 0
                              : m->ranges[i].end;
        for (uint32_t k = begin; k < end; k++) {
            uint64_t bit = (uint64_t)1 << t->ids[k] % 64;
            if (most)
                mask[t->ids[k] / 64] &= ~bit;
            else
                mask[t->ids[k] / 64] |= bit;
        }
        if (!last) at = m->ranges[i].end;
    }
}

/* False with s->error set when the grammar grew out of bounds. */
static bool walk(km_guide *m) {
    const km_trie *t = m->t;
    km_states *s = &m->s;
    const size_t classes = (size_t)s->g->n_classes;
    m->path[0] = m->state;
    m->n_ranges = m->allowed = 0;
    for (size_t i = 0; i < t->n;) {
        const km_trie_node *node = &t->nodes[i];
        int32_t from = m->path[node->depth - 1];
        int32_t to = s->next[(size_t)from * classes + s->g->class_of[node->byte]];
        if (to < 0) {
            to = km_states_next(s, from, node->byte);
            if (s->error.code) return false;
        }
        if (to == KM_STATE_DEAD) {
            i = node->end;
            continue;
        }
        uint32_t below = t->nodes[node->end].first - node->first;
        const km_state *k = &s->states[to];
        if (below > MANY && !k->run) {
            if (!find_run(s, to)) return false;
            k = &s->states[to];
        }
        /* Where nothing is below, nothing needs to follow. */
        if (!(node->groups & ~k->same) && (node->height <= k->run || k->run == KM_RUN_ANY)) {
            allow(m, node->first, below);
            i = node->end;
            continue;
        }
        if (!(node->groups & ~k->same) && k->stops) {
            for (uint32_t j = node->first; j < node->first + below; j++)
                allow(m, j, t->chars[j] < 255 && t->chars[j] - node->before <= k->run);
            i = node->end;
            continue;
        }
        allow(m, node->first, node[1].first - node->first);
        m->path[node->depth] = to;
        i++;
    }
    return true;
}

static uint64_t *mask_slot(km_guide *m, size_t *slot) {
    *slot = m->next_mask;
    m->next_mask = (m->next_mask + 1) % MASKS;
    if (!m->masks[*slot]) m->masks[*slot] = km_alloc((m->words + 1) * sizeof **m->masks);
    if (m->masks[*slot] && m->mask_of[*slot]) m->s.states[m->mask_of[*slot]].mask = -1;
    m->mask_of[*slot] = 0;
    return m->masks[*slot];
}

const uint64_t *km_guide_mask(km_guide *m, km_error *err) {
    if (!m || !m->t) {
        km_error_set(err, KM_ERR_NULL, "no vocabulary given");
        return NULL;
    }
    if (prepare(m, err) != KM_OK) return NULL;
    m->asked++;
    if (m->ended) return m->only_ends;
    if (m->s.states[m->state].mask >= 0) return m->masks[m->s.states[m->state].mask];
    size_t slot;
    uint64_t *mask = mask_slot(m, &slot);
    if (!mask) {
        km_error_set(err, KM_ERR_MEMORY, "cannot match a grammar: out of memory");
        return NULL;
    }
    m->computed++;
    if (m->s.states[m->state].may_end)
        memcpy(mask, m->only_ends, m->words * sizeof *mask);
    else
        memset(mask, 0, m->words * sizeof *mask);
    if (!walk(m)) {
        km_error_set(err, m->s.error.code, "%s", m->s.error.text);
        return NULL;
    }
    put_bits(m, mask);
    if (!m->allowed && !(m->t->n_ends && m->s.states[m->state].may_end)) {
        km_error_set(err, KM_ERR_STATE, "no token of the vocabulary fits the grammar here");
        return NULL;
    }
    m->mask_of[slot] = m->state;
    m->s.states[m->state].mask = (int32_t)slot;
    return mask;
}

/* ---- Going on ---- */

km_status km_guide_feed(km_guide *m, const char *bytes, size_t n, km_error *err) {
    if (!m) return km_error_set(err, KM_ERR_NULL, "no grammar given");
    if (prepare(m, err) != KM_OK) return KM_ERR_MEMORY;
    int32_t state = m->ended ? KM_STATE_DEAD : m->state;
    for (size_t i = 0; i < n && state != KM_STATE_DEAD; i++) {
        state = km_states_next(&m->s, state, (uint8_t)bytes[i]);
        if (m->s.error.code) return km_error_set(err, m->s.error.code, "%s", m->s.error.text);
        if (km_states_crowded(&m->s) && state != KM_STATE_DEAD) {
            /* The state before the call may be needed after a failure, but a text this long was let
             * through so far: it goes on from here. */
            m->state = state;
            if (prepare(m, err) != KM_OK) return KM_ERR_MEMORY;
            state = m->state;
        }
    }
    if (state == KM_STATE_DEAD)
        return km_error_set(err, KM_ERR_RANGE, "the text does not fit the grammar");
    m->state = state;
    return KM_OK;
}

km_status km_guide_accept(km_guide *m, int32_t id, km_error *err) {
    if (!m || !m->t) return km_error_set(err, KM_ERR_NULL, "no vocabulary given");
    const km_trie *t = m->t;
    if (id < 0 || id >= t->vocab)
        return km_error_set(err, KM_ERR_RANGE, "token %d is not in the vocabulary of %lld", id,
                            (long long)t->vocab);
    for (size_t i = 0; i < t->n_ends; i++) {
        if (t->ends[i] != id) continue;
        if (!m->ended && !m->s.states[m->state].may_end)
            return km_error_set(err, KM_ERR_RANGE, "the grammar does not let the text end here");
        m->ended = true;
        return KM_OK;
    }
    if (!t->length[id])
        return km_error_set(err, KM_ERR_RANGE, "token %d is no text, so it fits no grammar", id);
    return km_guide_feed(m, t->bytes + t->at[id], t->length[id], err);
}

bool km_guide_may_end(const km_guide *m) { return m->ended || m->s.states[m->state].may_end; }

bool km_guide_must_end(const km_guide *m) {
    return m->ended || (m->s.states[m->state].may_end && m->s.states[m->state].n == 0);
}

km_guide_stats km_guide_counts(const km_guide *m) {
    return (km_guide_stats){m->s.n, m->asked, m->computed};
}
