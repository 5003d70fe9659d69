/* Coders as byte strings, little-endian:
 *
 *   u32 magic "KMCD"   u32 version   u32 mode   u32 turn   u64 dim   u64 bytes   u64 seed
 *   f64 error   f32 scale_low   f32 scale_step   f32 lost   u32 zero
 *   u8 bits (dim)   f32 sigma (dim) */
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define MAGIC 0x44434d4b
#define VERSION 1

typedef struct head {
    uint32_t magic, version, mode, turn;
    uint64_t dim, bytes, seed;
    double error;
    float scale_low, scale_step, lost;
    uint32_t zero;
} head;

size_t km_coder_written(const km_coder *c) { return sizeof(head) + (size_t)c->dim * 5; }

void km_coder_write(const km_coder *c, void *out) {
    head h = {.magic = MAGIC, .version = VERSION, .mode = c->mode, .turn = c->turn,
              .dim = (uint64_t)c->dim, .bytes = (uint64_t)c->bytes, .seed = c->seed,
              .error = c->error, .scale_low = c->scale_low, .scale_step = c->scale_step,
              .lost = c->lost};
    uint8_t *p = out;
    memcpy(p, &h, sizeof h);
    p += sizeof h;
    memcpy(p, c->bits, (size_t)c->dim);
    memcpy(p + c->dim, c->sigma, (size_t)c->dim * sizeof *c->sigma);
}

static km_coder *refuse(km_coder *c, km_error *err, km_status code, const char *why) {
    km_error_set(err, code, "coder: %s", why);
    km_coder_free(c);
    return NULL;
}

km_coder *km_coder_read(const void *bytes, size_t size, km_error *err) {
    head h;
    if (size < sizeof h) return refuse(NULL, err, KM_ERR_FORMAT, "truncated");
    memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC) return refuse(NULL, err, KM_ERR_FORMAT, "not a coder");
    if (h.version != VERSION) return refuse(NULL, err, KM_ERR_FORMAT, "of another version");
    if (h.dim < 1 || h.dim > KM_CODER_MAX_DIM || h.mode > KM_CODE_DENSE ||
        h.turn != KM_TURN_HADAMARD || h.bytes < 1 || h.bytes > 2 * h.dim + 64 || h.zero != 0 ||
        !(h.scale_low > 0 && h.scale_low < INFINITY) || !(h.scale_step >= 0 && h.scale_step < 1) ||
        !isfinite(h.error) || !isfinite(h.lost)) {
        return refuse(NULL, err, KM_ERR_FORMAT, "fields out of range");
    }
    if (size != sizeof h + h.dim * 5) return refuse(NULL, err, KM_ERR_FORMAT, "of another length");
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
    c->bits = km_alloc(h.dim);
    c->sigma = km_alloc(h.dim * sizeof *c->sigma);
    if (!c->bits || !c->sigma) return refuse(c, err, KM_ERR_MEMORY, "out of memory");
    const uint8_t *p = (const uint8_t *)bytes + sizeof h;
    memcpy(c->bits, p, h.dim);
    memcpy(c->sigma, p + h.dim, h.dim * sizeof *c->sigma);
    uint64_t all = 8;
    for (uint64_t i = 0; i < h.dim; i++) {
        all += c->bits[i];
        if (c->bits[i] > KM_LEVEL_BITS || !(c->sigma[i] >= 0 && c->sigma[i] < INFINITY)) {
            return refuse(c, err, KM_ERR_FORMAT, "an axis out of range");
        }
    }
    if (all > h.bytes * 8) return refuse(c, err, KM_ERR_FORMAT, "more bits than bytes");
    if (km_coder_prepare(c, err)) return refuse(c, err, KM_ERR_MEMORY, "out of memory");
    return c;
}
