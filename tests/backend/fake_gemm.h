/* The matrix product kernels and cuBLASLt, in plain C on top of fake_cuda.h: each reads its
 * arguments the way the real one does, so that a product on the fake GPU comes out right only if
 * the host side described it right. */
#ifndef KM_TESTS_BACKEND_FAKE_GEMM_H
#define KM_TESTS_BACKEND_FAKE_GEMM_H
#include "backend/cuda/modules.h"
#define km_cuda_modules fake_few_modules
#define km_cuda_module_count fake_few_count
#include "fake_cuda.h"
#undef km_cuda_modules
#undef km_cuda_module_count

#include "backend/cuda/cublas.h"
#include "backend/cuda/kernels/gemm/gemm_params.h"
#include "backend/cuda/kernels/gemm/tensor_map.h"
#include "tensor/dtype.h"
#include <math.h>

#ifndef FAKE_MORE_MODULES /* of a test that brings kernels of its own */
#define FAKE_MORE_MODULES
#endif
const km_cuda_module km_cuda_modules[] = {{"fill", "fill", 4},
                                          {"copy", "copy", 4},
                                          {"gemm_simt", "gemm_simt", 9},
                                          {"gemm_mma", "gemm_mma", 8},
                                          {"gemv", "gemv", 4},
                                          {"gemm_helpers", "gemm_helpers", 12},
                                          {"gemm_wgmma", "gemm_wgmma", 10},
                                          FAKE_MORE_MODULES};
const int km_cuda_module_count = sizeof km_cuda_modules / sizeof *km_cuda_modules;

static struct {
    int simt, mma, wgmma, pack, finish, rows, columns, parts; /* launches; largest parts */
    int clusters;
    int misaligned; /* calls that broke a promise */
} seen;

/* ---- Elements ---- */

