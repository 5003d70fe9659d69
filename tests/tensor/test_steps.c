/* Steps, scopes and kept tensors: what lives how long, whose memory is reused when, and what a
 * tensor says that is used after its end. */
#include "support/engine.h"

static size_t live(km_ctx *ctx) { return km_ctx_stats(ctx).live_bytes; }

#define PAGE 4096 /* bytes of the tensor below: its own size class */
static km_tensor *page(km_ctx *ctx, double value) {
    return km_full(ctx, KM_F32, KM_SHAPE(PAGE / 4), value);
}

static void a_steps_memory_is_reused_by_the_next(void **state) {
    km_ctx *ctx = *state;
    for (int step = 0; step < 5; step++) {
        km_tensor *a = page(ctx, 1), *b = page(ctx, 2);
        assert_true(km_item(ctx, km_select(ctx, km_add(ctx, a, b), 0, 9)) == 3);
        assert_int_equal(live(ctx), 3 * PAGE);
        km_step_end(ctx);
        assert_int_equal(live(ctx), 0);
    }
    km_stats s = km_ctx_stats(ctx);
    assert_int_equal(s.steps, 5);
    assert_int_equal(s.pool_misses, 3);
    assert_int_equal(s.pool_hits, 12);
    assert_int_equal(s.held_bytes, 3 * PAGE);
    assert_int_equal(s.peak_bytes, 3 * PAGE);
}

static void a_step_can_end_twice_or_be_empty(void **state) {
    km_ctx *ctx = *state;
    km_step_end(ctx);
    km_step_end(ctx);
    page(ctx, 1);
    km_step_end(ctx);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).steps, 4);
    assert_int_equal(live(ctx), 0);
    assert_elements(ctx, km_ones(ctx, KM_F32, KM_SHAPE(1)), 1);
}

static void a_step_ends_on_a_failed_context_too(void **state) {
    km_ctx *ctx = *state;
    page(ctx, 1);
    km_ctx_fail(ctx, KM_ERR_FILE, "stop");
    km_step_end(ctx);
    assert_int_equal(live(ctx), 0);
    assert_failed(ctx, KM_ERR_FILE, "stop"); /* a step's end is no pardon */
}

static void a_kept_tensor_outlives_its_step(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = F32(ctx, KM_SHAPE(3), 1, 2, 3), *kept = km_keep(ctx, t);
    assert_ptr_not_equal(kept, t);
    km_step_end(ctx);
    for (int i = 0; i < 3; i++) { /* nobody else gets its memory */
        km_full(ctx, KM_F32, KM_SHAPE(3), 9);
        km_step_end(ctx);
    }
    assert_elements(ctx, kept, 1, 2, 3);
    km_release(kept);
    km_step_end(ctx);
    assert_int_equal(live(ctx), 0);
}

static void a_view_can_be_kept_without_the_whole(void **state) {
    km_ctx *ctx = *state;
    km_tensor *whole = engine_range(ctx, KM_F32, KM_SHAPE(4, 5));
    km_tensor *column = km_keep(ctx, km_select(ctx, whole, 1, 2));
    km_step_end(ctx);
    assert_elements(ctx, column, 2, 7, 12, 17);
    km_release(column);
}

static void two_handles_share_memory_until_both_are_released(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = km_keep(ctx, page(ctx, 5)), *b = km_keep(ctx, a);
    km_step_end(ctx);
    assert_int_equal(live(ctx), PAGE);
    km_release(a);
    assert_int_equal(live(ctx), PAGE);
    assert_true(engine_element(ctx, b, 7) == 5);
    km_release(b);
    assert_int_equal(live(ctx), 0);
}

static void releasing_twice_or_a_temporary_does_nothing(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = page(ctx, 1), *kept = km_keep(ctx, t);
    km_release(t);
    assert_int_equal(live(ctx), PAGE);
    km_release(kept);
    km_release(kept);
    assert_true(engine_element(ctx, t, 0) == 1); /* the step still has it */
    km_step_end(ctx);
    assert_int_equal(live(ctx), 0);
}

