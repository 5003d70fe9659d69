/* Making a trial call's inputs: memory filled with the values asked for, and the view of it that
 * the case's layout means. */
#include "ops/cases.h"
#include "base/rng.h"
#include "tensor/quant.h"
#include <float.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static km_shape base_shape(const km_case_in *in) {
    km_shape s = in->shape;
    int last = s.ndim - 1;
    int64_t swap;
    switch (in->layout) {
    case KM_L_TURNED:
        if (last < 1) break;
        swap = s.dim[last];
        s.dim[last] = s.dim[last - 1];
        s.dim[last - 1] = swap;
        break;
    case KM_L_STEP: s.dim[last] = 2 * s.dim[last] + 1; break;
    case KM_L_OFFSET: s.dim[0] += 3; break;
    case KM_L_REPEAT: s.dim[0] = s.dim[0] ? 1 : 0; break;
    case KM_L_HEADS:
        swap = s.dim[1];
        s.dim[1] = s.dim[2];
        s.dim[2] = swap;
        break;
    case KM_L_PLAIN:
    case KM_L_BACK: break;
    }
    return s;
}

km_tensor *km_case_view(km_ctx *ctx, const km_case *c, int i, km_tensor *base) {
    const km_case_in *in = &c->in[i];
    if (!base) return NULL;
    switch (in->layout) {
    case KM_L_TURNED: return in->shape.ndim < 2 ? base : km_transpose(ctx, base, -1, -2);
    case KM_L_STEP: return km_slice(ctx, base, -1, 1, km_tensor_dim(base, -1), 2);
    case KM_L_OFFSET: return km_narrow(ctx, base, 0, 2, in->shape.dim[0]);
    case KM_L_REPEAT: return km_broadcast(ctx, base, in->shape);
    case KM_L_HEADS: return km_transpose(ctx, base, 1, 2);
    case KM_L_BACK: return km_slice(ctx, base, -1, -1, KM_END, -1);
    case KM_L_PLAIN: break;
    }
    return base;
}

/* ---- Values ---- */

static double special(uint32_t word, double ordinary, km_dtype d) {
    double big = d == KM_F16 ? 65504 : FLT_MAX, small = d == KM_F16 ? 0x1p-14 : FLT_MIN;
    const double list[] = {0.0,    -0.0,  1.0,    -1.0,      INFINITY,   -INFINITY, NAN,     big,
                           -big,   small, -small, small / 4, -small / 4, 88.7,      -88.7,   103.9,
                           -103.9, 1e-20, 1e20,   -1e20,     0.5,        -0.5,      3.14159, 100,
                           -100,   1e4,   8.5,    -8.5,      20,         -20,       1e-4,    -1e-4};
    unsigned pick = (word >> 3) % 48;
    return pick < sizeof list / sizeof *list ? list[pick] : ordinary;
}

/* Normal numbers come from a table, moved a little so that no two are the same: logarithms and cosines
 * of every element took a third of a run. */
enum { NORMALS = 1024 };
static double normals[NORMALS];
static pthread_once_t normals_once = PTHREAD_ONCE_INIT;

static void make_normals(void) {
    for (uint64_t i = 0; i < NORMALS; i += 2) {
        km_philox4 r = km_philox(0, 0, i);
        km_box_muller(r.v[0], r.v[1], &normals[i], &normals[i + 1]);
    }
}

static double normal(km_philox4 r) {
    return normals[r.v[0] % NORMALS] + 0.02 * (km_u32_to_unit(r.v[1]) - 0.5);
}

static double draw(const km_case_in *in, km_dtype d, uint64_t seed, uint64_t stream, int64_t i) {
    km_philox4 r = km_philox(seed, stream, (uint64_t)i);
    double n0 = normal(r), u = km_u32_to_unit(r.v[2]);
    switch (in->values) {
    case KM_V_POSITIVE: return 0.2 + 2 * u;
    case KM_V_NONZERO: return (0.3 + 2 * u) * (r.v[3] & 1u ? 1 : -1);
    case KM_V_UNIT: return u;
    case KM_V_OFFSET: return 1000 + n0;
    case KM_V_SPECIAL: return special(r.v[3], n0, d);
    case KM_V_LOW: return r.v[3] % 4 == 0 ? -INFINITY : n0;
    case KM_V_INDEX: return (double)(r.v[3] % (uint64_t)(in->limit > 0 ? in->limit : 1));
    case KM_V_BOOL: return r.v[3] & 1u;
    default: return n0;
    }
}

