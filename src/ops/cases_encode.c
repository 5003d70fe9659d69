/* Trial calls for encoding: every number of bits alone and mixed, odd columns, rows of zeros, classes,
 * rings too short to settle. Small whole numbers make every cost exact, so that ties are ties on every
 * device. */
#include "backend/trellis.h"
#include "base/rng.h"
#include "ops/cases.h"

typedef struct encode_form {
    int64_t rows, d; /* columns of a class */
    int bits;        /* 9: mixed; 10: 0, 1, 2 in turn */
    int64_t classes;
} encode_form;

static const encode_form levels[] = {{1, 1, 1, 1},   {3, 8, 4, 1},   {5, 33, 9, 1}, {70, 64, 4, 1},
                                     {9, 100, 9, 1}, {2, 384, 4, 1}, {4, 40, 8, 1}, {6, 17, 2, 1},
                                     {0, 8, 4, 1},   {300, 24, 3, 1}};
static const encode_form trellises[] = {
    {1, 12, 1, 1},  {2, 90, 1, 1},  {5, 40, 2, 1}, {3, 30, 3, 1}, {2, 26, 4, 1},
    {2, 20, 5, 1},  {3, 14, 6, 1},  {2, 12, 8, 1}, {3, 60, 9, 1}, {7, 100, 10, 1},
    {4, 30, 10, 1}, {6, 80, 10, 4}, {3, 16, 7, 2}, {0, 20, 1, 1}};

static uint32_t draw(int64_t stream, int64_t i) {
    return km_philox(12, (uint64_t)stream, (uint64_t)i).v[0];
}

/* The same within groups of eight. */
static int column_bits(const encode_form *f, int64_t j) {
    return f->bits == 9 ? (int)(draw(1, j / 8) % 9) : f->bits == 10 ? (int)(j % 3) : f->bits;
}

static int64_t sum_bits(const encode_form *f, int64_t unit) {
    int64_t bits = 0;
    for (int64_t j = 0; j < f->d; j += unit) bits += column_bits(f, j);
    return bits;
}

/* Rows: whole numbers, some all zero; `square` such that the scale is a power of two. */
static void fill_rows(const encode_form *f, float *z, float *square, int64_t width, int64_t dim) {
    for (int64_t i = 0; i < f->rows; i++) {
        float scale = (float)(1 << draw(2, i) % 3);
        bool zero = i % 5 == 4;
        square[i] = zero ? 0 : scale * scale * (float)dim;
        for (int64_t j = 0; j < width; j++)
            z[i * width + j] = zero ? 0 : scale * ((float)(draw(3, i * width + j) % 9) - 4);
    }
}

static bool open_inputs(km_ctx *ctx, const km_case *c, km_tensor **in) {
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    for (int i = 0; i < c->n_in; i++)
        if (!(in[i] = km_tensor_new(ctx, lane, "case", (km_dtype)c->in[i].dtype, c->in[i].shape)))
            return false;
    return true;
}

static void derive_levels(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const encode_form *f = &levels[c->p.axis];
    if (!open_inputs(ctx, c, in)) return;
    int32_t *bits = km_tensor_ptr(in[2]), *at = km_tensor_ptr(in[3]), byte = 1;
    float *amp = km_tensor_ptr(in[4]), *tables = km_tensor_ptr(in[5]);
    fill_rows(f, km_tensor_ptr(in[0]), km_tensor_ptr(in[1]), f->d, c->p.n[KM_N_DIM]);
    for (int64_t j = 0; j < f->d; j++) {
        bits[j] = column_bits(f, j);
        amp[j] = j % 11 == 10 ? 0 : (float)(1 << j % 2);
    }
    for (int64_t g = 0; g < (f->d + 7) / 8; g++)
        for (int l = 0; l < 8; l++) at[g * 8 + l] = l < bits[g * 8] ? byte++ : 0;
    for (int b = 0; b < 9; b++)
        for (int i = 0; i < 256; i++)
            tables[b * 256 + i] = (float)(i - (1 << b) / 2) * (b > 4 ? 0.125f : 1);
}

