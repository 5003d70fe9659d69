/* Top-k, nucleus (top-p), min-p and typical by partial selection: bounds from the peaks of blocks
 * leave few candidates, and these are put in order only as far as the cut needs. */
#include "infer/choices.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include <float.h>
#include <math.h>
#include <string.h>

km_status km_choices_begin(km_choices *c, int64_t vocab, km_error *err) {
    *c = (km_choices){.vocab = vocab, .blocks = (vocab + KM_CHOICE_BLOCK - 1) / KM_CHOICE_BLOCK};
    /* whole blocks, so that passes need no remainder; the end of the last is never likely */
    size_t n = (size_t)c->blocks * KM_CHOICE_BLOCK;
    c->logits = km_alloc(n * sizeof *c->logits);
    c->peak = km_alloc((size_t)c->blocks * sizeof *c->peak);
    c->order = km_alloc((size_t)c->blocks * sizeof *c->order);
    c->bin = km_alloc(KM_CHOICE_BINS * sizeof *c->bin);
    c->id = km_alloc((n + 1) * sizeof *c->id); /* gathering writes one beyond, also x, p, edge */
    c->x = km_alloc((n + 1) * sizeof *c->x);
    c->p = km_alloc((n + 1) * sizeof *c->p);
    c->weight = km_alloc(n * sizeof *c->weight);
    c->in = km_alloc(n * sizeof *c->in);
    c->edge = km_alloc((n + 1) * sizeof *c->edge);
    if (!c->logits || !c->peak || !c->order || !c->bin || !c->id || !c->x || !c->p || !c->weight ||
        !c->in || !c->edge)
        return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    for (size_t i = (size_t)vocab; i < n; i++) c->logits[i] = -INFINITY;
    return KM_OK;
}

void km_choices_end(km_choices *c) {
    km_free(c->logits);
    km_free(c->peak);
    km_free(c->order);
    km_free(c->bin);
    km_free(c->id);
    km_free(c->x);
    km_free(c->p);
    km_free(c->weight);
    km_free(c->in);
    km_free(c->edge);
    *c = (km_choices){0};
}

/* ---- Peaks ---- */

/* Eight at a time. */
typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4), may_alias));

/* NaN is larger than nothing. */
static float block_peak(const float *x) {
    const f8 *v = (const f8 *)x;
    f8 none = {-INFINITY, -INFINITY, -INFINITY, -INFINITY,
               -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    f8 m = none;
    for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) {
        i8 larger = v[i] > m;
        m = (f8)((larger & (i8)v[i]) | (~larger & (i8)m));
    }
    float top = m[0];
    for (int j = 1; j < 8; j++) top = m[j] > top ? m[j] : top;
    return top;
}

/* What has no bit in the word becomes -infinity. */
static void rule_out(float *x, uint64_t word) {
    const i8 bit = {1, 2, 4, 8, 16, 32, 64, 128};
    const int32_t none = (int32_t)0xff800000u; /* the bits of -infinity */
    i8 *v = (i8 *)x;
    for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++, word >>= 8) {
        int32_t byte = (int32_t)(word & 255);
        i8 keep = (bit & byte) == bit;
        v[i] = (keep & v[i]) | (~keep & none);
    }
}

/* No logit is above -infinity: the first that is a number. */
static int32_t first_number(const km_choices *c, const uint64_t *mask) {
    for (int64_t i = 0; i < c->vocab; i++)
        if (!isnan(c->logits[i]) && (!mask || mask[i / 64] >> (i % 64) & 1)) return (int32_t)i;
    return -1;
}

int32_t km_choices_mask(km_choices *c, const uint64_t *mask) {
    int64_t best = -1;
    c->top = -INFINITY;
    c->n = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        float *x = c->logits + b * KM_CHOICE_BLOCK;
        uint64_t word = mask ? mask[b] : ~(uint64_t)0;
        c->peak[b] = -INFINITY; /* a block without hope is not looked at again */
        if (word == 0) continue;
        if (word != ~(uint64_t)0) rule_out(x, word);
        c->peak[b] = block_peak(x);
        if (c->peak[b] > c->top) c->top = c->peak[b], best = b;
    }
    if (best < 0) return first_number(c, mask);
    for (int64_t i = best * KM_CHOICE_BLOCK;; i++)
        if (c->logits[i] == c->top) return (int32_t)i;
}

/* ---- Weights ---- */

