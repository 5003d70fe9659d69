/* Several rows of x against weights in blocks: a strip of outputs is taken apart once, into a thread's
 * cache, and meets all rows from there. Each sum is made of the same operations in the same order as
 * by the kernel for one row (quant_few.c), so that a row has the same bits alone and among others.
 *
 * With AVX-512 and VNNI a block is 4 rows and 2 outputs. The floor for a step of one row and one
 * output (256 multiply-adds in two planes) is 8 products, 2 of scales and 3 additions, all on the same
 * ports: 13 cycles where they take one vector of 64 bytes a cycle, 6.5 where two. */
#include "backend/cpu/simd/quant_codes.h"

#if defined(KM_AVX512)
#define ROWS 4
#else
#define ROWS 2
#endif
#define OUTS 2
#define BYTES (4 * KM_VF) /* of a vector */

/* ---- Taking apart ---- */

KM_INLINE int vectors_of(int valid) { return (valid + KM_QG - 1) / KM_QG; }

KM_INLINE void unpack_step(const km_dtype d, const uint8_t *b, int valid, km_quant_apart *p) {
    q16 scale, least;
    step_scales(d, b, valid, &scale, &least);
    KM_UNROLL
    for (int v = 0; v < KM_QV; v++) {
        vb c[2];
        step_codes(d, b, v, c);
        memcpy(p->code + 2 * v * BYTES, c, sizeof c);
        if (by_halves(d)) {
            v_store(p->scale + 2 * v * KM_VF, q16_spread(&scale, 2 * v * KM_QG, 2));
            v_store(p->scale + (2 * v + 1) * KM_VF, q16_spread(&scale, 2 * v * KM_QG + 1, 2));
        } else {
            v_store(p->scale + v * KM_VF, q16_spread(&scale, v * KM_QG, 1));
        }
    }
    KM_UNROLL
    for (int i = 0; i < KM_Q16; i++)
        if (by_halves(d) || i < KM_Q8) v_store(p->least + i * KM_VF, least.v[i]);
}

KM_INLINE void unpack_of(const km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                         int64_t n, int64_t outs, km_quant_apart *p) {
    int64_t whole = n / KM_QUANT_STEP;
    int valid = in_small_blocks(d) ? (int)(n % KM_QUANT_STEP / 32) : 0;
    uint8_t room[11 * 34]; /* addresses of three groups behind the last are made, too */
    for (int64_t j = 0; j < outs; j++, w += bytes) {
        const uint8_t *b = w;
        for (int64_t s = 0; s < whole; s++, b += step_bytes(d)) unpack_step(d, b, 8, p++);
        if (!valid) continue;
        if (end - b < step_bytes(d)) { /* the blocks behind it are read, too */
            memset(room, 0, sizeof room);
            memcpy(room, b, (size_t)(valid * (step_bytes(d) / 8)));
            b = room;
        }
        unpack_step(d, b, valid, p++);
    }
}

/* ---- Multiplying ---- */

/* What the types differ in, once they are apart. */
typedef struct apart_kind {
    bool halves, wide, least;
} apart_kind;

/* c + the products with x's one or two planes; see half_products and group_products there. */
KM_INLINE vi planes_of(const apart_kind k, const bool planes, const vb *c, const vb *x,
                       const vb *low, const int n) {
    vi sum = (vi){0};
    KM_UNROLL
    for (int h = 0; h < n; h++) sum = vi_dot(sum, c[h], x[h], k.wide);
    if (!planes) return sum;
    sum = vi_shift_up(sum);
    KM_UNROLL
    for (int h = 0; h < n; h++) sum = vi_dot(sum, c[h], low[h], k.wide);
    return sum;
}

