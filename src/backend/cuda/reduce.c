/* Reductions: x's axes are split into kept and reduced ones, and where the elements of one output
 * lie in memory decides the kernel: along the fastest axis (blocks, or warps when they are few),
 * across it (columns), or anyhow (the same blocks and warps through strides). */
#include "backend/cuda/cuda.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

enum { BLOCK, WARP, COLUMNS, COLUMN, KINDS }; /* columns by vectors, or one to a thread */

#define KINDS_OF(name)                                                                             \
    {                                                                                              \
        KM_CUDA_WAITING("reduce", "reduce_block_" name),                                           \
            KM_CUDA_WAITING("reduce", "reduce_warp_" name),                                        \
            KM_CUDA_WAITING("reduce", "reduce_columns_" name),                                     \
            KM_CUDA_WAITING("reduce", "reduce_column_" name)                                       \
    }
static km_cuda_kernel kernels[KM_OP_COUNT][KINDS][KM_CUDA_SLOTS] = {
    [KM_OP_SUM] = KINDS_OF("sum"),      [KM_OP_MEAN] = KINDS_OF("sum"),
    [KM_OP_SUMSQ] = KINDS_OF("sumsq"),  [KM_OP_MAX] = KINDS_OF("max"),
    [KM_OP_VAR] = KINDS_OF("var"),      [KM_OP_LOGSUMEXP] = KINDS_OF("logsumexp"),
    [KM_OP_ARGMAX] = KINDS_OF("argmax")};
static km_cuda_kernel integers = {.module = "reduce", .name = "reduce_warp_int", .waits = true};

/* Some of x's axes, merged where they continue each other; at least one. */
typedef struct axes {
    int ndim;
    int64_t dim[KM_MAX_DIMS], stride[1][KM_MAX_DIMS];
    int64_t count;
} axes;

static void put_axis(axes *a, int64_t dim, int64_t stride) {
    a->count *= dim;
    if (dim == 1) return;
    int last = a->ndim - 1;
    if (last >= 0 && a->stride[0][last] == stride * dim) {
        a->dim[last] *= dim;
        a->stride[0][last] = stride;
        return;
    }
    a->dim[a->ndim] = dim;
    a->stride[0][a->ndim++] = stride;
}

