/* Many rows of x over weights of a few bits, or of 16 bits: tensor cores, with weights in registers
 * on Hopper and in tiles of shared memory elsewhere. */
#include "backend/cuda/kernels/quant/quant_wide_args.h"
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
static km_cuda_kernel plain_tiles[2][KM_PLAIN_TYPES] = {PLAIN_TILES("quant_tiles")};

/* Weights of 16 bits on Hopper, by the tokens of a tile. */
static const int plain_tokens_of[] = {16, 64, 128, 256};
#define PLAIN_REGS(n)                                                                              \
    {                                                                                              \
        {[KM_PLAIN_F16] = KERNEL("plain_regs", "plain_F16_" n),                                    \
         [KM_PLAIN_BF16] = KERNEL("plain_regs", "plain_BF16_" n)},                                 \
        {                                                                                          \
            [KM_PLAIN_F16] = KERNEL("plain_regs", "plain_gated_F16_" n),                           \
            [KM_PLAIN_BF16] = KERNEL("plain_regs", "plain_gated_BF16_" n)                          \
        }                                                                                          \
    }
#define PLAIN_F16(n)                                                                               \
    {                                                                                              \
        {[KM_PLAIN_F16] = KERNEL("plain_regs", "plain_F16_" n)}, {                                 \
            [KM_PLAIN_F16] = KERNEL("plain_regs", "plain_gated_F16_" n)                            \
        }                                                                                          \
    } /* bf16: by blocks that stay */
static km_cuda_kernel plain_regs[4][2][KM_PLAIN_TYPES] = {PLAIN_REGS("16"), PLAIN_REGS("64"),
                                                          PLAIN_F16("128"), PLAIN_F16("256")};

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

/* The same by blocks that stay (kernels/quant/regs_wide.cuh), of 128 and 256 tokens, for the types that most
 * models have. */
#define WIDE_256(name)                                                                             \
    { KERNEL("quant_wide_256", "wide_" name), KERNEL("quant_wide_256", "wide_gated_" name) }
#define WIDE_PLAIN(name, n)                                                                        \
    { KERNEL("plain_wide", "wide_" name "_" n), KERNEL("plain_wide", "wide_gated_" name "_" n) }
static km_cuda_kernel wide[2][KM_PLAIN_TYPES][2] = {{[KM_PLAIN_BF16] = WIDE_PLAIN("BF16", "128")},
                                                    {[KM_QUANT_Q4_K] = WIDE_256("Q4_K"),
                                                     [KM_QUANT_Q6_K] = WIDE_256("Q6_K"),
                                                     [KM_QUANT_Q8_0] = WIDE_256("Q8_0"),
                                                     [KM_PLAIN_BF16] = WIDE_PLAIN("BF16", "256")}};

/* Blocks that share a tile along k, so that the chip is full: the fewest rounds of blocks, by the steps of
 * 64 elements of each; a block takes the time of some steps to begin and to end. Not every multiprocessor
 * finds its place in a cluster of 4 or 8. */
static unsigned splits_for(int64_t count, int64_t room, int64_t steps) {
    int64_t best = 0;
    unsigned splits = 1;
    for (unsigned n = 1; n <= KM_REGS_SPLITS && 4 * n <= steps; n *= 2) {
        int64_t held = n == 8 ? room * 17 / 20 : n == 4 ? room * 10 / 11 : room;
        int64_t cost = km_ceil_div(count * n, held) * (km_ceil_div(steps, n) + 4);
        if (n == 1 || cost < best) best = cost, splits = n;
    }
    return splits;
}

/* x as f16, in one of the orders that kernels want, and what it takes to get it back. */
typedef struct rounded {
    char *x;
    float *scale;
    int64_t padded; /* rows */
    size_t cap;
} rounded;

