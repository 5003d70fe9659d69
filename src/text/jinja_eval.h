/* The evaluator's inside: scopes, calls, and what filters, tests, methods and functions share. */
#ifndef KM_TEXT_JINJA_EVAL_H
#define KM_TEXT_JINJA_EVAL_H
#include "text/jinja_parse.h"

typedef struct km_jvar km_jvar;
struct km_jvar {
    km_jvar *next;
    const char *name;
    size_t bytes;
    km_jv value;
};

/* Names that a block defines; those around it are seen through `outer`. */
typedef struct km_jscope km_jscope;
struct km_jscope {
    km_jscope *outer;
    km_jvar *vars;
};

struct km_jv_macro {
    const km_jnode *node; /* its name, for messages */
    const km_jnode *parameters, *body;
    km_jscope *scope; /* where it was defined */
};

struct km_jv_loop {
    const km_jv_list *items;
    size_t at;
    km_jv changed; /* what loop.changed saw last */
    bool seen;
};

typedef struct km_jargs { /* of a call */
    km_jv *values;        /* n by position, then n_named */
    const char **names;   /* of these, n_named */
    size_t *name_bytes;
    size_t n, n_named;
} km_jargs;

/* The argument at a position or of a name; NULL when it was not given. */
const km_jv *km_jarg(const km_jargs *a, size_t position, const char *name);
/* Fails when more were given than `most` by position, or one whose name is not among the names
 * (separated by spaces). */
bool km_jargs_check(km_jrun *r, const char *what, const km_jargs *a, size_t most,
                    const char *names);

bool km_jinja_undefined(km_jrun *r, const km_jv *v); /* always false: says what is undefined */

/* a op b for + - * / f % ^ */
bool km_jinja_binary(km_jrun *r, char op, const km_jv *a, const km_jv *b, km_jv *out);

/* ---- Of values ---- */

bool km_jinja_attribute(km_jrun *r, const km_jv *of, const char *name, size_t bytes, km_jv *out);
bool km_jinja_item(km_jrun *r, const km_jv *of, const km_jv *key, km_jv *out);
/* start, stop and step may be NULL or none. */
bool km_jinja_slice(km_jrun *r, const km_jv *of, const km_jv *start, const km_jv *stop,
                    const km_jv *step, km_jv *out);
bool km_jinja_method(km_jrun *r, const km_jv_method *m, const km_jargs *a, km_jv *out);
bool km_jinja_has_method(const km_jv *v, const char *name, size_t bytes);

/* ---- Filters, tests and functions ---- */

bool km_jinja_filter(km_jrun *r, int which, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jinja_test(km_jrun *r, int which, const km_jv *v, const km_jargs *a, bool *out);
/* A function that every template knows: its place in the table, -1: none. */
int km_jinja_find_function(const char *name, size_t bytes);
bool km_jinja_function(km_jrun *r, int which, const km_jargs *a, km_jv *out);

/* ---- Filters of sequences ---- */

bool km_jseq_join(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_first(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_last(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_reverse(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_sort(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_dictsort(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_unique(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_min(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_max(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_sum(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_map(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_select(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_reject(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_selectattr(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);
bool km_jseq_rejectattr(km_jrun *r, const km_jv *v, const km_jargs *a, km_jv *out);

/* ---- Strings ---- */

typedef enum km_jcase {
    KM_JCASE_LOWER,
    KM_JCASE_UPPER,
    KM_JCASE_CAPITAL,
    KM_JCASE_TITLE,
    KM_JCASE_WORDS
} km_jcase; /* words: as the filter title, not the method */
bool km_jstr_case(km_jrun *r, const km_jv *v, km_jcase how, km_jv *out);
/* sides: 1 at the beginning, 2 at the end, 3 both; chars NULL: space. */
bool km_jstr_strip(km_jrun *r, const km_jv *v, const km_jv *chars, int sides, km_jv *out);
bool km_jstr_replace(km_jrun *r, const km_jv *v, const km_jv *old, const km_jv *with, int64_t count,
                     km_jv *out);
bool km_jstr_lines(km_jrun *r, const km_jv *v, km_jv *list);
bool km_jstr_escape(km_jrun *r, const km_jv *v, km_jv *out); /* HTML; the result is safe */
bool km_jstr_percent(km_jrun *r, const km_jv *format, const km_jv *values, km_jv *out);

#endif
