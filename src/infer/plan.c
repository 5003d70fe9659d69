/* Steps of a running model. Their inputs are kept tensors that are written before each run, so that
 * nothing about a step but its number of rows is fixed when it is captured. */
#include "infer/plan.h"
#include "base/alloc.h"
#include <stdatomic.h>
#include <string.h>

static atomic_llong fails_at; /* 0: never */

void km_plan_fail_at(int64_t n) { atomic_store(&fails_at, n); }

/* Whether this step is the one that a test wants to fail. */
static bool faulty(void) {
    if (atomic_load_explicit(&fails_at, memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub(&fails_at, 1) == 1;
}

typedef struct plan_way {     /* of a step, captured: without adapters, or with them */
    km_tensor *out;           /* kept: the residual stream, or the last part's logits (n, vocab) */
    km_graph *graph, *chosen; /* chosen: of the last part, with tokens chosen where they are made */
} plan_way;

typedef struct plan_piece { /* of a step: what one part of the model does */
    km_net *m;
    km_tensor *in, *rows; /* kept: ids (n) or the residual stream (n, C); (n, 2) */
    km_tensor *mix;       /* kept: (n, slots); NULL: no row has had an adapter yet */
    km_net_place place;
    plan_way way[2];
    /* Of the last part, when tokens are chosen where they are made: */
    km_tensor *settings, *state, *next; /* kept; next (n, 2): what a row's place grows by */
    bool penalties;
} plan_piece;

typedef struct shape { /* a step of so many rows */
    plan_piece part[KM_MAX_PARTS];
    bool made;
} shape;

struct km_plan {
    km_ctx *ctx;
    km_net *m;
    km_cache *cache;
    shape few[KM_STEP_ROWS + 1];
    int32_t *rows;             /* (KM_PROMPT_CHUNK, 2), of a prompt's chunk */
    float *stream;             /* (KM_STEP_ROWS, C), between parts; NULL: there is one */
    const km_adapter_mix *mix; /* of each sequence; NULL: no adapters */
    const atomic_bool *cancel; /* of prompts; or NULL */
};

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
    if (p) p->rows = km_calloc(2 * KM_PROMPT_CHUNK, sizeof *p->rows);
    if (p && m->next)
        p->stream = km_calloc(KM_STEP_ROWS * (size_t)m->config.dim, sizeof *p->stream);
    if (!p || !p->rows || (m->next && !p->stream)) {
        if (p) km_free(p->rows);
        km_free(p);
        km_fail(ctx, KM_ERR_MEMORY, "plan: out of memory");
        return NULL;
    }
    p->ctx = ctx;
    p->m = m;
    p->cache = cache;
    return p;
}

void km_plan_free(km_plan *p) {
    if (!p) return;
    for (int i = 0; i <= KM_STEP_ROWS; i++)
        for (int k = 0; k < KM_MAX_PARTS; k++) {
            plan_piece *a = &p->few[i].part[k];
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
    km_free(p->rows);
    km_free(p->stream);
    km_free(p);
}

static km_tensor *logits_of(km_net *m, km_tensor *hidden) {
    return km_cast(m->ctx, km_net_logits(m->ctx, m, hidden), KM_F32);
}

/* What a part makes of its rows: logits f32 after those that `place` wants, or the stream. */
static km_tensor *run_part(km_net *m, km_tensor *in, const km_net_place *place) {
    km_ctx *ctx = m->ctx;
    km_no_grad_begin(ctx);
    km_tensor *y = km_net_forward(ctx, m, in, place);
    if (!m->next) y = logits_of(m, y);
    km_no_grad_end(ctx);
    return y;
}

static plan_way *way_of(plan_piece *a) { return &a->way[a->place.at.mix != NULL]; }

static void step(km_ctx *ctx, void *user) {
    plan_piece *a = user;
    plan_way *w = way_of(a);
    km_tensor *y = run_part(a->m, a->in, &a->place);
    km_release(w->out); /* of the run before */
    w->out = km_keep(ctx, y);
}

/* The same, and on: the tokens chosen are the next step's. */
static void step_and_choose(km_ctx *ctx, void *user) {
    plan_piece *a = user;
    km_tensor *after = NULL, *y = run_part(a->m, a->in, &a->place);
    km_no_grad_begin(ctx);
    km_tensor *ids = km_sample_rows(ctx, y, a->settings, a->state, a->penalties, &after);
    km_assign(ctx, a->state, after);
    if (a->m->first == 0) {
        km_assign(ctx, a->in, ids);
        km_assign(ctx, a->rows, km_add(ctx, a->rows, a->next));
    }
    km_no_grad_end(ctx);
}

static km_status failed(km_plan *p) {
    km_net_failed(p->m);
    return km_ctx_status(p->ctx);
}

static shape *shape_of(km_plan *p, int64_t n) {
    shape *s = &p->few[n];
    if (s->made) return s;
    int k = 0;
    for (km_net *m = p->m; m; m = m->next, k++) {
        km_ctx *ctx = m->ctx;
        plan_piece *a = &s->part[k];
        a->m = m;
        km_scope_begin(ctx);
        if (!a->in)
            a->in = km_keep(ctx, k == 0 ? km_zeros(ctx, KM_I32, KM_SHAPE(n))
                                        : km_zeros(ctx, KM_F32, KM_SHAPE(n, p->m->config.dim)));
        if (!a->rows) a->rows = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(n, 2)));
        km_scope_end(ctx, NULL);
    }
    if (km_net_failed(p->m)) return NULL;
    s->made = true;
    return s;
}

