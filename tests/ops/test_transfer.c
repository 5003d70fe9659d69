/* Data in and out: from host memory and back, in place, one number at a time, and between devices. */
#include "support/engine.h"
#include <math.h>

static void data_comes_back_as_it_went_in(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        km_dtype dtype;
        uint8_t bytes[16];
    } cases[] = {
        {KM_F32,
         {0, 0, 128, 63, 0, 0, 192, 127, 1, 0, 0, 0, 0, 0, 128, 255}}, /* 1, NaN, tiny, -inf */
        {KM_BF16, {128, 63, 192, 127, 1, 0, 0, 128, 1, 2, 3, 4, 5, 6, 7, 8}},
        {KM_I64, {255, 255, 255, 255, 255, 255, 255, 127, 1, 0, 0, 0, 0, 0, 0, 128}},
        {KM_I8, {0, 1, 2, 127, 128, 255, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
        {KM_BOOL, {0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t back[16];
        int64_t n = 16 / (int64_t)km_dtype_size(cases[i].dtype);
        km_tensor *t = km_from_data(ctx, cases[i].dtype, KM_SHAPE(n), cases[i].bytes);
        assert_int_equal(km_read(ctx, t, back, 16), KM_OK);
        assert_memory_equal(back, cases[i].bytes, 16);
        assert_memory_equal(km_tensor_data(km_copy(ctx, t)), cases[i].bytes, 16);
    }
}

static void data_is_copied_not_borrowed(void **state) {
    km_ctx *ctx = *state;
    float data[2] = {1, 2};
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(2), data);
    data[0] = 99;
    assert_elements(ctx, t, 1, 2);
}

static void nothing_can_be_read_and_written(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(3, 0), NULL);
    assert_shape(t, KM_SHAPE(3, 0));
    assert_int_equal(km_read(ctx, t, NULL, 0), KM_OK);
    assert_int_equal(km_write(ctx, t, NULL, 0), KM_OK);
    assert_int_equal(km_assign(ctx, t, km_ones(ctx, KM_F32, KM_SCALAR)), KM_OK);
}

static void a_strided_view_is_read_and_written_row_by_row(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3)), *turned = km_transpose(ctx, t, 0, 1);
    float v[6];
    assert_int_equal(km_read(ctx, turned, v, sizeof v), KM_OK);
    assert_memory_equal(v, ((float[]){0, 3, 1, 4, 2, 5}), sizeof v);
    size_t live = km_ctx_stats(ctx).live_bytes;
    assert_int_equal(km_write(ctx, turned, (float[]){10, 11, 12, 13, 14, 15}, sizeof v), KM_OK);
    assert_elements(ctx, t, 10, 12, 14, 11, 13, 15);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, live); /* the copy between is gone already */
}

static void wrong_sizes_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2, 3));
    float v[7];
    assert_int_equal(km_read(ctx, t, v, 28), KM_ERR_RANGE);
    assert_failed(ctx, KM_ERR_RANGE, "read: [2, 3] of f32 is 24 bytes, not 28");
    assert_int_equal(km_write(ctx, t, v, 6), KM_ERR_RANGE);
    assert_failed(ctx, KM_ERR_RANGE, "write: [2, 3] of f32 is 24 bytes, not 6");
    assert_int_equal(km_read(ctx, t, NULL, 24), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "read: no memory given");
    assert_int_equal(km_write(ctx, t, NULL, 24), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "write: no data");
    assert_int_equal(km_read(ctx, NULL, v, 24), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "read: no tensor");
    assert_refused(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(2), NULL), KM_ERR_NULL,
                   "from_data: no data");
}