/* The passes below are compiled twice on x86-64, for vectors of 4 and of 8. They give the same
 * bits: the lanes of a sum are written out, and nothing is fused. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && !defined(KM_ISA_ONLY_BASE)
#define WIDE __attribute__((target("avx2")))
static bool wide(void) { return km_cpu_isa() >= KM_ISA_AVX2; }
#else
#define WIDE
static bool wide(void) { return false; }
#endif

/* e^z in place for z <= 0, to about a unit in the last place; 0 below -87, and for NaN. */
ALWAYS_INLINE void exp_of(f8 *v) {
    const f8 none = {0};
    i8 fits = *v > none - 87.0f;
    f8 z = (f8)((fits & (i8)*v) | (~fits & (i8)(none - 87.0f)));
    i8 k = __builtin_convertvector(z * 1.44269504f - 0.5f, i8); /* to the nearest, as z <= 0 */
    f8 kf = __builtin_convertvector(k, f8);
    f8 r = z - kf * 0.693145752f - kf * 1.42860677e-6f; /* ln 2 in two parts */
    f8 e = r * (1.0f / 5040) + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    *v = (f8)((i8)(e * (f8)((k + 127) << 23)) & fits);
}

ALWAYS_INLINE double mass_of(const km_choices *c, float scale) {
    double sum = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        if (c->peak[b] == -INFINITY) continue;
        const f8 *x = (const f8 *)(c->logits + b * KM_CHOICE_BLOCK);
        f8 part = {0};
        for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) {
            f8 e = (x[i] - c->top) * scale;
            exp_of(&e);
            part += e;
        }
        for (int j = 0; j < 8; j++) sum += part[j];
    }
    return sum;
}

static double mass_narrow(const km_choices *c, float scale) { return mass_of(c, scale); }
static WIDE double mass_wide(const km_choices *c, float scale) { return mass_of(c, scale); }

double km_choices_mass(const km_choices *c, double temperature) {
    float scale = (float)(1 / temperature);
    return wide() ? mass_wide(c, scale) : mass_narrow(c, scale);
}

/* In lanes, which need not wait for each other; the same way each time. */
static double sum_of(const float *p, int64_t n) {
    double sum = 0;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        float part[8] = {0};
        for (int k = 0; k < 64; k += 8)
            for (int j = 0; j < 8; j++) part[j] += p[i + k + j];
        for (int j = 0; j < 8; j++) sum += part[j];
    }
    for (; i < n; i++) sum += p[i];
    return sum;
}

/* Up to a multiple of 8: there is room. The total as sum_of has it. */
ALWAYS_INLINE double weigh(const km_choices *c, float scale) {
    double total = 0;
    int64_t i = 0;
    for (; i < c->n; i += KM_CHOICE_BLOCK) {
        const f8 *x = (const f8 *)(c->x + i);
        f8 *p = (f8 *)(c->p + i), part = {0};
        int64_t left = c->n - i < KM_CHOICE_BLOCK ? c->n - i : KM_CHOICE_BLOCK;
        for (int k = 0; k < (left + 7) / 8; k++) {
            f8 e = (x[k] - c->top) * scale;
            exp_of(&e);
            p[k] = e;
            part += e;
        }
        if (left == KM_CHOICE_BLOCK)
            for (int j = 0; j < 8; j++) total += part[j];
        else
            for (int64_t k = i; k < c->n; k++) total += c->p[k];
    }
    return total;
}

static double weigh_narrow(const km_choices *c, float scale) { return weigh(c, scale); }
static WIDE double weigh_wide(const km_choices *c, float scale) { return weigh(c, scale); }

void km_choices_weigh(km_choices *c, double temperature) {
    float scale = (float)(1 / temperature);
    c->total = wide() ? weigh_wide(c, scale) : weigh_narrow(c, scale);
}

/* ---- Gathering ---- */

/* A whole block, when all of it is to be had; false if it is not. */
ALWAYS_INLINE bool take_block(const km_choices *c, int64_t b, float bound, int64_t n) {
    const f8 *from = (const f8 *)(c->logits + b * KM_CHOICE_BLOCK);
    const i8 first = {0, 1, 2, 3, 4, 5, 6, 7};
    i8 out = {0};
    for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) out |= ~(from[i] >= bound);
    if (out[0] | out[1] | out[2] | out[3] | out[4] | out[5] | out[6] | out[7]) return false;
    f8 *x = (f8 *)(c->x + n);
    i8 *id = (i8 *)(c->id + n);
    for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) {
        x[i] = from[i];
        id[i] = first + (int32_t)(b * KM_CHOICE_BLOCK + 8 * i);
    }
    return true;
}

