/* From a prompt to text: tokens in, tokens chosen, text out as it becomes whole. */
#ifndef KM_INFER_GENERATE_H
#define KM_INFER_GENERATE_H
#include "infer/draft.h"
#include "text/grammar.h"
#include "infer/sample.h"
#include "infer/sequence.h"
#include "base/text.h"
#include "token/token.h"

typedef enum km_end {
    KM_END_TOKENS,  /* as many tokens as were asked for */
    KM_END_TEXT,    /* an end-of-text token, which is not counted */
    KM_END_STOP,    /* one of the texts to stop at */
    KM_END_GRAMMAR, /* the grammar is at its end */
    KM_END_CONTEXT, /* the context is full, and is not to be shifted */
    KM_END_CALLER   /* on_text or on_prompt said so */
} km_end;
const char *km_end_name(km_end e); /* "tokens", "end", "stop", "grammar", "context", "stopped" */

typedef struct km_generation {
    int64_t tokens; /* at most this many */
    bool past_end;  /* goes on after an end-of-text token */
    bool rendered;  /* the prompt is a chat template's: it has its beginning of text already, and
                     * special tokens in the answer are no text */
    bool shift;     /* a full context goes on from its second half */
    bool exact;     /* the text is, bit for bit, the one that a session which holds nothing gives:
                     * what this one chose before is read again (km_sequences_settled) */
    km_sampling sampling;
    const char *const *stops; /* n_stops texts at which it ends; they are not shown */
    size_t n_stops;
    km_drafter *draft; /* guesses tokens that are then checked together (draft.h); NULL: none. The
                        * text is the one that would come without it. */
    /* Where tokens are chosen: on the device that makes their logits, if it is a GPU and the
     * settings are such as it knows, some steps ahead of the host; or always by the host, or always
     * there. */
    enum { KM_CHOOSE_AUTO, KM_CHOOSE_HOST, KM_CHOOSE_DEVICE } choose;
    /* Called when the session's device fails: another session that holds the same tokens, to go on
     * with; the failed one is the callee's. NULL, or when it returns NULL: the error is the end. */
    km_sequence *(*rescue)(void *user, km_sequence *failed, const km_error *why);
    km_guide *guide; /* over this tokenizer's trie, put to its beginning first; NULL: any text */
    /* Called while a long prompt is read, with how much of it is. Returning false stops. */
    bool (*on_prompt)(void *user, int64_t done, int64_t total);
    /* Called with each token and the text that became complete with it (whole characters; maybe
     * none); at the end with id -1 if there is text left. Returning false stops. */
    bool (*on_text)(void *user, int32_t id, const char *text, size_t bytes);
    void *user;
} km_generation;

typedef struct km_generated {
    int64_t prompt_tokens, reused; /* reused: of these, what the session held already */
    int64_t tokens;
    double prompt_seconds, seconds; /* reading the prompt; making the tokens */
    double first_seconds;           /* until the first token was chosen */
    int64_t guessed, accepted;      /* with a draft: tokens guessed, and those that were chosen */
    km_end end;
} km_generated;

/* Reads the prompt (an empty one stands for the tokenizer's beginning or end of text, or a newline)
 * and goes on with it. What the session holds of the prompt's beginning is not read again; the rest
 * of it is forgotten. A prompt beyond the context is an error that gives both counts. */
km_status km_generate_in(km_sequence *s, const km_net *m, const km_token *token, const char *prompt,
                         size_t bytes, const km_generation *how, km_generated *out, km_error *err);
/* The same in a session of its own. */
km_status km_generate(km_ctx *ctx, km_net *m, const km_token *token, const char *prompt,
                      size_t bytes, const km_generation *how, km_generated *out, km_error *err);

/* The prompt's ids, as the two above read them. */
km_status km_prompt_ids(const km_token *token, const char *prompt, size_t bytes, bool rendered,
                        km_ids *ids, km_error *err);

#endif
