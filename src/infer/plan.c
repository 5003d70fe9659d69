/* Steps of a running model. Their inputs are kept tensors that are written before each run, so that
 * nothing about a step but its number of rows is fixed when it is captured. */
#include "base/alloc.h"
#include "base/util.h"
#include "infer/plan_impl.h"
#include <stdatomic.h>
#include <string.h>

/* Of GPUs, rows that kernels treat each by itself where they have such a way (Vulkan's). */
#define GPU_ALONE 64
/* Steps of more rows than this keep much memory for their results: only a few of them are kept. */
#define LARGE 64
#define LARGE_KEPT 4

static atomic_llong fails_at; /* 0: never */

void km_plan_fail_at(int64_t n) { atomic_store(&fails_at, n); }

bool km_plan_faulty(void) {
    if (atomic_load_explicit(&fails_at, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub(&fails_at, 1) == 1;
}

bool km_adapter_mix_equal(const km_adapter_mix *a, const km_adapter_mix *b) {
    bool same = a->n == b->n;
    for (int i = 0; i < a->n && same; i++)
        same = a->slot[i] == b->slot[i] && a->scale[i] == b->scale[i];
    return same;
}

void km_plan_cancel_by(km_plan *p, const atomic_bool *flag) { p->cancel = flag; }

void km_plan_mixes(km_plan *p, const km_adapter_mix *mix) { p->mix = mix; }

km_plan *km_plan_new(km_ctx *ctx, km_net *m, km_cache *cache) {
    if (km_failed(ctx)) return NULL;
    km_plan *p = km_calloc(1, sizeof *p);
    if (p) p->ids = km_calloc(KM_PROMPT_CHUNK, sizeof *p->ids);
    if (p) p->rows = km_calloc(2 * KM_PROMPT_CHUNK, sizeof *p->rows);
    if (p && m->next)
        p->stream = km_calloc(KM_STEP_ROWS * (size_t)m->config.dim, sizeof *p->stream);
    if (!p || !p->ids || !p->rows || (m->next && !p->stream)) {
        if (p) km_free(p->ids);
        if (p) km_free(p->rows);
        km_free(p);
        km_fail(ctx, KM_ERR_MEMORY, "plan: out of memory");
        return NULL;
    }
    p->ctx = ctx;
    p->m = m;
    p->cache = cache;
    p->host = km_net_end(m)->ctx->device->host;
    return p;
}

static void free_shape(km_plan_shape *s) {
    for (int k = 0; k < KM_MAX_PARTS; k++) {
        km_plan_piece *a = &s->part[k];
        for (int w = 0; w < 2; w++) {
            km_graph_free(a->way[w].graph);
            km_graph_free(a->way[w].chosen);
            km_release(a->way[w].out);
        }
        km_release(a->mix);
        km_release(a->settings);
        km_release(a->state);
        km_release(a->next);
        km_release(a->in);
        km_release(a->rows);
    }
    km_free(s);
}

void km_plan_free(km_plan *p) {
    if (!p) return;
    if (p->own) km_release(p->logits);
    for (int i = 0; i < p->n_shapes; i++) free_shape(p->shape[i]);
    km_free(p->shape);
    km_free(p->ids);
    km_free(p->rows);
    km_free(p->mixes);
    km_free(p->stream);
    km_free(p);
}

static km_tensor *logits_of(km_net *m, km_tensor *hidden) {
    return km_cast(m->ctx, km_net_logits(m->ctx, m, hidden), KM_F32);
}

km_tensor *km_plan_run_part(km_net *m, km_tensor *in, const km_net_place *place) {
    km_ctx *ctx = m->ctx;
    km_no_grad_begin(ctx);
    km_tensor *y = km_net_forward(ctx, m, in, place);
    if (y && !m->next) y = logits_of(m, y);
    km_no_grad_end(ctx);
    return y;
}

void km_plan_step(km_ctx *ctx, void *user) {
    km_plan_piece *a = user;
    km_plan_way *w = km_plan_way_of(a);
    km_tensor *y = km_plan_run_part(a->m, a->in, &a->place);
    km_release(w->out); /* of the run before */
    w->out = km_keep(ctx, y);
}

km_status km_plan_failed(km_plan *p) {
    km_net_failed(p->m);
    return km_ctx_status(p->ctx);
}

/* ---- Sizes ---- */

int64_t km_plan_padded(const km_plan *p, int64_t n) {
    static const int16_t sizes[] = {24, 32, 48, 64, 96, 128, 192, 256, 384, KM_STEP_ROWS};
    if (p->host || n <= KM_FEW_ROWS) return n;
    int i = 0;
    while (sizes[i] < n) i++;
    return sizes[i];
}

void km_plan_pad(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n, int64_t padded) {
    int64_t pad = padded - n;
    for (int64_t i = 0; i < pad; i++) {
        p->ids[i] = 0;
        p->rows[2 * i] = p->rows[2 * i + 1] = -1;
    }
    memcpy(p->ids + pad, ids, sizeof *ids * (size_t)n);
    memcpy(p->rows + 2 * pad, rows, sizeof *rows * 2 * (size_t)n);
}

/* The one that was not needed for longest, where there are as many large ones as are kept. */
static void make_room(km_plan *p) {
    int large = 0, oldest = -1;
    for (int i = 0; i < p->n_shapes; i++) {
        if (p->shape[i]->n <= LARGE) continue;
        large++;
        if (oldest < 0 || p->shape[i]->used < p->shape[oldest]->used) oldest = i;
    }
    if (large < LARGE_KEPT) return;
    if (!p->own) p->logits = NULL; /* which may be that one's */
    free_shape(p->shape[oldest]);
    p->shape[oldest] = p->shape[--p->n_shapes];
}

static km_plan_shape *new_shape(km_plan *p, int64_t n, int64_t last) {
    if (n > LARGE) make_room(p);
    if (p->n_shapes == p->cap_shapes) {
        int cap = p->cap_shapes + 16;
        km_plan_shape **more = km_realloc(p->shape, sizeof(km_plan_shape *) * (size_t)cap);
        if (!more) return NULL;
        p->shape = more;
        p->cap_shapes = cap;
    }
    km_plan_shape *s = km_calloc(1, sizeof *s);
    if (s) p->shape[p->n_shapes++] = s;
    return s;
}

km_plan_shape *km_plan_shape_of(km_plan *p, int64_t n, int64_t last) {
    km_plan_shape *s = NULL;
    for (int i = 0; i < p->n_shapes && !s; i++)
        if (p->shape[i]->n == n && p->shape[i]->last == last) s = p->shape[i];
    if (!s && !(s = new_shape(p, n, last))) {
        km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
        return NULL;
    }
    s->used = ++p->uses;
    s->n = n;
    s->last = last;
    int k = 0;
    for (km_net *m = p->m; m; m = m->next, k++) {
        km_ctx *ctx = m->ctx;
        km_plan_piece *a = &s->part[k];
        a->m = m;
        a->captured = !ctx->device->host || n <= KM_HOST_CAPTURES;
        km_scope_begin(ctx);
        if (!a->in)
            a->in = km_keep(ctx, k == 0 ? km_zeros(ctx, KM_I32, KM_SHAPE(n))
                                        : km_zeros(ctx, KM_F32, KM_SHAPE(n, p->m->config.dim)));
        if (!a->rows) a->rows = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(n, 2)));
        km_scope_end(ctx, NULL);
    }
    return km_net_failed(p->m) ? NULL : s;
}

