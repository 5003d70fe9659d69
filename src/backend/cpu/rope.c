/* Rotary positions. A chunk is a block of positions in a few of the batch's matrices (heads): its
 * cosines and sines are made once, in double, and used for all of them. Where positions follow
 * one another, only the first is made from its angle; the next ones are rotations of it by one
 * step, whose error over a block stays far below the last place of an f32. */
#include "backend/cpu/rope.h"
#include <math.h>

#define POSITIONS 32 /* in a block */

typedef struct rope_call {
    void (*fn)(const km_rope_job *job);
    char *y;
    const char *x; /* (batch, t, d) */
    int64_t size, batch, t, d, dims;
    const void *positions; /* (t), or NULL */
    bool wide, adjacent, inverse;
    const double *frequency; /* (dims / 2): angle per position; its cosine; its sine */
    const double *step_cos, *step_sin;
    int64_t block_batch, batch_blocks;
    char *scratch; /* per thread: running cos, sin (dims / 2), then the tables */
    int64_t each;  /* bytes of it */
} rope_call;

static int64_t position_at(const rope_call *c, int64_t t) {
    return c->positions ? km_index_at(c->positions, c->wide, t) : t;
}

static void first_angles(const rope_call *c, int64_t position, double *cs, double *sn) {
    for (int64_t i = 0; i < c->dims / 2; i++) {
        double angle = (double)position * c->frequency[i];
        cs[i] = cos(angle);
        sn[i] = sin(angle);
    }
}

static void next_angles(const rope_call *c, double *cs, double *sn) {
    for (int64_t i = 0; i < c->dims / 2; i++) {
        double a = cs[i], b = sn[i];
        cs[i] = a * c->step_cos[i] - b * c->step_sin[i];
        sn[i] = b * c->step_cos[i] + a * c->step_sin[i];
    }
}

/* One line of the tables, in the layout that rope.h asks for. */
static void write_line(const rope_call *c, const double *cs, const double *sn, float *cosines,
                       float *sines) {
    int64_t half = c->dims / 2;
    double sign = c->inverse ? -1 : 1;
    if (!c->adjacent) {
        for (int64_t i = 0; i < half; i++) {
            cosines[i] = (float)cs[i];
            sines[i] = (float)(sign * sn[i]);
        }
        return;
    }
    for (int64_t i = 0; i < half; i++) {
        cosines[2 * i] = cosines[2 * i + 1] = (float)cs[i];
        sines[2 * i + 1] = (float)(sign * sn[i]);
        sines[2 * i] = -sines[2 * i + 1];
    }
}

static void rope_range(void *arg, int64_t begin, int64_t end, int worker) {
    const rope_call *c = arg;
    int64_t half = c->dims / 2, width = c->adjacent ? c->dims : half;
    double *cs = (double *)(void *)(c->scratch + worker * c->each), *sn = cs + half;
    float *cosines = (float *)(void *)(sn + half), *sines = cosines + POSITIONS * width;
    int64_t made = -1; /* the block of positions that the tables hold */
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / c->batch_blocks, first = block * POSITIONS;
        int64_t rows = c->t - first < POSITIONS ? c->t - first : POSITIONS;
        for (int64_t k = 0; made != block && k < rows; k++) {
            int64_t p = position_at(c, first + k);
            int64_t before = k > 0 ? position_at(c, first + k - 1) : p - 2;
            if (p == before + 1)
                next_angles(c, cs, sn);
            else if (p != before) /* heads side by side share a position */
                first_angles(c, p, cs, sn);
            write_line(c, cs, sn, cosines + k * width, sines + k * width);
        }
        made = block;
        int64_t b = item % c->batch_blocks * c->block_batch;
        int64_t stop = c->batch - b < c->block_batch ? c->batch : b + c->block_batch;
        for (; b < stop; b++) {
            int64_t at = (b * c->t + first) * c->d * c->size;
            km_rope_job job = {.y = c->y + at,
                               .x = c->x + at,
                               .cos = cosines,
                               .sin = sines,
                               .rows = rows,
                               .d = c->d,
                               .dims = c->dims};
            c->fn(&job);
        }
    }
}

static km_status rope(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *positions = c->n_in > 1 ? c->in[1] : NULL;
    const float *divisors = c->n_in > 2 && c->in[2] ? km_tensor_ptr(c->in[2]) : NULL;
    int slot = km_float_slot(x->dtype), ndim = x->shape.ndim;
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_axis_split s = km_split_at(x->shape, ndim - 2);
    if (s.outer * s.n * s.inner == 0) return KM_OK;
    rope_call r = {.y = km_tensor_ptr(c->out[0]),
                   .x = km_tensor_ptr(x),
                   .size = (int64_t)km_dtype_size(x->dtype),
                   .batch = s.outer,
                   .t = s.n,
                   .d = s.inner,
                   .dims = c->p->n[KM_N_ROPE_DIMS],
                   .positions = positions ? km_tensor_ptr(positions) : NULL,
                   .wide = positions && positions->dtype == KM_I64,
                   .adjacent = c->p->n[KM_N_ROPE_PAIRS] == KM_ROPE_ADJACENT,
                   .inverse = c->p->n[KM_N_ROPE_INVERSE] != 0};
    r.fn = r.adjacent ? km_simd_rope()->adjacent[slot] : km_simd_rope()->halves[slot];
    int64_t half = r.dims / 2, rows = r.t < POSITIONS ? r.t : POSITIONS;
    int64_t line = rows * r.d * r.size; /* bytes of a block in one matrix */
    r.block_batch = km_grain(line) < 4 ? 4 : km_grain(line);
    r.batch_blocks = km_ceil_div(r.batch, r.block_batch);
    int64_t items = km_ceil_div(r.t, POSITIONS) * r.batch_blocks;
    int64_t most = r.block_batch < r.batch ? r.block_batch : r.batch;
    int64_t grain = km_grain(line * most);

    r.each = 2 * half * (int64_t)sizeof(double) + 2 * POSITIONS * r.dims * (int64_t)sizeof(float);
    r.each = km_ceil_div(r.each, 64) * 64 + 64; /* threads write to lines of their own */
    int64_t tables = km_ceil_div(3 * half * (int64_t)sizeof(double), 64) * 64;
    int64_t threads = km_useful_threads(ctx, items, grain);
    double *frequency = km_ctx_scratch(ctx, (size_t)(tables + threads * r.each));
    if (!frequency) return KM_ERR_MEMORY;
    double *step_cos = frequency + half, *step_sin = step_cos + half,
           log_base = log(c->p->f[KM_F_ROPE_BASE]);
    for (int64_t i = 0; i < half; i++) {
        frequency[i] = exp(-2.0 * (double)i / (double)r.dims * log_base);
        if (divisors) frequency[i] /= (double)divisors[i];
        step_cos[i] = cos(frequency[i]);
        step_sin[i] = sin(frequency[i]);
    }
    r.frequency = frequency;
    r.step_cos = step_cos;
    r.step_sin = step_sin;
    r.scratch = (char *)frequency + tables;
    km_threads_for(ctx->threads, items, grain, rope_range, &r);
    return KM_OK;
}

void km_cpu_register_rope(km_kernel *k) { k[KM_OP_ROPE] = rope; }
