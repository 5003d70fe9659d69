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
