/* Samples: a function of their number, each window once a pass, sources by their weights. */
#include "scratch.h"
#include "train/dataset.h"

enum { N = 1000, T = 16 };

/* Token i of part p is 1000 p + i, so that a sample shows where it comes from. */
static void fake_part(km_dataset_part *p, int number, int64_t train, int64_t val, double weight) {
    uint32_t *data = malloc((size_t)(train + val) * sizeof *data);
    for (int64_t i = 0; i < train + val; i++) data[i] = (uint32_t)(100000 * number + i);
    *p = (km_dataset_part){.tokens = {.data = data, .width = 4, .count = train + val},
                           .train = train,
                           .val = val,
                           .weight = weight};
}

static void shuffling_moves_every_number_to_its_own_place(void **state) {
    (void)state;
    for (int64_t n = 1; n < 70; n++) {
        bool seen[70] = {false};
        for (int64_t i = 0; i < n; i++) {
            int64_t k = km_shuffled(1, 2, n, i);
            assert_in_range(k, 0, n - 1);
            assert_false(seen[k]);
            seen[k] = true;
        }
    }
    int fixed = 0, same = 0;
    for (int64_t i = 0; i < 1000; i++) {
        fixed += km_shuffled(1, 2, 1000, i) == i;
        same += km_shuffled(1, 2, 1000, i) == km_shuffled(1, 3, 1000, i);
    }
    assert_true(fixed < 10 && same < 10);
    /* A text beyond 32 bits: in range, and no two of a few alike. */
    int64_t big = INT64_C(1) << 40, a = km_shuffled(5, 6, big, 0), b = km_shuffled(5, 6, big, 1);
    assert_true(a >= 0 && a < big && b >= 0 && b < big && a != b);
}

static void a_pass_takes_each_window_once(void **state) {
    (void)state;
    km_dataset_part part;
    fake_part(&part, 0, N, 100, 1);
    km_dataset d = {.parts = &part, .n = 1};
    km_window_sampler s = {.data = &d, .seed = 3, .context = T};
    int windows = (N - 1) / T - 1;
    int32_t ids[T], targets[T];
    int first_phase = -1, phases = 0;
    for (int pass = 0; pass < 8; pass++) {
        bool seen[N] = {false};
        int phase = -1;
        for (int i = 0; i < windows; i++) {
            km_window_sampler_train(&s, pass * windows + i, ids, targets);
            assert_in_range(ids[0], 0, N - T - 1);
            if (phase < 0) phase = ids[0] % T;
            assert_int_equal(ids[0] % T, phase);
            assert_false(seen[ids[0]]);
            seen[ids[0]] = true;
            for (int k = 0; k < T; k++) {
                assert_int_equal(ids[k], ids[0] + k);
                assert_int_equal(targets[k], ids[k] + 1);
            }
        }
        phases += phase != first_phase;
        first_phase = phase;
    }
    assert_true(phases > 4); /* a new one in nearly every pass */
    free((void *)(uintptr_t)part.tokens.data);
}

static void the_shortest_text_that_fits_gives_one_window(void **state) {
    (void)state;
    km_dataset_part part;
    fake_part(&part, 0, T + 1, 0, 1);
    km_dataset d = {.parts = &part, .n = 1};
    km_window_sampler s = {.data = &d, .seed = 3, .context = T};
    int32_t ids[T], targets[T];
    for (int k = 0; k < 20; k++) {
        km_window_sampler_train(&s, k, ids, targets);
        assert_int_equal(ids[0], 0);
        assert_int_equal(targets[T - 1], T);
    }
    assert_int_equal(km_window_sampler_val_count(&s), 0);
    free((void *)(uintptr_t)part.tokens.data);
}

static void sources_get_the_shares_of_their_weights(void **state) {
    (void)state;
    km_dataset_part parts[3];
    fake_part(&parts[0], 0, N, 100, 0.7);
    fake_part(&parts[1], 1, 500, 100, 0.299);
    fake_part(&parts[2], 2, 200, 100, 0.001);
    km_dataset d = {.parts = parts, .n = 3};
    km_window_sampler s = {.data = &d, .seed = 3, .context = T};
    int32_t ids[T], targets[T], count[3] = {0}, early[3] = {0};
    for (int k = 0; k < 20480; k++) {
        km_window_sampler_train(&s, k, ids, targets);
        count[ids[0] / 100000]++;
        if (k < 100) early[ids[0] / 100000]++;
    }
    assert_in_range(count[0], 14330, 14342); /* 14336 */
    assert_in_range(count[1], 6118, 6128);   /* 6123.5 */
    assert_in_range(count[2], 18, 22);       /* 20.5 */
    assert_in_range(early[1], 10, 60);       /* mixed, not one after the other */
    for (int i = 0; i < 3; i++) free((void *)(uintptr_t)parts[i].tokens.data);
}

static void another_seed_gives_another_order(void **state) {
    (void)state;
    km_dataset_part part;
    fake_part(&part, 0, N, 0, 1);
    km_dataset d = {.parts = &part, .n = 1};
    km_window_sampler a = {.data = &d, .seed = 3, .context = T}, b = a;
    b.seed = 4;
    int32_t x[T], y[T], again[T], targets[T];
    int same = 0;
    for (int k = 0; k < 50; k++) {
        km_window_sampler_train(&a, k, x, targets);
        km_window_sampler_train(&b, k, y, targets);
        km_window_sampler_train(&a, k, again, targets);
        same += x[0] == y[0];
        assert_int_equal(x[0], again[0]);
    }
    assert_true(same < 10);
    free((void *)(uintptr_t)part.tokens.data);
}

static void validation_windows_cover_the_end_and_pad_what_is_short(void **state) {
    (void)state;
    km_dataset_part parts[2];
    fake_part(&parts[0], 0, N, 3 * T + 5, 0.5);
    fake_part(&parts[1], 1, N, 6, 0.5);
    km_dataset d = {.parts = parts, .n = 2};
    km_window_sampler s = {.data = &d, .seed = 3, .context = T};
    int32_t ids[T], targets[T];
    assert_int_equal(km_window_sampler_val_count(&s), 4);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(km_window_sampler_val(&s, i, -100, ids, targets), T);
        assert_int_equal(ids[0], N + i * T);
        assert_int_equal(targets[T - 1], N + (i + 1) * T);
    }
    assert_int_equal(km_window_sampler_val(&s, 3, -100, ids, targets), 5);
    assert_int_equal(ids[0], 100000 + N);
    assert_int_equal(targets[4], 100000 + N + 5);
    assert_int_equal(targets[5], -100);
    assert_int_equal(ids[5], 0);
    assert_int_equal(km_window_sampler_val(&s, 4, -100, ids, targets), 0);
    assert_int_equal(targets[0], -100);
    for (int i = 0; i < 2; i++) free((void *)(uintptr_t)parts[i].tokens.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffling_moves_every_number_to_its_own_place),
        cmocka_unit_test(a_pass_takes_each_window_once),
        cmocka_unit_test(the_shortest_text_that_fits_gives_one_window),
        cmocka_unit_test(sources_get_the_shares_of_their_weights),
        cmocka_unit_test(another_seed_gives_another_order),
        cmocka_unit_test(validation_windows_cover_the_end_and_pad_what_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
