/* Sampling: each setting against a plain statement of its formula, in doubles and with whole sorts;
 * frequencies are the probabilities; and the same seed gives the same tokens. */
#include "base/alloc.h"
#include "infer/sample.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 8, DRAWS = 4000, MOST = 5000 };
static const float logits[N] = {0.5f, 2.0f, -1.0f, 3.0f, 0.0f, -4.0f, 1.0f, 2.5f};

static uint32_t state_of_chance = 1;
static uint32_t next_chance(void) {
    state_of_chance = state_of_chance * 1664525u + 1013904223u;
    return state_of_chance >> 8;
}
static double unit(void) { return next_chance() * 0x1p-24; }

/* ---- The formulas, plainly ---- */

typedef struct one {
    int id;
    double x, p, key;
} one;

typedef struct plain {
    one left[MOST];
    int n;
    bool close; /* a cut falls where rounding could decide */
} plain;

static int by_key(const void *a, const void *b) {
    const one *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->id - y->id;
}

static void softmax(plain *w) {
    double total = 0, top = -INFINITY;
    for (int i = 0; i < w->n; i++) top = fmax(top, w->left[i].x);
    for (int i = 0; i < w->n; i++) total += w->left[i].p = exp(w->left[i].x - top);
    for (int i = 0; i < w->n; i++) w->left[i].p /= total;
}

/* The shortest front by key that reaches the share. */
static void front(plain *w, double share) {
    qsort(w->left, (size_t)w->n, sizeof *w->left, by_key);
    double sum = 0;
    int n = 0;
    while (n < w->n && sum < share) {
        sum += w->left[n++].p;
        if (fabs(sum - share) < 1e-5) w->close = true;
        if (n < w->n && sum > share - 1e-3 && w->left[n].key != w->left[n - 1].key &&
            fabs(w->left[n].key - w->left[n - 1].key) < 1e-5)
            w->close = true;
    }
    w->n = n;
}

static bool has(const uint64_t *bits, int id) { return bits && (bits[id / 64] >> (id % 64) & 1); }

/* The longest l for which the last l tokens, then `id`, were said before; none of the l breaks. */
static int repetition(const int32_t *said, int n, int id, const uint64_t *breaks) {
    int longest = 0;
    for (int at = 0; at < n; at++) {
        if (said[at] != id) continue;
        int l = 0;
        while (l < at && l < n && said[at - 1 - l] == said[n - 1 - l] &&
               !has(breaks, said[n - 1 - l]))
            l++;
        if (l > longest) longest = l;
    }
    return longest;
}

static void penalise(const km_sampling *s, double *x, int n, const int32_t *said, int n_said,
                     const uint64_t *breaks) {
    int last = s->repeat_last < 0 || s->repeat_last > n_said ? n_said : (int)s->repeat_last;
    for (size_t i = 0; i < s->n_bias; i++) x[s->bias[i].id] += s->bias[i].add;
    for (int id = 0; id < n; id++) {
        int count = 0;
        for (int i = n_said - last; i < n_said; i++) count += said[i] == id;
        if (count == 0) continue;
        if (s->repeat_penalty > 0)
            x[id] = x[id] > 0 ? x[id] / s->repeat_penalty : x[id] * s->repeat_penalty;
        x[id] -= count * s->frequency_penalty + s->presence_penalty;
    }
    for (int id = 0; id < n && s->dry_multiplier > 0; id++) {
        int l = repetition(said, n_said, id, breaks);
        if (l > 0 && l >= s->dry_allowed_length && !has(breaks, id))
            x[id] -= s->dry_multiplier * pow(s->dry_base, (double)(l - s->dry_allowed_length));
    }
}

