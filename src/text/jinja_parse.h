/* A template in parts: tokens, then a tree of nodes that the evaluator walks. */
#ifndef KM_TEXT_JINJA_PARSE_H
#define KM_TEXT_JINJA_PARSE_H
#include "text/jinja.h"
#include "text/jinja_value.h"

/* ---- Tokens ---- */

typedef enum km_jtoken_kind {
    KM_JTOKEN_END,
    KM_JTOKEN_TEXT,
    KM_JTOKEN_OUTPUT_BEGIN, /* {{ */
    KM_JTOKEN_OUTPUT_END,
    KM_JTOKEN_BLOCK_BEGIN, /* {% */
    KM_JTOKEN_BLOCK_END,
    KM_JTOKEN_NAME,
    KM_JTOKEN_STRING, /* escapes resolved */
    KM_JTOKEN_INT,
    KM_JTOKEN_FLOAT,
    KM_JTOKEN_OPERATOR
} km_jtoken_kind;

typedef struct km_jtoken {
    km_jtoken_kind kind;
    int line;
    const char *text; /* of an operator or a name: in the source */
    size_t bytes;
    int64_t i;
    double f;
} km_jtoken;

typedef struct km_jtokens {
    km_jtoken *data; /* on the heap; the texts are in r's arena */
    size_t n, cap;
} km_jtokens;

bool km_jinja_lex(km_jrun *r, const char *text, size_t bytes, km_jtokens *out);

/* ---- Nodes ---- */

typedef enum km_jnode_kind {
    /* expressions */
    KM_JNODE_CONST,   /* value */
    KM_JNODE_NAME,    /* text; kid[0]: the name read before it in the template */
    KM_JNODE_LIST,    /* kid[0]: items */
    KM_JNODE_TUPLE,   /* kid[0]: items */
    KM_JNODE_DICT,    /* kid[0]: key, value, key, value ... */
    KM_JNODE_NEGATE,  /* kid[0] */
    KM_JNODE_PLUS,    /* kid[0] */
    KM_JNODE_NOT,     /* kid[0] */
    KM_JNODE_BINARY,  /* op, kid[0], kid[1] */
    KM_JNODE_AND,     /* kid[0], kid[1] */
    KM_JNODE_OR,      /* kid[0], kid[1] */
    KM_JNODE_COMPARE, /* kid[0], then kid[1]: operands, each with its op */
    KM_JNODE_OPERAND, /* op, kid[0] */
    KM_JNODE_CONCAT,  /* kid[0]: parts */
    KM_JNODE_COND,    /* kid[0] if kid[1] else kid[2] (or NULL) */
    KM_JNODE_ATTR,    /* kid[0].text */
    KM_JNODE_ITEM,    /* kid[0][kid[1]] */
    KM_JNODE_SLICE,   /* kid[0][kid[1]:kid[2]:kid[3]], each may be NULL */
    KM_JNODE_CALL,    /* kid[0](kid[1]: arguments) */
    KM_JNODE_KEYWORD, /* text = kid[0], an argument or a parameter with its default */
    KM_JNODE_FILTER,  /* kid[0] | text(kid[1]); kid[0] is NULL for a block's own text */
    KM_JNODE_TEST,    /* kid[0] is [not: op] text(kid[1]) */
    /* statements */
    KM_JNODE_TEXT,         /* text */
    KM_JNODE_OUTPUT,       /* kid[0] */
    KM_JNODE_IF,           /* kid[0] condition, kid[1] body, kid[2] else */
    KM_JNODE_FOR,          /* kid[0] target in kid[1] [if kid[4]]: kid[2] body, kid[3] else */
    KM_JNODE_SET,          /* kid[0] target = kid[1] */
    KM_JNODE_SET_BLOCK,    /* kid[0] target, kid[1] filters or NULL, kid[2] body */
    KM_JNODE_MACRO,        /* text, kid[0] parameters, kid[1] body */
    KM_JNODE_CALL_BLOCK,   /* kid[0] call, kid[1] parameters, kid[2] body */
    KM_JNODE_FILTER_BLOCK, /* kid[0] filters, kid[1] body */
    KM_JNODE_WITH,         /* kid[0]: targets and values in turn, kid[1] body */
    KM_JNODE_SCOPE,        /* kid[0] body, in a scope of its own */
    KM_JNODE_DO,           /* kid[0], its value unused */
    KM_JNODE_BREAK,
    KM_JNODE_CONTINUE
} km_jnode_kind;

typedef struct km_jnode km_jnode;
struct km_jnode {
    km_jnode *next; /* in a list */
    km_jnode *kid[5];
    const char *text;
    size_t bytes;
    km_jv value;
    int line;
    int16_t which; /* of a filter or test: its place in the table; -1: not there */
    uint8_t kind;
    char op; /* + - * / f(loor) % ^(power)  = ! < > l(e) g(e) i(n) n(ot in) */
};

struct km_jinja {
    km_arena arena;
    char *name;
    const km_jnode *body;
    const km_jnode *names; /* every variable that is read, linked by kid[0] */
};

/* The place of a name in the table of filters or tests; -1: not supported. */
int km_jinja_find_filter(const char *name, size_t bytes);
int km_jinja_find_test(const char *name, size_t bytes);

#endif
