/* A generation at work, for generate.c and the ways of getting the next token. A way is two
 * functions: which token comes, and the token goes through the model. Three of them:
 *
 *     next_host.c      the host chooses from logits, one token a step
 *     next_device.c    the device that makes the logits chooses, some steps ahead of the host
 *     next_draft.c     guesses are checked together, by one of the other two
 */
#ifndef KM_INFER_MAKER_H
#define KM_INFER_MAKER_H
#include "infer/generate.h"

typedef struct km_next {
    km_status (*choose)(km_maker *g, int32_t *id, km_error *err);
    km_status (*advance)(km_maker *g, int32_t id, km_error *err);
} km_next;

extern const km_next km_next_host, km_next_device, km_next_draft;

struct km_maker {
    km_sequence *session;
    const km_making *how;
    const km_token *token;
    int64_t context, vocab; /* of the model: a row of logits */
    km_voice voice;
    const km_next *way;  /* of the next token, */
    const km_next *base; /* and where there is nothing to guess */
    double start;
    km_generated got;
    int32_t last;        /* chosen, and not yet through the model; -1: none */
    const float *logits; /* of the token to come */
    /* Tokens that went through the model together; those from `at` on are guesses so far. */
    int32_t tried[KM_FEW_ROWS];
    int n_tried, at;
    const float *rows; /* their logits */
    /* Tokens that a device has chosen, of which some were taken already; the session held `held`
     * tokens before it ran ahead. */
    km_chooser chooser;
    int32_t chosen[64];
    int n_chosen, taken;
    int64_t held;
    double pace; /* seconds of a token; 0: not known yet */
};

/* The way that chooses where the logits are, if it can; false: the host has to. */
bool km_next_device_begin(km_maker *g);
/* Tokens of the prompt, and the first one, which the host chooses. */
void km_next_device_see(km_maker *g, const int32_t *ids, size_t n);
/* Guesses checked by the device, as km_next_draft has them in `tried`. */
km_status km_next_device_check(km_maker *g, int n, km_error *err);

#endif
