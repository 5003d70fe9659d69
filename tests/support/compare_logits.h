/* The same random model on two devices: logits after prompts, and after tokens read one by one by
 * several sequences together. */
#ifndef KM_TESTS_SUPPORT_COMPARE_LOGITS_H
#define KM_TESTS_SUPPORT_COMPARE_LOGITS_H
#include "infer/sequences.h"
#include "support/random_model.h"

enum { COMPARE_SEQUENCES = 8, COMPARE_AFTER = 3 /* tokens that follow each prompt */ };

/* Sequences that run together, as the lengths of their prompts; the rest are 0. */
typedef struct compare_group {
    int length[COMPARE_SEQUENCES];
} compare_group;

typedef struct compare_work {
    const compare_group *group;
    int groups;
    km_dtype cache;
    double limit; /* logits may be so far apart, against their size */
} compare_work;

/* A model of an architecture, with what tells it from others: heads of its usual size, windows,
 * caps of scores, several queries to a key. */
km_config compare_config(km_arch arch, int64_t dim, int64_t context, int64_t vocab);
/* The ith model of sizes that no well-known one has: heads of 7, 20, 24 and 320 elements, rows that
 * are no multiple of 64. False: there are no more. */
bool compare_odd_config(int i, int64_t context, int64_t vocab, km_config *c);
/* Spreads scores wide, so that attention looks at few keys: one that is missed, or seen too early,
 * is then seen in the logits, and so is every rounding. For weights that are plain numbers. */
void compare_sharpen(km_config *c);

/* Runs it on both and returns how many rows of logits are too far apart, each told in a line;
 * *worst (may be NULL) is raised to the largest distance. */
int compare_logits(km_ctx *a, km_ctx *b, const km_config *c, const char *mix, const compare_work *w,
                   double *worst);

#endif
