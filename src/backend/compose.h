/* Fused calls by a device's simpler kernels: what a backend registers, or falls back on, where it
 * has no kernel that does all of a call at once. */
#ifndef KM_BACKEND_COMPOSE_H
#define KM_BACKEND_COMPOSE_H
#include "backend/backend.h"

/* The op that gives the gradient through an activation (not KM_ACT_NONE). */
km_op km_act_grad(km_act act);

km_status km_compose_linear_dx(km_ctx *ctx, const km_call *c);
km_status km_compose_linear_dw(km_ctx *ctx, const km_call *c);
/* x (rows, n) -> out (n); KM_ERR_UNSUPPORTED becomes an error: it is never a call's first step. */
km_status km_compose_column_sums(km_ctx *ctx, km_tensor *x, km_tensor *out);

#endif
