/* Our own matrix products, for machines without cuBLAS: f32 without tensor cores, f16 and bf16 on
 * those of any chip from sm_80 on, with a path of its own for Hopper's. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels/gemm/gemm_params.h"
#include "backend/cuda/kernels/gemm/tensor_map.h"
#include "backend/cuda/modules.h"

/* By transposes: 2 * turn_a + turn_b. Kernels that come in a block to each multiprocessor may start
 * early; with smaller ones the early blocks would crowd on some and leave others idle. */
#define ONE(module_, name_, early)                                                                 \
    { .module = module_, .name = name_, .waits = early }
#define TURNS(module, prefix, suffix, early)                                                       \
    {                                                                                              \
        ONE(module, prefix "_nn" suffix, early), ONE(module, prefix "_nt" suffix, early),          \
            ONE(module, prefix "_tn" suffix, early), ONE(module, prefix "_tt" suffix, early),      \
    }

static int64_t tiles_of(const km_cuda_gemm *g, int64_t rows, int64_t cols) {
    return (g->m + rows - 1) / rows * ((g->n + cols - 1) / cols) * g->batch;
}

/* False when a size is beyond what kernels count with. */
static bool fill(const km_cuda_gemm *g, int rows, int cols, km_gemm_args *args) {
    size_t size = km_dtype_size(g->dtype), four = 4 * size;
    int64_t batch = g->batch > 1;
    if (g->m > INT32_MAX - 256 || g->n > INT32_MAX - 256 || g->k > INT32_MAX - 256 ||
        g->batch > INT32_MAX || tiles_of(g, rows, cols) > INT32_MAX)
        return false;
    *args = (km_gemm_args){.a = g->a,
                           .b = g->b,
                           .out = g->out,
                           .pre = g->pre,
                           .bias = g->bias,
                           .lda = g->lda,
                           .ldb = g->ldb,
                           .ldo = g->ldo,
                           .batch_a = g->batch_a,
                           .batch_b = g->batch_b,
                           .batch_o = g->batch_o,
                           .alpha = (float)g->alpha,
                           .beta = (float)g->beta,
                           .m = (int32_t)g->m,
                           .n = (int32_t)g->n,
                           .k = (int32_t)g->k,
                           .batch = (int32_t)g->batch,
                           .act = (int32_t)g->act,
                           .tiles_m = (int32_t)((g->m + rows - 1) / rows),
                           .tiles_n = (int32_t)((g->n + cols - 1) / cols)};
    if (km_cuda_gemm_aligned(g->a, g->lda, batch * g->batch_a, size, four))
        args->vec |= KM_GEMM_VEC_A;
    if (km_cuda_gemm_aligned(g->b, g->ldb, batch * g->batch_b, size, four))
        args->vec |= KM_GEMM_VEC_B;
    if (km_cuda_gemm_aligned(g->out, g->ldo, batch * g->batch_o, size, four) &&
        (uintptr_t)g->pre % four == 0)
        args->vec |= KM_GEMM_VEC_OUT;
    if ((uintptr_t)g->bias % four == 0) args->vec |= KM_GEMM_VEC_BIAS;
    return true;
}

/* ---- f32 ---- */

static km_status simt(km_lane *lane, const km_cuda_gemm *g) {
    static km_cuda_kernel kernels[2][4] = {TURNS("gemm_simt", "gemm_simt", "_small", false),
                                           TURNS("gemm_simt", "gemm_simt", "_large", false)};
    bool large = tiles_of(g, 128, 128) >= km_cuda_dev_of(lane)->sms;
    int side = large ? 128 : 64;
    km_gemm_args args;
    if (!fill(g, side, side, &args)) return KM_ERR_UNSUPPORTED;
    return km_cuda_launch1(lane, &kernels[large][2 * g->turn_a + g->turn_b],
                           KM_DIM(tiles_of(g, side, side)), KM_DIM(KM_SIMT_THREADS), 0, &args);
}

