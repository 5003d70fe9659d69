/* A dataset: the tokens of one or several sources, each made once and cached, each with a part to
 * learn from and a part to be tested on. */
#ifndef KM_TRAIN_DATASET_H
#define KM_TRAIN_DATASET_H
#include "token/token.h"
#include "train/source.h"
#include "train/tokens.h"

#define KM_DATASET_MAX_PARTS 32

typedef struct km_dataset_part {
    char *name; /* the source as it was given */
    km_tokens tokens;
    int64_t train, val; /* tokens to learn from, [0, train), and the val after them */
    double weight;      /* of all samples, this part's share; they sum to 1 */
    bool cached;        /* the tokens were found, not made */
} km_dataset_part;

typedef struct km_dataset {
    km_dataset_part *parts;
    int n;
    int64_t train, val; /* of all parts */
} km_dataset;

typedef struct km_dataset_options {
    const char *cache;          /* the folder for token files; it must exist */
    double val;                 /* the share of each source's end that is for validation */
    bool special;               /* "<|endoftext|>" in the text means that token */
    int threads;                /* for tokenising; 0: one per core */
    int64_t context;            /* the length of a sample, to be checked against the text's */
    km_token_progress progress; /* may be NULL */
    void *user;
} km_dataset_options;

/* Weights: those given count as they are when every source has one; otherwise what they leave of 1
 * goes to the others by their sizes, and without any weight the sources count as one long text. */
km_status km_dataset_open(km_dataset *d, const km_text_source *sources, int n,
                          const km_token *token, const km_dataset_options *options, km_error *err);
void km_dataset_close(km_dataset *d);
/* KM_OK, or a token file became shorter: what samples were taken since are not to be used. */
km_status km_dataset_check(const km_dataset *d, km_error *err);
/* A number that changes with the tokens, the split and the weights: for checkpoints. */
uint64_t km_dataset_hash(const km_dataset *d);

/* ---- Samples: windows of context + 1 tokens, the targets one ahead of the ids ---- */

typedef struct km_window_sampler {
    const km_dataset *data;
    uint64_t seed;
    int64_t context;
} km_window_sampler;

/* Sample number k of the endless sequence, a pure function of seed and k: in each pass over a part
 * its windows come once each, shuffled, at a new phase; parts alternate by their weights.
 * ids and targets: (context). */
void km_window_sampler_train(const km_window_sampler *s, int64_t k, int32_t *ids, int32_t *targets);

/* How many windows the validation parts have, and window i of them. Where fewer than context
 * tokens are left the rest are token 0 with the target `ignore`. Returns how many targets count. */
int64_t km_window_sampler_val_count(const km_window_sampler *s);
int64_t km_window_sampler_val(const km_window_sampler *s, int64_t i, int32_t ignore, int32_t *ids,
                              int32_t *targets);

/* Element i of a shuffled 0 .. n-1 (a permutation of its own for each seed and stream). */
int64_t km_shuffled(uint64_t seed, uint64_t stream, int64_t n, int64_t i);

#endif
