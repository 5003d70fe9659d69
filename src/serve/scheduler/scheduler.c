/* The engine's thread: takes what is new, lets in whom it can, steps, and sends the events of the step
 * in one block. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Events on their way ---- */

/* Offsets become addresses, now that nothing moves. */
static void settle(km_event_block *b) {
    const char *text = km_text_str(&b->text);
    for (size_t i = 0; i < b->n && !b->settled; i++) {
        b->events[i].text = text + (uintptr_t)b->events[i].text;
        if (b->events[i].n_top) b->events[i].top = b->top + (uintptr_t)b->events[i].top;
    }
    b->settled = true;
}

static void empty(km_event_block *b) {
    b->n = b->n_top = b->text.len = 0;
    b->settled = false;
}

static void deliver(void *arg) {
    km_event_block *b = arg;
    km_scheduler *s = b->scheduler;
    settle(b);
    s->o.on_events(s->o.user, b->events, b->n);
    empty(b);
    atomic_fetch_sub(&s->under_way, 1);
    pthread_mutex_lock(&s->lock);
    b->next = s->spare;
    s->spare = b;
    pthread_mutex_unlock(&s->lock);
}

/* By the engine's own thread. */
static bool deliver_now(void *arg) {
    km_event_block *b = arg;
    km_scheduler *s = b->scheduler;
    settle(b);
    if (!s->o.can_now(s->o.user, b->events, b->n)) return false;
    s->o.on_events(s->o.user, b->events, b->n);
    empty(b);
    return true;
}

static void free_block(km_event_block *b) {
    if (!b) return;
    km_text_free(&b->text);
    km_free(b->top);
    km_free(b->events);
    km_free(b);
}

static bool put_top(km_event_block *b, const km_task_event *e) {
    if (b->n_top + (size_t)e->n_top > b->cap_top) {
        size_t cap = 2 * (b->n_top + (size_t)e->n_top);
        km_logprob *more = km_realloc(b->top, cap * sizeof *more);
        if (!more) return false;
        b->top = more;
        b->cap_top = cap;
    }
    memcpy(b->top + b->n_top, e->top, (size_t)e->n_top * sizeof *e->top);
    return true;
}

/* Room for one event more and its text; false: out of memory. */
static bool put_event(km_event_block *b, const km_task_event *e) {
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 16;
        km_task_event *more = km_realloc(b->events, cap * sizeof *more);
        if (!more) return false;
        b->events = more;
        b->cap = cap;
    }
    size_t at = b->text.len;
    b->text.failed = false;
    km_text_put(&b->text, e->text ? e->text : "", e->text ? e->bytes : 0);
    if (!km_text_ok(&b->text)) return false;
    b->events[b->n] = *e;
    b->events[b->n].text = (const char *)(uintptr_t)at;
    if (!e->text) b->events[b->n].bytes = 0;
    b->n++;
    return true;
}

/* Where memory runs out for it, it is tried again, as in send_block: a text has no holes, and an end is told. */
void km_emit(km_scheduler *s, const km_task_event *e) {
    km_event_block *b = s->block;
    while (!put_event(b, e)) usleep(2000);
    km_task_event *to = &b->events[b->n - 1];
    to->n_top = e->n_top > 0 && put_top(b, e) ? e->n_top : 0;
    to->top = (const km_logprob *)(uintptr_t)b->n_top;
    b->n_top += (size_t)to->n_top;
}

void km_emit_end(km_scheduler *s, km_task *t, km_end_reason end, km_status status,
                 const char *why) {
    t->ended = km_now();
    km_emit(s, &(km_task_event){.task = t,
                                .id = -1,
                                .text = why,
                                .bytes = why ? strlen(why) : 0,
                                .end = end,
                                .status = status});
    pthread_mutex_lock(&s->lock);
    if (status != KM_OK)
        s->counts.failed++;
    else if (end == KM_ENDED_CANCELLED)
        s->counts.cancelled++;
    else
        s->counts.finished++;
    s->counts.queued--;
    pthread_mutex_unlock(&s->lock);
}

