/* Nearest centres on the GPU. x is rounded to f16 once and its tiles can be kept (work); centres are
 * rounded each call. A search on tensor cores finds the two best and tells when rounding could have
 * changed the answer; such rows are looked at again in f32. Nothing is read by the host, so a round can
 * be captured. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/kernels/vector/nearest_args.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/walker.h"
#include "base/util.h"
#include <math.h>

#define ONE(module_, name_)                                                                        \
    { .module = module_, .name = name_, .waits = true }
#define EACH(name_)                                                                                \
    { ONE("nearest", name_ "_f32"), ONE("nearest", name_ "_f16"), ONE("nearest", name_ "_bf16") }
static km_cuda_kernel mean[] = EACH("nearest_mean"), reach[] = EACH("nearest_reach");
static km_cuda_kernel round_rows[] = EACH("nearest_round"), pair[] = EACH("nearest_pair");
static km_cuda_kernel full[] = EACH("nearest_full"), distances[] = EACH("nearest_distances");
static km_cuda_kernel full_end = ONE("nearest", "nearest_full_end");
static km_cuda_kernel mma = ONE("nearest", "nearest_mma");
static km_cuda_kernel hopper[] = {ONE("nearest_hopper", "nearest_hopper_2"),
                                  ONE("nearest_hopper", "nearest_hopper_4"),
                                  ONE("nearest_hopper", "nearest_hopper_many")};

#define MOST_COLUMNS 6144 /* rows of a full search lie in shared memory */

static size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Cuts pieces off a block of device memory. */
static void *cut(char **at, size_t bytes) {
    void *p = *at;
    *at += up(bytes, 1024);
    return p;
}

static size_t place_notes(km_nearest_args *a, char *at) {
    char *begin = at;
    size_t rows = (size_t)a->row_blocks * KM_NEAREST_ROWS, slices = (size_t)a->slices;
    a->info = cut(&at, sizeof *a->info);
    a->mean = cut(&at, slices * KM_NEAREST_DEPTH * sizeof(float));
    a->x_norm = cut(&at, rows * sizeof(float));
    a->x_tiles = cut(&at, rows * slices * KM_NEAREST_DEPTH * 2);
    return (size_t)(at - begin);
}

static size_t place_call(km_nearest_args *a, char *at) {
    char *begin = at;
    size_t n = (size_t)a->n, centres = (size_t)a->centre_tiles * KM_NEAREST_CENTRES;
    a->counts = cut(&at, 4 * sizeof *a->counts);
    a->c_norm = cut(&at, centres * sizeof(float));
    a->c_size = cut(&at, centres * sizeof(float));
    a->c_tiles = cut(&at, centres * (size_t)a->slices * KM_NEAREST_DEPTH * 2);
    a->key = cut(&at, n * sizeof *a->key);
    a->pair = cut(&at, n * 2 * sizeof *a->pair);
    a->full = cut(&at, n * sizeof *a->full);
    return (size_t)(at - begin);
}

static km_status note_rows(km_lane *lane, const km_nearest_args *a, int slot) {
    int64_t sample = a->n < KM_NEAREST_SAMPLE ? a->n : KM_NEAREST_SAMPLE;
    km_nearest_round_args r = {.from = a->x,
                               .mean = a->mean,
                               .info = a->info,
                               .tiles = a->x_tiles,
                               .norm = a->x_norm,
                               .past = 0,
                               .n = a->n,
                               .padded = (int64_t)a->row_blocks * KM_NEAREST_ROWS,
                               .d = a->d,
                               .slices = a->slices,
                               .tile_rows = KM_NEAREST_ROWS,
                               .aligned = a->aligned};
    km_status s = km_cuda_launch1(lane, &mean[slot], KM_DIM(a->slices * 2), KM_DIM(256), 0, a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &reach[slot], KM_DIM(km_ceil_div(sample, 8)), KM_DIM(256), 0, a);
    if (s != KM_OK) return s;
    return km_cuda_launch1(lane, &round_rows[slot], KM_DIM(r.padded / 8), KM_DIM(256), 0, &r);
}

static km_status round_centres(km_lane *lane, const km_nearest_args *a) {
    km_nearest_round_args r = {.from = a->centre,
                               .mean = a->mean,
                               .info = a->info,
                               .tiles = a->c_tiles,
                               .norm = a->c_norm,
                               .size = a->c_size,
                               .counts = a->counts,
                               .past = 3e38f,
                               .n = a->k,
                               .padded = (int64_t)a->centre_tiles * KM_NEAREST_CENTRES,
                               .d = a->d,
                               .slices = a->slices,
                               .tile_rows = KM_NEAREST_CENTRES,
                               .aligned = a->d % 8 == 0 && km_cuda_aligned(a->centre, 16)};
    return km_cuda_launch1(lane, &round_rows[0], KM_DIM(r.padded / 8), KM_DIM(256), 0, &r);
}

