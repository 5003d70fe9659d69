/* The tables, and the search for the best path round the ring. */
#include "vector/trellis.h"
#include <math.h>
#include <pthread.h>
#include <string.h>

#define L KM_TRELLIS_LENGTH
#define S KM_TRELLIS_STATES
#define TRIES KM_TRELLIS_TRIES   /* ends that are tried for a short ring */
#define SETTLE KM_TRELLIS_SETTLE /* bits after which a search has forgotten where it began */

/* Output bit 11 - i of g_k is the parity of the window's bits under mask i: the best of some twenty
 * random maps on Gaussian numbers. `stretch` is what the quantiles are multiplied by, beyond the
 * deviation sqrt(1 - 4^-k) of ideal reproductions, which amp holds. */
static const struct map {
    float stretch;
    uint16_t mask[L];
} maps[KM_TRELLIS_RATE + 1] = {
    {1.000f, {0x903, 0x560, 0xa03, 0x448, 0x491, 0x28f, 0x28d, 0x945, 0xf49, 0x91e, 0x97c, 0xaf6}},
    {1.035f, {0xacd, 0x55c, 0x8ef, 0x47d, 0x160, 0x615, 0x435, 0x58f, 0xc79, 0xe34, 0xe2a, 0xfed}},
    {1.062f, {0x60e, 0xca1, 0x7ec, 0x1a2, 0xa9b, 0xfbf, 0x881, 0xc46, 0x8f7, 0x503, 0x52e, 0x4b6}},
    {1.048f, {0x48c, 0x6e2, 0xa59, 0x5aa, 0x625, 0x546, 0xdc3, 0xd76, 0x7a0, 0xe2d, 0x28b, 0x486}},
    {1.102f, {0x178, 0x254, 0xc42, 0xaf1, 0x81a, 0x18d, 0xe67, 0x139, 0xb9d, 0x920, 0xfa6, 0x535}},
    {1.067f, {0x0d0, 0x6a8, 0x5c4, 0x4a2, 0xe81, 0x44c, 0x46d, 0x756, 0x5c1, 0xa59, 0x787, 0x9ca}},
    {1.200f, {0x120, 0x490, 0xa48, 0x204, 0x242, 0x741, 0xe58, 0xc46, 0x484, 0xb6f, 0x17d, 0xa6a}},
    {1.236f, {0xf40, 0xca0, 0x190, 0xb88, 0xe84, 0x102, 0x401, 0x98c, 0x6f4, 0x1ec, 0x3ca, 0xb72}},
    {1.200f, {0x680, 0x640, 0x520, 0x510, 0x308, 0xa04, 0x102, 0xd01, 0x9a5, 0x5c0, 0x693, 0x461}},
};

static int reversed(int x, int bits) {
    int r = 0;
    for (int i = 0; i < bits; i++) r |= (x >> i & 1) << (bits - 1 - i);
    return r;
}

/* The normal quantile of p in (0, 1), by halving. */
static double quantile(double p) {
    double lo = -6, hi = 6;
    for (int i = 0; i < 48; i++) {
        double mid = 0.5 * (lo + hi);
        if (0.5 * erfc(-mid * 0.7071067811865476) < p)
            lo = mid;
        else
            hi = mid;
    }
    return 0.5 * (lo + hi);
}

static km_trellis tables;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void) {
    km_trellis *t = &tables;
    float normal[S];
    for (int i = 0; i < S / 2; i++) {
        normal[i] = (float)quantile((i + 0.5) / S);
        normal[S - 1 - i] = -normal[i];
    }
    for (int k = 0; k <= KM_TRELLIS_RATE; k++) {
        for (int w = 0; w < S; w++) {
            int g = 0;
            for (int i = 0; i < L; i++)
                g |= __builtin_parity((unsigned)(w & maps[k].mask[i])) << (L - 1 - i);
            t->state[k][w] = t->window[k][reversed(w, L)] = maps[k].stretch * normal[g];
        }
    }
}

const km_trellis *km_trellis_tables(void) {
    pthread_once(&tables_once, fill_tables);
    return &tables;
}

