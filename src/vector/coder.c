/* Coders: training, encoding and decoding. */
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include "vector/hadamard.h"
#include <math.h>

#define ROWS 16 /* rows a thread takes at a time */

int64_t km_coder_dim(const km_coder *c) { return c->dim; }
size_t km_coder_bytes(const km_coder *c) { return (size_t)c->bytes; }
km_code_mode km_coder_mode(const km_coder *c) { return c->mode; }
km_code_turn km_coder_turned_by(const km_coder *c) { return c->turn; }
double km_coder_error(const km_coder *c) { return c->error; }
int64_t km_coder_turned(const km_coder *c) { return c->dim; }
int64_t km_coder_block_rows(const km_coder *c) {
    (void)c;
    return 1;
}

void km_coder_pack(const km_coder *c, const uint8_t *codes, int64_t n, uint8_t *packed) {
    memcpy(packed, codes, (size_t)(n * c->bytes));
}

void km_coder_unpack(const km_coder *c, const uint8_t *packed, int64_t n, uint8_t *codes) {
    memcpy(codes, packed, (size_t)(n * c->bytes));
}

void km_coder_free(km_coder *c) {
    if (!c) return;
    km_free(c->bits);
    km_free(c->sigma);
    km_free(c->signs);
    km_free(c);
}

km_status km_coder_prepare(km_coder *c, km_error *err) {
    int64_t n = km_hadamard_signs(c->dim);
    c->signs = km_alloc((size_t)n * sizeof *c->signs);
    if (!c->signs) return km_error_set(err, KM_ERR_MEMORY, "coder: out of memory");
    km_hadamard_seed(c->seed, c->dim, c->signs);
    c->scales[0] = 0;
    for (int i = 0; i < KM_SCALE_STEPS; i++) {
        c->scales[i + 1] = c->scale_low * expf(c->scale_step * (float)i);
    }
    for (int b = 0; b <= KM_LEVEL_BITS; b++) km_levels(b, c->levels[b]);
    return KM_OK;
}

void km_coder_turn(const km_coder *c, const float *x, float *out) {
    if (out != x) memcpy(out, x, (size_t)c->dim * sizeof *x);
    km_hadamard(c->signs, c->dim, out);
}

static int scale_code(const km_coder *c, float s) {
    if (!(s > 0)) return 0;
    float i = roundf(logf(s / c->scale_low) / c->scale_step);
    return i < 0 ? (2 * s < c->scale_low ? 0 : 1) : i >= KM_SCALE_STEPS ? KM_SCALE_STEPS : (int)i + 1;
}

/* ---- Encoding and decoding ---- */

static void encode_row(const km_coder *c, float *r, uint8_t *code) {
    memset(code, 0, (size_t)c->bytes);
    double norm = 0, rv = 0, vv = 0;
    km_coder_turn(c, r, r);
    for (int64_t i = 0; i < c->dim; i++) norm += (double)r[i] * r[i];
    float scale = (float)sqrt(norm / (double)c->dim);
    if (scale_code(c, scale) == 0) return;
    for (int64_t i = 0, at = 8; i < c->dim; i++) {
        int b = c->bits[i];
        if (b == 0) continue;
        int level = km_level_of(b, c->levels[b], r[i] / (scale * c->sigma[i]));
        double v = c->sigma[i] * c->levels[b][level];
        rv += r[i] * v;
        vv += v * v;
        km_bits_put(code, at, b, (uint32_t)level);
        at += b;
    }
    code[0] = (uint8_t)scale_code(c, vv > 0 ? (float)(rv / vv) : 0);
}

float km_coder_axes(const km_coder *c, const uint8_t *code, float *axes) {
    int64_t at = 8;
    for (int64_t i = 0; i < c->dim; i++) {
        int b = c->bits[i];
        axes[i] = b ? c->sigma[i] * c->levels[b][km_bits_get(code, at, b)] : 0;
        at += b;
    }
    return c->scales[code[0]];
}

typedef struct work {
    const km_coder *c;
    const float *in;
    const uint8_t *codes_in;
    uint8_t *codes;
    float *out;
    float *rows; /* (workers, dim) */
} work;

