/* Running one checked call on the device that holds its operands. */
#ifndef KM_OPS_RUN_H
#define KM_OPS_RUN_H
#include "ops/op.h"

/* Outputs are there already. Unrecorded. */
km_status km_run(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                 km_tensor *const *out, int n_out);
/* t itself, or a contiguous copy of it, off the tape. NULL with the error set. */
km_tensor *km_to_contiguous(km_ctx *ctx, km_tensor *t);

#endif
