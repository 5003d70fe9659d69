/* A few rows of x over weights of a few bits, or of 16 bits: kernels that stream the weights. One
 * row on Hopper, which is what decoding a token does, is taken by the copy engine
 * (kernels/quant_bulk.cuh). */
#include "backend/cuda/quant_call.h"
#include "base/util.h"

/* ---- Kernels by type ---- */

#define KERNEL KM_QUANT_KERNEL
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

/* Of every kernel there are two: for x in 16 bits, and for x in 8 (ctx->activations), in modules of
 * their own. */
#define COARSE "_8bit"

/* For 1, 4 and 8 rows. */
#define COUNTS(kind, name_)                                                                        \
    {                                                                                              \
        KERNEL("quant_one_" kind, "one_" name_), KERNEL("quant_few_" kind, "few_" name_ "_4"),     \
            KERNEL("quant_few_" kind, "few_" name_ "_8")                                           \
    }
#define PLAIN(name_)                                                                               \
    {                                                                                              \
        KERNEL("plain_one", "one_" name_), KERNEL("plain_few", "few_" name_ "_4"),                 \
            KERNEL("plain_few", "few_" name_ "_8")                                                 \
    }
#define PLAINS(prefix) [KM_PLAIN_F16] = PLAIN(prefix "F16"), [KM_PLAIN_BF16] = PLAIN(prefix "BF16")
#define FEW(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name, #name),
#define FEW_GATED(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name, "gated_" #name),
#define FEW_8(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name COARSE, #name),
#define FEW_8_GATED(name, ...) [KM_QUANT_##name] = COUNTS(KIND_##name COARSE, "gated_" #name),
static km_cuda_kernel few[2][2][KM_PLAIN_TYPES][3] = {
    {{KM_QUANT_PLANES(FEW_8) PLAINS("")}, {KM_QUANT_PLANES(FEW_8_GATED) PLAINS("gated_")}},
    {{KM_QUANT_PLANES(FEW) PLAINS("")}, {KM_QUANT_PLANES(FEW_GATED) PLAINS("gated_")}}};

/* One row, by Hopper's copy engine: plain, gated, gated with whole rows, long. */
#define KERNEL_BULK(kind, name_)                                                                   \
    { .module = "quant_bulk_" kind, .name = name_, .waits = true, .beside = true }
