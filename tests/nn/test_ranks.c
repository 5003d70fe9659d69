/* Two ranks train one model: each sees half of the batch and updates half of the weights, and what
 * comes out is what one rank would make of the whole batch. */
#include "nn/optim.h"
#include "nn/reducer.h"
#include "support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static km_ctx *ctx;
static km_comm *comm;
static int rank;

enum { BATCH = 8, IN = 37, HIDDEN = 53, OUT = 11, STEPS = 6, PARAMS = 5 };

typedef struct model {
    km_param_list params;
    km_tensor *w1, *b1, *w2, *b2, *unused;
} model;

static km_tensor *fill(km_tensor *t, double seed) {
    int64_t n = km_tensor_count(t);
    float *v = malloc(sizeof *v * (size_t)n);
    for (int64_t i = 0; i < n; i++) v[i] = 0.2f * (float)sin(seed + (double)i * 1.7);
    km_assign(ctx, t, km_from_data(ctx, KM_F32, km_tensor_shape(t), v));
    free(v);
    return t;
}

/* `seed`: ranks that begin apart must come together. */
static model make(km_dtype d, double seed) {
    model m = {0};
    m.w1 = fill(km_param_add(ctx, &m.params, d, KM_SHAPE(HIDDEN, IN), true, "w1"), seed);
    m.b1 = fill(km_param_add(ctx, &m.params, d, KM_SHAPE(HIDDEN), false, "b1"), seed + 1);
    m.w2 = fill(km_param_add(ctx, &m.params, d, KM_SHAPE(OUT, HIDDEN), true, "w2"), seed + 2);
    m.b2 = fill(km_param_add(ctx, &m.params, d, KM_SHAPE(OUT), false, "b2"), seed + 3);
    m.unused = fill(km_param_add(ctx, &m.params, d, KM_SHAPE(7), true, "unused"), seed + 4);
    km_step_end(ctx);
    return m;
}

static void clear(model *m, km_optimizer *o) {
    km_optimizer_free(o);
    km_param_clear(&m->params);
    km_step_end(ctx);
}

/* The mean loss over rows first .. first + count - 1 of a fixed batch; the first weight is used
 * twice, so its gradient is complete only at the end. */
static km_tensor *loss_of(const model *m, int step, int first, int count) {
    km_tensor *x =
        km_narrow(ctx, fill(km_zeros(ctx, KM_F32, KM_SHAPE(BATCH, IN)), step), 0, first, count);
    x = km_cast(ctx, km_mul_scalar(ctx, x, 5), km_tensor_dtype(m->w1));
    km_tensor *h = km_linear(ctx, x, m->w1, m->b1, KM_ACT_GELU);
    km_tensor *y = km_linear(ctx, h, m->w2, m->b2, KM_ACT_NONE);
    km_tensor *again = km_matmul(ctx, h, m->w1);
    km_tensor *loss = km_mse(ctx, y, km_mul_scalar(ctx, y, 0), KM_MEAN);
    km_tensor *more = km_mse(ctx, again, x, KM_MEAN);
    return km_add(ctx, loss, more);
}

static km_optim_settings settings(void) {
    km_optim_settings how = km_optim_defaults();
    how.max_norm = 0.5;
    return how;
}

static void read_params(const model *m, float *v) {
    for (int i = 0; i < PARAMS; i++) {
        km_tensor *t = m->params.at[i].t;
        int64_t n = km_tensor_count(t);
        km_read(ctx, km_cast(ctx, t, KM_F32), v, (size_t)n * sizeof *v);
        v += n;
    }
    km_step_end(ctx);
}

enum { ALL = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT + 7 };

/* Trains on this rank's half (or, alone, on everything, `accumulate` parts at a time). */
static void train(model *m, km_optimizer *o, bool alone, bool early, int accumulate) {
    int rows = alone ? BATCH : BATCH / 2, base = alone ? 0 : rows * rank, part = rows / accumulate;
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(km_optimizer_set(ctx, o, 0.01, accumulate), KM_OK);
        for (int k = 0; k < accumulate; k++) {
            if (early && k == accumulate - 1) km_optimizer_last_backward(ctx, o);
            km_backward(ctx, loss_of(m, step, base + k * part, part));
        }
        assert_int_equal(km_optimizer_step(ctx, o), KM_OK);
        km_optimizer_zero_grad(ctx, o);
        km_step_end(ctx);
    }
}

