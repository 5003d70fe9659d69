/* The request parser. The head is gathered line by line into one text, in which names, values, path
 * and query are then NUL-terminated in place; the body goes into another. */
#include "serve/http/parser.h"
#include "base/alloc.h"
#include <string.h>
#include <strings.h>

enum { MAX_METHOD = 16, MAX_CHUNK_LINE = 256, MAX_TRAILERS = 8 << 10, EMPTY_LINES = 4 };

typedef enum km_http_part {
    IN_LINES,      /* the request line and the headers */
    IN_LENGTH,     /* a body of a known length */
    IN_CHUNK_SIZE, /* the line in front of a chunk */
    IN_CHUNK,
    IN_CHUNK_END, /* the CRLF after a chunk */
    IN_TRAILERS,
    AT_END
} km_http_part;

struct km_http_parser {
    km_http_limits limits;
    km_http_part part;
    km_http_state state;
    km_text head, line, body;
    size_t line_starts[130]; /* in head, of each line */
    size_t n_lines, empty, trailers;
    uint64_t left; /* bytes of the body, or of this chunk, that are still to come */
    bool expects;
    km_http_header headers[128];
    km_http_request request;
    int status;
    const char *error;
};

km_http_parser *km_http_parser_new(const km_http_limits *limits) {
    km_http_parser *p = km_calloc(1, sizeof *p);
    if (!p) return NULL;
    if (limits) p->limits = *limits;
    km_http_limits *l = &p->limits;
    if (!l->line) l->line = 16 << 10;
    if (!l->head) l->head = 64 << 10;
    if (!l->headers || l->headers > 128) l->headers = 100;
    if (!l->body) l->body = 64 << 20;
    return p;
}

void km_http_parser_free(km_http_parser *p) {
    if (!p) return;
    km_text_free(&p->head);
    km_text_free(&p->line);
    km_text_free(&p->body);
    km_free(p);
}

/* A small buffer is kept for the next request, a large one is not. */
static void empty(km_text *t) {
    if (t->cap > 16 << 10)
        km_text_free(t);
    else
        t->len = 0, t->failed = false;
}

void km_http_parser_reset(km_http_parser *p) {
    empty(&p->head);
    empty(&p->line);
    empty(&p->body);
    p->part = IN_LINES;
    p->state = KM_HTTP_HEAD;
    p->n_lines = p->empty = p->trailers = 0;
    p->left = 0;
    p->expects = false;
    p->request = (km_http_request){0};
    p->status = 0;
    p->error = NULL;
}

static void refuse(km_http_parser *p, int status, const char *why) {
    p->state = KM_HTTP_BAD;
    p->status = status;
    p->error = why;
}

static void out_of_memory(km_http_parser *p) { refuse(p, 503, "out of memory"); }

/* ---- The head ---- */

static bool token_char(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex_digit(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Resolves percent escapes in place; false for broken ones and for NUL. */
static bool unescape(char *s) {
    char *to = s;
    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s;
            continue;
        }
        int hi = hex_digit((unsigned char)s[1]), lo = hi < 0 ? -1 : hex_digit((unsigned char)s[2]);
        if (lo < 0 || (hi == 0 && lo == 0)) return false;
        *to++ = (char)(hi * 16 + lo);
        s += 2;
    }
    *to = '\0';
    return true;
}

/* The target in its three forms: /path?query, http://host/path?query, and * of OPTIONS. */
static bool read_target(km_http_parser *p, char *target) {
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f || *c == '#') return false;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *host = strstr(target, "://") + 3, *slash = strpbrk(host, "/?");
        if (slash == host || *host == '\0') return false;
        if (!slash || *slash == '?') return false;
        target = slash;
    }
    if (strcmp(target, "*") == 0 && strcmp(p->request.method, "OPTIONS") == 0) {
        p->request.path = "*";
        p->request.query = "";
        return true;
    }
    if (target[0] != '/') return false;
    char *query = strchr(target, '?');
    if (query) *query++ = '\0';
    if (!unescape(target)) return false;
    p->request.path = target;
    p->request.query = query ? query : "";
    return true;
}

static void read_request_line(km_http_parser *p, char *line) {
    char *space = strchr(line, ' ');
    if (!space || space == line || space - line > MAX_METHOD)
        return refuse(p, 400, "the request line is broken");
    for (char *c = line; c < space; c++)
        if (!token_char((unsigned char)*c)) return refuse(p, 400, "the method is broken");
    *space = '\0';
    p->request.method = line;
    char *target = space + 1, *version = strchr(target, ' ');
    if (!version) return refuse(p, 400, "the request line has no HTTP version");
    *version++ = '\0';
    if (strncmp(version, "HTTP/", 5) != 0) return refuse(p, 400, "the request line is broken");
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return refuse(p, 505, "this server speaks HTTP/1.1");
    p->request.keep_alive = version[7] == '1';
    p->request.old = !p->request.keep_alive;
    if (!read_target(p, target)) refuse(p, 400, "the request's target is broken");
}

