/* Softmax, log_softmax and their gradients over any axis. The last axis gives contiguous rows; an
 * earlier one gives columns, taken in blocks. Where the columns are too few to fill a vector they
 * are turned into rows of f32 and back. */
#include "backend/cpu/rows.h"
#include "backend/cpu/lanes.h"

#define NARROW 8                 /* below this many columns: turn them into rows */
#define STRIP_BYTES (256 * 1024) /* of a strip of columns that stays cached between passes */

typedef struct rows_call {
    int slot;
    int64_t size;          /* bytes of an element */
    km_rows_fn fn, fn_f32; /* for the dtype; for rows of f32 */
    char *out;
    const char *x, *y; /* y NULL for the forward ops */
    int64_t n, inner;
    int64_t cols, col_blocks;
    float *buffers; /* (threads, each) */
    int64_t each;
    bool stream;
} rows_call;

static km_rows_job job_at(const rows_call *c, int64_t at, int worker) {
    return (km_rows_job){.out = c->out + at * c->size,
                         .x = c->x + at * c->size,
                         .y = c->y ? c->y + at * c->size : NULL,
                         .n = c->n,
                         .inner = c->inner,
                         .buffer = c->buffers + worker * c->each,
                         .stream = c->stream};
}

static void rows_range(void *arg, int64_t begin, int64_t end, int worker) {
    const rows_call *c = arg;
    km_rows_job job = job_at(c, begin * c->n, worker);
    job.rows = end - begin;
    c->fn(&job);
}

static void columns_range(void *arg, int64_t begin, int64_t end, int worker) {
    const rows_call *c = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t o = b / c->col_blocks, col = b % c->col_blocks * c->cols;
        km_rows_job job = job_at(c, o * c->n * c->inner + col, worker);
        job.cols = c->inner - col < c->cols ? c->inner - col : c->cols;
        c->fn(&job);
    }
}

static float get(const char *p, int slot) {
    if (slot == KM_SLOT_F32) return *(const float *)(const void *)p;
    uint16_t h = *(const uint16_t *)(const void *)p;
    return slot == KM_SLOT_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
}

static void set(char *p, float v, int slot) {
    if (slot == KM_SLOT_F32)
        *(float *)(void *)p = v;
    else
        *(uint16_t *)(void *)p = slot == KM_SLOT_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
}

/* Items are single columns (outer, inner). */
static void narrow_range(void *arg, int64_t begin, int64_t end, int worker) {
    const rows_call *c = arg;
    float *x = c->buffers + worker * c->each, *y = x + c->n, *spare = y + c->n;
    int64_t step = c->inner * c->size;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = (b / c->inner * c->n * c->inner + b % c->inner) * c->size;
        for (int64_t k = 0; k < c->n; k++) x[k] = get(c->x + at + k * step, c->slot);
        for (int64_t k = 0; c->y && k < c->n; k++) y[k] = get(c->y + at + k * step, c->slot);
        km_rows_job job = {.out = x, .x = x, .y = y, .rows = 1, .n = c->n, .buffer = spare};
        c->fn_f32(&job);
        for (int64_t k = 0; k < c->n; k++) set(c->out + at + k * step, x[k], c->slot);
    }
}

/* Columns in a strip, when one has so many bytes: as fit the cache, or, when those are too few for
 * long runs of memory, the most there can be. */
static int64_t strip_width(int64_t bytes, int64_t inner) {
    int64_t cols = STRIP_BYTES / bytes / 64 * 64;
    if (cols < 64 || cols > KM_ROWS_COLS) cols = KM_ROWS_COLS;
    return cols < inner ? cols : inner;
}

static km_status run(km_ctx *ctx, const km_call *call, int op) {
    const km_tensor *x = call->in[0], *out = call->out[0];
    int slot = km_float_slot(x->dtype);
    if (slot < 0) return KM_ERR_UNSUPPORTED;
    km_axis_split s = km_split_at(x->shape, call->p->axis);
    if (s.outer * s.n * s.inner == 0) return KM_OK;
    rows_call c = {.slot = slot,
                   .size = (int64_t)km_dtype_size(x->dtype),
                   .fn_f32 = km_simd_rows()->rows[op][KM_SLOT_F32],
                   .out = km_tensor_ptr(out),
                   .x = km_tensor_ptr(x),
                   .y = call->n_in > 1 ? km_tensor_ptr(call->in[1]) : NULL,
                   .n = s.n,
                   .inner = s.inner};
    c.stream = km_worth_streaming(s.outer * s.n * s.inner * c.size);

    km_range_fn range;
    int64_t items, grain;
    if (s.inner == 1) {
        c.fn = km_simd_rows()->rows[op][slot];
        c.each = s.n;
        range = rows_range;
        items = s.outer;
        grain = km_grain(s.n * c.size);
    } else if (s.inner < NARROW) {
        c.each = 3 * s.n;
        range = narrow_range;
        items = s.outer * s.inner;
        grain = km_grain(s.n * c.size) < s.inner ? s.inner : km_grain(s.n * c.size);
    } else {
        c.fn = km_simd_rows()->columns[op][slot];
        c.cols = strip_width(s.n * c.size, s.inner);
        c.col_blocks = km_ceil_div(s.inner, c.cols);
        range = columns_range;
        items = s.outer * c.col_blocks;
        grain = km_grain(s.n * c.cols * c.size);
    }
    c.each = km_ceil_div(c.each, 64) * 64 + 64; /* threads write to lines of their own */
    int64_t threads = km_useful_threads(ctx, items, grain);
    c.buffers = km_ctx_scratch(ctx, (size_t)(threads * c.each) * sizeof *c.buffers);
    if (!c.buffers) return KM_ERR_MEMORY;
    km_threads_for(ctx->threads, items, grain, range, &c);
    return KM_OK;
}

static km_status softmax(km_ctx *ctx, const km_call *c) { return run(ctx, c, KM_ROWS_SOFTMAX); }
static km_status log_softmax(km_ctx *ctx, const km_call *c) {
    return run(ctx, c, KM_ROWS_LOG_SOFTMAX);
}
static km_status softmax_grad(km_ctx *ctx, const km_call *c) {
    return run(ctx, c, KM_ROWS_SOFTMAX_GRAD);
}
static km_status log_softmax_grad(km_ctx *ctx, const km_call *c) {
    return run(ctx, c, KM_ROWS_LOG_SOFTMAX_GRAD);
}

void km_cpu_register_rows(km_kernel *k) {
    k[KM_OP_SOFTMAX] = softmax;
    k[KM_OP_LOG_SOFTMAX] = log_softmax;
    k[KM_OP_SOFTMAX_GRAD] = softmax_grad;
    k[KM_OP_LOG_SOFTMAX_GRAD] = log_softmax_grad;
}
