/* The context: errors that stick, lanes, steps and scopes. A step holds one reference to every
 * storage made in it; ending the step or a scope drops those references, and whatever nothing
 * else needs goes back to the pool. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/log.h"
#include "base/sized.h"
#include "tensor/profile.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORAGES_PER_BLOCK 128
struct km_storage_block {
    struct km_storage_block *next;
    km_storage s[STORAGES_PER_BLOCK];
};

km_status km_fail(km_ctx *ctx, km_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (km_ctx_is(ctx) && ctx->error.code == KM_OK) {
        km_error_setv(&ctx->error, code, fmt, ap);
        km_last_error_set(&ctx->error);
    }
    va_end(ap);
    return code;
}

km_status km_ctx_fail(km_ctx *ctx, km_status code, const char *fmt, ...) {
    KM_CTX_CALL(ctx, code);
    if (code == KM_OK || ctx->error.code != KM_OK) return code;
    va_list ap;
    va_start(ap, fmt);
    km_error_setv(&ctx->error, code, fmt, ap);
    va_end(ap);
    km_last_error_set(&ctx->error);
    return code;
}

km_status km_ctx_status(const km_ctx *ctx) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    return ctx->error.code;
}
const char *km_ctx_error(const km_ctx *ctx) {
    KM_CTX_CALL(ctx, ctx ? km_last_error() : "no context");
    return ctx->error.text;
}
const char *km_ctx_device(const km_ctx *ctx) { return km_ctx_is(ctx) ? ctx->device->name : ""; }
int km_ctx_threads(const km_ctx *ctx) {
    return km_ctx_is(ctx) ? km_threads_count(ctx->threads) : 0;
}

void km_ctx_clear_error(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (km_ctx_is(ctx)) ctx->error = (km_error){0};
}

void km_seed(km_ctx *ctx, uint64_t seed) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx)) return;
    ctx->seed = seed;
    ctx->draws = 0;
}

void km_ctx_allow_tf32(km_ctx *ctx, bool on) {
    KM_CTX_CALL(ctx, );
    if (km_ctx_is(ctx)) ctx->tf32 = on;
}

static int default_activations(void) {
    const char *wish = getenv("KERMES_ACTIVATIONS");
    if (!wish || !*wish || strcmp(wish, "16") == 0) return 16;
    if (strcmp(wish, "8") == 0) return 8;
    km_note(KM_LOG_WARN, "KERMES_ACTIVATIONS=%s: takes 8 or 16; using 16", wish);
    return 16;
}

km_status km_ctx_set_activations(km_ctx *ctx, int bits) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (!km_ctx_is(ctx)) return km_ctx_status(ctx);
    if (bits != 8 && bits != 16)
        return km_fail(ctx, KM_ERR_RANGE, "activations keep 8 or 16 bits, not %d", bits);
    ctx->activations = bits;
    return KM_OK;
}

int km_ctx_activations(const km_ctx *ctx) {
    KM_CTX_CALL(ctx, 0);
    return km_ctx_is(ctx) ? ctx->activations : 0;
}

void km_ctx_set_fallback(km_ctx *ctx, bool on) {
    KM_CTX_CALL(ctx, );
    if (km_ctx_is(ctx)) ctx->no_fallback = !on;
}

bool km_ctx_lost(const km_ctx *ctx) {
    KM_CTX_CALL(ctx, false);
    return ctx->device->ops->lost && ctx->device->ops->lost(ctx->device);
}

void *km_ctx_stream(km_ctx *ctx) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx) || !ctx->device->ops->stream) return NULL;
    void *stream = ctx->device->ops->stream(ctx->lanes[0]);
    return km_failed(ctx) ? NULL : stream;
}

void km_sync(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx)) return;
    for (int i = 0; i < ctx->n_lanes; i++) ctx->lanes[i]->device->ops->sync(ctx->lanes[i]);
}

km_ctx *km_ctx_make(km_device *device, int threads, km_error *err) {
    km_ctx *ctx = km_calloc(1, sizeof *ctx);
    if (!ctx) goto fail;
    ctx->device = device;
    km_handle_add(&ctx->handle, KM_HANDLE_CONTEXT);
    atomic_init(&ctx->holders, 1);
    ctx->activations = default_activations();
    const char *fallback = getenv("KERMES_FALLBACK");
    ctx->no_fallback = fallback && strcmp(fallback, "0") == 0;
    ctx->threads = km_threads_new(threads);
    if (!ctx->threads) goto fail_ctx;
    if (!km_ctx_lane(ctx, device)) {
        km_error_set(err, ctx->error.code, "%s", ctx->error.text);
        goto fail_threads;
    }
    return ctx;
fail_threads:
    km_threads_free(ctx->threads);
fail_ctx:
    km_handle_remove(ctx, KM_HANDLE_CONTEXT);
    km_free(ctx);
fail:
    km_error_set(err, KM_ERR_MEMORY, "context on %s: out of memory", device->name);
    return NULL;
}

static void unhold(void *ctx) { km_ctx_unhold(ctx); }

void km_ctx_free(km_ctx *ctx) { km_handle_free("context", ctx, KM_HANDLE_CONTEXT, unhold); }

static void end_step(km_ctx *ctx);

void km_ctx_unhold(km_ctx *ctx) {
    if (atomic_fetch_sub(&ctx->holders, 1) > 1) return;
    km_loans_settle(ctx);
    end_step(ctx);
    km_profile_free(ctx);
    for (int i = 0; i < ctx->n_lanes; i++) {
        km_lane *lane = ctx->lanes[i];
        km_mempool_free(&lane->pool);
        lane->device->ops->close(lane);
        km_free(lane);
    }
    km_threads_free(ctx->threads);
    km_arena_free(&ctx->arena);
    while (ctx->blocks) {
        struct km_storage_block *b = ctx->blocks;
        ctx->blocks = b->next;
        km_free(b);
    }
    km_free_aligned(ctx->scratch, ctx->scratch_bytes);
    km_free(ctx->step);
    km_free(ctx);
}

km_lane *km_ctx_lane(km_ctx *ctx, km_device *device) {
    for (int i = 0; i < ctx->n_lanes; i++)
        if (ctx->lanes[i]->device == device) return ctx->lanes[i];
    if (ctx->n_lanes == KM_MAX_LANES) {
        km_fail(ctx, KM_ERR_DEVICE, "%s: a context reaches at most %d devices", device->name,
                KM_MAX_LANES);
        return NULL;
    }
    km_lane *lane = km_calloc(1, sizeof *lane);
    if (!lane) {
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", device->name);
        return NULL;
    }
    lane->ctx = ctx;
    lane->device = device;
    if (device->ops->open(lane, &ctx->error) != KM_OK) {
        km_free(lane);
        return NULL;
    }
    ctx->lanes[ctx->n_lanes++] = lane;
    return lane;
}

void *km_ctx_scratch(km_ctx *ctx, size_t bytes) {
    if (bytes <= ctx->scratch_bytes && ctx->scratch) return ctx->scratch;
    size_t want = (bytes + 65535) / 65536 * 65536;
    void *p = km_alloc_aligned(want);
    if (!p) {
        km_fail(ctx, KM_ERR_MEMORY, "out of memory: %zu bytes of scratch", want);
        return NULL;
    }
    km_free_aligned(ctx->scratch, ctx->scratch_bytes);
    ctx->scratch = p;
    ctx->scratch_bytes = want;
    return p;
}

/* ---- Storages ---- */

