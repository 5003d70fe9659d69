/* Attention over the paged cache (shaders/attend_put.comp, attend_wide.comp, attend_look.comp): all rows' keys and values
 * go into the cache, then each query looks at it. Caches of f32, f16, bf16, q8_0 and q4_0; heads of up to 512. */
#include "backend/attend.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define MOST_DIMS 512

typedef struct attend_push {
    uint64_t x, v, cache_k, cache_v, rows, table, norm, o, more;
    uint32_t x_row, v_row, pages, sequences, max_pages, heads, kv_heads, d, window, k_row;
    uint64_t k, k_norm;
} attend_push;

typedef struct attend_more {
    uint32_t dims, adjacent;
    float scale, softcap, eps, magnitude;
    uint64_t divisors;
    float turns[MOST_DIMS / 2][2]; /* of pair i in one step of position, in two parts */
} attend_more;

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

static void fill_more(attend_more *m, const km_attend_call *a, const km_tensor *divisors) {
    *m = (attend_more){.dims = (uint32_t)a->dims,
                       .adjacent = a->adjacent,
                       .scale = (float)a->scale,
                       .softcap = (float)a->softcap,
                       .eps = (float)a->eps,
                       .magnitude = (float)a->magnitude,
                       .divisors = km_vulkan_at(divisors)};
    for (int64_t p = 0; p < a->dims / 2; p++) {
        double turns = pow(a->base, -2.0 * (double)p / (double)a->dims) / 6.283185307179586;
        m->turns[p][0] = (float)turns;
        m->turns[p][1] = (float)(turns - (double)m->turns[p][0]);
    }
}

/* The host does not see how long sequences are: half of what the table has room for. */
static double work_of(const km_attend_call *a) {
    double tokens = (double)km_min64(a->max_pages * KM_KV_PAGE, 2048) / 2;
    return (double)(a->rows * a->heads) * (2000 + tokens * (double)a->d * 4);
}

/* By shaders/attend_wide.comp, for heads of whole words of 16 bytes; put: with the new key and value, which
 * one row may do, for nobody else's come with it. */
static km_status start_wide(km_lane *lane, const km_attend_call *a, const attend_push *push,
                            const km_call *c, bool put) {
    const km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    attend_push p = *push;
    if (a->d % 8 || (put && (a->rows != 1 || !is_float(a->cache)))) return KM_ERR_UNSUPPORTED;
    p.k = push->x;
    p.k_row = push->x_row;
    p.k_norm = push->norm;
    p.x = km_vulkan_at(c->in[KM_ATTEND_Q]);
    p.x_row = (uint32_t)c->in[KM_ATTEND_Q]->stride[0];
    p.norm = km_vulkan_at(km_attend_in(c, KM_ATTEND_Q_NORM));
    /* A row by itself has the device's threads to itself; long prompts begin with short rows. */
    uint32_t threads =
        a->rows > 64 || dev->most_threads < 512 || dev->shared_bytes < 32 << 10 ? 128 : 512;
    uint32_t spec[] = {(uint32_t)a->dtype, (uint32_t)a->cache, threads, put};
    return km_vulkan_launch(lane, "attend_wide", spec, 4, &p, sizeof p,
                            KM_GROUPS(a->heads, a->rows), work_of(a));
}

static km_status run_attend(km_ctx *ctx, const km_call *c) {
    km_attend_call a = km_attend_describe(c);
    const km_tensor *q = c->in[KM_ATTEND_Q], *k = c->in[KM_ATTEND_K], *v = c->in[KM_ATTEND_V];
    km_lane *lane = km_vulkan_lane(c);
    attend_more more;
    (void)ctx;
    bool blocks = (a.cache == KM_Q8_0 || a.cache == KM_Q4_0) && a.d % 32 == 0;
    if (!is_float(a.dtype) || !(blocks || is_float(a.cache)) || a.d > MOST_DIMS || a.rows > 65535 ||
        k->dtype != a.dtype || v->dtype != a.dtype || !km_is_contiguous(c->out[0]) || a.window < 0)
        return KM_ERR_UNSUPPORTED;
    if (km_shape_count(c->in[KM_ATTEND_CACHE_K]->shape) >= KM_VULKAN_MOST ||
        a.rows * (q->stride[0] + v->stride[0]) >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if (a.rows == 0 || a.d == 0 || a.heads == 0) return KM_OK;
    fill_more(&more, &a, km_attend_in(c, KM_ATTEND_DIVISORS));
    attend_push push = {.x = km_vulkan_at(k),
                        .v = km_vulkan_at(v),
                        .cache_k = km_vulkan_at(c->in[KM_ATTEND_CACHE_K]),
                        .cache_v = km_vulkan_at(c->in[KM_ATTEND_CACHE_V]),
                        .rows = km_vulkan_at(c->in[KM_ATTEND_ROWS]),
                        .table = km_vulkan_at(c->in[KM_ATTEND_TABLE]),
                        .norm = km_vulkan_at(km_attend_in(c, KM_ATTEND_K_NORM)),
                        .o = km_vulkan_at(c->out[0]),
                        .more = km_vulkan_words(lane, &more, sizeof more),
                        .x_row = (uint32_t)k->stride[0],
                        .v_row = (uint32_t)v->stride[0],
                        .pages = (uint32_t)a.pages,
                        .sequences = (uint32_t)a.sequences,
                        .max_pages = (uint32_t)a.max_pages,
                        .heads = (uint32_t)a.heads,
                        .kv_heads = (uint32_t)a.kv_heads,
                        .d = (uint32_t)a.d,
                        .window = (uint32_t)a.window};
    if (!push.more) return lane->ctx->error.code;
    uint32_t spec[] = {(uint32_t)a.dtype, (uint32_t)a.cache, 128, 0};
    km_status s = start_wide(lane, &a, &push, c, true);
    if (s != KM_ERR_UNSUPPORTED) return s;
    s = km_vulkan_launch(lane, "attend_put", spec, 2, &push, sizeof push,
                         KM_GROUPS(a.kv_heads, a.rows),
                         (double)(a.rows * a.kv_heads) * (double)(a.d * 20 + 2000));
    if (s != KM_OK) return s;
    /* The first launch may have been handed in, and its staging memory with it. */
    push.more = km_vulkan_words(lane, &more, sizeof more);
    if (!push.more) return lane->ctx->error.code;
    s = start_wide(lane, &a, &push, c, false);
    if (s != KM_ERR_UNSUPPORTED) return s;
    push.x = km_vulkan_at(q);
    push.x_row = (uint32_t)q->stride[0];
    push.norm = km_vulkan_at(km_attend_in(c, KM_ATTEND_Q_NORM));
    return km_vulkan_launch(lane, "attend_look", spec, 2, &push, sizeof push,
                            KM_GROUPS(a.heads, a.rows), work_of(&a));
}

void km_vulkan_register_attend(km_kernel *table) { table[KM_OP_ATTEND] = run_attend; }
