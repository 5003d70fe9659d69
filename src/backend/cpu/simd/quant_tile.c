/* Many rows of x against weights in blocks. Rows of weights are unpacked 32 at a time, into bytes
 * laid out for products of four elements with each of 32 outputs, and stay in the nearest cache
 * while all rows of x pass by: unpacking is paid once, and the sums of a tile stay in registers.
 *
 * With AVX-512 and VNNI a tile is 6 rows of x and two vectors of outputs. The floor for 32 elements
 * of one row with 32 outputs (1024 multiply-adds): 16 products, and for each vector a conversion,
 * the product of the scales and two additions, 24 instructions on two ports: 12 cycles. They need 8
 * loads of four elements of x, and 10 of scales and weights. */
#include "backend/cpu/simd/quant_codes.h"

#define OUTS KM_QUANT_OUTS
/* Rows and vectors of a tile: two sums each, of products and of scaled products, fill the registers;
 * without VNNI a third. */
#if defined(KM_AVX512) && defined(KM_VNNI)
#define TILE 6
#define WIDE 2
#elif defined(KM_AVX512) || defined(__aarch64__)
#define TILE 4
#define WIDE 2
#else
#define TILE 4
#define WIDE 1
#endif

/* ---- Unpacking ---- */

/* The codes of a step of four rows of weights to their places: outputs o to o + 3. */
KM_INLINE void interleave(uint8_t codes[4][256], km_quant_panel *panel, int o) {
    for (int at = 0; at < 64; at += KM_VF) { /* in units of four codes */
        vf v[4];
        for (int r = 0; r < 4; r++) memcpy(&v[r], codes[r] + 4 * at, sizeof v[r]);
        v_transpose4(v);
        for (int c = 0; c < 4; c++) {
            uint8_t quads[KM_QG][16];
            memcpy(quads, &v[c], sizeof quads);
            for (int q = 0; q < KM_QG; q++) {
                int p = at + 4 * q; /* see km_quant_place */
                memcpy(panel->code[p / 32 * 4 + p / 4 % 4][p / 16 % 2 * 4 + c][o], quads[q], 16);
            }
        }
    }
}

KM_INLINE void unpack_step(const km_dtype d, const uint8_t *b, int valid, uint8_t *codes,
                           km_quant_panel *panel, int o) {
    q16 scale, least;
    float s[16], l[16];
    step_scales(d, b, valid, &scale, &least);
    memcpy(s, &scale, sizeof s);
    memcpy(l, &least, sizeof l);
    for (int i = 0; i < (by_halves(d) ? 16 : 8); i++) {
        panel->scale[i][o] = s[i];
        panel->least[i][o] = l[i];
    }
    KM_UNROLL
    for (int v = 0; v < KM_QV; v++) {
        vb c[2];
        int at = v * KM_QG / 4 * 128 + v * KM_QG % 4 * 16;
        step_codes(d, b, v, c);
        memcpy(codes + at, &c[0], sizeof c[0]);
        memcpy(codes + at + 64, &c[1], sizeof c[1]);
    }
}

KM_INLINE void unpack_of(const km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                         int outs, km_quant_panel *panel) {
    uint8_t codes[4][256], room[8 * 34];
    for (int64_t at = 0; at < n; at += KM_QUANT_STEP, w += step_bytes(d), panel++) {
        int valid = n - at < KM_QUANT_STEP ? (int)(n - at) / 32 : 8;
        for (int o = 0; o < (outs + 3) / 4 * 4; o++) {
            const uint8_t *b = w + (o < outs ? o : 0) * bytes;
            if (valid < 8) { /* the blocks behind it would be read, too */
                memset(room, 0, sizeof room);
                memcpy(room, b, (size_t)(valid * (step_bytes(d) / 8)));
                b = room;
            }
            unpack_step(d, b, valid, codes[o % 4], panel, first + o);
            if (o % 4 == 3) interleave(codes, panel, first + o - 3);
        }
    }
}

/* ---- Multiplying ---- */

/* How many products of pairs of bytes fit into 16 bits together, where they are made so. */
KM_INLINE int pairs_together(const km_dtype d) {
    switch (d) {
    case KM_Q4_0:
    case KM_Q4_1:
    case KM_Q4_K:
    case KM_Q2_K:
    case KM_Q3_K: return 8;
    case KM_Q5_0:
    case KM_Q5_1:
    case KM_Q5_K:
    case KM_MXFP4: return 4;
    case KM_Q6_K: return 2;
    default: return 1;
    }
}

/* The products of one group (or half of one, when h says so) for n rows of x, added to sum. x: where
 * the first row's codes are, rows being `apart` bytes apart. */
