/* Coders on a device: the axes of all classes as one matrix, and their settings as tensors. */
#include "vector/device_coder.h"
#include "base/alloc.h"
#include "ops/encode_codes.h"
#include "tensor/tensor.h"
#include "vector/coder_impl.h"
#include <math.h>

#define MOST_DIM 4096      /* the matrix of a turn is dim x dim at least */
#define TURNED_BYTES 256e6 /* of turned rows at once, at most */

struct km_device_coder {
    km_ctx *ctx;
    const km_coder *c;
    int64_t width;   /* columns of a turned row: those of all classes that carry something */
    int64_t block;   /* rows turned at once */
    km_tensor *turn; /* (dim, width) */
    km_level_code levels;
    km_trellis_code trellis;
};

/* A matrix (dim, width) whose columns are the axes. */
static float *all_axes(const km_coder *c, int64_t width) {
    int64_t dim = c->dim, at = 0;
    float *out = km_alloc(sizeof *out * (size_t)(dim * width));
    float *unit = km_alloc(sizeof *unit * (size_t)(dim + km_coder_turned(c)));
    if (!out || !unit) {
        km_free(out);
        km_free(unit);
        return NULL;
    }
    for (int64_t j = 0; j < dim && c->signs; j++) { /* what becomes of each unit vector */
        memset(unit, 0, sizeof *unit * (size_t)dim);
        unit[j] = 1;
        km_coder_turn(c, unit, unit + dim);
        memcpy(out + j * width, unit + 2 * dim, sizeof *out * (size_t)width);
    }
    for (int k = 0; k < c->classes && !c->signs; at += c->axes[k++].count)
        for (int64_t i = 0; i < c->axes[k].count; i++)
            for (int64_t j = 0; j < dim; j++)
                out[j * width + at + i] = c->axes[k].axis[i * dim + j];
    km_free(unit);
    return out;
}

/* amp, bits, classes and water of all columns. */
typedef struct lists {
    float *amp, *water;
    int32_t *bits, *classes;
    int64_t most;
} lists;

static bool fill_lists(const km_coder *c, int64_t width, lists *l) {
    *l = (lists){.amp = km_calloc((size_t)width, sizeof *l->amp),
                 .water = km_calloc((size_t)c->classes, sizeof *l->water),
                 .bits = km_calloc((size_t)width, sizeof *l->bits),
                 .classes = km_calloc((size_t)c->classes * 2, sizeof *l->classes)};
    if (!l->amp || !l->water || !l->bits || !l->classes) return false;
    int64_t at = 0;
    for (int k = 0; k < c->classes; k++) {
        const km_axes *a = &c->axes[k];
        l->classes[2 * k] = (int32_t)at;
        l->classes[2 * k + 1] = (int32_t)a->count;
        l->water[k] = a->water;
        if (a->count > l->most) l->most = a->count;
        for (int64_t i = 0; i < a->count; i++, at++) {
            l->amp[at] = a->amp[i];
            l->bits[at] = a->bits[i];
        }
    }
    return true;
}

static void put_coder(km_device_coder *d, const lists *l, const float *axes) {
    km_ctx *ctx = d->ctx;
    const km_coder *c = d->c;
    int64_t w = d->width;
    km_code_form form = {
        .bytes = c->bytes, .dim = c->dim, .low = c->scale_low, .step = c->scale_step};
    d->turn = km_keep_data(ctx, KM_F32, KM_SHAPE(c->dim, w), axes);
    km_tensor *amp = km_keep_data(ctx, KM_F32, KM_SHAPE(w), l->amp);
    km_tensor *bits = km_keep_data(ctx, KM_I32, KM_SHAPE(w), l->bits);
    if (!c->trellis) {
        d->levels = (km_level_code){.form = form, .bits = bits, .amp = amp};
        d->levels.at = km_keep_data(ctx, KM_I32, KM_SHAPE((w + 7) / 8, 8), c->stage.at);
        d->levels.tables = km_keep_data(ctx, KM_F32, KM_SHAPE(KM_LEVEL_BITS + 1, 256), c->levels);
        return;
    }
    d->trellis = (km_trellis_code){
        .form = form, .class_bits = c->class_bits, .most = l->most, .amp = amp, .rate = bits};
    d->trellis.classes = km_keep_data(ctx, KM_I32, KM_SHAPE(c->classes, 2), l->classes);
    d->trellis.water = km_keep_data(ctx, KM_F32, KM_SHAPE(c->classes), l->water);
    d->trellis.tables = km_keep_data(ctx, KM_F32, KM_SHAPE(KM_TRELLIS_RATE + 1, KM_TRELLIS_STATES),
                                     c->tables->state);
}

km_device_coder *km_device_coder_new(km_ctx *ctx, const km_coder *c, km_error *err) {
    if (c->dim > MOST_DIM) {
        km_error_set(err, KM_ERR_UNSUPPORTED,
                     "only vectors of up to %d dimensions are encoded on a device", MOST_DIM);
        return NULL;
    }
    km_device_coder *d = km_calloc(1, sizeof *d);
    lists l = {0};
    float *axes = NULL;
    bool made = false;
    if (d) {
        *d = (km_device_coder){.ctx = ctx, .c = c};
        for (int k = 0; k < c->classes; k++) d->width += c->axes[k].count;
        d->block =
            (int64_t)(fmin(TURNED_BYTES, 0.2 * km_room_left(ctx)) / (4.0 * (double)d->width));
        if (d->block < 1024) d->block = 1024;
        axes = all_axes(c, d->width);
    }
    if (!d || !axes || !fill_lists(c, d->width, &l)) {
        km_no_memory_for(err, "a coder on a device");
    } else {
        put_coder(d, &l, axes);
        km_step_end(ctx);
        made = km_ctx_status(ctx) == KM_OK;
        if (!made) km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    }
    km_free(axes);
    km_free(l.amp);
    km_free(l.water);
    km_free(l.bits);
    km_free(l.classes);
    if (made) return d;
    km_device_coder_free(d);
    return NULL;
}

void km_device_coder_free(km_device_coder *d) {
    if (!d) return;
    km_tensor *all[] = {d->turn,          d->levels.bits,   d->levels.at,    d->levels.amp,
                        d->levels.tables, d->trellis.amp,   d->trellis.rate, d->trellis.classes,
                        d->trellis.water, d->trellis.tables};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    km_free(d);
}

km_status km_device_coder_run(km_device_coder *d, km_tensor *residuals, km_tensor *square,
                              uint8_t *codes) {
    km_ctx *ctx = d->ctx;
    if (km_failed(ctx)) return km_ctx_status(ctx);
    int64_t n = km_tensor_dim(residuals, 0), bytes = d->c->bytes;
    for (int64_t i = 0; i < n && !km_failed(ctx); i += d->block) {
        int64_t m = n - i < d->block ? n - i : d->block;
        km_scope_begin(ctx);
        km_tensor *z = km_matmul(ctx, km_narrow(ctx, residuals, 0, i, m), d->turn);
        km_tensor *norm = km_narrow(ctx, square, 0, i, m);
        km_tensor *out = d->c->trellis ? km_encode_trellis(ctx, z, norm, &d->trellis)
                                       : km_encode_levels(ctx, z, norm, &d->levels);
        if (out) km_read(ctx, out, codes + i * bytes, (size_t)(m * bytes));
        km_scope_end(ctx, NULL);
    }
    return km_ctx_status(ctx);
}
