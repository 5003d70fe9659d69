/* AddressSanitizer sees a kernel whose vector reaches beyond what is there, wherever the end lies in it, and
 * ThreadSanitizer two that write to one place: with gcc the checks of whole vectors are our own
 * (cmake/sanitized_vectors.c). */
#include "backend/cpu/attend.h"
#include "support/engine.h"
#include "support/sanitized.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64 };
static volatile float sink;

static void read_numbers(uint16_t *x, float *y, int64_t n) {
    km_simd_attend()->decode(KM_F16, x, n, y);
    sink = y[0];
}

static void write_numbers(uint16_t *x, float *y, int64_t n) {
    km_simd_attend()->encode(KM_F16, y, n, x);
    sink = x[0];
}

/* Does a child end with a report when `use` gets `n` numbers of which x has `room`? */
static bool noticed(void (*use)(uint16_t *x, float *y, int64_t n), int64_t n, int64_t room) {
    pid_t pid = fork();
    if (pid == 0) {
        uint16_t *x = calloc((size_t)room, sizeof *x);
        float *y = calloc(MOST, sizeof *y);
        if (!x || !y || !freopen("/dev/null", "w", stderr)) _exit(7);
        use(x, y, n);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void a_vector_beyond_the_end_is_noticed(void **state) {
    (void)state;
    if (!SANITIZED || THREADS_SANITIZED) skip();
    int64_t n =
        MOST; /* whole vectors; their rests are moved under masks, which no sanitizer follows */
    assert_false(noticed(read_numbers, n, n));
    assert_false(noticed(write_numbers, n, n));
    for (int64_t missing = 1; missing < 32; missing += 15) {
        assert_true(noticed(read_numbers, n, n - missing));
        assert_true(noticed(write_numbers, n, n - missing));
    }
}

/* ---- Two threads in one array ---- */

static uint16_t shared[2 * MOST];

static void *write_from(void *at) {
    static const float y[MOST];
    km_simd_attend()->encode(KM_F16, y, MOST, at);
    return NULL;
}

/* Does a child end with a report when one thread writes to the array's beginning and one from `second` on? */
static bool race_noticed(int second) {
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t a, b;
        if (!freopen("/dev/null", "w", stderr)) _exit(7);
        if (pthread_create(&a, NULL, write_from, shared)) _exit(7);
        if (pthread_create(&b, NULL, write_from, shared + second)) _exit(7);
        pthread_join(a, NULL);
        pthread_join(b, NULL);
        exit(0); /* where reports are counted */
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void two_threads_in_one_array_are_noticed(void **state) {
    (void)state;
    if (!THREADS_SANITIZED) skip();
    assert_false(race_noticed(MOST));
    assert_true(race_noticed(0));
    assert_true(race_noticed(MOST - 4)); /* the last vector of one, the first of the other */
    assert_true(race_noticed(MOST / 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_threads_in_one_array_are_noticed),
                                       cmocka_unit_test(a_vector_beyond_the_end_is_noticed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
