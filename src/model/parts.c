/* Parts of a model, each in a context of its own. */
#include "model/parts.h"
#include "base/alloc.h"
#include "tensor/dtype.h"
#include <stdio.h>
#include <string.h>

/* ---- Weights that stay in the host's memory ---- */

/* A context of the host that has them; it goes with the last of them. */
typedef struct lender {
    km_ctx *host;
    int users;
} lender;

typedef struct loan {
    lender *from;
    km_tensor *t; /* kept, of the host */
} loan;

static void settle_up(lender *l) {
    if (--l->users > 0) return;
    km_ctx_free(l->host);
    km_free(l);
}

static void give_back(void *owner) {
    loan *a = owner;
    km_release(a->t);
    settle_up(a->from);
    km_free(a);
}

typedef struct streaming {
    const km_nn_source *from;
    lender *lender;
    int first, last; /* layers whose matrices stay */
} streaming;

/* The layer that a parameter belongs to, or -1. */
static int layer_of(const char *name) {
    int layer = -1;
    if (sscanf(name, "model.layers.%d.", &layer) != 1) sscanf(name, "transformer.h.%d.", &layer);
    return layer;
}

/* What layers can bring over: km_wrap says so. */
bool km_net_can_lend(km_dtype dtype, km_shape shape) {
    bool kind = km_dtype_is_block(dtype) || dtype == KM_F16 || dtype == KM_BF16;
    return kind && shape.ndim == 2 && shape.dim[1] % 64 == 0;
}

static km_tensor *lent(streaming *s, km_ctx *ctx, const char *name, km_tensor *t) {
    loan *a = km_alloc(sizeof *a);
    km_tensor *here = NULL;
    if (a) {
        *a = (loan){s->lender, t};
        here = km_wrap(ctx, name, t->dtype, t->shape, km_tensor_ptr(t), give_back, a);
        if (here) s->lender->users++;
    } else {
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", name);
    }
    if (!here) km_free(a);
    return here;
}

static km_tensor *take(void *user, km_ctx *ctx, const char *name, km_shape shape) {
    streaming *s = user;
    int layer = layer_of(name);
    if (layer < s->first || layer >= s->last || shape.ndim != 2)
        return s->from->take(s->from->user, ctx, name, shape);
    km_tensor *t = s->from->take(s->from->user, s->lender->host, name, shape), *here = NULL;
    if (!t) km_fail(ctx, km_ctx_status(s->lender->host), "%s", km_ctx_error(s->lender->host));
    if (t && km_net_can_lend(t->dtype, t->shape)) here = lent(s, ctx, name, t);
    if (here) return here;
    km_release(t);
    return km_failed(ctx) ? NULL : s->from->take(s->from->user, ctx, name, shape);
}

static km_net *streamed_part(km_ctx *ctx, const km_config *c, km_dtype dtype,
                             const km_net_source *source, int layers, km_error *err) {
    lender *l = km_calloc(1, sizeof *l);
    if (l) l->host = km_ctx_new("cpu", 1);
    if (!l || !l->host) {
        km_free(l);
        km_error_set(err, KM_ERR_MEMORY, "model: out of memory");
        return NULL;
    }
    l->users = 1; /* this function */
    streaming s = {&source->params, l, source->first, source->first + layers};
    km_net_source own = *source;
    own.params = (km_nn_source){take, &s};
    km_net *m = km_net_from(ctx, c, dtype, &own);
    if (!m) km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    settle_up(l);
    return m;
}

/* ---- Parts ---- */

km_expecting km_net_expecting(km_ctx *ctx, const km_open_split *split) {
    bool whole = !split || split->n < 1 || (split->n == 1 && split->streamed[0] == 0);
    return (km_expecting){.ctx = whole ? ctx : NULL};
}

void km_net_expect(km_expecting *e, km_dtype dtype, size_t bytes) {
    if (!e->ctx || bytes == 0) return;
    km_expect_bytes(e->ctx, bytes);
    if (!km_dtype_is_block(dtype)) return;
    for (int i = 0; i < e->n; i++)
        if (e->spare[i] == bytes) return;
    if (e->n == (int)(sizeof e->spare / sizeof *e->spare)) return;
    e->spare[e->n++] = bytes;
    km_expect_bytes(e->ctx, bytes);
}

static km_net *one_part(km_ctx *ctx, const km_config *c, km_dtype dtype,
                        const km_net_source *source, int streamed, km_error *err) {
    ctx->must_fit = true;
    km_net *m = streamed > 0 ? streamed_part(ctx, c, dtype, source, streamed, err)
                             : km_net_from(ctx, c, dtype, source);
    ctx->must_fit = false;
    if (!m && !streamed) km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    km_expect_bytes(ctx, 0);
    if (!ctx->device->host) km_trim(ctx); /* what laying weights out took */
    return m;
}

km_net *km_net_parts(km_ctx *ctx, const km_config *c, km_dtype dtype, const km_net_source *source,
                     const km_open_split *split, km_error *err) {
    if (!split || split->n < 1) return one_part(ctx, c, dtype, source, 0, err);
    if (split->n == 1) return one_part(ctx, c, dtype, source, split->streamed[0], err);
    km_net *whole = NULL, **next = &whole;
    int first = 0;
    for (int i = 0; i < split->n; i++) {
        km_net_source part = *source;
        part.first = first;
        part.last = first += split->layers[i];
        bool wrong =
            split->layers[i] < 1 || first > c->layers || (i == split->n - 1 && first != c->layers);
        km_ctx *own = i == 0 || wrong ? ctx : km_ctx_new(split->device[i], km_ctx_threads(ctx));
        if (own) own->activations = ctx->activations;
        if (wrong)
            km_error_set(err, KM_ERR_RANGE, "the parts do not make up the model's %d layers",
                         c->layers);
        else if (!own)
            km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
        km_net *m = own && !wrong ? one_part(own, c, dtype, &part, split->streamed[i], err) : NULL;
        if (!m) {
            if (own != ctx) km_ctx_free(own);
            km_net_free(whole);
            return NULL;
        }
        m->own_ctx = i > 0;
        *next = m;
        next = &m->next;
    }
    return whole;
}

km_net *km_net_failed(km_net *m) {
    for (km_net *p = m; p; p = p->next) {
        if (!km_failed(p->ctx)) continue;
        if (!km_failed(m->ctx)) km_fail(m->ctx, km_ctx_status(p->ctx), "%s", km_ctx_error(p->ctx));
        return p;
    }
    return NULL;
}

km_net *km_net_end(km_net *m) {
    while (m->next) m = m->next;
    return m;
}

km_tensor *km_net_pass(km_ctx *to, km_tensor *t) {
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

const char *km_net_devices(const km_net *m, char *buf, size_t n) {
    size_t at = 0;
    if (!m->next) {
        snprintf(buf, n, "%s", km_ctx_device(m->ctx));
        return buf;
    }
    for (const km_net *p = m; p && at < n; p = p->next) {
        int w = snprintf(buf + at, n - at, "%s%s %d", at ? " + " : "", km_ctx_device(p->ctx),
                         p->last - p->first);
        at += w > 0 ? (size_t)w : 0;
    }
    return buf;
}
