/* A session: a model reading a prompt and going on with it, one token at a time; one sequence of a
 * batch (infer/sequences.h), which it may share with its forks. Each call ends the context's step, and
 * nothing is recorded. Several may go on in several threads, if the batch has a gate. */
#ifndef KM_INFER_SEQUENCE_H
#define KM_INFER_SEQUENCE_H
#include "infer/sequences.h"

typedef struct km_sequence km_sequence;

/* The model must outlive it. NULL with *err set. */
km_sequence *km_sequence_open(km_ctx *ctx, km_net *m, const km_sequences_options *o, km_error *err);
/* The defaults (f16 cache, the model's context), and a full context is shifted. */
km_sequence *km_sequence_new(km_ctx *ctx, km_net *m, km_error *err);
/* An empty one of sequences that are there already, and outlive it. */
km_sequence *km_sequence_of(km_sequences *b, km_error *err);
void km_sequence_free(km_sequence *s); /* NULL is fine */
/* Another session that holds what this one does, over the same pages until one of them goes on;
 * o->sequences must have left room for it. NULL with *err set. */
km_sequence *km_sequence_fork(km_sequence *s, km_error *err);

/* Reads tokens after those read so far, in chunks of km_prompt_chunk. More than the context holds
 * in all is an error that says both counts. */
km_status km_sequence_read(km_sequence *s, const int32_t *ids, size_t n, km_error *err);
/* Makes the session hold exactly these tokens: the beginning that it holds already is not read
 * again. *reused (may be NULL) tells how many those were; at least the last one is read. */
km_status km_sequence_prompt(km_sequence *s, const int32_t *ids, size_t n, int64_t *reused,
                             km_error *err);
/* As km_sequence_read of one token, but where shifting was asked for a full context is made room in:
 * the session then goes on with the second half of it, read anew. */
km_status km_sequence_next(km_sequence *s, int32_t id, km_error *err);
/* The same for `steps` tokens, chosen where the logits are: km_sequences_choose. */
km_status km_sequence_choose(km_sequence *s, int32_t id, int64_t steps, km_chooser *chooser,
                             int32_t *out, km_error *err);
/* Guesses checked there: km_sequences_check. */
int km_sequence_check(km_sequence *s, const int32_t *ids, int n, km_chooser *chooser, int32_t *out,
                      km_error *err);
/* km_sequences_set_shift. */
void km_sequence_set_shift(km_sequence *s, bool on, int64_t keep);
void km_sequence_set_mix(km_sequence *s, const km_adapter_mix *mix); /* km_sequences_set_mix */
void km_sequence_cancel_by(km_sequence *s, const atomic_bool *flag); /* km_sequences_cancel_by */
int64_t km_sequence_ahead(const km_sequence *s);                     /* steps at once, at most */
bool km_sequence_on_host(const km_sequence *s); /* logits are made in the host's memory */
/* Tokens that may turn out to be wrong: km_sequences_try and km_sequences_take. */
const float *km_sequence_try(km_sequence *s, const int32_t *ids, int n, km_error *err);
void km_sequence_take(km_sequence *s, const int32_t *ids, int keep);
/* Called after each chunk of a prompt with how much of it is read; returning false stops there. */
void km_sequence_on_progress(km_sequence *s,
                             bool (*progress)(void *user, int64_t done, int64_t total), void *user);
/* Of the token after the last one read: (vocab), on the host; NULL before the first. */
const float *km_sequence_logits(const km_sequence *s);
int64_t km_sequence_length(const km_sequence *s);        /* tokens in the context now */
const int32_t *km_sequence_tokens(const km_sequence *s); /* those */
int64_t km_sequence_context(const km_sequence *s);       /* as many as fit */
void km_sequence_reset(km_sequence *s);                  /* forgets them */
/* How many of these tokens, from the first on, the context holds already at its beginning. */
int64_t km_sequence_match(const km_sequence *s, const int32_t *ids, size_t n);
/* How many of them need not be read so that what follows is, bit for bit, what follows a reading of
 * all of them: km_sequences_settled. */
int64_t km_sequence_settled(const km_sequence *s, const int32_t *ids, size_t n);
int64_t km_sequence_chunk(const km_sequence *s); /* km_sequences_chunk */
/* Forgets all but the first `length` tokens; the next read goes on from there. There are no logits
 * until then. */
void km_sequence_rewind(km_sequence *s, int64_t length);

/* To a file and back: km_sequences_save, km_sequences_restore. */
km_status km_sequence_save(km_sequence *s, const char *path, km_error *err);
km_status km_sequence_restore(km_sequence *s, const char *path, km_error *err);

#endif
