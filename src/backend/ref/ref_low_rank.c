/* Reference for what adapters add to a layer: each row's own mix of low-rank products. */
#include "backend/ref/ref.h"

km_status km_ref_low_rank(km_ctx *ctx, const km_call *c) {
    const km_tensor *y = c->in[0], *x = c->in[1], *mix = c->in[2], *slot = c->in[3], *a = c->in[4],
                    *b = c->in[5], *out = c->out[0];
    int64_t rows = x->shape.dim[0], n = x->shape.dim[1], outs = y->shape.dim[1];
    int64_t slots = mix->shape.dim[1], ranks = slot->shape.dim[0];
    (void)ctx;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < outs; o++) {
            double sum = km_ref_load(y, y->offset + i * outs + o);
            for (int64_t r = 0; r < ranks; r++) {
                int64_t s = km_ref_load_int(slot, slot->offset + r);
                double w =
                    s >= 0 && s < slots ? km_ref_load(mix, mix->offset + i * slots + s) : 0.0;
                double dot = 0;
                if (w == 0) continue;
                for (int64_t k = 0; k < n; k++)
                    dot += km_ref_load(x, x->offset + i * n + k) *
                           km_ref_load(a, a->offset + r * n + k);
                sum += w * dot * km_ref_load(b, b->offset + r * outs + o);
            }
            km_ref_store(out, out->offset + i * outs + o, sum);
        }
    return KM_OK;
}