/* Who is left, and how likely. */
static void state_plainly(plain *w, const km_sampling *s, const float *given, int n,
                          const int32_t *said, int n_said, const uint64_t *breaks,
                          const uint64_t *mask, double mu) {
    static double x[MOST];
    for (int i = 0; i < n; i++) x[i] = given[i];
    penalise(s, x, n, said, n_said, breaks);
    w->n = 0;
    w->close = false;
    for (int i = 0; i < n; i++)
        if (!mask || has(mask, i)) w->left[w->n++] = (one){i, x[i] / s->temperature, 0, 0};
    softmax(w);
    if (s->mirostat) {
        int m = 0;
        double most = 0;
        for (int i = 0; i < w->n; i++) most = fmax(most, w->left[i].p);
        for (int i = 0; i < w->n; i++) {
            double surprise = -log2(w->left[i].p);
            if (fabs(surprise - mu) < 1e-4) w->close = true;
            if (surprise <= mu || w->left[i].p == most) w->left[m++] = w->left[i];
        }
        w->n = m;
        softmax(w);
        return;
    }
    for (int i = 0; i < w->n; i++) w->left[i].key = -w->left[i].x;
    qsort(w->left, (size_t)w->n, sizeof *w->left, by_key);
    if (s->top_k > 0 && s->top_k < w->n) w->n = (int)s->top_k;
    softmax(w);
    if (s->typical > 0 && s->typical < 1) {
        double h = 0;
        for (int i = 0; i < w->n; i++) h -= w->left[i].p * log(w->left[i].p);
        for (int i = 0; i < w->n; i++) w->left[i].key = fabs(-log(w->left[i].p) - h);
        front(w, s->typical);
        softmax(w);
    }
    for (int i = 0; i < w->n; i++) w->left[i].key = -w->left[i].x;
    if (s->top_p < 1) front(w, s->top_p);
    double most = 0;
    for (int i = 0; i < w->n; i++) most = fmax(most, w->left[i].p);
    int m = 0;
    for (int i = 0; i < w->n; i++) {
        if (fabs(w->left[i].p / most - s->min_p) < 1e-5 * s->min_p) w->close = true;
        if (w->left[i].p >= s->min_p * most) w->left[m++] = w->left[i];
    }
    w->n = m;
    softmax(w);
}

/* The sampler's last choice was among the same tokens, as likely. */
static void same_odds(const km_sampler *s, const plain *w, int n) {
    static km_odds odds[MOST];
    static double p[MOST];
    int64_t left = km_sampler_odds(s, odds, MOST);
    assert_int_equal(left, w->n);
    for (int i = 0; i < n; i++) p[i] = -1;
    for (int i = 0; i < w->n; i++) p[w->left[i].id] = w->left[i].p;
    for (int i = 0; i < w->n; i++)
        if (!(fabs(odds[i].p - p[odds[i].id]) <= 1e-5 * fabs(p[odds[i].id]) + 1e-9)) {
            print_error("token %d: %.9g, not %.9g\n", (int)odds[i].id, odds[i].p, p[odds[i].id]);
            fail();
        }
}

static km_sampler *sampler(const km_sampling *s, int64_t n, const uint64_t *breaks) {
    km_error err = {0};
    km_sampler *made = km_sampler_new(s, n, breaks, &err);
    if (!made) print_error("%s\n", err.text);
    assert_non_null(made);
    return made;
}

static void random_logits(float *x, int n, int kind) {
    for (int i = 0; i < n; i++) {
        double normal = sqrt(-2 * log(unit() + 1e-9)) * cos(6.2831853 * unit());
        x[i] = (float)(kind == 0   ? 3 * normal                /* as a model's */
                       : kind == 1 ? 0.01 * normal             /* flat */
                       : kind == 2 ? floor(2 * normal) + 100.0 /* many ties */
                                   : 20 * normal - 50.0);      /* steep */
    }
}

static void every_setting_is_its_formula_at_any_size(void **state) {
    (void)state;
    static plain want;
    static float x[MOST];
    int compared = 0;
    for (int trial = 0; trial < 1500; trial++) {
        int n = trial % 50 == 0 ? MOST : 1 + (int)(next_chance() % 300);
        random_logits(x, n, trial % 4);
        km_sampling s = km_sampling_defaults();
        s.temperature = trial % 3 == 0 ? 1 : 0.1 + 2 * unit();
        s.seed = (uint64_t)trial;
        if (trial & 1) s.top_k = 1 + (int)(next_chance() % (unsigned)(n + 3));
        if (trial & 2) s.top_p = 0.02 + 0.97 * unit();
        if (trial & 4) s.min_p = unit() * unit();
        if (trial & 8) s.typical = 0.02 + 0.97 * unit();
        uint64_t mask[MOST / 64 + 1];
        for (int i = 0; i <= n / 64; i++)
            mask[i] = trial % 7 == 0 ? 0 : (uint64_t)next_chance() << 40 | next_chance();
        mask[n / 128] |= 1;
        const uint64_t *use = trial % 5 == 0 ? mask : NULL;
        state_plainly(&want, &s, x, n, NULL, 0, NULL, use, 0);
        km_sampler *got = sampler(&s, n, NULL);
        int32_t id = km_sampler_pick(got, x, use);
        bool inside = want.close;
        for (int i = 0; i < want.n; i++) inside |= want.left[i].id == id;
        assert_true(inside);
        if (!want.close) same_odds(got, &want, n), compared++;
        km_sampler_free(got);
    }
    assert_true(compared > 1200);
}

