/* Trial calls for one row of x against long rows of quantised weights: what a model does for every
 * token. GPUs have kernels of their own for it, which walk a row in steps of 2048 weights: rows of
 * one whole step, of steps with a rest, and of more steps than a ring of copies holds. Of tall matrices
 * every warp there has several rows. */
#include "ops/cases.h"

enum { LENGTHS = 4 };
static const int64_t lengths[LENGTHS] = {2048, 2304, 5632, 20736};

static km_case_in some(km_shape shape, int dtype) {
    return (km_case_in){.shape = shape, .values = KM_V_NORMAL, .dtype = dtype};
}

static km_case one_row(km_op op, int64_t k, int n_in) {
    km_case c = {.op = op, .n_in = n_in, .dtypes = KM_BIT(KM_F32), .no_gradient = true};
    c.in[0] = some(KM_SHAPE(1, k), -1);
    return c;
}

static const km_case_in absent = {.absent = true, .dtype = -1};

static bool linear(km_case_fn fn, void *user) {
    static const int64_t rows[LENGTHS] = {37, 19, 10, 5};
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++)
        for (int i = 0; i < LENGTHS; i++) {
            km_case c = one_row(KM_OP_QUANT_LINEAR, lengths[i], 3);
            c.p.act = (km_act)((d + i) % 5);
            c.in[1] = some(KM_SHAPE(rows[i], lengths[i]), d);
            c.in[2] = i % 2 ? absent : some(KM_SHAPE(rows[i]), -1);
            c.kept = i < 2;
            if (!fn(user, &c)) return false;
        }
    km_case tall = one_row(KM_OP_QUANT_LINEAR, 2048, 2);
    tall.in[1] = some(KM_SHAPE(5401, 2048), KM_Q4_K);
    return fn(user, &tall);
}

/* Mixes of types that go into one launch, others that do not, and one type alone. */
static bool linears(km_case_fn fn, void *user) {
    static const int mixes[][3] = {{KM_Q4_K, KM_Q4_K, KM_Q6_K}, {KM_Q5_K, KM_Q5_K, KM_Q6_K},
                                   {KM_Q3_K, KM_Q5_K, KM_Q5_K}, {KM_Q4_K, KM_Q6_K, -1},
                                   {KM_Q6_K, KM_Q4_K, KM_Q8_0}, {KM_Q4_K, KM_F16, KM_Q6_K},
                                   {KM_Q8_0, KM_Q8_0, KM_Q8_0}};
    static const int64_t rows[LENGTHS][3] = {{33, 10, 9}, {18, 5, 7}, {11, 4, 5}, {7, 5, 6}};
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++)
        for (int i = 0; i < LENGTHS; i++) {
            int layers = mixes[m][2] < 0 ? 2 : 3;
            km_case c = one_row(KM_OP_LINEARS, lengths[i], 1 + 2 * layers);
            c.p.n[KM_N_LAYERS] = layers;
            for (int l = 0; l < layers; l++) {
                c.in[1 + 2 * l] = some(KM_SHAPE(rows[i][l], lengths[i]), mixes[m][l]);
                c.in[2 + 2 * l] = (i + l) % 2 ? absent : some(KM_SHAPE(rows[i][l]), -1);
            }
            c.kept = i < 2 && m < 3;
            if (!fn(user, &c)) return false;
        }
    km_case tall = one_row(KM_OP_LINEARS, 2048, 7);
    tall.p.n[KM_N_LAYERS] = 3;
    tall.in[1] = some(KM_SHAPE(4096, 2048), KM_Q4_K);
    tall.in[3] = some(KM_SHAPE(701, 2048), KM_Q4_K);
    tall.in[5] = some(KM_SHAPE(701, 2048), KM_Q6_K);
    tall.in[2] = tall.in[4] = tall.in[6] = absent;
    return fn(user, &tall);
}

/* Both halves in one tensor, and in two. */
static bool gated(km_case_fn fn, void *user) {
    static const int64_t rows[LENGTHS] = {21, 11, 6, 5};
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++)
        for (int i = 0; i < 2 * LENGTHS; i++) {
            int64_t k = lengths[i / 2], n = rows[i / 2];
            bool joined = i % 2;
            if (i >= 2 && (i / 2 + d) % 2 != joined) continue; /* by turns */
            km_case c = one_row(KM_OP_GATED, k, joined ? 2 : 3);
            c.p.act = d % 2 ? KM_ACT_SILU : KM_ACT_GELU;
            c.in[1] = some(KM_SHAPE(joined ? 2 * n : n, k), d);
            c.in[2] = some(KM_SHAPE(n, k), d);
            c.kept = i > 0 && i < 4;
            if (!fn(user, &c)) return false;
        }
    km_case tall = one_row(KM_OP_GATED, 2048, 2);
    tall.p.act = KM_ACT_SILU;
    tall.in[1] = some(KM_SHAPE(2 * 2201, 2048), KM_Q4_K);
    return fn(user, &tall);
}

bool km_cases_one_row(km_op op, km_case_fn fn, void *user) {
    switch (op) {
    case KM_OP_QUANT_LINEAR: return linear(fn, user);
    case KM_OP_LINEARS: return linears(fn, user);
    case KM_OP_GATED: return gated(fn, user);
    default: return true;
    }
}
