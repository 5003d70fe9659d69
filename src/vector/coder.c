/* Coders at work: turning, encoding and decoding. */
#include "backend/cpu/nearest.h"
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include "vector/transform.h"
#include <math.h>

#define ROWS 16 /* rows a thread takes at a time */

int64_t km_coder_dim(const km_coder *c) { return c->dim; }
size_t km_coder_bytes(const km_coder *c) { return (size_t)c->bytes; }
km_code_mode km_coder_mode(const km_coder *c) { return c->mode; }
km_code_turn km_coder_turned_by(const km_coder *c) { return c->turn; }
double km_coder_error(const km_coder *c) { return c->error; }

void km_coder_free(km_coder *c) {
    if (!c) return;
    for (int i = 0; i < KM_CODER_CLASSES; i++) km_axes_free(&c->axes[i]);
    km_stage_free(&c->stage);
    km_free(c->signs);
    km_free(c);
}

km_status km_coder_prepare(km_coder *c, km_error *err) {
    if (c->turn == KM_TURN_HADAMARD && !c->signs) {
        c->signs = km_alloc((size_t)km_hadamard_signs(c->dim) * sizeof *c->signs);
        if (!c->signs) return km_error_set(err, KM_ERR_MEMORY, "coder: out of memory");
        km_hadamard_seed(c->seed, c->dim, c->signs);
    }
    if (c->trellis) c->tables = km_trellis_tables();
    if (!c->trellis && !c->stage.bits && km_stage_plan(&c->stage, &c->axes[0]) != KM_OK)
        return km_error_set(err, KM_ERR_MEMORY, "coder: out of memory");
    c->turned = 0;
    for (int i = 0; i < c->classes; i++) c->turned += c->axes[i].padded;
    c->scales[0] = 0;
    for (int i = 0; i < KM_SCALE_STEPS; i++)
        c->scales[i + 1] = c->scale_low * expf(c->scale_step * (float)i);
    for (int b = 0; b <= KM_LEVEL_BITS && !c->trellis; b++) km_levels(b, c->levels[b]);
    return KM_OK;
}

/* ---- Turning ---- */

void km_coder_turn_rows(const km_coder *c, float *rows, float *out) {
    if (c->signs) {
        for (int i = 0; i < KM_TURN_ROWS; i++) {
            float *z = out + i * c->turned;
            km_hadamard(c->signs, c->dim, rows + i * c->dim);
            memcpy(z, rows + i * c->dim, (size_t)c->dim * sizeof *z);
            for (int64_t j = c->dim; j < c->turned; j++) z[j] = 0;
        }
        return;
    }
    for (int k = 0; k < c->classes; out += c->axes[k++].padded) {
        const km_axes *a = &c->axes[k];
        km_simd_codes()->turn(rows, a->axis, a->count, c->dim, out, c->turned);
        for (int i = 0; i < KM_TURN_ROWS; i++)
            for (int64_t j = a->count; j < a->padded; j++) out[i * c->turned + j] = 0;
    }
}

/* A turned vector: itself, for exact lengths, and its axes in every class. */
int64_t km_coder_turned(const km_coder *c) { return c->dim + c->turned; }

void km_coder_turn(const km_coder *c, const float *x, float *out) {
    memcpy(out, x, (size_t)c->dim * sizeof *x);
    out += c->dim;
    if (c->signs) {
        memcpy(out, x, (size_t)c->dim * sizeof *x);
        km_hadamard(c->signs, c->dim, out);
        for (int64_t j = c->dim; j < c->turned; j++) out[j] = 0;
        return;
    }
    for (int k = 0; k < c->classes; out += c->axes[k++].padded) {
        const km_axes *a = &c->axes[k];
        for (int64_t j = 0; j < a->padded; j++)
            out[j] = j < a->count ? km_simd_codes()->dot(x, a->axis + j * c->dim, c->dim) : 0;
    }
}

/* What stays of the row outside the axes is lost; along an axis the error is the water level if the
 * row is as long there as rows of the class are, and grows with it. */
int km_coder_class(const km_coder *c, const float *z) {
    int best = 0;
    double least = INFINITY;
    for (int k = 0; k < c->classes && c->classes > 1; z += c->axes[k++].padded) {
        const km_axes *a = &c->axes[k];
        double kept = 0, excess = 0;
        for (int64_t i = 0; i < a->count; i++) {
            double s = (double)z[i] * z[i];
            kept += s;
            excess += s / ((double)a->amp[i] * a->amp[i] + a->water);
        }
        double cost = (double)c->dim - kept + 0.5 * a->water * ((double)a->count + excess);
        if (cost < least) {
            least = cost;
            best = k;
        }
    }
    return best;
}

