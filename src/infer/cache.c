/* Making and freeing the cache of keys and values. */
#include "infer/cache.h"
#include "base/alloc.h"

static int64_t room_of(const km_model *m, int64_t room) { return room ? room : m->config.context; }

km_cache *km_cache_new(km_ctx *ctx, const km_model *m, int64_t batch, int64_t room) {
    if (km_failed(ctx)) return NULL;
    const km_config *c = &m->config;
    room = room_of(m, room);
    if (batch < 1 || room < 1 || room > c->context) {
        km_fail(ctx, KM_ERR_RANGE, "cache: %lld rows of %lld tokens; the model's context is %lld",
                (long long)batch, (long long)room, (long long)c->context);
        return NULL;
    }
    km_cache *cache = km_calloc(1, sizeof *cache);
    km_nn_kv *kv = cache ? km_calloc((size_t)c->layers, sizeof *kv) : NULL;
    if (!kv) {
        km_free(cache);
        km_fail(ctx, KM_ERR_MEMORY, "cache: out of memory");
        return NULL;
    }
    *cache = (km_cache){.kv = kv, .batch = batch, .room = room};
    km_shape s = KM_SHAPE(batch, c->kv_heads, room, c->head_dim);
    km_scope_begin(ctx);
    for (int i = 0; i < c->layers; i++) {
        kv[i].k = km_keep(ctx, km_zeros(ctx, m->dtype, s));
        kv[i].v = km_keep(ctx, km_zeros(ctx, m->dtype, s));
    }
    km_scope_end(ctx, NULL);
    if (!km_failed(ctx)) return cache;
    km_cache_free(cache, m);
    return NULL;
}

/* One of the two, with its tokens, in a new place. */
static km_tensor *grown(km_ctx *ctx, km_tensor *old, km_shape s, int64_t length) {
    km_tensor *t = km_keep(ctx, km_zeros(ctx, old->dtype, s));
    if (t && length > 0)
        km_assign(ctx, km_narrow(ctx, t, 2, 0, length), km_narrow(ctx, old, 2, 0, length));
    if (!km_failed(ctx)) return t;
    km_release(t);
    return NULL;
}

km_status km_cache_reserve(km_ctx *ctx, km_cache *c, const km_model *m, int64_t tokens) {
    if (tokens <= c->room || km_failed(ctx)) return km_ctx_status(ctx);
    int64_t most = m->config.context, room = 2 * c->room > tokens ? 2 * c->room : tokens;
    if (room > most) room = most;
    if (tokens > room)
        return km_fail(ctx, KM_ERR_RANGE, "cache: %lld tokens; the model's context is %lld",
                       (long long)tokens, (long long)most);
    km_shape s = KM_SHAPE(c->batch, m->config.kv_heads, room, m->config.head_dim);
    for (int i = 0; i < m->config.layers && !km_failed(ctx); i++) {
        km_tensor **both[] = {&c->kv[i].k, &c->kv[i].v};
        for (int j = 0; j < 2; j++) {
            km_scope_begin(ctx);
            km_tensor *t = grown(ctx, *both[j], s, c->length);
            km_scope_end(ctx, NULL);
            if (!t) return km_ctx_status(ctx);
            km_release(*both[j]);
            *both[j] = t;
        }
    }
    c->room = room;
    return km_ctx_status(ctx);
}

void km_cache_free(km_cache *c, const km_model *m) {
    if (!c) return;
    for (int i = 0; i < m->config.layers; i++) {
        km_release(c->kv[i].k);
        km_release(c->kv[i].v);
    }
    km_free(c->kv);
    km_free(c);
}

size_t km_cache_bytes(const km_model *m, int64_t batch, int64_t room) {
    const km_config *c = &m->config;
    return 2 * (size_t)c->layers * (size_t)batch * (size_t)c->kv_heads * (size_t)room_of(m, room) *
           (size_t)c->head_dim * km_dtype_size(m->dtype);
}
