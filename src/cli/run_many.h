/* kermes run --prompts: what its files share. A line of the input becomes a prompt with settings of its
 * own (run_line.c), all of them go through one batch (run_many.c), and each answer is a line of the
 * output, which also says what need not be done again (run_answers.c). */
#ifndef KM_CLI_RUN_MANY_H
#define KM_CLI_RUN_MANY_H
#include "base/text.h"
#include "cli/cli.h"

typedef struct km_run_many {
    const km_common *common;
    const char *prompts, *out; /* "-": standard input and output */
    int64_t parallel;          /* sequences at once */
    int64_t cache_memory;      /* MiB of keys and values at most; 0: no limit */
    bool strict;               /* the first line that cannot be answered ends it */
    bool chat;                 /* texts are questions, too */
    const char *template, *system;
    const km_generation *how; /* what a line does not say otherwise */
} km_run_many;

/* Answers all prompts; the exit code. */
int km_run_many_all(const km_run_many *o, km_model *m);

/* ---- run_line.c: one prompt ---- */

typedef struct km_run_line {
    int64_t index; /* of the input's lines, from 0 */
    uint64_t hash; /* of the line */
    json_t *id;    /* as the line has it; NULL: none */
    json_t *request;
    int32_t *ids;
    size_t n;
    km_generation how; /* points into what follows */
    const char **stops;
    km_logit_bias *bias;
    char *schema;
    /* Its answer. */
    km_text text;
    int64_t tokens, pages;
} km_run_line;

uint64_t km_run_line_hash(const km_text *text); /* never 0 */
/* Reads a line, whose index is set; *err says what is wrong with it. It keeps nothing of `text`. */
km_status km_run_line_read(km_run_line *l, const km_run_many *o, km_model *m, const km_text *text,
                           km_error *err);
void km_run_line_free(km_run_line *l); /* and all that it points to */

/* ---- run_answers.c: the output ---- */

typedef struct km_run_answers {
    int fd;
    const char *name;
    uint64_t *hash; /* (n): of the lines that are answered; 0: not yet */
    int64_t n, cap, done;
    double flushed;
} km_run_answers;

/* Opens the file for this process alone, learns what it holds and cuts off half a last line. */
km_status km_run_answers_open(km_run_answers *a, const km_run_many *o, km_error *err);
/* Whether line `index` has an answer; KM_ERR_STATE where that is of another line than this one. */
km_status km_run_answers_has(const km_run_answers *a, int64_t index, uint64_t hash, bool *has,
                             km_error *err);
/* Writes a line; `why` makes it an error. */
km_status km_run_answers_put(km_run_answers *a, const km_run_line *l, km_end_reason end,
                             const char *why, km_error *err);
km_status km_run_answers_close(km_run_answers *a, km_error *err);

#endif