static km_storage *storage_record(km_ctx *ctx) {
    if (!ctx->unused) {
        struct km_storage_block *b = km_calloc(1, sizeof *b);
        if (!b) return NULL;
        b->next = ctx->blocks;
        ctx->blocks = b;
        for (int i = 0; i < STORAGES_PER_BLOCK; i++) {
            b->s[i].next = ctx->unused;
            ctx->unused = &b->s[i];
        }
    }
    km_storage *s = ctx->unused;
    ctx->unused = s->next;
    return s;
}

static bool step_reserve(km_ctx *ctx) {
    return km_array_reserve(&ctx->step, &ctx->cap_step, ctx->n_step + 1);
}

void km_storage_retain(km_storage *s) { s->refs++; }

void km_storage_release(km_ctx *ctx, km_storage *s) {
    if (--s->refs > 0) return;
    if (s->drop)
        s->drop(s->owner);
    else if (s->give_back)
        s->give_back(s->owner);
    else
        km_mempool_put(&s->lane->pool, s->data, s->cap);
    s->data = NULL;
    s->next = ctx->dead; /* reused only after the step: its tensors can still see data == NULL */
    ctx->dead = s;
}

/* Says once that tensors lie in the host's memory. */
static void note_spill(km_ctx *ctx, const km_lane *lane, const char *what, size_t bytes) {
    ctx->spills++;
    if (ctx->told_spill) return;
    ctx->told_spill = true;
    km_note(KM_LOG_WARN,
            "%s has no room for %s, %.1f MB: it lies in the host's memory, which %s reads over its "
            "bus, and so does whatever else does not fit",
            lane->device->name, what, (double)bytes / 1e6, lane->device->name);
}

