/* Attention over the paged cache on the GPU. What a call does is in its tensors, which the host does
 * not read: the grid depends on shapes alone, so that a captured call serves every position. */
#include "backend/attend.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/attend/attend_args.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/modules.h"

#define ONE(module_, name_)                                                                        \
    { .module = module_, .name = name_, .waits = true }
/* Heads of up to 64, 128 and 256 elements. */
#define SIZES(module_, name_)                                                                      \
    { ONE(module_, name_ "_64"), ONE(module_, name_ "_128"), ONE(module_, name_ "_256") }
static km_cuda_kernel few[] = SIZES("attend_few", "attend_few");
static km_cuda_kernel alone[] = SIZES("attend_few", "attend_alone");
#define BESIDE(name_)                                                                              \
    { .module = "attend_one", .name = name_, .waits = true, .beside = true }
static km_cuda_kernel one[] = {BESIDE("attend_one_64"), BESIDE("attend_one_128"),
                               BESIDE("attend_one_256")};
static km_cuda_kernel sole[] = {BESIDE("attend_sole_64"), BESIDE("attend_sole_128"),
                                BESIDE("attend_sole_256")};
static km_cuda_kernel tile[] = SIZES("attend_tile", "attend_tile");
static km_cuda_kernel pages_16[2][2] = {
    {ONE("attend_pages", "attend_pages_f16_64"), ONE("attend_pages", "attend_pages_f16_128")},
    {ONE("attend_pages", "attend_pages_bf16_64"), ONE("attend_pages", "attend_pages_bf16_128")}};
static km_cuda_kernel pages_blocks[2][2] = {
    {ONE("attend_blocks", "attend_blocks_8_64"), ONE("attend_blocks", "attend_blocks_8_128")},
    {ONE("attend_blocks", "attend_blocks_4_64"), ONE("attend_blocks", "attend_blocks_4_128")}};
static km_cuda_kernel append = ONE("attend_few", "attend_append");
static km_cuda_kernel plain = ONE("attend_plain", "attend_plain");
static km_cuda_kernel plain_append = ONE("attend_plain", "attend_plain_append");

#define FEW_ROWS 64 /* from here on tiles of tokens are worth it */
#define FEWEST_ROWS 8
#define SHORT_PAGES 16 /* of a context over which few rows are sooner done each by itself */

static int cache_kind(km_dtype d) {
    return d == KM_F32    ? KM_CACHE_F32
           : d == KM_F16  ? KM_CACHE_F16
           : d == KM_BF16 ? KM_CACHE_BF16
           : d == KM_Q8_0 ? KM_CACHE_Q8_0
                          : KM_CACHE_Q4_0;
}

static const void *in_ptr(const km_call *c, int i) {
    const km_tensor *t = km_attend_in(c, i);
    return t ? km_tensor_ptr(t) : NULL;
}

/* Every split'th page is one block's: as many as fill the chip, and no more than there are pages. */
static int32_t splits_for(const km_cuda_dev *dev, const km_attend_call *w, int64_t blocks) {
    int64_t n = 2 * (int64_t)dev->sms / (blocks > 0 ? blocks : 1);
    if (n > 32) n = 32;
    if (n > w->max_pages) n = w->max_pages;
    return n < 1 ? 1 : (int32_t)n;
}

static unsigned few_shared(int64_t dp) {
    int64_t warps = KM_ATTEND_FEW_THREADS / 32, heads = KM_ATTEND_HEADS;
    return (unsigned)(2 * KM_ATTEND_PAGE * dp * 2 + heads * dp * 2 + heads * KM_ATTEND_PAGE * 2 +
                      2 * warps * heads * 4 + dp * 4 + 2 * dp * 4);
}