static void penalties_are_their_formulas(void **state) {
    (void)state;
    enum { V = 40, LENGTH = 120 };
    static plain want;
    float x[V];
    uint64_t breaks[1] = {1 << 3 | 1 << 7};
    km_logit_bias bias[] = {{5, 2.5f}, {9, -1.5f}, {5, 0.25f}};
    for (int trial = 0; trial < 300; trial++) {
        int32_t said[LENGTH];
        int n = (int)(next_chance() % LENGTH), period = 2 + trial % 9;
        for (int i = 0; i < n; i++)
            said[i] = i >= period && unit() < 0.8 ? said[i - period] : (int32_t)(next_chance() % V);
        random_logits(x, V, 0);
        km_sampling s = km_sampling_defaults();
        if (trial & 1) s.repeat_penalty = 0.5 + unit();
        if (trial & 2) s.frequency_penalty = unit() - 0.3;
        if (trial & 4) s.presence_penalty = unit() - 0.3;
        if (trial & 8) s.dry_multiplier = 0.2 + unit();
        if (trial & 16) s.bias = bias, s.n_bias = 3;
        s.dry_base = 1 + unit();
        s.dry_allowed_length = trial % 4;
        s.repeat_last = trial % 3 == 0 ? -1 : (int64_t)(next_chance() % 80);
        const uint64_t *use = trial % 5 ? breaks : NULL;
        km_sampler *got = sampler(&s, V, use);
        for (int i = 0; i < n; i++) /* told in pieces, the choices among them */
            assert_int_equal(km_sampler_see(got, &said[i], 1, NULL), KM_OK);
        for (int again = 0; again < 2; again++) {
            state_plainly(&want, &s, x, V, said, n, use, NULL, 0);
            km_sampler_pick(got, x, NULL);
            same_odds(got, &want, V);
        }
        km_sampler_reset(got);
        state_plainly(&want, &s, x, V, NULL, 0, use, NULL, 0);
        km_sampler_pick(got, x, NULL);
        same_odds(got, &want, V);
        km_sampler_free(got);
    }
}

static void a_long_history_keeps_to_its_window(void **state) {
    (void)state;
    km_sampling s = km_sampling_defaults();
    s.presence_penalty = 5;
    s.repeat_last = 3;
    km_sampler *got = sampler(&s, N, NULL);
    for (int i = 0; i < 3000000; i++) /* more than is kept */
        km_sampler_see(got, &(int32_t){i % N}, 1, NULL);
    static plain want;
    int32_t last[3] = {(3000000 - 3) % N, (3000000 - 2) % N, (3000000 - 1) % N};
    state_plainly(&want, &s, logits, N, last, 3, NULL, NULL, 0);
    km_sampler_pick(got, logits, NULL);
    same_odds(got, &want, N);
    km_sampler_free(got);
}

static void mirostat_steers_surprise_to_tau(void **state) {
    (void)state;
    enum { V = 400 };
    static plain want;
    float x[V];
    for (int trial = 0; trial < 12; trial++) {
        km_sampling s = km_sampling_defaults();
        s.mirostat = 2;
        s.mirostat_tau = 1 + trial % 4;
        s.mirostat_eta = 0.2;
        s.temperature = 0.7 + 0.1 * trial;
        s.seed = (uint64_t)trial;
        s.top_k = 1; /* has no say here */
        km_sampler *got = sampler(&s, V, NULL);
        double mu = 2 * s.mirostat_tau, mean = 0;
        const int steps = 600;
        for (int i = 0; i < steps; i++) {
            random_logits(x, V, 0);
            state_plainly(&want, &s, x, V, NULL, 0, NULL, NULL, mu);
            int32_t id = km_sampler_pick(got, x, NULL);
            static km_odds odds[V];
            int64_t left = km_sampler_odds(got, odds, V);
            if (!want.close) same_odds(got, &want, V);
            double surprise = NAN;
            for (int j = 0; j < left; j++)
                if (odds[j].id == id) surprise = -log2(odds[j].p);
            mu -= s.mirostat_eta * (surprise - s.mirostat_tau);
            mean += surprise / steps;
        }
        if (s.mirostat_tau <= 3) assert_true(fabs(mean - s.mirostat_tau) < 0.3);
        km_sampler_free(got);
    }
}

