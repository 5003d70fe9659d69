/* Attention and its gradient on the GPU: which family of kernels serves a call, the description
 * of its tensors that they take, and the launches. The kernels themselves: kernels/attention_*.cu;
 * what each family asks of a call: kernels/attention_params.h. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

typedef enum family { SIMPLE, MMA, HOPPER, FAMILIES } family;
enum { FWD = KM_ATTENTION_FWD, DQ = KM_ATTENTION_DQ, DKDV = KM_ATTENTION_DKDV, PASSES };
#define MAX_SIZES 4

static const int sizes[FAMILIES][MAX_SIZES] = {{64, 128, 256}, {64, 80, 96, 128}, {64, 128}};

/* A kernel for f32 (simple only), f16 and bf16, for each of the family's head sizes. */
#define OF_TYPE(module_, pass_, family_, type, size)                                               \
    { .module = module_, .name = "km_attention_" pass_ "_" family_ "_" type "_d" #size }
#define OF_SIZE(module_, pass_, family_, size)                                                     \
    {                                                                                              \
        OF_TYPE(module_, pass_, family_, "f32", size),                                             \
            OF_TYPE(module_, pass_, family_, "f16", size),                                         \
            OF_TYPE(module_, pass_, family_, "bf16", size)                                         \
    }
#define SIMPLE_OF(pass_)                                                                           \
    {                                                                                              \
        OF_SIZE("attention_simple", pass_, "simple", 64),                                          \
            OF_SIZE("attention_simple", pass_, "simple", 128),                                     \
            OF_SIZE("attention_simple", pass_, "simple", 256)                                      \
    }
#define MMA_OF(module_, pass_)                                                                     \
    {                                                                                              \
        OF_SIZE(module_, pass_, "mma", 64), OF_SIZE(module_, pass_, "mma", 80),                    \
            OF_SIZE(module_, pass_, "mma", 96), OF_SIZE(module_, pass_, "mma", 128)                \
    }
#define HOPPER_OF(pass_)                                                                           \
    {                                                                                              \
        OF_SIZE("attention_" pass_ "_hopper", pass_, "hopper", 64),                                \
            OF_SIZE("attention_" pass_ "_hopper", pass_, "hopper", 128)                            \
    }
static km_cuda_kernel kernels[FAMILIES][PASSES][MAX_SIZES][KM_CUDA_SLOTS] = {
    {SIMPLE_OF("fwd"), SIMPLE_OF("dq"), SIMPLE_OF("dkdv")},
    {MMA_OF("attention_fwd_mma", "fwd"), MMA_OF("attention_bwd_mma", "dq"),
     MMA_OF("attention_bwd_mma", "dkdv")},
    {HOPPER_OF("fwd"), HOPPER_OF("dq"), HOPPER_OF("dkdv")}};
static km_cuda_kernel delta[KM_CUDA_SLOTS] =
    KM_CUDA_PER_TYPE("attention_delta", "km_attention_delta");

/* ---- What serves ---- */

/* The place of a head of d in the family's sizes; -1 when it has no kernel for it. */
static int size_of(family f, int64_t d) {
    for (int i = 0; i < MAX_SIZES && sizes[f][i]; i++)
        if (f == SIMPLE ? d <= sizes[f][i] : d == sizes[f][i]) return i;
    return -1;
}

/* Rows start at multiples of 16 bytes; for the copy engine no stride is 0 or backwards either. */
static bool rows_fit(const km_tensor *t, bool copy_engine) {
    if (!km_cuda_aligned(km_tensor_ptr(t), 16)) return false;
    for (int i = 0; i < 3; i++) {
        if (t->shape.dim[i] == 1) continue;
        if (t->stride[i] % 8 != 0) return false;
        if (copy_engine && (t->stride[i] <= 0 || t->stride[i] >= (int64_t)1 << 36)) return false;
    }
    return true;
}

/* t[0..n-1] are all tensors of the call but lse; t[0] is (B, H, Tq, D), t[1] k. */
static family choose(const km_cuda_dev *dev, const km_call *c, km_tensor *const *t, int n) {
    int64_t d = t[0]->shape.dim[3];
    float scale = (float)c->p->f[KM_F_SCALE];
    size_t shared = (size_t)(c->op == KM_OP_ATTENTION ? KM_ATTENTION_MMA_FWD_SMEM(d)
                                                      : KM_ATTENTION_MMA_BWD_SMEM(d));
    if (t[0]->dtype == KM_F32 || !(scale > 0) || size_of(MMA, d) < 0) return SIMPLE;
    if (shared > dev->shared_max) return SIMPLE; /* Turing has 64 KiB */
    bool hopper = dev->cc == 90 && size_of(HOPPER, d) >= 0 && t[0]->shape.dim[2] > 0 &&
                  t[1]->shape.dim[2] > 0 && km_cuda_api()->map_tiled &&
                  km_cuda_has_module("attention_fwd_hopper");
    for (int i = 0; i < n; i++) {
        if (!rows_fit(t[i], false)) return SIMPLE;
        if (hopper && !rows_fit(t[i], true)) hopper = false;
    }
    return hopper ? HOPPER : MMA;
}

/* ---- Arguments ---- */

static km_attention_view view(const km_tensor *t) {
    return (km_attention_view){km_tensor_ptr(t), t->stride[0], t->stride[1], t->stride[2]};
}

static bool is_small(const km_tensor *t) {
    for (int i = 0; i < t->shape.ndim; i++)
        if (t->shape.dim[i] > INT32_MAX - 256) return false;
    return t->shape.dim[0] <= 65535 && t->shape.dim[1] <= 65535; /* a grid's y and z */
}

/* All but the tensors of one direction. False when no kernel takes such a call. */
static bool describe(km_attention_args *a, const km_call *c, const km_tensor *q,
                     const km_tensor *k) {
    int64_t d = q->shape.dim[3];
    if (km_cuda_slot(q->dtype) < 0 || d == 0 || size_of(SIMPLE, d) < 0) return false;
    if (!is_small(q) || !is_small(k)) return false;
    *a = (km_attention_args){.scale = (float)c->p->f[KM_F_SCALE],
                             .batch = (int32_t)q->shape.dim[0],
                             .heads = (int32_t)q->shape.dim[1],
                             .kv_heads = (int32_t)k->shape.dim[1],
                             .tq = (int32_t)q->shape.dim[2],
                             .tk = (int32_t)k->shape.dim[2],
                             .d = (int32_t)d,
                             .causal = c->p->causal};
    a->tq_pad = (int32_t)km_ceil_div(a->tq, KM_ATTENTION_PAD) * KM_ATTENTION_PAD;
    return true;
}

static km_status make_map(km_lane *lane, km_tensor_map *map, const km_tensor *t) {
    uint64_t dims[4], strides[3];
    const uint32_t box[4] = {64, 64, 1, 1}, steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++) dims[i] = (uint64_t)t->shape.dim[3 - i];
    for (int i = 0; i < 3; i++) /* nobody steps along an axis of 1, but its stride must be valid */
        strides[i] = dims[i + 1] == 1 ? 16 : (uint64_t)t->stride[2 - i] * 2;
    km_cu_result r = KM_CU(map_tiled, map, t->dtype == KM_F16 ? KM_CU_MAP_F16 : KM_CU_MAP_BF16, 4,
                           km_tensor_ptr(t), dims, strides, box, steps, 0, KM_CU_SWIZZLE_128,
                           KM_CU_PROMOTE_256, 0);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "describing a tensor for the copy engine");
}