/* A block that cannot be sent for want of memory is tried again: nobody waits in vain. */
static void send_block(km_scheduler *s) {
    if (s->block->n == 0) return;
    /* Not before what was posted: events come in their order. */
    if (s->o.now && atomic_load(&s->under_way) == 0 && s->o.now(s->o.user, deliver_now, s->block))
        return;
    atomic_fetch_add(&s->under_way, 1);
    while (!s->o.post(s->o.user, deliver, s->block)) usleep(2000);
    pthread_mutex_lock(&s->lock);
    s->block = s->spare;
    if (s->block) s->spare = s->block->next;
    pthread_mutex_unlock(&s->lock);
    while (!s->block && !(s->block = km_calloc(1, sizeof *s->block))) usleep(2000);
    s->block->scheduler = s;
}

/* ---- Steps ---- */

/* Tasks whose grammar is compiled, or could not be. */
static void take_started(km_scheduler *s, km_task *ready) {
    for (km_task *t = ready, *next; t; t = next) {
        next = t->next;
        t->next = NULL;
        t->starting = false;
        s->n_starting--;
        if (t->refused == KM_OK) continue;
        s->n_running--;
        bool over = atomic_load(&t->cancelled);
        km_emit_end(s, t, KM_ENDED_CANCELLED, over ? KM_OK : t->refused, over ? NULL : t->why);
        km_prefix_drop(s, t->sequence);
    }
}

/* A step may give pieces of a task before the thread that started it has said so: it is about to, and until
 * then the task is not to end. */
static void await_started(km_scheduler *s, const km_task *t) {
    while (t->starting) {
        pthread_mutex_lock(&s->lock);
        while (!s->ready) pthread_cond_wait(&s->wake, &s->lock);
        km_task *ready = s->ready;
        s->ready = NULL;
        pthread_mutex_unlock(&s->lock);
        take_started(s, ready);
    }
}

static void take_piece(km_scheduler *s, const km_piece_event *p) {
    if (p->sequence < 0 || p->sequence >= s->n_slots) return;
    km_slot *slot = &s->slots[p->sequence];
    bool paused = slot->state == KM_SLOT_PAUSED;
    km_task *t = slot->state == KM_SLOT_RUNNING || paused ? slot->task : NULL;
    if (!t) return;
    await_started(s, t);
    if (p->id >= 0) {
        t->tokens++;
        if (t->first == 0) t->first = km_now();
    }
    km_task_event e = {.task = t,
                       .id = p->id,
                       .text = p->text,
                       .bytes = p->bytes,
                       .logprob = p->logprob,
                       .top = p->top,
                       .n_top = p->n_top,
                       .end = p->end,
                       .status = p->status};
    if (p->end == KM_ENDED_NOT) {
        km_emit(s, &e);
        return;
    }
    if (paused) { /* it was cancelled, and holds nothing to be kept */
        s->n_paused--;
        s->n_leaving -= t->stopping;
    } else {
        s->n_running--;
    }
    if (p->status == KM_OK && (p->bytes || p->id >= 0)) { /* the last text, then the end */
        e.end = KM_ENDED_NOT;
        km_emit(s, &e);
    }
    int i = p->sequence;
    km_end_reason end = p->end;
    t->reused = km_batch_generated(s->batch, i).reused;
    pthread_mutex_lock(&s->lock);
    s->counts.reused_tokens += t->reused;
    pthread_mutex_unlock(&s->lock);
    if (p->status != KM_OK) {
        char why[KM_ERROR_TEXT];
        size_t n = p->bytes < sizeof why - 1 ? p->bytes : sizeof why - 1;
        memcpy(why, p->text ? p->text : "", p->text ? n : 0);
        why[p->text ? n : 0] = '\0';
        km_emit_end(s, t, end, p->status, why);
        km_prefix_drop(s, i);
        return;
    }
    char why[KM_ERROR_TEXT] = "";
    km_status saved = t->save_to && end != KM_ENDED_CANCELLED && !paused
                          ? km_saved_put(s, t, why, sizeof why)
                          : KM_OK;
    km_emit_end(s, t, saved == KM_OK ? end : KM_ENDED_CANCELLED, saved,
                saved == KM_OK ? NULL : why);
    if (paused)
        km_prefix_drop(s, i);
    else
        km_prefix_keep(s, i);
}