static km_status search(km_lane *lane, const km_nearest_args *a) {
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    if (dev->cc != 90 || !km_cuda_has_module("nearest_hopper"))
        return km_cuda_launch1(lane, &mma, KM_DIM(a->row_blocks), KM_DIM(256), 3 * (16384 + 8192),
                               a);
    int blocks = a->row_blocks < dev->sms ? a->row_blocks : dev->sms;
    km_cuda_kernel *k = &hopper[a->slices <= 2 ? 0 : a->slices <= KM_NEAREST_RESIDENT ? 1 : 2];
    return km_cuda_launch1(lane, k, KM_DIM(blocks), KM_DIM(KM_NEAREST_THREADS),
                           (unsigned)KM_NEAREST_SHARED(a->slices), a);
}

/* Rows that are not sure, in f32; the grid does not know how many there are. */
static km_status look_again(km_lane *lane, const km_nearest_args *a, int slot, bool quick) {
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    int64_t most = km_ceil_div(a->n, 8), wide = 4 * (int64_t)dev->sms;
    int64_t parts = km_ceil_div(a->k, 64), blocks = most < dev->sms ? most : dev->sms;
    unsigned shared = (unsigned)(KM_NEAREST_TOGETHER * a->d * (int32_t)sizeof(float));
    km_status s =
        km_cuda_launch1(lane, &pair[slot], KM_DIM(most < wide ? most : wide), KM_DIM(256), 0, a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &full[slot], KM_DIM(blocks, parts < 8 ? parts : 8), KM_DIM(256),
                            shared, a);
    if (s == KM_OK)
        s = km_cuda_launch1(
            lane, &full_end,
            KM_DIM(km_ceil_div(most * 8, 256) < wide ? km_ceil_div(most * 8, 256) : wide),
            KM_DIM(256), 0, a);
    if (s == KM_OK && !quick)
        s = km_cuda_launch1(lane, &distances[slot], KM_DIM(most), KM_DIM(256), 0, a);
    return s;
}

static km_status run_nearest(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *centre = c->in[1], *work = c->n_in > 2 ? c->in[2] : NULL;
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    int64_t n = x->shape.dim[0], d = x->shape.dim[1], k = centre->shape.dim[0];
    if (slot < 0 || d > MOST_COLUMNS || d < 1 || k > INT32_MAX - 512) return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    const void *rows = km_cuda_bytes_of(lane, x); /* they may be lent */
    if (!rows) return ctx->error.code;
    km_nearest_args a = {.x = rows,
                         .centre = km_tensor_ptr(centre),
                         .id = km_tensor_ptr(c->out[0]),
                         .dist = km_tensor_ptr(c->out[1]),
                         .n = n,
                         .d = (int32_t)d,
                         .k = (int32_t)k,
                         .slices = (int32_t)km_ceil_div(d, KM_NEAREST_DEPTH),
                         .row_blocks = (int32_t)km_ceil_div(n, KM_NEAREST_ROWS),
                         .centre_tiles = (int32_t)km_ceil_div(k, KM_NEAREST_CENTRES),
                         .root = sqrtf((float)d)};
    a.aligned = d % 8 == 0 && km_cuda_aligned(a.x, 16) && km_cuda_aligned(a.centre, 16);
    /* Rounding to f16 is off by at most 2^-12 of an element. The errors of a row's products add up like
     * random ones: ten times their usual size, or the bound itself where that is smaller; and sums on
     * tensor cores, 16 products at a time. */
    a.slack = (float)(0x1p-11 * fmin(2, 8 / sqrt((double)d)) + (double)d / 16 * 0x1p-22);
    size_t notes = work ? 0 : place_notes(&a, NULL), cap;
    char *room = km_cuda_scratch(lane, notes + place_call(&a, NULL), &cap);
    if (!room) return ctx->error.code;
    place_notes(&a, work ? km_tensor_ptr(work) : room);
    place_call(&a, room + notes);
    km_status s = KM_OK;
    if (!work || !c->p->n[KM_N_NOTED]) s = note_rows(lane, &a, slot);
    if (s == KM_OK) s = round_centres(lane, &a);
    if (s == KM_OK) s = search(lane, &a);
    if (s == KM_OK) s = look_again(lane, &a, slot, c->p->n[KM_N_QUICK] != 0);
    km_cuda_scratch_free(lane, room, cap);
    return s;
}

void km_cuda_register_nearest(km_kernel *table) {
    table[KM_OP_NEAREST] = run_nearest;
    table[KM_OP_CELL_SUMS] = km_cuda_cell_sums;
}
