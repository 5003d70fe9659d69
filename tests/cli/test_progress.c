/* The progress bar: silent in a file, drawn in a terminal. Each case runs in a child whose
 * stderr is a pseudo-terminal or a pipe, and looks at the bytes that came out. */
#include "cli/progress.c"
#include "base/clock.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char seen[65536];

/* Reads to the end. A terminal whose other side is closed reports an error: that is its end. */
static void collect(int fd) {
    size_t n = 0;
    for (ssize_t got; n < sizeof seen - 1 && (got = read(fd, seen + n, sizeof seen - 1 - n)) > 0;)
        n += (size_t)got;
    seen[n] = 0;
    close(fd);
}

static void run_child(void (*job)(void), int reader, int writer) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(reader);
        dup2(writer, STDERR_FILENO);
        job();
        _exit(0);
    }
    close(writer);
    collect(reader);
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void in_pipe(void (*job)(void)) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    run_child(job, fds[0], fds[1]);
}

static void in_terminal(void (*job)(void), int columns) {
    int reader = posix_openpt(O_RDWR | O_NOCTTY);
    if (reader < 0) skip(); /* no pseudo-terminals here: a bare chroot, say */
    assert_int_equal(grantpt(reader), 0);
    assert_int_equal(unlockpt(reader), 0);
    int writer = open(ptsname(reader), O_RDWR | O_NOCTTY);
    assert_true(writer >= 0);
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    assert_int_equal(ioctl(writer, TIOCSWINSZ, &size), 0);
    run_child(job, reader, writer);
}

