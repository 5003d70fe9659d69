/* Learning anchors: what comes out for data whose answer is known, for data at the edges, and that
 * annealing never ends above plain Lloyd. */
#include "support/engine.h"
#include "support/sanitized.h"
#include "vector/anchors.h"
#include <math.h>
#include <stdlib.h>

static uint64_t seed;

static float random_unit(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) * 0x1p-23f - 1;
}

/* Blobs of spread `wide` around `many` points; many 0: a grid of whole numbers, 10 a side. */
static float *data(int64_t n, int64_t d, int64_t many, float wide) {
    float *x = malloc(sizeof *x * (size_t)(n * d + 1));
    seed = 11;
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0, side = 1; e < d; e++, side = side < 1000000 ? side * 10 : side) {
            if (many)
                x[i * d + e] =
                    10 * (float)sin((double)((i % many + 1) * (e + 1))) + wide * random_unit();
            else
                x[i * d + e] = (float)(i / side % 10);
        }
    return x;
}

static double energy(km_ctx *ctx, const km_anchors *a, const float *x, int64_t n) {
    int32_t *id = malloc(sizeof *id * (size_t)n);
    float *dist = malloc(sizeof *dist * (size_t)n);
    assert_int_equal(km_anchors_assign(ctx, a, x, n, id, dist), KM_OK);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(id[i] >= 0 && id[i] < a->count);
        sum += (double)dist[i];
    }
    free(id);
    free(dist);
    return sum / (double)n;
}

static km_anchors learn(km_ctx *ctx, const float *x, int64_t n, int64_t d, km_anchor_options o) {
    km_anchors a;
    if (km_anchors_train(ctx, x, n, d, &o, NULL, &a) != KM_OK) fail_msg("%s", km_ctx_error(ctx));
    assert_int_equal(a.dim, d);
    return a;
}

static void annealing_ends_no_higher_than_lloyd(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        int64_t n, d, blobs, k;
        float wide;
    } sets[] = {{1000, 2, 0, 16, 0},  {1000, 3, 0, 27, 0},    {2000, 8, 25, 25, 1},
                {2000, 8, 25, 40, 1}, {3000, 32, 12, 100, 4}, {1500, 64, 300, 60, 2},
                {900, 1, 5, 9, 3}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int64_t n = sets[i].n, d = sets[i].d;
        float *x = data(n, d, sets[i].blobs, sets[i].wide);
        km_anchors plain =
            learn(ctx, x, n, d,
                  (km_anchor_options){
                      .count = sets[i].k, .training.rounds = 16, .seed = i, .lloyd = true});
        km_anchors warm =
            learn(ctx, x, n, d,
                  (km_anchor_options){.count = sets[i].k, .training.rounds = 16, .seed = i});
        double a = energy(ctx, &warm, x, n), b = energy(ctx, &plain, x, n);
        if (a > b * (1 + 1e-5)) fail_msg("set %zu: annealed %g, Lloyd %g", i, a, b);
        assert_true(fabs(a - warm.energy) <=
                    0.02 * warm.energy + 1e-9); /* a round may still move */
        km_anchors_release(&plain);
        km_anchors_release(&warm);
        free(x);
    }
}

static void every_option_finds_blobs_that_lie_apart(void **state) {
    km_ctx *ctx = *state;
    enum { N = 1200, D = 6, K = 12 };
    float *x = data(N, D, K, 0.1f);
    for (int how = 0; how < 6; how++) {
        km_anchor_options o = {.count = K,
                               .training.rounds = 20,
                               .seed = 4,
                               .training.robust = (km_robust)(how % 3),
                               .training.momentum = how > 2 ? 0.3 : 0,
                               .training.maintain_every = how == 4 ? 3 : 0,
                               .training.temperature = how == 5 ? 0.9 : 0};
        km_anchors a = learn(ctx, x, N, D, o);
        assert_int_equal(a.count, K);
        if (energy(ctx, &a, x, N) > 0.1) fail_msg("option %d: energy %g", how, a.energy);
        km_anchors_release(&a);
    }
    free(x);
}

static void duplicates_leave_one_anchor_each(void **state) {
    km_ctx *ctx = *state;
    float *x = data(600, 5, 20, 0);
    km_anchors a = learn(ctx, x, 600, 5, (km_anchor_options){.count = 64, .seed = 2});
    assert_int_equal(a.count, 20);
    assert_true(energy(ctx, &a, x, 600) < 1e-9);
    km_anchors_release(&a);
    for (int i = 0; i < 600 * 5; i++) x[i] = 7;
    a = learn(ctx, x, 600, 5, (km_anchor_options){.count = 9});
    assert_int_equal(a.count, 1);
    assert_true(energy(ctx, &a, x, 600) == 0);
    km_anchors_release(&a);
    free(x);
}

