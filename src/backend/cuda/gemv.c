/* Products with only a few vectors on one side: the matrix on the other is read once, at the speed
 * of memory. Vectors are rows of a, or columns of b when out is narrow; the matrix is then taken
 * as rows or as columns, whichever way it lies. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels/gemm/gemm_params.h"

/* By dtype, alignment and the number of vectors: 1, 2, 4, 8. */
#define ONE(name_)                                                                                 \
    { .module = "gemv", .name = "gemv_" name_, .waits = true }
#define FEW(kind)                                                                                  \
    {                                                                                              \
        {ONE(kind "_1"), ONE(kind "_2"), ONE(kind "_4"), ONE(kind "_8")},                          \
            {ONE(kind "_scalar_1"), ONE(kind "_scalar_2"), ONE(kind "_scalar_4"),                  \
             ONE(kind "_scalar_8")},                                                               \
    }

typedef struct few {
    km_gemv_args args;
    km_dtype dtype;
    int64_t batch;
    bool by_rows; /* w is (n, k) */
} few;

/* The vectors of x against w; false when this is no such product. */
static bool describe(const km_cuda_gemm *g, few *f) {
    const km_cuda_gemm_policy *policy = km_cuda_gemm_settings();
    int64_t most = g->dtype == KM_F32 ? policy->few_f32 : policy->few_16;
    bool rows_of_a = g->m <= most, cols_of_b = g->n <= most && !g->bias && !g->pre;
    if (g->dtype != KM_F32 && g->dtype != KM_F16 && g->dtype != KM_BF16) return false;
    if ((!rows_of_a && !cols_of_b) || g->m > INT32_MAX || g->n > INT32_MAX ||
        g->k > INT32_MAX / 2 || g->batch > 65535)
        return false;
    *f = (few){.dtype = g->dtype, .batch = g->batch};
    f->args = (km_gemv_args){.out = g->out,
                             .pre = g->pre,
                             .bias = g->bias,
                             .batch_o = g->batch_o,
                             .alpha = (float)g->alpha,
                             .beta = (float)g->beta,
                             .k = (int32_t)g->k,
                             .act = (int32_t)g->act,
                             .parts = 1};
    km_gemv_args *v = &f->args;
    if (rows_of_a) {
        v->x = g->a, v->batch_x = g->batch_a, v->m = (int32_t)g->m;
        v->x_vector = g->turn_a ? 1 : g->lda, v->x_k = g->turn_a ? g->lda : 1;
        v->w = g->b, v->batch_w = g->batch_b, v->n = (int32_t)g->n, v->ldw = g->ldb;
        v->out_vector = g->ldo, v->out_row = 1;
        f->by_rows = g->turn_b;
    } else {
        v->x = g->b, v->batch_x = g->batch_b, v->m = (int32_t)g->n;
        v->x_vector = g->turn_b ? g->ldb : 1, v->x_k = g->turn_b ? 1 : g->ldb;
        v->w = g->a, v->batch_w = g->batch_a, v->n = (int32_t)g->m, v->ldw = g->lda;
        v->out_vector = 1, v->out_row = g->ldo;
        f->by_rows = !g->turn_a;
    }
    /* One column of a matrix in columns is one of w's rows, whichever way it is told. */
    if (v->n == 1 && !f->by_rows && v->ldw == 1) f->by_rows = true;
    return !f->by_rows || v->x_k == 1 || v->k <= 1;
}

static int kind_of(km_dtype d) { return d == KM_F32 ? 0 : d == KM_F16 ? 1 : 2; }
static int count_of(int32_t m) { return m <= 1 ? 0 : m <= 2 ? 1 : m <= 4 ? 2 : 3; }

static km_status run_rows(km_lane *lane, few *f) {
    static km_cuda_kernel kernels[3][2][4] = {FEW("rows_f32"), FEW("rows_f16"), FEW("rows_bf16")};
    km_gemv_args *v = &f->args;
    size_t size = km_dtype_size(f->dtype);
    int64_t batched = f->batch > 1;
    bool vec =
        km_cuda_gemm_aligned(v->w, v->n > 1 ? v->ldw : 0, batched * v->batch_w, size, 16) &&
        km_cuda_gemm_aligned(v->x, v->m > 1 ? v->x_vector : 0, batched * v->batch_x, size, 16);
    /* Warps share a row while the chip has room for more and each still has two loads to make. */
    int64_t warps = ((int64_t)v->n + KM_GEMV_ROWS_EACH - 1) / KM_GEMV_ROWS_EACH * f->batch;
    int64_t loads = v->k / (32 * (vec ? (int64_t)(16 / size) : 1));
    int sms = km_cuda_dev_of(lane)->sms;
    while (v->parts < 8 && warps * v->parts < 16 * (int64_t)sms && loads / v->parts >= 4)
        v->parts *= 2;
    int64_t each = KM_GEMV_ROWS_EACH * (KM_GEMV_ROWS_THREADS / 32) / v->parts;
    return km_cuda_launch1(lane, &kernels[kind_of(f->dtype)][!vec][count_of(v->m)],
                           KM_DIM((v->n + each - 1) / each, f->batch), KM_DIM(KM_GEMV_ROWS_THREADS),
                           0, v);
}