/* ---- Encoding ---- */

static int scale_code(const km_coder *c, double s) {
    if (!(2 * s >= c->scale_low)) return 0;
    double i = round(log(s / c->scale_low) / fmax(c->scale_step, 1e-9));
    return i < 0 ? 1 : i >= KM_SCALE_STEPS ? KM_SCALE_STEPS : (int)i + 1;
}

typedef struct coder_work {
    const km_coder *c;
    const float *in;
    const uint8_t *codes_in;
    int64_t n;
    uint8_t *codes;
    float *out;
    uint8_t *space; /* (workers, stride) */
    int64_t stride;
} coder_work;

/* z (padded) of one row in its class, of squared norm dim in all; s is the row's scale. */
static void encode_axes(const km_coder *c, const km_axes *a, const float *z, double s, float *value,
                        void *space, uint8_t *code) {
    int64_t first = km_coder_head(c);
    if (c->trellis) {
        km_trellis_encode(c->tables, a->count, z, a->amp, a->bits, a->ring, code, first, value,
                          space);
    } else {
        for (int64_t i = 0; i < a->count; i++) {
            int b = a->bits[i];
            int level = b && a->amp[i] > 0 ? km_level_of(b, c->levels[b], z[i] / a->amp[i]) : 0;
            value[i] = b ? c->levels[b][level] : 0;
            km_stage_put(&c->stage, code, i, (uint32_t)level);
        }
    }
    double along = 0, norm = 0; /* the scale that fits best */
    for (int64_t i = 0; i < a->count; i++) {
        double v = (double)a->amp[i] * value[i];
        along += z[i] * v;
        norm += v * v;
    }
    code[0] = (uint8_t)scale_code(c, norm > 0 ? s * along / norm : 0);
}

static void encode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    coder_work *w = arg;
    const km_coder *c = w->c;
    float *rows = (float *)(w->space + worker * w->stride);
    float *turned = rows + KM_TURN_ROWS * c->dim, *value = turned + KM_TURN_ROWS * c->turned;
    for (int64_t first = begin; first < end; first += KM_TURN_ROWS) {
        double scale[KM_TURN_ROWS];
        for (int i = 0; i < KM_TURN_ROWS; i++) {
            float *row = rows + i * c->dim;
            double norm = 0;
            if (first + i < end) {
                memcpy(row, w->in + (first + i) * c->dim, (size_t)c->dim * sizeof *row);
                for (int64_t j = 0; j < c->dim; j++) norm += (double)row[j] * row[j];
            }
            scale[i] = sqrt(norm / (double)c->dim);
            float by = scale[i] > 0 && scale_code(c, scale[i]) > 0 ? (float)(1 / scale[i]) : 0;
            for (int64_t j = 0; j < c->dim; j++) row[j] = by > 0 ? row[j] * by : 0;
            if (by == 0) scale[i] = 0;
        }
        km_coder_turn_rows(c, rows, turned);
        for (int i = 0; i < KM_TURN_ROWS && first + i < end; i++) {
            uint8_t *code = w->codes + (first + i) * c->bytes;
            const float *z = turned + i * c->turned;
            memset(code, 0, (size_t)c->bytes);
            if (scale[i] == 0) continue;
            int k = km_coder_class(c, z);
            if (c->class_bits) km_bits_put(code, KM_SCALE_BITS, c->class_bits, (uint32_t)k);
            for (int j = 0; j < k; j++) z += c->axes[j].padded;
            encode_axes(c, &c->axes[k], z, scale[i], value, value + c->turned, code);
        }
    }
}

km_status km_coder_encode(const km_coder *c, km_threads *t, const float *residuals, int64_t n,
                          uint8_t *codes) {
    int64_t most = 0;
    for (int k = 0; k < c->classes; k++)
        if (c->axes[k].count > most) most = c->axes[k].count;
    size_t floats = (size_t)(KM_TURN_ROWS * (c->dim + c->turned) + c->turned) * sizeof(float);
    size_t stride = (floats + (c->trellis ? km_trellis_space(most) : 0) + 63) & ~(size_t)63;
    size_t all = stride * (size_t)km_threads_count(t);
    uint8_t *space = km_alloc_aligned(all);
    if (!space) return KM_ERR_MEMORY;
    coder_work w = {
        .c = c, .in = residuals, .codes = codes, .space = space, .stride = (int64_t)stride};
    km_threads_for(t, n, ROWS, encode_rows, &w);
    km_free_aligned(space, all);
    return KM_OK;
}

