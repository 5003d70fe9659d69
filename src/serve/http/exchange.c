/* Answers: whole ones, and streams in chunks with bounded buffers and heartbeats. */
#include "serve/http/internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct km_exchange {
    km_connection *connection;
    void *user;
    void (*on_gone)(void *user);
    char *headers; /* of the answer, as they go out */
    size_t n_headers;
    const char *beat;
    double began, last; /* the last put of a stream */
    uint64_t bytes;
    int status;
    bool begun, chunked, keep_alive, head_only;
    km_gzip *gzip;            /* of a stream that is compressed */
    km_exchange *prev, *next; /* streams */
};

const char *km_http_status_text(int status) {
    static const struct {
        int status;
        const char *text;
    } all[] = {{200, "OK"},
               {204, "No Content"},
               {304, "Not Modified"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {413, "Content Too Large"},
               {414, "URI Too Long"},
               {417, "Expectation Failed"},
               {421, "Misdirected Request"},
               {422, "Unprocessable Content"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {503, "Service Unavailable"},
               {504, "Gateway Timeout"},
               {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status) return all[i].text;
    return "Status";
}

km_exchange *km_exchange_new(km_connection *c) {
    km_exchange *x = km_calloc(1, sizeof *x);
    if (!x) return NULL;
    const km_http_request *r = km_http_parser_request(c->parser);
    x->connection = c;
    x->keep_alive = r->keep_alive;
    x->head_only = strcmp(r->method, "HEAD") == 0;
    x->began = km_now();
    return x;
}

const km_http_request *km_exchange_request(const km_exchange *x) {
    return km_http_parser_request(x->connection->parser);
}

const char *km_exchange_peer(const km_exchange *x) { return x->connection->peer; }

void km_exchange_keep(km_exchange *x, void *user, void (*on_gone)(void *user)) {
    x->user = user;
    x->on_gone = on_gone;
}

void km_exchange_header(km_exchange *x, const char *name, const char *value) {
    size_t n = strlen(name) + strlen(value) + 4;
    if (strpbrk(value, "\r\n")) return; /* a value from a request never splits the answer */
    char *more = km_realloc(x->headers, x->n_headers + n + 1);
    if (!more) {
        x->connection->broken = true; /* one of them may be what keeps a page safe */
        return;
    }
    x->headers = more;
    x->n_headers += (size_t)snprintf(more + x->n_headers, n + 1, "%s: %s\r\n", name, value);
}

static void stop_streaming(km_exchange *x) {
    km_http *h = x->connection->http;
    if (x->prev)
        x->prev->next = x->next;
    else if (h->streams == x)
        h->streams = x->next;
    if (x->next) x->next->prev = x->prev;
    x->prev = x->next = NULL;
    h->counts.streams--;
}

static void ended(km_exchange *x, int status) {
    km_http *h = x->connection->http;
    if (h->options.on_end)
        h->options.on_end(h->options.user, x, status, x->bytes, km_now() - x->began);
    km_gzip_free(x->gzip);
    km_free(x->headers);
    km_free(x);
}

void km_exchange_leave(km_exchange *x) {
    void (*on_gone)(void *) = x->on_gone;
    void *user = x->user;
    if (x->begun) stop_streaming(x);
    x->connection->exchange = NULL;
    x->on_gone = NULL;
    if (on_gone) on_gone(user);
    ended(x, 499);
}

static void add_bytes(km_connection *c, const void *data, size_t bytes) {
    if (evbuffer_add(bufferevent_get_output(c->bev), data, bytes) != 0) c->broken = true;
}

static void send_head(km_exchange *x, int status, const char *type, const char *length) {
    struct evbuffer *out = bufferevent_get_output(x->connection->bev);
    if (x->connection->http->draining) x->keep_alive = false;
    if (evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, km_http_status_text(status)) < 0 ||
        (type && evbuffer_add_printf(out, "Content-Type: %s\r\n", type) < 0) ||
        evbuffer_add_printf(out, "%s%s%s\r\n", length, x->keep_alive ? "" : "Connection: close\r\n",
                            x->headers ? x->headers : "") < 0)
        x->connection->broken = true;
    x->status = status;
}

static void done(km_exchange *x) {
    km_connection *c = x->connection;
    bool keep = x->keep_alive;
    x->on_gone = NULL;
    ended(x, x->status);
    if (!c->broken) {
        km_connection_next(c, keep);
        return;
    }
    c->exchange = NULL;
    km_connection_free(c);
}

/* ---- Compression ---- */

enum { WORTH_IT = 1000 }; /* bytes of a whole answer; smaller ones fit into a packet anyway */

static bool may_compress(const km_exchange *x) {
    const km_connection *c = x->connection;
    km_compress how = c->http->options.compress;
    bool local = strcmp(c->peer, "unix") == 0 || strncmp(c->peer, "127.", 4) == 0 ||
                 strcmp(c->peer, "::1") == 0;
    if (how == KM_COMPRESS_NEVER || (how == KM_COMPRESS_REMOTE && local)) return false;
    return km_gzip_able() &&
           km_gzip_accepted(km_http_header_get(km_exchange_request(x), "accept-encoding"));
}

static void tell_compressed(km_exchange *x) {
    km_exchange_header(x, "Content-Encoding", "gzip");
    km_exchange_header(x, "Vary", "Accept-Encoding");
}

/* ---- Whole answers ---- */

void km_exchange_send(km_exchange *x, int status, const char *type, const char *body,
                      size_t bytes) {
    char length[64];
    km_gzip *g =
        bytes >= WORTH_IT && bytes < UINT32_MAX && may_compress(x) ? km_gzip_new(false) : NULL;
    size_t n = 0;
    const char *small = g ? km_gzip_put(g, body, bytes, true, &n) : NULL;
    if (small) {
        tell_compressed(x);
        body = small;
        bytes = n;
    }
    bool none = status == 204 || status == 304;
    snprintf(length, sizeof length, "Content-Length: %zu\r\n", bytes);
    send_head(x, status, type, none ? "" : length);
    if (!x->head_only && !none) {
        add_bytes(x->connection, body, bytes);
        x->bytes = bytes;
        x->connection->http->counts.bytes_out += bytes;
    }
    km_gzip_free(g);
    done(x);
}

/* ---- Streams ---- */

void km_exchange_begin(km_exchange *x, int status, const char *type, const char *beat) {
    km_http *h = x->connection->http;
    /* A client of HTTP/1.0 knows no chunks: for it the end of the connection is the end. */
    x->chunked = !km_http_parser_request(x->connection->parser)->old;
    if (!x->chunked) x->keep_alive = false;
    km_exchange_header(x, "Cache-Control", "no-cache");
    km_exchange_header(x, "X-Accel-Buffering", "no"); /* nginx passes pieces on as they come */
    if (!x->head_only && may_compress(x)) x->gzip = km_gzip_new(true);
    if (x->gzip) tell_compressed(x);
    send_head(x, status, type, x->chunked ? "Transfer-Encoding: chunked\r\n" : "");
    x->connection->direct = false; /* until its head is out */
    x->begun = true;
    x->beat = beat;
    x->last = km_now();
    x->next = h->streams;
    if (x->next) x->next->prev = x;
    h->streams = x;
    h->counts.streams++;
}

/* What the socket takes at once needs no event to be sent by: a token of a stream is one system call.
 * How many bytes went out. */
static size_t send_now(km_connection *c, const struct iovec *parts, int n) {
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)n};
    bool trying = c->http->trying; /* then what libevent does to its buffers goes on beside */
    if (trying ? !c->direct : c->http->tls || evbuffer_get_length(bufferevent_get_output(c->bev)))
        return 0;
    if (c->late.len) return 0;
    ssize_t sent = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? (size_t)sent : 0; /* an error comes back when the rest is written */
}

