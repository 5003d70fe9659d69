/* One text in the making, apart from the model that makes it: the sampler, the grammar, the
 * tokenizer's stream and the texts to stop at. Logits go in, a token is chosen and taken, and the
 * text that becomes whole with it comes out. A generation has one, and each sequence of a batch. */
#ifndef KM_INFER_VOICE_H
#define KM_INFER_VOICE_H
#include "base/text.h"
#include "infer/draft.h"
#include "infer/sample.h"
#include "infer/stop.h"
#include "text/grammar.h"
#include "token/token.h"
#include <stdatomic.h>

#define KM_MAX_LOGPROBS 1000

typedef struct km_making { /* km_generation of kermes.h, with what its texts stand for */
    int64_t tokens;        /* at most this many */
    bool past_end;         /* goes on after an end-of-text token */
    bool rendered;         /* the prompt is a chat template's */
    bool shift;            /* a full context goes on from its second half */
    bool exact;            /* bit for bit what a session that holds nothing gives */
    km_sampling sampling;
    const char *const *stops; /* n_stops texts at which it ends; they are not shown */
    size_t n_stops;
    int top_logprobs;  /* -1: of the chosen token only, if `logprobs` */
    bool logprobs;     /* tell how likely the chosen token was */
    km_drafter *draft; /* guesses tokens that are then checked together (draft.h); NULL: none. The
                        * text is the one that would come without it. */
    /* Where tokens are chosen: on the device that makes their logits, if it is a GPU and the
     * settings are such as it knows, some steps ahead of the host; or always by the host, or always
     * there. */
    enum { KM_CHOOSE_AUTO, KM_CHOOSE_HOST, KM_CHOOSE_DEVICE } choose;
    /* Called when the session's device fails: another session that holds the same tokens, to go on
     * with; the failed one is the callee's. NULL, or when it returns NULL: the error is the end. */
    km_sequence *(*rescue)(void *user, km_sequence *failed, const km_error *why);
    void *rescuer;
    km_guide *guide; /* over this tokenizer's trie, put to its beginning first; NULL: any text */
    const atomic_bool *cancel; /* becomes true when somebody wants the end; NULL: nobody can */
    /* Called while a long prompt is read, with how much of it is. Returning false stops. */
    bool (*on_prompt)(void *user, int64_t done, int64_t total);
    /* Called with each token and the text that became complete with it (whole characters; maybe
     * none); at the end with id -1 if there is text left. Returning false stops. */
    bool (*on_text)(void *user, int32_t id, const char *text, size_t bytes);
    void *user;
} km_making;

typedef struct km_voice {
    const km_making *how;
    const km_token *token;
    int64_t vocab; /* ids below it are tokens */
    km_sampler *sampler;
    km_stop *stop;
    km_token_stream stream;
    km_text raw, text; /* what became whole; what of it can be shown */
    int64_t tokens;    /* so far */
    km_end_reason end;
    float logprob; /* of the last token chosen */
    km_logprob *top;
    int n_top;
} km_voice;

/* how must outlive it. Close in either case. */
km_status km_voice_open(km_voice *v, const km_making *how, const km_token *token, int64_t vocab,
                        km_error *err);
void km_voice_close(km_voice *v);

/* The prompt's tokens, for penalties. */
km_status km_voice_read(km_voice *v, const int32_t *ids, size_t n, km_error *err);
/* The next token from its logits. */
km_status km_voice_choose(km_voice *v, const float *logits, int32_t *id, km_error *err);
/* Takes a token in: v->text is the text to show with it, v->end why it is the last one. An
 * end-of-text token is not counted, and only ends. */
km_status km_voice_take(km_voice *v, int32_t id, km_error *err);
/* It ends for another reason: what was held back is text after all, unless it was cancelled. */
km_status km_voice_end(km_voice *v, km_end_reason why, km_error *err);
/* What there is to tell of the last token, or of the end (id -1). */
km_piece_event km_voice_event(const km_voice *v, int32_t id);

#endif