km_status km_quant_round(km_quant_call *q, int order, int64_t padded, void *out, void *apart,
                         float *scale, const void *room, size_t bytes) {
    static km_cuda_kernel kernel = KERNEL("quant_round", "quant_round");
    size_t row = (size_t)q->k * sizeof(float);
    km_round_args a = {.x = q->x,
                       .out = out,
                       .apart = apart,
                       .scale = scale,
                       .k = (int32_t)q->k,
                       .rows = (int32_t)q->m,
                       .order = order,
                       .padded = (int32_t)padded,
                       .keep = row <= KM_ROUND_KEEP && row <= km_cuda_dev_of(q->lane)->shared_max};
    if (!q->made && km_cuda_held_apart(q->lane, room, bytes))
        km_cuda_held_take(q->lane, q->x, q->m, q->k, &q->norm);
    if (q->norm.y) {
        a.x = q->norm.x, a.residual = q->norm.residual, a.norm_w = q->norm.w;
        a.sum = q->norm.sum, a.y = q->norm.y, a.rstd = q->norm.rstd, a.eps = q->norm.eps;
        q->norm.y = NULL; /* done; whoever wants x later finds it in memory */
    }
    return km_cuda_launch_with(q->lane, &kernel, KM_DIM(padded), KM_DIM(KM_ROUND_THREADS),
                               a.keep ? (unsigned)row : 0, (void *[]){&a},
                               &(km_launch_options){.alone = q->made});
}

static km_status round_x(km_quant_call *q, int order, int64_t tokens, rounded *r) {
    int64_t k = order ? km_ceil_div(q->k, KM_REGS_DEPTH) * KM_REGS_DEPTH : q->k;
    r->padded = km_ceil_div(q->m, tokens) * tokens;
    r->x = km_cuda_scratch(q->lane, (size_t)r->padded * (size_t)(2 * k + 4), &r->cap);
    if (!r->x) return q->lane->ctx->error.code;
    r->scale = (float *)(r->x + r->padded * 2 * k);
    return km_quant_round(q, order, order ? r->padded : q->m, r->x, NULL, r->scale, r->x, r->cap);
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
    km_tile_args a = tile_args(q, l, r);
    int64_t tall = km_ceil_div(q->m, KM_TILE_SIDE);
    int64_t across = km_ceil_div(l->n, q->gated ? KM_TILE_SIDE / 2 : KM_TILE_SIDE);
    km_cuda_kernel *kernel =
        l->type >= KM_QUANT_TYPES ? &plain_tiles[q->gated][l->type] : &tiles[q->gated][l->type];
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, kernel, KM_DIM(tall, across), KM_DIM(KM_TILE_THREADS),
                               KM_TILE_SHARED, params, &(km_launch_options){.alone = q->made});
}

/* The copy engine's view of 16-bit weights (n, k). */
static bool map_weights(km_tensor_map *map, const void *w, int type, int64_t n, int64_t k,
                        int rows) {
    uint64_t dims[] = {(uint64_t)k, (uint64_t)n}, strides[] = {(uint64_t)k * 2};
    uint32_t box[] = {64, (uint32_t)rows}, steps[] = {1, 1};
    return KM_CU(map_tiled, map, type == KM_PLAIN_F16 ? KM_CU_MAP_F16 : KM_CU_MAP_BF16, 2,
                 (void *)w, dims, strides, box, steps, 0, KM_CU_SWIZZLE_128, KM_CU_PROMOTE_128,
                 0) == KM_CU_OK;
}

static bool make_maps(const km_quant_layer *l, int count, int64_t k, bool gated,
                      km_plain_maps *maps) {
    if (gated)
        return map_weights(&maps->w[0], l->w.m.planes, l->type, l->n, k, KM_REGS_ROWS / 2) &&
               map_weights(&maps->w[1], l->up.m.planes, l->type, l->n, k, KM_REGS_ROWS / 2);
    for (int i = 0; i < count; i++)
        if (!map_weights(&maps->w[i], l[i].w.m.planes, l[i].type, l[i].n, k, KM_REGS_ROWS))
            return false;
    return true;
}

/* Bytes of shared memory of a block. */
static size_t regs_shared(int type, int tokens, bool stays) {
    bool plain = type >= KM_QUANT_TYPES;
    size_t item = km_quant_item_bytes(type);
    if (stays)
        return (size_t)KM_WIDE_SHARED(tokens, plain ? KM_PLAIN_W_STEP : 0,
                                      plain ? 0 : KM_WIDE_RING(item));
    return plain ? (size_t)KM_PLAIN_REGS_SHARED(tokens) : KM_REGS_SHARED(tokens, item);
}

