/* Few rows of x, 2 to 32, over weights of a few bits, by mma.sync (kernels/quant/quant_mma.cuh): how the
 * work is shared out to blocks. */
#include "backend/cuda/kernels/quant/quant_tile_args.h"
#include "backend/cuda/quant_call.h"
#include "base/util.h"

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
#define OF(kind, n, name_) KERNEL("quant_mma_" kind "_" n, "mma_" name_)
#define EACH_8(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "8", #name),
#define EACH_16(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "16", #name),
#define EACH_32(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "32", #name),
#define GATED_8(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "8", "gated_" #name),
#define GATED_16(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "16", "gated_" #name),
#define GATED_32(name, ...) [KM_QUANT_##name] = OF(KIND_##name, "32", "gated_" #name),
static km_cuda_kernel one_type[3][2][KM_QUANT_TYPES] = {
    {{KM_QUANT_PLANES(EACH_8)}, {KM_QUANT_PLANES(GATED_8)}},
    {{KM_QUANT_PLANES(EACH_16)}, {KM_QUANT_PLANES(GATED_16)}},
    {{KM_QUANT_PLANES(EACH_32)}, {KM_QUANT_PLANES(GATED_32)}}};

/* Layers of two types in one launch: those of the mixes that people use. */
#define TWO(first, second)                                                                         \
    {                                                                                              \
        KM_QUANT_##first, KM_QUANT_##second, {                                                     \
            OF("k", "8", #first "_" #second), OF("k", "16", #first "_" #second),                   \
                OF("k", "32", #first "_" #second)                                                  \
        }                                                                                          \
    }
static struct {
    int first, second;
    km_cuda_kernel kernel[3];
} two_types[] = {TWO(Q4_K, Q6_K), TWO(Q5_K, Q6_K), TWO(Q3_K, Q5_K)};

static const int eights_of[] = {1, 2, 4};

/* ---- How a launch is shared out ---- */

typedef struct mma_grid {
    int tiles;  /* of 16 rows to a block of 8 warps, which share each along k: 1, 2, 4 or 8 */
    int slices; /* blocks of a cluster that share k */
    int64_t groups, blocks;
    size_t shared;
    double cost;
} mma_grid;

/* What a way costs, in microseconds of an H200 beyond what memory takes: a warp's super-steps, x on its way
 * to the blocks of a multiprocessor, blocks that begin, sums that are put together. */
static bool measure(const km_quant_call *q, int first, int count, int eights, mma_grid *w) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    int64_t all = km_ceil_div(q->k, KM_REGS_DEPTH), supers = km_ceil_div(all, w->slices);
    int parts = 8 / w->tiles;
    if (supers > KM_MMA_FEW_SUPERS || w->slices > all) return false;
    w->groups = 0, w->shared = 0;
    for (int i = first; i < first + count; i++) {
        const km_quant_layer *l = &q->l[i];
        size_t bytes =
            (size_t)KM_MMA_FEW_SHARED((size_t)eights, km_quant_item_bytes(l->type), (size_t)supers);
        w->groups += km_ceil_div(km_ceil_div(l->n, q->gated ? 8 : 16), w->tiles);
        if (bytes > w->shared) w->shared = bytes;
    }
    if (w->shared + 1024 > dev->shared_max) return false;
    int64_t held = w->shared > dev->shared_max / 2 - 2048 ? dev->sms : 2 * (int64_t)dev->sms;
    w->blocks = w->groups * w->slices;
    bool alone = parts * w->slices == 1;
    double each = 0.45 + 0.08 * eights, x = 0.06 * eights * (double)supers;
    double rounds = (double)km_ceil_div(w->blocks, held),
           on_one = (double)km_ceil_div(w->blocks, dev->sms);
    if (alone && count == 1 && w->blocks > held) {
        w->cost = (double)w->blocks / dev->sms * each * (double)supers + 2 * x + 1.5;
        w->blocks = held;
        return true;
    }
    w->cost = on_one * (each * (double)km_ceil_div(supers, parts) + x) + 1.5 * rounds +
              (alone ? 0 : 0.5) + (w->slices > 1 ? 1.2 : 0);
    return true;
}

static bool choose(const km_quant_call *q, int first, int count, int eights, mma_grid *best) {
    int slices = km_cuda_dev_of(q->lane)->cc >= 90 ? 8 : 1; /* clusters */
    bool found = false;
    for (int z = 1; z <= slices; z *= 2)
        for (int tiles = 8; tiles >= 1; tiles /= 2) {
            mma_grid w = {.tiles = tiles, .slices = z};
            if (!measure(q, first, count, eights, &w) || (found && w.cost >= best->cost)) continue;
            *best = w;
            found = true;
        }
    return found;
}

/* ---- Launches ---- */

