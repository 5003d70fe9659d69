/* An HTTP/1.1 server on libevent: one loop, one thread, thousands of connections. A handler gets an
 * exchange (a request and its answer to come) and answers now or later, whole or as a stream. All
 * calls belong to the loop's thread, but for km_http_post, km_http_try and km_http_stop.
 *
 * While an answer is under way the connection is still read, so that a client's leaving is seen at
 * once. A client that shuts its sending side down counts as gone, unless its answer is whole already. */
#ifndef KM_SERVE_HTTP_SERVER_H
#define KM_SERVE_HTTP_SERVER_H
#include "base/error.h"
#include "serve/http/parser.h"

typedef struct km_http km_http;
typedef struct km_exchange km_exchange;

typedef enum km_compress {
    KM_COMPRESS_REMOTE, /* not for clients on this machine: there bytes cost nothing, and time does */
    KM_COMPRESS_ALWAYS,
    KM_COMPRESS_NEVER
} km_compress;

typedef struct km_http_options { /* 0 anywhere means the default */
    km_http_limits limits;
    int connections;      /* at most so many at once: 10,000; further ones get 503 */
    double head_seconds;  /* from the first byte of a request to its last header: 20 */
    double body_seconds;  /* between two pieces of a body: 30 */
    double idle_seconds;  /* between two requests: 120 */
    double write_seconds; /* for a client to take anything of its answer: 60 */
    double beat_seconds;  /* a stream that is silent for so long gets its heartbeat: 15 */
    size_t backlog;       /* bytes of an answer that a client has not taken yet: 1 MiB, then it is
                            * let go; whole answers may be larger */
    const char *tls_cert, *tls_key; /* files; NULL: no TLS */
    km_compress compress;           /* answers, for clients that ask for gzip */
    void (*on_request)(void *user, km_exchange *x);
    /* One line of the log, once an exchange has ended; status 499: the client left. NULL: none */
    void (*on_end)(void *user, km_exchange *x, int status, uint64_t bytes, double seconds);
    void *user;
} km_http_options;

km_http *km_http_new(const km_http_options *options, km_error *err);
void km_http_free(km_http *h); /* after km_http_run has returned; NULL is fine */

/* Listens at "127.0.0.1:8080", "[::1]:8080", "localhost:8080" or "unix:/run/kermes.sock". Port 0: any
 * free one; *port (may be NULL) gets it. */
km_status km_http_listen(km_http *h, const char *address, int *port, km_error *err);
/* A socket that listens already (systemd's). It becomes the server's. */
km_status km_http_listen_fd(km_http *h, int fd, km_error *err);
/* Can only this machine reach the address? A name that does not resolve is not local. */
bool km_http_is_local(const char *address);

/* Reads certificate and key again, for connections to come; on an error the old ones stay. */
km_status km_http_reload(km_http *h, km_error *err);

void km_http_run(km_http *h); /* until stopped */
/* From any thread. Ends at once, or when no exchange is open and all answers are sent; idle connections
 * are closed then. seconds: at most so long; 0: at once. */
void km_http_stop(km_http *h, double seconds);
/* From any thread: fn(arg) is called by the loop, in the order of the calls. False: out of memory. */
bool km_http_post(km_http *h, void (*fn)(void *arg), void *arg);
/* From any thread: calls fn(arg) in this one, while the loop waits for something to happen, and returns what
 * it says; false at once if the loop is at work. All that fn may do is put to streams that are
 * km_exchange_direct. It spares waking the loop, which costs more than what a token of a stream needs. */
bool km_http_try(km_http *h, bool (*fn)(void *arg), void *arg);
/* Calls fn(arg) every so many seconds while the loop runs. */
km_status km_http_every(km_http *h, double seconds, void (*fn)(void *arg), void *arg,
                        km_error *err);
/* Calls fn(arg, number) in the loop when the signal comes. */
km_status km_http_on_signal(km_http *h, int number, void (*fn)(void *arg, int number), void *arg,
                            km_error *err);

typedef struct km_http_counts {
    int64_t connections, streams, requests, refused;
    uint64_t bytes_in, bytes_out;
    int64_t tries;      /* calls of km_http_try that were made */
    double try_seconds; /* of CPU, of the threads that made them */
} km_http_counts;
km_http_counts km_http_count(const km_http *h);

/* ---- Exchanges ---- */

const km_http_request *km_exchange_request(const km_exchange *x);
const char *km_exchange_peer(const km_exchange *x); /* "127.0.0.1", or "unix" */

/* What the handler keeps with it; on_gone is called once, when the client left before the answer's end.
 * The exchange is no longer valid after that, nor after km_exchange_send and km_exchange_end. */
void km_exchange_keep(km_exchange *x, void *user, void (*on_gone)(void *user));

/* A header of the answer, before its beginning. */
void km_exchange_header(km_exchange *x, const char *name, const char *value);

/* A whole answer. type: "application/json". */
void km_exchange_send(km_exchange *x, int status, const char *type, const char *body, size_t bytes);

/* A stream: begin, any number of puts, end. `beat` is what is put into a silent stream now and then
 * ("" or NULL: nothing); it must live as long as the exchange. Puts gather until the loop comes round
 * or km_exchange_flush. False: the client is gone or too slow, and on_gone was called. */
void km_exchange_begin(km_exchange *x, int status, const char *type, const char *beat);
bool km_exchange_put(km_exchange *x, const char *data, size_t bytes);
/* Some of what was to be put is lost, for want of memory: the connection ends, so that nobody takes what came
 * for the whole. on_gone is called, now or soon. */
void km_exchange_fail(km_exchange *x);
void km_exchange_end(km_exchange *x);
/* A stream of plain text over a socket that has taken all that was put so far. */
bool km_exchange_direct(const km_exchange *x);

const char *km_http_status_text(int status); /* "Not Found" */

#endif
