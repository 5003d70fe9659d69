/* A session: a model reading a prompt and going on with it, one token at a time. Each call ends the
 * context's step, and nothing is recorded. */
#ifndef KM_INFER_SESSION_H
#define KM_INFER_SESSION_H
#include "infer/sample.h"
#include "model/model.h"
#include "report/text.h"
#include "token/token.h"

typedef struct km_session km_session;

/* The model must outlive it. NULL with *err set. */
km_session *km_session_new(km_ctx *ctx, km_model *m, km_error *err);
void km_session_free(km_session *s); /* NULL is fine */

/* Reads tokens after those read so far. More than the context holds in all is an error that says
 * both counts. */
km_status km_session_read(km_session *s, const int32_t *ids, size_t n, km_error *err);
/* As km_session_read of one token, but a full context is made room in: the session then goes on
 * with the second half of it, read anew. */
km_status km_session_next(km_session *s, int32_t id, km_error *err);
/* Of the token after the last one read: (vocab), on the host; NULL before the first. */
const float *km_session_logits(const km_session *s);
int64_t km_session_length(const km_session *s); /* tokens in the context now */
void km_session_reset(km_session *s);           /* forgets them */

/* ---- Text ---- */

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
