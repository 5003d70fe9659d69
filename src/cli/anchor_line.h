/* What the commands that learn anchors share: the options of their training, and its rounds, shown as
 * they go and kept for JSON and pages. */
#ifndef KM_CLI_ANCHOR_LINE_H
#define KM_CLI_ANCHOR_LINE_H
#include "cli/cli.h"
#include "cli/progress.h"

typedef struct km_anchor_line {
    const char *robust, *cooling;
    double temperature, momentum, merge, split;
    double tolerance; /* 0: none */
    int64_t rounds, maintain_every;
} km_anchor_line;

#define KM_ANCHOR_DEFAULTS(rounds_, tolerance_)                                                    \
    { .robust = "huber", .cooling = "linear", .rounds = (rounds_), .tolerance = (tolerance_) }
#define KM_ANCHOR_ROWS(a, rounds_help, tolerance_help)                                             \
    {"rounds", KM_OPTION_INT, "N", &(a).rounds, 1, 10000, rounds_help},                            \
        {"robust",                                                                                 \
         KM_OPTION_TEXT,                                                                           \
         "HOW",                                                                                    \
         &(a).robust,                                                                              \
         0,                                                                                        \
         0,                                                                                        \
         "how far vectors pull while it is warm: huber (bounded, the default),\n"                  \
         "trimmed (not at all) or mean (in full)"},                                                \
        {"temperature",                                                                            \
         KM_OPTION_NUMBER,                                                                         \
         "T",                                                                                      \
         &(a).temperature,                                                                         \
         1e-6,                                                                                     \
         1,                                                                                        \
         "the first temperature (default 0.5)"},                                                   \
        {"cooling",                                                                                \
         KM_OPTION_TEXT,                                                                           \
         "HOW",                                                                                    \
         &(a).cooling,                                                                             \
         0,                                                                                        \
         0,                                                                                        \
         "linear (the default), or exponential:R, R times as warm each round"},                    \
        {"momentum",                                                                               \
         KM_OPTION_NUMBER,                                                                         \
         "X",                                                                                      \
         &(a).momentum,                                                                            \
         0,                                                                                        \
         0.99,                                                                                     \
         "of the last move added to the next while it is warm (default 0)"},                       \
        {"maintain-every",                                                                         \
         KM_OPTION_INT,                                                                            \
         "N",                                                                                      \
         &(a).maintain_every,                                                                      \
         -1,                                                                                       \
         10000,                                                                                    \
         "rounds between merging and splitting; -1: never (default: an eighth)"},                  \
        {"merge",                                                                                  \
         KM_OPTION_NUMBER,                                                                         \
         "X",                                                                                      \
         &(a).merge,                                                                               \
         1e-9,                                                                                     \
         1,                                                                                        \
         "merge anchors where that costs less than this part of a cell's mean\n"                   \
         "energy (default 1e-9); more of it, fewer anchors"},                                      \
        {"split",                                                                                  \
         KM_OPTION_NUMBER,                                                                         \
         "X",                                                                                      \
         &(a).split,                                                                               \
         1,                                                                                        \
         1e9,                                                                                      \
         "split a cell where that gains X times what merging two others costs\n"                   \
         "(default 1.1)"},                                                                         \
    {                                                                                              \
        "tolerance", KM_OPTION_NUMBER, "X", &(a).tolerance, 0, 1, tolerance_help                   \
    }

/* False with the error set. */
bool km_anchor_parse(const km_anchor_line *line, km_anchor_training *out, km_error *err);

typedef struct km_round_log { /* of one training */
    bool lines;               /* a line on stderr for each round */
    km_progress *bar;         /* may be NULL */
    char note[100];           /* of the last round, for a bar */
    km_anchor_round *at;      /* (n) */
    int n, room;
} km_round_log;

void km_round_keep(void *log, const km_anchor_round *round); /* km_anchor_training's report */
void km_round_clear(km_round_log *log);                      /* for another training */
json_t *km_round_json(const km_round_log *log);              /* an array, an object for each */
bool km_round_converged(const km_round_log *log);
void km_round_free(km_round_log *log);

#endif
