/* Inner loops that turn 16-bit floats to f32 and back, and fill. */
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
        m = (n) - i;                                                                               \
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

const km_convert_rows KM_SIMD(km_simd_convert) = {
    .from_f16 = from_f16,
    .from_bf16 = from_bf16,
    .to_f16 = to_f16,
    .to_bf16 = to_bf16,
    .copy = copy,
    .fill = fill,
};
