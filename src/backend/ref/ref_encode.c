/* Reference encoding: a row's scale, its levels or its path through the trellis, and the bits of its
 * code, as ops/encode_codes.h defines them. */
#include "backend/ref/ref.h"
#include "backend/trellis.h"
#include <string.h>

enum { L = KM_TRELLIS_LENGTH, S = KM_TRELLIS_STATES };

static double get1(const km_tensor *t, int64_t i) { return km_ref_get(t, &i); }
static int64_t int1(const km_tensor *t, int64_t i) { return km_ref_get_int(t, &i); }
static double get2(const km_tensor *t, int64_t i, int64_t j) {
    return km_ref_get(t, (int64_t[]){i, j});
}
static int64_t int2(const km_tensor *t, int64_t i, int64_t j) {
    return km_ref_get_int(t, (int64_t[]){i, j});
}

/* Sets bit `at` of a row's code, which is 0. */
static void put(const km_call *c, int64_t row, int64_t at, int64_t bit) {
    int64_t old = int2(c->out[0], row, at / 8);
    km_ref_set_int(c->out[0], (int64_t[]){row, at / 8}, old | bit << at % 8);
}

static int64_t scale_code(const km_params *p, double s) {
    if (!(2 * s >= p->f[KM_F_LOW])) return 0;
    double i = round(log(s / p->f[KM_F_LOW]) / fmax(p->f[KM_F_SCALE_STEP], 1e-9));
    return i < 0 ? 1 : i >= KM_ENCODE_SCALES ? KM_ENCODE_SCALES : (int64_t)i + 1;
}

/* Clears the code; the row's scale, or 0 where it stays so. */
static double begin_row(const km_call *c, int64_t row) {
    for (int64_t b = 0; b < c->p->n[KM_N_CODE_BYTES]; b++)
        km_ref_set_int(c->out[0], (int64_t[]){row, b}, 0);
    double s = sqrt(get1(c->in[1], row) / (double)c->p->n[KM_N_DIM]);
    return scale_code(c->p, s) > 0 ? s : 0;
}

static float scaled(const km_call *c, int64_t row, int64_t j, double s) {
    return (float)get2(c->in[0], row, j) * (float)(1 / s);
}

/* ---- Levels ---- */

static int64_t level_of(const km_tensor *tables, int64_t bits, float x) {
    int64_t low = 0;
    for (int64_t step = (1 << bits) / 2; step > 0; step /= 2) {
        int64_t mid = low + step;
        float border = 0.5f * ((float)get2(tables, bits, mid - 1) + (float)get2(tables, bits, mid));
        if (x >= border) low = mid;
    }
    return low;
}

km_status km_ref_encode_levels(km_ctx *ctx, const km_call *c) {
    enum { BITS = 2, AT, AMP, TABLES };
    int64_t n = c->in[0]->shape.dim[0], d = c->in[0]->shape.dim[1];
    (void)ctx;
    for (int64_t i = 0; i < n; i++) {
        double s = begin_row(c, i), along = 0, norm = 0;
        for (int64_t j = 0; j < d && s > 0; j++) {
            int64_t bits = int1(c->in[BITS], j);
            float amp = (float)get1(c->in[AMP], j), x = scaled(c, i, j, s);
            int64_t level = bits > 0 && amp > 0 ? level_of(c->in[TABLES], bits, x / amp) : 0;
            for (int64_t l = 0; l < bits; l++)
                put(c, i, int2(c->in[AT], j / 8, l) * 8 + j % 8, level >> (bits - 1 - l) & 1);
            double v = bits > 0 ? (double)amp * get2(c->in[TABLES], bits, level) : 0;
            along += x * v;
            norm += v * v;
        }
        if (s > 0)
            km_ref_set_int(c->out[0], (int64_t[]){i, 0},
                           scale_code(c->p, norm > 0 ? s * along / norm : 0));
    }
    return KM_OK;
}

/* ---- Trellises ---- */

typedef struct ref_trellis_search {
    const km_tensor *tables;
    int64_t axes;
    const float *x, *amp;
    const int64_t *rate;
    float *cost, *next; /* (S) */
    uint8_t *back;      /* (axes, S): the bits that left the window */
} ref_trellis_search;

static void walk(ref_trellis_search *s, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        int64_t k = s->rate[i], u_count = S >> k;
        if (k == 0 && s->amp[i] == 0) continue;
        for (int64_t u = 0; u < u_count; u++) {
            int64_t best = 0;
            for (int64_t t = 1; t < 1 << k; t++)
                if (s->cost[t * u_count + u] < s->cost[best * u_count + u]) best = t;
            s->back[i * S + u] = (uint8_t)best;
            for (int64_t state = u << k; state < (u + 1) << k; state++) {
                float e = fmaf(-s->amp[i], (float)get2(s->tables, k, state), s->x[i]);
                s->next[state] = fmaf(e, e, s->cost[best * u_count + u]);
            }
        }
        float *c = s->cost;
        s->cost = s->next;
        s->next = c;
    }
}

