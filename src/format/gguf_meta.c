/* GGUF metadata: values taken from the file's bytes, arrays walked, keys read with their type and
 * range checked. Lengths are compared with what is left before anything is touched. */
#include "format/gguf_meta.h"
#include "base/shown.h"
#include <math.h>
#include <string.h>

#define MAX_DEPTH 8 /* of arrays in arrays */

static const struct {
    const char *name;
    size_t size;
} types[KM_GGUF_TYPE_COUNT] = {
    [KM_GGUF_U8] = {"u8", 1},       [KM_GGUF_I8] = {"i8", 1},     [KM_GGUF_U16] = {"u16", 2},
    [KM_GGUF_I16] = {"i16", 2},     [KM_GGUF_U32] = {"u32", 4},   [KM_GGUF_I32] = {"i32", 4},
    [KM_GGUF_F32] = {"f32", 4},     [KM_GGUF_BOOL] = {"bool", 1}, [KM_GGUF_STRING] = {"string", 0},
    [KM_GGUF_ARRAY] = {"array", 0}, [KM_GGUF_U64] = {"u64", 8},   [KM_GGUF_I64] = {"i64", 8},
    [KM_GGUF_F64] = {"f64", 8},
};

const char *km_gguf_type_name(km_gguf_type type) {
    return (unsigned)type < KM_GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

size_t km_gguf_type_size(km_gguf_type type) {
    return (unsigned)type < KM_GGUF_TYPE_COUNT ? types[type].size : 0;
}

/* ---- The cursor ---- */

static bool take(km_gguf_cursor *c, uint64_t n, const uint8_t **data) {
    if (n > (uint64_t)(c->end - c->at)) return false;
    *data = c->at;
    c->at += n;
    return true;
}

static uint64_t little(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    while (n-- > 0) v = v << 8 | p[n];
    return v;
}

bool km_gguf_take_u32(km_gguf_cursor *c, uint32_t *v) {
    const uint8_t *p;
    if (!take(c, 4, &p)) return false;
    *v = (uint32_t)little(p, 4);
    return true;
}

bool km_gguf_take_u64(km_gguf_cursor *c, uint64_t *v) {
    const uint8_t *p;
    if (!take(c, 8, &p)) return false;
    *v = little(p, 8);
    return true;
}

bool km_gguf_take_text(km_gguf_cursor *c, const char **data, size_t *size) {
    km_gguf_cursor was = *c;
    uint64_t n;
    const uint8_t *p;
    if (!km_gguf_take_u64(c, &n)) return false;
    if (!take(c, n, &p)) {
        *c = was;
        return false;
    }
    *data = (const char *)p;
    *size = (size_t)n;
    return true;
}

/* ---- Values ---- */

static const char cut[] = "reaches beyond the end of the file";

static double real_of(const uint8_t *p, size_t size) {
    if (size == 4) {
        uint32_t bits = (uint32_t)little(p, 4);
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    uint64_t bits = little(p, 8);
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

static bool number(const uint8_t *p, km_gguf_value *v, const char **why) {
    size_t size = types[v->type].size;
    switch (v->type) {
    case KM_GGUF_F32:
    case KM_GGUF_F64: v->f = real_of(p, size); return true;
    case KM_GGUF_I8:
    case KM_GGUF_I16:
    case KM_GGUF_I32:
    case KM_GGUF_I64: {
        int shift = 64 - 8 * (int)size;
        v->i = (int64_t)(little(p, size) << shift) >> shift;
        return true;
    }
    case KM_GGUF_BOOL:
        *why = "is a bool that is neither 0 nor 1";
        v->b = p[0] == 1;
        return p[0] <= 1;
    default: v->u = little(p, size); return true;
    }
}

static bool take_value(km_gguf_cursor *c, uint32_t type, km_gguf_value *v, int depth,
                       const char **why);

static bool take_array(km_gguf_cursor *c, km_gguf_array *a, int depth, const char **why) {
    uint32_t type;
    *why = cut;
    if (!km_gguf_take_u32(c, &type) || !km_gguf_take_u64(c, &a->count)) return false;
    if (type >= KM_GGUF_TYPE_COUNT) {
        *why = "is an array of an unknown type";
        return false;
    }
    a->type = (km_gguf_type)type;
    a->data = c->at;
    size_t size = types[type].size;
    if (size) {
        uint64_t bytes;
        const uint8_t *p;
        if (__builtin_mul_overflow(a->count, (uint64_t)size, &bytes) || !take(c, bytes, &p))
            return false;
        for (uint64_t i = 0; a->type == KM_GGUF_BOOL && i < a->count; i++)
            if (p[i] > 1) {
                *why = "holds a bool that is neither 0 nor 1";
                return false;
            }
    } else {
        km_gguf_value item;
        for (uint64_t i = 0; i < a->count; i++)
            if (!take_value(c, type, &item, depth + 1, why)) return false;
    }
    a->bytes = (size_t)(c->at - a->data);
    return true;
}

static bool take_value(km_gguf_cursor *c, uint32_t type, km_gguf_value *v, int depth,
                       const char **why) {
    *v = (km_gguf_value){.type = (km_gguf_type)type};
    if (type >= KM_GGUF_TYPE_COUNT) {
        *why = "has an unknown type";
        return false;
    }
    if (depth > MAX_DEPTH) {
        *why = "nests arrays too deeply";
        return false;
    }
    if (type == KM_GGUF_ARRAY) return take_array(c, &v->array, depth, why);
    *why = cut;
    if (type == KM_GGUF_STRING) return km_gguf_take_text(c, &v->text.data, &v->text.size);
    const uint8_t *p;
    return take(c, types[type].size, &p) && number(p, v, why);
}

bool km_gguf_take_value(km_gguf_cursor *c, uint32_t type, km_gguf_value *v, const char **why) {
    return take_value(c, type, v, 0, why);
}

km_gguf_iter km_gguf_begin(const km_gguf_value *array) {
    if (!array || array->type != KM_GGUF_ARRAY) return (km_gguf_iter){0};
    const km_gguf_array *a = &array->array;
    return (km_gguf_iter){a->type, a->count, a->data, a->data + a->bytes};
}

bool km_gguf_next(km_gguf_iter *it, km_gguf_value *item) {
    const char *why;
    km_gguf_cursor c = {it->at, it->end};
    if (it->left == 0 || !take_value(&c, it->type, item, 0, &why)) return false;
    it->left--;
    it->at = c.at;
    return true;
}

/* ---- Keys read with checks ---- */

static km_status wrong_type(const km_gguf *g, const char *key, const char *want,
                            const km_gguf_value *got, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT, "'%s': %s must be %s, and its type is %s",
                        km_gguf_path(g), key, want, km_gguf_type_name(got->type));
}

km_status km_gguf_int(const km_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *value,
                      km_error *err) {
    const km_gguf_value *v = km_gguf_get(g, key);
    if (!v) return KM_OK;
    int64_t n;
    switch (v->type) {
    case KM_GGUF_U8:
    case KM_GGUF_U16:
    case KM_GGUF_U32:
    case KM_GGUF_U64: n = v->u > INT64_MAX ? INT64_MAX : (int64_t)v->u; break;
    case KM_GGUF_I8:
    case KM_GGUF_I16:
    case KM_GGUF_I32:
    case KM_GGUF_I64: n = v->i; break;
    default: return wrong_type(g, key, "a whole number", v, err);
    }
    if (n < lo || n > hi)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %s is %lld, not between %lld and %lld",
                            km_gguf_path(g), key, (long long)n, (long long)lo, (long long)hi);
    *value = n;
    return KM_OK;
}

km_status km_gguf_real(const km_gguf *g, const char *key, double lo, double hi, double *value,
                       km_error *err) {
    const km_gguf_value *v = km_gguf_get(g, key);
    if (!v) return KM_OK;
    if (v->type != KM_GGUF_F32 && v->type != KM_GGUF_F64)
        return wrong_type(g, key, "a real number", v, err);
    if (!(v->f >= lo && v->f <= hi))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %s is %g, not between %g and %g",
                            km_gguf_path(g), key, v->f, lo, hi);
    *value = v->f;
    return KM_OK;
}

km_status km_gguf_bool(const km_gguf *g, const char *key, bool *value, km_error *err) {
    const km_gguf_value *v = km_gguf_get(g, key);
    if (!v) return KM_OK;
    if (v->type != KM_GGUF_BOOL) return wrong_type(g, key, "a bool", v, err);
    *value = v->b;
    return KM_OK;
}

km_status km_gguf_string(const km_gguf *g, const char *key, const char **value, km_error *err) {
    const km_gguf_value *v = km_gguf_get(g, key);
    if (!v) return KM_OK;
    if (v->type != KM_GGUF_STRING) return wrong_type(g, key, "a string", v, err);
    if (memchr(v->text.data, 0, v->text.size))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %s contains a NUL byte", km_gguf_path(g),
                            key);
    *value = v->text.data;
    return KM_OK;
}
