/* Where the prompt of kermes run comes from: the line's words or --prompt, a file, or standard
 * input. */
#ifndef KM_CLI_RUN_PROMPT_H
#define KM_CLI_RUN_PROMPT_H
#include "base/text.h"
#include "cli/args.h"

typedef struct km_run_prompt {
    const char *given; /* --prompt; NULL: none */
    const char *file;  /* --file, "-" for standard input; NULL: none */
    bool piped; /* without any of these, standard input is read, unless somebody types there */
} km_run_prompt;

/* Takes the line's words into *p and *model: the words are the prompt, but the first is a model when
 * none was named and it is one. `joined` holds the text. A usage error if not KM_OK. */
km_status km_run_prompt_words(km_run_prompt *p, const km_args *args, const char **model,
                              km_text *joined, km_error *err);
/* The prompt's text, added to *out. KM_ERR_RANGE: there is none, which is wrong usage. */
km_status km_run_prompt_read(const km_run_prompt *p, km_text *out, km_error *err);

#endif