static void fail_all(km_scheduler *s, const char *why) {
    char text[KM_ERROR_TEXT];
    strncpy(text, why, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < s->n_slots; i++) {
        km_slot *slot = &s->slots[i];
        if (slot->state != KM_SLOT_RUNNING && slot->state != KM_SLOT_PAUSED) continue;
        if (slot->task->starting) continue; /* another thread has it; it ends by itself */
        s->n_running -= slot->state == KM_SLOT_RUNNING;
        s->n_paused -= slot->state == KM_SLOT_PAUSED;
        km_emit_end(s, slot->task, KM_ENDED_CANCELLED, KM_ERR_STATE, text);
        km_prefix_drop(s, i);
    }
    s->n_leaving = 0;
}

static bool can_step(const km_scheduler *s) {
    return s->n_running > s->n_starting || s->n_leaving > 0;
}

static void step(km_scheduler *s) {
    if (!can_step(s)) return;
    km_make_room(s);
    if (!can_step(s)) return;
    double began = km_now();
    int n = km_batch_step(s->batch, s->pieces, s->n_pieces);
    if (n < 0) fail_all(s, km_last_error());
    int64_t tokens = 0;
    for (int i = 0; i < n; i++) {
        tokens += s->pieces[i].id >= 0 && s->pieces[i].sequence >= 0;
        take_piece(s, &s->pieces[i]);
    }
    if (n == 0) fail_all(s, "the batch has lost this request");
    km_batch_state b = km_batch_describe(s->batch);
    pthread_mutex_lock(&s->lock);
    km_scheduler_counts *c = &s->counts;
    c->steps++;
    c->tokens += tokens;
    c->busy += km_now() - began;
    c->running = s->n_running;
    c->reading = b.reading;
    c->kept = s->n_kept;
    c->nodes = (int64_t)s->prefixes.nodes;
    c->paused = s->n_paused;
    c->shelved = s->shelf.n;
    c->shelf_bytes = (int64_t)s->shelf.bytes;
    c->pages = b.pages;
    c->pages_free = b.pages_free;
    c->page_tokens = b.page_tokens;
    c->page_bytes = b.page_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* ---- The thread ---- */

static bool is_over(km_task *t, double now) {
    if (t->deadline > 0 && now > t->deadline && !atomic_load(&t->cancelled)) t->late = true;
    return t->late || atomic_load(&t->cancelled);
}

static void end_those_that_are_over(km_scheduler *s) {
    double now = km_now();
    for (km_task **at = &s->waiting; *at;) {
        km_task *t = *at;
        if (!is_over(t, now)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        km_emit_end(s, t, KM_ENDED_CANCELLED, KM_OK, NULL);
    }
    for (int i = 0; i < s->n_slots; i++) {
        bool paused = s->slots[i].state == KM_SLOT_PAUSED;
        km_task *t = s->slots[i].state == KM_SLOT_RUNNING || paused ? s->slots[i].task : NULL;
        if (!t || t->starting || !is_over(t, now) || t->stopping) continue;
        km_batch_stop(s->batch, i);
        t->stopping = true;
        s->n_leaving += paused;
    }
}

static void append(km_task **list, km_task *more) {
    while (*list) list = &(*list)->next;
    *list = more;
}

/* Waits until there is something to do; false: the thread ends. */
static bool take_incoming(km_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    /* With nothing to step, those that wait or were set aside can be let in, unless grammars are compiled. */
    while (!s->stop && !s->incoming && !s->cancels && !s->clear && !s->ready && !can_step(s) &&
           (s->n_starting || (!s->waiting && !s->n_paused)))
        pthread_cond_wait(&s->wake, &s->lock);
    bool clear = s->clear, go_on = !s->stop;
    km_task *ready = s->ready;
    s->ready = NULL;
    append(&s->waiting, s->incoming);
    s->incoming = NULL;
    s->cancels = s->clear = false;
    pthread_mutex_unlock(&s->lock);
    take_started(s, ready);
    if (clear) {
        km_prefix_clear(s);
        km_shelf_clear(s);
    }
    return go_on;
}

static void *engine(void *user) {
    km_scheduler *s = user;
    pthread_setname_np(pthread_self(), "km-engine");
    while (take_incoming(s)) {
        end_those_that_are_over(s);
        km_admit(s);
        step(s);
        send_block(s);
    }
    while (s->waiting) {
        km_task *t = s->waiting;
        s->waiting = t->next;
        km_emit_end(s, t, KM_ENDED_CANCELLED, KM_ERR_STATE, "the server ends");
    }
    km_starter_end(s);
    take_started(s, s->ready);
    s->ready = NULL;
    fail_all(s, "the server ends");
    send_block(s);
    return NULL;
}

/* ---- From the submitter ---- */

km_status km_scheduler_submit(km_scheduler *s, km_task *t, km_error *err) {
    t->next = NULL;
    t->submitted = km_now();
    t->started = t->first = t->ended = 0;
    t->starting = t->stopping = false;
    pthread_mutex_lock(&s->lock);
    bool full = s->counts.queued >= s->o.queue + s->o.parallel || s->stop;
    if (!full) {
        append(&s->incoming, t);
        s->counts.queued++;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return full ? km_error_set(err, KM_ERR_STATE, "the queue is full: %d requests wait", s->o.queue)
                : KM_OK;
}

void km_scheduler_cancel(km_scheduler *s, km_task *t) {
    atomic_store(&t->cancelled, true);
    pthread_mutex_lock(&s->lock);
    s->cancels = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void km_scheduler_clear(km_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->clear = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

km_scheduler_counts km_scheduler_count(km_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    km_scheduler_counts c = s->counts;
    pthread_mutex_unlock(&s->lock);
    c.context = s->context;
    c.queued -= c.running; /* those that wait */
    return c;
}

/* ---- Making and ending ---- */

km_scheduler *km_scheduler_new(km_model *m, const km_scheduler_options *options, km_error *err) {
    km_scheduler *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
        return NULL;
    }
    s->o = *options;
    s->model = m;
    if (s->o.parallel <= 0) s->o.parallel = 16;
    if (s->o.kept == 0) s->o.kept = s->o.parallel;
    if (s->o.queue <= 0) s->o.queue = 256;
    if (s->o.reserve <= 0) s->o.reserve = 512;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->to_start, NULL);
    km_batch_options b = km_batch_defaults();
    b.sequences = s->o.parallel + (s->o.kept > 0 ? s->o.kept : 0);
    b.context = s->o.context;
    b.memory = s->o.memory;
    b.chunk = s->o.chunk;
    s->batch = km_batch_new(m, &b);
    s->context = km_model_describe(m).context;
    if (s->o.context > 0 && s->o.context < s->context) s->context = s->o.context;
    s->n_pieces = 4 * s->o.parallel;
    s->pieces = km_calloc((size_t)s->n_pieces, sizeof *s->pieces);
    s->n_slots = (int)b.sequences;
    s->slots = km_calloc((size_t)s->n_slots, sizeof *s->slots);
    s->block = km_calloc(1, sizeof *s->block);
    if (!s->batch)
        km_error_set(err, km_last_status(), "%s", km_last_error());
    else if (!s->pieces || !s->block || !s->slots)
        km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
    else if (km_shelf_open(s, err) != KM_OK)
        s->block->scheduler = s;
    else {
        s->block->scheduler = s;
        s->started = km_starter_begin(s) && pthread_create(&s->thread, NULL, engine, s) == 0;
        if (s->started) return s;
        km_error_set(err, KM_ERR_STATE, "serve: cannot start a thread");
    }
    km_scheduler_free(s);
    return NULL;
}

void km_scheduler_stop(km_scheduler *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->started) pthread_join(s->thread, NULL);
    s->started = false;
    km_starter_end(s); /* where the other thread did not begin */
}

void km_scheduler_free(km_scheduler *s) {
    if (!s) return;
    km_scheduler_stop(s);
    km_shelf_close(s);
    km_radix_free(&s->prefixes);
    km_free(s->slots);
    km_batch_free(s->batch);
    km_free(s->pieces);
    free_block(s->block);
    for (km_event_block *b; (b = s->spare);) {
        s->spare = b->next;
        free_block(b);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->to_start);
    km_free(s);
}
