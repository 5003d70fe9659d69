/* One sequence of a batch, which lives as long as any session over it. */
#include "infer/session.h"
#include "base/alloc.h"
#include "infer/batch_impl.h"

typedef struct shared {
    km_batch *batch;
    int users;
} shared;

struct km_session {
    shared *over;
    int at; /* its sequence */
};

static km_session *session_at(shared *over, int sequence, km_error *err) {
    km_session *s = sequence >= 0 ? km_calloc(1, sizeof *s) : NULL;
    if (!s) {
        if (sequence >= 0) {
            km_batch_leave(over->batch, sequence);
            km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        }
        return NULL;
    }
    over->users++;
    *s = (km_session){over, sequence};
    return s;
}

static void drop(shared *over) {
    if (over->users > 0) return;
    km_batch_free(over->batch);
    km_free(over);
}

km_session *km_session_open(km_ctx *ctx, km_model *m, const km_batch_options *o, km_error *err) {
    shared *over = km_calloc(1, sizeof *over);
    if (!over) {
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return NULL;
    }
    over->batch = km_batch_new(ctx, m, o, err);
    km_session *s = over->batch ? session_at(over, km_batch_join(over->batch, err), err) : NULL;
    if (!s) drop(over);
    return s;
}

km_session *km_session_new(km_ctx *ctx, km_model *m, km_error *err) {
    km_batch_options o = km_batch_defaults();
    o.shift = true;
    return km_session_open(ctx, m, &o, err);
}

km_session *km_session_fork(km_session *s, km_error *err) {
    return session_at(s->over, km_batch_fork(s->over->batch, s->at, err), err);
}

void km_session_free(km_session *s) {
    if (!s) return;
    km_batch_leave(s->over->batch, s->at);
    s->over->users--;
    drop(s->over);
    km_free(s);
}

km_status km_session_read(km_session *s, const int32_t *ids, size_t n, km_error *err) {
    return km_batch_read(s->over->batch, s->at, ids, n, err);
}

km_status km_session_prompt(km_session *s, const int32_t *ids, size_t n, int64_t *reused,
                            km_error *err) {
    if (reused) *reused = 0;
    if (n > (size_t)km_session_context(s))
        return km_error_set(err, KM_ERR_RANGE,
                            "the prompt has %zu tokens and the model's context %lld", n,
                            (long long)km_session_context(s));
    int64_t same = km_session_match(s, ids, n > 0 ? n - 1 : 0);
    km_session_rewind(s, same);
    if (reused) *reused = same;
    return km_session_read(s, ids + same, n - (size_t)same, err);
}

km_status km_session_next(km_session *s, int32_t id, km_error *err) {
    return km_batch_step(s->over->batch, &(km_batch_token){s->at, id}, 1, err);
}

km_status km_session_choose(km_session *s, int32_t id, int64_t steps, km_chooser *chooser,
                            int32_t *out, km_error *err) {
    return km_batch_choose(s->over->batch, &(km_batch_token){s->at, id}, 1, steps, &chooser, out,
                           err);
}

int km_session_check(km_session *s, const int32_t *ids, int n, km_chooser *chooser, int32_t *out,
                     km_error *err) {
    return km_batch_check(s->over->batch, s->at, ids, n, chooser, out, err);
}

int64_t km_session_ahead(const km_session *s) { return km_batch_ahead(s->over->batch); }

bool km_session_on_host(const km_session *s) {
    return km_model_end(s->over->batch->m)->ctx->device->host;
}

const float *km_session_try(km_session *s, const int32_t *ids, int n, km_error *err) {
    return km_batch_try(s->over->batch, s->at, ids, n, err);
}

void km_session_take(km_session *s, const int32_t *ids, int keep) {
    km_batch_take(s->over->batch, s->at, ids, keep);
}

void km_session_on_progress(km_session *s,
                            bool (*progress)(void *user, int64_t done, int64_t total), void *user) {
    km_batch_on_progress(s->over->batch, progress, user);
}

const float *km_session_logits(const km_session *s) {
    return km_batch_logits(s->over->batch, s->at);
}

int64_t km_session_length(const km_session *s) { return km_batch_length(s->over->batch, s->at); }

const int32_t *km_session_tokens(const km_session *s) {
    return km_batch_tokens(s->over->batch, s->at);
}

int64_t km_session_context(const km_session *s) { return km_batch_how(s->over->batch)->context; }

void km_session_reset(km_session *s) { km_session_rewind(s, 0); }

int64_t km_session_match(const km_session *s, const int32_t *ids, size_t n) {
    return km_batch_match(s->over->batch, s->at, ids, n);
}

int64_t km_session_settled(const km_session *s, const int32_t *ids, size_t n) {
    return km_batch_settled(s->over->batch, s->at, ids, n);
}

int64_t km_session_chunk(const km_session *s) { return km_batch_chunk(s->over->batch); }

void km_session_rewind(km_session *s, int64_t length) {
    km_batch_rewind(s->over->batch, s->at, length);
}

km_status km_session_save(km_session *s, const char *path, km_error *err) {
    return km_batch_save(s->over->batch, s->at, path, err);
}

km_status km_session_restore(km_session *s, const char *path, km_error *err) {
    return km_batch_restore(s->over->batch, s->at, path, err);
}
