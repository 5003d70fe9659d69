/* Steps as graphs on a real GPU: what is captured does what the step's own code does, on new data,
 * with new random numbers, and again after the shapes change. Skipped where there is no GPU. */
#include "live_gpu.h"

enum { PARAMETERS = 64 * 32 + 64 + 8 * 64 + 8 };

static void read_parameters(net *n, float *out) {
    for (int i = 0; i < 4; i++) {
        size_t count = (size_t)km_tensor_count(n->p[i]);
        assert_int_equal(km_read(n->ctx, n->p[i], out, count * sizeof *out), KM_OK);
        out += count;
    }
}

static void a_replayed_training_step_gives_the_bits_of_the_step_itself(void **state) {
    (void)state;
    static float plain[PARAMETERS], replayed[PARAMETERS];
    double losses[2][12];
    for (int graph = 0; graph < 2; graph++) {
        km_ctx *ctx = km_ctx_new(GPU, 1);
        net n = net_open(ctx, 48);
        km_graph *g = NULL;
        for (int i = 0; i < 12; i++) {
            net_feed(&n, i);
            if (graph) {
                assert_int_equal(km_graph_run(ctx, &g, 1, net_step, &n), KM_OK);
            } else {
                net_step(ctx, &n);
                km_step_end(ctx);
            }
            losses[graph][i] = km_item(ctx, n.loss);
            assert_ok(ctx);
        }
        assert_int_equal(n.runs, graph ? 2 : 12); /* once as it is, once to be captured */
        assert_int_equal(km_graph_captured(g), graph == 1);
        read_parameters(&n, graph ? replayed : plain);
        km_graph_free(g);
        net_close(&n);
        km_ctx_free(ctx);
    }
    for (int i = 0; i < 12; i++) {
        assert_true(isfinite(losses[0][i]) && losses[0][i] > 0);
        assert_true(losses[0][i] == losses[1][i]);
    }
    assert_memory_equal(plain, replayed, sizeof plain);
}

static void a_new_key_captures_anew_and_the_old_shapes_come_back(void **state) {
    (void)state;
    static const int64_t rows[] = {48, 17, 48, 200};
    km_ctx *ctx = km_ctx_new(GPU, 1), *other = km_ctx_new(GPU, 1);
    net a = net_open(ctx, 48), b = net_open(other, 48);
    km_graph *g = NULL;
    for (int k = 0; k < 4; k++) {
        net_batch(&a, rows[k]);
        net_batch(&b, rows[k]);
        a.runs = 0;
        for (int i = 0; i < 5; i++) {
            net_feed(&a, i);
            net_feed(&b, i);
            assert_int_equal(km_graph_run(ctx, &g, (uint64_t)k, net_step, &a), KM_OK);
            assert_int_equal(km_graph_captured(g), i > 0);
            net_step(other, &b);
            km_step_end(other);
            assert_true(km_item(ctx, a.loss) == km_item(other, b.loss));
        }
        assert_int_equal(a.runs, 2);
    }
    km_graph_free(g);
    net_close(&a);
    net_close(&b);
    km_ctx_free(ctx);
    km_ctx_free(other);
}

typedef struct inference {
    km_tensor *x, *w, *y;
    int runs;
} inference;

static void normalise(km_ctx *ctx, void *user) {
    inference *f = user;
    f->runs++;
    km_assign(ctx, f->y, km_softmax(ctx, km_rms_norm(ctx, f->x, f->w, 1e-5), -1));
}

static void other_work_between_replays_is_left_alone(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    inference f = {.x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(33, 257))),
                   .w = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(257))),
                   .y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(33, 257)))};
    km_graph *g = NULL;
    static float x[33 * 257], y[33 * 257], want[33 * 257];
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 33 * 257; k++) x[k] = cosf((float)(k + i));
        km_write(ctx, f.x, x, sizeof x);
        /* Made before the replay, read after it: must not lie in the graph's memory. */
        km_tensor *mine = km_mul_scalar(ctx, f.x, 2);
        km_tensor *expected = km_softmax(ctx, km_rms_norm(ctx, f.x, f.w, 1e-5), -1);
        km_tensor *kept = km_keep(ctx, mine), *kept_want = km_keep(ctx, expected);
        assert_int_equal(km_graph_run(ctx, &g, 7, normalise, &f), KM_OK);
        assert_int_equal(km_read(ctx, f.y, y, sizeof y), KM_OK);
        assert_int_equal(km_read(ctx, kept_want, want, sizeof want), KM_OK);
        assert_memory_equal(y, want, sizeof y);
        assert_int_equal(km_read(ctx, kept, y, sizeof y), KM_OK);
        for (int k = 0; k < 33 * 257; k += 101) assert_true(y[k] == 2 * x[k]);
        km_release(kept);
        km_release(kept_want);
    }
    assert_int_equal(f.runs, 2);
    km_graph_free(g);
    km_release(f.x);
    km_release(f.w);
    km_release(f.y);
    km_ctx_free(ctx);
}

static void reads_its_loss(km_ctx *ctx, void *user) {
    net *n = user;
    net_step(ctx, n);
    km_item(ctx, n->loss);
}

static void a_step_that_reads_back_cannot_be_captured_and_the_context_goes_on(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    net n = net_open(ctx, 16);
    km_graph *g = NULL;
    net_feed(&n, 0);
    assert_int_equal(km_graph_run(ctx, &g, 1, reads_its_loss, &n), KM_OK); /* not yet captured */
    assert_int_equal(km_graph_run(ctx, &g, 1, reads_its_loss, &n), KM_ERR_STATE);
    assert_says(km_ctx_error(ctx), "while a graph is captured");
    km_ctx_clear_error(ctx);
    km_graph_free(g);
    g = NULL;
    for (int i = 0; i < 4; i++) assert_int_equal(km_graph_run(ctx, &g, 2, net_step, &n), KM_OK);
    assert_true(isfinite(km_item(ctx, n.loss)));
    assert_ok(ctx);
    km_graph_free(g);
    net_close(&n);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replayed_training_step_gives_the_bits_of_the_step_itself),
        cmocka_unit_test(a_new_key_captures_anew_and_the_old_shapes_come_back),
        cmocka_unit_test(other_work_between_replays_is_left_alone),
        cmocka_unit_test(a_step_that_reads_back_cannot_be_captured_and_the_context_goes_on),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
