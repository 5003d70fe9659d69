/* What the server's files share. */
#ifndef KM_SERVE_HTTP_INTERNAL_H
#define KM_SERVE_HTTP_INTERNAL_H
#include "base/error.h"
#include "base/text.h"
#include "serve/http/server.h"
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct km_connection {
    km_http *http;
    struct bufferevent *bev;
    km_http_parser *parser;
    struct event *timer;
    km_exchange *exchange; /* the one under way; NULL between two */
    struct km_connection *prev, *next;
    char peer[48];
    int fd;
    bool direct;      /* nothing is on its way out: the socket takes what is put (not with TLS) */
    km_text late;     /* what it did not take in km_http_try; the loop sends it */
    bool broken;      /* memory ran out for some of its bytes: it ends, since a hole is no answer */
    bool reading;     /* km_connection_read is on the stack */
    bool closing;     /* what is written goes out, then it ends */
    bool dead;        /* to be freed when km_connection_read returns */
    bool half_closed; /* the client sends no more */
} km_connection;

typedef struct km_posted {
    void (*fn)(void *arg);
    void *arg;
} km_posted;

enum { KM_HTTP_LISTENERS = 8, KM_HTTP_TIMERS = 16 };

struct km_http {
    km_http_options options;
    struct event_base *base;
    struct evconnlistener *listeners[KM_HTTP_LISTENERS];
    int n_listeners;
    char *unix_path;
    void *tls; /* SSL_CTX */
    km_connection *first;
    km_exchange *streams; /* those that are streaming, for heartbeats */
    km_http_counts counts;
    struct event *timers[KM_HTTP_TIMERS];
    void *timer_args[KM_HTTP_TIMERS];
    int n_timers;
    bool draining;
    /* Whoever touches connections and exchanges has it: the loop in each of its callbacks, or a thread in
     * km_http_try. */
    pthread_mutex_t turn;
    bool trying, some_late; /* in km_http_try; something did not go out there */
    struct event *wake;     /* an eventfd's */
    int wake_fd;
    km_posted *taken; /* the list that the loop works off, while the other one fills */
    size_t cap_taken;
    pthread_mutex_t lock; /* of what follows */
    km_posted *posted;
    size_t n_posted, cap_posted;
    double stop; /* seconds; < 0: go on */
};

void km_http_begin(km_http *h); /* a callback of the loop: its turn, which may be taken twice */
void km_http_end(km_http *h);

void km_connection_free(km_connection *c);
void km_connection_finish(km_connection *c); /* when all is written */
void km_connection_read(km_connection *c);
void km_connection_send_late(km_connection *c);             /* by the loop */
void km_connection_next(km_connection *c, bool keep_alive); /* its exchange has ended */

km_exchange *km_exchange_new(km_connection *c);
void km_exchange_leave(km_exchange *x); /* the client is gone */
void km_exchange_beats(km_http *h);     /* heartbeats of silent streams */

typedef struct km_gzip km_gzip;
bool km_gzip_accepted(const char *accepts); /* by the header Accept-Encoding; NULL: no */
bool km_gzip_able(void);                    /* the build has zlib */
km_gzip *km_gzip_new(bool stream);          /* NULL: out of memory */
void km_gzip_free(km_gzip *g);              /* NULL is fine */
/* The next piece, compressed and flushed; it lives until the next call. end: the last one. At most 4 GiB.
 * NULL: out of memory. */
const char *km_gzip_put(km_gzip *g, const char *data, size_t bytes, bool end, size_t *n);

void km_http_maybe_end(km_http *h); /* of a server that drains: is everything done? */
struct bufferevent *km_http_bufferevent(km_http *h, int fd);
km_status km_http_tls_open(km_http *h, km_error *err);
void km_http_tls_close(km_http *h);

/* ---- Whether OpenSSL can be used: always where it is linked, else where it could be opened ---- */

/* To be called before anything of OpenSSL; any number of times. */
km_status km_openssl_open(km_error *err);

#endif
