/* Attention over the paged cache, as all kernels of KM_OP_ATTEND see a call: its inputs by name, its
 * sizes, which rows count, and how a key or value is rounded to the blocks of a cache. */
#ifndef KM_BACKEND_ATTEND_H
#define KM_BACKEND_ATTEND_H
#include "backend/backend.h"
#include <math.h>

enum {
    KM_ATTEND_Q,
    KM_ATTEND_K,
    KM_ATTEND_V,
    KM_ATTEND_CACHE_K,
    KM_ATTEND_CACHE_V,
    KM_ATTEND_ROWS,
    KM_ATTEND_TABLE,
    KM_ATTEND_Q_NORM,
    KM_ATTEND_K_NORM,
    KM_ATTEND_DIVISORS,
    KM_ATTEND_INPUTS
};

typedef struct km_attend_call {
    int64_t rows, heads, kv_heads, d;
    int64_t group;  /* query heads to a key head */
    int64_t window; /* 0: none */
    int64_t dims;   /* rotated elements of a head; 0: no rotation */
    bool adjacent;  /* pairs are neighbours, not halves apart */
    double base, scale, softcap, eps;
    double magnitude; /* of rotated elements: 1 leaves their length */
    int64_t pages, sequences, max_pages;
    const int32_t *row,
        *table;            /* (rows, 2), (sequences, max_pages), where the host can read them */
    km_dtype dtype, cache; /* of q, k, v and the result; of the cache */
    int64_t vector_bytes;  /* of a key or value in the cache */
} km_attend_call;

static inline const km_tensor *km_attend_in(const km_call *c, int i) {
    return i < c->n_in ? c->in[i] : NULL;
}

static inline km_attend_call km_attend_describe(const km_call *c) {
    const km_tensor *q = c->in[KM_ATTEND_Q], *cache = c->in[KM_ATTEND_CACHE_K];
    const km_tensor *table = c->in[KM_ATTEND_TABLE];
    km_attend_call a = {.rows = q->shape.dim[0],
                        .heads = c->p->n[KM_N_HEADS],
                        .kv_heads = c->p->n[KM_N_KV_HEADS],
                        .d = cache->shape.dim[3],
                        .group = c->p->n[KM_N_HEADS] / c->p->n[KM_N_KV_HEADS],
                        .window = c->p->n[KM_N_WINDOW],
                        .dims =
                            c->p->f[KM_F_ATTEND_BASE] > 0 ? c->p->n[KM_N_ROTATION] & 0xffffffff : 0,
                        .adjacent = c->p->n[KM_N_ROTATION] >> 32 == KM_ROPE_ADJACENT,
                        .base = c->p->f[KM_F_ATTEND_BASE],
                        .scale = c->p->f[KM_F_SCALE],
                        .softcap = c->p->f[KM_F_SOFTCAP],
                        .eps = c->p->f[KM_F_ATTEND_EPS],
                        .magnitude = c->p->f[KM_F_MAGNITUDE] > 0 ? c->p->f[KM_F_MAGNITUDE] : 1,
                        .pages = cache->shape.dim[0],
                        .sequences = table->shape.dim[0],
                        .max_pages = table->shape.dim[1],
                        .row = km_tensor_ptr(c->in[KM_ATTEND_ROWS]),
                        .table = km_tensor_ptr(table),
                        .dtype = q->dtype,
                        .cache = cache->dtype};
    a.vector_bytes = km_dtype_bytes(a.cache, a.d);
    return a;
}

/* Where row r stands; false for one that does not count, because its position is negative or it
 * points outside the table or the cache: nothing is kept of it, and its result is 0. */
static inline bool km_attend_place(const km_attend_call *a, int64_t r, const int32_t **pages,
                                   int64_t *position) {
    int64_t sequence = a->row[2 * r], at = a->row[2 * r + 1];
    if (sequence < 0 || sequence >= a->sequences || at < 0 || at >= a->max_pages * KM_KV_PAGE)
        return false;
    *pages = a->table + sequence * a->max_pages;
    *position = at;
    int64_t first = a->window > 0 && at >= a->window ? at - a->window + 1 : 0;
    for (int64_t p = first / KM_KV_PAGE; p <= at / KM_KV_PAGE; p++)
        if ((*pages)[p] < 0 || (*pages)[p] >= a->pages) return false;
    return true;
}

/* The first key that a query at `position` sees. */
static inline int64_t km_attend_first(const km_attend_call *a, int64_t position) {
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

/* Byte at which the vector of token `position` and key head h begins in a cache. */
static inline int64_t km_attend_at(const km_attend_call *a, const int32_t *pages, int64_t position,
                                   int64_t h) {
    int64_t page = pages[position / KM_KV_PAGE];
    return ((page * a->kv_heads + h) * KM_KV_PAGE + position % KM_KV_PAGE) * a->vector_bytes;
}

/* One block of 32 of q8_0: the scale is the largest magnitude / 127, codes to the nearest. */
static inline void km_attend_q8_0(const float *x, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, by = d > 0 ? 1 / d : 0;
    uint16_t half = km_f32_to_f16(d);
    memcpy(b, &half, 2);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)lrintf(x[i] * by);
}

/* One block of 32 of q4_0: the element of largest magnitude (the first of them) gets code 0, that is
 * -8, and the others the nearest up to 15. */
static inline void km_attend_q4_0(const float *x, uint8_t *b) {
    float far = 0;
    for (int i = 0; i < 32; i++) far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
    float d = far / -8, by = d != 0 ? 1 / d : 0;
    uint16_t half = km_f32_to_f16(d);
    memcpy(b, &half, 2);
    for (int i = 0; i < 16; i++) {
        int low = (int)(x[i] * by + 8.5f), high = (int)(x[i + 16] * by + 8.5f);
        low = low > 15 ? 15 : low;
        high = high > 15 ? 15 : high;
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

/* n elements, whole blocks. */
static inline void km_attend_encode(km_dtype d, const float *x, int64_t n, void *to) {
    uint8_t *b = to;
    if (d == KM_F32) memcpy(to, x, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n && d == KM_F16; i++) ((uint16_t *)to)[i] = km_f32_to_f16(x[i]);
    for (int64_t i = 0; i < n && d == KM_BF16; i++) ((uint16_t *)to)[i] = km_f32_to_bf16(x[i]);
    for (int64_t i = 0; i < n && d == KM_Q8_0; i += 32, b += 34) km_attend_q8_0(x + i, b);
    for (int64_t i = 0; i < n && d == KM_Q4_0; i += 32, b += 18) km_attend_q4_0(x + i, b);
}

#endif