static double fake_at(const void *p, km_dtype d, int64_t i) {
    if (d == KM_F64) return ((const double *)p)[i];
    if (d == KM_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return d == KM_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
}
static void fake_put(void *p, km_dtype d, int64_t i, double v) {
    if (d == KM_F64)
        ((double *)p)[i] = v;
    else if (d == KM_F32)
        ((float *)p)[i] = (float)v;
    else
        ((uint16_t *)p)[i] = d == KM_F16 ? km_f32_to_f16((float)v) : km_f32_to_bf16((float)v);
}
static double fake_act(int act, double x) {
    double t = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
    switch (act) {
    case KM_ACT_RELU: return x > 0 ? x : 0;
    case KM_ACT_GELU: return 0.5 * x * (1 + tanh(t));
    case KM_ACT_GELU_ERF: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case KM_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}
static km_dtype fake_dtype(const char *name) {
    return strstr(name, "_bf16") ? KM_BF16 : strstr(name, "_f16") ? KM_F16 : KM_F32;
}
static bool fake_aligned(const void *p, int64_t ld, int64_t batch, size_t size, size_t bytes) {
    return ((uintptr_t)p | (uintptr_t)ld * size | (uintptr_t)batch * size) % bytes == 0;
}

/* ---- Kernels ---- */

static void fake_finish(const km_gemm_args *g, km_dtype d, int64_t at, int64_t col, double v) {
    v *= g->alpha;
    if (g->beta != 0) v += g->beta * fake_at(g->out, d, at);
    if (g->bias) v += fake_at(g->bias, d, col);
    if (g->pre) fake_put(g->pre, d, at, v);
    fake_put(g->out, d, at, fake_act(g->act, v));
}

/* One operand's element (x, k): through its pointer, or through the copy engine's map. */
typedef struct fake_map {
    const void *p;
    uint64_t dims[3], strides[2];
} fake_map;

static double fake_operand(const void *p, int64_t ld, int64_t batch, const fake_map *map,
                           bool turned, km_dtype d, int64_t z, int64_t x, int64_t k) {
    int64_t row = turned ? k : x, col = turned ? x : k;
    if (!map) return fake_at(p, d, z * batch + row * ld + col);
    if (!batch) z = 0;
    if ((uint64_t)row >= map->dims[1] || (uint64_t)col >= map->dims[0] ||
        (uint64_t)z >= map->dims[2])
        return 0;
    const char *at = (const char *)map->p + (uint64_t)row * map->strides[0];
    if (z) at += (uint64_t)z * map->strides[1];
    return fake_at(at, d, col);
}

static void fake_gemm(const char *name, const km_gemm_args *g, const fake_map *a,
                      const fake_map *b) {
    km_dtype d = fake_dtype(name);
    bool turn_a = strstr(name, "_tn") || strstr(name, "_tt");
    bool turn_b = strstr(name, "_nt") || strstr(name, "_tt");
    int rows = a ? 128 : strstr(name, "_large") ? 128 : 64;
    int cols = !a ? rows : strstr(name, "_256") ? 256 : 128;
    seen.misaligned +=
        g->tiles_m != (g->m + rows - 1) / rows || g->tiles_n != (g->n + cols - 1) / cols;
    if (d != KM_F32 && g->k > 0) /* what cp.async and the copy engine need */
        seen.misaligned += !fake_aligned(g->a, g->lda, g->batch > 1 ? g->batch_a : 0, 2, 16) ||
                           !fake_aligned(g->b, g->ldb, g->batch > 1 ? g->batch_b : 0, 2, 16);
    if (g->vec & KM_GEMM_VEC_OUT)
        seen.misaligned += !fake_aligned(g->out, g->ldo, g->batch > 1 ? g->batch_o : 0,
                                         km_dtype_size(d), 4 * km_dtype_size(d));
    for (int64_t z = 0; z < g->batch; z++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < g->k; k++)
                    sum += fake_operand(g->a, g->lda, g->batch_a, a, turn_a, d, z, i, k) *
                           fake_operand(g->b, g->ldb, g->batch_b, b, !turn_b, d, z, j, k);
                fake_finish(g, d, z * g->batch_o + i * g->ldo + j, j, sum);
            }
}

static void fake_gemv(const char *name, const km_gemv_args *g, unsigned batch) {
    km_dtype d = fake_dtype(name);
    size_t size = km_dtype_size(d);
    bool rows = strstr(name, "_rows_") != NULL;
    if (!strstr(name, "_scalar")) {
        seen.misaligned += !fake_aligned(g->w, g->n > 1 || !rows ? g->ldw : 0,
                                         batch > 1 ? g->batch_w : 0, size, 16);
        if (rows)
            seen.misaligned += !fake_aligned(g->x, g->m > 1 ? g->x_vector : 0,
                                             batch > 1 ? g->batch_x : 0, size, 16);
        else
            seen.misaligned += (size_t)g->n * size % 16 != 0;
    }
    if (rows && g->k > 1) seen.misaligned += g->x_k != 1;
    if (g->parts > seen.parts) seen.parts = g->parts;
    if (!rows && g->parts > 1 && !g->clustered) { /* its memory is there */
        memset(g->partial, 0, (size_t)g->parts * batch * (size_t)(g->m * g->n) * sizeof(float));
        for (int64_t i = 0; i < (int64_t)batch; i++) seen.misaligned += g->counters[i] != 0;
    }
    km_gemm_args end = {.out = g->out,
                        .pre = g->pre,
                        .bias = g->bias,
                        .alpha = g->alpha,
                        .beta = g->beta,
                        .act = g->act};
    for (int64_t z = 0; z < (int64_t)batch; z++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < g->k; k++)
                    sum +=
                        fake_at(g->x, d,
                                z * g->batch_x + i * g->x_vector + k * (rows ? 1 : g->x_k)) *
                        fake_at(g->w, d, z * g->batch_w + (rows ? j * g->ldw + k : k * g->ldw + j));
                fake_finish(&end, d, z * g->batch_o + i * g->out_vector + j * g->out_row, j, sum);
            }
}

