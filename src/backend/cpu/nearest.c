/* The nearest of k centres to each row: a blocked product whose tiles are searched while they are in
 * the first cache, so the (n, k) matrix never exists.
 *
 * With m the mean of the centres and c' = c - m, |x - c|^2 is |c'|^2 + 2 m.c' - 2 x.c' but for what
 * depends on the row alone, and its rounding error grows with |c'|, not with how far the data lie from
 * zero. Columns within that error of the smallest are compared again by their distances as defined. */
#include "backend/cpu/nearest.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/split.h"
#include <math.h>
#include <string.h>

#define BLOCK_ROWS 192 /* of x, kept in the second cache */
#define TILE_ROWS 48   /* whose products are searched at once, in the first */

typedef struct nearest_job {
    const km_gemm_kernels *gemm;
    const km_nearest_kernels *kern;
    const char *x; /* (n, d) */
    km_dtype dtype;
    int64_t n, d, k, padded;
    const float *centre; /* (k, d) */
    int32_t *id;
    float *dist;
    float *mean, *moved; /* (d), (k, d): c' */
    float *packed;       /* panels of c' */
    float *bias;         /* (padded): |c'|^2 + 2 m.c' */
    float *size;         /* (padded): |c'| */
    float largest, largest_bias;
    bool odd;  /* infinities or NaN among the centres */
    char *own; /* of each thread */
    size_t own_bytes;
} nearest_job;

/* ---- Centres ---- */

static void find_mean(const nearest_job *j) {
    for (int64_t e = 0; e < j->d; e++) j->mean[e] = 0;
    float w = 1 / (float)j->k;
    for (int64_t i = 0; i < j->k; i++) j->kern->add(j->mean, j->centre + i * j->d, w, j->d);
}

/* Items are panels. */
static void pack_range(void *arg, int64_t begin, int64_t end, int worker) {
    const nearest_job *j = arg;
    int64_t nr = j->gemm->nr, d = j->d;
    (void)worker;
    for (int64_t i = begin * nr; i < end * nr; i++) {
        if (i >= j->k) {
            j->bias[i] = INFINITY;
            j->size[i] = 0;
            continue;
        }
        const float *c = j->centre + i * d;
        float *to = j->moved + i * d;
        double square = 0, with_mean = 0;
        for (int64_t e = 0; e < d; e++) {
            to[e] = c[e] - j->mean[e];
            square += (double)to[e] * (double)to[e];
            with_mean += (double)to[e] * (double)j->mean[e];
        }
        j->bias[i] = (float)(square + 2 * with_mean);
        j->size[i] = (float)sqrt(square);
    }
    for (int64_t p = begin; p < end; p++) {
        int64_t cols = j->k - p * nr < nr ? j->k - p * nr : nr;
        j->gemm->pack_turned(j->packed + p * nr * d, j->moved + p * nr * d, KM_F32, d, d, cols);
    }
}

static void largest_of(nearest_job *j) {
    for (int64_t i = 0; i < j->k; i++) {
        if (!(isfinite(j->bias[i]) && isfinite(j->size[i]))) j->odd = true;
        if (j->size[i] > j->largest) j->largest = j->size[i];
        if (fabsf(j->bias[i]) > j->largest_bias) j->largest_bias = fabsf(j->bias[i]);
    }
}

/* ---- Rows ---- */

static void meet_exactly(const nearest_job *j, const float *x, int64_t i, float *best,
                         int32_t *id) {
    float dist = j->kern->distance(x, j->centre + i * j->d, j->d);
    if (dist < *best || (dist == *best && i < *id) || (isnan(*best) && !isnan(dist))) {
        *best = dist;
        *id = (int32_t)i;
    }
}

static void finish_row(const nearest_job *j, const km_nearest_row *r, const float *x, int64_t row) {
    float smallest = INFINITY, square = j->kern->square(x, j->d), best = NAN;
    int32_t id = 0;
    bool all = j->odd || !isfinite(square);
    for (int l = 0; l < KM_NEAREST_LANES; l++)
        if (r->best[l] < smallest) smallest = r->best[l];
    /* Of two sums, each a chain of d products, and of adding the bias. */
    float slack = (8 + 2 * sqrtf((float)j->d)) * 0x1p-23f * sqrtf(square) * j->largest +
                  0x1p-22f * j->largest_bias;
    float limit = smallest + slack;
    for (int l = 0; l < KM_NEAREST_LANES; l++)
        if (r->second[l] <= limit) all = true;
    for (int l = 0; l < KM_NEAREST_LANES && !all; l++)
        if (r->best[l] <= limit) meet_exactly(j, x, r->id[l], &best, &id);
    for (int64_t i = 0; i < j->k && all; i++) meet_exactly(j, x, i, &best, &id);
    j->id[row] = id;
    j->dist[row] = best;
}

