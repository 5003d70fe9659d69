/* Inner loops that turn 16-bit floats to f32 and back, copy, fill and transpose. */
#include "backend/cpu/simd/convert.h"
#include "backend/cpu/simd/map.h"

KM_INLINE vh vh_load_m(const uint16_t *p, int64_t m) {
    return __builtin_constant_p(m) && m == KM_VF ? vh_load(p) : vh_load_n(p, m);
}

static void from_f16(float *out, const uint16_t *x, int64_t n, bool stream) {
    KM_MAP(out, n, stream, KM_FETCH(x + i), v_from_f16(vh_load_m(x + i, m)));
}

static void from_bf16(float *out, const uint16_t *x, int64_t n, bool stream) {
    KM_MAP(out, n, stream, KM_FETCH(x + i), v_from_bf16(vh_load_m(x + i, m)));
}

/* The loop of map.h, for half as wide an output. */
#define NARROW(out, n, stream, value)                                                              \
    do {                                                                                           \
        int64_t i = 0, m = KM_VF;                                                                  \
        if (stream) {                                                                              \
            m = (int64_t)((0 - (uintptr_t)(out) / sizeof *(out)) % KM_VF);                         \
            if (m > (n)) m = (n);                                                                  \
            if (m > 0) vh_store_n((out), value, m);                                                \
            for (i = m, m = KM_VF; i + KM_VF <= (n); i += KM_VF) vh_stream((out) + i, value);      \
        }                                                                                          \
        for (; i + KM_VF <= (n); i += KM_VF) vh_store((out) + i, value);                           \
        m = (n)-i;                                                                                 \
        if (m > 0) vh_store_n((out) + i, value, m);                                                \
    } while (0)

static void to_f16(uint16_t *out, const float *x, int64_t n, bool stream) {
    NARROW(out, n, stream, v_to_f16(v_load_m(x + i, m)));
}

static void to_bf16(uint16_t *out, const float *x, int64_t n, bool stream) {
    NARROW(out, n, stream, v_to_bf16(v_load_m(x + i, m)));
}

static void copy(float *out, const float *x, int64_t n, bool stream) {
    KM_MAP(out, n, stream, KM_FETCH(x + i), v_load_m(x + i, m));
}

static void fill(float *out, float value, int64_t n, bool stream) {
    vf v = v_set1(value);
    KM_MAP_LONG(out, n, stream, (void)0, v);
}

/* A block of KM_VF columns of out by 16 rows: a line of each of x's rows is read, one of each of
 * out's written. Each quarter is 4 x 4 matrices side by side, in the 128 bits of four vectors. */
KM_INLINE void transpose_block(float *out, int64_t so, const float *x, int64_t sx, bool stream) {
    for (int r = 0; r < 16; r += 4) {
        vf v[4];
        for (int k = 0; k < 4; k++) v[k] = v_load_quads(x + k * sx + r, 4 * sx);
        v_transpose4(v);
        for (int k = 0; k < 4; k++) {
            if (stream)
                v_stream(out + (r + k) * so, v[k]);
            else
                v_store(out + (r + k) * so, v[k]);
        }
    }
}

static void transpose(float *out, int64_t so, const float *x, int64_t sx, int64_t down,
                      int64_t wide, bool stream) {
    int64_t full_down = down - down % 16, full_wide = wide - wide % KM_VF;
    /* Streaming pays where a vector is a whole line. */
    bool lines = stream && KM_VF == 16 && (uintptr_t)out % 64 == 0 && so % 16 == 0;
    for (int64_t c = 0; c < full_wide; c += KM_VF) {
        for (int64_t r = 0; r < full_down; r += 16) {
            for (int k = 0; k < KM_VF; k++) KM_FETCH(x + (c + KM_VF + k) * sx + r);
            if (lines)
                transpose_block(out + r * so + c, so, x + c * sx + r, sx, true);
            else
                transpose_block(out + r * so + c, so, x + c * sx + r, sx, false);
        }
    }
    for (int64_t r = 0; r < down; r++)
        for (int64_t c = r < full_down ? full_wide : 0; c < wide; c++)
            out[r * so + c] = x[c * sx + r];
}

const km_convert_rows KM_SIMD(km_simd_convert) = {
    .from_f16 = from_f16,
    .from_bf16 = from_bf16,
    .to_f16 = to_f16,
    .to_bf16 = to_bf16,
    .copy = copy,
    .fill = fill,
    .transpose = transpose,
};