/* The bytes of a tensor: the device's own, or the host's where those are used up. */
static void *storage_bytes(km_ctx *ctx, km_lane *lane, const char *what, size_t bytes,
                           size_t *cap) {
    bool spilled = false;
    if (!lane->pool.spill_alloc || ctx->no_fallback || ctx->must_fit)
        return km_mempool_get(&lane->pool, bytes, cap);
    void *data = km_mempool_get_anywhere(&lane->pool, bytes, cap, &spilled);
    if (spilled) note_spill(ctx, lane, what, bytes);
    return data;
}

km_tensor *km_tensor_new(km_ctx *ctx, km_lane *lane, const char *what, km_dtype dtype,
                         km_shape shape) {
    if (km_failed(ctx) || km_shape_check(ctx, what, dtype, shape) != KM_OK) return NULL;
    size_t bytes = (size_t)km_dtype_bytes(dtype, km_shape_count(shape));
    km_tensor *t = km_arena_alloc(&ctx->arena, sizeof *t);
    km_storage *s = step_reserve(ctx) ? storage_record(ctx) : NULL;
    void *data = NULL;
    size_t cap = 0;
    if (ctx->profile) ctx->profile->making = what;
    if (t && s) data = storage_bytes(ctx, lane, what, bytes, &cap);
    if (ctx->profile) ctx->profile->making = NULL;
    if (!data) {
        char text[KM_SHAPE_TEXT];
        if (s) {
            s->next = ctx->unused;
            ctx->unused = s;
        }
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory on %s: %s of %s needs %zu bytes", what,
                lane->device->name, km_shape_text(text, shape), km_dtype_name(dtype), bytes);
        return NULL;
    }
    *s = (km_storage){.lane = lane, .data = data, .bytes = bytes, .cap = cap, .refs = 1};
    ctx->step[ctx->n_step++] = s;
    t->ctx = ctx;
    t->storage = s;
    t->dtype = dtype;
    t->shape = shape;
    km_shape_strides(shape, t->stride);
    return t;
}

km_tensor *km_wrap(km_ctx *ctx, const char *what, km_dtype dtype, km_shape shape, const void *data,
                   void (*drop)(void *owner), void *owner) {
    if (km_failed(ctx) || km_shape_check(ctx, what, dtype, shape) != KM_OK) return NULL;
    if (!ctx->device->host && !ctx->device->ops->lend) {
        km_fail(ctx, KM_ERR_DEVICE, "%s: memory of the host cannot be used in place on %s", what,
                ctx->device->name);
        return NULL;
    }
    if (!ctx->device->host) {
        if (ctx->device->ops->lend(ctx->lanes[0]) != KM_OK) return NULL;
        ctx->uncaptured = true;
    }
    km_tensor *t = km_calloc(1, sizeof *t);
    km_storage *s = t ? storage_record(ctx) : NULL;
    if (!s) {
        km_free(t);
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", what);
        return NULL;
    }
    *s = (km_storage){.lane = ctx->lanes[0],
                      .data = (void *)(uintptr_t)data, /* never written: transfer.c refuses to */
                      .bytes = (size_t)km_dtype_bytes(dtype, km_shape_count(shape)),
                      .refs = 1,
                      .drop = drop,
                      .owner = owner};
    *t = (km_tensor){.ctx = ctx, .storage = s, .dtype = dtype, .shape = shape, .kept = true};
    km_shape_strides(shape, t->stride);
    return t;
}

km_tensor *km_wrap_lent(km_ctx *ctx, void *data, size_t bytes, void (*back)(void *owner),
                        void *owner) {
    km_tensor *t = km_calloc(1, sizeof *t);
    km_storage *s = t ? storage_record(ctx) : NULL;
    if (!s) {
        km_free(t);
        km_fail(ctx, KM_ERR_MEMORY, "out of memory for a tensor's record");
        return NULL;
    }
    *s = (km_storage){.lane = ctx->lanes[0],
                      .data = data,
                      .bytes = bytes,
                      .refs = 1,
                      .give_back = back,
                      .owner = owner};
    *t = (km_tensor){.ctx = ctx, .storage = s, .kept = true};
    return t;
}

