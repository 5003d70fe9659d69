/* Encoding on a real GPU beside the CPU: the same codes but where rounding decides, and a squared error
 * within a part in a thousand, for levels and trellises, both turns, classes, rings too short to settle;
 * whole indexes made on either; and the same bytes every time. Skipped where there is no GPU. */
#include "live_gpu.h"
#include "vector/coder_impl.h"
#include "vector/device_coder.h"
#include "vector/index.h"
#include "vector/vectors.h"

/* Rows that another coder puts into another class are left out: where two classes suit a row equally well,
 * the rounding of its turn decides, and at many bits to an axis one of them may fit much better than was
 * thought. */
static double lost(const km_coder *c, km_threads *t, const float *x, const uint8_t *codes,
                   const uint8_t *others, int64_t n) {
    int64_t dim = km_coder_dim(c);
    float *back = malloc(4 * (size_t)(n * dim));
    double sum = 0;
    assert_int_equal(km_coder_decode(c, t, codes, n, back), KM_OK);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i * dim; j < (i + 1) * dim; j++)
            if (km_code_class(c, codes + i * c->bytes) == km_code_class(c, others + i * c->bytes))
                sum += ((double)x[j] - back[j]) * ((double)x[j] - back[j]);
    free(back);
    return sum;
}

static void compare(km_coder_options o, int64_t n) {
    km_error err = {0};
    km_ctx *cpu = km_ctx_new("cpu", 0), *gpu = km_ctx_new(GPU, 0);
    assert_non_null(gpu);
    float *x = clustered(n, o.dim, 5);
    km_coder *c = km_coder_train(cpu->threads, x, n, &o, &err);
    if (!c) fail_msg("%s", err.text);
    memset(x + o.dim, 0, 4 * (size_t)o.dim); /* a row of zeros */
    size_t bytes = km_coder_bytes(c), all = (size_t)n * bytes;
    uint8_t *want = malloc(all), *got = malloc(all), *again = malloc(all);
    assert_int_equal(km_coder_encode(c, cpu->threads, x, n, want), KM_OK);
    km_device_coder *d = km_device_coder_new(gpu, c, &err);
    if (!d) fail_msg("%s", err.text);
    uint64_t before = km_ctx_stats(gpu).fallbacks;
    for (int i = 0; i < 2; i++) {
        km_tensor *rows = km_from_data(gpu, KM_F32, KM_SHAPE(n, o.dim), x);
        km_tensor *square = km_sum(gpu, km_mul(gpu, rows, rows), (const int[]){1}, 1, false);
        if (km_device_coder_run(d, rows, square, i ? again : got) != KM_OK)
            fail_msg("%s", km_ctx_error(gpu));
        km_step_end(gpu);
    }
    assert_int_equal(km_ctx_stats(gpu).fallbacks, before);
    assert_memory_equal(got, again, all);
    int64_t same = 0, apart = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *one = want + (size_t)i * bytes, *other = got + (size_t)i * bytes;
        same += !memcmp(one, other, bytes);
        apart += km_code_class(c, one) != km_code_class(c, other);
    }
    assert_true(apart <= n / 100);
    double a = lost(c, cpu->threads, x, want, got, n), b = lost(c, cpu->threads, x, got, want, n);
    print_message(
        "%lld x %lld in %zu bytes, %s, %d classes: %lld codes are the same, lost %g and %g\n",
        (long long)n, (long long)o.dim, bytes, c->trellis ? "trellis" : "levels", c->classes,
        (long long)same, a, b);
    if (same < n - n / 20)
        fail_msg("%lld of %lld codes are the same", (long long)same, (long long)n);
    assert_true(fabs(a - b) <= 1e-3 * a);
    km_device_coder_free(d);
    km_coder_free(c);
    km_ctx_free(cpu);
    km_ctx_free(gpu);
    free(want);
    free(got);
    free(again);
    free(x);
}

static void levels_are_those_of_the_cpu(void **state) {
    (void)state;
    compare(
        (km_coder_options){.dim = 96, .bytes = 49, .mode = KM_CODE_FAST, .turn = KM_TURN_HADAMARD},
        5000);
    compare((km_coder_options){.dim = 131, .bytes = 60, .mode = KM_CODE_FAST, .turn = KM_TURN_PCA},
            5001);
    compare(
        (km_coder_options){.dim = 7, .bytes = 8, .mode = KM_CODE_FAST, .turn = KM_TURN_HADAMARD},
        333);
}

static void paths_are_those_of_the_cpu(void **state) {
    (void)state;
    compare(
        (km_coder_options){
            .dim = 128, .bytes = 17, .mode = KM_CODE_DENSE, .turn = KM_TURN_HADAMARD},
        1001);
    compare((km_coder_options){.dim = 96, .bytes = 40, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA},
            1000);
    compare(
        (km_coder_options){
            .dim = 64, .bytes = 24, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA, .rows = 1000000},
        1003);
    compare(
        (km_coder_options){.dim = 40, .bytes = 7, .mode = KM_CODE_DENSE, .turn = KM_TURN_HADAMARD},
        402);
    compare((km_coder_options){.dim = 48, .bytes = 47, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA},
            500);
    compare(
        (km_coder_options){
            .dim = 3200, .bytes = 401, .mode = KM_CODE_DENSE, .turn = KM_TURN_HADAMARD},
        40);
}

static void indexes_are_as_good_as_the_cpus(void **state) {
    (void)state;
    enum { N = 6000, D = 64 };
    float *x = clustered(N, D, 9);
    for (int mode = KM_INDEX_FAST; mode <= KM_INDEX_DENSE; mode++) {
        double sum[2] = {0};
        for (int on = 0; on < 2; on++) {
            km_ctx *ctx = km_ctx_new(on ? GPU : "cpu", 0);
            assert_non_null(ctx);
            km_index_options o = {.size = sizeof(km_index_options),
                                  .mode = (km_index_mode)mode,
                                  .anchors = 32,
                                  .bytes = 25};
            km_index *index = km_index_build(ctx, x, N, D, NULL, &o);
            if (!index) fail_msg("%s", km_last_error());
            float *back = malloc(4 * N * D);
            km_error err = {0};
            uint64_t *ids = malloc(8 * N);
            for (int64_t i = 0; i < N; i++) ids[i] = (uint64_t)i;
            km_snapshot *v = km_index_rows(index);
            km_row_place *places = km_index_places(index, v, ids, N, &err);
            assert_non_null(places);
            assert_int_equal(km_index_restore(index, v, ctx->threads, places, N, back, &err),
                             KM_OK);
            km_snapshot_drop(v);
            for (int64_t i = 0; i < N * D; i++)
                sum[on] += ((double)x[i] - back[i]) * ((double)x[i] - back[i]);
            km_free(places);
            free(back);
            free(ids);
            km_index_close(index);
            km_ctx_free(ctx);
        }
        print_message("lost by indexes: %g and %g\n", sum[0], sum[1]);
        assert_true(fabs(sum[0] - sum[1]) <= 1e-2 * sum[0]); /* anchors are trained apart */
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_those_of_the_cpu),
        cmocka_unit_test(paths_are_those_of_the_cpu),
        cmocka_unit_test(indexes_are_as_good_as_the_cpus),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