/* ---- Draws ---- */

/* How often each token comes. */
static void histogram(km_sampling s, int count[N]) {
    km_sampler *got = sampler(&s, N, NULL);
    for (int i = 0; i < N; i++) count[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = km_sampler_pick(got, logits, NULL);
        assert_in_range(id, 0, N - 1);
        count[id]++;
    }
    km_sampler_free(got);
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
    s.min_p = 0;
    s.typical = 0.2; /* -ln p of 7 is 1.32 and the entropy 1.46 */
    expect(s, (int[]){7}, 1);
    s = km_sampling_defaults();
    s.top_k = 2, s.top_p = 0.65, s.seed = 4;
    expect(s, (int[]){3, 7}, 2); /* of those two, 3 has 0.62 */
    s.top_p = 0.6;
    expect(s, (int[]){3}, 1);
    s = km_sampling_defaults();
    km_logit_bias never = {3, -INFINITY};
    s.bias = &never, s.n_bias = 1, s.top_k = 1;
    expect(s, (int[]){7}, 1);
}

static void without_temperature_the_likeliest_is_taken(void **state) {
    (void)state;
    km_sampling s = {.temperature = 0, .top_p = 1};
    km_sampler *got = sampler(&s, N, NULL);
    uint64_t mask[1] = {1 << 1 | 1 << 5};
    for (int i = 0; i < 20; i++) assert_int_equal(km_sampler_pick(got, logits, NULL), 3);
    assert_int_equal(km_sampler_pick(got, logits, mask), 1);
    km_sampler_free(got);
    float equal[100];
    for (int i = 0; i < 100; i++) equal[i] = i < 30 ? 0 : 1;
    got = sampler(&s, 100, NULL);
    assert_int_equal(km_sampler_pick(got, equal, NULL), 30);
    assert_int_equal(km_likeliest(equal, 100), 30);
    km_sampler_free(got);
    s.repeat_penalty = 3;
    s.repeat_last = 1;
    got = sampler(&s, N, NULL);
    static const int32_t turns[] = {3, 7, 3};
    for (int i = 0; i < 3; i++) {
        int32_t id = km_sampler_pick(got, logits, NULL);
        assert_int_equal(id, turns[i]);
        km_sampler_see(got, &id, 1, NULL);
    }
    km_sampler_free(got);
}

static void the_seed_and_the_draw_decide(void **state) {
    (void)state;
    km_sampling a = km_sampling_defaults(), b = a;
    b.seed = 2;
    km_sampler *x = sampler(&a, N, NULL), *y = sampler(&a, N, NULL), *z = sampler(&b, N, NULL);
    int differ = 0, vary = 0;
    int32_t first[64], last = -1;
    for (int i = 0; i < 64; i++) {
        first[i] = km_sampler_pick(x, logits, NULL);
        assert_int_equal(first[i], km_sampler_pick(y, logits, NULL));
        differ += first[i] != km_sampler_pick(z, logits, NULL);
        vary += first[i] != last;
        last = first[i];
    }
    assert_true(differ > 10 && vary > 10);
    km_sampler_reset(x);
    for (int i = 0; i < 64; i++) assert_int_equal(km_sampler_pick(x, logits, NULL), first[i]);
    km_sampler_free(x);
    km_sampler_free(y);
    km_sampler_free(z);
}

