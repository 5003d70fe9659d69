/* Layers over weights of a few bits, or of 16 bits with f32 x, on the GPU: a few rows of x by
 * kernels that stream the weights, more by tensor cores. */
#include "backend/cuda/quant.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/kernels/quant_tile_args.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/walker.h"

/* Beyond the block dtypes: plain weights. */
enum { PLAIN_F16 = KM_QUANT_TYPES, PLAIN_BF16, TYPES };

static int type_of(km_dtype d) {
    return d == KM_F16 ? PLAIN_F16 : d == KM_BF16 ? PLAIN_BF16 : km_cuda_quant_type(d);
}

/* ---- Kernels by type ---- */

#define KIND_Q4_0 "32"
#define KIND_Q4_1 "32"
#define KIND_Q5_0 "32"
#define KIND_Q5_1 "32"
#define KIND_Q8_0 "32"
#define KIND_IQ4_NL "32"
#define KIND_MXFP4 "32"
#define KIND_Q2_K "k"
#define KIND_Q3_K "k"
#define KIND_Q4_K "k"
#define KIND_Q5_K "k"
#define KIND_Q6_K "k"
#define KIND_IQ4_XS "k"

#define KERNEL(module_, name_) {.module = module_, .name = name_, .waits = true}
/* For 1, 4 and 8 rows. */
#define COUNTS(kind, name_)                                                                        \
    {KERNEL("quant_one_" kind, "one_" name_), KERNEL("quant_few_" kind, "few_" name_ "_4"),        \
     KERNEL("quant_few_" kind, "few_" name_ "_8")}
#define PLAIN(name_)                                                                               \
    {KERNEL("plain_one", "one_" name_), KERNEL("plain_few", "few_" name_ "_4"),                    \
     KERNEL("plain_few", "few_" name_ "_8")}
#define FEW(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name, #name),
#define FEW_GATED(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name, "gated_" #name),
static km_cuda_kernel few[2][TYPES][3] = {
    {KM_QUANT_PLANES(FEW)[PLAIN_F16] = PLAIN("F16"), [PLAIN_BF16] = PLAIN("BF16")},
    {KM_QUANT_PLANES(FEW_GATED)[PLAIN_F16] = PLAIN("gated_F16"),
     [PLAIN_BF16] = PLAIN("gated_BF16")}};

