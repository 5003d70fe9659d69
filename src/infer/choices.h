/* Truncation samplers (top-k, nucleus, min-p, typical) over a vocabulary's logits, and the draw.
 * Nothing here sorts a vocabulary. Logits are looked at in blocks of 64 with the largest of each kept, from which
 * follows a bound that few exceed; only those are gathered, weighed and ordered. */
#ifndef KM_INFER_CHOICES_H
#define KM_INFER_CHOICES_H
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

#define KM_CHOICE_BLOCK 64
#define KM_CHOICE_BINS 4096

typedef struct km_choice {
    int32_t id;
    float x, p;
} km_choice;

typedef struct km_choices {
    int64_t vocab, blocks;
    float *logits;   /* (vocab) to be edited before km_choices_mask */
    float *peak;     /* (blocks) the largest of each block */
    float *order;    /* (blocks) for selecting among them */
    double *bin;     /* (KM_CHOICE_BINS) */
    float *weight;   /* (vocab) of all, where they are wanted */
    int32_t *in;     /* (vocab) the bin of each of those left */
    km_choice *edge; /* (vocab) those of the bin where a front ends */
    float top;       /* the largest of all */
    /* those that are left: */
    int32_t *id;
    float *x; /* logits */
    float *p; /* next to the likeliest of all: e^((x - top) / T) */
    int64_t n;
    double total; /* of p */
} km_choices;

km_status km_choices_begin(km_choices *c, int64_t vocab, km_error *err);
void km_choices_end(km_choices *c);

/* Rules out what has no bit in the mask (NULL: nothing), and finds the peaks. The likeliest's id;
 * -1 when no logit is a number. */
int32_t km_choices_mask(km_choices *c, const uint64_t *mask);
/* The sum of e^((x - top) / T) over all. */
double km_choices_mass(const km_choices *c, double temperature);

/* Gathers those with x >= bound ... */
void km_choices_gather(km_choices *c, float bound);
/* ... or the k likeliest. */
void km_choices_gather_top(km_choices *c, int64_t k);
/* Sets p and total. */
void km_choices_weigh(km_choices *c, double temperature);
/* Gathers the likeliest that reach a share of all, and weighs them. */
void km_choices_gather_front(km_choices *c, double share, double temperature);

/* Each leaves a part of those left, at least one, and sets total. */
void km_choices_typical(km_choices *c, double share, double temperature);
void km_choices_front(km_choices *c, double share); /* the likeliest that reach it */
void km_choices_at_least(km_choices *c, double p);

/* The place among those left that u in [0, 1) falls on. */
int64_t km_choices_draw(const km_choices *c, double u);

#endif
