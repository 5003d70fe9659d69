/* Connections: accepting them, reading requests from them in order, and letting them go. What an
 * exchange answers is in exchange.c. */
#include "serve/http/internal.h"
#include "base/alloc.h"
#include <errno.h>
#include <event2/thread.h>
#include <stdio.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <arpa/inet.h>
#include <unistd.h>

enum { READ_AHEAD = 64 << 10 }; /* bytes of later requests that wait while one is answered */

static struct timeval duration(double seconds) {
    return (struct timeval){(time_t)seconds,
                            (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
}

/* Rounded to tenths, so that thousands of timers share a few queues. */
static void set_timer(km_connection *c, double seconds) {
    struct timeval tv = duration(seconds);
    const struct timeval *common = event_base_init_common_timeout(c->http->base, &tv);
    evtimer_add(c->timer, common ? common : &tv);
}

void km_connection_free(km_connection *c) {
    km_http *h = c->http;
    if (c->exchange) km_exchange_leave(c->exchange);
    if (c->reading) { /* km_connection_read frees it on its way out */
        c->dead = true;
        return;
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        h->first = c->next;
    if (c->next) c->next->prev = c->prev;
    h->counts.connections--;
    if (c->timer) event_free(c->timer);
    km_http_parser_free(c->parser);
    bufferevent_free(c->bev);
    km_text_free(&c->late);
    km_free(c);
    km_http_maybe_end(h);
}

void km_connection_finish(km_connection *c) {
    c->closing = true;
    bufferevent_disable(c->bev, EV_READ);
    if (!c->reading && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        km_connection_free(c);
    else
        set_timer(c, c->http->options.write_seconds);
}

/* ---- Reading ---- */

static void answer_bad(km_connection *c, int status, const char *why) {
    char body[320], head[320];
    int n =
        snprintf(body, sizeof body,
                 "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,"
                 "\"code\":null}}\n",
                 why);
    int k = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                     "Connection: close\r\n\r\n",
                     status, km_http_status_text(status), n);
    bufferevent_write(c->bev, head, (size_t)k);
    bufferevent_write(c->bev, body, (size_t)n);
    c->http->counts.refused++;
    km_connection_finish(c);
}

/* Takes from what has come until a request is whole, its answer is under way, or there is no more. */
void km_connection_read(km_connection *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    km_http *h = c->http;
    if (c->reading) return; /* a handler that answers at once comes back here */
    c->reading = true;
    while (!c->exchange && !c->closing && !c->dead) {
        struct evbuffer_iovec piece;
        bool some = evbuffer_peek(in, -1, NULL, &piece, 1) > 0 && piece.iov_len > 0;
        km_http_state before = km_http_parser_state(c->parser);
        bool begun = km_http_parser_begun(c->parser);
        size_t took =
            km_http_parser_put(c->parser, some ? piece.iov_base : "", some ? piece.iov_len : 0);
        h->counts.bytes_in += took;
        evbuffer_drain(in, took);
        km_http_state state = km_http_parser_state(c->parser);
        if (state == KM_HTTP_BAD) {
            answer_bad(c, km_http_parser_status(c->parser), km_http_parser_error(c->parser));
            break;
        }
        if (before == KM_HTTP_HEAD && km_http_parser_expects(c->parser))
            bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        if (state == KM_HTTP_DONE) {
            evtimer_del(c->timer);
            c->exchange = km_exchange_new(c);
            if (!c->exchange) {
                answer_bad(c, 503, "out of memory");
                break;
            }
            h->counts.requests++;
            h->options.on_request(h->options.user, c->exchange);
            continue; /* it may be answered already, and the next one be here */
        }
        if (!some) break;
        if (state == KM_HTTP_BODY)
            set_timer(c, h->options.body_seconds);
        else if (!begun && km_http_parser_begun(c->parser))
            set_timer(c, h->options.head_seconds);
    }
    c->reading = false;
    if (c->dead || (c->closing && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0))
        km_connection_free(c);
    else if (c->half_closed && !c->exchange && !c->closing)
        km_connection_finish(c);
}

void km_connection_next(km_connection *c, bool keep_alive) {
    c->exchange = NULL;
    km_http_parser_reset(c->parser);
    if (!keep_alive || c->http->draining) {
        c->closing = true;
        bufferevent_disable(c->bev, EV_READ);
        set_timer(c, c->http->options.write_seconds);
        if (!c->reading && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
            km_connection_free(c);
        return;
    }
    set_timer(c, c->http->options.idle_seconds);
    if (!c->reading) km_connection_read(c);
}

static void on_read(struct bufferevent *bev, void *user) {
    km_connection *c = user;
    km_http *h = c->http;
    km_http_begin(h);
    if (!c->exchange)
        km_connection_read(c);
    else if (evbuffer_get_length(bufferevent_get_input(bev)) > READ_AHEAD)
        km_connection_free(c); /* bytes of later requests; too many of them are no pipelining */
    km_http_end(h);
}

static void on_written(struct bufferevent *bev, void *user) {
    km_connection *c = user;
    km_http *h = c->http;
    km_http_begin(h);
    c->direct = !h->tls && evbuffer_get_length(bufferevent_get_output(bev)) == 0 && !c->late.len &&
                !c->broken;
    if (c->closing && !c->reading) km_connection_free(c);
    km_http_end(h);
}

static void take_event(km_connection *c, struct bufferevent *bev, short what) {
    bool left = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
    if ((what & BEV_EVENT_EOF) && !(what & BEV_EVENT_ERROR) && !c->exchange) {
        c->half_closed = true; /* answers that are whole still go out */
        if (!c->closing)
            km_connection_read(c);
        else if (!left)
            km_connection_free(c);
        return;
    }
    km_connection_free(c);
}

static void on_event(struct bufferevent *bev, short what, void *user) {
    km_connection *c = user;
    km_http *h = c->http;
    if (what & BEV_EVENT_CONNECTED) return;
    km_http_begin(h);
    take_event(c, bev, what);
    km_http_end(h);
}

static void on_timeout(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    km_connection *c = user;
    km_http *h = c->http;
    km_http_begin(h);
    bool silent = !km_http_parser_begun(c->parser);
    if (c->closing || c->exchange || silent)
        km_connection_free(c);
    else
        answer_bad(c, 408, "the request took too long to come");
    km_http_end(h);
}

static void name_peer(km_connection *c, const struct sockaddr *a) {
    strcpy(c->peer, "unix");
    if (!a) return;
    if (a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a)->sin_addr, c->peer,
                  sizeof c->peer);
    else if (a->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, c->peer,
                  sizeof c->peer);
}

static void accept_one(km_http *h, evutil_socket_t fd, const struct sockaddr *a) {
    km_connection *c = km_calloc(1, sizeof *c);
    int one = 1;
    if (a && a->sa_family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c) c->parser = km_http_parser_new(&h->options.limits);
    if (c) c->bev = km_http_bufferevent(h, fd);
    if (!c || !c->parser || !c->bev) {
        if (c) km_http_parser_free(c->parser);
        if (!c || !c->bev) close(fd);
        if (c && c->bev) bufferevent_free(c->bev);
        km_free(c);
        return;
    }
    c->http = h;
    c->fd = fd;
    c->next = h->first;
    if (c->next) c->next->prev = c;
    h->first = c;
    h->counts.connections++;
    name_peer(c, a);
    c->timer = evtimer_new(h->base, on_timeout, c);
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (!c->timer) {
        km_connection_free(c);
        return;
    }
    if (h->counts.connections > h->options.connections || h->draining)
        answer_bad(c, 503, h->draining ? "the server is about to end" : "too many connections");
    else
        set_timer(c, h->options.head_seconds);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int len,
                      void *user) {
    (void)l;
    (void)len;
    km_http *h = user;
    km_http_begin(h);
    accept_one(h, fd, a);
    km_http_end(h);
}

/* Out of descriptors: accepting again at once would spin, so it waits for a moment. */
static void on_resume(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    km_http *h = user;
    for (int i = 0; i < h->n_listeners; i++) evconnlistener_enable(h->listeners[i]);
}

static void on_accept_error(struct evconnlistener *l, void *user) {
    km_http *h = user;
    struct timeval wait = {0, 50000};
    (void)l;
    for (int i = 0; i < h->n_listeners; i++) evconnlistener_disable(h->listeners[i]);
    event_base_once(h->base, -1, EV_TIMEOUT, on_resume, h, &wait);
}

/* ---- Listening ---- */

static km_status add_listener(km_http *h, struct evconnlistener *l, const char *what,
                              km_error *err) {
    if (!l) return km_error_set(err, KM_ERR_FILE, "cannot listen at %s: %s", what, strerror(errno));
    evconnlistener_set_error_cb(l, on_accept_error);
    h->listeners[h->n_listeners++] = l;
    return KM_OK;
}

static const unsigned listen_flags =
    LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;

static km_status listen_unix(km_http *h, const char *path, km_error *err) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof un.sun_path || !*path)
        return km_error_set(err, KM_ERR_RANGE,
                            "'%.80s' is no path for a unix socket (at most %zu bytes)", path,
                            sizeof un.sun_path - 1);
    strcpy(un.sun_path, path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = probe >= 0 && connect(probe, (struct sockaddr *)&un, sizeof un) == 0;
    bool stale = !alive && errno == ECONNREFUSED;
    if (probe >= 0) close(probe);
    if (alive)
        return km_error_set(err, KM_ERR_STATE, "another server listens at unix:%s already", path);
    if (stale) unlink(path); /* of a server that ended without cleaning up */
    km_status s = add_listener(h,
                               evconnlistener_new_bind(h->base, on_accept, h, listen_flags, 1024,
                                                       (struct sockaddr *)&un, sizeof un),
                               path, err);
    if (s == KM_OK) h->unix_path = km_strdup(path);
    return s;
}

/* "host:port" apart; false when there is no port. */
static bool split_address(const char *address, char host[256], char port[8]) {
    const char *colon = strrchr(address, ':');
    if (!colon || strlen(colon + 1) > 5 || !colon[1] ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    size_t n = (size_t)(colon - address);
    if (n >= 2 && address[0] == '[' && address[n - 1] == ']') address++, n -= 2;
    if (n >= 256 || n == 0) return false;
    memcpy(host, address, n);
    host[n] = '\0';
    strcpy(port, colon + 1);
    return atoi(port) <= 65535;
}

static struct evutil_addrinfo *resolve(const char *address) {
    char host[256], port[8];
    struct evutil_addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = EVUTIL_AI_PASSIVE},
                           *found = NULL;
    if (!split_address(address, host, port)) return NULL;
    return evutil_getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(six);
}

bool km_http_is_local(const char *address) {
    if (strncmp(address, "unix:", 5) == 0) return true;
    struct evutil_addrinfo *found = resolve(address);
    bool local = found != NULL;
    for (struct evutil_addrinfo *a = found; a; a = a->ai_next)
        if (!is_loopback(a->ai_addr)) local = false;
    if (found) evutil_freeaddrinfo(found);
    return local;
}

static int bound_port(struct evconnlistener *l) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&at, &len) != 0) return 0;
    if (at.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&at)->sin_port);
    return at.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port) : 0;
}