static void derive_trellis(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const encode_form *f = &trellises[c->p.axis];
    if (!open_inputs(ctx, c, in)) return;
    float *amp = km_tensor_ptr(in[2]), *water = km_tensor_ptr(in[5]),
          *tables = km_tensor_ptr(in[6]);
    int32_t *rate = km_tensor_ptr(in[3]), *classes = km_tensor_ptr(in[4]);
    fill_rows(f, km_tensor_ptr(in[0]), km_tensor_ptr(in[1]), f->d * f->classes, c->p.n[KM_N_DIM]);
    for (int64_t k = 0; k < f->classes; k++) {
        classes[2 * k] = (int32_t)(k * f->d);
        classes[2 * k + 1] = (int32_t)f->d;
        water[k] = 0.5f + (float)k;
        for (int64_t j = 0; j < f->d; j++) {
            rate[k * f->d + j] = column_bits(f, j);
            amp[k * f->d + j] = j % 7 == 6 ? 0 : (float)(1 + (j + k) % 2);
        }
    }
    for (int64_t i = 0; i < (KM_TRELLIS_RATE + 1) * KM_TRELLIS_STATES; i++)
        tables[i] = (float)(draw(4, i) % 9) - 4;
}

typedef struct input {
    km_shape shape;
    km_dtype dtype;
} input;

static void set_inputs(km_case *c, const input *in) {
    for (int k = 0; k < c->n_in; k++)
        c->in[k] = (km_case_in){.shape = in[k].shape, .values = KM_V_DERIVED, .dtype = in[k].dtype};
}

void km_cases_encode_levels(km_case_fn fn, void *user) {
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        const encode_form *f = &levels[i];
        km_case c = {
            .op = KM_OP_ENCODE_LEVELS,
            .n_in = 6,
            .dtypes = KM_BIT(KM_F32),
            .no_gradient = true,
            .derive = derive_levels,
            .p = {.axis = (int)i,
                  .n = {[KM_N_CODE_BYTES] = 1 + sum_bits(f, 8) + (int64_t)i % 2, [KM_N_DIM] = f->d},
                  .f = {[KM_F_LOW] = 0.01, [KM_F_SCALE_STEP] = 0.03125}}};
        const input in[] = {
            {KM_SHAPE(f->rows, f->d), KM_F32}, {KM_SHAPE(f->rows), KM_F32},
            {KM_SHAPE(f->d), KM_I32},          {KM_SHAPE((f->d + 7) / 8, 8), KM_I32},
            {KM_SHAPE(f->d), KM_F32},          {KM_SHAPE(9, 256), KM_F32}};
        set_inputs(&c, in);
        if (!fn(user, &c)) return;
    }
}

void km_cases_encode_trellis(km_case_fn fn, void *user) {
    for (size_t i = 0; i < sizeof trellises / sizeof *trellises; i++) {
        const encode_form *f = &trellises[i];
        int64_t class_bits = f->classes > 2 ? 2 : f->classes > 1 ? 1 : 0, w = f->d * f->classes;
        int64_t bytes = (8 + class_bits + sum_bits(f, 1) + 7) / 8 + (int64_t)i % 2;
        km_case c = {.op = KM_OP_ENCODE_TRELLIS,
                     .n_in = 7,
                     .dtypes = KM_BIT(KM_F32),
                     .no_gradient = true,
                     .derive = derive_trellis,
                     .p = {.axis = (int)i,
                           .n = {[KM_N_CODE_BYTES] = bytes,
                                 [KM_N_DIM] = f->d,
                                 [KM_N_CLASS_BITS] = class_bits,
                                 [KM_N_MOST] = f->d},
                           .f = {[KM_F_LOW] = 0.01, [KM_F_SCALE_STEP] = 0.03125}}};
        const input in[] = {{KM_SHAPE(f->rows, w), KM_F32},
                            {KM_SHAPE(f->rows), KM_F32},
                            {KM_SHAPE(w), KM_F32},
                            {KM_SHAPE(w), KM_I32},
                            {KM_SHAPE(f->classes, 2), KM_I32},
                            {KM_SHAPE(f->classes), KM_F32},
                            {KM_SHAPE(KM_TRELLIS_RATE + 1, KM_TRELLIS_STATES), KM_F32}};
        set_inputs(&c, in);
        if (!fn(user, &c)) return;
    }
}
