/* A pass of mixed rows on the CPU: rows of a prompt, then rows of other sequences that are each alone.
 * Layers and attention work on the two kinds by two calls, so that each row has the bits that it has in
 * a chunk, or in a step. */
#ifndef KM_BACKEND_CPU_ROWS_TAIL_H
#define KM_BACKEND_CPU_ROWS_TAIL_H
#include "backend/backend.h"

/* Whether the call is one of both kinds (ctx->rows_tail); *status is then that of the two calls of
 * `kernel` that it became. `inputs`: a bit for each input that has the call's rows; all outputs do. */
bool km_cpu_rows_split(km_ctx *ctx, const km_call *c, uint32_t inputs, km_kernel kernel,
                       km_status *status);

#endif