/* One row, by Hopper's copy engine. */
#define BULK(name, ...) [KM_QUANT_##name] = KERNEL_BULK(KIND_##name, "bulk_" #name),
#define BULK_GATED(name, ...) [KM_QUANT_##name] = KERNEL_BULK(KIND_##name, "bulk_gated_" #name),
#define BULK_WHOLE(name, ...)                                                                      \
    [KM_QUANT_##name] = KERNEL_BULK(KIND_##name, "bulk_gated_whole_" #name),
#define KERNEL_BULK(kind, name_)                                                                   \
    {.module = "quant_bulk_" kind, .name = name_, .waits = true, .beside = true}
static km_cuda_kernel bulk[3][KM_QUANT_TYPES] = {
    {KM_QUANT_PLANES(BULK)}, {KM_QUANT_PLANES(BULK_GATED)}, {KM_QUANT_PLANES(BULK_WHOLE)}};

#define TILE(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_" #name),
#define TILE_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_gated_" #name),
#define PLAIN_TILES(module_)                                                                       \
    {[PLAIN_F16] = KERNEL(module_, "tiles_F16"), [PLAIN_BF16] = KERNEL(module_, "tiles_BF16")},    \
        {[PLAIN_F16] = KERNEL(module_, "tiles_gated_F16"),                                         \
         [PLAIN_BF16] = KERNEL(module_, "tiles_gated_BF16")}
static km_cuda_kernel tiles[2][TYPES] = {{KM_QUANT_PLANES(TILE)}, {KM_QUANT_PLANES(TILE_GATED)}};
static km_cuda_kernel plain_tiles[2][2][TYPES] = {{PLAIN_TILES("quant_tiles")},
                                                  {PLAIN_TILES("quant_tiles_hopper")}};

/* With weights in registers, by the tokens of a tile. */
static const int tokens_of[] = {16, 64, 256};
#define REGS_16(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_16", "regs_" #name),
#define REGS_16_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_16", "regs_gated_" #name),
#define REGS_64(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_64", "regs_" #name),
#define REGS_64_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_64", "regs_gated_" #name),
#define REGS_256(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_256", "regs_" #name),
#define REGS_256_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_regs_256", "regs_gated_" #name),
static km_cuda_kernel regs[3][2][KM_QUANT_TYPES] = {
    {{KM_QUANT_PLANES(REGS_16)}, {KM_QUANT_PLANES(REGS_16_GATED)}},
    {{KM_QUANT_PLANES(REGS_64)}, {KM_QUANT_PLANES(REGS_64_GATED)}},
    {{KM_QUANT_PLANES(REGS_256)}, {KM_QUANT_PLANES(REGS_256_GATED)}}};

#define ROWS(type, ...)                                                                            \
    [KM_QUANT_##type] = {.module = "quant_rows", .name = "quant_rows_" #type, .waits = true},
static km_cuda_kernel rows[KM_QUANT_TYPES] = {KM_QUANT_PLANES(ROWS)};

/* Layers of two types in one launch: those of the mixes that people use. */
static struct {
    int first, second;
    km_cuda_kernel kernel[3], bulk;
} two[] = {
    {KM_QUANT_Q4_K, KM_QUANT_Q6_K, COUNTS("k", "Q4_K_Q6_K"), KERNEL_BULK("k", "bulk_Q4_K_Q6_K")},
    {KM_QUANT_Q5_K, KM_QUANT_Q6_K, COUNTS("k", "Q5_K_Q6_K"), KERNEL_BULK("k", "bulk_Q5_K_Q6_K")},
    {KM_QUANT_Q3_K, KM_QUANT_Q5_K, COUNTS("k", "Q3_K_Q5_K"), KERNEL_BULK("k", "bulk_Q3_K_Q5_K")}};

/* ---- One call ---- */

typedef struct layer {
    int type;
    km_cuda_quant w, up;      /* up.m.planes NULL: not gated */
    const float *bias;
    float *out;
    int64_t n;
    size_t step;              /* of a row, in shared memory (quant_bulk.cuh), and its groups */
    int64_t step_groups;
} layer;

typedef struct quant_call {
    km_lane *lane;
    const float *x;
    int64_t m, k;
    km_act act;
    layer l[KM_FEW_PARTS];
    km_tensor *const *out;    /* of the call */
    int n_out;
    int layers;
    bool gated;
    km_norm_args norm;        /* makes x on the way, when y is set */
    bool made;                /* some weight was laid out just now: kernels may not run ahead */
} quant_call;

static km_status take(quant_call *q, const km_tensor *t, km_cuda_quant *w) {
    if (type_of(t->dtype) >= KM_QUANT_TYPES) {
        w->m = (km_quant_matrix){.planes = km_cuda_bytes_of(q->lane, t)};
        q->made |= t->storage->drop != NULL;
        if (!w->m.planes) return q->lane->ctx->error.code;
        return km_is_contiguous(t) && (uintptr_t)w->m.planes % 16 == 0 ? KM_OK : KM_ERR_UNSUPPORTED;
    }
    km_status s = km_cuda_quant_get(q->lane, t, w);
    q->made |= w->scratch != NULL;
    return s;
}

static km_status begin(quant_call *q, const km_call *c) {
    const km_tensor *x = c->in[0];
    *q = (quant_call){.lane = km_cuda_lane(c), .x = km_tensor_ptr(x), .act = c->p->act,
                      .out = c->out, .n_out = c->n_out};
    if (x->dtype != KM_F32 || x->shape.ndim != 2) return KM_ERR_UNSUPPORTED;
    q->m = x->shape.dim[0];
    q->k = x->shape.dim[1];
    bool fits = q->k > 0 && q->k % KM_QUANT_UNIT == 0 && q->k <= 1 << 20 && q->m <= 1 << 24 &&
                (uintptr_t)q->x % 16 == 0;
    return fits ? KM_OK : KM_ERR_UNSUPPORTED;
}

static void end(quant_call *q) {
    for (int i = 0; i < q->layers; i++) {
        km_cuda_quant_put(q->lane, &q->l[i].w);
        km_cuda_quant_put(q->lane, &q->l[i].up);
    }
}

/* Adds w (n, k), or the halves or pair of a gated layer. */
static km_status add_layer(quant_call *q, const km_tensor *w, const km_tensor *up, bool gated,
                           const km_tensor *bias, const km_tensor *out) {
    layer *l = &q->l[q->layers];
    *l = (layer){.type = type_of(w->dtype), .n = w->shape.dim[0],
                 .bias = bias ? km_tensor_ptr(bias) : NULL, .out = km_tensor_ptr(out)};
    if (l->type < 0 || (up && up->dtype != w->dtype) || l->n > INT32_MAX) return KM_ERR_UNSUPPORTED;
    if (l->type < KM_QUANT_TYPES) {
        l->step = km_cuda_quant_step(w->dtype) * (gated ? 2 : 1);
        l->step_groups = 32 * KM_QUANT_UNIT / km_cuda_quant_group(w->dtype);
    }
    km_status s = take(q, w, &l->w);
    q->layers++;
    if (s != KM_OK || !gated) return s;
    if (up) return take(q, up, &l->up);
    l->n /= 2;
    l->up.m = l->w.m;
    if (l->type >= KM_QUANT_TYPES)
        l->up.m.planes += l->n * q->k * 2;
    else
        l->up.m.first += l->n * q->k / km_cuda_quant_group(w->dtype);
    return KM_OK;
}

/* ---- A few rows ---- */

/* Bytes that a thread takes of the weights of a type at a time. */
static size_t item_bytes(int type) {
#define ITEM(name, bytes) [KM_QUANT_##name] = bytes,
    static const uint8_t items[TYPES] = {KM_QUANT_ITEMS(ITEM)[PLAIN_F16] = 16 * KM_PLAIN_PIECES,
                                         [PLAIN_BF16] = 16 * KM_PLAIN_PIECES};
#undef ITEM
    return items[type];
}

/* Bytes of the ring in which they arrive for one row of x. */
static size_t ring_bytes(const km_cuda_dev *dev, int type) {
    size_t item = item_bytes(type);
    bool wide = dev->cc == 80 || dev->cc / 10 == 9 || dev->cc / 10 == 10; /* as the kernels do */
    return KM_ONE_PLACES(item, wide) * item * KM_FEW_THREADS;
}

/* Whether its runs stand apart (kernels/quant.cuh). */
static bool is_apart(int type) {
    return type == KM_QUANT_Q2_K || type == KM_QUANT_Q3_K || type == KM_QUANT_Q6_K;
}

/* Shared memory of a launch of the kernels for one row, 4 or 8: x, and for one row the ring. */
static size_t shared_for(const quant_call *q, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    size_t k = (size_t)q->k, most = 0;
    for (int i = 0; i < q->layers; i++) {
        int type = q->l[i].type;
        bool plain = type >= KM_QUANT_TYPES;
        size_t few_x = (size_t)(4 * size) * (plain ? k * 4 : KM_FEW_X_BYTES(k));
        size_t one_x = plain ? k * 4 : KM_ONE_X_BYTES(k, is_apart(type));
        size_t bytes = size > 0 ? few_x : ring_bytes(dev, type) + one_x;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The kernels that m rows take: of 1, 4 or 8. The one for one row wants a unit for each of 8 lanes. */
static int size_of(const quant_call *q, int m) {
    bool one = m == 1 && q->k >= 8 * KM_QUANT_UNIT && shared_for(q, 0) <= km_cuda_dev_of(q->lane)->shared_max;
    return one ? 0 : m <= 4 ? 1 : 2;
}
static size_t shared_bytes(const quant_call *q, int m) { return shared_for(q, size_of(q, m)); }

/* The norm before a call goes to its first launch; those after it find it in memory. */
static void give_norm(quant_call *q, km_quant_few_args *a) {
    if (!q->norm.y) return;
    a->delta = q->norm.x, a->residual = q->norm.residual, a->norm_w = q->norm.w;
    a->sum = q->norm.sum, a->y = q->norm.y, a->rstd = q->norm.rstd, a->eps = q->norm.eps;
    q->norm.y = NULL;
}

/* Blocks of the layers of a launch, out of `held`, shared out by rows; each has some for its groups of
 * lanes. Returns how many there are in all. */
static int32_t share_out(const quant_call *q, km_quant_few_args *a, int first, int64_t row,
                         int64_t held, int64_t groups) {
    int64_t all = 0;
    int32_t last = 0;
    for (int i = 0; i < a->parts; i++) all += q->l[first + i].n;
    for (int i = 0; i < a->parts; i++) {
        const layer *l = &q->l[first + i];
        int64_t blocks = all ? (held * l->n + all / 2) / all : 0, most = (l->n + groups - 1) / groups;
        if (blocks > most) blocks = most;
        if (blocks < 1) blocks = 1; /* one that finds nothing to do, where there are no rows */
        a->part[i] = (km_quant_part){.w = l->w.m, .up = l->up.m, .bias = l->bias,
                                     .out = l->out + row * l->n, .n = (int32_t)l->n,
                                     .first = last, .second = l->type != q->l[first].type,
                                     .each = (int32_t)(l->n / blocks),
                                     .more = (int32_t)(l->n % blocks)};
        last += (int32_t)blocks;
    }
    return last;
}

/* Layers [first, first + count) in one launch: blocks are shared out by the weights' bytes. */
static km_status launch_few(quant_call *q, km_cuda_kernel *kernel, int first, int count,
                            int64_t row, int m) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    bool plain = q->l[first].type >= KM_QUANT_TYPES;
    int64_t pieces = q->k / (plain ? 8 : KM_QUANT_UNIT);
    km_quant_few_args a = {.x = q->x + row * q->k, .parts = count, .m = m, .k = (int32_t)q->k,
                           .act = (int32_t)q->act,
                           .lane_bits = pieces >= 32 ? 5 : pieces >= 16 ? 4 : 3};
    int64_t all = 0, groups = KM_FEW_THREADS >> a.lane_bits, held = dev->sms;
    for (int i = 0; i < count; i++) all += q->l[first + i].n;
    /* Two blocks to a multiprocessor, where each then has rows for its warps. */
    if (size_of(q, m) == 0 && all > 2 * held * groups) held *= 2;
    if (all == 0) return KM_OK;
    int32_t last = share_out(q, &a, first, row, held, groups);
    a.early = q->made || row > 0 ? 0 : 48 << 10;
    give_norm(q, &a);
    /* The kernel for one row reads weights before the kernel in front has ended: what is captured
     * runs when they have long been there, but here that kernel may be the one that makes them. */
    bool alone = q->made || (size_of(q, m) == 0 && !km_cuda_queue_of(q->lane)->capturing);
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, kernel + size_of(q, m), KM_DIM(last),
                               KM_DIM(KM_FEW_THREADS), (unsigned)shared_bytes(q, m), params,
                               &(km_launch_options){.alone = alone});
}

/* ---- One row on Hopper ---- */

/* With x, and two stages of the longest steps, in the shared memory of a block. */
static bool has_bulk(const quant_call *q) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    size_t rings = 112 << 10, x = KM_ONE_X_BYTES((size_t)q->k, true);
    return q->m == 1 && q->k >= 32 * KM_QUANT_UNIT &&
           x + rings <= dev->shared_max && dev->cc == 90 && km_cuda_has_module("quant_bulk_k");
}

/* A gated layer whose rows are a step each, and whose steps lie at borders of planes. */
static bool is_whole(const quant_call *q) {
    const layer *l = &q->l[0];
    return q->gated && q->k == 32 * KM_QUANT_UNIT && l->type < KM_QUANT_TYPES &&
           l->w.m.first % l->step_groups == 0 && l->up.m.first % l->step_groups == 0;
}

/* KiB of shared memory that a block takes whether it wants them or not, where rows are short, so that
 * blocks spread out: of few rows no two stand on one multiprocessor, of a gated layer two beside each
 * other and one beside those of the layer before, of several layers over one x two, or one where the
 * layer before is a long one that has not ended. */
static int least_shared(const quant_call *q, int64_t all, int64_t sms, int64_t pace) {
    if (pace > 1) return 0;
    return q->gated ? 70 : q->layers > 1 ? 76 : all < 2 * KM_BULK_THREADS / 32 * sms ? 125 : 0;
}

/* Layers [first, first + count) in one launch. How many blocks, and how much shared memory each has, is
 * what measured best: blocks of the next kernel are to find room beside these and fetch their weights,
 * and none is to double its work by standing beside another of its own. */
static km_status launch_bulk(quant_call *q, km_cuda_kernel *kernel, int first, int count) {
    int64_t all = 0, sms = km_cuda_dev_of(q->lane)->sms, held = sms, warps = KM_BULK_THREADS / 32;
    int64_t pace = km_cuda_ceil(q->k, 32 * KM_QUANT_UNIT), want = 0; /* steps of a row; stages */
    km_quant_few_args a = {.x = q->x, .parts = count, .m = 1, .k = (int32_t)q->k,
                           .act = (int32_t)q->act};
    size_t slot = 0, x = 0;
    for (int i = 0; i < count; i++) all += q->l[first + i].n;
    if (all == 0) return KM_OK;
    if (all >= 40 * sms) held = 2 * sms;
    else if (all > 2 * warps * sms) held = km_cuda_ceil(all, 2 * warps); /* two rows to a warp */
    int32_t blocks = share_out(q, &a, first, 0, held, warps);
    for (int i = 0; i < count; i++) {
        const layer *l = &q->l[first + i];
        const km_quant_part *part = &a.part[i];
        int64_t at_once = is_whole(q) ? 1 : KM_BULK_ROWS(l->step), each = part->each + (part->more > 0);
        int64_t steps = km_cuda_ceil(km_cuda_ceil(each, at_once), warps) * pace;
        size_t room = KM_ONE_X_BYTES((size_t)q->k, is_apart(l->type));
        if ((size_t)at_once * l->step > slot) slot = (size_t)at_once * l->step;
        if (room > x) x = room;
        if (steps > want) want = steps;
    }
    size_t fixed = x + KM_BULK_SUMS + KM_BULK_BARS, stage = slot * (size_t)warps;
    size_t room = (blocks <= sms ? 80 : is_whole(q) ? 43 : 113) << 10;
    int64_t fit = room > fixed + 2 * stage ? (int64_t)((room - fixed) / stage) : 2;
    a.late = want > fit; /* the next kernel's copies would come before those that are missing here */
    if (want > fit) want = fit;
    a.stages = (int32_t)(want < KM_BULK_STAGES ? want : KM_BULK_STAGES);
    a.early = a.stages < 3 ? a.stages : 3; /* which measured best */
    give_norm(q, &a);
    /* It reads weights before the kernel in front has ended, as launch_few says. */
    bool alone = q->made || !km_cuda_queue_of(q->lane)->capturing;
    size_t shared = fixed + (size_t)a.stages * stage;
    size_t least = (size_t)least_shared(q, all, sms, pace) << 10;
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, kernel, KM_DIM(blocks), KM_DIM(KM_BULK_THREADS),
                               (unsigned)(shared > least ? shared : least), params,
                               &(km_launch_options){.alone = alone});
}

