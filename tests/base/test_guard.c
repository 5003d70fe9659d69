/* Files that become shorter while they are mapped: what is gone reads as zeros and is told, in every
 * thread, and a SIGBUS that is none of ours does what it did before. Each test is a process of its
 * own, because the handler is installed with a process's first mapping. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/guard.h"
#include "base/threads.h"
#include "support/sanitized.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Helpers ---- */

static char path[2][300];
static size_t page;

static int make_files(void **state) {
    const char *tmp = getenv("TMPDIR");
    page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof path[i], "%s/kermes-guard-%d-%d", tmp && *tmp ? tmp : "/tmp",
                 (int)getpid(), i);
    return 0;
}

static int remove_files(void **state) {
    for (int i = 0; i < 2; i++) unlink(path[i]);
    return 0;
}

/* A file of so many pages of ones. */
static void fill(const char *name, size_t pages) {
    FILE *f = fopen(name, "wb");
    char *ones = malloc(page);
    memset(ones, 1, page);
    for (size_t i = 0; i < pages; i++)
        if (fwrite(ones, 1, page, f) != page) _exit(99);
    free(ones);
    fclose(f);
}

/* In a child no assertion of cmocka's can be used: the line that failed is the exit code. */
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            _exit(98);                                                                             \
        }                                                                                          \
    } while (0)

static int status_of(void (*child)(void)) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        child();
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

static void lives(void (*child)(void)) {
    int status = status_of(child);
    if (status != 0) fail_msg("the process ended with status 0x%x", (unsigned)status);
}

static void dies_of_it(void (*child)(void)) {
    int status = status_of(child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static int at(const km_map *m, size_t i) { return ((const volatile uint8_t *)m->data)[i]; }

/* ---- Our own mappings ---- */

static void read_what_is_gone(void) {
    km_map m, other;
    km_error err = {0};
    fill(path[0], 5);
    fill(path[1], 2);
    CHECK(km_map_open(&m, path[0], &err) == KM_OK && km_map_open(&other, path[1], &err) == KM_OK);
    CHECK(at(&m, 3 * page + 7) == 1);
    CHECK(truncate(path[0], (off_t)page) == 0);
    CHECK(km_map_check(&m, &err) == KM_OK); /* nobody has looked yet */
    CHECK(at(&m, 0) == 1 && at(&other, page) == 1);
    CHECK(at(&m, 3 * page + 7) == 0);
    CHECK(at(&m, 4 * page) == 0 && at(&m, page) == 0 && at(&m, 5 * page - 1) == 0);
    CHECK(at(&m, 0) == 1); /* what is there stays */
    CHECK(km_map_check(&m, &err) == KM_ERR_FILE);
    char want[700];
    snprintf(want, sizeof want,
             "'%s' changed while it was in use: byte %zu of %zu is no longer there; put the whole "
             "file back and open it again",
             path[0], 3 * page + 7, 5 * page);
    CHECK(strcmp(err.text, want) == 0);
    err = (km_error){0};
    CHECK(km_map_check(&other, &err) == KM_OK);
    CHECK(km_guard_check_at(other.data + 9, &err) == KM_OK &&
          km_guard_check_at(want, &err) == KM_OK);
    CHECK(km_guard_check_at(m.data + 9, &err) == KM_ERR_FILE && km_guard_broken());
    /* A reader's own complaint gives way: it may be about the zeros. */
    err = (km_error){0};
    km_error_set(&err, KM_ERR_FORMAT, "zeros everywhere");
    CHECK(km_map_done(&m, KM_ERR_FORMAT, &err) == KM_ERR_FILE && strcmp(err.text, want) == 0);
    CHECK(!m.data && !km_guard_broken());
    err = (km_error){0};
    CHECK(km_map_done(&other, KM_ERR_SHAPE, &err) == KM_ERR_SHAPE && !err.text[0]);
    CHECK(km_alloc_live() == 0);
}

static void what_a_file_no_longer_has_reads_as_zeros_and_is_told(void **state) {
    lives(read_what_is_gone);
}

enum { PAGES = 4000 };
static km_map shared;
static atomic_long zeros, faults;
static struct sigaction installed;

static void count_faults(int sig, siginfo_t *info, void *context) {
    atomic_fetch_add(&faults, 1);
    installed.sa_sigaction(sig, info, context);
}

static void look(void *arg, int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) zeros += at(&shared, (size_t)i * page) == 0;
}

static void read_in_threads(void) {
    km_error err = {0};
    km_threads *t = km_threads_new(4);
    fill(path[0], PAGES);
    CHECK(km_map_open(&shared, path[0], &err) == KM_OK);
    struct sigaction counting = {.sa_sigaction = count_faults, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &counting, &installed) == 0); /* a later handler may pass on to ours */
    CHECK(truncate(path[0], (off_t)(page * 100)) == 0);
    km_threads_for(t, PAGES, 50, look, NULL);
    CHECK(zeros == PAGES - 100);
    CHECK(faults > 0 && faults < 100); /* not one for each page */
    CHECK(km_map_done(&shared, KM_OK, &err) == KM_ERR_FILE);
    km_threads_free(t);
}

