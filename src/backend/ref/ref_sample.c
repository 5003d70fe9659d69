/* Choosing a token, in doubles and by sorting. */
#include "backend/ref/ref.h"
#include "backend/sample.h"
#include "base/alloc.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ref_choice {
    double x, p;
    int32_t id;
} ref_choice;

static int by_likelihood(const void *a, const void *b) {
    const ref_choice *x = a, *y = b;
    if (x->x != y->x) return x->x < y->x ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b) {
    const ref_choice *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static void penalise(const float *how, const int32_t *state, ref_choice *c, int64_t n) {
    int32_t seen = state[KM_SAMPLE_SEEN], last = (int32_t)how[KM_SAMPLE_LAST];
    if (last > KM_SAMPLE_RING) last = KM_SAMPLE_RING;
    if (last > seen) last = seen;
    const int32_t *ring = state + KM_SAMPLE_TOKEN_AT;
    for (int32_t i = seen - last; i < seen; i++) {
        int32_t id = ring[i % KM_SAMPLE_RING];
        int times = 0, before = 0;
        for (int32_t k = seen - last; k < seen; k++) {
            times += ring[k % KM_SAMPLE_RING] == id;
            before += k < i && ring[k % KM_SAMPLE_RING] == id;
        }
        if (before || id < 0 || id >= n) continue;
        float x = (float)c[id].x, r = how[KM_SAMPLE_REPEAT];
        if (r > 0) x = x > 0 ? x / r : x * r;
        x -= how[KM_SAMPLE_FREQUENCY] * (float)times + how[KM_SAMPLE_PRESENCE];
        c[id].x = x;
    }
}

/* What is added to the logits of row r. */
static void add_biases(const km_tensor *t, int64_t r, ref_choice *c, int64_t n) {
    const int32_t *b = t ? km_tensor_ptr(t) : NULL;
    for (int64_t i = 0; t && i < t->shape.dim[0]; i++, b += 3) {
        float add;
        memcpy(&add, b + 2, sizeof add);
        if (b[0] == r && b[1] >= 0 && b[1] < n) c[b[1]].x = (float)c[b[1]].x + add;
    }
}

static void rule_out(const float *how, const km_tensor *masks, ref_choice *c, int64_t n) {
    if (!masks) return;
    const int32_t *mask =
        km_sample_mask(how, km_tensor_ptr(masks), masks->shape.dim[0], masks->shape.dim[1]);
    for (int64_t i = 0; mask && i < n; i++)
        if (i / 32 >= masks->shape.dim[1] || !((uint32_t)mask[i / 32] >> i % 32 & 1))
            c[i].x = -INFINITY;
}

/* How many of the sorted are left. */
static int64_t left_of(const float *how, ref_choice *c, int64_t n) {
    double t = how[KM_SAMPLE_TEMPERATURE], total = 0, sum = 0;
    int64_t k = (int64_t)how[KM_SAMPLE_TOP_K];
    if (k > 0 && k < n) n = k;
    for (int64_t i = 0; i < n; i++) total += c[i].p = exp((c[i].x - c[0].x) / t);
    double want = how[KM_SAMPLE_TOP_P] * total;
    for (int64_t i = 0; i < n && how[KM_SAMPLE_TOP_P] < 1; i++) {
        sum += c[i].p;
        if (sum >= want) n = i + 1;
    }
    while (n > 1 && c[n - 1].p < how[KM_SAMPLE_MIN_P]) n--;
    return n;
}

static int32_t pick(const float *how, int32_t *state, ref_choice *c, int64_t n) {
    qsort(c, (size_t)n, sizeof *c, by_likelihood);
    while (n > 0 && c[n - 1].x == -INFINITY) n--;
    if (n == 0) return -1;
    if (how[KM_SAMPLE_TEMPERATURE] < 1e-6f || isinf(c[0].x)) return c[0].id;
    n = left_of(how, c, n);
    uint64_t seed, draws;
    memcpy(&seed, state + KM_SAMPLE_SEED, sizeof seed);
    memcpy(&draws, state + KM_SAMPLE_DRAWS, sizeof draws);
    km_philox4 r = km_philox(seed, 0, draws++);
    memcpy(state + KM_SAMPLE_DRAWS, &draws, sizeof draws);
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += c[i].p;
    double want = ((double)r.v[0] * 0x1p-32 + (double)r.v[1] * 0x1p-64) * total;
    qsort(c, (size_t)n, sizeof *c, by_id);
    for (int64_t i = 0; i < n; i++)
        if ((sum += c[i].p) > want) return c[i].id;
    return c[n - 1].id;
}

km_status km_ref_sample(km_ctx *ctx, const km_call *call) {
    int64_t rows = call->in[0]->shape.dim[0], v = call->in[0]->shape.dim[1];
    const km_tensor *masks = call->n_in > 3 ? call->in[3] : NULL;
    const km_tensor *biases = call->n_in > 4 ? call->in[4] : NULL;
    ref_choice *c = km_alloc(sizeof *c * (size_t)v);
    if (!c) return km_fail(ctx, KM_ERR_MEMORY, "sample: out of memory");
    const float *logits = km_tensor_ptr(call->in[0]), *how = km_tensor_ptr(call->in[1]);
    const int32_t *before = km_tensor_ptr(call->in[2]);
    int32_t *ids = km_tensor_ptr(call->out[0]), *state = km_tensor_ptr(call->out[1]);
    memcpy(state, before, sizeof *state * (size_t)(rows * KM_SAMPLE_STATE));
    for (int64_t r = 0; r < rows; r++) {
        const float *h = how + r * KM_SAMPLE_SETTINGS;
        int32_t *s = state + r * KM_SAMPLE_STATE;
        int64_t n = (int64_t)h[KM_SAMPLE_TOKENS];
        if (n < 1 || n > v) n = v;
        for (int64_t i = 0; i < n; i++) {
            float x = logits[r * v + i];
            c[i] = (ref_choice){isnan(x) ? -INFINITY : (double)x, 0, (int32_t)i};
        }
        if (h[KM_SAMPLE_BIASED] != 0) add_biases(biases, r, c, n);
        if (call->p->n[KM_N_PENALTIES]) penalise(h, s, c, n);
        rule_out(h, masks, c, n);
        ids[r] = pick(h, s, c, n);
        s[KM_SAMPLE_TOKEN_AT + s[KM_SAMPLE_SEEN] % KM_SAMPLE_RING] = ids[r];
        s[KM_SAMPLE_SEEN]++;
    }
    km_free(c);
    return KM_OK;
}

/* The place of the next likeliest after (x, id). */
static int64_t next_best(const float *row, int64_t n, float x, int64_t id) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        float y = isnan(row[i]) ? -INFINITY : row[i];
        if (y > x || (y == x && i <= id)) continue; /* told already */
        if (best < 0 || y > (isnan(row[best]) ? -INFINITY : row[best])) best = i;
    }
    return best;
}

