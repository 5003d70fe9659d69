/* Capture and replay. While a step is captured its commands go to command buffers of the graph, as many
 * as submissions are needed to keep each one short, and what shaders read beside tensors goes to memory
 * of the graph. A replay hands them all in by one call. */
#include "backend/vulkan/graph.h"
#include "base/alloc.h"
#include "base/array.h"
#include "tensor/held.h"
#include <string.h>

struct km_vulkan_graph {
    km_lane *lane;
    km_vulkan_graph *next;
    VkCommandBuffer *cmd;
    int n_cmd, cap_cmd;
    bool open;   /* the last one is being recorded */
    double work; /* of its dispatches */
    km_vulkan_block *words;
    int n_words, cap_words;
    size_t used; /* of the last block of words */
    km_held held;
    uint64_t value;          /* the timeline's, when its last replay is done */
    uint64_t draws, kernels; /* the context's when captured; then what one run adds */
};

/* ---- The pool's blocks ---- */

static void block_got(void *user, void *p, size_t cap) {
    km_vulkan_graph *g = ((km_vulkan_queue *)user)->capturing;
    if (g) km_held_note(&g->held, p, cap);
}

static bool block_keeps(void *user, void *p, size_t cap) {
    (void)cap;
    for (km_vulkan_graph *g = ((km_vulkan_queue *)user)->graphs; g; g = g->next)
        if (km_held_keeps(&g->held, p)) return true;
    return false;
}

static void watch(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    q->watch = (km_mempool_watch){block_got, block_keeps, q, q->capturing != NULL};
    lane->pool.watch = q->capturing || q->graphs ? &q->watch : NULL;
}

/* ---- Recording ---- */

VkCommandBuffer km_vulkan_graph_commands(km_lane *lane) {
    km_vulkan_graph *g = km_vulkan_queue_of(lane)->capturing;
    if (g->open) return g->cmd[g->n_cmd - 1];
    if (!km_array_reserve(&g->cmd, &g->cap_cmd, g->n_cmd + 1)) {
        km_fail(lane->ctx, KM_ERR_MEMORY, "graph: out of memory");
        return NULL;
    }
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = km_vulkan_queue_of(lane)->commands,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = 1};
    /* A replay may be handed in while the one before is still on its way. */
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    VkResult r =
        KM_VK(AllocateCommandBuffers, km_vulkan_dev_of(lane)->handle, &info, &g->cmd[g->n_cmd]);
    if (r == VK_SUCCESS) r = KM_VK(BeginCommandBuffer, g->cmd[g->n_cmd++], &begin);
    if (r != VK_SUCCESS) {
        km_vulkan_fail(lane, r, "capturing a graph");
        return NULL;
    }
    g->open = true;
    g->work = 0;
    return g->cmd[g->n_cmd - 1];
}

VkDeviceAddress km_vulkan_graph_words(km_lane *lane, const void *data, size_t bytes) {
    km_vulkan_graph *g = km_vulkan_queue_of(lane)->capturing;
    if (g->n_words == 0 || g->used + bytes > g->words[g->n_words - 1].bytes) {
        if (!km_array_reserve(&g->words, &g->cap_words, g->n_words + 1)) {
            km_fail(lane->ctx, KM_ERR_MEMORY, "graph: out of memory");
            return 0;
        }
        VkResult r = km_vulkan_block_make(km_vulkan_dev_of(lane),
                                          bytes > KM_VULKAN_WORDS ? bytes : KM_VULKAN_WORDS,
                                          km_vulkan_dev_of(lane)->near, &g->words[g->n_words]);
        if (r != VK_SUCCESS) {
            km_vulkan_fail(lane, r, "capturing a graph");
            return 0;
        }
        g->n_words++;
        g->used = 0;
    }
    const km_vulkan_block *b = &g->words[g->n_words - 1];
    VkDeviceAddress at = b->at + g->used;
    memcpy(b->map + g->used, data, bytes);
    g->used += (bytes + 63) / 64 * 64;
    return at;
}

bool km_vulkan_graph_open(const km_lane *lane) { return km_vulkan_queue_of(lane)->capturing->open; }

double *km_vulkan_graph_work(const km_lane *lane) {
    return &km_vulkan_queue_of(lane)->capturing->work;
}

