/* Pages, their counts, and the tables of sequences. The host's table is the true one; the device's
 * copy is written when a step needs it and something has changed. */
#include "infer/cache.h"
#include "base/alloc.h"
#include "base/util.h"
#include "ops/infer.h"

#define CHUNK 512 /* tokens that are added at once, at most: what a window must leave room for */

typedef struct sequence {
    bool used;
    int64_t length;
    int64_t pages; /* of its table's row that are in use, those given back included */
} sequence;

/* Layers of one context, and its copy of the table. */
typedef struct stock {
    km_ctx *ctx;
    int first, last;
    km_tensor *table; /* kept, on the device */
    bool changed;     /* it is out of date */
} stock;

struct km_cache {
    km_ctx *ctx; /* the first part's, which gets all errors */
    stock part[KM_MAX_PARTS];
    int n_parts;
    int layers;
    int64_t window; /* that all layers have; 0: some see everything */
    int64_t n_seq, max_pages, n_pages;
    km_nn_kv *kv;  /* one a layer */
    int32_t *host; /* (n_seq, max_pages); -1: none */
    sequence *seq;
    int32_t *users;  /* of each page */
    int32_t *unused; /* a stack of pages */
    int64_t n_unused;
};

/* The window that all layers have, or 0. */
static int64_t window_of(const km_config *c) {
    for (int i = 0; i < c->layers; i++)
        if (!km_config_layer_has_window(c, i)) return 0;
    return c->window;
}

static int64_t pages_of(const km_config *c, const km_cache_options *o) {
    int64_t window = window_of(c), each = km_ceil_div(o->context, KM_KV_PAGE);
    int64_t most = window > 0 ? km_ceil_div(window + CHUNK, KM_KV_PAGE) + 2 : each;
    int64_t all = o->sequences * (most < each ? most : each);
    return o->pages > 0 && o->pages < all ? o->pages : all;
}

size_t km_cache_bytes(const km_config *c, const km_cache_options *o) {
    int64_t tokens = pages_of(c, o) * KM_KV_PAGE * c->kv_heads;
    return 2 * (size_t)c->layers * (size_t)km_dtype_bytes(o->dtype, tokens * c->head_dim);
}

int64_t km_cache_pages_in(const km_config *c, const km_cache_options *o, size_t bytes) {
    km_cache_options one = *o;
    one.pages = 1;
    size_t page = km_cache_bytes(c, &one);
    one.pages = 0;
    int64_t most = pages_of(c, &one);
    return bytes / page < (size_t)most ? (int64_t)(bytes / page) : most;
}

static km_status check(km_ctx *ctx, const km_net *m, const km_cache_options *o) {
    const km_config *c = &m->config;
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (o->sequences < 1 || o->sequences > 4096 || o->context < 1 || o->context > c->context)
        return km_fail(ctx, KM_ERR_RANGE,
                       "cache: %lld sequences of %lld tokens; the model's context is %lld",
                       (long long)o->sequences, (long long)o->context, (long long)c->context);
    if (o->dtype != KM_F32 && o->dtype != KM_F16 && o->dtype != KM_BF16 && o->dtype != KM_Q8_0 &&
        o->dtype != KM_Q4_0)
        return km_fail(ctx, KM_ERR_DTYPE, "cache: it can be f32, f16, bf16, q8_0 or q4_0, not %s",
                       km_dtype_name(o->dtype));
    if (c->head_dim % km_dtype_block(o->dtype))
        return km_fail(ctx, KM_ERR_DTYPE,
                       "cache: heads of %lld elements cannot be kept as %s; f16 takes any",
                       (long long)c->head_dim, km_dtype_name(o->dtype));
    return KM_OK;
}