static km_status run_few(km_lane *lane, const km_attend_call *w, km_attend_args *a, int size) {
    int64_t dp = 64 << size;
    a->parts = (a->group + KM_ATTEND_HEADS - 1) / KM_ATTEND_HEADS;
    int64_t blocks = (int64_t)a->rows * a->kv_heads * a->parts;
    a->splits = blocks > KM_CUDA_COUNTERS ? 1 : splits_for(km_cuda_dev_of(lane), w, blocks);
    size_t cap = 0;
    if (a->splits > 1) {
        size_t each = (size_t)KM_ATTEND_HEADS * (size_t)(a->d + 2) * sizeof(float);
        a->partial = km_cuda_scratch(lane, (size_t)blocks * (size_t)a->splits * each, &cap);
        a->counters = a->partial ? km_cuda_counters(lane) : NULL;
        if (!a->counters) return lane->ctx->error.code;
    }
    km_status s = km_cuda_launch1(lane, a->turned ? &few[size] : &alone[size],
                                  KM_DIM(a->splits, a->kv_heads * a->parts, a->rows),
                                  KM_DIM(KM_ATTEND_FEW_THREADS), few_shared(dp), a);
    km_cuda_scratch_free(lane, a->partial, cap);
    return s;
}

static unsigned one_shared(bool many, int size) {
    int dp = 64 << size;
    return (unsigned)(many ? KM_ATTEND_ONE_SHARED(dp, KM_ATTEND_SOLE_ROWS)
                           : KM_ATTEND_ONE_SHARED(dp, 1));
}

/* Clusters that run at the same time: fewer than there is room for, as a cluster stays within a group
 * of multiprocessors. One more would come when all others have ended. Asked once. */
static int clusters_at_once(km_lane *lane, bool many, int size) {
    static atomic_int known[KM_CUDA_MAX_DEVICES][2][3];
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    atomic_int *mine = &known[dev->index][many][size];
    int count = atomic_load_explicit(mine, memory_order_relaxed);
    if (count) return count;
    km_cuda_kernel *k = many ? &sole[size] : &one[size];
    unsigned shared = one_shared(many, size);
    int beside = km_cuda_occupancy(lane, k, 256, shared); /* allows it that much */
    km_cu_function f = km_cuda_function(lane, k);
    km_cu_launch_attr attr = {.id = KM_CU_LAUNCH_CLUSTER};
    attr.value.cluster[0] = KM_ATTEND_CLUSTER;
    attr.value.cluster[1] = attr.value.cluster[2] = 1;
    int most = dev->sms / KM_ATTEND_CLUSTER * beside;
    km_cu_launch_config config = {.grid = {(unsigned)most * KM_ATTEND_CLUSTER, 1, 1},
                                  .block = {256, 1, 1},
                                  .shared = shared,
                                  .attrs = &attr,
                                  .n_attrs = 1};
    if (!f || !km_cuda_api()->clusters || KM_CU(clusters, &count, f, &config) != KM_CU_OK)
        count = most / 2; /* a guess on the safe side */
    count = count < 1 ? 1 : count > most ? most : count;
    atomic_store_explicit(mine, count, memory_order_relaxed);
    return count;
}

/* Blocks of query heads that share a key head's pages, for all key heads. */
static int64_t clusters_of(const km_attend_call *w) {
    return w->kv_heads * ((w->group + KM_ATTEND_HEADS - 1) / KM_ATTEND_HEADS);
}

/* One token over an f16 cache; or few, of whatever sequences, over one of no great length. */
static bool is_one(km_lane *lane, const km_attend_call *w, int size) {
    if (w->cache != KM_F16 || w->dims % 2 || w->d % 8 || km_cuda_dev_of(lane)->cc != 90 ||
        !km_cuda_has_module("attend_one"))
        return false;
    return w->rows == 1 || (w->rows <= KM_ATTEND_SOLE_ROWS && w->max_pages <= SHORT_PAGES &&
                            w->rows * clusters_of(w) <= clusters_at_once(lane, true, size));
}

/* Clusters for the query heads of a key head: as many as the cache has pages for, and no more than
 * run at once. Those that find nothing to do leave. */
static int clusters_for(km_lane *lane, const km_attend_call *w, int size) {
    int64_t n = (w->max_pages + 2 * KM_ATTEND_CLUSTER - 1) / (2 * KM_ATTEND_CLUSTER);
    if (w->rows > 1 || n == 1 || clusters_of(w) * KM_ATTEND_CLUSTER > KM_CUDA_COUNTERS) return 1;
    int64_t most = clusters_at_once(lane, false, size) / clusters_of(w);
    return most < 1 ? 1 : (int)(n < most ? n : most);
}