/* ---- Launches ---- */

static km_status run_pass(km_lane *lane, family f, int p, int slot,
                          km_attention_hopper_args *args) {
    km_attention_args *a = &args->a;
    int size = size_of(f, a->d), d = a->d;
    int rows = p == DKDV ? a->tk : a->tq, heads = p == DKDV ? a->kv_heads : a->heads;
    km_cuda_kernel *k = &kernels[f][p][size][slot];
    if (f == HOPPER) {
        int64_t units =
            (int64_t)KM_ATTENTION_HOPPER_UNITS((int64_t)rows, heads, a->batch, a->causal);
        int sms = km_cuda_dev_of(lane)->sms;
        return km_cuda_launch1(lane, k, KM_DIM(units < sms ? units : sms),
                               KM_DIM(KM_ATTENTION_HOPPER_THREADS), KM_ATTENTION_HOPPER_SMEM(p, d),
                               args);
    }
    if (f == MMA)
        return km_cuda_launch1(
            lane, k, KM_DIM(km_ceil_div(rows, KM_ATTENTION_MMA_ROWS), heads, a->batch),
            KM_DIM(p == FWD ? KM_ATTENTION_MMA_FWD_THREADS : KM_ATTENTION_MMA_BWD_THREADS),
            p == FWD ? KM_ATTENTION_MMA_FWD_SMEM(d) : KM_ATTENTION_MMA_BWD_SMEM(d), a);
    int dmax = sizes[SIMPLE][size], tile = KM_ATTENTION_SIMPLE_TILE(dmax);
    return km_cuda_launch1(lane, k, KM_DIM(km_ceil_div(rows, tile), heads, a->batch),
                           KM_DIM(KM_ATTENTION_SIMPLE_THREADS),
                           KM_ATTENTION_SIMPLE_SMEM(dmax, d, p == FWD ? 2 : 4), a);
}