static void begin(ref_trellis_search *s, int64_t start) {
    for (int64_t i = 0; i < S; i++) s->cost[i] = start < 0 || i == start ? 0 : KM_TRELLIS_NEVER;
}

static int64_t cheapest(const ref_trellis_search *s) {
    int64_t best = 0;
    for (int64_t i = 1; i < S; i++)
        if (s->cost[i] < s->cost[best]) best = i;
    return best;
}

static int64_t before(const ref_trellis_search *s, int64_t state, int64_t axis) {
    int64_t k = s->rate[axis], u = state >> k;
    return k == 0 ? state : u | (int64_t)s->back[axis * S + u] << (L - k);
}

static int64_t closing_state(ref_trellis_search *s, int64_t ring) {
    int64_t tail = s->axes, head = 0, bits = 0, tries[KM_TRELLIS_TRIES], best = 0;
    begin(s, -1);
    if (ring >= KM_TRELLIS_SETTLE) {
        while (tail > 0 && bits < KM_TRELLIS_SETTLE) bits += s->rate[--tail];
        for (bits = 0; head < tail && bits < KM_TRELLIS_SETTLE;) bits += s->rate[head++];
        walk(s, tail, s->axes);
        walk(s, 0, head);
        int64_t state = cheapest(s);
        for (int64_t i = head - 1; i >= 0; i--) state = before(s, state, i);
        return state;
    }
    walk(s, 0, s->axes);
    for (int i = 0; i < KM_TRELLIS_TRIES; i++) {
        tries[i] = cheapest(s);
        s->cost[tries[i]] = KM_TRELLIS_NEVER;
    }
    float least = INFINITY;
    for (int i = 0; i < KM_TRELLIS_TRIES; i++) {
        begin(s, tries[i]);
        walk(s, 0, s->axes);
        if (s->cost[tries[i]] < least) {
            least = s->cost[tries[i]];
            best = tries[i];
        }
    }
    return best;
}

km_status km_ref_encode_trellis(km_ctx *ctx, const km_call *c) {
    enum { AMP = 2, RATE, CLASSES, WATER, TABLES };
    int64_t n = c->in[0]->shape.dim[0], most = c->p->n[KM_N_MOST],
            classes = c->in[WATER]->shape.dim[0];
    size_t each = (size_t)most * (2 * sizeof(float) + sizeof(int64_t) + S);
    char *room = km_ctx_scratch(ctx, each + 2 * S * sizeof(float));
    if (!room) return KM_ERR_MEMORY;
    int64_t *rate = (int64_t *)room;
    float *x = (float *)(rate + most), *amp = x + most;
    ref_trellis_search s = {
        .tables = c->in[TABLES], .x = x, .amp = amp, .rate = rate, .cost = amp + most};
    s.next = s.cost + S;
    s.back = (uint8_t *)(s.next + S);
    for (int64_t i = 0; i < n; i++) {
        double scale = begin_row(c, i), least = INFINITY, along = 0, norm = 0;
        int64_t best = 0, ring = 0;
        if (scale == 0) continue;
        for (int64_t k = 0; k < classes && classes > 1; k++) {
            int64_t first = int2(c->in[CLASSES], k, 0), count = int2(c->in[CLASSES], k, 1);
            double kept = 0, excess = 0, water = get1(c->in[WATER], k);
            for (int64_t j = first; j < first + count; j++) {
                double v = (double)scaled(c, i, j, scale), a = get1(c->in[AMP], j);
                kept += v * v;
                excess += v * v / (a * a + water);
            }
            double cost = (double)c->p->n[KM_N_DIM] - kept + 0.5 * water * ((double)count + excess);
            if (cost < least) {
                least = cost;
                best = k;
            }
        }
        int64_t first = int2(c->in[CLASSES], best, 0);
        s.axes = int2(c->in[CLASSES], best, 1);
        for (int64_t j = 0; j < s.axes; j++) {
            x[j] = scaled(c, i, first + j, scale);
            amp[j] = (float)get1(c->in[AMP], first + j);
            ring += rate[j] = int1(c->in[RATE], first + j);
        }
        int64_t state = closing_state(&s, ring), at = 8 + c->p->n[KM_N_CLASS_BITS] + ring;
        for (int64_t b = 0; b < c->p->n[KM_N_CLASS_BITS]; b++) put(c, i, 8 + b, best >> b & 1);
        begin(&s, state);
        walk(&s, 0, s.axes);
        for (int64_t j = s.axes - 1; j >= 0; j--) {
            double v = (double)amp[j] * get2(c->in[TABLES], rate[j], state);
            for (int64_t b = 0; b < rate[j]; b++) put(c, i, --at, state >> b & 1);
            along += x[j] * v;
            norm += v * v;
            state = before(&s, state, j);
        }
        km_ref_set_int(c->out[0], (int64_t[]){i, 0},
                       scale_code(c->p, norm > 0 ? scale * along / norm : 0));
    }
    return KM_OK;
}