static void every_thread_may_meet_it_and_few_faults_do_for_many_pages(void **state) {
    lives(read_in_threads);
}

/* The kernel reads for write(2), and never faults: it says EFAULT. */
static void copy_what_is_gone(void) {
    km_map m;
    km_error err = {0};
    fill(path[0], 200);
    fill(path[1], 1);
    CHECK(km_map_open(&m, path[0], &err) == KM_OK);
    CHECK(truncate(path[0], 0) == 0);
    km_writer *w = km_writer_open(path[1], &err);
    CHECK(w && km_writer_put(w, m.data, m.size) == KM_ERR_FILE);
    CHECK(km_writer_commit(w, &err) == KM_ERR_FILE);
    CHECK(strstr(err.text, "cannot write '") == err.text && strstr(err.text, path[1]));
    CHECK(strstr(err.text, "changed while it was in use: byte 0 of ") && strstr(err.text, path[0]));
    km_map_close(&m);
    CHECK(km_map_open(&m, path[1], &err) == KM_OK && m.size == page); /* as it was */
    km_map_close(&m);
}

static void a_write_from_such_a_file_fails_and_names_it(void **state) { lives(copy_what_is_gone); }

static void map_often(void) {
    km_map m[300];
    km_error err = {0};
    fill(path[0], 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++) CHECK(km_map_open(&m[i], path[0], &err) == KM_OK);
        for (int i = 0; i < 300; i++) km_map_close(&m[(i * 7) % 300]);
    }
    CHECK(km_map_open(&m[0], path[0], &err) == KM_OK);
    CHECK(truncate(path[0], 0) == 0 && at(&m[0], 5) == 0 &&
          km_map_check(&m[0], NULL) == KM_ERR_FILE);
    km_map_close(&m[0]);
    CHECK(km_alloc_live() == 0);
}

static void mappings_come_and_go(void **state) { lives(map_often); }

/* ---- Those of others ---- */

static volatile uint8_t *foreign;

/* A mapping that Kermes knows nothing of, of a file that is gone. */
static void map_foreign(void) {
    fill(path[1], 1);
    int fd = open(path[1], O_RDONLY);
    foreign = mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(fd >= 0 && foreign != MAP_FAILED && ftruncate(open(path[1], O_RDWR), 0) == 0);
    close(fd);
}

/* Kermes' own handler, put over what is there. */
static void map_ours(void) {
    static km_map m;
    fill(path[0], 2);
    CHECK(km_map_open(&m, path[0], NULL) == KM_OK && truncate(path[0], 0) == 0);
    CHECK(at(&m, page) == 0 && km_map_check(&m, NULL) == KM_ERR_FILE);
}

static volatile int calls; /* raise() is a leaf function to the compiler */
static void *volatile called_with;
static volatile bool blocked; /* SIGUSR1, while the handler runs */
static sigjmp_buf out;