km_status km_http_listen(km_http *h, const char *address, int *port, km_error *err) {
    if (h->n_listeners == KM_HTTP_LISTENERS)
        return km_error_set(err, KM_ERR_RANGE, "at most %d addresses to listen at",
                            KM_HTTP_LISTENERS);
    if (strncmp(address, "unix:", 5) == 0) return listen_unix(h, address + 5, err);
    char host[256], number[8];
    if (!split_address(address, host, number))
        return km_error_set(err, KM_ERR_RANGE, "'%.80s' is no address: give HOST:PORT or unix:PATH",
                            address);
    struct evutil_addrinfo *found = resolve(address);
    if (!found) return km_error_set(err, KM_ERR_RANGE, "there is no host '%.80s'", host);
    struct evconnlistener *l = evconnlistener_new_bind(h->base, on_accept, h, listen_flags, 1024,
                                                       found->ai_addr, (int)found->ai_addrlen);
    evutil_freeaddrinfo(found);
    km_status s = add_listener(h, l, address, err);
    if (s == KM_OK && port) *port = bound_port(l);
    return s;
}

km_status km_http_listen_fd(km_http *h, int fd, km_error *err) {
    if (h->n_listeners == KM_HTTP_LISTENERS)
        return km_error_set(err, KM_ERR_RANGE, "at most %d addresses to listen at",
                            KM_HTTP_LISTENERS);
    evutil_make_socket_nonblocking(fd);
    return add_listener(h, evconnlistener_new(h->base, on_accept, h, listen_flags, 0, fd),
                        "the socket given", err);
}

km_status km_http_reload(km_http *h, km_error *err) { return km_http_tls_open(h, err); }