static void read_header(km_http_parser *p, char *line, size_t n) {
    if (line[0] == ' ' || line[0] == '\t') return refuse(p, 400, "a header is folded");
    char *colon = memchr(line, ':', n);
    if (!colon || colon == line) return refuse(p, 400, "a header has no name");
    for (char *c = line; c < colon; c++) {
        if (!token_char((unsigned char)*c)) return refuse(p, 400, "a header's name is broken");
        if (*c >= 'A' && *c <= 'Z') *c |= 0x20;
    }
    *colon = '\0';
    char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = '\0';
    for (char *c = value; c < end; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
            return refuse(p, 400, "a header holds a control character");
    if (p->request.n_headers >= p->limits.headers) return refuse(p, 431, "too many headers");
    p->headers[p->request.n_headers++] = (km_http_header){line, value};
}

/* How often the header stands there; *value gets the first. */
static size_t count_header(const km_http_parser *p, const char *name, const char **value) {
    size_t n = 0;
    for (size_t i = 0; i < p->request.n_headers; i++)
        if (strcmp(p->headers[i].name, name) == 0 && n++ == 0) *value = p->headers[i].value;
    return n;
}

/* Is the word in a list separated by commas? */
static bool lists(const char *value, const char *word) {
    size_t n = strlen(word);
    for (const char *c = value; c && *c;) {
        while (*c == ' ' || *c == '\t' || *c == ',') c++;
        size_t len = strcspn(c, ", \t");
        if (len == n && strncasecmp(c, word, n) == 0) return true;
        c += len;
        c = strchr(c, ',');
    }
    return false;
}

static void read_length(km_http_parser *p, const char *text) {
    uint64_t n = 0;
    if (!*text) return refuse(p, 400, "Content-Length is no number");
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return refuse(p, 400, "Content-Length is no number");
        if (n > UINT64_MAX / 10 - 1) return refuse(p, 413, "the body is too large");
        n = n * 10 + (uint64_t)(*text - '0');
    }
    if (n > p->limits.body) return refuse(p, 413, "the body is too large");
    p->left = n;
    p->part = n ? IN_LENGTH : AT_END;
}

/* All lines are there: what do they say about the body and the connection? */
static void read_head(km_http_parser *p) {
    p->line_starts[p->n_lines] = p->head.len;
    char *data = p->head.data;
    read_request_line(p, data);
    for (size_t i = 1; i < p->n_lines && p->state != KM_HTTP_BAD; i++)
        read_header(p, data + p->line_starts[i], p->line_starts[i + 1] - p->line_starts[i] - 1);
    if (p->state == KM_HTTP_BAD) return;
    p->request.headers = p->headers;
    const char *hosts = "", *length = NULL, *coding = NULL, *connection = NULL, *expect = NULL;
    bool old = p->request.old;
    size_t n_hosts = count_header(p, "host", &hosts);
    if (n_hosts > 1 || (n_hosts == 0 && !old))
        return refuse(p, 400, "a request names one host, in the Host header");
    size_t lengths = count_header(p, "content-length", &length);
    size_t codings = count_header(p, "transfer-encoding", &coding);
    if (lengths > 1 || codings > 1 || (lengths && codings))
        return refuse(p, 400, "the body's length is told more than once");
    if (codings && (old || strcasecmp(coding, "chunked") != 0))
        return refuse(p, old ? 400 : 501, "the only transfer coding understood is chunked");
    for (size_t i = 0; i < p->request.n_headers; i++) {
        if (strcmp(p->headers[i].name, "connection") != 0) continue;
        connection = p->headers[i].value;
        if (lists(connection, "close")) p->request.keep_alive = false;
        if (old && lists(connection, "keep-alive")) p->request.keep_alive = true;
    }
    if (count_header(p, "expect", &expect)) {
        if (strcasecmp(expect, "100-continue") != 0)
            return refuse(p, 417, "the only expectation understood is 100-continue");
        p->expects = !old;
    }
    p->part = AT_END;
    if (lengths) read_length(p, length);
    if (codings) p->part = IN_CHUNK_SIZE;
    if (p->state == KM_HTTP_BAD) return;
    p->state = KM_HTTP_BODY;
}

static void end_line(km_http_parser *p) {
    size_t n = p->line.len;
    if (n == 0 || p->line.data[n - 1] != '\r')
        return refuse(p, 400, "a line ends without carriage return");
    n--;
    if (memchr(p->line.data, '\0', n)) return refuse(p, 400, "a line holds a NUL byte");
    p->line.len = 0;
    if (n == 0 && p->n_lines == 0) {
        if (++p->empty > EMPTY_LINES) refuse(p, 400, "the request begins with empty lines");
        return;
    }
    if (n == 0) return read_head(p);
    if (p->n_lines + 1 > p->limits.headers) return refuse(p, 431, "too many headers");
    if (p->head.len + n + 1 > p->limits.head) return refuse(p, 431, "the headers are too long");
    p->line_starts[p->n_lines++] = p->head.len;
    km_text_put(&p->head, p->line.data, n);
    km_text_put(&p->head, "", 1);
    if (!km_text_ok(&p->head)) out_of_memory(p);
}

/* ---- The body ---- */

