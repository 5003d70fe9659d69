/* Contexts: made by a device's name, failing once and staying so, and answering NULLs politely. */
#include "backend/backend.h"
#include "support/engine.h"
#include <stdlib.h>

static void a_context_says_its_device_and_threads(void **state) {
    km_ctx *ctx = *state;
    assert_string_equal(km_ctx_device(ctx), "cpu");
    assert_int_equal(km_ctx_threads(ctx), 2);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_string_equal(km_ctx_error(ctx), "");
    assert_string_equal(km_last_error(), "");
}

static void zero_threads_means_one_per_core(void **state) {
    km_ctx *ctx = km_ctx_new("ref", 0);
    assert_non_null(ctx);
    assert_true(km_ctx_threads(ctx) >= 1);
    km_ctx_free(ctx);
}

static void unknown_devices_are_named_in_the_error(void **state) {
    const char *there =
        ": no such device; there are auto, cpu, ref, gpu, metal, cuda, cuda:N, vulkan and vulkan:N";
    const char *names[] = {"",        "CPU",     "cpu ",    "cuda:",   "cuda:x",
                           "cuda:1x", "cuda:-1", "cuda: 1", "cuda:+1", "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char want[200];
        snprintf(want, sizeof want, "%s%s", names[i], there);
        assert_null(km_ctx_new(names[i], 1));
        assert_string_equal(km_last_error(), want);
    }
    char longer[1000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_null(km_ctx_new(longer, 1));
    assert_true(strlen(km_last_error()) < 150);
}

static void a_device_of_another_make_is_refused_with_advice(void **state) {
    if (km_cuda_device_count() > 0) skip(); /* tests/backend/test_cuda_device.c */
    assert_null(km_ctx_new("metal", 1));
    assert_non_null(
        strstr(km_last_error(),
               "metal: Kermes has no Metal backend but Vulkan's (MoltenVK), and there is no "
               "accelerator here: "));
}

static void auto_always_finds_a_device(void **state) {
    km_ctx *ctx = km_ctx_new("auto", 1);
    assert_non_null(ctx);
    assert_true(strlen(km_ctx_device(ctx)) > 0);
    km_ctx_free(ctx);
}

static void a_gpu_that_is_not_there_is_an_error_with_a_reason(void **state) {
    if (km_cuda_device_count() > 0) skip();
    assert_null(km_ctx_new("gpu", 1));
    assert_true(strlen(km_last_error()) > 10);
    assert_null(km_ctx_new("cuda:7", 1));
    assert_true(strlen(km_last_error()) > 10);
    assert_null(km_ctx_new("cuda", 1));
}

static void activations_keep_16_bits_or_8_where_that_is_said(void **state) {
    unsetenv("KERMES_ACTIVATIONS");
    km_ctx *ctx = km_ctx_new("cpu", 1);
    assert_int_equal(km_ctx_activations(ctx), 16);
    assert_int_equal(km_ctx_set_activations(ctx, 8), KM_OK);
    assert_int_equal(km_ctx_activations(ctx), 8);
    assert_int_equal(km_ctx_set_activations(ctx, 12), KM_ERR_RANGE);
    assert_string_equal(km_ctx_error(ctx), "activations keep 8 or 16 bits, not 12");
    assert_int_equal(km_ctx_activations(ctx), 8);
    km_ctx_free(ctx);
    static const struct {
        const char *said;
        int bits;
    } env[] = {{"8", 8}, {"16", 16}, {"", 16}, {"7", 16}, {"8 ", 16}};
    for (int i = 0; i < 5; i++) {
        setenv("KERMES_ACTIVATIONS", env[i].said, 1);
        ctx = km_ctx_new("cpu", 1);
        assert_int_equal(km_ctx_activations(ctx), env[i].bits);
        km_ctx_free(ctx);
    }
    unsetenv("KERMES_ACTIVATIONS");
    assert_int_equal(km_ctx_set_activations(NULL, 8), KM_ERR_NULL);
    assert_int_equal(km_ctx_activations(NULL), 0);
}

static void bad_arguments_are_refused(void **state) {
    assert_null(km_ctx_new(NULL, 1));
    assert_string_equal(km_last_error(), "context: no device named");
    assert_null(km_ctx_new("cpu", -1));
    assert_string_equal(km_last_error(),
                        "context: -1 threads; 0 (one per core) to 4096 are possible");
    assert_null(km_ctx_new("cpu", 4097));
    assert_string_equal(km_last_error(),
                        "context: 4097 threads; 0 (one per core) to 4096 are possible");
}

static void without_a_context_nothing_happens(void **state) {
    km_ctx_free(NULL);
    assert_int_equal(km_ctx_status(NULL), KM_ERR_NULL);
    assert_string_equal(km_ctx_error(NULL), "no context");
    assert_string_equal(km_ctx_device(NULL), "");
    assert_int_equal(km_ctx_threads(NULL), 0);
    assert_int_equal(km_ctx_fail(NULL, KM_ERR_FILE, "x"), KM_ERR_FILE);
    km_ctx_clear_error(NULL);
    km_seed(NULL, 1);
    km_sync(NULL);
    km_step_end(NULL);
    km_scope_begin(NULL);
    assert_null(km_scope_end(NULL, NULL));
    km_no_grad_begin(NULL);
    km_no_grad_end(NULL);
    km_stats_reset_peak(NULL);
    km_trim(NULL);
    assert_int_equal(km_ctx_stats(NULL).kernels, 0);
    assert_null(km_zeros(NULL, KM_F32, KM_SHAPE(2)));
    assert_null(km_arange(NULL, KM_F32, 2, 0, 1));
    assert_null(km_normal(NULL, KM_F32, KM_SHAPE(2), 0, 1));
    assert_null(km_from_data(NULL, KM_F32, KM_SHAPE(1), "abcd"));
    assert_null(km_add(NULL, NULL, NULL));
    assert_null(km_dropout(NULL, NULL, 0.5));
    assert_null(km_sum(NULL, NULL, NULL, 0, false));
    assert_null(km_softmax(NULL, NULL, 0));
    assert_null(km_matmul(NULL, NULL, NULL));
    assert_null(km_linear(NULL, NULL, NULL, NULL, KM_ACT_NONE));
    assert_null(km_reshape(NULL, NULL, KM_SHAPE(1)));
    assert_null(km_stack(NULL, NULL, 0, 0));
    assert_null(km_embedding(NULL, NULL, NULL));
    assert_null(km_attention(NULL, NULL, NULL, NULL, true, 0));
    assert_null(km_cross_entropy(NULL, NULL, NULL, -1, KM_MEAN));
    assert_null(km_keep(NULL, NULL));
    assert_null(km_detach(NULL, NULL));
    assert_null(km_custom(NULL, NULL, NULL, 0));
    assert_int_equal(km_split(NULL, NULL, 0, 0, NULL), KM_ERR_NULL);
    assert_int_equal(km_backward(NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_read(NULL, NULL, NULL, 0), KM_ERR_NULL);
    assert_int_equal(km_assign(NULL, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_require_grad(NULL, NULL, true), KM_ERR_NULL);
    assert_true(km_item(NULL, NULL) == 0);
    assert_true(km_clip_grad_norm(NULL, NULL, 0, 1) == 0);
    km_zero_grad(NULL, NULL, 3);
}

static void without_a_tensor_questions_have_empty_answers(void **state) {
    assert_int_equal(km_tensor_ndim(NULL), 0);
    assert_int_equal(km_tensor_count(NULL), 0);
    assert_int_equal(km_tensor_dim(NULL, 0), 0);
    assert_int_equal(km_tensor_shape(NULL).ndim, 0);
    assert_string_equal(km_tensor_device(NULL), "");
    assert_false(km_tensor_is_contiguous(NULL));
    assert_false(km_requires_grad(NULL));
    assert_null(km_tensor_data(NULL));
    assert_null(km_grad(NULL));
    km_release(NULL);
}

static void a_tensor_answers_for_itself(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_I32, KM_SHAPE(2, 3));
    assert_int_equal(km_tensor_ndim(t), 2);
    assert_int_equal(km_tensor_count(t), 6);
    assert_int_equal(km_tensor_dim(t, 0), 2);
    assert_int_equal(km_tensor_dim(t, -1), 3);
    assert_int_equal(km_tensor_dim(t, 2), 0);
    assert_int_equal(km_tensor_dtype(t), KM_I32);
    assert_string_equal(km_tensor_device(t), "ref");
    int32_t *data = km_tensor_data(t);
    data[5] = 7;
    assert_elements(ctx, t, 0, 0, 0, 0, 0, 7);
    assert_null(km_tensor_data(km_transpose(ctx, t, 0, 1)));
    assert_ptr_equal(km_tensor_data(km_select(ctx, t, 0, 1)), data + 3);
}

static void the_first_error_stays_and_later_calls_do_nothing(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = km_ones(ctx, KM_F32, KM_SHAPE(2)), *b = km_ones(ctx, KM_F32, KM_SHAPE(3));
    uint64_t kernels = km_ctx_stats(ctx).kernels;
    assert_null(km_add(ctx, a, b));
    km_tensor *chain = km_exp(ctx, km_add(ctx, km_add(ctx, a, b), NULL));
    assert_null(chain);
    assert_null(km_zeros(ctx, KM_F32, KM_SHAPE(-1)));
    assert_null(km_reshape(ctx, a, KM_SHAPE(77)));
    float x;
    assert_int_equal(km_read(ctx, a, &x, 4), KM_ERR_SHAPE);
    assert_true(km_item(ctx, a) == 0);
    assert_int_equal(km_backward(ctx, a), KM_ERR_SHAPE);
    assert_null(km_keep(ctx, a));
    assert_int_equal(km_ctx_fail(ctx, KM_ERR_FILE, "mine"), KM_ERR_FILE);
    assert_int_equal(km_ctx_stats(ctx).kernels, kernels);
    assert_failed(ctx, KM_ERR_SHAPE, "add: shapes do not broadcast: [2] and [3]");
    assert_elements(ctx, km_add(ctx, a, a), 2, 2);
}

static void a_callers_own_error_sticks_too(void **state) {
    km_ctx *ctx = *state;
    assert_int_equal(km_ctx_fail(ctx, KM_OK, "nothing"), KM_OK);
    assert_ok(ctx);
    assert_int_equal(km_ctx_fail(ctx, KM_ERR_FORMAT, "line %d: %s", 3, "no number"), KM_ERR_FORMAT);
    assert_null(km_zeros(ctx, KM_F32, KM_SHAPE(1)));
    assert_failed(ctx, KM_ERR_FORMAT, "line 3: no number");
}

static void an_error_text_of_any_length_is_cut(void **state) {
    km_ctx *ctx = *state;
    char longer[5000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    km_ctx_fail(ctx, KM_ERR_FILE, "%s", longer);
    assert_int_equal(strlen(km_ctx_error(ctx)), KM_ERROR_TEXT - 1);
    km_ctx_clear_error(ctx);
}

static void a_context_survives_the_failure_of_any_of_its_allocations(void **state) {
    int64_t live = km_alloc_live();
    for (int n = 0; n < 20; n++) {
        km_alloc_fail_nth(n);
        km_ctx *ctx = km_ctx_new("ref", 2);
        km_alloc_fail_nth(-1);
        if (ctx) {
            assert_true(n >= 3); /* the context, its threads, its lane */
            km_ctx_free(ctx);
            assert_int_equal(km_alloc_live(), live);
            return;
        }
        assert_non_null(strstr(km_last_error(), "out of memory"));
        assert_int_equal(km_alloc_live(), live);
    }
    fail_msg("a context needs more than 20 allocations");
}

static void contexts_do_not_share_errors_or_tensors(void **state) {
    km_ctx *a = *state, *b = km_ctx_new("ref", 1);
    km_tensor *x = km_ones(a, KM_F32, KM_SHAPE(2)), *y = km_ones(b, KM_F32, KM_SHAPE(2));
    assert_refused(b, km_add(b, y, x), KM_ERR_STATE, "add: argument 2 belongs to another context");
    assert_refused(b, km_reshape(b, x, KM_SHAPE(2, 1)), KM_ERR_STATE,
                   "reshape: argument 1 belongs to another context");
    assert_refused(b, km_keep(b, x), KM_ERR_STATE, "keep: the tensor belongs to another context");
    float v[2];
    km_read(b, x, v, sizeof v);
    assert_failed(b, KM_ERR_STATE, "read: the tensor belongs to another context");
    km_tensor *kept = km_keep(a, x);
    assert_int_equal(km_require_grad(b, kept, true), KM_ERR_STATE);
    assert_failed(b, KM_ERR_STATE, "require_grad: the tensor belongs to another context");
    assert_int_equal(km_ctx_status(a), KM_OK);
    km_release(kept);
    km_ctx_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", a_context_says_its_device_and_threads),
        cmocka_unit_test(zero_threads_means_one_per_core),
        cmocka_unit_test(unknown_devices_are_named_in_the_error),
        cmocka_unit_test(a_device_of_another_make_is_refused_with_advice),
        cmocka_unit_test(auto_always_finds_a_device),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error_with_a_reason),
        cmocka_unit_test(activations_keep_16_bits_or_8_where_that_is_said),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(without_a_context_nothing_happens),
        cmocka_unit_test(without_a_tensor_questions_have_empty_answers),
        ON("ref", a_tensor_answers_for_itself),
        ON_EACH(the_first_error_stays_and_later_calls_do_nothing),
        ON("ref", a_callers_own_error_sticks_too),
        ON("ref", an_error_text_of_any_length_is_cut),
        cmocka_unit_test(a_context_survives_the_failure_of_any_of_its_allocations),
        ON("ref", contexts_do_not_share_errors_or_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
