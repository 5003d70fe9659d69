/* Recording of live bytes by op. An event remembers its block, so that at the end each release can
 * be told by whom the block was made. */
#include "tensor/profile.h"
#include "base/alloc.h"
#include <stdlib.h>

#define BEFORE "before"
#define OUTSIDE "outside"

static bool reserve(km_profile *p) {
    if (p->n < p->cap) return true;
    size_t cap = p->cap ? 2 * p->cap : 1024;
    km_memory_event *events = km_realloc(p->events, cap * sizeof *events);
    if (!events) return false;
    p->events = events;
    void **blocks = km_realloc(p->blocks, cap * sizeof *blocks);
    if (!blocks) return false;
    p->blocks = blocks;
    p->cap = cap;
    return true;
}

static void record(void *user, void *block, int64_t bytes, size_t live) {
    km_ctx *ctx = user;
    km_profile *p = ctx->profile;
    if (p->failed || !reserve(p)) {
        p->failed = true;
        return;
    }
    p->blocks[p->n] = block;
    p->events[p->n++] = (km_memory_event){.index = p->index,
                                          .op = p->making ? p->making : p->op,
                                          .grad_of = ctx->grad_of,
                                          .bytes = bytes,
                                          .live = live};
}

/* ---- Who made what was given back ---- */

typedef struct block_place {
    uintptr_t block;
    size_t event;
} block_place;

static int by_block_and_time(const void *a, const void *b) {
    const block_place *x = a, *y = b;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    return (x->event > y->event) - (x->event < y->event);
}

/* A release takes the name of the event before it on the same block; without one the block was
 * there before the recording. */
static bool name_releases(km_profile *p) {
    block_place *at = km_alloc((p->n + 1) * sizeof *at);
    if (!at) return false;
    for (size_t i = 0; i < p->n; i++) at[i] = (block_place){(uintptr_t)p->blocks[i], i};
    qsort(at, p->n, sizeof *at, by_block_and_time);
    for (size_t i = 0; i < p->n; i++) {
        km_memory_event *e = &p->events[at[i].event];
        if (e->bytes >= 0) continue;
        bool made = i > 0 && at[i - 1].block == at[i].block && p->events[at[i - 1].event].bytes > 0;
        e->op = made ? p->events[at[i - 1].event].op : BEFORE;
        e->grad_of = made ? p->events[at[i - 1].event].grad_of : NULL;
    }
    km_free(at);
    return true;
}

/* ---- The switch ---- */

void km_profile_free(km_ctx *ctx) {
    km_profile *p = ctx->profile;
    if (!p) return;
    if (p->on && ctx->n_lanes) ctx->lanes[0]->pool.meter = (km_mempool_meter){0};
    km_free(p->events);
    km_free(p->blocks);
    km_free(p);
    ctx->profile = NULL;
}

km_status km_profile_begin(km_ctx *ctx) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (ctx->profile && ctx->profile->on)
        return km_fail(ctx, KM_ERR_STATE, "profile: it is being recorded already");
    km_profile_free(ctx);
    ctx->profile = km_calloc(1, sizeof *ctx->profile);
    if (!ctx->profile) return km_fail(ctx, KM_ERR_MEMORY, "profile: out of memory");
    km_profile *p = ctx->profile;
    km_mempool *pool = &ctx->lanes[0]->pool;
    p->op = BEFORE;
    if (pool->live) record(ctx, NULL, (int64_t)pool->live, pool->live);
    if (p->failed) {
        km_profile_free(ctx);
        return km_fail(ctx, KM_ERR_MEMORY, "profile: out of memory");
    }
    p->op = OUTSIDE;
    p->on = true;
    pool->meter = (km_mempool_meter){record, ctx};
    return KM_OK;
}

const km_memory_event *km_profile_end(km_ctx *ctx, size_t *n) {
    if (n) *n = 0;
    KM_CTX_CALL(ctx, NULL);
    if (!km_ctx_is(ctx)) return NULL;
    km_profile *p = ctx->profile;
    if (!p || !p->on) {
        km_fail(ctx, KM_ERR_STATE, "profile: ended without a begin");
        return NULL;
    }
    p->on = false;
    ctx->lanes[0]->pool.meter = (km_mempool_meter){0};
    if (p->failed || !name_releases(p)) {
        km_fail(ctx, KM_ERR_MEMORY, "profile: out of memory");
        km_profile_free(ctx);
        return NULL;
    }
    if (n) *n = p->n;
    static const km_memory_event none;
    return p->n ? p->events : &none;
}
