/* The memory profile: what is written down, by whose name, and that it adds up. */
#include "support/engine.h"

/* bytes must add up to live, event by event; the largest live is returned. */
static size_t check_sums(const km_memory_event *e, size_t n) {
    size_t live = 0, peak = 0;
    for (size_t i = 0; i < n; i++) {
        live = (size_t)((int64_t)live + e[i].bytes);
        assert_int_equal(live, e[i].live);
        assert_non_null(e[i].op);
        if (i) assert_true(e[i].index >= e[i - 1].index);
        if (live > peak) peak = live;
    }
    return peak;
}

/* The bytes that `op` took (or, with sign -1, gave back), for the gradient of `of` or any. */
static int64_t total(const km_memory_event *e, size_t n, const char *op, const char *of, int sign) {
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(e[i].op, op) == 0 && (e[i].bytes > 0) == (sign > 0) &&
            (of ? e[i].grad_of && strcmp(e[i].grad_of, of) == 0 : e[i].grad_of == NULL))
            sum += e[i].bytes;
    return sum;
}

static void a_step_is_told_op_by_op(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(64, 64)));
    km_step_end(ctx);
    km_stats_reset_peak(ctx);
    assert_int_equal(km_profile_begin(ctx), KM_OK);
    km_tensor *y = km_exp(ctx, x); /* op 1 */
    km_add(ctx, y, x);             /* op 2 */
    km_step_end(ctx);
    size_t n;
    const km_memory_event *e = km_profile_end(ctx, &n);
    assert_ok(ctx);
    assert_int_equal(n, 5);
    assert_int_equal(check_sums(e, n), km_ctx_stats(ctx).peak_bytes);
    assert_string_equal(e[0].op, "before");
    assert_int_equal(e[0].index, 0);
    assert_string_equal(e[1].op, "exp");
    assert_int_equal(e[1].index, 1);
    assert_int_equal(e[1].bytes, 64 * 64 * 4);
    assert_string_equal(e[2].op, "add");
    assert_int_equal(e[2].index, 2);
    assert_int_equal(e[3].bytes + e[4].bytes, -2 * 64 * 64 * 4);
    assert_int_equal(e[4].live, e[0].live);
    km_release(x);
}

static void a_release_is_told_by_the_name_of_the_maker(void **state) {
    km_ctx *ctx = *state;
    km_tensor *old = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1000)));
    km_step_end(ctx);
    km_profile_begin(ctx);
    for (int i = 0; i < 3; i++) { /* the same block, from different ops */
        km_scope_begin(ctx);
        if (i == 1)
            km_exp(ctx, old);
        else
            km_neg(ctx, old);
        km_scope_end(ctx, NULL);
    }
    km_release(old);
    size_t n;
    const km_memory_event *e = km_profile_end(ctx, &n);
    check_sums(e, n);
    assert_int_equal(total(e, n, "neg", NULL, -1), -2 * total(e, n, "exp", NULL, 1));
    assert_int_equal(total(e, n, "exp", NULL, -1), -total(e, n, "exp", NULL, 1));
    assert_int_equal(total(e, n, "before", NULL, -1), -total(e, n, "before", NULL, 1));
    assert_int_equal(e[n - 1].live, 0);
}

static void the_backward_pass_names_the_op_whose_gradient_it_makes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *w = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(32, 32)));
    km_tensor *x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(32, 32)));
    km_require_grad(ctx, w, true);
    km_step_end(ctx);
    km_profile_begin(ctx);
    km_tensor *loss = km_sum(ctx, km_matmul(ctx, x, w), NULL, 0, false);
    km_backward(ctx, loss);
    km_step_end(ctx);
    size_t n;
    const km_memory_event *e = km_profile_end(ctx, &n);
    assert_ok(ctx);
    check_sums(e, n);
    assert_true(total(e, n, "matmul", NULL, 1) >= 32 * 32 * 4);
    /* The gradient of w stays; it was made in matmul's rule. */
    int64_t left = 0;
    for (size_t i = 0; i < n; i++)
        if (e[i].grad_of && strcmp(e[i].grad_of, "matmul") == 0) left += e[i].bytes;
    assert_int_equal(left, 32 * 32 * 4);
    assert_int_equal(e[n - 1].live, e[0].live + 32 * 32 * 4);
    km_release(w);
    km_release(x);
}

static void begin_and_end_must_pair(void **state) {
    km_ctx *ctx = *state;
    size_t n = 7;
    assert_refused(ctx, km_profile_end(ctx, &n), KM_ERR_STATE, "profile: ended without a begin");
    assert_int_equal(n, 0);
    assert_int_equal(km_profile_begin(ctx), KM_OK);
    assert_int_equal(km_profile_begin(ctx), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "profile: it is being recorded already");
    assert_non_null(km_profile_end(ctx, &n)); /* nothing happened: no events, and no error */
    assert_int_equal(n, 0);
    assert_refused(ctx, km_profile_end(ctx, NULL), KM_ERR_STATE, "profile: ended without a begin");
    km_zeros(ctx, KM_F32, KM_SHAPE(10)); /* not recorded */
    assert_int_equal(km_profile_begin(ctx), KM_OK);
    km_zeros(ctx, KM_F32, KM_SHAPE(10)); /* recorded, and never asked for */
    assert_null(km_profile_end(NULL, &n));
    assert_int_equal(km_profile_begin(NULL), KM_ERR_NULL);
}

static void a_failed_context_can_still_end_its_profile(void **state) {
    km_ctx *ctx = *state;
    km_profile_begin(ctx);
    km_zeros(ctx, KM_F32, KM_SHAPE(10));
    km_ctx_fail(ctx, KM_ERR_RANGE, "something else");
    size_t n;
    assert_non_null(km_profile_end(ctx, &n));
    assert_int_equal(n, 1);
    assert_failed(ctx, KM_ERR_RANGE, "something else");
}

static void running_out_of_memory_is_told_at_the_end_and_harms_no_op(void **state) {
    km_ctx *ctx = *state;
    for (int nth = 0; nth < 12; nth++) {
        km_alloc_fail_nth(-1);
        km_zeros(ctx, KM_F32, KM_SHAPE(10)); /* warm: the ops themselves take nothing */
        km_step_end(ctx);
        km_alloc_fail_nth(nth);
        km_status begun = km_profile_begin(ctx);
        if (begun == KM_OK) {
            assert_non_null(km_zeros(ctx, KM_F32, KM_SHAPE(10)));
            size_t n;
            const km_memory_event *e = km_profile_end(ctx, &n);
            if (e)
                assert_int_equal(n, 1);
            else
                assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
        } else {
            assert_int_equal(begun, KM_ERR_MEMORY);
        }
        km_ctx_clear_error(ctx);
        km_step_end(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_step_is_told_op_by_op),
        ON_EACH(a_release_is_told_by_the_name_of_the_maker),
        ON_EACH(the_backward_pass_names_the_op_whose_gradient_it_makes),
        ON("cpu", begin_and_end_must_pair),
        ON("cpu", a_failed_context_can_still_end_its_profile),
        ON("cpu", running_out_of_memory_is_told_at_the_end_and_harms_no_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
