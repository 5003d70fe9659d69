/* Several sequences over one model and one cache, run together: they join and leave as they like,
 * share a common beginning after a fork, and go on by a token each in one step. What a sequence
 * gets is the same, bit for bit, whatever else is in the step. Each call ends the context's step,
 * and nothing is recorded. */
#ifndef KM_INFER_SEQUENCES_H
#define KM_INFER_SEQUENCES_H
#include "base/gate.h"
#include "infer/plan.h"

typedef struct km_sequences km_sequences;

typedef struct km_sequences_options {
    km_dtype cache;    /* of keys and values: f16 by default; f32, bf16, q8_0, q4_0 */
    int64_t sequences; /* at most so many at once; 1 by default */
    int64_t context;   /* tokens of one; 0: the model's */
    size_t memory;     /* of the cache, whose pages sequences get as they grow; 0: as much as all of
                        * them need at their longest */
    bool shift;        /* a full context goes on: its first `keep` tokens and the second half of the
                        * others are read anew. Otherwise it is an error that says both counts. */
    int64_t keep;
    /* Called after each chunk of a prompt with how much of it is read. Returning false stops: the
     * tokens read so far stay. NULL: no callback. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
    km_gate
        *gate; /* of one place, where several threads run the model: km_sequence's calls take their
                    * turns. NULL: there is one thread */
} km_sequences_options;

km_sequences_options km_sequences_defaults(void);

/* The model must outlive it. NULL with *err set. */
km_sequences *km_sequences_new(km_ctx *ctx, km_net *m, const km_sequences_options *o,
                               km_error *err);
void km_sequences_free(km_sequences *b); /* NULL is fine */
const km_sequences_options *km_sequences_how(const km_sequences *b);
void km_sequences_on_progress(km_sequences *b,
                              bool (*progress)(void *user, int64_t done, int64_t total),
                              void *user);

/* A new sequence, empty or (fork) with all that another holds, logits included; -1 with *err. */
int km_sequences_join(km_sequences *b, km_error *err);
int km_sequences_fork(km_sequences *b, int sequence, km_error *err);
void km_sequences_leave(km_sequences *b, int sequence);
/* In place of the options' shift and keep, for one sequence. */
void km_sequences_set_shift(km_sequences *b, int sequence, bool on, int64_t keep);

/* The adapters that a sequence is run with from now on; none, until it is told. What it holds was read
 * with others, if they differ, and is forgotten then. A fork has those of its origin. */
void km_sequences_set_mix(km_sequences *b, int sequence, const km_adapter_mix *mix);

/* What ends its readings before they are done; NULL: nothing. Not where ranks share the model. */
void km_sequences_cancel_by(km_sequences *b, int sequence, const atomic_bool *flag);

/* Pages of the cache (KM_KV_PAGE tokens each) that no sequence has, and how many of them n more tokens
 * of a sequence would take. A call that finds too few returns KM_ERR_MEMORY while the context is fine,
 * and has read what it could: somebody has to leave or be rewound, and then it can be made again. A
 * step that finds too few has done nothing. */
int64_t km_sequences_pages_left(const km_sequences *b);
int64_t km_sequences_pages_for(const km_sequences *b, int sequence, int64_t n);

/* Reads tokens after those that the sequence holds, in chunks. When *flag (km_sequences_cancel_by) becomes
 * true, it ends between two layers with KM_ERR_STATE and the chunks that were read before. */
km_status km_sequences_read(km_sequences *b, int sequence, const int32_t *ids, size_t n,
                            km_error *err);

typedef struct km_sequences_token {
    int sequence;
    int32_t id;
} km_sequences_token;
/* One more token for each of n different sequences, KM_STEP_ROWS at a time. */
km_status km_sequences_step(km_sequences *b, const km_sequences_token *t, int n, km_error *err);

/* `steps` tokens for each of n different sequences (KM_STEP_ROWS at most), chosen where the logits
 * are: t[i].id and then what was chosen goes through the model, and out (n, steps) receives what
 * was chosen. The last one has not been through it, and there are no logits on the host. Every
 * sequence must have room for `steps` tokens, which are at most km_sequences_ahead. */
km_status km_sequences_choose(km_sequences *b, const km_sequences_token *t, int n, int64_t steps,
                              km_chooser *const *chooser, int32_t *out, km_error *err);
