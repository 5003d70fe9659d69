/* Small models of random weights, for tests of running models: what they say means nothing, but it
 * is the same every time and on every device. */
#ifndef KM_TESTS_SUPPORT_RANDOM_MODEL_H
#define KM_TESTS_SUPPORT_RANDOM_MODEL_H
#include "model/synthetic.h"

/* A config that names its sizes, completed: an MLP twice as wide as the model and the embedding as
 * the head, unless it says otherwise. Fails the test where it makes no model. */
km_config random_config(km_config c);

/* Such a model, in the types of a mix ("q4_k_m"); split: over several devices, or NULL. */
km_net *random_model(km_ctx *ctx, const km_config *c, const char *mix, uint64_t seed,
                     const km_open_split *split);

/* The first n tokens of a text that repeats nothing soon. */
void random_ids(int32_t *ids, int64_t n, int64_t vocab);

/* How far apart two rows of logits are, against their size; infinite where one is not a number. */
double logits_apart(const float *a, const float *b, int64_t n);

#endif