/* Weights in registers: layers [first, first + count), of one type, in tiles of so many tokens. */
static km_status run_regs(km_quant_call *q, int first, int count, const rounded *r, int size) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    const km_quant_layer *l = &q->l[first];
    bool plain = l->type >= KM_QUANT_TYPES;
    km_plain_maps maps;
    km_tile_args a = tile_args(q, l, r);
    int tokens = plain ? plain_tokens_of[size] : tokens_of[size];
    int rows = q->gated ? KM_REGS_ROWS / 2 : KM_REGS_ROWS;
    km_cuda_kernel *kernel =
        plain ? &plain_regs[size][q->gated][l->type] : &regs[size][q->gated][l->type];
    bool stays = tokens >= 128 && wide[tokens == 256][l->type][q->gated].name;
    if (stays) kernel = &wide[tokens == 256][l->type][q->gated];
    a.early = km_cuda_queue_of(q->lane)->capturing != NULL && !q->made;
    a.layers = count;
    int64_t tall = r->padded / tokens, across = km_ceil_div(l->n, rows);
    for (int i = 1; i < count; i++) {
        a.more[i - 1] = (km_tile_more){.w = l[i].w.m,
                                       .bias = l[i].bias,
                                       .out = l[i].out,
                                       .n = (int32_t)l[i].n,
                                       .first = (int32_t)across};
        across += km_ceil_div(l[i].n, rows);
    }
    int64_t held = (tokens > 64 ? 1 : 2) * (int64_t)dev->sms, all = tall * across;
    unsigned splits = splits_for(all, held, q->k / 64);
    km_dim grid = KM_DIM(tall, across, splits);
    if (stays) grid = KM_DIM(splits == 1 && all > held ? held : all, 1, splits);
    int32_t tiles_across = (int32_t)across;
    void *params[] = {&maps, &a, &tiles_across};
    if (plain && !make_maps(l, count, q->k, q->gated, &maps)) return KM_ERR_UNSUPPORTED;
    return km_cuda_launch_with(
        q->lane, kernel, grid, KM_DIM(stays ? KM_WIDE_THREADS : KM_REGS_THREADS),
        (unsigned)regs_shared(l->type, tokens, stays), plain ? params : params + 1,
        &(km_launch_options){.alone = q->made, .cluster = {splits > 1, 1, splits}});
}

/* How large tiles are: an index of tokens_of, or plain_tokens_of, whose tiles of 128 fill the rounds of
 * blocks better where there are few. */
static int size_for(int64_t m, bool plain) {
    if (!plain) return m <= tokens_of[0] ? 0 : m <= 2 * tokens_of[1] ? 1 : 2;
    return m <= 16 ? 0 : m <= 64 ? 1 : m <= 512 ? 2 : 3;
}

km_status km_quant_many(km_quant_call *q) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    rounded r[4] = {{0}};
    km_status s = KM_OK;
    for (int i = 0, n = 1; i < q->layers && s == KM_OK; i += n, n = 1) {
        const km_quant_layer *l = &q->l[i];
        if (l->n == 0) continue;
        bool plain = l->type >= KM_QUANT_TYPES, in_regs = km_quant_has_hopper(dev, l->type);
        while (in_regs && i + n < q->layers && l[n].type == l->type && l[n].n > 0) n++;
        int order = !in_regs ? KM_ROUND_PLAIN
                    : plain  ? KM_ROUND_STEPS
                             : KM_ROUND_REGS + km_quant_is_apart(l->type);
        int size = size_for(q->m, plain);
        if (!r[order].x)
            s = round_x(q, order,
                        order == 3 ? plain_tokens_of[size]
                        : order    ? tokens_of[size]
                                   : 64,
                        &r[order]);
        if (s == KM_OK)
            s = in_regs ? run_regs(q, i, n, &r[order], size) : run_tiles(q, l, &r[order]);
    }
    for (int i = 0; i < 4; i++) km_cuda_scratch_free(q->lane, r[i].x, r[i].cap);
    return s;
}
