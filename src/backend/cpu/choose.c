/* Ops that choose among elements without looking at their value: where, masked_fill, triu and
 * tril. Elements move bit for bit, so only their size matters. */
#include "backend/cpu/cast.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/walk.h"

typedef struct choose_job {
    size_t size;
    int64_t so, sc, sa, sb;             /* strides of out, the condition and the two choices */
    _Alignas(8) unsigned char value[8]; /* masked_fill's, in out's dtype */
} choose_job;

#define CHOOSE(T)                                                                                  \
    static void choose_##T(const choose_job *j, T *out, const uint8_t *c, const T *a, const T *b,  \
                           int64_t n) {                                                            \
        int64_t so = j->so, sc = j->sc, sa = j->sa, sb = j->sb;                                    \
        if (so == 1 && sc == 1 && sa == 1 && sb == 1)                                              \
            for (int64_t i = 0; i < n; i++) out[i] = c[i] ? a[i] : b[i];                           \
        else if (so == 1 && sc == 1 && sa == 0 && sb == 1)                                         \
            for (int64_t i = 0; i < n; i++) out[i] = c[i] ? *a : b[i];                             \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) out[i * so] = c[i * sc] ? a[i * sa] : b[i * sb];       \
    }
CHOOSE(uint8_t)
CHOOSE(uint16_t)
CHOOSE(uint32_t)
CHOOSE(uint64_t)

static void choose(const choose_job *j, void *out, const void *c, const void *a, const void *b,
                   int64_t n) {
    switch (j->size) {
    case 1: choose_uint8_t(j, out, c, a, b, n); break;
    case 2: choose_uint16_t(j, out, c, a, b, n); break;
    case 4: choose_uint32_t(j, out, c, a, b, n); break;
    default: choose_uint64_t(j, out, c, a, b, n); break;
    }
}

static void where_run(void *arg, char *const *ptr, int64_t n) {
    choose(arg, ptr[0], ptr[1], ptr[2], ptr[3], n);
}

km_status km_cpu_where(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *cond = c->in[0], *a = c->in[1], *b = c->in[2];
    if (cond->dtype != KM_BOOL || a->dtype != out->dtype || b->dtype != out->dtype)
        return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 4, (const km_tensor *[]){out, cond, a, b});
    int last = it.ndim - 1;
    choose_job j = {.size = it.size[0],
                    .so = it.stride[0][last],
                    .sc = it.stride[1][last],
                    .sa = it.stride[2][last],
                    .sb = it.stride[3][last]};
    km_cpu_walk(ctx, &it, 4, where_run, &j);
    return KM_OK;
}

static void masked_run(void *arg, char *const *ptr, int64_t n) {
    const choose_job *j = arg;
    choose(j, ptr[0], ptr[1], j->value, ptr[2], n);
}

km_status km_cpu_masked_fill(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *x = c->in[0], *mask = c->in[1];
    if (mask->dtype != KM_BOOL || x->dtype != out->dtype) return KM_ERR_UNSUPPORTED;
    km_iter it;
    km_iter_init(&it, 3, (const km_tensor *[]){out, mask, x});
    int last = it.ndim - 1;
    choose_job j = {.size = it.size[0],
                    .so = it.stride[0][last],
                    .sc = it.stride[1][last],
                    .sa = 0,
                    .sb = it.stride[2][last]};
    km_cast_doubles(out->dtype, j.value, 1, &c->p->f[KM_F_VALUE], 1);
    km_cpu_walk(ctx, &it, 4, masked_run, &j);
    return KM_OK;
}

/* ---- Triangles ---- */

typedef struct triangle_job {
    const char *x;
    char *out;
    int64_t rows, cols, diagonal;
    size_t size;
    bool upper;
} triangle_job;

static int64_t between(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

static void triangle_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const triangle_job *j = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        /* Columns [from, to) are kept: c - i >= d, or c - i <= d. */
        int64_t i = r % j->rows;
        int64_t from = j->upper ? between(i + j->diagonal, 0, j->cols) : 0;
        int64_t to = j->upper ? j->cols : between(i + j->diagonal + 1, 0, j->cols);
        size_t row = (size_t)(r * j->cols) * j->size;
        size_t head = (size_t)from * j->size, kept = (size_t)(to - from) * j->size;
        memset(j->out + row, 0, head);
        if (j->out != j->x) memcpy(j->out + row + head, j->x + row + head, kept);
        memset(j->out + row + head + kept, 0, (size_t)(j->cols - to) * j->size);
    }
}

km_status km_cpu_triangle(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    if (!km_is_contiguous(x) || !km_is_contiguous(out)) return KM_ERR_UNSUPPORTED;
    int64_t count = km_shape_count(out->shape);
    if (count == 0) return KM_OK;
    int nd = x->shape.ndim;
    int64_t rows = x->shape.dim[nd - 2], cols = x->shape.dim[nd - 1];
    triangle_job j = {
        .x = km_tensor_ptr(x),
        .out = km_tensor_ptr(out),
        .rows = rows,
        .cols = cols,
        .diagonal = between(c->p->n[KM_N_DIAGONAL], -rows, cols), /* beyond these nothing changes */
        .size = km_dtype_size(x->dtype),
        .upper = c->op == KM_OP_TRIU,
    };
    km_threads_for(ctx->threads, count / cols, km_cpu_grain(ctx, count / cols, cols * 2),
                   triangle_rows, &j);
    return KM_OK;
}
