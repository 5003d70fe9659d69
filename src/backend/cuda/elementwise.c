/* Elementwise ops: which kernel serves a call. Floats have a fast kernel for contiguous operands
 * (and, with two operands, for rows with a repeated one); everything else walks its strides. */
#include "backend/cuda/chain.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/walker.h"
#include "base/util.h"
#include <math.h>

typedef struct float_op {
    km_cuda_kernel flat[KM_CUDA_SLOTS], rows[KM_CUDA_SLOTS];
} float_op;

static float_op unary[KM_OP_COUNT] = {
#define ROW(OP, name, expression) [KM_OP_##OP] = {.flat = KM_CUDA_WAITING("unary", "unary_" #name)},
    KM_UNARY_LIST(ROW)
#undef ROW
};
static float_op unary_grad[KM_OP_COUNT] = {
#define ROW(OP, name, expression)                                                                  \
    [KM_OP_##OP] = {.flat = KM_CUDA_WAITING("unary_grad", "unary_" #name)},
    KM_UNARY_GRAD_LIST(ROW)
#undef ROW
};
static float_op binary[KM_OP_COUNT] = {
#define ROW(OP, name, expression)                                                                  \
    [KM_OP_##OP] = {.flat = KM_CUDA_WAITING("binary", "binary_" #name),                            \
                    .rows = KM_CUDA_WAITING("binary", "binary_" #name "_rows")},
    KM_BINARY_LIST(ROW)
#undef ROW
};

static km_cuda_kernel unary_walk[] = KM_CUDA_WAITING("unary", "unary_walk");
static km_cuda_kernel unary_grad_walk[] = KM_CUDA_WAITING("unary_grad", "unary_grad_walk");
static km_cuda_kernel binary_walk[] = KM_CUDA_WAITING("binary", "binary_walk");
static km_cuda_kernel compare_walk[] = KM_CUDA_WAITING("binary", "compare_walk");
static km_cuda_kernel compare_flat[] = KM_CUDA_WAITING("binary", "compare");
static km_cuda_kernel unary_int = {.module = "unary", .name = "unary_walk_int", .waits = true};
static km_cuda_kernel binary_int = {.module = "binary", .name = "binary_walk_int", .waits = true};
static km_cuda_kernel compare_int = {.module = "binary", .name = "compare_walk_int", .waits = true};

/* All operands contiguous: a vector of each to a thread. */
static km_status launch_flat(km_lane *lane, km_cuda_kernel *k, const km_iter *it,
                             const double f[2]) {
    km_map_args args = {.a = it->base[1],
                        .b = it->n > 2 ? it->base[2] : NULL,
                        .out = it->base[0],
                        .n = it->dim[0],
                        .f0 = f[0],
                        .f1 = f[1]};
    km_cuda_grid g = km_cuda_grid_for(lane, args.n * (int64_t)it->size[1] / 16, 1);
    return km_cuda_launch1(lane, k, g.blocks, g.threads, 0, &args);
}

/* The same for an op that can be part of a chain: out has the operands' type. */
static km_status push_flat(const km_call *c, km_cuda_kernel *k, int slot, const km_iter *it,
                           const double f[2]) {
    km_cuda_link link = {.op = c->op,
                         .slot = slot,
                         .kernel = k,
                         .storage = c->out[0]->storage,
                         .args = {.a = it->base[1],
                                  .b = it->n > 2 ? it->base[2] : NULL,
                                  .out = it->base[0],
                                  .n = it->dim[0],
                                  .f0 = f[0],
                                  .f1 = f[1]}};
    return km_cuda_chain_push(km_cuda_lane(c), &link);
}

/* out, a[, b] in one order for all. */
static void iter_of(km_iter *it, const km_call *c, int n) {
    const km_tensor *t[KM_ITER_MAX] = {c->out[0]};
    for (int i = 0; i < n; i++) t[i + 1] = c->in[i];
    km_iter_init(it, n + 1, t);
}

/* ---- One operand ---- */

static bool has_integers(km_op op) {
    return op == KM_OP_NEG || op == KM_OP_ABS || op == KM_OP_RELU || op == KM_OP_CLAMP ||
           op == KM_OP_ADD_SCALAR || op == KM_OP_MUL_SCALAR;
}

static km_status run_unary(km_ctx *ctx, const km_call *c) {
    km_dtype d = c->in[0]->dtype;
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(d);
    km_iter it;
    if (slot < 0 && (km_dtype_is_float(d) || !has_integers(c->op))) return KM_ERR_UNSUPPORTED;
    iter_of(&it, c, 1);
    if (it.rows == 0) return KM_OK;
    if (slot >= 0 && km_cuda_is_flat(&it))
        return push_flat(c, &unary[c->op].flat[slot], slot, &it, c->p->f);
    km_walk_args args = {
        .f0 = c->p->f[KM_F_LO], .f1 = c->p->f[KM_F_HI], .op = (int)c->op, .dtype = (int)d};
    if (slot < 0) {
        args.i0 = km_cuda_whole(d, c->p->f[KM_F_LO]);
        args.i1 = km_cuda_whole(d, c->p->f[KM_F_HI]);
    }
    return km_cuda_walk(lane, slot < 0 ? &unary_int : &unary_walk[slot], &it, &args, 1);
}

static km_status run_unary_grad(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(c->in[0]->dtype);
    double f[2] = {c->p->f[KM_F_LO], c->p->f[KM_F_HI]};
    km_iter it;
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    iter_of(&it, c, 2);
    if (it.rows == 0) return KM_OK;
    if (c->op == KM_OP_CLAMP_GRAD) { /* the floats inside [lo, hi]: comparing them is exact */
        float lo = (float)f[0], hi = (float)f[1];
        f[0] = lo < f[0] ? nextafterf(lo, INFINITY) : lo;
        f[1] = hi > f[1] ? nextafterf(hi, -INFINITY) : hi;
    }
    if (km_cuda_is_flat(&it)) return push_flat(c, &unary_grad[c->op].flat[slot], slot, &it, f);
    km_walk_args args = {.f0 = f[0], .f1 = f[1], .op = (int)c->op};
    return km_cuda_walk(lane, &unary_grad_walk[slot], &it, &args, 1);
}

/* ---- Two operands ---- */

/* Turns the walk's last axis into one of 16-byte vectors, where every operand is contiguous along
 * it or constant, and out is contiguous as a whole. */
static bool by_vectors(km_iter *it) {
    int last = it->ndim - 1;
    int64_t per = 16 / (int64_t)it->size[0], step = 1;
    if (it->dim[last] % per != 0) return false;
    for (int a = last; a >= 0; a--) {
        if (it->stride[0][a] != step) return false;
        step *= it->dim[a];
    }
    for (int k = 0; k < it->n; k++) {
        if (it->stride[k][last] == 0) continue;
        if (it->stride[k][last] != 1 || !km_cuda_aligned(it->base[k], 16)) return false;
        for (int a = 0; a < last; a++)
            if (it->stride[k][a] % per != 0) return false;
    }
    it->dim[last] /= per;
    for (int k = 0; k < it->n; k++) it->stride[k][last] *= per;
    return true;
}

static km_status run_binary(km_ctx *ctx, const km_call *c) {
    km_dtype d = c->in[0]->dtype;
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(d);
    km_iter it, vectors;
    km_walk_args args = {.op = (int)c->op, .dtype = (int)d};
    static const double none[2];
    if (slot < 0 && km_dtype_is_float(d)) return KM_ERR_UNSUPPORTED;
    iter_of(&it, c, 2);
    if (it.rows == 0) return KM_OK;
    if (slot < 0) return km_cuda_walk(lane, &binary_int, &it, &args, 1);
    if (km_cuda_is_flat(&it)) return push_flat(c, &binary[c->op].flat[slot], slot, &it, none);
    vectors = it;
    /* The kernel finds out's place from the number of the vector, so it is not cut into parts. */
    if (it.dim[it.ndim - 1] * it.rows < KM_WALK_MAX && by_vectors(&vectors))
        return km_cuda_walk(lane, &binary[c->op].rows[slot], &vectors, &args, 1);
    return km_cuda_walk(lane, &binary_walk[slot], &it, &args, 1);
}

static km_status run_compare(km_ctx *ctx, const km_call *c) {
    km_dtype d = c->in[0]->dtype;
    int slot = km_cuda_slot(d);
    km_iter it;
    km_walk_args args = {.dtype = (int)d};
    if (slot < 0 && km_dtype_is_float(d)) return KM_ERR_UNSUPPORTED;
    switch (c->op) {
    case KM_OP_EQ: args.op = KM_IS_EQUAL; break;
    case KM_OP_NE: args.op = KM_IS_LESS | KM_IS_GREATER | KM_IS_UNORDERED; break;
    case KM_OP_LT: args.op = KM_IS_LESS; break;
    case KM_OP_LE: args.op = KM_IS_LESS | KM_IS_EQUAL; break;
    case KM_OP_GT: args.op = KM_IS_GREATER; break;
    default: args.op = KM_IS_GREATER | KM_IS_EQUAL; break;
    }
    iter_of(&it, c, 2);
    if (it.rows == 0) return KM_OK;
    if (slot >= 0 && km_cuda_is_flat(&it))
        return launch_flat(km_cuda_lane(c), &compare_flat[slot], &it, (double[2]){args.op});
    return km_cuda_walk(km_cuda_lane(c), slot < 0 ? &compare_int : &compare_walk[slot], &it, &args,
                        1);
}

/* ---- Choosing and dropping ---- */

#define PER_SIZE(name_)                                                                            \
    {                                                                                              \
        {.module = "select", .name = name_ "_1", .waits = true},                                   \
            {.module = "select", .name = name_ "_2", .waits = true},                               \
            {.module = "select", .name = name_ "_4", .waits = true}, {                             \
            .module = "select", .name = name_ "_8", .waits = true                                  \
        }                                                                                          \
    }
static km_cuda_kernel where_kernel[] = PER_SIZE("where");
static km_cuda_kernel masked_fill[] = PER_SIZE("masked_fill");
static km_cuda_kernel triangle[] = PER_SIZE("triangle");
static km_cuda_kernel dropout[] = KM_CUDA_WAITING("select", "dropout");

static km_status run_where(km_ctx *ctx, const km_call *c) {
    km_iter it;
    km_walk_args args = {0};
    iter_of(&it, c, 3);
    return km_cuda_walk(km_cuda_lane(c), &where_kernel[km_cuda_size_slot(it.size[0])], &it, &args,
                        1);
}

static km_status run_masked_fill(km_ctx *ctx, const km_call *c) {
    km_iter it;
    km_walk_args args = {.i0 = (int64_t)km_cuda_bits(c->out[0]->dtype, c->p->f[KM_F_VALUE])};
    iter_of(&it, c, 2);
    return km_cuda_walk(km_cuda_lane(c), &masked_fill[km_cuda_size_slot(it.size[0])], &it, &args,
                        1);
}

/* The kernel needs the last two axes as they are, so nothing is merged. */
static km_status run_triangle(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int ndim = out->shape.ndim;
    int64_t count = km_shape_count(out->shape), stride[2][KM_MAX_DIMS];
    size_t size = km_dtype_size(x->dtype);
    if (count == 0) return KM_OK;
    if (ndim < 2 || count >= KM_WALK_MAX) return KM_ERR_UNSUPPORTED;
    km_walk_args args = {.a = km_tensor_ptr(x),
                         .out = km_tensor_ptr(out),
                         .i0 = c->p->n[KM_N_DIAGONAL],
                         .op = c->op == KM_OP_TRIU};
    for (int a = 0; a < KM_MAX_DIMS; a++) {
        stride[0][a] = out->stride[a];
        stride[1][a] = x->stride[a];
    }
    km_cuda_walk_make(&args.walk, ndim, out->shape.dim, 2, stride);
    km_cuda_grid g = km_cuda_grid_for(km_cuda_lane(c), count, 1);
    return km_cuda_launch1(km_cuda_lane(c), &triangle[km_cuda_size_slot(size)], g.blocks, g.threads,
                           0, &args);
}

static km_status run_dropout(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(x->dtype);
    int64_t n = km_shape_count(out->shape);
    double p = c->p->f[KM_F_DROP];
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    if (!km_is_contiguous(x)) { /* numbers go by position: lay it out first, into out itself */
        km_status s = km_cuda_copy(lane, x, out);
        if (s != KM_OK) return s;
        x = out;
    }
    size_t four = 4 * km_dtype_size(x->dtype);
    km_random_args args = {.x = km_tensor_ptr(x),
                           .out = km_tensor_ptr(out),
                           .n = n,
                           .seed = c->p->seed,
                           .stream = c->p->stream,
                           .draws = km_cuda_draws(lane),
                           .f0 = 1 / (1 - p),
                           .threshold = (uint32_t)ceil(p * 0x1p24)};
    args.aligned = km_cuda_aligned(args.x, four) && km_cuda_aligned(args.out, four);
    km_cuda_grid g = km_cuda_grid_for(lane, km_ceil_div(n, 4), 1);
    return km_cuda_launch1(lane, &dropout[slot], g.blocks, g.threads, 0, &args);
}

void km_cuda_register_elementwise(km_kernel *table) {
    for (int op = 0; op < KM_OP_COUNT; op++) {
        if (unary[op].flat[0].name) table[op] = run_unary;
        if (unary_grad[op].flat[0].name) table[op] = run_unary_grad;
        if (binary[op].flat[0].name) table[op] = run_binary;
        if (op >= KM_OP_EQ && op <= KM_OP_GE) table[op] = run_compare;
    }
    table[KM_OP_WHERE] = run_where;
    table[KM_OP_MASKED_FILL] = run_masked_fill;
    table[KM_OP_TRIU] = table[KM_OP_TRIL] = run_triangle;
    table[KM_OP_DROPOUT] = run_dropout;
}
