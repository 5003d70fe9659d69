/* The memory pool against what is under it: one buffer taken and given back, through the pool and
 * directly from the system (on a GPU: the driver), and what a steady training loop still takes from
 * there, which should be nothing. */
#include "cli/bench/bench.h"
#include "base/clock.h"
#include "report/json.h"
#include "tensor/tensor.h"
#include <math.h>

enum { ROUNDS = 7, POOL_CALLS = 20000, WARM_STEPS = 3, STEPS = 20 };
static const size_t sizes[] = {256, 4 << 10, 64 << 10, 1 << 20, 3 << 20, 64 << 20};
static const km_net_size model_size = {
    .layers = 2, .width = 128, .heads = 2, .vocabulary = 65, .batch = 2, .tokens = 64};

/* Seconds for one buffer by the raw allocator; NaN when it has none. */
static double time_system(km_mempool *pool, size_t bytes) {
    double best = NAN;
    int calls = 10;
    for (int round = 0; round < ROUNDS; round++) {
        double start = km_now();
        for (int i = 0; i < calls; i++) {
            void *p = pool->raw_alloc(pool->owner, bytes);
            if (!p) return NAN;
            pool->raw_free(pool->owner, p, bytes);
        }
        double each = (km_now() - start) / calls;
        if (!(each >= best)) best = each;
        if (each < 1e-5) calls = 1000; /* the first round only shows how long it takes */
    }
    return best;
}

static double time_pool(km_mempool *pool, size_t bytes) {
    double best = NAN;
    size_t cap;
    for (int round = 0; round <= ROUNDS; round++) { /* the first one fills the pool */
        double start = km_now();
        for (int i = 0; i < POOL_CALLS; i++) {
            void *p = km_mempool_get(pool, bytes, &cap);
            if (!p) return NAN;
            km_mempool_put(pool, p, cap);
        }
        double each = (km_now() - start) / POOL_CALLS;
        if (round > 0 && !(each >= best)) best = each;
    }
    return best;
}

static json_t *sizes_json(km_ctx *ctx) {
    json_t *list = json_array();
    km_mempool *pool = &ctx->lanes[0]->pool;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double system = time_system(pool, sizes[i]), ours = time_pool(pool, sizes[i]);
        json_array_append_new(list, json_pack("{s:I, s:o, s:o, s:o}", "bytes", (json_int_t)sizes[i],
                                              "pool_ns", km_json_number(1e9 * ours, 4), "system_ns",
                                              km_json_number(1e9 * system, 4), "ratio",
                                              km_json_number(system / ours, 4)));
    }
    km_trim(ctx);
    return list;
}

static json_t *steady_json(km_ctx *ctx) {
    km_bench_model *m = km_bench_model_new(ctx, &model_size);
    if (!m) return NULL;
    for (int i = 0; i < WARM_STEPS; i++) km_bench_model_step(ctx, m);
    km_stats before = km_ctx_stats(ctx);
    for (int i = 0; i < STEPS; i++) km_bench_model_step(ctx, m);
    km_stats after = km_ctx_stats(ctx);
    km_bench_model_free(ctx, m);
    return json_pack(
        "{s:i, s:I, s:I, s:I, s:I}", "steps", STEPS, "buffers",
        (json_int_t)(after.pool_hits + after.pool_misses - before.pool_hits - before.pool_misses),
        "system_allocations", (json_int_t)(after.pool_misses - before.pool_misses),
        "heap_allocations", (json_int_t)(after.heap_allocs - before.heap_allocs), "held_bytes",
        (json_int_t)after.held_bytes);
}

static bool measure(km_bench *b, km_ctx *ctx, json_t *devices) {
    km_progress_step(&b->progress, b->done++, "memory pool");
    km_trim(ctx);
    json_t *each = sizes_json(ctx), *steady = steady_json(ctx);
    if (km_ctx_status(ctx) != KM_OK) {
        km_error_set(&b->error, km_ctx_status(ctx), "pool: %s", km_ctx_error(ctx));
        json_decref(each);
        json_decref(steady);
        return false;
    }
    json_array_append_new(devices, json_pack("{s:s, s:o, s:o}", "device", km_ctx_device(ctx),
                                             "sizes", each, "steady", steady));
    return true;
}

int km_bench_pool_count(const km_bench *b) { return b->device ? 2 : 1; }

bool km_bench_pool(km_bench *b) {
    json_t *devices = json_array();
    bool ok = measure(b, b->cpu, devices) && (!b->device || measure(b, b->device, devices));
    b->pool_figures = json_pack("{s:o}", "devices", devices);
    return ok;
}