static km_status attention(km_ctx *ctx, const km_call *c) {
    km_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *o = c->out[0], *lse = c->out[1];
    km_lane *lane = km_cuda_lane(c);
    km_attention_hopper_args args = {0};
    if (!describe(&args.a, c, q, k)) return KM_ERR_UNSUPPORTED;
    args.a.q = view(q), args.a.k = view(k), args.a.v = view(v), args.a.o = view(o);
    args.a.lse = view(lse);

    km_tensor *all[] = {q, k, v, o};
    family f = choose(km_cuda_dev_of(lane), c, all, 4);
    km_status s = KM_OK;
    if (f == HOPPER) {
        km_tensor_map *maps[] = {&args.q, &args.k, &args.v, &args.o};
        for (int i = 0; i < 4 && s == KM_OK; i++) s = make_map(lane, maps[i], all[i]);
    }
    return s == KM_OK ? run_pass(lane, f, FWD, km_cuda_slot(q->dtype), &args) : s;
}

static km_status attention_grad(km_ctx *ctx, const km_call *c) {
    km_tensor *d_o = c->in[0], *q = c->in[1], *k = c->in[2], *v = c->in[3], *o = c->in[4];
    km_tensor *dq = c->out[0], *dk = c->out[1], *dv = c->out[2];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(q->dtype);
    km_attention_hopper_args args = {0};
    km_attention_args *a = &args.a;
    if (!describe(a, c, q, k)) return KM_ERR_UNSUPPORTED;
    a->q = view(q), a->k = view(k), a->v = view(v), a->o = view(o), a->d_o = view(d_o);
    a->dq = view(dq), a->dk = view(dk), a->dv = view(dv), a->lse = view(c->in[5]);
    a->vec = a->d % 8 == 0 && rows_fit(o, false) && rows_fit(d_o, false);

    km_tensor *all[] = {q, k, v, o, d_o, dq, dk, dv};
    family f = choose(km_cuda_dev_of(lane), c, all, 8);
    int dmax = sizes[SIMPLE][size_of(SIMPLE, a->d)];
    if (f == SIMPLE &&
        (size_t)KM_ATTENTION_SIMPLE_SMEM(dmax, a->d, 4) > km_cuda_dev_of(lane)->shared_max)
        return KM_ERR_UNSUPPORTED; /* nor do these tiles fit */
    km_status s = KM_OK;
    if (f == HOPPER) {
        km_tensor_map *maps[] = {&args.q,   &args.k,  &args.v,  &args.o,
                                 &args.d_o, &args.dq, &args.dk, &args.dv};
        for (int i = 0; i < 8 && s == KM_OK; i++) s = make_map(lane, maps[i], all[i]);
    }

    size_t cap = 0, rows = (size_t)a->batch * (size_t)a->heads * (size_t)a->tq_pad;
    if (s == KM_OK && rows > 0) {
        a->work = km_cuda_scratch(lane, 2 * rows * sizeof(float), &cap);
        if (!a->work) return lane->ctx->error.code;
    }
    if (s == KM_OK && f != HOPPER) /* whose dq does this too */
        s = km_cuda_launch1(lane, &delta[slot],
                            KM_DIM(a->tq_pad / KM_ATTENTION_DELTA_ROWS, a->heads, a->batch),
                            KM_DIM(KM_ATTENTION_DELTA_THREADS), 0, a);
    if (s == KM_OK) s = run_pass(lane, f, DQ, slot, &args);
    if (s == KM_OK) s = run_pass(lane, f, DKDV, slot, &args);
    if (a->work) km_cuda_scratch_free(lane, a->work, cap);
    return s;
}

void km_cuda_register_attention(km_kernel *table) {
    table[KM_OP_ATTENTION] = attention;
    table[KM_OP_ATTENTION_GRAD] = attention_grad;
}