ALWAYS_INLINE int64_t gather(const km_choices *c, float bound) {
    int64_t n = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        if (!(c->peak[b] >= bound)) continue;
        if (take_block(c, b, bound, n)) {
            n += KM_CHOICE_BLOCK;
            continue;
        }
        for (int64_t i = b * KM_CHOICE_BLOCK; i < (b + 1) * KM_CHOICE_BLOCK; i++) {
            float x = c->logits[i];
            c->id[n] = (int32_t)i;
            c->x[n] = x;
            n += x >= bound;
        }
    }
    return n;
}

static int64_t gather_narrow(const km_choices *c, float bound) { return gather(c, bound); }
static WIDE int64_t gather_wide(const km_choices *c, float bound) { return gather(c, bound); }

void km_choices_gather(km_choices *c, float bound) {
    if (bound < -FLT_MAX) bound = -FLT_MAX; /* -infinity is never gathered */
    c->n = wide() ? gather_wide(c, bound) : gather_narrow(c, bound);
}

static void swap(km_choices *c, int64_t a, int64_t b) {
    int32_t id = c->id[a];
    float x = c->x[a], p = c->p[a];
    c->id[a] = c->id[b], c->x[a] = c->x[b], c->p[a] = c->p[b];
    c->id[b] = id, c->x[b] = x, c->p[b] = p;
}

/* By x, the larger first (or the smaller, with `up`), then by id. No two are equal. */
static inline bool before(const km_choices *c, int64_t a, float x, int32_t id, bool up) {
    if (c->x[a] != x) return up ? c->x[a] < x : c->x[a] > x;
    return c->id[a] < id;
}

/* Divides [lo, hi] by a pivot, whose place is returned: those before it in the order are left of
 * it. */
static int64_t divide(km_choices *c, int64_t lo, int64_t hi, bool up) {
    swap(c, lo + (hi - lo) / 2, hi);
    float x = c->x[hi];
    int32_t id = c->id[hi];
    int64_t at = lo;
    for (int64_t i = lo; i < hi; i++)
        if (before(c, i, x, id, up)) swap(c, i, at++);
    swap(c, at, hi);
    return at;
}

static float nth_largest(float *v, int64_t n, int64_t k) { /* k from 0 */
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        float pivot = v[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i > j) break;
            float t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
        if (k <= j)
            hi = j;
        else if (k >= i)
            lo = i;
        else
            break;
    }
    return v[k];
}

void km_choices_gather_top(km_choices *c, int64_t k) {
    /* k blocks reach the k-th peak, so at least k logits do */
    float bound = -INFINITY;
    if (k <= c->blocks) {
        memcpy(c->order, c->peak, (size_t)c->blocks * sizeof *c->order);
        bound = nth_largest(c->order, c->blocks, k - 1);
    }
    km_choices_gather(c, bound);
    if (c->n <= k) return;
    for (int64_t lo = 0, hi = c->n - 1; lo < hi;) {
        int64_t at = divide(c, lo, hi, false);
        if (at == k - 1 || at == k) break;
        if (at < k)
            lo = at + 1;
        else
            hi = at - 1;
    }
    c->n = k;
}

/* ---- Fronts ---- */

/* The shortest front whose weights reach what is wanted, in the order of descending logits or (up)
 * of ascending distances. The bin where it ends is found first; only inside that one is anything
 * compared. */
#define BINS_PER_NAT 64.0f

/* The bin of a distance from the top, or from what is typical; NaN is in the last. */
ALWAYS_INLINE void bins_of(const f8 *distance, i8 *in) {
    const f8 none = {0}, most = none + (KM_CHOICE_BINS - 1);
    f8 d = *distance * BINS_PER_NAT;
    i8 fits = d < most;
    *in = __builtin_convertvector((f8)((fits & (i8)d) | (~fits & (i8)most)), i8);
}

static void fill_bins(km_choices *c) {
    memset(c->bin, 0, KM_CHOICE_BINS * sizeof *c->bin);
    for (int64_t i = 0; i < c->n; i++) c->bin[c->in[i]] += c->p[i];
}

/* The bin that `want` is reached in, and what lies before it. */
static int last_bin(const km_choices *c, double want, double *before) {
    int last = 0;
    double sum = 0;
    while (last < KM_CHOICE_BINS - 1 && sum + c->bin[last] < want) sum += c->bin[last++];
    *before = sum;
    return last;
}

