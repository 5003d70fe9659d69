/* A random model in a device's memory. Speed does not depend on values but on where they lie: every
 * tensor has memory of its own, filled from one piece of random blocks of its type. */
#include "base/alloc.h"
#include "model/arch.h"
#include "model/layout.h"
#include "model/synthetic.h"
#include "tensor/dtype.h"
#include <string.h>

#define PIECE ((size_t)1 << 20) /* bytes of random blocks, about */

typedef struct model_maker {
    const km_config *c;
    const km_mix *mix;
    uint64_t seed;
    km_layout layout;
    char *room; /* on a GPU: where a tensor is put together before it goes there */
    size_t cap;
    km_synthetic_progress progress;
    void *user;
    uint64_t done, total;
} model_maker;

static km_dtype dtype_of(const model_maker *k, const km_layout_row *r) {
    km_mix_model model = {k->c->layers, k->c->heads / k->c->kv_heads, k->c->tied, false};
    return km_mix_dtype(k->mix, &model, r->gguf, r->shape);
}

static const km_layout_row *row_named(const model_maker *k, const char *name) {
    for (int i = 0; i < k->layout.n; i++)
        if (strcmp(k->layout.row[i].name, name) == 0) return &k->layout.row[i];
    return NULL;
}

/* A piece of whole blocks, then copies of it. */
static void fill(const model_maker *k, const km_layout_row *r, km_dtype d, char *dst,
                 size_t bytes) {
    size_t piece = PIECE / km_dtype_size(d) * km_dtype_size(d);
    if (piece > bytes) piece = bytes;
    km_synthetic_fill(d, k->seed + (uint64_t)(r - k->layout.row),
                      km_synthetic_spread(r->gguf, r->shape), dst, piece);
    for (size_t at = piece; at < bytes; at += piece)
        memcpy(dst + at, dst, bytes - at < piece ? bytes - at : piece);
}

static char *room_for(model_maker *k, km_ctx *ctx, size_t bytes) {
    if (bytes <= k->cap) return k->room;
    km_free(k->room);
    k->room = km_alloc(bytes);
    k->cap = k->room ? bytes : 0;
    if (!k->room) km_fail(ctx, KM_ERR_MEMORY, "random model: out of memory");
    return k->room;
}

static km_tensor *take(void *user, km_ctx *ctx, const char *name, km_shape shape) {
    model_maker *k = user;
    const km_layout_row *r = row_named(k, name);
    if (!r) {
        km_fail(ctx, KM_ERR_STATE, "random model: '%s' has no place in it", name);
        return NULL;
    }
    km_dtype d = dtype_of(k, r);
    size_t bytes = (size_t)km_dtype_bytes(d, km_shape_count(shape));
    km_scope_begin(ctx);
    km_tensor *t = km_keep(ctx, km_tensor_new(ctx, ctx->lanes[0], name, d, shape));
    km_scope_end(ctx, NULL);
    char *to = !t ? NULL : ctx->device->host ? km_tensor_ptr(t) : room_for(k, ctx, bytes);
    if (to) fill(k, r, d, to, bytes);
    if (to && !ctx->device->host) {
        km_write(ctx, t, to, bytes);
        if (shape.ndim == 2) km_settle(ctx, t);
    }
    k->done += bytes;
    if (k->progress && !k->progress(k->user, k->done, k->total))
        km_fail(ctx, KM_ERR_STATE, "stopped");
    return t;
}

km_net *km_synthetic_model(km_ctx *ctx, const km_config *c, const km_mix *mix, uint64_t seed,
                           const km_open_split *split, km_synthetic_progress progress, void *user,
                           km_error *err) {
    model_maker k = {.c = c, .mix = mix, .seed = seed, .progress = progress, .user = user};
    if (km_synthetic_check(c, err) != KM_OK || km_layout_of(c, &k.layout, err) != KM_OK)
        return NULL;
    km_expecting e = km_net_expecting(ctx, split);
    for (int i = 0; i < k.layout.n; i++) {
        const km_layout_row *r = &k.layout.row[i];
        km_dtype d = dtype_of(&k, r);
        size_t bytes = (size_t)km_dtype_bytes(d, km_shape_count(r->shape));
        km_net_expect(&e, d, bytes);
        k.total += bytes;
    }
    km_net_source source = {.params = {take, &k}, .pairs = km_arch_traits(c->arch)->gguf_pairs};
    km_net *m = km_net_parts(ctx, c, KM_F32, &source, split, err);
    km_layout_free(&k.layout);
    km_free(k.room);
    return m;
}