/* Of layers of two types, the place in `two`; or -1. */
static int place_of_two(int first, int second) {
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (two[i].first == first && two[i].second == second) return (int)i;
    return -1;
}

/* Layers that one kernel knows go together. */
static km_status few_rows(quant_call *q, int64_t row, int m) {
    int how = is_whole(q) ? 2 : q->gated;
    for (int i = 0; i < q->layers;) {
        int n = 1, both = -1;
        for (; i + n < q->layers; n++) {
            int type = q->l[i + n].type;
            if (type == q->l[i].type || (both >= 0 && type == two[both].second)) continue;
            int place = both < 0 && !q->gated ? place_of_two(q->l[i].type, type) : -1;
            if (place < 0) break;
            both = place;
        }
        int type = q->l[i].type;
        bool by_bulk = type < KM_QUANT_TYPES && has_bulk(q);
        km_status s = by_bulk ? launch_bulk(q, both < 0 ? &bulk[how][type] : &two[both].bulk, i, n)
                              : launch_few(q, both < 0 ? few[q->gated][type] : two[both].kernel, i, n,
                                           row, m);
        if (s != KM_OK) return s;
        i += n;
    }
    return KM_OK;
}

/* ---- Many rows ---- */

static bool has_hopper(const km_cuda_dev *dev) {
    return dev->cc == 90 && km_cuda_has_module("quant_tiles_hopper");
}

