/* The HTTP server under hostile input: requests that could be read in two ways, senders and readers that
 * are slow, clients that leave, and thousands of connections' worth of order kept. */
#include "base/alloc.h"
#include "serve/http/server.h"
#include "support/sanitized.h"
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- The parser ---- */

/* Parses the text in pieces of `piece` bytes: the state, and in *status what a refusal says. */
static km_http_state parse(km_http_parser *p, const char *text, size_t n, size_t piece) {
    km_http_parser_reset(p);
    for (size_t at = 0; at < n && km_http_parser_state(p) < KM_HTTP_DONE;) {
        size_t k = n - at < piece ? n - at : piece;
        at += km_http_parser_put(p, text + at, k);
    }
    return km_http_parser_state(p);
}

static void a_request_is_read_whatever_the_pieces(void **state) {
    static const char text[] =
        "POST /a%20b?x=%201 HTTP/1.1\r\nHost: here\r\nX-Long:  two words \r\n"
        "Content-Length: 4\r\n\r\nbody";
    km_http_parser *p = km_http_parser_new(NULL);
    for (size_t piece = 1; piece <= sizeof text; piece++) {
        assert_int_equal(parse(p, text, sizeof text - 1, piece), KM_HTTP_DONE);
        const km_http_request *r = km_http_parser_request(p);
        assert_string_equal(r->method, "POST");
        assert_string_equal(r->path, "/a b");
        assert_string_equal(r->query, "x=%201");
        assert_string_equal(r->body, "body");
        assert_string_equal(km_http_header_get(r, "x-long"), "two words");
        assert_true(r->keep_alive);
    }
    km_http_parser_free(p);
}

static void chunks_become_one_body(void **state) {
    static const char text[] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
                               "3\r\nabc\r\n00B;name=value\r\ndefghijklmn\r\n0\r\nA: b\r\n\r\n";
    km_http_parser *p = km_http_parser_new(NULL);
    for (size_t piece = 1; piece <= sizeof text; piece += 3) {
        assert_int_equal(parse(p, text, sizeof text - 1, piece), KM_HTTP_DONE);
        assert_string_equal(km_http_parser_request(p)->body, "abcdefghijklmn");
    }
    km_http_parser_free(p);
}

static void what_could_be_read_in_two_ways_is_refused(void **state) {
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\nHost: h\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
        {"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
         400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nnothing\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%0 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"WAYTOOLONGAMETHODNAME / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"\x16\x03\x01\x02\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nExpect: wonders\r\n\r\n", 417},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
         400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
         413},
    };
    km_http_parser *p = km_http_parser_new(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        km_http_state s = parse(p, cases[i].text, strlen(cases[i].text), 1000);
        if (s != KM_HTTP_BAD || km_http_parser_status(p) != cases[i].status)
            fail_msg("%s: state %d, status %d", cases[i].text, s, km_http_parser_status(p));
        assert_int_equal(parse(p, cases[i].text, strlen(cases[i].text), 1), KM_HTTP_BAD);
    }
    km_http_parser_free(p);
}

static void heads_and_bodies_without_end_meet_a_limit(void **state) {
    km_http_limits limits = {.line = 100, .head = 300, .headers = 5, .body = 50};
    km_http_parser *p = km_http_parser_new(&limits);
    char text[4096];
    int n = snprintf(text, sizeof text, "GET /%0200d HTTP/1.1\r\n", 0);
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 414);
    n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nA: %0200d\r\n", 0);
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 431);
    n = snprintf(text, sizeof text,
                 "GET / HTTP/1.1\r\nA: %090d\r\nB: %090d\r\nC: %090d\r\nD: %090d\r\n", 0, 0, 0, 0);
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 431);
    n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nA:\r\nA:\r\nA:\r\nA:\r\nA:\r\nA:\r\nA:\r\n");
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 431);
    n = snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 51\r\n\r\n");
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 413);
    n = snprintf(text, sizeof text,
                 "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "1e\r\n%030d\r\n1e\r\n",
                 0);
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    assert_int_equal(km_http_parser_status(p), 413);
    n = snprintf(text, sizeof text, "\r\n\r\n\r\n\r\n\r\n\r\n\r\n");
    assert_int_equal(parse(p, text, (size_t)n, 7), KM_HTTP_BAD);
    km_http_parser_free(p);
}

/* ---- The server ---- */