/* A step of `outs` outputs, ldw steps apart, and n rows; `vectors` of its codes count. */
KM_INLINE void meet_step(const apart_kind k, const bool planes, const km_quant_apart *w,
                         int64_t ldw, const int outs, int vectors, const km_quant_x *x,
                         const km_quant_low *low, int64_t ldx, const int n, vf acc[ROWS][OUTS]) {
    KM_UNROLL
    for (int v = 0; v < KM_QV; v++) {
        if (v >= vectors) continue;
        const int at = v * KM_QG / 4 * 128 + v * KM_QG % 4 * 16;
        vb c[OUTS][2];
        KM_UNROLL
        for (int o = 0; o < outs; o++) KM_UNROLL
        for (int h = 0; h < 2; h++) c[o][h] = vb_load(w[o * ldw].code + (2 * v + h) * BYTES);
        KM_UNROLL
        for (int r = 0; r < n; r++) {
            const km_quant_x *xr = x + r * ldx;
            vb xc[2] = {vb_load(xr->code + at), vb_load(xr->code + at + 64)}, xl[2] = {{0}};
            if (planes) {
                xl[0] = vb_load(low[r * ldx].code + at);
                xl[1] = vb_load(low[r * ldx].code + at + 64);
            }
            q16 eight;
            KM_UNROLL
            for (int i = 0; i < KM_Q8; i++) eight.v[i] = v_load(xr->scale + i * KM_VF);
            vf by = q16_spread(&eight, v * KM_QG, 1);
            KM_UNROLL
            for (int o = 0; o < outs; o++) {
                const float *scale = w[o * ldw].scale;
                if (k.halves) {
                    vi sum = planes_of(k, planes, &c[o][0], &xc[0], &xl[0], 1);
                    vi more = planes_of(k, planes, &c[o][1], &xc[1], &xl[1], 1);
                    vf one = by * v_load(scale + 2 * v * KM_VF);
                    vf two = by * v_load(scale + (2 * v + 1) * KM_VF);
                    acc[r][o] = v_fma(vi_to_float(sum), one, acc[r][o]);
                    acc[r][o] = v_fma(vi_to_float(more), two, acc[r][o]);
                } else {
                    vi sum = planes_of(k, planes, c[o], xc, xl, 2);
                    acc[r][o] = v_fma(vi_to_float(sum), by * v_load(scale + v * KM_VF), acc[r][o]);
                }
            }
        }
    }
    if (!k.least) return;
    KM_UNROLL
    for (int r = 0; r < n; r++) {
        const float *sums = k.halves ? x[r * ldx].half : x[r * ldx].sum;
        KM_UNROLL
        for (int i = 0; i < KM_Q16; i++)
            if (k.halves || i < KM_Q8) KM_UNROLL
        for (int o = 0; o < outs; o++)
            acc[r][o] =
                v_fma(v_load(w[o * ldw].least + i * KM_VF), v_load(sums + i * KM_VF), acc[r][o]);
    }
}

