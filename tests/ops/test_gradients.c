/* Every differentiable op of the table, over its trial calls, in f64 on the reference device: the
 * gradient rule against central differences. */
#include "ops/cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define TOLERANCE 2e-6
#define LARGEST 300

typedef struct trial {
    km_ctx *ctx;
    const km_case *c;
    km_tensor *base[KM_CASE_INPUTS]; /* kept; floats are parameters */
    int params[KM_CASE_INPUTS];      /* which inputs they are */
    int n_params, output;
} trial;

static km_tensor *call_op(km_ctx *ctx, km_tensor *const *inputs, int n, void *user) {
    const trial *t = user;
    km_tensor *in[KM_CASE_INPUTS] = {0}, *out[KM_MAX_OUTPUTS];
    for (int i = 0; i < t->c->n_in; i++)
        if (t->base[i]) in[i] = km_case_view(ctx, t->c, i, t->base[i]);
    km_params p = t->c->p;
    if (t->c->op == KM_OP_CAST) p.dtype = KM_F64;
    km_apply(ctx, t->c->op, in, t->c->n_in, &p, out);
    return out[t->output];
}

/* Outputs that only the gradient rule uses (statistics) pass nothing back. */
static int differentiable_outputs(km_op op) {
    return op == KM_OP_ADD_LAYER_NORM || op == KM_OP_ADD_RMS_NORM ? 2 : 1;
}

typedef struct tally {
    km_ctx *ctx;
    int cases, strided, broadcast, empty;
} tally;

static bool check_case(void *user, const km_case *c) {
    tally *all = user;
    trial t = {.ctx = all->ctx, .c = c};
    km_tensor *inputs[KM_CASE_INPUTS];
    char text[160];
    if (c->no_gradient || !(c->dtypes & KM_BIT(KM_F32))) return true;
    for (int i = 0; i < c->n_in; i++) /* the work grows with the square of the size */
        if (km_shape_count(c->in[i].shape) > LARGEST) return true;
    for (int i = 0; i < c->n_in; i++) {
        km_tensor *base = km_case_base(t.ctx, c, i, KM_F64, 11);
        t.base[i] = base ? km_keep(t.ctx, base) : NULL;
        if (!base || !km_dtype_is_float(base->dtype)) continue;
        km_require_grad(t.ctx, t.base[i], true);
        inputs[t.n_params++] = t.base[i];
        all->strided += c->in[i].layout != KM_L_PLAIN;
        all->empty += km_shape_count(c->in[i].shape) == 0;
        all->broadcast += i > 0 && !km_shape_equal(c->in[i].shape, c->in[0].shape);
    }
    for (t.output = 0; t.output < differentiable_outputs(c->op); t.output++) {
        km_grad_report r = {0};
        km_check_grad(t.ctx, call_op, &t, inputs, t.n_params, TOLERANCE, &r);
        if (km_ctx_status(t.ctx) != KM_OK || !r.passed)
            fail_msg(
                "%s of %s, output %d: error %g at input %d element %lld: %.10g by rule, %.10g by "
                "differences. %s",
                km_op_name(c->op), km_case_text(text, sizeof text, c), t.output, r.max_error,
                r.input, (long long)r.element, r.analytic, r.numeric, km_ctx_error(t.ctx));
        km_step_end(t.ctx);
    }
    for (int i = 0; i < c->n_in; i++) km_release(t.base[i]);
    km_step_end(t.ctx);
    all->cases++;
    return true;
}

static void every_gradient_rule_agrees_with_finite_differences(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("ref", 1);
    assert_non_null(ctx);
    tally all = {.ctx = ctx};
    for (int op = 0; op < KM_OP_COUNT; op++) {
        const km_op_row *row = km_op_get((km_op)op);
        if (!row->grad || row->flags & KM_OP_VIEW) continue;
        if (!(row->dtypes & KM_BIT(KM_F64))) continue; /* quantised: tests/ops/test_quant.c */
        int before = all.cases;
        km_cases_each((km_op)op, check_case, &all);
        if (all.cases == before)
            fail_msg("%s has a gradient rule and no case that checks it", row->name);
    }
    print_message("%d cases: %d strided, %d broadcast, %d empty operands\n", all.cases, all.strided,
                  all.broadcast, all.empty);
    assert_true(all.strided > 0 && all.broadcast > 0 && all.empty > 0);
    km_ctx_free(ctx);
}

static void every_op_has_a_row_and_a_reference_kernel(void **state) {
    (void)state;
    for (int op = 0; op < KM_OP_COUNT; op++) {
        const km_op_row *row = km_op_get((km_op)op);
        if (!row->formula || !row->dtypes) fail_msg("%s has no row", km_op_name((km_op)op));
        if (!(row->flags & KM_OP_VIEW) && !km_ref_device()->backend->kernel[op])
            fail_msg("%s has no reference kernel", row->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_row_and_a_reference_kernel),
        cmocka_unit_test(every_gradient_rule_agrees_with_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
