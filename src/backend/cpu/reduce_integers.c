/* sum, max and argmax of integers, by plain loops. Sums wrap around. */
#include "backend/cpu/reduce.h"
#include "backend/cpu/cast.h"
#include "backend/cpu/walk.h"

typedef struct whole {
    uint64_t sum;
    int64_t max, index;
} whole;

/* n elements, `stride` apart, the first being number `at` of all. */
#define RUN(T)                                                                                     \
    static void run_##T(whole *w, const void *p, int64_t stride, int64_t n, int64_t at) {          \
        const T *x = p;                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                          \
            int64_t v = x[i * stride];                                                             \
            w->sum += (uint64_t)v;                                                                 \
            if (at + i == 0 || v > w->max) {                                                       \
                w->max = v;                                                                        \
                w->index = at + i;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }
RUN(int32_t)
RUN(int64_t)
RUN(uint8_t)
RUN(int8_t)

typedef struct reduce_integers_job {
    const km_call *c;
    const char *x;
    km_reduce_axes kept, reduced;
    void (*run)(whole *w, const void *p, int64_t stride, int64_t n, int64_t at);
} reduce_integers_job;

static void items(void *arg, int64_t begin, int64_t end, int worker) {
    const reduce_integers_job *j = arg;
    const km_tensor *out = j->c->out[0];
    int64_t size = (int64_t)km_dtype_size(j->c->in[0]->dtype);
    int64_t inner = j->reduced.dim[j->reduced.n - 1];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t out_at;
        int64_t x_at = km_reduce_at(&j->kept, i, &out_at);
        const char *base = j->x ? j->x + x_at * size : NULL; /* an empty x has no memory */
        whole w = {.max = j->c->in[0]->dtype == KM_U8 ? 0 : INT64_MIN};
        for (int64_t at = 0; at < j->reduced.count; at += inner)
            j->run(&w, base + km_reduce_at(&j->reduced, at, NULL) * size,
                   j->reduced.x[j->reduced.n - 1], inner, at);
        int64_t v = j->c->op == KM_OP_SUM ? (int64_t)w.sum : w.max;
        char *to = (char *)km_tensor_ptr(out) + out_at * (int64_t)km_dtype_size(out->dtype);
        if (j->c->op == KM_OP_ARGMAX) v = w.index;
        km_cast_run(out->dtype, to, 1, KM_I64, &v, 1, 1);
    }
}

km_status km_cpu_reduce_integers(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    reduce_integers_job j = {.c = c, .x = x->storage->data ? km_tensor_ptr(x) : NULL};
    switch (x->dtype) {
    case KM_I32: j.run = run_int32_t; break;
    case KM_I64: j.run = run_int64_t; break;
    case KM_U8: j.run = run_uint8_t; break;
    case KM_I8: j.run = run_int8_t; break;
    default: return KM_ERR_UNSUPPORTED;
    }
    bool known = c->op == KM_OP_SUM || c->op == KM_OP_MAX || c->op == KM_OP_ARGMAX;
    if (!known || out->dtype != (c->op == KM_OP_ARGMAX ? KM_I64 : x->dtype))
        return KM_ERR_UNSUPPORTED;
    km_reduce_plan(c, &j.kept, &j.reduced);
    if (j.reduced.count == 0 && c->op == KM_OP_MAX) return KM_ERR_UNSUPPORTED;
    km_threads_for(ctx->threads, j.kept.count,
                   km_cpu_grain(ctx, j.kept.count, j.reduced.count * 5 + 100), items, &j);
    return KM_OK;
}