static void encode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    work *w = arg;
    int64_t dim = w->c->dim;
    float *row = w->rows + worker * dim;
    for (int64_t i = begin; i < end; i++) {
        memcpy(row, w->in + i * dim, (size_t)dim * sizeof *row);
        encode_row(w->c, row, w->codes + i * w->c->bytes);
    }
}

static void decode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    work *w = arg;
    (void)worker;
    int64_t dim = w->c->dim;
    for (int64_t i = begin; i < end; i++) {
        float *row = w->out + i * dim;
        float scale = km_coder_axes(w->c, w->codes_in + i * w->c->bytes, row);
        for (int64_t j = 0; j < dim; j++) row[j] *= scale;
        km_hadamard_back(w->c->signs, dim, row);
    }
}

km_status km_coder_encode(const km_coder *c, km_threads *t, const float *residuals, int64_t n,
                          uint8_t *codes) {
    float *rows = km_alloc((size_t)(km_threads_count(t) * c->dim) * sizeof *rows);
    if (!rows) return KM_ERR_MEMORY;
    work w = {.c = c, .in = residuals, .codes = codes, .rows = rows};
    km_threads_for(t, n, ROWS, encode_rows, &w);
    km_free(rows);
    return KM_OK;
}

km_status km_coder_decode(const km_coder *c, km_threads *t, const uint8_t *codes, int64_t n,
                          float *out) {
    work w = {.c = c, .codes_in = codes, .out = out};
    km_threads_for(t, n, ROWS, decode_rows, &w);
    return KM_OK;
}

/* ---- Training ---- */

/* The axes' bits: as many as fit, the remainder to the first axes. */
static void share_bits(km_coder *c) {
    int64_t all = (c->bytes - 1) * 8, each = all / c->dim, more = all % c->dim;
    for (int64_t i = 0; i < c->dim; i++) {
        int64_t b = each + (i < more);
        c->bits[i] = (uint8_t)(b > KM_LEVEL_BITS ? KM_LEVEL_BITS : b);
        c->sigma[i] = 1;
    }
}

static void scale_range(km_coder *c, const float *x, int64_t n) {
    double low = INFINITY, high = 0;
    for (int64_t i = 0; i < n; i++) {
        double norm = 0;
        for (int64_t j = 0; j < c->dim; j++) norm += (double)x[i * c->dim + j] * x[i * c->dim + j];
        norm = sqrt(norm / (double)c->dim);
        if (norm > 0 && norm < low) low = norm;
        if (norm > high) high = norm;
    }
    if (high == 0) low = high = 1;
    if (low < high * 1e-3) low = high * 1e-3;
    low *= 0.5, high *= 2;
    c->scale_low = (float)low;
    c->scale_step = (float)(log(high / low) / (KM_SCALE_STEPS - 1));
}

km_coder *km_coder_train(km_threads *t, const float *residuals, int64_t n,
                         const km_coder_options *options, km_error *err) {
    int64_t dim = options->dim;
    if (dim < 1 || dim > KM_CODER_MAX_DIM || n < 1 || !(options->bytes >= 1)) {
        km_error_set(err, KM_ERR_RANGE, "coder: %lld rows of %lld in %g bytes", (long long)n,
                     (long long)dim, options->bytes);
        return NULL;
    }
    km_coder *c = km_calloc(1, sizeof *c);
    if (!c) goto memory;
    c->dim = dim;
    c->bytes = (int64_t)fmin(options->bytes, (double)(1 + dim * KM_LEVEL_BITS / 8));
    c->mode = options->mode;
    c->turn = KM_TURN_HADAMARD;
    c->seed = options->seed;
    c->bits = km_alloc((size_t)dim);
    c->sigma = km_alloc((size_t)dim * sizeof *c->sigma);
    if (!c->bits || !c->sigma) goto memory;
    share_bits(c);
    scale_range(c, residuals, n);
    if (km_coder_prepare(c, err)) goto fail;
    for (int64_t i = 0; i < dim; i++) {
        float l[1 << KM_LEVEL_BITS];
        c->lost += (float)km_levels(c->bits[i], l);
    }
    (void)t;
    return c;
memory:
    km_error_set(err, KM_ERR_MEMORY, "coder: out of memory for %lld axes", (long long)dim);
fail:
    km_coder_free(c);
    return NULL;
}