typedef struct rig {
    km_http *http;
    pthread_t thread;
    int port;
    int gone;          /* clients that left; of the loop's thread until it has ended */
    km_exchange *held; /* by /hold */
    int64_t ended[600];
} rig;

static void forget(void *user) {
    rig *r = user;
    r->held = NULL;
    __atomic_add_fetch(&r->gone, 1, __ATOMIC_SEQ_CST);
}

/* libevent's memory; of the loop's thread alone while `poor` */
static _Thread_local bool poor;

static void *event_alloc(size_t n) { return poor ? NULL : malloc(n); }

static void *event_realloc(void *p, size_t n) { return poor ? NULL : realloc(p, n); }

static void flood(rig *r, km_exchange *x) {
    static char block[4096];
    memset(block, 'x', sizeof block);
    km_exchange_keep(x, r, forget);
    km_exchange_begin(x, 200, "text/plain", NULL);
    for (int i = 0; i < 100000; i++)
        if (!km_exchange_put(x, block, sizeof block)) return;
    km_exchange_end(x);
}

static void answer(void *user, km_exchange *x) {
    rig *r = user;
    const km_http_request *q = km_exchange_request(x);
    if (strcmp(q->path, "/hold") == 0) {
        r->held = x;
        km_exchange_keep(x, r, forget);
    } else if (strcmp(q->path, "/stream") == 0) {
        km_exchange_keep(x, r, forget);
        km_exchange_begin(x, 200, "text/event-stream", ":\n\n");
        km_exchange_put(x, "data: 1\n\n", 9);
        r->held = x; /* goes on with heartbeats alone */
    } else if (strcmp(q->path, "/short") == 0) {
        km_exchange_begin(x, 200, "text/plain", NULL);
        km_exchange_put(x, "one ", 4);
        km_exchange_put(x, "two", 3);
        km_exchange_end(x);
    } else if (strcmp(q->path, "/flood") == 0) {
        flood(r, x);
    } else if (strcmp(q->path, "/poor") == 0) {
        static char text[100000];
        memset(text, 'x', sizeof text);
        poor = true;
        km_exchange_send(x, 200, "text/plain", text, sizeof text);
        poor = false;
    } else {
        char text[200];
        int n = snprintf(text, sizeof text, "%s %.60s %zu", q->method, q->path, q->bytes);
        km_exchange_header(x, "X-Bad", "a\r\nInjected: b");
        km_exchange_send(x, 200, "text/plain", text, (size_t)n);
    }
}

static void count_end(void *user, km_exchange *x, int status, uint64_t bytes, double seconds) {
    rig *r = user;
    r->ended[status]++;
}

static void *loop(void *user) {
    km_http_run(((rig *)user)->http);
    return NULL;
}

static void start(rig *r, km_http_options o) {
    km_error err = {0};
    *r = (rig){0};
    o.on_request = answer;
    o.on_end = count_end;
    o.user = r;
    r->http = km_http_new(&o, &err);
    assert_non_null(r->http);
    assert_int_equal(km_http_listen(r->http, "127.0.0.1:0", &r->port, &err), KM_OK);
    assert_int_not_equal(r->port, 0);
    assert_int_equal(pthread_create(&r->thread, NULL, loop, r), 0);
}

static void stop(rig *r) {
    km_http_stop(r->http, 0);
    pthread_join(r->thread, NULL);
    km_http_free(r->http);
}

static int dial(const rig *r) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until the text holds `until` (NULL: until the end) or 10 seconds are over. */
static const char *hear(int fd, const char *until) {
    static char text[1 << 16];
    size_t n = 0;
    text[0] = '\0';
    while (n < sizeof text - 1 && (!until || !strstr(text, until))) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 10000) <= 0) break;
        ssize_t k = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (k <= 0) break;
        n += (size_t)k;
        text[n] = '\0';
    }
    return text;
}

static bool within(int *value, int want, double seconds) {
    for (int i = 0; i < (int)(seconds * 1000); i++) {
        if (__atomic_load_n(value, __ATOMIC_SEQ_CST) >= want) return true;
        usleep(1000);
    }
    return false;
}

static void pipelined_requests_are_answered_in_order(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /short HTTP/1.1\r\nHost: h\r\n\r\n"
            "POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
    const char *text = hear(fd, NULL);
    const char *a = strstr(text, "GET /a 0"), *b = strstr(text, "POST /b 3");
    const char *s = strstr(text, "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n");
    assert_true(a && s && b && a < s && s < b);
    assert_null(strstr(text, "Injected"));
    close(fd);
    stop(&r);
    assert_int_equal(r.ended[200], 3);
}