static void odd_logits_never_give_an_odd_token(void **state) {
    (void)state;
    static const struct {
        float x[3];
        int32_t id;
    } cases[] = {
        {{NAN, NAN, NAN}, -1},          {{NAN, -1e30f, NAN}, 1},          {{0, INFINITY, NAN}, 1},
        {{-INFINITY, 0, -INFINITY}, 1}, {{-INFINITY, -INFINITY, NAN}, 0}, {{-3e38f, 3e38f, NAN}, 1},
    };
    for (int how = 0; how < 5; how++) {
        km_sampling s = km_sampling_defaults();
        if (how == 1) s.top_p = 0.9;
        if (how == 2) s.mirostat = 2;
        if (how == 3) s.top_k = 2, s.min_p = 0.1;
        if (how == 4) s.typical = 0.5, s.temperature = 0.01;
        km_sampler *got = sampler(&s, 3, NULL);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int k = 0; k < 10; k++)
                assert_int_equal(km_sampler_pick(got, cases[i].x, NULL), cases[i].id);
        uint64_t last = 4; /* ruled out by the model, but the only one that may come */
        float out[3] = {0, 0, -INFINITY};
        assert_int_equal(km_sampler_pick(got, out, &last), 2);
        km_sampler_free(got);
    }
}

static void choosing_allocates_nothing(void **state) {
    (void)state;
    static float x[MOST];
    random_logits(x, MOST, 0);
    km_sampling s = km_sampling_defaults();
    s.top_p = 0.9, s.typical = 0.9, s.repeat_penalty = 1.1, s.dry_multiplier = 1;
    km_sampler *got = sampler(&s, MOST, NULL);
    uint64_t before = 0;
    for (int i = 0; i < 200; i++) {
        if (i == 1) before = km_alloc_count();
        int32_t id = km_sampler_pick(got, x, NULL);
        km_sampler_see(got, &id, 1, NULL);
    }
    assert_int_equal(km_alloc_count(), before);
    km_sampler_free(got);
}

static void senseless_settings_are_named(void **state) {
    (void)state;
    km_logit_bias nan = {1, NAN}, far = {9, 1};
    static const char *const text[] = {
        "the temperature is -1 and must be in 0 .. 100",
        "the temperature is nan and must be in 0 .. 100",
        "top-k is -2 and must not be negative",
        "top-p is 0 and must be above 0 and at most 1",
        "min-p is 1.5 and must be in 0 .. 1",
        "typical is -0.1 and must be in 0 .. 1",
        "the repeat penalty is -1 and must be in 0 .. 100",
        "repeat-last is -2 and must be -1 (all), 0 or a number of tokens",
        "the DRY base is 0.5 and must be in 1 .. 100",
        "mirostat is 1; there are 0 (off) and 2",
        "mirostat's tau is 0 and must be in 0.001 .. 100",
        "the bias of token 1 is nan, which is no number to add",
        "token 9, which a bias is for, is not in the vocabulary of 8",
    };
    for (int i = 0; i < 13; i++) {
        km_sampling s = km_sampling_defaults();
        if (i == 0) s.temperature = -1;
        if (i == 1) s.temperature = NAN;
        if (i == 2) s.top_k = -2;
        if (i == 3) s.top_p = 0;
        if (i == 4) s.min_p = 1.5;
        if (i == 5) s.typical = -0.1;
        if (i == 6) s.repeat_penalty = -1;
        if (i == 7) s.repeat_last = -2;
        if (i == 8) s.dry_multiplier = 1, s.dry_base = 0.5;
        if (i == 9) s.mirostat = 1;
        if (i == 10) s.mirostat = 2, s.mirostat_tau = 0;
        if (i == 11) s.bias = &nan, s.n_bias = 1;
        if (i == 12) s.bias = &far, s.n_bias = 1;
        km_error err = {0};
        assert_null(km_sampler_new(&s, N, NULL, &err));
        assert_int_equal(err.code, KM_ERR_RANGE);
        assert_string_equal(err.text, text[i]);
    }
    km_sampling fine = km_sampling_defaults();
    assert_int_equal(km_sampling_sound(&fine, NULL), KM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_is_its_formula_at_any_size),
        cmocka_unit_test(penalties_are_their_formulas),
        cmocka_unit_test(a_long_history_keeps_to_its_window),
        cmocka_unit_test(mirostat_steers_surprise_to_tau),
        cmocka_unit_test(tokens_come_as_often_as_their_probability),
        cmocka_unit_test(each_setting_leaves_out_what_it_says),
        cmocka_unit_test(without_temperature_the_likeliest_is_taken),
        cmocka_unit_test(the_seed_and_the_draw_decide),
        cmocka_unit_test(odd_logits_never_give_an_odd_token),
        cmocka_unit_test(choosing_allocates_nothing),
        cmocka_unit_test(senseless_settings_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
