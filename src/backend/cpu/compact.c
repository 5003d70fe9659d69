/* What a mask picks, in row-major order: masked_select, masked_scatter and nonzero. Counts of chunks
 * of fixed size first, then each chunk knows where its own begin, whoever works on it. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/split.h"
#include <string.h>

#define CHUNK 16384 /* elements */

typedef struct compact_job {
    const char *x;    /* masked_select: picked from; masked_scatter: src */
    const char *mask; /* bytes; of nonzero, x itself */
    char *out;
    int64_t n, limit; /* elements; results there is room for */
    int64_t size;     /* bytes of an element */
    uint64_t ignored; /* nonzero: bits of an element that do not make it other than zero */
    int64_t *first;   /* (chunks + 1): what those before have picked */
    const km_shape *shape;
} compact_job;

/* Whether element i, `size` bytes as an unsigned number, is none of the zeros. */
static inline __attribute__((always_inline)) bool is_set(const compact_job *j, int64_t i,
                                                         int64_t size) {
    uint64_t v = 0;
    switch (size) {
    case 1: v = (uint8_t)j->mask[i]; break;
    case 2: v = ((const uint16_t *)(const void *)j->mask)[i]; break;
    case 4: v = ((const uint32_t *)(const void *)j->mask)[i]; break;
    default: v = ((const uint64_t *)(const void *)j->mask)[i]; break;
    }
    return (v & ~j->ignored) != 0;
}

static inline __attribute__((always_inline)) int64_t count_sized(const compact_job *j,
                                                                 int64_t begin, int64_t end,
                                                                 int64_t size) {
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) n += is_set(j, i, size);
    return n;
}

static void count_range(const compact_job *j, int64_t begin, int64_t end, int64_t size) {
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t from = chunk * CHUNK, to = j->n - from < CHUNK ? j->n : from + CHUNK;
        j->first[chunk + 1] = size == 1   ? count_sized(j, from, to, 1)
                              : size == 2 ? count_sized(j, from, to, 2)
                              : size == 4 ? count_sized(j, from, to, 4)
                                          : count_sized(j, from, to, 8);
    }
}

static void count_mask(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    count_range(arg, begin, end, 1);
}
static void count_elements(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    count_range(arg, begin, end, ((const compact_job *)arg)->size);
}

/* ---- masked_select and masked_scatter: elements from x to out, one side with gaps ---- */

/* Every element is written to the next free place, which it keeps if it is picked: no branch that a
 * random mask would make a guess. */
static inline __attribute__((always_inline)) void select_sized(const compact_job *j, int64_t i,
                                                               int64_t at, int64_t end,
                                                               int64_t size) {
    for (; at < end; i++) {
        memcpy(j->out + at * size, j->x + i * size, (size_t)size);
        at += j->mask[i] != 0;
    }
}

static inline __attribute__((always_inline)) void place_sized(const compact_job *j, int64_t i,
                                                              int64_t at, int64_t end,
                                                              int64_t size) {
    for (; at < end; i++)
        if (j->mask[i]) memcpy(j->out + i * size, j->x + at++ * size, (size_t)size);
}

static void move_range(const compact_job *j, int64_t begin, int64_t end, bool places) {
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t i = chunk * CHUNK, at = j->first[chunk], stop = j->first[chunk + 1];
        if (stop > j->limit) stop = j->limit;
        switch (j->size * 2 + places) {
        case 2: select_sized(j, i, at, stop, 1); break;
        case 3: place_sized(j, i, at, stop, 1); break;
        case 4: select_sized(j, i, at, stop, 2); break;
        case 5: place_sized(j, i, at, stop, 2); break;
        case 8: select_sized(j, i, at, stop, 4); break;
        case 9: place_sized(j, i, at, stop, 4); break;
        case 16: select_sized(j, i, at, stop, 8); break;
        default: place_sized(j, i, at, stop, 8); break;
        }
    }
}

static void select_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    move_range(arg, begin, end, false);
}
static void place_range(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    move_range(arg, begin, end, true);
}

/* ---- nonzero: where they are ---- */

