/* A call over rows of two kinds becomes two. */
#include "backend/cpu/rows_tail.h"

enum { INPUTS_MOST = 16 };

/* Rows first .. first + n - 1 of the call. */
static km_status part(km_ctx *ctx, const km_call *c, uint32_t inputs, km_kernel kernel,
                      int64_t first, int64_t n) {
    km_tensor some[INPUTS_MOST + KM_MAX_OUTPUTS];
    km_tensor *in[INPUTS_MOST], *out[KM_MAX_OUTPUTS];
    int used = 0;
    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i];
        if (!in[i] || !(inputs >> i & 1)) continue;
        some[used] = *in[i];
        some[used].shape.dim[0] = n;
        some[used].offset += first * in[i]->stride[0];
        in[i] = &some[used++];
    }
    for (int i = 0; i < c->n_out; i++) {
        some[used] = *c->out[i];
        some[used].shape.dim[0] = n;
        some[used].offset += first * c->out[i]->stride[0];
        out[i] = &some[used++];
    }
    km_call half = *c;
    half.in = in;
    half.out = out;
    return kernel(ctx, &half);
}

bool km_cpu_rows_split(km_ctx *ctx, const km_call *c, uint32_t inputs, km_kernel kernel,
                       km_status *status) {
    int64_t tail = ctx->rows_tail, rows = c->out[0]->shape.dim[0], alone = ctx->rows_alone;
    if (tail < 1 || rows < tail || c->n_in > INPUTS_MOST) return false;
    ctx->rows_tail = 0;
    ctx->rows_alone = 0;
    *status = rows > tail ? part(ctx, c, inputs, kernel, 0, rows - tail) : KM_OK;
    ctx->rows_alone = rows;
    if (*status == KM_OK) *status = part(ctx, c, inputs, kernel, rows - tail, tail);
    ctx->rows_alone = alone;
    ctx->rows_tail = tail;
    return true;
}
