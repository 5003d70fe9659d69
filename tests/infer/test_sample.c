/* Sampling: what each setting leaves, that frequencies are the probabilities, and that the same
 * seed gives the same tokens. */
#include "infer/sample.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 8, DRAWS = 4000 };
static const float logits[N] = {0.5f, 2.0f, -1.0f, 3.0f, 0.0f, -4.0f, 1.0f, 2.5f};

/* How often each token comes. */
static void histogram(km_sampling s, int count[N]) {
    km_candidate room[N];
    for (int i = 0; i < N; i++) count[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = km_sampling_draw(&s, logits, N, (uint64_t)i, room);
        assert_in_range(id, 0, N - 1);
        count[id]++;
    }
}

/* Frequencies of the tokens in `left` are as their softmax, and the others never come. */
static void expect(km_sampling s, const int *left, int n) {
    int count[N];
    double p[N] = {0}, total = 0;
    for (int i = 0; i < n; i++) total += p[left[i]] = exp(logits[left[i]] / s.temperature);
    histogram(s, count);
    for (int i = 0; i < N; i++) {
        double want = p[i] / total;
        if (want == 0) assert_int_equal(count[i], 0);
        assert_true(fabs(count[i] - DRAWS * want) <= 5 * sqrt(DRAWS * want * (1 - want)) + 1e-9);
    }
}

static void tokens_come_as_often_as_their_probability(void **state) {
    (void)state;
    int all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    km_sampling s = km_sampling_defaults();
    expect(s, all, N);
    s.temperature = 0.5;
    expect(s, all, N);
    s.temperature = 3;
    s.seed = 9;
    expect(s, all, N);
}

static void each_setting_leaves_out_what_it_says(void **state) {
    (void)state;
    km_sampling s = km_sampling_defaults();
    s.top_k = 3;
    expect(s, (int[]){3, 7, 1}, 3);
    s.top_k = 100;
    expect(s, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, N);
    s.top_k = 0;
    s.top_p = 0.72; /* 3: 0.442, 7: 0.268, 1: 0.163 */
    expect(s, (int[]){3, 7, 1}, 3);
    s.top_p = 0.70;
    expect(s, (int[]){3, 7}, 2);
    s.top_p = 1e-9;
    expect(s, (int[]){3}, 1);
    s.top_p = 1;
    s.min_p = 0.3; /* exp(-1) = 0.37 passes, exp(-2) does not */
    expect(s, (int[]){3, 7, 1}, 3);
    s.min_p = 1;
    expect(s, (int[]){3}, 1);
    s = (km_sampling){.temperature = 1, .top_k = 2, .top_p = 0.65, .seed = 4};
    expect(s, (int[]){3, 7}, 2); /* of those two, 3 has 0.62 */
    s.top_p = 0.6;
    expect(s, (int[]){3}, 1);
}

static void without_temperature_the_likeliest_is_taken(void **state) {
    (void)state;
    km_candidate room[N];
    km_sampling s = {.temperature = 0, .top_p = 1};
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(km_sampling_draw(&s, logits, N, i, room), 3);
    float equal[3] = {1, 1, 1};
    assert_int_equal(km_sampling_draw(&s, equal, 3, 0, room), 0);
}

static void the_seed_and_the_draw_decide(void **state) {
    (void)state;
    km_candidate room[N];
    km_sampling a = km_sampling_defaults(), b = a;
    b.seed = 2;
    int differ = 0, vary = 0;
    for (uint64_t i = 0; i < 64; i++) {
        int32_t x = km_sampling_draw(&a, logits, N, i, room);
        assert_int_equal(x, km_sampling_draw(&a, logits, N, i, room));
        differ += x != km_sampling_draw(&b, logits, N, i, room);
        vary += x != km_sampling_draw(&a, logits, N, i + 1, room);
    }
    assert_true(differ > 10 && vary > 10);
}