KM_INLINE void group_products(const km_dtype d, const uint8_t *w, const int8_t *x, int64_t apart,
                              const int n, vi sum[TILE][WIDE]) {
    const int fours = by_halves(d) ? 4 : 8;
#if (defined(KM_AVX2) || defined(KM_AVX512)) && !defined(KM_VNNI)
    const int together = pairs_together(d) < fours ? pairs_together(d) : fours;
    const bool pairs = !is_wide(d);
    vi few[TILE][WIDE];
    KM_UNROLL
    for (int i = 0; i < n * WIDE; i++) few[i / WIDE][i % WIDE] = (vi){0};
#else
    const bool pairs = false;
#endif
    KM_UNROLL
    for (int i = 0; i < fours; i++) {
        vb wv[WIDE];
        KM_UNROLL
        for (int v = 0; v < WIDE; v++) wv[v] = vb_load(w + (i * OUTS + v * KM_VF) * 4);
        KM_UNROLL
        for (int r = 0; r < n; r++) {
            vb xv = vb_four(x + r * apart + i % 4 * 4 + i / 4 * 64);
            KM_UNROLL
            for (int v = 0; v < WIDE; v++) {
                if (!pairs) sum[r][v] = vi_dot(sum[r][v], wv[v], xv, is_wide(d));
#if (defined(KM_AVX2) || defined(KM_AVX512)) && !defined(KM_VNNI)
                else
                    few[r][v] = vi_add_pairs(few[r][v], wv[v], xv);
                if (pairs && i % together == together - 1) {
                    sum[r][v] += vi_join_pairs(few[r][v]);
                    few[r][v] = (vi){0};
                }
#endif
            }
        }
    }
}

/* n rows of x against WIDE vectors of outputs, of which the first is o. */
KM_INLINE void tile_rows(const km_dtype d, const km_quant_panel *panel, int64_t steps, const int o,
                         const km_quant_x *x, const km_quant_low *low, int64_t ldx, const int n,
                         bool add, float *y, int64_t ldy) {
    (void)low; /* a second plane: only where there is no kernel for words */
    const int halves = by_halves(d) ? 2 : 1;
    vf acc[TILE][WIDE];
    KM_UNROLL
    for (int i = 0; i < n * WIDE; i++)
        acc[i / WIDE][i % WIDE] =
            add ? v_load(y + i / WIDE * ldy + o + i % WIDE * KM_VF) : v_zero();
    for (int64_t s = 0; s < steps; s++, panel++, x++) {
        for (int gh = 0; gh < 8 * halves; gh++) {
            const int g = gh / halves, h = gh % halves;
            const int at = g / 4 * 128 + g % 4 * 16 + h * 64;
            const uint8_t *w = panel->code[g][h * 4][o];
            vi sum[TILE][WIDE];
            KM_UNROLL
            for (int i = 0; i < n * WIDE; i++) sum[i / WIDE][i % WIDE] = (vi){0};
            group_products(d, w, x->code + at, ldx * (int64_t)sizeof *x, n, sum);
#ifdef __ARM_FEATURE_DOTPROD
            if (low) {
                for (int i = 0; i < n * WIDE; i++)
                    sum[i / WIDE][i % WIDE] = vi_shift_up(sum[i / WIDE][i % WIDE]);
                group_products(d, w, low[s].code + at, ldx * (int64_t)sizeof *low, n, sum);
            }
#endif
            KM_UNROLL
            for (int i = 0; i < n * WIDE; i++) {
                const int r = i / WIDE, v = i % WIDE;
                const km_quant_x *xr = x + r * ldx;
                vf scale = v_load(panel->scale[gh] + o + v * KM_VF) * v_set1(xr->scale[g]);
                acc[r][v] = v_fma(vi_to_float(sum[r][v]), scale, acc[r][v]);
                if (has_least(d) || offset_of(d))
                    acc[r][v] = v_fma(v_load(panel->least[gh] + o + v * KM_VF),
                                      v_set1(halves == 2 ? xr->half[gh] : xr->sum[g]), acc[r][v]);
            }
        }
    }
    KM_UNROLL
    for (int i = 0; i < n * WIDE; i++)
        v_store(y + i / WIDE * ldy + o + i % WIDE * KM_VF, acc[i / WIDE][i % WIDE]);
}

KM_INLINE void tile_of(const km_dtype d, const km_quant_panel *panel, const km_quant_rows *x,
                       bool add, float *y, int64_t ldy) {
    for (int64_t r = 0; r < x->rows;) {
        const km_quant_x *at = x->x + r * x->ldx;
        const km_quant_low *low = x->low ? x->low + r * x->ldx : NULL;
        int64_t n = x->rows - r >= TILE ? TILE : 1;
        for (int o = 0; o < OUTS; o += WIDE * KM_VF) {
            float *yr = y + r * ldy;
            if (n == TILE)
                tile_rows(d, panel, x->steps, o, at, low, x->ldx, TILE, add, yr, ldy);
            else
                tile_rows(d, panel, x->steps, o, at, low, x->ldx, 1, add, yr, ldy);
        }
        r += n;
    }
}

/* ---- One function for each type ---- */

#define OF_TYPE(d, name)                                                                           \
    static void unpack_##name(const uint8_t *w, int64_t bytes, int64_t n, int first, int outs,     \
                              km_quant_panel *panel) {                                             \
        unpack_of(d, w, bytes, n, first, outs, panel);                                             \
    }                                                                                              \
    static void tile_##name(const km_quant_panel *panel, const km_quant_rows *x, bool add,         \
                            float *y, int64_t ldy) {                                               \
        tile_of(d, panel, x, add, y, ldy);                                                         \
    }
KM_QUANT_TYPES(OF_TYPE)

void KM_SIMD(km_quant_unpack)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                              int outs, km_quant_panel *panel) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: unpack_##name(w, bytes, n, first, outs, panel); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}

void KM_SIMD(km_quant_tile)(km_dtype d, const km_quant_panel *panel, const km_quant_rows *x,
                            bool add, float *y, int64_t ldy) {
    switch (d) {
#define CASE(d_, name)                                                                             \
    case d_: tile_##name(panel, x, add, y, ldy); break;
        KM_QUANT_TYPES(CASE)
#undef CASE
    default: break;
    }
}
