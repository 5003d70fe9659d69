/* What the rows of each cell add up to. Rows are put in order of their cells first; each part of a
 * cell's sum is then one thread's, in the order of the rows, so the bits are the same for any number
 * of threads. */
#include "backend/cpu/lanes.h"
#include "backend/cpu/nearest.h"
#include <string.h>

#define COLUMNS 1024 /* of a cell, summed at once, at most */
#define LONG_CHAIN 64

typedef struct cells_job {
    const km_nearest_kernels *kern;
    const km_lanes *lanes;
    int slot;
    int64_t size;
    const char *x;              /* (n, d) */
    const float *weight, *dist; /* (n) or NULL */
    const int32_t *row;         /* rows in order of their cells */
    const int32_t *start;       /* (k + 1) */
    int64_t d, k, cols, col_blocks;
    float *sum, *mass, *count, *spread;
} cells_job;

static void add_row(const cells_job *j, float *part, int32_t row, int64_t col, int64_t cols) {
    const char *x = j->x + ((int64_t)row * j->d + col) * j->size;
    float w = j->weight ? j->weight[row] : 1, wide[COLUMNS];
    if (j->slot == KM_SLOT_F32) {
        j->kern->add(part, (const float *)(const void *)x, w, cols);
    } else if (j->weight) {
        j->lanes->load[j->slot](wide, x, cols);
        j->kern->add(part, wide, w, cols);
    } else {
        j->lanes->add[j->slot](part, x, cols);
    }
}

static void sum_columns(const cells_job *j, int64_t cell, int64_t col, int64_t cols) {
    float part[COLUMNS], *total = j->sum + cell * j->d + col;
    memset(total, 0, (size_t)cols * sizeof *total);
    for (int64_t i = j->start[cell], end = j->start[cell + 1]; i < end;) {
        memset(part, 0, (size_t)cols * sizeof *part);
        int64_t stop = end - i < LONG_CHAIN ? end : i + LONG_CHAIN;
        for (; i < stop; i++) {
            if (i + 1 < end)
                __builtin_prefetch(j->x + ((int64_t)j->row[i + 1] * j->d + col) * j->size);
            add_row(j, part, j->row[i], col, cols);
        }
        j->kern->add(total, part, 1, cols);
    }
}

static void sum_numbers(const cells_job *j, int64_t cell) {
    double mass = 0, spread = 0;
    for (int64_t i = j->start[cell]; i < j->start[cell + 1]; i++) {
        if (j->weight) mass += (double)j->weight[j->row[i]];
        if (j->dist) spread += (double)j->dist[j->row[i]];
    }
    j->count[cell] = (float)(j->start[cell + 1] - j->start[cell]);
    j->mass[cell] = j->weight ? (float)mass : j->count[cell];
    j->spread[cell] = (float)spread;
}

/* Items are (cell, block of columns). */
static void cells_range(void *arg, int64_t begin, int64_t end, int worker) {
    const cells_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t cell = i / j->col_blocks, col = i % j->col_blocks * j->cols;
        sum_columns(j, cell, col, j->d - col < j->cols ? j->d - col : j->cols);
        if (col == 0) sum_numbers(j, cell);
    }
}

km_status km_cpu_cell_sums(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    const km_tensor *weight = c->n_in > 2 ? c->in[2] : NULL, *dist = c->n_in > 3 ? c->in[3] : NULL;
    const int32_t *id = km_tensor_ptr(c->in[1]);
    int64_t n = x->shape.dim[0], k = c->p->n[KM_N_CELLS];
    cells_job j = {.kern = km_simd_nearest(),
                   .lanes = km_simd_lanes(),
                   .slot = km_float_slot(x->dtype),
                   .size = (int64_t)km_dtype_size(x->dtype),
                   .x = km_tensor_ptr(x),
                   .weight = weight ? km_tensor_ptr(weight) : NULL,
                   .dist = dist ? km_tensor_ptr(dist) : NULL,
                   .d = x->shape.dim[1],
                   .k = k,
                   .sum = km_tensor_ptr(c->out[0]),
                   .mass = km_tensor_ptr(c->out[1]),
                   .count = km_tensor_ptr(c->out[2]),
                   .spread = km_tensor_ptr(c->out[3])};
    if (k == 0) return KM_OK;
    int32_t *start = km_ctx_scratch(ctx, (size_t)(k + 2 + n) * sizeof *start);
    if (!start) return KM_ERR_MEMORY;
    int32_t *row = start + k + 2;
    memset(start, 0, (size_t)(k + 2) * sizeof *start);
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && id[i] < k) start[id[i] + 2]++;
    for (int64_t i = 0; i < k; i++) start[i + 2] += start[i + 1];
    for (int64_t i = 0; i < n;
         i++) /* start[i + 1] is where cell i goes on; in the end, where it ends */
        if (id[i] >= 0 && id[i] < k) row[start[id[i] + 1]++] = (int32_t)i;
    j.row = row;
    j.start = start;
    j.cols = k < 16 ? 64 : COLUMNS; /* few cells: their columns are shared out */
    j.col_blocks = j.d > j.cols ? km_ceil_div(j.d, j.cols) : 1;
    km_threads_for(ctx->threads, k * j.col_blocks, km_grain(km_ceil_div(n, k) * j.d * j.size),
                   cells_range, &j);
    return KM_OK;
}
