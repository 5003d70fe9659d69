/* Work that a device cannot do goes to another one: within host memory as it is, across memories
 * with copies there and back. The far device here has no kernels, and its addresses mean nothing to
 * the host, as a GPU's do: an access that forgets to copy crashes. */
#include "backend/backend.h"
#include "ops/op.h"
#include "support/engine.h"
#include <math.h>

/* ---- A device whose memory cannot be touched ---- */

#define FAR ((intptr_t)1 << 62) /* no such addresses exist */

static int uploads, downloads;
static size_t moved; /* bytes */

static void *near(const void *p) { return (void *)((intptr_t)p ^ FAR); }

static void *far_alloc(void *owner, size_t bytes) {
    void *p = km_alloc_aligned(bytes);
    return p ? (void *)((intptr_t)p ^ FAR) : NULL;
}

static void far_free(void *owner, void *p, size_t bytes) { km_free_aligned(near(p), bytes); }

static km_status far_open(km_lane *lane, km_error *err) {
    lane->pool.raw_alloc = far_alloc;
    lane->pool.raw_free = far_free;
    return KM_OK;
}

static void far_close(km_lane *lane) {}

static km_status far_upload(km_lane *lane, void *dst, const void *src, size_t bytes) {
    uploads++;
    moved += bytes;
    memcpy(near(dst), src, bytes);
    return KM_OK;
}

static km_status far_download(km_lane *lane, void *dst, const void *src, size_t bytes) {
    downloads++;
    moved += bytes;
    memcpy(dst, near(src), bytes);
    return KM_OK;
}

static km_status far_sync(km_lane *lane) { return KM_OK; }

static const km_device_ops far_ops = {.open = far_open,
                                      .close = far_close,
                                      .upload = far_upload,
                                      .download = far_download,
                                      .sync = far_sync};
static const km_backend far_backend = {.name = "far"};
static km_device far_device = {.name = "far", .ops = &far_ops, .backend = &far_backend};

static int far_setup(void **state) {
    engine_live = km_alloc_live();
    far_device.fallback = km_cpu_device();
    uploads = downloads = 0;
    moved = 0;
    *state = km_ctx_make(&far_device, 2, NULL);
    return *state ? 0 : -1;
}

