/* kermes chat on a pseudo-terminal, as a person meets it: prompts, Ctrl-C and Ctrl-D, lines brought
 * back, colours or none. The model is a tiny one whose answers are noise, trained for one step. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/sanitized.h"

static char kermes[PATH_MAX + 8], folder[PATH_MAX], model[PATH_MAX + 8], grammar[PATH_MAX + 16];

typedef struct terminal {
    pid_t pid;
    int fd;
    char seen[1 << 18];
    size_t n, read; /* what came; what was looked at */
} terminal;
static terminal t;

static double now(void) {
    struct timespec s;
    clock_gettime(CLOCK_MONOTONIC, &s);
    return (double)s.tv_sec + 1e-9 * (double)s.tv_nsec;
}

static void start(const char *term, const char *const *more) {
    const char *argv[24] = {kermes, "chat", "-m", model, "--template", "chatml", "--threads", "1"};
    int n = 8;
    while (*more) argv[n++] = *more++;
    struct winsize size = {.ws_row = 24, .ws_col = 200};
    t.n = t.read = 0;
    t.pid = forkpty(&t.fd, NULL, NULL, &size);
    assert_true(t.pid >= 0);
    if (t.pid == 0) {
        setenv("TERM", term, 1);
        setenv("KERMES_HISTORY", "", 1);
        execv(kermes, (char *const *)argv);
        _exit(127);
    }
}

/* Takes in what comes; false when nothing did for that long, or the other end is gone. */
static bool take_in(int milliseconds) {
    struct pollfd p = {.fd = t.fd, .events = POLLIN};
    if (poll(&p, 1, milliseconds) <= 0) return false;
    if (t.n + 4096 >= sizeof t.seen) { /* noise of a long answer: its end is what counts */
        memmove(t.seen, t.seen + t.n - 4096, 4096);
        t.n = 4096;
        t.read = 0;
    }
    ssize_t n = read(t.fd, t.seen + t.n, 4096);
    if (n <= 0) return false;
    t.n += (size_t)n;
    return true;
}

static void last_words(void) {
    print_error("the last was:\n%.*s\n", (int)(t.n < 1500 ? t.n : 1500),
                t.seen + (t.n < 1500 ? 0 : t.n - 1500));
    kill(t.pid, SIGKILL);
    waitpid(t.pid, NULL, 0);
    close(t.fd);
}

static bool is_gone(void) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)t.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

static char *find(const char *text) {
    size_t length = strlen(text);
    return t.n - t.read >= length ? memmem(t.seen + t.read, t.n - t.read, text, length) : NULL;
}

/* Waits until this text comes, after what was waited for before. */
static void expect(const char *text) {
    double end = now() + 60;
    char *at;
    while (!(at = find(text)))
        if (now() > end || (!take_in(500) && is_gone())) {
            print_error("'%s' did not come; ", text);
            last_words();
            fail();
        }
    t.read = (size_t)(at - t.seen) + strlen(text);
}

