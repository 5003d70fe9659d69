/* concat: every part is copied to its place in the result, through whatever strides it has. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/split.h"
#include "backend/iter.h"
#include <string.h>

typedef struct concat_job {
    km_iter it;  /* operand 0: the place in the result, operand 1: the part */
    int64_t run; /* elements of an inner run */
    size_t size;
} concat_job;

static void copy_strided(char *dst, int64_t dstep, const char *src, int64_t sstep, int64_t n,
                         size_t size) {
    switch (size) {
    case 1:
        for (int64_t i = 0; i < n; i++) dst[i * dstep] = src[i * sstep];
        break;
    case 2:
        for (int64_t i = 0; i < n; i++) memcpy(dst + i * dstep, src + i * sstep, 2);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++) memcpy(dst + i * dstep, src + i * sstep, 4);
        break;
    default:
        for (int64_t i = 0; i < n; i++) memcpy(dst + i * dstep, src + i * sstep, 8);
    }
}

/* Elements begin to end in row-major order: the first and last run may be cut. */
static void concat_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const concat_job *j = arg;
    int64_t size = (int64_t)j->size;
    int64_t dstep = j->it.stride[0][j->it.ndim - 1] * size;
    int64_t sstep = j->it.stride[1][j->it.ndim - 1] * size;
    for (int64_t e = begin; e < end;) {
        char *ptr[KM_ITER_MAX];
        int64_t from = e % j->run;
        int64_t n = j->run - from < end - e ? j->run - from : end - e;
        km_iter_row(&j->it, e / j->run, ptr);
        char *dst = ptr[0] + from * dstep;
        const char *src = ptr[1] + from * sstep;
        if (dstep == size && sstep == size)
            memcpy(dst, src, (size_t)(n * size));
        else
            copy_strided(dst, dstep, src, sstep, n, j->size);
        e += n;
    }
}

km_status km_cpu_concat(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    int axis = c->p->axis;
    km_tensor place = *out;
    for (int i = 0; i < c->n_in; i++) {
        const km_tensor *part = c->in[i];
        place.shape = part->shape;
        concat_job j = {.size = km_dtype_size(out->dtype)};
        km_iter_init(&j.it, 2, (const km_tensor *const[]){&place, part});
        j.run = j.it.dim[j.it.ndim - 1];
        if (j.it.rows * j.run > 0)
            km_threads_for(ctx->threads, j.it.rows * j.run, km_grain((int64_t)j.size * 2),
                           concat_range, &j);
        place.offset += part->shape.dim[axis] * out->stride[axis];
    }
    return KM_OK;
}
