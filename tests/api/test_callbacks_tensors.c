/* Callbacks of contexts: ops and functions of the user's own, captured steps, and memory that others lent. They
 * free their context, end the step, release what they work on, call back in, or stop: an error, and nothing is
 * lost. (The others, and the list of all callbacks: test_callbacks.c.) */
#include "base/alloc.h"
#include "kermes.h"
#include "tensor/dlpack.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum mischief {
    NOTHING,
    CALL_IN,      /* the same call again, once: a callback may */
    STOP,         /* by an error of its own */
    FREE_CONTEXT, /* which is there until the call ends */
    END_STEP,     /* and with it what the call works on */
    RELEASE,      /* what it was given */
    MISCHIEFS
} mischief;

static km_ctx *ctx;
static km_tensor *x; /* kept, and a parameter */
static km_graph *graph;
static mischief does;
static int calls;

static void do_it(void) {
    calls++;
    if (does == STOP) km_ctx_fail(ctx, KM_ERR_UNSUPPORTED, "no more of this");
    if (does == FREE_CONTEXT) km_release(x), km_ctx_free(ctx); /* kept ones before it */
    if (does == END_STEP) km_step_end(ctx);
    if (does == RELEASE) km_release(x);
}

static km_status expected(void) {
    return does <= CALL_IN ? KM_OK : does == STOP ? KM_ERR_UNSUPPORTED : KM_ERR_STATE;
}

static void set_up(mischief m, km_dtype dtype) {
    ctx = km_ctx_new("ref", 1);
    x = km_keep(ctx, km_full(ctx, dtype, KM_SHAPE(3), 2));
    assert_int_equal(km_require_grad(ctx, x, true), KM_OK);
    calls = 0;
    does = m;
}

static void clean_up(void) {
    if (does == FREE_CONTEXT) {
        assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
        return; /* its tensors went with it */
    }
    km_ctx_clear_error(ctx);
    if (does != RELEASE) {
        assert_true(km_item(ctx, km_sum(ctx, x, NULL, 0, false)) == 6); /* as it was */
        km_release(x);
    }
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
    km_ctx_free(ctx);
}

/* ---- km_custom ---- */

static bool in_backward;

static km_tensor *forward(km_ctx *c, km_tensor *const *in, int n, void *user) {
    const km_custom_op *op = user;
    if (!in_backward) do_it();
    if (!in_backward && does == CALL_IN && calls == 1) return km_custom(c, op, in, n);
    return km_ctx_status(c) == KM_OK ? km_mul(c, in[0], in[0]) : NULL;
}

static void backward(km_ctx *c, km_tensor *const *in, int n, km_tensor *out, km_tensor *dy,
                     km_tensor **grads, void *user) {
    (void)n, (void)out;
    if (in_backward) do_it();
    if (in_backward && does == END_STEP) return; /* the list of inputs went with the step */
    if (in_backward &&
        does == CALL_IN) { /* another op, and a loss that is on its way back already */
        km_tensor *more = km_custom(c, user, in, 1);
        assert_non_null(more);
    }
    if (km_ctx_status(c) == KM_OK) grads[0] = km_mul_scalar(c, km_mul(c, dy, in[0]), 2);
}

static void custom_ops_may_do_anything(void **state) {
    (void)state;
    int64_t live[2];
    for (int round = 0; round < 2; round++) {
        for (int back = 0; back < 2; back++)
            for (mischief m = NOTHING; m < MISCHIEFS; m++) {
                km_custom_op op = {.name = "mine", .forward = forward, .backward = backward};
                op.user = &op;
                in_backward = back;
                set_up(m, KM_F32);
                km_tensor *y = km_custom(ctx, &op, &x, 1);
                km_status s = km_ctx_status(ctx);
                if (!back) {
                    /* An input that is released is there until the step ends: the op may use it. */
                    assert_int_equal(s, m == RELEASE ? KM_OK : expected());
                    assert_int_equal(y != NULL, s == KM_OK);
                } else {
                    assert_int_equal(s, KM_OK);
                    s = km_backward(ctx, km_sum(ctx, y, NULL, 0, false));
                    assert_int_equal(s, m == RELEASE ? KM_OK : expected());
                    if (s == KM_OK && m != RELEASE)
                        assert_true(km_item(ctx, km_sum(ctx, km_grad(x), NULL, 0, false)) == 12);
                }
                assert_int_equal(calls, m == CALL_IN && !back ? 2 : 1);
                clean_up();
            }
        live[round] = km_alloc_live();
    }
    assert_int_equal(live[0], live[1]);
}