#define FAR_AWAY(test)                                                                             \
    { #test, test, far_setup, engine_close, NULL }

/* ---- Within host memory ---- */

static void f64_on_cpu_is_counted_as_a_fallback(void **state) {
    km_ctx *ctx = *state;
    km_stats before = km_ctx_stats(ctx);
    km_tensor *t = km_full(ctx, KM_F64, KM_SHAPE(3), 2);
    km_tensor *y = km_exp(ctx, km_mul(ctx, t, t));
    assert_elements_near(ctx, y, 1e-14, exp(4), exp(4), exp(4));
    km_stats after = km_ctx_stats(ctx);
    assert_true(after.fallbacks - before.fallbacks >= 2); /* mul and exp at least */
    assert_string_equal(km_tensor_device(y), "cpu");
}

static void the_reference_never_falls_back(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_full(ctx, KM_F64, KM_SHAPE(3, 3), 2);
    km_softmax(ctx, km_matmul(ctx, t, km_exp(ctx, t)), -1);
    assert_ok(ctx);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
}

static char noted[1000];
static void note(void *user, km_log_level level, const char *line) {
    strncat(noted, line, sizeof noted - strlen(noted) - 2);
    strcat(noted, "\n");
}

static void a_fallback_is_logged_once(void **state) {
    km_ctx *ctx = *state;
    noted[0] = 0;
    km_set_log(note, NULL);
    km_tensor *t = km_full(ctx, KM_F64, KM_SHAPE(3), 2);
    for (int i = 0; i < 3; i++) km_rsqrt(ctx, t);
    km_set_log(NULL, NULL);
    const char *line = strstr(noted, "cpu has no kernel for rsqrt of f64; using ref\n");
    assert_non_null(line);
    assert_null(strstr(strchr(line, '\n'), "rsqrt"));
}

/* ---- Across memories ---- */

static void data_reaches_the_far_device_and_comes_back(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = F32(ctx, KM_SHAPE(3), 1, 2, 3);
    float v[3];
    assert_int_equal(km_read(ctx, t, v, sizeof v), KM_OK);
    assert_memory_equal(v, ((float[]){1, 2, 3}), sizeof v);
    assert_int_equal(km_write(ctx, t, (float[]){4, 5, 6}, sizeof v), KM_OK);
    assert_true(km_item(ctx, km_select(ctx, t, 0, 2)) == 6);
    assert_null(km_tensor_data(t));
    assert_string_equal(km_tensor_device(t), "far");
    assert_elements(ctx, km_to(ctx, t, "cpu"), 4, 5, 6);
}

static void an_op_without_a_kernel_runs_elsewhere(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = F32(ctx, KM_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    km_tensor *b = F32(ctx, KM_SHAPE(3), 10, 20, 30);
    km_stats before = km_ctx_stats(ctx);
    km_tensor *y = km_add(ctx, a, b);
    assert_ok(ctx);
    assert_string_equal(km_tensor_device(y), "far");
    assert_true(km_ctx_stats(ctx).fallbacks > before.fallbacks);
    assert_elements(ctx, y, 11, 22, 33, 14, 25, 36);
    assert_elements(ctx, km_matmul(ctx, a, km_transpose(ctx, a, 0, 1)), 14, 32, 32, 77);
    assert_elements(ctx, km_sum(ctx, km_transpose(ctx, a, 0, 1), (int[]){1}, 1, false), 5, 7, 9);
    assert_elements(ctx, km_cast(ctx, a, KM_I32), 1, 2, 3, 4, 5, 6);
    assert_elements(ctx, km_concat(ctx, (km_tensor *[]){b, km_select(ctx, a, 0, 1)}, 2, 0), 10, 20,
                    30, 4, 5, 6);
}

static void a_part_of_a_tensor_moves_without_the_rest(void **state) {
    km_ctx *ctx = *state;
    km_tensor *whole = engine_range(ctx, KM_F32, KM_SHAPE(64, 64));
    km_tensor *row = km_select(ctx, whole, 0, 3); /* contiguous, inside a larger storage */
    assert_elements(ctx, km_sum(ctx, row, NULL, 0, false), 64 * 3 * 64 + 63 * 64 / 2);
    km_tensor *last = km_narrow(ctx, whole, 0, 63, 1);
    assert_elements(ctx, km_max(ctx, last, NULL, 0, false), 4095);
    assert_true(engine_element(ctx, km_neg(ctx, last), 0) == -4032);
    moved = 0;
    km_exp(ctx, row);
    assert_int_equal(moved, 2 * 64 * sizeof(float));
}

static void strided_operands_and_results_cross_too(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(3, 4));
    km_tensor *turned = km_transpose(ctx, t, 0, 1);
    assert_elements(ctx, km_copy(ctx, turned), 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11);
    assert_elements(ctx, km_softmax(ctx, km_slice(ctx, turned, 0, 0, 4, 4), 0), 1, 1, 1);
    km_assign(ctx, km_select(ctx, t, 1, 2), km_full(ctx, KM_F32, KM_SCALAR, -1));
    assert_elements(ctx, t, 0, 1, -1, 3, 4, 5, -1, 7, 8, 9, -1, 11);
    km_write(ctx, km_select(ctx, t, 1, 0), (float[]){20, 21, 22}, 12);
    assert_elements(ctx, t, 20, 1, -1, 3, 21, 5, -1, 7, 22, 9, -1, 11);
    km_tensor *wide = km_broadcast(ctx, km_select(ctx, t, 0, 0), KM_SHAPE(2, 4));
    assert_elements(ctx, km_copy(ctx, wide), 20, 1, -1, 3, 20, 1, -1, 3);
}

static void reversed_operands_and_results_cross_too(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *back = km_slice(ctx, t, 1, -1, KM_END, -1);
    assert_elements(ctx, back, 2, 1, 0, 5, 4, 3);
    assert_elements(ctx, km_exp(ctx, km_mul_scalar(ctx, back, 0)), 1, 1, 1, 1, 1, 1);
    assert_elements(ctx, km_add(ctx, back, t), 2, 2, 2, 8, 8, 8);
    assert_int_equal(km_write(ctx, back, (float[]){1, 2, 3, 4, 5, 6}, 24), KM_OK);
    assert_elements(ctx, t, 3, 2, 1, 6, 5, 4);
}

/* Sizes that depend on data: the mask is counted where it is, and only the count comes over. */
static void masks_pick_on_the_far_device(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *large = km_gt(ctx, t, km_full(ctx, KM_F32, KM_SCALAR, 2));
    assert_elements(ctx, km_masked_select(ctx, t, large), 3, 4, 5);
    assert_elements(ctx, km_nonzero(ctx, large), 1, 0, 1, 1, 1, 2);
    assert_shape(km_nonzero(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(4))), KM_SHAPE(0, 1));
}

