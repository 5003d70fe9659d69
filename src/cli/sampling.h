/* The flags that say how the next token is chosen, for the commands that make text: one list of
 * rows, and what they become once the tokenizer is known. */
#ifndef KM_CLI_SAMPLING_H
#define KM_CLI_SAMPLING_H
#include "cli/args.h"
#include "base/text.h"

enum { KM_SAID_COUNT = 5 }; /* temperature, top-k, top-p, min-p, repeat penalty */

typedef struct km_cli_sampling {
    km_sampling set; /* with the command's defaults before parsing */
    int64_t seed, mirostat;
    bool past_end, strict_schema;
    km_words bias, stop;
    const char *grammar, *schema;
    bool said[KM_SAID_COUNT]; /* on the line: the model has no say in these */
    char from[64];            /* whose the other settings are; "": the command's */
    /* made by km_cli_sampling_open: */
    km_logit_bias *biases;
    km_text rules; /* of the grammar or schema */
} km_cli_sampling;

/* Temperature 0.8 and these; the rest as km_sampling_defaults has it. */
km_cli_sampling km_cli_sampling_defaults(int64_t top_k, double top_p, double min_p);

/* clang-format off */
/* Rows of a command's options; k, p, m: its defaults, as text. */
#define KM_OPTION_SAMPLING_ROWS(s, k, p, m)                                                        \
    {"temperature", KM_OPTION_NUMBER, "X", &(s).set.temperature, 0, 100,                           \
     "0 takes the likeliest token each time (default 0.8; this, top-k, top-p,\n"                   \
     "min-p and repeat-penalty are the model's own where it has some)"},                                       \
    {"top-k", KM_OPTION_INT, "K", &(s).set.top_k, 0, 1e9,                                          \
     "only the K likeliest tokens; 0: all (default " k ")"},                                       \
    {"typical", KM_OPTION_NUMBER, "P", &(s).set.typical, 0, 1,                                     \
     "only those of about the expected surprise that together reach P\n"                           \
     "(default 1: all)"},                                                                          \
    {"top-p", KM_OPTION_NUMBER, "P", &(s).set.top_p, 1e-6, 1,                                      \
     "only the likeliest that together reach P (default " p ")"},                                  \
    {"min-p", KM_OPTION_NUMBER, "P", &(s).set.min_p, 0, 1,                                         \
     "only those at least P times as likely as the first (default " m ")"},                        \
    {"repeat-penalty", KM_OPTION_NUMBER, "X", &(s).set.repeat_penalty, 0, 100,                     \
     "divide the logits of tokens said lately by it (default 1: off)"},                            \
    {"repeat-last", KM_OPTION_INT, "N", &(s).set.repeat_last, -1, 1e9,                             \
     "how many tokens are lately; -1: all (default 64)"},                                          \
    {"frequency-penalty", KM_OPTION_NUMBER, "X", &(s).set.frequency_penalty, -100, 100,            \
     "take it off for each time a token was said lately (default 0)"},                             \
    {"presence-penalty", KM_OPTION_NUMBER, "X", &(s).set.presence_penalty, -100, 100,              \
     "take it off once for a token said lately (default 0)"},                                      \
    {"dry-multiplier", KM_OPTION_NUMBER, "X", &(s).set.dry_multiplier, 0, 100,                     \
     "strength of the penalty for repeated sequences, DRY (default 0: off)"},                      \
    {"dry-base", KM_OPTION_NUMBER, "X", &(s).set.dry_base, 1, 100,                                 \
     "how it grows with each token more (default 1.75)"},                                          \
    {"dry-allowed-length", KM_OPTION_INT, "N", &(s).set.dry_allowed_length, 0, 1e6,                \
     "it begins at repetitions of N tokens (default 2)"},                                          \
    {"mirostat", KM_OPTION_INT, "2", &(s).mirostat, 0, 2,                                          \
     "2: hold the surprise to tau, in place of top-k, typical, top-p, min-p\n"                     \
     "(default 0: off)"},                                                                          \
    {"mirostat-tau", KM_OPTION_NUMBER, "X", &(s).set.mirostat_tau, 1e-3, 100,                      \
     "its surprise, in bits (default 5)"},                                                         \
    {"mirostat-eta", KM_OPTION_NUMBER, "X", &(s).set.mirostat_eta, 0, 10,                          \
     "how fast it gets there (default 0.1)"},                                                      \
    {"logit-bias", KM_OPTION_LIST, "ID=X", &(s).bias, 0, 0,                                        \
     "add X to a token's logit (-inf: never), by its id or its text; may be\n"                     \
     "given several times"},                                                                       \
    {"seed", KM_OPTION_INT, "N", &(s).seed, 0, 0, "another seed, another text (default 1)"},       \
    {"stop", KM_OPTION_LIST, "TEXT", &(s).stop, 0, 0,                                              \
     "end before this text; may be given several times"},                                          \
    {"grammar", KM_OPTION_TEXT, "FILE", &(s).grammar, 0, 0,                                        \
     "only text that this grammar allows (GBNF)"},                                                 \
    {"json-schema", KM_OPTION_TEXT, "FILE", &(s).schema, 0, 0,                                     \
     "only JSON that this schema allows: a file, or its text; '{}': any"},                         \
    {"strict-schema", KM_OPTION_FLAG, NULL, &(s).strict_schema, 0, 0,                              \
     "refuse a schema with formats that texts cannot be held to; otherwise\n"                      \
     "a note names them"},                                                                         \
    {"past-end", KM_OPTION_FLAG, NULL, &(s).past_end, 0, 0, "go on after an end-of-text token"}
/* clang-format on */

/* Which settings the line gave, so that the model's own do not replace them. */
void km_cli_sampling_said(km_cli_sampling *s, const km_spec *spec, const km_args *args);
/* Takes the settings that the model asks for, but for those of the line. */
void km_cli_sampling_of_model(km_cli_sampling *s, km_model *m);

/* What can be told without a model: a usage error if not KM_OK. */
km_status km_cli_sampling_check(km_cli_sampling *s, km_error *err);
/* Reads the grammar, finds the tokens of biases. Close in either case. */
km_status km_cli_sampling_open(km_cli_sampling *s, km_model *m, km_error *err);
void km_cli_sampling_close(km_cli_sampling *s);
/* Sampling, stops, grammar and past_end of a generation. */
void km_cli_sampling_apply(const km_cli_sampling *s, km_generation *g);

#endif
