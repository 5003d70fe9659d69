/* A model over the mapping of a GGUF file. The mapping lives as long as any tensor that lies in it:
 * each wrapped tensor counts as one of its users, and opening is one too. */
#include "model/open.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "model/arch.h"
#include "model/convert.h"
#include "model/cut.h"
#include "model/files.h"
#include "model/layout.h"
#include "tensor/quant.h"
#include <string.h>

typedef struct mapping {
    km_gguf *g;
    int users;
} mapping;

static void drop(void *owner) {
    mapping *m = owner;
    if (--m->users > 0) return;
    km_gguf_close(m->g);
    km_free(m);
}

/* What the layers are made from. */
typedef struct shelf {
    mapping *map;
    km_layout layout;
    km_stored *stored; /* one a row of the layout */
    km_config config;  /* of the whole */
    km_share share;
    const km_open_options *how;
    uint64_t done, total; /* bytes */
} shelf;

/* Told after each tensor. */
static void tell(shelf *s, km_ctx *ctx, size_t bytes) {
    s->done += bytes;
    if (s->done > s->total) s->done = s->total; /* a tied table is taken twice by two parts */
    if (s->how->progress && !s->how->progress(s->how->user, s->done, s->total))
        km_fail(ctx, KM_ERR_STATE, "stopped");
}

/* Layers ask in the order of the layout, but for one or two. */
static int row_named(const shelf *s, const char *name) {
    for (int i = 0; i < s->layout.n; i++)
        if (strcmp(s->layout.row[i].name, name) == 0) return i;
    return -1;
}

static size_t align_of(km_dtype d) { return km_dtype_is_block(d) ? 2 : km_dtype_size(d); }

/* Elements copied as f32: norms and biases that the file has in 16 bits, and on a GPU all of
 * them. */
static km_tensor *converted(km_ctx *ctx, const km_layout_row *r, const km_stored *st) {
    size_t n = (size_t)km_shape_count(r->shape);
    float *room = km_alloc(n * sizeof *room);
    km_error err = {0};
    km_tensor *t = NULL;
    if (!room)
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", r->gguf);
    else if (km_dtype_is_block(st->dtype))
        km_dequantise(st->dtype, st->data, (int64_t)n, room);
    else if (km_layout_copy(r, st, KM_STORE_GGUF, KM_STORE_GGUF, KM_F32, 0, n, room, &err) != KM_OK)
        km_fail(ctx, err.code, "%s", err.text);
    if (!km_failed(ctx)) {
        km_scope_begin(ctx);
        t = km_keep(ctx, km_from_data(ctx, KM_F32, r->shape, room));
        km_scope_end(ctx, NULL);
    }
    km_free(room);
    return t;
}

static void drop_room(void *owner) { km_free(owner); }

/* room: where the data was put together, if it was; it goes with the tensor if that lies in it. */
static km_tensor *place(shelf *s, km_ctx *ctx, const char *name, const km_layout_row *r,
                        const km_stored *st, void *room) {
    km_shape shape = r->shape;
    bool host = ctx->device->host && (uintptr_t)st->data % align_of(st->dtype) == 0;
    bool halves = (st->dtype == KM_F16 || st->dtype == KM_BF16) && shape.ndim == 2;
    bool whole = st->dtype == KM_F32 || km_dtype_is_block(st->dtype) || halves;
    /* A GPU takes rows of whole units of 64; what has others becomes f32. */
    bool fits = shape.ndim == 2 && shape.dim[1] % 64 == 0 && st->dtype != KM_F32;
    if (!whole || !st->data || (halves && ctx->device->host && !host) || (!host && !fits))
        return converted(ctx, r, st);
    if (host) {
        km_tensor *t = room ? km_wrap(ctx, name, st->dtype, shape, room, drop_room, room)
                            : km_wrap(ctx, name, st->dtype, shape, st->data, drop, s->map);
        if (t && !room) s->map->users++;
        return t;
    }
    km_scope_begin(ctx);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, st->dtype, shape, st->data));
    km_scope_end(ctx, NULL);
    km_settle(ctx, t);
    return t;
}

/* A rank's part that is not in one piece in the file is put together in memory. */
static km_tensor *place_part(shelf *s, km_ctx *ctx, const char *name, const km_cut *cut,
                             const km_layout_row *whole, const km_stored *stored) {
    km_layout_row r = *whole;
    km_stored st = *stored;
    km_error err = {0};
    r.shape = cut->shape;
    st.data = km_cut_in_place(cut, st.dtype, whole->shape, stored->data);
    if (st.data || !stored->data) return place(s, ctx, name, &r, &st, NULL);
    void *room = km_alloc(km_cut_bytes(cut, st.dtype));
    st.data = room;
    if (!room)
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", r.gguf);
    else if (km_cut_copy(cut, st.dtype, whole->shape, stored->data, room, &err) != KM_OK)
        km_fail(ctx, err.code, "%s: %s", r.gguf, err.text);
    km_tensor *t = km_failed(ctx) ? NULL : place(s, ctx, name, &r, &st, room);
    if (!t || t->storage->owner != room) km_free(room);
    return t;
}

