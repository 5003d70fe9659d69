/* Trial calls for choosing tokens: greedy and drawn, each cut by itself and together, penalties,
 * vocabularies of odd sizes, logits that are no numbers. */
#include "backend/sample.h"
#include "ops/cases.h"
#include <string.h>

typedef struct sample_form {
    int64_t rows, vocab;
    float temperature, top_k, top_p, min_p, repeat, frequency, presence, last, tokens;
    km_values values;
    int masks, biases; /* rows of masks, which every second row uses, and of biases; 0: none */
} sample_form;

static const sample_form forms[] = {
    {1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {3, 70, 0, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {2, 1000, 0, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_SPECIAL, 0, 0},
    {4, 999, 0.8f, 40, 0.95f, 0.05f, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {4, 5000, 1, 5, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {2, 3001, 0.7f, 0, 0.5f, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {2, 3000, 1.5f, 0, 1, 0.2f, 1, 0, 0, 0, 2900, KM_V_NORMAL, 0, 0},
    {2, 2500, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {3, 64, 1, 64, 0.9f, 0, 1.3f, 0.5f, 0.2f, 64, 0, KM_V_NORMAL, 0, 0},
    {3, 129, 0, 0, 1, 0, 1.5f, 0.5f, 1, 256, 100, KM_V_NORMAL, 0, 0},
    {2, 800, 1, 300, 0.99f, 0.001f, 1, 0, 0, 0, 0, KM_V_LOW, 0, 0},
    {2, 40000, 0.9f, 40, 0.95f, 0.05f, 1.1f, 0, 0, 64, 0, KM_V_NORMAL, 0, 0},
    {0, 50, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 0, 0},
    {3, 70, 0, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 2, 0},
    {5, 5001, 1, 40, 0.95f, 0.02f, 1.2f, 0.1f, 0.3f, 64, 5000, KM_V_NORMAL, 3, 9},
    {4, 700, 0.8f, 0, 0.9f, 0, 1, 0, 0, 0, 0, KM_V_SPECIAL, 0, 20},
    {6, 20000, 1.2f, 0, 0.99f, 0, 1, 0, 0, 0, 0, KM_V_NORMAL, 3, 12},
};

/* About a third of the tokens may be chosen; of the last row, few. */
static km_tensor *masks_of(km_ctx *ctx, km_lane *lane, const sample_form *f) {
    int64_t words = (f->vocab + 31) / 32;
    km_tensor *t = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->masks, words));
    int32_t *bits = t ? km_tensor_ptr(t) : NULL;
    for (int64_t i = 0; t && i < f->masks * words; i++) {
        uint32_t a = (uint32_t)i * 2654435761u, b = (uint32_t)i * 40503u + 12345u;
        bits[i] = (int32_t)(a & (b << 7 | b >> 9));
        if (i / words == f->masks - 1 && i % words != 1) bits[i] = 0;
        if (i % words == 2) bits[i] = -1;
    }
    return t;
}

/* Of row 1, which is not said to have any, too, and some of rows and tokens that are not there. */
static km_tensor *biases_of(km_ctx *ctx, km_lane *lane, const sample_form *f) {
    km_tensor *t = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->biases, 3));
    int32_t *b = t ? km_tensor_ptr(t) : NULL;
    for (int i = 0; t && i < f->biases; i++, b += 3) {
        float add = i % 3 == 0 ? -100.0f : (float)(i % 5) + 0.5f;
        b[0] = i == 5 ? (int32_t)f->rows : (int32_t)(i % f->rows);
        b[1] = i == 7 ? -1 : (int32_t)((i * 97 + 3) % f->vocab);
        memcpy(&b[2], &add, sizeof add);
    }
    return t;
}

static void derive(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const sample_form *f = &forms[c->p.axis];
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    in[1] = km_tensor_new(ctx, lane, "case", KM_F32, KM_SHAPE(f->rows, KM_SAMPLE_SETTINGS));
    in[2] = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->rows, KM_SAMPLE_STATE));
    if (!in[1] || !in[2]) return;
    if (f->masks) in[3] = masks_of(ctx, lane, f);
    if (f->biases) in[4] = biases_of(ctx, lane, f);
    float *how = km_tensor_ptr(in[1]);
    int32_t *state = km_tensor_ptr(in[2]);
    memset(how, 0, sizeof *how * (size_t)(f->rows * KM_SAMPLE_SETTINGS));
    memset(state, 0, sizeof *state * (size_t)(f->rows * KM_SAMPLE_STATE));
    for (int64_t r = 0; r < f->rows; r++, how += KM_SAMPLE_SETTINGS, state += KM_SAMPLE_STATE) {
        how[KM_SAMPLE_TEMPERATURE] = f->temperature;
        how[KM_SAMPLE_TOP_K] = f->top_k;
        how[KM_SAMPLE_TOP_P] = f->top_p;
        how[KM_SAMPLE_MIN_P] = f->min_p;
        how[KM_SAMPLE_REPEAT] = f->repeat;
        how[KM_SAMPLE_FREQUENCY] = f->frequency;
        how[KM_SAMPLE_PRESENCE] = f->presence;
        how[KM_SAMPLE_LAST] = f->last;
        how[KM_SAMPLE_TOKENS] = f->tokens;
        how[KM_SAMPLE_MASK] = (float)(r % 2 == 0 && f->masks ? 1 + r / 2 % f->masks : 0);
        how[KM_SAMPLE_BIASED] = (float)(f->biases && r != 1);
        state[KM_SAMPLE_SEED] = (int32_t)(7 + r);
        state[KM_SAMPLE_DRAWS] = (int32_t)(3 * r);
        state[KM_SAMPLE_SEEN] = (int32_t)(r * 300 + 40); /* the ring has gone round, or not */
        for (int i = 0; i < KM_SAMPLE_RING; i++)
            state[KM_SAMPLE_TOKEN_AT + i] = (int32_t)((i * 13 + i / 40) % f->vocab);
    }
}

