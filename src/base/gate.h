/* A gate that lets so much work in at a time, and the rest in the order in which it came: more threads
 * than cores that all compute only make each other, and whoever else wants a core, wait for longer. */
#ifndef KM_BASE_GATE_H
#define KM_BASE_GATE_H
#include <pthread.h>

typedef struct km_gate {
    pthread_mutex_t lock;
    int places; /* 0: two for each core, so that none idles until the next is awake */
    int taken;
    struct km_gate_guest *first, *last; /* who waits */
} km_gate;

#define KM_GATE(n)                                                                                 \
    { .lock = PTHREAD_MUTEX_INITIALIZER, .places = (n) }

/* Takes `places`, or all where there are fewer, and waits for them if it has to. A thread that is in
 * goes through at once, by any gate, with nothing taken. Returns what km_gate_leave is to give back. */
int km_gate_enter(km_gate *g, int places);
void km_gate_leave(km_gate *g, int taken);

#endif
