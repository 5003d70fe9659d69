/* Kernels of the CPU that another file of their family registers. */
#ifndef KM_BACKEND_CPU_KERNELS_H
#define KM_BACKEND_CPU_KERNELS_H
#include "backend/backend.h"

/* ---- elementwise.c's ---- */

/* integers.c: those of the ops that make sense on i32, i64, u8, i8 (and bool, for comparisons);
 * results wrap around. Decline everything else. */
km_status km_cpu_unary_integers(km_ctx *ctx, const km_call *c);
km_status km_cpu_binary_integers(km_ctx *ctx, const km_call *c);
km_status km_cpu_compare_integers(km_ctx *ctx, const km_call *c);

/* choose.c: any dtype, moved bit for bit. */
km_status km_cpu_where(km_ctx *ctx, const km_call *c);
km_status km_cpu_masked_fill(km_ctx *ctx, const km_call *c);
km_status km_cpu_triangle(km_ctx *ctx, const km_call *c);

/* ---- index.c's ---- */

km_status km_cpu_concat(km_ctx *ctx, const km_call *c);
km_status km_cpu_embedding_grad(km_ctx *ctx, const km_call *c);
km_status km_cpu_scatter(km_ctx *ctx, const km_call *c); /* scatter and scatter_add */
km_status km_cpu_masked_select(km_ctx *ctx, const km_call *c);
km_status km_cpu_masked_scatter(km_ctx *ctx, const km_call *c);
km_status km_cpu_nonzero(km_ctx *ctx, const km_call *c);

/* ---- quant.c's: layers with weights in blocks ---- */

km_status km_cpu_quant_linear(km_ctx *ctx, const km_call *c);
km_status km_cpu_linears(km_ctx *ctx, const km_call *c);
km_status km_cpu_gated(km_ctx *ctx, const km_call *c);

#endif
