/* Capture and replay on a host device. The blocks of memory that a captured step used stay out of the
 * pool, because every replay writes to them. */
#include "backend/host.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/guard.h"
#include "tensor/held.h"

/* A call with all it points at, in one piece of memory. */
typedef struct kept_call {
    km_kernel kernel;
    km_call c;
    km_params p;
    bool draws; /* random numbers: stream and seed are those of the replay */
} kept_call;

typedef struct km_host_graph {
    km_lane *lane;
    struct km_host_graph *next;
    kept_call **calls;
    int n_calls, cap_calls;
    km_held held;
    bool spoiled;
    bool ran;                /* the capture itself was the first run */
    uint64_t draws, n_draws; /* the context's when captured, and what one run adds */
} km_host_graph;

/* ---- The pool's blocks ---- */

static void block_got(void *user, void *p, size_t cap) {
    km_host_graph *g = ((km_host_queue *)user)->capturing;
    if (g && !g->spoiled) km_held_note(&g->held, p, cap);
}

static bool block_keeps(void *user, void *p, size_t cap) {
    (void)cap;
    for (km_host_graph *g = ((km_host_queue *)user)->graphs; g; g = g->next)
        if (km_held_keeps(&g->held, p)) return true;
    return false;
}

static void watch(km_lane *lane) {
    km_host_queue *q = km_host_queue_of(lane);
    q->watch = (km_mempool_watch){block_got, block_keeps, q, q->capturing != NULL};
    lane->pool.watch = q->capturing || q->graphs ? &q->watch : NULL;
}

/* ---- Capture ---- */

/* The operands as they are now: views are the step's, and storages are used again after it. */
static km_tensor *copy_operand(const km_tensor *t, km_tensor **tensor, km_storage **storage) {
    if (!t) return NULL;
    km_tensor *to = (*tensor)++;
    km_storage *s = (*storage)++;
    *to = *t;
    *s = *t->storage;
    to->storage = s;
    to->node = NULL;
    to->grad = NULL;
    return to;
}

static bool keep_call(km_host_graph *g, km_kernel k, const km_call *c) {
    size_t n = (size_t)(c->n_in + c->n_out);
    if (!km_array_reserve(&g->calls, &g->cap_calls, g->n_calls + 1)) return false;
    kept_call *kept =
        km_alloc(sizeof *kept + n * (sizeof(km_tensor) + sizeof(km_storage) + sizeof(km_tensor *)));
    if (!kept) return false;
    km_tensor *tensor = (km_tensor *)(void *)(kept + 1);
    km_storage *storage = (km_storage *)(void *)(tensor + n);
    km_tensor **list = (km_tensor **)(void *)(storage + n);
    *kept = (kept_call){.kernel = k, .c = *c, .p = *c->p};
    kept->draws = c->op == KM_OP_DROPOUT || c->op == KM_OP_UNIFORM || c->op == KM_OP_NORMAL;
    for (int i = 0; i < c->n_in; i++) list[i] = copy_operand(c->in[i], &tensor, &storage);
    for (int i = 0; i < c->n_out; i++)
        list[c->n_in + i] = copy_operand(c->out[i], &tensor, &storage);
    kept->c.in = list;
    kept->c.out = list + c->n_in;
    kept->c.p = &kept->p;
    g->calls[g->n_calls++] = kept;
    return true;
}

km_status km_host_run(km_ctx *ctx, km_lane *lane, km_kernel k, const km_call *c) {
    km_host_queue *q = km_host_queue_of(lane);
    km_host_graph *g = q->capturing;
    if (!g || q->depth > 0) return k(ctx, c);
    q->depth++;
    km_status s = k(ctx, c);
    q->depth--;
    if (ctx->tape) g->spoiled = true; /* what a tape holds is gone after the step */
    if (s == KM_OK && !g->spoiled && !keep_call(g, k, c)) g->spoiled = true;
    return s;
}

void km_host_graph_spoil(km_lane *lane) {
    km_host_queue *q = km_host_queue_of(lane);
    if (q->capturing && !q->depth) q->capturing->spoiled = true;
}