static km_status run_one(km_lane *lane, const km_attend_call *w, km_attend_args *a, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    a->parts = (a->group + KM_ATTEND_HEADS - 1) / KM_ATTEND_HEADS;
    int of = a->kv_heads * a->parts, clusters = clusters_for(lane, w, size);
    size_t cap = 0;
    bool many = w->rows > 1;
    if (clusters > 1) {
        size_t each = 2 * (size_t)((64 << size) + 2) * sizeof(float);
        a->partial =
            km_cuda_scratch(lane, (size_t)(of * KM_ATTEND_CLUSTER * clusters) * each, &cap);
        a->counters = a->partial ? km_cuda_counters(lane) : NULL;
        if (!a->counters) return lane->ctx->error.code;
    }
    /* Of few blocks each takes more than it needs, so that those of the layer after it wait on other
     * multiprocessors. */
    int blocks = KM_ATTEND_CLUSTER * clusters * of * a->rows;
    unsigned shared = one_shared(many, size);
    unsigned least = blocks <= dev->sms / 4 ? 150 << 10 : 0;
    void *params[] = {a};
    km_status s = km_cuda_launch_with(
        lane, many ? &sole[size] : &one[size], KM_DIM(KM_ATTEND_CLUSTER * clusters, of, a->rows),
        KM_DIM(256), shared > least ? shared : least, params,
        &(km_launch_options){.cluster = KM_DIM(KM_ATTEND_CLUSTER), .alone = !a->early});
    km_cuda_scratch_free(lane, a->partial, cap);
    return s;
}

/* Any mix of rows on Hopper. */
static bool is_shared(const km_lane *lane, const km_attend_call *w) {
    bool d = km_dtype_is_block(w->cache) ? w->d == 64 || w->d == 128 : w->d <= 128 && w->d % 8 == 0;
    if (lane->ctx->reproducible) return false; /* shares depend on what else there is */
    bool quick = w->cache == KM_F16 || w->rows == 1 || w->rows > FEWEST_ROWS;
    if (!quick && w->max_pages <= SHORT_PAGES) return false;
    return d && w->cache != KM_F32 && w->rows <= KM_ATTEND_SHARED_ROWS && w->scale > 0 &&
           w->pages * w->kv_heads <= INT32_MAX / KM_ATTEND_PAGE && km_cuda_dev_of(lane)->cc == 90 &&
           km_cuda_api()->map_tiled && km_cuda_has_module("attend_pages");
}

static km_status describe_cache(km_lane *lane, const km_attend_call *w, void *cache,
                                km_tensor_map *map) {
    uint64_t dims[] = {(uint64_t)w->d, (uint64_t)(w->pages * w->kv_heads * KM_ATTEND_PAGE)};
    const uint64_t strides[] = {(uint64_t)w->d * 2};
    const uint32_t box[] = {64, KM_ATTEND_PAGE}, steps[] = {1, 1};
    km_cu_result r =
        KM_CU(map_tiled, map, w->cache == KM_F16 ? KM_CU_MAP_F16 : KM_CU_MAP_BF16, 2, cache, dims,
              strides, box, steps, 0, KM_CU_SWIZZLE_128, KM_CU_PROMOTE_256, 0);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "describing a cache for the copy engine");
}

/* After append, which has put rows' positions into a->where. */
static km_status run_shared(km_lane *lane, const km_attend_call *w, km_attend_args *a) {
    km_attend_pages_args args = {0};
    bool blocks_of_32 = km_dtype_is_block(w->cache), wide = w->d > 64;
    int64_t d = wide ? 128 : 64; /* of tiles: elements beyond a head's are zeros */
    km_cuda_kernel *k = blocks_of_32 ? &pages_blocks[w->cache == KM_Q4_0][wide]
                                     : &pages_16[w->cache == KM_BF16][wide];
    unsigned shared = (unsigned)(!blocks_of_32         ? KM_ATTEND_SHARED_16(d)
                                 : w->cache == KM_Q8_0 ? KM_ATTEND_SHARED_BLOCKS(8, d)
                                                       : KM_ATTEND_SHARED_BLOCKS(4, d));
    /* Blocks wait for each other: no more than stand on the chip at once. */
    int blocks =
        km_cuda_occupancy(lane, k, KM_ATTEND_PAGES_THREADS, shared) * km_cuda_dev_of(lane)->sms;
    int each = a->group < KM_ATTEND_TILE ? a->group : KM_ATTEND_TILE;
    size_t cap = 0;
    a->parts = (a->group + each - 1) / each;
    a->partial =
        km_cuda_scratch(lane, 2 * (size_t)blocks * (size_t)KM_ATTEND_SLOT(d) * sizeof(float), &cap);
    a->counters = a->partial ? km_cuda_counters(lane) : NULL;
    if (!a->counters) return lane->ctx->error.code;
    args.a = *a;
    km_status s = blocks_of_32 ? KM_OK : describe_cache(lane, w, a->cache_k, &args.k);
    if (s == KM_OK && !blocks_of_32) s = describe_cache(lane, w, a->cache_v, &args.v);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, k, KM_DIM(blocks), KM_DIM(KM_ATTEND_PAGES_THREADS), shared,
                            &args);
    km_cuda_scratch_free(lane, a->partial, cap);
    return s;
}