/* An error of another context than the first becomes the first one's too. */
static km_status note_error(km_cache *c, const km_ctx *ctx) {
    if (km_failed(ctx) && !km_failed(c->ctx))
        km_fail(c->ctx, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    return km_ctx_status(c->ctx);
}

static void reserve_part(km_cache *c, const km_net *m, km_dtype dtype, km_shape s) {
    km_ctx *ctx = m->ctx;
    km_lane *lane = ctx->lanes[0];
    stock *p = &c->part[c->n_parts++];
    *p = (stock){.ctx = ctx, .first = m->first, .last = m->last, .changed = true};
    size_t bytes = (size_t)km_dtype_bytes(dtype, km_shape_count(s));
    km_scope_begin(ctx);
    ctx->must_fit = true;
    for (int i = 2 * m->first; i < 2 * m->last; i++) km_expect_bytes(ctx, bytes);
    for (int i = m->first; i < m->last && !km_failed(ctx); i++) {
        c->kv[i].k = km_keep(ctx, km_tensor_new(ctx, lane, "cache", dtype, s));
        c->kv[i].v = km_keep(ctx, km_tensor_new(ctx, lane, "cache", dtype, s));
    }
    p->table =
        km_keep(ctx, km_tensor_new(ctx, lane, "cache", KM_I32, KM_SHAPE(c->n_seq, c->max_pages)));
    km_expect_bytes(ctx, 0);
    ctx->must_fit = false;
    km_scope_end(ctx, NULL);
    note_error(c, ctx);
}

km_cache *km_cache_new(km_ctx *ctx, const km_net *m, const km_cache_options *o) {
    if (check(ctx, m, o) != KM_OK) return NULL;
    const km_config *cfg = &m->config;
    km_cache *c = km_calloc(1, sizeof *c);
    if (!c) {
        km_fail(ctx, KM_ERR_MEMORY, "cache: out of memory");
        return NULL;
    }
    *c = (km_cache){.ctx = ctx,
                    .layers = cfg->layers,
                    .window = window_of(cfg),
                    .n_seq = o->sequences,
                    .max_pages = km_ceil_div(o->context, KM_KV_PAGE),
                    .n_pages = pages_of(cfg, o)};
    c->kv = km_calloc((size_t)cfg->layers, sizeof *c->kv);
    c->host = km_calloc((size_t)(c->n_seq * c->max_pages), sizeof *c->host);
    c->seq = km_calloc((size_t)c->n_seq, sizeof *c->seq);
    c->users = km_calloc((size_t)c->n_pages, sizeof *c->users);
    c->unused = km_calloc((size_t)c->n_pages, sizeof *c->unused);
    if (!c->kv || !c->host || !c->seq || !c->users || !c->unused) {
        km_fail(ctx, KM_ERR_MEMORY, "cache: out of memory");
        km_cache_free(c);
        return NULL;
    }
    for (int64_t i = 0; i < c->n_pages; i++) c->unused[i] = (int32_t)(c->n_pages - 1 - i);
    c->n_unused = c->n_pages;
    km_shape s = KM_SHAPE(c->n_pages, cfg->kv_heads, KM_KV_PAGE, cfg->head_dim);
    for (const km_net *p = m; p && !km_failed(ctx); p = p->next) reserve_part(c, p, o->dtype, s);
    if (!km_failed(ctx)) return c;
    km_cache_free(c);
    return NULL;
}

void km_cache_free(km_cache *c) {
    if (!c) return;
    for (int i = 0; i < c->layers && c->kv; i++) {
        km_release(c->kv[i].k);
        km_release(c->kv[i].v);
    }
    for (int i = 0; i < c->n_parts; i++) km_release(c->part[i].table);
    km_free(c->kv);
    km_free(c->host);
    km_free(c->seq);
    km_free(c->users);
    km_free(c->unused);
    km_free(c);
}

/* ---- Pages ---- */

static void changed(km_cache *c) {
    for (int i = 0; i < c->n_parts; i++) c->part[i].changed = true;
}

static int32_t *table_of(const km_cache *c, int s) { return c->host + s * c->max_pages; }

static void give_back(km_cache *c, int32_t *place) {
    int32_t page = *place;
    *place = -1;
    changed(c);
    if (page >= 0 && --c->users[page] == 0) c->unused[c->n_unused++] = page;
}

static bool take(km_cache *c, int32_t *place) {
    if (c->n_unused == 0) return false;
    *place = c->unused[--c->n_unused];
    c->users[*place] = 1;
    changed(c);
    return true;
}

static km_ctx *pool_ctx(const km_cache *c, int pool) { return c->kv[pool / 2].k->ctx; }

/* A pool as bytes, (pages, bytes of one); off the tape. */
static km_tensor *pool_bytes(km_cache *c, int pool) {
    km_tensor *t = pool % 2 ? c->kv[pool / 2].v : c->kv[pool / 2].k;
    int64_t bytes = (int64_t)km_cache_page_bytes(c), stride[2] = {bytes, 1};
    km_tensor *v = km_tensor_view(t->ctx, t, KM_SHAPE(c->n_pages, bytes), stride, 0);
    if (v) v->dtype = KM_U8;
    return v;
}

static km_tensor *page_of(km_cache *c, int pool, int32_t page) {
    km_tensor *all = pool_bytes(c, pool);
    return all ? km_narrow(all->ctx, all, 0, page, 1) : NULL;
}

/* What page `from` holds, in page `to` as well, in every layer. */
static km_status copy_page(km_cache *c, int32_t from, int32_t to) {
    for (int pool = 0; pool < km_cache_pools(c) && !km_failed(c->ctx); pool++) {
        km_ctx *ctx = pool_ctx(c, pool);
        km_scope_begin(ctx);
        km_assign(ctx, page_of(c, pool, to), page_of(c, pool, from));
        km_scope_end(ctx, NULL);
        note_error(c, ctx);
    }
    return km_ctx_status(c->ctx);
}

static km_status full(const km_cache *c, km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "the cache's %lld tokens are all in use",
                        (long long)(c->n_pages * KM_KV_PAGE));
}

