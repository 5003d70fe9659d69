/* Elementwise ops on f32, f16 and bf16: dtypes and strides are looked at here, once per run of
 * elements; the arithmetic is in simd/unary.c and simd/binary.c. Integers: integers.c. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/simd/elementwise.h"
#include "backend/cpu/stage.h"
#include "backend/cpu/walk.h"
#include <math.h>

/* Whether an output is worth streaming: large, and not being read in the same pass. */
static bool streams(const km_call *c) {
    const km_tensor *out = c->out[0];
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->storage->data == out->storage->data) return false;
    return km_cpu_streams(km_shape_count(out->shape) * (int64_t)km_dtype_size(out->dtype));
}

/* What an element costs, in tenths of a nanosecond; see walk.h. */
static int cost(km_op op) {
    switch (op) {
    case KM_OP_EXP:
    case KM_OP_LOG:
    case KM_OP_TANH:
    case KM_OP_SIGMOID:
    case KM_OP_SILU:
    case KM_OP_SQRT:
    case KM_OP_RSQRT:
    case KM_OP_SIN:
    case KM_OP_COS:
    case KM_OP_SILU_GRAD: return 8;
    case KM_OP_GELU:
    case KM_OP_GELU_ERF:
    case KM_OP_GELU_GRAD:
    case KM_OP_GELU_ERF_GRAD:
    case KM_OP_POW:
    case KM_OP_POW_SCALAR: return 16;
    default: return 2;
    }
}

/* ---- Unary ---- */

typedef struct unary_job {
    km_unary_row row;
    km_dtype dtype;
    int64_t so, sx; /* strides of out and x along a run */
    float f[2];
    bool stream;
} unary_job;

static void unary_run(void *arg, char *const *ptr, int64_t n) {
    const unary_job *j = arg;
    if (j->dtype == KM_F32 && j->so == 1 && j->sx == 1) {
        j->row((float *)ptr[0], (const float *)ptr[1], n, j->f, j->stream);
        return;
    }
    float xbuf[KM_STAGE], obuf[KM_STAGE];
    int64_t size = (int64_t)km_dtype_size(j->dtype);
    for (int64_t i = 0; i < n; i += KM_STAGE) {
        int64_t m = n - i < KM_STAGE ? n - i : KM_STAGE;
        char *at = ptr[0] + i * j->so * size;
        const float *x = km_stage_in(j->dtype, ptr[1] + i * j->sx * size, j->sx, m, xbuf);
        float *out = km_stage_at(j->dtype, at, j->so, obuf);
        j->row(out, x, m, j->f, false);
        km_stage_out(j->dtype, at, j->so, m, out, j->stream);
    }
}

/* x^2 goes without logarithms. */
static void square(float *out, const float *x, int64_t n, const float *f, bool stream) {
    km_simd_binary()->both[KM_OP_MUL](out, x, x, n, f, stream);
}

static km_status unary(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *x = c->in[0];
    if (!km_stageable(x->dtype)) return km_cpu_unary_integers(ctx, c);
    km_iter it;
    km_iter_init(&it, 2, (const km_tensor *[]){out, x});
    unary_job j = {
        .row = km_simd_unary()->row[c->op],
        .dtype = x->dtype,
        .so = it.stride[0][it.ndim - 1],
        .sx = it.stride[1][it.ndim - 1],
        .f = {(float)c->p->f[KM_F_LO], (float)c->p->f[KM_F_HI]},
        .stream = streams(c),
    };
    /* What x + s leaves when most of it cancels depends on all of s, not on its nearest float. */
    if (c->op == KM_OP_ADD_SCALAR)
        j.f[1] = isfinite(j.f[0]) ? (float)(c->p->f[KM_F_VALUE] - (double)j.f[0]) : 0;
    if (c->op == KM_OP_POW_SCALAR && c->p->f[KM_F_VALUE] == 1)
        j.row = km_simd_unary()->row[KM_OP_MUL_SCALAR];
    if (c->op == KM_OP_POW_SCALAR && c->p->f[KM_F_VALUE] == 2) j.row = square;
    km_cpu_walk(ctx, &it, cost(c->op), unary_run, &j);
    return KM_OK;
}

/* ---- Binary, and gradients of unary ops ---- */

typedef struct binary_job {
    km_binary_row both, fixed_a, fixed_b;
    km_compare_row compare;
    km_dtype dtype;
    int64_t so, sa, sb;
    float f[2];
    bool stream;
} binary_job;

