/* Sampling. Sorting a whole vocabulary for every token would cost more than a small model does, so
 * only a front part of it is sorted, which doubles until it holds what is asked for. */
#include "infer/sample.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>

km_sampling km_sampling_defaults(void) {
    return (km_sampling){.temperature = 1, .top_p = 1, .seed = 1};
}

km_status km_sampling_check(const km_sampling *s, km_error *err) {
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return km_error_set(err, KM_ERR_RANGE, "the temperature is %g and must be in 0 .. 100",
                            s->temperature);
    if (s->top_k < 0)
        return km_error_set(err, KM_ERR_RANGE, "top-k is %lld and must not be negative",
                            (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return km_error_set(err, KM_ERR_RANGE, "top-p is %g and must be above 0 and at most 1",
                            s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return km_error_set(err, KM_ERR_RANGE, "min-p is %g and must be in 0 .. 1", s->min_p);
    return KM_OK;
}

static bool before(const km_candidate *a, const km_candidate *b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static int by_rank(const void *a, const void *b) { return before(a, b) ? -1 : 1; }

static void swap(km_candidate *a, km_candidate *b) {
    km_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Brings the k likeliest of c[0..n) to the front, in any order (quickselect). No two are equal. */
static void select_front(km_candidate *c, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2, at = lo;
        swap(&c[mid], &c[hi]);
        for (int64_t i = lo; i < hi; i++)
            if (before(&c[i], &c[hi])) swap(&c[i], &c[at++]);
        swap(&c[at], &c[hi]);
        if (at == k - 1 || at == k) return;
        if (at < k)
            lo = at + 1;
        else
            hi = at - 1;
    }
}

/* Sorts the front k of c[0..n), of which the first `sorted` are sorted already. */
static void sort_front(km_candidate *c, int64_t n, int64_t sorted, int64_t k) {
    if (k < n) select_front(c + sorted, n - sorted, k - sorted);
    qsort(c + sorted, (size_t)(k - sorted), sizeof *c, by_rank);
}

/* The shortest front of c[0..n), sorted, that reaches `share` of all; p is set and adds up to
 * `total`. */
static int64_t nucleus(km_candidate *c, int64_t n, int64_t sorted, double share, double total) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == sorted) {
            int64_t more = sorted ? 4 * sorted : 64;
            if (more > n) more = n;
            sort_front(c, n, sorted, more);
            sorted = more;
        }
        sum += c[i].p;
        if (sum >= share * total) return i + 1;
    }
    return n;
}

int32_t km_likeliest(const float *logits, int64_t n) {
    int32_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = (int32_t)i;
    return best;
}

int32_t km_sampling_draw(const km_sampling *s, const float *logits, int64_t n, uint64_t draw,
                         km_candidate *c) {
    int32_t best = km_likeliest(logits, n);
    /* An infinite logit is certain, and so is the only one that is not -infinity. */
    if (best < 0 || s->temperature <= 0 || isinf(logits[best])) return best;
    int64_t left = 0, sorted = 0;
    double total = 0, top = logits[best];
    for (int64_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && logits[i] > -INFINITY)
            c[left++] = (km_candidate){(int32_t)i, logits[i], 0};
    if (s->top_k > 0 && s->top_k < left) {
        sort_front(c, left, 0, s->top_k);
        left = sorted = s->top_k;
    }
    for (int64_t i = 0; i < left; i++) total += c[i].p = exp((c[i].logit - top) / s->temperature);
    if (s->top_p < 1) left = nucleus(c, left, sorted, s->top_p, total);
    total = 0;
    int64_t likely = 0;
    for (int64_t i = 0; i < left; i++) /* the likeliest has p = 1 */
        if (c[i].p >= s->min_p) total += c[i].p, c[likely++] = c[i];
    km_philox4 r = km_philox(s->seed, 0, draw);
    double u = ((double)r.v[0] * 0x1p-32 + (double)r.v[1] * 0x1p-64) * total;
    for (int64_t i = 0; i < likely; i++) {
        u -= c[i].p;
        if (u < 0) return c[i].id;
    }
    return c[likely - 1].id;
}