static km_tensor *take(void *user, km_ctx *ctx, const char *name, km_shape shape) {
    shelf *s = user;
    int i = row_named(s, name);
    if (i < 0) {
        km_fail(ctx, KM_ERR_STATE, "model: '%s' has no place in the file", name);
        return NULL;
    }
    const km_layout_row *r = &s->layout.row[i];
    km_cut cut = km_share_cut(&s->config, &s->share, r);
    if (!km_shape_equal(cut.shape, shape)) {
        km_fail(ctx, KM_ERR_STATE, "model: ranks cannot share '%s'", r->gguf);
        return NULL;
    }
    km_tensor *t = place_part(s, ctx, name, &cut, r, &s->stored[i]);
    if (t) tell(s, ctx, km_cut_bytes(&cut, s->stored[i].dtype));
    return t;
}

/* Those for long contexts where the context is longer than the one trained on. */
static const float *divisors(const km_gguf *g, const km_config *c) {
    if (c->rope.kind != KM_ROPE_DIVISORS) return NULL;
    const km_gguf_tensor *t = km_gguf_find(g, "rope_freqs.weight");
    const km_gguf_tensor *near = km_gguf_find(g, "rope_factors_short.weight");
    const km_gguf_tensor *far = km_gguf_find(g, "rope_factors_long.weight");
    if (!t)
        t = near && far && c->context <= c->rope.original && near->bytes == far->bytes ? near : far;
    return t && (uintptr_t)t->data % sizeof(float) == 0 ? t->data : NULL;
}

static km_status find_all(shelf *s, km_error *err) {
    const km_config *c = &s->config;
    km_weights w = {.gguf = s->map->g, .blocks = true};
    int ranks = km_comm_size(s->how->comm);
    km_status status = km_layout_of(c, &s->layout, err);
    if (status != KM_OK) return status;
    s->stored = km_calloc((size_t)s->layout.n, sizeof *s->stored);
    if (!s->stored) return km_no_memory(err);
    status = km_weights_find(&w, c, &s->layout, s->stored, err);
    if (status == KM_OK && ranks > 1 && s->how->split && s->how->split->n > 1)
        status = km_error_set(err, KM_ERR_UNSUPPORTED,
                              "a model can be split over devices or over ranks, not over both");
    if (status == KM_OK && ranks > 1)
        status = km_share_of(c, &s->layout, s->stored, km_comm_rank(s->how->comm), ranks, &s->share,
                             err);
    for (int i = 0; i < s->layout.n && status == KM_OK; i++) {
        km_cut cut = km_share_cut(c, &s->share, &s->layout.row[i]);
        s->total += km_cut_bytes(&cut, s->stored[i].dtype);
    }
    return status;
}

static void expect_all(const shelf *s, km_ctx *ctx) {
    km_expecting e = km_net_expecting(ctx, s->how->split);
    for (int i = 0; i < s->layout.n; i++) {
        km_cut cut = km_share_cut(&s->config, &s->share, &s->layout.row[i]);
        km_net_expect(&e, s->stored[i].dtype, km_cut_bytes(&cut, s->stored[i].dtype));
    }
}

km_net *km_net_over_gguf(km_ctx *ctx, km_gguf *g, const km_open_options *options, km_error *err) {
    static const km_open_options none;
    km_net *m = NULL;
    shelf s = {.map = km_calloc(1, sizeof *s.map), .how = options ? options : &none};
    int64_t context = s.how->context;
    if (!s.map) {
        km_gguf_close(g);
        km_no_memory(err);
        return NULL;
    }
    *s.map = (mapping){g, 1};
    km_status status = km_config_from_gguf(&s.config, g, err);
    if (status == KM_OK) status = find_all(&s, err);
    km_config c = s.config;
    bool shorter = context > 0 && context < c.context;
    if (status == KM_OK && shorter && c.arch != KM_ARCH_GPT2) c.context = context;
    if (status == KM_OK) {
        km_net_source source = {.params = {take, &s},
                                .pairs = km_arch_traits(c.arch)->gguf_pairs,
                                .divisors = divisors(g, &c),
                                .comm = s.share.ranks ? s.how->comm : NULL,
                                .share = s.share};
        expect_all(&s, ctx);
        m = km_net_parts(ctx, &c, KM_F32, &source, s.how->split, err);
        for (km_net *part = m; part && shorter; part = part->next) part->config.context = context;
    }
    if (m && km_gguf_check(g, err) != KM_OK) { /* the tokens' names, rotations: what is no tensor */
        km_net_free(m);
        m = NULL;
    }
    km_layout_free(&s.layout);
    km_free(s.stored);
    drop(s.map);
    return m;
}

km_net *km_net_open(km_ctx *ctx, const char *path, const km_open_options *options, km_error *err) {
    km_open_options o = options ? *options : (km_open_options){.dtype = KM_DTYPE_COUNT};
    if (km_is_gguf(path)) {
        km_gguf *g = km_gguf_open(path, err);
        return g ? km_net_over_gguf(ctx, g, &o, err) : NULL;
    }
    bool ranks = km_comm_size(o.comm) > 1;
    if (ranks || (o.split && o.split->n > 1)) {
        km_error_set(err, KM_ERR_UNSUPPORTED,
                     "only a GGUF file can be split over %s; kermes convert makes one",
                     ranks ? "ranks" : "devices");
        return NULL;
    }
    km_net *m = km_net_load(ctx, path, o.dtype, err);
    if (m && o.context > 0 && o.context < m->config.context) m->config.context = o.context;
    return m;
}