static void with_info(int sig, siginfo_t *info, void *context) {
    sigset_t now;
    calls++;
    called_with = info->si_addr;
    sigprocmask(SIG_BLOCK, NULL, &now);
    blocked = sigismember(&now, SIGUSR1);
    void *whole = (void *)((uintptr_t)info->si_addr & ~(page - 1));
    if (info->si_code > 0)
        mmap(whole, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void plain(int sig) {
    calls++;
    siglongjmp(out, 1);
}

static void handler_with_info(void) {
    struct sigaction own = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO};
    sigaddset(&own.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGBUS, &own, NULL) == 0);
    map_ours();
    CHECK(calls == 0);
    map_foreign();
    CHECK(foreign[0] == 0 && calls == 1 && called_with == (void *)foreign && blocked);
    raise(SIGBUS);
    CHECK(calls == 2);
    map_ours();
    CHECK(calls == 2);
}

static void plain_handler(void) {
    struct sigaction own = {.sa_handler = plain};
    CHECK(sigaction(SIGBUS, &own, NULL) == 0);
    map_ours();
    map_foreign();
    for (volatile int i = 1; i <= 3; i++)
        if (sigsetjmp(out, 1) == 0) {
            (void)foreign[0];
            CHECK(false);
        } else {
            CHECK(calls == i);
        }
}

static void another_fault_goes_to_the_handler_that_was_there(void **state) {
    lives(handler_with_info);
    lives(plain_handler);
}

static void handler_for_once(void) {
    struct sigaction own = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    CHECK(sigaction(SIGBUS, &own, NULL) == 0);
    map_ours();
    raise(SIGBUS);
    CHECK(calls == 1);
    raise(SIGBUS);
    CHECK(false);
}

static void without_handler(void) {
    signal(SIGBUS, SIG_DFL);
    map_ours();
    map_foreign();
    (void)foreign[0];
}

static void sent_without_handler(void) {
    signal(SIGBUS, SIG_DFL);
    map_ours();
    raise(SIGBUS);
}

static void ignored_when_sent(void) {
    signal(SIGBUS, SIG_IGN);
    map_ours();
    raise(SIGBUS);
}

static void ignored_as_a_fault(void) {
    ignored_when_sent();
    map_foreign();
    (void)foreign[0];
}

static void without_a_handler_it_does_what_the_system_does(void **state) {
    dies_of_it(handler_for_once);
    dies_of_it(without_handler);
    dies_of_it(sent_without_handler);
    lives(ignored_when_sent);
    dies_of_it(ignored_as_a_fault);
}

static void left_alone(void) {
    struct sigaction own = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO}, now;
    km_map m;
    setenv("KERMES_SIGBUS", "0", 1);
    CHECK(sigaction(SIGBUS, &own, NULL) == 0);
    fill(path[0], 1);
    CHECK(km_map_open(&m, path[0], NULL) == KM_OK && sigaction(SIGBUS, NULL, &now) == 0);
    CHECK(now.sa_sigaction == with_info);
    CHECK(truncate(path[0], 0) == 0 && at(&m, 3) == 0 && calls == 1);
    CHECK(km_map_check(&m, NULL) == KM_OK);
    km_map_close(&m);
}

static void the_signal_can_be_left_alone(void **state) { lives(left_alone); }

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(test) cmocka_unit_test_teardown(test, remove_files)
        TEST(what_a_file_no_longer_has_reads_as_zeros_and_is_told),
        TEST(every_thread_may_meet_it_and_few_faults_do_for_many_pages),
        TEST(a_write_from_such_a_file_fails_and_names_it),
        TEST(mappings_come_and_go),
        TEST(another_fault_goes_to_the_handler_that_was_there),
        TEST(without_a_handler_it_does_what_the_system_does),
        TEST(the_signal_can_be_left_alone),
    };
    return cmocka_run_group_tests(tests, make_files, NULL);
}
