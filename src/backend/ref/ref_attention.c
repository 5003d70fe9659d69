/* Reference rotary embedding and scaled-dot-product attention with its gradient.
 * Shapes: q, o, do, dq (B, H, Tq, D); k, v, dk, dv (B, Hkv, Tk, D); lse (B, H, Tq). H is a multiple
 * of Hkv: query head h reads key head h / (H / Hkv). */
#include "backend/ref/ref.h"

/* x (batch..., T, d), positions? (T) -> out. Pair i of the first n[0] dims turns by the angle
 * position * base^(-2i / n[0]), backwards for the inverse; the other dims are copied. */
km_status km_ref_rope(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *positions = km_ref_in(c, 1), *out = c->out[0];
    const km_tensor *divisors = km_ref_in(c, 2);
    int time = x->shape.ndim - 2, last = x->shape.ndim - 1;
    int64_t d = x->shape.dim[last], n = c->p->n[KM_N_ROPE_DIMS];
    bool adjacent = c->p->n[KM_N_ROPE_PAIRS] == KM_ROPE_ADJACENT;
    double direction = c->p->n[KM_N_ROPE_INVERSE] ? -1 : 1, base = c->p->f[KM_F_ROPE_BASE];

    km_shape rows = x->shape;
    rows.dim[last] = d > 0;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, rows) {
        double position = (double)i[time];
        if (positions) position = km_ref_load(positions, km_ref_nth(positions, i[time]));
        int64_t x_pos = km_ref_pos(x, i), o_pos = km_ref_pos(out, i);
        int64_t xs = x->stride[last], os = out->stride[last];
        for (int64_t p = 0; p < n / 2; p++) {
            int64_t first = adjacent ? 2 * p : p, second = adjacent ? 2 * p + 1 : p + n / 2;
            double angle = direction * position * pow(base, -2.0 * (double)p / (double)n);
            if (divisors) angle /= km_ref_load(divisors, km_ref_nth(divisors, p));
            double a = km_ref_load(x, x_pos + first * xs), b = km_ref_load(x, x_pos + second * xs);
            km_ref_store(out, o_pos + first * os, a * cos(angle) - b * sin(angle));
            km_ref_store(out, o_pos + second * os, a * sin(angle) + b * cos(angle));
        }
        for (int64_t j = n; j < d; j++) km_ref_move(out, o_pos + j * os, x, x_pos + j * xs);
    }
    return KM_OK;
}

/* ---- Attention ---- */

/* How many keys query i sees: all, or, if causal, keys 0 .. Tk - Tq + i. */
static int64_t visible_keys(bool causal, int64_t i, int64_t tq, int64_t tk) {
    int64_t n = causal ? tk - tq + i + 1 : tk;
    return n < 0 ? 0 : n > tk ? tk : n;
}

/* Where the vector (b, h, t, 0 .. D-1) of a 4-dimensional tensor begins. */
static int64_t vec(const km_tensor *x, int64_t b, int64_t h, int64_t t) {
    return x->offset + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

static double elem(const km_tensor *x, int64_t vec_pos, int64_t j) {
    return km_ref_load(x, vec_pos + j * x->stride[3]);
}

static double dot(const km_tensor *x, int64_t xv, const km_tensor *y, int64_t yv) {
    double sum = 0;
    for (int64_t j = 0; j < x->shape.dim[3]; j++) sum += elem(x, xv, j) * elem(y, yv, j);
    return sum;
}

/* q, k, v -> o = softmax(scale q k^T) v, lse = log sum exp(scale q k^T) over the visible keys.
 * A query that sees no key gives o = 0, lse = -inf. */
km_status km_ref_attention(km_ctx *ctx, const km_call *c) {
    const km_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    const km_tensor *o = c->out[0], *lse = km_ref_out(c, 1);
    int64_t B = q->shape.dim[0], H = q->shape.dim[1], Tq = q->shape.dim[2];
    int64_t Hkv = k->shape.dim[1], Tk = k->shape.dim[2], D = o->shape.dim[3];
    double scale = c->p->f[KM_F_SCALE];
    double *score = km_ctx_scratch(ctx, (size_t)(Tk + 1) * sizeof *score); /* (Tk) */
    if (!score) return KM_ERR_MEMORY;

    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < Tq; i++) {
                int64_t hk = h / (H / Hkv), n = visible_keys(c->p->causal, i, Tq, Tk);
                double max = -INFINITY, sum = 0;
                for (int64_t t = 0; t < n; t++) {
                    score[t] = scale * dot(q, vec(q, b, h, i), k, vec(k, b, hk, t));
                    max = km_ref_max(max, score[t]);
                }
                for (int64_t t = 0; t < n; t++) sum += exp(score[t] - max);
                for (int64_t j = 0; j < D; j++) {
                    double out = 0;
                    for (int64_t t = 0; t < n; t++)
                        out += exp(score[t] - max) / sum * elem(v, vec(v, b, hk, t), j);
                    km_ref_store(o, vec(o, b, h, i) + j * o->stride[3], out);
                }
                if (lse) {
                    int64_t at[] = {b, h, i};
                    km_ref_set(lse, at, n > 0 ? max + log(sum) : -INFINITY);
                }
            }
    return KM_OK;
}