/* ---- km_check_grad ---- */

static km_tensor *function(km_ctx *c, km_tensor *const *in, int n, void *user) {
    do_it();
    if (does == CALL_IN && calls == 2) { /* the differences of the first one stay its own */
        km_grad_report r;
        assert_int_equal(km_check_grad(c, function, user, in, n, 1e-6, &r), KM_OK);
    }
    return km_ctx_status(c) == KM_OK ? km_mul(c, in[0], in[0]) : NULL;
}

static void a_function_whose_gradient_is_checked_may_do_anything(void **state) {
    (void)state;
    for (mischief m = NOTHING; m < MISCHIEFS; m++) {
        km_grad_report r;
        set_up(m, KM_F64);
        assert_int_equal(km_check_grad(ctx, function, NULL, &x, 1, 1e-6, &r), expected());
        assert_int_equal(r.passed, m <= CALL_IN);
        clean_up();
    }
}

/* ---- km_graph_run ---- */

static void step(km_ctx *c, void *user) {
    (void)user;
    do_it();
    if (does == CALL_IN) km_graph_run(c, &graph, 0, step, NULL); /* itself: refused */
    if (does == NOTHING && user) km_graph_free(graph);
    if (km_ctx_status(c) == KM_OK) km_assign(c, x, km_full(c, KM_F32, KM_SHAPE(3), 2));
}

static void a_step_may_free_its_graph_or_its_context(void **state) {
    (void)state;
    for (mischief m = NOTHING; m < RELEASE; m++)
        for (int frees = 0; frees < 2; frees++)
            for (int run = 1; run < 3; run++) { /* as it is, and while it is captured */
                set_up(NOTHING, KM_F32);
                graph = NULL;
                if (run == 2) assert_int_equal(km_graph_run(ctx, &graph, 0, step, NULL), KM_OK);
                does = m;
                km_status s = km_graph_run(ctx, &graph, 0, step, frees ? &frees : NULL);
                /* A step that ends itself ends once more: nothing to tell. */
                assert_int_equal(s, m == CALL_IN    ? KM_ERR_STATE
                                    : m == END_STEP ? KM_OK
                                                    : expected());
                if (m != NOTHING || !frees) km_graph_free(graph);
                clean_up();
            }
}

/* ---- Memory that others lent ---- */

typedef struct lender {
    struct DLManagedTensor m;
    int64_t shape[1];
    float data[3];
    int deleted;
} lender;

static void deleter(struct DLManagedTensor *m) {
    ((lender *)m->manager)->deleted++;
    do_it();
    if (does == CALL_IN) assert_non_null(km_add(ctx, x, x));
}

static void who_lent_memory_may_do_anything_when_it_comes_back(void **state) {
    (void)state;
    for (mischief m = NOTHING; m < MISCHIEFS; m++)
        for (int at_end = 0; at_end < 2; at_end++) {
            lender l = {.shape = {3}, .data = {1, 2, 3}};
            km_dl_tensor t = {.data = l.data, .ndim = 1, .shape = l.shape};
            t.device.type = KM_DL_CPU;
            t.dtype.code = 2;
            t.dtype.bits = 32;
            t.dtype.lanes = 1;
            l.m = (struct DLManagedTensor){t, &l, deleter};
            set_up(NOTHING, KM_F32);
            km_tensor *lent = km_from_dlpack(ctx, &l.m), *kept = x;
            assert_non_null(lent);
            if (at_end) assert_non_null(km_mul(ctx, x, lent)); /* the tape holds it, too */
            does = m;
            x = m == RELEASE ? lent : kept;
            km_release(lent);
            assert_int_equal(l.deleted, !at_end);
            if (at_end) km_step_end(ctx);
            assert_int_equal(l.deleted, 1);
            x = kept;
            if (m == RELEASE) does = NOTHING;
            clean_up();
            assert_int_equal(l.deleted, 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(custom_ops_may_do_anything),
        cmocka_unit_test(a_function_whose_gradient_is_checked_may_do_anything),
        cmocka_unit_test(a_step_may_free_its_graph_or_its_context),
        cmocka_unit_test(who_lent_memory_may_do_anything_when_it_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
