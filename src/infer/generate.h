/* From a prompt to text: tokens in, tokens chosen, text out as it becomes whole. */
#ifndef KM_INFER_GENERATE_H
#define KM_INFER_GENERATE_H
#include "infer/sample.h"
#include "infer/session.h"
#include "report/text.h"
#include "token/token.h"

typedef struct km_generation {
    int64_t tokens; /* at most this many */
    bool past_end;  /* goes on after an end-of-text token */
    bool rendered;  /* the prompt is a chat template's: it has its beginning of text already */
    km_sampling sampling;
    /* Called with each token and the text that became complete with it (whole characters; maybe
     * none). Returning false stops. */
    bool (*on_text)(void *user, int32_t id, const char *text, size_t bytes);
    void *user;
} km_generation;

typedef struct km_generated {
    int64_t prompt_tokens, tokens;
    double prompt_seconds, seconds; /* reading the prompt; making the tokens */
    bool ended;                     /* by an end-of-text token, which is not counted */
} km_generated;

/* Reads the prompt (an empty one stands for the tokenizer's beginning or end of text, or a newline)
 * and goes on with it. */
km_status km_generate(km_ctx *ctx, km_model *m, const km_token *token, const char *prompt,
                      size_t bytes, const km_generation *how, km_generated *out, km_error *err);

#endif
