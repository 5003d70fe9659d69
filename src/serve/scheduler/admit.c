/* Who runs next, and whether there is room: fair between owners, by priority and arrival; by the pages
 * that a task may come to need. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <string.h>

enum { CHUNK = 512 }; /* tokens of a prompt in a step, at most */

static int running_of(const km_scheduler *s, uint64_t owner) {
    int n = 0;
    for (int i = 0; i < s->n_slots; i++)
        n += s->slots[i].state == KM_SLOT_RUNNING && s->slots[i].task->owner == owner;
    return n;
}

/* The next in turn of those that were not passed over. Many wait where one can go: what is dear, looking for
 * what a prompt can begin with, is left for the one that is found. */
static km_task **next_in_turn(km_scheduler *s) {
    km_task **best = NULL;
    int best_running = 0, running = 0;
    uint64_t owner = 0;
    bool counted = false; /* `running` is of this owner */
    for (km_task **t = &s->waiting; *t; t = &(*t)->next) {
        if ((*t)->passed_over || (best && (*t)->priority < (*best)->priority)) continue;
        bool above = best && (*t)->priority > (*best)->priority;
        if (best && !above && best_running == 0) continue; /* nobody has less */
        if (!counted || owner != (*t)->owner) running = running_of(s, (*t)->owner);
        owner = (*t)->owner;
        counted = true;
        if (best && !above && running >= best_running) continue;
        best = t;
        best_running = running;
    }
    return best;
}

/* The next in turn that can run now, and what its prompt can begin with. */
static km_task **choose(km_scheduler *s, km_prefix_match *match) {
    for (km_task *t = s->waiting; t; t = t->next) t->passed_over = false;
    for (;;) {
        km_task **next = next_in_turn(s);
        bool wait = false;
        if (next) *match = km_prefix_find(s, *next, &wait);
        if (!wait) return next;
        (*next)->passed_over = true;
    }
}

static int64_t pages_for(const km_batch_state *b, int64_t tokens) {
    return tokens <= 0 ? 0 : (tokens + b->page_tokens - 1) / b->page_tokens;
}

/* Pages that tasks which run may still come to need. */
int64_t km_pages_promised(km_scheduler *s, const km_batch_state *b) {
    int64_t n = 0;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].state == KM_SLOT_RUNNING)
            n += pages_for(b, s->slots[i].task->reserve - km_batch_length(s->batch, i));
    return n;
}

static bool has_room(km_scheduler *s, const km_task *t, km_prefix_match *match) {
    km_batch_state b = km_batch_describe(s->batch);
    if (b.page_tokens <= 0 || b.pages <= 0) return true; /* it grows as it needs to */
    while (b.pages_free <
           km_pages_promised(s, &b) + 1 + pages_for(&b, t->reserve - (int64_t)match->length)) {
        if (!km_prefix_shrink(s, match)) return s->n_running == 0;
        b = km_batch_describe(s->batch);
    }
    return true;
}

/* A sequence that holds what it can of the prompt; -1: there is none. */
static int take_sequence(km_scheduler *s, const km_prefix_match *match) {
    for (;;) {
        int from = km_prefix_slot(s, match), i;
        bool kept = match->node != NULL;
        if (kept && s->slots[from].n <= match->length + 8) {
            km_prefix_take(s, from); /* a conversation that goes on: the sequence itself */
            return from;
        }
        i = from >= 0 ? km_batch_fork(s->batch, from, (int64_t)match->length)
                      : km_batch_join(s->batch);
        if (i >= 0) return i;
        if (km_prefix_evict(s, match)) continue;
        if (kept) km_prefix_take(s, from);
        return kept ? from : -1;
    }
}

static int64_t reserve_for(const km_scheduler *s, const km_task *t) {
    int64_t most = t->how->max_tokens > 0 ? t->how->max_tokens : s->o.reserve;
    int64_t n = (int64_t)t->n_ids + most;
    return n < s->context ? n : s->context;
}