/* ---- Decoding ---- */

void km_code_ready(const km_coder *c, const km_axes *a, const uint8_t *code, uint8_t *out) {
    memcpy(out, code, (size_t)c->bytes);
    memset(out + c->bytes, 0, KM_CODER_PAD);
    if (!c->trellis) return;
    int64_t first = km_coder_head(c), end = first + a->ring;
    for (int n = 0; n < KM_TRELLIS_LENGTH; n += 4) {
        uint32_t four = km_bits_get(code, first + n, 4);
        out[(end + n) >> 3] &= (uint8_t)((1u << ((end + n) & 7)) - 1);
        km_bits_put(out, end + n, 4, four);
    }
}

void km_code_values(const km_coder *c, const km_axes *a, const uint8_t *code, float *values) {
    for (int64_t i = 0; i < a->count && !c->trellis; i++)
        values[i] = a->amp[i] * c->levels[a->bits[i]][km_stage_get(&c->stage, code, i)];
    for (int64_t i = 0; i < a->count && c->trellis; i++) {
        const uint8_t *p = code + (a->at[i] >> 3);
        uint32_t word =
            ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16) >> (a->at[i] & 7);
        values[i] = a->amp[i] * c->tables->window[a->bits[i]][word & (KM_TRELLIS_STATES - 1)];
    }
}

static void decode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    coder_work *w = arg;
    const km_coder *c = w->c;
    uint8_t *ready = w->space + worker * w->stride;
    float *values = (float *)(ready + (c->bytes + KM_CODER_PAD + 63) / 64 * 64);
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *code = w->codes_in + i * c->bytes;
        float *row = w->out + i * c->dim, scale = c->scales[code[0]];
        int k = km_code_class(c, code);
        const km_axes *a = &c->axes[k < c->classes ? k : 0];
        km_code_ready(c, a, code, ready);
        km_code_values(c, a, ready, values);
        memset(row, 0, (size_t)c->dim * sizeof *row);
        if (c->signs) {
            for (int64_t j = 0; j < c->dim; j++) row[j] = values[j] * scale;
            km_hadamard_back(c->signs, c->dim, row);
            continue;
        }
        for (int64_t j = 0; j < a->count; j++)
            km_simd_nearest()->add(row, a->axis + j * c->dim, values[j] * scale, c->dim);
    }
}

km_status km_coder_decode(const km_coder *c, km_threads *t, const uint8_t *codes, int64_t n,
                          float *out) {
    size_t stride = ((size_t)c->bytes + KM_CODER_PAD + 63) / 64 * 64 +
                    ((size_t)c->turned * sizeof(float) + 63) / 64 * 64;
    size_t all = stride * (size_t)km_threads_count(t);
    uint8_t *space = km_alloc_aligned(all);
    if (!space) return KM_ERR_MEMORY;
    coder_work w = {
        .c = c, .codes_in = codes, .out = out, .space = space, .stride = (int64_t)stride};
    km_threads_for(t, n, ROWS, decode_rows, &w);
    km_free_aligned(space, all);
    return KM_OK;
}

/* ---- Lists of codes ---- */

int64_t km_coder_block_rows(const km_coder *c) { return c->trellis ? 1 : KM_STAGE_GROUP; }

void km_coder_pack(const km_coder *c, const uint8_t *codes, int64_t n, uint8_t *packed) {
    if (c->trellis) {
        memcpy(packed, codes, (size_t)(n * c->bytes));
        return;
    }
    for (int64_t i = 0; i < n; i += KM_STAGE_GROUP)
        km_stage_pack(&c->stage, c->bytes, codes + i * c->bytes,
                      n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP, packed + i * c->bytes);
}

void km_coder_unpack(const km_coder *c, const uint8_t *packed, int64_t n, uint8_t *codes) {
    if (c->trellis) {
        memcpy(codes, packed, (size_t)(n * c->bytes));
        return;
    }
    for (int64_t i = 0; i < n; i += KM_STAGE_GROUP)
        km_stage_unpack(&c->stage, c->bytes, packed + i * c->bytes,
                        n - i < KM_STAGE_GROUP ? n - i : KM_STAGE_GROUP, codes + i * c->bytes);
}
