/* A scanner for large JSON files of which most is two long lists: a vocabulary and its merges.
 * Those are read in place, without a value per token; small parts are given to Jansson. */
#ifndef KM_TOKEN_JSON_SCAN_H
#define KM_TOKEN_JSON_SCAN_H
#include "base/error.h"
#include "base/text.h"
#include "token/token.h"
#include <jansson.h>

typedef struct km_json_scan {
    const char *begin, *at, *end;
    const char *name; /* for messages */
    km_error *err;
} km_json_scan;

/* Always an error: what is wrong, and at which byte. */
km_status km_json_wrong(km_json_scan *s, const char *what);

char km_json_peek(km_json_scan *s); /* the next character that is not space; 0: end */
km_status km_json_expect(km_json_scan *s, char c);
/* A string, its escapes resolved, replaces what is in *out. It may contain NUL. */
km_status km_json_read_string(km_json_scan *s, km_text *out);
km_status km_json_read_int(km_json_scan *s, int64_t *value);
/* Skips any value, checking its form; *value is where it lies. */
km_status km_json_skip(km_json_scan *s, km_span *value);
/* After an element: true when another one follows (the comma is taken), false at `close`, which
 * is taken too. */
km_status km_json_more(km_json_scan *s, char close, bool *more);

#endif
