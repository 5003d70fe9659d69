/* Nearest centres and sums of cells on a real GPU, beside the CPU: the same answers for data that f16
 * serves well and for data that it does not, the same bits every time, and whole trainings that agree.
 * Skipped where there is no GPU. */
#include "live_gpu.h"
#include "ops/nearest.h"
#include "vector/anchors.h"

static uint64_t state_of_random = 1;

static float normal(void) {
    float v = 0;
    for (int k = 0; k < 4; k++) {
        state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
        v += (float)(state_of_random >> 40) * 0x1p-24f - 0.5f;
    }
    return v * 1.732f;
}

typedef enum kind { PLAIN, FAR, CLUSTERS, WHOLE, SPREAD, TINY, KINDS } kind;

static float *rows_of(kind how, int64_t n, int64_t d) {
    float *x = malloc(sizeof *x * (size_t)(n * d));
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0; e < d; e++) {
            float v = normal();
            if (how == FAR) v += 1000;
            if (how == CLUSTERS) v = v * 0.01f + (float)((i % 7) * (e % 5));
            if (how == WHOLE) v = v < -0.3f ? -1.0f : v < 0.3f ? 0.0f : 1.0f;
            if (how == SPREAD) v *= powf(10, (float)(i % 9) - 4);
            if (how == TINY) v *= 1e-20f;
            x[i * d + e] = v;
        }
    return x;
}

typedef struct answer {
    int32_t *id;
    float *dist, *sum, *count, *spread;
} answer;

static void forget(answer *a) {
    free(a->id);
    free(a->dist);
    free(a->sum);
    free(a->count);
    free(a->spread);
}

static answer ask(const char *device, const float *x, const float *c, int64_t n, int64_t d,
                  int64_t k, bool quick) {
    km_ctx *ctx = km_ctx_new(device, 0);
    assert_non_null(ctx);
    km_tensor *tx = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(n, d), x));
    km_tensor *tc = km_from_data(ctx, KM_F32, KM_SHAPE(k, d), c), *id, *dist;
    km_tensor *work = km_nearest_work(ctx, tx);
    km_cell_sums_result r;
    answer a = {malloc(sizeof(int32_t) * (size_t)n), malloc(sizeof(float) * (size_t)n),
                malloc(sizeof(float) * (size_t)(k * d)), malloc(sizeof(float) * (size_t)k),
                malloc(sizeof(float) * (size_t)k)};
    km_nearest_of(ctx, tx, tc, work, true, quick, &id, &dist);
    km_nearest_of(ctx, tx, tc, work, false, quick, &id, &dist);
    km_cell_sums(ctx, tx, id, NULL, dist, k, &r);
    km_read(ctx, id, a.id, sizeof(int32_t) * (size_t)n);
    km_read(ctx, dist, a.dist, sizeof(float) * (size_t)n);
    km_read(ctx, r.sum, a.sum, sizeof(float) * (size_t)(k * d));
    km_read(ctx, r.count, a.count, sizeof(float) * (size_t)k);
    km_read(ctx, r.spread, a.spread, sizeof(float) * (size_t)k);
    assert_ok(ctx);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_release(tx);
    km_release(work);
    km_ctx_free(ctx);
    return a;
}

static double between(const float *x, const float *c, int64_t d) {
    double s = 0;
    for (int64_t e = 0; e < d; e++)
        s += ((double)x[e] - (double)c[e]) * ((double)x[e] - (double)c[e]);
    return s;
}

