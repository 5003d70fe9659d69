/* Fuzzes the HTTP request parser: any bytes, cut anywhere, give the same requests as in one piece.
 * seeds: tests/fixtures/http/get.txt tests/fixtures/http/post.txt tests/fixtures/http/chunked.txt tests/fixtures/http/pipelined.txt
 */
#include "serve/http/parser.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t mix(uint64_t h, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u;
}

/* A number that stands for everything the parser made of the input, read in pieces of `piece` bytes. */
static uint64_t parse(const char *data, size_t size, size_t piece) {
    static const km_http_limits limits = {.line = 300, .head = 2000, .headers = 12, .body = 3000};
    km_http_parser *p = km_http_parser_new(&limits);
    uint64_t h = 0xcbf29ce484222325u;
    size_t at = 0;
    if (!p) return 0;
    while (at < size) {
        size_t n = size - at < piece ? size - at : piece;
        size_t took = km_http_parser_put(p, data + at, n);
        if (took > n) __builtin_trap();
        at += took;
        km_http_state state = km_http_parser_state(p);
        if (state == KM_HTTP_BAD) {
            if (km_http_parser_status(p) < 400 || !*km_http_parser_error(p)) __builtin_trap();
            h = mix(h, km_http_parser_error(p), strlen(km_http_parser_error(p)));
            break;
        }
        if (state != KM_HTTP_DONE) {
            if (took < n) __builtin_trap(); /* bytes left behind without a reason */
            continue;
        }
        const km_http_request *r = km_http_parser_request(p);
        if (r->bytes > limits.body || r->n_headers > limits.headers || !r->path[0])
            __builtin_trap();
        h = mix(h, r->method, strlen(r->method));
        h = mix(h, r->path, strlen(r->path));
        h = mix(h, r->query, strlen(r->query));
        h = mix(h, r->body, r->bytes);
        for (size_t i = 0; i < r->n_headers; i++) {
            h = mix(h, r->headers[i].name, strlen(r->headers[i].name));
            h = mix(h, r->headers[i].value, strlen(r->headers[i].value));
        }
        km_http_parser_reset(p);
    }
    km_http_parser_free(p);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t whole = parse((const char *)data, size, size + 1);
    if (parse((const char *)data, size, 1) != whole) __builtin_trap();
    if (parse((const char *)data, size, 7) != whole) __builtin_trap();
    return 0;
}