/* Adds what a sequence has of each adapter; false: it has none. */
static bool add_mix(const km_plan *p, int sequence, float row[KM_ADAPTER_SLOTS]) {
    const km_adapter_mix *mix = p->mix ? &p->mix[sequence] : NULL;
    for (int i = 0; mix && i < mix->n; i++) row[mix->slot[i]] = mix->scale[i];
    return mix && mix->n > 0;
}

/* What each row has of each adapter, where one has any. */
static void put_mix(const km_plan *p, plan_piece *a, const int32_t *rows, int64_t n) {
    float mix[KM_STEP_ROWS * KM_ADAPTER_SLOTS];
    km_ctx *ctx = a->m->ctx;
    bool any = false;
    for (int64_t i = 0; i < n && p->mix; i++) any |= p->mix[rows[2 * i]].n > 0;
    if (!any || km_failed(ctx)) return;
    memset(mix, 0, sizeof *mix * (size_t)(n * KM_ADAPTER_SLOTS));
    for (int64_t i = 0; i < n; i++) add_mix(p, rows[2 * i], mix + i * KM_ADAPTER_SLOTS);
    if (!a->mix) {
        km_scope_begin(ctx);
        a->mix = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(n, KM_ADAPTER_SLOTS)));
        km_scope_end(ctx, NULL);
    }
    if (a->mix) km_write(ctx, a->mix, mix, sizeof *mix * (size_t)(n * KM_ADAPTER_SLOTS));
    a->place.at.mix = a->mix;
}

/* A step with adapters is captured anew when one has come or gone. */
static uint64_t key_of(const km_plan *p, const plan_piece *a, int kind) {
    return (a->place.at.mix ? p->m->adapters.changes << 2 : 0) + (uint64_t)kind;
}

static km_status put_piece(km_plan *p, plan_piece *a, int part, const void *in, size_t bytes,
                           const int32_t *rows, int64_t n) {
    km_ctx *ctx = a->m->ctx;
    if (faulty()) km_fail(ctx, KM_ERR_GPU, "%s: a fault was asked for", km_ctx_device(ctx));
    km_write(ctx, a->in, in, bytes);
    km_write(ctx, a->rows, rows, sizeof *rows * 2 * (size_t)n);
    km_cache_place(p->cache, part, a->rows, 0, &a->place);
    put_mix(p, a, rows, n);
    return failed(p);
}

