/* A coder on a device gives the codes of the coder itself, but where rounding decides, and loses no more:
 * levels and trellises, both turns, classes, rings too short to settle, rows of zeros. Here the ops run
 * as their reference does; the GPU's kernels are held against that by `kermes verify`. */
#include "vector/vectors.h"
#include "support/engine.h"
#include "vector/coder_impl.h"
#include "vector/device_coder.h"

static km_ctx *ctx; /* of the test that runs */

static double lost(const km_coder *c, const float *x, const uint8_t *codes, int64_t n) {
    int64_t dim = km_coder_dim(c);
    float *back = malloc(4 * (size_t)(n * dim));
    double sum = 0;
    assert_int_equal(km_coder_decode(c, NULL, codes, n, back), KM_OK);
    for (int64_t i = 0; i < n * dim; i++)
        sum += ((double)x[i] - back[i]) * ((double)x[i] - back[i]);
    free(back);
    return sum;
}

static void agree(const km_coder_options *o, int64_t n, bool trellis, int classes) {
    int64_t dim = o->dim, trained = 600;
    float *x = clustered(trained, dim, 5);
    km_error err = {0};
    km_coder *c = km_coder_train(ctx->threads, x, trained, o, &err);
    if (!c) fail_msg("%s", err.text);
    assert_int_equal(c->trellis, trellis);
    assert_true(c->classes >= classes);
    memset(x + dim, 0, 4 * (size_t)dim); /* a row of zeros */
    size_t bytes = km_coder_bytes(c);
    uint8_t *want = malloc((size_t)n * bytes), *got = malloc((size_t)n * bytes);
    assert_int_equal(km_coder_encode(c, ctx->threads, x, n, want), KM_OK);
    km_device_coder *d = km_device_coder_new(ctx, c, &err);
    if (!d) fail_msg("%s", err.text);
    km_tensor *rows = km_from_data(ctx, KM_F32, KM_SHAPE(n, dim), x);
    km_tensor *square = km_sum(ctx, km_mul(ctx, rows, rows), (const int[]){1}, 1, false);
    if (km_device_coder_run(d, rows, square, got) != KM_OK) fail_msg("%s", km_ctx_error(ctx));
    km_step_end(ctx);
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++)
        same += !memcmp(want + (size_t)i * bytes, got + (size_t)i * bytes, bytes);
    if (same < n - n / 20 - 1)
        fail_msg("%lld of %lld codes are the same", (long long)same, (long long)n);
    double a = lost(c, x, want, n), b = lost(c, x, got, n);
    assert_true(fabs(a - b) <= 1e-3 * a + 1e-9);
    km_device_coder_free(d);
    km_coder_free(c);
    free(want);
    free(got);
    free(x);
}

static void levels_are_those_of_the_coder(void **state) {
    ctx = *state;
    static const int64_t dims[] = {1, 8, 33, 64};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int turn = KM_TURN_HADAMARD; turn <= KM_TURN_PCA; turn++)
            agree(&(km_coder_options){.dim = dims[i],
                                      .bytes = 1 + (double)dims[i] / 2,
                                      .mode = KM_CODE_FAST,
                                      .turn = (km_code_turn)turn,
                                      .seed = 3},
                  200, false, 1);
}

static void paths_are_those_of_the_coder(void **state) {
    ctx = *state;
    /* A long ring, a short one, many bits to an axis, principal axes of several classes. */
    agree(
        &(km_coder_options){
            .dim = 96, .bytes = 13, .mode = KM_CODE_DENSE, .turn = KM_TURN_HADAMARD},
        6, true, 1);
    agree(
        &(km_coder_options){.dim = 40, .bytes = 7, .mode = KM_CODE_DENSE, .turn = KM_TURN_HADAMARD},
        2, true, 1);
    agree(&(km_coder_options){.dim = 24, .bytes = 21, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA},
          3, true, 1);
    agree(
        &(km_coder_options){
            .dim = 32, .bytes = 12, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA, .rows = 100000},
        8, true, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", levels_are_those_of_the_coder),
        ON("cpu", paths_are_those_of_the_coder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