static bool start(km_scheduler *s, km_task *t, const km_prefix_match *match) {
    int i = take_sequence(s, match);
    if (i < 0) return false;
    bool compiles = t->how->grammar || t->how->schema;
    t->sequence = i;
    if (!compiles && km_start_task(s, t) != KM_OK) {
        km_emit_end(s, t, KM_ENDED_CANCELLED, km_last_status(), km_last_error());
        km_prefix_drop(s, i);
        return true;
    }
    s->slots[i] = (km_slot){.state = KM_SLOT_RUNNING,
                            .task = t,
                            .ids = t->ids,
                            .n = t->n_ids,
                            .domain = t->domain,
                            .variant = t->variant};
    t->reused = 0; /* until it has begun */
    t->started = km_now();
    t->stopping = false;
    s->n_running++;
    if (compiles) km_starter_put(s, t);
    pthread_mutex_lock(&s->lock);
    s->counts.prompt_tokens += (int64_t)t->n_ids;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* ---- Those that were set aside ---- */

static int first_paused(const km_scheduler *s) {
    int first = -1;
    for (int i = 0; s->n_paused && i < s->n_slots; i++) {
        const km_slot *p = &s->slots[i];
        if (p->state != KM_SLOT_PAUSED || p->task->stopping) continue;
        if (first < 0 || p->task->started < s->slots[first].task->started) first = i;
    }
    return first;
}

/* The oldest first, before anybody new; false: one still waits for room. */
static bool resume(km_scheduler *s) {
    for (int i; (i = first_paused(s)) >= 0;) {
        km_slot *slot = &s->slots[i];
        if (!has_room(s, slot->task, &(km_prefix_match){.slot = -1})) return false;
        if (km_batch_resume(s->batch, i) != KM_OK) return false;
        slot->state = KM_SLOT_RUNNING;
        s->n_paused--;
        s->n_running++;
    }
    return true;
}

void km_admit(km_scheduler *s) {
    if (!resume(s)) return;
    while (s->waiting && s->n_running < s->o.parallel) {
        km_prefix_match match = {.slot = -1};
        km_task **at = choose(s, &match);
        if (!at) return; /* all wait for a prompt that is being read */
        km_task *t = *at;
        if (t->restore_from) {
            *at = t->next;
            t->next = NULL;
            km_saved_restore(s, t);
            continue;
        }
        if (s->shelf.n && km_shelf_take(s, t, match.length)) {
            bool wait;
            match = km_prefix_find(s, t, &wait);
        }
        t->reserve = reserve_for(s, t);
        km_prefix_use(s, &match);
        if (!has_room(s, t, &match)) return;
        *at = t->next;
        t->next = NULL;
        if (start(s, t, &match)) continue;
        if (s->n_running == 0) {
            km_emit_end(s, t, KM_ENDED_CANCELLED, KM_ERR_MEMORY,
                        "there is no room for this request");
            continue;
        }
        t->next = s->waiting; /* until a sequence is free */
        s->waiting = t;
        return;
    }
}

/* ---- When pages run out all the same ---- */

static int youngest(const km_scheduler *s) {
    int found = -1;
    for (int i = 0; i < s->n_slots; i++) {
        const km_slot *a = &s->slots[i];
        if (a->state != KM_SLOT_RUNNING || a->task->stopping || a->task->starting) continue;
        if (found < 0 || a->task->started > s->slots[found].task->started) found = i;
    }
    return found;
}

/* False: it cannot be; as a rule because it was cancelled and has ended just now. */
static bool set_aside(km_scheduler *s, int i, const km_batch_state *b) {
    km_slot *slot = &s->slots[i];
    int64_t held = km_batch_length(s->batch, i);
    if (km_batch_pause(s->batch, i) != KM_OK) return false;
    slot->state = KM_SLOT_PAUSED;
    /* It has come further than was thought: room for some more, so that it does not come and go. */
    int64_t more = held + 4 * b->page_tokens;
    if (slot->task->reserve < more) slot->task->reserve = more < s->context ? more : s->context;
    s->n_running--;
    s->n_paused++;
    pthread_mutex_lock(&s->lock);
    s->counts.set_aside++;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Pages that the next step may take, also if the thread that compiles grammars starts a prompt just before. */
static int64_t pages_ahead(km_scheduler *s, const km_batch_state *b) {
    int64_t most = 0;
    for (int i = 0; s->n_starting && i < s->n_slots; i++) {
        const km_slot *a = &s->slots[i];
        if (a->state != KM_SLOT_RUNNING || !a->task->starting) continue;
        int64_t pages = pages_for(b, a->n < CHUNK ? (int64_t)a->n : CHUNK) + 1;
        if (pages > most) most = pages;
    }
    return most + km_batch_pages_ahead(s->batch);
}

/* Nearly always there are more pages than a step could take by any means, and nobody needs to count: it adds
 * no more than a context to each of those that run, and reads no more than so many tokens. */
static bool has_plenty(const km_scheduler *s, const km_batch_state *b) {
    enum { TOKENS = 8192 };
    int64_t all = s->n_running * (pages_for(b, s->context) + 1),
            read = 2 * s->n_running + pages_for(b, TOKENS);
    return b->pages_free >= (all < read ? all : read);
}

void km_make_room(km_scheduler *s) {
    for (;;) {
        km_batch_state b = km_batch_describe(s->batch);
        if (b.pages <= 0 || has_plenty(s, &b)) return;
        int64_t ahead = pages_ahead(s, &b);
        if (km_batch_describe(s->batch).pages_free >= ahead) return;
        if (km_prefix_shrink(s, NULL)) continue;
        int i = s->n_running > 1 ? youngest(s) : -1;
        if (i < 0 || !set_aside(s, i, &b)) return;
    }
}
