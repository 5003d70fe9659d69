/* Attention for a few queries, as when a model writes one token after another: keys and values are
 * read once, in their own dtype, and that is the work. With fewer key heads than threads the keys
 * are cut as well, and the parts' maxima and sums meet at the end. */
#include "backend/cpu/attention.h"
#include "base/util.h"
#include <math.h>

#define STRETCH 512   /* keys at a time: their scores stay in the cache */
#define PART_KEYS 256 /* at least, for a part to be worth a thread */

typedef struct attention_few_job {
    const km_attention_call *a;
    const km_call *c;
    int64_t rows; /* queries that share a key head: group * Tq */
    int64_t parts, part_keys;
    float *sums; /* (B, Hkv, parts, rows, D + 2): weighted sum, maximum, sum */
    float *scratch;
    size_t floats; /* of scratch, for each thread */
} attention_few_job;

static float *sums_of(const attention_few_job *j, int64_t head, int64_t part, int64_t row) {
    return j->sums + ((head * j->parts + part) * j->rows + row) * (j->a->D + 2);
}

/* One part: keys [part * part_keys, ...) against all the rows. */
static void run_part(const attention_few_job *j, int64_t index, float *scratch) {
    const km_attention_call *a = j->a;
    const km_tensor *q = j->c->in[0], *k = j->c->in[1], *v = j->c->in[2];
    int64_t D = a->D, head = index / j->parts, part = index % j->parts;
    int64_t b = head / a->Hkv, hk = head % a->Hkv;
    float *qs = scratch, *s = qs + j->rows * D, *add = s + j->rows * STRETCH;
    int64_t most = 0;
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t h = hk * a->group + r / a->Tq, t = r % a->Tq;
        float *acc = sums_of(j, head, part, r);
        a->gemm->widen(qs + r * D, D, km_attention_vec(q, b, h, t), a->dtype, D, 1, D);
        for (int64_t i = 0; i < D; i++) qs[r * D + i] *= a->scale;
        memset(acc, 0, (size_t)D * sizeof *acc);
        acc[D] = -INFINITY;
        acc[D + 1] = 0;
        int64_t seen = km_attention_seen(a, t);
        if (seen > most) most = seen;
    }
    int64_t last = km_min64(most, (part + 1) * j->part_keys);
    for (int64_t first = part * j->part_keys; first < last; first += STRETCH) {
        int64_t n = km_min64(STRETCH, last - first);
        a->gemm->dots(km_attention_vec(k, b, hk, first), a->dtype, k->stride[2], n, D, qs, D,
                      j->rows, s, STRETCH);
        for (int64_t r = 0; r < j->rows; r++) {
            int64_t sees = km_min64(n, km_attention_seen(a, r % a->Tq) - first);
            float *acc = sums_of(j, head, part, r), *sr = s + r * STRETCH;
            if (sees < 0) sees = 0;
            float factor = a->kern->soften_row(sr, sees, &acc[D], &acc[D + 1]);
            for (int64_t i = sees; i < n; i++) sr[i] = 0;
            for (int64_t i = 0; i < D; i++) acc[i] *= factor;
        }
        a->gemm->sums(km_attention_vec(v, b, hk, first), a->dtype, v->stride[2], D, n, s, STRETCH,
                      j->rows, add, D);
        for (int64_t r = 0; r < j->rows; r++) {
            float *acc = sums_of(j, head, part, r);
            for (int64_t i = 0; i < D; i++) acc[i] += add[r * D + i];
        }
    }
}

static void run_parts(void *arg, int64_t begin, int64_t end, int worker) {
    const attention_few_job *j = arg;
    for (int64_t i = begin; i < end; i++) run_part(j, i, j->scratch + (size_t)worker * j->floats);
}

/* Brings the parts of one query to their common maximum, in order, and writes the result. */
static void join_parts(const attention_few_job *j, int64_t head, int64_t r) {
    const km_attention_call *a = j->a;
    const km_tensor *o = j->c->out[0], *lse = j->c->n_out > 1 ? j->c->out[1] : NULL;
    int64_t D = a->D, b = head / a->Hkv, h = head % a->Hkv * a->group + r / a->Tq, t = r % a->Tq;
    float *sum = sums_of(j, head, 0, r), max = sum[D];
    for (int64_t p = 1; p < j->parts; p++) max = fmaxf(max, sums_of(j, head, p, r)[D]);
    float base = max == -INFINITY ? 0 : max, total = 0;
    for (int64_t p = 0; p < j->parts; p++) {
        const float *part = sums_of(j, head, p, r);
        float factor = j->parts == 1 ? 1 : expf(part[D] - base);
        total += part[D + 1] * factor;
        for (int64_t i = 0; i < D; i++) sum[i] = p ? sum[i] + part[i] * factor : part[i] * factor;
    }
    float by = total > 0 ? 1 / total : total;
    for (int64_t i = 0; i < D; i++) sum[i] *= by;
    a->gemm->finish(&(km_finish){.dtype = a->dtype}, sum, D, km_attention_vec(o, b, h, t), NULL, D,
                    1, D);
    if (lse) {
        int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
        ((float *)km_tensor_ptr(lse))[at] = max + logf(total);
    }
}

km_status km_cpu_attention_few(km_ctx *ctx, const km_attention_call *a, const km_call *c) {
    int64_t heads = a->B * a->Hkv, threads = km_threads_count(ctx->threads);
    attention_few_job j = {.a = a, .c = c, .rows = a->group * a->Tq, .parts = 1};
    if (heads < threads) j.parts = km_min64((threads + heads - 1) / heads, a->Tk / PART_KEYS);
    if (j.parts < 1) j.parts = 1;
    j.part_keys = (a->Tk + j.parts - 1) / j.parts;
    j.floats = ((size_t)j.rows * (2 * (size_t)a->D + STRETCH) + 15) & ~(size_t)15;
    size_t sums = ((size_t)(heads * j.parts * j.rows * (a->D + 2)) + 15) & ~(size_t)15;
    j.sums = km_ctx_scratch(ctx, sizeof(float) * (sums + j.floats * (size_t)threads));
    if (!j.sums) return KM_ERR_MEMORY;
    j.scratch = j.sums + sums;
    /* A chunk should read a good many keys; a short history is not worth waking anyone. */
    int64_t grain = 4 * PART_KEYS / (j.part_keys + 1);
    km_threads_for(ctx->threads, heads * j.parts, grain < 1 ? 1 : grain, run_parts, &j);
    for (int64_t i = 0; i < heads; i++)
        for (int64_t r = 0; r < j.rows; r++) join_parts(&j, i, r);
    return KM_OK;
}
