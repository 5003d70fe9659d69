/* Steps as graphs: run once as usual, captured the second time, replayed from then on. Devices
 * without graphs, and steps that cannot be captured, simply run each time. */
#include "base/alloc.h"
#include "base/log.h"
#include "tensor/tensor.h"

struct km_graph {
    km_ctx *ctx;
    uint64_t key;
    int runs;       /* with this key */
    void *captured; /* the device's own; NULL before the second run */
    bool refused;   /* a step with this key could not be captured, but runs */
    bool busy;      /* in km_graph_run, whose step may free it: */
    bool doomed;    /* then it goes when the run ends */
};

/* The step as it is: called with recording of the device's work on or off. */
static km_status plain(km_ctx *ctx, km_step_fn fn, void *user) {
    fn(ctx, user);
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

static km_status capture(km_graph *g, km_step_fn fn, void *user) {
    km_ctx *ctx = g->ctx;
    km_lane *lane = ctx->lanes[0];
    const km_device_ops *ops = lane->device->ops;
    if (ops->graph_begin(lane) != KM_OK) return km_ctx_status(ctx);
    plain(ctx, fn, user);
    g->captured = ops->graph_end(lane, g->captured);
    return km_ctx_status(ctx);
}

/* A graph that a GPU does not start has done nothing: the step then runs as it is. */
static km_status replay(km_graph *g, km_step_fn fn, void *user) {
    km_ctx *ctx = g->ctx;
    const km_device *d = ctx->device;
    km_status s = d->ops->graph_launch(g->captured);
    if ((s != KM_ERR_GPU && s != KM_ERR_MEMORY) || d->host || ctx->no_fallback ||
        (d->ops->lost && d->ops->lost(d)))
        return s;
    km_note(KM_LOG_WARN, "%s; the step runs without its graph", ctx->error.text);
    ctx->error = (km_error){0};
    ctx->failed_kernels++;
    return plain(ctx, fn, user);
}

static km_status run(km_graph *g, uint64_t key, km_step_fn fn, void *user) {
    km_ctx *ctx = g->ctx;
    const km_device_ops *ops = ctx->lanes[0]->device->ops;
    if (key != g->key) {
        g->key = key;
        g->runs = 0;
        g->refused = false;
    }
    g->runs++;
    if (!ops->graph_begin || ctx->uncaptured || g->refused || g->runs == 1)
        return plain(ctx, fn, user);
    if (g->runs == 2) {
        uint64_t fallbacks = ctx->fallbacks;
        km_status s = capture(g, fn, user);
        if (s != KM_OK && !ctx->device->host && !ctx->no_fallback && ctx->fallbacks > fallbacks) {
            /* Work for another device cannot be captured. Nothing of the step has run yet. */
            ctx->error = (km_error){0};
            g->refused = true;
            return plain(ctx, fn, user);
        }
        if (s != KM_OK) {
            g->runs = 0;
            return km_ctx_status(ctx);
        }
        g->refused = !g->captured; /* a host has run it, and will again */
        if (g->refused && !ctx->device->host) return plain(ctx, fn, user);
    }
    return g->captured ? replay(g, fn, user) : km_ctx_status(ctx);
}

km_status km_graph_run(km_ctx *ctx, km_graph **graph, uint64_t key, km_step_fn fn, void *user) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!graph || !fn)
        return km_fail(ctx, KM_ERR_NULL, "graph: a place for it and a step are needed");
    if (*graph && (*graph)->ctx != ctx)
        return km_fail(ctx, KM_ERR_STATE, "graph: it belongs to another context");
    if (!*graph) {
        *graph = km_calloc(1, sizeof **graph);
        if (!*graph) return km_fail(ctx, KM_ERR_MEMORY, "graph: out of memory");
        (*graph)->ctx = ctx;
        (*graph)->key = key;
    }
    km_graph *g = *graph;
    if (g->busy) return km_fail(ctx, KM_ERR_STATE, "graph: its own step cannot run it");
    g->busy = true;
    km_status s = run(g, key, fn, user);
    g->busy = false;
    if (g->doomed) km_graph_free(g);
    return s;
}

bool km_graph_captured(const km_graph *g) { return g && g->captured && g->runs >= 2; }

void km_graph_free(km_graph *g) {
    if (!g) return;
    KM_INSIDE(in);
    if (km_try_enter(&in, g->ctx, KM_HANDLE_CONTEXT) == KM_ENTRY_BUSY) {
        km_public_fail(KM_ERR_STATE, "graph: another thread is using its context");
        return;
    }
    g->doomed = true;
    if (g->busy) return;
    if (g->captured) g->ctx->lanes[0]->device->ops->graph_free(g->captured);
    km_free(g);
}