/* Which of eight rounds stay in L2 when a matrix of `bytes` is read, a bit each: about two fifths of L2, so that
 * others find room there too. One that fits stays without, and of a very large one little could. */
static int32_t rounds_that_stay(double bytes, double l2) {
    static const uint8_t spread[] = {0, 0x01, 0x11, 0x25, 0x55, 0x5b};
    if (bytes <= 0.6 * l2) return 0;
    int n = (int)(8 * 0.4 * l2 / bytes + 0.5);
    return spread[n < 5 ? n : 5];
}

/* One vector on Hopper: large blocks that share columns only where there are fewer blocks than
 * multiprocessors. */
static km_status run_tall(km_lane *lane, few *f) {
    static km_cuda_kernel kernels[3] = {ONE("tall_f32"), ONE("tall_f16"), ONE("tall_bf16")};
    static km_cuda_kernel stay = ONE("stay_f32");
    km_gemv_args *v = &f->args;
    size_t size = km_dtype_size(f->dtype);
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    if (v->m != 1 || dev->cc < 90 || !km_cuda_api()->launch_ex ||
        !km_cuda_gemm_aligned(v->w, v->ldw, f->batch > 1 ? v->batch_w : 0, size, 16) ||
        (size_t)v->n * size % 16 != 0)
        return KM_ERR_UNSUPPORTED;
    int64_t cols = KM_GEMV_COLUMNS_BYTES / (int64_t)size, blocks = (v->n + cols - 1) / cols;
    int64_t parts = 1;
    while (parts < 8 && blocks * f->batch * parts * 2 <= (int64_t)dev->sms &&
           v->k / (parts * 2) >= 256)
        parts *= 2;
    v->parts = (int32_t)parts;
    v->clustered = parts > 1;
    v->late = parts > 1 ? 4 : 12; /* measured on an H200, as is `ahead` */
    v->ahead = parts > 1 ? 64 : 128;
    v->stay =
        rounds_that_stay((double)v->n * v->k * (double)(f->batch * (int64_t)size), (double)dev->l2);
    /* Rows that are no whole lines are better read by rings (6000 x 6000: 38 us, and 41). */
    bool stays = f->dtype == KM_F32 && (size_t)v->ldw * size % KM_GEMV_COLUMNS_BYTES == 0;
    km_launch_options options = {.cluster = {v->clustered ? 1 : 0, (unsigned)parts, 1}};
    void *params[] = {v};
    return km_cuda_launch_with(lane, stays ? &stay : &kernels[kind_of(f->dtype)],
                               KM_DIM(blocks, parts, f->batch), KM_DIM(KM_TALL_THREADS),
                               stays ? 0 : KM_TALL_SHARED, params, &options);
}

static km_status run_columns(km_lane *lane, few *f) {
    static km_cuda_kernel kernels[3][2][4] = {FEW("columns_f32"), FEW("columns_f16"),
                                              FEW("columns_bf16")};
    km_gemv_args *v = &f->args;
    size_t size = km_dtype_size(f->dtype), cap = 0;
    bool vec = km_cuda_gemm_aligned(v->w, v->ldw, f->batch > 1 ? v->batch_w : 0, size, 16) &&
               (size_t)v->n * size % 16 == 0;
    int64_t cols = vec ? KM_GEMV_COLUMNS_BYTES / (int64_t)size : KM_GEMV_COLUMNS_SCALAR;
    int64_t blocks = (v->n + cols - 1) / cols;
    /* Blocks share columns, in powers of two, while the chip has room for more and each still has
     * 64 rows to sum. A cluster of them adds up faster than they do through memory. */
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    bool cluster = dev->cc >= 90 && km_cuda_api()->launch_ex;
    int64_t parts = 1, most = cluster ? 8 : 32;
    while (parts < most && blocks * f->batch * parts * 2 <= 4 * (int64_t)dev->sms &&
           v->k / (parts * 2) >= 64)
        parts *= 2;
    if (!cluster && blocks * f->batch > KM_CUDA_COUNTERS) parts = 1;
    v->parts = (int32_t)parts;
    v->clustered = cluster && parts > 1;
    if (parts > 1 && !cluster) {
        v->partial =
            km_cuda_scratch(lane, (size_t)(parts * f->batch * v->m * v->n) * sizeof(float), &cap);
        v->counters = v->partial ? km_cuda_counters(lane) : NULL;
        if (!v->counters) {
            km_cuda_scratch_free(lane, v->partial, cap);
            return lane->ctx->error.code;
        }
    }
    km_launch_options options = {.cluster = {v->clustered ? 1 : 0, (unsigned)parts, 1}};
    void *params[] = {v};
    km_status s = km_cuda_launch_with(lane, &kernels[kind_of(f->dtype)][!vec][count_of(v->m)],
                                      KM_DIM(blocks, parts, f->batch),
                                      KM_DIM(KM_GEMV_COLUMNS_THREADS), 0, params, &options);
    km_cuda_scratch_free(lane, v->partial, cap);
    return s;
}

km_status km_cuda_gemm_few(km_lane *lane, const km_cuda_gemm *g) {
    few f;
    if (!describe(g, &f)) return KM_ERR_UNSUPPORTED;
    if (f.by_rows) return run_rows(lane, &f);
    km_status s = run_tall(lane, &f);
    return s == KM_ERR_UNSUPPORTED ? run_columns(lane, &f) : s;
}