void km_connection_send_late(km_connection *c) {
    if (c->late.len) add_bytes(c, km_text_str(&c->late), c->late.len);
    km_text_free(&c->late);
}

static void put_parts(km_connection *c, const struct iovec *parts, int n) {
    if (!c->http->trying) km_connection_send_late(c);
    size_t sent = send_now(c, parts, n);
    for (int i = 0; i < n; i++) {
        size_t skip = sent < parts[i].iov_len ? sent : parts[i].iov_len,
               left = parts[i].iov_len - skip;
        const char *rest = (const char *)parts[i].iov_base + skip;
        sent -= skip;
        if (left == 0) continue;
        c->direct = false;
        if (!c->http->trying) {
            add_bytes(c, rest, left);
            continue;
        }
        km_text_put(&c->late, rest, left);
        if (!km_text_ok(&c->late)) c->broken = true;
        c->http->some_late = true;
    }
}

static void put_chunk(km_connection *c, const char *data, size_t bytes) {
    char size[20], *at = size + sizeof size;
    *--at = '\n';
    *--at = '\r';
    for (size_t n = bytes; n || at == size + sizeof size - 2; n >>= 4)
        *--at = "0123456789abcdef"[n & 15];
    const struct iovec parts[] = {{at, (size_t)(size + sizeof size - at)},
                                  {(void *)(uintptr_t)data, bytes},
                                  {(void *)(uintptr_t) "\r\n", 2}};
    put_parts(c, parts, 3);
}