static int count(const char *what) {
    int n = 0;
    for (const char *p = seen; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* Instead of waiting, the job pretends to have begun earlier. */
static void begin(km_progress *p, int64_t total, bool quiet, double ago) {
    km_progress_begin(p, "verify", "ops", total, quiet);
    p->started -= ago;
}

static void slow_job(void) {
    km_progress p;
    begin(&p, 79, false, 30);
    km_progress_step(&p, 70, "softmax");
    km_progress_end(&p);
}

static void long_job(void) {
    km_progress p;
    begin(&p, 79, false, 600);
    km_progress_step(&p, 41, NULL);
    p.started -= 6600;
    p.drawn = 0;
    km_progress_step(&p, 41, NULL);
    km_progress_end(&p);
}

/* Begun in the future: a machine that stalls the child does not make it a slow job. */
static void quick_job(void) {
    km_progress p;
    begin(&p, 79, false, -60);
    for (int i = 1; i <= 79; i++) km_progress_step(&p, i, "softmax");
    km_progress_end(&p);
}

static void quiet_job(void) {
    km_progress p;
    begin(&p, 79, true, 3);
    km_progress_step(&p, 41, "softmax");
    km_progress_end(&p);
}

/* Steps without pause until the third drawing; fails when two came too close together. */
static void busy_job(void) {
    km_progress p;
    begin(&p, INT64_MAX, false, 3);
    int drawings = 0;
    double last = 0;
    for (int64_t i = 1; drawings < 3; i++) {
        km_progress_step(&p, i, NULL);
        if (p.drawn == last) continue;
        if (p.drawn - last < 0.1) _exit(1);
        last = p.drawn;
        drawings++;
    }
    km_progress_end(&p);
}

static void endless_job(void) {
    km_progress p;
    begin(&p, 0, false, 3);
    km_progress_step(&p, 1234, NULL);
    km_progress_end(&p);
}

static void strange_job(void) {
    km_progress p;
    begin(&p, 10, false, 3);
    km_progress_step(&p, 50, "a\nb\033[2J");
    p.drawn = 0;
    km_progress_step(&p, -3, NULL);
    p.drawn = 0;
    km_progress_begin(&p, NULL, NULL, INT64_MAX, false);
    p.started -= 3;
    km_progress_step(&p, 1, NULL);
    km_progress_end(&p);
    km_progress_end(&p);
}

static void resumed_job(void) {
    km_progress p;
    begin(&p, 80, false, 10);
    p.first = 40;
    km_progress_step(&p, 60, NULL);
    km_progress_hide(&p);
    km_progress_hide(&p);
    km_progress_end(&p);
}

static void dumb_job(void) {
    setenv("TERM", "dumb", 1);
    slow_job();
}

static void a_terminal_shows_the_bar_and_is_left_clean(void **state) {
    in_terminal(slow_job, 100);
    assert_string_equal(seen, "\r\033[Kverify  [=================>  ]  88%  70/79 ops  softmax"
                              "   4 s left\r\033[K");
}

static void long_waits_are_told_in_minutes_and_hours(void **state) {
    in_terminal(long_job, 100);
    assert_non_null(strstr(seen, "41/79 ops   9 min left"));
    assert_non_null(strstr(seen, "41/79 ops   2 h left"));
}

static void what_was_done_before_does_not_count_as_fast(void **state) {
    in_terminal(resumed_job, 100);
    assert_string_equal(seen, "\r\033[Kverify  [===============>    ]  75%  60/80 ops"
                              "   10 s left\r\033[K");
}

static void a_pipe_stays_silent(void **state) {
    in_pipe(slow_job);
    assert_string_equal(seen, "");
}

static void a_quick_job_shows_nothing(void **state) {
    in_terminal(quick_job, 100);
    assert_string_equal(seen, "");
}

static void quiet_shows_nothing(void **state) {
    in_terminal(quiet_job, 100);
    assert_string_equal(seen, "");
}

static void a_terminal_that_cannot_erase_shows_nothing(void **state) {
    in_terminal(dumb_job, 100);
    assert_string_equal(seen, "");
}

static void it_is_redrawn_at_most_ten_times_a_second(void **state) {
    in_terminal(busy_job, 100);
    assert_int_equal(count("verify"), 3);
}

static void it_never_fills_the_last_column(void **state) {
    static const int widths[] = {1, 2, 10, 40, 79};
    for (int i = 0; i < 5; i++) {
        in_terminal(slow_job, widths[i]);
        const char *line = seen + strlen("\r\033[K");
        assert_true(strcspn(line, "\r") < (size_t)widths[i]);
    }
}

static void without_a_total_it_counts(void **state) {
    in_terminal(endless_job, 100);
    assert_string_equal(seen, "\r\033[Kverify  1234 ops\r\033[K");
}

static void strange_values_and_notes_stay_on_the_line(void **state) {
    in_terminal(strange_job, 100);
    assert_non_null(strstr(seen, "[====================] 100%  50/10 ops  a?b?[2J"));
    assert_non_null(strstr(seen, "[>                   ]   0%  -3/10"));
    assert_null(strchr(seen, '\n'));
    assert_non_null(strstr(seen, "  [>                   ]   0%  1/9223372036854775807"));
}

static void the_clock_runs_forward(void **state) {
    double before = km_now();
    usleep(2000);
    double passed = km_now() - before;
    assert_true(passed >= 0.0019);
    assert_true(passed < 60);
}

int main(void) {
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_shows_the_bar_and_is_left_clean),
        cmocka_unit_test(long_waits_are_told_in_minutes_and_hours),
        cmocka_unit_test(what_was_done_before_does_not_count_as_fast),
        cmocka_unit_test(a_pipe_stays_silent),
        cmocka_unit_test(a_quick_job_shows_nothing),
        cmocka_unit_test(quiet_shows_nothing),
        cmocka_unit_test(a_terminal_that_cannot_erase_shows_nothing),
        cmocka_unit_test(it_is_redrawn_at_most_ten_times_a_second),
        cmocka_unit_test(it_never_fills_the_last_column),
        cmocka_unit_test(without_a_total_it_counts),
        cmocka_unit_test(strange_values_and_notes_stay_on_the_line),
        cmocka_unit_test(the_clock_runs_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
