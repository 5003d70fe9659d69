/* Chains of elementwise ops: which ops share a kernel, what it stores, and that nothing reaches the
 * GPU before ops that were held back. A made-up driver runs the kernels: its ops are no real ones,
 * but each gives another number, so that a wrong operand or order shows. */
#include "fake_cuda.h"

#include "backend/backend.h"
#include "backend/cuda/graph.h"
#include "backend/cuda/lane.h"
#include "chain_programs.h"

static float made_up(int op, float a, float b, double f0, double f1) {
    return 0.625f * a - 0.375f * b + 0.01f * (float)op + 0.125f * (float)(f0 - f1);
}

static void run_kernel(const fake_launch *w) { fake_run_ops(w, made_up); }

/* ---- A context with two kept inputs ---- */

#define N 37

static km_ctx *ctx;
static km_tensor *a, *b;

static km_cuda_chain *chain(void) { return &km_cuda_queue_of(ctx->lanes[0])->chain; }

static km_tensor *some(float from) {
    float v[N];
    for (int i = 0; i < N; i++) v[i] = from + (float)i * 0.25f;
    return km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N), v));
}

static int open_chain(void **state) {
    fake_open_with(state, run_kernel);
    ctx = km_ctx_new("cuda:0", 1);
    a = some(1);
    b = some(-3);
    km_step_end(ctx);
    return 0;
}

static int close_chain(void **state) {
    km_cuda_fault(NULL, -1, 0);
    km_release(a);
    km_release(b);
    km_ctx_free(ctx);
    return fake_close(state);
}
#define CHAIN(test) cmocka_unit_test_setup_teardown(test, open_chain, close_chain)

static void assert_first(const km_tensor *t, float want) {
    float v[N];
    assert_int_equal(km_read(ctx, t, v, sizeof v), KM_OK);
    if (v[0] != want) fail_msg("%g is not %g", (double)v[0], (double)want);
}

static const km_chain_args *last_program(void) {
    assert_string_equal(fake.last.kernel, "chain_f32");
    return (const km_chain_args *)fake.last.args;
}

static int stores(const km_chain_args *p) {
    int n = 0;
    for (int i = 0; i < p->n_steps; i++) n += p->step[i].out != NULL;
    return n;
}

#define F(op, x, y, f0, f1) made_up(KM_OP_##op, x, y, f0, f1)

/* ---- What is fused ---- */

static void ops_that_read_each_other_are_one_kernel(void **state) {
    long before = fake.launches;
    km_scope_begin(ctx);
    km_tensor *y = km_mul_scalar(ctx, km_relu(ctx, km_add(ctx, a, b)), 2);
    assert_int_equal(fake.launches, before);
    y = km_scope_end(ctx, y);
    assert_first(y, F(MUL_SCALAR, F(RELU, F(ADD, 1, -3, 0, 0), 0, 0, 0), 0, 2, 0));
    assert_int_equal(fake.launches, before + 1);
    assert_int_equal(stores(last_program()), 1);
    assert_int_equal(last_program()->n_in, 2);
    assert_int_equal(chain()->ops, 3);
    assert_int_equal(chain()->kernels, 1);
}

static void an_op_alone_is_its_own_kernel(void **state) {
    km_tensor *y = km_relu(ctx, a);
    assert_first(y, F(RELU, 1, 0, 0, 0));
    assert_string_equal(fake.last.kernel, "unary_relu_f32");
    assert_int_equal(chain()->ops, 0);
}

static void results_that_somebody_holds_are_stored(void **state) {
    km_scope_begin(ctx);
    km_tensor *sum = km_add(ctx, a, b), *kept = km_keep(ctx, sum);
    km_tensor *y = km_scope_end(ctx, km_neg(ctx, km_abs(ctx, sum)));
    float s = F(ADD, 1, -3, 0, 0);
    assert_first(y, F(NEG, F(ABS, s, 0, 0, 0), 0, 0, 0));
    assert_int_equal(stores(last_program()), 2);
    assert_first(kept, s);
    km_release(kept);
}

static void what_the_tape_saved_is_stored(void **state) {
    km_tensor *x = some(2);
    km_require_grad(ctx, x, true);
    km_scope_begin(ctx);
    /* tanh's gradient reads its output, neg's and add's read nothing */
    km_tensor *y = km_scope_end(ctx, km_neg(ctx, km_tanh(ctx, km_add(ctx, x, b))));
    km_sync(ctx);
    assert_int_equal(stores(last_program()), 2);
    assert_true(last_program()->step[1].out != NULL);
    (void)y;
    km_step_end(ctx);
    km_release(x);
}