static void a_bad_request_gets_its_status_and_the_end(void **state) {
    rig r;
    start(&r, (km_http_options){.limits = {.body = 1000}});
    int fd = dial(&r);
    say(fd, "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n");
    const char *text = hear(fd, NULL);
    assert_non_null(strstr(text, "HTTP/1.1 400 Bad Request"));
    assert_non_null(strstr(text, "\"error\""));
    close(fd);
    fd = dial(&r);
    say(fd, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
    assert_non_null(strstr(hear(fd, NULL), "HTTP/1.1 413"));
    close(fd);
    fd = dial(&r);
    say(fd, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_non_null(strstr(hear(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue"));
    say(fd, "ab");
    assert_non_null(strstr(hear(fd, "/x"), "POST /x 2"));
    close(fd);
    stop(&r);
}

static void a_client_of_http_1_0_gets_no_chunks(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /short HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const char *text = hear(fd, NULL);
    assert_null(strstr(text, "chunked"));
    assert_non_null(strstr(text, "\r\n\r\none two"));
    close(fd);
    stop(&r);
}

static void a_client_that_leaves_is_noticed_at_once(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"); /* waits in a queue, so to say */
    usleep(20000);
    close(fd);
    assert_true(within(&r.gone, 1, 1));
    fd = dial(&r);
    say(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(fd, "data: 1"), "data: 1"));
    shutdown(fd, SHUT_WR); /* half closed */
    assert_true(within(&r.gone, 2, 1));
    close(fd);
    stop(&r);
    assert_int_equal(r.ended[499], 2);
}

static void an_answer_that_is_whole_reaches_a_half_closed_client(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    shutdown(fd, SHUT_WR);
    const char *text = hear(fd, NULL);
    assert_non_null(strstr(text, "GET /a 0"));
    assert_non_null(strstr(text, "GET /b 0"));
    close(fd);
    stop(&r);
}

static void slow_senders_are_told_so(void **state) {
    rig r;
    start(&r, (km_http_options){.head_seconds = 0.2, .body_seconds = 0.2, .idle_seconds = 0.2});
    int head = dial(&r), body = dial(&r), silent = dial(&r), idle = dial(&r);
    say(head, "GET / HTTP/1.1\r\nHo");
    say(body, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nab");
    say(idle, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(head, NULL), "HTTP/1.1 408"));
    assert_non_null(strstr(hear(body, NULL), "HTTP/1.1 408"));
    assert_string_equal(hear(silent, NULL), "");
    assert_null(strstr(hear(idle, NULL), "408"));
    close(head), close(body), close(silent), close(idle);
    stop(&r);
}

static void a_client_that_reads_too_slowly_is_let_go(void **state) {
    rig r;
    start(&r, (km_http_options){.backlog = 256 << 10});
    int fd = dial(&r);
    say(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n"); /* and reads nothing of 400 MB */
    assert_true(within(&r.gone, 1, 5));
    close(fd);
    stop(&r);
    assert_int_equal(r.ended[499], 1);
}

/* ---- Streams that another thread puts to ---- */

enum { LINE = 1000, LINES = 6000 };
typedef struct number_writer {
    rig *r;
    int next, direct;
    bool mailed; /* the loop has the next one */
} number_writer;

static bool put_line(number_writer *w) {
    char line[LINE + 1];
    snprintf(line, sizeof line, "%0*d\n", LINE - 1, w->next);
    if (!w->r->held || !km_exchange_put(w->r->held, line, LINE)) return false;
    w->next++;
    return true;
}

static bool put_now(void *user) {
    number_writer *w = user;
    if (!w->r->held || !km_exchange_direct(w->r->held)) return false;
    w->direct++;
    return put_line(w);
}

static void put_by_loop(void *user) {
    number_writer *w = user;
    if (w->next < LINES) put_line(w);
    if (w->next == LINES && w->r->held) {
        km_exchange_end(w->r->held);
        w->r->held = NULL;
    }
    __atomic_store_n(&w->mailed, false, __ATOMIC_SEQ_CST);
}

static void *write_numbers(void *user) {
    number_writer *w = user;
    while (w->next < LINES) {
        if (w->next < LINES - 1 && km_http_try(w->r->http, put_now, w)) continue;
        __atomic_store_n(&w->mailed, true, __ATOMIC_SEQ_CST);
        assert_true(km_http_post(w->r->http, put_by_loop, w));
        while (__atomic_load_n(&w->mailed, __ATOMIC_SEQ_CST)) usleep(20);
    }
    return NULL;
}

/* The reader takes little at a time, so that often the socket does not take a line, or only a part of it. */
static void what_another_thread_puts_comes_whole_and_in_order(void **state) {
    rig r;
    start(&r, (km_http_options){.backlog = LINES * LINE});
    int fd = dial(&r), small = 128 << 10;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    say(fd, "GET /stream HTTP/1.0\r\n\r\n");
    hear(fd, "data: 1\n\n");
    number_writer w = {.r = &r};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_numbers, &w), 0);
    char line[LINE + 1], want[LINE + 1];
    for (int i = 0; i < LINES; i++) {
        if (i % 500 == 0) usleep(20000);
        assert_int_equal(recv(fd, line, LINE, MSG_WAITALL), LINE);
        snprintf(want, sizeof want, "%0*d\n", LINE - 1, i);
        assert_memory_equal(line, want, LINE);
    }
    assert_int_equal(recv(fd, line, 1, 0), 0);
    pthread_join(thread, NULL);
    assert_true(w.direct > 10);
    close(fd);
    stop(&r);
}

static bool put_poorly(void *user) {
    number_writer *w = user;
    if (!w->r->held || !km_exchange_direct(w->r->held)) return false;
    km_alloc_fail_nth(0); /* what the socket takes needs none */
    put_line(w);
    return true;
}

/* Nobody reads until the socket takes no more, and there is no memory for what is left over: the client gets
 * what came before, whole, and then the end; others are served on. */
static void a_stream_without_memory_for_its_rest_ends(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /stream HTTP/1.0\r\n\r\n");
    hear(fd, "data: 1\n\n");
    number_writer w = {.r = &r};
    for (int i = 0; i < 100000 && !__atomic_load_n(&r.gone, __ATOMIC_SEQ_CST); i++)
        if (!km_http_try(r.http, put_poorly, &w))
            usleep(1000); /* its head is on its way, or it ends */
    km_alloc_fail_nth(-1);
    assert_true(within(&r.gone, 1, 10));
    char line[LINE + 1], want[LINE + 1];
    int whole = 0;
    for (ssize_t n; (n = recv(fd, line, LINE, MSG_WAITALL)) > 0; whole++) {
        snprintf(want, sizeof want, "%0*d\n", LINE - 1, whole);
        assert_memory_equal(line, want, (size_t)n);
        if (n < LINE) break;
    }
    assert_true(whole > 10);
    close(fd);
    fd = dial(&r);
    say(fd, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(fd, "GET /x"), "200 OK"));
    close(fd);
    stop(&r);
}

static void an_answer_without_memory_is_no_answer(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int fd = dial(&r);
    say(fd, "GET /poor HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    const char *got = hear(fd, NULL); /* until the end: not half of one answer, and then the next */
    assert_null(strstr(got, "xxx"));
    assert_null(strstr(got, "GET /x"));
    close(fd);
    fd = dial(&r);
    say(fd, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(fd, "GET /x"), "200 OK"));
    close(fd);
    stop(&r);
}

static void a_silent_stream_has_a_heartbeat(void **state) {
    rig r;
    start(&r, (km_http_options){.beat_seconds = 0.1});
    int fd = dial(&r);
    say(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(fd, "3\r\n:\n\n\r\n"), "3\r\n:\n\n\r\n"));
    close(fd);
    stop(&r);
}

static void connections_beyond_the_limit_are_told_so(void **state) {
    rig r;
    int fds[5];
    start(&r, (km_http_options){.connections = 4});
    for (int i = 0; i < 5; i++) {
        fds[i] = dial(&r);
        if (i < 4) say(fds[i], "GET / HTTP/1.1\r\nHost: h\r\n\r\n"), hear(fds[i], "GET /");
    }
    assert_non_null(strstr(hear(fds[4], NULL), "HTTP/1.1 503"));
    for (int i = 0; i < 5; i++) close(fds[i]);
    stop(&r);
}

static void many_connections_come_and_go(void **state) {
    enum { N = 400 };
    static int fds[N];
    rig r;
    start(&r, (km_http_options){0});
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            fds[i] = dial(&r);
            say(fds[i], i % 3 == 0 ? "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"
                                   : "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        for (int i = 0; i < N; i++) {
            if (i % 5) hear(fds[i], i % 3 == 0 ? "data: 1" : "GET /x");
            close(fds[i]);
        }
    }
    assert_true(within(&r.gone, 3 * ((N + 2) / 3), 5));
    stop(&r);
    assert_int_equal(km_http_is_local("127.0.0.1:80"), true);
}