void km_trellis_windows(int64_t axes, const uint8_t *rates, int64_t bits, int32_t *at) {
    int64_t end = 0;
    for (int64_t i = 0; i < axes; i++) {
        end += rates[i];
        at[i] = (int32_t)(end >= L ? end - L : end - L + bits);
    }
}

size_t km_trellis_space(int64_t axes) { return 2 * S * sizeof(float) + (size_t)axes * (S / 2); }

typedef struct trellis_search {
    const km_trellis *t;
    const float *x, *amp;
    const uint8_t *rates;
    float *cost, *next;
    uint8_t *back; /* (axes, S / 2) */
} trellis_search;

static void begin(trellis_search *s, int start) {
    for (int i = 0; i < S; i++) s->cost[i] = start < 0 || i == start ? 0 : KM_TRELLIS_NEVER;
}

/* Takes axes [from, to), the way back of axis i at place i - from + place. */
static void walk(trellis_search *s, int64_t from, int64_t to, int64_t place) {
    void (*step)(int, const float *, float, float, float *, float *, uint8_t *) =
        km_simd_codes()->step;
    for (int64_t i = from; i < to; i++, place++) {
        int k = s->rates[i];
        if (k == 0 && s->amp[i] == 0) continue;
        step(k, s->t->state[k], s->x[i], s->amp[i], s->cost, s->next, s->back + place * (S / 2));
        if (k > 0) {
            float *c = s->cost;
            s->cost = s->next;
            s->next = c;
        }
    }
}

static int cheapest(const trellis_search *s) {
    int best = 0;
    for (int i = 1; i < S; i++)
        if (s->cost[i] < s->cost[best]) best = i;
    return best;
}

static int before(const trellis_search *s, int state, int rate, int64_t place) {
    if (rate == 0) return state;
    int u = state >> rate;
    return u | s->back[place * (S / 2) + u] << (L - rate);
}

/* The state in which the ring closes: that of a search that comes round from the end of the ring
 * and goes on into its beginning. */
static int closing_state(trellis_search *s, int64_t axes) {
    int64_t tail = axes, head = 0, bits = 0;
    while (tail > 0 && bits < SETTLE) bits += s->rates[--tail];
    for (bits = 0; head < tail && bits < SETTLE;) bits += s->rates[head++];
    begin(s, -1);
    walk(s, tail, axes, 0);
    walk(s, 0, head, axes - tail);
    int state = cheapest(s);
    for (int64_t i = head - 1; i >= 0; i--) state = before(s, state, s->rates[i], axes - tail + i);
    return state;
}

/* A ring too short for that: of the states that a search round it ends in most cheaply, the one that
 * is cheapest when it begins there too. */
static int short_closing_state(trellis_search *s, int64_t axes) {
    int some[TRIES];
    begin(s, -1);
    walk(s, 0, axes, 0);
    for (int i = 0; i < TRIES; i++) {
        some[i] = cheapest(s);
        s->cost[some[i]] = KM_TRELLIS_NEVER;
    }
    int best = some[0];
    float least = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        begin(s, some[i]);
        walk(s, 0, axes, 0);
        if (s->cost[some[i]] < least) {
            least = s->cost[some[i]];
            best = some[i];
        }
    }
    return best;
}

void km_trellis_encode(const km_trellis *t, int64_t axes, const float *x, const float *amp,
                       const uint8_t *rates, int64_t bits, uint8_t *code, int64_t first,
                       float *value, void *space) {
    trellis_search s = {.t = t, .x = x, .amp = amp, .rates = rates, .cost = space};
    s.next = s.cost + S;
    s.back = (uint8_t *)(s.next + S);
    int start = bits < SETTLE ? short_closing_state(&s, axes) : closing_state(&s, axes);
    int state = start;
    begin(&s, start);
    walk(&s, 0, axes, 0);
    int64_t end = bits;
    for (int64_t i = axes - 1; i >= 0; i--) {
        int k = rates[i];
        value[i] = t->state[k][state];
        for (int b = 0; b < k; b++) { /* the newest bit is the lowest and comes last */
            int64_t at = first + end - 1 - b;
            code[at >> 3] |= (uint8_t)((state >> b & 1) << (at & 7));
        }
        end -= k;
        state = before(&s, state, k, i);
    }
}
