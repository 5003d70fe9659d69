/* Places are handed over by whoever leaves, so that nobody who comes later takes them first. */
#include "base/gate.h"
#include "base/threads.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct km_gate_guest {
    pthread_cond_t called;
    int places;
    bool in;
    struct km_gate_guest *next;
} guest;

static _Thread_local bool inside; /* whoever waited for a second place might wait for itself */

static bool fits(const km_gate *g, int places) { return g->taken + places <= g->places; }

static void wait_for(km_gate *g, int places) {
    guest me = {.called = PTHREAD_COND_INITIALIZER, .places = places};
    if (g->last)
        g->last->next = &me;
    else
        g->first = &me;
    g->last = &me;
    while (!me.in) pthread_cond_wait(&me.called, &g->lock);
    pthread_cond_destroy(&me.called);
}

int km_gate_enter(km_gate *g, int places) {
    if (inside) return 0;
    pthread_mutex_lock(&g->lock);
    if (g->places == 0) g->places = 2 * km_cpu_count();
    places = places < 1 ? 1 : places < g->places ? places : g->places;
    if (!g->first && fits(g, places))
        g->taken += places;
    else
        wait_for(g, places);
    pthread_mutex_unlock(&g->lock);
    inside = true;
    return places;
}

void km_gate_leave(km_gate *g, int taken) {
    if (taken == 0) return;
    inside = false;
    pthread_mutex_lock(&g->lock);
    g->taken -= taken;
    for (guest *next; (next = g->first) && fits(g, next->places);) {
        g->first = next->next;
        if (!g->first) g->last = NULL;
        g->taken += next->places;
        next->in = true;
        pthread_cond_signal(&next->called); /* under the lock: it is gone as soon as it may go */
    }
    pthread_mutex_unlock(&g->lock);
}
