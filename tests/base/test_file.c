/* Files: mapping what is there and refusing what is not, and writes that happen wholly or
 * not at all. */
#include "base/alloc.h"
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[256];

static const char *in_folder(const char *name) {
    static char path[4][PATH_MAX];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, PATH_MAX, "%s/%s", folder, name);
    return p;
}

static int make_folder(void **state) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kermes-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int entries(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

/* Everything a test left, so that the next finds an empty folder. */
static int empty_folder(void **state) {
    chmod(folder, 0700);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        const char *path = in_folder(e->d_name);
        if (unlink(path) != 0) rmdir(path);
    }
    if (d) closedir(d);
    km_alloc_fail_nth(-1);
    return 0;
}

static int remove_folder(void **state) { return rmdir(folder); }

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void assert_file_is(const char *path, const void *data, size_t n) {
    km_map m;
    km_error err = {0};
    assert_int_equal(km_map_open(&m, path, &err), KM_OK);
    assert_int_equal(m.size, n);
    if (n) assert_memory_equal(m.data, data, n);
    km_map_close(&m);
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- Reading ---- */

static void a_mapping_shows_the_bytes(void **state) {
    int fds = open_files();
    const char *path = in_folder("a");
    write_text(path, "hello");
    km_map m;
    km_error err = {0};
    assert_int_equal(km_map_open(&m, path, &err), KM_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    unlink(path); /* the mapping stays */
    assert_memory_equal(m.data, "hello", 5);
    km_map_close(&m);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    km_map_close(&m);
    assert_int_equal(open_files(), fds);
}

static void an_empty_file_is_an_empty_mapping(void **state) {
    write_text(in_folder("empty"), "");
    km_map m = {.data = (const uint8_t *)"x", .size = 9};
    assert_int_equal(km_map_open(&m, in_folder("empty"), NULL), KM_OK);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    km_map_close(&m);
}

static void assert_no_map(const char *path, km_status code, const char *why) {
    int fds = open_files();
    km_map m = {.data = (const uint8_t *)"x", .size = 9};
    km_error err = {0};
    assert_int_equal(km_map_open(&m, path, &err), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, why));
    if (path) assert_non_null(strstr(err.text, path));
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    assert_int_equal(open_files(), fds);
    km_map_close(&m);
}

static void what_cannot_be_mapped_gives_a_clear_error(void **state) {
    assert_no_map(in_folder("missing"), KM_ERR_FILE, "No such file");
    assert_no_map(in_folder("no/such/folder"), KM_ERR_FILE, "No such file");
    assert_no_map(folder, KM_ERR_FILE, "it is a folder");
    assert_no_map(NULL, KM_ERR_NULL, "no file name");
    assert_no_map("", KM_ERR_FILE, "No such file");
    assert_no_map("/dev/null", KM_ERR_FILE, "not a regular file");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_no_map(in_folder("pipe"), KM_ERR_FILE, "not a regular file"); /* and does not hang */
}

/* ---- Writing ---- */

static void a_write_appears_at_commit_and_not_before(void **state) {
    int fds = open_files();
    int64_t live = km_alloc_live();
    const char *path = in_folder("out");
    km_error err = {0};
    km_writer *w = km_writer_open(path, &err);
    assert_non_null(w);
    assert_int_equal(km_writer_put(w, "abc", 3), KM_OK);
    assert_int_equal(km_writer_printf(w, "%d-%s", 12, "x"), KM_OK);
    assert_int_equal(km_writer_put(w, NULL, 0), KM_OK);
    assert_int_equal(km_writer_offset(w), 7);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(km_writer_commit(w, &err), KM_OK);
    assert_file_is(path, "abc12-x", 7);
    assert_int_equal(entries(), 1);
    assert_int_equal(open_files(), fds);
    assert_int_equal(km_alloc_live(), live);
}

static void an_empty_write_makes_an_empty_file(void **state) {
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    assert_file_is(in_folder("out"), "", 0);
}

static void pieces_of_all_sizes_arrive_in_order(void **state) {
    static const size_t sizes[] = {1,      100, 65536,   262143, 1,     262144,
                                   262145, 7,   1000003, 200000, 100000};
    size_t total = 0, at = 0;
    for (int i = 0; i < 11; i++) total += sizes[i];
    uint8_t *data = malloc(total);
    for (size_t i = 0; i < total; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    for (int i = 0; i < 11; i++) {
        assert_int_equal(km_writer_put(w, data + at, sizes[i]), KM_OK);
        at += sizes[i];
        assert_int_equal(km_writer_offset(w), at);
    }
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    assert_file_is(in_folder("out"), data, total);
    free(data);
}

static void long_formatted_text_is_not_cut(void **state) {
    char text[5000];
    memset(text, 'z', sizeof text - 1);
    text[sizeof text - 1] = 0;
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    assert_int_equal(km_writer_printf(w, "%s", text), KM_OK);
    assert_int_equal(km_writer_printf(w, "%.1023s", text), KM_OK); /* just fits on the stack */
    assert_int_equal(km_writer_printf(w, "%.1024s", text), KM_OK); /* just does not */
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    char want[4999 + 1023 + 1024];
    memset(want, 'z', sizeof want);
    assert_file_is(in_folder("out"), want, sizeof want);
}

static void an_abort_leaves_the_old_contents(void **state) {
    int fds = open_files();
    int64_t live = km_alloc_live();
    write_text(in_folder("out"), "old");
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    char *big = calloc(1, 1 << 20);
    assert_int_equal(km_writer_put(w, big, 1 << 20), KM_OK);
    free(big);
    assert_file_is(in_folder("out"), "old", 3);
    km_writer_abort(w);
    km_writer_abort(NULL);
    assert_file_is(in_folder("out"), "old", 3);
    assert_int_equal(entries(), 1);
    assert_int_equal(open_files(), fds);
    assert_int_equal(km_alloc_live(), live);
}

static void a_commit_replaces_the_old_contents_at_once(void **state) {
    write_text(in_folder("out"), "old and long");
    km_map before;
    assert_int_equal(km_map_open(&before, in_folder("out"), NULL), KM_OK);
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    km_writer_put(w, "new", 3);
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    assert_file_is(in_folder("out"), "new", 3);
    assert_memory_equal(before.data, "old and long", 12); /* a reader keeps what it opened */
    km_map_close(&before);
}

static void a_crash_leaves_the_old_contents(void **state) {
    write_text(in_folder("out"), "old");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        km_writer *w = km_writer_open(in_folder("out"), NULL);
        km_writer_put(w, "half", 4);
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
    assert_file_is(in_folder("out"), "old", 3);
}

static void two_writers_of_one_file_do_not_mix(void **state) {
    km_writer *a = km_writer_open(in_folder("out"), NULL);
    km_writer *b = km_writer_open(in_folder("out"), NULL);
    km_writer_put(a, "aaaa", 4);
    km_writer_put(b, "bb", 2);
    assert_int_equal(km_writer_commit(a, NULL), KM_OK);
    assert_file_is(in_folder("out"), "aaaa", 4);
    assert_int_equal(km_writer_commit(b, NULL), KM_OK);
    assert_file_is(in_folder("out"), "bb", 2);
    assert_int_equal(entries(), 1);
}

static void a_link_stays_and_its_target_changes(void **state) {
    write_text(in_folder("real"), "old");
    assert_int_equal(symlink("real", in_folder("link")), 0);
    km_writer *w = km_writer_open(in_folder("link"), NULL);
    km_writer_put(w, "new", 3);
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    struct stat st;
    assert_int_equal(lstat(in_folder("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_file_is(in_folder("real"), "new", 3);
}

static void a_file_name_alone_is_in_the_current_folder(void **state) {
    char back[PATH_MAX];
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(folder), 0);
    km_writer *w = km_writer_open("plain", NULL);
    km_writer_put(w, "x", 1);
    km_status status = km_writer_commit(w, NULL);
    assert_int_equal(chdir(back), 0);
    assert_int_equal(status, KM_OK);
    assert_file_is(in_folder("plain"), "x", 1);
}

static void the_longest_file_name_can_be_written(void **state) {
    char name[NAME_MAX + 1];
    memset(name, 'n', NAME_MAX);
    name[NAME_MAX] = 0;
    km_writer *w = km_writer_open(in_folder(name), NULL);
    assert_non_null(w);
    assert_int_equal(km_writer_commit(w, NULL), KM_OK);
    assert_int_equal(entries(), 1);
}

static void permissions_follow_the_umask(void **state) {
    mode_t old = umask(027);
    km_writer *w = km_writer_open(in_folder("out"), NULL);
    km_status status = km_writer_commit(w, NULL);
    umask(old);
    assert_int_equal(status, KM_OK);
    struct stat st;
    assert_int_equal(stat(in_folder("out"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void assert_no_writer(const char *path, km_status code, const char *why) {
    int fds = open_files();
    int64_t live = km_alloc_live();
    km_error err = {0};
    assert_null(km_writer_open(path, &err));
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, why));
    assert_int_equal(open_files(), fds);
    assert_int_equal(km_alloc_live(), live);
}

static void what_cannot_be_written_gives_a_clear_error(void **state) {
    assert_no_writer(NULL, KM_ERR_NULL, "no file name");
    assert_no_writer("", KM_ERR_NULL, "no file name");
    assert_no_writer(folder, KM_ERR_FILE, "it is a folder");
    assert_no_writer(in_folder("no/such"), KM_ERR_FILE, "does not exist");
    write_text(in_folder("file"), "");
    assert_no_writer(in_folder("file/below"), KM_ERR_FILE, "cannot write");
    assert_int_equal(entries(), 1);
}

/* Permissions mean nothing to root, so a child gives root up. */
static int as_nobody(int (*attempt)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(77);
        _exit(attempt());
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int is_denied(const km_error *err, const char *name) {
    return err->code == KM_ERR_FILE && strstr(err->text, name) &&
           strstr(err->text, "Permission denied");
}

static int write_in_locked_folder(void) {
    km_error err = {0};
    if (km_writer_open(in_folder("new"), &err)) return 1;
    return is_denied(&err, "/new'") && strstr(err.text, "folder '") ? 0 : 2;
}

static int write_locked_file(void) {
    km_error err = {0};
    if (km_writer_open(in_folder("readonly"), &err)) return 1;
    return is_denied(&err, "/readonly'") ? 0 : 2;
}

static int read_secret_file(void) {
    km_error err = {0};
    km_map m;
    if (km_map_open(&m, in_folder("secret"), &err) != KM_ERR_FILE) return 1;
    return is_denied(&err, "/secret'") ? 0 : 2;
}

static void an_unwritable_folder_gives_a_clear_message(void **state) {
    chmod(folder, 0555);
    int result = as_nobody(write_in_locked_folder);
    if (result == 77) skip();
    assert_int_equal(result, 0);
    assert_int_equal(entries(), 0);
}

static void a_read_only_file_is_not_replaced(void **state) {
    write_text(in_folder("readonly"), "old");
    chmod(in_folder("readonly"), 0444);
    chmod(folder, 0777); /* so a rename would succeed */
    int result = as_nobody(write_locked_file);
    if (result == 77) skip();
    assert_int_equal(result, 0);
    assert_file_is(in_folder("readonly"), "old", 3);
}

static void an_unreadable_file_gives_a_clear_message(void **state) {
    write_text(in_folder("secret"), "old");
    chmod(in_folder("secret"), 0000);
    chmod(folder, 0755);
    int result = as_nobody(read_secret_file);
    if (result == 77) skip();
    assert_int_equal(result, 0);
}

/* ---- Failing while writing ---- */

static void a_full_disk_is_reported_and_the_error_sticks(void **state) {
    if (access("/dev/full", W_OK) != 0) skip();
    int64_t live = km_alloc_live();
    km_error err = {0};
    km_writer *w = km_writer_open("/dev/full", &err);
    assert_non_null(w);
    static uint8_t block[300000];
    assert_int_equal(km_writer_put(w, "x", 1), KM_OK); /* into the buffer */
    assert_int_equal(km_writer_put(w, block, sizeof block), KM_ERR_FILE);
    assert_int_equal(km_writer_put(w, "x", 1), KM_ERR_FILE);
    assert_int_equal(km_writer_printf(w, "%d", 1), KM_ERR_FILE);
    assert_int_equal(km_writer_offset(w), 1);
    assert_int_equal(km_writer_commit(w, &err), KM_ERR_FILE);
    assert_string_equal(err.text, "cannot write '/dev/full': No space left on device");
    assert_int_equal(km_alloc_live(), live);
}

static void a_full_disk_found_at_commit_is_reported_too(void **state) {
    if (access("/dev/full", W_OK) != 0) skip();
    km_error err = {0};
    km_writer *w = km_writer_open("/dev/full", NULL);
    assert_int_equal(km_writer_put(w, "x", 1), KM_OK);
    assert_int_equal(km_writer_commit(w, &err), KM_ERR_FILE);
    assert_non_null(strstr(err.text, "No space left"));
}

/* The size limit stands in for a disk that fills up half-way: the first write comes up short. */
static void a_write_that_fails_half_way_leaves_the_old_contents(void **state) {
    write_text(in_folder("out"), "old");
    struct rlimit limit, old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 400000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    uint8_t *block = calloc(1, 1 << 20);
    km_error err = {0};
    km_writer *w = km_writer_open(in_folder("out"), &err);
    setrlimit(RLIMIT_FSIZE, &limit);
    km_status put = km_writer_put(w, block, 1 << 20);
    km_status commit = km_writer_commit(w, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    free(block);
    assert_int_equal(put, KM_ERR_FILE);
    assert_int_equal(commit, KM_ERR_FILE);
    assert_non_null(strstr(err.text, "File too large"));
    assert_file_is(in_folder("out"), "old", 3);
    assert_int_equal(entries(), 1);
}

static void a_rename_that_fails_leaves_no_litter(void **state) {
    km_error err = {0};
    km_writer *w = km_writer_open(in_folder("out"), &err);
    assert_int_equal(mkdir(in_folder("out"), 0700), 0); /* meanwhile */
    assert_int_equal(km_writer_commit(w, &err), KM_ERR_FILE);
    assert_non_null(strstr(err.text, "cannot write"));
    assert_int_equal(entries(), 1);
}

static void nothing(int sig) {}

/* A signal a millisecond, none of them restarting the call it hits. */
static void storm(bool on) {
    struct sigaction act = {.sa_handler = nothing};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    if (!on) timer = (struct itimerval){{0, 0}, {0, 0}};
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void a_pipe_is_written_in_place_through_interruptions(void **state) {
    const char *path = in_folder("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {    /* a slow reader: the pipe stays full long enough for signals to hit */
        usleep(20000); /* opening waits, too */
        int fd = open(path, O_RDONLY);
        long sum = 0;
        static uint8_t part[40000];
        for (ssize_t n; (n = read(fd, part, sizeof part)) > 0; usleep(5000))
            for (ssize_t i = 0; i < n; i++) sum += part[i];
        _exit(sum == 300000L * 2 + 1 ? 0 : 1);
    }
    uint8_t *block = malloc(300000);
    memset(block, 2, 300000);
    storm(true);
    km_writer *w = km_writer_open(path, NULL);
    km_status put = km_writer_put(w, block, 300000);
    km_status last = km_writer_put(w, "\1", 1);
    km_status commit = km_writer_commit(w, NULL);
    storm(false);
    free(block);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(put, KM_OK);
    assert_int_equal(last, KM_OK);
    assert_int_equal(commit, KM_OK);
    assert_int_equal(WEXITSTATUS(status), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

static void a_failed_open_passes_harmlessly_through_the_rest(void **state) {
    km_error err = {0};
    km_writer *w = km_writer_open(in_folder("no/such"), &err);
    assert_int_equal(km_writer_put(w, "x", 1), KM_ERR_NULL);
    assert_int_equal(km_writer_printf(w, "x"), KM_ERR_NULL);
    assert_int_equal(km_writer_offset(w), 0);
    assert_int_equal(km_writer_commit(w, &err), KM_ERR_NULL);
    assert_int_equal(err.code, KM_ERR_FILE); /* the first error stays */
}

static void out_of_memory_anywhere_leaks_nothing(void **state) {
    int fds = open_files();
    int64_t live = km_alloc_live();
    int failures = 0;
    for (int nth = 0; nth < 6; nth++) {
        km_error err = {0};
        char text[2000];
        memset(text, 't', sizeof text - 1);
        text[sizeof text - 1] = 0;
        km_alloc_fail_nth(nth);
        km_writer *w = km_writer_open(in_folder("out"), &err);
        km_writer_printf(w, "%s", text);
        km_status status = km_writer_commit(w, &err);
        km_alloc_fail_nth(-1);
        if (status != KM_OK) {
            failures++;
            assert_int_equal(err.code, KM_ERR_MEMORY);
            assert_non_null(strstr(err.text, "out of memory"));
            assert_int_equal(entries(), 0);
        } else {
            assert_file_is(in_folder("out"), text, sizeof text - 1);
        }
        assert_int_equal(km_alloc_live(), live);
        assert_int_equal(open_files(), fds);
    }
    assert_int_equal(failures, 5);
}

#define CASE(test) cmocka_unit_test_teardown(test, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_mapping_shows_the_bytes),
        CASE(an_empty_file_is_an_empty_mapping),
        CASE(what_cannot_be_mapped_gives_a_clear_error),
        CASE(a_write_appears_at_commit_and_not_before),
        CASE(an_empty_write_makes_an_empty_file),
        CASE(pieces_of_all_sizes_arrive_in_order),
        CASE(long_formatted_text_is_not_cut),
        CASE(an_abort_leaves_the_old_contents),
        CASE(a_commit_replaces_the_old_contents_at_once),
        CASE(a_crash_leaves_the_old_contents),
        CASE(two_writers_of_one_file_do_not_mix),
        CASE(a_link_stays_and_its_target_changes),
        CASE(a_file_name_alone_is_in_the_current_folder),
        CASE(the_longest_file_name_can_be_written),
        CASE(permissions_follow_the_umask),
        CASE(what_cannot_be_written_gives_a_clear_error),
        CASE(an_unwritable_folder_gives_a_clear_message),
        CASE(a_read_only_file_is_not_replaced),
        CASE(an_unreadable_file_gives_a_clear_message),
        CASE(a_full_disk_is_reported_and_the_error_sticks),
        CASE(a_full_disk_found_at_commit_is_reported_too),
        CASE(a_write_that_fails_half_way_leaves_the_old_contents),
        CASE(a_rename_that_fails_leaves_no_litter),
        CASE(a_pipe_is_written_in_place_through_interruptions),
        CASE(a_failed_open_passes_harmlessly_through_the_rest),
        CASE(out_of_memory_anywhere_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