/* Blocks that share a tile along k, so that the chip is full; each has a few steps to go. */
static int64_t splits_for(int64_t count, int64_t room, int64_t steps) {
    int64_t n = count < room ? room / count : 1;
    if (n > steps) n = steps;
    if (n > 16) n = 16;
    return n > 1 && count <= KM_CUDA_COUNTERS ? n : 1;
}


/* x as f16, in one of the orders that kernels want, and what it takes to get it back. */
typedef struct rounded {
    char *x;
    float *scale;
    int64_t padded; /* rows */
    size_t cap;
} rounded;

static km_status round_x(quant_call *q, int order, int64_t tokens, rounded *r) {
    static km_cuda_kernel kernel = KERNEL("quant_tiles", "quant_round");
    int64_t k = order ? km_cuda_ceil(q->k, KM_REGS_DEPTH) * KM_REGS_DEPTH : q->k;
    r->padded = km_cuda_ceil(q->m, tokens) * tokens;
    r->x = km_cuda_scratch(q->lane, (size_t)r->padded * (size_t)(2 * k + 4), &r->cap);
    if (!r->x) return q->lane->ctx->error.code;
    r->scale = (float *)(r->x + r->padded * 2 * k);
    km_round_args a = {.x = q->x, .out = r->x, .scale = r->scale, .k = (int32_t)q->k,
                       .rows = (int32_t)q->m, .order = order, .padded = (int32_t)r->padded};
    return km_cuda_launch1(q->lane, &kernel, KM_DIM(order ? r->padded : q->m), KM_DIM(256), 0, &a);
}