km_status km_vulkan_graph_cut(km_lane *lane) {
    km_vulkan_graph *g = km_vulkan_queue_of(lane)->capturing;
    if (!g->open) return KM_OK;
    g->open = false;
    km_vulkan_show_host(g->cmd[g->n_cmd - 1]);
    VkResult r = KM_VK(EndCommandBuffer, g->cmd[g->n_cmd - 1]);
    return r == VK_SUCCESS ? KM_OK : km_vulkan_fail(lane, r, "capturing a graph");
}

/* ---- The end of one ---- */

static void destroy(km_vulkan_graph *g) {
    km_vulkan_dev *dev = km_vulkan_dev_of(g->lane);
    km_vulkan_queue *q = km_vulkan_queue_of(g->lane);
    km_vulkan_wait(g->lane, g->value);
    if (g->n_cmd)
        km_vulkan_api()->FreeCommandBuffers(dev->handle, q->commands, (uint32_t)g->n_cmd, g->cmd);
    for (int i = 0; i < g->n_words; i++) km_vulkan_block_free(dev, &g->words[i]);
    km_free(g->words);
    km_free(g->cmd);
    km_free(g);
}

void km_vulkan_graph_free(km_vulkan_graph *g) {
    if (!g) return;
    km_lane *lane = g->lane;
    for (km_vulkan_graph **at = &km_vulkan_queue_of(lane)->graphs; *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    watch(lane);
    /* The next user's work comes after the last replay on the same queue. */
    km_held_give(&g->held, &lane->pool);
    destroy(g);
}

void km_vulkan_graphs_close(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (q->capturing) {
        q->capturing->next = q->graphs;
        q->graphs = q->capturing;
        q->capturing = NULL;
    }
    while (q->graphs) {
        km_vulkan_graph *g = q->graphs;
        q->graphs = g->next;
        km_free(g->held.block); /* the blocks themselves end with their chunks */
        destroy(g);
    }
    lane->pool.watch = NULL;
}

/* ---- Capture ---- */

km_status km_vulkan_graph_begin(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (q->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE, "%s: a graph is being captured already",
                       lane->device->name);
    if (km_vulkan_flush(lane) != KM_OK) return lane->ctx->error.code;
    km_vulkan_graph *g = km_calloc(1, sizeof *g);
    if (!g) return km_fail(lane->ctx, KM_ERR_MEMORY, "graph: out of memory");
    g->lane = lane;
    g->draws = lane->ctx->draws;
    g->kernels = lane->ctx->kernels;
    q->capturing = g;
    watch(lane);
    return KM_OK;
}

km_vulkan_graph *km_vulkan_graph_end(km_lane *lane, km_vulkan_graph *old) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    km_vulkan_graph *g = q->capturing;
    km_ctx *ctx = lane->ctx;
    km_vulkan_graph_free(old);
    if (!g) {
        km_fail(ctx, KM_ERR_STATE, "%s: no graph is being captured", lane->device->name);
        return NULL;
    }
    km_vulkan_graph_cut(lane);
    q->capturing = NULL;
    if (g->held.failed) km_fail(ctx, KM_ERR_MEMORY, "graph: out of memory");
    bool fine = !km_failed(ctx) && ctx->draws == g->draws;
    if (fine)
        km_held_take(&g->held, &lane->pool);
    else
        g->held.n = 0;
    /* What was recorded has not run. */
    g->kernels = ctx->kernels - g->kernels;
    ctx->kernels -= g->kernels;
    ctx->draws = g->draws;
    g->next = q->graphs;
    q->graphs = g;
    watch(lane);
    if (fine) return g;
    km_vulkan_graph_free(g);
    return NULL;
}

/* ---- Replay ---- */

km_status km_vulkan_graph_launch(km_vulkan_graph *g) {
    km_lane *lane = g->lane;
    km_ctx *ctx = lane->ctx;
    if (km_failed(ctx)) return ctx->error.code;
    if (km_vulkan_queue_of(lane)->capturing)
        return km_fail(ctx, KM_ERR_STATE, "%s: a graph cannot run while one is captured",
                       lane->device->name);
    if (km_vulkan_flush(lane) != KM_OK || km_vulkan_submit(lane, g->cmd, g->n_cmd) != KM_OK)
        return ctx->error.code;
    g->value = km_vulkan_queue_of(lane)->submitted;
    ctx->kernels += g->kernels;
    return KM_OK;
}

int km_vulkan_graph_parts(const km_vulkan_graph *g) { return g->n_cmd; }
