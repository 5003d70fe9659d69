/* A layer of one row on the GPU: by which kernel, and the norm before it, made on the way where the
 * kernel can, and never lost where it cannot. A made-up driver says which kernels were launched. */
#include "backend/cuda/modules.h"
#define km_cuda_modules fake_few_modules
#define km_cuda_module_count fake_few_count
#include "fake_cuda.h"
#undef km_cuda_modules
#undef km_cuda_module_count

#include "ops/families.h"
#include "tensor/tensor.h"

const km_cuda_module km_cuda_modules[] = {{"fill", "fill", 4},
                                          {"copy", "copy", 4},
                                          {"norm", "norm", 4},
                                          {"quant_planes", "quant_planes", 12},
                                          {"quant_one_32", "quant_one_32", 12},
                                          {"quant_few_32", "quant_few_32", 12},
                                          {"quant_bulk_32", "quant_bulk_32", 13},
                                          {"quant_bulk_k", "quant_bulk_k", 12},
                                          {"quant_one_32_8bit", "quant_one_32_8bit", 17},
                                          {"quant_few_32_8bit", "quant_few_32_8bit", 17},
                                          {"quant_bulk_32_8bit", "quant_bulk_32_8bit", 18},
                                          {"quant_round", "quant_round", 11},
                                          {"quant_mma_32_8", "quant_mma_32_8", 14},
                                          {"quant_mma_32_32", "quant_mma_32_32", 15},
                                          {"quant_mma_k_8", "quant_mma_k_8", 13},
                                          {"quant_tiles", "quant_tiles", 11}};
const int km_cuda_module_count = sizeof km_cuda_modules / sizeof *km_cuda_modules;

static char names[512];
static void note(const fake_launch *w) {
    size_t n = strlen(names);
    snprintf(names + n, sizeof names - n, " %s", w->kernel);
}

static int open_fake(void **state) {
    fake_open(state);
    fake.other = note;
    return 0;
}

/* Kernels of a norm of m rows of k elements and a layer of n rows over it, on a GPU of that generation, with
 * activations of so many bits. */
static void norm_and_layer_of(int cc, int64_t m, int64_t n, int64_t k, int bits) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    assert_int_equal(km_ctx_set_activations(ctx, bits), KM_OK);
    km_cuda_dev *dev = ctx->device->impl;
    dev->shared_max = 200 << 10, dev->cc = cc, dev->sms = 132;
    void *zeros = calloc(1, (size_t)km_dtype_bytes(KM_Q8_0, n * k));
    km_tensor *w = km_keep(ctx, km_from_data(ctx, KM_Q8_0, KM_SHAPE(n, k), zeros));
    free(zeros);
    assert_int_equal(km_settle(ctx, w), KM_OK);
    km_tensor *by = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(k)));
    km_tensor *x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(m, k)));
    km_sync(ctx);
    names[0] = 0;
    km_no_grad_begin(ctx);
    km_quant_linear(ctx, km_rms_norm(ctx, x, by, 1e-5), w, NULL, KM_ACT_NONE);
    km_no_grad_end(ctx);
    km_sync(ctx);
    if (km_ctx_status(ctx) != KM_OK) fail_msg("%s", km_ctx_error(ctx));
    km_release(w);
    km_release(by);
    km_release(x);
    km_ctx_free(ctx);
}

static void norm_and_layer(int cc, int64_t n, int64_t k) { norm_and_layer_of(cc, 1, n, k, 16); }

static void a_norm_before_a_layer_is_made_on_the_way(void **state) {
    norm_and_layer(80, 16, 2048);
    assert_string_equal(names, " one_Q8_0");
}

static void a_norm_is_made_where_x_is_rounded_when_the_layer_has_no_room_for_it(void **state) {
    for (int cc = 80; cc <= 90; cc += 10) {
        norm_and_layer(cc, 16, 131072);
        assert_string_equal(names, " quant_round tiles_Q8_0");
    }
}

/* Two warps share long rows where there are so few that warps would be idle, and x leaves room. */
static void hopper_takes_few_long_rows_by_halves(void **state) {
    norm_and_layer(90, 2048, 2048);
    assert_string_equal(names, " bulk_Q8_0");
    norm_and_layer(90, 2048, 8192);
    assert_string_equal(names, " bulk_long_Q8_0");
    norm_and_layer(90, 2128, 8192);
    assert_string_equal(names, " bulk_Q8_0");
    norm_and_layer(90, 16, 53248);
    assert_string_equal(names, " bulk_Q8_0");
}

/* x is rounded, and the norm made, by one kernel; the weights go once for all rows. */
static void two_to_32_rows_are_multiplied_as_weights_stream(void **state) {
    for (int cc = 80; cc <= 90; cc += 10) {
        norm_and_layer_of(cc, 2, 16, 2048, 16);
        assert_string_equal(names, " quant_round mma_Q8_0");
        norm_and_layer_of(cc, 33, 16, 2048, 16);
        assert_string_equal(names, " quant_round tiles_Q8_0");
    }
    norm_and_layer_of(90, 17, 16, 2048, 16);
    assert_string_equal(names, " quant_round mma_Q8_0");
    assert_string_equal(fake.found_in, "quant_mma_32_32");
    /* so much of x that only a cluster of blocks has room for it */
    norm_and_layer_of(90, 32, 16, 8192, 16);
    assert_string_equal(names, " quant_round mma_Q8_0");
    norm_and_layer_of(80, 32, 16, 8192, 16);
    assert_string_equal(names, " quant_round tiles_Q8_0");
}

/* The kernels have the same names in both modules; what differs is how x is staged. */
static void x_keeps_16_bits_unless_8_are_asked_for(void **state) {
    const struct {
        int cc;
        int64_t k;
        const char *fine, *coarse;
    } cases[] = {{80, 256, "quant_few_32", "quant_few_32_8bit"},
                 {80, 2048, "quant_one_32", "quant_one_32_8bit"},
                 {90, 4096, "quant_bulk_32", "quant_bulk_32_8bit"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        norm_and_layer_of(cases[i].cc, 1, 16, cases[i].k, 16);
        assert_string_equal(fake.found_in, cases[i].fine);
        norm_and_layer_of(cases[i].cc, 1, 16, cases[i].k, 8);
        assert_string_equal(fake.found_in, cases[i].coarse);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_norm_before_a_layer_is_made_on_the_way, open_fake,
                                        fake_close),
        cmocka_unit_test_setup_teardown(
            a_norm_is_made_where_x_is_rounded_when_the_layer_has_no_room_for_it, open_fake,
            fake_close),
        cmocka_unit_test_setup_teardown(two_to_32_rows_are_multiplied_as_weights_stream, open_fake,
                                        fake_close),
        cmocka_unit_test_setup_teardown(x_keeps_16_bits_unless_8_are_asked_for, open_fake,
                                        fake_close),
        cmocka_unit_test_setup_teardown(hopper_takes_few_long_rows_by_halves, open_fake,
                                        fake_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