/* [0, lo) is in, with a weight of `sum`; what of [lo, hi), all of one bin, is? */
static void settle_front(km_choices *c, int64_t lo, int64_t hi, double sum, double want, bool up) {
    while (lo < hi) {
        int64_t at = divide(c, lo, hi - 1, up);
        double left = 0;
        for (int64_t i = lo; i < at; i++) left += c->p[i];
        if (sum + left >= want && at > 0) {
            hi = at;
        } else {
            sum += left + c->p[at];
            lo = at + 1;
            if (sum >= want) break;
        }
    }
    c->n = lo;
    c->total = sum_of(c->p, lo);
}

static void append_edge(km_choices *c, int64_t n, int64_t edge) {
    for (int64_t i = 0; i < edge; i++) {
        const km_choice *e = &c->edge[i];
        c->id[n + i] = e->id, c->x[n + i] = e->x, c->p[n + i] = e->p;
    }
}

/* Those of bin `last` are put behind those before it; the others are dropped. */
static void keep_front(km_choices *c, int last, double sum, double want, bool up) {
    const int32_t *in = c->in;
    int64_t lo = 0, edge = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int32_t id = c->id[i];
        float x = c->x[i], p = c->p[i];
        if (in[i] == last) c->edge[edge++] = (km_choice){id, x, p}; /* seldom */
        c->id[lo] = id, c->x[lo] = x, c->p[lo] = p;
        lo += in[i] < last;
    }
    append_edge(c, lo, edge);
    settle_front(c, lo, lo + edge, sum, want, up);
}

/* The bins of those left by how far they lie below the top. */
ALWAYS_INLINE void bins_below(const km_choices *c) {
    const f8 *x = (const f8 *)c->x;
    i8 *in = (i8 *)c->in;
    for (int64_t i = 0; i < (c->n + 7) / 8; i++) {
        f8 d = c->top - x[i];
        bins_of(&d, &in[i]);
    }
}

static void bins_below_narrow(const km_choices *c) { bins_below(c); }
static WIDE void bins_below_wide(const km_choices *c) { bins_below(c); }

void km_choices_front(km_choices *c, double share) {
    double sum, want = share * c->total;
    if (wide())
        bins_below_wide(c);
    else
        bins_below_narrow(c);
    fill_bins(c);
    int last = last_bin(c, want, &sum);
    keep_front(c, last, sum, want, false);
}

/* All logits' weights, and into bins; their sum. */
ALWAYS_INLINE double spread(const km_choices *c, float scale) {
    double sum = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        if (c->peak[b] == -INFINITY) continue;
        const f8 *x = (const f8 *)(c->logits + b * KM_CHOICE_BLOCK);
        float *weight = c->weight + b * KM_CHOICE_BLOCK;
        f8 part = {0}, *p = (f8 *)weight;
        i8 in[KM_CHOICE_BLOCK / 8];
        const int32_t *bin = (const int32_t *)in;
        for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) {
            f8 d = c->top - x[i], e = -d * scale;
            exp_of(&e);
            p[i] = e;
            part += e;
            bins_of(&d, &in[i]);
        }
        for (int j = 0; j < 8; j++) sum += part[j];
        for (int i = 0; i < KM_CHOICE_BLOCK; i++) c->bin[bin[i]] += weight[i];
    }
    return sum;
}

static double spread_narrow(const km_choices *c, float scale) { return spread(c, scale); }
static WIDE double spread_wide(const km_choices *c, float scale) { return spread(c, scale); }

/* Gathers, with their weights, those before bin `last`; those in it go to the edge. */
ALWAYS_INLINE int64_t gather_until(km_choices *c, int last, int64_t *at_edge) {
    const float begin = (float)last, end = last < KM_CHOICE_BINS - 1 ? begin + 1 : INFINITY;
    int32_t *restrict id = c->id;
    float *restrict x = c->x, *restrict p = c->p;
    int64_t n = 0, edge = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        if (!((c->top - c->peak[b]) * BINS_PER_NAT < end)) continue;
        int32_t first = (int32_t)(b * KM_CHOICE_BLOCK);
        const float *from = c->logits + first, *weight = c->weight + first;
        int32_t front[KM_CHOICE_BLOCK], in_last[KM_CHOICE_BLOCK]; /* -1: yes */
        i8 any = {0};
        for (int i = 0; i < KM_CHOICE_BLOCK / 8; i++) {
            f8 d = (c->top - ((const f8 *)from)[i]) * BINS_PER_NAT;
            i8 before = d < begin, at = ~before & (d < end);
            ((i8 *)front)[i] = before;
            ((i8 *)in_last)[i] = at;
            any |= at;
        }
        for (int i = 0; i < KM_CHOICE_BLOCK; i++) {
            id[n] = first + i, x[n] = from[i], p[n] = weight[i];
            n -= front[i];
        }
        if (any[0] | any[1] | any[2] | any[3] | any[4] | any[5] | any[6] | any[7])
            for (int i = 0; i < KM_CHOICE_BLOCK; i++) {
                c->edge[edge] = (km_choice){first + i, from[i], weight[i]};
                edge -= in_last[i];
            }
    }
    *at_edge = edge;
    return n;
}