/* `sorted`: from the longest stride to the shortest, where the order does not matter. */
static axes pick_axes(const km_tensor *x, uint32_t set, bool reduced, bool sorted) {
    axes a = {.count = 1};
    int order[KM_MAX_DIMS], n = 0;
    for (int i = 0; i < x->shape.ndim; i++)
        if (((set >> i) & 1u) == reduced) order[n++] = i;
    for (int i = 1; sorted && i < n; i++)
        for (int j = i; j > 0 && x->stride[order[j - 1]] < x->stride[order[j]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    for (int i = 0; i < n; i++) put_axis(&a, x->shape.dim[order[i]], x->stride[order[i]]);
    if (a.ndim == 0) {
        a.ndim = 1;
        a.dim[0] = 1; /* one place, stride 0 */
    }
    return a;
}

static void to_walk(km_walk *w, const axes *a) {
    km_cuda_walk_make(w, a->ndim, a->dim, 1, a->stride);
}

static bool multiples(const axes *a, int upto, int64_t of) {
    for (int i = 0; i < upto; i++)
        if (a->stride[0][i] % of != 0) return false;
    return true;
}

/* Where several blocks share outputs: room for their parts, and counters. */
static km_status launch_parts(km_lane *lane, km_cuda_kernel *k, km_reduce_args *args,
                              int64_t groups, km_dim threads, int64_t states) {
    size_t cap = 0;
    if (args->parts > 1) {
        args->counters = km_cuda_counters(lane);
        args->partial =
            args->counters ? km_cuda_scratch(lane, (size_t)states * KM_REDUCE_STATE, &cap) : NULL;
        if (!args->partial) return lane->ctx->error.code;
    }
    km_status s = km_cuda_launch1(lane, k, KM_DIM(groups * args->parts), threads, 0, args);
    km_cuda_scratch_free(lane, args->partial, cap);
    return s;
}

/* x as (outer, n, inner) with inner kept: threads side by side take columns side by side. */
static km_status by_columns(km_lane *lane, km_cuda_kernel (*k)[KM_CUDA_SLOTS], int slot,
                            km_reduce_args *args, axes *kept, const axes *reduced, size_t size) {
    int last = --kept->ndim;
    args->inner = kept->dim[last];
    args->row = reduced->stride[0][0];
    if (kept->ndim == 0) {
        kept->ndim = 1;
        kept->dim[0] = 1;
        kept->stride[0][0] = 0;
        last = 0;
    }
    int64_t per = 16 / (int64_t)size;
    bool vectors = args->inner % per == 0 && args->row % per == 0 && multiples(kept, last, per) &&
                   km_cuda_aligned(args->x, 16);
    int64_t wide = KM_COLUMN_LANES * (vectors ? per : 1);
    int64_t outer = args->outputs / args->inner, groups = outer * km_ceil_div(args->inner, wide);
    int64_t want = 4 * (int64_t)km_cuda_dev_of(lane)->sms / groups;
    args->parts = (int32_t)km_clamp64(want, 1, km_clamp64(args->n / (4 * KM_COLUMN_ROWS), 1, 256));
    if (groups > KM_CUDA_COUNTERS) args->parts = 1;
    to_walk(&args->kept, kept);
    return launch_parts(lane, &k[vectors ? COLUMNS : COLUMN][slot], args, groups,
                        KM_DIM(KM_COLUMN_LANES, KM_COLUMN_ROWS), outer * args->parts * args->inner);
}

static km_status by_blocks(km_lane *lane, km_cuda_kernel *k, km_reduce_args *args, int64_t items) {
    int64_t sms = km_cuda_dev_of(lane)->sms, threads = 256;
    args->parts = 1;
    if (args->outputs <
        2 * sms) /* four items a thread, or as many as fill the device eight times */
        args->parts = (int32_t)km_clamp64(km_ceil_div(items, 4 * threads), 1,
                                          km_clamp64(8 * sms / args->outputs, 1, 8 * sms));
    else
        threads = km_clamp64(km_ceil_div(items, 4 * 32) * 32, 64, 512);
    return launch_parts(lane, k, args, args->outputs, KM_DIM(threads), args->outputs * args->parts);
}

/* Four items a lane, so that short rows share a warp and loads overlap. */
static km_status by_warps(km_lane *lane, km_cuda_kernel *k, km_reduce_args *args, int64_t items) {
    args->lanes = items > 64 ? 32 : items > 32 ? 16 : items > 16 ? 8 : 4;
    return km_cuda_launch1(lane, k, KM_DIM(km_ceil_div(args->outputs * args->lanes, 256)),
                           KM_DIM(256), 0, args);
}

static km_status run_reduce(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    size_t size = km_dtype_size(x->dtype);
    axes kept = pick_axes(x, c->p->axes, false, false);
    axes reduced = pick_axes(x, c->p->axes, true, c->op != KM_OP_ARGMAX);
    if (kept.count == 0) return KM_OK;
    if (slot < 0 && km_dtype_is_float(x->dtype)) return KM_ERR_UNSUPPORTED;
    bool rows = reduced.ndim == 1 && reduced.stride[0][0] == 1;
    if (kept.count >= KM_WALK_MAX || (!rows && reduced.count >= KM_WALK_MAX))
        return KM_ERR_UNSUPPORTED;
    if (reduced.count >= KM_WALK_MAX && slot < 0) return KM_ERR_UNSUPPORTED;

    double n = (double)reduced.count, spread = n - (double)c->p->n[KM_N_CORRECTION];
    km_reduce_args args = {.x = km_tensor_ptr(x),
                           .out = km_tensor_ptr(out),
                           .n = reduced.count,
                           .outputs = kept.count,
                           .divisor = 1,
                           .parts = 1,
                           .op = (int)c->op,
                           .dtype = (int)x->dtype};
    if (c->op == KM_OP_MEAN) args.divisor = (float)n;
    if (c->op == KM_OP_VAR) args.divisor = spread > 0 ? (float)spread : 0;
    to_walk(&args.reduced, &reduced);

    if (slot >= 0 && reduced.ndim == 1 && !rows && kept.stride[0][kept.ndim - 1] == 1 &&
        kept.dim[kept.ndim - 1] >= 16 && reduced.count > 1)
        return by_columns(lane, kernels[c->op], slot, &args, &kept, &reduced, size);
    to_walk(&args.kept, &kept);
    if (slot < 0) return by_warps(lane, &integers, &args, INT64_MAX); /* whole warps */
    args.vectors =
        rows && km_cuda_aligned(args.x, 16) && multiples(&kept, kept.ndim, 16 / (int64_t)size);
    bool few = args.outputs < 4 * (int64_t)km_cuda_dev_of(lane)->sms;
    int64_t items = args.vectors ? args.n * (int64_t)size / 16 : args.n;
    if (args.n >= KM_WALK_MAX && (!args.vectors || c->op == KM_OP_ARGMAX))
        return KM_ERR_UNSUPPORTED;
    if (args.n >= (few || args.vectors ? 1024 : 65536))
        return by_blocks(lane, &kernels[c->op][BLOCK][slot], &args, items);
    return by_warps(lane, &kernels[c->op][WARP][slot], &args, items);
}

void km_cuda_register_reduce(km_kernel *table) {
    static const km_op ops[] = {KM_OP_SUM, KM_OP_MEAN,  KM_OP_MAX,   KM_OP_LOGSUMEXP,
                                KM_OP_VAR, KM_OP_SUMSQ, KM_OP_ARGMAX};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) table[ops[i]] = run_reduce;
}