static void odd_logits_never_give_an_odd_token(void **state) {
    (void)state;
    km_candidate room[N];
    km_sampling s = km_sampling_defaults();
    float none[3] = {NAN, NAN, NAN}, one[3] = {NAN, -1e30f, NAN}, sure[3] = {0, INFINITY, NAN};
    float ruled_out[3] = {-INFINITY, 0, -INFINITY}, all_out[2] = {-INFINITY, -INFINITY};
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(km_sampling_draw(&s, none, 3, i, room), -1);
        assert_int_equal(km_sampling_draw(&s, one, 3, i, room), 1);
        assert_int_equal(km_sampling_draw(&s, sure, 3, i, room), 1);
        assert_int_equal(km_sampling_draw(&s, ruled_out, 3, i, room), 1);
        assert_int_equal(km_sampling_draw(&s, all_out, 2, i, room), 0);
    }
}

/* A large vocabulary, where only a front is sorted: against sorting it all. */
static int by_logit(const void *a, const void *b) {
    const km_candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->id - y->id;
}

static void a_front_of_a_large_vocabulary_is_that_of_sorting_it(void **state) {
    (void)state;
    enum { V = 5000 };
    static float big[V];
    static km_candidate room[V], sorted[V];
    for (int trial = 0; trial < 30; trial++) {
        uint32_t x = 12345u + (uint32_t)trial;
        double total = 0;
        for (int i = 0; i < V; i++) {
            x = x * 1664525u + 1013904223u;
            big[i] =
                (float)(x >> 20) / (trial % 3 ? 900.0f : 100000.0f); /* many ties, flat or not */
            sorted[i] = (km_candidate){i, big[i], exp(big[i])};
            total += sorted[i].p;
        }
        qsort(sorted, V, sizeof *sorted, by_logit);
        int64_t k = 1 + trial * 37 % 900;
        double p = trial % 2 ? 0.9 : 0.3, sum = 0, kept = 0;
        bool use_k = trial % 5 == 0;
        for (int i = 0; i < V && use_k; i++) kept += i < k ? sorted[i].p : 0;
        if (!use_k) kept = total;
        int left = 0;
        while (sum < p * kept) sum += sorted[left++].p;
        km_sampling s = {.temperature = 1, .top_k = use_k ? k : 0, .top_p = p, .seed = 3};
        for (uint64_t i = 0; i < 20; i++) {
            int32_t id = km_sampling_draw(&s, big, V, i, room);
            bool inside = false;
            for (int j = 0; j <= left && j < V; j++) inside |= sorted[j].id == id;
            assert_true(inside);
        }
    }
}

static void senseless_settings_are_named(void **state) {
    (void)state;
    static const struct {
        km_sampling s;
        const char *text;
    } bad[] = {
        {{.temperature = -1, .top_p = 1}, "the temperature is -1 and must be in 0 .. 100"},
        {{.temperature = NAN, .top_p = 1}, "the temperature is nan and must be in 0 .. 100"},
        {{.temperature = 1, .top_k = -2, .top_p = 1}, "top-k is -2 and must not be negative"},
        {{.temperature = 1, .top_p = 0}, "top-p is 0 and must be above 0 and at most 1"},
        {{.temperature = 1, .top_p = 1, .min_p = 1.5}, "min-p is 1.5 and must be in 0 .. 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        km_error err = {0};
        assert_int_equal(km_sampling_check(&bad[i].s, &err), KM_ERR_RANGE);
        assert_string_equal(err.text, bad[i].text);
    }
    km_sampling fine = km_sampling_defaults();
    assert_int_equal(km_sampling_check(&fine, NULL), KM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_come_as_often_as_their_probability),
        cmocka_unit_test(each_setting_leaves_out_what_it_says),
        cmocka_unit_test(without_temperature_the_likeliest_is_taken),
        cmocka_unit_test(the_seed_and_the_draw_decide),
        cmocka_unit_test(odd_logits_never_give_an_odd_token),
        cmocka_unit_test(a_front_of_a_large_vocabulary_is_that_of_sorting_it),
        cmocka_unit_test(senseless_settings_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