/* ---- Adapters ---- */

/* Adds what a sequence has of each adapter; false: it has none. */
static bool add_mix(const km_plan *p, int sequence, float row[KM_ADAPTER_SLOTS]) {
    const km_adapter_mix *mix = p->mix && sequence >= 0 ? &p->mix[sequence] : NULL;
    for (int i = 0; mix && i < mix->n; i++) row[mix->slot[i]] = mix->scale[i];
    return mix && mix->n > 0;
}

/* What each row has of each adapter, in p->mixes; false: none has any. */
static bool mixes_of(km_plan *p, km_ctx *ctx, int64_t n) {
    bool any = false;
    for (int64_t i = 0; i < n && p->mix; i++)
        any |= p->rows[2 * i] >= 0 && p->mix[p->rows[2 * i]].n > 0;
    if (!any || km_failed(ctx)) return false;
    size_t each = sizeof *p->mixes * KM_ADAPTER_SLOTS;
    if (!p->mixes) p->mixes = km_alloc(each * KM_PROMPT_CHUNK);
    if (!p->mixes) {
        km_fail(ctx, KM_ERR_MEMORY, "plan: out of memory");
        return false;
    }
    memset(p->mixes, 0, each * (size_t)n);
    for (int64_t i = 0; i < n; i++) add_mix(p, p->rows[2 * i], p->mixes + i * KM_ADAPTER_SLOTS);
    return true;
}