static void steps_whose_results_nobody_wants_are_left_out(void **state) {
    km_scope_begin(ctx);
    km_tensor *sum = km_add(ctx, a, b);
    km_exp(ctx, sum);
    km_tensor *y = km_scope_end(ctx, km_neg(ctx, sum));
    assert_first(y, F(NEG, F(ADD, 1, -3, 0, 0), 0, 0, 0));
    assert_int_equal(last_program()->n_steps, 2);
    /* the newest result is made even so; alone, it needs no chain */
    km_scope_begin(ctx);
    sum = km_add(ctx, a, b);
    km_add_scalar(ctx, sum, 1);
    km_scope_end(ctx, NULL);
    km_sync(ctx);
    assert_int_equal(last_program()->n_steps, 2);
    assert_int_equal(stores(last_program()), 1);
}

static void a_result_read_later_is_kept_in_place(void **state) {
    km_scope_begin(ctx);
    km_tensor *s = km_add(ctx, a, b), *t = km_abs(ctx, s), *u = km_neg(ctx, t);
    km_tensor *y = km_scope_end(ctx, km_sub(ctx, km_mul(ctx, u, s), t));
    float fs = F(ADD, 1, -3, 0, 0), ft = F(ABS, fs, 0, 0, 0), fu = F(NEG, ft, 0, 0, 0);
    assert_first(y, F(SUB, F(MUL, fu, fs, 0, 0), ft, 0, 0));
    assert_int_equal(last_program()->n_steps, 5);
    assert_int_equal(stores(last_program()), 1);
}

/* ---- What is not ---- */

static void an_op_that_reads_nothing_of_the_chain_begins_another(void **state) {
    long before = fake.launches;
    km_tensor *x = km_add(ctx, a, b), *y = km_mul(ctx, a, b);
    assert_int_equal(fake.launches, before + 1);
    assert_string_equal(fake.last.kernel, "binary_add_f32");
    assert_first(y, F(MUL, 1, -3, 0, 0));
    assert_first(x, F(ADD, 1, -3, 0, 0));
}

static void other_sizes_and_repeated_operands_are_launched_by_themselves(void **state) {
    km_tensor *x = km_relu(ctx, a), *part = km_narrow(ctx, x, 0, 0, 16);
    km_tensor *y = km_neg(ctx, part); /* a part of what is held back */
    assert_string_equal(fake.last.kernel, "unary_relu_f32");
    assert_int_equal(chain()->n, 1);
    km_add(ctx, km_relu(ctx, a), km_narrow(ctx, b, 0, 1, 1)); /* one element for all */
    assert_int_equal(chain()->n, 0);
    float v[16];
    assert_int_equal(km_read(ctx, y, v, sizeof v), KM_OK);
    assert_true(v[0] == F(NEG, F(RELU, 1, 0, 0, 0), 0, 0, 0));
    km_pow(ctx, km_relu(ctx, a), b); /* an op with long code */
    assert_string_equal(fake.last.kernel, "binary_pow_f32");
    assert_int_equal(chain()->n, 0);
}

/* x = f(x[4:]) is not the same at every index: never in a chain that has x. */
static void memory_that_overlaps_askew_is_not_in_one_chain(void **state) {
    km_tensor *x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(64)));
    km_tensor *low = km_narrow(ctx, x, 0, 0, 32), *high = km_narrow(ctx, x, 0, 4, 32);
    km_tensor *y = km_neg(ctx, low);
    long before = fake.launches;
    km_apply_into(ctx, KM_OP_RELU, &y, 1, NULL, high); /* over what the first step reads */
    assert_int_equal(fake.launches, before + 1);
    km_tensor *in[2] = {y, low};
    km_apply_into(ctx, KM_OP_ADD, in, 2, NULL, low); /* reads what is still to be written */
    assert_int_equal(fake.launches, before + 2);
    km_sync(ctx);
    float v[64], n = F(NEG, 0, 0, 0, 0), r = F(RELU, n, 0, 0, 0);
    assert_int_equal(km_read(ctx, x, v, sizeof v), KM_OK);
    assert_true(v[0] == F(ADD, n, 0, 0, 0));
    assert_true(v[4] == F(ADD, n, r, 0, 0));
    assert_true(v[35] == r);
    km_release(x);
}

static void long_chains_are_cut(void **state) {
    km_scope_begin(ctx);
    km_tensor *x = a;
    float want = 1;
    for (int i = 0; i < 2 * KM_CHAIN_STEPS + 3; i++) {
        x = km_add_scalar(ctx, x, i);
        want = F(ADD_SCALAR, want, 0, i, 0);
    }
    x = km_scope_end(ctx, x);
    assert_first(x, want);
    assert_int_equal(chain()->kernels, 3);
    assert_int_equal(chain()->ops, 2 * KM_CHAIN_STEPS + 3);
}

