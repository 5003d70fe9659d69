/* Reading and going on, over the cache of keys and values. */
#include "infer/session.h"
#include "base/alloc.h"
#include "infer/cache.h"
#include <string.h>

#define FIRST_ROOM 512 /* tokens; the cache grows when there are more */

struct km_session {
    km_ctx *ctx;
    km_model *m;
    km_cache *cache;
    int32_t *seen; /* the tokens in the cache */
    float *logits;
    bool ready; /* logits are those after the last token */
};

km_session *km_session_new(km_ctx *ctx, km_model *m, km_error *err) {
    km_session *s = km_calloc(1, sizeof *s);
    if (s) {
        s->ctx = ctx;
        s->m = m;
        int64_t room = m->config.context < FIRST_ROOM ? m->config.context : FIRST_ROOM;
        s->cache = km_cache_new(ctx, m, 1, room);
        s->seen = km_calloc((size_t)m->config.context, sizeof *s->seen);
        s->logits = km_calloc((size_t)m->config.vocab, sizeof *s->logits);
    }
    if (s && s->cache && s->seen && s->logits) return s;
    if (km_failed(ctx))
        km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    else
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    km_session_free(s);
    return NULL;
}

void km_session_free(km_session *s) {
    if (!s) return;
    km_cache_free(s->cache, s->m);
    km_free(s->seen);
    km_free(s->logits);
    km_free(s);
}

/* One pass over n tokens that fit; the logits of the last come to the host. */
static void pass(km_session *s, const int32_t *ids, int64_t n) {
    km_ctx *ctx = s->ctx;
    bool train = s->m->train;
    s->m->train = false;
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, n), ids);
    km_tensor *h = km_model_forward(ctx, s->m, x, s->cache); /* (1, n, C) */
    km_tensor *last = km_narrow(ctx, h, 1, n - 1, 1);
    km_tensor *logits = km_cast(ctx, km_model_logits(ctx, s->m, last), KM_F32);
    km_read(ctx, logits, s->logits, sizeof *s->logits * (size_t)s->m->config.vocab);
    km_no_grad_end(ctx);
    s->m->train = train;
}

km_status km_session_read(km_session *s, const int32_t *ids, size_t n, km_error *err) {
    const km_config *c = &s->m->config;
    int64_t past = s->cache->length;
    if (n == 0) return KM_OK;
    if (n > (size_t)(c->context - past))
        return past ? km_error_set(err, KM_ERR_RANGE,
                                   "%zu tokens after %lld do not fit the model's context of %lld",
                                   n, (long long)past, (long long)c->context)
                    : km_error_set(err, KM_ERR_RANGE,
                                   "the prompt has %zu tokens and the model's context %lld", n,
                                   (long long)c->context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return km_error_set(err, KM_ERR_RANGE,
                                "token %d is not in the model's vocabulary of %lld", (int)ids[i],
                                (long long)c->vocab);
    s->ready = false;
    if (km_cache_reserve(s->ctx, s->cache, s->m, past + (int64_t)n) == KM_OK)
        pass(s, ids, (int64_t)n);
    if (!km_failed(s->ctx)) km_step_end(s->ctx);
    if (km_failed(s->ctx)) {
        s->cache->length = past;
        return km_error_set(err, km_ctx_status(s->ctx), "%s", km_ctx_error(s->ctx));
    }
    memcpy(s->seen + past, ids, n * sizeof *ids);
    s->ready = true;
    return KM_OK;
}

km_status km_session_next(km_session *s, int32_t id, km_error *err) {
    int64_t full = s->m->config.context;
    if (s->cache->length < full) return km_session_read(s, &id, 1, err);
    int64_t keep = full / 2;
    memmove(s->seen, s->seen + (full - keep), (size_t)keep * sizeof *s->seen);
    s->seen[keep] = id;
    s->cache->length = 0;
    return km_session_read(s, s->seen, (size_t)keep + 1, err);
}

const float *km_session_logits(const km_session *s) { return s->ready ? s->logits : NULL; }
int64_t km_session_length(const km_session *s) { return s->cache->length; }

void km_session_reset(km_session *s) {
    s->cache->length = 0;
    s->ready = false;
}
