/* Few rows of x against weights in blocks: every weight is read once, from its packed form straight
 * into registers, and used for up to FEW rows. What is computed for a row is the same whether others
 * are there or not. */
#include "backend/cpu/simd/quant_codes.h"

#define FEW 4      /* rows whose sums stay in registers */
#define AHEAD 4096 /* bytes fetched ahead */

/* One step of one row of weights for n rows of x: `vectors` of the step's codes, `valid` groups. */
KM_INLINE void step_rows(const km_dtype d, const uint8_t *b, int vectors, int valid,
                         const km_quant_x *x, int64_t ldx, const int n, vf acc[FEW]) {
    q16 scale, least, t[FEW];
    step_scales(d, b, valid, &scale, &least);
    KM_UNROLL
    for (int r = 0; r < n; r++) {
        const km_quant_x *xr = x + r * ldx;
        if (by_halves(d)) {
            t[r] = q16_twice(xr->scale);
            KM_UNROLL
            for (int i = 0; i < KM_Q16; i++) t[r].v[i] *= scale.v[i];
        } else {
            KM_UNROLL
            for (int i = 0; i < KM_Q8; i++) t[r].v[i] = v_load(xr->scale + i * KM_VF) * scale.v[i];
        }
    }
    KM_UNROLL
    for (int v = 0; v < KM_QV; v++) {
        if (v >= vectors) continue;
        vb c[2];
        int at = v * KM_QG / 4 * 128 + v * KM_QG % 4 * 16;
        step_codes(d, b, v, c);
        KM_UNROLL
        for (int r = 0; r < n; r++) {
            const int8_t *xc = x[r * ldx].code + at;
            vi sum = vi_dot((vi){0}, c[0], vb_load(xc), is_wide(d));
            if (by_halves(d)) {
                vi more = vi_dot((vi){0}, c[1], vb_load(xc + 64), is_wide(d));
                acc[r] = v_fma(vi_to_float(sum), q16_spread(&t[r], 2 * v * KM_QG, 2), acc[r]);
                acc[r] = v_fma(vi_to_float(more), q16_spread(&t[r], 2 * v * KM_QG + 1, 2), acc[r]);
            } else {
                sum = vi_dot(sum, c[1], vb_load(xc + 64), is_wide(d));
                acc[r] = v_fma(vi_to_float(sum), q16_spread(&t[r], v * KM_QG, 1), acc[r]);
            }
        }
    }
    if (!has_least(d) && offset_of(d) == 0) return;
    KM_UNROLL
    for (int r = 0; r < n; r++) {
        const float *sums = by_halves(d) ? x[r * ldx].half : x[r * ldx].sum;
        KM_UNROLL
        for (int i = 0; i < KM_Q16; i++)
            if (by_halves(d) || i < KM_Q8)
                acc[r] = v_fma(least.v[i], v_load(sums + i * KM_VF), acc[r]);
    }
}

/* One row of weights for n rows of x. rest: where the last, short step is, or NULL. */
KM_INLINE void row_rows(const km_dtype d, const uint8_t *w, int64_t whole, const uint8_t *rest,
                        int valid, const km_quant_x *x, int64_t ldx, const int n, float *y,
                        int64_t ldy) {
    vf acc[FEW];
    KM_UNROLL
    for (int r = 0; r < n; r++) acc[r] = v_zero();
    for (int64_t s = 0; s < whole; s++, w += step_bytes(d)) {
        KM_UNROLL
        for (int i = 0; i < step_bytes(d); i += 64) KM_FETCH(w + AHEAD + i);
        step_rows(d, w, KM_QV, 8, x + s, ldx, n, acc);
    }
    if (in_small_blocks(d) && rest)
        step_rows(d, rest, (valid + KM_QG - 1) / KM_QG, valid, x + whole, ldx, n, acc);
    KM_UNROLL
    for (int r = 0; r < n; r++) y[r * ldy] = v_reduce_add(acc[r]);
}

KM_INLINE void few_of(const km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                      int64_t n, int64_t outs, const km_quant_rows *x, float *y, int64_t ldy) {
    int64_t whole = n / KM_QUANT_STEP;
    int valid = in_small_blocks(d) ? (int)(n % KM_QUANT_STEP / 32) : 0;
    uint8_t room[8 * 34];
    for (int64_t j = 0; j < outs; j++, w += bytes) {
        const uint8_t *rest = valid ? w + whole * step_bytes(d) : NULL;
        if (rest && end - rest < step_bytes(d)) { /* the blocks behind it are read, too */
            memset(room, 0, sizeof room);
            memcpy(room, rest, (size_t)(valid * (step_bytes(d) / 8)));
            rest = room;
        }
        int64_t r = 0;
        for (; r + FEW <= x->rows; r += FEW)
            row_rows(d, w, whole, rest, valid, x->x + r * x->ldx, x->ldx, FEW, y + r * ldy + j, ldy);
        for (; r < x->rows; r++)
            row_rows(d, w, whole, rest, valid, x->x + r * x->ldx, x->ldx, 1, y + r * ldy + j, ldy);
    }
}

#define FEW_OF(d, name)                                                                            \
    static void name(const uint8_t *w, const uint8_t *end, int64_t bytes, int64_t n, int64_t outs, \
                     const km_quant_rows *x, float *y, int64_t ldy) {                              \
        few_of(d, w, end, bytes, n, outs, x, y, ldy);                                              \
    }
FEW_OF(KM_Q4_0, q4_0)
FEW_OF(KM_Q4_1, q4_1)
FEW_OF(KM_Q5_0, q5_0)
FEW_OF(KM_Q5_1, q5_1)
FEW_OF(KM_Q8_0, q8_0)
FEW_OF(KM_Q2_K, q2_k)
FEW_OF(KM_Q3_K, q3_k)
FEW_OF(KM_Q4_K, q4_k)
FEW_OF(KM_Q5_K, q5_k)
FEW_OF(KM_Q6_K, q6_k)
FEW_OF(KM_IQ4_NL, iq4_nl)
FEW_OF(KM_IQ4_XS, iq4_xs)
FEW_OF(KM_MXFP4, mxfp4)

void KM_SIMD(km_quant_few)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                           int64_t n, int64_t outs, const km_quant_rows *x, float *y, int64_t ldy) {
    switch (d) {
    case KM_Q4_0: q4_0(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q4_1: q4_1(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q5_0: q5_0(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q5_1: q5_1(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q8_0: q8_0(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q2_K: q2_k(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q3_K: q3_k(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q4_K: q4_k(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q5_K: q5_k(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_Q6_K: q6_k(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_IQ4_NL: iq4_nl(w, end, bytes, n, outs, x, y, ldy); break;
    case KM_IQ4_XS: iq4_xs(w, end, bytes, n, outs, x, y, ldy); break;
    default: mxfp4(w, end, bytes, n, outs, x, y, ldy); break;
    }
}
