/* The server as a whole: opens what it needs in order, listens, and ends in the opposite order. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RESPONSE_BYTES = 64 << 20 }; /* kept for previous_response_id, at most */

/* ---- Signals ---- */

static void reload(km_serve *s) {
    km_error err = {0};
    if (s->keys && km_keys_reload(s->keys, &err) != KM_OK)
        km_note(KM_LOG_WARN, "the keys stay as they were: %s", err.text);
    km_catalogue_reload(s);
    km_error tls = {0};
    if (km_http_reload(s->http, &tls) != KM_OK)
        km_note(KM_LOG_WARN, "the certificate stays as it was: %s", tls.text);
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
        double now = km_now();
        if (now - told > 60)
            km_note(KM_LOG_WARN, "the keys stay as they were: %s", err.text), told = now;
    }
}

bool km_serve_duration(const char *text, double *seconds) {
    double sum = 0;
    const char *at = text;
    while (*at) {
        char *end;
        double n = strtod(at, &end), unit = 1;
        size_t k = strcspn(end, "0123456789.");
        if (end == at || !(n > -1e9 && n < 1e9)) return false;
        if (strncmp(end, "ms", k) == 0 && k == 2)
            unit = 1e-3;
        else if (k == 1 && (*end == 'm' || *end == 'h' || *end == 's'))
            unit = *end == 'm' ? 60 : *end == 'h' ? 3600 : 1;
        else if (k != 0)
            return false;
        sum += n * unit;
        at = end + k;
        if (n < 0) break;
    }
    if (at == text || *at) return false;
    *seconds = sum < 0 ? -1 : sum;
    return true;
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

static km_status check_sessions(const km_serve *s, km_error *err) {
    if (!s->o.sessions || ((mkdir(s->o.sessions, 0700) == 0 || errno == EEXIST) &&
                           access(s->o.sessions, R_OK | W_OK | X_OK) == 0))
        return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "cannot keep sessions in '%.200s': %s", s->o.sessions,
                        strerror(errno));
}

static km_status open_http(km_serve *s, km_error *err) {
    km_http_options h = {.limits = {.body = s->o.body},
                         .connections = s->o.connections,
                         .tls_cert = s->o.tls_cert,
                         .tls_key = s->o.tls_key,
                         .compress = (km_compress)s->o.compress,
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

/* One model alone is loaded before anybody is let in; of several each when it is asked for. */
static km_status open_first(km_serve *s, km_error *err) {
    km_served *m = s->served[0];
    if (s->n_served > 1 || s->o.folder) return KM_OK;
    km_status status = km_served_open(m, err);
    if (status != KM_OK) return status;
    km_served_up(m);
    s->loads++;
    return KM_OK;
}

km_serve *km_serve_open(const km_serve_options *options, km_error *err) {
    km_serve *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
        return NULL;
    }
    s->o = *options;
    s->log_fd = -1;
    s->began = km_now();
    s->created = (int64_t)time(NULL);
    if (s->o.drain_seconds <= 0) s->o.drain_seconds = 30;
    if (getrandom(&s->salt, sizeof s->salt, 0) != sizeof s->salt) s->salt = (uint64_t)time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->reading.wake, NULL);
    pthread_cond_init(&s->computing.wake, NULL);
    km_status status = check_addresses(&s->o, err);
    if (status == KM_OK && s->o.keys && !(s->keys = km_keys_open(s->o.keys, err)))
        status = err->code;
    if (status == KM_OK &&
        !(s->responses = km_response_store_new((size_t)s->o.responses, RESPONSE_BYTES)))
        status = km_no_memory(err);
    if (status == KM_OK) status = open_log(s, err);
    if (status == KM_OK) status = check_sessions(s, err);
    if (status == KM_OK) status = km_indexes_open(s, err);
    if (status == KM_OK)
        status = open_http(s, err); /* what is wrong there is told before loading */
    if (status == KM_OK) status = km_catalogue_open(s, err);
    if (status == KM_OK) status = open_first(s, err);
    /* Before anybody is told that it is there: a signal that comes now waits for the loop. */
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3 && status == KM_OK; i++)
        status = km_http_on_signal(s->http, signals[i], on_signal, s, err);
    if (status == KM_OK && !km_workers_start(s))
        status = km_error_set(err, KM_ERR_STATE, "serve: cannot start a thread");
    if (status == KM_OK) return s;
    km_serve_free(s);
    return NULL;
}

const char *km_serve_model(const km_serve *s) {
    return s->n_served == 1 ? s->served[0]->name : NULL;
}
int km_serve_models(const km_serve *s) { return s->n_served; }
int km_serve_port(const km_serve *s) { return s->port; }

void km_serve_run(km_serve *s) {
    pthread_setname_np(pthread_self(), "km-loop");
    km_http_run(s->http);
}

/* Workers and the engine end first: what they have posted is then delivered by km_http_free, which lets
 * every client go, so that no call is left. */
void km_serve_free(km_serve *s) {
    if (!s) return;
    km_workers_stop(s);
    km_served_stop(s);
    km_http_free(s->http);
    km_served_free(s);
    km_catalogue_free(s);
    km_indexes_close(s);
    km_keys_free(s->keys);
    km_response_store_free(s->responses);
    if (s->log_fd > 2) close(s->log_fd);
    km_text_free(&s->scratch);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->reading.wake);
    pthread_cond_destroy(&s->computing.wake);
    km_free(s);
}
