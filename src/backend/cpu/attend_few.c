/* A few rows, as when sequences go on by one token each: the keys and values of a row are read once
 * for all query heads that share them, in their own dtype. A row's keys are cut into parts of a fixed
 * size, which are work for threads; their maxima and sums meet at the end, in order. */
#include "backend/cpu/attend.h"
#include "backend/cpu/attention.h"
#include "base/util.h"

#define PART 128 /* keys: whole pages */

typedef struct look {
    km_attend_job *j;
    const km_attention_kernels *soft;
    int64_t parts;  /* of the longest row */
    float *sums;    /* (rows, kv_heads, parts, group, d + 2): weighted sum, maximum, sum */
    float *scratch; /* (threads, group, PART) */
    int64_t each;
} look;

static float *sums_of(const look *l, int64_t r, int64_t h, int64_t part, int64_t g) {
    const km_attend_call *a = &l->j->a;
    return l->sums + (((r * a->kv_heads + h) * l->parts + part) * a->group + g) * (a->d + 2);
}

static void fetch(const char *p) {
    for (int i = 0; i < 2048; i += 64) __builtin_prefetch(p + i);
}

/* One row's group of heads against keys first .. last - 1, all in one part. */
static void run_part(const look *l, int64_t r, int64_t h, int64_t part, const int32_t *pages,
                     int64_t first, int64_t last, float *s) {
    const km_attend_job *j = l->j;
    const km_attend_call *a = &j->a;
    const char *keys = km_tensor_ptr(j->c->in[KM_ATTEND_CACHE_K]);
    const char *values = km_tensor_ptr(j->c->in[KM_ATTEND_CACHE_V]);
    const float *q = j->q + (h * a->rows + r) * a->group * a->d;
    int64_t n = last - first, step;
    float acc[KM_FEW_ROWS * 64], *sum = acc;
    for (int64_t t = first; t < last; t += step) {
        step = km_min64(last - t, KM_KV_PAGE - t % KM_KV_PAGE);
        /* What comes after this page: the next one's keys, or the first one's values. */
        fetch(t + step < last ? keys + km_attend_at(a, pages, t + step, h)
                              : values + km_attend_at(a, pages, first, h));
        j->kern->scores(a->cache, keys + km_attend_at(a, pages, t, h), step, a->d, q, a->group,
                        s + (t - first), PART);
    }
    if (a->softcap > 0) j->kern->cap(s, PART, a->group, n, (float)a->softcap);
    if (a->group * a->d > KM_FEW_ROWS * 64) sum = s + a->group * PART;
    memset(sum, 0, sizeof *sum * (size_t)(a->group * a->d));
    for (int64_t g = 0; g < a->group; g++) {
        float *to = sums_of(l, r, h, part, g);
        to[a->d] = -INFINITY;
        to[a->d + 1] = 0;
        l->soft->soften_row(s + g * PART, n, &to[a->d], &to[a->d + 1]);
    }
    for (int64_t t = first; t < last; t += step) {
        step = km_min64(last - t, KM_KV_PAGE - t % KM_KV_PAGE);
        if (t + step < last) fetch(values + km_attend_at(a, pages, t + step, h));
        j->kern->values(a->cache, values + km_attend_at(a, pages, t, h), step, a->d,
                        s + (t - first), PART, a->group, sum);
    }
    for (int64_t g = 0; g < a->group; g++)
        memcpy(sums_of(l, r, h, part, g), sum + g * a->d, sizeof *sum * (size_t)a->d);
}

static void run_parts(void *arg, int64_t begin, int64_t end, int worker) {
    const look *l = arg;
    const km_attend_call *a = &l->j->a;
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i % l->parts, h = i / l->parts % a->kv_heads, r = i / l->parts / a->kv_heads;
        int64_t position, first = part * PART, last = first + PART;
        const int32_t *pages;
        if (!km_attend_place(a, r, &pages, &position)) continue;
        if (first < km_attend_first(a, position)) first = km_attend_first(a, position);
        last = km_min64(last, position + 1);
        if (first < last)
            run_part(l, r, h, part, pages, first, last, l->scratch + worker * l->each);
    }
}

/* Brings the parts of one query to their common maximum and writes the result. */
static void join(const look *l, int64_t r, int64_t head, int64_t from, int64_t to) {
    const km_attend_call *a = &l->j->a;
    int64_t h = head / a->group, g = head % a->group, d = a->d;
    float *sum = sums_of(l, r, h, from, g), max = sum[d];
    for (int64_t p = from + 1; p < to; p++) {
        float m = sums_of(l, r, h, p, g)[d];
        max = m > max ? m : max;
    }
    float base = max == -INFINITY ? 0 : max, total = 0;
    for (int64_t p = from; p < to; p++) {
        const float *part = sums_of(l, r, h, p, g);
        float factor = to - from == 1 ? 1 : expf(part[d] - base);
        total += part[d + 1] * factor;
        for (int64_t i = 0; i < d; i++)
            sum[i] = p > from ? sum[i] + part[i] * factor : part[i] * factor;
    }
    float by = total > 0 ? 1 / total : total;
    for (int64_t i = 0; i < d; i++) sum[i] *= by;
    l->j->kern->encode(a->dtype, sum, d, km_attend_out(l->j, r, head));
}

km_status km_cpu_attend_few(km_ctx *ctx, km_attend_job *j) {
    const km_attend_call *a = &j->a;
    look l = {.j = j, .soft = km_attention_kernels_of(km_cpu_isa()), .parts = 1};
    const int32_t *pages;
    int64_t position = 0, threads = km_threads_count(ctx->threads);
    for (int64_t r = 0; r < a->rows; r++)
        if (km_attend_place(a, r, &pages, &position) && position / PART + 1 > l.parts)
            l.parts = position / PART + 1;
    l.each = (a->group * (PART + a->d) + 31) & ~(int64_t)15;
    size_t sums = ((size_t)(a->rows * a->heads * l.parts * (a->d + 2)) + 15) & ~(size_t)15;
    l.sums = km_attend_scratch(ctx, j, sums + (size_t)(threads * l.each));
    if (!l.sums) return KM_ERR_MEMORY;
    l.scratch = l.sums + sums;
    if (km_attend_prepare(ctx, j) != KM_OK) return ctx->error.code;
    km_threads_for(ctx->threads, a->rows * a->kv_heads * l.parts, 1, run_parts, &l);
    for (int64_t r = 0; r < a->rows; r++) {
        bool counts = km_attend_place(a, r, &pages, &position);
        for (int64_t head = 0; head < a->heads; head++) {
            if (counts)
                join(&l, r, head, km_attend_first(a, position) / PART, position / PART + 1);
            else
                memset(km_attend_out(j, r, head), 0, (size_t)a->d * km_dtype_size(a->dtype));
        }
    }
    return KM_OK;
}