/* ---- Sequences ---- */

int km_cache_join(km_cache *c, km_error *err) {
    for (int s = 0; s < c->n_seq; s++) {
        if (c->seq[s].used) continue;
        c->seq[s] = (sequence){.used = true};
        for (int64_t i = 0; i < c->max_pages; i++) table_of(c, s)[i] = -1;
        changed(c);
        return s;
    }
    km_error_set(err, KM_ERR_RANGE, "all %lld sequences of the session are in use",
                 (long long)c->n_seq);
    return -1;
}

int km_cache_fork(km_cache *c, int from, km_error *err) {
    int s = km_cache_join(c, err);
    if (s < 0) return s;
    c->seq[s] = c->seq[from];
    c->seq[s].pages =
        km_ceil_div(c->seq[s].length, KM_KV_PAGE); /* not those that wait for tokens */
    for (int64_t i = 0; i < c->seq[s].pages; i++) {
        int32_t page = table_of(c, from)[i];
        table_of(c, s)[i] = page;
        if (page >= 0) c->users[page]++;
    }
    return s;
}

void km_cache_leave(km_cache *c, int s) {
    for (int64_t i = 0; i < c->seq[s].pages; i++) give_back(c, &table_of(c, s)[i]);
    c->seq[s] = (sequence){0};
}

void km_cache_pages(const km_cache *c, int64_t *all, int64_t *unused) {
    *all = c->n_pages;
    *unused = c->n_unused;
}

int64_t km_cache_length(const km_cache *c, int s) { return c->seq[s].length; }

int64_t km_cache_pages_left(const km_cache *c) { return c->n_unused; }

int64_t km_cache_pages_for(const km_cache *c, int s, int64_t n) {
    const sequence *q = &c->seq[s];
    int64_t pages = km_ceil_div(q->length + n, KM_KV_PAGE), partial = q->length / KM_KV_PAGE;
    bool shared = n > 0 && q->length % KM_KV_PAGE && c->users[table_of(c, s)[partial]] > 1;
    return (pages > q->pages ? pages - q->pages : 0) + shared;
}

km_status km_cache_reserve(km_cache *c, int s, int64_t n, km_error *err) {
    sequence *q = &c->seq[s];
    int32_t *table = table_of(c, s);
    int64_t pages = km_ceil_div(q->length + n, KM_KV_PAGE), partial = q->length / KM_KV_PAGE;
    if (pages > c->max_pages)
        return km_error_set(err, KM_ERR_RANGE, "%lld tokens after %lld do not fit a cache of %lld",
                            (long long)n, (long long)q->length,
                            (long long)(c->max_pages * KM_KV_PAGE));
    if (km_cache_pages_for(c, s, n) > c->n_unused) return full(c, err);
    if (n > 0 && q->length % KM_KV_PAGE && c->users[table[partial]] > 1) {
        int32_t shared = table[partial], own;
        if (!take(c, &own)) return full(c, err);
        if (copy_page(c, shared, own) != KM_OK) {
            give_back(c, &own);
            return km_error_set(err, km_ctx_status(c->ctx), "%s", km_ctx_error(c->ctx));
        }
        give_back(c, &table[partial]);
        table[partial] = own;
    }
    for (; q->pages < pages; q->pages++)
        if (!take(c, &table[q->pages])) return full(c, err);
    return KM_OK;
}