km_tensor *km_plan_mix_of(km_plan *p, km_ctx *ctx, int64_t n) {
    return mixes_of(p, ctx, n) ? km_from_data(ctx, KM_F32, KM_SHAPE(n, KM_ADAPTER_SLOTS), p->mixes)
                               : NULL;
}

static void put_mix(km_plan *p, km_plan_piece *a, int64_t n) {
    km_ctx *ctx = a->m->ctx;
    size_t each = sizeof *p->mixes * KM_ADAPTER_SLOTS;
    if (!mixes_of(p, ctx, n)) return;
    if (!a->mix) {
        km_scope_begin(ctx);
        a->mix = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(n, KM_ADAPTER_SLOTS)));
        km_scope_end(ctx, NULL);
    }
    if (a->mix) km_write(ctx, a->mix, p->mixes, each * (size_t)n);
    a->place.at.mix = a->mix;
}

/* The same for n rows of one sequence: a tensor of the step. */
static km_tensor *mix_rows(const km_plan *p, km_ctx *ctx, int sequence, int64_t n) {
    float row[KM_ADAPTER_SLOTS] = {0};
    if (!add_mix(p, sequence, row)) return NULL;
    km_tensor *one = km_from_data(ctx, KM_F32, KM_SHAPE(1, KM_ADAPTER_SLOTS), row);
    return km_contiguous(ctx, km_broadcast(ctx, one, KM_SHAPE(n, KM_ADAPTER_SLOTS)));
}

uint64_t km_plan_key(const km_plan *p, const km_plan_piece *a, int kind) {
    return (a->place.at.mix ? p->m->adapters.changes << 2 : 0) + (uint64_t)kind;
}

/* ---- A step ---- */

km_status km_plan_put(km_plan *p, km_plan_shape *s, int part, const void *in, size_t bytes) {
    km_plan_piece *a = &s->part[part];
    km_ctx *ctx = a->m->ctx;
    if (km_plan_faulty()) km_fail(ctx, KM_ERR_GPU, "%s: a fault was asked for", km_ctx_device(ctx));
    km_write(ctx, a->in, in, bytes);
    km_write(ctx, a->rows, p->rows, sizeof *p->rows * 2 * (size_t)s->n);
    int64_t last =
        a->m->next || s->last == s->n ? 0 : s->last; /* the last layer alone can do with fewer */
    km_cache_place(p->cache, part, a->rows, last, &a->place);
    put_mix(p, a, s->n);
    return km_plan_failed(p);
}

void km_plan_run(km_plan *p, km_plan_piece *a, km_graph **graph, uint64_t key, km_step_fn fn,
                 int64_t n, int64_t tail) {
    km_ctx *ctx = a->m->ctx;
    /* A step's rows are of many sequences: each is to have the bits that it has alone. */
    if (tail == n) ctx->rows_alone = ctx->device->host ? KM_STEP_ROWS : GPU_ALONE;
    ctx->rows_tail = tail < n ? tail : 0;
    if (ctx->timed || !a->captured) { /* each op by itself: nothing is replayed */
        km_graph_free(*graph);
        *graph = NULL;
    }
    if (a->captured) {
        km_graph_run(ctx, graph, key, fn, a);
    } else {
        fn(ctx, a);
        if (!km_failed(ctx)) km_step_end(ctx);
    }
    ctx->rows_alone = ctx->rows_tail = 0;
    (void)p;
}

static km_status run_piece(km_plan *p, km_plan_shape *s, int part, const void *in, size_t bytes) {
    km_plan_piece *a = &s->part[part];
    if (km_plan_put(p, s, part, in, bytes) != KM_OK) return km_ctx_status(p->ctx);
    km_plan_run(p, a, &km_plan_way_of(a)->graph, km_plan_key(p, a, 1), km_plan_step, s->n, s->n);
    return km_plan_failed(p);
}