static void an_item_is_any_dtype_as_a_double(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        km_dtype dtype;
        double value;
    } cases[] = {{KM_F32, 1.5},    {KM_F16, -0.25},       {KM_BF16, 3},
                 {KM_F64, 1e-300}, {KM_I32, -2147483647}, {KM_I64, 1e15},
                 {KM_U8, 255},     {KM_I8, -128},         {KM_BOOL, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        km_tensor *t = km_full(ctx, cases[i].dtype, KM_SHAPE(1, 1), cases[i].value);
        assert_true(km_item(ctx, t) == cases[i].value);
    }
    assert_true(isnan(km_item(ctx, km_full(ctx, KM_F16, KM_SCALAR, NAN))));
    assert_true(km_item(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(2, 1))) == 0);
    assert_failed(ctx, KM_ERR_SHAPE, "item: [2, 1] has more or less than one element");
    assert_true(km_item(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0))) == 0);
    assert_failed(ctx, KM_ERR_SHAPE, "item: [0] has more or less than one element");
    assert_true(km_item(ctx, NULL) == 0);
    assert_failed(ctx, KM_ERR_NULL, "item: no tensor");
}

/* ---- Assigning ---- */

static void assigning_converts_and_repeats(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_I32, KM_SHAPE(2, 3));
    km_assign(ctx, t, F32(ctx, KM_SHAPE(3), 1.9, -2.9, 3));
    assert_elements(ctx, t, 1, -2, 3, 1, -2, 3);
    km_assign(ctx, t, km_full(ctx, KM_I64, KM_SCALAR, 7));
    assert_elements(ctx, t, 7, 7, 7, 7, 7, 7);
    km_assign(ctx, km_select(ctx, t, 1, 0), I32(ctx, KM_SHAPE(2), 1, 2));
    assert_elements(ctx, t, 1, 7, 7, 2, 7, 7);
}

static void a_kept_tensor_keeps_its_handle_when_assigned(void **state) {
    km_ctx *ctx = *state;
    km_tensor *kept = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    km_step_end(ctx);
    km_assign(ctx, kept, F32(ctx, KM_SHAPE(2), 1, 2));
    km_step_end(ctx);
    assert_elements(ctx, kept, 1, 2);
    km_release(kept);
}

static void assigning_between_overlapping_views_reads_before_it_writes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(6));
    km_assign(ctx, km_narrow(ctx, t, 0, 1, 5), km_narrow(ctx, t, 0, 0, 5));
    assert_elements(ctx, t, 0, 0, 1, 2, 3, 4);
    t = engine_range(ctx, KM_F32, KM_SHAPE(6));
    km_assign(ctx, km_narrow(ctx, t, 0, 0, 5), km_narrow(ctx, t, 0, 1, 5));
    assert_elements(ctx, t, 1, 2, 3, 4, 5, 5);
    t = engine_range(ctx, KM_F32, KM_SHAPE(3, 3));
    km_assign(ctx, t, km_transpose(ctx, t, 0, 1));
    assert_elements(ctx, t, 0, 3, 6, 1, 4, 7, 2, 5, 8);
    km_assign(ctx, t, km_select(ctx, t, 0, 2)); /* its last row, to all */
    assert_elements(ctx, t, 2, 5, 8, 2, 5, 8, 2, 5, 8);
    km_assign(ctx, t, t);
    assert_elements(ctx, t, 2, 5, 8, 2, 5, 8, 2, 5, 8);
}

static void a_repeated_view_cannot_be_changed(void **state) {
    km_ctx *ctx = *state;
    km_tensor *one = km_zeros(ctx, KM_F32, KM_SHAPE(1, 2));
    km_tensor *wide = km_broadcast(ctx, one, KM_SHAPE(3, 2));
    assert_int_equal(km_assign(ctx, wide, km_ones(ctx, KM_F32, KM_SHAPE(3, 2))), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "assign: a broadcast tensor cannot be changed");
    float v[6] = {0};
    assert_int_equal(km_write(ctx, wide, v, sizeof v), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "write: a broadcast tensor cannot be changed");
    assert_elements(ctx, one, 0, 0);
}

