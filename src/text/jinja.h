/* A subset of Jinja, the language of models' chat templates: what such templates use, with the
 * meaning that Jinja2 gives it under Hugging Face's settings (trim_blocks and lstrip_blocks on,
 * values of templates cannot reach anything outside). A template is data from strangers: it cannot
 * loop without end, nest without bound or take all memory; it gets an error with a line instead. */
#ifndef KM_TEXT_JINJA_H
#define KM_TEXT_JINJA_H
#include "base/error.h"
#include "base/text.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_jinja km_jinja; /* never changes once made; any number of threads may use it */

/* Parses a template; `name` stands for it in messages and is copied. NULL with *err set: the line
 * and what is wrong or not supported there. */
km_jinja *km_jinja_parse(const char *text, size_t bytes, const char *name, km_error *err);
void km_jinja_free(km_jinja *t); /* NULL is fine */

/* Whether the template reads a variable of this name anywhere. */
bool km_jinja_reads(const km_jinja *t, const char *variable);

typedef struct km_jinja_limits { /* 0 anywhere means the default */
    int64_t steps;               /* nodes evaluated and bytes copied, / 64: 20 million */
    size_t memory;               /* bytes of values made while rendering: 256 MiB */
    int64_t now;                 /* seconds since 1970, for strftime_now: the clock's */
} km_jinja_limits;

/* Adds the rendered text to *out. The members of the object `variables` are the template's
 * variables. On an error *out is as it was. `limits` may be NULL. */
km_status km_jinja_render(const km_jinja *t, const json_t *variables, const km_jinja_limits *limits,
                          km_text *out, km_error *err);

#endif
