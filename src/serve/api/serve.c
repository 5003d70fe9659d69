/* The server as a whole: opens what it needs in order, listens, and ends in the opposite order. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { RESPONSE_BYTES = 64 << 20 }; /* kept for previous_response_id, at most */

static bool post(void *user, void (*fn)(void *arg), void *arg) {
    return km_http_post(((km_serve *)user)->http, fn, arg);
}

/* ---- Signals ---- */

static void reload(km_serve *s) {
    km_error err = {0};
    if (s->keys && km_keys_reload(s->keys, &err) != KM_OK)
        km_note(KM_LOG_WARN, "the keys stay as they were: %s", err.text);
    if (s->o.log && strcmp(s->o.log, "-") != 0) { /* it may have been moved away */
        int fd = open(s->o.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
        if (fd >= 0 && s->log_fd > 2) close(s->log_fd);
        if (fd >= 0) s->log_fd = fd;
    }
}

static void on_signal(void *user, int number) {
    km_serve *s = user;
    if (number == SIGHUP) {
        reload(s);
    } else if (s->draining) {
        km_http_stop(s->http, 0); /* the second one means it */
    } else {
        s->draining = true;
        km_note(KM_LOG_INFO, "ending: no new requests, %g seconds for those under way",
                s->o.drain_seconds);
        km_http_stop(s->http, s->o.drain_seconds);
    }
}

static void check_keys(void *user) {
    km_serve *s = user;
    km_error err = {0};
    if (s->keys && km_keys_reload(s->keys, &err) != KM_OK) {
        static double told; /* once a minute is enough */
        double now = km_scheduler_now();
        if (now - told > 60)
            km_note(KM_LOG_WARN, "the keys stay as they were: %s", err.text), told = now;
    }
}

/* ---- Opening ---- */

static km_status check_addresses(const km_serve_options *o, km_error *err) {
    for (int i = 0; i < o->n_listen; i++)
        if (!o->keys && !o->insecure && !km_http_is_local(o->listen[i]))
            return km_error_set(
                err, KM_ERR_STATE,
                "%s can be reached by others: give --keys FILE, or --insecure to let everybody in",
                o->listen[i]);
    if (!o->tls_cert != !o->tls_key)
        return km_error_set(err, KM_ERR_NULL, "TLS needs --tls-cert and --tls-key");
    return KM_OK;
}

static void name_model(km_serve *s) {
    const char *path = s->info.path ? s->info.path : "", *slash = strrchr(path, '/');
    const char *name = s->o.name           ? s->o.name
                       : slash && slash[1] ? slash + 1
                       : *path             ? path
                                           : s->info.name;
    snprintf(s->name, sizeof s->name, "%s", name ? name : "model");
    char *end = strstr(s->name, ".gguf");
    if (!s->o.name && end && !end[5]) *end = '\0';
}

static km_status open_log(km_serve *s, km_error *err) {
    s->log_fd = -1;
    if (!s->o.log) return KM_OK;
    if (strcmp(s->o.log, "-") == 0) {
        s->log_fd = STDERR_FILENO;
        return KM_OK;
    }
    s->log_fd = open(s->o.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (s->log_fd >= 0) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "cannot write the log '%s': %s", s->o.log,
                        strerror(errno));
}

static km_status open_http(km_serve *s, km_error *err) {
    km_http_options h = {.limits = {.body = s->o.body},
                         .connections = s->o.connections,
                         .tls_cert = s->o.tls_cert,
                         .tls_key = s->o.tls_key,
                         .on_request = km_route,
                         .on_end = km_log_end,
                         .user = s};
    s->http = km_http_new(&h, err);
    if (!s->http) return err->code;
    for (int i = 0; i < s->o.n_fds; i++)
        if (km_http_listen_fd(s->http, s->o.first_fd + i, err) != KM_OK) return err->code;
    for (int i = 0; i < s->o.n_listen; i++)
        if (km_http_listen(s->http, s->o.listen[i], i ? NULL : &s->port, err) != KM_OK)
            return err->code;
    if (s->o.n_listen + s->o.n_fds == 0)
        return km_error_set(err, KM_ERR_NULL, "no address to listen at");
    km_status status = km_http_every(s->http, 1, km_call_tick, s, err);
    if (status == KM_OK) status = km_http_every(s->http, 2, check_keys, s, err);
    return status;
}

static km_status open_engine(km_serve *s, km_error *err) {
    km_scheduler_options o = {.parallel = s->o.parallel,
                              .kept = s->o.kept,
                              .queue = s->o.queue,
                              .context = s->o.context,
                              .memory = s->o.cache_memory,
                              .chunk = s->o.chunk,
                              .post = post,
                              .on_events = km_call_on_events,
                              .user = s};
    s->scheduler = km_scheduler_new(s->model, &o, err);
    return s->scheduler ? KM_OK : err->code;
}

km_serve *km_serve_open(km_model *m, const km_serve_options *options, km_error *err) {
    km_serve *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
        return NULL;
    }
    s->o = *options;
    s->model = m;
    s->info = km_model_describe(m);
    s->log_fd = -1;
    s->began = km_scheduler_now();
    s->created = (int64_t)time(NULL);
    if (s->o.drain_seconds <= 0) s->o.drain_seconds = 30;
    if (getrandom(&s->salt, sizeof s->salt, 0) != sizeof s->salt) s->salt = (uint64_t)time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    name_model(s);
    km_status status = check_addresses(&s->o, err);
    if (status == KM_OK && s->o.keys && !(s->keys = km_keys_open(s->o.keys, err)))
        status = err->code;
    if (status == KM_OK &&
        !(s->responses = km_response_store_new((size_t)s->o.responses, RESPONSE_BYTES)))
        status = km_no_memory(err);
    if (status == KM_OK) status = open_log(s, err);
    if (status == KM_OK) status = km_guard_open(s, err);
    if (status == KM_OK) status = open_http(s, err);
    if (status == KM_OK) status = open_engine(s, err);
    if (status == KM_OK && !km_workers_start(s))
        status = km_error_set(err, KM_ERR_STATE, "serve: cannot start a thread");
    if (status == KM_OK) return s;
    km_serve_free(s);
    return NULL;
}

int km_serve_port(const km_serve *s) { return s->port; }

void km_serve_run(km_serve *s) {
    km_error err = {0};
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3; i++) km_http_on_signal(s->http, signals[i], on_signal, s, &err);
    pthread_setname_np(pthread_self(), "km-loop");
    km_http_run(s->http);
}

void km_serve_stop(km_serve *s) { km_http_stop(s->http, 0); }

/* Workers and the engine end first: what they have posted is then delivered by km_http_free, which lets
 * every client go, so that no call is left. */
void km_serve_free(km_serve *s) {
    if (!s) return;
    km_workers_stop(s);
    km_scheduler_stop(s->scheduler);
    km_http_free(s->http);
    km_scheduler_free(s->scheduler);
    km_keys_free(s->keys);
    km_response_store_free(s->responses);
    if (s->log_fd > 2) close(s->log_fd);
    km_free(s->special);
    km_text_free(&s->scratch);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    km_free(s);
}