static km_cu_result fake_gemm_launch(km_cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                     unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                     km_cu_stream stream, void **params, void **extra) {
    const char *name = (const char *)(uintptr_t)f;
    if (strncmp(name, "gemm_simt", 9) == 0) {
        seen.simt++;
        fake_gemm(name, params[0], NULL, NULL);
    } else if (strncmp(name, "gemm_mma", 8) == 0) {
        seen.mma++;
        fake_gemm(name, params[0], NULL, NULL);
    } else if (strncmp(name, "gemm_wgmma", 10) == 0) {
        seen.wgmma++;
        fake_gemm(name, params[2], params[0], params[1]);
    } else if (strcmp(name, "gemm_pack") == 0) {
        const km_gemm_pack_args *p = params[0];
        seen.pack++;
        for (int64_t z = 0; z < p->batch; z++)
            for (int64_t i = 0; i < p->rows; i++)
                for (int64_t j = 0; j < p->ld_out; j++)
                    ((uint16_t *)p->dst)[z * p->batch_dst + i * p->ld_out + j] =
                        j < p->cols ? ((const uint16_t *)p->src)[z * p->batch_src + i * p->ld + j]
                                    : 0;
    } else if (strncmp(name, "gemm_finish", 11) == 0) {
        const km_gemm_args *g = params[0];
        seen.finish++;
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++)
                fake_finish(g, fake_dtype(name), i * g->ldo + j, j,
                            fake_at(g->a, fake_dtype(name), i * g->ldo + j));
    } else if (strncmp(name, "gemv_rows", 9) == 0) {
        seen.rows++;
        fake_gemv(name, params[0], gy);
    } else if (strncmp(name, "gemv_columns", 12) == 0 || strncmp(name, "gemv_tall", 9) == 0) {
        seen.columns++;
        fake_gemv(name, params[0], gz);
    } else {
        return fake_launch_kernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
    }
    fake.launches++;
    return KM_CU_OK;
}

static km_cu_result fake_map_tiled(struct km_tensor_map *map, int type, uint32_t rank,
                                   void *address, const uint64_t *dims, const uint64_t *strides,
                                   const uint32_t *box, const uint32_t *steps, int interleave,
                                   int swizzle, int promotion, int fill) {
    fake_map m = {address, {dims[0], dims[1], dims[2]}, {strides[0], strides[1]}};
    _Static_assert(sizeof m <= sizeof *map, "fits");
    if (rank != 3 || (uintptr_t)address % 16 || strides[0] % 16 || strides[1] % 16 ||
        box[0] != 64 || box[1] > 256 || !dims[0] || !dims[1] || !dims[2])
        return KM_CU_INVALID_VALUE;
    memcpy(map, &m, sizeof m);
    return KM_CU_OK;
}

/* As much as a Hopper block can have. */
static km_cu_result fake_allow_shared(km_cu_function f, int attr, int value) {
    return value > 227 << 10 ? KM_CU_INVALID_VALUE : KM_CU_OK;
}

static km_cu_result fake_gemm_launch_ex(const km_cu_launch_config *c, km_cu_function f,
                                        void **params, void **extra) {
    for (unsigned i = 0; i < c->n_attrs; i++)
        if (c->attrs[i].id == KM_CU_LAUNCH_CLUSTER) {
            const unsigned *size = c->attrs[i].value.cluster;
            seen.clusters++;
            seen.misaligned += size[0] * size[1] * size[2] > 8 || c->grid[0] % size[0] ||
                               c->grid[1] % size[1] || c->grid[2] % size[2];
        }
    return fake_gemm_launch(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                            c->block[2], c->shared, c->stream, params, extra);
}

static bool fake_has_maps = true, fake_has_launch_ex = true;
static void *fake_gemm_symbol(const char *symbol) {
    void *p = NULL;
    km_cu_result (*launch)(km_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, unsigned, km_cu_stream, void **, void **) = fake_gemm_launch;
    km_cu_result (*map)(struct km_tensor_map *, int, uint32_t, void *, const uint64_t *,
                        const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int) =
        fake_map_tiled;
    km_cu_result (*allow)(km_cu_function, int, int) = fake_allow_shared;
    km_cu_result (*launch_ex)(const km_cu_launch_config *, km_cu_function, void **, void **) =
        fake_gemm_launch_ex;
    if (strcmp(symbol, "cuLaunchKernelEx") == 0)
        return fake_has_launch_ex ? (memcpy(&p, &launch_ex, sizeof p), p) : NULL;
    if (strcmp(symbol, "cuFuncSetAttribute") == 0) return memcpy(&p, &allow, sizeof p), p;
    if (strcmp(symbol, "cuLaunchKernel") == 0) return memcpy(&p, &launch, sizeof p), p;
    if (strcmp(symbol, "cuTensorMapEncodeTiled") == 0)
        return fake_has_maps ? (memcpy(&p, &map, sizeof p), p) : NULL;
    return fake_symbol(symbol);
}

