/* Elementwise loops on all threads. */
#include "backend/cpu/walk.h"
#include "base/cpu.h"

#define CHUNK_COST 200000 /* 20 us at least, several times what waking a thread takes */
#define CHUNKS_EACH 4     /* chunks per thread, so that a slow one does not hold up the rest */

int64_t km_cpu_grain(const km_ctx *ctx, int64_t n, int64_t cost) {
    int64_t least = CHUNK_COST / (cost > 0 ? cost : 1) + 1;
    int64_t share = n / (CHUNKS_EACH * (int64_t)km_threads_count(ctx->threads)) + 1;
    return share > least ? share : least;
}

bool km_cpu_streams(int64_t bytes) {
    int64_t limit = (int64_t)km_cpu_info()->l3 / 2;
    if (limit < 4 << 20) limit = 4 << 20;
    if (limit > 32 << 20) limit = 32 << 20; /* a huge cache is shared by many */
    return bytes > limit;
}

typedef struct strided_walk {
    const km_iter *it;
    km_run_fn fn;
    void *arg;
} strided_walk;

/* Moves to the next run: the innermost axis but one advances, and carries. */
static void next_row(const km_iter *it, int64_t index[], char *ptr[]) {
    for (int a = it->ndim - 2; a >= 0; a--) {
        bool carry = ++index[a] == it->dim[a];
        if (carry) index[a] = 0;
        for (int k = 0; k < it->n; k++) {
            int64_t step = it->stride[k][a] * (int64_t)it->size[k];
            ptr[k] += carry ? -step * (it->dim[a] - 1) : step;
        }
        if (!carry) return;
    }
}

static void walk_range(void *arg, int64_t begin, int64_t end, int worker) {
    const strided_walk *w = arg;
    const km_iter *it = w->it;
    int last = it->ndim - 1;
    int64_t inner = it->dim[last], row = begin / inner, col = begin % inner;
    char *ptr[KM_ITER_MAX];
    int64_t index[KM_MAX_DIMS];
    (void)worker;
    km_iter_row(it, row, ptr);
    for (int a = last - 1; a >= 0; a--) {
        index[a] = row % it->dim[a];
        row /= it->dim[a];
    }
    while (begin < end) {
        int64_t n = inner - col < end - begin ? inner - col : end - begin;
        char *at[KM_ITER_MAX];
        for (int k = 0; k < it->n; k++)
            at[k] = ptr[k] + col * it->stride[k][last] * (int64_t)it->size[k];
        w->fn(w->arg, at, n);
        begin += n;
        col = 0;
        next_row(it, index, ptr);
    }
    km_cpu_fence();
}

void km_cpu_walk(km_ctx *ctx, const km_iter *it, int cost, km_run_fn fn, void *arg) {
    int64_t total = it->rows * it->dim[it->ndim - 1];
    if (total == 0) return;
    strided_walk w = {it, fn, arg};
    int64_t grain = km_cpu_grain(ctx, total, cost);
    /* Whole runs where that leaves enough chunks; bounds that keep vectors aligned where not. */
    int64_t inner = it->dim[it->ndim - 1];
    int64_t unit = inner <= grain ? inner : 4096;
    grain = (grain + unit - 1) / unit * unit;
    km_threads_for(ctx->threads, total, grain, walk_range, &w);
}