km_status km_plan_parts(km_plan *p, km_plan_shape *s, const void **in, size_t *bytes, int *last) {
    size_t stream = sizeof *p->stream * (size_t)(s->n * p->m->config.dim);
    int k = 0;
    for (km_net *m = p->m; m->next; m = m->next, k++) {
        if (run_piece(p, s, k, *in, *bytes) != KM_OK) return km_ctx_status(p->ctx);
        if (km_read(m->ctx, km_plan_way_of(&s->part[k])->out, p->stream, stream) != KM_OK)
            return km_plan_failed(p);
        *in = p->stream;
        *bytes = stream;
    }
    *last = k;
    return KM_OK;
}

/* The last n rows of what a piece made, to the host. */
static km_status read_rows(km_plan *p, km_plan_piece *a, int64_t n, float *to) {
    km_ctx *ctx = a->m->ctx;
    km_plan_way *w = km_plan_way_of(a);
    int64_t all = w->out ? w->out->shape.dim[0] : 0;
    km_scope_begin(ctx);
    km_tensor *last = all == n ? w->out : km_narrow(ctx, w->out, 0, all - n, n);
    km_read(ctx, last, to, sizeof *to * (size_t)(n * p->m->config.vocab));
    km_scope_end(ctx, NULL);
    if (!a->captured) {
        km_release(w->out);
        w->out = NULL;
    }
    return km_plan_failed(p);
}

km_status km_plan_few(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                      float *logits) {
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    int64_t padded = km_plan_padded(p, n);
    km_plan_shape *s = km_plan_shape_of(p, padded, padded);
    if (!s) return km_plan_failed(p);
    km_plan_pad(p, ids, rows, n, padded);
    const void *in = p->ids;
    size_t bytes = sizeof *ids * (size_t)padded;
    int last = 0;
    if (km_plan_parts(p, s, &in, &bytes, &last) != KM_OK ||
        run_piece(p, s, last, in, bytes) != KM_OK)
        return km_ctx_status(p->ctx);
    return logits ? read_rows(p, &s->part[last], n, logits) : KM_OK;
}

/* ---- Prompts ---- */

km_status km_plan_prompt(km_plan *p, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         float *logits) {
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    if (n > KM_PROMPT_CHUNK) return km_fail(p->ctx, KM_ERR_RANGE, "plan: a chunk is too long");
    for (int64_t i = 0; i < n; i++) {
        p->rows[2 * i] = sequence;
        p->rows[2 * i + 1] = (int32_t)(position + i);
    }
    if (km_plan_faulty())
        km_fail(p->ctx, KM_ERR_GPU, "%s: a fault was asked for", km_ctx_device(p->ctx));
    km_tensor *x = km_from_data(p->ctx, KM_I32, KM_SHAPE(n), ids);
    int k = 0;
    bool stopped = false;
    for (km_net *m = p->m; m && !km_net_failed(p->m) && !stopped; m = m->next, k++) {
        km_net_place place;
        km_tensor *rows = km_from_data(m->ctx, KM_I32, KM_SHAPE(n, 2), p->rows);
        if (k > 0) x = km_net_pass(m->ctx, x);
        /* The last layer alone can do with the last row. */
        if (km_cache_place(p->cache, k, rows, m->next ? 0 : 1, &place) != KM_OK) break;
        place.at.mix = mix_rows(p, m->ctx, sequence, n);
        place.cancel = p->cancel;
        km_no_grad_begin(m->ctx);
        x = km_net_forward(m->ctx, m, x, &place);
        stopped = !x && !km_failed(m->ctx);
        if (x && !m->next) x = logits ? logits_of(m, x) : x;
        km_no_grad_end(m->ctx);
        if (x && !m->next && logits && !km_failed(m->ctx))
            km_read(m->ctx, x, logits, sizeof *logits * (size_t)p->m->config.vocab);
    }
    for (km_net *m = p->m; m; m = m->next)
        if (!km_failed(m->ctx)) km_step_end(m->ctx);
    return stopped ? KM_ERR_STATE : km_plan_failed(p);
}