static void a_chain_of_many_inputs_is_cut(void **state) {
    km_tensor *in[KM_CHAIN_INPUTS + 2], *x = a;
    float want = 1;
    for (int i = 0; i < KM_CHAIN_INPUTS + 2; i++) in[i] = some((float)i);
    for (int i = 0; i < KM_CHAIN_INPUTS + 2; i++) {
        x = km_add(ctx, x, in[i]);
        want = F(ADD, want, (float)i, 0, 0);
    }
    assert_first(x, want);
    assert_int_equal(chain()->kernels, 2);
    for (int i = 0; i < KM_CHAIN_INPUTS + 2; i++) km_release(in[i]);
}

static void a_setting_turns_chains_off(void **state) {
    setenv("KERMES_FUSE", "0", 1);
    km_ctx *plain = km_ctx_new("cuda:0", 1);
    unsetenv("KERMES_FUSE");
    long before = fake.launches;
    km_tensor *x = km_zeros(plain, KM_F32, KM_SHAPE(N));
    km_neg(plain, km_relu(plain, x));
    assert_int_equal(fake.launches, before + 3);
    km_ctx_free(plain);
}

/* ---- Memory that is used again while a chain waits ---- */

static void a_result_may_take_the_place_of_an_input(void **state) {
    float v[N];
    for (int i = 0; i < N; i++) v[i] = 5;
    km_tensor *x = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N), v));
    km_step_end(ctx);
    const void *place = km_tensor_ptr(x);
    km_tensor *y = km_neg(ctx, x);
    km_release(x); /* x's memory is free; the chain still has to read it */
    km_tensor *z = km_add(ctx, y, a);
    assert_ptr_equal(km_tensor_ptr(z), place);
    assert_first(z, F(ADD, F(NEG, 5, 0, 0, 0), 1, 0, 0));
    assert_first(y, F(NEG, 5, 0, 0, 0));
    assert_int_equal(chain()->ops, 2);
}

static void a_result_may_take_the_place_of_a_dropped_one(void **state) {
    km_tensor *s = km_keep(ctx, km_add(ctx, a, b));
    km_step_end(ctx);
    const void *place = km_tensor_ptr(s);
    km_tensor *t = km_abs(ctx, s);
    km_release(s);
    km_tensor *u = km_neg(ctx, t);
    assert_ptr_equal(km_tensor_ptr(u), place);
    km_tensor *y = km_sub(ctx, u, t);
    float ft = F(ABS, F(ADD, 1, -3, 0, 0), 0, 0, 0), fu = F(NEG, ft, 0, 0, 0);
    assert_first(y, F(SUB, fu, ft, 0, 0));
    assert_first(u, fu);
}

static void changes_in_place_join_the_chain(void **state) {
    km_tensor *x = some(4), *in[2] = {x, a};
    km_apply_into(ctx, KM_OP_ADD, in, 2, NULL, x);
    km_tensor *y = km_neg(ctx, x);
    in[1] = y;
    km_apply_into(ctx, KM_OP_MUL, in, 2, NULL, x);
    float first = F(ADD, 4, 1, 0, 0), fy = F(NEG, first, 0, 0, 0);
    assert_first(x, F(MUL, first, fy, 0, 0));
    assert_int_equal(stores(last_program()), 2); /* x once, and y */
    assert_first(y, fy);
    km_release(x);
}

/* ---- Nothing overtakes a chain ---- */

static void upload(void) {
    float v[N] = {0};
    km_write(ctx, b, v, sizeof v);
}
static void download(void) {
    float v[N];
    km_read(ctx, b, v, sizeof v);
}
static void wait_for_it(void) { km_sync(ctx); }
static void launch(void) { km_zeros(ctx, KM_F32, KM_SHAPE(3)); }
static void copy(void) { km_copy(ctx, b); }
static void give_memory_back(void) { km_trim(ctx); }
static void scratch_bytes(void) { km_cuda_counters(ctx->lanes[0]); }
static void begin_graph(void) { km_cuda_graph_begin(ctx->lanes[0]); }

static void each_way_to_the_gpu_runs_the_chain_first(void **state) {
    static const struct {
        const char *name;
        void (*go)(void);
    } ways[] = {{"an upload", upload},
                {"a download", download},
                {"a wait", wait_for_it},
                {"a launch", launch},
                {"a copy", copy},
                {"freed memory", give_memory_back},
                {"shared counters", scratch_bytes},
                {"a capture", begin_graph}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        km_tensor *gone = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(5000))); /* for the trim */
        km_step_end(ctx);
        km_release(gone);
        km_tensor *y = km_keep(ctx, km_neg(ctx, km_relu(ctx, a)));
        assert_int_equal(chain()->n, 2);
        long kernels = fake.launches;
        ways[i].go();
        if (chain()->n) fail_msg("%s overtook a chain", ways[i].name);
        assert_true(fake.launches > kernels);
        if (ways[i].go == begin_graph) {
            assert_true(fake.capture && fake.capture->n == 0); /* it ran, and was not recorded */
            km_cuda_graph_free(km_cuda_graph_end(ctx->lanes[0], NULL));
        }
        assert_first(y, F(NEG, F(RELU, 1, 0, 0, 0), 0, 0, 0));
        km_release(y);
        km_step_end(ctx);
    }
}