static void nothing_crosses_for_empty_tensors(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(0, 4));
    assert_shape(km_add(ctx, t, t), KM_SHAPE(0, 4));
    assert_elements(ctx, km_sum(ctx, t, (int[]){0}, 1, false), 0, 0, 0, 0);
    assert_shape(km_copy(ctx, km_transpose(ctx, t, 0, 1)), KM_SHAPE(4, 0));
}

static km_tensor *sum(km_ctx *ctx, km_tensor *t) { return km_sum(ctx, t, NULL, 0, false); }

static void a_training_step_runs_on_a_device_without_kernels(void **state) {
    km_ctx *ctx = *state;
    km_tensor *w = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 3), .1, .2, -.3, .4, .5, .6));
    km_tensor *b = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 0, 1));
    km_tensor *table = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(4, 3)));
    km_tensor *all[] = {w, b, table};
    for (int step = 0; step < 2; step++) {
        km_tensor *x = km_embedding(ctx, table, I32(ctx, KM_SHAPE(3), 1, 3, 1));
        km_tensor *y = km_linear(ctx, x, w, b, KM_ACT_GELU);
        km_tensor *part = km_slice(ctx, y, 1, 1, 2, 1);
        km_backward(ctx, km_add(ctx, sum(ctx, km_mul(ctx, y, y)), sum(ctx, part)));
        assert_true(km_clip_grad_norm(ctx, all, 3, 1) > 1);
        assert_ok(ctx);
        assert_elements_near(ctx, km_sum(ctx, km_select(ctx, km_grad(table), 0, 2), NULL, 0, false),
                             0, 0);
        km_step_end(ctx);
    }
    for (int i = 0; i < 3; i++) km_release(all[i]);
}

static void optimisers_change_parameters_where_they_are(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p[3], *m[3], *v[3];
    for (int i = 0; i < 3; i++) {
        p[i] = engine_parameter(ctx, km_full(ctx, KM_F32, KM_SHAPE(i + 1), 1));
        m[i] = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(i + 1)));
        v[i] = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(i + 1)));
        km_backward(ctx, km_mul_scalar(ctx, sum(ctx, p[i]), 2));
    }
    km_step_end(ctx);
    assert_int_equal(km_sgd_step(ctx, p, NULL, 3, &(km_sgd){.size = sizeof(km_sgd), .lr = 0.25}),
                     KM_OK);
    assert_elements(ctx, p[1], 0.5, 0.5);
    assert_int_equal(
        km_sgd_step(ctx, p, m, 3, &(km_sgd){.size = sizeof(km_sgd), .lr = 0.25, .momentum = 0.5}),
        KM_OK);
    assert_elements(ctx, p[2], 0, 0, 0);
    assert_elements(ctx, m[2], 2, 2, 2);
    km_assign(ctx, m[0], km_zeros(ctx, KM_F32, KM_SCALAR));
    km_adamw how = {
        .size = sizeof(km_adamw), .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 0, .step = 1};
    assert_int_equal(km_adamw_step(ctx, p, m, v, 1, &how), KM_OK);
    assert_elements_near(ctx, p[0], 1e-6, -0.5);
    for (int i = 0; i < 3; i++) {
        km_release(p[i]);
        km_release(m[i]);
        km_release(v[i]);
    }
}

static void an_index_is_not_read_on_the_far_device(void **state) {
    km_ctx *ctx = *state;
    km_tensor *table = engine_range(ctx, KM_F32, KM_SHAPE(2, 2));
    km_tensor *y = km_embedding(ctx, table, I32(ctx, KM_SHAPE(2), 1, 0));
    assert_elements(ctx, y, 2, 3, 0, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", f64_on_cpu_is_counted_as_a_fallback),
        ON("ref", the_reference_never_falls_back),
        ON("cpu", a_fallback_is_logged_once),
        FAR_AWAY(data_reaches_the_far_device_and_comes_back),
        FAR_AWAY(an_op_without_a_kernel_runs_elsewhere),
        FAR_AWAY(a_part_of_a_tensor_moves_without_the_rest),
        FAR_AWAY(strided_operands_and_results_cross_too),
        FAR_AWAY(reversed_operands_and_results_cross_too),
        FAR_AWAY(masks_pick_on_the_far_device),
        FAR_AWAY(nothing_crosses_for_empty_tensors),
        FAR_AWAY(a_training_step_runs_on_a_device_without_kernels),
        FAR_AWAY(optimisers_change_parameters_where_they_are),
        FAR_AWAY(an_index_is_not_read_on_the_far_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