static void the_edges_of_sizes_work(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        int64_t n, d, k;
    } sets[] = {{1, 1, 1},     {1, 5, 10},  {3, 2, 8}, {50, 1, 7},
                {20, 4096, 5}, {100, 3, 1}, {7, 2, 7}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int64_t n = sets[i].n, d = sets[i].d, most = n < sets[i].k ? n : sets[i].k;
        float *x = data(n, d, n, 1), *c = malloc(sizeof *c * (size_t)(most * d));
        for (int lloyd = 0; lloyd < 2; lloyd++) {
            km_anchors a =
                learn(ctx, x, n, d, (km_anchor_options){.count = sets[i].k, .lloyd = lloyd});
            assert_true(a.count >= 1 && a.count <= most && a.rounds >= 1);
            assert_int_equal(km_anchors_read(ctx, &a, c), KM_OK);
            for (int64_t e = 0; e < a.count * d; e++) assert_true(isfinite(c[e]));
            if (n <= sets[i].k) assert_true(energy(ctx, &a, x, n) < 1e-6);
            km_anchors_release(&a);
        }
        free(x);
        free(c);
    }
    km_anchors a;
    assert_int_equal(km_anchors_train(ctx, NULL, 0, 3, NULL, NULL, &a), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
}

static void one_anchor_ends_at_the_mean(void **state) {
    km_ctx *ctx = *state;
    enum { N = 777, D = 10 };
    float *x = data(N, D, 9, 3), c[D];
    km_anchors a = learn(ctx, x, N, D, (km_anchor_options){.count = 1});
    assert_int_equal(km_anchors_read(ctx, &a, c), KM_OK);
    for (int e = 0; e < D; e++) {
        double mean = 0;
        for (int i = 0; i < N; i++) mean += (double)x[i * D + e] / N;
        assert_true(fabs((double)c[e] - mean) < 1e-4);
    }
    km_anchors_release(&a);
    free(x);
}

static void cosine_anchors_have_length_one(void **state) {
    km_ctx *ctx = *state;
    enum { N = 900, D = 12, K = 30 };
    float *x = data(N, D, 40, 2), *y = malloc(sizeof *y * N * D), c[K * D];
    for (int i = 0; i < N * D; i++) y[i] = x[i] * (float)(1 + i / D % 5); /* the same directions */
    km_anchors a = learn(ctx, x, N, D, (km_anchor_options){.count = K, .metric = KM_METRIC_COSINE});
    km_anchors b = learn(ctx, y, N, D, (km_anchor_options){.count = K, .metric = KM_METRIC_COSINE});
    assert_int_equal(km_anchors_read(ctx, &a, c), KM_OK);
    for (int64_t j = 0; j < a.count; j++) {
        double s = 0;
        for (int e = 0; e < D; e++) s += (double)c[j * D + e] * (double)c[j * D + e];
        assert_true(fabs(s - 1) < 1e-4);
    }
    double first = energy(ctx, &a, x, N), second = energy(ctx, &b, y, N);
    assert_true(fabs(first - second) < 0.02 * first && first < 1);
    km_anchors_release(&a);
    km_anchors_release(&b);
    free(x);
    free(y);
}

static void the_same_seed_gives_the_same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    enum { N = SANITIZED ? 1000 : 4000, D = 24, K = SANITIZED ? 30 : 70 };
    static float c[3][K * D];
    float *x = data(N, D, 50, 3);
    int64_t count[3];
    for (int i = 0; i < 3; i++) {
        km_ctx *ctx = km_ctx_new("cpu", i + 1);
        km_anchors a =
            learn(ctx, x, N, D, (km_anchor_options){.count = K, .training.rounds = 10, .seed = 8});
        count[i] = a.count;
        assert_int_equal(km_anchors_read(ctx, &a, c[i]), KM_OK);
        km_anchors_release(&a);
        km_ctx_free(ctx);
    }
    assert_true(count[0] == count[1] && count[1] == count[2]);
    assert_memory_equal(c[0], c[1], sizeof(float) * (size_t)(count[0] * D));
    assert_memory_equal(c[0], c[2], sizeof(float) * (size_t)(count[0] * D));
    free(x);
}

static void first_anchors_are_rows_that_differ(void **state) {
    km_ctx *ctx = *state;
    enum { N = 300, D = 4, K = 40 };
    float *x = data(N, D, 40, 0);
    int64_t pick[K + 5];
    int64_t got = km_seed_pick(ctx, x, N, D, K + 5, 3, pick);
    assert_int_equal(got, K);
    for (int i = 0; i < K; i++)
        for (int j = 0; j < i; j++) assert_int_not_equal(pick[i] % 40, pick[j] % 40);
    free(x);
}

static bool stop_at_three(void *user, int round, int rounds, double e) {
    (void)e;
    *(int *)user = round;
    return round < 3 && rounds == 12;
}

static void a_training_can_be_watched_and_stopped(void **state) {
    km_ctx *ctx = *state;
    enum { N = 3000, D = 60 };
    float *x = data(N, D, 70, 5);
    int seen = 0;
    km_anchors a = learn(ctx, x, N, D,
                         (km_anchor_options){.count = 50,
                                             .training.rounds = 12,
                                             .lloyd = true,
                                             .progress = stop_at_three,
                                             .user = &seen});
    assert_int_equal(seen, 3);
    assert_int_equal(a.rounds, 3);
    km_anchors_release(&a);
    free(x);
}

