/* The loop itself: what other threads hand over, timers, signals, heartbeats, and the way it ends. */
#include "serve/http/internal.h"
#include "base/alloc.h"
#include "base/array.h"
#include <errno.h>
#include <event2/thread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct km_http_call {
    km_http *http;
    void (*fn)(void *arg);
    void (*on_signal)(void *arg, int number);
    void *arg;
} km_http_call;

/* ---- Draining ---- */

void km_http_maybe_end(km_http *h) {
    if (h->draining && !h->first) event_base_loopbreak(h->base);
}

static void begin_drain(km_http *h, double seconds) {
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    h->draining = true;
    for (int i = 0; i < h->n_listeners; i++) evconnlistener_free(h->listeners[i]);
    h->n_listeners = 0;
    if (h->unix_path) unlink(h->unix_path);
    if (seconds <= 0) {
        event_base_loopbreak(h->base);
        return;
    }
    event_base_loopexit(h->base, &tv);
    for (km_connection *c = h->first, *next; c; c = next) {
        next = c->next;
        if (!c->exchange && !c->closing) km_connection_finish(c);
    }
    km_http_maybe_end(h);
}

/* ---- Turns ---- */

void km_http_begin(km_http *h) { pthread_mutex_lock(&h->turn); }

void km_http_end(km_http *h) { pthread_mutex_unlock(&h->turn); }