static void end_chunk_line(km_http_parser *p) {
    size_t n = p->line.len;
    if (n < 2 || p->line.data[n - 1] != '\r') return refuse(p, 400, "a chunk's size is broken");
    p->line.data[n - 1] = '\0';
    uint64_t size = 0;
    size_t digits = 0;
    const char *c = p->line.data;
    for (int d; (d = hex_digit((unsigned char)*c)) >= 0; c++, digits++)
        size = size * 16 + (uint64_t)d;
    p->line.len = 0;
    if (digits == 0 || digits > 15 || (*c && *c != ';' && *c != ' ' && *c != '\t'))
        return refuse(p, 400, "a chunk's size is broken");
    if (size > p->limits.body - p->body.len) return refuse(p, 413, "the body is too large");
    p->left = size;
    p->part = size ? IN_CHUNK : IN_TRAILERS;
}

static void end_trailer(km_http_parser *p) {
    size_t n = p->line.len;
    if (n == 0 || p->line.data[n - 1] != '\r') return refuse(p, 400, "a trailer is broken");
    p->trailers += n;
    p->line.len = 0;
    if (p->trailers > MAX_TRAILERS) return refuse(p, 431, "the trailers are too long");
    if (n == 1) p->part = AT_END;
}

static size_t put_line(km_http_parser *p, const char *data, size_t n) {
    const char *end = memchr(data, '\n', n);
    size_t take = end ? (size_t)(end - data) : n;
    bool start = p->part == IN_LINES && p->n_lines == 0 && p->line.len == 0 && take;
    if (start && data[0] != '\r' && !token_char((unsigned char)data[0])) /* TLS, for instance */
        return refuse(p, 400, "this is no HTTP request"), take;
    size_t most = p->part == IN_LINES ? p->limits.line : MAX_CHUNK_LINE;
    if (p->line.len + take > most) {
        bool first = p->part == IN_LINES && p->n_lines == 0;
        if (p->part == IN_LINES)
            refuse(p, first ? 414 : 431, first ? "the URL is too long" : "a header is too long");
        else
            refuse(p, 400, "a chunk's line is too long");
        return take;
    }
    km_text_put(&p->line, data, take);
    if (!km_text_ok(&p->line)) return out_of_memory(p), take;
    if (!end) return take;
    if (p->part == IN_LINES)
        end_line(p);
    else if (p->part == IN_CHUNK_SIZE)
        end_chunk_line(p);
    else
        end_trailer(p);
    return take + 1;
}

static size_t put_body(km_http_parser *p, const char *data, size_t n) {
    size_t take = n < p->left ? n : (size_t)p->left;
    km_text_put(&p->body, data, take);
    if (!km_text_ok(&p->body)) return out_of_memory(p), take;
    p->left -= take;
    if (p->left == 0) p->part = p->part == IN_CHUNK ? IN_CHUNK_END : AT_END;
    return take;
}

static size_t put_chunk_end(km_http_parser *p, const char *data, size_t n) {
    static const char end[] = "\r\n";
    size_t i = 0;
    for (; i < n && p->line.len < 2; i++) {
        if (data[i] != end[p->line.len]) {
            refuse(p, 400, "a chunk is longer than it says");
            return i;
        }
        km_text_put(&p->line, data + i, 1);
        if (!km_text_ok(&p->line)) return out_of_memory(p), i;
    }
    if (p->line.len == 2) p->line.len = 0, p->part = IN_CHUNK_SIZE;
    return i;
}

size_t km_http_parser_put(km_http_parser *p, const char *data, size_t n) {
    size_t at = 0;
    while (p->state != KM_HTTP_BAD && p->state != KM_HTTP_DONE) {
        if (p->part == AT_END) {
            p->request.body = km_text_str(&p->body);
            p->request.bytes = p->body.len;
            p->state = KM_HTTP_DONE;
            break;
        }
        if (at == n) break;
        switch (p->part) {
        case IN_LENGTH:
        case IN_CHUNK: at += put_body(p, data + at, n - at); break;
        case IN_CHUNK_END: at += put_chunk_end(p, data + at, n - at); break;
        default: at += put_line(p, data + at, n - at);
        }
    }
    return at;
}

/* ---- What it holds ---- */

km_http_state km_http_parser_state(const km_http_parser *p) { return p->state; }

bool km_http_parser_begun(const km_http_parser *p) {
    return p->state == KM_HTTP_BODY || p->line.len > 0 || p->n_lines > 0;
}

bool km_http_parser_expects(const km_http_parser *p) {
    return p->state == KM_HTTP_BODY && p->expects && p->body.len == 0;
}

const km_http_request *km_http_parser_request(const km_http_parser *p) { return &p->request; }

int km_http_parser_status(const km_http_parser *p) { return p->status; }

const char *km_http_parser_error(const km_http_parser *p) { return p->error ? p->error : ""; }

const char *km_http_header_get(const km_http_request *r, const char *name) {
    for (size_t i = 0; i < r->n_headers; i++)
        if (strcmp(r->headers[i].name, name) == 0) return r->headers[i].value;
    return NULL;
}
