/* Trial calls for choosing tokens: greedy and drawn, each cut by itself and together, penalties,
 * vocabularies of odd sizes, logits that are no numbers. */
#include "backend/sample.h"
#include "ops/cases.h"
#include <string.h>

typedef struct sample_form {
    int64_t rows, vocab;
    float temperature, top_k, top_p, min_p, repeat, frequency, presence, last, tokens;
    km_values values;
} sample_form;

static const sample_form forms[] = {
    {1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {3, 70, 0, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {2, 1000, 0, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_SPECIAL},
    {4, 999, 0.8f, 40, 0.95f, 0.05f, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {4, 5000, 1, 5, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {2, 3001, 0.7f, 0, 0.5f, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {2, 3000, 1.5f, 0, 1, 0.2f, 1, 0, 0, 0, 2900, KM_V_NORMAL},
    {2, 2500, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
    {3, 64, 1, 64, 0.9f, 0, 1.3f, 0.5f, 0.2f, 64, 0, KM_V_NORMAL},
    {3, 129, 0, 0, 1, 0, 1.5f, 0.5f, 1, 256, 100, KM_V_NORMAL},
    {2, 800, 1, 300, 0.99f, 0.001f, 1, 0, 0, 0, 0, KM_V_LOW},
    {2, 40000, 0.9f, 40, 0.95f, 0.05f, 1.1f, 0, 0, 64, 0, KM_V_NORMAL},
    {0, 50, 1, 0, 1, 0, 1, 0, 0, 0, 0, KM_V_NORMAL},
};

static void derive(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const sample_form *f = &forms[c->p.axis];
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    in[1] = km_tensor_new(ctx, lane, "case", KM_F32, KM_SHAPE(f->rows, KM_SAMPLE_SETTINGS));
    in[2] = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->rows, KM_SAMPLE_STATE));
    if (!in[1] || !in[2]) return;
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
        if (!fn(user, &c)) return;
    }
}
