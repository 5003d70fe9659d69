/* What a device must offer: memory (tensor/device.h) and kernels, one per op of op_list.h.
 * A kernel may be missing (NULL), or decline a call with KM_ERR_UNSUPPORTED and nothing done; the
 * call then goes to the device's fallback: cuda or vulkan -> cpu -> ref. ref has every kernel. */
#ifndef KM_BACKEND_BACKEND_H
#define KM_BACKEND_BACKEND_H
#include "backend/op_list.h"
#include "backend/params.h"
#include "tensor/tensor.h"

#define KM_MAX_OUTPUTS 4

/* One call of a kernel. Shapes, dtypes and devices were checked; outputs are allocated. Every
 * size may be zero: a kernel then has nothing to do (or writes the neutral element). */
typedef struct km_call {
    km_op op;
    int n_in, n_out;
    km_tensor *const *in;
    km_tensor *const *out;
    const km_params *p;
} km_call;

/* KM_OK, KM_ERR_UNSUPPORTED (declined), or an error already set on the context by km_fail. */
typedef km_status (*km_kernel)(km_ctx *ctx, const km_call *c);

typedef struct km_backend {
    const char *name;
    km_kernel kernel[KM_OP_COUNT];
} km_backend;

/* The device of that name (see km_ctx_new), made on first use and kept for the process's life. */
km_device *km_device_find(const char *name, km_error *err);
/* The name leaves open which GPU it is: auto, gpu, metal, cuda. Ranks then take one each. */
bool km_device_any_gpu(const char *name);

/* The backends' own devices. */
km_device *km_ref_device(void);
km_device *km_cpu_device(void);
/* NULL with *err saying what is missing (driver, GPU, kernels, index out of range). */
km_device *km_cuda_device(int index, km_error *err);
int km_cuda_device_count(void); /* 0 when there is no usable GPU */

/* How many rows a call of a layer or of attention may have and still treat each by itself, so that a row's
 * bits do not depend on the others; longer calls, of prompts, work in tiles. More where the context says
 * so, as for a step of many sequences (infer/plan.c). */
static inline int64_t km_rows_alone(const km_ctx *ctx) {
    return ctx->rows_alone > KM_FEW_ROWS ? ctx->rows_alone : KM_FEW_ROWS;
}

const char *km_op_name(km_op op); /* "layer_norm" */

/* The memory of the machine itself, beside the devices of kermes.h (devices.c). */
typedef struct km_host_memory {
    double total, available; /* bytes; NaN where unknown */
} km_host_memory;
km_host_memory km_host_memory_get(void);

#endif