static void vectors_lent_piece_by_piece_give_the_same_anchors(void **state) {
    km_ctx *ctx = *state;
    enum { N = 1500, D = 12, K = 30 };
    float *x = data(N, D, 40, 2);
    for (int metric = 0; metric < 3; metric += 2) {
        km_anchor_options o = {
            .count = K, .training.rounds = 12, .seed = 3, .metric = (km_metric)metric};
        km_anchors whole = learn(ctx, x, N, D, o);
        static const int64_t sizes[] = {N, 700, 64};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            o.piece = sizes[i];
            km_anchors a = learn(ctx, x, N, D, o);
            assert_int_equal(a.count, whole.count);
            assert_true(fabs(a.energy - whole.energy) <= 1e-3 * whole.energy);
            km_anchors_release(&a);
        }
        km_anchors_release(&whole);
    }
    free(x);
}

typedef struct heard { /* of the rounds of a training */
    km_anchor_round last;
    double temperature[40];
    int64_t merged, split;
} heard;

static void hear(void *user, const km_anchor_round *r) {
    heard *h = user;
    assert_int_equal(r->round, h->last.round + 1);
    if (h->last.round && h->last.energy > 0)
        assert_true(fabs(r->energy / h->last.energy - 1 - r->change) < 1e-9);
    if (r->round <= 40) h->temperature[r->round - 1] = r->temperature;
    h->merged += r->merged;
    h->split += r->split;
    h->last = *r;
}

static void each_round_is_reported_and_cools_as_told(void **state) {
    km_ctx *ctx = *state;
    enum { N = 1200, D = 6, K = 12 };
    float *x = data(N, D, K, 0.1f);
    for (int exponential = 0; exponential < 2; exponential++) {
        heard h = {0};
        km_anchors a = learn(ctx, x, N, D,
                             (km_anchor_options){.count = K,
                                                 .seed = 4,
                                                 .training = {.rounds = 20,
                                                              .temperature = 0.8,
                                                              .cooling = exponential ? 0.5 : 0,
                                                              .report = hear,
                                                              .user = &h}});
        assert_int_equal(h.last.round, a.rounds);
        assert_int_equal(h.last.anchors, a.count);
        assert_true(h.last.energy == a.energy && h.last.converged && h.last.reassigned == 0);
        assert_true(h.merged == a.merged && h.split == a.split);
        for (int i = 0; i < 10; i++) {
            double wanted = exponential ? 0.8 * pow(0.5, i) : 0.8 * (1 - i / 10.0);
            assert_true(fabs(h.temperature[i] - wanted) < 1e-9);
        }
        assert_true(h.temperature[10] == 0);
        km_anchors_release(&a);
    }
    free(x);
}

static void what_is_merged_and_split_is_a_matter_of_thresholds(void **state) {
    km_ctx *ctx = *state;
    enum { N = 1200, D = 6, BLOBS = 12, K = 40 };
    float *x = data(N, D, BLOBS, 0.1f);
    const struct { double merge, split; } told[] = {{0, 0}, {1, 0}, {0, 1e9}};
    int64_t count[3], split[3];
    for (int i = 0; i < 3; i++) {
        km_anchor_training how = {.size = sizeof(km_anchor_training),
                                  .rounds = 16,
                                  .momentum = 0.1,
                                  .merge = told[i].merge,
                                  .split = told[i].split};
        km_anchors a =
            learn(ctx, x, N, D, (km_anchor_options){.count = K, .seed = 4, .training = how});
        count[i] = a.count;
        split[i] = a.split;
        km_anchors_release(&a);
    }
    if (count[0] != K) fail_msg("%d anchors without a threshold", (int)count[0]);
    if (count[1] >= K || count[1] < BLOBS) fail_msg("%d anchors when merged", (int)count[1]);
    if (split[2] >= split[0]) fail_msg("%d splits, %d", (int)split[2], (int)split[0]);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", annealing_ends_no_higher_than_lloyd),
        ON("cpu", every_option_finds_blobs_that_lie_apart),
        ON("cpu", duplicates_leave_one_anchor_each),
        ON_EACH(the_edges_of_sizes_work),
        ON("cpu", one_anchor_ends_at_the_mean),
        ON("cpu", cosine_anchors_have_length_one),
        cmocka_unit_test(the_same_seed_gives_the_same_bits_for_any_number_of_threads),
        ON("cpu", first_anchors_are_rows_that_differ),
        ON("cpu", a_training_can_be_watched_and_stopped),
        ON("cpu", vectors_lent_piece_by_piece_give_the_same_anchors),
        ON("cpu", each_round_is_reported_and_cools_as_told),
        ON("cpu", what_is_merged_and_split_is_a_matter_of_thresholds),
    };
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_bits_for_any_number_of_threads),
        ON("cpu", first_anchors_are_rows_that_differ),
    };
    return THREADS_SANITIZED ? cmocka_run_group_tests(shared, NULL, NULL)
                             : cmocka_run_group_tests(tests, NULL, NULL);
}