#if defined(KM_AVX512)
/* v_reduce_add of eight vectors, addition for addition: halves, quarters and so on of two at a time. */
KM_INLINE __m512 fold_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
KM_INLINE __m512 fold_quarters(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
KM_INLINE void put_sums(vf acc[ROWS][OUTS], const int n, const int outs, float *y, int64_t ldy) {
    __m512 col[OUTS];
    KM_UNROLL
    for (int o = 0; o < OUTS; o++)
        col[o] = fold_quarters(fold_halves((__m512)acc[0][o], (__m512)acc[1][o]),
                               fold_halves((__m512)acc[2][o], (__m512)acc[3][o]));
    __m512 pair = _mm512_add_ps(_mm512_shuffle_ps(col[0], col[1], 0x44),
                                _mm512_shuffle_ps(col[0], col[1], 0xee));
    pair = _mm512_add_ps(pair, _mm512_movehdup_ps(pair)); /* 0 and 2 of each row's four */
    float all[16];
    _mm512_storeu_ps(all, pair);
    for (int r = 0; r < n; r++)
        for (int o = 0; o < outs; o++) y[r * ldy + o] = all[4 * r + 2 * o];
}
#else
KM_INLINE void put_sums(vf acc[ROWS][OUTS], const int n, const int outs, float *y, int64_t ldy) {
    for (int r = 0; r < n; r++)
        for (int o = 0; o < outs; o++) y[r * ldy + o] = v_reduce_add(acc[r][o]);
}
#endif

/* `outs` outputs and n rows: y[r * ldy + o]. */
KM_INLINE void meet_block(const apart_kind k, const bool planes, const km_quant_apart *w,
                          int64_t len, const int outs, const km_quant_x *x, const km_quant_low *low,
                          int64_t ldx, const int n, float *y, int64_t ldy) {
    int64_t whole = len / KM_QUANT_STEP, steps = km_quant_steps(len);
    vf acc[ROWS][OUTS];
    KM_UNROLL
    for (int i = 0; i < ROWS * OUTS; i++) acc[i / OUTS][i % OUTS] = v_zero();
    for (int64_t s = 0; s < whole; s++)
        meet_step(k, planes, w + s, steps, outs, KM_QV, x + s, low + s, ldx, n, acc);
    if (whole < steps)
        meet_step(k, planes, w + whole, steps, outs, vectors_of((int)(len % KM_QUANT_STEP / 32)),
                  x + whole, low + whole, ldx, n, acc);
    put_sums(acc, n, outs, y, ldy);
}

/* What is needed soon: the weights that are taken apart next, and the next rows of x, which another
 * core has made (fetching them one by one as they are used would cost a fifth of the time). */
typedef struct soon {
    const void *at;
    int64_t bytes;
} soon;

/* The share of it that goes with outputs o on, of `outs`. */
KM_INLINE void fetch_soon(soon s, int64_t o, int64_t outs) {
    int64_t each = (s.bytes * OUTS / outs + 63) / 64 * 64, from = o / OUTS * each;
    for (int64_t i = from; i < from + each && i < s.bytes; i += 64)
        KM_FETCH((const char *)s.at + i);
}

KM_INLINE void meet_outs(const apart_kind k, const bool planes, const km_quant_apart *w,
                         int64_t len, int64_t outs, const km_quant_x *x, const km_quant_low *low,
                         int64_t ldx, const int n, const soon ahead[3], float *y, int64_t ldy) {
    int64_t steps = km_quant_steps(len), o = 0;
    for (; o + OUTS <= outs; o += OUTS) {
        for (int i = 0; i < 3; i++) fetch_soon(ahead[i], o, outs);
        meet_block(k, planes, w + o * steps, len, OUTS, x, low, ldx, n, y + o, ldy);
    }
    for (; o < outs; o++) meet_block(k, planes, w + o * steps, len, 1, x, low, ldx, n, y + o, ldy);
}

/* Four rows are near while all outputs pass by. */
KM_INLINE void meet_rows(const apart_kind k, const bool planes, const km_quant_apart *w,
                         int64_t len, int64_t outs, const km_quant_rows *x, const uint8_t *next,
                         int64_t bytes, float *y, int64_t ldy) {
    const km_quant_low nothing[1] = {{{0}}};
    for (int64_t r = 0, n; r < x->rows; r += n) {
        const km_quant_x *at = x->x + r * x->ldx;
        const km_quant_low *low = planes ? x->low + r * x->ldx : nothing;
        n = x->rows - r >= ROWS ? ROWS : KM_FEWER_COPIES ? 1 : x->rows - r;
        float *to = y + r * ldy;
        int64_t left = x->rows - r - n, more = (left < ROWS ? left : ROWS) * x->ldx;
        const soon ahead[3] = {{next, r == 0 && next ? outs * bytes : 0},
                               {at + n * x->ldx, more * (int64_t)sizeof *at},
                               {low + n * x->ldx, planes ? more * (int64_t)sizeof *low : 0}};
        switch (n) {
        case ROWS: meet_outs(k, planes, w, len, outs, at, low, x->ldx, ROWS, ahead, to, ldy); break;
#if ROWS == 4 && !KM_FEWER_COPIES
        case 3: meet_outs(k, planes, w, len, outs, at, low, x->ldx, 3, ahead, to, ldy); break;
        case 2: meet_outs(k, planes, w, len, outs, at, low, x->ldx, 2, ahead, to, ldy); break;
#endif
        default: meet_outs(k, planes, w, len, outs, at, low, x->ldx, 1, ahead, to, ldy); break;
        }
    }
}

#define MEET_OF(name, halves_, wide_, least_)                                                      \
    static void meet_##name(const km_quant_apart *w, int64_t len, int64_t outs,                    \
                            const km_quant_rows *x, const uint8_t *next, int64_t bytes, float *y,  \
                            int64_t ldy) {                                                         \
        const apart_kind k = {.halves = halves_, .wide = wide_, .least = least_};                  \
        if (KM_FEWER_COPIES)                                                                       \
            meet_rows(k, x->low != NULL, w, len, outs, x, next, bytes, y, ldy);                    \
        else if (x->low)                                                                           \
            meet_rows(k, true, w, len, outs, x, next, bytes, y, ldy);                              \
        else                                                                                       \
            meet_rows(k, false, w, len, outs, x, next, bytes, y, ldy);                             \
    }
MEET_OF(groups, false, false, true)
MEET_OF(halves, true, false, true)
MEET_OF(wide, false, true, KM_WIDE_OFFSET != 0)

void KM_SIMD(km_quant_meet)(km_dtype d, const km_quant_apart *w, int64_t n, int64_t outs,
                            const km_quant_rows *x, const uint8_t *next, int64_t bytes, float *y,
                            int64_t ldy) {
    if (by_halves(d))
        meet_halves(w, n, outs, x, next, bytes, y, ldy);
    else if (is_wide(d))
        meet_wide(w, n, outs, x, next, bytes, y, ldy);
    else
        meet_groups(w, n, outs, x, next, bytes, y, ldy);
}

#define APART_OF(d, name)                                                                          \
    static void apart_##name(const uint8_t *w, const uint8_t *end, int64_t bytes, int64_t n,       \
                             int64_t outs, km_quant_apart *p) {                                    \
        unpack_of(d, w, end, bytes, n, outs, p);                                                   \
    }
KM_QUANT_TYPES(APART_OF)

void KM_SIMD(km_quant_take_apart)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                                  int64_t n, int64_t outs, km_quant_apart *p) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: apart_##name(w, end, bytes, n, outs, p); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}