void km_cache_add(km_cache *c, int s, int64_t n) {
    sequence *q = &c->seq[s];
    q->length += n;
    if (!c->window) return;
    /* The next token sees position length - window + 1 and later ones. */
    for (int64_t i = 0; (i + 1) * KM_KV_PAGE <= q->length - c->window + 1; i++)
        if (table_of(c, s)[i] >= 0) give_back(c, &table_of(c, s)[i]);
}

bool km_cache_can_cut(const km_cache *c, int s, int64_t length) {
    if (length < 0 || length > c->seq[s].length) return false;
    int64_t first = c->window && length >= c->window ? length - c->window + 1 : 0;
    for (int64_t i = first / KM_KV_PAGE; i * KM_KV_PAGE < length; i++)
        if (table_of(c, s)[i] < 0) return false;
    return true;
}

bool km_cache_cut(km_cache *c, int s, int64_t length) {
    sequence *q = &c->seq[s];
    if (!km_cache_can_cut(c, s, length)) return false;
    int64_t pages = km_ceil_div(length, KM_KV_PAGE);
    for (; q->pages > pages; q->pages--) give_back(c, &table_of(c, s)[q->pages - 1]);
    q->length = length;
    return true;
}

/* ---- Steps ---- */

km_status km_cache_place(km_cache *c, int part, km_tensor *rows, int64_t last, km_net_place *out) {
    stock *p = &c->part[part];
    if (p->changed && km_write(p->ctx, p->table, c->host,
                               sizeof *c->host * (size_t)(c->n_seq * c->max_pages)) != KM_OK)
        return note_error(c, p->ctx);
    p->changed = false;
    *out = (km_net_place){.kv = c->kv, .at = {.rows = rows, .table = p->table, .last = last}};
    return KM_OK;
}

/* ---- Files ---- */

size_t km_cache_page_bytes(const km_cache *c) {
    const km_tensor *t = c->kv[0].k;
    return (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape) / c->n_pages);
}

int km_cache_pools(const km_cache *c) { return 2 * c->layers; }

bool km_cache_has_page(const km_cache *c, int s, int64_t i) {
    return i >= 0 && i * KM_KV_PAGE < c->seq[s].length && table_of(c, s)[i] >= 0;
}

km_status km_cache_page_read(km_cache *c, int s, int64_t i, int pool, void *to) {
    km_ctx *ctx = pool_ctx(c, pool);
    km_scope_begin(ctx);
    km_read(ctx, page_of(c, pool, table_of(c, s)[i]), to, km_cache_page_bytes(c));
    km_scope_end(ctx, NULL);
    return note_error(c, ctx);
}

km_status km_cache_page_write(km_cache *c, int s, int64_t i, int pool, const void *from) {
    km_ctx *ctx = pool_ctx(c, pool);
    km_scope_begin(ctx);
    km_write(ctx, page_of(c, pool, table_of(c, s)[i]), from, km_cache_page_bytes(c));
    km_scope_end(ctx, NULL);
    return note_error(c, ctx);
}

km_status km_cache_restore(km_cache *c, int s, int64_t length, int64_t absent, km_error *err) {
    sequence *q = &c->seq[s];
    int64_t pages = km_ceil_div(length, KM_KV_PAGE);
    if (pages > c->max_pages || absent < 0 || absent > pages)
        return km_error_set(err, KM_ERR_RANGE, "%lld tokens do not fit a cache of %lld",
                            (long long)length, (long long)(c->max_pages * KM_KV_PAGE));
    for (; q->pages < pages; q->pages++)
        if (q->pages >= absent && !take(c, &table_of(c, s)[q->pages])) return full(c, err);
    q->length = length;
    return KM_OK;
}