static void binary_run(void *arg, char *const *ptr, int64_t n) {
    const binary_job *j = arg;
    if (j->dtype == KM_F32 && j->so == 1) {
        km_binary_row row = NULL;
        if (j->sa == 1 && j->sb == 1) row = j->both;
        if (j->sa == 1 && j->sb == 0) row = j->fixed_b;
        if (j->sa == 0 && j->sb == 1) row = j->fixed_a;
        if (row) {
            row((float *)ptr[0], (const float *)ptr[1], (const float *)ptr[2], n, j->f, j->stream);
            return;
        }
    }
    float abuf[KM_STAGE], bbuf[KM_STAGE], obuf[KM_STAGE];
    int64_t size = (int64_t)km_dtype_size(j->dtype);
    for (int64_t i = 0; i < n; i += KM_STAGE) {
        int64_t m = n - i < KM_STAGE ? n - i : KM_STAGE;
        char *at = ptr[0] + i * j->so * size;
        const float *a = km_stage_in(j->dtype, ptr[1] + i * j->sa * size, j->sa, m, abuf);
        const float *b = km_stage_in(j->dtype, ptr[2] + i * j->sb * size, j->sb, m, bbuf);
        float *out = km_stage_at(j->dtype, at, j->so, obuf);
        j->both(out, a, b, m, j->f, false);
        km_stage_out(j->dtype, at, j->so, m, out, j->stream);
    }
}

/* x^2 goes without logarithms. */
static void square_or_power(float *out, const float *a, const float *b, int64_t n, const float *f,
                            bool stream) {
    const km_binary_rows *rows = km_simd_binary();
    if (*b == 2)
        rows->both[KM_OP_MUL](out, a, a, n, f, stream);
    else
        rows->fixed_b[KM_OP_POW](out, a, b, n, f, stream);
}

/* clamp_grad compares with f[0] and f[1], which need not be floats: the floats just inside. */
static void inner_bounds(const double f[], float bounds[2]) {
    bounds[0] = (float)f[0];
    bounds[1] = (float)f[1];
    if ((double)bounds[0] < f[0]) bounds[0] = nextafterf(bounds[0], INFINITY);
    if ((double)bounds[1] > f[1]) bounds[1] = nextafterf(bounds[1], -INFINITY);
}

static km_status binary(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *a = c->in[0], *b = c->in[1];
    if (!km_stageable(a->dtype)) return km_cpu_binary_integers(ctx, c);
    if (b->dtype != a->dtype || out->dtype != a->dtype) return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 3, (const km_tensor *[]){out, a, b});
    int last = it.ndim - 1;
    const km_binary_rows *rows = km_simd_binary();
    binary_job j = {
        .both = rows->both[c->op],
        .fixed_a = rows->fixed_a[c->op],
        .fixed_b = c->op == KM_OP_POW ? square_or_power : rows->fixed_b[c->op],
        .dtype = a->dtype,
        .so = it.stride[0][last],
        .sa = it.stride[1][last],
        .sb = it.stride[2][last],
        .stream = streams(c),
    };
    inner_bounds(c->p->f, j.f);
    km_cpu_walk(ctx, &it, cost(c->op), binary_run, &j);
    return KM_OK;
}

/* ---- Comparisons ---- */

static void compare_run(void *arg, char *const *ptr, int64_t n) {
    const binary_job *j = arg;
    float abuf[KM_STAGE], bbuf[KM_STAGE];
    uint8_t obuf[KM_STAGE];
    int64_t size = (int64_t)km_dtype_size(j->dtype);
    for (int64_t i = 0; i < n; i += KM_STAGE) {
        int64_t m = n - i < KM_STAGE ? n - i : KM_STAGE;
        uint8_t *at = (uint8_t *)ptr[0] + i * j->so, *out = j->so == 1 ? at : obuf;
        const float *a = km_stage_in(j->dtype, ptr[1] + i * j->sa * size, j->sa, m, abuf);
        const float *b = km_stage_in(j->dtype, ptr[2] + i * j->sb * size, j->sb, m, bbuf);
        j->compare(out, a, b, m);
        if (out != at)
            for (int64_t k = 0; k < m; k++) at[k * j->so] = out[k];
    }
}

static km_status compare(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *a = c->in[0], *b = c->in[1];
    if (!km_stageable(a->dtype)) return km_cpu_compare_integers(ctx, c);
    if (b->dtype != a->dtype || out->dtype != KM_BOOL) return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 3, (const km_tensor *[]){out, a, b});
    int last = it.ndim - 1;
    binary_job j = {.compare = km_simd_binary()->compare[c->op],
                    .dtype = a->dtype,
                    .so = it.stride[0][last],
                    .sa = it.stride[1][last],
                    .sb = it.stride[2][last]};
    km_cpu_walk(ctx, &it, 2, compare_run, &j);
    return KM_OK;
}

void km_cpu_register_elementwise(km_kernel *k) {
    const km_unary_rows *u = km_simd_unary();
    const km_binary_rows *b = km_simd_binary();
    for (int op = 0; op < KM_OP_COUNT; op++) {
        if (u->row[op]) k[op] = unary;
        if (b->both[op]) k[op] = binary;
        if (b->compare[op]) k[op] = compare;
    }
    k[KM_OP_WHERE] = km_cpu_where;
    k[KM_OP_MASKED_FILL] = km_cpu_masked_fill;
    k[KM_OP_TRIU] = k[KM_OP_TRIL] = km_cpu_triangle;
}
