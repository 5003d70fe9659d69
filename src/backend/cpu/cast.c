/* Converting elements between any two dtypes: a block at a time through int64 or double, either
 * of which holds every value of the dtypes it is used for. f32 and 16-bit floats, the pairs that
 * matter for speed, go directly. */
#include "backend/cpu/cast.h"
#include "backend/cpu/stage.h"
#include <math.h>

int64_t km_cast_to_int(km_dtype d, double v) {
    int64_t lo = INT64_MIN, hi = INT64_MAX;
    switch (d) {
    case KM_BOOL: return v != 0;
    case KM_I32:
        lo = INT32_MIN;
        hi = INT32_MAX;
        break;
    case KM_U8:
        lo = 0;
        hi = UINT8_MAX;
        break;
    case KM_I8:
        lo = INT8_MIN;
        hi = INT8_MAX;
        break;
    default: break;
    }
    if (isnan(v)) return 0;
    if (v <= (double)lo) return lo;
    if (v >= (double)hi) return hi; /* (double)INT64_MAX is 2^63: all below it fits */
    return (int64_t)v;
}

/* A double that rounds to any narrower float as the integer itself would: bits beyond the 53rd
 * are folded into the lowest one kept, far below what those floats keep. */
static double sticky(int64_t v) {
    const int64_t low = 0x7ff, exact = INT64_C(1) << 53;
    if (v > -exact && v < exact) return (double)v;
    return (double)((v & ~low) | (v & low ? low + 1 : 0));
}

#define EACH(T, p, value)                                                                          \
    {                                                                                              \
        T *o = p;                                                                                  \
        for (int64_t i = 0; i < n; i++) o[i * so] = (T)(value);                                    \
        break;                                                                                     \
    }

void km_cast_doubles(km_dtype to, void *out, int64_t so, const double *x, int64_t n) {
    switch (to) {
    case KM_F32: EACH(float, out, x[i])
    case KM_F64: EACH(double, out, x[i])
    case KM_F16: EACH(uint16_t, out, km_f32_to_f16(km_f64_to_f32_odd(x[i])))
    case KM_BF16: EACH(uint16_t, out, km_f32_to_bf16(km_f64_to_f32_odd(x[i])))
    case KM_I32: EACH(int32_t, out, km_cast_to_int(KM_I32, x[i]))
    case KM_I64: EACH(int64_t, out, km_cast_to_int(KM_I64, x[i]))
    case KM_U8: EACH(uint8_t, out, km_cast_to_int(KM_U8, x[i]))
    case KM_I8: EACH(int8_t, out, km_cast_to_int(KM_I8, x[i]))
    default: EACH(uint8_t, out, x[i] != 0)
    }
}

static void from_ints(km_dtype to, void *out, int64_t so, const int64_t *x, int64_t n) {
    switch (to) {
    case KM_F32: EACH(float, out, x[i])
    case KM_F64: EACH(double, out, x[i])
    case KM_F16: EACH(uint16_t, out, km_f32_to_f16(km_f64_to_f32_odd(sticky(x[i]))))
    case KM_BF16: EACH(uint16_t, out, km_f32_to_bf16(km_f64_to_f32_odd(sticky(x[i]))))
    case KM_I32: EACH(int32_t, out, (uint32_t)x[i])
    case KM_I64: EACH(int64_t, out, x[i])
    case KM_U8: EACH(uint8_t, out, x[i])
    case KM_I8: EACH(int8_t, out, (uint8_t)x[i])
    default: EACH(uint8_t, out, x[i] != 0)
    }
}

#define LOAD(T, value)                                                                             \
    {                                                                                              \
        const T *p = x;                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T v = p[i * sx];                                                                       \
            out[i] = value;                                                                        \
        }                                                                                          \
        break;                                                                                     \
    }

static void load_ints(int64_t *out, km_dtype from, const void *x, int64_t sx, int64_t n) {
    switch (from) {
    case KM_I32: LOAD(int32_t, v)
    case KM_I64: LOAD(int64_t, v)
    case KM_U8: LOAD(uint8_t, v)
    case KM_I8: LOAD(int8_t, v)
    default: LOAD(uint8_t, v != 0)
    }
}

static void load_doubles(double *out, km_dtype from, const void *x, int64_t sx, int64_t n) {
    switch (from) {
    case KM_F32: LOAD(float, (double)v)
    case KM_F16: LOAD(uint16_t, (double)km_f16_to_f32(v))
    case KM_BF16: LOAD(uint16_t, (double)km_bf16_to_f32(v))
    default: LOAD(double, v)
    }
}

#define MOVE(T)                                                                                    \
    do {                                                                                           \
        T *o = out;                                                                                \
        const T *p = x;                                                                            \
        if (so == 1 && sx == 1)                                                                    \
            memmove(o, p, (size_t)n * sizeof *o);                                                  \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) o[i * so] = p[i * sx];                                 \
    } while (0)

static void move(size_t size, void *out, int64_t so, const void *x, int64_t sx, int64_t n) {
    switch (size) {
    case 1: MOVE(uint8_t); break;
    case 2: MOVE(uint16_t); break;
    case 4: MOVE(uint32_t); break;
    default: MOVE(uint64_t); break;
    }
}

static void cast_block(km_dtype to, void *out, int64_t so, km_dtype from, const void *x, int64_t sx,
                       int64_t n) {
    union {
        float f32[2][KM_STAGE];
        double f64[KM_STAGE];
        int64_t i64[KM_STAGE];
    } b;
    if (km_stageable(from) && km_stageable(to)) {
        const float *v = km_stage_in(from, x, sx, n, b.f32[0]);
        float *at = km_stage_at(to, out, so, b.f32[1]);
        if (at == out)
            memcpy(at, v, (size_t)n * sizeof *at);
        else
            at = (float *)v;
        km_stage_out(to, out, so, n, at, false);
    } else if (km_dtype_is_float(from)) {
        load_doubles(b.f64, from, x, sx, n);
        km_cast_doubles(to, out, so, b.f64, n);
    } else {
        load_ints(b.i64, from, x, sx, n);
        from_ints(to, out, so, b.i64, n);
    }
}

void km_cast_run(km_dtype to, void *out, int64_t so, km_dtype from, const void *x, int64_t sx,
                 int64_t n) {
    if (to == from) {
        move(km_dtype_size(to), out, so, x, sx, n);
        return;
    }
    int64_t out_step = so * (int64_t)km_dtype_size(to), x_step = sx * (int64_t)km_dtype_size(from);
    for (int64_t i = 0; i < n; i += KM_STAGE)
        cast_block(to, (char *)out + i * out_step, so, from, (const char *)x + i * x_step, sx,
                   n - i < KM_STAGE ? n - i : KM_STAGE);
}
