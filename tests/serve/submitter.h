/* What tests of the scheduler share: a submitter, which runs what the engine posts in the test's own thread,
 * tasks over the small model with their texts, and the check that nothing is left over. */
#ifndef KM_TESTS_SERVE_SUBMITTER_H
#define KM_TESTS_SERVE_SUBMITTER_H
#include "serve/scheduler/scheduler.h"
#include "base/clock.h"
#include "base/text.h"
#include "engine/tiny_model.h"
#include <pthread.h>
#include <unistd.h>

/* ---- A submitter: this thread runs what the engine posts ---- */

typedef struct posted_call {
    void (*fn)(void *arg);
    void *arg;
    struct posted_call *next;
} posted_call;

typedef struct asked_task {
    km_task task;
    km_generation how;
    int32_t ids[512];
    km_text text;
    int ends, order, tokens;
    km_end_reason end;
    km_status status;
    char why[200]; /* of a status that is no KM_OK */
} asked_task;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t some;
    posted_call *first, **last;
    int ended;
} mail = {.lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};

static inline bool post(void *user, void (*fn)(void *arg), void *arg) {
    (void)user;
    posted_call *p = malloc(sizeof *p);
    if (!p) return false;
    *p = (posted_call){fn, arg, NULL};
    pthread_mutex_lock(&mail.lock);
    if (!mail.first) mail.last = &mail.first;
    *mail.last = p;
    mail.last = &p->next;
    pthread_cond_signal(&mail.some);
    pthread_mutex_unlock(&mail.lock);
    return true;
}

static inline bool open_mail(bool wait) {
    pthread_mutex_lock(&mail.lock);
    while (wait && !mail.first) pthread_cond_wait(&mail.some, &mail.lock);
    posted_call *p = mail.first;
    if (p) mail.first = p->next;
    pthread_mutex_unlock(&mail.lock);
    if (!p) return false;
    p->fn(p->arg);
    free(p);
    return true;
}

static inline void on_events(void *user, const km_task_event *e, size_t n) {
    (void)user;
    for (size_t i = 0; i < n; i++) {
        asked_task *a = e[i].task->user;
        a->tokens += e[i].id >= 0;
        if (e[i].end == KM_ENDED_NOT) {
            km_text_put(&a->text, e[i].text, e[i].bytes);
            continue;
        }
        a->ends++;
        a->end = e[i].end;
        a->status = e[i].status;
        if (a->status != KM_OK) snprintf(a->why, sizeof a->why, "%.*s", (int)e[i].bytes, e[i].text);
        a->order = ++mail.ended;
    }
}

static inline km_scheduler *open_scheduler(km_model *m, km_scheduler_options o) {
    km_error err = {0};
    o.post = post;
    o.on_events = on_events;
    mail.ended = 0;
    km_scheduler *s = km_scheduler_new(m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    return s;
}

static inline void close_scheduler(km_scheduler *s) {
    km_scheduler_stop(s);
    while (open_mail(false)) {}
    km_scheduler_free(s);
}

static inline void prepare(asked_task *a, km_model *m, const char *prompt, int64_t tokens) {
    *a = (asked_task){.how = tiny_greedy(m, tokens)};
    a->how.sampling.temperature = 1;
    a->task.n_ids = (size_t)tiny_ids(m, prompt, a->ids, 512);
    a->task.ids = a->ids;
    a->task.how = &a->how;
    a->task.user = a;
}

static inline void submit(km_scheduler *s, asked_task *a) {
    km_error err = {0};
    if (km_scheduler_submit(s, &a->task, &err) != KM_OK) fail_msg("%s", err.text);
}

static inline void finish(int ended) {
    while (mail.ended < ended) open_mail(true);
}

/* All places, tokens and pages are there again, once the prefix cache is empty. */
static inline void nothing_is_left(km_scheduler *s, km_model *m) {
    asked_task last;
    prepare(&last, m, "I", 1);
    km_scheduler_clear(s);
    submit(s, &last);
    finish(mail.ended + 1);
    km_text_free(&last.text);
    km_scheduler_counts c = km_scheduler_count(s);
    assert_int_equal(c.running, 0);
    assert_int_equal(c.queued, 0);
    assert_int_equal(c.paused, 0);
    assert_true(c.pages - c.pages_free <= 1); /* of the last one, which is kept for its next turn */
}

enum { MANY = 6 };
static const char *const prompts[MANY] = {
    "Once upon a time there was",   "The sea is",
    "A small dog ran to the house", "One day a girl named Lily went to the park with her mom",
    "I saw a red bird in the tree", "He said"};

#endif