static void draining_lets_answers_end(void **state) {
    rig r;
    start(&r, (km_http_options){0});
    int idle = dial(&r), busy = dial(&r);
    say(idle, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    hear(idle, "/x");
    say(busy, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    hear(busy, "data: 1");
    km_http_stop(r.http, 20);
    assert_string_equal(hear(idle, NULL), ""); /* closed at once */
    close(busy);                               /* and the last one lets the loop end */
    pthread_join(r.thread, NULL);
    assert_int_equal(r.gone, 1);
    km_http_free(r.http);
}

static void a_unix_socket_serves_and_is_cleaned_up(void **state) {
    rig r;
    km_error err = {0};
    char path[] = "/tmp/kermes-http-XXXXXX", address[64];
    assert_int_not_equal(close(mkstemp(path)), -1);
    unlink(path);
    snprintf(address, sizeof address, "unix:%s", path);
    r = (rig){0};
    km_http_options o = {.on_request = answer, .user = &r};
    r.http = km_http_new(&o, &err);
    assert_int_equal(km_http_listen(r.http, address, NULL, &err), KM_OK);
    pthread_create(&r.thread, NULL, loop, &r);
    km_http *second = km_http_new(&o, &err);
    assert_int_equal(km_http_listen(second, address, NULL, &err), KM_ERR_STATE);
    km_http_free(second);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    strcpy(un.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
    say(fd, "GET /u HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_non_null(strstr(hear(fd, "/u"), "GET /u 0"));
    close(fd);
    stop(&r);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void addresses_are_checked(void **state) {
    km_error err = {0};
    km_http_options o = {.on_request = answer};
    km_http *h = km_http_new(&o, &err);
    static const char *const bad[] = {"",
                                      "8080",
                                      "localhost",
                                      "localhost:",
                                      "localhost:x",
                                      "::1",
                                      "127.0.0.1:99999",
                                      "127.0.0.1:123456",
                                      "no.such.host.invalid:80",
                                      "unix:"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (km_error){0};
        if (km_http_listen(h, bad[i], NULL, &err) == KM_OK) fail_msg("'%s' was taken", bad[i]);
        assert_true(err.text[0]);
    }
    assert_true(km_http_is_local("localhost:80"));
    assert_true(km_http_is_local("[::1]:80"));
    assert_true(km_http_is_local("unix:/x"));
    assert_false(km_http_is_local("0.0.0.0:80"));
    assert_false(km_http_is_local("[::]:80"));
    assert_false(km_http_is_local("10.0.0.1:80"));
    km_http_free(h);
}

int main(void) {
    event_set_mem_functions(event_alloc, event_realloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_read_whatever_the_pieces),
        cmocka_unit_test(chunks_become_one_body),
        cmocka_unit_test(what_could_be_read_in_two_ways_is_refused),
        cmocka_unit_test(heads_and_bodies_without_end_meet_a_limit),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_bad_request_gets_its_status_and_the_end),
        cmocka_unit_test(a_client_of_http_1_0_gets_no_chunks),
        cmocka_unit_test(a_client_that_leaves_is_noticed_at_once),
        cmocka_unit_test(an_answer_that_is_whole_reaches_a_half_closed_client),
        cmocka_unit_test(slow_senders_are_told_so),
        cmocka_unit_test(a_client_that_reads_too_slowly_is_let_go),
        cmocka_unit_test(what_another_thread_puts_comes_whole_and_in_order),
        cmocka_unit_test(a_stream_without_memory_for_its_rest_ends),
        cmocka_unit_test(an_answer_without_memory_is_no_answer),
        cmocka_unit_test(a_silent_stream_has_a_heartbeat),
        cmocka_unit_test(connections_beyond_the_limit_are_told_so),
        cmocka_unit_test(many_connections_come_and_go),
        cmocka_unit_test(draining_lets_answers_end),
        cmocka_unit_test(a_unix_socket_serves_and_is_cleaned_up),
        cmocka_unit_test(addresses_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
