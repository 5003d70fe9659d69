/* The optimiser: PyTorch's numbers, what a bad gradient does, the loss scale, frozen parameters, and
 * the state that goes to a checkpoint and comes back. */
#include "base/alloc.h"
#include "nn/optim.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST = 9, SECOND = 5, ALL = FIRST + SECOND };

typedef struct model {
    km_ctx *ctx;
    km_param_list params;
} model;

static uint16_t to_half(km_dtype d, float v) {
    return d == KM_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
}
static float from_half(km_dtype d, uint16_t v) {
    return d == KM_F16 ? km_f16_to_f32(v) : km_bf16_to_f32(v);
}

static void write_floats(km_ctx *ctx, km_tensor *t, const float *v) {
    uint16_t half[64];
    size_t n = (size_t)km_tensor_count(t);
    km_dtype d = km_tensor_dtype(t);
    for (size_t i = 0; i < n; i++) half[i] = to_half(d, v[i]);
    if (d == KM_F32)
        km_write(ctx, t, v, n * 4);
    else
        km_write(ctx, t, half, n * 2);
}

static void read_floats(km_ctx *ctx, km_tensor *t, float *v) {
    uint16_t half[64];
    size_t n = (size_t)km_tensor_count(t);
    km_dtype d = km_tensor_dtype(t);
    if (d == KM_F32) {
        assert_int_equal(km_read(ctx, t, v, n * 4), KM_OK);
        return;
    }
    assert_int_equal(km_read(ctx, t, half, n * 2), KM_OK);
    for (size_t i = 0; i < n; i++) v[i] = from_half(d, half[i]);
}

/* Two parameters, the second without decay. */
static model make(const char *device, km_dtype dtype, const float *start) {
    model m = {.ctx = km_ctx_new(device, 2)};
    assert_non_null(m.ctx);
    km_tensor *a =
        km_param_add(m.ctx, &m.params, dtype, KM_SHAPE(3, 3), true, "layer.%d.weight", 1);
    km_tensor *b = km_param_add(m.ctx, &m.params, dtype, KM_SHAPE(SECOND), false, "layer.1.bias");
    write_floats(m.ctx, a, start);
    write_floats(m.ctx, b, start + FIRST);
    assert_int_equal(km_ctx_status(m.ctx), KM_OK);
    return m;
}

static void destroy(model *m, km_optimizer *o) {
    km_optimizer_free(o);
    km_param_clear(&m->params);
    km_ctx_free(m->ctx);
}

/* Gradients of these very values: those of the sum of p * g. */
static km_tensor *loss_for(model *m, const float *g) {
    km_tensor *total = NULL;
    for (int i = 0; i < m->params.n; i++) {
        km_tensor *p = m->params.at[i].t,
                  *c = km_zeros(m->ctx, km_tensor_dtype(p), km_tensor_shape(p));
        write_floats(m->ctx, c, i ? g + FIRST : g);
        km_tensor *s = km_cast(m->ctx, km_mul(m->ctx, p, c), KM_F32);
        s = km_sum(m->ctx, s, NULL, 0, false);
        total = total ? km_add(m->ctx, total, s) : s;
    }
    return total;
}

static void train(model *m, km_optimizer *o, double lr, const float *g) {
    assert_int_equal(km_optimizer_set(m->ctx, o, lr, 1), KM_OK);
    km_backward(m->ctx, km_optimizer_scale_loss(m->ctx, o, loss_for(m, g)));
    assert_int_equal(km_optimizer_step(m->ctx, o), KM_OK);
    km_optimizer_zero_grad(m->ctx, o);
    km_step_end(m->ctx);
}

/* ---- PyTorch ---- */

static FILE *open_fixtures(void) {
    char path[1024];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/optim.txt", src ? src : ".");
    return fopen(path, "r");
}

static bool next_word(FILE *f, char word[16]) {
    char line[1024];
    for (;;) {
        if (fscanf(f, " %15s", word) != 1) return false;
        if (word[0] != '#') return true;
        if (!fgets(line, sizeof line, f)) return false;
    }
}

static void read_values(FILE *f, const char *want, float *v) {
    char word[16];
    assert_true(next_word(f, word));
    assert_string_equal(word, want);
    for (int i = 0; i < ALL; i++) assert_int_equal(fscanf(f, "%f", &v[i]), 1);
}

static void close_to(float got, double want, double tolerance) {
    assert_true(fabs((double)got - want) <= tolerance * fmax(1, fabs(want)));
}

