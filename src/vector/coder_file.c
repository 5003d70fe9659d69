/* Coders as byte strings, little-endian:
 *
 *   u32 magic "KMCD"   u32 version   u32 mode   u32 turn   u64 dim   u64 bytes   u64 seed
 *   f64 error   f32 scale_low   f32 scale_step   f32 lost   u32 classes   u32 trellis   u32 zero
 *   for each class:
 *     u64 count   f32 water   u32 zero
 *     f32 amp (count)   u8 bits (count)   i8 axes (count, dim), for principal axes only */
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define MAGIC 0x44434d4b
#define VERSION 1

typedef struct coder_head {
    uint32_t magic, version, mode, turn;
    uint64_t dim, bytes, seed;
    double error;
    float scale_low, scale_step, lost;
    uint32_t classes, trellis, zero;
} coder_head;

typedef struct coder_class {
    uint64_t count;
    float water;
    uint32_t zero;
} coder_class;

static size_t part_bytes(const km_coder *c, int64_t count) {
    return sizeof(coder_class) +
           (size_t)count * (5 + (c->turn == KM_TURN_PCA ? (size_t)c->dim : 0));
}

size_t km_coder_written(const km_coder *c) {
    size_t n = sizeof(coder_head);
    for (int k = 0; k < c->classes; k++) n += part_bytes(c, c->axes[k].count);
    return n;
}

static uint8_t *put(uint8_t *p, const void *from, size_t n) {
    memcpy(p, from, n);
    return p + n;
}

void km_coder_write(const km_coder *c, void *out) {
    coder_head h = {.magic = MAGIC,
                    .version = VERSION,
                    .mode = c->mode,
                    .turn = c->turn,
                    .dim = (uint64_t)c->dim,
                    .bytes = (uint64_t)c->bytes,
                    .seed = c->seed,
                    .error = c->error,
                    .scale_low = c->scale_low,
                    .scale_step = c->scale_step,
                    .lost = c->lost,
                    .classes = (uint32_t)c->classes,
                    .trellis = c->trellis};
    uint8_t *p = put(out, &h, sizeof h);
    for (int k = 0; k < c->classes; k++) {
        const km_axes *a = &c->axes[k];
        coder_class one = {.count = (uint64_t)a->count, .water = a->water};
        p = put(p, &one, sizeof one);
        p = put(p, a->amp, (size_t)a->count * sizeof *a->amp);
        p = put(p, a->bits, (size_t)a->count);
        if (a->stored) p = put(p, a->stored, (size_t)(a->count * c->dim));
    }
}

static km_coder *refuse(km_coder *c, km_error *err, km_status code, const char *why) {
    km_error_set(err, code, "coder: %s", why);
    km_coder_free(c);
    return NULL;
}

/* One class from *p on; NULL, or what is wrong. */
static const char *read_class(km_coder *c, int k, const uint8_t **p, const uint8_t *end) {
    coder_class one;
    km_axes *a = &c->axes[k];
    if ((size_t)(end - *p) < sizeof one) return "truncated";
    memcpy(&one, *p, sizeof one);
    if (one.count < 1 || one.count > (uint64_t)c->dim || one.zero != 0 ||
        !(one.water >= 0 && one.water < INFINITY) ||
        (c->turn == KM_TURN_HADAMARD && one.count != (uint64_t)c->dim))
        return "a class out of range";
    int64_t count = (int64_t)one.count;
    if ((size_t)(end - *p) < part_bytes(c, count)) return "truncated";
    if (km_axes_alloc(a, c->dim, count, c->turn == KM_TURN_PCA) != KM_OK) return "";
    *p += sizeof one;
    memcpy(a->amp, *p, (size_t)count * sizeof *a->amp);
    *p += (size_t)count * sizeof *a->amp;
    memcpy(a->bits, *p, (size_t)count);
    *p += count;
    if (a->stored) {
        memcpy(a->stored, *p, (size_t)(count * c->dim));
        *p += count * c->dim;
    }
    a->water = one.water;
    int64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        bits += a->bits[i];
        if (a->bits[i] > KM_LEVEL_BITS || !(a->amp[i] >= 0 && a->amp[i] < INFINITY))
            return "an axis out of range";
    }
    if (bits > c->bytes * 8 - km_coder_head(c) || (c->trellis && bits < KM_TRELLIS_LENGTH))
        return "bits that do not fit";
    return km_axes_prepare(a, c->trellis, km_coder_head(c)) == KM_OK ? NULL : "";
}

km_coder *km_coder_read(const void *bytes, size_t size, km_error *err) {
    coder_head h;
    if (size < sizeof h) return refuse(NULL, err, KM_ERR_FORMAT, "truncated");
    memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC) return refuse(NULL, err, KM_ERR_FORMAT, "not a coder");
    if (h.version != VERSION) return refuse(NULL, err, KM_ERR_FORMAT, "of another version");
    if (h.dim < 1 || h.dim > KM_CODER_MAX_DIM || h.mode > KM_CODE_DENSE ||
        (h.turn != KM_TURN_HADAMARD && h.turn != KM_TURN_PCA) || h.bytes < 1 ||
        h.bytes > h.dim + 64 || h.classes < 1 || h.classes > KM_CODER_CLASSES || h.trellis > 1 ||
        ((h.turn == KM_TURN_HADAMARD || !h.trellis) && h.classes != 1) || h.zero != 0 ||
        !(h.scale_low > 0 && h.scale_low < INFINITY) || !(h.scale_step >= 0 && h.scale_step < 1) ||
        !(h.error >= 0 && h.error < INFINITY) || !isfinite(h.lost))
        return refuse(NULL, err, KM_ERR_FORMAT, "fields out of range");
    km_coder *c = km_calloc(1, sizeof *c);
    if (!c) return refuse(c, err, KM_ERR_MEMORY, "out of memory");
    c->dim = (int64_t)h.dim;
    c->bytes = (int64_t)h.bytes;
    c->mode = (km_code_mode)h.mode;
    c->turn = (km_code_turn)h.turn;
    c->seed = h.seed;
    c->error = h.error;
    c->scale_low = h.scale_low;
    c->scale_step = h.scale_step;
    c->lost = h.lost;
    c->trellis = h.trellis;
    c->classes = (int)h.classes;
    while (1 << c->class_bits < c->classes) c->class_bits++;
    if (km_coder_head(c) > c->bytes * 8)
        return refuse(c, err, KM_ERR_FORMAT, "more classes than bits");
    const uint8_t *p = (const uint8_t *)bytes + sizeof h, *end = (const uint8_t *)bytes + size;
    for (int k = 0; k < c->classes; k++) {
        const char *why = read_class(c, k, &p, end);
        if (why && !*why) return refuse(c, err, KM_ERR_MEMORY, "out of memory");
        if (why) return refuse(c, err, KM_ERR_FORMAT, why);
    }
    if (p != end) return refuse(c, err, KM_ERR_FORMAT, "of another length");
    if (km_coder_prepare(c, err) != KM_OK) return refuse(c, err, KM_ERR_MEMORY, "out of memory");
    return c;
}