static void compare(kind how, int64_t n, int64_t d, int64_t k) {
    float *x = rows_of(how, n, d), *c = malloc(sizeof *c * (size_t)(k * d));
    memcpy(c, x, sizeof *c * (size_t)(k * d));
    for (int64_t i = 0; i < k * d && how != WHOLE; i++) c[i] += 0.1f * x[n * d - 1 - i];
    answer cpu = ask("cpu", x, c, n, d, k, false), gpu = ask(GPU, x, c, n, d, k, false);
    answer quick = ask(GPU, x, c, n, d, k, true), again = ask(GPU, x, c, n, d, k, true);
    int64_t ties = 0;
    double energy = 0, quick_energy = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = between(x + i * d, c + cpu.id[i] * d, d);
        assert_true(gpu.id[i] >= 0 && gpu.id[i] < k);
        if (gpu.id[i] != cpu.id[i]) { /* then both are as near as f32 can tell */
            double got = between(x + i * d, c + gpu.id[i] * d, d);
            if (fabs(got - want) > 1e-5 * fmax(got, want))
                fail_msg("kind %d (%lld, %lld, %lld): row %lld at %g from %d, %g from %d", how,
                         (long long)n, (long long)d, (long long)k, (long long)i, want, cpu.id[i],
                         got, gpu.id[i]);
            ties++;
        }
        assert_int_equal(gpu.id[i], quick.id[i]);
        if (fabs((double)gpu.dist[i] - want) > 1e-4 * want + 1e-30)
            fail_msg("kind %d: distance %g, not %g", how, (double)gpu.dist[i], want);
        energy += want;
        quick_energy += (double)quick.dist[i];
    }
    if (ties > n / 200 + 1 && how != WHOLE) fail_msg("kind %d: %lld ties", how, (long long)ties);
    /* Quick distances come from f16 products: few columns do not even out their errors, and rows
     * 10^8 apart in size share one scale. */
    double may = d > 16 ? 1e-3 : 5e-3;
    if (how != TINY && how != SPREAD && fabs(energy - quick_energy) > may * energy)
        fail_msg("kind %d (%lld, %lld, %lld): energy %g, quickly %g", how, (long long)n,
                 (long long)d, (long long)k, energy, quick_energy);
    assert_memory_equal(quick.id, again.id, sizeof(int32_t) * (size_t)n);
    assert_memory_equal(quick.sum, again.sum, sizeof(float) * (size_t)(k * d));
    assert_memory_equal(quick.spread, again.spread, sizeof(float) * (size_t)k);
    double total = 0;
    for (int64_t j = 0; j < k; j++) total += (double)gpu.count[j];
    assert_true(total == (double)n);
    answer *all[] = {&cpu, &gpu, &quick, &again};
    for (int i = 0; i < 4; i++) forget(all[i]);
    free(x);
    free(c);
}

static void the_gpu_finds_what_the_cpu_finds(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {
        {10000, 128, 256}, {3001, 64, 300}, {2500, 200, 513}, {2000, 768, 1000}, {1000, 100, 77},
        {1500, 3, 20},     {700, 1, 5},     {300, 1537, 130}, {129, 256, 257},   {5000, 300, 4100}};
    for (int how = 0; how < KINDS; how++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int64_t n = sizes[i][0] > sizes[i][2] ? sizes[i][0] : sizes[i][2];
            compare((kind)how, n, sizes[i][1], sizes[i][2]);
        }
}

static void rows_that_are_not_numbers_harm_no_others(void **state) {
    (void)state;
    enum { N = 500, D = 40, K = 30 };
    float *x = rows_of(PLAIN, N, D), c[K * D];
    memcpy(c, x, sizeof c);
    answer clean = ask(GPU, x, c, N, D, K, false);
    x[100 * D + 3] = NAN;
    x[200 * D + 5] = INFINITY;
    x[300 * D + 7] = 1e30f;
    answer dirty = ask(GPU, x, c, N, D, K, false);
    for (int i = 0; i < N; i++) {
        assert_true(dirty.id[i] >= 0 && dirty.id[i] < K);
        if (i % 100 || i == 0 || i == 400) assert_int_equal(dirty.id[i], clean.id[i]);
    }
    forget(&clean);
    forget(&dirty);
    free(x);
}

static void trainings_end_at_the_same_energy(void **state) {
    (void)state;
    enum { N = 20000, D = 96, K = 200 };
    float *x = rows_of(PLAIN, N, D);
    double energy[2];
    for (int i = 0; i < 3;
         i++) /* the CPU, the GPU, and the GPU with vectors that are lent in pieces */
        for (int lloyd = 0; lloyd < 2; lloyd++) {
            km_ctx *ctx = km_ctx_new(i ? GPU : "cpu", 0);
            km_anchors a;
            km_anchor_options o = {.count = K,
                                   .training.rounds = 12,
                                   .seed = 3,
                                   .lloyd = lloyd,
                                   .piece = i == 2 ? 3000 : 0};
            assert_int_equal(km_anchors_train(ctx, x, N, D, &o, NULL, &a), KM_OK);
            float *dist = malloc(sizeof *dist * N);
            int32_t *id = malloc(sizeof *id * N);
            assert_int_equal(km_anchors_assign(ctx, &a, x, N, id, dist), KM_OK);
            double sum = 0;
            for (int r = 0; r < N; r++) sum += (double)dist[r];
            if (i == 0)
                energy[lloyd] = sum;
            else if (fabs(sum - energy[lloyd]) > 1e-3 * sum)
                fail_msg("energy %g on the GPU, %g on the CPU", sum, energy[lloyd]);
            free(dist);
            free(id);
            km_anchors_release(&a);
            km_ctx_free(ctx);
        }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gpu_finds_what_the_cpu_finds),
        cmocka_unit_test(rows_that_are_not_numbers_harm_no_others),
        cmocka_unit_test(trainings_end_at_the_same_energy),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