/* ---- cuBLASLt ---- */

struct km_lt_desc_handle {
    int compute, turn_a, turn_b, epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};
struct km_lt_layout_handle {
    int type;
    int64_t rows, cols, ld, stride;
    int batch;
};
struct km_lt_wish_handle {
    uint32_t align[9];
};

static struct {
    int refuse;          /* epilogue bits that it has no kernel for */
    int status;          /* what a product returns */
    int asked, products; /* questions for a kernel, products */
    int out;             /* objects not yet given back */
    int last_compute, last_epilogue;
} fake_lt;

static int lt_create(km_lt_handle *h) { return *h = (km_lt_handle)&fake_lt, fake_lt.out++, 0; }
static int lt_destroy(km_lt_handle h) { return fake_lt.out--, 0; }
static int lt_desc_create(km_lt_desc *d, int compute, int scale) {
    *d = calloc(1, sizeof **d);
    (*d)->compute = compute;
    (*d)->epilogue = KM_LT_PLAIN;
    return fake_lt.out++, 0;
}
static int lt_desc_destroy(km_lt_desc d) { return free(d), fake_lt.out--, 0; }
static int lt_desc_set(km_lt_desc d, int attr, const void *value, size_t size) {
    void *to = attr == KM_LT_TURN_A     ? (void *)&d->turn_a
               : attr == KM_LT_TURN_B   ? (void *)&d->turn_b
               : attr == KM_LT_EPILOGUE ? (void *)&d->epilogue
               : attr == KM_LT_BIAS     ? (void *)&d->bias
               : attr == KM_LT_AUX      ? (void *)&d->aux
               : attr == KM_LT_AUX_LD   ? (void *)&d->aux_ld
                                        : NULL;
    if (!to) return KM_LT_INVALID;
    memcpy(to, value, size);
    return 0;
}
static int lt_layout_create(km_lt_layout *l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < (int64_t)rows) return KM_LT_INVALID;
    *l = calloc(1, sizeof **l);
    **l = (struct km_lt_layout_handle){type, (int64_t)rows, (int64_t)cols, ld, 0, 1};
    return fake_lt.out++, 0;
}
static int lt_layout_destroy(km_lt_layout l) { return free(l), fake_lt.out--, 0; }
static int lt_layout_set(km_lt_layout l, int attr, const void *value, size_t size) {
    memcpy(attr == KM_LT_BATCH ? (void *)&l->batch : (void *)&l->stride, value, size);
    return 0;
}
static int lt_wish_create(km_lt_wish *w) { return *w = calloc(1, sizeof **w), fake_lt.out++, 0; }
static int lt_wish_destroy(km_lt_wish w) { return free(w), fake_lt.out--, 0; }
static int lt_wish_set(km_lt_wish w, int attr, const void *value, size_t size) {
    if (attr >= KM_LT_ALIGN_A && attr <= KM_LT_ALIGN_D) memcpy(&w->align[attr], value, size);
    return 0;
}
static int lt_find(km_lt_handle h, km_lt_desc d, km_lt_layout a, km_lt_layout b, km_lt_layout c,
                   km_lt_layout o, km_lt_wish w, int asked, km_lt_found *found, int *count) {
    fake_lt.asked++;
    *count = 0;
    if (d->epilogue & fake_lt.refuse) return KM_LT_UNSUPPORTED;
    for (int i = 0; i < asked && i < 2; i++) {
        memset(&found[i], 0, sizeof found[i]);
        memcpy(found[i].algo.data, w->align, sizeof w->align);
        found[i].workspace = 4096;
        ++*count;
    }
    return 0;
}
static int lt_matmul(km_lt_handle h, km_lt_desc p, const void *alpha, const void *a,
                     km_lt_layout la, const void *b, km_lt_layout lb, const void *beta,
                     const void *c, km_lt_layout lc, void *o, km_lt_layout lo,
                     const km_lt_algo *algo, void *workspace, size_t bytes, km_cu_stream stream) {
    km_dtype d = la->type == KM_LT_F32   ? KM_F32
                 : la->type == KM_LT_F16 ? KM_F16
                 : la->type == KM_LT_F64 ? KM_F64
                                         : KM_BF16;
    uint32_t align[9];
    if (fake_lt.status) return fake_lt.status;
    memcpy(align, algo->data, sizeof align);
    seen.misaligned += (uintptr_t)a % align[KM_LT_ALIGN_A] || (uintptr_t)b % align[KM_LT_ALIGN_B] ||
                       (uintptr_t)o % align[KM_LT_ALIGN_D] || bytes != 4096;
    memset(workspace, 0xee, bytes);
    fake_lt.products++;
    fake_lt.last_compute = p->compute;
    fake_lt.last_epilogue = p->epilogue;
    double al = d == KM_F64 ? *(const double *)alpha : *(const float *)alpha;
    double be = d == KM_F64 ? *(const double *)beta : *(const float *)beta;
    int64_t depth = p->turn_a ? la->rows : la->cols;
    for (int64_t z = 0; z < lo->batch; z++)
        for (int64_t j = 0; j < lo->cols; j++)
            for (int64_t i = 0; i < lo->rows; i++) {
                double v = 0;
                for (int64_t k = 0; k < depth; k++)
                    v += fake_at(a, d,
                                 z * la->stride + (p->turn_a ? i * la->ld + k : k * la->ld + i)) *
                         fake_at(b, d,
                                 z * lb->stride + (p->turn_b ? k * lb->ld + j : j * lb->ld + k));
                v *= al;
                if (be != 0) v += be * fake_at(c, d, z * lc->stride + j * lc->ld + i);
                if (p->epilogue & KM_LT_ADD_BIAS) v += fake_at(p->bias, d, i);
                if (p->epilogue & KM_LT_KEEP) fake_put(p->aux, d, j * p->aux_ld + i, v);
                v = fake_act(p->epilogue & KM_LT_RELU   ? KM_ACT_RELU
                             : p->epilogue & KM_LT_GELU ? KM_ACT_GELU
                                                        : KM_ACT_NONE,
                             v);
                fake_put(o, d, z * lo->stride + j * lo->ld + i, v);
            }
    return 0;
}