km_status km_host_graph_begin(km_lane *lane) {
    km_host_queue *q = km_host_queue_of(lane);
    if (q->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE, "%s: a graph is being captured already",
                       lane->device->name);
    km_host_graph *g = km_calloc(1, sizeof *g);
    if (!g) return km_fail(lane->ctx, KM_ERR_MEMORY, "graph: out of memory");
    g->lane = lane;
    g->draws = lane->ctx->draws;
    q->capturing = g;
    watch(lane);
    return KM_OK;
}

void *km_host_graph_end(km_lane *lane, void *old) {
    km_host_queue *q = km_host_queue_of(lane);
    km_host_graph *g = q->capturing;
    km_host_graph_free(old);
    if (!g) return NULL;
    q->capturing = NULL;
    g->next = q->graphs;
    q->graphs = g;
    g->ran = true;
    g->n_draws = lane->ctx->draws - g->draws;
    if (km_failed(lane->ctx) || g->held.failed) g->spoiled = true;
    if (g->spoiled)
        g->held.n = 0;
    else
        km_held_take(&g->held, &lane->pool);
    watch(lane);
    if (!g->spoiled) return g;
    km_host_graph_free(g);
    return NULL;
}

/* ---- Replay ---- */

/* Whether the mapped files that were read are still whole. */
static km_status check_files(const km_host_graph *g) {
    km_error gone = {0};
    for (int i = 0; i < g->n_calls; i++)
        for (int k = 0; k < g->calls[i]->c.n_in; k++) {
            const km_tensor *t = g->calls[i]->c.in[k];
            if (t && t->storage->drop && km_guard_check_at(t->storage->data, &gone) != KM_OK)
                return km_fail(g->lane->ctx, gone.code, "%s", gone.text);
        }
    return KM_OK;
}

km_status km_host_graph_launch(void *graph) {
    km_host_graph *g = graph;
    km_ctx *ctx = g->lane->ctx;
    if (km_failed(ctx)) return ctx->error.code;
    if (km_host_queue_of(g->lane)->capturing)
        return km_fail(ctx, KM_ERR_STATE, "%s: a graph cannot run while one is captured",
                       g->lane->device->name);
    if (g->ran) {
        g->ran = false;
        return KM_OK;
    }
    uint64_t later = ctx->draws - g->draws;
    for (int i = 0; i < g->n_calls; i++) {
        kept_call *k = g->calls[i];
        km_params p;
        km_call c = k->c;
        if (k->draws) {
            p = k->p;
            p.stream += later;
            p.seed = ctx->seed;
            c.p = &p;
        }
        double begin = ctx->timed ? km_now() : 0;
        km_status s = k->kernel(ctx, &c);
        if (ctx->timed) ctx->timed(ctx->timed_user, &c, km_now() - begin);
        if (s != KM_OK)
            return km_failed(ctx) ? ctx->error.code
                                  : km_fail(ctx, s, "%s: %s", km_op_name(c.op), km_status_text(s));
    }
    if (km_guard_broken() && check_files(g) != KM_OK) return ctx->error.code;
    ctx->draws += g->n_draws;
    ctx->kernels += (uint64_t)g->n_calls;
    if (ctx->n_step) km_step_end(ctx); /* a kernel made of others leaves their results */
    return ctx->error.code;
}

/* ---- The end ---- */

static void destroy(km_host_graph *g) {
    for (int i = 0; i < g->n_calls; i++) km_free(g->calls[i]);
    km_free(g->calls);
    km_free(g->held.block);
    km_free(g);
}

void km_host_graph_free(void *graph) {
    km_host_graph *g = graph;
    if (!g) return;
    for (km_host_graph **at = &km_host_queue_of(g->lane)->graphs; *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    watch(g->lane);
    km_held_give(&g->held, &g->lane->pool);
    destroy(g);
}

void km_host_graphs_close(km_lane *lane) {
    km_host_queue *q = km_host_queue_of(lane);
    if (q->capturing) destroy(q->capturing);
    q->capturing = NULL;
    while (q->graphs) {
        km_host_graph *g = q->graphs;
        q->graphs = g->next;
        km_held_drop(&g->held, &lane->pool);
        destroy(g);
    }
    lane->pool.watch = NULL;
}
