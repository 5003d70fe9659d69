/* The verify engine on the CPU: every op within its tolerance, and an engine that can say no. */
#include "ops/verify.h"
#include "ops/cases.h"
#include "support/sanitized.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
    int results, failed, fallbacks, references, cases, empty;
} seen;

static void collect(void *user, const km_verify_result *r, int index, int total) {
    seen *s = user;
    (void)index, (void)total;
    s->results++;
    s->cases += r->cases;
    s->empty += r->cases == 0;
    s->failed += !r->passed;
    s->fallbacks += r->fallback;
    if (!r->passed)
        print_error("%s %s: error %g, tolerance %g, %d of %d cases: %s\n", r->op, r->dtype,
                    r->max_error, r->tolerance, r->failed, r->cases, r->worst);
    s->references += r->reference;
    if (r->fallback) print_message("%s %s runs on ref\n", r->op, r->dtype);
}

/* The reference takes nearly all of the time, above all for large cases, which are there for GPUs.
 * `make test` leaves out the 75 largest of 10,600; under sanitizers every op and dtype has all small
 * cases and a sixteenth of the larger ones, where threads work. */
static km_verify_how thorough(void) {
    km_verify_how how = {.seed = 1};
    if (!getenv("KERMES_TEST_LONG")) how.most = 400000;
    if (SANITIZED) how.one_in = 16, how.most = 60000;
    return how;
}

static void every_op_on_the_cpu_agrees_with_the_reference(void **state) {
    (void)state;
    seen s = {0};
    km_error err = {0};
    const km_verify_how how = thorough();
    assert_int_equal(km_verify("cpu", &how, collect, &s, &err), KM_OK);
    assert_true(s.results > KM_OP_COUNT);
    assert_int_equal(s.failed, 0);
    assert_int_equal(s.empty, 0);
    assert_int_equal(s.fallbacks, 0);  /* the CPU has a kernel for every case ... */
    assert_int_equal(s.references, 3); /* ... but of ops that only GPUs use */
}

static void layers_rounded_to_8_bits_pass_with_any_seed(void **state) {
    (void)state;
    static const char *const ops[] = {"quant_linear", "linears", "gated"};
    for (uint64_t seed = 2; seed <= (SANITIZED ? 2 : 4); seed++)
        for (int i = 0; i < 3; i++) {
            seen s = {0};
            km_error err = {0};
            km_verify_how how = {.op = ops[i], .seed = seed, .quick = true};
            if (SANITIZED) how.one_in = 16, how.most = 60000;
            assert_int_equal(km_verify("cpu", &how, collect, &s, &err), KM_OK);
            assert_int_equal(s.failed, 0);
        }
}

static void a_quick_run_leaves_out_cases_but_no_op_and_no_dtype(void **state) {
    (void)state;
    static const char *const ops[] = {"add", "sum", "softmax", "gather"};
    for (int i = 0; i < 4; i++) {
        seen all = {0}, few = {0};
        km_error err = {0};
        km_verify_how how = {.op = ops[i], .seed = 1};
        if (!SANITIZED) assert_int_equal(km_verify("cpu", &how, collect, &all, &err), KM_OK);
        how.quick = true;
        assert_int_equal(km_verify("cpu", &how, collect, &few, &err), KM_OK);
        assert_int_equal(few.empty, 0);
        if (SANITIZED) continue;
        assert_int_equal(few.results, all.results);
        assert_true(few.cases < all.cases);
    }
}

static bool note_long_rows(void *user, const km_case *c) {
    const km_shape *w = &c->in[1].shape;
    if (c->kept && c->in[0].shape.dim[0] == 1 && w->dim[1] >= 2048)
        *(uint32_t *)user |=
            1u << (c->in[1].dtype - KM_Q4_0) | (w->dim[1] % 2048 ? 1u << 30 : 1u << 31);
    return true;
}

static void a_quick_run_has_one_row_with_long_rows_of_every_block_type(void **state) {
    (void)state;
    const uint32_t all = ((1u << (KM_DTYPE_COUNT - KM_Q4_0)) - 1) | 1u << 30 | 1u << 31;
    uint32_t linear = 0, gated = 0;
    km_cases_each(KM_OP_QUANT_LINEAR, note_long_rows, &linear);
    km_cases_each(KM_OP_GATED, note_long_rows, &gated);
    assert_int_equal(linear, all);
    assert_int_equal(gated, all);
}

static void the_float_ops_have_kernels_of_their_own_on_the_cpu(void **state) {
    (void)state;
    for (int op = 0; op < KM_OP_COUNT; op++) {
        const km_op_row *row = km_op_get((km_op)op);
        if (op == KM_OP_SCAN_CODES || op == KM_OP_ENCODE_LEVELS || op == KM_OP_ENCODE_TRELLIS)
            continue; /* a GPU's: the CPU has its own ways, src/vector/scan.h and coder.c */
        if (!(row->flags & KM_OP_VIEW) && !km_cpu_device()->backend->kernel[op])
            fail_msg("%s has no kernel on the cpu", row->name);
    }
}

/* A device whose add is off by one in the last place that counts. */
static km_status wrong_add(km_ctx *ctx, const km_call *c) {
    km_status s = km_ref_device()->backend->kernel[KM_OP_ADD](ctx, c);
    if (c->out[0]->dtype == KM_F32 && km_shape_count(c->out[0]->shape) == 17)
        ((float *)km_tensor_ptr(c->out[0]))[16] *= 1.00001f;
    return s;
}

static void remember_worst(void *user, const km_verify_result *r, int index, int total) {
    (void)index, (void)total;
    if (strcmp(r->dtype, "f32") == 0) *(km_verify_result *)user = *r;
}

static void a_wrong_kernel_is_caught(void **state) {
    (void)state;
    km_device *cpu = km_cpu_device();
    const km_backend *good = cpu->backend;
    static km_backend bad;
    bad = *good;
    bad.kernel[KM_OP_ADD] = wrong_add;
    cpu->backend = &bad;
    km_verify_result r = {0};
    km_error err = {0};
    assert_int_equal(
        km_verify("cpu", &(km_verify_how){.op = "add", .seed = 1}, remember_worst, &r, &err),
        KM_OK);
    cpu->backend = good;
    assert_false(r.passed);
    assert_int_equal(r.failed, 1);
    assert_true(r.max_error > 5e-6 && r.max_error < 2e-5);
    assert_non_null(strstr(r.worst, "[17]"));
}

static void an_unknown_op_or_device_is_an_error(void **state) {
    (void)state;
    km_error err = {0};
    const km_verify_how unknown = {.op = "frobnicate", .seed = 1}, all = {.seed = 1};
    assert_int_equal(km_verify("cpu", &unknown, collect, &(seen){0}, &err), KM_ERR_RANGE);
    err = (km_error){0};
    assert_int_equal(km_verify("tpu", &all, collect, &(seen){0}, &err), KM_ERR_DEVICE);
    assert_non_null(strstr(err.text, "tpu"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_on_the_cpu_agrees_with_the_reference),
        cmocka_unit_test(layers_rounded_to_8_bits_pass_with_any_seed),
        cmocka_unit_test(a_quick_run_leaves_out_cases_but_no_op_and_no_dtype),
        cmocka_unit_test(a_quick_run_has_one_row_with_long_rows_of_every_block_type),
        cmocka_unit_test(the_float_ops_have_kernels_of_their_own_on_the_cpu),
        cmocka_unit_test(a_wrong_kernel_is_caught),
        cmocka_unit_test(an_unknown_op_or_device_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