static void *fake_lt_symbol(const char *symbol) {
    void *p = NULL;
#define FIND(name, known, params)                                                                  \
    if (strcmp(symbol, known) == 0) {                                                              \
        int(*f) params = lt_##name;                                                                \
        memcpy(&p, &f, sizeof p);                                                                  \
    }
    KM_LT_NEEDED(FIND)
#undef FIND
    return p;
}
static void *fake_no_symbol(const char *symbol) { return NULL; }

/* ---- For each test ---- */

static inline int fake_gemm_open(void **state) {
    fake_open(state);
    memset(&seen, 0, sizeof seen);
    memset(&fake_lt, 0, sizeof fake_lt);
    fake_has_maps = fake_has_launch_ex = true;
    km_cuda_use_symbols(fake_gemm_symbol);
    km_cublas_use_symbols(fake_lt_symbol);
    *km_cuda_gemm_settings() =
        (km_cuda_gemm_policy){.cublas = true, .wgmma = true, .few_f32 = 8, .few_16 = 4};
    return 0;
}
static inline int fake_gemm_close(void **state) {
    km_cublas_use_symbols(fake_no_symbol);
    if (fake_lt.out) print_error("left behind: %d objects of cuBLASLt\n", fake_lt.out);
    if (seen.misaligned) print_error("%d promises broken\n", seen.misaligned);
    return fake_close(state) || fake_lt.out || seen.misaligned ? -1 : 0;
}
#define FAKE_GEMM(test) cmocka_unit_test_setup_teardown(test, fake_gemm_open, fake_gemm_close)

#endif
