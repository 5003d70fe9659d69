/* Parts of a model, each in a context of its own. */
#include "model/parts.h"
#include "base/alloc.h"
#include <stdio.h>
#include <string.h>

static km_model *one_part(km_ctx *ctx, const km_config *c, km_dtype dtype,
                          const km_model_source *source, km_error *err) {
    km_model *m = km_model_from(ctx, c, dtype, source);
    if (!m) km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    if (!ctx->device->host) km_trim(ctx); /* what laying weights out took */
    return m;
}

km_model *km_model_parts(km_ctx *ctx, const km_config *c, km_dtype dtype,
                         const km_model_source *source, const km_open_split *split, km_error *err) {
    if (!split || split->n <= 1) return one_part(ctx, c, dtype, source, err);
    km_model *whole = NULL, **next = &whole;
    int first = 0;
    for (int i = 0; i < split->n; i++) {
        km_model_source part = *source;
        part.first = first;
        part.last = first += split->layers[i];
        bool wrong =
            split->layers[i] < 1 || first > c->layers || (i == split->n - 1 && first != c->layers);
        km_ctx *own = i == 0 || wrong ? ctx : km_ctx_new(split->device[i], km_ctx_threads(ctx));
        if (wrong)
            km_error_set(err, KM_ERR_RANGE, "the parts do not make up the model's %d layers",
                         c->layers);
        else if (!own)
            km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
        km_model *m = own && !wrong ? one_part(own, c, dtype, &part, err) : NULL;
        if (!m) {
            if (own != ctx) km_ctx_free(own);
            km_model_free(whole);
            return NULL;
        }
        m->own_ctx = i > 0;
        *next = m;
        next = &m->next;
    }
    return whole;
}

km_model *km_model_failed(km_model *m) {
    for (km_model *p = m; p; p = p->next) {
        if (!km_failed(p->ctx)) continue;
        if (!km_failed(m->ctx)) km_fail(m->ctx, km_ctx_status(p->ctx), "%s", km_ctx_error(p->ctx));
        return p;
    }
    return NULL;
}

km_model *km_model_end(km_model *m) {
    while (m->next) m = m->next;
    return m;
}

km_tensor *km_model_pass(km_ctx *to, km_tensor *t) {
    if (!t || km_failed(to)) return NULL;
    size_t bytes = (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
    void *room = km_alloc(bytes ? bytes : 1);
    if (!room) {
        km_fail(to, KM_ERR_MEMORY, "model: out of memory");
        return NULL;
    }
    km_tensor *there = NULL;
    if (km_read(t->ctx, t, room, bytes) == KM_OK)
        there = km_from_data(to, t->dtype, t->shape, room);
    km_free(room);
    return there;
}

const char *km_model_devices(const km_model *m, char *buf, size_t n) {
    size_t at = 0;
    if (!m->next) {
        snprintf(buf, n, "%s", km_ctx_device(m->ctx));
        return buf;
    }
    for (const km_model *p = m; p && at < n; p = p->next) {
        int w = snprintf(buf + at, n - at, "%s%s %d", at ? " + " : "", km_ctx_device(p->ctx),
                         p->last - p->first);
        at += w > 0 ? (size_t)w : 0;
    }
    return buf;
}