static km_tile_args tile_args(const quant_call *q, const layer *l, const rounded *r) {
    return (km_tile_args){.x = r->x, .scale = r->scale, .w = l->w.m, .up = l->up.m, .bias = l->bias,
                          .out = l->out, .m = (int32_t)q->m, .n = (int32_t)l->n,
                          .k = (int32_t)q->k, .act = (int32_t)q->act, .padded = (int32_t)r->padded};
}

/* Tiles of weights in shared memory. */
static km_status run_tiles(quant_call *q, const layer *l, const rounded *r) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    km_tile_args a = tile_args(q, l, r);
    bool plain = l->type >= KM_QUANT_TYPES, hopper = plain && has_hopper(dev);
    int64_t tall = km_cuda_ceil(q->m, KM_TILE_SIDE);
    int64_t wide = km_cuda_ceil(l->n, q->gated ? KM_TILE_SIDE / 2 : KM_TILE_SIDE);
    int64_t splits = hopper ? splits_for(tall * wide, 2 * (int64_t)dev->sms, q->k / 256) : 1;
    km_cuda_kernel *kernel = plain ? &plain_tiles[hopper][q->gated][l->type]
                                   : &tiles[q->gated][l->type];
    size_t cap = 0;
    if (splits > 1) {
        a.partial = km_cuda_scratch(
            q->lane, (size_t)(tall * wide * splits) * KM_TILE_FLOATS * sizeof(float), &cap);
        a.counters = a.partial ? km_cuda_counters(q->lane) : NULL;
        if (!a.counters) return q->lane->ctx->error.code;
    }
    void *params[] = {&a};
    km_status s = km_cuda_launch_with(q->lane, kernel, KM_DIM(tall, wide, splits),
                                      KM_DIM(KM_TILE_THREADS),
                                      hopper ? KM_TILE_HOPPER_SHARED : KM_TILE_SHARED, params,
                                      &(km_launch_options){.alone = q->made});
    km_cuda_scratch_free(q->lane, a.partial, cap);
    return s;
}