/* The largest difference, and the same weights on both ranks. */
static double compare(const float *a, const float *b) {
    double most = 0;
    for (int i = 0; i < ALL; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static void two_ranks_learn_what_one_learns(void **state) {
    (void)state;
    static const struct {
        km_dtype d;
        double tolerance;
    } forms[] = {{KM_F32, 2e-6}, {KM_BF16, 8e-3}};
    for (int f = 0; f < 2; f++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            static float start[ALL], want[ALL], got[ALL], other[ALL];
            model one = make(forms[f].d, 0), two = make(forms[f].d, rank * 100);
            km_optim_settings how = settings();
            km_optimizer *a = km_optimizer_new(ctx, &one.params, &how);
            km_optimizer *b = km_optimizer_new_ranks(ctx, &two.params, &how, comm);
            assert_non_null(a);
            assert_non_null(b);
            read_params(&one, start);
            train(&one, a, true, false, 1);
            train(&two, b, false, true, accumulate);
            read_params(&one, want);
            read_params(&two, got);
            assert_true(compare(want, got) < forms[f].tolerance);
            assert_true(compare(want, start) > 1e-2);
            assert_memory_equal(start + ALL - 7, got + ALL - 7, 7 * sizeof *got); /* unused */
            memcpy(other, got, sizeof other);
            km_comm_broadcast(comm, 0, other, sizeof other, NULL);
            assert_memory_equal(got, other, sizeof got);
            km_optim_report r = {.size = sizeof r}, s = {.size = sizeof s};
            km_optimizer_report(ctx, a, &r);
            km_optimizer_report(ctx, b, &s);
            assert_true(fabs(r.norm - s.norm) < 1e-2 * r.norm);
            assert_int_equal(s.steps, STEPS);
            clear(&one, a);
            clear(&two, b);
        }
}

static void reducing_early_or_late_gives_the_same_bits_every_time(void **state) {
    (void)state;
    static float first[ALL], again[ALL];
    for (int run = 0; run < 3; run++) {
        model m = make(KM_BF16, 0);
        km_optim_settings how = settings();
        km_optimizer *o = km_optimizer_new_ranks(ctx, &m.params, &how, comm);
        train(&m, o, false, run != 1, 1);
        read_params(&m, run ? again : first);
        if (run) assert_memory_equal(first, again, sizeof first);
        clear(&m, o);
    }
}

static void each_rank_keeps_about_half_of_the_state(void **state) {
    (void)state;
    model one = make(KM_BF16, 0), two = make(KM_BF16, 0);
    km_optim_settings how = settings();
    km_optimizer *a = km_optimizer_new(ctx, &one.params, &how);
    km_optimizer *b = km_optimizer_new_ranks(ctx, &two.params, &how, comm);
    assert_true((double)km_optimizer_state_bytes(b) < 0.6 * (double)km_optimizer_state_bytes(a));
    assert_int_equal(km_optimizer_states(a), km_optimizer_states(b));
    clear(&one, a);
    clear(&two, b);
}

static void the_state_is_complete_on_both_ranks_and_comes_back(void **state) {
    (void)state;
    static float x[ALL], y[ALL], buffer[HIDDEN * IN], other[HIDDEN * IN];
    model m = make(KM_BF16, 0), n = make(KM_BF16, 5);
    km_optim_settings how = settings();
    km_optimizer *from = km_optimizer_new_ranks(ctx, &m.params, &how, comm);
    train(&m, from, false, true, 1);
    km_optimizer *to = km_optimizer_new_ranks(ctx, &n.params, &how, comm);
    for (int i = 0; i < PARAMS; i++) km_assign(ctx, n.params.at[i].t, m.params.at[i].t);
    for (int i = 0; i < km_optimizer_states(from); i++) {
        memset(buffer, 0xff, sizeof buffer);
        assert_int_equal(km_optimizer_read_state(ctx, from, i, buffer), KM_OK);
        size_t bytes = 4 * (size_t)km_shape_count(km_optimizer_state(from, i).shape);
        memcpy(other, buffer, bytes);
        km_comm_broadcast(comm, 1, other, bytes, NULL);
        assert_memory_equal(buffer, other, bytes);
        assert_int_equal(km_optimizer_write_state(ctx, to, i, buffer), KM_OK);
    }
    train(&m, from, false, true, 1);
    train(&n, to, false, true, 1);
    read_params(&m, x);
    read_params(&n, y);
    assert_memory_equal(x, y, sizeof x);
    clear(&m, from);
    clear(&n, to);
}

static void a_bad_gradient_on_one_rank_stops_the_step_on_all(void **state) {
    (void)state;
    static float before[ALL], after[ALL];
    model m = make(KM_F32, 0);
    km_optim_settings how = settings();
    km_optimizer *o = km_optimizer_new_ranks(ctx, &m.params, &how, comm);
    km_optim_report r = {.size = sizeof r};
    read_params(&m, before);
    km_optimizer_set(ctx, o, 0.1, 1);
    km_optimizer_last_backward(ctx, o);
    km_tensor *loss = loss_of(&m, 0, 0, BATCH);
    km_backward(ctx, rank == 1 ? km_mul_scalar(ctx, loss, INFINITY) : loss);
    assert_int_equal(km_optimizer_step(ctx, o), KM_OK);
    km_optimizer_report(ctx, o, &r);
    assert_true(r.skipped);
    read_params(&m, after);
    assert_memory_equal(before, after, sizeof before);
    clear(&m, o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_learn_what_one_learns),
        cmocka_unit_test(reducing_early_or_late_gives_the_same_bits_every_time),
        cmocka_unit_test(each_rank_keeps_about_half_of_the_state),
        cmocka_unit_test(the_state_is_complete_on_both_ranks_and_comes_back),
        cmocka_unit_test(a_bad_gradient_on_one_rank_stops_the_step_on_all),
    };
    int code = run_as_ranks(2);
    if (code >= 0) return code;
    km_error err = {0};
    const char *device = getenv("KM_TEST_DEVICE"); /* "cuda": through the host's memory */
    ctx = km_ctx_new(device ? device : "cpu", 1);
    comm = km_comm_open("auto", ctx, &err);
    if (!comm || km_comm_size(comm) != 2) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rank = km_comm_rank(comm);
    km_reducer_bucket_bytes = 3000; /* three buckets */
    code = cmocka_run_group_tests(tests, NULL, NULL);
    if (code == 0) km_comm_close(comm); /* a rank that failed must not wait for the others */
    km_ctx_free(ctx);
    return code;
}