static void one_case(FILE *f, const char *device) {
    char kind[8], dtype[8];
    float start[ALL], g[ALL], want[ALL], got[ALL];
    km_optim_settings how = {.size = sizeof how};
    int nesterov;
    assert_int_equal(fscanf(f, "%7s %7s %lf %d %lf %lf %lf %lf %lf", kind, dtype, &how.momentum,
                            &nesterov, &how.beta1, &how.beta2, &how.eps, &how.weight_decay,
                            &how.max_norm),
                     9);
    how.nesterov = nesterov;
    how.kind = strcmp(kind, "sgd") == 0    ? KM_OPTIM_SGD
               : strcmp(kind, "adam") == 0 ? KM_OPTIM_ADAM
                                           : KM_OPTIM_ADAMW;
    km_dtype d = strcmp(dtype, "f32") == 0 ? KM_F32 : strcmp(dtype, "f16") == 0 ? KM_F16 : KM_BF16;
    read_values(f, "start", start);
    model m = make(device, d, start);
    km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
    assert_non_null(o);
    for (int step = 0; step < 10; step++) {
        char word[16];
        double lr, norm;
        km_optim_report r = {.size = sizeof r};
        assert_true(next_word(f, word));
        assert_int_equal(fscanf(f, "%lf %lf", &lr, &norm), 2);
        read_values(f, "grad", g);
        read_values(f, "weight", want);
        train(&m, o, lr, g);
        assert_int_equal(km_optimizer_report(m.ctx, o, &r), KM_OK);
        close_to((float)r.norm, norm, 1e-6);
        assert_int_equal(r.steps, step + 1);
        assert_false(r.skipped);
        for (int i = 0; i < 2; i++) {
            float *w = i ? got + FIRST : got, p[FIRST];
            int n = i ? SECOND : FIRST;
            read_floats(m.ctx, m.params.at[i].t, d == KM_F32 ? w : p);
            if (d == KM_F32) continue;
            /* The f32 weights behind, of which the parameters are the rounding. */
            int at =
                km_optimizer_find_state(o, i ? "optim.w.layer.1.bias" : "optim.w.layer.1.weight");
            assert_int_equal(km_optimizer_read_state(m.ctx, o, at, w), KM_OK);
            for (int k = 0; k < n; k++) assert_true(p[k] == from_half(d, to_half(d, w[k])));
        }
        for (int i = 0; i < ALL; i++) close_to(got[i], (double)want[i], 1e-6);
    }
    destroy(&m, o);
}

static void ten_steps_are_those_of_pytorch(void **state) {
    (void)state;
    for (int device = 0; device < 2; device++) {
        FILE *f = open_fixtures();
        char word[16];
        int cases = 0;
        assert_non_null(f);
        while (next_word(f, word)) {
            assert_string_equal(word, "case");
            one_case(f, device ? "ref" : "cpu");
            cases++;
        }
        assert_int_equal(cases, 9);
        fclose(f);
    }
}

/* ---- Steps that must not count ---- */

static const float ones[ALL] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void read_all(model *m, float v[ALL]) {
    read_floats(m->ctx, m->params.at[0].t, v);
    read_floats(m->ctx, m->params.at[1].t, v + FIRST);
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state) {
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        float before[ALL], after[ALL], g[ALL], m1[ALL], m2[ALL];
        model m = make("cpu", KM_F32, ones);
        km_optim_settings how = km_optim_defaults();
        km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
        km_optim_report r = {.size = sizeof r};
        memcpy(g, ones, sizeof g);
        train(&m, o, 0.1, g);
        read_all(&m, before);
        km_optimizer_read_state(m.ctx, o, 0, m1);
        g[11] = bad[k];
        train(&m, o, 0.1, g);
        read_all(&m, after);
        km_optimizer_read_state(m.ctx, o, 0, m2);
        assert_memory_equal(before, after, sizeof before);
        assert_memory_equal(m1, m2, FIRST * sizeof *m1);
        km_optimizer_report(m.ctx, o, &r);
        assert_true(r.skipped);
        assert_false(isfinite(r.norm));
        assert_int_equal(r.steps, 1);
        assert_int_equal(r.skips, 1);
        train(&m, o, 0.1, ones);
        km_optimizer_report(m.ctx, o, &r);
        assert_false(r.skipped);
        assert_int_equal(r.steps, 2);
        read_all(&m, after);
        assert_true(after[0] < before[0]);
        destroy(&m, o);
    }
}

