/* What the scheduler's files share. All of it but the locked part belongs to the engine's thread. */
#ifndef KM_SERVE_SCHEDULER_INTERNAL_H
#define KM_SERVE_SCHEDULER_INTERNAL_H
#include "serve/scheduler/scheduler.h"
#include "base/clock.h"
#include "base/text.h"
#include "serve/scheduler/radix.h"
#include <pthread.h>

typedef enum km_slot_state {
    KM_SLOT_FREE,
    KM_SLOT_RUNNING,
    KM_SLOT_PAUSED, /* set aside: it holds no pages */
    KM_SLOT_KEPT
} km_slot_state;

/* A sequence of the batch. */
typedef struct km_slot {
    km_slot_state state;
    km_task *task;            /* that runs or is set aside */
    const int32_t *ids;       /* that it reads: the task's */
    size_t n;                 /* of these; KEPT: that it holds */
    km_radix_node *leaf;      /* KEPT: its place in the prefix cache */
    uint64_t domain, variant; /* as the task's */
} km_slot;

typedef struct km_shelved km_shelved;

/* The events of a step on their way to the submitter. */
typedef struct km_event_block {
    struct km_scheduler *scheduler;
    km_task_event *events;
    size_t n, cap;
    km_text text; /* offsets until it is sent */
    km_logprob *top;
    size_t n_top, cap_top;
    bool settled;                /* offsets have become addresses */
    struct km_event_block *next; /* of those that are not in use */
} km_event_block;

struct km_scheduler {
    km_scheduler_options o;
    km_model *model;
    km_batch *batch;
    int64_t context;
    km_slot *slots; /* (n_slots), one for each sequence of the batch */
    int n_slots, n_running, n_paused, n_kept;
    km_radix prefixes; /* over the tokens of those that are kept; holders are slots */
    int n_starting;    /* of those that run: their grammars are being compiled */
    int n_leaving;     /* of those set aside: they were cancelled, which the next step tells */
    km_task *waiting;  /* in order of arrival */
    struct {
        char *folder;  /* NULL: there is no second level */
        km_radix tree; /* holders are entries */
        size_t bytes;
        int n;
        uint64_t numbers;
    } shelf;
    km_event_block *block;
    atomic_int under_way; /* blocks that were posted, and not delivered yet */
    km_piece_event *pieces;
    int n_pieces;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    km_task *incoming;
    km_event_block *spare; /* delivered, and used again: a step allocates nothing */
    km_scheduler_counts counts;
    bool stop, cancels, clear, started;
    pthread_t starter;
    pthread_cond_t to_start;
    km_task *starts, *ready; /* to be started by that thread, and started or refused */
    bool has_starter;
};

/* ---- prefix.c: what is kept, and who can use it ---- */

/* What a prompt can begin with. */
typedef struct km_prefix_match {
    int slot;            /* that runs and has read it; -1: none */
    km_radix_node *node; /* or where it ends in the prefix cache; NULL: it is not there */
    size_t length;       /* tokens; 0: there is none worth it */
} km_prefix_match;

/* The longest beginning of the task's prompt that is there. Of a sequence that still reads, only what it has
 * read counts; *wait: one reads just now what this task needs, so that it is better to wait. */
km_prefix_match km_prefix_find(km_scheduler *s, const km_task *t, bool *wait);
void km_prefix_use(km_scheduler *s, km_prefix_match *m); /* it is the last to be evicted now */
int km_prefix_slot(const km_scheduler *s, const km_prefix_match *m); /* a slot that has it; -1 */
/* The least recently used leaf gives the pages back that are its own, or (evict) the whole sequence goes;
 * false: there is none but what `but` (NULL: nothing) needs. */
bool km_prefix_shrink(km_scheduler *s, km_prefix_match *but);
bool km_prefix_evict(km_scheduler *s, const km_prefix_match *but);
void km_prefix_keep(km_scheduler *s, int slot); /* a sequence that has ended */
void km_prefix_take(km_scheduler *s, int slot); /* a kept one, out of the cache, to be used */
void km_prefix_drop(km_scheduler *s, int slot); /* one that is not in the cache */
void km_prefix_clear(km_scheduler *s);

/* ---- shelf.c: the second level, in files ---- */

km_status km_shelf_open(km_scheduler *s, km_error *err);
void km_shelf_close(km_scheduler *s);
void km_shelf_clear(km_scheduler *s);
void km_shelf_put(km_scheduler *s, int slot); /* a kept one that is about to be dropped or cut */
/* Brings back what begins as the task's prompt, if that is much more than `length` tokens. True: the prefix
 * cache is another one now, whether it came back or there was no room after all. */
bool km_shelf_take(km_scheduler *s, const km_task *t, size_t length);

/* ---- saved.c: sessions that clients keep by name ---- */

km_status km_saved_put(km_scheduler *s, km_task *t, char *why, size_t size);
void km_saved_restore(km_scheduler *s, km_task *t); /* and ends it */

/* ---- admit.c ---- */

void km_admit(km_scheduler *s);
int64_t km_pages_promised(km_scheduler *s, const km_batch_state *b); /* to those that run */
void km_make_room(km_scheduler *s); /* before a step: pages for every sequence that runs */

/* ---- starter.c: km_batch_start where that takes its time ---- */

km_status km_start_task(km_scheduler *s, const km_task *t); /* in its sequence; at once */
bool km_starter_begin(km_scheduler *s);
void km_starter_end(km_scheduler *s); /* what was not started is refused */
void km_starter_put(km_scheduler *s, km_task *t);

/* ---- scheduler.c ---- */

void km_emit(km_scheduler *s, const km_task_event *e);
void km_emit_end(km_scheduler *s, km_task *t, km_end_reason end, km_status status, const char *why);

#endif
