/* A gate lets in as many as it has places for, in the order in which they came. */
#include "base/gate.h"
#include "base/threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

enum { GUESTS = 8 };

static km_gate gate;
static _Atomic int in, most, came;
static int order[GUESTS]; /* of numbers, as they went in */

typedef struct visit {
    pthread_t thread;
    int number, places;
} visit;

static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }

static int open_gate(int places) {
    gate = (km_gate)KM_GATE(places);
    in = most = came = 0;
    return places;
}

static void *go(void *arg) {
    const visit *v = arg;
    int taken = km_gate_enter(&gate, v->places), now = atomic_fetch_add(&in, taken) + taken,
        seen = most;
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) continue;
    order[atomic_fetch_add(&came, 1)] = v->number;
    nap();
    atomic_fetch_sub(&in, taken);
    km_gate_leave(&gate, taken);
    return NULL;
}

/* Starts a guest and waits until it stands at the gate, as the last. */
static void send(visit *v, int number, int places) {
    *v = (visit){.number = number, .places = places};
    pthread_mutex_lock(&gate.lock);
    const void *last = gate.last;
    pthread_mutex_unlock(&gate.lock);
    assert_int_equal(pthread_create(&v->thread, NULL, go, v), 0);
    for (bool there = false; !there;) {
        nap();
        pthread_mutex_lock(&gate.lock);
        there = gate.last != last;
        pthread_mutex_unlock(&gate.lock);
    }
}

static void no_more_are_in_than_there_are_places(void **state) {
    (void)state;
    visit v[GUESTS];
    int taken = km_gate_enter(&gate, open_gate(3));
    for (int i = 0; i < GUESTS; i++) send(&v[i], i, 1 + i % 2);
    assert_int_equal(in, 0);
    km_gate_leave(&gate, taken);
    for (int i = 0; i < GUESTS; i++) pthread_join(v[i].thread, NULL);
    assert_int_equal(came, GUESTS);
    assert_int_equal(most, 3);
    assert_int_equal(gate.taken, 0);
}

static void guests_go_in_as_they_came(void **state) {
    (void)state;
    visit v[GUESTS];
    int taken = km_gate_enter(&gate, open_gate(2));
    for (int i = 0; i < GUESTS; i++) send(&v[i], i, 2);
    km_gate_leave(&gate, taken);
    for (int i = 0; i < GUESTS; i++) pthread_join(v[i].thread, NULL);
    for (int i = 0; i < GUESTS; i++) assert_int_equal(order[i], i);
}

static void a_small_guest_does_not_pass_by_a_large_one(void **state) {
    (void)state;
    visit v[2];
    open_gate(2);
    int taken = km_gate_enter(&gate, 1);
    send(&v[0], 0, 2);
    send(&v[1], 1, 1); /* there is a place, but not its turn */
    assert_int_equal(came, 0);
    km_gate_leave(&gate, taken);
    for (int i = 0; i < 2; i++) pthread_join(v[i].thread, NULL);
    assert_int_equal(order[0], 0);
}

static void a_thread_that_is_in_does_not_wait_for_itself(void **state) {
    (void)state;
    open_gate(1);
    int taken = km_gate_enter(&gate, 1), again = km_gate_enter(&gate, 1);
    assert_int_equal(taken, 1);
    assert_int_equal(again, 0);
    km_gate_leave(&gate, again);
    assert_int_equal(gate.taken, 1);
    km_gate_leave(&gate, taken);
    assert_int_equal(gate.taken, 0);
}

static void nobody_asks_for_more_than_there_is(void **state) {
    (void)state;
    open_gate(2);
    int taken = km_gate_enter(&gate, 100);
    assert_int_equal(taken, 2);
    km_gate_leave(&gate, taken);
    taken = km_gate_enter(&gate, -1);
    assert_int_equal(taken, 1);
    km_gate_leave(&gate, taken);
    assert_int_equal(gate.taken, 0);
}

static void there_are_two_places_for_each_core(void **state) {
    (void)state;
    open_gate(0);
    int taken = km_gate_enter(&gate, INT32_MAX);
    assert_int_equal(taken, 2 * km_cpu_count());
    km_gate_leave(&gate, taken);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_are_in_than_there_are_places),
        cmocka_unit_test(guests_go_in_as_they_came),
        cmocka_unit_test(a_small_guest_does_not_pass_by_a_large_one),
        cmocka_unit_test(a_thread_that_is_in_does_not_wait_for_itself),
        cmocka_unit_test(nobody_asks_for_more_than_there_is),
        cmocka_unit_test(there_are_two_places_for_each_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
