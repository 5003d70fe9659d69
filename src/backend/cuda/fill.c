/* Fills: a value, counting, random numbers. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

static km_cuda_kernel fill_bytes = {.module = "fill", .name = "fill_bytes", .waits = true};
static km_cuda_kernel arange = {.module = "fill", .name = "arange", .waits = true};
static km_cuda_kernel fill_walk[] = {{.module = "fill", .name = "fill_walk_1", .waits = true},
                                     {.module = "fill", .name = "fill_walk_2", .waits = true},
                                     {.module = "fill", .name = "fill_walk_4", .waits = true},
                                     {.module = "fill", .name = "fill_walk_8", .waits = true}};
static km_cuda_kernel uniform[] = KM_CUDA_WAITING("fill", "uniform");
static km_cuda_kernel normal[] = KM_CUDA_WAITING("fill", "normal");

static km_status run_full(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    km_iter it;
    uint64_t bits = km_cuda_bits(out->dtype, c->p->f[KM_F_VALUE]);
    km_iter_init(&it, 1, &out);
    if (it.rows == 0) return KM_OK;
    if (!km_cuda_is_flat(&it)) {
        km_walk_args args = {.i0 = (int64_t)bits};
        return km_cuda_walk(lane, &fill_walk[km_cuda_size_slot(it.size[0])], &it, &args, 1);
    }
    for (size_t size = it.size[0]; size < 8; size *= 2) bits |= bits << (8 * size);
    km_fill_args args = {
        .out = it.base[0], .bytes = it.dim[0] * (int64_t)it.size[0], .pattern = {bits, bits}};
    km_cuda_grid g = km_cuda_grid_for(lane, args.bytes / 16, 4);
    return km_cuda_launch1(lane, &fill_bytes, g.blocks, g.threads, 0, &args);
}

static km_status run_arange(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    km_arange_args args = {.out = km_tensor_ptr(out),
                           .n = km_shape_count(out->shape),
                           .start = c->p->f[KM_F_START],
                           .step = c->p->f[KM_F_STEP],
                           .dtype = (int)out->dtype};
    if (args.n == 0) return KM_OK;
    km_cuda_grid g = km_cuda_grid_for(km_cuda_lane(c), args.n, 1);
    return km_cuda_launch1(km_cuda_lane(c), &arange, g.blocks, g.threads, 0, &args);
}

static km_status run_random(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(out->dtype);
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_random_args args = {.out = km_tensor_ptr(out),
                           .n = km_shape_count(out->shape),
                           .seed = c->p->seed,
                           .stream = c->p->stream,
                           .draws = km_cuda_draws(lane),
                           .f0 = c->p->f[KM_F_LO],
                           .f1 = c->p->f[KM_F_HI]};
    if (args.n == 0) return KM_OK;
    args.aligned = km_cuda_aligned(args.out, 4 * km_dtype_size(out->dtype));
    km_cuda_grid g = km_cuda_grid_for(lane, km_ceil_div(args.n, 4), 1);
    return km_cuda_launch1(lane, c->op == KM_OP_NORMAL ? &normal[slot] : &uniform[slot], g.blocks,
                           g.threads, 0, &args);
}

void km_cuda_register_fill(km_kernel *table) {
    table[KM_OP_FULL] = run_full;
    table[KM_OP_ARANGE] = run_arange;
    table[KM_OP_UNIFORM] = table[KM_OP_NORMAL] = run_random;
}