static km_status run_tiles(km_lane *lane, km_attend_args *a, int size) {
    int64_t dp = 64 << size;
    int each = a->group < KM_ATTEND_TILE ? a->group : KM_ATTEND_TILE,
        tokens = KM_ATTEND_TILE / each;
    a->parts = (a->group + each - 1) / each;
    return km_cuda_launch1(lane, &tile[size],
                           KM_DIM((a->rows + tokens - 1) / tokens, a->kv_heads * a->parts),
                           KM_DIM(128), (unsigned)(5 * KM_ATTEND_PAGE * dp * 2), a);
}

/* Heads that tensor cores do not take as they are. */
static bool is_plain(const km_attend_call *w) {
    return w->d > 256 || w->d % 8 || (w->d % 16 && w->cache == KM_F16);
}

static km_status run_plain(km_lane *lane, km_attend_args *a) {
    size_t all = (size_t)a->rows * (size_t)a->d * sizeof(float), cap = 0, key_cap = 0;
    a->turned = km_cuda_scratch(lane, all * (size_t)a->heads, &cap);
    a->partial = a->turned ? km_cuda_scratch(lane, all * (size_t)a->kv_heads, &key_cap) : NULL;
    km_status s = a->partial ? km_cuda_launch1(lane, &plain_append, KM_DIM(a->rows), KM_DIM(256),
                                               (unsigned)a->dims * 4, a)
                             : lane->ctx->error.code;
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &plain, KM_DIM(a->heads, a->rows),
                            KM_DIM(KM_ATTEND_PLAIN_THREADS), (unsigned)KM_ATTEND_PLAIN_SHARED(a->d),
                            a);
    km_cuda_scratch_free(lane, a->partial, key_cap);
    km_cuda_scratch_free(lane, a->turned, cap);
    return s;
}

static km_status run_attend(km_ctx *ctx, const km_call *c);

static km_status cast(km_ctx *ctx, km_tensor *from, km_tensor *to) {
    km_params p = {.dtype = to->dtype};
    km_call c = {.op = KM_OP_CAST, .n_in = 1, .n_out = 1, .in = &from, .out = &to, .p = &p};
    return km_cuda_backend()->kernel[KM_OP_CAST](ctx, &c);
}

/* 16-bit queries, keys and values by way of f32. */
static km_status by_way_of_f32(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    km_tensor *in[KM_ATTEND_INPUTS] = {0}, *out = NULL;
    km_status s = KM_OK;
    for (int i = 0; i < c->n_in; i++) in[i] = c->in[i];
    for (int i = KM_ATTEND_Q; i <= KM_ATTEND_V && s == KM_OK; i++) {
        in[i] = km_tensor_new(ctx, lane, "attend", KM_F32, c->in[i]->shape);
        s = in[i] ? cast(ctx, c->in[i], in[i]) : ctx->error.code;
    }
    if (s == KM_OK) out = km_tensor_new(ctx, lane, "attend", KM_F32, c->out[0]->shape);
    if (s == KM_OK && !out) s = ctx->error.code;
    km_call wide = {.op = c->op, .n_in = c->n_in, .n_out = 1, .in = in, .out = &out, .p = c->p};
    if (s == KM_OK) s = run_attend(ctx, &wide);
    return s == KM_OK ? cast(ctx, out, c->out[0]) : s;
}

