/* Running tokens through a model: rows of any sequences in, logits out. A step is built once for
 * each of some numbers of rows, captured, and replayed from then on, with rows of padding in front; a long
 * chunk of a prompt alone is built as it comes. A model in parts runs part after part, each captured by itself;
 * the residual stream crosses by way of the host.
 *
 * A row is a token: its id, its sequence and its position. Rows of one sequence are in order; a row of
 * padding has sequence -1, for which nothing is kept. */
#ifndef KM_INFER_PLAN_H
#define KM_INFER_PLAN_H
#include "infer/cache.h"
#include "infer/chooser.h"
#include "ops/infer.h"

#define KM_PROMPT_CHUNK 1024 /* tokens of a prompt that are run at once, at most */
/* As many as pay: a GPU's products like more rows. */
static inline int64_t km_prompt_chunk(const km_device *d) {
    return d && !d->host ? KM_PROMPT_CHUNK : KM_PROMPT_CHUNK / 2;
}
#define KM_STEP_ROWS 512 /* rows of a step at most; the host treats each by itself */

#define KM_MIX_MOST 8 /* adapters of a sequence at once */

/* Which adapters (model/adapters.h) a sequence is run with: slots, rising, and scales other than 0. */
typedef struct km_adapter_mix {
    int n; /* 0: the weights as they are */
    int slot[KM_MIX_MOST];
    float scale[KM_MIX_MOST];
} km_adapter_mix;
bool km_adapter_mix_equal(const km_adapter_mix *a, const km_adapter_mix *b);

typedef struct km_plan km_plan;

/* The model and the cache must outlive it. NULL with the context's error set. */
km_plan *km_plan_new(km_ctx *ctx, km_net *m, km_cache *cache);
void km_plan_free(km_plan *p); /* NULL is fine */
/* mix: of each sequence of the cache; it is looked at in every step. NULL: no adapters. */
void km_plan_mixes(km_plan *p, const km_adapter_mix *mix);

/* n (1 to KM_STEP_ROWS) rows, each alone: rows[2 * i] and rows[2 * i + 1] are its sequence and
 * position; several of one sequence are in order. The logits of all come to (n, vocab), or stay on
 * the device (NULL). Pages are there already. */
km_status km_plan_few(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                      float *logits);
/* As km_plan_few, `steps` (1 to KM_SAMPLE_RING) times, each with the tokens that the one before has
 * chosen: nothing but tokens goes to the host, at the end. chooser (n) is brought up to date: the
 * last tokens of its ring are those chosen. A model in parts takes one step at a time. */
km_status km_plan_choose(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                         int64_t steps, km_chooser *const *chooser);
/* For tests: the nth step from now on fails, once, as a device that is lost does; 0: none. */
void km_plan_fail_at(int64_t n);

/* Prompts end between two layers when *flag is true; NULL: they do not. */
void km_plan_cancel_by(km_plan *p, const atomic_bool *flag);
/* n tokens of one sequence from a position on; the logits after the last, or of none (NULL).
 * KM_ERR_STATE without an error of the context: it was cancelled. */
km_status km_plan_prompt(km_plan *p, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         float *logits);

/* ---- One pass of any rows (plan_pass.c); of a model that is in one part ---- */

/* n (1 to KM_STEP_ROWS) rows: chunks of prompts in front, then `tail` rows that are each alone. The last
 * `last` of them, at least the tail, get logits, which stay where they are made until the next pass. A
 * GPU may still be at work when this returns. On a host the tail's rows have the bits of a step and
 * those before them the bits of a chunk that is run alone, if they are of one prompt. */
km_status km_plan_pass(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n, int64_t last,
                       int64_t tail);

typedef struct km_plan_pick {
    km_chooser *chooser;  /* NULL: this row's token is not wanted */
    const uint64_t *mask; /* of the tokens that may be chosen; NULL: all may */
    /* Where the chooser wants them told: the logarithm of the chosen one's probability before all
     * settings, and of the likeliest tokens. */
    float logprob;
    km_logprob *top; /* (the chooser's n_top); NULL: none */
    int32_t id;      /* chosen; -1: no logit was a number */
} km_plan_pick;
/* The tokens after the `last` rows, in their order, chosen where the logits are; choosers are brought
 * up to date. */
km_status km_plan_pick_tokens(km_plan *p, km_plan_pick *pick, int64_t n);
/* The logits of wanted row i, (vocab), to the host. */
km_status km_plan_logits(km_plan *p, int64_t i, float *to);

#endif
