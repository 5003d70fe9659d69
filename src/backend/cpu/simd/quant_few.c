/* Few rows of x against weights in blocks: every weight is read once, from its packed form straight
 * into registers, and used for up to FEW rows. What is computed for a row is the same whether others
 * are there or not. */
#include "backend/cpu/simd/quant_codes.h"

#define FEW (KM_FEWER_COPIES ? 2 : 4) /* rows whose sums stay in registers */
#define AHEAD 4096                    /* bytes fetched ahead */

/* The products of codes with a half of each group, in x's one or two planes. */
KM_INLINE vi half_products(const km_dtype d, vb c, const int8_t *x, const int8_t *low) {
    vi sum = vi_dot((vi){0}, c, vb_load(x), is_wide(d));
    return low ? vi_dot(vi_shift_up(sum), c, vb_load(low), is_wide(d)) : sum;
}

/* Likewise with both halves. */
KM_INLINE vi group_products(const km_dtype d, const vb c[2], const int8_t *x, const int8_t *low) {
    vi sum = vi_dot((vi){0}, c[0], vb_load(x), is_wide(d));
    sum = vi_dot(sum, c[1], vb_load(x + 64), is_wide(d));
    if (!low) return sum;
    sum = vi_dot(vi_shift_up(sum), c[0], vb_load(low), is_wide(d));
    return vi_dot(sum, c[1], vb_load(low + 64), is_wide(d));
}

/* One step of one row of weights for n rows of x: `vectors` of the step's codes, `valid` groups. */
KM_INLINE void step_rows(const km_dtype d, const uint8_t *b, int vectors, int valid,
                         const km_quant_x *x, const km_quant_low *low, int64_t ldx, const int n,
                         vf acc[FEW]) {
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
            const int8_t *xc = x[r * ldx].code + at, *xl = low ? low[r * ldx].code + at : NULL;
            if (by_halves(d)) {
                vi sum = half_products(d, c[0], xc, xl);
                vi more = half_products(d, c[1], xc + 64, low ? xl + 64 : NULL);
                acc[r] = v_fma(vi_to_float(sum), q16_spread(&t[r], 2 * v * KM_QG, 2), acc[r]);
                acc[r] = v_fma(vi_to_float(more), q16_spread(&t[r], 2 * v * KM_QG + 1, 2), acc[r]);
            } else {
                vi sum = group_products(d, c, xc, xl);
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
                        int valid, const km_quant_x *x, const km_quant_low *low, int64_t ldx,
                        const int n, float *y, int64_t ldy) {
    vf acc[FEW];
    KM_UNROLL
    for (int r = 0; r < n; r++) acc[r] = v_zero();
    for (int64_t s = 0; s < whole; s++, w += step_bytes(d)) {
        KM_UNROLL
        for (int i = 0; i < step_bytes(d); i += 64) KM_FETCH(w + AHEAD + i);
        step_rows(d, w, KM_QV, 8, x + s, low ? low + s : NULL, ldx, n, acc);
    }
    if (in_small_blocks(d) && rest)
        step_rows(d, rest, (valid + KM_QG - 1) / KM_QG, valid, x + whole, low ? low + whole : NULL,
                  ldx, n, acc);
    KM_UNROLL
    for (int r = 0; r < n; r++) y[r * ldy] = v_reduce_add(acc[r]);
}

/* one: x has a single row, as where one text is made. Knowing it spares a seventh of the instructions. */
KM_INLINE void few_of(const km_dtype d, const bool planes, const bool one, const uint8_t *w,
                      const uint8_t *end, int64_t bytes, int64_t n, int64_t outs,
                      const km_quant_rows *x, float *y, int64_t ldy) {
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
        if (one) {
            row_rows(d, w, whole, rest, valid, x->x, planes ? x->low : NULL, x->ldx, 1, y + j, ldy);
            continue;
        }
        for (int64_t r = 0, some; r < x->rows; r += some) {
            const km_quant_x *at = x->x + r * x->ldx;
            const km_quant_low *low = planes ? x->low + r * x->ldx : NULL;
            float *to = y + r * ldy + j;
            some = x->rows - r < FEW ? x->rows - r : FEW;
            switch (some) {
#if !KM_FEWER_COPIES
            case 4: row_rows(d, w, whole, rest, valid, at, low, x->ldx, 4, to, ldy); break;
            case 3: row_rows(d, w, whole, rest, valid, at, low, x->ldx, 3, to, ldy); break;
#endif
            case 2: row_rows(d, w, whole, rest, valid, at, low, x->ldx, 2, to, ldy); break;
            default: row_rows(d, w, whole, rest, valid, at, low, x->ldx, 1, to, ldy); break;
            }
        }
    }
}

/* A function for each kind of activations, and one more of each for the single row of one text. Where
 * registers are many, several rows share theirs, which asks at each product, at no cost (with the 16 registers
 * of AVX2 it took 5%). One serves for all with sanitizers, and for the x86-64 of before 2013, where nobody
 * would notice. */
#if KM_FEWER_COPIES || (defined(__x86_64__) && KM_VF == 4)
#define ONE_APART false
#else
#define ONE_APART true
#endif
#if defined(KM_AVX512) || !ONE_APART
#define KINDS_APART false
#else
#define KINDS_APART true
#endif

#define FEW_OF(d, name)                                                                            \
    static void name(const uint8_t *w, const uint8_t *end, int64_t bytes, int64_t n, int64_t outs, \
                     const km_quant_rows *x, float *y, int64_t ldy) {                              \
        if (ONE_APART && x->rows == 1 && x->low)                                                   \
            few_of(d, true, true, w, end, bytes, n, outs, x, y, ldy);                              \
        else if (ONE_APART && x->rows == 1)                                                        \
            few_of(d, false, true, w, end, bytes, n, outs, x, y, ldy);                             \
        else if (!KINDS_APART)                                                                     \
            few_of(d, x->low != NULL, false, w, end, bytes, n, outs, x, y, ldy);                   \
        else if (x->low)                                                                           \
            few_of(d, true, false, w, end, bytes, n, outs, x, y, ldy);                             \
        else                                                                                       \
            few_of(d, false, false, w, end, bytes, n, outs, x, y, ldy);                            \
    }
KM_QUANT_TYPES(FEW_OF)

void KM_SIMD(km_quant_few)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                           int64_t n, int64_t outs, const km_quant_rows *x, float *y, int64_t ldy) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: name(w, end, bytes, n, outs, x, y, ldy); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}
