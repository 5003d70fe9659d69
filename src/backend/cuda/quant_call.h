/* One call of layers over weights of a few bits, or of 16 bits with f32 x, on the GPU: what quant.c
 * gathers, and what runs it, a few rows of x (quant_few.c) or many (quant_many.c). */
#ifndef KM_BACKEND_CUDA_QUANT_CALL_H
#define KM_BACKEND_CUDA_QUANT_CALL_H
#include "backend/cuda/lane.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/quant.h"
#include "backend/cuda/walker.h"

/* Beyond the block dtypes: plain weights. */
enum { KM_PLAIN_F16 = KM_QUANT_TYPES, KM_PLAIN_BF16, KM_PLAIN_TYPES };

#define KM_QUANT_KERNEL(module_, name_)                                                            \
    { .module = module_, .name = name_, .waits = true }

typedef struct km_quant_layer {
    int type;
    km_cuda_quant w, up; /* up.m.planes NULL: not gated */
    const float *bias;
    float *out;
    int64_t n;
    size_t step; /* of a row, in shared memory (quant_bulk.cuh), and its groups */
    int64_t step_groups;
} km_quant_layer;

typedef struct km_quant_call {
    km_lane *lane;
    const float *x;
    int64_t m, k;
    km_act act;
    km_quant_layer l[KM_FEW_PARTS];
    km_tensor *const *out; /* of the call */
    int n_out;
    int layers;
    bool gated;
    km_norm_args norm; /* makes x on the way, when y is set */
    bool made;         /* some weight was laid out just now: kernels may not run ahead */
} km_quant_call;

/* Bytes that a thread takes of the weights of a type at a time. */
size_t km_quant_item_bytes(int type);
/* Whether its runs stand apart (kernels/quant.cuh). */
bool km_quant_is_apart(int type);
/* Whether Hopper's tensor cores multiply weights of a type in registers. */
static inline bool km_quant_has_hopper(const km_cuda_dev *dev, int type) {
    if (dev->cc != 90) return false;
    return type < KM_QUANT_TYPES ? km_cuda_has_module("quant_regs_64")
                                 : km_cuda_has_module("plain_regs") && km_cuda_api()->map_tiled;
}

/* By kernels that stream the weights; KM_ERR_UNSUPPORTED when x has no room in shared memory. */
km_status km_quant_few(km_quant_call *q);
/* By tensor cores. */
km_status km_quant_many(km_quant_call *q);
/* Few rows by tensor cores, as they stream the weights: whether these layers go that way, and running
 * them (quant_mma.c). */
bool km_quant_has_mma(const km_quant_call *q);
km_status km_quant_mma(km_quant_call *q);
/* x as f16 in an order of kernels/quant/quant_tile_args.h, `padded` rows, and their scales; the norm that
 * was held back before it is made on the way. All that is written lies in `room`. */
km_status km_quant_round(km_quant_call *q, int order, int64_t padded, void *out, void *apart,
                         float *scale, const void *room, size_t bytes);

#endif