static void assigning_what_does_not_fit_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2, 3));
    km_assign(ctx, t, km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    assert_failed(ctx, KM_ERR_SHAPE, "assign: [2] does not fit [2, 3]");
    km_assign(ctx, t, km_zeros(ctx, KM_F32, KM_SHAPE(1, 2, 3)));
    assert_failed(ctx, KM_ERR_SHAPE, "assign: [1, 2, 3] does not fit [2, 3]");
    km_assign(ctx, t, NULL);
    assert_failed(ctx, KM_ERR_NULL, "assign: no tensor");
    km_assign(ctx, NULL, t);
    assert_failed(ctx, KM_ERR_NULL, "assign: no tensor");
    km_assign(ctx, t, km_to(ctx, t, "cpu"));
    assert_failed(ctx, KM_ERR_DEVICE,
                  "assign: operands are on ref and cpu; bring them together with km_to");
}

/* ---- Between devices ---- */

static void a_tensor_moves_between_devices(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    assert_ptr_equal(km_to(ctx, t, "ref"), t);
    km_tensor *there = km_to(ctx, km_transpose(ctx, t, 0, 1), "cpu");
    assert_string_equal(km_tensor_device(there), "cpu");
    assert_string_equal(km_tensor_device(t), "ref");
    assert_elements(ctx, there, 0, 3, 1, 4, 2, 5);
    km_tensor *y = km_add(ctx, there, there); /* runs where its operands are */
    assert_string_equal(km_tensor_device(y), "cpu");
    assert_string_equal(km_tensor_device(km_sum(ctx, y, NULL, 0, false)), "cpu");
    assert_elements(ctx, km_to(ctx, y, "ref"), 0, 6, 2, 8, 4, 10);
    assert_shape(km_to(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0, 2)), "cpu"), KM_SHAPE(0, 2));
    km_tensor *kept = km_keep(ctx, there);
    km_step_end(ctx);
    assert_elements(ctx, kept, 0, 3, 1, 4, 2, 5);
    km_release(kept);
}

static void operands_on_two_devices_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = km_ones(ctx, KM_F32, KM_SHAPE(2, 2)), *b = km_to(ctx, a, "cpu");
    assert_refused(ctx, km_add(ctx, a, b), KM_ERR_DEVICE,
                   "add: operands are on ref and cpu; bring them together with km_to");
    assert_refused(ctx, km_matmul(ctx, b, a), KM_ERR_DEVICE,
                   "matmul: operands are on cpu and ref; bring them together with km_to");
    assert_refused(ctx, km_concat(ctx, (km_tensor *[]){a, a, b}, 3, 0), KM_ERR_DEVICE,
                   "concat: operands are on ref and cpu; bring them together with km_to");
    assert_refused(
        ctx, km_layer_norm(ctx, a, km_select(ctx, a, 0, 0), km_select(ctx, b, 0, 0), 1e-5),
        KM_ERR_DEVICE, "layer_norm: operands are on ref and cpu; bring them together with km_to");
}

static void a_device_that_is_not_there_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_ones(ctx, KM_F32, KM_SHAPE(1));
    assert_refused(ctx, km_to(ctx, t, NULL), KM_ERR_NULL, "to: no device named");
    assert_refused(
        ctx, km_to(ctx, t, "moon"), KM_ERR_DEVICE,
        "moon: no such device; there are auto, cpu, ref, gpu, metal, cuda, cuda:N, vulkan and vulkan:N");
    assert_refused(ctx, km_to(ctx, NULL, "cpu"), KM_ERR_NULL, "to: no tensor");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(data_comes_back_as_it_went_in),
        ON("ref", data_is_copied_not_borrowed),
        ON_EACH(nothing_can_be_read_and_written),
        ON_EACH(a_strided_view_is_read_and_written_row_by_row),
        ON("ref", wrong_sizes_are_refused),
        ON_EACH(an_item_is_any_dtype_as_a_double),
        ON_EACH(assigning_converts_and_repeats),
        ON("ref", a_kept_tensor_keeps_its_handle_when_assigned),
        ON_EACH(assigning_between_overlapping_views_reads_before_it_writes),
        ON("ref", a_repeated_view_cannot_be_changed),
        ON("ref", assigning_what_does_not_fit_is_refused),
        ON("ref", a_tensor_moves_between_devices),
        ON("ref", operands_on_two_devices_are_refused),
        ON("ref", a_device_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