/* Integers get whole numbers that no op here overflows on. */
static int64_t draw_int(const km_case_in *in, km_dtype d, uint64_t seed, uint64_t stream,
                        int64_t i) {
    if (in->values == KM_V_INDEX || in->values == KM_V_BOOL)
        return (int64_t)draw(in, d, seed, stream, i);
    km_philox4 r = km_philox(seed, stream, (uint64_t)i);
    int64_t v = (int64_t)(r.v[0] % 10) + (in->values == KM_V_NORMAL ? 0 : 1);
    return d != KM_U8 && (r.v[1] & 1u) && in->values != KM_V_POSITIVE ? -v : v;
}

static void store(void *base, km_dtype d, int64_t i, double v, int64_t whole) {
    switch (d) {
    case KM_F32: ((float *)base)[i] = (float)v; break;
    case KM_F64: ((double *)base)[i] = v; break;
    case KM_F16: ((uint16_t *)base)[i] = km_f32_to_f16((float)v); break;
    case KM_BF16: ((uint16_t *)base)[i] = km_f32_to_bf16((float)v); break;
    case KM_I32: ((int32_t *)base)[i] = (int32_t)whole; break;
    case KM_I64: ((int64_t *)base)[i] = whole; break;
    case KM_U8: ((uint8_t *)base)[i] = (uint8_t)whole; break;
    case KM_I8: ((int8_t *)base)[i] = (int8_t)whole; break;
    default: ((uint8_t *)base)[i] = (uint8_t)(whole & 1); break;
    }
}

/* Encoding takes long: a large tensor has a few blocks of its own, which stand in the rest of it in no
 * order. */
static void store_blocks(char *base, km_dtype d, int64_t n, const km_case_in *in, uint64_t seed,
                         uint64_t stream) {
    int64_t block = km_dtype_block(d), own = 8192;
    size_t bytes = km_dtype_bytes(d, block);
    for (int64_t k = 0; k < n; k += block) {
        char *to = base + km_dtype_bytes(d, k);
        float v[256];
        if (k >= own) {
            uint64_t pick = km_philox(seed, stream, (uint64_t)k).v[0] % (uint64_t)(own / block);
            memcpy(to, base + pick * bytes, bytes);
            continue;
        }
        for (int64_t e = 0; e < block; e++) v[e] = (float)draw(in, KM_F32, seed, stream, k + e);
        km_quantise(d, v, NULL, block, to);
    }
}

km_tensor *km_case_base(km_ctx *ctx, const km_case *c, int i, km_dtype dtype, uint64_t seed) {
    const km_case_in *in = &c->in[i];
    if (km_failed(ctx) || in->absent || in->values == KM_V_DERIVED) return NULL;
    km_dtype d = in->dtype < 0 ? dtype : (km_dtype)in->dtype;
    if (dtype == KM_F64 && d == KM_F32) d = KM_F64; /* a float of fixed type follows the case */
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    km_tensor *t = lane ? km_tensor_new(ctx, lane, "case", d, base_shape(in)) : NULL;
    if (!t) return NULL;
    int64_t n = km_shape_count(t->shape), block = km_dtype_block(d);
    uint64_t stream = (uint64_t)c->op * 16 + (uint64_t)i;
    pthread_once(&normals_once, make_normals);
    if (block > 1) store_blocks(km_tensor_ptr(t), d, n, in, seed, stream);
    for (int64_t k = 0; k < n && block == 1; k++) {
        if (km_dtype_is_float(d))
            store(km_tensor_ptr(t), d, k, draw(in, d, seed, stream, k), 0);
        else
            store(km_tensor_ptr(t), d, k, 0, draw_int(in, d, seed, stream, k));
    }
    return t;
}

const char *km_case_text(char *buf, size_t size, const km_case *c) {
    static const char *const layouts[] = {"",          " turned", " stepped",  " offset",
                                          " repeated", " heads",  " backwards"};
    static const char *const values[] = {
        [KM_V_OFFSET] = " +1000", [KM_V_SPECIAL] = " special", [KM_V_LOW] = " with -inf"};
    char text[KM_SHAPE_TEXT];
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < c->n_in && at < size; i++) {
        const km_case_in *in = &c->in[i];
        const char *v = in->values <= KM_V_LOW && values[in->values] ? values[in->values] : "";
        int n = in->absent ? snprintf(buf + at, size - at, "%snone", i ? ", " : "")
                           : snprintf(buf + at, size - at, "%s%s%s%s", i ? ", " : "",
                                      km_shape_text(text, in->shape), layouts[in->layout], v);
        at += n > 0 ? (size_t)n : 0;
    }
    if (c->n_in == 0) snprintf(buf, size, "%s", km_shape_text(text, c->p.shape));
    return buf;
}
