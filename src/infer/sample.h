/* Choosing the next token from logits. A sampler follows one sequence: it remembers what was said
 * (for the penalties) and how surprising it was (for mirostat), and draws by a counter, so that the
 * same seed, settings and logits give the same tokens.
 *
 * km_sampling and the order of its steps are in kermes.h. Among equals the lowest id counts as likelier. */
#ifndef KM_INFER_SAMPLE_H
#define KM_INFER_SAMPLE_H
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the settings make sense; the error names the one that does not. */
km_status km_sampling_sound(const km_sampling *s, km_error *err);

/* The likeliest, the lowest id among equals; -1 when no logit is a number. */
int32_t km_likeliest(const float *logits, int64_t n);

/* ---- A sequence ---- */

typedef struct km_sampler km_sampler;

/* For tokens 0 .. vocab - 1. breaks (a bit a token, as masks of grammar.h; copied; NULL: none) are
 * the tokens that DRY lets no repetition reach across. NULL with *err set. */
km_sampler *km_sampler_new(const km_sampling *s, int64_t vocab, const uint64_t *breaks,
                           km_error *err);
void km_sampler_free(km_sampler *s); /* NULL is fine */
/* As new, with the same settings. */
void km_sampler_reset(km_sampler *s);

/* Tells of tokens that were read or chosen: the prompt's, and each one that pick returned. */
km_status km_sampler_see(km_sampler *s, const int32_t *ids, size_t n, km_error *err);
/* The next token: an id below vocab, or -1 when no logit is a number. mask (or NULL): only the
 * tokens whose bit is set. The logits stay as they are. */
int32_t km_sampler_pick(km_sampler *s, const float *logits, const uint64_t *mask);

/* For guesses of what another sampler will choose: one for the same tokens that remembers nothing
 * and that, after km_sampler_follow, has the other's temperature and cuts and draws the numbers
 * that it will draw next. The nearer the logits, the more often both choose alike. NULL with *err
 * set. */
km_sampler *km_sampler_shadow(const km_sampler *of, km_error *err);
void km_sampler_follow(km_sampler *shadow, const km_sampler *of);
/* What it follows: its temperature, cuts, seed and the number that it will draw next. */
km_sampling km_sampler_settings(const km_sampler *s);
uint64_t km_sampler_draws(const km_sampler *s);
int64_t km_sampler_vocab(const km_sampler *s);
/* So many numbers have been drawn, by another that draws the same ones. */
void km_sampler_drew(km_sampler *s, uint64_t draws);

/* Among which tokens the last pick chose, and their probabilities; how many (at most `most` are
 * written). Greedy choice has none. */
typedef struct km_odds {
    int32_t id;
    float p;
} km_odds;
int64_t km_sampler_odds(const km_sampler *s, km_odds *out, int64_t most);

#endif