/* A step's rows are of many sequences: each is to have the bits that it has alone. */
static void run_graph(km_ctx *ctx, km_graph **graph, uint64_t key, km_step_fn fn, plan_piece *a) {
    ctx->rows_alone = KM_STEP_ROWS;
    km_graph_run(ctx, graph, key, fn, a);
    ctx->rows_alone = 0;
}

/* One part's share of a step, from what is in the host's memory. */
static km_status run_piece(km_plan *p, plan_piece *a, int part, const void *in, size_t bytes,
                           const int32_t *rows, int64_t n) {
    km_ctx *ctx = a->m->ctx;
    if (put_piece(p, a, part, in, bytes, rows, n) != KM_OK) return km_ctx_status(p->ctx);
    km_graph **graph = &way_of(a)->graph;
    if (ctx->timed) { /* each op by itself: nothing is replayed */
        km_graph_free(*graph);
        *graph = NULL;
    }
    run_graph(ctx, graph, key_of(p, a, 1), step, a);
    return failed(p);
}

/* All parts but the last; what that one gets is *in. */
static km_status run_parts(km_plan *p, shape *s, const int32_t *rows, int64_t n, const void **in,
                           size_t *bytes, int *last) {
    size_t stream = sizeof *p->stream * (size_t)(n * p->m->config.dim);
    int k = 0;
    for (km_net *m = p->m; m->next; m = m->next, k++) {
        if (run_piece(p, &s->part[k], k, *in, *bytes, rows, n) != KM_OK)
            return km_ctx_status(p->ctx);
        if (km_read(m->ctx, way_of(&s->part[k])->out, p->stream, stream) != KM_OK) return failed(p);
        *in = p->stream;
        *bytes = stream;
    }
    *last = k;
    return KM_OK;
}

km_status km_plan_few(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                      float *logits) {
    if (failed(p) != KM_OK) return km_ctx_status(p->ctx);
    shape *s = shape_of(p, n);
    if (!s) return failed(p);
    const void *in = ids;
    size_t bytes = sizeof *ids * (size_t)n;
    int last = 0;
    if (run_parts(p, s, rows, n, &in, &bytes, &last) != KM_OK ||
        run_piece(p, &s->part[last], last, in, bytes, rows, n) != KM_OK)
        return km_ctx_status(p->ctx);
    if (!logits) return KM_OK;
    plan_piece *end = &s->part[last];
    km_read(end->m->ctx, way_of(end)->out, logits,
            sizeof *logits * (size_t)(n * p->m->config.vocab));
    return failed(p);
}

/* ---- Choosing where the logits are ---- */

static bool has_penalties(const float *h) {
    return h[KM_SAMPLE_LAST] > 0 && ((h[KM_SAMPLE_REPEAT] > 0 && h[KM_SAMPLE_REPEAT] != 1) ||
                                     h[KM_SAMPLE_FREQUENCY] != 0 || h[KM_SAMPLE_PRESENCE] != 0);
}

static km_status make_chooser(km_plan *p, plan_piece *a, int64_t n) {
    km_ctx *ctx = a->m->ctx;
    if (a->next) return KM_OK;
    int32_t one[2 * KM_STEP_ROWS];
    for (int64_t i = 0; i < n; i++) one[2 * i] = 0, one[2 * i + 1] = 1;
    km_scope_begin(ctx);
    a->settings = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(n, KM_SAMPLE_SETTINGS)));
    a->state = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(n, KM_SAMPLE_STATE)));
    a->next = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(n, 2), one));
    km_scope_end(ctx, NULL);
    return failed(p);
}

