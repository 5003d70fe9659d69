/* What the two halves of the parser, expressions and statements, share. Functions that return a
 * node return NULL with the error set. */
#ifndef KM_TEXT_JINJA_PARSER_H
#define KM_TEXT_JINJA_PARSER_H
#include "text/jinja_parse.h"
#include <stdio.h>

typedef struct km_jparser {
    km_jrun *r;
    const km_jtoken *tokens; /* the last is KM_JTOKEN_END */
    size_t n, at;
    int depth;
    km_jnode *names; /* read so far */
    int loops;       /* for blocks around this place, for break and continue */
} km_jparser;

static inline const km_jtoken *km_jparse_now(const km_jparser *p) {
    return &p->tokens[p->at < p->n ? p->at : p->n - 1];
}

km_jnode *km_jparse_node(km_jparser *p, km_jnode_kind kind, int line);
/* Always NULL: `what` is wrong, and what stands there instead. */
void *km_jparse_fail(km_jparser *p, km_status code, const char *what);
bool km_jparse_is(const km_jparser *p, size_t ahead, km_jtoken_kind kind, const char *text);
bool km_jparse_op(km_jparser *p, const char *op);     /* takes this operator if it is next */
bool km_jparse_word(km_jparser *p, const char *word); /* takes this name if it is next */
bool km_jparse_expect(km_jparser *p, const char *op); /* takes it, or fails */
bool km_jparse_deeper(km_jparser *p);                 /* one level more, or fails */

km_jnode *km_jparse_expression(km_jparser *p);
km_jnode *km_jparse_simple(km_jparser *p); /* without "a if b" at its end */
km_jnode *km_jparse_tuple(km_jparser *p);  /* an expression, or several with commas */
km_jnode *km_jparse_filter(km_jparser *p, km_jnode *input); /* after the | */
bool km_jparse_arguments(km_jparser *p, km_jnode **first);  /* after the ( */

#endif
