/* Rotary positions on the GPU. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/walker.h"
#include "base/util.h"
#include <math.h>

static km_cuda_kernel rope[] = KM_CUDA_PER_TYPE("rope", "rope");

static km_status run_rope(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *positions = c->n_in > 1 ? c->in[1] : NULL;
    int slot = km_cuda_slot(x->dtype), last = x->shape.ndim - 1;
    if (slot < 0 || (c->n_in > 2 && c->in[2])) return KM_ERR_UNSUPPORTED;
    if (km_cuda_empty(x)) return KM_OK;
    km_rope_args a = {.x = km_tensor_ptr(x),
                      .positions = positions ? km_tensor_ptr(positions) : NULL,
                      .out = km_tensor_ptr(c->out[0]),
                      .t = (int32_t)x->shape.dim[last - 1],
                      .d = (int32_t)x->shape.dim[last],
                      .dims = (int32_t)c->p->n[KM_N_ROPE_DIMS],
                      .adjacent = c->p->n[KM_N_ROPE_PAIRS] == KM_ROPE_ADJACENT,
                      .inverse = c->p->n[KM_N_ROPE_INVERSE] != 0,
                      .wide = positions && positions->dtype == KM_I64,
                      .log2_base = log2(c->p->f[KM_F_ROPE_BASE])};
    a.batch = km_shape_count(x->shape) / ((int64_t)a.t * a.d);
    int64_t pairs = (int64_t)a.t * (a.dims / 2 + a.d - a.dims), blocks = km_ceil_div(pairs, 128);
    /* Enough blocks for the device; beyond that a thread serves several heads. */
    int64_t enough = km_ceil_div((int64_t)km_cuda_dev_for(c)->sms * 16, blocks);
    int64_t heads = a.batch < enough ? a.batch : enough;
    return km_cuda_launch1(km_cuda_lane(c), &rope[slot],
                           KM_DIM(blocks, heads < 65535 ? heads : 65535), KM_DIM(128), 0, &a);
}

void km_cuda_register_rope(km_kernel *table) { table[KM_OP_ROPE] = run_rope; }
