/* Starting tasks that have a grammar or a schema: compiling one takes from a millisecond to seconds, so a
 * thread of its own does it while the engine steps. */
#include "serve/scheduler/internal.h"
#include <stdio.h>
#include <string.h>

km_status km_start_task(km_scheduler *s, const km_task *t) {
    km_generation how = *t->how;
    how.exact |= s->o.exact;
    return km_batch_start(s->batch, t->sequence, t->ids, t->n_ids, &how);
}

static void *starter(void *user) {
    km_scheduler *s = user;
    pthread_setname_np(pthread_self(), "km-starter");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->starts && !s->stop) pthread_cond_wait(&s->to_start, &s->lock);
        km_task *t = s->starts;
        if (!t) break;
        s->starts = t->next;
        t->next = NULL;
        bool late = s->stop || atomic_load(&t->cancelled);
        pthread_mutex_unlock(&s->lock);
        if (!late) t->refused = km_start_task(s, t);
        if (!late && t->refused != KM_OK) snprintf(t->why, sizeof t->why, "%s", km_last_error());
        if (late) { /* nobody waits for it */
            t->refused = KM_ERR_STATE;
            strcpy(t->why, "the server ends");
        }
        pthread_mutex_lock(&s->lock);
        t->next = s->ready;
        s->ready = t;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool km_starter_begin(km_scheduler *s) {
    s->has_starter = pthread_create(&s->starter, NULL, starter, s) == 0;
    return s->has_starter;
}

void km_starter_end(km_scheduler *s) {
    if (!s->has_starter) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->to_start);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->starter, NULL);
    s->has_starter = false;
}

void km_starter_put(km_scheduler *s, km_task *t) {
    t->starting = true;
    t->refused = KM_OK;
    s->n_starting++;
    pthread_mutex_lock(&s->lock);
    km_task **last = &s->starts;
    while (*last) last = &(*last)->next;
    *last = t;
    pthread_cond_signal(&s->to_start);
    pthread_mutex_unlock(&s->lock);
}