static km_status run_attend(km_ctx *ctx, const km_call *c) {
    km_attend_call w = km_attend_describe(c);
    km_lane *lane = km_cuda_lane(c);
    if (w.dtype != KM_F32) return by_way_of_f32(ctx, c);
    /* More of one head than a block has room for, or places that no int counts: the CPU's. */
    if (w.d > 4096 || w.max_pages > INT32_MAX / KM_KV_PAGE || w.rows > 65535)
        return KM_ERR_UNSUPPORTED;
    if (w.rows == 0) return KM_OK;
    int size = w.d <= 64 ? 0 : w.d <= 128 ? 1 : 2;
    km_attend_args a = {.q = in_ptr(c, KM_ATTEND_Q),
                        .k = in_ptr(c, KM_ATTEND_K),
                        .v = in_ptr(c, KM_ATTEND_V),
                        .ldq = c->in[KM_ATTEND_Q]->stride[0],
                        .ldk = c->in[KM_ATTEND_K]->stride[0],
                        .ldv = c->in[KM_ATTEND_V]->stride[0],
                        .out = km_tensor_ptr(c->out[0]),
                        .cache_k = km_tensor_ptr(c->in[KM_ATTEND_CACHE_K]),
                        .cache_v = km_tensor_ptr(c->in[KM_ATTEND_CACHE_V]),
                        .row = w.row,
                        .table = w.table,
                        .q_norm = in_ptr(c, KM_ATTEND_Q_NORM),
                        .k_norm = in_ptr(c, KM_ATTEND_K_NORM),
                        .divisors = in_ptr(c, KM_ATTEND_DIVISORS),
                        .rows = (int32_t)w.rows,
                        .heads = (int32_t)w.heads,
                        .kv_heads = (int32_t)w.kv_heads,
                        .d = (int32_t)w.d,
                        .group = (int32_t)w.group,
                        .pages = (int32_t)w.pages,
                        .sequences = (int32_t)w.sequences,
                        .max_pages = (int32_t)w.max_pages,
                        .window = (int32_t)w.window,
                        .cache = cache_kind(w.cache),
                        .dims = (int32_t)w.dims,
                        .adjacent = w.adjacent,
                        .log2_base = w.dims ? log2(w.base) : 0,
                        .scale = (float)w.scale,
                        .softcap = (float)w.softcap,
                        .eps = (float)w.eps,
                        .magnitude = (float)w.magnitude};
    /* The kernel in front may be the one that fills the cache or says where rows are, but not in what
     * is captured. */
    a.early = km_cuda_queue_of(lane)->capturing != NULL;
    bool together = is_shared(lane, &w), odd = is_plain(&w);
    if (!odd && is_one(lane, &w, size)) return run_one(lane, &w, &a, size);
    if (odd && !together) return run_plain(lane, &a);
    if (w.rows == 1 && !together) return run_few(lane, &w, &a, size);
    size_t cap, place_cap = 0;
    a.turned = km_cuda_scratch(lane, (size_t)(w.rows * w.heads * w.d) * sizeof(float), &cap);
    if (!a.turned) return ctx->error.code;
    km_status s = KM_OK;
    if (together) {
        a.where = km_cuda_scratch(lane, (size_t)w.rows * sizeof *a.where, &place_cap);
        if (!a.where) s = ctx->error.code;
    }
    /* Few rows have a warp to each vector. */
    int64_t vectors = w.heads + 2 * w.kv_heads, beside = w.rows <= FEW_ROWS ? (vectors + 7) / 8 : 1;
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &append, KM_DIM(w.rows, beside), KM_DIM(256),
                            (unsigned)((w.dims + 8 * w.d) * (int64_t)sizeof(float)), &a);
    if (s == KM_OK)
        s = together             ? run_shared(lane, &w, &a)
            : w.rows <= FEW_ROWS ? run_few(lane, &w, &a, size)
                                 : run_tiles(lane, &a, size);
    km_cuda_scratch_free(lane, a.where, place_cap);
    km_cuda_scratch_free(lane, a.turned, cap);
    return s;
}

void km_cuda_register_attend(km_kernel *table) { table[KM_OP_ATTEND] = run_attend; }
