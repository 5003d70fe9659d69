/* Who is left of a vocabulary: bounds from the peaks of blocks, and fronts of an order that is
 * never worked out beyond the place where the front ends. */
#include "infer/choices.h"
#include "base/alloc.h"
#include "base/cpu.h"
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
    c->id = km_alloc((n + 1) * sizeof *c->id); /* gathering writes one beyond */
    c->x = km_alloc((n + 1) * sizeof *c->x);
    c->p = km_alloc(n * sizeof *c->p);
    if (!c->logits || !c->peak || !c->order || !c->bin || !c->id || !c->x || !c->p)
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

/* The passes below are compiled twice on x86-64, for vectors of 4 and of 8. They give the same bits:
 * the lanes of a sum are written out, and nothing is fused. */
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

/* Up to a multiple of 8: there is room. */
ALWAYS_INLINE void weigh(const km_choices *c, float scale) {
    const f8 *x = (const f8 *)c->x;
    f8 *p = (f8 *)c->p;
    for (int64_t i = 0; i < (c->n + 7) / 8; i++) {
        f8 e = (x[i] - c->top) * scale;
        exp_of(&e);
        p[i] = e;
    }
}

static void weigh_narrow(const km_choices *c, float scale) { weigh(c, scale); }
static WIDE void weigh_wide(const km_choices *c, float scale) { weigh(c, scale); }

void km_choices_weigh(km_choices *c, double temperature) {
    float scale = (float)(1 / temperature);
    if (wide())
        weigh_wide(c, scale);
    else
        weigh_narrow(c, scale);
    c->total = sum_of(c->p, c->n);
}

/* ---- Gathering ---- */

void km_choices_gather(km_choices *c, float bound) {
    int64_t n = 0;
    for (int64_t b = 0; b < c->blocks; b++) {
        if (!(c->peak[b] >= bound) || c->peak[b] == -INFINITY) continue;
        for (int64_t i = b * KM_CHOICE_BLOCK; i < (b + 1) * KM_CHOICE_BLOCK; i++) {
            float x = c->logits[i];
            c->id[n] = (int32_t)i;
            c->x[n] = x;
            n += x >= bound && x > -INFINITY;
        }
    }
    c->n = n;
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

/* Of distances in nats, or of what lies below the top. */
static inline int bin_of(const km_choices *c, int64_t i, bool up) {
    const float per_nat = 64;
    float d = up ? c->x[i] : c->top - c->x[i];
    return d < (KM_CHOICE_BINS - 1) / per_nat ? (int)(d * per_nat) : KM_CHOICE_BINS - 1;
}

/* Leaves the shortest front whose p reach `want`, in the order of descending logits, or (up) of
 * ascending distances. The bin where it ends is found first; only inside that one is anything
 * compared. */
static void keep_front(km_choices *c, double want, bool up) {
    memset(c->bin, 0, KM_CHOICE_BINS * sizeof *c->bin);
    for (int64_t i = 0; i < c->n; i++) c->bin[bin_of(c, i, up)] += c->p[i];
    double sum = 0;
    int last = 0;
    while (last < KM_CHOICE_BINS - 1 && sum + c->bin[last] < want) sum += c->bin[last++];
    int64_t lo = 0;
    for (int64_t i = 0; i < c->n; i++)
        if (bin_of(c, i, up) < last) swap(c, i, lo++);
    int64_t hi = lo;
    for (int64_t i = lo; i < c->n; i++)
        if (bin_of(c, i, up) == last) swap(c, i, hi++);
    while (lo < hi) { /* [0, lo) is in; what of [lo, hi) is? */
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

void km_choices_front(km_choices *c, double share, double mass) {
    keep_front(c, share * mass, false);
}

void km_choices_typical(km_choices *c, double share, double temperature) {
    /* -ln p = ln total + below, with no logarithm but one */
    float top = c->top, scale = (float)(1 / temperature), *restrict x = c->x;
    const float *restrict p = c->p;
    double mean = 0;
    int64_t i = 0;
    for (; i + 8 <= c->n; i += 8) {
        float part[8];
        for (int j = 0; j < 8; j++) part[j] = p[i + j] * (x[i + j] = (top - x[i + j]) * scale);
        mean += (double)((part[0] + part[1]) + (part[2] + part[3])) +
                (double)((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < c->n; i++) mean += p[i] * (x[i] = (top - x[i]) * scale);
    float entropy = (float)(mean / c->total); /* less ln total, as are the surprises */
    for (i = 0; i < c->n; i++) x[i] = fabsf(x[i] - entropy);
    keep_front(c, share * c->total, true);
    for (i = 0; i < c->n; i++) c->x[i] = c->logits[c->id[i]];
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
