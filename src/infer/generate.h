/* From a prompt to text: tokens in, tokens chosen, text out as it becomes whole; all at once with
 * callbacks, or a token at a time. */
#ifndef KM_INFER_GENERATE_H
#define KM_INFER_GENERATE_H
#include "infer/sequence.h"
#include "infer/voice.h"

typedef struct km_maker km_maker;

/* A text to be made in a session; how, session and token must outlive it. NULL with *err set. */
km_maker *km_maker_new(km_sequence *s, const km_net *m, const km_token *token, const km_making *how,
                       km_error *err);
/* Ends it: the session holds the prompt and what was chosen and has been through the model. */
void km_maker_free(km_maker *g); /* NULL is fine */
/* Reads the prompt's ids. What the session holds of their beginning is not read again; the rest of
 * it is forgotten. A prompt beyond the context is an error that gives both counts. */
km_status km_maker_read(km_maker *g, const int32_t *ids, size_t n, km_error *err);
/* The next event, which is the last one if it has an end: 1. 0: there is none after the end. -1. */
int km_maker_next(km_maker *g, km_piece_event *e, km_error *err);
km_generated km_maker_got(const km_maker *g);

/* Reads the prompt (an empty one stands for the tokenizer's beginning or end of text, or a newline)
 * and goes on with it. */
km_status km_make_text_in(km_sequence *s, const km_net *m, const km_token *token,
                          const char *prompt, size_t bytes, const km_making *how, km_generated *out,
                          km_error *err);
/* The same in a session of its own. */
km_status km_make_text(km_ctx *ctx, km_net *m, const km_token *token, const char *prompt,
                       size_t bytes, const km_making *how, km_generated *out, km_error *err);

/* The prompt's ids, as the two above read them. */
km_status km_prompt_ids(const km_token *token, const char *prompt, size_t bytes, bool rendered,
                        km_ids *ids, km_error *err);

#endif
