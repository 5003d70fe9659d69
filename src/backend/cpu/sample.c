/* Choosing tokens. The largest of every 64 logits bounds what can be among the k likeliest; only
 * what is above the bound is gathered and ordered. Without a top-k, top-p has a bound of its own:
 * what lies below it has, all together, less than the share that is left out. */
#include "backend/sample.h"
#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64

typedef struct cpu_choice {
    float x;
    int32_t id;
    double p; /* next to the likeliest */
} cpu_choice;

typedef struct sample_room {
    float *x;         /* (v) logits, edited */
    float *peak;      /* (blocks) */
    float *order;     /* (blocks) */
    cpu_choice *list; /* (v) */
} sample_room;

static int by_likelihood(const void *a, const void *b) {
    const cpu_choice *x = a, *y = b;
    if (x->x != y->x) return x->x < y->x ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b) {
    const cpu_choice *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void penalise(const float *how, const int32_t *state, float *x, int64_t n) {
    int32_t seen = state[KM_SAMPLE_SEEN], last = (int32_t)how[KM_SAMPLE_LAST];
    const int32_t *ring = state + KM_SAMPLE_TOKEN_AT;
    if (last > KM_SAMPLE_RING) last = KM_SAMPLE_RING;
    if (last > seen) last = seen;
    for (int32_t i = seen - last; i < seen; i++) {
        int32_t id = ring[i % KM_SAMPLE_RING];
        int times = 0, before = 0;
        for (int32_t k = seen - last; k < seen; k++) {
            bool same = ring[k % KM_SAMPLE_RING] == id;
            times += same;
            before += same && k < i;
        }
        if (before || id < 0 || id >= n) continue;
        float v = x[id], r = how[KM_SAMPLE_REPEAT];
        if (r > 0) v = v > 0 ? v / r : v * r;
        x[id] = v - (how[KM_SAMPLE_FREQUENCY] * (float)times + how[KM_SAMPLE_PRESENCE]);
    }
}

/* What is added to the logits of row r. */
static void add_biases(const km_tensor *t, int64_t r, float *x, int64_t n) {
    const int32_t *b = t ? km_tensor_ptr(t) : NULL;
    for (int64_t i = 0; t && i < t->shape.dim[0]; i++, b += 3) {
        float add;
        memcpy(&add, b + 2, sizeof add);
        if (b[0] == r && b[1] >= 0 && b[1] < n) x[b[1]] += add;
    }
}

static void rule_out(const float *how, const km_tensor *masks, float *x, int64_t n) {
    if (!masks) return;
    int64_t words = masks->shape.dim[1];
    const int32_t *mask = km_sample_mask(how, km_tensor_ptr(masks), masks->shape.dim[0], words);
    for (int64_t w = 0; mask && w * 32 < n; w++) {
        uint32_t bits = w < words ? (uint32_t)mask[w] : 0;
        int64_t end = (w + 1) * 32 < n ? (w + 1) * 32 : n;
        if (bits == UINT32_MAX) continue;
        for (int64_t i = w * 32; i < end; i++)
            if (!(bits >> i % 32 & 1)) x[i] = -INFINITY;
    }
}

static int64_t gather(sample_room *m, int64_t n, float bound) {
    int64_t count = 0;
    for (int64_t b = 0; b * BLOCK < n; b++) {
        if (m->peak[b] < bound) continue;
        int64_t end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (int64_t i = b * BLOCK; i < end; i++)
            if (m->x[i] >= bound && m->x[i] > -INFINITY)
                m->list[count++] = (cpu_choice){.x = m->x[i], .id = (int32_t)i};
    }
    return count;
}

/* Those left by top-k, top-p and min-p, in front of the list; top is the largest logit. */
static int64_t cut(sample_room *m, const float *how, int64_t n, float top) {
    double t = how[KM_SAMPLE_TEMPERATURE], top_p = how[KM_SAMPLE_TOP_P], mass = 0, sum = 0;
    int64_t k = (int64_t)how[KM_SAMPLE_TOP_K], blocks = (n + BLOCK - 1) / BLOCK, left;
    float bound = -INFINITY;
    bool some = k > 0 && k < n;
    if (some && k < blocks) {
        memcpy(m->order, m->peak, sizeof *m->order * (size_t)blocks);
        qsort(m->order, (size_t)blocks, sizeof *m->order, descending);
        bound = m->order[k - 1];
    } else if (!some && top_p < 1) {
        for (int64_t i = 0; i < n; i++) mass += exp(((double)m->x[i] - top) / t);
        double least = (1 - top_p) * mass / (double)n; /* fewer than n of these are no matter */
        if (least < 1) bound = (float)(top + t * log(least) - 1e-4 * (1 + fabs((double)top)));
    }
    left = gather(m, n, bound);
    if (some || top_p < 1) qsort(m->list, (size_t)left, sizeof *m->list, by_likelihood);
    if (some && left > k) left = k;
    for (int64_t i = 0; i < left; i++) {
        m->list[i].p = exp(((double)m->list[i].x - top) / t);
        if (some) mass += m->list[i].p;
    }
    for (int64_t i = 0; i < left && top_p < 1; i++) {
        sum += m->list[i].p;
        if (sum >= top_p * mass) left = i + 1;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < left; i++)
        if (m->list[i].p >= how[KM_SAMPLE_MIN_P]) m->list[kept++] = m->list[i];
    return kept;
}

static int32_t pick(sample_room *m, const float *how, int32_t *state, int64_t n) {
    float top = -INFINITY;
    int32_t best = -1;
    for (int64_t b = 0; b * BLOCK < n; b++) {
        int64_t end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        float most = -INFINITY;
        for (int64_t i = b * BLOCK; i < end; i++) most = m->x[i] > most ? m->x[i] : most;
        m->peak[b] = most;
        if (most > top) top = most, best = (int32_t)(b * BLOCK);
    }
    if (best < 0) return -1;
    while (m->x[best] != top) best++;
    if (how[KM_SAMPLE_TEMPERATURE] < 1e-6f || isinf(top)) return best;
    int64_t left = cut(m, how, n, top);
    uint64_t seed, draws;
    memcpy(&seed, state + KM_SAMPLE_SEED, sizeof seed);
    memcpy(&draws, state + KM_SAMPLE_DRAWS, sizeof draws);
    km_philox4 r = km_philox(seed, 0, draws++);
    memcpy(state + KM_SAMPLE_DRAWS, &draws, sizeof draws);
    qsort(m->list, (size_t)left, sizeof *m->list, by_id);
    double total = 0, sum = 0;
    for (int64_t i = 0; i < left; i++) total += m->list[i].p;
    double want = ((double)r.v[0] * 0x1p-32 + (double)r.v[1] * 0x1p-64) * total;
    for (int64_t i = 0; i < left; i++)
        if ((sum += m->list[i].p) > want) return m->list[i].id;
    return m->list[left - 1].id;
}

static km_status sample(km_ctx *ctx, const km_call *c) {
    int64_t rows = c->in[0]->shape.dim[0], v = c->in[0]->shape.dim[1], blocks = v / BLOCK + 1;
    const km_tensor *masks = c->n_in > 3 ? c->in[3] : NULL;
    const km_tensor *biases = c->n_in > 4 ? c->in[4] : NULL;
    size_t n = (size_t)v;
    char *p =
        km_ctx_scratch(ctx, n * sizeof(cpu_choice) + (n + 2 * (size_t)blocks) * sizeof(float));
    if (!p) return ctx->error.code;
    sample_room m = {.list = (cpu_choice *)(void *)p};
    m.x = (float *)(void *)(m.list + v);
    m.peak = m.x + v;
    m.order = m.peak + blocks;
    const float *logits = km_tensor_ptr(c->in[0]), *settings = km_tensor_ptr(c->in[1]);
    int32_t *ids = km_tensor_ptr(c->out[0]), *after = km_tensor_ptr(c->out[1]);
    memcpy(after, km_tensor_ptr(c->in[2]), sizeof *after * (size_t)(rows * KM_SAMPLE_STATE));
    for (int64_t r = 0; r < rows; r++) {
        const float *how = settings + r * KM_SAMPLE_SETTINGS;
        int32_t *state = after + r * KM_SAMPLE_STATE;
        int64_t tokens = (int64_t)how[KM_SAMPLE_TOKENS];
        if (tokens < 1 || tokens > v) tokens = v;
        memcpy(m.x, logits + r * v, n * sizeof *m.x);
        for (int64_t i = 0; i < tokens; i++)
            if (isnan(m.x[i])) m.x[i] = -INFINITY;
        if (how[KM_SAMPLE_BIASED] != 0) add_biases(biases, r, m.x, tokens);
        if (c->p->n[KM_N_PENALTIES]) penalise(how, state, m.x, tokens);
        rule_out(how, masks, m.x, tokens);
        ids[r] = pick(&m, how, state, tokens);
        state[KM_SAMPLE_TOKEN_AT + state[KM_SAMPLE_SEEN] % KM_SAMPLE_RING] = ids[r];
        state[KM_SAMPLE_SEEN]++;
    }
    return KM_OK;
}

/* ---- How likely tokens are ---- */

/* Those already there are likelier, or as likely with a lower id. */
static void rank(float *best, int32_t *ids, int64_t *n, int64_t top, float x, int64_t id) {
    if (*n == top && !(x > best[top - 1])) return;
    int64_t at = *n < top ? (*n)++ : top - 1;
    for (; at > 0 && x > best[at - 1]; at--) best[at] = best[at - 1], ids[at] = ids[at - 1];
    best[at] = x;
    ids[at] = (int32_t)id;
}

static void tell_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const km_call *c = arg;
    int64_t rows = c->in[0]->shape.dim[0], v = c->in[0]->shape.dim[1], n = c->p->n[KM_N_TOKENS];
    int64_t top = c->p->n[KM_N_TOP];
    (void)worker;
    if (n < 1 || n > v) n = v;
    for (int64_t i = begin; i < end; i++) {
        const int32_t *which = (const int32_t *)km_tensor_ptr(c->in[1]) + 2 * i;
        float *out = (float *)km_tensor_ptr(c->out[0]) + i * (1 + top), most = -INFINITY;
        int32_t *ids = (int32_t *)km_tensor_ptr(c->out[1]) + i * top;
        bool there = which[0] >= 0 && which[0] < rows;
        const float *x = (const float *)km_tensor_ptr(c->in[0]) + (there ? which[0] * v : 0);
        double sum = 0;
        int64_t told = 0;
        for (int64_t k = 0; there && k < n; k++) most = x[k] > most ? x[k] : most;
        for (int64_t k = 0; there && k < n; k++)
            if (x[k] > -INFINITY) sum += exp((double)x[k] - most);
        double all = most + log(sum);
        bool named = there && which[1] >= 0 && which[1] < n && !isnan(x[which[1]]);
        out[0] = named ? (float)(x[which[1]] - all) : NAN;
        for (int64_t k = 0; there && top && k < n; k++)
            rank(out + 1, ids, &told, top, isnan(x[k]) ? -INFINITY : x[k], k);
        for (int64_t k = 0; k < top; k++) {
            if (k >= told) ids[k] = -1;
            out[1 + k] = k < told ? (float)(out[1 + k] - all) : NAN;
        }
    }
}

static km_status logprobs(km_ctx *ctx, const km_call *c) {
    km_threads_for(ctx->threads, c->in[1]->shape.dim[0], 1, tell_rows, (void *)(uintptr_t)c);
    return KM_OK;
}

void km_cpu_register_sample(km_kernel *k) {
    k[KM_OP_SAMPLE] = sample;
    k[KM_OP_LOGPROBS] = logprobs;
}
