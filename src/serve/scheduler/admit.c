/* Who runs next, and whether there is room: fair between owners, by priority and arrival; by the pages
 * that a task may come to need. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <string.h>

enum { UNSAID = 512 }; /* tokens reserved for an answer whose length nobody limits */

static int running_of(const km_scheduler *s, uint64_t owner) {
    int n = 0;
    for (int i = 0; i < s->n_slots; i++)
        n += s->slots[i].state == KM_SLOT_RUNNING && s->slots[i].task->owner == owner;
    return n;
}

/* The next in turn that can run now; *match and *length as km_prefix_find gives them. */
static km_task **choose(km_scheduler *s, int *match, size_t *length) {
    km_task **best = NULL;
    int best_running = 0;
    for (km_task **t = &s->waiting; *t; t = &(*t)->next) {
        int running = running_of(s, (*t)->owner);
        if (best && (*t)->priority < (*best)->priority) continue;
        if (best && (*t)->priority == (*best)->priority && running >= best_running) continue;
        size_t n;
        bool wait;
        int found = km_prefix_find(s, *t, &n, &wait);
        if (wait) continue;
        best = t;
        best_running = running;
        *match = found;
        *length = n;
        if (running == 0 && (*t)->priority == 0) break; /* nobody is more in turn */
    }
    return best;
}

static int64_t pages_for(const km_batch_state *b, int64_t tokens) {
    return tokens <= 0 ? 0 : (tokens + b->page_tokens - 1) / b->page_tokens;
}

/* Pages that tasks which run may still come to need. */
static int64_t promised(km_scheduler *s, const km_batch_state *b) {
    int64_t n = 0;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].state == KM_SLOT_RUNNING)
            n += pages_for(b, s->slots[i].task->reserve - km_batch_length(s->batch, i));
    return n;
}

static bool has_room(km_scheduler *s, const km_task *t, int match, size_t length) {
    km_batch_state b = km_batch_describe(s->batch);
    if (b.page_tokens <= 0 || b.pages <= 0) return true; /* it grows as it needs to */
    int64_t need = pages_for(&b, t->reserve - (int64_t)length) + 1;
    while (b.pages_free < promised(s, &b) + need) {
        if (!km_prefix_evict(s, match)) return s->n_running == 0;
        b = km_batch_describe(s->batch);
    }
    return true;
}

/* A sequence that holds what it can of the prompt; -1: there is none. */
static int take_sequence(km_scheduler *s, int match, size_t length) {
    km_slot *from = match >= 0 ? &s->slots[match] : NULL;
    if (from && from->state == KM_SLOT_KEPT && from->n <= length + 8) {
        km_free(from->ids); /* a conversation that goes on: the sequence itself */
        *from = (km_slot){0};
        return match;
    }
    for (;;) {
        int i = from ? km_batch_fork(s->batch, match, (int64_t)length) : km_batch_join(s->batch);
        if (i >= 0) {
            if (from) from->used = ++s->clock; /* slots may move below, but not before */
            return i;
        }
        if (km_prefix_evict(s, match)) continue;
        if (!from || from->state != KM_SLOT_KEPT) return -1;
        km_free(from->ids);
        *from = (km_slot){0};
        return match;
    }
}

static int64_t reserve_for(const km_scheduler *s, const km_task *t) {
    int64_t most = t->how->max_tokens > 0 ? t->how->max_tokens : UNSAID;
    int64_t n = (int64_t)t->n_ids + most;
    return n < s->context ? n : s->context;
}

static bool start(km_scheduler *s, km_task *t, int match, size_t length) {
    int i = take_sequence(s, match, length);
    if (i < 0) return false;
    km_slot *slot = km_slot_at(s, i);
    const km_generation *how = t->more ? &t->again : t->how;
    const int32_t *ids = t->more ? t->more : t->ids;
    size_t n = t->more ? t->n_more : t->n_ids;
    if (!slot || km_batch_start(s->batch, i, ids, n, how) != KM_OK) {
        km_emit_end(s, t, KM_ENDED_CANCELLED, slot ? km_last_status() : KM_ERR_MEMORY,
                    slot ? km_last_error() : "out of memory");
        km_batch_leave(s->batch, i);
        return true;
    }
    *slot = (km_slot){.state = KM_SLOT_RUNNING,
                      .task = t,
                      .ids = (int32_t *)(uintptr_t)ids,
                      .n = n,
                      .domain = t->domain,
                      .used = ++s->clock};
    if (!t->more)
        t->reused = (int64_t)(length < n ? length : n - 1), t->started = km_scheduler_now();
    t->sequence = i;
    t->stopping = t->aside = false;
    s->n_running++;
    pthread_mutex_lock(&s->lock);
    s->counts.prompt_tokens += (int64_t)n;
    s->counts.reused_tokens += (int64_t)length;
    pthread_mutex_unlock(&s->lock);
    return true;
}

void km_admit(km_scheduler *s) {
    while (s->waiting && s->n_running < s->o.parallel) {
        int match = -1;
        size_t length = 0;
        km_task **at = choose(s, &match, &length);
        if (!at) return; /* all wait for a prompt that is being read */
        km_task *t = *at;
        t->reserve = reserve_for(s, t);
        if (!has_room(s, t, match, length)) return;
        *at = t->next;
        t->next = NULL;
        if (start(s, t, match, length)) continue;
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

/* Grammars and schemas cannot be gone on with in the middle. */
static bool can_resume(const km_task *t) {
    return !t->stopping && !t->how->grammar && !t->how->schema && !t->how->past_end;
}

static km_task *youngest(const km_scheduler *s) {
    km_task *t = NULL;
    for (int i = 0; i < s->n_slots; i++) {
        km_task *other = s->slots[i].state == KM_SLOT_RUNNING ? s->slots[i].task : NULL;
        if (other && can_resume(other) && (!t || other->started > t->started)) t = other;
    }
    return t;
}

void km_make_room(km_scheduler *s) {
    km_batch_state b = km_batch_describe(s->batch);
    if (b.page_tokens <= 0 || b.pages <= 0) return;
    while (b.pages_free < s->n_running) {
        if (!km_prefix_evict(s, -1)) {
            km_task *t = s->n_running > 1 ? youngest(s) : NULL;
            if (!t) return;
            t->aside = t->stopping = true;
            km_batch_stop(s->batch, t->sequence); /* its last event brings it back to the queue */
            return;
        }
        b = km_batch_describe(s->batch);
    }
}