/* Weights in registers. */
static km_status run_regs(quant_call *q, const layer *l, const rounded *r, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    km_tile_args a = tile_args(q, l, r);
    int tokens = tokens_of[size];
    a.early = km_cuda_queue_of(q->lane)->capturing != NULL;
    int64_t tall = r->padded / tokens;
    int64_t wide = km_cuda_ceil(l->n, q->gated ? KM_REGS_ROWS / 2 : KM_REGS_ROWS);
    int64_t supers = km_cuda_ceil(q->k, KM_REGS_DEPTH);
    int64_t most = splits_for(tall * wide, KM_REGS_BLOCKS(tokens) * (int64_t)dev->sms, supers / 2);
    unsigned splits = 1;
    while (2 * splits <= most && 2 * splits <= KM_REGS_SPLITS) splits *= 2;
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, &regs[size][q->gated][l->type], KM_DIM(tall, wide, splits),
                               KM_DIM(KM_REGS_THREADS),
                               KM_REGS_SHARED(tokens, item_bytes(l->type)), params,
                               &(km_launch_options){.alone = q->made,
                                                    .cluster = {splits > 1, 1, splits}});
}

static km_status many_rows(quant_call *q) {
    bool hopper = has_hopper(km_cuda_dev_of(q->lane));
    rounded r[3] = {{0}};
    int size = q->m <= tokens_of[0] ? 0 : q->m <= 2 * tokens_of[1] ? 1 : 2;
    km_status s = KM_OK;
    for (int i = 0; i < q->layers && s == KM_OK; i++) {
        layer *l = &q->l[i];
        if (l->n == 0) continue;
        int order = hopper && l->type < KM_QUANT_TYPES ? 1 + is_apart(l->type) : 0;
        if (!r[order].x) s = round_x(q, order, order ? tokens_of[size] : 64, &r[order]);
        if (s == KM_OK) s = order ? run_regs(q, l, &r[order], size) : run_tiles(q, l, &r[order]);
    }
    for (int i = 0; i < 3; i++) km_cuda_scratch_free(q->lane, r[i].x, r[i].cap);
    return s;
}