static void a_released_tensor_says_so_when_used(void **state) {
    km_ctx *ctx = *state;
    km_tensor *kept = km_keep(ctx, page(ctx, 1));
    km_step_end(ctx);
    km_tensor *view = km_narrow(ctx, kept, 0, 0, 2);
    km_release(kept);
    const char *text = "exp: argument 1 was freed (released, or made in a scope that has ended)";
    assert_refused(ctx, km_exp(ctx, kept), KM_ERR_STATE, text);
    assert_refused(ctx, km_exp(ctx, view), KM_ERR_STATE, text);
    assert_refused(ctx, km_keep(ctx, kept), KM_ERR_STATE,
                   "keep: the tensor was freed (released, or made in a scope that has ended)");
    assert_int_equal(km_require_grad(ctx, kept, true), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "require_grad: only a kept tensor can be a parameter");
    assert_null(km_tensor_data(kept));
    assert_int_equal(km_tensor_count(kept), PAGE / 4);
}

static void a_scope_frees_what_was_made_in_it(void **state) {
    km_ctx *ctx = *state;
    km_tensor *before = page(ctx, 1);
    km_scope_begin(ctx);
    km_tensor *inside = km_add(ctx, before, before), *result = km_mul(ctx, inside, inside);
    assert_int_equal(live(ctx), 3 * PAGE);
    assert_ptr_equal(km_scope_end(ctx, result), result);
    assert_int_equal(live(ctx), 2 * PAGE);
    assert_true(engine_element(ctx, result, 3) == 4);
    assert_true(engine_element(ctx, before, 3) == 1);
    assert_refused(ctx, km_neg(ctx, inside), KM_ERR_STATE,
                   "neg: argument 1 was freed (released, or made in a scope that has ended)");
    assert_refused(ctx, km_reshape(ctx, inside, KM_SHAPE(-1, 4)), KM_ERR_STATE,
                   "reshape: argument 1 was freed (released, or made in a scope that has ended)");
    assert_true(km_item(ctx, inside) == 0);
    assert_failed(ctx, KM_ERR_STATE,
                  "item: the tensor was freed (released, or made in a scope that has ended)");
    assert_refused(ctx, km_keep(ctx, inside), KM_ERR_STATE,
                   "keep: the tensor was freed (released, or made in a scope that has ended)");
    assert_null(km_tensor_data(inside));
    assert_shape(inside, KM_SHAPE(PAGE / 4));
}

static void memory_freed_by_a_scope_serves_within_the_same_step(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = page(ctx, 1);
    for (int i = 0; i < 20; i++) {
        km_scope_begin(ctx);
        km_tensor *y = km_add_scalar(ctx, km_mul_scalar(ctx, x, 2), -1);
        x = km_scope_end(ctx, y);
    }
    assert_true(engine_element(ctx, x, 0) == 1);
    assert_true(km_ctx_stats(ctx).pool_misses <= 24); /* 21 results are alive, and 2 at work */
    assert_int_equal(live(ctx), 21 * PAGE);
}

static void a_result_that_is_a_view_keeps_its_whole(void **state) {
    km_ctx *ctx = *state;
    km_scope_begin(ctx);
    km_tensor *whole = engine_range(ctx, KM_F32, KM_SHAPE(4, 256));
    km_tensor *row = km_scope_end(ctx, km_select(ctx, whole, 0, 3));
    assert_true(engine_element(ctx, row, 1) == 3 * 256 + 1);
    assert_true(engine_element(ctx, whole, 1) == 1); /* the same bytes */
}

