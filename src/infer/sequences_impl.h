/* What sequences.c, sequence.c and sequence_file.c share. */
#ifndef KM_INFER_SEQUENCES_IMPL_H
#define KM_INFER_SEQUENCES_IMPL_H
#include "infer/sequences.h"
#include "infer/follow.h"

typedef struct km_sequence_state {
    bool used, ready; /* ready: logits are those after the last token */
    int32_t *seen;    /* (context): the tokens in the cache */
    float *logits;    /* (vocab) */
    float *tried;     /* (KM_FEW_ROWS, vocab): of km_sequences_try; NULL: never asked for */
    bool shift;       /* a full context goes on, with its first `keep` tokens */
    int64_t keep;
    /* So many tokens, from the first on, have the keys and values that reading any longer text that
     * begins with them gives: those read by kernels for many rows, and none that was chosen. */
    int64_t settled;
    const atomic_bool *cancel; /* of what it reads; or NULL */
} km_sequence_state;

struct km_sequences {
    km_ctx *ctx;
    km_net *m;
    km_sequences_options how;
    km_cache *cache;
    km_plan *plan;
    km_sequence_state *seq;
    km_lead *lead;       /* of ranks that share the model; NULL: it is whole */
    km_adapter_mix *mix; /* (sequences): the adapters that each is run with */
    float *rows;         /* (n_rows, vocab) where a step has more than one row */
    int n_rows;
    int64_t wanted; /* rows of the pass that runs whose logits are wanted */
    bool alone;     /* kernels for many rows treat each by itself, however many there are */
};

/* Of sequences.c, for sequences_pass.c: ranks that follow are told. */
km_status km_sequences_failed(km_sequences *b, km_error *err);
km_status km_sequences_check_id(const km_sequences *b, int32_t id, km_error *err);
km_status km_sequences_too_long(const km_sequences *b, int64_t past, size_t n, km_error *err);
km_status km_sequences_reserve(km_sequences *b, int s, int64_t n, km_error *err);
void km_sequences_add(km_sequences *b, int s, int64_t n);
bool km_sequences_cut(km_sequences *b, int s, int64_t length);

#endif