/* ---- f16 and bf16 ---- */

/* One operand as the tensor cores' kernels need it: rows at multiples of 16 bytes. Copied to
 * scratch memory where they are not. */
typedef struct operand {
    const void *p;
    int64_t ld, batch;  /* between rows, between problems */
    int64_t rows, cols; /* as stored */
    void *scratch;
    size_t cap;
} operand;

static km_status align_operand(km_lane *lane, const km_cuda_gemm *g, operand *o) {
    static km_cuda_kernel pack = ONE("gemm_helpers", "gemm_pack", true);
    int64_t problems = o->batch ? g->batch : 1, most = (int64_t)km_cuda_dev_of(lane)->sms * 16;
    if (km_cuda_gemm_aligned(o->p, o->ld, problems > 1 ? o->batch : 0, 2, 16) || o->rows == 0 ||
        o->cols == 0)
        return KM_OK;
    int64_t ld = (o->cols + 7) / 8 * 8, each = o->rows * ld;
    o->scratch = km_cuda_scratch(lane, (size_t)(each * problems) * 2, &o->cap);
    if (!o->scratch) return lane->ctx->error.code;
    km_gemm_pack_args args = {.src = o->p,
                              .dst = o->scratch,
                              .ld = o->ld,
                              .batch_src = o->batch,
                              .batch_dst = each,
                              .rows = (int32_t)o->rows,
                              .cols = (int32_t)o->cols,
                              .ld_out = (int32_t)ld,
                              .batch = (int32_t)problems};
    int64_t blocks = (each / 8 + KM_PACK_THREADS - 1) / KM_PACK_THREADS;
    km_status s = km_cuda_launch1(
        lane, &pack, KM_DIM(blocks < most ? blocks : most, problems < 4096 ? problems : 4096),
        KM_DIM(KM_PACK_THREADS), 0, &args);
    *o = (operand){o->scratch, ld, o->batch ? each : 0, o->rows, o->cols, o->scratch, o->cap};
    return s;
}

static km_status mma(km_lane *lane, const km_cuda_gemm *g) {
    static km_cuda_kernel kernels[2][2][4] = {
        {TURNS("gemm_mma", "gemm_mma_f16", "_small", false),
         TURNS("gemm_mma", "gemm_mma_f16", "_large", false)},
        {TURNS("gemm_mma", "gemm_mma_bf16", "_small", false),
         TURNS("gemm_mma", "gemm_mma_bf16", "_large", false)}};
    bool large = tiles_of(g, 128, 128) >= km_cuda_dev_of(lane)->sms;
    int side = large ? 128 : 64;
    km_gemm_args args;
    if (!fill(g, side, side, &args)) return KM_ERR_UNSUPPORTED;
    return km_cuda_launch1(lane, &kernels[g->dtype == KM_BF16][large][2 * g->turn_a + g->turn_b],
                           KM_DIM(tiles_of(g, side, side)), KM_DIM(KM_MMA_THREADS),
                           KM_MMA_SMEM(side), &args);
}

static bool has_wgmma(const km_cuda_dev *dev) {
    if (dev->cc != 90 || !km_cuda_api()->map_tiled || !km_cuda_gemm_settings()->wgmma) return false;
    return km_cuda_has_module("gemm_wgmma");
}

/* The copy engine's view of an operand: boxes of 64 columns by `box_rows`. */
static bool make_map(km_tensor_map *map, const km_cuda_gemm *g, const operand *o, int box_rows) {
    uint64_t problems = o->batch ? (uint64_t)g->batch : 1;
    uint64_t dims[] = {(uint64_t)o->cols, (uint64_t)o->rows, problems};
    uint64_t strides[] = {(uint64_t)o->ld * 2,
                          (uint64_t)(problems > 1 ? o->batch : o->ld * o->rows) * 2};
    uint32_t box[] = {64, (uint32_t)box_rows, 1}, steps[] = {1, 1, 1};
    return KM_CU(map_tiled, map, g->dtype == KM_F16 ? KM_CU_MAP_F16 : KM_CU_MAP_BF16, 3,
                 (void *)o->p, dims, strides, box, steps, 0, KM_CU_SWIZZLE_128, KM_CU_PROMOTE_128,
                 0) == KM_CU_OK;
}

