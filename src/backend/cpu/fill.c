/* Making elements out of nothing: full, arange, random numbers; and dropout, which is a random
 * mask. Element i of a random fill depends on i alone, so chunks may be cut anywhere. */
#include "backend/cpu/cast.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/simd/convert.h"
#include "backend/cpu/simd/random.h"
#include "backend/cpu/stage.h"
#include "backend/cpu/walk.h"
#include <math.h>

/* ---- full ---- */

typedef struct full_job {
    size_t size;
    int64_t stride;
    bool stream;
    _Alignas(8) unsigned char value[8]; /* in out's dtype, repeated until the eight are full */
} full_job;

#define FILL(T)                                                                                    \
    do {                                                                                           \
        T v, *o = (T *)(void *)ptr[0];                                                             \
        memcpy(&v, j->value, sizeof v);                                                            \
        for (int64_t i = 0; i < n; i++) o[i * j->stride] = v;                                      \
    } while (0)

static void full_run(void *arg, char *const *ptr, int64_t n) {
    const full_job *j = arg;
    int64_t bytes = n * (int64_t)j->size;
    if (j->stride == 1 && j->size <= 4 && bytes % 4 == 0 && (uintptr_t)ptr[0] % 4 == 0) {
        float v;
        memcpy(&v, j->value, sizeof v);
        km_simd_convert()->fill((float *)ptr[0], v, bytes / 4, j->stream);
        return;
    }
    switch (j->size) {
    case 1: FILL(uint8_t); break;
    case 2: FILL(uint16_t); break;
    case 4: FILL(uint32_t); break;
    default: FILL(uint64_t); break;
    }
}

static km_status full(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    km_iter it;
    km_iter_init(&it, 1, (const km_tensor *[]){out});
    full_job j = {
        .size = it.size[0],
        .stride = it.stride[0][it.ndim - 1],
        .stream = km_cpu_streams(km_shape_count(out->shape) * (int64_t)it.size[0]),
    };
    for (size_t i = 0; i < sizeof j.value; i += j.size)
        km_cast_doubles(out->dtype, j.value + i, 1, &c->p->f[KM_F_VALUE], 1);
    km_cpu_walk(ctx, &it, 2, full_run, &j);
    return KM_OK;
}

/* ---- Fills that know where they are ---- */

typedef struct indexed_job {
    char *out;
    const char *x; /* dropout's input */
    km_dtype dtype;
    const km_params *p;
    km_op op;
} indexed_job;

static void arange_chunk(void *arg, int64_t begin, int64_t end, int worker) {
    const indexed_job *j = arg;
    double block[KM_STAGE];
    (void)worker;
    for (int64_t at = begin; at < end; at += KM_STAGE) {
        int64_t n = end - at < KM_STAGE ? end - at : KM_STAGE;
        for (int64_t i = 0; i < n; i++)
            block[i] = j->p->f[KM_F_START] + (double)(at + i) * j->p->f[KM_F_STEP];
        km_cast_doubles(j->dtype, j->out + at * (int64_t)km_dtype_size(j->dtype), 1, block, n);
    }
}

/* begin is a multiple of four, which is what a block of random words serves. */
static void random_chunk(void *arg, int64_t begin, int64_t end, int worker) {
    const indexed_job *j = arg;
    const km_params *p = j->p;
    const km_random_rows *rows = km_simd_random();
    int64_t size = (int64_t)km_dtype_size(j->dtype);
    float obuf[KM_STAGE], xbuf[KM_STAGE];
    (void)worker;
    for (int64_t at = begin; at < end; at += KM_STAGE) {
        int64_t n = end - at < KM_STAGE ? end - at : KM_STAGE;
        uint64_t block = (uint64_t)at / 4;
        float *out = km_stage_at(j->dtype, j->out + at * size, 1, obuf);
        if (j->op == KM_OP_UNIFORM) {
            rows->uniform(out, n, p->seed, p->stream, block, p->f[KM_F_LO], p->f[KM_F_HI]);
        } else if (j->op == KM_OP_NORMAL) {
            rows->normal(out, n, p->seed, p->stream, block, (float)p->f[KM_F_MEAN],
                         (float)p->f[KM_F_SD]);
        } else {
            const float *x = km_stage_in(j->dtype, j->x + at * size, 1, n, xbuf);
            /* A word lives when (word >> 8) * 2^-24 >= p. */
            rows->dropout(out, x, n, p->seed, p->stream, block,
                          (uint32_t)ceil(p->f[KM_F_DROP] * 0x1p24),
                          (float)(1 / (1 - p->f[KM_F_DROP])));
        }
        km_stage_out(j->dtype, j->out + at * size, 1, n, out, false);
    }
}

static km_status indexed(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *x = c->n_in > 0 ? c->in[0] : NULL;
    if (!km_is_contiguous(out) || (x && !km_is_contiguous(x))) return KM_ERR_UNSUPPORTED;
    if (c->op != KM_OP_ARANGE && !km_stageable(out->dtype)) return KM_ERR_UNSUPPORTED;
    int64_t n = km_shape_count(out->shape);
    if (n == 0) return KM_OK;
    indexed_job j = {.out = km_tensor_ptr(out),
                     .x = x ? km_tensor_ptr(x) : NULL,
                     .dtype = out->dtype,
                     .p = c->p,
                     .op = c->op};
    int64_t grain = km_cpu_grain(ctx, n, 10);
    grain = (grain + KM_STAGE - 1) / KM_STAGE * KM_STAGE;
    km_threads_for(ctx->threads, n, grain, c->op == KM_OP_ARANGE ? arange_chunk : random_chunk, &j);
    return KM_OK;
}

void km_cpu_register_fill(km_kernel *k) {
    k[KM_OP_FULL] = full;
    k[KM_OP_ARANGE] = k[KM_OP_UNIFORM] = k[KM_OP_NORMAL] = k[KM_OP_DROPOUT] = indexed;
}
