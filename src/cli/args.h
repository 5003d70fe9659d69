/* Command lines: each command states its options once, as a table, from which both the parsing
 * and the help page come. Options are long ones, as --name value or --name=value; -h means --help,
 * and where a command has these, -m is --model, -n --tokens, -o --out, -k --k, -p --prompt, -f
 * --file, -c --context, -t --threads, -s --seed, --temp --temperature; -- ends the options. */
#ifndef KM_CLI_ARGS_H
#define KM_CLI_ARGS_H
#include "base/error.h"
#include <stdio.h>

typedef enum km_option_kind {
    KM_OPTION_FLAG,   /* bool */
    KM_OPTION_INT,    /* int64_t */
    KM_OPTION_NUMBER, /* double */
    KM_OPTION_TEXT,   /* const char * */
    KM_OPTION_DEVICE, /* const char *, the name of a device as km_ctx_new takes it */
    KM_OPTION_SIZES,  /* km_sizes: 128,1K,64M with K = 1024 */
    KM_OPTION_LIST    /* km_words: the option may be given several times; the first one on the line
                       * replaces what was in the list before */
} km_option_kind;

#define KM_MAX_SIZES 32
typedef struct km_sizes {
    int64_t value[KM_MAX_SIZES];
    int n;
} km_sizes;

#define KM_MAX_LIST 32
typedef struct km_words {
    const char *at[KM_MAX_LIST];
    int n;
} km_words;

#define KM_MAX_OPTIONS 96 /* in one table */
typedef struct km_option {
    const char *name; /* "threads" for --threads; NULL ends the table */
    km_option_kind kind;
    const char *value; /* "N": how help names the value */
    void *dest;        /* of the kind's type; holds the default before parsing */
    double lo, hi;     /* of numbers and sizes, inclusive; both 0: any */
    const char *help;  /* one or more lines */
} km_option;

typedef struct km_spec {
    const char *name;    /* "bench" */
    const char *words;   /* "[SUITE ...]", or NULL when it takes options only */
    const char *summary; /* one line */
    const char *details; /* paragraphs, ending with a newline; may be NULL */
    const km_option *options;
    const char *examples; /* lines, ending with a newline */
} km_spec;

#define KM_MAX_WORDS 16
typedef struct km_args {
    const char *words[KM_MAX_WORDS]; /* what is not an option */
    int n_words;
    bool help;                  /* --help was given; nothing else counts then */
    bool given[KM_MAX_OPTIONS]; /* the table's options that were on the line */
} km_args;

/* argv[0] is the first argument, not the command's name. The message of an error is a whole line
 * without the "kermes: ". */
km_status km_args_parse(const km_spec *spec, int argc, char **argv, km_args *args, km_error *err);
void km_args_help(const km_spec *spec, FILE *out);

/* The one of names[0..n-1] (NULLs are skipped) nearest to word, or NULL when none is near. */
const char *km_nearest(const char *word, const char *const *names, int n);

/* One of `names` by that word, or an error that suggests the nearest: "unknown suite 'matmull';
 * did you mean 'matmul'?". Returns its index, or -1. */
int km_choose(const char *what, const char *word, const char *const *names, int n, km_error *err);

#endif
