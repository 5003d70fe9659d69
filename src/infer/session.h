/* A session: a model reading a prompt and going on with it, one token at a time. Each call ends the
 * context's step, and nothing is recorded. */
#ifndef KM_INFER_SESSION_H
#define KM_INFER_SESSION_H
#include "model/model.h"

typedef struct km_session km_session;

/* The model must outlive it. NULL with *err set. */
km_session *km_session_new(km_ctx *ctx, km_model *m, km_error *err);
void km_session_free(km_session *s); /* NULL is fine */

/* Reads tokens after those read so far. More than the context holds in all is an error that says
 * both counts. */
km_status km_session_read(km_session *s, const int32_t *ids, size_t n, km_error *err);
/* As km_session_read of one token, but a full context is made room in: the session then goes on
 * with the second half of it, read anew. */
km_status km_session_next(km_session *s, int32_t id, km_error *err);
/* Of the token after the last one read: (vocab), on the host; NULL before the first. */
const float *km_session_logits(const km_session *s);
int64_t km_session_length(const km_session *s); /* tokens in the context now */
void km_session_reset(km_session *s);           /* forgets them */

#endif
