/* Choosing the next token from logits. The choice is a function of the logits, the settings and the
 * number of the draw; there is no hidden state. */
#ifndef KM_INFER_SAMPLE_H
#define KM_INFER_SAMPLE_H
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Applied in this order, each to what the ones before it left. */
typedef struct km_sampling {
    double temperature; /* logits are divided by it; 0: always the likeliest token */
    int64_t top_k;      /* only the k likeliest; 0: all */
    double top_p;       /* only the likeliest that together reach this probability; 1: all */
    double min_p;       /* only those at least this likely, next to the likeliest; 0: all */
    uint64_t seed;
} km_sampling;

km_sampling km_sampling_defaults(void); /* temperature 1, nothing left out, seed 1 */
/* Whether the settings make sense; the error names the one that does not. */
km_status km_sampling_check(const km_sampling *s, km_error *err);

typedef struct km_candidate {
    int32_t id;
    float logit;
    double p;
} km_candidate;

/* The likeliest, the lowest id among equals; -1 when no logit is a number. */
int32_t km_likeliest(const float *logits, int64_t n);
/* Token `draw` (0, 1, 2, ...) of a sequence: an id below n, or -1 when no logit is a number (-inf
 * is one, of probability 0). Among equals the lowest id counts as likelier. `room` is for n
 * candidates. */
int32_t km_sampling_draw(const km_sampling *s, const float *logits, int64_t n, uint64_t draw,
                         km_candidate *room);

#endif