km_tensor *km_tensor_view(km_ctx *ctx, const km_tensor *t, km_shape shape, const int64_t *stride,
                          int64_t offset) {
    km_tensor *v = km_arena_alloc(&ctx->arena, sizeof *v);
    if (!v) {
        km_fail(ctx, KM_ERR_MEMORY, "out of memory for a view");
        return NULL;
    }
    v->ctx = ctx;
    v->storage = t->storage;
    v->dtype = t->dtype;
    v->shape = shape;
    for (int i = 0; i < shape.ndim; i++) v->stride[i] = stride[i];
    v->offset = offset;
    return v;
}

/* ---- Steps and scopes ---- */

void km_step_drop(km_ctx *ctx, int mark, km_tensor *const *keep, int n_keep) {
    int left = mark;
    for (int i = mark; i < ctx->n_step; i++) {
        km_storage *s = ctx->step[i];
        bool stays = false;
        for (int k = 0; k < n_keep; k++) stays |= keep[k] && keep[k]->storage == s;
        if (stays)
            ctx->step[left++] = s;
        else
            km_storage_release(ctx, s);
    }
    ctx->n_step = left;
}

/* Scopes are counted on a failed context too, so that begin and end stay paired. */
void km_scope_begin(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx)) return;
    if (ctx->n_scopes < KM_MAX_SCOPES)
        ctx->scope[ctx->n_scopes] = ctx->n_step;
    else
        km_fail(ctx, KM_ERR_STATE, "scope: nested more than %d deep", KM_MAX_SCOPES);
    ctx->n_scopes++;
}

km_tensor *km_scope_end(km_ctx *ctx, km_tensor *result) {
    KM_CTX_CALL(ctx, NULL);
    if (!km_ctx_is(ctx)) return NULL;
    if (ctx->n_scopes == 0) {
        km_fail(ctx, KM_ERR_STATE, "scope: ended without a begin");
        return NULL;
    }
    ctx->n_scopes--;
    if (ctx->n_scopes < KM_MAX_SCOPES) km_step_drop(ctx, ctx->scope[ctx->n_scopes], &result, 1);
    return km_failed(ctx) ? NULL : result;
}

static void end_step(km_ctx *ctx) {
    ctx->ending = true;
    if (atomic_load_explicit(&ctx->loans_ended, memory_order_relaxed)) km_loans_settle(ctx);
    if (ctx->tape_reset) ctx->tape_reset(ctx);
    km_step_drop(ctx, 0, NULL, 0);
    ctx->n_scopes = 0;
    km_arena_reset(&ctx->arena);
    while (ctx->dead) {
        km_storage *s = ctx->dead;
        ctx->dead = s->next;
        s->next = ctx->unused;
        ctx->unused = s;
    }
    while (ctx->released) {
        km_tensor *t = ctx->released;
        ctx->released = t->next_released;
        km_free(t);
    }
    ctx->steps++;
    ctx->ending = false;
}

void km_step_end(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (!ctx->ending) end_step(ctx);
}

/* ---- Statistics ---- */

static km_lane *home(const km_ctx *ctx) { return ctx->lanes[0]; }

static km_stats stats_of(const km_ctx *ctx) {
    km_stats s = {.size = sizeof s};
    s.steps = ctx->steps;
    s.kernels = ctx->kernels;
    s.fallbacks = ctx->fallbacks;
    s.failed_kernels = ctx->failed_kernels;
    s.heap_allocs = km_alloc_count();
    const km_mempool *p = &home(ctx)->pool;
    s.pool_hits = p->hits;
    s.pool_misses = p->misses;
    s.live_bytes = p->live;
    s.peak_bytes = p->peak;
    s.held_bytes = p->held;
    s.spills = ctx->spills;
    s.spilled_bytes = p->spilled_bytes;
    return s;
}

km_status km_ctx_stats_sized(const km_ctx *ctx, km_stats *out, size_t size) {
    km_stats own = {0};
    KM_INSIDE(in);
    if (km_enter(&in, "km_ctx_stats", ctx, KM_HANDLE_CONTEXT)) own = stats_of(ctx);
    return KM_HAND_OUT(out, size, &own, km_stats);
}

void km_expect_bytes(km_ctx *ctx, size_t bytes) { km_mempool_expect(&ctx->lanes[0]->pool, bytes); }

double km_room_left(const km_ctx *ctx) {
    if (ctx->device->host || !ctx->device->ops->room) return INFINITY;
    return (double)ctx->device->ops->room(ctx->device);
}

void km_stats_reset_peak(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (km_ctx_is(ctx)) home(ctx)->pool.peak = home(ctx)->pool.live;
}

void km_trim(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx)) return;
    for (int i = 0; i < ctx->n_lanes; i++) km_mempool_trim(&ctx->lanes[i]->pool);
}