#define BULK(name, ...)                                                                            \
    [KM_QUANT_##name] = {KERNEL_BULK(KIND_##name, "bulk_" #name),                                  \
                         KERNEL_BULK(KIND_##name, "bulk_gated_" #name),                            \
                         KERNEL_BULK(KIND_##name, "bulk_gated_whole_" #name),                      \
                         KERNEL_BULK(KIND_##name, "bulk_long_" #name)},
#define BULK_8(name, ...)                                                                          \
    [KM_QUANT_##name] = {KERNEL_BULK(KIND_##name COARSE, "bulk_" #name),                           \
                         KERNEL_BULK(KIND_##name COARSE, "bulk_gated_" #name),                     \
                         KERNEL_BULK(KIND_##name COARSE, "bulk_gated_whole_" #name),               \
                         KERNEL_BULK(KIND_##name COARSE, "bulk_long_" #name)},
static km_cuda_kernel bulk[2][KM_QUANT_TYPES][4] = {{KM_QUANT_PLANES(BULK_8)},
                                                    {KM_QUANT_PLANES(BULK)}};

/* Layers of two types in one launch: those of the mixes that people use. */
typedef struct two_types {
    int first, second;
    struct {
        km_cuda_kernel rows[3], bulk;
    } kernel[2];
} two_types;
#define TWO(first_, second_)                                                                       \
    {                                                                                              \
        KM_QUANT_##first_, KM_QUANT_##second_, {                                                   \
            {COUNTS("k" COARSE, #first_ "_" #second_),                                             \
             KERNEL_BULK("k" COARSE, "bulk_" #first_ "_" #second_)},                               \
                {COUNTS("k", #first_ "_" #second_),                                                \
                 KERNEL_BULK("k", "bulk_" #first_ "_" #second_)},                                  \
        }                                                                                          \
    }
static two_types two[] = {TWO(Q4_K, Q6_K), TWO(Q5_K, Q6_K), TWO(Q3_K, Q5_K)};

/* Whether x keeps 16 bits. */
static bool is_fine(const km_quant_call *q) { return q->lane->ctx->activations != 8; }

/* ---- Launches ---- */

/* Bytes of the ring in which they arrive for one row of x. */
static size_t ring_bytes(const km_cuda_dev *dev, int type) {
    size_t item = km_quant_item_bytes(type);
    bool wide = dev->cc == 80 || dev->cc / 10 == 9 || dev->cc / 10 == 10; /* as the kernels do */
    return KM_ONE_PLACES(item, wide) * item * KM_FEW_THREADS;
}

/* Of one row of x, as the kernels for one take it. */
static size_t one_x_bytes(const km_quant_call *q, int type) {
    return KM_ONE_X_BYTES((size_t)q->k, km_quant_is_apart(type), is_fine(q));
}

/* Shared memory of a launch of the kernels for one row, 4 or 8: x, and for one row the ring. */
static size_t shared_for(const km_quant_call *q, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    size_t k = (size_t)q->k, most = 0;
    for (int i = 0; i < q->layers; i++) {
        int type = q->l[i].type;
        bool plain = type >= KM_QUANT_TYPES;
        size_t few_x = (size_t)(4 * size) * (plain ? k * 4 : KM_FEW_X_BYTES(k, is_fine(q)));
        size_t one_x = plain ? k * 4 : one_x_bytes(q, type);
        size_t bytes = size > 0 ? few_x : ring_bytes(dev, type) + one_x;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The kernels that m rows take: of 1, 4 or 8. The one for one row wants a unit for each of 8
 * lanes. */
static int size_of(const km_quant_call *q, int m) {
    bool one = m == 1 && q->k >= 8 * KM_QUANT_UNIT &&
               shared_for(q, 0) <= km_cuda_dev_of(q->lane)->shared_max;
    return one ? 0 : m <= 4 ? 1 : 2;
}
static size_t shared_bytes(const km_quant_call *q, int m) { return shared_for(q, size_of(q, m)); }

/* The norm before a call goes to its first launch; those after it find it in memory. */
static void give_norm(km_quant_call *q, km_quant_few_args *a) {
    if (!q->norm.y) return;
    a->delta = q->norm.x, a->residual = q->norm.residual, a->norm_w = q->norm.w;
    a->sum = q->norm.sum, a->y = q->norm.y, a->rstd = q->norm.rstd, a->eps = q->norm.eps;
    q->norm.y = NULL;
}

/* Blocks of the layers of a launch, out of `held`, shared out by rows; each has some for its groups
 * of lanes. Returns how many there are in all. */
static int32_t share_out(const km_quant_call *q, km_quant_few_args *a, int first, int64_t row,
                         int64_t held, int64_t groups) {
    int64_t all = 0;
    int32_t last = 0;
    for (int i = 0; i < a->parts; i++) all += q->l[first + i].n;
    for (int i = 0; i < a->parts; i++) {
        const km_quant_layer *l = &q->l[first + i];
        int64_t blocks = all ? (held * l->n + all / 2) / all : 0,
                most = (l->n + groups - 1) / groups;
        if (blocks > most) blocks = most;
        if (blocks < 1) blocks = 1; /* one that finds nothing to do, where there are no rows */
        a->part[i] = (km_quant_part){.w = l->w.m,
                                     .up = l->up.m,
                                     .bias = l->bias,
                                     .out = l->out + row * l->n,
                                     .n = (int32_t)l->n,
                                     .first = last,
                                     .second = l->type != q->l[first].type,
                                     .each = (int32_t)(l->n / blocks),
                                     .more = (int32_t)(l->n % blocks)};
        last += (int32_t)blocks;
    }
    return last;
}

/* Layers [first, first + count) in one launch: blocks are shared out by the weights' bytes. */
static km_status launch_few(km_quant_call *q, km_cuda_kernel *kernel, int first, int count,
                            int64_t row, int m) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    bool plain = q->l[first].type >= KM_QUANT_TYPES;
    int64_t pieces = q->k / (plain ? 8 : KM_QUANT_UNIT);
    km_quant_few_args a = {.x = q->x + row * q->k,
                           .parts = count,
                           .m = m,
                           .k = (int32_t)q->k,
                           .act = (int32_t)q->act,
                           .lane_bits = pieces >= 32   ? 5
                                        : pieces >= 16 ? 4
                                                       : 3};
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
static bool has_bulk(const km_quant_call *q) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    size_t rings = 0, x = 0;
    for (int i = 0; i < q->layers; i++) {
        const km_quant_layer *l = &q->l[i];
        if (l->type >= KM_QUANT_TYPES) continue;
        size_t both = 2 * (KM_BULK_THREADS / 32) * (size_t)KM_BULK_ROWS(l->step) * l->step;
        size_t own = one_x_bytes(q, l->type);
        if (both > rings) rings = both;
        if (own > x) x = own;
    }
    return q->m == 1 && q->k >= 32 * KM_QUANT_UNIT &&
           x + rings + KM_BULK_SUMS + KM_BULK_BARS <= dev->shared_max && dev->cc == 90 &&
           km_cuda_has_module("quant_bulk_k");
}

/* A gated layer whose rows are a step each, and whose steps lie at borders of planes. */
static bool is_whole(const km_quant_call *q) {
    const km_quant_layer *l = &q->l[0];
    return q->gated && q->k == 32 * KM_QUANT_UNIT && l->type < KM_QUANT_TYPES &&
           l->w.m.first % l->step_groups == 0 && l->up.m.first % l->step_groups == 0;
}

/* A layer of few rows that are long: two warps share them. */
static bool is_long(const km_quant_call *q) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    const km_quant_layer *l = &q->l[0];
    if (q->gated || q->layers > 1 || l->type >= KM_QUANT_TYPES) return false;
    size_t stage = KM_BULK_LONG_THREADS / 32 * (size_t)KM_BULK_ROWS(l->step) * l->step;
    size_t x = one_x_bytes(q, l->type);
    return l->n <= 2 * KM_BULK_THREADS / 32 * dev->sms && q->k >= 4 * 32 * KM_QUANT_UNIT &&
           x + KM_BULK_SUMS + KM_BULK_BARS + 2 * stage <= dev->shared_max;
}

/* KiB of shared memory that a block takes whether it wants them or not, where rows are short, so
 * that blocks spread out: of few rows none stands beside attention (attend.c), of a gated layer two
 * beside each other and one beside the layer before, of several layers over one x two, or one where
 * the layer before is a long one that has not ended. */
static int least_shared(const km_quant_call *q, int64_t all, int64_t sms, int64_t pace) {
    if (pace > 1) return 0;
    return q->gated ? 70 : q->layers > 1 ? 76 : all < 2 * KM_BULK_THREADS / 32 * sms ? 108 : 0;
}

/* Layers [first, first + count) in one launch. How many blocks, and how much shared memory each has,
 * is what measured best on an H200: blocks of the next kernel are to find room beside these and fetch
 * their weights. */
static km_status launch_bulk(km_quant_call *q, km_cuda_kernel *kernel, int first, int count) {
    int64_t all = 0, sms = km_cuda_dev_of(q->lane)->sms, held = sms, warps = KM_BULK_THREADS / 32;
    int64_t shares = is_long(q) ? 2 : 1; /* of a row; and its steps, and stages of a ring */
    int64_t pace = km_ceil_div(q->k, 32 * KM_QUANT_UNIT * shares), want = 0;
    km_quant_few_args a = {
        .x = q->x, .parts = count, .m = 1, .k = (int32_t)q->k, .act = (int32_t)q->act};
    size_t slot = 0, x = 0;
    for (int i = 0; i < count; i++) all += q->l[first + i].n;
    if (all == 0) return KM_OK;
    if (all >= 40 * sms)
        held = 2 * sms;
    else if (all > 3 * warps * sms)
        held = km_ceil_div(all, 2 * warps); /* two rows to a warp */
    int32_t blocks = share_out(q, &a, first, 0, held, warps);
    for (int i = 0; i < count; i++) {
        const km_quant_layer *l = &q->l[first + i];
        const km_quant_part *part = &a.part[i];
        int64_t at_once = is_whole(q) ? 1 : KM_BULK_ROWS(l->step),
                each = part->each + (part->more > 0);
        int64_t steps = km_ceil_div(km_ceil_div(each, at_once), warps) * pace;
        size_t room = one_x_bytes(q, l->type);
        if ((size_t)at_once * l->step > slot) slot = (size_t)at_once * l->step;
        if (room > x) x = room;
        if (steps > want) want = steps;
    }
    size_t fixed = x + KM_BULK_SUMS + KM_BULK_BARS, stage = slot * (size_t)(warps * shares);
    size_t room = (blocks <= sms ? 80 : is_whole(q) ? 62 : 113) << 10;
    int64_t fit = room > fixed + 2 * stage ? (int64_t)((room - fixed) / stage) : 2;
    /* Else the next kernel's copies would come before those that are missing here. */
    a.late = want > fit && shares == 1;
    if (want > fit) want = fit;
    a.stages = (int32_t)(want < KM_BULK_STAGES ? want : KM_BULK_STAGES);
    a.early = a.stages < 3 ? a.stages : 3; /* which measured best */
    give_norm(q, &a);
    /* It reads weights before the kernel in front has ended, as launch_few says. */
    bool alone = q->made || !km_cuda_queue_of(q->lane)->capturing;
    size_t shared = fixed + (size_t)a.stages * stage;
    size_t least = (size_t)least_shared(q, all, sms, pace) << 10;
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, kernel, KM_DIM(blocks), KM_DIM(warps * shares * 32),
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
static km_status rows_from(km_quant_call *q, int64_t row, int m) {
    int how = is_whole(q) ? 2 : is_long(q) ? 3 : q->gated;
    bool fine = is_fine(q);
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
        km_cuda_kernel *one = both < 0 ? few[fine][q->gated][type] : two[both].kernel[fine].rows;
        if (by_bulk) one = both < 0 ? &bulk[fine][type][how] : &two[both].kernel[fine].bulk;
        km_status s = by_bulk ? launch_bulk(q, one, i, n) : launch_few(q, one, i, n, row, m);
        if (s != KM_OK) return s;
        i += n;
    }
    return KM_OK;
}

km_status km_quant_few(km_quant_call *q) {
    int most = KM_FEW_AT_ONCE;
    size_t room = km_cuda_dev_of(q->lane)->shared_max;
    while (most > 1 && shared_bytes(q, most) > room) most = most == KM_FEW_AT_ONCE ? 4 : 1;
    if (shared_bytes(q, most) > room) return KM_ERR_UNSUPPORTED;
    bool apart = true; /* from all that is written beside the norm */
    for (int i = 0; i < q->n_out; i++) {
        const km_tensor *t = q->out[i];
        size_t bytes = (size_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
        apart &= km_cuda_held_apart(q->lane, km_tensor_ptr(t), bytes);
    }
    if (q->m <= most && !q->made && apart &&
        (size_of(q, (int)q->m) == 0 || q->l[0].type < KM_QUANT_TYPES))
        km_cuda_held_take(q->lane, q->x, q->m, q->k, &q->norm);
    km_status s = KM_OK;
    for (int64_t row = 0; row < q->m && s == KM_OK; row += most)
        s = rows_from(q, row, (int)(q->m - row < most ? q->m - row : most));
    return s;
}
