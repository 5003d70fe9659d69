/* Kernels of the elementwise family that live in files of their own. */
#ifndef KM_BACKEND_CPU_ELEMENTWISE_H
#define KM_BACKEND_CPU_ELEMENTWISE_H
#include "backend/backend.h"

/* integers.c: those of the ops that make sense on i32, i64, u8, i8 (and bool, for comparisons);
 * results wrap around. Decline everything else. */
km_status km_cpu_unary_integers(km_ctx *ctx, const km_call *c);
km_status km_cpu_binary_integers(km_ctx *ctx, const km_call *c);
km_status km_cpu_compare_integers(km_ctx *ctx, const km_call *c);

/* choose.c: any dtype, moved bit for bit. */
km_status km_cpu_where(km_ctx *ctx, const km_call *c);
km_status km_cpu_masked_fill(km_ctx *ctx, const km_call *c);
km_status km_cpu_triangle(km_ctx *ctx, const km_call *c);

#endif