static void a_result_from_outside_the_scope_is_fine(void **state) {
    km_ctx *ctx = *state;
    km_tensor *before = page(ctx, 8);
    km_scope_begin(ctx);
    page(ctx, 1);
    assert_ptr_equal(km_scope_end(ctx, before), before);
    assert_int_equal(live(ctx), PAGE);
    km_scope_begin(ctx);
    page(ctx, 1);
    assert_null(km_scope_end(ctx, NULL));
    assert_int_equal(live(ctx), PAGE);
}

static void scopes_nest(void **state) {
    km_ctx *ctx = *state;
    km_scope_begin(ctx);
    km_tensor *outer = page(ctx, 1);
    km_scope_begin(ctx);
    km_tensor *inner = page(ctx, 2);
    km_tensor *passed = km_scope_end(ctx, km_add(ctx, outer, inner));
    assert_int_equal(live(ctx), 2 * PAGE);
    assert_true(engine_element(ctx, passed, 0) == 3);
    km_tensor *result = km_scope_end(ctx, km_add(ctx, passed, passed));
    assert_int_equal(live(ctx), PAGE); /* what the inner scope let pass is the outer's to free */
    assert_true(engine_element(ctx, result, 0) == 6);
}

static void a_scope_leaves_kept_tensors_alone(void **state) {
    km_ctx *ctx = *state;
    km_scope_begin(ctx);
    km_tensor *kept = km_keep(ctx, page(ctx, 4));
    km_scope_end(ctx, NULL);
    assert_true(engine_element(ctx, kept, 2) == 4);
    km_release(kept);
    assert_int_equal(live(ctx), 0);
}

static void a_scope_ended_without_a_begin_is_an_error(void **state) {
    km_ctx *ctx = *state;
    assert_null(km_scope_end(ctx, page(ctx, 1)));
    assert_failed(ctx, KM_ERR_STATE, "scope: ended without a begin");
}

static void a_step_ends_all_open_scopes(void **state) {
    km_ctx *ctx = *state;
    km_scope_begin(ctx);
    km_scope_begin(ctx);
    page(ctx, 1);
    km_step_end(ctx);
    assert_int_equal(live(ctx), 0);
    km_tensor *t = page(ctx, 1);
    km_scope_end(ctx, NULL);
    assert_failed(ctx, KM_ERR_STATE, "scope: ended without a begin");
    assert_true(engine_element(ctx, t, 0) == 1);
}

static void scopes_stay_paired_through_errors(void **state) {
    km_ctx *ctx = *state;
    km_scope_begin(ctx);
    page(ctx, 1);
    km_ctx_fail(ctx, KM_ERR_FILE, "stop");
    km_scope_begin(ctx); /* model code goes on, doing nothing */
    assert_null(km_scope_end(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(2))));
    assert_null(km_scope_end(ctx, NULL));
    assert_int_equal(live(ctx), 0);
    assert_failed(ctx, KM_ERR_FILE, "stop");
}

static void too_many_scopes_are_an_error_and_still_paired(void **state) {
    km_ctx *ctx = *state;
    for (int i = 0; i < KM_MAX_SCOPES + 3; i++) km_scope_begin(ctx);
    assert_failed(ctx, KM_ERR_STATE, "scope: nested more than 64 deep");
    for (int i = 0; i < KM_MAX_SCOPES + 3; i++) km_scope_end(ctx, NULL);
    assert_ok(ctx);
    km_scope_end(ctx, NULL);
    assert_failed(ctx, KM_ERR_STATE, "scope: ended without a begin");
}

static void what_the_tape_needs_survives_its_scope(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_step_end(ctx);
    km_scope_begin(ctx);
    km_tensor *square = km_mul(ctx, p, p), *cube = km_mul(ctx, square, p);
    km_tensor *loss = km_scope_end(ctx, km_sum(ctx, cube, NULL, 0, false));
    km_full(ctx, KM_F32, KM_SHAPE(2), -1); /* would overwrite freed memory */
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(p), 27, 75);
    km_release(p);
}

