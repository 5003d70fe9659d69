/* NCCL on a real GPU, with one rank: the library is found and joined, its calls are right, and a
 * training step with gradients on their way can be captured and replayed. Skipped where there is no
 * GPU or no NCCL. */
#include "backend/live_gpu.h"
#include "comm/transport.h"
#include "nn/optim.h"
#include "nn/reducer.h"

static void every_collective_of_one_rank_leaves_the_tensor_as_it_is(void **state) {
    (void)state;
    static const km_dtype dtypes[] = {KM_F32, KM_F16, KM_BF16};
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_error err = {0};
    km_comm *c = km_comm_open("nccl", ctx, &err);
    if (!c) fail_msg("%s", err.text);
    assert_string_equal(km_comm_name(c), "nccl");
    assert_true(km_comm_capturable(c));
    for (int d = 0; d < 3; d++)
        for (int op = KM_COMM_ALL_REDUCE; op <= KM_COMM_BROADCAST; op++) {
            float before[1000], after[1000];
            km_tensor *t = km_copy(ctx, km_normal(ctx, dtypes[d], KM_SHAPE(1000), 0, 1));
            km_read(ctx, km_cast(ctx, t, KM_F32), before, sizeof before);
            assert_int_equal(km_comm_run(ctx, c, (km_comm_op)op, t), KM_OK);
            km_read(ctx, km_cast(ctx, t, KM_F32), after, sizeof after);
            assert_memory_equal(before, after, sizeof before);
            km_step_end(ctx);
        }
    km_comm_close(c);
    km_ctx_free(ctx);
}

/* ---- A training step ---- */

enum { ROWS = 64, IN = 96, HIDDEN = 128, STEPS = 8 };

typedef struct trial {
    km_param_list params;
    km_tensor *w1, *b1, *w2, *x, *loss;
    km_optimizer *o;
    int runs;
} trial;

static void step(km_ctx *ctx, void *user) {
    trial *t = user;
    t->runs++;
    km_tensor *h = km_linear(ctx, t->x, t->w1, t->b1, KM_ACT_GELU);
    km_tensor *y = km_cast(ctx, km_linear(ctx, h, t->w2, NULL, KM_ACT_NONE), KM_F32);
    km_tensor *loss = km_mse(ctx, y, km_cast(ctx, t->x, KM_F32), KM_MEAN);
    km_optimizer_last_backward(ctx, t->o);
    km_backward(ctx, loss);
    km_optimizer_step(ctx, t->o);
    km_optimizer_zero_grad(ctx, t->o);
    km_assign(ctx, t->loss, loss);
}

/* The losses and the last weights, with or without NCCL, run or replayed. */
static void train(bool nccl, bool graph, double *losses, float *weights) {
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_error err = {0};
    km_comm *c = nccl ? km_comm_open("nccl", ctx, &err) : NULL;
    trial t = {0};
    km_graph *g = NULL;
    km_seed(ctx, 11);
    t.w1 = km_param_add(ctx, &t.params, KM_BF16, KM_SHAPE(HIDDEN, IN), true, "w1");
    t.b1 = km_param_add(ctx, &t.params, KM_BF16, KM_SHAPE(HIDDEN), false, "b1");
    t.w2 = km_param_add(ctx, &t.params, KM_BF16, KM_SHAPE(IN, HIDDEN), true, "w2");
    km_assign(ctx, t.w1, km_normal(ctx, KM_F32, KM_SHAPE(HIDDEN, IN), 0, 0.1));
    km_assign(ctx, t.w2, km_normal(ctx, KM_F32, KM_SHAPE(IN, HIDDEN), 0, 0.1));
    t.x = km_keep(ctx, km_normal(ctx, KM_BF16, KM_SHAPE(ROWS, IN), 0, 1));
    t.loss = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SCALAR));
    km_optim_settings how = km_optim_defaults();
    how.max_norm = 0; /* the norm itself is summed in another order */
    t.o = km_optimizer_new_ranks(ctx, &t.params, &how, c);
    assert_non_null(t.o);
    assert_true(km_optimizer_capturable(t.o));
    for (int i = 0; i < STEPS; i++) {
        km_optimizer_set(ctx, t.o, 0.01 / (1 + i), 1); /* a rate of its own for each replay */
        if (graph)
            km_graph_run(ctx, &g, 1, step, &t);
        else
            step(ctx, &t), km_step_end(ctx);
        losses[i] = km_item(ctx, t.loss);
        assert_ok(ctx);
    }
    assert_int_equal(t.runs, graph ? 2 : STEPS);
    km_read(ctx, km_cast(ctx, t.w1, KM_F32), weights, sizeof *weights * HIDDEN * IN);
    km_step_end(ctx);
    km_graph_free(g);
    km_optimizer_free(t.o);
    km_param_clear(&t.params);
    km_release(t.x);
    km_release(t.loss);
    km_comm_close(c);
    km_ctx_free(ctx);
}

static void a_step_over_nccl_gives_the_same_bits_run_and_replayed(void **state) {
    (void)state;
    static float plain[HIDDEN * IN], other[HIDDEN * IN];
    double want[STEPS], got[STEPS];
    km_reducer_bucket_bytes = 1 << 12; /* several buckets */
    train(false, false, want, plain);
    assert_true(want[STEPS - 1] < want[0]);
    for (int form = 1; form < 4; form++) {
        train(form & 2, form & 1, got, other);
        for (int i = 0; i < STEPS; i++) assert_true(got[i] == want[i]);
        assert_memory_equal(plain, other, sizeof plain);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_of_one_rank_leaves_the_tensor_as_it_is),
        cmocka_unit_test(a_step_over_nccl_gives_the_same_bits_run_and_replayed),
    };
    if (km_cuda_device_count() == 0 || !km_nccl_there(NULL)) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
