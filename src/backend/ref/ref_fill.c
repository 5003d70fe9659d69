/* Reference kernels that make or copy elements: fills, random numbers, copies and casts. Element
 * i of a fill means i in row-major order, whatever the output's strides. */
#include "backend/ref/ref.h"
#include "base/rng.h"

km_status km_ref_full(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) km_ref_set(out, i, c->p->f[KM_F_VALUE]);
    return KM_OK;
}

km_status km_ref_arange(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0]; /* (count) */
    double start = c->p->f[KM_F_START], step = c->p->f[KM_F_STEP];
    int64_t i[KM_MAX_DIMS], n = 0;
    KM_REF_EACH(i, out->shape) km_ref_set(out, i, start + (double)n++ * step);
    return KM_OK;
}

km_status km_ref_uniform(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    double lo = c->p->f[KM_F_LO], hi = c->p->f[KM_F_HI];
    int64_t i[KM_MAX_DIMS];
    uint64_t n = 0;
    KM_REF_EACH(i, out->shape) {
        uint32_t word = km_philox(c->p->seed, c->p->stream, n / 4).v[n % 4];
        km_ref_set(out, i, lo + (hi - lo) * (double)km_u32_to_unit(word));
        n++;
    }
    return KM_OK;
}

km_status km_ref_normal(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    double mean = c->p->f[KM_F_MEAN], sd = c->p->f[KM_F_SD];
    int64_t i[KM_MAX_DIMS];
    uint64_t n = 0;
    KM_REF_EACH(i, out->shape) {
        km_philox4 block = km_philox(c->p->seed, c->p->stream, n / 4);
        int pair = n % 4 < 2 ? 0 : 2;
        double z[2];
        km_box_muller(block.v[pair], block.v[pair + 1], &z[0], &z[1]);
        km_ref_set(out, i, mean + sd * z[n % 2]);
        n++;
    }
    return KM_OK;
}

/* copy and cast: x -> out of the same shape, any dtype to any dtype. */
km_status km_ref_copy(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) km_ref_move(out, km_ref_pos(out, i), x, km_ref_pos(x, i));
    return KM_OK;
}