static void block(const nearest_job *j, int64_t first, int64_t rows, char *own) {
    int64_t nr = j->gemm->nr, d = j->d;
    km_nearest_row *found = (km_nearest_row *)(void *)own;
    float *tile = (float *)(void *)(own + sizeof *found * BLOCK_ROWS),
          *wide = tile + TILE_ROWS * nr;
    const float *x = (const float *)(const void *)j->x + first * d;
    if (j->dtype != KM_F32) {
        j->gemm->widen(wide, d, j->x + first * d * (int64_t)km_dtype_size(j->dtype), j->dtype, d,
                       rows, d);
        x = wide;
    }
    j->kern->begin(found, rows);
    memset(tile, 0, sizeof *tile * (size_t)(TILE_ROWS * nr));
    for (int64_t c = 0; c < j->k; c += nr) {
        int64_t cols = j->k - c < nr ? j->k - c : nr;
        const float *panel = j->packed + c * d, *next = c + nr < j->k ? panel + nr * d : NULL;
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            int64_t many = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            j->gemm->panel(many, cols, d, x + r * d, d, 1, panel, nr, r == 0 ? next : NULL, tile,
                           nr, -2, 0);
            j->kern->meet(found + r, many, tile, nr, j->bias + c, cols, (int32_t)c);
        }
    }
    for (int64_t r = 0; r < rows; r++) finish_row(j, &found[r], x + r * d, first + r);
}

/* Items are blocks of rows. */
static void search_range(void *arg, int64_t begin, int64_t end, int worker) {
    const nearest_job *j = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * BLOCK_ROWS, left = j->n - first;
        block(j, first, left < BLOCK_ROWS ? left : BLOCK_ROWS,
              j->own + (size_t)worker * j->own_bytes);
    }
}

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static km_status nearest(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *centre = c->in[1];
    nearest_job j = {.gemm = km_gemm_kernels_of(km_gemm_isa()),
                     .kern = km_simd_nearest(),
                     .x = km_tensor_ptr(x),
                     .dtype = x->dtype,
                     .n = x->shape.dim[0],
                     .d = x->shape.dim[1],
                     .k = centre->shape.dim[0],
                     .centre = km_tensor_ptr(centre),
                     .id = km_tensor_ptr(c->out[0]),
                     .dist = km_tensor_ptr(c->out[1])};
    if (j.n == 0) return KM_OK;
    int64_t nr = j.gemm->nr, d = j.d;
    j.padded = km_ceil_div(j.k, nr) * nr;
    j.own_bytes = round_up(sizeof(km_nearest_row) * BLOCK_ROWS +
                           sizeof(float) * (size_t)(TILE_ROWS * nr + 16) +
                           (x->dtype == KM_F32 ? 0 : sizeof(float) * (size_t)(BLOCK_ROWS * d)));
    size_t centres = round_up(sizeof(float) * (size_t)(d + j.k * d + j.padded * d + 2 * j.padded));
    char *scratch =
        km_ctx_scratch(ctx, centres + j.own_bytes * (size_t)km_threads_count(ctx->threads));
    if (!scratch) return KM_ERR_MEMORY;
    j.packed = (float *)(void *)scratch;
    j.bias = j.packed + j.padded * d;
    j.size = j.bias + j.padded;
    j.moved = j.size + j.padded;
    j.mean = j.moved + j.k * d;
    j.own = scratch + centres;
    find_mean(&j);
    km_threads_for(ctx->threads, j.padded / nr, km_grain(nr * d * 8), pack_range, &j);
    largest_of(&j);
    km_threads_for(ctx->threads, km_ceil_div(j.n, BLOCK_ROWS), 1, search_range, &j);
    return KM_OK;
}

void km_cpu_register_nearest(km_kernel *k) {
    k[KM_OP_NEAREST] = nearest;
    k[KM_OP_CELL_SUMS] = km_cpu_cell_sums;
}