/* do, q, k, v, o, lse -> dq, dk, dv. For one query row, over the visible keys t:
 *   p_t  = exp(scale q.k_t - lse)              the forward weights again
 *   ds_t = p_t (do.v_t - do.o)                 the softmax's gradient
 *   dq = scale sum_t ds_t k_t,  dk_t += scale ds_t q,  dv_t += p_t do
 * dk and dv sum over queries and over the heads that share a key head. */
km_status km_ref_attention_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *grad_o = c->in[0], *q = c->in[1], *k = c->in[2], *v = c->in[3];
    const km_tensor *o = c->in[4], *lse = c->in[5];
    const km_tensor *dq = c->out[0], *dk = c->out[1], *dv = c->out[2];
    int64_t B = q->shape.dim[0], H = q->shape.dim[1], Tq = q->shape.dim[2], D = q->shape.dim[3];
    int64_t Hkv = k->shape.dim[1], Tk = k->shape.dim[2], Dv = v->shape.dim[3];
    double scale = c->p->f[KM_F_SCALE];
    double *ds = km_ctx_scratch(ctx, (size_t)(Tk * (1 + D + Dv) + 1) * sizeof *ds); /* (Tk) */
    if (!ds) return KM_ERR_MEMORY;
    double *sum_dk = ds + Tk, *sum_dv = sum_dk + Tk * D; /* (Tk, D), (Tk, Dv) */

    for (int64_t b = 0; b < B; b++)
        for (int64_t hk = 0; hk < Hkv; hk++) {
            for (int64_t j = 0; j < Tk * D; j++) sum_dk[j] = 0;
            for (int64_t j = 0; j < Tk * Dv; j++) sum_dv[j] = 0;
            for (int64_t h = hk * (H / Hkv); h < (hk + 1) * (H / Hkv); h++)
                for (int64_t i = 0; i < Tq; i++) {
                    int64_t n = visible_keys(c->p->causal, i, Tq, Tk);
                    int64_t q_row = vec(q, b, h, i), do_row = vec(grad_o, b, h, i);
                    double row_lse = km_ref_get(lse, (int64_t[]){b, h, i});
                    double do_o = dot(grad_o, do_row, o, vec(o, b, h, i));
                    for (int64_t t = 0; t < n; t++) {
                        int64_t k_row = vec(k, b, hk, t), v_row = vec(v, b, hk, t);
                        double p = exp(scale * dot(q, q_row, k, k_row) - row_lse);
                        ds[t] = p * (dot(grad_o, do_row, v, v_row) - do_o);
                        for (int64_t j = 0; j < D; j++)
                            sum_dk[t * D + j] += scale * ds[t] * elem(q, q_row, j);
                        for (int64_t j = 0; j < Dv; j++)
                            sum_dv[t * Dv + j] += p * elem(grad_o, do_row, j);
                    }
                    for (int64_t j = 0; j < D; j++) {
                        double sum = 0;
                        for (int64_t t = 0; t < n; t++)
                            sum += scale * ds[t] * elem(k, vec(k, b, hk, t), j);
                        km_ref_store(dq, vec(dq, b, h, i) + j * dq->stride[3], sum);
                    }
                }
            for (int64_t t = 0; t < Tk; t++) {
                for (int64_t j = 0; j < D; j++)
                    km_ref_store(dk, vec(dk, b, hk, t) + j * dk->stride[3], sum_dk[t * D + j]);
                for (int64_t j = 0; j < Dv; j++)
                    km_ref_store(dv, vec(dv, b, hk, t) + j * dv->stride[3], sum_dv[t * Dv + j]);
            }
        }
    return KM_OK;
}