/* Bytes as they go out. */
static void put_bytes(km_exchange *x, const char *data, size_t bytes) {
    km_connection *c = x->connection;
    if (bytes == 0) return;
    if (x->chunked)
        put_chunk(c, data, bytes);
    else
        put_parts(c, &(struct iovec){(void *)(uintptr_t)data, bytes}, 1);
    x->bytes += bytes;
    c->http->counts.bytes_out += bytes;
}

bool km_exchange_put(km_exchange *x, const char *data, size_t bytes) {
    km_connection *c = x->connection;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (bytes == 0 || x->head_only) return true;
    if (x->gzip && !c->broken) data = km_gzip_put(x->gzip, data, bytes, false, &bytes);
    if (!data) c->broken = true;
    if (!c->broken) put_bytes(x, data, bytes);
    x->last = km_now();
    if (c->http->trying) return true; /* direct: at most what was put just now is late */
    if (!c->broken && evbuffer_get_length(out) <= c->http->options.backlog) return true;
    km_connection_free(c); /* reads too slowly, or what came would have a hole */
    return false;
}

void km_exchange_fail(km_exchange *x) {
    km_connection *c = x->connection;
    c->broken = true;
    c->direct = false;
    if (c->http->trying)
        c->http->some_late = true; /* the loop ends it */
    else
        km_connection_free(c);
}

bool km_exchange_direct(const km_exchange *x) {
    return x->begun && x->connection->direct && !x->gzip && !x->head_only;
}

void km_exchange_end(km_exchange *x) {
    size_t n = 0;
    const char *rest = x->gzip ? km_gzip_put(x->gzip, "", 0, true, &n) : NULL;
    if (x->gzip && !rest) x->connection->broken = true;
    if (rest) put_bytes(x, rest, n);
    km_connection_send_late(x->connection);
    if (!x->head_only && x->chunked && !x->connection->broken)
        put_parts(x->connection, &(struct iovec){(void *)(uintptr_t) "0\r\n\r\n", 5}, 1);
    stop_streaming(x);
    done(x);
}

void km_exchange_beats(km_http *h) {
    double now = km_now();
    for (km_exchange *x = h->streams, *next; x; x = next) {
        next = x->next;
        struct evbuffer *out = bufferevent_get_output(x->connection->bev);
        if (evbuffer_get_length(out) > 0 && now - x->last > h->options.write_seconds)
            km_connection_free(x->connection); /* takes nothing */
        else if (x->beat && *x->beat && now - x->last >= h->options.beat_seconds)
            km_exchange_put(x, x->beat, strlen(x->beat));
    }
}
