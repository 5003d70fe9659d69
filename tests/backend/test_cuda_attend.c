/* Attention over the paged cache on the GPU: by which kernels a call goes. A made-up driver says which
 * were launched. */
#include "backend/cuda/modules.h"
#define km_cuda_modules fake_few_modules
#define km_cuda_module_count fake_few_count
#include "fake_cuda.h"
#undef km_cuda_modules
#undef km_cuda_module_count

#include "ops/families.h"
#include "ops/infer.h"
#include "tensor/tensor.h"

const km_cuda_module km_cuda_modules[] = {
    {"fill", "fill", 4},
    {"copy", "copy", 4},
    {"attend_one", "attend_one", 10},
    {"attend_few", "attend_few", 10},
    {"attend_tile", "attend_tile", 11},
    {"attend_plain", "attend_plain", 12},
    {"attend_pages", "attend_pages", 12},
    {"attend_blocks", "attend_blocks", 13},
};
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

/* Kernels of a call of so many rows with heads of d elements, on a GPU of that generation, over
 * sequences of so many pages at most. */
static const char *kernels_over(int64_t most, int cc, int64_t rows, int64_t d, km_dtype cache) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_dev *dev = ctx->device->impl;
    dev->shared_max = 200 << 10, dev->cc = cc, dev->sms = 132;
    km_attend_spec spec = {.heads = 2, .kv_heads = 1, .scale = 0.1, .rope_base = 10000};
    km_shape pages = KM_SHAPE(most, 1, KM_KV_PAGE, d);
    void *zeros = calloc(1, (size_t)km_dtype_bytes(cache, km_shape_count(pages)));
    int32_t *place = calloc((size_t)(2 * rows), sizeof *place), table[40] = {0};
    km_tensor *k = km_from_data(ctx, cache, pages, zeros),
              *v = km_from_data(ctx, cache, pages, zeros);
    km_tensor *at = km_from_data(ctx, KM_I32, KM_SHAPE(rows, 2), place);
    km_tensor *where = km_from_data(ctx, KM_I32, KM_SHAPE(1, most), table);
    free(zeros);
    free(place);
    km_tensor *q = km_zeros(ctx, KM_F32, KM_SHAPE(rows, 2 * d)),
              *x = km_zeros(ctx, KM_F32, KM_SHAPE(rows, d));
    km_sync(ctx);
    names[0] = 0;
    km_no_grad_begin(ctx);
    km_attend(ctx, &spec, q, x, x, k, v, at, where);
    km_no_grad_end(ctx);
    km_sync(ctx);
    if (km_ctx_status(ctx) != KM_OK) fail_msg("%s", km_ctx_error(ctx));
    km_ctx_free(ctx);
    return names;
}

static const char *kernels_of(int cc, int64_t rows, int64_t d, km_dtype cache) {
    return kernels_over(40, cc, rows, d, cache);
}

static void one_row_over_f16_is_one_kernel(void **state) {
    assert_string_equal(kernels_of(90, 1, 128, KM_F16), " attend_one_128");
    assert_string_equal(kernels_of(80, 1, 128, KM_F16), " attend_alone_128");
}

static void few_rows_over_short_contexts_are_one_kernel(void **state) {
    assert_string_equal(kernels_over(16, 90, 8, 128, KM_F16), " attend_sole_128");
    assert_string_equal(kernels_over(16, 90, 17, 128, KM_F16),
                        " attend_append attend_pages_f16_128");
    assert_string_equal(kernels_over(16, 90, 8, 128, KM_Q8_0), " attend_append attend_few_128");
}

static void hopper_shares_pages_for_any_mix_of_rows(void **state) {
    assert_string_equal(kernels_of(90, 2, 128, KM_F16), " attend_append attend_pages_f16_128");
    assert_string_equal(kernels_of(90, 2, 72, KM_F16), " attend_append attend_pages_f16_128");
    assert_string_equal(kernels_of(90, 2, 16, KM_BF16), " attend_append attend_pages_bf16_64");
    assert_string_equal(kernels_of(90, 1, 128, KM_BF16), " attend_append attend_pages_bf16_128");
    assert_string_equal(kernels_of(90, 1024, 64, KM_BF16), " attend_append attend_pages_bf16_64");
    assert_string_equal(kernels_of(90, 64, 64, KM_Q8_0), " attend_append attend_blocks_8_64");
    assert_string_equal(kernels_of(90, 1, 128, KM_Q4_0), " attend_append attend_blocks_4_128");
}

static void other_heads_caches_and_chips_go_by_tiles_or_row_by_row(void **state) {
    assert_string_equal(kernels_of(90, 1025, 64, KM_F16), " attend_append attend_tile_64");
    assert_string_equal(kernels_of(90, 65, 160, KM_F16), " attend_append attend_tile_256");
    assert_string_equal(kernels_of(90, 64, 96, KM_Q8_0), " attend_append attend_few_128");
    assert_string_equal(kernels_of(90, 2, 64, KM_F32), " attend_append attend_few_64");
    assert_string_equal(kernels_of(89, 2, 64, KM_F16), " attend_append attend_few_64");
    assert_string_equal(kernels_of(90, 2, 20, KM_F16), " attend_plain_append attend_plain");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_row_over_f16_is_one_kernel, open_fake, fake_close),
        cmocka_unit_test_setup_teardown(few_rows_over_short_contexts_are_one_kernel, open_fake,
                                        fake_close),
        cmocka_unit_test_setup_teardown(hopper_shares_pages_for_any_mix_of_rows, open_fake,
                                        fake_close),
        cmocka_unit_test_setup_teardown(other_heads_caches_and_chips_go_by_tiles_or_row_by_row,
                                        open_fake, fake_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
