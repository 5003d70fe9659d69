/* The embedding's gradient. Every element of the result is summed by one thread, in the order of the
 * indices, so the bits are the same in every run. 16-bit floats are summed in f32 and rounded once. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include <string.h>

/* Per table row, the list of places where its id occurs. */

#define TABLE_ROWS 128 /* rows and columns of the table in one chunk */
#define TABLE_COLS 256
#define LONG_CHAIN 64 /* additions in one chain before it meets the total */

typedef struct embedding_job {
    const km_lanes *lanes;
    int slot;
    int64_t size;   /* bytes of an element */
    char *table;    /* (v, c) */
    const char *dy; /* (n, c) */
    int64_t v, c, col_blocks;
    const int32_t *first; /* (v): the first place of this id, or -1 */
    const int32_t *next;  /* (n): the next place of the same id, or -1 */
    bool accumulate;
} embedding_job;

static void sum_places(const embedding_job *j, char *out, int32_t place, int64_t col,
                       int64_t cols) {
    float total[TABLE_COLS], part[TABLE_COLS];
    if (j->accumulate)
        j->lanes->load[j->slot](total, out, cols);
    else
        memset(total, 0, (size_t)cols * sizeof *total);
    while (place >= 0) {
        memset(part, 0, (size_t)cols * sizeof *part);
        for (int k = 0; k < LONG_CHAIN && place >= 0; k++, place = j->next[place])
            j->lanes->add[j->slot](part, j->dy + (place * j->c + col) * j->size, cols);
        j->lanes->add[KM_SLOT_F32](total, part, cols);
    }
    j->lanes->store[j->slot](out, total, cols);
}

static void embedding_grad_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const embedding_job *j = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t row = b / j->col_blocks * TABLE_ROWS, col = b % j->col_blocks * TABLE_COLS;
        int64_t stop = j->v - row < TABLE_ROWS ? j->v : row + TABLE_ROWS;
        int64_t cols = j->c - col < TABLE_COLS ? j->c - col : TABLE_COLS;
        for (; row < stop; row++) {
            char *out = j->table + (row * j->c + col) * j->size;
            int32_t place = j->first[row];
            if (place >= 0 && (j->accumulate || j->next[place] >= 0)) {
                sum_places(j, out, place, col, cols);
            } else if (place >= 0) {
                memcpy(out, j->dy + (place * j->c + col) * j->size, (size_t)(cols * j->size));
            } else if (!j->accumulate) {
                memset(out, 0, (size_t)(cols * j->size));
            }
        }
    }
}

km_status km_cpu_embedding_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *ids = c->in[1], *table = c->out[0];
    int64_t v = table->shape.dim[0], n = km_shape_count(ids->shape);
    int slot = km_float_slot(table->dtype);
    if (slot < 0 || dy->dtype != table->dtype || v > INT32_MAX || n > INT32_MAX)
        return KM_ERR_UNSUPPORTED;
    embedding_job j = {.lanes = km_simd_lanes(),
                       .slot = slot,
                       .size = (int64_t)km_dtype_size(table->dtype),
                       .table = km_tensor_ptr(table),
                       .dy = km_tensor_ptr(dy),
                       .v = v,
                       .c = table->shape.dim[1],
                       .accumulate = c->p->accumulate};
    if (v == 0 || j.c == 0) return KM_OK;
    int32_t *first = km_ctx_scratch(ctx, (size_t)(v + n) * sizeof *first);
    if (!first) return KM_ERR_MEMORY;
    int32_t *next = first + v;
    memset(first, 0xff, (size_t)v * sizeof *first);
    const void *id = km_tensor_ptr(ids);
    for (int64_t i = n - 1; i >= 0; i--) { /* backwards, so that lists run forwards */
        int64_t row = km_index_at(id, ids->dtype == KM_I64, i);
        next[i] = first[row];
        first[row] = (int32_t)i;
    }
    j.first = first;
    j.next = next;
    j.col_blocks = km_ceil_div(j.c, TABLE_COLS);
    km_threads_for(ctx->threads, km_ceil_div(v, TABLE_ROWS) * j.col_blocks,
                   km_grain(TABLE_ROWS * j.size * (j.c < TABLE_COLS ? j.c : TABLE_COLS)),
                   embedding_grad_range, &j);
    return KM_OK;
}
