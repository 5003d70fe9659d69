#include "cli/interrupt.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted, at_prompt;
static pthread_t reader;

/* While the reader holds Ctrl-C back, for a moment, another thread may get it; it would then not end
 * the reader's waiting. */
static void on_interrupt(int number) {
    if (!pthread_equal(pthread_self(), reader)) {
        pthread_kill(reader, number);
        return;
    }
    if (interrupted && !at_prompt) {
        signal(number, SIG_DFL);
        raise(number);
    }
    interrupted = 1;
}

void km_interrupts_catch(bool reading) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = reading ? 0 : SA_RESTART};
    sigemptyset(&action.sa_mask);
    reader = pthread_self();
    at_prompt = reading;
    if (reading) interrupted = 0; /* what comes after the line is meant for its answer */
    sigaction(SIGINT, &action, NULL);
}

void km_interrupts_leave(void) { signal(SIGINT, SIG_DFL); }

bool km_interrupted(void) { return interrupted; }

/* Standard input opened once more, so that reading it can fail rather than wait while whoever else
 * holds it is not disturbed. Where that cannot be, standard input itself. */
static int open_again(void) {
    const char *name = ttyname(STDIN_FILENO);
    int fd = name ? open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    return fd >= 0 ? fd : STDIN_FILENO;
}

/* Waits with Ctrl-C let in, and nowhere else between two looks at `interrupted`. */
static int wait_for(int fd) {
    struct pollfd typed = {.fd = fd, .events = POLLIN};
    sigset_t held, before;
    int came = 0;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigprocmask(SIG_BLOCK, &held, &before);
    if (!interrupted) came = ppoll(&typed, 1, NULL, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return came;
}

/* A Ctrl-C also empties the terminal's queue: a read that waits after it would wait for a line that
 * is gone. */
ssize_t km_read_typed(void *out, size_t bytes) {
    static int fd = -1;
    if (fd < 0) fd = open_again();
    while (!interrupted) {
        if (wait_for(fd) < 0 && errno != EINTR) return -1;
        if (interrupted) break;
        ssize_t n = read(fd, out, bytes);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
    }
    errno = EINTR;
    return -1;
}
