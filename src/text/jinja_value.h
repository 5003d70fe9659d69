/* The values of templates, which are Python's: what they are, how they compare, how they read as
 * text. All of it lives in the arena of one rendering; nothing is freed by hand. */
#ifndef KM_TEXT_JINJA_VALUE_H
#define KM_TEXT_JINJA_VALUE_H
#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum km_jv_kind {
    KM_JV_UNDEFINED,
    KM_JV_NONE,
    KM_JV_BOOL,
    KM_JV_INT,
    KM_JV_FLOAT,
    KM_JV_STRING,
    KM_JV_LIST,
    KM_JV_DICT,
    KM_JV_NAMESPACE,
    KM_JV_MACRO,
    KM_JV_FUNCTION,
    KM_JV_METHOD,
    KM_JV_LOOP
} km_jv_kind;

/* What kind of sequence a KM_JV_LIST is in Python. */
typedef enum km_jv_flavor {
    KM_JV_PLAIN,
    KM_JV_TUPLE,
    KM_JV_RANGE,
    KM_JV_GENERATOR, /* true whatever it holds, has no length, and is read once */
    KM_JV_KEYS,
    KM_JV_VALUES,
    KM_JV_ITEMS,
    KM_JV_SAFE /* of strings: marked by `safe`, so that what is joined to it gets escaped */
} km_jv_flavor;

typedef struct km_jv_list km_jv_list;
typedef struct km_jv_dict km_jv_dict;
typedef struct km_jv_macro km_jv_macro;
typedef struct km_jv_method km_jv_method;
typedef struct km_jv_loop km_jv_loop;

typedef struct km_jv {
    uint8_t kind, flavor;
    union {
        bool b;
        int64_t i;
        double f;
        const char *text; /* UTF-8, not NUL-terminated; of an undefined value: why it is so */
        km_jv_list *list;
        km_jv_dict *dict; /* of namespaces too */
        km_jv_macro *macro;
        km_jv_method *method;
        km_jv_loop *loop;
    };
    size_t bytes; /* of the text */
} km_jv;

struct km_jv_list {
    km_jv *items;
    size_t n, cap;
};

struct km_jv_dict { /* in order of insertion */
    km_jv *keys, *values;
    size_t n, cap;
};

struct km_jv_method {
    km_jv self;
    const char *name;
    size_t bytes;
};

/* What every operation needs: memory, a budget, and where to say what went wrong. */
typedef struct km_jrun {
    km_arena arena;
    size_t memory; /* bytes the arena may hand out */
    int64_t steps; /* left */
    int depth;     /* of evaluation */
    int line;      /* of what is being evaluated */
    int64_t now;
    const char *name;
    km_text *out;
    km_error *err;
} km_jrun;

#define KM_JINJA_DEPTH 400       /* nested evaluations, values within values */
#define KM_JINJA_PARSE_DEPTH 100 /* nested expressions and blocks of a template */

/* Always false: sets the error, with the template's name and line in front. */
bool km_jinja_fail(km_jrun *r, km_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool km_jinja_step(km_jrun *r, size_t bytes);   /* one step and what copying these bytes costs */
void *km_jinja_alloc(km_jrun *r, size_t bytes); /* NULL with the error set */

static inline km_jv km_jv_none(void) { return (km_jv){.kind = KM_JV_NONE}; }
static inline km_jv km_jv_bool(bool b) { return (km_jv){.kind = KM_JV_BOOL, .b = b}; }
static inline km_jv km_jv_int(int64_t i) { return (km_jv){.kind = KM_JV_INT, .i = i}; }
static inline km_jv km_jv_float(double f) { return (km_jv){.kind = KM_JV_FLOAT, .f = f}; }
static inline km_jv km_jv_text(const char *s, size_t n) {
    return (km_jv){.kind = KM_JV_STRING, .text = s, .bytes = n};
}

bool km_jv_is(const km_jv *v, const char *text); /* a string of this text */
bool km_jv_number(const km_jv *v);               /* int, float or bool */
double km_jv_as_double(const km_jv *v);          /* of a number */
bool km_jv_as_int(const km_jv *v, int64_t *i);   /* false unless an int or bool */
bool km_jv_true(const km_jv *v);
const char *km_jv_type(const km_jv *v); /* as Python names it: "str", "NoneType" */

/* ---- Making ---- */

bool km_jv_copy_text(km_jrun *r, const char *s, size_t n, km_jv *out);
/* Takes what was written to r->out after `start`, as a string. */
bool km_jv_take(km_jrun *r, size_t start, km_jv *out);
bool km_jv_new_list(km_jrun *r, km_jv_flavor flavor, size_t cap, km_jv *out);
bool km_jv_push(km_jrun *r, km_jv *list, const km_jv *v);
bool km_jv_new_dict(km_jrun *r, size_t cap, km_jv *out);
bool km_jv_put(km_jrun *r, km_jv *dict, const km_jv *key, const km_jv *v);
bool km_jv_from_json(km_jrun *r, const json_t *j, km_jv *out);

/* ---- Reading ---- */

/* NULL when there is no such key. */
const km_jv *km_jv_get(km_jrun *r, const km_jv *dict, const km_jv *key);
const km_jv *km_jv_find(const km_jv *dict, const char *key, size_t bytes);
/* The values that a loop over v sees, as a list; an error when it has none. */
bool km_jv_iterate(km_jrun *r, const km_jv *v, km_jv *list);
bool km_jv_length(km_jrun *r, const km_jv *v, int64_t *n);
bool km_jv_equal(km_jrun *r, const km_jv *a, const km_jv *b, bool *equal);
bool km_jv_order(km_jrun *r, const km_jv *a, const km_jv *b, int *order); /* -1, 0, 1 */
bool km_jv_contains(km_jrun *r, const km_jv *in, const km_jv *v, bool *found);

/* ---- As text, added to r->out ---- */

bool km_jv_write(km_jrun *r, const km_jv *v);      /* as {{ v }} does */
bool km_jv_write_repr(km_jrun *r, const km_jv *v); /* as within a list */
bool km_jv_string(km_jrun *r, const km_jv *v, km_jv *out);

typedef struct km_jv_json {
    int64_t indent;          /* -1: on one line */
    const char *indent_text; /* instead of spaces, where not NULL */
    size_t indent_bytes;
    bool ascii, sorted;
    km_jv item, key; /* separators; undefined: the usual ones */
} km_jv_json;
bool km_jv_write_json(km_jrun *r, const km_jv *v, const km_jv_json *how);

#endif
