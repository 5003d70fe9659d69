/* Choosing tokens where their logits are: the settings of a sampler, as far as the op `sample`
 * knows them, and the memory that it needs between tokens. */
#ifndef KM_INFER_CHOOSER_H
#define KM_INFER_CHOOSER_H
#include "backend/sample.h"
#include "infer/sample.h"

typedef struct km_chooser {
    float settings[KM_SAMPLE_SETTINGS];
    int32_t state[KM_SAMPLE_STATE];
    /* What km_plan_pick_tokens knows beside; the steps of km_plan_choose do without. */
    km_logit_bias *bias; /* (n_biases), each of another token; km_chooser_end frees it */
    int n_biases;
    bool told; /* the logarithm of the chosen one's probability, and the n_top likeliest */
    int n_top;
} km_chooser;

#define KM_CHOOSER_TOP 32 /* of the likeliest, at most */

/* For ids below `tokens`; draws: numbers that were drawn from this seed already. False where the
 * settings ask for more than the op can: DRY, mirostat, typical, penalties over more tokens than it
 * remembers; biases are km_chooser_bias's. Nothing has to be freed unless that was called. */
bool km_chooser_begin(km_chooser *c, const km_sampling *s, int64_t tokens, uint64_t draws);
/* Takes the biases over as well; false: there are none to be had, or no memory for them. */
bool km_chooser_begin_biased(km_chooser *c, const km_sampling *s, int64_t tokens, uint64_t draws);
void km_chooser_end(km_chooser *c);
int64_t km_chooser_tokens(const km_chooser *c); /* ids below this may be chosen */
/* Tells of tokens that were read or chosen elsewhere. */
void km_chooser_see(km_chooser *c, const int32_t *ids, size_t n);
/* The same of a token that the op would have chosen: a number was drawn for it. */
void km_chooser_chose(km_chooser *c, int32_t id);
uint64_t km_chooser_draws(const km_chooser *c); /* numbers drawn so far */

#endif