static void the_loss_scale_grows_and_is_halved_by_overflow(void **state) {
    (void)state;
    model m = make("cpu", KM_F16, ones), plain = make("cpu", KM_F16, ones);
    km_optim_settings how = km_optim_defaults();
    km_optimizer *reference = km_optimizer_new(plain.ctx, &plain.params, &how);
    how.loss_scale = 1024;
    how.growth_every = 3;
    km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
    const double scale[] = {1024, 1024, 2048, 2048, 2048, 4096};
    float g[ALL], a[ALL], b[ALL];
    km_optim_report r = {.size = sizeof r};
    for (int step = 0; step < 6; step++) {
        train(&m, o, 0.01, ones);
        train(&plain, reference, 0.01, ones);
        km_optimizer_report(m.ctx, o, &r);
        assert_true(r.loss_scale == scale[step]);
        assert_true(fabs(r.norm - sqrt(ALL)) < 1e-5); /* of the gradients, not of the scaled ones */
    }
    read_all(&m, a);
    read_all(&plain, b);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < ALL; i++) g[i] = 20; /* 20 * 4096 is more than f16 holds */
    train(&m, o, 0.01, g);
    km_optimizer_report(m.ctx, o, &r);
    assert_true(r.skipped);
    assert_true(r.loss_scale == 2048);
    read_all(&m, b);
    assert_memory_equal(a, b, sizeof a);
    destroy(&m, o);
    destroy(&plain, reference);
}

/* ---- Groups, accumulation ---- */

static void a_frozen_parameter_has_no_state_and_stays(void **state) {
    (void)state;
    model m = make("cpu", KM_BF16, ones);
    km_optim_settings how = km_optim_defaults();
    assert_int_equal(km_param_freeze(m.ctx, &m.params, "*.bias", true), 1);
    km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
    float v[ALL];
    assert_int_equal(km_optimizer_trained(o), FIRST);
    assert_int_equal(km_optimizer_states(o), 4); /* m, v, w of one, and the control */
    assert_int_equal(km_optimizer_find_state(o, "optim.m.layer.1.bias"), -1);
    train(&m, o, 0.1, ones);
    read_all(&m, v);
    assert_true(v[0] < 1 && v[FIRST] == 1);
    km_optimizer_free(o);
    km_param_freeze(m.ctx, &m.params, "*", true);
    assert_null(km_optimizer_new(m.ctx, &m.params, &how));
    assert_int_equal(km_ctx_status(m.ctx), KM_ERR_RANGE);
    destroy(&m, NULL);
}

static void accumulated_gradients_are_averaged(void **state) {
    (void)state;
    model one = make("cpu", KM_F32, ones), two = make("cpu", KM_F32, ones);
    km_optim_settings how = {.size = sizeof how, .kind = KM_OPTIM_SGD, .weight_decay = 0.1};
    km_optimizer *a = km_optimizer_new(one.ctx, &one.params, &how);
    km_optimizer *b = km_optimizer_new(two.ctx, &two.params, &how);
    float g[ALL], x[ALL], y[ALL];
    for (int i = 0; i < ALL; i++) g[i] = 3;
    train(&one, a, 0.5, (const float[ALL]){2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2});
    km_optimizer_set(two.ctx, b, 0.5, 2);
    km_backward(two.ctx, loss_for(&two, g));
    km_step_end(two.ctx);
    km_backward(two.ctx, loss_for(&two, ones));
    km_optimizer_step(two.ctx, b);
    read_all(&one, x);
    read_all(&two, y);
    assert_memory_equal(x, y, sizeof x);
    assert_true(fabs((double)x[0] - (1 - 0.5 * 2.1)) < 1e-6);
    assert_true(x[FIRST] == 0); /* no decay: 1 - 0.5 * 2 */
    destroy(&one, a);
    destroy(&two, b);
}

static void a_parameter_without_a_gradient_is_left_alone(void **state) {
    (void)state;
    model m = make("cpu", KM_F32, ones);
    km_optim_settings how = km_optim_defaults();
    km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
    float v[ALL];
    km_optimizer_set(m.ctx, o, 0.1, 1);
    km_backward(m.ctx, km_sum(m.ctx, m.params.at[1].t, NULL, 0, false));
    assert_int_equal(km_optimizer_step(m.ctx, o), KM_OK);
    read_all(&m, v);
    assert_true(v[0] == 1 && v[FIRST] < 1);
    km_optimizer_zero_grad(m.ctx, o);
    assert_int_equal(km_optimizer_step(m.ctx, o), KM_ERR_STATE);
    destroy(&m, o);
}

/* ---- Checkpoints ---- */

