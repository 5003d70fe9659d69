/* Many rows of x over weights of a few bits, or of 16 bits: tensor cores, with weights in registers
 * on Hopper and in tiles of shared memory elsewhere. */
#include "backend/cuda/kernels/quant/quant_tile_args.h"
#include "backend/cuda/quant_call.h"
#include "base/util.h"

#define KERNEL KM_QUANT_KERNEL
#define TILE(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_" #name),
#define TILE_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_gated_" #name),
#define PLAIN_TILES(module_)                                                                       \
    {[KM_PLAIN_F16] = KERNEL(module_, "tiles_F16"),                                                \
     [KM_PLAIN_BF16] = KERNEL(module_, "tiles_BF16")},                                             \
    {                                                                                              \
        [KM_PLAIN_F16] = KERNEL(module_, "tiles_gated_F16"), [KM_PLAIN_BF16] = KERNEL(             \
                                                                 module_, "tiles_gated_BF16")      \
    }
static km_cuda_kernel tiles[2][KM_PLAIN_TYPES] = {{KM_QUANT_PLANES(TILE)},
                                                  {KM_QUANT_PLANES(TILE_GATED)}};
static km_cuda_kernel plain_tiles[2][2][KM_PLAIN_TYPES] = {{PLAIN_TILES("quant_tiles")},
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

static km_status round_x(km_quant_call *q, int order, int64_t tokens, rounded *r) {
    static km_cuda_kernel kernel = KERNEL("quant_tiles", "quant_round");
    int64_t k = order ? km_ceil_div(q->k, KM_REGS_DEPTH) * KM_REGS_DEPTH : q->k;
    r->padded = km_ceil_div(q->m, tokens) * tokens;
    r->x = km_cuda_scratch(q->lane, (size_t)r->padded * (size_t)(2 * k + 4), &r->cap);
    if (!r->x) return q->lane->ctx->error.code;
    r->scale = (float *)(r->x + r->padded * 2 * k);
    km_round_args a = {.x = q->x,
                       .out = r->x,
                       .scale = r->scale,
                       .k = (int32_t)q->k,
                       .rows = (int32_t)q->m,
                       .order = order,
                       .padded = (int32_t)r->padded};
    return km_cuda_launch1(q->lane, &kernel, KM_DIM(order ? r->padded : q->m), KM_DIM(256), 0, &a);
}

static km_tile_args tile_args(const km_quant_call *q, const km_quant_layer *l, const rounded *r) {
    return (km_tile_args){.x = r->x,
                          .scale = r->scale,
                          .w = l->w.m,
                          .up = l->up.m,
                          .bias = l->bias,
                          .out = l->out,
                          .m = (int32_t)q->m,
                          .n = (int32_t)l->n,
                          .k = (int32_t)q->k,
                          .act = (int32_t)q->act,
                          .padded = (int32_t)r->padded};
}

/* Tiles of weights in shared memory. */
static km_status run_tiles(km_quant_call *q, const km_quant_layer *l, const rounded *r) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    km_tile_args a = tile_args(q, l, r);
    bool plain = l->type >= KM_QUANT_TYPES, hopper = plain && km_quant_has_hopper(dev);
    int64_t tall = km_ceil_div(q->m, KM_TILE_SIDE);
    int64_t wide = km_ceil_div(l->n, q->gated ? KM_TILE_SIDE / 2 : KM_TILE_SIDE);
    int64_t splits = hopper ? splits_for(tall * wide, 2 * (int64_t)dev->sms, q->k / 256) : 1;
    km_cuda_kernel *kernel =
        plain ? &plain_tiles[hopper][q->gated][l->type] : &tiles[q->gated][l->type];
    size_t cap = 0;
    if (splits > 1) {
        a.partial = km_cuda_scratch(
            q->lane, (size_t)(tall * wide * splits) * KM_TILE_FLOATS * sizeof(float), &cap);
        a.counters = a.partial ? km_cuda_counters(q->lane) : NULL;
        if (!a.counters) return q->lane->ctx->error.code;
    }
    void *params[] = {&a};
    km_status s =
        km_cuda_launch_with(q->lane, kernel, KM_DIM(tall, wide, splits), KM_DIM(KM_TILE_THREADS),
                            hopper ? KM_TILE_HOPPER_SHARED : KM_TILE_SHARED, params,
                            &(km_launch_options){.alone = q->made});
    km_cuda_scratch_free(q->lane, a.partial, cap);
    return s;
}

/* Weights in registers: layers [first, first + count), of one type. */
static km_status run_regs(km_quant_call *q, int first, int count, const rounded *r, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    const km_quant_layer *l = &q->l[first];
    km_tile_args a = tile_args(q, l, r);
    int tokens = tokens_of[size], rows = q->gated ? KM_REGS_ROWS / 2 : KM_REGS_ROWS;
    a.early = km_cuda_queue_of(q->lane)->capturing != NULL;
    a.layers = count;
    int64_t tall = r->padded / tokens, wide = km_ceil_div(l->n, rows);
    for (int i = 1; i < count; i++) {
        a.more[i - 1] = (km_tile_more){.w = l[i].w.m,
                                       .bias = l[i].bias,
                                       .out = l[i].out,
                                       .n = (int32_t)l[i].n,
                                       .first = (int32_t)wide};
        wide += km_ceil_div(l[i].n, rows);
    }
    int64_t supers = km_ceil_div(q->k, KM_REGS_DEPTH);
    int64_t most = splits_for(tall * wide, KM_REGS_BLOCKS(tokens) * (int64_t)dev->sms, supers / 2);
    unsigned splits = 1;
    while (2 * splits <= most && 2 * splits <= KM_REGS_SPLITS) splits *= 2;
    void *params[] = {&a};
    return km_cuda_launch_with(
        q->lane, &regs[size][q->gated][l->type], KM_DIM(tall, wide, splits),
        KM_DIM(KM_REGS_THREADS), KM_REGS_SHARED(tokens, km_quant_item_bytes(l->type)), params,
        &(km_launch_options){.alone = q->made, .cluster = {splits > 1, 1, splits}});
}

km_status km_quant_many(km_quant_call *q) {
    bool hopper = km_quant_has_hopper(km_cuda_dev_of(q->lane));
    rounded r[3] = {{0}};
    int size = q->m <= tokens_of[0] ? 0 : q->m <= 2 * tokens_of[1] ? 1 : 2;
    km_status s = KM_OK;
    for (int i = 0, n = 1; i < q->layers && s == KM_OK; i += n, n = 1) {
        const km_quant_layer *l = &q->l[i];
        if (l->n == 0) continue;
        bool in_regs = hopper && l->type < KM_QUANT_TYPES;
        while (in_regs && i + n < q->layers && l[n].type == l->type && l[n].n > 0) n++;
        int order = in_regs ? 1 + km_quant_is_apart(l->type) : 0;
        if (!r[order].x) s = round_x(q, order, order ? tokens_of[size] : 64, &r[order]);
        if (s == KM_OK)
            s = in_regs ? run_regs(q, i, n, &r[order], size) : run_tiles(q, l, &r[order]);
    }
    for (int i = 0; i < 3; i++) km_cuda_scratch_free(q->lane, r[i].x, r[i].cap);
    return s;
}
