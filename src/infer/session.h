/* A session: a model reading a prompt and going on with it, one token at a time; one sequence of a
 * batch (infer/batch.h), which it may share with its forks. Each call ends the context's step, and
 * nothing is recorded. */
#ifndef KM_INFER_SESSION_H
#define KM_INFER_SESSION_H
#include "infer/batch.h"

typedef struct km_session km_session;

/* The model must outlive it. NULL with *err set. */
km_session *km_session_open(km_ctx *ctx, km_model *m, const km_batch_options *o, km_error *err);
/* The defaults (f16 cache, the model's context), and a full context is shifted. */
km_session *km_session_new(km_ctx *ctx, km_model *m, km_error *err);
void km_session_free(km_session *s); /* NULL is fine */
/* Another session that holds what this one does, over the same pages until one of them goes on;
 * o->sequences must have left room for it. NULL with *err set. */
km_session *km_session_fork(km_session *s, km_error *err);

/* Reads tokens after those read so far, in chunks of km_prompt_chunk. More than the context holds
 * in all is an error that says both counts. */
km_status km_session_read(km_session *s, const int32_t *ids, size_t n, km_error *err);
/* Makes the session hold exactly these tokens: the beginning that it holds already is not read
 * again. *reused (may be NULL) tells how many those were; at least the last one is read. */
km_status km_session_prompt(km_session *s, const int32_t *ids, size_t n, int64_t *reused,
                            km_error *err);
/* As km_session_read of one token, but where shifting was asked for a full context is made room in:
 * the session then goes on with the second half of it, read anew. */
km_status km_session_next(km_session *s, int32_t id, km_error *err);
/* The same for `steps` tokens, chosen where the logits are: km_batch_choose. */
km_status km_session_choose(km_session *s, int32_t id, int64_t steps, km_chooser *chooser,
                            int32_t *out, km_error *err);
/* Guesses checked there: km_batch_check. */
int km_session_check(km_session *s, const int32_t *ids, int n, km_chooser *chooser, int32_t *out,
                     km_error *err);
int64_t km_session_ahead(const km_session *s); /* steps at once, at most */
bool km_session_on_host(const km_session *s);  /* logits are made in the host's memory */
/* Tokens that may turn out to be wrong: km_batch_try and km_batch_take. */
const float *km_session_try(km_session *s, const int32_t *ids, int n, km_error *err);
void km_session_take(km_session *s, const int32_t *ids, int keep);
/* Called after each chunk of a prompt with how much of it is read; returning false stops there. */
void km_session_on_progress(km_session *s,
                            bool (*progress)(void *user, int64_t done, int64_t total), void *user);
/* Of the token after the last one read: (vocab), on the host; NULL before the first. */
const float *km_session_logits(const km_session *s);
int64_t km_session_length(const km_session *s);        /* tokens in the context now */
const int32_t *km_session_tokens(const km_session *s); /* those */
int64_t km_session_context(const km_session *s);       /* as many as fit */
void km_session_reset(km_session *s);                  /* forgets them */
/* How many of these tokens, from the first on, the context holds already at its beginning. */
int64_t km_session_match(const km_session *s, const int32_t *ids, size_t n);
/* How many of them need not be read so that what follows is, bit for bit, what follows a reading of
 * all of them: km_batch_settled. */
int64_t km_session_settled(const km_session *s, const int32_t *ids, size_t n);
int64_t km_session_chunk(const km_session *s); /* km_batch_chunk */
/* Forgets all but the first `length` tokens; the next read goes on from there. There are no logits
 * until then. */
void km_session_rewind(km_session *s, int64_t length);

/* To a file and back: km_batch_save, km_batch_restore. */
km_status km_session_save(km_session *s, const char *path, km_error *err);
km_status km_session_restore(km_session *s, const char *path, km_error *err);

#endif