static void state_written_back_continues_bit_for_bit(void **state) {
    (void)state;
    static const km_dtype dtypes[] = {KM_F32, KM_BF16, KM_F16};
    for (int d = 0; d < 3; d++) {
        model a = make("cpu", dtypes[d], ones), b = make("cpu", dtypes[d], ones);
        km_optim_settings how = km_optim_defaults();
        if (dtypes[d] == KM_F16) how.loss_scale = 256, how.growth_every = 4;
        km_optimizer *from = km_optimizer_new(a.ctx, &a.params, &how);
        km_optimizer *to = km_optimizer_new(b.ctx, &b.params, &how);
        float g[ALL], x[ALL], y[ALL];
        for (int i = 0; i < ALL; i++) g[i] = (float)sin(i);
        for (int step = 0; step < 3; step++) train(&a, from, 0.05, g);
        for (int i = 0; i < km_optimizer_states(from); i++) {
            float buffer[64];
            km_optim_state s = km_optimizer_state(from, i);
            assert_int_equal(km_optimizer_read_state(a.ctx, from, i, buffer), KM_OK);
            assert_int_equal(km_optimizer_find_state(to, s.name), i);
            assert_int_equal(km_optimizer_write_state(b.ctx, to, i, buffer), KM_OK);
        }
        read_all(&a, x);
        write_floats(b.ctx, b.params.at[0].t, x);
        write_floats(b.ctx, b.params.at[1].t, x + FIRST);
        for (int step = 0; step < 3; step++) {
            train(&a, from, 0.05, g);
            train(&b, to, 0.05, g);
            read_all(&a, x);
            read_all(&b, y);
            assert_memory_equal(x, y, sizeof x);
        }
        km_optim_report r = {.size = sizeof r};
        km_optimizer_report(b.ctx, to, &r);
        assert_int_equal(r.steps, 6);
        assert_true(r.loss_scale == (dtypes[d] == KM_F16 ? 512 : 1));
        destroy(&a, from);
        destroy(&b, to);
    }
}

static void impossible_settings_are_refused(void **state) {
    (void)state;
    model m = make("cpu", KM_F32, ones);
    km_optim_settings bad[6];
    for (int i = 0; i < 6; i++) bad[i] = km_optim_defaults();
    bad[0].beta1 = 1;
    bad[1].beta2 = -0.1;
    bad[2].kind = KM_OPTIM_SGD, bad[2].momentum = 1;
    bad[3].weight_decay = -1;
    bad[4].max_norm = NAN;
    bad[5].loss_scale = 1e30;
    for (int i = 0; i < 6; i++) {
        assert_null(km_optimizer_new(m.ctx, &m.params, &bad[i]));
        assert_int_equal(km_ctx_status(m.ctx), KM_ERR_RANGE);
        km_ctx_clear_error(m.ctx);
    }
    km_optim_settings how = km_optim_defaults();
    km_optimizer *o = km_optimizer_new(m.ctx, &m.params, &how);
    assert_int_equal(km_optimizer_set(m.ctx, o, NAN, 1), KM_ERR_RANGE);
    km_ctx_clear_error(m.ctx);
    assert_int_equal(km_optimizer_set(m.ctx, o, 0.1, 0), KM_ERR_RANGE);
    destroy(&m, o);
}

/* Out of memory at any point: an error, nothing leaked, and the next try works. */
static void running_out_of_memory_is_survived(void **state) {
    (void)state;
    model m = make("cpu", KM_BF16, ones);
    km_optim_settings how = km_optim_defaults();
    km_optimizer *o = NULL;
    for (int nth = 0; nth < 200 && !o; nth++) {
        km_alloc_fail_nth(nth);
        o = km_optimizer_new(m.ctx, &m.params, &how);
        km_alloc_fail_nth(-1);
        if (!o) assert_int_equal(km_ctx_status(m.ctx), KM_ERR_MEMORY);
        km_ctx_clear_error(m.ctx);
        km_step_end(m.ctx);
    }
    assert_non_null(o);
    train(&m, o, 0.1, ones);
    destroy(&m, o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_are_those_of_pytorch),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(the_loss_scale_grows_and_is_halved_by_overflow),
        cmocka_unit_test(a_frozen_parameter_has_no_state_and_stays),
        cmocka_unit_test(accumulated_gradients_are_averaged),
        cmocka_unit_test(a_parameter_without_a_gradient_is_left_alone),
        cmocka_unit_test(state_written_back_continues_bit_for_bit),
        cmocka_unit_test(impossible_settings_are_refused),
        cmocka_unit_test(running_out_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
