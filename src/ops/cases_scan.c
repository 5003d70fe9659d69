/* Trial calls for scans of codes: each number of bits alone and mixed, odd columns, rows left out,
 * fewer rows than asked for, several chunks and batches of queries. Whole numbers make every distance
 * exact, so that ties are ties on every device. */
#include "ops/cases.h"
#include "ops/scan_codes.h"
#include "base/rng.h"
#include <string.h>

typedef struct scan_form {
    int64_t queries, rows, d, cells, k;
    int bits; /* 9: mixed; 12: windows of a trellis */
    bool product, exact;
    int64_t chunk;
} scan_form;

static const scan_form forms[] = {
    {1, 1, 1, 1, 1, 1, false, false, 0},           {3, 5, 7, 2, 8, 9, false, false, 0},
    {2, 40, 3, 1, 3, 8, true, false, 0},           {5, 300, 64, 4, 10, 4, false, false, 0},
    {4, 700, 65, 3, 5, 4, false, false, 256},      {3, 1500, 100, 7, 10, 9, false, false, 512},
    {2, 1000, 384, 5, 10, 4, true, false, 0},      {130, 600, 33, 9, 4, 2, false, false, 0},
    {2, 520, 500, 2, 10, 3, false, false, 256},    {2, 260, 600, 2, 10, 9, false, false, 0},
    {3, 5000, 16, 12, 100, 4, false, false, 1024}, {2, 6000, 8, 3, 200, 9, true, true, 0},
    {1030, 300, 16, 2, 2, 4, false, false, 0},     {2, 0, 4, 1, 3, 4, false, false, 0},
    {0, 9, 4, 1, 3, 4, false, false, 0},           {2, 20000, 8, 5, 10, 4, false, false, 0},
    {2, 9000, 4, 1, 20, 1, false, false, 0}, /* more ties than a list holds */
    {3, 600, 40, 4, 10, 12, false, false, 256},    {2, 700, 131, 3, 7, 12, true, false, 0},
    {2, 300, 8, 2, 5, 12, false, true, 0},
};

static uint32_t draw(int64_t stream, int64_t i) {
    return km_philox(11, (uint64_t)stream, (uint64_t)i).v[0];
}

/* Bits that a column adds to a code. */
static int column_bits(const scan_form *f, int64_t j) {
    return f->bits == 9 || f->bits == 12 ? (int)(draw(1, j) % 9) : f->bits;
}

static int64_t stride_of(const scan_form *f) {
    int64_t bits = f->bits == 12 ? 12 : 0;
    for (int64_t j = 0; j < f->d; j++) bits += column_bits(f, j);
    return (bits + 31) / 32 * 4;
}

static void derive(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const scan_form *f = &forms[c->p.axis];
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    for (int i = 0; i < c->n_in; i++)
        if (!(in[i] = km_tensor_new(ctx, lane, "case", (km_dtype)c->in[i].dtype, c->in[i].shape)))
            return;
    float *query = km_tensor_ptr(in[0]), *amp = km_tensor_ptr(in[5]),
          *tables = km_tensor_ptr(in[6]);
    float *centre = km_tensor_ptr(in[7]);
    uint8_t *codes = km_tensor_ptr(in[1]), *scale = km_tensor_ptr(in[2]);
    int32_t *cell = km_tensor_ptr(in[3]), *place = km_tensor_ptr(in[4]);
    for (int64_t i = 0; i < f->queries * f->d; i++) query[i] = (float)(draw(2, i) % 15) - 7;
    for (int64_t i = 0; i < f->cells * f->d; i++) centre[i] = (float)(draw(3, i) % 9) - 4;
    for (int64_t i = 0; i < f->rows * stride_of(f); i++) codes[i] = (uint8_t)draw(4, i);
    for (int64_t i = 0; i < f->rows; i++) {
        scale[i] = (uint8_t)draw(5, i);
        cell[i] =
            (int32_t)(draw(6, i) % (uint32_t)(f->cells + 1)) - (int32_t)(i % 2); /* some beyond */
    }
    place[0] = 0;
    for (int64_t j = 0; j < f->d; j++) {
        place[j + 1] = place[j] + column_bits(f, j);
        amp[j] = (float)(1 + j % 2);
    }
    for (int64_t i = 0; i < KM_SCAN_TABLES * 256; i++)
        tables[i] = i < 9 * 256 ? (float)(draw(7, i) % 9) - 4 : (float)(draw(8, i) % 3) * 0.5f;
    if (f->bits != 12) return;
    int32_t *rate = km_tensor_ptr(in[8]);
    float *windows = km_tensor_ptr(in[9]);
    for (int64_t j = 0; j < f->d; j++) rate[j] = column_bits(f, j);
    for (int64_t i = 0; i < 9 * 4096; i++) windows[i] = (float)(draw(9, i) % 9) - 4;
}

void km_cases_scan_codes(km_case_fn fn, void *user) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const scan_form *f = &forms[i];
        km_case c = {.op = KM_OP_SCAN_CODES,
                     .n_in = f->bits == 12 ? 10 : 8,
                     .dtypes = KM_BIT(KM_F32),
                     .no_gradient = true,
                     .derive = derive,
                     .p = {.axis = (int)i,
                           .n = {[KM_N_NEAREST] = f->k,
                                 [KM_N_PRODUCT] = f->product,
                                 [KM_N_EXACT] = f->exact,
                                 [KM_N_CHUNK] = f->chunk},
                           .f = {[KM_F_LOST] = 0.5}}};
        const struct {
            km_shape shape;
            km_dtype dtype;
        } is[] = {{KM_SHAPE(f->queries, f->d), KM_F32},
                  {KM_SHAPE(f->rows, stride_of(f)), KM_U8},
                  {KM_SHAPE(f->rows), KM_U8},
                  {KM_SHAPE(f->rows), KM_I32},
                  {KM_SHAPE(f->d + 1), KM_I32},
                  {KM_SHAPE(f->d), KM_F32},
                  {KM_SHAPE(KM_SCAN_TABLES, 256), KM_F32},
                  {KM_SHAPE(f->cells, f->d), KM_F32},
                  {KM_SHAPE(f->d), KM_I32},
                  {KM_SHAPE(9, 4096), KM_F32}};
        for (int k = 0; k < c.n_in; k++)
            c.in[k] =
                (km_case_in){.shape = is[k].shape, .values = KM_V_DERIVED, .dtype = is[k].dtype};
        if (!fn(user, &c)) return;
    }
}