static int64_t gather_until_narrow(km_choices *c, int last, int64_t *edge) {
    return gather_until(c, last, edge);
}
static WIDE int64_t gather_until_wide(km_choices *c, int last, int64_t *edge) {
    return gather_until(c, last, edge);
}

void km_choices_gather_front(km_choices *c, double share, double temperature) {
    float scale = (float)(1 / temperature);
    memset(c->bin, 0, KM_CHOICE_BINS * sizeof *c->bin);
    double sum, want = share * (wide() ? spread_wide(c, scale) : spread_narrow(c, scale));
    int last = last_bin(c, want, &sum);
    int64_t edge, n;
    n = wide() ? gather_until_wide(c, last, &edge) : gather_until_narrow(c, last, &edge);
    append_edge(c, n, edge);
    settle_front(c, n, n + edge, sum, want, false);
}

/* The mean of p times the distance below the top, in nats. */
ALWAYS_INLINE double mean_below(const km_choices *c, float scale) {
    double mean = 0;
    for (int64_t i = 0; i < c->n; i += KM_CHOICE_BLOCK) {
        const f8 *x = (const f8 *)(c->x + i), *p = (const f8 *)(c->p + i);
        f8 part = {0};
        if (c->n - i >= KM_CHOICE_BLOCK) {
            for (int k = 0; k < KM_CHOICE_BLOCK / 8; k++) part += p[k] * ((c->top - x[k]) * scale);
            for (int j = 0; j < 8; j++) mean += part[j];
        } else {
            for (int64_t k = i; k < c->n; k++) mean += c->p[k] * ((c->top - c->x[k]) * scale);
        }
    }
    return mean / c->total;
}

/* x becomes the distance from what is typical, and its bin is found. */
ALWAYS_INLINE void bins_around(const km_choices *c, float scale, float typical) {
    const i8 sign = (i8){0} + 0x7fffffff;
    f8 *x = (f8 *)c->x;
    i8 *in = (i8 *)c->in;
    for (int64_t i = 0; i < (c->n + 7) / 8; i++) {
        x[i] = (f8)((i8)((c->top - x[i]) * scale - typical) & sign);
        bins_of(&x[i], &in[i]);
    }
}

ALWAYS_INLINE void find_typical(const km_choices *c, float scale) {
    /* -ln p = ln total + below, so that the logarithm of the total falls out of the difference */
    bins_around(c, scale, (float)mean_below(c, scale));
}

static void find_typical_narrow(const km_choices *c, float scale) { find_typical(c, scale); }
static WIDE void find_typical_wide(const km_choices *c, float scale) { find_typical(c, scale); }

void km_choices_typical(km_choices *c, double share, double temperature) {
    float scale = (float)(1 / temperature);
    double sum, want = share * c->total;
    if (wide())
        find_typical_wide(c, scale);
    else
        find_typical_narrow(c, scale);
    fill_bins(c);
    int last = last_bin(c, want, &sum);
    keep_front(c, last, sum, want, true);
    for (int64_t i = 0; i < c->n; i++) c->x[i] = c->logits[c->id[i]];
}

void km_choices_at_least(km_choices *c, double p) {
    int64_t n = 0;
    c->total = 0;
    for (int64_t i = 0; i < c->n; i++)
        if (c->p[i] >= p) {
            c->total += c->p[i];
            swap(c, i, n++);
        }
    c->n = n;
}

int64_t km_choices_draw(const km_choices *c, double u) {
    u *= c->total;
    int64_t i = 0;
    for (; i + 64 <= c->n; i += 64) { /* in large steps first */
        double part = sum_of(c->p + i, 64);
        if (u < part) break;
        u -= part;
    }
    for (; i < c->n; i++) {
        u -= c->p[i];
        if (u < 0) return i;
    }
    for (i = c->n - 1; i > 0; i--) /* rounding: the last that can come at all */
        if (c->p[i] > 0) return i;
    return 0;
}