/* Row by row to the device, and back: the rows of choosers do not lie side by side. */
static km_status put_choosers(km_plan *p, plan_piece *a, int64_t n, km_chooser *const *c) {
    km_ctx *ctx = a->m->ctx;
    float settings[KM_STEP_ROWS * KM_SAMPLE_SETTINGS];
    int32_t *state = km_alloc(sizeof *state * (size_t)n * KM_SAMPLE_STATE);
    if (!state) return km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
    bool penalties = false;
    for (int64_t i = 0; i < n; i++) {
        memcpy(settings + i * KM_SAMPLE_SETTINGS, c[i]->settings, sizeof c[i]->settings);
        memcpy(state + i * KM_SAMPLE_STATE, c[i]->state, sizeof c[i]->state);
        penalties |= has_penalties(c[i]->settings);
    }
    a->penalties = penalties;
    km_write(ctx, a->settings, settings, sizeof *settings * (size_t)n * KM_SAMPLE_SETTINGS);
    km_write(ctx, a->state, state, sizeof *state * (size_t)n * KM_SAMPLE_STATE);
    km_free(state);
    return failed(p);
}

static km_status get_choosers(km_plan *p, plan_piece *a, int64_t n, km_chooser *const *c) {
    int32_t *state = km_alloc(sizeof *state * (size_t)n * KM_SAMPLE_STATE);
    if (!state) return km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
    km_read(a->m->ctx, a->state, state, sizeof *state * (size_t)n * KM_SAMPLE_STATE);
    for (int64_t i = 0; i < n && failed(p) == KM_OK; i++)
        memcpy(c[i]->state, state + i * KM_SAMPLE_STATE, sizeof c[i]->state);
    km_free(state);
    return failed(p);
}

km_status km_plan_choose(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                         int64_t steps, km_chooser *const *chooser) {
    if (failed(p) != KM_OK) return km_ctx_status(p->ctx);
    shape *s = shape_of(p, n);
    if (!s) return failed(p);
    const void *in = ids;
    size_t bytes = sizeof *ids * (size_t)n;
    int last = 0;
    if (steps < 1 || steps > (p->m->next ? 1 : KM_SAMPLE_RING))
        return km_fail(p->ctx, KM_ERR_RANGE, "plan: %lld steps at once", (long long)steps);
    if (run_parts(p, s, rows, n, &in, &bytes, &last) != KM_OK) return km_ctx_status(p->ctx);
    plan_piece *a = &s->part[last];
    km_ctx *ctx = a->m->ctx;
    if (make_chooser(p, a, n) != KM_OK || put_choosers(p, a, n, chooser) != KM_OK ||
        put_piece(p, a, last, in, bytes, rows, n) != KM_OK)
        return km_ctx_status(p->ctx);
    km_graph **graph = &way_of(a)->chosen;
    if (ctx->timed) {
        km_graph_free(*graph);
        *graph = NULL;
    }
    for (int64_t i = 0; i < steps && !km_failed(ctx); i++)
        run_graph(ctx, graph, key_of(p, a, a->penalties ? 2 : 1), step_and_choose, a);
    return failed(p) == KM_OK ? get_choosers(p, a, n, chooser) : km_ctx_status(p->ctx);
}

/* The same for n rows of one sequence: a tensor of the step. */
static km_tensor *mix_rows(const km_plan *p, km_ctx *ctx, int sequence, int64_t n) {
    float row[KM_ADAPTER_SLOTS] = {0};
    if (!add_mix(p, sequence, row)) return NULL;
    km_tensor *one = km_from_data(ctx, KM_F32, KM_SHAPE(1, KM_ADAPTER_SLOTS), row);
    return km_contiguous(ctx, km_broadcast(ctx, one, KM_SHAPE(n, KM_ADAPTER_SLOTS)));
}

km_status km_plan_prompt(km_plan *p, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         float *logits) {
    if (failed(p) != KM_OK) return km_ctx_status(p->ctx);
    if (n > KM_PROMPT_CHUNK) return km_fail(p->ctx, KM_ERR_RANGE, "plan: a chunk is too long");
    for (int64_t i = 0; i < n; i++) {
        p->rows[2 * i] = sequence;
        p->rows[2 * i + 1] = (int32_t)(position + i);
    }
    if (faulty()) km_fail(p->ctx, KM_ERR_GPU, "%s: a fault was asked for", km_ctx_device(p->ctx));
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
    return stopped ? KM_ERR_STATE : failed(p);
}
