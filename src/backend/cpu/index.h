/* The kernels that km_cpu_register_index adds from files other than index.c. */
#ifndef KM_BACKEND_CPU_INDEX_H
#define KM_BACKEND_CPU_INDEX_H
#include "backend/backend.h"

km_status km_cpu_concat(km_ctx *ctx, const km_call *c);
km_status km_cpu_embedding_grad(km_ctx *ctx, const km_call *c);
km_status km_cpu_scatter(km_ctx *ctx, const km_call *c); /* scatter and scatter_add */
km_status km_cpu_masked_select(km_ctx *ctx, const km_call *c);
km_status km_cpu_masked_scatter(km_ctx *ctx, const km_call *c);
km_status km_cpu_nonzero(km_ctx *ctx, const km_call *c);

#endif