static void a_captured_step_ends_with_its_last_chain(void **state) {
    km_lane *lane = ctx->lanes[0];
    km_tensor *y = some(0);
    km_neg(ctx, km_relu(ctx, a)); /* pending when the capture begins */
    assert_int_equal(km_cuda_graph_begin(lane), KM_OK);
    km_tensor *in[2] = {km_abs(ctx, km_add(ctx, a, b)), a};
    km_apply_into(ctx, KM_OP_MUL, in, 2, NULL, y);
    km_step_end(ctx);
    km_cuda_graph *g = km_cuda_graph_end(lane, NULL);
    assert_non_null(g);
    assert_int_equal(km_cuda_graph_nodes(g), 1);
    assert_first(y, 0);
    for (int i = 0; i < 3; i++) {
        float v[N];
        for (int k = 0; k < N; k++) v[k] = (float)i;
        km_write(ctx, a, v, sizeof v);
        km_relu(ctx, a); /* a replay comes after it */
        assert_int_equal(km_cuda_graph_launch(g), KM_OK);
        assert_int_equal(chain()->n, 0);
        float abs_sum = F(ABS, F(ADD, (float)i, -3, 0, 0), 0, 0, 0);
        assert_first(y, F(MUL, abs_sum, (float)i, 0, 0));
    }
    km_cuda_graph_free(g);
    km_release(y);
}

static void a_launch_that_fails_later_fails_the_context(void **state) {
    km_ctx_set_fallback(ctx, false);
    km_tensor *y = km_neg(ctx, km_relu(ctx, a));
    assert_non_null(y);
    km_cuda_fault("launch", 0, KM_CU_INVALID_VALUE);
    km_sync(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    km_ctx_clear_error(ctx);
    assert_first(km_relu(ctx, a), F(RELU, 1, 0, 0, 0));
}

/* ---- Random programs ---- */

static void random_programs_give_what_single_ops_give(void **state) {
    uint64_t fused = 0;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        void *left[2];
        size_t bytes = 0;
        for (int plain = 0; plain < 2; plain++) {
            if (plain) setenv("KERMES_FUSE", "0", 1);
            km_ctx *c = km_ctx_new("cuda:0", 1);
            unsetenv("KERMES_FUSE");
            program p;
            program_start(c, &p, seed, true, KM_F32, 16 + (int64_t)(seed % 5) * 7);
            program_run(c, &p, 12);
            left[plain] = program_end(c, &p, &bytes);
            assert_int_equal(km_ctx_status(c), KM_OK);
            km_cuda_chain *done = &km_cuda_queue_of(c->lanes[0])->chain;
            if (plain)
                assert_int_equal(done->ops, 0);
            else
                fused += done->ops;
            km_ctx_free(c);
        }
        if (memcmp(left[0], left[1], bytes) != 0) fail_msg("program %u differs", seed);
        free(left[0]);
        free(left[1]);
    }
    assert_true(fused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHAIN(ops_that_read_each_other_are_one_kernel),
        CHAIN(an_op_alone_is_its_own_kernel),
        CHAIN(results_that_somebody_holds_are_stored),
        CHAIN(what_the_tape_saved_is_stored),
        CHAIN(steps_whose_results_nobody_wants_are_left_out),
        CHAIN(a_result_read_later_is_kept_in_place),
        CHAIN(an_op_that_reads_nothing_of_the_chain_begins_another),
        CHAIN(other_sizes_and_repeated_operands_are_launched_by_themselves),
        CHAIN(memory_that_overlaps_askew_is_not_in_one_chain),
        CHAIN(long_chains_are_cut),
        CHAIN(a_chain_of_many_inputs_is_cut),
        CHAIN(a_setting_turns_chains_off),
        CHAIN(a_result_may_take_the_place_of_an_input),
        CHAIN(a_result_may_take_the_place_of_a_dropped_one),
        CHAIN(changes_in_place_join_the_chain),
        CHAIN(each_way_to_the_gpu_runs_the_chain_first),
        CHAIN(a_captured_step_ends_with_its_last_chain),
        CHAIN(a_launch_that_fails_later_fails_the_context),
        CHAIN(random_programs_give_what_single_ops_give)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