/* x in the orders that these layers want, after the norm that was held back before it, if it was. */
typedef struct mma_rows {
    char *x[2]; /* runs side by side, and apart; NULL: nobody wants it */
    float *scale;
    void *room;
    size_t cap;
} mma_rows;

static km_status round_x(km_quant_call *q, int eights, mma_rows *r) {
    int64_t padded = 8 * (int64_t)eights;
    size_t each = (size_t)(km_ceil_div(q->k, KM_REGS_DEPTH) * KM_MMA_FEW_X * eights), used = 0;
    bool wants[2] = {0};
    for (int i = 0; i < q->layers; i++) wants[km_quant_is_apart(q->l[i].type)] |= q->l[i].n > 0;
    r->room = km_cuda_scratch(q->lane, 2 * each + (size_t)padded * 4, &r->cap);
    if (!r->room) return q->lane->ctx->error.code;
    for (int i = 0; i < 2; i++)
        if (wants[i]) r->x[i] = (char *)r->room + used, used += each;
    r->scale = (float *)((char *)r->room + used);
    return km_quant_round(q, KM_ROUND_MMA, padded, r->x[0], r->x[1], r->scale, r->room, r->cap);
}

/* Layers [first, first + count) in one launch. */
static km_status launch(km_quant_call *q, km_cuda_kernel *kernel, int first, int count,
                        const mma_grid *w, const mma_rows *r) {
    km_mma_few_args a = {.x = {r->x[0], r->x[1]},
                         .scale = r->scale,
                         .parts = count,
                         .m = (int32_t)q->m,
                         .k = (int32_t)q->k,
                         .act = (int32_t)q->act,
                         .tiles = w->tiles,
                         .groups = (int32_t)w->groups,
                         .supers =
                             (int32_t)km_ceil_div(km_ceil_div(q->k, KM_REGS_DEPTH), w->slices),
                         .early = !q->made && km_cuda_queue_of(q->lane)->capturing != NULL};
    int64_t groups = 0;
    for (int i = 0; i < count; i++) {
        const km_quant_layer *l = &q->l[first + i];
        a.part[i] = (km_quant_part){.w = l->w.m,
                                    .up = l->up.m,
                                    .bias = l->bias,
                                    .out = l->out,
                                    .n = (int32_t)l->n,
                                    .first = (int32_t)groups,
                                    .second = l->type != q->l[first].type};
        groups += km_ceil_div(km_ceil_div(l->n, q->gated ? 8 : 16), w->tiles);
    }
    void *params[] = {&a};
    return km_cuda_launch_with(
        q->lane, kernel, KM_DIM(w->blocks / w->slices, w->slices), KM_DIM(KM_MMA_FEW_THREADS),
        (unsigned)w->shared, params,
        &(km_launch_options){.alone = q->made, .cluster = {w->slices > 1, w->slices, 1}});
}

/* Of layers of two types, the place in two_types; or -1. */
static int place_of_two(int first, int second) {
    for (size_t i = 0; i < sizeof two_types / sizeof *two_types; i++)
        if (two_types[i].first == first && two_types[i].second == second) return (int)i;
    return -1;
}

bool km_quant_has_mma(const km_quant_call *q) {
    if (q->m < 2 || q->m > 32 || !km_cuda_has_module("quant_mma_k_8")) return false;
    for (int i = 0; i < q->layers; i++) {
        mma_grid w;
        int eights = eights_of[q->m > 16 ? 2 : q->m > 8];
        if (q->l[i].type >= KM_QUANT_TYPES) return false;
        if (q->l[i].n > 0 && !choose(q, i, 1, eights, &w)) return false;
    }
    return true;
}

km_status km_quant_mma(km_quant_call *q) {
    int size = q->m > 16 ? 2 : q->m > 8, eights = eights_of[size];
    mma_rows r = {0};
    km_status s = round_x(q, eights, &r);
    for (int i = 0, n = 1; i < q->layers && s == KM_OK; i += n, n = 1) {
        int type = q->l[i].type, both = -1;
        mma_grid w;
        if (q->l[i].n == 0) continue;
        for (; i + n < q->layers && q->l[i + n].n > 0; n++) {
            int other = q->l[i + n].type;
            if (other == type || (both >= 0 && other == two_types[both].second)) continue;
            int place = both < 0 && !q->gated ? place_of_two(type, other) : -1;
            if (place < 0) break;
            both = place;
        }
        if (!choose(q, i, n, eights, &w)) { /* together they may have no room */
            n = 1, both = -1;
            choose(q, i, n, eights, &w);
        }
        s = launch(q, both < 0 ? &one_type[size][q->gated][type] : &two_types[both].kernel[size], i,
                   n, &w, &r);
    }
    km_cuda_scratch_free(q->lane, r.room, r.cap);
    return s;
}
