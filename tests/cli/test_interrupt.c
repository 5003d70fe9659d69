/* Ctrl-C while a line is read. It belongs to the command, not to the library, so it is compiled into
 * this test. */
#include "cli/interrupt.c"
#include "support/sanitized.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Whichever thread the system gives it to: here one that takes it while the reader waits, or just
 * before. */
static void *take_it(void *arg) {
    usleep(*(useconds_t *)arg);
    pthread_kill(pthread_self(), SIGINT);
    return NULL;
}

static void a_reader_wakes_up_when_another_thread_gets_the_signal(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0); /* nobody writes */
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    alarm(30); /* a reader that waits for ever */
    for (useconds_t i = 0; i < 20; i++) {
        pthread_t other;
        useconds_t pause = i == 0 ? 100000 : i * 10;
        char byte;
        km_interrupts_catch(true);
        assert_false(km_interrupted());
        assert_int_equal(pthread_create(&other, NULL, take_it, &pause), 0);
        assert_int_equal(km_read_typed(&byte, 1), -1);
        assert_int_equal(errno, EINTR);
        assert_true(km_interrupted());
        pthread_join(other, NULL);
    }
    alarm(0);
    km_interrupts_leave();
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_wakes_up_when_another_thread_gets_the_signal)};
    if (SANITIZED) return 77; /* they hold signals back */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
