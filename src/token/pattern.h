/* Regular expressions over valid UTF-8: PCRE2 with its compiler where the system allows that,
 * interpreted otherwise. A pattern is shared by threads; each has a matcher of its own. */
#ifndef KM_TOKEN_PATTERN_H
#define KM_TOKEN_PATTERN_H
#include "base/error.h"
#include <stddef.h>

typedef struct km_pattern km_pattern;
typedef struct km_matcher km_matcher;

/* Written as for Hugging Face (Oniguruma); what PCRE2 refuses is an error that says where. */
km_pattern *km_pattern_new(const char *source, size_t n, km_error *err);
km_pattern *km_pattern_literal(const char *text, size_t n, km_error *err); /* just this text */
const char *km_pattern_source(const km_pattern *p); /* the usual ones in one spelling */
void km_pattern_free(km_pattern *p);                /* NULL is fine */

km_matcher *km_matcher_new(km_error *err);
void km_matcher_free(km_matcher *m); /* NULL is fine */

/* The first match at or after `from` in text[0, n), valid UTF-8 with `from` at a character. Sets
 * [*begin, *end) and returns 1; 0: no match; -1: the search was given up (err is set). */
int km_pattern_find(const km_pattern *p, km_matcher *m, const char *text, size_t n, size_t from,
                    size_t *begin, size_t *end, km_error *err);

#endif
