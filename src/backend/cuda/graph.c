/* Capture and replay. While a step is captured the pool tells which blocks it hands out, and they stay
 * the graph's (tensor/held.h). */
#include "backend/cuda/graph.h"
#include "backend/cuda/lane.h"
#include "base/alloc.h"
#include "tensor/held.h"

struct km_cuda_graph {
    km_lane *lane;
    km_cu_graph_exec exec;
    struct km_cuda_graph *next;
    km_held held;
    int nodes;
    uint64_t seed, draws, n_draws, kernels; /* the context's when captured, and what one run adds */
};

static km_cuda_kernel set_words = {.module = "fill", .name = "set_words", .waits = true};

/* ---- The pool's blocks ---- */

static void block_got(void *user, void *p, size_t cap) {
    km_cuda_graph *g = ((km_cuda_queue *)user)->capturing;
    if (g) km_held_note(&g->held, p, cap);
}

static bool block_keeps(void *user, void *p, size_t cap) {
    (void)cap;
    for (km_cuda_graph *g = ((km_cuda_queue *)user)->graphs; g; g = g->next)
        if (km_held_keeps(&g->held, p)) return true;
    return false;
}

static void watch(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    q->watch = (km_mempool_watch){block_got, block_keeps, q, q->capturing != NULL};
    lane->pool.watch = q->capturing || q->graphs ? &q->watch : NULL;
}

/* ---- Capture ---- */

km_status km_cuda_graph_begin(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (q->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE, "%s: a graph is being captured already",
                       lane->device->name);
    /* Made now, because making it would be recorded. */
    if (!km_cuda_draws_word(lane) || !km_cuda_function(lane, &set_words))
        return lane->ctx->error.code;
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    km_cuda_graph *g = km_calloc(1, sizeof *g);
    if (!g) return km_fail(lane->ctx, KM_ERR_MEMORY, "graph: out of memory");
    /* Relaxed: a first use may still allocate memory or load a kernel meanwhile. */
    km_cu_stream stream = km_cuda_stream(lane); /* without what came before */
    km_cu_result r = KM_CU(capture_begin, stream, KM_CU_CAPTURE_RELAXED);
    if (r != KM_CU_OK) {
        km_free(g);
        return km_cuda_fail(lane, r, "capturing a graph");
    }
    g->lane = lane;
    g->seed = lane->ctx->seed;
    g->draws = lane->ctx->draws;
    g->kernels = lane->ctx->kernels;
    q->capturing = g;
    watch(lane);
    return KM_OK;
}

static km_status make_exec(km_cuda_graph *g, km_cu_graph graph, km_cuda_graph *old) {
    km_cu_update_info info = {0};
    size_t nodes = 0;
    if (km_cuda_api()->graph_nodes(graph, NULL, &nodes) == KM_CU_OK) g->nodes = (int)nodes;
    if (old && old->exec && KM_CU(graph_update, old->exec, graph, &info) == KM_CU_OK) {
        g->exec = old->exec;
        old->exec = NULL;
        return KM_OK;
    }
    km_cu_result r = KM_CU(graph_make, &g->exec, graph, 0);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(g->lane, r, "making a graph");
}

km_cuda_graph *km_cuda_graph_end(km_lane *lane, km_cuda_graph *old) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    km_cuda_graph *g = q->capturing;
    km_ctx *ctx = lane->ctx;
    km_cu_graph graph = NULL;
    km_cu_stream stream = km_cuda_stream(lane); /* with the step's last ops */
    if (!g) {
        km_fail(ctx, KM_ERR_STATE, "%s: no graph is being captured", lane->device->name);
        km_cuda_graph_free(old);
        return NULL;
    }
    q->capturing = NULL;
    km_cuda_enter(km_cuda_dev_of(lane));
    km_cu_result r = KM_CU(capture_end, stream, &graph);
    if (r != KM_CU_OK && !graph) km_cuda_api()->capture_end(stream, &graph); /* never stay in it */
    if (!km_failed(ctx) && r != KM_CU_OK) km_cuda_fail(lane, r, "capturing a graph");
    if (g->held.failed) km_fail(ctx, KM_ERR_MEMORY, "graph: out of memory");
    if (!km_failed(ctx)) {
        g->n_draws = ctx->draws - g->draws;
        g->kernels = ctx->kernels - g->kernels;
        km_held_take(&g->held, &lane->pool);
        make_exec(g, graph, old);
    } else {
        g->held.n = 0;
    }
    if (graph) km_cuda_api()->graph_destroy(graph);
    /* What was recorded has not run: its random numbers are still to be drawn. */
    ctx->draws = g->draws;
    ctx->kernels -= g->exec ? g->kernels : 0;
    g->next = q->graphs;
    q->graphs = g;
    watch(lane);
    if (!g->exec) {
        km_cuda_graph_free(g);
        g = NULL;
    }
    km_cuda_graph_free(old);
    return g;
}

/* ---- Replay ---- */

km_status km_cuda_graph_launch(km_cuda_graph *g) {
    km_lane *lane = g->lane;
    km_ctx *ctx = lane->ctx;
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (km_failed(ctx)) return ctx->error.code;
    if (q->capturing)
        return km_fail(ctx, KM_ERR_STATE, "%s: a graph cannot run while one is captured",
                       lane->device->name);
    if (km_cuda_ready(lane) != KM_OK) return ctx->error.code;
    if (g->n_draws) {
        uint64_t *word = km_cuda_draws_word(lane);
        uint64_t streams = ctx->draws - g->draws, seeds = ctx->seed - g->seed;
        void *params[] = {&word, &streams, &seeds};
        if (!word || km_cuda_launch(lane, &set_words, KM_DIM(1), KM_DIM(1), 0, params) != KM_OK)
            return ctx->error.code;
    }
    km_cu_stream stream = km_cuda_stream(lane);
    km_cu_result r = KM_CU(graph_launch, g->exec, stream);
    if (r != KM_CU_OK) return km_cuda_fail(lane, r, "replaying a graph");
    ctx->draws += g->n_draws;
    ctx->kernels += g->kernels;
    return KM_OK;
}

int km_cuda_graph_nodes(const km_cuda_graph *g) { return g->nodes; }

const uint64_t *km_cuda_draws(const km_lane *lane) {
    return km_cuda_queue_of(lane)->capturing ? km_cuda_draws_word((km_lane *)lane) : NULL;
}

/* ---- The end ---- */

static void destroy(km_cuda_graph *g) {
    if (g->exec) {
        km_cuda_enter(km_cuda_dev_of(g->lane));
        km_cuda_api()->graph_exec_destroy(g->exec);
    }
    km_free(g->held.block);
    km_free(g);
}

void km_cuda_graph_free(km_cuda_graph *g) {
    if (!g) return;
    km_lane *lane = g->lane;
    km_cuda_queue *q = km_cuda_queue_of(lane);
    for (km_cuda_graph **at = &q->graphs; *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    watch(lane);
    /* The next user's work comes after the last replay on the same stream. */
    km_held_give(&g->held, &lane->pool);
    destroy(g);
}

void km_cuda_graphs_close(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    km_cu_graph graph = NULL;
    if (q->capturing) {
        km_cuda_api()->capture_end(km_cuda_stream(lane), &graph);
        if (graph) km_cuda_api()->graph_destroy(graph);
        destroy(q->capturing);
        q->capturing = NULL;
    }
    while (q->graphs) {
        km_cuda_graph *g = q->graphs;
        q->graphs = g->next;
        km_held_drop(&g->held, &lane->pool);
        destroy(g);
    }
    lane->pool.watch = NULL;
}
