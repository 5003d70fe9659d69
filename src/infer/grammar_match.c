/* Follows a sequence through a grammar, and finds the tokens that may come next by walking the
 * vocabulary's tree: a byte that fits nothing takes its whole subtree with it, and so does, on the
 * other side, a state that any of the bytes below leads back to. */
#include "base/alloc.h"
#include "infer/grammar_states.h"
#include "infer/grammar_trie.h"
#include <string.h>

#define MASKS 256 /* remembered */

struct km_guide {
    const km_trie *t;
    km_states s;
    int32_t state;
    bool ended;
    int32_t *path;    /* (depth + 1) states of the walk */
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
        m->masks = km_calloc(MASKS, sizeof *m->masks);
        m->mask_of = km_calloc(MASKS, sizeof *m->mask_of);
        m->only_ends = km_calloc(m->words + 1, sizeof *m->only_ends);
        ok = m->path && m->masks && m->mask_of && m->only_ends;
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

/* Whether every whole character beyond ASCII leads from the state back to it. */
static bool loops_on_characters(km_states *s, int32_t state) {
    for (int b = 0xc2; b <= 0xf4; b++) {
        int more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
        int32_t level[4] = {km_states_next(s, state, (uint8_t)b)};
        /* Bytes in the middle are all alike but for the first after e0, ed, f0 and f4. */
        int low = b == 0xe0   ? 0xa0
                  : b == 0xf0 ? 0x90
                              : 0x80,
            high = b == 0xed   ? 0x9f
                   : b == 0xf4 ? 0x8f
                               : 0xbf;
        for (int i = 0; i < more; i++) {
            level[i + 1] = km_states_next(s, level[i], (uint8_t)low);
            for (int c = low; c <= high; c++)
                if (km_states_next(s, level[i], (uint8_t)c) != level[i + 1]) return false;
            low = 0x80;
            high = 0xbf;
        }
        if (level[more] != state) return false;
    }
    return true;
}

static uint64_t find_loops(km_states *s, int32_t state) {
    uint64_t loops = ~(uint64_t)0;
    for (int c = 0; c < 128; c++)
        if (km_states_next(s, state, (uint8_t)c) != state)
            loops &= ~((uint64_t)1 << km_trie_group((uint8_t)c));
    loops &= ~((uint64_t)1 << KM_GROUP_PIECES);
    if (!loops_on_characters(s, state)) loops &= ~((uint64_t)1 << KM_GROUP_WHOLE);
    return loops;
}

static inline void allow(uint64_t *mask, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) mask[ids[i] / 64] |= (uint64_t)1 << ids[i] % 64;
}

/* False with s->error set when the grammar grew out of bounds. */
static bool walk(km_guide *m, uint64_t *mask) {
    const km_trie *t = m->t;
    km_states *s = &m->s;
    const size_t classes = (size_t)s->g->n_classes;
    m->path[0] = m->state;
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
        if (to == from && !s->states[to].loops_known) {
            uint64_t loops = find_loops(s, to);
            if (s->error.code) return false;
            s->states[to].loops = loops;
            s->states[to].loops_known = true;
        }
        if (!(node->groups &
              ~s->states[to].loops)) { /* without loops only where nothing is below */
            allow(mask, t->ids + node->first, t->nodes[node->end].first - node->first);
            i = node->end;
            continue;
        }
        allow(mask, t->ids + node->first, node->here);
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
    if (!walk(m, mask)) {
        km_error_set(err, m->s.error.code, "%s", m->s.error.text);
        return NULL;
    }
    bool any = false;
    for (size_t i = 0; i < m->words && !any; i++) any = mask[i] != 0;
    if (!any) {
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