static km_status run(quant_call *q) {
    int most = KM_FEW_AT_ONCE;
    size_t room = km_cuda_dev_of(q->lane)->shared_max;
    bool tensor_cores = q->m > 1 && q->l[0].type < KM_QUANT_TYPES &&
                        has_hopper(km_cuda_dev_of(q->lane));
    if (q->m > KM_FEW_ROWS || tensor_cores) return many_rows(q);
    while (most > 1 && shared_bytes(q, most) > room) most = most == KM_FEW_AT_ONCE ? 4 : 1;
    if (q->m <= most && !q->made && (size_of(q, (int)q->m) == 0 || q->l[0].type < KM_QUANT_TYPES))
        km_cuda_held_take(q->lane, q->x, q->m, q->k, q->out, q->n_out, &q->norm);
    if (shared_bytes(q, most) > room) return many_rows(q);
    km_status s = KM_OK;
    for (int64_t row = 0; row < q->m && s == KM_OK; row += most)
        s = few_rows(q, row, (int)(q->m - row < most ? q->m - row : most));
    return s;
}

/* ---- Ops ---- */

static km_status run_linear(km_ctx *ctx, const km_call *c) {
    quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    if (s == KM_OK) s = add_layer(&q, c->in[1], NULL, false, c->n_in > 2 ? c->in[2] : NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_linears(km_ctx *ctx, const km_call *c) {
    quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    for (int i = 0; i < c->n_out && s == KM_OK; i++)
        s = add_layer(&q, c->in[1 + 2 * i], NULL, false,
                      2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL, c->out[i]);
    q.act = KM_ACT_NONE;
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_gated(km_ctx *ctx, const km_call *c) {
    quant_call q;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    km_status s = begin(&q, c);
    q.gated = true;
    if (s == KM_OK) s = add_layer(&q, c->in[1], c->n_in > 2 ? c->in[2] : NULL, true, NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status as_floats(km_lane *lane, const km_tensor *w, const km_tensor *ids, int64_t count,
                           const km_tensor *out) {
    km_cuda_quant q;
    if (out->dtype != KM_F32 && out->dtype != KM_F16 && out->dtype != KM_BF16)
        return KM_ERR_UNSUPPORTED;
    km_status s = km_cuda_quant_get(lane, w, &q);
    if (s != KM_OK) return s;
    int64_t k = w->shape.dim[w->shape.ndim - 1];
    km_quant_rows_args a = {.w = q.m, .ids = ids ? km_tensor_ptr(ids) : NULL,
                            .out = km_tensor_ptr(out), .rows = km_shape_count(w->shape) / k,
                            .count = count, .k = (int32_t)k, .wide = ids && ids->dtype == KM_I64,
                            .dtype = out->dtype == KM_F32 ? 0 : out->dtype == KM_F16 ? 1 : 2};
    int64_t units = count * (k / KM_QUANT_UNIT);
    s = km_cuda_launch1(lane, &rows[km_cuda_quant_type(w->dtype)], KM_DIM((units + 127) / 128),
                        KM_DIM(128), 0, &a);
    km_cuda_quant_put(lane, &q);
    return s;
}

km_status km_cuda_quant_floats(km_lane *lane, const km_tensor *t, float *to) {
    km_cuda_quant q;
    if (km_shape_count(t->shape) == 0) return KM_OK;
    km_status s = km_cuda_quant_flat(lane, t, &q);
    if (s != KM_OK) return s;
    /* Every group a row: how its units stand in it depends on the type. */
    int64_t k = km_cuda_quant_group(t->dtype), n = km_cuda_ceil(km_shape_count(t->shape), k);
    int64_t units = n * (k / KM_QUANT_UNIT);
    km_quant_rows_args a = {.w = q.m, .out = to, .rows = n, .count = n, .k = (int32_t)k};
    s = km_cuda_launch1(lane, &rows[km_cuda_quant_type(t->dtype)], KM_DIM((units + 127) / 128),
                        KM_DIM(128), 0, &a);
    km_cuda_quant_put(lane, &q);
    return s;
}

static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    return as_floats(km_cuda_lane(c), c->in[0], c->in[1], km_shape_count(c->in[1]->shape), c->out[0]);
}

static km_status run_dequantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *w = c->in[0];
    int64_t count = km_shape_count(w->shape);
    if (w->shape.ndim < 1 || count == 0) return KM_ERR_UNSUPPORTED;
    if (km_cuda_quant_is_odd(c)) return km_cuda_quant_odd(ctx, c);
    return as_floats(km_cuda_lane(c), w, NULL, count / w->shape.dim[w->shape.ndim - 1], c->out[0]);
}

void km_cuda_register_quant(km_kernel *table) {
    table[KM_OP_QUANT_LINEAR] = run_linear;
    table[KM_OP_LINEARS] = run_linears;
    table[KM_OP_GATED] = run_gated;
    table[KM_OP_QUANT_EMBEDDING] = run_embedding;
    table[KM_OP_DEQUANTISE] = run_dequantise;
}