static void copies_made_for_an_op_go_with_it(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(32, 32));
    km_softmax(ctx, km_transpose(ctx, t, 0, 1), -1); /* wants its rows in order */
    assert_int_equal(live(ctx), 2 * PAGE);
    float v[1024];
    km_read(ctx, km_transpose(ctx, t, 0, 1), v, sizeof v);
    assert_int_equal(live(ctx), 2 * PAGE);
}

static void peak_memory_is_counted_from_its_last_reset(void **state) {
    km_ctx *ctx = *state;
    km_tensor *kept = km_keep(ctx, page(ctx, 1));
    page(ctx, 1);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).peak_bytes, 2 * PAGE);
    km_stats_reset_peak(ctx);
    assert_int_equal(km_ctx_stats(ctx).peak_bytes, PAGE);
    page(ctx, 1);
    page(ctx, 1);
    assert_int_equal(km_ctx_stats(ctx).peak_bytes, 3 * PAGE);
    km_release(kept);
}

static void trimming_gives_cached_memory_back_and_no_other(void **state) {
    km_ctx *ctx = *state;
    km_tensor *kept = km_keep(ctx, page(ctx, 6));
    page(ctx, 1);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).held_bytes, 2 * PAGE);
    km_trim(ctx);
    assert_int_equal(km_ctx_stats(ctx).held_bytes, PAGE);
    assert_true(engine_element(ctx, kept, 1000) == 6);
    km_release(kept);
}

static void kernels_and_allocations_are_counted(void **state) {
    km_ctx *ctx = *state;
    km_stats before = km_ctx_stats(ctx);
    km_tensor *t = page(ctx, 1);
    km_add(ctx, t, t);
    km_reshape(ctx, t, KM_SHAPE(-1, 8)); /* a view runs nothing */
    km_stats after = km_ctx_stats(ctx);
    assert_int_equal(after.kernels - before.kernels, 2);
    assert_true(after.heap_allocs > before.heap_allocs);
    assert_int_equal(after.heap_allocs, km_alloc_count());
}

static void many_tensors_live_in_one_step(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t[1000];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++) t[i] = km_full(ctx, KM_F32, KM_SHAPE(3), i);
        for (int i = 0; i < 1000; i++) assert_true(*(float *)km_tensor_data(t[i]) == (float)i);
        km_step_end(ctx);
    }
    assert_int_equal(km_ctx_stats(ctx).pool_misses, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_steps_memory_is_reused_by_the_next),
        ON("ref", a_step_can_end_twice_or_be_empty),
        ON("ref", a_step_ends_on_a_failed_context_too),
        ON("ref", a_kept_tensor_outlives_its_step),
        ON("ref", a_view_can_be_kept_without_the_whole),
        ON("ref", two_handles_share_memory_until_both_are_released),
        ON("ref", releasing_twice_or_a_temporary_does_nothing),
        ON("ref", a_released_tensor_says_so_when_used),
        ON_EACH(a_scope_frees_what_was_made_in_it),
        ON_EACH(memory_freed_by_a_scope_serves_within_the_same_step),
        ON("ref", a_result_that_is_a_view_keeps_its_whole),
        ON("ref", a_result_from_outside_the_scope_is_fine),
        ON("ref", scopes_nest),
        ON("ref", a_scope_leaves_kept_tensors_alone),
        ON("ref", a_scope_ended_without_a_begin_is_an_error),
        ON("ref", a_step_ends_all_open_scopes),
        ON("ref", scopes_stay_paired_through_errors),
        ON("ref", too_many_scopes_are_an_error_and_still_paired),
        ON_EACH(what_the_tape_needs_survives_its_scope),
        ON_EACH(copies_made_for_an_op_go_with_it),
        ON("ref", peak_memory_is_counted_from_its_last_reset),
        ON("ref", trimming_gives_cached_memory_back_and_no_other),
        ON_EACH(kernels_and_allocations_are_counted),
        ON("ref", many_tensors_live_in_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
