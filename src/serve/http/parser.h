/* A strict HTTP/1.1 request parser (RFC 9112), fed with bytes as they come. Whatever could be read in
 * two ways is refused: a bare LF, folded headers, two lengths, a length beside chunks. It knows no
 * sockets, so that a fuzzer can drive it. */
#ifndef KM_SERVE_HTTP_PARSER_H
#define KM_SERVE_HTTP_PARSER_H
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_http_limits { /* 0 anywhere means the default */
    size_t line;                /* of the request line and of each header: 16 KiB */
    size_t head;                /* all of them together: 64 KiB */
    size_t headers;             /* how many: 100 */
    size_t body;                /* 64 MiB */
} km_http_limits;

typedef struct km_http_header {
    const char *name; /* in lower case */
    const char *value;
} km_http_header;

typedef struct km_http_request {
    const char *method; /* "POST" */
    const char *path;   /* "/v1/models", percent escapes resolved; never empty */
    const char *query;  /* "a=1&b=2", as it came; "" without one */
    km_http_header *headers;
    size_t n_headers;
    const char *body; /* NUL-terminated after `bytes`; "" without one */
    size_t bytes;
    bool keep_alive;
    bool old; /* HTTP/1.0: knows no chunks */
} km_http_request;

typedef enum km_http_state {
    KM_HTTP_HEAD, /* wants the rest of the request line and the headers */
    KM_HTTP_BODY, /* the head is whole: its fields of the request are set */
    KM_HTTP_DONE, /* the request is whole */
    KM_HTTP_BAD   /* refused: status and error tell */
} km_http_state;

typedef struct km_http_parser km_http_parser;

km_http_parser *km_http_parser_new(const km_http_limits *limits); /* NULL: out of memory */
void km_http_parser_free(km_http_parser *p);                      /* NULL is fine */
/* Makes it ready for the next request; what the last one held is gone. */
void km_http_parser_reset(km_http_parser *p);

/* Takes up to n bytes and returns how many: all of them, unless the request became whole (the rest
 * belongs to the next one) or was refused. */
size_t km_http_parser_put(km_http_parser *p, const char *data, size_t n);

km_http_state km_http_parser_state(const km_http_parser *p);
bool km_http_parser_begun(const km_http_parser *p); /* it holds a part of a request */
/* The client waits for "100 Continue" before it sends the body. */
bool km_http_parser_expects(const km_http_parser *p);
/* Valid in KM_HTTP_DONE, until the next put or reset. */
const km_http_request *km_http_parser_request(const km_http_parser *p);
/* In KM_HTTP_BAD: the status to answer with, and one line. */
int km_http_parser_status(const km_http_parser *p);
const char *km_http_parser_error(const km_http_parser *p);

/* The header's value, or NULL. `name` is in lower case. */
const char *km_http_header_get(const km_http_request *r, const char *name);

#endif