static km_status wgmma(km_lane *lane, const km_cuda_gemm *g, const operand *a, const operand *b) {
    static km_cuda_kernel kernels[2][2][4] = {
        {TURNS("gemm_wgmma", "gemm_wgmma_f16", "_128", true),
         TURNS("gemm_wgmma", "gemm_wgmma_f16", "_256", true)},
        {TURNS("gemm_wgmma", "gemm_wgmma_bf16", "_128", true),
         TURNS("gemm_wgmma", "gemm_wgmma_bf16", "_256", true)}};
    int64_t sms = km_cuda_dev_of(lane)->sms, narrow = tiles_of(g, 128, 128);
    /* Rounds of tiles, the wide ones worth 1.8 narrow ones. */
    int64_t cost_128 = (narrow + sms - 1) / sms * 10;
    int64_t cost_256 = (tiles_of(g, 128, 256) + sms - 1) / sms * 18;
    bool wide = cost_256 <= cost_128;
    int bn = wide ? 256 : 128;
    int64_t tiles = tiles_of(g, 128, bn);
    km_gemm_args args;
    km_tensor_map map_a, map_b;
    if (narrow < sms / 4) return KM_ERR_UNSUPPORTED; /* small: more and smaller tiles do better */
    if (!fill(g, 128, bn, &args) || !make_map(&map_a, g, a, g->turn_a ? 64 : 128) ||
        !make_map(&map_b, g, b, g->turn_b ? bn : 64))
        return KM_ERR_UNSUPPORTED;
    void *params[] = {&map_a, &map_b, &args};
    return km_cuda_launch(lane, &kernels[g->dtype == KM_BF16][wide][2 * g->turn_a + g->turn_b],
                          KM_DIM(tiles < sms ? tiles : sms), KM_DIM(KM_WGMMA_THREADS),
                          (unsigned)KM_WGMMA_SMEM(bn), params);
}

static km_status tensor_cores(km_lane *lane, const km_cuda_gemm *g) {
    operand a = {g->a, g->lda, g->batch_a, g->turn_a ? g->k : g->m, g->turn_a ? g->m : g->k,
                 NULL, 0};
    operand b = {g->b, g->ldb, g->batch_b, g->turn_b ? g->n : g->k, g->turn_b ? g->k : g->n,
                 NULL, 0};
    km_gemm_args probe;
    if (!fill(g, 64, 64, &probe)) return KM_ERR_UNSUPPORTED;
    km_status s = align_operand(lane, g, &a);
    if (s == KM_OK) s = align_operand(lane, g, &b);
    if (s == KM_OK) {
        km_cuda_gemm ready = *g;
        ready.a = a.p, ready.lda = a.ld, ready.batch_a = a.batch;
        ready.b = b.p, ready.ldb = b.ld, ready.batch_b = b.batch;
        s = KM_ERR_UNSUPPORTED;
        if (g->k > 0 && has_wgmma(km_cuda_dev_of(lane))) s = wgmma(lane, &ready, &a, &b);
        if (s == KM_ERR_UNSUPPORTED) s = mma(lane, &ready);
    }
    km_cuda_scratch_free(lane, a.scratch, a.cap);
    km_cuda_scratch_free(lane, b.scratch, b.cap);
    return s;
}

km_status km_cuda_gemm_own(km_lane *lane, const km_cuda_gemm *g) {
    if (g->dtype == KM_F32) return simt(lane, g);
    if (g->dtype == KM_F16 || g->dtype == KM_BF16) return tensor_cores(lane, g);
    return KM_ERR_UNSUPPORTED;
}