km_status km_ref_logprobs(km_ctx *ctx, const km_call *c) {
    int64_t rows = c->in[0]->shape.dim[0], v = c->in[0]->shape.dim[1], n = c->p->n[KM_N_TOKENS];
    int64_t count = c->in[1]->shape.dim[0], top = c->p->n[KM_N_TOP];
    const int32_t *which = km_tensor_ptr(c->in[1]);
    float *out = km_tensor_ptr(c->out[0]);
    int32_t *ids = km_tensor_ptr(c->out[1]);
    (void)ctx;
    if (n < 1 || n > v) n = v;
    for (int64_t i = 0; i < count; i++, out += 1 + top, ids += top) {
        int64_t r = which[2 * i], id = which[2 * i + 1];
        const float *x = (const float *)km_tensor_ptr(c->in[0]) + r * v;
        double most = -INFINITY, sum = 0;
        bool there = r >= 0 && r < rows;
        for (int64_t k = 0; there && k < n; k++)
            if (x[k] > most) most = x[k];
        for (int64_t k = 0; there && k < n; k++)
            if (x[k] > -INFINITY) sum += exp(x[k] - most);
        double all = most + log(sum);
        out[0] = there && id >= 0 && id < n && !isnan(x[id]) ? (float)(x[id] - all) : NAN;
        float last = INFINITY;
        int64_t at = -1;
        for (int64_t k = 0; k < top; k++) {
            if (k == 0 || at >= 0) at = there ? next_best(x, n, last, at) : -1;
            ids[k] = (int32_t)at;
            out[1 + k] = at < 0 ? NAN : isnan(x[at]) ? -INFINITY : (float)(x[at] - all);
            if (at >= 0) last = isnan(x[at]) ? -INFINITY : x[at];
        }
    }
    return KM_OK;
}