static void send_late(void *user) {
    km_http *h = user;
    for (km_connection *c = h->first, *next; c; c = next) {
        next = c->next;
        km_connection_send_late(c);
        if (c->broken) km_connection_free(c);
    }
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum {
    TIMED = 16
}; /* one of so many is timed, and counts for all: a thread's clock is a system call */

bool km_http_try(km_http *h, bool (*fn)(void *arg), void *arg) {
    if (pthread_mutex_trylock(&h->turn) != 0) return false;
    bool timed = h->counts.tries % TIMED == 0;
    double began = timed ? cpu_seconds() : 0;
    h->trying = true;
    bool done = fn(arg), late = h->some_late;
    h->trying = h->some_late = false;
    h->counts.tries += done;
    if (timed && done) h->counts.try_seconds += TIMED * (cpu_seconds() - began);
    pthread_mutex_unlock(&h->turn);
    while (late && !km_http_post(h, send_late, h)) usleep(2000);
    return done;
}

/* ---- From other threads ---- */

static void on_wake(evutil_socket_t fd, short what, void *user) {
    km_http *h = user;
    (void)what;
    (void)fd; /* edge-triggered: each write to it wakes once, and nothing needs to be read */
    pthread_mutex_lock(&h->lock);
    km_posted *posted = h->posted;
    size_t count = h->n_posted, cap = h->cap_posted;
    double stop = h->stop;
    h->posted = h->taken;
    h->cap_posted = h->cap_taken;
    h->n_posted = 0;
    h->stop = -1;
    pthread_mutex_unlock(&h->lock);
    km_http_begin(h);
    for (size_t i = 0; i < count; i++) posted[i].fn(posted[i].arg);
    h->taken = posted;
    h->cap_taken = cap;
    if (stop >= 0) begin_drain(h, stop);
    km_http_end(h);
}

static void wake(km_http *h) {
    uint64_t one = 1;
    while (write(h->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

bool km_http_post(km_http *h, void (*fn)(void *arg), void *arg) {
    pthread_mutex_lock(&h->lock);
    bool ok, first = h->n_posted == 0;
    ok = km_array_reserve(&h->posted, &h->cap_posted, h->n_posted + 1);
    if (ok) h->posted[h->n_posted++] = (km_posted){fn, arg};
    pthread_mutex_unlock(&h->lock);
    if (ok && first) wake(h);
    return ok;
}

void km_http_stop(km_http *h, double seconds) {
    pthread_mutex_lock(&h->lock);
    h->stop = seconds < 0 ? 0 : seconds;
    pthread_mutex_unlock(&h->lock);
    wake(h);
}

/* ---- Timers and signals ---- */

static void on_timer(evutil_socket_t fd, short what, void *user) {
    km_http_call *call = user;
    (void)what;
    km_http_begin(call->http);
    if (call->on_signal)
        call->on_signal(call->arg, (int)fd);
    else
        call->fn(call->arg);
    km_http_end(call->http);
}

static km_status add_timer(km_http *h, int fd, short what, const struct timeval *every,
                           km_http_call call, km_error *err) {
    km_http_call *kept = h->n_timers < KM_HTTP_TIMERS ? km_alloc(sizeof *kept) : NULL;
    struct event *e = kept ? event_new(h->base, fd, what, on_timer, kept) : NULL;
    if (!e || event_add(e, every) != 0) {
        if (e) event_free(e);
        km_free(kept);
        return km_error_set(err, KM_ERR_MEMORY, "serve: out of memory for timers");
    }
    *kept = call;
    kept->http = h;
    h->timers[h->n_timers] = e;
    h->timer_args[h->n_timers++] = kept;
    return KM_OK;
}

km_status km_http_every(km_http *h, double seconds, void (*fn)(void *arg), void *arg,
                        km_error *err) {
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    return add_timer(h, -1, EV_PERSIST, &tv, (km_http_call){.fn = fn, .arg = arg}, err);
}

km_status km_http_on_signal(km_http *h, int number, void (*fn)(void *arg, int number), void *arg,
                            km_error *err) {
    return add_timer(h, number, EV_SIGNAL | EV_PERSIST, NULL,
                     (km_http_call){.on_signal = fn, .arg = arg}, err);
}

static void beat(void *user) { km_exchange_beats(user); }

/* ---- Making and ending ---- */

/* As many descriptors as the system lets one have: each connection is one. */
static void raise_limit(int connections) {
    struct rlimit r;
    rlim_t want = (rlim_t)connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > want ? want : r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static void set_defaults(km_http_options *o) {
    if (o->connections <= 0) o->connections = 10000;
    if (o->head_seconds <= 0) o->head_seconds = 20;
    if (o->body_seconds <= 0) o->body_seconds = 30;
    if (o->idle_seconds <= 0) o->idle_seconds = 120;
    if (o->write_seconds <= 0) o->write_seconds = 60;
    if (o->beat_seconds <= 0) o->beat_seconds = 15;
    if (o->backlog == 0) o->backlog = 1 << 20;
}

km_http *km_http_new(const km_http_options *options, km_error *err) {
    km_http *h = km_calloc(1, sizeof *h);
    if (!h) {
        km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
        return NULL;
    }
    h->options = *options;
    set_defaults(&h->options);
    h->stop = -1;
    h->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutexattr_t twice; /* TLS calls back from within calls of ours */
    pthread_mutexattr_init(&twice);
    pthread_mutexattr_settype(&twice, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&h->turn, &twice);
    pthread_mutexattr_destroy(&twice);
    signal(SIGPIPE, SIG_IGN);
    raise_limit(h->options.connections);
    h->base = event_base_new();
    if (h->base && h->wake_fd >= 0)
        h->wake = event_new(h->base, h->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake, h);
    double often = h->options.beat_seconds < 4 ? h->options.beat_seconds / 4 : 1;
    if (!h->wake || event_add(h->wake, NULL) != 0)
        km_error_set(err, KM_ERR_MEMORY, "serve: cannot make an event loop");
    else if (km_http_tls_open(h, err) == KM_OK && km_http_every(h, often, beat, h, err) == KM_OK)
        return h;
    km_http_free(h);
    return NULL;
}

void km_http_free(km_http *h) {
    if (!h) return;
    h->draining = false; /* nothing more to wait for */
    for (int i = 0; i < h->n_listeners; i++) evconnlistener_free(h->listeners[i]);
    while (h->first) km_connection_free(h->first);
    for (size_t i = 0; i < h->n_posted; i++)
        h->posted[i].fn(h->posted[i].arg); /* they free things */
    for (int i = 0; i < h->n_timers; i++) {
        event_free(h->timers[i]);
        km_free(h->timer_args[i]);
    }
    if (h->wake) event_free(h->wake);
    if (h->base) event_base_free(h->base);
    if (h->wake_fd >= 0) close(h->wake_fd);
    if (h->unix_path) unlink(h->unix_path);
    km_free(h->unix_path);
    km_free(h->posted);
    km_free(h->taken);
    km_http_tls_close(h);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->turn);
    km_free(h);
}

void km_http_run(km_http *h) { event_base_dispatch(h->base); }

km_http_counts km_http_count(const km_http *h) { return h->counts; }
