/* What was said so far, and what it does to the logits: penalties for repeating tokens, and DRY
 * ("don't repeat yourself"), which finds repeated sequences. */
#ifndef KM_INFER_PENALTIES_H
#define KM_INFER_PENALTIES_H
#include "infer/sample.h"

typedef struct km_said {
    int32_t *ids; /* the last n tokens, the newest at the end */
    size_t n, cap;
    int32_t *count;   /* (vocab) how often among the last `window` */
    int32_t *longest; /* (vocab) DRY: the repetition a token would go on with; 0 between calls */
    int32_t *match;   /* (cap) DRY's scratch */
    uint64_t *breaks; /* a bit a token: no repetition reaches across these */
    int64_t vocab;
    size_t window, in_window;
    bool counts, dry;
} km_said;

km_status km_said_begin(km_said *h, const km_sampling *s, int64_t vocab, const uint64_t *breaks,
                        km_error *err);
void km_said_end(km_said *h);
void km_said_reset(km_said *h);
/* Ids outside the vocabulary are passed over. */
km_status km_said_add(km_said *h, const int32_t *ids, size_t n, km_error *err);
/* The penalties of sample.h, on logits (vocab). */
void km_said_penalise(km_said *h, const km_sampling *s, float *logits);

#endif
