/* Lines that a person types: edited and remembered by libedit where it was built in and both ends
 * are a terminal, plain ones otherwise. */
#ifndef KM_CLI_LINE_H
#define KM_CLI_LINE_H
#include "base/error.h"
#include "base/text.h"

#define KM_LINE_MOST ((size_t)16 << 20) /* bytes of a line */

typedef struct km_lines km_lines;

typedef enum km_line {
    KM_LINE_TEXT,
    KM_LINE_CANCELLED, /* Ctrl-C: what was typed is dropped */
    KM_LINE_END,       /* Ctrl-D, or the input's end */
    KM_LINE_FAILED     /* the error is set */
} km_line;

/* terminal: somebody sits there; otherwise no prompts are shown. NULL when out of memory. */
km_lines *km_lines_open(bool terminal, bool colour);
void km_lines_close(km_lines *l);        /* NULL is fine; writes the history */
bool km_lines_edited(const km_lines *l); /* by libedit */

/* What Tab makes of a line, given up to the cursor: adds what its last word could become, with a
 * newline after each. */
typedef void (*km_complete_fn)(void *user, const char *line, km_text *out);
void km_lines_complete(km_lines *l, km_complete_fn complete, void *user);

/* Adds the next line, without its end, to *out. */
km_line km_lines_read(km_lines *l, const char *prompt, km_text *out, km_error *err);

/* The libedit part (line_edit.c); NULL where it is not built in or does not work here. */
typedef struct km_edit km_edit;
km_edit *km_edit_open(bool colour);
void km_edit_close(km_edit *e);
void km_edit_complete(km_edit *e, km_complete_fn complete, void *user);
km_line km_edit_read(km_edit *e, const char *prompt, km_text *out, km_error *err);

#endif
