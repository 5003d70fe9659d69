/* Continuous batching: one thread that steps a km_batch. Tasks join and leave between steps; prompts are
 * read in chunks beside answers that are being made. What a sequence holds at its end is kept as a prefix
 * cache, a radix tree whose least recently used leaves go first. A task is admitted only when the pages it may come
 * to need are there; should they run out all the same, the youngest is set aside and resumed later.
 * Grammars and schemas are compiled by a thread of their own, beside the steps.
 *
 * Tasks are submitted and cancelled by one thread, which also gets their events, by `post`. */
#ifndef KM_SERVE_SCHEDULER_SCHEDULER_H
#define KM_SERVE_SCHEDULER_SCHEDULER_H
#include "base/error.h"
#include <stdatomic.h>

typedef struct km_scheduler km_scheduler;

typedef struct km_task {
    /* Of the submitter; ids and how, with all it points to, must live until the last event. */
    const int32_t *ids;
    size_t n_ids;
    const km_generation *how;
    uint64_t owner;      /* who asks: places are shared fairly between owners */
    uint64_t domain;     /* whose prefixes it may use: those of its own domain alone */
    uint64_t variant;    /* and of its own mix of adapters; 0: without any */
    int priority;        /* larger ones go first */
    const char *save_to; /* where what it holds at its end is kept; NULL: nowhere */
    const char
        *restore_from; /* it only brings back what such a file holds, into the prefix cache */
    double deadline;   /* by km_now; 0: none */
    void *user;
    /* Figures, valid with the last event. */
    int64_t reused; /* of the prompt, found in the cache */
    int64_t tokens;
    int64_t held; /* of a session that was saved or restored, tokens */
    double submitted, started, first, ended;
    bool late; /* it ended because of its deadline */
    /* The scheduler's. */
    atomic_bool cancelled;
    struct km_task *next;
    int64_t reserve; /* tokens that it may come to hold */
    int sequence;
    bool stopping;
    bool passed_over;  /* another reads just now what it needs */
    bool starting;     /* its grammar is being compiled */
    km_status refused; /* of that */
    char why[256];
} km_task;

typedef struct km_task_event {
    km_task *task;
    int32_t id;
    const char *text;
    size_t bytes;
    float logprob;
    const km_logprob *top;
    int n_top;
    km_end_reason end; /* other than KM_ENDED_NOT: the last one */
    km_status status;
} km_task_event;

typedef struct km_scheduler_options {
    int parallel;       /* answers made at once: 16 */
    int kept;           /* sequences kept as a prefix cache beside these: as many; -1: none */
    int queue;          /* tasks that wait, at most: 256 */
    int64_t context;    /* of one sequence; 0: the model's */
    size_t memory;      /* of the KV cache, bytes; 0: no limit */
    int64_t chunk;      /* prompt tokens in a step; 0: chosen */
    size_t shelf_bytes; /* what leaves the KV cache is kept in files, so many bytes of it; 0: no */
    const char *shelf_folder; /* where; NULL: in main memory, /dev/shm */
    bool exact;               /* what the cache holds has no say in a text (km_generation.exact) */
    int64_t reserve;          /* tokens to reserve for an answer whose length nobody limits: 512 */
    /* Hands fn(arg) to the submitter's thread; false: out of memory. */
    bool (*post)(void *user, void (*fn)(void *arg), void *arg);
    /* Called there with the events of a step; their texts live as long as the call. */
    void (*on_events)(void *user, const km_task_event *events, size_t n);
    /* Calls fn(arg) in this thread as if it were the submitter's, which rests meanwhile, and returns what it
     * says; false: it does not rest. NULL: it never does. */
    bool (*now)(void *user, bool (*fn)(void *arg), void *arg);
    /* Can on_events be called so with these? */
    bool (*can_now)(void *user, const km_task_event *events, size_t n);
    void *user;
} km_scheduler_options;

km_scheduler *km_scheduler_new(km_model *m, const km_scheduler_options *options, km_error *err);
/* Ends the thread: tasks that are still there get their last event, by `post`. No submit after this. */
void km_scheduler_stop(km_scheduler *s);
void km_scheduler_free(km_scheduler *s); /* once all that was posted is delivered; NULL is fine */

/* KM_ERR_STATE: the queue is full. */
km_status km_scheduler_submit(km_scheduler *s, km_task *task, km_error *err);
/* The task's last event comes soon, with KM_ENDED_CANCELLED. */
void km_scheduler_cancel(km_scheduler *s, km_task *task);
void km_scheduler_clear(km_scheduler *s); /* drops the prefix cache */

typedef struct km_scheduler_counts {
    int64_t queued, running, reading, kept, paused;
    int64_t steps, prompt_tokens, reused_tokens, tokens;
    int64_t finished, cancelled, failed, set_aside;
    int64_t evicted, evicted_tokens, nodes; /* of the prefix cache: sequences, tokens; runs in it */
    int64_t pages, pages_free, page_tokens, page_bytes, context;
    int64_t shelved, shelf_bytes, brought_back; /* the second level */
    double busy;                                /* seconds spent in steps */
} km_scheduler_counts;
km_scheduler_counts km_scheduler_count(km_scheduler *s);

#endif
