/* Embeddings of whole texts: pooled, scaled, and the same alone as in company. */
#include "engine/tiny_model.h"
#include <math.h>

enum { TEXTS = 40, LONGEST = 60, DIM = 128 };

static km_model *model;

static int open_model(void **state) {
    (void)state;
    model = tiny_model();
    assert_int_equal(km_model_describe(model).dim, DIM);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    km_model_close(model);
    return 0;
}

static double length_of(const float *v, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)v[i] * v[i];
    return sqrt(sum);
}

static void pooling_is_what_its_name_says(void **state) {
    (void)state;
    int32_t ids[64];
    size_t n = (size_t)tiny_ids(model, "The sea is wide and the sky is blue.", ids, 64);
    const int32_t *texts[] = {ids};
    float *states = malloc(n * DIM * sizeof *states), out[DIM];
    assert_int_equal(km_embed_tokens(model, ids, n, states), KM_OK);
    km_embed_options o = km_embed_defaults();
    static const km_pooling all[] = {KM_POOLING_MEAN, KM_POOLING_FIRST, KM_POOLING_LAST};
    for (int p = 0; p < 3; p++) {
        o.pooling = all[p];
        o.raw = true;
        assert_int_equal(km_embed(model, texts, &n, 1, &o, out), KM_OK);
        for (size_t k = 0; k < DIM; k++) {
            double want = 0;
            for (size_t i = 0; i < n; i++) want += (double)states[i * DIM + k] / (double)n;
            if (p == 1) want = states[k];
            if (p == 2) want = states[(n - 1) * DIM + k];
            assert_true(fabs(out[k] - want) < 1e-4);
        }
        o.raw = false;
        assert_int_equal(km_embed(model, texts, &n, 1, &o, out), KM_OK);
        assert_true(fabs(length_of(out, DIM) - 1) < 1e-5);
    }
    assert_int_equal(km_model_pooling(model), KM_POOLING_MEAN); /* its file does not say */
    free(states);
}

static void texts_are_the_same_alone_and_in_company(void **state) {
    (void)state;
    static int32_t ids[TEXTS][LONGEST];
    const int32_t *texts[TEXTS];
    size_t lengths[TEXTS];
    static float all[TEXTS * DIM];
    float one[DIM];
    for (size_t i = 0; i < TEXTS; i++) {
        lengths[i] = 1 + (i * 37) % LONGEST;
        for (size_t k = 0; k < lengths[i]; k++) ids[i][k] = (int32_t)((i * 131 + k * 17) % 1000);
        texts[i] = ids[i];
    }
    assert_int_equal(km_embed(model, texts, lengths, TEXTS, NULL, all), KM_OK);
    for (size_t i = 0; i < TEXTS; i++) {
        assert_int_equal(km_embed(model, texts + i, lengths + i, 1, NULL, one), KM_OK);
        for (size_t k = 0; k < DIM; k++) assert_true(fabsf(one[k] - all[i * DIM + k]) < 1e-4f);
    }
    km_embed_options o = km_embed_defaults();
    o.dimensions = 16;
    float short_one[16];
    assert_int_equal(km_embed(model, texts, lengths, 1, &o, short_one), KM_OK);
    double scale = length_of(all, 16);
    for (size_t k = 0; k < 16; k++) assert_true(fabs(short_one[k] - all[k] / scale) < 1e-4);
}

static bool stop_at_once(void *user, size_t done, size_t total) {
    (void)user;
    return done == total;
}

static void what_cannot_be_embedded_is_told(void **state) {
    (void)state;
    int32_t ids[300] = {0}, bad[] = {-1};
    const int32_t *texts[] = {ids, bad};
    size_t lengths[] = {3, 1}, none[] = {0}, many[] = {257};
    float out[2 * DIM];
    assert_int_equal(km_embed(model, texts, lengths, 2, NULL, out), KM_ERR_RANGE);
    assert_int_equal(km_embed(model, texts, none, 1, NULL, out), KM_ERR_NULL);
    assert_int_equal(km_embed(model, texts, many, 1, NULL, out), KM_ERR_RANGE);
    assert_int_equal(km_embed(model, texts, lengths, 0, NULL, out), KM_ERR_NULL);
    assert_int_equal(km_embed(NULL, texts, lengths, 1, NULL, out), KM_ERR_NULL);
    km_embed_options o = km_embed_defaults();
    o.dimensions = DIM + 1;
    assert_int_equal(km_embed(model, texts, lengths, 1, &o, out), KM_ERR_RANGE);
    o = km_embed_defaults();
    o.pooling = KM_POOLING_RANK;
    assert_int_equal(km_embed(model, texts, lengths, 1, &o, out), KM_ERR_UNSUPPORTED);
    o = km_embed_defaults();
    o.progress = stop_at_once;
    assert_int_equal(km_embed(model, texts, lengths, 1, &o, out), KM_ERR_STATE);
    assert_int_equal(km_embed(model, texts, lengths, 1, NULL, out), KM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooling_is_what_its_name_says),
        cmocka_unit_test(texts_are_the_same_alone_and_in_company),
        cmocka_unit_test(what_cannot_be_embedded_is_told),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
