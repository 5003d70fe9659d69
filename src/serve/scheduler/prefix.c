/* The prefix cache: sequences that have ended are kept with the tokens they hold, and the longest match
 * serves the next prompt. Pages are shared by forking, so that one system prompt serves everybody of a
 * domain. The longest match is looked for one by one: that is microseconds for a thousand of them. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <string.h>

enum { WORTH = 16 }; /* shorter beginnings are read again */

km_slot *km_slot_at(km_scheduler *s, int sequence) {
    if (sequence >= s->n_slots) {
        int n = sequence + 16;
        km_slot *more = km_realloc(s->slots, (size_t)n * sizeof *more);
        if (!more) return NULL;
        memset(more + s->n_slots, 0, (size_t)(n - s->n_slots) * sizeof *more);
        s->slots = more;
        s->n_slots = n;
    }
    return &s->slots[sequence];
}

size_t km_common_tokens(const int32_t *a, size_t n, const int32_t *b, size_t m) {
    size_t most = n < m ? n : m, i = 0;
    /* Whole blocks first: most candidates are equal for long, or differ at once. */
    while (i + 64 <= most && memcmp(a + i, b + i, 64 * sizeof *a) == 0) i += 64;
    while (i < most && a[i] == b[i]) i++;
    return i;
}

int km_prefix_find(km_scheduler *s, const km_task *t, size_t *length, bool *wait) {
    size_t n = t->n_ids, best = 0;
    const int32_t *ids = t->ids;
    int found = -1;
    *wait = false;
    *length = 0;
    if (s->o.kept < 0) return -1;
    for (int i = 0; i < s->n_slots; i++) {
        const km_slot *slot = &s->slots[i];
        bool holds = slot->state == KM_SLOT_RUNNING || slot->state == KM_SLOT_KEPT;
        if (!holds || slot->domain != t->domain || slot->variant != t->variant) continue;
        /* One that is to match further matches there: most are told apart by this token alone. Among 1,000
         * with 1,500 tokens in common a lookup takes 9 us, where it took 1,000: no tree would save more. */
        if (best > 0 && (best >= n || best >= slot->n || slot->ids[best] != ids[best])) continue;
        size_t k = km_common_tokens(ids, n, slot->ids, slot->n);
        if (k <= best) continue;
        if (slot->state == KM_SLOT_RUNNING) {
            int64_t held = km_batch_length(s->batch, i);
            size_t read = held > 0 ? (size_t)held : 0;
            /* Most of this prompt is being read just now: one reading serves both. */
            if (read < k && k >= 256 && 4 * k >= 3 * n) *wait = true;
            if (read < k) k = read;
            if (k <= best) continue;
        }
        best = k;
        found = i;
    }
    if (best < WORTH) return -1;
    if (*wait && 2 * best >= n) *wait = false; /* what is there already is good enough */
    *length = best;
    return found;
}

void km_prefix_drop(km_scheduler *s, int i) {
    km_slot *slot = &s->slots[i];
    km_batch_leave(s->batch, i);
    if (slot->state == KM_SLOT_KEPT) km_free(slot->ids);
    *slot = (km_slot){0};
}

static int count_kept(const km_scheduler *s) {
    int n = 0;
    for (int i = 0; i < s->n_slots; i++) n += s->slots[i].state == KM_SLOT_KEPT;
    return n;
}

bool km_prefix_evict(km_scheduler *s, int except) {
    int oldest = -1;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].state == KM_SLOT_KEPT && i != except &&
            (oldest < 0 || s->slots[i].used < s->slots[oldest].used))
            oldest = i;
    if (oldest < 0) return false;
    km_shelf_put(s, oldest);
    km_prefix_drop(s, oldest);
    pthread_mutex_lock(&s->lock);
    s->counts.evicted++;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Does another kept sequence hold all of these tokens, or they all of another's? */
static void drop_covered(km_scheduler *s, int i) {
    const km_slot *slot = &s->slots[i];
    for (int k = 0; k < s->n_slots; k++) {
        const km_slot *other = &s->slots[k];
        if (k == i || other->state != KM_SLOT_KEPT || other->domain != slot->domain ||
            other->variant != slot->variant)
            continue;
        if (other->n <= slot->n &&
            km_common_tokens(other->ids, other->n, slot->ids, slot->n) == other->n)
            km_prefix_drop(s, k);
    }
}

void km_prefix_keep(km_scheduler *s, int i) {
    km_slot *slot = &s->slots[i];
    int64_t held = km_batch_length(s->batch, i);
    slot->task = NULL;
    slot->state = KM_SLOT_RUNNING; /* its ids are not its own: nothing to free yet */
    int32_t *ids = s->o.kept >= 0 && held >= WORTH ? km_alloc((size_t)held * sizeof *ids) : NULL;
    int64_t n = ids ? km_batch_tokens(s->batch, i, ids, (size_t)held) : -1;
    if (n < WORTH || n > held) {
        km_free(ids);
        km_prefix_drop(s, i);
        return;
    }
    slot->ids = ids;
    slot->n = (size_t)n;
    slot->state = KM_SLOT_KEPT;
    slot->used = ++s->clock;
    drop_covered(s, i);
    while (count_kept(s) > s->o.kept && km_prefix_evict(s, i)) {}
}