static inline __attribute__((always_inline)) void nonzero_sized(const compact_job *j, int64_t i,
                                                                int64_t at, int64_t end,
                                                                int64_t size) {
    const km_shape *s = j->shape;
    int rank = s->ndim, last = rank - 1;
    int64_t index[KM_MAX_DIMS] = {0}, rest = i;
    for (int a = last; a >= 0; a--) {
        index[a] = rest % s->dim[a];
        rest /= s->dim[a];
    }
    if (rank == 0) return; /* there is no index to tell */
    while (at < end) {     /* along a line of the last axis, as in select_sized */
        for (; index[last] < s->dim[last] && at < end; i++, index[last]++) {
            int64_t *out = (int64_t *)(void *)j->out + at * rank;
            for (int a = 0; a < rank; a++) out[a] = index[a];
            at += is_set(j, i, size);
        }
        for (int a = last; a > 0 && index[a] == s->dim[a]; a--) {
            index[a] = 0;
            index[a - 1]++;
        }
    }
}

static void nonzero_range(void *arg, int64_t begin, int64_t end, int worker) {
    const compact_job *j = arg;
    (void)worker;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t i = chunk * CHUNK, at = j->first[chunk], stop = j->first[chunk + 1];
        if (stop > j->limit) stop = j->limit;
        switch (j->size) {
        case 1: nonzero_sized(j, i, at, stop, 1); break;
        case 2: nonzero_sized(j, i, at, stop, 2); break;
        case 4: nonzero_sized(j, i, at, stop, 4); break;
        default: nonzero_sized(j, i, at, stop, 8); break;
        }
    }
}

/* Counts, then moves; what is left of the `limit` results is zeros. */
static km_status compact(km_ctx *ctx, compact_job *j, km_range_fn count, km_range_fn move,
                         int64_t result_bytes) {
    int64_t chunks = km_ceil_div(j->n, CHUNK);
    j->first = km_ctx_scratch(ctx, (size_t)(chunks + 1) * sizeof *j->first);
    if (!j->first) return KM_ERR_MEMORY;
    j->first[0] = 0;
    km_threads_for(ctx->threads, chunks, 4, count, j);
    for (int64_t i = 0; i < chunks; i++) j->first[i + 1] += j->first[i];
    km_threads_for(ctx->threads, chunks, 1, move, j);
    int64_t found = j->first[chunks];
    if (result_bytes && found < j->limit)
        memset(j->out + found * result_bytes, 0, (size_t)((j->limit - found) * result_bytes));
    return KM_OK;
}

km_status km_cpu_masked_select(km_ctx *ctx, const km_call *c) {
    compact_job j = {.x = km_tensor_ptr(c->in[0]),
                     .mask = km_tensor_ptr(c->in[1]),
                     .out = km_tensor_ptr(c->out[0]),
                     .n = km_shape_count(c->in[0]->shape),
                     .limit = c->out[0]->shape.dim[0],
                     .size = (int64_t)km_dtype_size(c->in[0]->dtype)};
    return j.limit ? compact(ctx, &j, count_mask, select_range, j.size) : KM_OK;
}

km_status km_cpu_masked_scatter(km_ctx *ctx, const km_call *c) {
    compact_job j = {.x = km_tensor_ptr(c->in[2]),
                     .mask = km_tensor_ptr(c->in[1]),
                     .out = km_tensor_ptr(c->out[0]),
                     .n = km_shape_count(c->in[0]->shape),
                     .limit = c->in[2]->shape.dim[0],
                     .size = (int64_t)km_dtype_size(c->in[0]->dtype)};
    if (j.n == 0) return KM_OK;
    memcpy(j.out, km_tensor_ptr(c->in[0]), (size_t)(j.n * j.size));
    return j.limit ? compact(ctx, &j, count_mask, place_range, 0) : KM_OK;
}

km_status km_cpu_nonzero(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    int64_t size = (int64_t)km_dtype_size(x->dtype);
    compact_job j = {.mask = km_tensor_ptr(x),
                     .out = km_tensor_ptr(c->out[0]),
                     .n = km_shape_count(x->shape),
                     .limit = c->out[0]->shape.dim[0],
                     .size = size,
                     .shape = &x->shape,
                     /* -0 is a zero, too */
                     .ignored = km_dtype_is_float(x->dtype) ? UINT64_C(1) << (8 * size - 1) : 0};
    return j.limit ? compact(ctx, &j, count_elements, nonzero_range, x->shape.ndim * 8) : KM_OK;
}
