/* The kernels of layers with weights in blocks: QUANT_LINEAR, LINEARS, GATED. */
#ifndef KM_BACKEND_CPU_QUANT_LINEAR_H
#define KM_BACKEND_CPU_QUANT_LINEAR_H
#include "backend/cpu/cpu.h"

km_status km_cpu_quant_linear(km_ctx *ctx, const km_call *c);
km_status km_cpu_linears(km_ctx *ctx, const km_call *c);
km_status km_cpu_gated(km_ctx *ctx, const km_call *c);

#endif