void km_cases_sample(km_case_fn fn, void *user) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const sample_form *f = &forms[i];
        km_case c = {.op = KM_OP_SAMPLE,
                     .n_in = 3,
                     .dtypes = KM_BIT(KM_F32),
                     .no_gradient = true,
                     .derive = derive,
                     .p = {.axis = (int)i, .n = {[KM_N_PENALTIES] = f->last > 0}}};
        c.in[0] =
            (km_case_in){.shape = KM_SHAPE(f->rows, f->vocab), .values = f->values, .dtype = -1};
        c.in[1] = (km_case_in){.shape = KM_SHAPE(f->rows, KM_SAMPLE_SETTINGS),
                               .values = KM_V_DERIVED,
                               .dtype = KM_F32};
        c.in[2] = (km_case_in){
            .shape = KM_SHAPE(f->rows, KM_SAMPLE_STATE), .values = KM_V_DERIVED, .dtype = KM_I32};
        c.in[3] = (km_case_in){.shape = KM_SHAPE(f->masks, (f->vocab + 31) / 32),
                               .values = KM_V_DERIVED,
                               .dtype = KM_I32,
                               .absent = !f->masks};
        c.in[4] = (km_case_in){.shape = KM_SHAPE(f->biases, 3),
                               .values = KM_V_DERIVED,
                               .dtype = KM_I32,
                               .absent = !f->biases};
        c.n_in = f->biases ? 5 : f->masks ? 4 : 3;
        if (!fn(user, &c)) return;
    }
}

/* ---- How likely tokens are ---- */

typedef struct told_form {
    int64_t rows, vocab, n, top, tokens;
    km_values values;
} told_form;

static const told_form told_forms[] = {
    {1, 1, 1, 0, 0, KM_V_NORMAL},       {3, 70, 5, 5, 0, KM_V_NORMAL},
    {2, 1000, 2, 20, 900, KM_V_NORMAL}, {4, 40000, 3, 32, 0, KM_V_NORMAL},
    {2, 300, 2, 8, 0, KM_V_LOW},        {2, 10, 2, 12, 0, KM_V_NORMAL},
    {3, 5000, 0, 4, 0, KM_V_NORMAL},    {2, 129, 3, 1, 128, KM_V_OFFSET},
};

/* Rows and tokens in no order, and some that are not there. */
static void derive_told(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const told_form *f = &told_forms[c->p.axis];
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    in[1] = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->n, 2));
    int32_t *which = in[1] ? km_tensor_ptr(in[1]) : NULL;
    for (int64_t i = 0; which && i < f->n; i++) {
        which[2 * i] = (int32_t)(i == 4 ? f->rows : (f->rows - 1 - i % f->rows));
        which[2 * i + 1] = (int32_t)(i == 3 ? -1 : (i * 31 + 7) % f->vocab);
    }
}

void km_cases_logprobs(km_case_fn fn, void *user) {
    for (size_t i = 0; i < sizeof told_forms / sizeof *told_forms; i++) {
        const told_form *f = &told_forms[i];
        km_case c = {.op = KM_OP_LOGPROBS,
                     .n_in = 2,
                     .dtypes = KM_BIT(KM_F32),
                     .no_gradient = true,
                     .derive = derive_told,
                     .p = {.axis = (int)i, .n = {[KM_N_TOP] = f->top, [KM_N_TOKENS] = f->tokens}}};
        c.in[0] =
            (km_case_in){.shape = KM_SHAPE(f->rows, f->vocab), .values = f->values, .dtype = -1};
        c.in[1] = (km_case_in){.shape = KM_SHAPE(f->n, 2), .values = KM_V_DERIVED, .dtype = KM_I32};
        if (!fn(user, &c)) return;
    }
}