/* Guesses checked where the logits are: ids (n, 2 to KM_FEW_ROWS) are a token of the sequence and
 * guesses of what comes after it. out (n) receives what was chosen after each of them up to the
 * first that was not guessed; how many, or -1 with *err set. The sequence then holds as many of the
 * ids, all of them right, and chooser has seen what was chosen. */
int km_sequences_check(km_sequences *b, int sequence, const int32_t *ids, int n,
                       km_chooser *chooser, int32_t *out, km_error *err);
/* ---- One pass of any rows ---- */

/* Tokens after those that a sequence holds: one that was chosen, or a chunk of a prompt. */
typedef struct km_sequences_part {
    int sequence;       /* -1 at the end of the pass: it has left, or its tokens are not to count */
    const int32_t *ids; /* (n), until the end of the pass */
    int64_t n;
    bool wants; /* a token after the last of these: chosen by the device (pick.chooser), or its
                 * logits on the host */
    km_plan_pick pick;
    int64_t past, row; /* of km_sequences_begin: tokens before it, its row among those wanted */
} km_sequences_part;

/* Whether passes are to be had: the model is in one part, and no ranks share it. */
bool km_sequences_passes(const km_sequences *b);
/* Whether the host can do other things while a pass runs, and tokens are better chosen by the device. */
bool km_sequences_runs_ahead(const km_sequences *b);
/* n parts of different sequences in one pass of at most KM_STEP_ROWS rows (chunks alone: as many as
 * km_sequences_chunk). On a host at most one of them has more than one token, as neighbours change no
 * bit then. KM_ERR_MEMORY with nothing done where pages are too few. A GPU may still be at work when this
 * returns; sequences may join, leave and be rewound before the end. */
km_status km_sequences_begin(km_sequences *b, km_sequences_part *part, int n, km_error *err);
/* The end of the pass: tokens are chosen, or logits brought to the host, and the sequences hold what was
 * read. */
km_status km_sequences_end(km_sequences *b, km_sequences_part *part, int n, km_error *err);

/* How many steps can be taken at once: 1 where the model is in parts. */
int64_t km_sequences_ahead(const km_sequences *b);

/* n (1 to KM_FEW_ROWS) tokens after those that the sequence holds, in one step, each with its
 * logits (n, vocab), the sequence's until its next call; NULL with *err set. They are not the
 * sequence's yet: km_sequences_take makes the first `keep` of them so. For guesses that are checked
 * together. */
const float *km_sequences_try(km_sequences *b, int sequence, const int32_t *ids, int n,
                              km_error *err);
void km_sequences_take(km_sequences *b, int sequence, const int32_t *ids, int keep);

/* Of the token after the last: (vocab), on the host; NULL when there are none. Valid until the
 * sequence goes on. */
const float *km_sequences_logits(const km_sequences *b, int sequence);
int64_t km_sequences_length(const km_sequences *b, int sequence);
const int32_t *km_sequences_tokens(const km_sequences *b, int sequence);       /* that many */
void km_sequences_pages(const km_sequences *b, int64_t *all, int64_t *unused); /* of the cache */
int64_t km_sequences_page_bytes(const km_sequences *b); /* of one, in all layers */
/* How many of these tokens, from the first on, need not be read again. */
int64_t km_sequences_match(const km_sequences *b, int sequence, const int32_t *ids, size_t n);
/* The same, where the logits after these tokens, and all that is chosen from then on, are to be, bit
 * for bit, those of a sequence that read all of them at once: what was chosen by this one, one token
 * at a time, is read again (by kernels for many rows, which round in another order), and at least the
 * last token is. */
int64_t km_sequences_settled(const km_sequences *b, int sequence, const int32_t *ids, size_t n);
int64_t km_sequences_chunk(
    const km_sequences *b); /* tokens of a prompt that run at once, at most */
/* Forgets what comes after the first `length` tokens (all, where what those need is gone: behind a
 * window that every layer has). There are no logits until the next read. */
void km_sequences_rewind(km_sequences *b, int sequence, int64_t length);

/* For measuring: the sequence holds n tokens that nobody read, with keys and values of zeros. */
km_status km_sequences_pretend(km_sequences *b, int sequence, int64_t n, km_error *err);

/* A sequence to a file and back (docs/formats/session.md). Reading replaces what the sequence
 * holds; a file of another model, of another dtype of cache, too long or damaged is refused and
 * changes nothing. */
km_status km_sequences_save(km_sequences *b, int sequence, const char *path, km_error *err);
km_status km_sequences_restore(km_sequences *b, int sequence, const char *path, km_error *err);

#endif
