/* What the commands that use a model share: finding and opening it with its tokenizer, showing text
 * as it is made, and the flags that say how the next token is chosen. */
#ifndef KM_CLI_USE_MODEL_H
#define KM_CLI_USE_MODEL_H
#include "cli/cli.h"
#include "infer/generate.h"
#include "model/open.h"
#include <limits.h>

typedef struct km_cli_model {
    char path[PATH_MAX]; /* where it was found */
    km_token *token;
    km_ctx *ctx;
    km_model *model;
} km_cli_model;

/* given: a GGUF file, a folder with a model, or a training run's, which stands for its model, its
 * best, or its newest checkpoint. tokenizer NULL: the model's own. KM_OK, or the error; close in
 * either case. */
km_status km_cli_model_open(km_cli_model *m, const char *given, const char *tokenizer,
                            const km_common *common, const km_open_options *how, km_error *err);
void km_cli_model_close(km_cli_model *m);

/* For km_generation's on_text. */
typedef struct km_cli_text {
    const char *before; /* still to be printed, once there is something to follow it; or NULL */
    bool json;          /* collect instead of printing */
    km_text text;
} km_cli_text;
void km_cli_show_before(km_cli_text *t);
bool km_cli_show(void *km_cli_text_, int32_t id, const char *text, size_t bytes);

/* Rows of a command's options for a km_sampling, a seed and a flag; k, p, m: the defaults, as text. */
#define KM_OPTION_SAMPLING_ROWS(s, seed_, past, k, p, m)                                           \
    {"temperature", KM_OPTION_NUMBER, "X", &(s).temperature, 0, 100,                               \
     "0 takes the likeliest token each time (default 0.8)"},                                       \
        {"top-k", KM_OPTION_INT, "K", &(s).top_k, 0, 1e9,                                          \
         "only the K likeliest tokens; 0: all (default " k ")"},                                   \
        {"top-p", KM_OPTION_NUMBER, "P", &(s).top_p, 1e-6, 1,                                      \
         "only the likeliest that together reach P (default " p ")"},                              \
        {"min-p", KM_OPTION_NUMBER, "P", &(s).min_p, 0, 1,                                         \
         "only those at least P times as likely as the first (default " m ")"},                    \
        {"seed", KM_OPTION_INT, "N", &(seed_), 0, 0, "another seed, another text (default 1)"}, {  \
        "past-end", KM_OPTION_FLAG, NULL, &(past), 0, 0, "go on after an end-of-text token"        \
    }

#endif
