/* Who computes a product. A few vectors go to the kernels made for them; the rest to cuBLASLt
 * where it is there, in one call with bias and activation if it can, else with a kernel behind it
 * that finishes; without cuBLASLt to our own. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/cublas.h"
#include "backend/cuda/kernels/gemm/gemm_params.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static km_cuda_gemm_policy policy;
static pthread_once_t policy_once = PTHREAD_ONCE_INIT;

static bool is_on(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

static void read_policy(void) {
    const char *cublas = getenv("KERMES_CUBLAS");
    policy = (km_cuda_gemm_policy){.cublas = !cublas || strcmp(cublas, "none") != 0,
                                   .tf32 = is_on("KERMES_TF32"),
                                   .tune = is_on("KERMES_TUNE"),
                                   .wgmma = true,
                                   .few_f32 = 8,
                                   .few_16 = 4};
}

km_cuda_gemm_policy *km_cuda_gemm_settings(void) {
    pthread_once(&policy_once, read_policy);
    return &policy;
}

void km_cuda_gemm_matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                         bool *turned, int64_t *ld) {
    bool by_rows = (col_stride == 1 || cols <= 1) && (row_stride >= cols || rows <= 1);
    int64_t length = by_rows ? cols : rows, count = by_rows ? rows : cols;
    *turned = !by_rows;
    *ld = by_rows ? row_stride : col_stride;
    if (count <= 1) *ld = (length + 7) / 8 * 8;
    if (*ld < 1) *ld = 8;
}

#define ONE(name_)                                                                                 \
    { .module = "gemm_helpers", .name = name_, .waits = true }

km_status km_cuda_gemm_finish(km_lane *lane, const km_cuda_gemm *g, const void *src) {
    static km_cuda_kernel kernels[] = {ONE("gemm_finish_f32"), ONE("gemm_finish_f16"),
                                       ONE("gemm_finish_bf16")};
    if (g->dtype == KM_F64 || g->batch != 1 || g->m > INT32_MAX || g->n > INT32_MAX)
        return KM_ERR_UNSUPPORTED;
    size_t four = 4 * km_dtype_size(g->dtype);
    km_gemm_args args = {.a = src,
                         .out = g->out,
                         .pre = g->pre,
                         .bias = g->bias,
                         .ldo = g->ldo,
                         .alpha = 1,
                         .m = (int32_t)g->m,
                         .n = (int32_t)g->n,
                         .batch = 1,
                         .act = (int32_t)g->act};
    if (km_cuda_gemm_aligned(g->out, g->ldo, 0, four / 4, four) && (uintptr_t)src % four == 0 &&
        (uintptr_t)g->pre % four == 0)
        args.vec |= KM_GEMM_VEC_OUT;
    if ((uintptr_t)g->bias % four == 0) args.vec |= KM_GEMM_VEC_BIAS;
    /* Wide enough for a row, or 256 columns of four; as many rows of blocks as keep it busy. */
    int64_t chunks = (g->n + 3) / 4, wide = 8, most = (int64_t)km_cuda_dev_of(lane)->sms * 16;
    while (wide < KM_ACT_THREADS && wide < chunks) wide *= 2;
    int64_t high = KM_ACT_THREADS / wide, across = (chunks + wide - 1) / wide;
    int64_t down = (g->m + 4 * high - 1) / (4 * high);
    if (down > most / across) down = most / across;
    if (down > 65535) down = 65535;
    return km_cuda_launch1(lane,
                           &kernels[g->dtype == KM_F32   ? 0
                                    : g->dtype == KM_F16 ? 1
                                                         : 2],
                           KM_DIM(across, down > 0 ? down : 1), KM_DIM(wide, high), 0, &args);
}

/* cuBLASLt with as much of the rest as it takes along; a kernel behind it does what is left, from
 * pre to out where there is a pre. */
static km_status by_cublas(km_lane *lane, const km_cuda_gemm *g) {
    km_status s = km_cublas_gemm(lane, g);
    if (s != KM_ERR_UNSUPPORTED || g->batch != 1 || g->dtype == KM_F64) return s;
    km_cuda_gemm plain = *g, rest = *g;
    plain.act = KM_ACT_NONE;
    plain.pre = NULL;
    if (g->pre && g->beta == 0) plain.out = g->pre;
    rest.bias = NULL;
    if (plain.out == g->pre) rest.pre = NULL;
    if (g->act != KM_ACT_NONE || g->pre) s = km_cublas_gemm(lane, &plain);
    if (s == KM_ERR_UNSUPPORTED && g->bias) {
        plain.bias = NULL;
        rest.bias = g->bias;
        rest.pre = g->pre;
        s = km_cublas_gemm(lane, &plain);
    }
    return s == KM_OK ? km_cuda_gemm_finish(lane, &rest, plain.out) : s;
}

km_status km_cuda_gemm_run(km_lane *lane, const km_cuda_gemm *g) {
    if (g->m == 0 || g->n == 0 || g->batch == 0) return KM_OK;
    km_status s = km_cuda_gemm_few(lane, g);
    if (s == KM_ERR_UNSUPPORTED && g->k > 0 && km_cuda_gemm_settings()->cublas)
        s = by_cublas(lane, g);
    if (s == KM_ERR_UNSUPPORTED) s = km_cuda_gemm_own(lane, g);
    return s;
}
