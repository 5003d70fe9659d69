/* What adapters add to a layer, LOW_RANK: first each row's products with the ranks that it uses, then
 * these times the other matrix, added to a copy of y. A row is worked on by itself: its bits depend
 * neither on its neighbours nor on the threads. */
#include "backend/cpu/low_rank.h"
#include "backend/cpu/split.h"
#include <string.h>

#define RANKS 8     /* of one row that a thread takes at a time */
#define COLUMNS 512 /* of one row, in the second half */

typedef struct low_rank_job {
    const float *y, *x, *mix, *a, *b;
    const int32_t *slot;
    float *out, *low; /* low (rows, ranks) */
    int64_t rows, in, outs, slots, ranks, parts;
} low_rank_job;

static float weight(const low_rank_job *j, int64_t row, int64_t r) {
    int32_t s = j->slot[r];
    return s >= 0 && s < j->slots ? j->mix[row * j->slots + s] : 0;
}

static void down(void *arg, int64_t begin, int64_t end, int worker) {
    const low_rank_job *j = arg;
    const km_low_rank_table *k = km_simd_low_rank();
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % j->rows, r = i / j->rows * RANKS, last = r + RANKS;
        float *low = j->low + row * j->ranks;
        if (last > j->ranks) last = j->ranks;
        while (r < last) {
            int64_t from = r;
            while (r < last && weight(j, row, r) != 0) r++;
            if (r > from)
                k->dots(j->a + from * j->in, j->x + row * j->in, j->in, r - from, low + from);
            for (int64_t t = from; t < r; t++) low[t] *= weight(j, row, t);
            while (r < last && weight(j, row, r) == 0) low[r++] = 0;
        }
    }
}

static void up(void *arg, int64_t begin, int64_t end, int worker) {
    const low_rank_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i % j->rows, o = i / j->rows * COLUMNS;
        int64_t n = km_min64(COLUMNS, j->outs - o);
        float *out = j->out + row * j->outs + o;
        memcpy(out, j->y + row * j->outs + o, sizeof *out * (size_t)n);
        km_simd_low_rank()->add(out, j->low + row * j->ranks, j->b + o, j->outs, n, j->ranks);
    }
}

static km_status low_rank(km_ctx *ctx, const km_call *c) {
    if (c->in[0]->dtype != KM_F32) return KM_ERR_UNSUPPORTED;
    low_rank_job j = {.y = km_tensor_ptr(c->in[0]),
                      .x = km_tensor_ptr(c->in[1]),
                      .mix = km_tensor_ptr(c->in[2]),
                      .slot = km_tensor_ptr(c->in[3]),
                      .a = km_tensor_ptr(c->in[4]),
                      .b = km_tensor_ptr(c->in[5]),
                      .out = km_tensor_ptr(c->out[0]),
                      .rows = c->in[1]->shape.dim[0],
                      .in = c->in[1]->shape.dim[1],
                      .outs = c->in[0]->shape.dim[1],
                      .slots = c->in[2]->shape.dim[1],
                      .ranks = c->in[3]->shape.dim[0]};
    if (j.rows == 0 || j.outs == 0) return KM_OK;
    j.low = km_ctx_scratch(ctx, sizeof *j.low * (size_t)(j.rows * j.ranks + 1));
    if (!j.low) return KM_ERR_MEMORY;
    int64_t n = km_ceil_div(j.ranks, RANKS) * j.rows;
    km_threads_for(ctx->threads, n, km_even_grain(n, RANKS * j.in * (int64_t)sizeof(float)), down,
                   &j);
    n = km_ceil_div(j.outs, COLUMNS) * j.rows;
    int64_t bytes = km_min64(j.outs, COLUMNS) * (j.ranks + 2) * (int64_t)sizeof(float);
    km_threads_for(ctx->threads, n, km_even_grain(n, bytes), up, &j);
    return KM_OK;
}

void km_cpu_register_low_rank(km_kernel *k) { k[KM_OP_LOW_RANK] = low_rank; }