static void type(const char *text) {
    assert_int_equal(write(t.fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* Waits until the line editor listens, for keys that mean something to it alone; not for long, since
 * a build without one never does. */
static bool listens(void) {
    struct termios now_set;
    double end = now() + 3;
    bool plain = true;
    while (plain && now() < end && tcgetattr(t.fd, &now_set) == 0)
        if ((plain = now_set.c_lflag & ICANON)) take_in(20);
    return !plain;
}

/* Presses a key until this comes of it. A key can be too fast: pressed after the prompt is seen,
 * but before the line is being read, it is lost. */
static void press(const char *key, const char *text) {
    double end = now() + 60;
    while (!find(text) && now() < end) {
        type(key);
        double wait = now() + 1;
        while (!find(text) && now() < wait) take_in(100);
    }
    expect(text);
}

/* It ends, with this exit code, after a key or a line. */
static void ends(int code, const char *key) {
    int status = 0;
    double end = now() + 60, again = now();
    pid_t gone = 0;
    listens();
    while ((gone = waitpid(t.pid, &status, WNOHANG)) == 0 && now() < end) {
        if (now() >= again && write(t.fd, key, strlen(key)) >= 0) again = now() + 1;
        take_in(50);
    }
    if (gone == 0) {
        print_error("it did not end; ");
        last_words();
        fail();
    }
    while (take_in(0)) {}
    close(t.fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static int sh(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int make_model(void **state) {
    (void)state;
    char self[PATH_MAX], line[3 * PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 16);
    if (n <= 0) return -1;
    self[n] = 0;
    for (int i = 0; i < 2; i++) *strrchr(self, '/') = 0;
    snprintf(kermes, sizeof kermes, "%s/kermes", self);
    snprintf(folder, sizeof folder, "%s", "/tmp/kermes-chat-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(model, sizeof model, "%s/run", folder);
    snprintf(
        line, sizeof line,
        "cd %s && for i in $(seq 300); do echo 'a line of text to learn from'; done >text && "
        "'%s' train --data text --out run --tokenizer bytes --layers 1 --heads 2 --dim 16 "
        "--context 512 --batch 1 --steps 1 --eval-every 0 --device cpu --threads 1 --quiet >log",
        folder, kermes);
    snprintf(grammar, sizeof grammar, "%s/words.gbnf", folder);
    FILE *f = fopen(grammar, "w");
    if (!f || fputs("root ::= (\"abcdefg \")*\n", f) < 0 || fclose(f) != 0) return -1;
    return sh(line);
}

static int drop_model(void **state) {
    (void)state;
    char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return sh(line);
}

/* ---- What happens ---- */

static void a_question_is_answered_and_the_prompt_comes_back(void **state) {
    (void)state;
    start("xterm", (const char *[]){"-n", "5", "--stats", NULL});
    expect("512 tokens of context");
    expect("> ");
    type("hello there\r");
    expect("answer 5 tokens");
    expect("> ");
    type("/stats\r");
    expect("in all 1 answer,");
    expect("> ");
    type("/qiut\r");
    expect("did you mean /quit?");
    ends(0, "/quit\r");
}

static void ctrl_c_stops_the_answer_and_not_the_program(void **state) {
    (void)state;
    start("xterm", (const char *[]){"--shift", "--logit-bias", "q=50", "--allow-loops", "-n",
                                    "1000000", NULL});
    expect("> ");
    bool editor = true;
    for (int i = 0; i < 100; i++) {
        /* Else the terminal shows the line, too, and the answer to it is not begun when it should be
         * stopped: two Ctrl-C in one answer end the program. */
        if (editor) editor = listens();
        type(i == 2 ? "/retry\r" : "go on for ever\r");
        if (i < 3) {
            expect("qqqqqqqqqqqqqqqq");
            type("\003");
            expect("(stopped)");
        } else { /* perhaps while the line is still being read, or before the answer begins */
            expect("for ever");
            usleep((useconds_t)(i % 10 * 40));
            type("\003");
        }
        expect("> ");
    }
    type("/stats\r");
    expect("in all ");
    expect("> ");
    ends(0, "\004");
}

static void ctrl_c_at_the_prompt_drops_the_line(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        start(plain ? "dumb" : "xterm", (const char *[]){"-n", "3", NULL});
        expect("> ");
        type("half a thought");
        expect("thought");
        press("\003", "Ctrl-D or /bye leaves");
        expect("> ");
        if (!plain) listens();
        type("/stats\r");
        expect("context: 0 of 512 tokens"); /* nothing was asked */
        expect("> ");
        ends(0, "\004");
    }
}

static void earlier_lines_come_back(void **state) {
    (void)state;
    start("xterm", (const char *[]){"-n", "3", NULL});
    expect("> ");
    type("/help\r");
    expect("Ctrl-C stops an answer.");
    bool edited = memmem(t.seen, t.n, "bring back earlier lines", 24) != NULL;
    if (edited) {
        listens();
        type("/stats\r");
        expect("context: 0 of 512");
        expect("> ");
        listens();
        type("\033[A\r");
        expect("context: 0 of 512");
        expect("> ");
        listens();
        type("/stXats\033[D\033[D\033[D\177\r"); /* Left three times, Backspace */
        expect("context: 0 of 512");
        expect("> ");
        listens();
        type("h\303\251llo"); /* a character of two bytes, erased as one */
        type("\177\177\177\177\177/stats\r");
        expect("context: 0 of 512");
    }
    ends(0, "/quit\r");
    if (!edited) skip();
}

static void a_paste_is_one_question(void **state) {
    (void)state;
    start("xterm", (const char *[]){"-n", "2", NULL});
    expect("> ");
    bool edited = listens();
    if (edited) {
        type("\033[200~one line\rand another\r/help\r\033[201~\r");
        expect("(cut after 2 tokens;");
        expect("> ");
        listens();
        type("/stats\r");
        expect("in all 1 answer,");
    }
    ends(0, "/bye\r");
    if (!edited) skip();
}

static void tab_completes_commands_and_settings(void **state) {
    (void)state;
    start("xterm", (const char *[]){"-n", "2", NULL});
    expect("> ");
    bool edited = listens();
    if (edited) {
        type("/stat\t\r");
        expect("context: 0 of 512");
        expect("> ");
        listens();
        type("/se\t"); /* /settings, /set */
        expect("t");
        type("\t");
        expect("/settings");
        type(" temper\t0.25\r");
        expect("temperature is 0.25");
        expect("> ");
    }
    ends(0, "/exit\r");
    if (!edited) skip();
}

static void words_are_not_cut_at_the_edge(void **state) {
    (void)state;
    /* Words of seven letters and a blank on 40 columns: five fit, the sixth would be cut. */
    start("xterm", (const char *[]){"-n", "60", "--quiet", "--grammar", grammar, NULL});
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    ioctl(t.fd, TIOCSWINSZ, &size);
    type("words\r");
    expect("abcdefg abcdefg abcdefg abcdefg abcdefg\r\nabcdefg ");
    ends(0, "/bye\r");
}

static void a_dumb_terminal_gets_no_escapes_whatever_the_model_says(void **state) {
    (void)state;
    start("dumb", (const char *[]){"-n", "400", "--temperature", "3", "--top-k", "0", "--top-p",
                                   "1", "--min-p", "0", "--stats", NULL});
    expect("> ");
    type("noise\r");
    expect("answer 400 tokens");
    ends(0, "/quit\r");
    for (size_t i = 0; i < t.n; i++)
        assert_true((unsigned char)t.seen[i] >= 32 || strchr("\r\n\t", t.seen[i]));
}

static void a_text_of_many_lines_is_one_question(void **state) {
    (void)state;
    start("dumb", (const char *[]){"-n", "2", NULL});
    expect("> ");
    type("\"\"\"one\r");
    expect(". ");
    type("two\"\"\"\r");
    expect("> ");
    type("a line \\\r");
    expect(". ");
    type("and its end\r");
    expect("> ");
    type("/stats\r");
    expect("in all 2 answers");
    ends(0, "/quit\r");
}

static void broken_characters_and_huge_lines_are_survived(void **state) {
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        start(plain ? "dumb" : "xterm", (const char *[]){"-n", "2", NULL});
        expect("> ");
        type("a\377\376b\303(\r");
        expect("(cut after 2 tokens;");
        expect("> ");
        char part[101] = {0};
        memset(part, 'x', 100);
        for (int i = 0; i < 30; i++) {
            type(part);
            while (take_in(1)) {}
        }
        type("\r");
        expect("tokens and the context 512");
        expect("> ");
        type("/stats\r");
        expect("context: ");
        ends(0, "/quit\r");
    }
}

static void a_terminal_that_goes_away_ends_the_program(void **state) {
    (void)state;
    start("xterm", (const char *[]){"--shift", "--logit-bias", "q=50", "--allow-loops", "-n",
                                    "1000000", NULL});
    expect("> ");
    type("go on\r");
    expect("qqqqqqqqqqqqqqqq");
    close(t.fd);
    int status = 0;
    double end = now() + 60;
    pid_t gone = 0;
    while ((gone = waitpid(t.pid, &status, WNOHANG)) == 0 && now() < end) usleep(20000);
    assert_true(gone == t.pid);
    assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGHUP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_answered_and_the_prompt_comes_back),
        cmocka_unit_test(ctrl_c_stops_the_answer_and_not_the_program),
        cmocka_unit_test(ctrl_c_at_the_prompt_drops_the_line),
        cmocka_unit_test(earlier_lines_come_back),
        cmocka_unit_test(a_paste_is_one_question),
        cmocka_unit_test(tab_completes_commands_and_settings),
        cmocka_unit_test(words_are_not_cut_at_the_edge),
        cmocka_unit_test(a_dumb_terminal_gets_no_escapes_whatever_the_model_says),
        cmocka_unit_test(a_text_of_many_lines_is_one_question),
        cmocka_unit_test(broken_characters_and_huge_lines_are_survived),
        cmocka_unit_test(a_terminal_that_goes_away_ends_the_program),
    };
    /* Sanitizers hold signals back, and keys that are pressed in between come to nothing; the same
     * commands run under them through pipes, in chat.sh. */
    if (SANITIZED) return 77;
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
